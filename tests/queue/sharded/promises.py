"""The promises of P5, each a function that takes a world and fails if the promise is broken.

They run over every backend (`test_promises`). Faults at every call of a move or a sweep are struck by `tests/sim`.
"""

from __future__ import annotations

import pytest

from latchwork.errors import LeaseLost, Unavailable
from latchwork.queue.sharded.envelope import Envelope
from latchwork.queue.sharded.slots import Slot, WriteResult
from latchwork.queue.sharded.subqueue import GRACE
from latchwork.queue.sharded.transfer import into, move
from latchwork.store import Exists, Put
from latchwork.testing.stores import Fault

from .world import World, dies


def slow_producer_is_waited_for(world: World) -> None:
    """A consumer that comes between reserve and write tries again for the grace, and gets the message."""
    producer, consumer = world.process().queue.pointers, world.process()
    slot = Slot(0, producer.reserve({0: 1})[0])
    world.clock.at(GRACE / 2, lambda: producer.write([slot], [Envelope('"slow"', "m1")]))
    (delivery,) = consumer.receive()
    assert (delivery.message_id, delivery.shard, delivery.pointer) == ("m1", *slot)
    assert consumer.queue.depth().loaded == 1


def _between_reserve_and_write(process, action) -> None:
    """Do something just before the second call of the next publish."""
    process.store.plan[process.store._number + 2] = action


def slow_producer_publishes_again(world: World) -> None:
    """A producer whose slot was given up learns it from the tombstone, and its message comes without any sweep."""
    producer, consumer = world.process(), world.process()
    early: list = []
    _between_reserve_and_write(producer, lambda: early.extend(consumer.receive()))
    message_id = producer.queue.publish("slow")
    assert early == []
    assert [d.message_id for d in consumer.receive()] == [message_id]


def slow_producer_whose_consumer_died_is_not_passed(world: World) -> None:
    """Reserve; a consumer claims and dies before its stamp; sweeps run; the write comes in time: it is not lost."""
    producer, consumer = world.process(), world.process()
    sweeper = world.process().sweeper()

    def meanwhile() -> None:
        consumer.store.plan[consumer.store._number + 3] = "crash_before"  # look, claim, stamp
        assert dies(consumer.queue.receive)
        sweeper.run_once()
        world.pass_time(world.seconds * 0.3)
        sweeper.run_once()

    _between_reserve_and_write(producer, meanwhile)
    message_id = producer.queue.publish("slow")
    sweeper.run_once()
    world.lapse()
    sweeper.run_once()
    world.lapse()
    sweeper.run_once()
    world.recover(sweeps=2)
    assert not world.lost([message_id])


def late_producer_does_not_acknowledge(world: World) -> None:
    """A write acknowledged later than half the sweep duration is not trusted: the slot may have been passed."""
    producer, consumer = world.process(), world.process()
    sweeper = world.process().sweeper()

    def meanwhile() -> None:
        consumer.store.plan[consumer.store._number + 3] = "crash_before"
        assert dies(consumer.queue.receive)
        for _ in range(3):
            sweeper.run_once()
            world.lapse()

    _between_reserve_and_write(producer, meanwhile)
    message_id = producer.queue.publish("late")
    for _ in range(3):
        sweeper.run_once()
        world.lapse()
    fresh = world.process()
    received = fresh.queue.receive(10)
    assert message_id in {d.message_id for d in received}


def abandoned_messages_go_to_the_sideline(world: World) -> None:
    """Handed out, never acknowledged: after the sweep duration it is in the sideline, once, with its history."""
    world.take_time()
    process = world.process()
    ids = process.queue.publish_many(["a", "b", "c"])
    first = process.receive()
    assert len(first) == 3
    first[1].ack()
    sweeper = world.process().sweeper()
    sweeper.run_once()
    world.lapse()
    report = sweeper.run_once()
    assert (report.rehomed, report.acked, report.refused) == (2, 1, 0)
    peeked = process.queue.sideline.peek()
    assert {m.message_id for m in peeked} == {ids[0], ids[2]}
    assert {(m.reason, m.attempts) for m in peeked} == {("swept", 1)}
    world.waits = False  # nothing more has to become old on the server
    world.lapse()
    assert sweeper.run_once().scanned == 0


