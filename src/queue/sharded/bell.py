"""A bell for each subqueue: a counter that a publisher to an empty shard increments, and that waiting consumers
read (P5).

One read of it says whether the pointers of all shards are worth a look. A ring that is lost costs a late look, never a
message. Where the store itself tells of writes (`RecordStore.tells_of_writes`), nobody rings it or reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ...coord.waits import poller_of
from ...deadline import present
from ...errors import LatchworkError, OutcomeUnknown
from ...inputs import is_int
from ...retry import ONE_ATTEMPT, again, reason
from ...store import NEVER, Add, Exists, Key, Record, RecordStore, Update
from ...store.model.record import Values
from ...store.rows import Rows, after_repeat

RUNG, CHANGES = "rung", "changes"
"""The bins that count the rings, and the changes of settings that were announced."""

GLANCES = 14
"""Reads of bells a second for which all queues of a process together wait, at most."""
SHARDS = 24
"""Shards whose pointers all queues of a process together read within one interval of late looks, at most."""


class Bell:
    """The bell of one subqueue, as one process rings and reads it. Safe to share between threads."""

    ring_due = False
    """Whether the next rows have to ring, and so are sent by `settle`."""

    def __init__(self, store: RecordStore, key: Key) -> None:
        self._store = store
        self.key = key
        self._ring = Update(key, (Add(RUNG, 1),), exists=Exists.ANY, ttl=NEVER)
        self.is_needed = not store.tells_of_writes
        """Whether who waits learns of a publish by a ring alone."""

    def ring_later(self) -> None:
        """Ring with the next rows that are sent, where that is needed: a slot of a shard that was empty was reserved.

        The thread that sends the next rows rings for all: a ring counts for every slot that was reserved before it.
        """
        self.ring_due = self.is_needed

    def settle(self, rows: Sequence[Update]) -> Rows[Values]:
        """Send rows as `RecordStore.repeat_many` does, and in the first of its calls the ring that is due.

        A ring that fails alone is sent with the next rows. If the record is overloaded, others ring it at this moment,
        and each of these rings comes after the slots were reserved.
        """
        if not self.ring_due:
            return self._store.repeat_many(rows)
        self.ring_due, rung = False, False
        sent = [*rows, self._ring]
        try:
            outcomes = self._store.with_policy(ONE_ATTEMPT).operate_many(sent)
            failed = ((n, one) for n, one in enumerate(outcomes) if isinstance(one, LatchworkError))
            unsettled = [n for n, one in failed if isinstance(one, OutcomeUnknown) or again(one)]
            if unsettled and unsettled[0] < len(rows):
                self._again(sent, unsettled, outcomes)
            rung = not isinstance(outcomes.pop(), LatchworkError)
        finally:
            self.ring_due = self.ring_due or not rung
        return outcomes

    def _again(self, rows: Sequence[Update], unsettled: Sequence[int], outcomes: Rows[Values]) -> None:
        """Send these rows again, as often as the store's policy still allows."""
        store, policy = self._store, self._store.policy
        pause, deadline = policy.pause(1, store.seams), present()
        if policy.attempts == 1 or (deadline is not None and deadline.too_late(pause)):
            return
        store.seams.note("retries", reason=reason(outcomes.errors()[0]))
        store.seams.sleep(pause)
        rest = store.with_policy(replace(policy, attempts=policy.attempts - 1))
        again = rest.repeat_many([rows[place] for place in unsettled])
        outcomes.sent_again = True
        outcomes.merge(unsettled, map(after_repeat, [outcomes[place] for place in unsettled], again))

    def ring(self) -> None:
        """Ring, if the store can be written now. One call."""
        with suppress(LatchworkError):
            self._store.repeat(self._ring)

    def announce(self) -> None:
        """Tell the consumers that listen that settings have changed, if the store can be written now. One call; none
        where the store tells of each write.
        """
        if self.is_needed:
            with suppress(LatchworkError):
                self._store.repeat(Update(self.key, (Add(CHANGES, 1),), exists=Exists.ANY, ttl=NEVER))

    def rings(self) -> int:
        """Return how often it was rung, 0 = never. One read."""
        return rung_in(self._store.get(self.key, RUNG))


def rung_in(record: Record | None) -> int:
    """Return how often a bell was rung, by its record; 0 if that is absent or damaged."""
    return _counted(record, RUNG)


def changes_in(record: Record | None) -> int:
    """Return how many changes of settings were announced, by the record of a bell; 0 if that is absent or damaged."""
    return _counted(record, CHANGES)


def _counted(record: Record | None, bin: str) -> int:
    count = record.bins.get(bin, 0) if record else 0
    return count if is_int(count) else 0


def limits(store: RecordStore, queue: str, shards: int) -> tuple[float, float]:
    """Return how far a process that waits for several queues has to slow down.

    Two numbers: the least seconds between two glances at this queue's bell, and the factor by which its late looks are
    rarer. The queues that it waited for lately count too.
    """
    queues, all_shards = poller_of(store).share(queue, shards)
    return queues / GLANCES, max(1.0, all_shards / SHARDS)
