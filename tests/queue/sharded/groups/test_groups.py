"""Fan-out groups: every group gets every message, nothing waits for anybody but the message, and what that costs."""

from __future__ import annotations

import warnings
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest

from latchwork.errors import AlreadyExists, InvalidRequest, LatchworkError, LeaseLost, NotFound, Refused
from latchwork.queue import Consumer, QueueConfig, QueueRegistry, Shovel, ShovelConfig
from latchwork.queue.sharded import stream
from latchwork.queue.sharded.delayed.control import TAG
from latchwork.queue.sharded.envelope import Envelope
from latchwork.queue.sharded.groups import making
from latchwork.queue.sharded.groups.stamps import ACKED, STAMPS, TRIES
from latchwork.queue.sharded.ledger.ledger import Ledger, Outgoing
from latchwork.queue.sharded.pointers import FIRE
from latchwork.queue.sharded.selection import Outcome
from latchwork.queue.sharded.sides import look_at
from latchwork.queue.sharded.slots import Slot, WriteResult
from latchwork.queue.sharded.upkeep.sweeper import GONE
from latchwork.queue.sharded.upkeep.timers import Timers
from latchwork.store import MemoryStore, Put, SQLiteStore
from latchwork.testing import inject_everywhere
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore
from tests.queue.sharded.delayed.test_delayed import Farms, Term, run_until
from tests.queue.sharded.world import World, dies
from tests.support import struck


def payloads(view, n=1000):
    found = []
    while more := view.receive(n):
        found += [delivery.payload for delivery in more]
        view.ack_many(more)
    return sorted(found, key=str)


def left(world, queue):
    """The messages that are stored, wherever, by slot."""
    pointers = queue.pointers
    slots = [Slot(state.shard, n) for state in pointers.states() for n in range(1, state.loaded + 1)]
    records = world.store.get_many([pointers.key(slot) for slot in slots])
    return {
        slot: one.bins for slot, one in zip(slots, records, strict=True) if one and {"data", "shared"} & set(one.bins)
    }


def world_on(store):
    """A world on a store that `inject_everywhere` has made; its clients have one name in all worlds."""
    made = World(store, store.seams)
    made.client = "c"
    return made


@pytest.fixture
def unhurried(world):
    """The world, in which nothing is abandoned at once; named before `queue`."""
    world.take_time()
    return world


@pytest.fixture
def queue(world):
    made = world.process().queue
    yield made
    for group in made.groups():
        group.drop()


# ---- what a group gets


def test_every_group_and_the_queues_own_consumers_get_every_message_once(queue):
    groups = [queue.group(name) for name in ("audit", "billing", "search")]
    queue.publish("a", key="k", headers={"h": "1"}, message_id="mine")
    queue.publish_many(["b", "c"])
    for group in groups:
        found = {delivery.payload: delivery for delivery in group.receive(10)}
        assert sorted(found) == ["a", "b", "c"]
        assert (found["a"].message_id, found["a"].headers, found["a"].attempts) == ("mine", {"h": "1"}, 1)
        assert found["a"].shard == queue.shard_of("k")
        group.ack_many(found.values())
    assert payloads(queue) == ["a", "b", "c"]
    assert [payloads(view) for view in (queue, *groups)] == [[]] * 4


@pytest.mark.parametrize("last", ["audit", "billing", "the queue's own"])
def test_a_message_is_stored_once_and_goes_when_the_last_one_has_acknowledged_it(world, queue, last):
    views = {"audit": queue.group("audit"), "billing": queue.group("billing"), "the queue's own": queue}
    queue.publish("m")
    for name, view in sorted(views.items(), key=lambda one: one[0] == last):
        assert len(left(world, queue)) == 1
        assert payloads(view) == ["m"], name
    assert left(world, queue) == {}


def test_a_group_that_stands_still_holds_up_nobody(world, queue):
    audit, stalled = queue.group("audit"), queue.group("stalled")
    for n in range(5):
        queue.publish(n)
        assert payloads(audit) == payloads(queue) == [n]
    assert (audit.depth().ready, queue.depth().ready, stalled.depth().ready) == (0, 0, 5)
    assert payloads(stalled) == [0, 1, 2, 3, 4]
    assert left(world, queue) == {}


def test_bytes_and_other_payloads_come_to_all(world):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        queue = QueueRegistry(world.store, world.client, farm_id="f").create(
            QueueConfig("bytes", retry=False, shards=1, codec="bytes")
        )
    group = queue.group("audit")
    queue.publish(b"\0\xff")
    assert payloads(queue) == [b"\0\xff"]
    assert payloads(group) == [b"\0\xff"]
    assert left(world, queue) == {}
    group.drop()


def test_a_group_that_is_there_is_the_same_one_for_everybody(world, queue):
    audit = queue.group("audit", concurrency=3)
    queue.publish("m")
    other = world.process().queue.group("audit", start="oldest")
    assert [d.payload for d in other.receive(10)] == ["m"]
    assert audit.receive(10) == []
    assert (other.name, other.group_name, other.queue_name, other.concurrency) == ("q@audit", "audit", "q", 3)
    assert [group.name for group in queue.groups()] == ["q@audit"]
    assert queue.registry.get("q@audit") == audit


def test_a_group_that_was_deactivated_is_activated_by_who_asks_for_it(world, queue):
    queue.group("audit")
    queue.registry.deactivate("q@audit")
    with pytest.raises(InvalidRequest, match="is a group: ask for it again"):
        queue.registry.activate("q@audit")
    assert queue.group("audit").live.active
    assert [one.name for one in world.process().registry.queues()] == ["q", "q@audit"]


def test_a_group_of_one_queue_is_never_that_of_another_whatever_their_names(world):
    registry = world.process().registry
    one = registry.create(QueueConfig("a", retry=False, shards=2))
    other = registry.create(QueueConfig("a@b", retry=False, shards=2))
    group = one.group("b@c")
    with pytest.raises(AlreadyExists, match="is a group of the queue 'a'"):
        other.group("c")
    group.drop()
    assert other.group("c").queue_name == "a@b"


def test_a_process_that_only_knows_the_name_gets_the_group(world, queue):
    queue.group("audit")
    queue.publish("m")
    assert payloads(QueueRegistry(world.store, world.client, farm_id="f").get("q@audit")) == ["m"]