def live_messages_are_left_alone(world: World) -> None:
    """A message that is extended in time is neither taken nor passed; what is abandoned behind it is moved."""
    world.take_time()
    process = world.process()
    process.queue.publish_many(["live", "dead", "done"])
    live, _, done = process.receive(3)
    sweeper = world.process().sweeper()
    sweeper.run_once()
    world.lapse()
    live.extend()
    done.ack()
    report = sweeper.run_once()
    assert report.rehomed == 1
    (shard,) = report.shards
    assert (shard.stop.value, shard.swept, shard.live) == ("live", live.pointer - 1, 1)
    live.ack()
    world.waits = False  # nothing more has to become old on the server
    world.recover(sweeps=3)
    assert process.registry.records.read("q", "sweepPointers")["sweepPointers"][str(live.shard)] == 3


def a_stale_receipt_acknowledges_nothing(world: World) -> None:
    """After a message was given to somebody else, the first receipt can neither delete nor extend it."""
    process = world.process()
    process.queue.publish("once")
    (stale,) = process.receive()
    slot = Slot(stale.shard, stale.pointer)
    process.queue.pointers.stamp([slot], "another delivery")
    for settle in (stale.ack, stale.extend):
        with pytest.raises(LeaseLost):
            settle()
    assert world.store.get(process.queue.pointers.key(slot)) is not None


def a_stamp_that_lands_late_takes_no_live_delivery(world: World) -> None:
    """The first stamp finds no message yet, the second one does; then the first one arrives: it changes nothing."""
    producer, consumer = world.process().queue.pointers, world.process()
    slot = Slot(0, producer.reserve({0: 1})[0])
    consumer.store.plan[consumer.store._number + 3] = Fault("late")  # look, claim, stamp
    consumer.store.plan[consumer.store._number + 5] = lambda: producer.write([slot], [Envelope('"m"', "m1")])
    (delivery,) = consumer.receive()
    consumer.store.deliver()
    assert delivery.attempts == world.store.get(producer.key(slot)).bins["attempts"] == 1
    delivery.ack()
    assert world.store.get(producer.key(slot)) is None


def a_failed_load_leaves_the_message(world: World) -> None:
    """Where the sideline refuses, a failing message stays where it is, and a sweep brings it there later."""
    for reserve_or_write in (1, 2):
        process = world.process()
        message_id = process.queue.publish("x")
        (delivery,) = process.receive()
        process.fails(range(reserve_or_write, reserve_or_write + 3), "dropped")
        with pytest.raises(Unavailable):
            delivery.nack()
        world.handled.clear()
        world.recover()
        assert not world.lost([message_id]), reserve_or_write


def a_deposed_leader_does_no_harm(world: World) -> None:
    """A leader that wakes in the middle of a sweep after another has swept: its pointer write is refused."""
    process = world.process()
    ids = process.queue.publish_many(["a", "b", "c"])
    process.queue.receive(10)
    world.lapse()
    old, new = world.process(), world.process()
    sleeper, successor = old.sweeper(epoch=5), new.sweeper(epoch=6)

    def meanwhile() -> None:
        successor.run_once()
        world.lapse()
        successor.run_once()

    old.store.plan[old.store._number + 5] = meanwhile  # after it has taken, before it has loaded
    report = sleeper.run_once()
    assert not report.ok
    record = process.registry.records.read("q")
    assert record["epoch"] == 6
    world.epochs = iter(range(7, 100))
    world.recover(sweeps=3)
    assert not world.lost(ids)


def two_sweepers_at_once_move_each_message_once(world: World) -> None:
    """Both believe to lead and sweep the same shard: what one has taken the other leaves."""
    world.take_time()
    process = world.process()
    ids = process.queue.publish_many(["a", "b", "c"])
    process.queue.receive(10)
    world.lapse()
    one, two = world.process(), world.process()
    first, second = one.sweeper(epoch=3), two.sweeper(epoch=3)
    moved = []
    one.store.plan[one.store._number + 5] = lambda: moved.append(second.run_once().rehomed)
    moved.append(first.run_once().rehomed)
    assert sorted(moved) == [0, 3]
    assert sorted(m.message_id for m in process.queue.sideline.peek()) == sorted(ids)


def sweeping_again_changes_nothing(world: World) -> None:
    """A sweep that is repeated at once finds nothing to do."""
    process = world.process()
    process.queue.publish_many(["a", "b"])
    process.queue.receive(10)
    world.lapse()
    sweeper = world.process().sweeper()
    assert sweeper.run_once().rehomed == 2
    assert sweeper.run_once().rehomed == 0
    assert process.queue.depth().sideline == 2


