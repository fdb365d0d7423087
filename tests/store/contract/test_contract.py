"""Every backend keeps the contract; and the contract finds a backend that does not."""

from __future__ import annotations

import pytest
from msgspec import structs

from latchwork.errors import LatchworkError, Refused
from latchwork.store import Exists, MapPut, MemoryStore, SQLiteStore, contract
from latchwork.store.contract import StoreContract
from latchwork.testing.clock import ManualClock
from tests.support.message_keys import MessageStore


class TestMemory(StoreContract):
    shared = False
    clock = ManualClock()

    @pytest.fixture
    def store(self):
        return MemoryStore(self.clock)

    def pass_time(self, seconds):
        self.clock.advance(seconds)


class TestSQLite(StoreContract):
    clock = ManualClock()

    @pytest.fixture
    def store(self, tmp_path):
        store = SQLiteStore(tmp_path / "store.db", synchronous="off", seams=self.clock)
        yield store
        store.close()

    def pass_time(self, seconds):
        self.clock.advance(seconds)


class TestSQLiteMessages(TestSQLite):
    """Of records that stand in the table of messages."""

    @pytest.fixture
    def store(self, tmp_path):
        store = MessageStore(tmp_path / "store.db", synchronous="off", seams=self.clock)
        yield store
        store.close()


class TestAerospike(StoreContract):
    @pytest.fixture
    def store(self, aerospike_store):
        return aerospike_store


CHECKS = sorted(name for name in dir(StoreContract) if name.startswith("test_"))


class InProcess(TestMemory):
    __test__ = False


def test_the_contract_runs_without_pytest():
    assert contract.run(lambda: MemoryStore(InProcess.clock), InProcess) == len(CHECKS) >= 35


class Broken(MemoryStore):
    """A store with a bug of the test's choosing: `bug(self, verb, request)` stands in for one verb."""

    def __init__(self, verb, bug):
        super().__init__(InProcess.clock)
        real = getattr(self, verb)
        setattr(self, verb, lambda *request: bug(self, real, *request))


def guards_are_skipped(store, operate, update):
    return operate(structs.replace(update, when=None))


def updates_create(store, operate, update):
    return operate(structs.replace(update, exists=Exists.ANY if update.exists is Exists.UPDATE else update.exists))


def creates_overwrite(store, operate, update):
    return operate(structs.replace(update, exists=Exists.ANY))


def records_never_expire(store, live, key, now):
    return store._records.get(key)


def readers_get_the_stores_own_lists(store, get, key, bins):
    record = get(key, bins)
    if record:
        record.bins.update(store._records[key].bins)
    return record


def one_bad_row_fails_the_batch(store, operate_many, updates):
    return [store._operate(update) for update in updates]


def some_updates_are_lost(store, operate, update):
    before, result = store._records.get(update.key), operate(update)
    if before is not None and before.generation % 7 == 3:
        store._records[update.key] = before
    return result


def tokens_are_not_looked_at(store, operate, update):
    plain = [structs.replace(op, new=False) if isinstance(op, MapPut) else op for op in update.ops]
    return operate(structs.replace(update, when=None, ops=tuple(plain)))


def refusals_count_as_writes(store, operate, update):
    try:
        return operate(update)
    except Refused:
        before = store._records[update.key]
        store._records[update.key] = structs.replace(before, updated=store._now(), generation=before.generation + 1)
        raise


def deletes_always_say_true(store, delete, removal):
    delete(removal)
    return True


@pytest.mark.parametrize(
    ("verb", "bug", "check"),
    [
        ("_operate", guards_are_skipped, "a_guard_decides_whether_anything_is_written"),
        ("_operate", updates_create, "an_update_of_an_absent_record_writes_nothing"),
        ("_operate", creates_overwrite, "a_create_leaves_a_record_that_is_there_alone"),
        ("_live", records_never_expire, "an_expired_record_is_absent"),
        ("_get", readers_get_the_stores_own_lists, "what_was_read_is_the_callers_own"),
        ("_operate_many", one_bad_row_fails_the_batch, "each_row_of_a_batch_is_classified_alone"),
        ("_operate", some_updates_are_lost, "threads_lose_no_update"),
        ("_operate", tokens_are_not_looked_at, "an_update_that_lands_late_happens_once"),
        ("_operate", refusals_count_as_writes, "only_a_write_that_happens_moves_the_last_update"),
        ("_delete", deletes_always_say_true, "a_delete_says_whether_it_was_there"),
    ],
)
def test_the_contract_finds(verb, bug, check):
    with pytest.raises((AssertionError, LatchworkError)):
        getattr(InProcess(), f"test_{check}")(Broken(verb, bug))
    getattr(InProcess(), f"test_{check}")(MemoryStore(InProcess.clock))