# ---- where it begins


def test_now_begins_with_what_is_published_from_then_on(queue):
    queue.publish("before")
    group = queue.group("audit")
    queue.publish("after")
    assert payloads(group) == ["after"]


def test_the_oldest_is_the_oldest_that_is_there_and_from_then_on_it_waits_for_the_group(world, queue):
    queue.publish_many(["gone", "handled later"])
    (first, second) = sorted(queue.receive(2), key=lambda d: d.payload)
    first.ack()
    group = queue.group("audit", start="oldest")
    (delivery,) = group.receive(10)
    assert delivery.payload == "handled later"
    second.ack()
    assert len(left(world, queue)) == 1, "its own consumer's acknowledgement leaves it to the group"
    delivery.ack()
    assert left(world, queue) == {}


def test_the_oldest_is_also_what_another_group_still_has(queue):
    slow = queue.group("slow")
    queue.publish("m")
    assert payloads(queue) == ["m"]
    late = queue.group("late", start="oldest")
    assert payloads(slow) == ["m"]
    queue.publish("n")
    assert payloads(late) == ["n"], "nobody was to wait for it"
    assert payloads(slow) == ["n"]


def test_a_time_begins_with_the_first_message_of_each_shard_that_was_published_then(simulated):
    queue = simulated.process().queue
    for n in range(6):
        queue.publish(n, key=str(n))
        simulated.clock.advance(60)
    since = datetime.fromtimestamp(simulated.clock.wall() - 150, timezone.utc)
    assert payloads(queue.group("audit", start=since)) == [4, 5]
    assert payloads(queue.group("late", start=since + timedelta(days=1))) == []


@pytest.mark.parametrize("wrote", ["before", "after"])
def test_a_message_in_flight_while_a_group_is_made_is_not_its(world, queue, wrote):
    """Reserved before it joined, whenever it is written, and by whatever process."""
    producer = world.process().queue.pointers
    (first,) = producer.reserve({0: 1}).values()
    if wrote == "before":
        producer.write([Slot(0, first)], [Envelope('"m"', "m")])
    group = queue.group("audit")
    if wrote == "after":
        world.process().queue.pointers.write([Slot(0, first)], [Envelope('"m"', "m")])
    queue.publish("next", key=next(str(n) for n in range(99) if queue.shard_of(str(n)) == 0))
    assert payloads(group) == ["next"]
    assert payloads(queue) == ["m", "next"]
    assert left(world, queue) == {}


def test_whoever_writes_a_slot_finds_the_groups_that_it_is_for(world, queue):
    """Two processes write slots of one shard; one has not looked since before the second group was made."""
    one, other = world.process().queue.pointers, world.process().queue.pointers
    queue.group("early")
    early = one.reserve({0: 1})[0]
    queue.group("late")
    late = other.reserve({0: 1})[0]
    one.write([Slot(0, late)], [Envelope('"late"', "late")])
    other.write([Slot(0, early)], [Envelope('"early"', "early")])
    assert payloads(queue.group("early")) == ["early", "late"]
    assert payloads(queue.group("late")) == ["late"]


def test_an_empty_slot_from_before_it_joined_is_passed_without_a_tombstone(world, queue):
    producer = world.process().queue.pointers
    producer.reserve({0: 1, 1: 1})
    group = queue.group("audit", start="oldest")
    assert group.receive(10) == []
    assert left(world, queue) == {}
    assert world.store.get(queue.pointers.key(Slot(0, 1))) is None
    producer.write([Slot(0, 1)], [Envelope('"slow"', "slow")])
    assert payloads(queue) == ["slow"]


def test_a_publisher_names_the_groups_though_another_thread_forgets_them_meanwhile(simulated, monkeypatch):
    """It does so where its own reservation was undone."""
    queue = simulated.process().queue
    group, members = queue.group("g"), queue.pointers.readers
    look = members._look

    def meanwhile(shards):
        found = look(shards)
        members.forget()
        return found

    monkeypatch.setattr(members, "_look", meanwhile)
    reserved = queue.pointers.reserve({0: 1})
    members.forget()
    assert queue.pointers.write([Slot(0, reserved[0])], [Envelope("7", "m", 0)]) == [WriteResult.DONE]
    assert payloads(group) == [7]


def test_a_slow_publisher_whose_slot_a_group_gave_up_publishes_again_to_all(world, queue):
    group, early = queue.group("audit"), []
    producer = world.process()
    producer.store.plan[producer.store._number + 2] = lambda: early.extend(group.receive())
    producer.queue.publish("slow")
    assert early == []
    assert payloads(group) == payloads(queue) == ["slow"]


# ---- what fails


def test_what_fails_in_a_group_is_its_own_and_comes_back_to_it_alone(world):
    world.options = {"shovel": ShovelConfig(1), "max_deliveries": 2}
    queue = world.process().queue
    audit, billing = queue.group("audit"), queue.group("billing")
    queue.publish("m", headers={"h": "1"})
    for attempt in (1, 2):
        (delivery,) = audit.receive(10)
        assert (delivery.attempts, delivery.headers) == (attempt, {"h": "1"})
        delivery.nack("exception", error="no")
        assert (audit.depth().sideline, queue.depth().sideline, billing.depth().sideline) == (1, 0, 0)
        Shovel(audit).run_once()
        assert audit.depth().ready == 1
    assert audit.receive(10) == []
    assert audit.depth().parked == 1
    assert [message.reason for message in audit.parked.peek(10)] == ["exhausted"]
    assert payloads(queue) == payloads(billing) == ["m"]
    assert left(world, queue) == {}, "what failed in a group is a copy, and holds nothing up"
    assert [message.payload for message in audit.redrive(10)] == ["m"]
    assert payloads(audit) == ["m"]
    for group in (audit, billing):
        group.drop()


def test_what_has_come_back_to_a_group_is_found_by_its_key(queue):
    audit = queue.group("audit")
    queue.publish("m", key="k")
    assert [one.payload for one in look_at(audit, "ready", 10, key="k").messages] == ["m"]
    audit.hand_back(audit.receive(10))
    assert [one.payload for one in look_at(audit, "ready", 10, key="k").messages] == ["m"]


