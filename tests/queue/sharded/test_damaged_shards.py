"""Damaged pointers of a shard, sweep pointers and marks: the shard is left alone and reported, the others go on, its
messages come by way of the sideline, and no sweep looks at more slots than it has a budget for.
"""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from latchwork.errors import Corrupt, Unavailable
from latchwork.queue import Consumer, QueueConfig, QueueRegistry, Shovel
from latchwork.queue.sharded import redrive, stream
from latchwork.queue.sharded.envelope import Envelope
from latchwork.queue.sharded.groups import making
from latchwork.queue.sharded.ledger.ledger import Ledger, Outgoing
from latchwork.queue.sharded.pointers import CLAIM, MAX_UNFIRED
from latchwork.queue.sharded.slots import ShardHolder, Slot
from latchwork.queue.sharded.stats import stats_of
from latchwork.queue.sharded.transfer import load
from latchwork.queue.sharded.upkeep import sweeper
from latchwork.queue.sharded.upkeep.report import Stop, SubqueueKind
from latchwork.queue.sharded.upkeep.timers import Timers
from latchwork.spark.offsets import pointers_of
from latchwork.store import Exists, MapPut, MemoryStore, Put
from latchwork.testing.clock import InlineClock, ManualClock

KINDS = ("text", b"bytes", -1, -(2**63), 2**62 + 1, 2**63 - 1, 1.5, True, [1], {"a": 1})
POINTERS = [("LOAD_POINTER", bad) for bad in KINDS] + [("FIRE_POINTER", bad) for bad in KINDS] + [
    ("FIRE_POINTER", 2**40),
    ("LOAD_POINTER", 2**40),
    ("LOAD_POINTER", MAX_UNFIRED + 100),
    ("LOAD_POINTER", 0),
]  # fmt: skip
CLAIMS = ("text", [1], {n: n for n in range(64)}, {b"\xff" * 7 + bytes([n]) * 10: None for n in range(64)})


@pytest.fixture(autouse=True)
def _few_slots(monkeypatch):
    monkeypatch.setattr(sweeper, "RESCUE", 150)


def damage(world, queue, shard, **bins):
    world.store.operate(queue.pointers_key(shard), *(Put(bin, value) for bin, value in bins.items()))


def change(process, *ops):
    process.registry.records.change(process.queue.config, *ops)


def receive(process, payloads):
    """Receive and acknowledge what there is."""
    while found := process.queue.receive(100):
        payloads.extend(delivery.payload for delivery in found)
        process.queue.ack_many(found)


def recovered(process, payloads, rounds=4):
    """What comes while the sweeper and the shovel run."""
    for _ in range(rounds):
        process.world.lapse()
        process.sweeper().run_once()
        Shovel(process.queue).run_once()
        receive(process, payloads)
    return sorted(payloads)


@pytest.fixture(autouse=True)
def spread(monkeypatch):
    """A few messages reach each shard."""
    monkeypatch.setattr("latchwork.queue.sharded.publishing.publish.SPREAD", 20)


# ---- the pointers


@pytest.mark.matrix
@pytest.mark.parametrize(("bin", "bad"), [*POINTERS, ("stream", [1])], ids=lambda value: repr(value)[:24])
def test_a_damaged_shard_is_left_alone_and_loses_none_of_its_messages(simulated, bin, bad):
    simulated.shards = 4
    process, payloads = simulated.process(), []
    process.queue.publish_many(range(80))  # twenty in each shard
    assert len(process.queue.receive(5, shards={1})) == 5  # which nobody acknowledges
    damage(simulated, process.queue.pointers, 1, **{bin: bad})
    process.queue.active.reset_after_fork()
    receive(process, payloads)
    assert len(payloads) == 60  # of the three other shards
    assert recovered(process, payloads) == list(range(80))


