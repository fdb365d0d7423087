"""A row that cannot be read keeps nobody from the rows beside it: the read itself, and the duties that rest on it."""

from __future__ import annotations

import warnings
from datetime import datetime, timezone

import pytest

from latchwork.errors import Corrupt, OutcomeUnknown, Unavailable
from latchwork.queue import Publish, QueueConfig, QueueRegistry
from latchwork.queue.rows import read_each
from latchwork.queue.sharded import stream
from latchwork.queue.sharded.batches.blocks import BLOCK, BatchPlace
from latchwork.queue.sharded.envelope import BINS, Envelope
from latchwork.queue.sharded.groups.making import without_record
from latchwork.queue.sharded.groups.passing import passed_by_groups
from latchwork.queue.sharded.groups.stamps import _DROP
from latchwork.queue.sharded.history import NOT_FAILING, LastMinutes, figures_of, noting
from latchwork.queue.sharded.ledger.ledger import Ledger, Outgoing
from latchwork.queue.sharded.slots import Slot, WriteResult
from latchwork.queue.sharded.stats import stats_of, stats_of_each
from latchwork.queue.sharded.upkeep.ending import Ending
from latchwork.queue.sharded.upkeep.sweeper import Sweeper
from latchwork.queue.sharded.upkeep.timers import QueueTimers, Timers
from latchwork.retry import RetryPolicy
from latchwork.store import Exists, Key, MapPut, Put, Record, SQLiteStore, Update
from latchwork.testing import CountingStore
from latchwork.testing.clock import ManualClock
from tests.queue.sharded.batches.test_batches import left_to_the_leader, upkeep
from tests.queue.sharded.world import Election
from tests.support.sqlite_damage import damage_row
from tests.support.undecodable import Undecodable

__all__ = ["left_to_the_leader"]


@pytest.fixture
def store(tmp_path):
    store = SQLiteStore(tmp_path / "store.db", synchronous="off", seams=ManualClock())
    store.policy = RetryPolicy(attempts=1)
    yield store
    store.close()


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    """As in a process that has warned of no record yet."""
    monkeypatch.setattr("latchwork.queue.rows._logged", set())


@pytest.fixture
def queue(store):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", retry=False, shards=2))


def test_each_row_is_read_and_the_damaged_one_fails_alone(store):
    good, bad, absent = (Key("rows", name) for name in ("good", "bad", "absent"))
    for key in (good, bad):
        store.operate(key, Put("n", 1), exists=Exists.CREATE)
    damage_row(store, bad)
    with pytest.raises(Corrupt):
        store.get_many([good, bad])
    one, two, three = read_each(store, [good, bad, absent], "n")
    assert (one.bins, type(two), three) == ({"n": 1}, Corrupt, None)


@pytest.mark.usefixtures("left_to_the_leader")
def test_a_batch_that_cannot_be_read_keeps_no_other_from_its_end(store, queue):
    for name in ("a", "b"):
        queue.batch(name, then=Publish(name)).close()
    damage_row(store, queue.batches.key("a"))
    upkeep(queue)
    assert [one.payload for one in queue.receive(9)] == ["b"]


def test_a_shard_that_cannot_be_read_keeps_no_message_of_the_others(store, queue):
    there = queue.shard_of("k")
    queue.publish("beyond reach", key=next(key for key in "abcdefgh" if queue.shard_of(key) != there))
    queue.publish_many(["kept"] * 2, key="k")
    damage_row(store, queue.pointers.pointers_key(1 - there))
    assert [one.payload for one in queue.receive(9)] == ["kept"] * 2
    assert queue.depth().damaged == 1
    assert [facts.name for facts in stats_of_each(queue.registry.listed(active=None))] == ["q"]


def test_the_pointers_of_a_shard_that_cannot_be_read_are_named_by_who_needs_them(store, queue):
    queue.publish("a", key="k")
    damaged = queue.shard_of("k")
    damage_row(store, queue.pointers.pointers_key(damaged))
    with pytest.raises(Corrupt, match="POINTERS"):
        queue.pointers.states()[damaged].checked()


def test_a_sweep_names_the_shard_whose_pointers_cannot_be_read_and_does_the_others(store, queue):
    damaged = queue.shard_of("k")
    sound = next(key for key in "abcdefgh" if queue.shard_of(key) != damaged)
    for key in ("k", sound):
        queue.publish(key, key=key)
    assert len(queue.receive(10)) == 2  # which nobody acknowledges
    damage_row(store, queue.pointers.pointers_key(damaged))
    sweeper = Sweeper(queue.registry, Election(1))
    for _ in range(3):
        store.seams.advance(queue.config.sweep_duration.total_seconds() + 1)
        report = sweeper.run_once()
    ((name, failure),) = report.failures
    assert name == "q"
    assert f"SHARD_{damaged}_POINTERS" in failure
    assert [message.payload for message in queue.sideline.peek_all()] == [sound]