def test_what_fails_in_the_queue_comes_back_to_its_own_consumers_alone(world):
    world.options = {"shovel": ShovelConfig(1), "max_deliveries": 2}
    queue = world.process().queue
    audit = queue.group("audit")
    queue.publish("m")
    for _ in range(2):
        queue.receive(10)[0].nack()
        Shovel(queue).run_once()
    assert queue.receive(10) == []
    queue.redrive(10)
    assert payloads(queue) == ["m"]
    assert payloads(audit) == ["m"]
    assert left(world, queue) == {}
    audit.drop()


def test_a_delayed_retry_comes_back_to_who_failed_alone(simulated):
    queue = simulated.process().queue
    audit = queue.group("audit")
    timers = Timers(Farms(queue, audit))
    queue.publish("m")
    queue.receive(10)[0].nack(delay=5)
    audit.receive(10)[0].nack(delay=10)
    found = {"queue": [], "audit": []}
    for _ in range(5):
        run_until(timers, simulated.clock, 4)
        found["queue"] += payloads(queue)
        found["audit"] += payloads(audit)
    assert found == {"queue": ["m"], "audit": ["m"]}


def test_what_is_put_off_before_it_was_begun_comes_back_to_who_put_it_off_alone(simulated):
    queue = simulated.process().queue
    audit = queue.group("audit")
    timers = Timers(Farms(queue, audit))
    queue.publish("m")
    assert payloads(audit) == ["m"]
    assert queue.put_off(queue.receive(10)[0], 5.0) is True
    run_until(timers, simulated.clock, 8)
    (delivery,) = queue.receive(10)
    assert (delivery.payload, delivery.attempts) == ("m", 1)
    assert payloads(audit) == []


def test_what_is_moved_from_another_queue_comes_to_all_groups(world, queue):
    audit = queue.group("audit")
    other = queue.registry.create(QueueConfig("other", retry=False, shards=2))
    other.publish("m")
    other.receive(10)[0].nack()
    assert set(other.sideline.move(other.sideline.search(), queue).values()) == {Outcome.DONE}
    assert payloads(queue) == ["m"]
    assert payloads(audit) == ["m"]
    assert left(world, queue) == {}


def test_what_has_failed_elsewhere_and_is_moved_here_comes_to_all_groups(simulated):
    simulated.options = {"retry": True}
    queue = simulated.process().queue
    audit = queue.group("audit")
    other = queue.registry.create(QueueConfig("other", shards=2))
    of = other.publish("m")
    other.receive(10)[0].nack()
    assert other.delayed.move([of], queue.registry.get(queue.name)) == {of: Outcome.DONE}
    run_until(Timers(Farms(queue)), simulated.clock, 60)
    for view in (queue, audit):
        (delivery,) = view.receive(10)
        assert (delivery.payload, delivery.attempts, delivery.headers) == ("m", 1, {"latchwork-attempts": "1"})


def test_what_was_put_off_elsewhere_and_is_moved_here_comes_to_all_groups(simulated):
    simulated.options = {"retry": True}
    queue = simulated.process().queue
    audit = queue.group("audit")
    other = queue.registry.create(QueueConfig("other", shards=2))
    of = other.publish("m")
    assert other.put_off(other.receive(10)[0], 5.0) is True
    assert other.delayed.move([of], queue.registry.get(queue.name)) == {of: Outcome.DONE}
    run_until(Timers(Farms(queue, other)), simulated.clock, 8)
    for view in (queue, audit):
        (delivery,) = view.receive(10)
        assert (delivery.payload, delivery.attempts) == ("m", 1)
    assert payloads(other) == []


@pytest.mark.parametrize("has_failed", [True, False], ids=["failed", "put off"])
def test_a_delayed_message_of_a_group_that_is_moved_to_its_queue_comes_to_no_group(simulated, has_failed):
    queue = simulated.process().queue
    audit, billing = queue.group("audit"), queue.group("billing")
    queue.publish("m")
    assert (payloads(queue), payloads(billing)) == (["m"], ["m"])
    (delivery,) = audit.receive(10)
    if has_failed:
        delivery.nack(delay=5)
    else:
        assert audit.put_off(delivery, 5.0) is True
    assert set(audit.delayed.move(audit.delayed.search(), queue).values()) == {Outcome.DONE}
    run_until(Timers(Farms(queue, audit, billing)), simulated.clock, 8)
    assert (payloads(queue), payloads(audit), payloads(billing)) == (["m"], [], [])


@pytest.fixture(params=["another client", "another store"])
def elsewhere(request, simulated):
    """A queue of the same name elsewhere."""
    if request.param == "another client":
        registry = QueueRegistry(simulated.store, f"{simulated.client}x", farm_id="f")
    else:
        registry = QueueRegistry(MemoryStore(simulated.clock), simulated.client, farm_id="g")
    return registry.create(simulated.config())


def test_a_delayed_message_of_a_group_that_is_moved_elsewhere_comes_to_all_groups_there(simulated, elsewhere):
    queue = simulated.process().queue
    group, audit = queue.group("audit"), elsewhere.group("audit")
    queue.publish("m")
    assert group.put_off(group.receive(10)[0], 5.0) is True
    assert set(group.delayed.move(group.delayed.search(), elsewhere).values()) == {Outcome.DONE}
    run_until(Timers(Farms(elsewhere)), simulated.clock, 8)
    assert (payloads(elsewhere), payloads(audit)) == (["m"], ["m"])


def test_a_failed_message_of_a_group_that_is_moved_elsewhere_comes_to_all_groups_there(simulated, elsewhere):
    queue = simulated.process().queue
    group, audit = queue.group("audit"), elsewhere.group("audit")
    queue.publish("m")
    group.receive(10)[0].nack()
    assert set(group.sideline.move(group.sideline.search(), elsewhere).values()) == {Outcome.DONE}
    assert (payloads(elsewhere), payloads(audit)) == (["m"], ["m"])