@pytest.mark.matrix
@pytest.mark.parametrize(("bin", "bad"), POINTERS, ids=repr)
def test_a_damaged_shard_is_reported_by_each_sweep_and_by_the_depth(simulated, bin, bad):
    simulated.shards = 4
    process = simulated.process()
    process.queue.publish_many(range(80))
    process.queue.ack_many(process.queue.receive(5, shards={1}))
    damage(simulated, process.queue.pointers, 1, **{bin: bad})
    for _ in range(2):
        report = process.sweeper().run_once()
        assert [(shard.kind, shard.shard) for shard in report.damaged] == [(SubqueueKind.MAIN, 1)]
        ((name, error),) = report.failures
        assert name == "q"
        assert "q_SHARD_1_POINTERS" in error
        assert not report.ok
        assert process.registry.last_sweep("q").error == error
    depth = process.queue.depth()
    assert (depth.damaged, depth.ready) == (1, 60)
    assert stats_of(process.queue).depth == depth
    assert len(process.queue.peek_all()) == 60


@pytest.mark.matrix
@pytest.mark.parametrize(("bin", "bad"), POINTERS, ids=repr)
def test_nothing_is_published_where_nobody_would_receive_it(simulated, bin, bad):
    simulated.shards = 4
    process, payloads = simulated.process(), []
    process.queue.publish_many(range(80))
    receive(process, payloads)
    process.queue.receive(10)
    damage(simulated, process.queue.pointers, 1, **{bin: bad})
    key = next(str(n) for n in range(100) if process.queue.shard_of(str(n)) == 1)
    with pytest.raises(Corrupt, match="q_SHARD_1_POINTERS"):
        process.queue.publish("bound", key=key)
    with pytest.raises(Corrupt, match="q_SHARD_1_POINTERS"):
        process.queue.publish("bound", key=key, dedup="bound")
    process.queue.publish_many(range(80, 200))
    Ledger(process.queue, "s").publish(0, [Outgoing(n) for n in range(200, 210)])
    for partition in range(1, 9):  # of which some would begin with the damaged shard
        Ledger(process.queue, "s").publish(partition, [Outgoing(209 + partition)])
    for n in range(218, 226):
        process.queue.publish(n, dedup=str(n))
    receive(process, payloads)
    assert sorted(payloads) == list(range(226))


def test_what_becomes_due_for_a_damaged_shard_goes_to_another(simulated):
    simulated.shards = 4
    process, payloads = simulated.process(), []
    key = next(str(n) for n in range(100) if process.queue.shard_of(str(n)) == 1)
    process.queue.publish(20, key=key)
    process.queue.publish_many(range(20), key=key, delay=1)
    receive(process, payloads)
    damage(simulated, process.queue.pointers, 1, LOAD_POINTER="many")
    timers = Timers(SimpleNamespace(queues=lambda: [process.queue]))
    simulated.clock.advance(2)
    timers.run(SimpleNamespace(check=lambda: None))
    receive(process, payloads)
    assert sorted(payloads) == list(range(21))


@pytest.mark.parametrize("way", ["hand_back", "redrive", "later"])
@pytest.mark.parametrize("shard", [0, 1])
def test_what_comes_back_to_a_group_leaves_out_its_damaged_shard(simulated, shard, way):
    queue = simulated.process().queue
    group, payloads = queue.group("audit"), []
    queue.publish_many(range(8), keys=[str(n) for n in range(8)])
    held = group.receive(10)
    simulated.store.operate(group.pointers.own.pointers_key(shard), Put("LOAD_POINTER", "many"), exists=Exists.ANY)
    if way == "hand_back":
        assert list(group.hand_back(held)) == [True] * 8
    for delivery in held if way != "hand_back" else ():
        delivery.nack(delay=1 if way == "later" else None)
    if way == "redrive":
        group.sideline.redrive(group.sideline.search())
    simulated.clock.advance(2)
    Timers(SimpleNamespace(queues=lambda: [group])).run(SimpleNamespace(check=lambda: None))
    while found := group.receive(100):
        payloads += [delivery.payload for delivery in found]
        group.ack_many(found)
    assert sorted(payloads) == list(range(8))


@pytest.mark.parametrize("bad", CLAIMS, ids=["text", "a list", "numbers", "the future"])
def test_a_damaged_memory_of_claims_is_given_up(world, bad):
    process, payloads = world.process(), []
    process.queue.publish_many(range(10), key="k")
    damage(world, process.queue.pointers, process.queue.shard_of("k"), claims=bad)
    receive(process, payloads)
    assert payloads == list(range(10))


