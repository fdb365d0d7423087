"""The contract of many records, many threads and many processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from ...errors import AlreadyExists, BinMismatch, InvalidRequest, NotFound, Refused
from ...seams import SYSTEM
from ..model.expr import Bin
from ..model.form import Form
from ..model.ops import Add, Compute, MapGet, MapPut, Put, Read
from ..port import Exists, Key, Once, Record, RecordStore, Removal, Update
from .records import Contract, bins, make, new_key, raises

WORKERS, ROUNDS = 4, 50


class BatchContract(Contract):
    """Batches: each row is classified alone, and the rows keep their order."""

    def test_each_row_of_a_batch_is_classified_alone(self, store: RecordStore) -> None:
        there, other, refused, text = (make(store, Put("n", 1), Put("s", "x")) for _ in range(4))
        new, absent = new_key(), new_key()
        rows = store.operate_many(
            [
                Update(there, (Add("n", 1), Read("n"))),
                Update(refused, (Add("n", 1),), when=Bin("n").eq(9)),
                Update(absent, (Add("n", 1),)),
                Update(other, (Put("n", 9),), exists=Exists.CREATE),
                Update(new, (Put("n", 5), Compute(Bin("n") + 1)), exists=Exists.CREATE),
                Update(text, (Add("s", 1),)),
            ]
        )
        assert [rows[0], rows[4]] == [(2,), (6,)]
        assert [type(rows[place]) for place in (1, 2, 3, 5)] == [Refused, NotFound, AlreadyExists, BinMismatch]
        found = [record and record.bins["n"] for record in store.get_many([there, refused, absent, other, new, text])]
        assert found == [2, 1, None, 1, 5, 1]

    def test_a_row_that_removes_the_last_bin_of_its_record_is_done(self, store: RecordStore) -> None:
        key, guarded = make(store, Put("n", 1)), make(store, Put("n", 1))
        other = make(store, Put("n", 1), Put("s", "x"))
        gone, refused = Update(key, (Put("n", None),)), Update(guarded, (Put("n", None),), when=Bin("n").eq(9))
        rows = store.operate_many([gone, refused, Update(other, (Put("n", None), Read("s")))])
        assert [rows[0], type(rows[1]), rows[2]] == [(), Refused, ("x",)]
        assert store.repeat_many([Update(guarded, (Put("n", None),))]) == [()]
        assert [bins(store, one) for one in (key, guarded, other)] == [None, None, {"s": "x"}]

    def test_each_row_of_a_batch_of_deletes_is_classified_alone(self, store: RecordStore) -> None:
        there, refused = make(store, Put("n", 1)), make(store, Put("n", 1))
        rows = store.delete_many([Removal(there), Removal(new_key()), Removal(refused, Bin("n").eq(2))])
        assert rows[:2] == [True, False]
        assert isinstance(rows[2], Refused)
        assert [bins(store, there), bins(store, refused)] == [None, {"n": 1}]

    def test_a_batch_may_be_empty_or_long(self, store: RecordStore) -> None:
        assert store.operate_many([]) == []
        assert store.delete_many([]) == []
        keys = [new_key() for _ in range(1000)]
        rows = [
            Update(key, (Put("n", place), Read("n")), exists=Exists.CREATE, ttl=600) for place, key in enumerate(keys)
        ]
        assert store.operate_many(rows) == [(place,) for place in range(1000)]
        assert [record and record.bins["n"] for record in store.get_many(keys, "n")] == list(range(1000))
        assert store.delete_many([Removal(key) for key in keys]) == [True] * 1000

    def test_a_row_is_refused_alone_where_its_answers_could_not_be_told_apart(self, store: RecordStore) -> None:
        key, other = make(store, Put("n", 1), Put("m", {"k": 1})), make(store, Put("n", 1))
        for ops in (
            (Read("n"), Read("n")), (Read("n"), Add("n", 1)), (MapGet("m", "k"), MapPut("m", "k", 2)),
            (Put("x", 1), Read("n"), Put("n", 2)),
        ):  # fmt: skip
            refused, filled, done = store.operate_many(
                [Update(key, ops), Form(*ops).fill(new_key()), Update(other, (Add("n", 1), Read("n")))]
            )
            assert [type(refused), type(filled), type(done)] == [InvalidRequest, InvalidRequest, tuple]
        assert bins(store, key) == {"n": 1, "m": {"k": 1}}
        assert bins(store, other) == {"n": 5}

    def test_a_bad_row_stops_the_batch_before_anything_is_sent(self, store: RecordStore) -> None:
        key = new_key()
        good, bad = Update(key, (Put("n", 1),), exists=Exists.ANY), Update(key, (Put("b" * 16, 1),), exists=Exists.ANY)
        raises(InvalidRequest, store.operate_many, [good, bad])
        assert store.get(key) is None


class QueryContract(Contract):
    """Queries: the records of a set, with their keys, by one bin."""

    def test_a_query_finds_the_records_whose_bin_has_the_value_now(self, store: RecordStore) -> None:
        set_name = f"query_{SYSTEM.unique()}"
        early, late, moved, gone, bare, likely = (new_key(set_name) for _ in range(6))
        make(store, Put("active", "yes"), Put("n", 7), key=early)
        for kind, bin in ((str, "active"), (int, "n"), (str, "active")):
            store.ensure_index(set_name, bin, kind)
        make(store, Put("active", "yes"), Put("n", 8), key=late)
        make(store, Put("active", "yes"), key=moved)
        make(store, Put("active", "yes"), key=gone)
        make(store, Put("other", "yes"), key=bare)
        make(store, Put("n", 8.0), key=likely)  # a fraction: another value than the integer
        store.operate(moved, Put("active", "no"))
        store.delete(gone)
        assert _asked(lambda: store.query(set_name, "active", "yes"), {early, late}) == {early, late}
        assert _asked(lambda: store.query(set_name, "active", "no"), {moved}) == {moved}
        assert _asked(lambda: store.query(set_name, "n", 8), {late}) == {late}
        assert store.query(set_name, "active", "maybe") == []
        (found,) = store.query(set_name, "n", 7)
        assert (found.key, found.bins) == (early, {"active": "yes", "n": 7})


def _asked(ask: Callable[[], list[Record]], expected: set[Key]) -> set[Key]:
    """Return the keys that a query answers with; a server that has just made the index may need a moment."""
    found: set[Key] = set()
    for _ in range(100):
        found = {record.key for record in ask()}
        if found == expected:
            break
        SYSTEM.sleep(0.05)
    return found


class SharingContract(Contract):
    """Atomicity: no update is lost and none is half visible, if others write."""

    def test_the_data_version_is_another_one_after_each_write_or_none(self, store: RecordStore) -> None:
        seen = [store.data_version()]
        key = make(store, Put("n", 0))
        for _ in range(5):
            seen.append(store.data_version())
            store.operate(key, Add("n", 1))
        seen.append(store.data_version())
        assert not store.tells_of_writes or None not in seen
        assert None in seen or all(before != after for before, after in pairwise(seen))

    def test_threads_lose_no_update(self, store: RecordStore) -> None:
        key = make(store, Put("n", 0), Put("twin", 0))
        tasks = [SYSTEM.spawn(lambda: add(store, key), f"adder-{number}") for number in range(WORKERS)]
        while any(task.is_alive() for task in tasks):
            record = store.get(key)
            assert record is not None
            assert record.bins["n"] == record.bins["twin"], "an update was seen half done"
        _counted(store, key)

    def test_of_many_threads_exactly_one_passes_a_guard(self, store: RecordStore) -> None:
        for _ in range(10):
            key, won = make(store, Put("n", 0)), list[str]()

            def claim(name: str, key: Key = key, won: list[str] = won) -> None:
                try:
                    store.operate(key, Put("n", 1), Put("by", name), when=Bin("n").eq(0))
                    won.append(name)
                except Refused:
                    return

            tasks = [SYSTEM.spawn(lambda name=f"t{n}": claim(name), f"t{n}") for n in range(WORKERS)]  # type: ignore[misc] # mypy cannot type a lambda with a default
            for task in tasks:
                task.join(60)
            assert [bins(store, key)] == [{"n": 1, "by": name} for name in won]

    def test_processes_lose_no_update(self, store: RecordStore) -> None:
        if not self.shared:
            return
        key = make(store, Put("n", 0), Put("twin", 0))
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=add, args=(store, key)) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(120)
        assert [worker.exitcode for worker in workers] == [0] * WORKERS
        _counted(store, key)


def add(store: RecordStore, key: Key) -> None:
    """Do the work of each thread or process of these checks."""
    once = Once(WORKERS * ROUNDS, result=Bin("n"))
    for number in range(ROUNDS):
        if number % 2:
            store.operate(key, Add("n", 1), Add("twin", 1))
        else:
            store.operate(key, Add("n", 1), Add("twin", 1), once=once)


def _counted(store: RecordStore, key: Key) -> None:
    found: Any = bins(store, key)
    assert (found["n"], found["twin"]) == (WORKERS * ROUNDS, WORKERS * ROUNDS)
    assert len(found["ops"]) == WORKERS * ROUNDS // 2
    assert len(set(found["ops"].values())) == WORKERS * ROUNDS // 2, "two updates were given the same answer"