def park(queue, *payloads, **given):
    """Each goes to the sideline, from one shard, in order."""
    for payload in payloads:
        queue.publish(payload, key="k", **given)
        (delivery,) = queue.receive(1)
        delivery.nack()


def damaged_in(view, store):
    """The second of three messages there, of which the record is damaged; and the other two."""
    first, second, third = view.peek_all()
    damage_row(store, view.pointers.key((second.shard, second.pointer)))
    return first, second, third


@pytest.fixture
def side(store, queue):
    park(queue, 1, 2, 3)
    return damaged_in(queue.sideline, store)


LOOKS = {
    "peek": lambda queue: queue.sideline.peek(9),
    "peek_all": lambda queue: queue.sideline.peek_all(),
    "search": lambda queue: queue.sideline.search(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_who_looks_at_messages_sees_all_that_can_be_read_and_is_warned_once_of_the_other(queue, side, look, caplog):
    second = side[1]
    for _ in range(2):
        assert [one.payload for one in LOOKS[look](queue)] == [1, 3]
    (warned,) = [text for text in caplog.messages if "left out" in text]
    assert queue.sideline.pointers.key((second.shard, second.pointer)).name in warned


@pytest.mark.parametrize("verb", ["discard", "redrive"])
@pytest.mark.parametrize("by", ["id", "message"])
def test_messages_beside_one_that_cannot_be_read_are_dealt_with_and_its_error_comes_after(queue, side, verb, by):
    named = [one.message_id for one in side] if by == "id" else side
    first, second, third = (one.message_id for one in side)
    with pytest.raises(Corrupt, match="SIDELINE") as raised:
        getattr(queue.sideline, verb)(named)
    assert raised.value.details["outcomes"] == {first: "done", third: "done"}
    assert second not in raised.value.details["outcomes"]
    assert queue.sideline.peek_all() == []
    assert sorted(one.payload for one in queue.receive(9)) == ([] if verb == "discard" else [1, 3])


def test_messages_that_were_all_found_are_dealt_with_beside_one_that_cannot_be_read(queue, side):
    first, _, third = (one.message_id for one in side)
    assert queue.sideline.discard([first, third]) == {first: "done", third: "done"}


def test_messages_beside_one_that_cannot_be_read_are_moved_elsewhere(store, queue, side):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = queue.registry.create(QueueConfig("other", retry=False, shards=1))
    with pytest.raises(Corrupt, match="SIDELINE"):
        queue.sideline.move(side, other)
    assert [one.payload for one in other.receive(9)] == [1, 3]


def test_a_batch_is_left_by_what_was_discarded_beside_a_message_that_cannot_be_read(store, queue):
    batch = queue.batch("b")
    batch.publish_many([1, 2, 3], key="k")
    batch.close()
    for delivery in queue.receive(9):
        delivery.nack()
    side = damaged_in(queue.sideline, store)
    with pytest.raises(Corrupt):
        queue.sideline.discard(side)
    assert batch.progress().discarded == 2


def test_batches_beside_one_that_cannot_be_read_are_listed(store, queue, caplog):
    for name in ("a", "b", "c"):
        queue.batch(name)
    damage_row(store, queue.batches.key("a"))
    store.operate(queue.batches.key("b"), Put("next", "many"))
    for _ in range(2):
        assert [one.name for one in queue.list_batches()] == ["c"]
    assert len([text for text in caplog.messages if "left out" in text]) == 2


def test_delayed_messages_beside_one_that_cannot_be_read_are_found_and_dealt_with(store, queue):
    ids = [queue.publish(n, delay=30) for n in range(3)]
    damage_row(store, queue.delayed.entry(ids[1]))
    assert sorted(one.payload for one in queue.delayed.search()) == [0, 2]
    for verb in (queue.delayed.redrive, queue.delayed.discard):
        with pytest.raises(Corrupt) as raised:
            verb(ids)
        assert raised.value.details["outcomes"] == {ids[0]: "done", ids[2]: "done"}


def test_a_group_gets_the_messages_of_the_shards_whose_pointers_can_be_read(store, queue):
    group = queue.group("g")
    there = queue.shard_of("k")
    queue.publish_many(["kept"] * 2, key="k")
    queue.publish("beyond reach", key=next(key for key in "abcdefgh" if queue.shard_of(key) != there))
    damage_row(store, group.pointers.pointers_key(1 - there))
    assert group.depth().damaged == 1
    assert [one.payload for one in group.peek()] == ["kept"] * 2
    assert [one.payload for one in group.receive(9)] == ["kept"] * 2


def test_a_groups_messages_beside_one_that_cannot_be_read_are_seen(store, queue):
    group = queue.group("g")
    queue.publish_many([1, 2, 3], key="k")
    damaged_in(queue, store)
    assert [one.payload for one in group.peek()] == [1, 3]


def test_a_stream_names_the_one_message_that_it_cannot_read_and_deletes_all_others(store, queue):
    queue.publish_many([1, 2, 3], key="k")
    _, second, _ = damaged_in(queue, store)
    key, shard = queue.pointers.key((second.shard, second.pointer)), second.shard
    owner = stream.take(queue.pointers, "s")
    for reads in (
        lambda: stream.read(queue.pointers, shard, 0, 3, owner),
        lambda: stream.peek(queue.pointers, shard, 0, 3),
    ):
        with pytest.raises(Corrupt) as raised:
            list(reads())
        assert raised.value.details["key"] == key
    sizes = stream.sizes(queue.pointers, [(shard, n) for n in (1, 2, 3)])
    assert [size > 0 for size in sizes] == [True, False, True]
    with pytest.raises(Corrupt) as raised:
        stream.acknowledge(queue.pointers, owner, shard, 3)
    assert raised.value.details["key"] == key
    assert stream.states(queue.pointers, owner)[shard].fired == 0, "nothing that is not deleted is passed"
    assert [store.get(queue.pointers.key((shard, n))) for n in (1, 3)] == [None, None]
    store.delete(key)
    assert stream.acknowledge(queue.pointers, owner, shard, 3) == 3


def test_a_group_whose_store_fails_does_not_seem_to_be_empty(store, queue, monkeypatch):
    group = queue.group("g")
    queue.publish("a")
    monkeypatch.setattr(store, "_operate_many", lambda updates: [Unavailable("away") for _ in updates])
    monkeypatch.setattr(store, "_operate", lambda update: (_ for _ in ()).throw(Unavailable("away")))
    with pytest.raises(Unavailable):
        group.peek()


def test_the_depth_is_known_though_the_number_of_delayed_messages_cannot_be_read(store, queue):
    queue.publish("a")
    queue.publish("later", delay=30)
    damage_row(store, queue.delayed.control)
    depth = queue.depth()
    assert (depth.ready, depth.delayed, depth.damaged) == (1, 0, 1)
    assert stats_of(queue).depth == depth


def test_groups_without_a_record_are_found_beside_one_whose_record_cannot_be_read(store, queue):
    groups = [queue.group(name) for name in ("bad", "gone")]
    records, pointers = queue.registry.records, queue.pointers
    bad = records.key("q@bad")
    damage_row(store, bad, store.get(bad).bins["active"])
    store.delete(records.key("q@gone"))
    gone = without_record(records, pointers, [group.config.tag for group in groups])
    assert gone == {groups[1].config.tag: False}, "nobody knows that the other one is gone"


def test_a_message_written_by_an_earlier_attempt_is_found_beside_one_that_cannot_be_read(store, queue):
    (one, other) = (queue.pointers.key((0, n)) for n in (1, 2))
    queue.pointers.write([Slot(0, 1), Slot(0, 2)], [Envelope("a", "m1"), Envelope("b", "m2")])
    damage_row(store, other)
    first, second = queue.pointers._whose_are([one, other], [Envelope("a", "m1"), Envelope("b", "m2")])
    assert (first, type(second)) == (WriteResult.DONE, OutcomeUnknown)


def test_what_a_group_was_given_is_known_for_the_shards_whose_pointers_can_be_read(store, queue):
    group = queue.group("g")
    queue.publish_many(
        ["a", "b"], keys=["k", next(key for key in "abcdefgh" if queue.shard_of(key) != queue.shard_of("k"))]
    )
    for shard in (0, 1):
        store.operate(group.pointers.shared.pointers_key(shard), Put("FIRE_POINTER", 1))
    damage_row(store, group.pointers.shared.pointers_key(0))
    assert passed_by_groups(queue.pointers, [Slot(0, 1), Slot(1, 1)]) == {Slot(1, 1)}


def test_a_record_that_cannot_be_read_is_found_in_few_calls(store):
    keys = [Key("rows", str(n)) for n in range(1_000)]
    store.operate_many([Update(key, (Put("n", 1),), exists=Exists.CREATE) for key in keys])
    damage_row(store, keys[700])
    counting = CountingStore(store)
    rows = counting.get_many(keys, "n", each=True)
    assert [place for place, row in enumerate(rows) if not isinstance(row, Record)] == [700]
    assert isinstance(rows[700], Corrupt)
    assert counting.total <= 21
    with pytest.raises(Corrupt):
        counting.get_many(keys, "n")


def test_a_message_that_cannot_be_read_does_not_prevent_a_group_from_a_time_on(store, queue):
    since = datetime.fromtimestamp(store.seams.wall(), timezone.utc)
    queue.publish_many([1, 2, 3], key="k")
    first = queue.peek(1)[0]
    damage_row(store, queue.pointers.key((first.shard, first.pointer)))
    assert [one.payload for one in queue.group("g", start=since).receive(9)] == [2, 3]


def test_a_group_whose_place_in_a_shard_is_damaged_is_named_by_who_makes_it(store, queue):
    tag = queue.group("g").config.tag
    store.operate(queue.pointers.pointers_key(0), MapPut("groups", tag, "many"))
    store.operate(queue.registry.records.key("q@g"), Put("made", None))
    with pytest.raises(Corrupt, match="POINTERS"):
        QueueRegistry(store, "c", farm_id="f").get("q").group("g", start="oldest")


@pytest.mark.parametrize("swept", ["many", {"0": "many"}, {0: 1}])
def test_a_queue_whose_sweep_pointers_are_damaged_gets_a_group_from_its_oldest_on(store, queue, swept):
    queue.publish_many([1, 2], key="k")
    store.operate(queue.registry.records.key("q"), Put("sweepPointers", swept))
    assert sorted(one.payload for one in queue.group("g", start="oldest").receive(9)) == [1, 2]


def test_nothing_is_written_where_nobody_can_tell_who_waits_and_all_others_are(store, queue):
    queue.group("g")
    damage_row(store, queue.pointers.pointers_key(0))
    queue.pointers.readers.forget()
    first, second = queue.pointers.write([Slot(0, 1), Slot(1, 1)], [Envelope("a", "m1"), Envelope("b", "m2")])
    assert (type(first), second) == (Corrupt, WriteResult.DONE)
    assert store.get(queue.pointers.key((0, 1))) is None
    assert store.get(queue.pointers.key((1, 1))).bins["groups"]


def test_messages_beside_one_that_cannot_be_read_are_finished_for_a_reader_that_died(store, queue):
    queue.publish_many([1, 2, 3], key="k")
    _, second, _ = damaged_in(queue, store)
    shard = second.shard
    for n in (1, 3):
        store.operate(queue.pointers.key((shard, n)), Put("groups", {}), Put("data", None))
    queue.pointers.readers.finish([Slot(shard, n) for n in (1, 2, 3)])
    assert [store.get(queue.pointers.key((shard, n))) for n in (1, 3)] == [None, None]


def test_blocks_beside_one_that_cannot_be_read_are_taken_out_of_and_its_error_comes_after(store, queue):
    blocks = queue.batches.blocks
    places = [BatchPlace("b", 60, n * BLOCK) for n in range(3)]
    blocks.mark([place._replace(ordinal=place.ordinal + 1) for place in places])
    damage_row(store, blocks.key("b", 0))
    with pytest.raises(Corrupt) as raised:
        blocks.take_out(places)
    assert raised.value.details["key"] == blocks.key("b", 0)
    assert [one.out for one in blocks.counts("b", [1, 2])] == [1, 1]


def test_a_stream_of_a_group_passes_a_message_that_was_done_while_it_asked_for_it(store, queue, monkeypatch):
    queue.publish("a", key="k")
    group, slot = queue.group("g", start="oldest"), Slot(queue.shard_of("k"), 1)
    shared, key = group.pointers.shared, queue.pointers.key(slot)
    read = store._get_many

    def stripped_after(keys, bins):
        monkeypatch.setattr(store, "_get_many", read)
        rows = read(keys, bins)
        store.operate(key, *_DROP, Put("delivery", "d"))
        return rows

    monkeypatch.setattr(store, "_get_many", stripped_after)
    assert shared.present([slot], BINS, adopt=True) == {slot: None}


class _Term:
    def check(self):
        pass


def test_a_defect_that_one_queue_meets_does_not_keep_the_others_delayed_messages(store, queue, monkeypatch, caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        others = [queue.registry.create(QueueConfig(name, retry=False, shards=1)) for name in ("a", "z")]
    for one in (queue, *others):
        one.publish(one.name, delay=1)
    run = QueueTimers.run

    def raises(self, leadership):
        if self.queue.name == "a":
            raise KeyError("a defect")
        return run(self, leadership)

    monkeypatch.setattr(QueueTimers, "run", raises)
    timers = Timers(queue.registry)
    store.seams.advance(3)
    for _ in range(3):
        timers.run(_Term())
        store.seams.advance(3)
    assert [[one.payload for one in each.receive()] for each in (queue, *others)] == [["q"], [], ["z"]]
    assert len([one for one in caplog.records if "delayed messages of a" in one.message]) == 1


@pytest.mark.usefixtures("left_to_the_leader")
def test_a_defect_that_one_batch_meets_does_not_keep_the_others_from_their_end(queue, monkeypatch):
    for name in ("a", "b"):
        queue.batch(name, then=Publish(name)).close()
    look = Ending._look

    def raises(self, queue, since, state):
        if state.name == "a":
            raise KeyError("a defect")
        return look(self, queue, since, state)

    monkeypatch.setattr(Ending, "_look", raises)
    upkeep(queue)
    assert [one.payload for one in queue.receive(9)] == ["b"]


# ---- a value that the client cannot decode: `Unreadable`, not `Corrupt`


@pytest.fixture
def strange(store):
    return Undecodable(store)


@pytest.fixture
def orders(strange):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return QueueRegistry(strange, "c", farm_id="f").create(QueueConfig("q", retry=False, shards=2))


def of_each_shard(queue):
    """A key of shard 0, and one of shard 1."""
    return [next(key for key in "abcdefgh" if queue.shard_of(key) == shard) for shard in (0, 1)]


def test_messages_without_a_shard_of_their_own_go_past_one_that_cannot_be_decoded(strange, orders):
    strange.bad[orders.pointers.pointers_key(0)] = "stream"
    orders.publish_many(range(10))
    for n in range(10, 20):
        orders.publish(n, dedup=str(n))
    for n in range(20, 24):
        orders.publish(n, unique=str(n))
    Ledger(orders, "s").publish(0, [Outgoing(24)])
    Ledger(orders, "s").publish(1, [Outgoing(25)])
    assert sorted(one.payload for one in orders.receive(99)) == list(range(26))
    with pytest.raises(Corrupt, match="SHARD_0_POINTERS"):
        orders.publish("bound", key=of_each_shard(orders)[0])


def test_a_sweep_names_the_shard_that_cannot_be_decoded_and_does_the_others(strange, orders):
    bad, sound = of_each_shard(orders)
    for key in (bad, sound):
        orders.publish(key, key=key)
    assert len(orders.receive(10)) == 2  # which nobody acknowledges
    strange.bad[orders.pointers.pointers_key(0)] = "stream"
    sweeper = Sweeper(orders.registry, Election(1))
    for _ in range(3):
        strange.seams.advance(orders.config.sweep_duration.total_seconds() + 1)
        report = sweeper.run_once()
    ((name, failure),) = report.failures
    assert (name, "SHARD_0_POINTERS" in failure) == ("q", True)
    assert [message.payload for message in orders.sideline.peek_all()] == [sound]


def test_a_queue_is_made_again_though_one_of_its_shards_cannot_be_decoded(strange, orders):
    strange.bad[orders.pointers.pointers_key(0)] = "FIRE_POINTER"
    orders.publish("a", key=of_each_shard(orders)[1])
    strange.delete(orders.registry.records.key("q"))
    again = QueueRegistry(strange, "c", farm_id="f").create(orders.config)
    assert [one.payload for one in again.receive(9)] == ["a"]


def test_a_history_that_cannot_be_decoded_hides_no_minute_of_another_day(strange, orders):
    now = strange.seams.wall()
    strange.repeat(noting(orders, int(now * 1000), figures_of(stats_of(orders), [], None, 1, NOT_FAILING)))
    noted = LastMinutes(now, (0, 24 * 60))
    before = noted.found(strange.repeat_many(noted.reading(orders)))
    assert len(before[0]) == 1
    strange.bad[noted.reading(orders)[0].key] = "minutes"  # of the day before
    assert noted.found(strange.repeat_many(noted.reading(orders))) == before