@pytest.mark.matrix
@pytest.mark.parametrize("bin", ["claim-fence", "in-hand"])
@pytest.mark.parametrize("bad", KINDS[:9], ids=repr)
def test_who_has_the_turn_is_forgotten_where_it_cannot_be_read(simulated, bin, bad, monkeypatch):
    """An ordered consumer goes on; what a dead one had in hand is left to the sweep."""
    monkeypatch.setattr(simulated.clock, "spawn", lambda run, name: None)  # a turn is shorter than the lease
    simulated.shards = 1
    process, seen = simulated.process(), []
    process.queue.publish_many(range(10), key="k")
    assert len(process.queue.await_messages(3, 0, {0}, ShardHolder(5, False))) == 3  # which nobody acknowledges
    damage(simulated, process.queue.pointers, 0, **{bin: bad})
    process.queue.active.reset_after_fork()
    consumer = Consumer(process.queue, lambda delivery: seen.append(delivery.payload), ordered=True, upkeep=False)
    for _ in range(4):
        consumer._turns.take()
        process.queue.active.reset_after_fork()
    assert seen == list(range(3, 10))
    process.queue.take_over(0, 7)
    assert recovered(process, []) == [0, 1, 2]


def test_a_stream_neither_skips_a_damaged_shard_nor_reads_beyond_it(simulated):
    simulated.shards = 2
    process = simulated.process()
    process.queue.publish_many(range(200))
    pointers = process.queue.pointers
    owner = stream.take(pointers, "s")
    damage(simulated, pointers, 1, LOAD_POINTER="many")
    with pytest.raises(Corrupt, match="q_SHARD_1_POINTERS"):
        stream.states(pointers, owner)
    with pytest.raises(Corrupt, match="q_SHARD_1_POINTERS"):
        stream.acknowledge(pointers, owner, 1, 100)
    with pytest.raises(Corrupt, match="q_SHARD_1_POINTERS"):
        pointers_of({"shards": {"0": 0, "1": 0}}, 0, [state.checked() for state in pointers.states()])
    damage(simulated, pointers, 0, **{"stream-epoch": "one"})
    with pytest.raises(Corrupt, match="stream-epoch"):
        stream.take(pointers, "s")


def test_the_pass_of_a_shovel_goes_on_beside_a_damaged_shard(simulated):
    simulated.shards = 4
    process, payloads = simulated.process(), []
    process.queue.publish_many(range(80))
    for delivery in process.queue.receive(80):
        delivery.nack()
    damage(simulated, process.queue.sideline.pointers, 2, FIRE_POINTER=-7)
    report = Shovel(process.queue).run_once()
    assert report.moved == 60
    assert ["q_SIDELINE_SHARD_2_POINTERS" in str(error) for error in report.errors] == [True]
    receive(process, payloads)
    assert recovered(process, payloads) == list(range(80))


# ---- the sweep pointers and marks


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("bin", "bad"),
    [
        (bin, bad)
        for bin in ("sweepPointers", "sidelineSweep", "parkedSweep", "sweepMarks", "lastSweep", "ops")
        for bad in KINDS[:9]
    ]
    + [
        (bin, {"0": bad, "1": 0})
        for bin in ("sweepPointers", "sweepMarks")
        for bad in (*KINDS, 2**40, [2**40, 0], ["a", 1])
    ]
    + [("lastSweep", {"success": "never", "error": 5}), ("sweptCounter", "many"), ("sweptCounter", [1])]
    + [("ops", {b"\xff" * 7 + bytes([n]) * 10: None for n in range(64)}), ("ops", {n: n for n in range(64)})],
    ids=lambda value: repr(value)[:24],
)
def test_damaged_books_of_the_sweep_are_put_right_and_lose_nothing(simulated, bin, bad):
    process, payloads = simulated.process(), []
    process.queue.publish_many(range(40), keys=[None if n % 2 else "k" for n in range(40)])
    assert len(process.queue.receive(40)) == 40  # which nobody acknowledges
    simulated.lapse()
    process.sweeper().run_once()
    Shovel(process.queue).run_once()
    process.queue.receive(40)
    change(process, Put(bin, bad))
    reports = []
    for _ in range(4):
        simulated.lapse()
        reports.append(process.sweeper().run_once())
        Shovel(process.queue).run_once()
        receive(process, payloads)
    assert sorted(payloads) == list(range(40))
    assert reports[-1].ok, reports[-1].failures
    assert not reports[0].failures or bin in reports[0].failures[0][1]
    assert process.registry.last_sweep("q").success > 0
    assert all(shard.scanned < 1000 for report in reports for shard in report.shards)


