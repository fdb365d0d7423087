"""What the queue does, over every backend."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from bisect import bisect
from contextlib import suppress
from enum import Enum
from pathlib import Path

import pytest

from latchwork.errors import (
    AlreadyExists,
    Corrupt,
    InvalidRequest,
    LatchworkError,
    LockUnavailable,
    NotFound,
    OutcomeUnknown,
    QueueFull,
    RecordTooBig,
)
from latchwork.queue import Entry, LargeQueue, Transaction
from latchwork.queue.circular import transactions
from latchwork.queue.circular.transactions import NAMED_FORGOTTEN
from latchwork.store import Exists, Key, MemoryStore, Put
from latchwork.store.model.values import MAX_DEPTH
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.support.scale import length

VALUES = [0, -(2**63), 1.5, "ä", "", b"\x00\xff", True, False, None, [1, [None, "x"]], {"a": {"b": [b"c", 2.5, None]}}]


def test_first_in_first_out_with_offsets_that_grow_for_ever(store, name):
    queue = LargeQueue.create(store, name, 5, entries_per_record=2)
    for round_ in range(4):
        assert queue.enqueue_many(["a", "b", "c"]) == range(3 * round_, 3 * round_ + 3)
        assert [queue.dequeue() for _ in range(2)] == [Entry(3 * round_, "a"), Entry(3 * round_ + 1, "b")]
        assert queue.dequeue_many(5) == [Entry(3 * round_ + 2, "c")]
    assert queue.dequeue() is None
    assert queue.dequeue_many(3) == []


def test_every_kind_of_value_comes_back_as_it_was(store, name):
    queue = LargeQueue.create(store, name, 20, entries_per_record=4)
    queue.enqueue_many(VALUES)
    found = [entry.value for entry in queue.dequeue_many(20)]
    assert found == VALUES
    assert [type(value) for value in found] == [type(value) for value in VALUES]


def test_a_value_that_is_nested_as_deep_as_a_slot_takes_comes_back_and_a_deeper_one_is_refused(store, name):
    counted = CountingStore(store)
    queue, value = LargeQueue.create(counted, name, 4), "x"
    for _ in range(MAX_DEPTH - 2):
        value = [value]
    queue.enqueue(value)
    assert queue.dequeue().value == value
    counted.reset()
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        queue.enqueue([value])
    assert counted.total == 0


def of_just_the_room(queue, item):
    """A list of such items, and of zeros, that is as large as a value may be."""

    def fits(value):
        with suppress(RecordTooBig):
            return bool(queue.layout.fitting(value))

    value = []
    for filler in (item, 0):
        most = bisect(range(1, queue.layout.room), False, key=lambda count: not fits(value + [filler] * count))
        value += [filler] * most
    return value


@pytest.mark.parametrize(
    "item", ["x" * 31, b"x" * 31, {"a": [b"b" * 20, {5: "c" * 31}]}], ids=["str", "bytes", "nested"]
)
def test_values_of_just_the_room_fill_every_slot_whatever_they_are_made_of(store, name, item):
    queue = LargeQueue.create(store, name, 500, entries_per_record=500)
    value = of_just_the_room(queue, item)
    for count in (300, 199, 1):
        queue.enqueue_many([value] * count)
    assert queue.dequeue_many(500)[499] == Entry(499, value)
    assert queue.enqueue("as ever") == 500


def test_layout_is_the_documented_one(store, name):
    queue = LargeQueue.create(store, name, 6, entries_per_record=3, lease=0.5)
    queue.enqueue_many(["a", "b", "c", "d"], txn_id="t")
    bins = store.get(Key(name, "queue-metadata")).bins
    assert set(bins) >= {
        "locked", "lock-owner", "lock-time-ms", "head-offset", "tail-offset", "fencing-ctr", "num-buf-recs",
        "slots-per-rec", "lease-ms", "renewals", "txns", "groups",
    }  # fmt: skip
    assert (bins["locked"], bins["head-offset"], bins["tail-offset"]) == (0, 0, 4)
    assert (bins["num-buf-recs"], bins["slots-per-rec"], bins["lease-ms"]) == (2, 3, 500)
    assert bins["txns"]["t"] == [0, 3, bins["fencing-ctr"]]
    second = store.get(Key(name, "queue-buffer-1")).bins
    assert second == {"fencing-mark": bins["fencing-ctr"], "entries": [[3, "d"]]}
    assert store.get(Key(name, "queue-buffer-2")) is None


OLDER = {"locked": 0, "head-offset": 0, "tail-offset": 3, "fencing-ctr": 3, "num-buf-recs": 2, "slots-per-rec": 4}


@pytest.mark.parametrize(
    ("metadata", "slots"),
    [
        (OLDER, [{"offset": 0, "entry": "a"}, {"offset": 1, "entry": "b"}, {"offset": 2, "value": "c"}]),
        ({**OLDER, "lease-ms": 200, "renewals": 0, "txns": {}, "groups": {}}, [[0, "a"], [1, "b"], [2, "c"]]),
    ],
    ids=["older", "plain"],
)
def test_queue_in_the_older_layout_is_worked_as_if_it_were_ours(store, name, metadata, slots):
    empty = [{"offset": -1, "value": None}] * 4
    records = {"queue-buffer-0": (3, slots), "queue-buffer-1": (0, empty)}
    for key, (mark, entries) in records.items():
        store.operate(Key(name, key), Put("fencing-mark", mark), Put("entries", entries), exists=Exists.CREATE)
    ops = [Put(bin, value) for bin, value in metadata.items()]
    store.operate(Key(name, "queue-metadata"), *ops, exists=Exists.CREATE)
    for _ in range(2):
        queue = LargeQueue.open(store, name)
    assert queue.read_at(1) == Entry(1, "b")
    assert queue.dequeue(timeout=5) == Entry(0, "a")
    assert queue.enqueue_many(range(6), txn_id="t", timeout=5) == range(3, 9)
    assert queue.transaction("t").offsets == range(3, 9)
    assert queue.group("g", hold_head=True).lag() == 8
    assert queue.dequeue(timeout=5) is None
    queue.group("g").drop()
    assert [entry.value for entry in queue.dequeue_many(9, timeout=5)] == ["b", "c", *range(6)]


def test_records_never_expire(store, name):
    queue = LargeQueue.create(store, name, 2)
    queue.enqueue("a")
    assert {store.get(Key(name, key)).ttl for key in ("queue-metadata", "queue-buffer-0")} == {-1}


def test_full_queue_refuses_and_says_its_size_and_capacity(store, name):
    queue = LargeQueue.create(store, name, 3, entries_per_record=100)
    queue.enqueue_many([1, 2])
    with pytest.raises(QueueFull, match="2 of 3") as full:
        queue.enqueue_many([3, 4])
    assert (full.value.details["size"], full.value.details["capacity"]) == (2, 3)
    assert queue.enqueue(3) == 2
    with pytest.raises(QueueFull):
        queue.enqueue(4)
    with pytest.raises(QueueFull):
        queue.enqueue_many(range(4))
    assert [entry.value for entry in queue.dequeue_many(10)] == [1, 2, 3]


def test_overwrite_drops_the_oldest(store, name):
    queue = LargeQueue.create(store, name, 3, entries_per_record=2)
    for value in range(8):
        assert queue.enqueue(value, overwrite_if_full=True) == value
    info = queue.info()
    assert (info.head_offset, info.tail_offset, info.size, info.capacity) == (5, 8, 3, 3)
    assert queue.enqueue_many([8, 9, 10], overwrite_if_full=True) == range(8, 11)
    assert [queue.read_at(offset) for offset in (4, 7, 8, 11)] == [None, None, Entry(8, 8), None]
    assert queue.dequeue_many(3) == [Entry(8, 8), Entry(9, 9), Entry(10, 10)]


def test_read_at_takes_nothing(store, name):
    queue = LargeQueue.create(store, name, 10)
    queue.enqueue_many("abc")
    assert queue.read_at(1) == Entry(1, "b")
    queue.dequeue_many(2)
    assert queue.read_at(1) is None
    assert queue.read_at(2) == Entry(2, "c")
    assert queue.read_at(3) is None


def test_info_names_the_queue_and_where_it_is(store, name):
    queue = LargeQueue.create(store, name, 10)
    assert queue.info().name == name
    assert queue.info().namespace in ("memory", "sqlite", "test")


@pytest.mark.parametrize("count", [1, 10, 95, 250])
def test_any_batch_takes_three_calls(store, name, count):
    counting = CountingStore(store)
    queue = LargeQueue.create(counting, name, 250, entries_per_record=10)
    queue.enqueue_many([0] * 7)
    queue.dequeue_many(7)
    counting.reset()
    assert len(queue.enqueue_many(range(count), txn_id="new")) == count
    assert counting.total == 3
    counting.reset()
    assert [entry.value for entry in queue.dequeue_many(count)] == list(range(count))
    assert counting.total == 3


def test_hundred_single_messages_take_three_calls_each(store, name):
    counting = CountingStore(store)
    queue = LargeQueue.create(counting, name, 100)
    counting.reset()
    for value in range(100):
        queue.enqueue(value)
    for _ in range(100):
        queue.dequeue()
    assert counting.total == 600


def test_transaction_says_what_it_did(store, name):
    queue = LargeQueue.create(store, name, 10)
    queue.enqueue_many("abc", txn_id="in")
    queue.dequeue_many(2, txn_id=7)
    assert queue.transaction("in") == Transaction("in", range(3))
    assert queue.transaction(7) == Transaction("7", range(2))
    assert queue.transaction("never") is None


def test_transaction_id_may_be_used_again(store, name):
    queue = LargeQueue.create(store, name, 10)
    assert [queue.enqueue(value, txn_id="same") for value in "abc"] == [0, 1, 2]
    assert queue.transaction("same").offsets == range(2, 3)
    with pytest.raises(QueueFull):
        queue.enqueue_many(range(8), txn_id="same")
    assert queue.transaction("same") is None


def test_transaction_id_may_be_a_member_of_an_enumeration(store, name):
    queue, job = LargeQueue.create(store, name, 10), Enum("Job", {"NIGHTLY": "nightly"}, type=str).NIGHTLY
    queue.enqueue("a", txn_id=job)
    assert queue.transaction(job) == queue.transaction("nightly") == Transaction("nightly", range(1))


def test_transaction_that_may_be_forgotten_is_unknown(store, name, monkeypatch):
    assert transactions.REMEMBERED[NAMED_FORGOTTEN] == 1024
    kept = length(1024, least=280)  # from 256 on they are counted
    monkeypatch.setitem(transactions.REMEMBERED, NAMED_FORGOTTEN, kept)
    queue, first = LargeQueue.create(store, name, 10), 276
    for number in range(first + kept):
        queue.enqueue(number, txn_id=f"t{number}", overwrite_if_full=True)
    last = first + kept - 1
    assert queue.transaction(f"t{last}").offsets == range(last, last + 1)
    assert queue.transaction(f"t{first}").offsets == range(first, first + 1)
    with pytest.raises(OutcomeUnknown, match="long ago"):
        queue.transaction("t0")
    assert len(store.get(Key(name, "queue-metadata")).bins["txns"]) <= kept + 64 + 2


def test_transactions_of_the_queue_itself_do_not_crowd_out_those_with_ids(store, name):
    queue = LargeQueue.create(store, name, 10)
    queue.enqueue("mine", txn_id="mine")
    for number in range(400):
        queue.enqueue(number, overwrite_if_full=True)
    assert queue.transaction("mine").offsets == range(1)
    assert queue.transaction("never") is None
    assert len(store.get(Key(name, "queue-metadata")).bins["txns"]) <= 256 + 64


def test_handles_share_one_queue(store, name):
    queue = LargeQueue.create(store, name, 10)
    other = LargeQueue.open(store, name)
    queue.enqueue("a")
    other.enqueue("b")
    assert [entry.value for entry in queue.dequeue_many(2)] == ["a", "b"]
    assert LargeQueue.open_or_create(store, name, 10).info() == other.info()


def test_create_and_open_say_what_is_there(store, name):
    with pytest.raises(NotFound, match="create"):
        LargeQueue.open(store, name)
    LargeQueue.open_or_create(store, name, 10)
    with pytest.raises(AlreadyExists):
        LargeQueue.create(store, name, 10)
    with pytest.raises(AlreadyExists, match="capacity 10"):
        LargeQueue.open_or_create(store, name, 20)


def test_entries_in_another_store(store, name):
    buffers = MemoryStore()
    queue = LargeQueue.create(store, name, 4, entries_per_record=2, buffer_store=buffers)
    queue.enqueue_many("abc")
    assert buffers.get(Key(name, "queue-buffer-0")).bins["entries"] == [[0, "a"], [1, "b"]]
    assert store.get(Key(name, "queue-buffer-0")) is None
    assert LargeQueue.open(store, name, buffer_store=buffers).dequeue() == Entry(0, "a")
    with pytest.raises(NotFound, match="buffer_store"):
        LargeQueue.open(store, name)


def test_lost_buffer_record_is_an_error_and_not_an_empty_queue(store, name):
    queue = LargeQueue.create(store, name, 4, entries_per_record=2)
    queue.enqueue_many("abc")
    store.delete(Key(name, "queue-buffer-0"))
    with pytest.raises(Corrupt, match="queue-buffer-0"):
        queue.dequeue()
    with pytest.raises(Corrupt, match="queue-buffer-0"):
        queue.enqueue_many("de", overwrite_if_full=True)
    assert queue.info().size <= 3


def test_stale_buffer_record_is_an_error(store, name):
    queue = LargeQueue.create(store, name, 4, entries_per_record=2)
    queue.enqueue_many("abc")
    store.operate(Key(name, "queue-buffer-0"), Put("entries", [[0, "a"]]))
    with pytest.raises(Corrupt, match="older"):
        queue.dequeue_many(3)
    assert queue.dequeue() == Entry(0, "a")


def test_handle_pickles_with_its_store(tmp_path):
    from latchwork.store import SQLiteStore

    queue = LargeQueue.create(SQLiteStore(tmp_path / "s.db", synchronous="off"), "q", 10)
    pickle.loads(pickle.dumps(queue)).enqueue("a")
    assert queue.dequeue() == Entry(0, "a")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"name": "x" * 64}, "63"),
        ({"name": ""}, "queue name is ''"),
        ({"name": 5}, "queue name is 5"),
        ({"name": "a\nb"}, "queue name is 'a"),
        ({"capacity": 0}, "capacity"),
        ({"capacity": 1.5}, "capacity"),
        ({"capacity": True}, "capacity"),
        ({"entries_per_record": 0}, "entries_per_record"),
        ({"entries_per_record": 10_001}, "entries_per_record"),
        ({"lease": 0}, "lease"),
        ({"lease": "1"}, "lease"),
    ],
)
def test_bad_settings_are_refused_before_any_call(arguments, named):
    store = CountingStore(MemoryStore())
    settings = {"name": "q", "capacity": 10, **arguments}
    for make in (LargeQueue.create, LargeQueue.open_or_create):
        with pytest.raises(InvalidRequest, match=named):
            make(store, settings.pop("name"), **settings) if "name" in settings else make(store, "q", **settings)
        settings = {"name": "q", "capacity": 10, **arguments}
    assert store.total == 0


def test_bad_input_is_refused_before_any_call():
    store = CountingStore(MemoryStore())
    queue = LargeQueue.create(store, "q", 10)
    group = queue.group("g")
    store.reset()
    bad = [
        (lambda: queue.enqueue({1, 2}), "set"),
        (lambda: queue.enqueue([object()]), "object"),
        (lambda: queue.enqueue(2**64), "64 bits"),
        (lambda: queue.enqueue_many([], txn_id=""), "txn_id"),
        (lambda: queue.enqueue_many([], timeout=-1), "timeout"),
        (lambda: queue.enqueue_many(None), "a NoneType"),
        (lambda: queue.enqueue_many({"order": 7}), "values is a dict"),
        (lambda: queue.enqueue("x", txn_id=""), "txn_id"),
        (lambda: queue.enqueue("x", txn_id=1.5), "txn_id"),
        (lambda: queue.enqueue("x", txn_id="~x"), "queue's own"),
        (lambda: queue.enqueue("x", txn_id="\ud800"), "txn_id.*Unicode"),
        (lambda: queue.enqueue("x", timeout=-1), "timeout"),
        (lambda: queue.enqueue_many(range(11), overwrite_if_full=True), "capacity is 10"),
        (lambda: queue.dequeue_many(0), "n is 0"),
        (lambda: queue.read_at(-1), "offset"),
        (lambda: queue.transaction(None), "txn_id"),
        (lambda: queue.group(""), "group name"),
        (lambda: group.read(0), "n is 0"),
    ]
    for act, named in bad:
        with pytest.raises(InvalidRequest, match=named):
            act()
    with pytest.raises(RecordTooBig):
        queue.enqueue("ä" * 6000)
    assert store.total == 0


def test_no_entries_are_enqueued_without_a_call_at_no_offsets():
    store = CountingStore(MemoryStore())
    queue = LargeQueue.create(store, "q", 10)
    queue.enqueue("a")
    store.reset()
    assert queue.enqueue_many([]) == queue.enqueue_many(iter(()), txn_id="t", overwrite_if_full=True) == range(0)
    assert store.total == 0
    assert queue.transaction("t") is None


def test_wait_for_a_dead_holder_ends_after_its_lease_and_naps_grow():
    clock = ManualClock()
    store = MemoryStore(clock)
    LargeQueue.create(store, "q", 10, lease=0.2)
    meta = Key("q", "queue-metadata")
    held = {"locked": 1, "fencing-ctr": 5, "lock-time-ms": int(clock.wall() * 1000)}
    store.operate(meta, *[Put(bin, value) for bin, value in held.items()])
    queue = LargeQueue.open(store, "q")
    with pytest.raises(LockUnavailable):
        queue.enqueue("a", timeout=0.1)
    began = clock.monotonic()
    assert queue.enqueue("a", timeout=5) == 0
    assert clock.monotonic() - began < 0.25
    assert clock.slept[0] < 0.001
    assert max(clock.slept) <= 0.0075


def test_long_transfer_renews_the_lock_between_its_calls():
    counting = CountingStore(MemoryStore(ManualClock()))
    queue = LargeQueue.create(counting, "q", 3000, entries_per_record=10)
    counting.reset()
    queue.enqueue_many(range(2500))
    assert counting.calls == {"operate": 4, "operate_many": 3}
    assert [entry.value for entry in queue.dequeue_many(3000)] == list(range(2500))


def test_creation_that_fails_at_any_call_can_be_made_good():
    calls = FaultyStore(MemoryStore(ManualClock()))
    LargeQueue.create(calls, "q", 4, entries_per_record=2)
    for call in range(1, calls.total + 1):
        for kind in ("crash_before", "crash_after", "dropped", "request_lost", "reply_lost", Fault("late", after=1)):
            inner = MemoryStore(ManualClock())
            with suppress(Crash, LatchworkError):
                LargeQueue.create(FaultyStore(inner, {call: kind}), "q", 4, entries_per_record=2)
            queue = LargeQueue.open_or_create(inner, "q", 4, entries_per_record=2)
            queue.enqueue_many("abcd")
            assert [entry.value for entry in queue.dequeue_many(4)] == list("abcd")


def test_example_of_a_shared_bus_runs(tmp_path):
    root = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "LATCHWORK_STORE": f"sqlite:{tmp_path / 'bus.db'}?synchronous=off"}
    ran = subprocess.run(
        [sys.executable, root / "examples/shared_bus.py"], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.count("taken off the bus") == 8
    assert "missed offsets [0, 1, 2, 3]" in ran.stdout


def test_numbers_too_large_to_be_written_out_are_refused_before_any_call():
    store = CountingStore(MemoryStore())
    queue = LargeQueue.create(store, "q", 10)
    group, calls = queue.group("g"), store.total
    for act in (
        lambda: queue.read_at(10**5000),
        lambda: queue.dequeue_many(10**5000),
        lambda: queue.dequeue(timeout=10**5000),
        lambda: queue.enqueue("a", timeout=10**400),
        lambda: queue.transaction(10**5000),
        lambda: group.commit(10**5000),
        lambda: LargeQueue.create(store, "q", 10**5000),
    ):
        with pytest.raises(InvalidRequest):
            act()
    assert store.total == calls
