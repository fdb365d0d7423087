"""Taking a large circular queue's lock, by the bins and rules of every lease (docs/protocols P2).

Every step under the lock is guarded by its fence, so nobody has to watch a clock, and the acquisition reads the queue
in the same step. All bins of the lease are there from the beginning, and its length is the queue's and never changes,
which makes guards and operations shorter than a general lock's.

An attempt whose reply was lost is recognised by its grant id in the record; one that lands later holds the lock for
nobody, until it runs out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

from ...coord import lease as rules
from ...coord.lease import LeaseView, Observation
from ...errors import LockUnavailable, NotFound, OutcomeUnknown, Refused
from ...retry import Poll
from ...store.model.expr import SERVER_NOW, Bin, Bound, Expr, Param, largest
from ...store.model.form import Form
from ...store.model.ops import Compute, Op, Put
from ...store.model.record import NO_PARAMS
from ...store.port import NEVER, Key, RecordStore

POLL = Poll(low=0.0005, high=0.005, factor=1.5, jitter=0.5)
"""How to wait for another process: a hold takes about a millisecond."""


_FREE = Bin(rules.LOCKED).eq(0) & Bin(rules.GRANT, str).ne(Param("grant", str))
_TAKE: tuple[Op, ...] = (
    Put(rules.FENCE, largest(Bin(rules.FENCE) + 1, SERVER_NOW * 1000)),
    Put(rules.LOCKED, 1),
    Put(rules.TIME, SERVER_NOW),
    Put(rules.OWNER, Param("owner", str)),
    Put(rules.GRANT, Param("grant", str)),
    # Computed, since an Aerospike server answers every operation of an update that computes something, in order.
    Compute(Bin(rules.FENCE)),
)


@lru_cache(maxsize=512)
def _form(guard: Expr, changes: tuple[Op, ...], reads: tuple[Op, ...]) -> Form:
    return Form(*changes, *reads, when=guard, ttl=NEVER)


def never_held(lease: float, fence: int) -> tuple[Op, ...]:
    """The lease's bins in a new record: its length in seconds, and a fence that all its fences will be above."""
    return (
        *rules.NEVER_HELD,
        Put(rules.FENCE, fence),
        Put(rules.OWNER, ""),
        Put(rules.GRANT, ""),
        Put(rules.TIME, 0),
        Put(rules.LEASE, round(lease * 1000)),
    )


class LeaseTaker:
    """One process that wants the lease on one record, which must exist. Remembers since when it has stood still."""

    def __init__(self, store: RecordStore, key: Key) -> None:
        self.store, self.key = store, key
        self._observed: Observation | None = None

    def take(
        self, owner: str, grant: str, reads: tuple[Op, ...], asked: Mapping[str, str], timeout: float | None
    ) -> tuple[Any, ...]:
        """Wait for the lease and take it: its fence, then what `reads` returned. One call where it is free.

        owner: for people.  grant: an id of this acquisition alone.  asked: the values of the parameters in `reads`.
        Raises `LockUnavailable` once `timeout` seconds are over (None = never), `NotFound` where there is no record,
        `OutcomeUnknown` where an attempt may have taken it, for nobody.
        """
        acquisition = _Acquisition(self, owner, grant, reads, asked)
        values = acquisition.attempt(acquisition.free()) or POLL.until(
            self.store.seams, acquisition.look, timeout=timeout
        )
        if values is None:
            raise LockUnavailable(
                f"{self.key.set!r} was locked by others until the time to wait was over", key=self.key
            )
        return values

    def renew(
        self, fence: int, reads: tuple[Op, ...] = (), asked: Mapping[str, str] = NO_PARAMS
    ) -> tuple[Any, ...] | None:
        """Start the lease again; what `reads` returned, or None where it is not held under this fence any more."""
        guard = rules.held(fence)
        try:
            return self.store.repeat(_form(guard.expr, rules.RENEW, reads).fill(self.key, **guard.params, **asked))
        except Refused:
            return None

    def observe(self) -> Observation:
        """The lease as it is now, and since when it has been seen so."""
        record = self.store.get(self.key, *rules.BINS)
        if record is None:
            raise NotFound(f"the queue {self.key.set!r} is gone", key=self.key)
        view, now = LeaseView.of(self.key, record.bins), self.store.seams.monotonic()
        before = self._observed  # read once: another thread may replace it
        seen = before.then(view, now) if before else Observation(view, now)
        self._observed = seen
        return seen


class _Acquisition(Struct):
    """One acquisition, under an id of its own that every repeat carries."""

    taker: LeaseTaker
    owner: str
    grant: str
    reads: tuple[Op, ...]
    asked: Mapping[str, str]

    def free(self) -> Bound:
        """Nobody holds it, and the last acquisition was not this one."""
        return _FREE.bind(grant=self.grant)

    def attempt(self, guard: Bound) -> tuple[Any, ...] | None:
        """Take it if the guard holds: the fence and what was read, or None."""
        taker = self.taker
        params = {"owner": self.owner, "grant": self.grant, **guard.params, **self.asked}
        try:
            return taker.store.repeat(_form(guard.expr, _TAKE, self.reads).fill(taker.key, **params))
        except Refused as refusal:
            return self._recognised(taker.observe()) if refusal.details["doubt"] else None
        except OutcomeUnknown:
            return self._recognised(taker.observe())

    def look(self) -> tuple[Any, ...] | None:
        """Look, and take it if it is free, or if it has stood still for one whole lease."""
        seen = self.taker.observe()
        if seen.view.grant == self.grant:
            return self._recognised(seen)
        if not seen.view.locked:
            return self.attempt(self.free())
        if seen.ran_out(self.taker.store.seams.monotonic()):
            return self.attempt(rules.broken(seen.view, self.grant))
        return None

    def _recognised(self, seen: Observation) -> tuple[Any, ...] | None:
        """The lease, if an attempt in doubt turns out to have taken it and still has it."""
        if seen.view.grant != self.grant:
            return None
        values = self.taker.renew(seen.view.fence, self.reads, self.asked) if seen.view.locked else None
        if values is None:
            self.grant = self.taker.store.seams.unique()  # it was lost again: another acquisition, another id
            return None
        return (seen.view.fence, *values)