def test_a_failed_message_of_a_group_that_is_moved_to_its_queue_comes_to_no_group(simulated):
    queue = simulated.process().queue
    audit, billing = queue.group("audit"), queue.group("billing")
    queue.publish("m")
    assert (payloads(queue), payloads(billing)) == (["m"], ["m"])
    audit.receive(10)[0].nack()
    assert set(audit.sideline.move(audit.sideline.search(), queue).values()) == {Outcome.DONE}
    assert (payloads(queue), payloads(audit), payloads(billing)) == (["m"], [], [])


def test_what_a_consumer_of_a_group_died_with_comes_to_its_sideline_alone(world, queue):
    audit, billing = queue.group("audit"), queue.group("billing")
    process = world.process()
    queue.publish_many(["a", "b"])
    assert len(process.queue.group("audit").receive(10)) == 2
    assert payloads(billing) == payloads(queue) == ["a", "b"]
    sweeper = process.sweeper()
    for _ in range(4):
        world.lapse()
        assert sweeper.run_once().ok
    assert (audit.depth().sideline, queue.depth().sideline, billing.depth().sideline) == (2, 0, 0)
    assert payloads(audit.sideline) == ["a", "b"]
    assert left(world, queue) == {}


def test_what_was_extended_is_not_swept_and_what_was_swept_cannot_be_acknowledged(unhurried, queue):
    audit = queue.group("audit")
    queue.publish_many(["held", "lost"])
    by = {delivery.payload: delivery for delivery in audit.receive(10)}
    sweeper = unhurried.process().sweeper()
    for _ in range(2 if unhurried.real else 6):
        unhurried.lapse(0.6)
        by["held"].extend()
        sweeper.run_once()
    by["held"].ack()
    with pytest.raises(LeaseLost):
        by["lost"].ack()
    assert payloads(audit.sideline) == ["lost"]


def test_other_groups_keep_nothing_from_being_swept(unhurried, queue):
    """What they write to the record does not make the abandoned delivery look alive."""
    audit, billing = queue.group("audit"), queue.group("billing")
    queue.publish("m")
    assert audit.receive(10)
    (busy,) = billing.receive(10)
    sweeper = unhurried.process().sweeper()
    for _ in range(2 if unhurried.real else 6):
        unhurried.lapse(0.6)
        busy.extend()
        sweeper.run_once()
    assert audit.depth().sideline == 1
    busy.ack()


def test_what_expires_is_gone_for_a_group_that_stood_still(simulated):
    queue = simulated.process().queue
    audit = queue.group("audit")
    queue.publish_many(range(3))
    simulated.clock.advance(16 * 86_400)
    queue.publish("new")
    assert payloads(audit) == ["new"]
    assert audit.depth().expired == 3
    assert (queue.depth().ready, queue.depth().expired) == (1, 3)


# ---- an acknowledgement


def sweep(world, process, times=4):
    sweeper = process.sweeper()
    for _ in range(times):
        world.lapse()
        assert sweeper.run_once().ok


def test_a_stamp_that_lands_after_the_acknowledgement_brings_nothing_back(simulated):
    process = simulated.process()
    audit = process.queue.group("audit")
    process.queue.publish("m")
    audit.active.candidates(look=True)
    process.fails([2], "late")
    (delivery,) = audit.receive(10)
    delivery.ack()
    process.store.deliver()
    assert payloads(process.queue) == ["m"]
    assert left(simulated, process.queue) == {}


def test_an_id_that_is_kept_stays_when_the_last_one_is_done(simulated):
    queue = simulated.process().queue
    audit = queue.group("audit")
    first = queue.publish("m", dedup="k")
    assert payloads(queue) == payloads(audit) == ["m"]
    assert queue.publish("again", dedup="k") == first
    assert payloads(queue) == payloads(audit) == []


def test_a_ledger_publishes_to_all_once_and_again_completes(simulated):
    queue = simulated.process().queue
    audit = queue.group("audit")
    messages = [Outgoing(n, f"m{n}") for n in range(5)]
    Ledger(queue, "job").publish(0, messages)
    assert payloads(audit) == list(range(5))
    Ledger(queue, "job").publish(0, messages)
    assert payloads(queue) == list(range(5))
    assert payloads(audit) == []
    assert left(simulated, queue) == {}


@pytest.mark.parametrize("own", ["has not come to it", "has it", "is done with it"])
def test_a_ledger_that_wrote_late_where_a_group_had_passed_comes_to_the_group_all_the_same(simulated, own):
    """Its consumer died between the claim and the stamp, and sweeps have passed the empty slot."""
    process, dying = simulated.process(), simulated.process()
    queue, sweeper = process.queue, simulated.process().sweeper()
    audit = queue.group("audit")
    theirs = dying.queue.group("audit")

    def meanwhile():
        dying.store.plan[dying.store._number + 3] = "crash_before"
        assert dies(theirs.receive)
        for _ in range(4):
            simulated.lapse()
            sweeper.run_once()

    def then():
        if own != "has not come to it":
            held.extend(queue.receive(10))
        if own == "is done with it":
            queue.ack_many(held)

    held = []
    writer = simulated.process()
    writer.store.plan |= {writer.store._number + 4: meanwhile, writer.store._number + 5: then}
    Ledger(writer.queue, "job").publish(0, [Outgoing("m", "id")])
    assert payloads(audit) == ["m"]
    if own == "has not come to it":
        assert payloads(queue) == ["m"]


def test_a_damaged_pointer_of_a_group_keeps_no_message_from_being_published_again(simulated):
    simulated.options = {"shards": 1}
    process = simulated.process()
    process.queue.group("audit")
    process.queue.publish("m", dedup="d")
    (pointers,) = [
        record.key for record in simulated.store.scan(f"{simulated.client}_meta_set") if "SHARED" in record.key.name
    ]
    (ledger,) = simulated.store.scan(f"{simulated.client}_ledger_set")
    simulated.store.operate(pointers, Put(FIRE, {"a": 1}))
    simulated.store.operate(ledger.key, Put("written", None))
    process.queue.publish("m", dedup="d")
    assert payloads(process.queue) == ["m"]


