"""The same calls over two stores: a machine asks both, and whatever they answer and keep must be the same.

Each side has a store and a clock of its own, so both mint the same ids and draw the same chance, and a call that
sleeps moves its side's clock alone: the clocks must agree afterwards. Over a real server time cannot be moved, so the
rules that need that are left out, and what its clock says is compared by the order in which it was first seen.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from msgspec import Struct

from latchwork.errors import LatchworkError
from latchwork.queue.sharded.pointers import CLAIM
from latchwork.retry import RetryPolicy
from latchwork.store import MemoryStore, SQLiteStore
from latchwork.store.once import TokenClock, time_of
from latchwork.testing.clock import START, ManualClock
from tests.support.message_keys import empty, keys
from tests.support.scale import FIRST, scaled

MACHINES, ON_A_SERVER, STEPS = scaled(165), scaled(20), 10
SET_BY_A_CLOCK = range(10**12, 2**61)
"""Whole numbers that are milliseconds since the epoch, or fences."""
ATOMS = (str, bytes, float, bool, datetime, Enum, range)
TOKEN, UNIQUE = 17, 10
"""Bytes of a token, and those of them that no clock decides."""
time_passes = precondition(lambda machine: machine.movable)
"""For rules that move the clock, or need that somebody has."""


class Twins(RuleBasedStateMachine):
    """Two sides, of which the first is a memory store; subclasses have the rules."""

    movable = True
    clock = ManualClock

    def __init__(self, second) -> None:
        super().__init__()
        self.clocks = (self.clock(), self.clock())
        self.second = second
        self.stores = (MemoryStore(self.clocks[0]), second.begin(self.clocks[1]))
        self.movable = second.movable
        if second.movable:
            for store in self.stores:
                store.token_clock = Tokens()
        self.plain = tuple(Plain(second.movable) for _ in self.stores)
        self.start()

    def start(self) -> None:
        """Make what the rules use."""

    @property
    def now(self) -> float:
        """Seconds since the epoch, on both sides."""
        return self.clocks[0].wall()

    def both(self, call, *twins):
        """What the call came to on both sides: two values, or two errors; they have been compared."""
        came = [_outcome(call, side) for side in zip(*twins, strict=True)]
        first, second = (plain(one) for plain, one in zip(self.plain, came, strict=True))
        assert first == second
        return tuple(came)

    def outlasted(self, lease, attempt, successes):
        """Whoever looks for two leases breaks the lock of one who does not renew."""
        before = len(successes)
        for _ in range(3):
            attempt()
            if len(successes) > before:
                return
            for clock in self.clocks:
                clock.advance(lease + 0.1)
        raise AssertionError("it was not broken")

    @time_passes
    @rule(seconds=st.sampled_from((0.001, 0.3, 1.0, 7.0, 45.0, 400.0)))
    def pass_time(self, seconds):
        for clock in self.clocks:
            clock.advance(seconds)

    @invariant()
    def the_records_are_the_same(self):
        memory, second = self.stores
        keys = sorted({*memory._records, *self.second.keys(second)}, key=str)
        if not self.movable:
            keys = [key for key in keys if not _is_bucket(key)]
        if keys:
            first, other = (store.get_many(keys) for store in self.stores)
            assert [self.plain[0].record(one) for one in first] == [self.plain[1].record(one) for one in other]

    @invariant()
    def the_clocks_agree(self):
        assert self.clocks[0].wall() == self.clocks[1].wall()

    def teardown(self):
        self.second.end(*self.stores)


class Tokens(TokenClock):
    """Tokens by a count for each record: a side that needs fewer draws the same ids as the other all the same."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[object] = Counter()

    def mint(self, seams, key):
        self._counts[key] += 1
        number = self._counts[key].to_bytes(UNIQUE, "big")
        return super().mint(_Numbered(seams, number), key)


class _Numbered:
    def __init__(self, seams, number: bytes) -> None:
        self.wall, self.boottime, self.unique = seams.wall, seams.boottime, number.hex


