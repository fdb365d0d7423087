"""The contract of lifetimes. Where the clock cannot be injected, these checks wait for a few seconds."""

from __future__ import annotations

from ...errors import NotFound, Refused
from ..model.expr import Bin, exists
from ..model.ops import Add, Put, Read, Touch
from ..port import KEEP, NEVER, Exists, Key, RecordStore, Removal, Update
from .records import Contract, bins, generation_of, make, new_key, raises


class LifetimeContract(Contract):
    """Times to live: an expired record is an absent one, whatever is asked of it."""

    def test_an_expired_record_is_absent(self, store: RecordStore) -> None:
        read, updated, guarded, deleted, made, again, either = (make(store, Put("n", 1), ttl=1) for _ in range(7))
        self.pass_time(2.1)
        assert store.get(read) is None
        assert store.get_many([read, updated]) == [None, None]
        raises(NotFound, store.operate, read, Read("n"))
        raises(NotFound, store.operate, updated, Add("n", 1))
        raises(NotFound, store.operate, guarded, Add("n", 1), when=Bin("n").eq(1))
        assert store.delete(read) is False
        _guarded_delete(store, deleted)
        store.operate(made, Put("m", 1), exists=Exists.CREATE)
        store.operate(again, Add("n", 1), exists=Exists.ANY)
        store.operate(either, Put("m", 2), when=exists("none"), exists=Exists.ANY, or_absent=True)
        rows = store.operate_many([Update(updated, (Add("n", 1),)), Update(guarded, (Add("n", 1),), exists=Exists.ANY)])
        assert isinstance(rows[0], NotFound)
        assert store.delete_many([Removal(read)]) == [False]
        assert [bins(store, key) for key in (made, again, either, guarded)] == [{"m": 1}, {"n": 1}, {"m": 2}, {"n": 1}]

    def test_a_time_to_live_lasts_and_starts_again_with_each_write_that_names_one(self, store: RecordStore) -> None:
        kept, brief, longer, never = (make(store, Put("n", 1), ttl=3) for _ in range(4))
        store.operate(longer, Touch(), ttl=60)
        store.operate(never, Touch(), ttl=NEVER)
        self.pass_time(1.1)
        store.operate(kept, Add("n", 1), ttl=KEEP)
        assert _left(store, brief) >= _left(store, kept)  # made before it, and not begun again
        new = make(store, Put("n", 1), ttl=10)
        store.operate(brief, Add("n", 1), ttl=10)
        assert _left(store, brief) >= _left(store, new)  # begun before it
        self.pass_time(3.2)  # a server may count lifetimes in whole seconds, rounded up
        assert [bins(store, key) for key in (kept, brief, longer, never)] == [None, {"n": 2}, {"n": 1}, {"n": 1}]
        assert 50 <= _left(store, longer) <= 60

    def test_a_record_made_without_a_time_to_live_never_expires(self, store: RecordStore) -> None:
        for ttl in (KEEP, NEVER):
            key = new_key()
            store.operate(key, Put("n", 1), exists=Exists.ANY, ttl=ttl)
            store.operate(key, Add("n", 1))
            record = store.get(key)
            assert record is not None
            assert (record.ttl, generation_of(store, key)) == (NEVER, 2)


def _left(store: RecordStore, key: Key) -> int:
    """Return the seconds that a record still has; it has to be there."""
    record = store.get(key)
    assert record is not None
    return record.ttl


def _guarded_delete(store: RecordStore, key: Key) -> None:
    """Delete with a guard: a server may still evaluate it on a record that has expired but was not removed yet."""
    try:
        assert store.delete(key, when=Bin("n").eq(9)) is False
    except Refused:
        assert store.get(key) is None