@pytest.mark.parametrize("quick", ["own", "first"])
def test_a_message_that_another_publisher_completes_comes_once_to_each_reader_that_waits_for_it(simulated, quick):
    """One is given it before the publisher sees who may have passed its slot."""
    simulated.options = {"shards": 1}
    queue, dying, writer = simulated.process().queue, simulated.process(), simulated.process()
    views = {"own": queue, "first": queue.group("first"), "second": queue.group("second")}
    got = {name: [] for name in views}

    def read(*names):
        for name in names:
            more = views[name].receive(10)
            got[name] += [one.payload for one in more]
            views[name].ack_many(more)

    dying.fails([4], "crash_before")
    assert dies(lambda: dying.queue.publish("m", dedup="k"))
    queue.publish("behind it")
    read(*views)
    assert got == {name: ["behind it"] for name in views}, "and all look at the slot before it again"
    writer.store.plan[writer.store._number + 4] = lambda: read(quick)
    writer.queue.publish("m", dedup="k")
    assert got[quick] == ["behind it", "m"]
    read(*views)
    sweeper = simulated.process().sweeper()
    for _ in range(4):
        simulated.lapse()
        sweeper.run_once()
        for view in views.values():
            Shovel(view).run_once()
        read(*views)
    assert got == {name: ["behind it", "m"] for name in views}
    assert left(simulated, queue) == {}


def test_what_a_stream_has_acknowledged_stays_for_the_groups(simulated):
    queue = simulated.process().queue
    audit = queue.group("audit")
    queue.publish_many([1, 2], key="a")
    shard = queue.shard_of("a")
    owner = stream.take(queue.pointers, "s")
    assert [len(step) for step in stream.read(queue.pointers, shard, 0, 2, owner)] == [2]
    assert stream.acknowledge(queue.pointers, owner, shard, 2) == 2
    assert list(stream.read(queue.pointers, shard, 0, 2, owner)) == [[]]
    assert payloads(audit) == [1, 2]
    assert left(simulated, queue) == {}


# ---- dropped


def test_what_waited_for_a_dropped_group_alone_goes_and_the_others_keep_theirs(world, queue):
    audit, billing = queue.group("audit"), queue.group("billing")
    queue.publish_many(["a", "b"])
    assert payloads(queue) == ["a", "b"]
    audit.drop()
    assert len(left(world, queue)) == 2
    assert payloads(billing) == ["a", "b"]
    assert left(world, queue) == {}
    queue.publish("c")
    assert payloads(billing) == payloads(queue) == ["c"]
    assert left(world, queue) == {}
    assert [group.name for group in queue.groups()] == ["q@billing"]
    with pytest.raises(NotFound):
        audit.drop()


def test_its_consumers_are_told_and_what_they_have_is_lost(world, queue):
    audit = world.process().queue.group("audit")
    queue.publish_many(["a", "b"])
    (delivery, other) = audit.receive(10)
    queue.group("audit").drop()
    with pytest.raises(LeaseLost):
        delivery.ack()
    with pytest.raises(NotFound, match="dropped"):
        audit.receive(10)
    assert payloads(queue) == ["a", "b"]
    assert left(world, queue) == {}
    assert other.payload


def test_a_group_made_again_under_a_name_begins_anew(world, queue):
    old = queue.group("audit")
    queue.publish("a")
    old.receive(1)[0].nack()
    queue.publish("b")
    old.drop()
    new = queue.group("audit")
    queue.publish("c")
    assert (payloads(new), payloads(new.sideline), new.depth().ready) == (["c"], [], 0)
    assert world.process().queue.group("audit").config.tag == new.config.tag != old.config.tag


@pytest.mark.long
@pytest.mark.parametrize("swept", [False, pytest.param(True, id="swept before", marks=pytest.mark.long)])
def test_at_whatever_call_a_drop_is_struck_the_upkeep_ends_it(swept):
    """swept: the queue's own sweep has passed the messages, so that only the drop can delete them."""

    def prepare(store):
        process = world_on(store).process()
        process.queue.group("audit")
        process.queue.publish_many(range(4))
        assert payloads(process.queue) == list(range(4))
        if swept:
            sweep(process.world, process, 3)

    def drop(store, done):
        queue = QueueRegistry(store, "c", farm_id="f").get("q")
        queue.group("audit").drop()

    def others(store, done):
        process = world_on(store).process()
        if process.registry.records.find("q@audit") is not None:
            with suppress(Refused):
                process.queue.group("audit")
            with suppress(NotFound):
                if "dropped" not in process.registry.records.read("q@audit"):
                    return  # it had not begun
        sweep(process.world, process, 2)
        assert left(process.world, process.queue) == {}
        process.queue.group("audit")
        process.queue.publish("new")
        assert payloads(process.queue.group("audit")) == ["new"]

    report = inject_everywhere(drop, prepare=prepare, recover=others)
    assert not report.troubles, report


def test_a_drop_looks_at_so_many_slots_a_call_and_the_upkeep_goes_on_where_it_stopped(simulated, monkeypatch):
    monkeypatch.setattr(making, "BUDGET", 20)
    released, release = [], making._release
    monkeypatch.setattr(making, "_release", lambda shared, slots: released.extend(slots) or release(shared, slots))
    simulated.shards = 1
    process = simulated.process()
    queue = process.queue
    group = queue.group("audit")
    queue.publish_many(range(50))
    assert len(payloads(queue)) == 50
    assert not group.drop()
    assert len(released) == 20
    with pytest.raises(Refused, match="dropped"):
        queue.group("audit")
    for _ in range(2):
        queue.publish_many(range(100, 150))  # while it is dropped others go on: these are not the group's
        process.sweeper().run_once()
    assert len(released) == len(set(released)) == 50, "each slot once, and none from after the group had left"
    assert set(payloads(queue)) == set(range(100, 150))
    assert left(simulated, queue) == {}
    assert payloads(queue.group("audit", start="oldest")) == []