def a_stepped_server_clock_ages_no_slot(world: World) -> None:
    """The server's clock leaps; an empty slot is passed only once the leader's own clock agrees."""
    producer, consumer = world.process(), world.process()
    leader = world.process()
    sweeper = leader.sweeper()

    def meanwhile() -> None:
        consumer.store.plan[consumer.store._number + 3] = "crash_before"
        assert dies(consumer.queue.receive)
        sweeper.run_once()
        world.clock.step(10 * world.seconds)
        sweeper.run_once()
        sweeper.run_once()

    _between_reserve_and_write(producer, meanwhile)
    message_id = producer.queue.publish("slow")
    world.clock.step(-10 * world.seconds)
    world.recover()
    assert not world.lost([message_id])


def a_message_that_kills_its_consumers_is_parked(world: World) -> None:
    """Attempts are counted when it is handed out: over the limit it is parked before it runs again."""
    world.options["max_deliveries"] = 2
    process = world.process()
    message_id = process.queue.publish("poison")
    for attempt in (1, 2):
        (delivery,) = process.queue.receive()
        assert delivery.attempts == attempt
        process.queue.pointers.claim(delivery.shard, 1)
        _hand_out_again(world, process, delivery)
    assert process.queue.receive() == []
    (parked,) = process.queue.parked.peek()
    assert (parked.message_id, parked.reason, parked.attempts) == (message_id, "exhausted", 2)
    assert process.queue.depth().ready == 0


def _hand_out_again(world: World, process, delivery) -> None:
    """What sweep and shovel come to: the message again in the queue, with its history."""
    queue = process.queue.pointers
    move([delivery.held], into(queue), [delivery.held.envelope], queue.remove)
    process.queue.active.loaded([delivery.shard])


def a_marked_message_leaves_its_id(world: World) -> None:
    """A message of a ledger loses its payload when it is deleted, and a late retry of its publisher finds it done."""
    process = world.process()
    queue = process.queue.pointers
    marked = Envelope('"x"', "ledger-1", enqueued_at=1, keep_id=3600)
    slot = Slot(0, queue.reserve({0: 1})[0])
    assert queue.write([slot], [marked]) == [WriteResult.DONE]
    (delivery,) = process.queue.receive()
    delivery.ack()
    record = world.store.get(queue.key(slot))
    assert record is not None
    assert record.bins["msgId"] == "ledger-1"
    assert "data" not in record.bins
    assert 3000 < record.ttl <= 3600
    assert queue.write([slot], [marked]) == [WriteResult.DONE]
    assert queue.stamp([slot], "late")[0] != marked
    with pytest.raises(LeaseLost):
        delivery.ack()
    world.lapse()
    sweeper = process.sweeper()
    assert sweeper.run_once().rehomed == 0


def a_tombstone_is_never_taken_for_a_message(world: World) -> None:
    """A slot with something else in it is spent, and nobody stamps, deletes or moves what is there."""
    process = world.process()
    queue = process.queue.pointers
    slot = Slot(0, queue.reserve({0: 1})[0])
    assert queue.write_tombstones([slot]) == [True]
    assert process.queue.receive() == []
    record = world.store.get(queue.key(slot))
    assert record is not None
    assert record.bins.keys() == {"modified_at", "v"}
    world.lapse(0.8)
    report = process.sweeper().run_once()
    assert (report.rehomed, report.tombstones) == (0, 1)


def a_foreign_record_is_not_overwritten(world: World) -> None:
    """A record that is at the pointer already, whoever wrote it, makes the publisher take the next one."""
    process = world.process()
    queue = process.queue.pointers
    for shard in range(world.shards):
        world.store.operate(queue.key(Slot(shard, 1)), Put("msgId", "theirs"), exists=Exists.CREATE)
    message_id = process.queue.publish("mine")
    (delivery,) = process.receive()
    assert (delivery.message_id, delivery.pointer) == (message_id, 2)


SIMULATED_ONLY = {a_stepped_server_clock_ages_no_slot}
"""Those that move the server's clock."""
MANY_WAITS = {
    late_producer_does_not_acknowledge, a_failed_load_leaves_the_message, sweeping_again_changes_nothing
}  # fmt: skip
"""Those that wait for many sweep durations, too slow where waiting is real."""
ALL = [
    value
    for name, value in list(globals().items())
    if getattr(value, "__module__", "") == __name__ and not name.startswith("_")
]