@pytest.mark.parametrize("bad", ["one", 2**62 + 1, -1, [1]])
def test_a_damaged_epoch_fails_its_own_queue_by_name(simulated, bad):
    process = simulated.process()
    process.queue.publish("a")
    process.queue.receive()
    simulated.lapse()
    change(process, Put("epoch", bad))
    ((name, error),) = process.sweeper().run_once().failures
    assert (name, "'epoch'" in error, error.startswith("CORRUPT")) == ("q", True, True)
    change(process, Put("epoch", None))
    assert process.sweeper().run_once().rehomed == 1


# ---- the budget


def test_a_sweep_looks_at_no_more_slots_of_a_shard_than_it_may(simulated, monkeypatch):
    monkeypatch.setattr(sweeper, "BUDGET", 300)
    simulated.shards = 1
    process, payloads = simulated.process(), []
    damage_at = 2**40
    process.queue.publish("first")
    damage(simulated, process.queue.pointers, 0, FIRE_POINTER=damage_at, LOAD_POINTER=damage_at)
    process.queue.active.reset_after_fork()
    process.queue.publish_many(range(5))
    receive(process, payloads)
    assert payloads == [0, 1, 2, 3, 4]
    leader = process.sweeper()
    for _ in range(5):
        report = leader.run_once()
        (shard,) = report.shards
        assert (shard.scanned, shard.stop) == (300, Stop.BUDGET) or shard.scanned <= 300
        simulated.lapse()


def test_what_is_beyond_the_budget_has_its_turn_although_the_first_message_is_in_the_way(simulated, monkeypatch):
    monkeypatch.setattr(sweeper, "BUDGET", 25)
    simulated.shards = 1
    process = simulated.process()
    process.queue.publish_many(range(100))
    held = process.queue.receive(100)
    leader = process.sweeper()
    for _ in range(6):
        simulated.lapse()
        held[0].extend()
        leader.run_once()
    assert process.queue.depth().sideline == 99
    held[0].ack()
    for _ in range(12):
        simulated.lapse()
        report = leader.run_once()
    assert report.shards == () or all(shard.swept == 100 for shard in report.shards if shard.kind is SubqueueKind.MAIN)


def test_the_rescue_of_a_damaged_shard_goes_on_where_the_last_sweep_stopped(simulated, monkeypatch):
    monkeypatch.setattr(sweeper, "RESCUE_BUDGET", 100)
    simulated.shards = 1
    process = simulated.process()
    process.queue.publish_many(range(430))
    damage(simulated, process.queue.pointers, 0, FIRE_POINTER="text")
    process.queue.active.reset_after_fork()
    stops, leader = [], process.sweeper()
    for _ in range(12):  # twice through 500 slots: messages that were never handed out wait for one sweep duration
        simulated.lapse()
        (found,) = [shard for shard in leader.run_once().shards if shard.kind is SubqueueKind.MAIN]
        assert found.scanned <= 100
        assert found.damage
        stops.append(found.stop)
    assert Stop.BUDGET in stops
    assert sorted(message.payload for message in process.queue.sideline.peek_all()) == list(range(430))


def test_an_acknowledged_backlog_beyond_the_budget_is_passed_in_the_end(simulated, monkeypatch):
    monkeypatch.setattr(sweeper, "BUDGET", 10)
    simulated.shards = 1
    process, payloads = simulated.process(), []
    process.queue.publish_many(range(95))
    receive(process, payloads)
    leader = process.sweeper()
    for _ in range(24):
        leader.run_once()
        simulated.lapse()
    assert process.registry.records.read("q")["sweepPointers"] == {"0": 95}