@pytest.mark.parametrize("version", ["this", "an earlier"])
def test_what_a_group_has_put_off_comes_though_a_drop_of_the_one_before_ends_only_then(simulated, monkeypatch, version):
    """Two processes drop it. The second one is slow: the group is made again before its last deletions.

    version: of the process that has put it off.
    """
    quick, slow = simulated.process(), simulated.process()
    old, same = quick.queue.group("audit"), slow.queue.group("audit")
    queue, made, delete = quick.queue, [], making._delete
    queue.publish("before")
    old.receive()[0].nack(delay=5)

    def late(first, *rest):
        if first is same.pointers.own:
            assert old.drop()
            made.append(queue.group("audit"))
            queue.publish("m")
            made[0].receive()[0].nack(delay=5)
            if version == "an earlier":
                simulated.store.operate(made[0].delayed.control, Put(TAG, None))
        delete(first, *rest)

    monkeypatch.setattr(making, "_delete", late)
    assert same.drop()
    (new,) = made
    run_until(Timers(Farms(queue, new)), simulated.clock, 30)
    assert payloads(new) == ["m"]
    assert new.depth().delayed == 0


@pytest.mark.parametrize("version", ["this", "an earlier"])
def test_a_drop_leaves_no_count_of_what_was_put_off(simulated, version):
    queue = simulated.process().queue
    group = queue.group("audit")
    queue.publish("m")
    group.receive()[0].nack(delay=5)
    if version == "an earlier":
        simulated.store.operate(group.delayed.control, Put(TAG, None))
    group.drop()
    assert simulated.store.get(group.delayed.control) is None


def test_a_failure_after_the_drop_is_no_delayed_message_of_the_next_group_of_that_name(simulated):
    queue = simulated.process().queue
    old = simulated.process().queue.group("audit")
    queue.publish_many(["a", "b"])
    early, late = old.receive(2)
    queue.group("audit").drop()
    with pytest.raises(LeaseLost):
        early.nack(delay=5)
    new = queue.group("audit")
    timers = Timers(Farms(queue, new))
    run_until(timers, simulated.clock, 5)
    assert new.depth().delayed == 0
    queue.publish("m")
    new.receive()[0].nack(delay=5)
    with pytest.raises(LeaseLost):
        late.nack(delay=5)
    assert new.depth().delayed == 1
    run_until(timers, simulated.clock, 30)
    assert payloads(new) == ["m"]
    assert new.depth().delayed == 0


def test_the_first_message_that_a_group_puts_off_counts_though_an_older_group_has_left_a_count(simulated):
    """No upkeep runs, so it is the group itself that begins anew."""
    queue = simulated.process().queue
    old = simulated.process().queue.group("audit")
    queue.publish_many(["a", "b"])
    deliveries = old.receive(2)
    queue.group("audit").drop()
    for delivery in deliveries:
        with pytest.raises(LeaseLost):
            delivery.nack(delay=5)
    new = queue.group("audit")
    queue.publish("m")
    new.receive()[0].nack(delay=5)
    assert new.depth().delayed == 1


def test_a_count_that_an_earlier_version_has_begun_goes_on(simulated):
    queue = simulated.process().queue
    group = queue.group("audit")
    queue.publish_many(["a", "b"])
    for delivery in group.receive(2):
        delivery.nack(delay=5)
        simulated.store.operate(group.delayed.control, Put(TAG, None))
    later = simulated.process().queue.group("audit")
    timers = Timers(Farms(later))
    timers.run(Term())
    assert simulated.store.get(group.delayed.control).bins[TAG] == group.config.tag
    assert later.depth().delayed == 2
    run_until(timers, simulated.clock, 30)
    assert payloads(later) == ["a", "b"]
    assert later.depth().delayed == 0


@pytest.mark.parametrize("wrong", [7, "other", ["t"], 1.5], ids=repr)
def test_a_count_whose_tag_is_damaged_keeps_no_message_from_coming_and_no_drop_from_its_end(simulated, wrong):
    queue = simulated.process().queue
    group = queue.group("audit")
    for payload in ("a", "b"):
        queue.publish(payload)
        group.receive()[0].nack(delay=5)
        simulated.store.operate(group.delayed.control, Put(TAG, wrong))
    run_until(Timers(Farms(queue, simulated.process().queue.group("audit"))), simulated.clock, 30)
    assert payloads(group) == ["a", "b"]
    simulated.store.operate(group.delayed.control, Put(TAG, wrong))
    assert group.drop()
    assert queue.group("audit").depth().delayed == 0


@pytest.mark.parametrize("bin", [ACKED, STAMPS, TRIES])
def test_a_message_that_is_damaged_keeps_no_drop_from_its_end(world, caplog, bin):
    world.shards = 1
    queue = world.process().queue
    group = queue.group("audit")
    queue.publish_many(range(3))
    queue.ack_many(queue.receive(3))
    key = queue.pointers.key(Slot(0, 2))
    world.store.operate(key, Put(bin, 7))
    assert group.drop()
    assert list(left(world, queue)) == [Slot(0, 2)]
    assert [key.name in line for line in caplog.messages if "cannot be read" in line] == [True]
    assert queue.group("audit").depth().ready == 0


@pytest.mark.parametrize("wrong", ["seven", [1], True, -3], ids=repr)
def test_attempts_of_a_group_that_cannot_be_counted_on_from_begin_anew(world, wrong):
    world.shards = 1
    queue = world.process().queue
    group = queue.group("audit")
    queue.publish_many(range(3))
    world.store.operate(queue.pointers.key(Slot(0, 2)), Put(TRIES, {group.config.tag: wrong}))
    assert {one.payload: one.attempts for one in group.receive(10)} == dict.fromkeys(range(3), 1)


@pytest.mark.parametrize("bin", [ACKED, STAMPS, TRIES])
def test_a_message_that_is_damaged_in_hand_is_acknowledged_all_the_same_and_comes_no_more(world, bin):
    world.shards = 1
    queue = world.process().queue
    group = queue.group("audit")
    queue.publish("a")
    (own,), (other,) = queue.receive(), group.receive()
    world.store.operate(queue.pointers.key(Slot(0, 1)), Put(bin, 7))
    own.ack()
    assert "shared" in left(world, queue)[0, 1], "the group still waits for it"
    world.store.operate(queue.pointers.key(Slot(0, 1)), Put(bin, [1]))
    other.ack()
    assert left(world, queue) == {}