class Plain:
    """Makes values of one side comparable: their types count, and what they are made of."""

    def __init__(self, exact: bool) -> None:
        self.exact = exact
        self._seen: dict[int, int] = {}

    def __call__(self, value):
        if isinstance(value, LatchworkError):
            return type(value)
        if isinstance(value, dict | set | frozenset | list | tuple):
            return self._all(value)
        if type(value) is int:
            return self._number(value)
        if type(value) is bytes and len(value) == TOKEN:
            # Each side corrects its clock when it needs a reply's time, and the correction is rounded to a microsecond.
            return value[-UNIQUE:], (time_of(value) + 137) // 1000 if self.exact else None
        if value is None or isinstance(value, ATOMS):
            return ("moment",) if isinstance(value, datetime) and not self.exact else (type(value), value)
        return (type(value), self(_parts(value)))

    def _all(self, values):
        if isinstance(values, dict):
            return {self(key): self(values[key]) for key in sorted(values, key=repr)}
        made = (self(value) for value in values)
        return set(made) if isinstance(values, set | frozenset) else list(made)

    def record(self, record):
        """A record as it is kept, without the memory of claims, which a store that has transactions does not need; by
        a real clock, without what that clock decides.
        """
        if record is None:
            return None
        bins = self({name: value for name, value in record.bins.items() if name != CLAIM.bin})
        return (record.key, bins, record.generation, record.ttl) if self.exact else (record.key, bins)

    def _number(self, value: int):
        if self.exact or value not in SET_BY_A_CLOCK:
            return value
        return ("moment",) if value < 10**15 else ("fence", self._seen.setdefault(value, len(self._seen)))


def _is_bucket(key) -> bool:
    """Whether a clock decides the key: of a bucket of delayed messages, which is one of the times when they are due."""
    return key.set.endswith("_delay_set") and key.name.startswith("B/")


def _parts(value):
    """What a handle or a report consists of; nothing of what has no public parts."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__ if name not in ("view", "held")}
    return {name: getattr(value, name) for name in ("fence", "epoch", "name", "gap") if hasattr(value, name)}


def _outcome(call, side):
    try:
        return call(*side)
    except LatchworkError as failure:
        return failure


def outcome(call):
    """What a call without sides came to: its value, or its error."""
    try:
        return call()
    except LatchworkError as failure:
        return failure


def came_to(answers):
    """The value that both sides gave, or the type of the error that both raised."""
    first = answers[0]
    return type(first) if isinstance(first, LatchworkError) else first


def failed(answers) -> bool:
    """Whether both sides raised an error."""
    return isinstance(answers[0], LatchworkError)


class SQLite:
    """The embedded store as a second side: one file, emptied before each run."""

    movable = True

    def __init__(self, path) -> None:
        self._path = path

    def begin(self, clock: ManualClock) -> SQLiteStore:
        store = SQLiteStore(self._path, synchronous="off", seams=clock)
        empty(store)
        store.tells_of_writes = False  # else nobody rings a queue's bell here, and its records differ
        return store

    def keys(self, store: SQLiteStore):
        return keys(store)

    def end(self, memory: MemoryStore, store: SQLiteStore) -> None:
        store.close()


class Server:
    """A real server as a second side: what the memory store has is deleted there after each run."""

    movable = False

    def __init__(self, store) -> None:
        self._store = store

    def begin(self, clock: ManualClock):
        store = copy.copy(self._store)
        store.seams, store.token_clock = clock, TokenClock()
        store.policy = RetryPolicy(attempts=1)
        return store

    def keys(self, store):
        return ()

    def end(self, memory: MemoryStore, store) -> None:
        for key in memory._records:
            store.delete(key)


def run(machine, machines: int) -> int:
    """Run so many machines, which `machine()` makes; how many there were."""
    ran = 0

    def made():
        nonlocal ran
        ran += 1
        return machine()

    run_state_machine_as_test(
        made,
        settings=settings(
            max_examples=machines,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=FIRST == 0,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert ran >= machines
    return ran


__all__ = [
    "START", "Server", "SQLite", "Twins", "came_to", "failed", "outcome", "run", "time_passes",
]  # fmt: skip