def test_a_mark_of_slots_that_were_never_fired_passes_none_of_them(simulated):
    """A producer has reserved its slot and is slow; the damaged mark says that its slot was fired long ago."""
    simulated.shards = 1
    process, other = simulated.process(), simulated.process()
    process.queue.publish("a")
    change(process, MapPut("sweepMarks", "0", [2**30, 1]))
    leader = process.sweeper()

    def meanwhile():
        other.queue.active.reset_after_fork()
        leader.run_once()
        simulated.lapse()
        leader.run_once()

    process.store.plan[process.store._number + 2] = meanwhile
    process.queue.publish("slow")
    payloads = []
    receive(other, payloads)
    assert set(recovered(other, payloads)) == {"a", "slow"}
    assert process.store.get(process.queue.pointers.key(Slot(0, 2**30))) is None


@pytest.mark.parametrize("load", ["x", [], {}, -1, 2**62])
def test_a_group_is_dropped_though_the_pointers_of_a_shard_are_damaged(load):
    store = MemoryStore(ManualClock())
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=2))
    group = queue.group("g")
    store.operate(queue.pointers.pointers_key(0), Put("LOAD_POINTER", load))
    group.drop()
    assert queue.groups() == []


def test_a_group_is_dropped_in_parts_where_a_shard_says_that_it_has_a_thousand_million_slots(monkeypatch):
    monkeypatch.setattr(making, "BUDGET", 10)
    store = MemoryStore(ManualClock())
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
    group = queue.group("g")
    store.operate(queue.pointers.pointers_key(0), Put("LOAD_POINTER", MAX_UNFIRED))
    assert [group.drop() for _ in range(3)] == [False] * 3
    record = queue.registry.records.read("q@g")
    assert (record["sharedSweep"], record["dropTo"]) == ({"0": 30}, {"0": MAX_UNFIRED})
    store.operate(queue.registry.records.key("q@g"), Put("dropTo", {"0": "x"}))  # then LOAD counts
    store.operate(queue.pointers.pointers_key(0), Put("LOAD_POINTER", 33))
    assert group.drop()


def test_a_redrive_looks_at_so_many_slots_without_a_message_and_goes_on_behind_them_next_time(monkeypatch):
    monkeypatch.setattr(redrive, "MOST_EMPTY", 2)
    monkeypatch.setattr(redrive, "BATCH", 5)
    queue = QueueRegistry(MemoryStore(InlineClock()), "c").create(QueueConfig("q", shards=1, max_deliveries=1))
    ids = queue.publish_many(range(12))
    for delivery in queue.receive(12):
        delivery.nack("rejected")
    queue.parked.discard(ids[:10])
    with pytest.raises(Unavailable, match="10 slots of shard 0"):
        queue.redrive(5)
    assert [message.payload for message in queue.redrive(5)] == [10, 11]


def test_a_repeated_claim_that_would_have_taken_more_than_any_claim_is_damaged():
    store = MemoryStore(ManualClock())
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
    queue.publish("a")
    token = store.token_clock.mint(store.seams, queue.pointers.pointers_key(0))
    queue.pointers.claim(0, 1, token=token)
    store.operate(queue.pointers.pointers_key(0), Put(CLAIM.bin, {token: [0, MAX_UNFIRED, MAX_UNFIRED]}))
    with pytest.raises(Corrupt, match="FIRE_POINTER was 0"):
        queue.pointers.claim(0, 1, token=token)


def test_a_group_that_begins_at_a_time_does_not_look_for_it_in_more_slots_than_there_can_be():
    store = MemoryStore(ManualClock())
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
    store.operate(queue.pointers.pointers_key(0), Put("LOAD_POINTER", 2**40), exists=Exists.ANY)
    with pytest.raises(Corrupt, match="LOAD_POINTER is 1099511627776"):
        queue.group("g", start=datetime(2020, 1, 1, tzinfo=timezone.utc))


def test_each_message_gets_the_place_of_its_own_record_where_all_need_another_slot():
    """Spent slots and a damaged shard are found in one round, so the next one stores the messages in another order."""
    store = MemoryStore()
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=3)).pointers
    queue.write_tombstones([Slot(0, 1), Slot(0, 2)])
    store.operate(queue.pointers_key(1), Put("LOAD_POINTER", "damaged"), exists=Exists.ANY)
    places = load(queue, [Envelope("data", f"id{n}") for n in range(3)], [0, 1, 0])
    assert [found.msg_id for found in queue.look(places)] == ["id0", "id1", "id2"]