def test_a_drop_that_stopped_goes_on_by_another_call(queue, monkeypatch):
    monkeypatch.setattr(making, "BUDGET", 3)
    group, calls = queue.group("audit"), 1
    queue.publish_many(range(40))
    while not group.drop():
        calls += 1
    assert calls == max(-(-state.loaded // 3) for state in queue.pointers.states())
    with pytest.raises(NotFound):
        group.drop()


def test_a_group_whose_record_is_gone_for_long_is_waited_for_no_more(simulated):
    process = simulated.process()
    queue, sweeper = process.queue, process.sweeper()
    queue.group("living")
    queue.group("expired")
    simulated.store.delete(queue.registry.records.key("q@expired"))
    queue.publish("m")
    for _ in range(2):
        sweeper.run_once()
        simulated.pass_time(GONE + 1)
    assert payloads(queue) == payloads(queue.group("living")) == ["m"]
    queue.publish_many(["n", "o"])
    assert payloads(queue) == payloads(queue.group("living")) == ["n", "o"]
    assert [bins["shared"] for bins in left(simulated, queue).values()] == ['"m"'], "it expires"
    assert queue.group("expired").receive(10) == []


# ---- made


@pytest.mark.parametrize("start", [pytest.param("now", marks=pytest.mark.long), "oldest"])
def test_at_whatever_call_its_making_is_struck_whoever_asks_again_completes_it(start):
    def make(store, done):
        QueueRegistry(store, "c", farm_id="f").get("q").group("audit", start=start)

    def others(store, done):
        process = world_on(store).process()
        process.queue.publish("between")
        group = process.queue.group("audit", start=start)
        process.queue.publish("after")
        found = payloads(group)
        assert "after" in found
        assert len(found) == len(set(found))
        if start == "oldest":
            assert found == ["after", "before", "between"]
        assert payloads(process.queue) == ["after", "before", "between"]
        assert left(process.world, process.queue) == {}

    def prepare(store):
        world_on(store).process().queue.publish("before")

    report = inject_everywhere(make, prepare=prepare, recover=others, faults=struck.faults("a group's making"))
    assert not report.troubles, report


def test_a_maker_that_wakes_after_the_group_was_dropped_leaves_nothing_behind(simulated):
    for call in range(2, 9):
        slow, other = simulated.process(), simulated.process()

        def meanwhile(other=other):
            with suppress(NotFound):
                other.queue.group("audit").drop()

        slow.store.plan[slow.store._number + call] = meanwhile
        with suppress(LatchworkError):
            slow.queue.group("audit")
        with suppress(NotFound):
            simulated.process().queue.group("audit").drop()
        other.queue.publish("m")
        assert payloads(other.queue) == ["m"]
        assert left(simulated, other.queue) == {}, call


@pytest.mark.matrix
@pytest.mark.parametrize("gap", range(4))
@pytest.mark.parametrize("call", range(1, 12))
def test_a_maker_whose_store_fails_undoes_nothing_that_another_one_has_made(simulated, call, gap):
    unlucky, other = simulated.process(), simulated.process()
    begin, attempts = unlucky.store._number + call, unlucky.store.policy.attempts
    unlucky.store.plan |= {begin + n: "dropped" for n in range(attempts)}
    unlucky.store.plan[begin + attempts + gap] = lambda: other.queue.group("audit")
    said = "UNAVAILABLE"
    try:
        unlucky.queue.group("audit")
    except LatchworkError as failure:
        said = failure.code
    group = other.queue.group("audit")
    other.queue.publish("m")
    assert payloads(group) == payloads(other.queue) == ["m"]
    assert left(simulated, other.queue) == {}
    assert said == "UNAVAILABLE", "nobody has dropped it"


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("", {}, "1 to 64"),
        ("x" * 65, {}, "1 to 64"),
        (7, {}, "1 to 64"),
        ("a", {"start": "then"}, "oldest"),
        ("a", {"start": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001 - what is refused
        ("a", {"shards": 3}, "no shards of its own"),
        ("a", {"concurrency": -1}, "concurrency"),
    ],
)
def test_what_cannot_be_is_refused_before_any_call(name, options, match):
    store = CountingStore(MemoryStore(ManualClock()))
    queue = QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", retry=False, shards=2))
    before = store.total
    with pytest.raises(InvalidRequest, match=match):
        queue.group(name, **options)
    assert store.total == before


def test_a_queue_has_a_largest_number_of_groups_and_room_again_once_some_are_dropped(queue, monkeypatch):
    monkeypatch.setattr(making, "MOST_GROUPS", 3)
    groups = [queue.group(name) for name in "abc"]
    with pytest.raises(Refused, match="has 3 groups"):
        queue.group("d")
    assert queue.group("a").config.tag == groups[0].config.tag, "one that is there is there"
    assert [group.group_name for group in queue.groups()] == ["a", "b", "c"]
    groups[1].drop()
    queue.group("d")
    assert [group.group_name for group in queue.groups()] == ["a", "c", "d"]


def test_names_do_not_collide(simulated):
    queue = simulated.process().queue
    group = queue.group("audit")
    with pytest.raises(AlreadyExists, match="is a group"):
        queue.registry.create(QueueConfig("q@audit", retry=False, shards=2))
    queue.registry.create(QueueConfig("q@own", retry=False, shards=2))
    with pytest.raises(AlreadyExists, match="is a queue"):
        queue.group("own")
    for refused in (lambda: group.publish("m"), lambda: group.publish_many(["m"]), lambda: group.group("x")):
        with pytest.raises(InvalidRequest, match="'q'"):
            refused()


# ---- numbers of consumers, and consumers


def test_a_group_is_paused_and_scaled_by_itself(queue):
    audit = queue.group("audit")
    queue.publish("m")
    with pytest.warns(UserWarning, match="paused"):
        audit.pause()
    assert audit.receive(10) == []
    queue.scale(7)
    assert (audit.concurrency, queue.concurrency) == (0, 7)
    assert payloads(queue) == ["m"]
    audit.resume()
    assert payloads(audit) == ["m"]


@pytest.mark.parametrize("ordered", [False, True])
def test_consumers_of_groups_and_of_the_queue_each_handle_all(tmp_path, ordered):
    store = SQLiteStore(tmp_path / "s.db", synchronous="off")
    queue = QueueRegistry(store, "c", farm_id="f", idle_look=0.2).create(QueueConfig("q", retry=False, shards=2))
    views = {"queue": queue, "a": queue.group("a"), "b": queue.group("b", concurrency=2)}
    seen = {name: [] for name in views}
    consumers = [
        Consumer(view, lambda d, name=name: seen[name].append(d.payload), upkeep=False, ordered=ordered)
        for name, view in views.items()
    ]
    for consumer in consumers:
        consumer.start()
    for n in range(30):
        queue.publish(n, key=str(n % 2))
    end = store.seams.monotonic() + 20
    while any(len(one) < 30 for one in seen.values()) and store.seams.monotonic() < end:
        store.seams.sleep(0.05)
    for consumer in consumers:
        consumer.stop()
    assert {name: sorted(one) for name, one in seen.items()} == {name: list(range(30)) for name in views}
    if ordered:
        assert all(
            [n for n in one if n % 2 == k] == sorted(n for n in one if n % 2 == k)
            for one in seen.values()
            for k in (0, 1)
        )
    assert left(type("W", (), {"store": store}), queue) == {}
    store.close()


def test_a_group_hears_of_what_another_process_publishes_though_the_queues_own_consumers_lag(simulated):
    audit = simulated.process().queue.group("audit")
    other = simulated.process().queue
    other.publish("nobody takes it", key="k")
    assert payloads(audit) == ["nobody takes it"]
    assert audit.receive(10, timeout=30) == []
    simulated.clock.at(1.0, lambda: other.publish("heard", key="k"))
    began = simulated.clock.monotonic()
    assert [d.payload for d in audit.receive(10, timeout=8)] == ["heard"]
    assert simulated.clock.monotonic() - began < 1.5


# ---- what it costs


@pytest.fixture(params=["memory", "sqlite"])
def counted(request, tmp_path):
    clock = ManualClock()
    made = (
        MemoryStore(clock)
        if request.param == "memory"
        else SQLiteStore(tmp_path / "s.db", synchronous="off", seams=clock)
    )
    yield CountingStore(made)
    made.close()


def counted_queue(store, **options):
    return QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", **{"retry": False, "shards": 1, **options}))


@pytest.mark.parametrize("groups", [0, 1, 20])
@pytest.mark.parametrize("n", [1, 500])
def test_publishing_is_two_calls_however_many_groups_there_are(counted, groups, n):
    queue = counted_queue(counted)
    for number in range(groups):
        queue.group(f"g{number}")
    counted.reset()
    queue.publish_many(range(n))
    assert counted.total == 2


@pytest.mark.parametrize("n", [1, 500])
def test_a_group_drains_in_three_calls_and_the_last_one_in_four(counted, n):
    queue = counted_queue(counted)
    first, last = queue.group("first"), queue.group("last")
    queue.publish_many(range(n))
    counted.reset()
    for view, calls in ((first, 3), (queue, 3), (last, 4)):
        view.active.candidates(look=True)
        counted.reset()
        deliveries = view.receive(n)
        assert len(deliveries) == n
        view.ack_many(deliveries)
        assert counted.total == calls


def test_a_queue_without_groups_is_stored_and_costs_as_ever(counted):
    queue = counted_queue(counted)
    counted.reset()
    queue.publish("m", headers={"h": "1"})
    queue.publish_many(["a", "b"])
    assert counted.total == 4
    records = counted.inner.get_many(
        [queue.pointers.key(Slot(0, n)) for n in (1, 2)] + [queue.pointers.pointers_key(0)]
    )
    plain = {"data", "msgId", "attempts", "enqueuedAt", "modified_at", "v"}
    assert [set(one.bins) for one in records] == [plain | {"headers"}, plain, {"LOAD_POINTER", "FIRE_POINTER"}]
    queue.active.candidates(look=True)
    counted.reset()
    deliveries = queue.receive(3)
    assert counted.total == 2
    (record,) = counted.inner.get_many([queue.pointers.key(deliveries[0].held.slot)])
    assert set(record.bins) <= plain | {"headers", "delivery", "fireTS"}
    queue.ack_many(deliveries)
    assert counted.total == 3


def test_making_asking_and_looking_cost_few_calls_whatever_the_shards(counted):
    queue = counted_queue(counted, shards=32)
    counted.reset()
    group = queue.group("audit")
    assert counted.total <= 9
    counted.reset()
    assert queue.group("audit") == group
    assert counted.total == 1
    counted.reset()
    group.depth()
    assert counted.total == 4


@pytest.mark.parametrize("backoff", [50, 2 * 120])
def test_a_message_that_waits_in_a_group_for_its_retry_is_cancelled_there_alone(simulated, backoff, monkeypatch):
    monkeypatch.setattr("latchwork.queue.sharded.delayed.view.HOUR", 120.0)  # so that fewer buckets are looked at
    queue = QueueRegistry(simulated.store, "c", farm_id="f").create(QueueConfig("q", shards=2, backoff=backoff))
    group, other = queue.group("a"), queue.group("b")
    of = queue.publish("m")
    group.receive()[0].nack()
    assert other.cancel(of) is Outcome.NOT_THERE
    assert group.cancel(of) is Outcome.DONE
    assert group.cancel(of) is Outcome.NOT_THERE
    assert group.depth().retrying == 0
    assert (payloads(group), payloads(other), payloads(queue)) == ([], ["m"], ["m"])


@pytest.mark.parametrize("verb", ["cancel", "discard", "redrive"])
def test_what_was_put_off_in_a_group_is_taken_by_its_id(simulated, verb, monkeypatch):
    monkeypatch.setattr("latchwork.queue.sharded.delayed.view.HOUR", 120.0)  # so that fewer buckets are looked at
    queue = simulated.process().queue
    group = queue.group("a")
    of = queue.publish("m")
    assert group.put_off(group.receive()[0], 60.0) is True
    if verb == "cancel":
        assert group.cancel(of) is Outcome.DONE
    else:
        assert getattr(group.delayed, verb)([of]) == {of: Outcome.DONE}
    run_until(Timers(Farms(queue, group)), simulated.clock, 5)
    assert payloads(group) == (["m"] if verb == "redrive" else [])
    run_until(Timers(Farms(queue, group)), simulated.clock, 60)
    assert (payloads(group), payloads(queue)) == ([], ["m"])
