"""A bell for each pointer queue: rung by who publishes to a shard that was empty, read by who waits (P5).

One read of it says whether the pointers of all shards are worth a look. A ring that is lost costs a late look, never a
message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from ...deadline import present
from ...errors import LatchworkError, OutcomeUnknown
from ...forks import renew_in_child
from ...inputs import is_int
from ...retry import RetryPolicy, again, reason
from ...seams import Seams
from ...store import NEVER, Add, Exists, Key, Record, RecordStore, Update
from ..rows import settle

RUNG = "rung"
"""The bin that counts the rings."""

GLANCES = 15
"""Reads of bells a second for which all queues of a process together wait, at most."""
SHARDS = 36
"""Shards whose pointers all queues of a process together read within one interval of late looks, at most."""
RECENT = 10.0
"""Seconds since its last glance for which a queue counts as one that is waited for."""
_ONE_ATTEMPT = RetryPolicy(attempts=1)


class Bell:
    """The bell of one pointer queue, as one process rings and reads it. Safe to share between threads."""

    def __init__(self, store: RecordStore, key: Key) -> None:
        self._store = store
        self.key = key
        self._ring = Update(key, (Add(RUNG, 1),), exists=Exists.ANY, ttl=NEVER)
        self._owed = False

    def owe(self) -> None:
        """Ring with the next rows that are sent: a slot of a shard that was empty was reserved.

        Whichever thread sends the next rows rings for all: a ring counts for every slot that was reserved before it.
        """
        self._owed = True

    def settle(self, rows: Sequence[Update]) -> list[Any]:
        """What `rows.settle` does, and in the first of its calls the ring that is owed.

        A ring that fails alone is left to the next rows. Where the record is overloaded others ring it at this moment,
        and each of these rings comes after the slots were reserved.
        """
        if not self._owed:
            return settle(self._store, rows)
        self._owed, rung = False, False
        sent = [*rows, self._ring]
        try:
            outcomes: list[Any] = list(self._store.with_policy(_ONE_ATTEMPT).operate_many(sent))
            unsettled = [place for place, outcome in enumerate(outcomes) if _may_pass(outcome)]
            if unsettled and unsettled[0] < len(rows):
                self._again(sent, unsettled, outcomes)
            rung = not isinstance(outcomes.pop(), LatchworkError)
        finally:
            self._owed = self._owed or not rung
        return outcomes

    def _again(self, rows: Sequence[Update], unsettled: Sequence[int], outcomes: list[Any]) -> None:
        """Send these rows again, as often as the store's policy still says."""
        store, policy = self._store, self._store.policy
        pause, deadline = policy.pause(1, store.seams), present()
        if policy.attempts == 1 or (deadline is not None and deadline.too_late(pause)):
            return
        store.seams.note("retries", reason=reason(outcomes[unsettled[0]]))
        store.seams.sleep(pause)
        rest = store.with_policy(replace(policy, attempts=policy.attempts - 1))
        for place, outcome in zip(unsettled, settle(rest, [rows[place] for place in unsettled]), strict=True):
            outcomes[place] = outcome

    def rings(self) -> int:
        """How often it was rung, 0 = never. One read."""
        return rung_in(self._store.get(self.key, RUNG))


def rung_in(record: Record | None) -> int:
    """How often a bell was rung, by its record; 0 where that is absent or damaged."""
    rung = record.bins.get(RUNG, 0) if record else 0
    return rung if is_int(rung) else 0


def _may_pass(outcome: Any) -> bool:
    return isinstance(outcome, LatchworkError) and (isinstance(outcome, OutcomeUnknown) or again(outcome))


class Listeners:
    """The pointer queues for which a process waits at one store. Together they keep to a number of reads a second."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self.begin_anew()
        renew_in_child(self)

    def begin_anew(self) -> None:
        """Nobody waits yet. A forked child begins so."""
        self._lock = self._seams.lock()
        self._queues: dict[str, tuple[float, int]] = {}

    def listen(self, queue: str, shards: int) -> tuple[float, float]:
        """Note that this queue is waited for now. Returns its least seconds between two glances, and by which factor
        the interval of its late looks is longer.
        """
        now = self._seams.monotonic()
        with self._lock:
            self._queues[queue] = now, shards
            self._queues = {name: one for name, one in self._queues.items() if now - one[0] < RECENT}
            shards = sum(one[1] for one in self._queues.values())
            return len(self._queues) / GLANCES, max(1.0, shards / SHARDS)


def listeners_of(store: RecordStore) -> Listeners:
    """Return the listeners of this process, shared by all views of a store."""
    found = _ALL.get(store.token_clock)
    return found or _ALL.setdefault(store.token_clock, Listeners(store.seams))


_ALL: WeakKeyDictionary[Any, Listeners] = WeakKeyDictionary()
"""By what all views of a store have in common."""
