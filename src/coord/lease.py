"""A lease on one record, with a fence: the bins, guards and operations of docs/protocols.md P2, as values.

The lease is part of whatever record carries its bins; nothing else may write them. No guard compares a time: a server's
clock may be set, and by an hour. A lease has run out once it was seen, by the clock of whoever wants it, to stand still
for its whole length (`Observation`); the guard then asks that it still stands as it was seen. So other bins of the
record may be written freely. Everything here is pure: who sends it, and when, is `contender.py`.

The record remembers the id of its last acquisition (`grant-id`). That is all the memory an acquisition needs: an older
one does not count any more, and a repeat of the last one is refused and recognised.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta, Struct, field

from ..errors import InvalidRequest
from ..store.decode import Counter, decoded
from ..store.model.expr import SERVER_NOW, Bin, Bound, Const, If, Param, exists, largest, missing
from ..store.model.ops import Add, Op, Put, Read
from ..store.model.record import Key

K = TypeVar("K", bound=Hashable)
LOCKED, OWNER, TIME, LEASE = "locked", "lock-owner", "lock-time-ms", "lease-ms"
RENEWALS, FENCE, GRANT = "renewals", "fencing-ctr", "grant-id"
BINS = (LOCKED, OWNER, TIME, LEASE, RENEWALS, FENCE, GRANT)
WAITING = "waiting-ms"
"""When somebody last waited, by the server's clock, and larger with each mark. No guard looks at it; a release reads
it, so that the next acquisition can be polite."""

MIN_LEASE, MAX_LEASE = 0.05, 86_400.0
"""Seconds."""

NOW_US = SERVER_NOW * 1000
"""Microseconds since the epoch, of which fences are made."""
NEXT_FENCE = If(exists(FENCE), largest(Bin(FENCE) + 1, NOW_US), NOW_US)
"""Above every fence before it, also on a store that restarted empty or from an old copy."""

_NOT_MINE = missing(GRANT) | Bin(GRANT, str).ne(Param("grant", str))
_FREE = (missing(LOCKED) | Bin(LOCKED).eq(0)) & _NOT_MINE
_HELD = Bin(LOCKED).eq(1) & Bin(FENCE).eq(Param("fence"))
_UNCHANGED = _HELD & Bin(RENEWALS).eq(Param("renewals")) & Bin(TIME).eq(Param("time"))
_BROKEN = _UNCHANGED & _NOT_MINE

RENEW: tuple[Op, ...] = (Put(TIME, SERVER_NOW), Add(RENEWALS, 1))
"""Start the lease again; guarded by `held`. Harmless when repeated."""
RELEASE: tuple[Op, ...] = (Put(LOCKED, 0),)
"""Give the lease back; guarded by `held`. The fence stays, so a repeat frees nobody else's acquisition."""
MARK: tuple[Op, ...] = (Put(WAITING, If(exists(WAITING), largest(Bin(WAITING) + 1, SERVER_NOW), SERVER_NOW)),)
"""Say that somebody waits: once at the start of a wait, and again before it is stale."""
STALE = 1.0
"""Seconds for which a mark counts."""
FRESH_MARK = If(SERVER_NOW - Bin(WAITING) < round(STALE * 1000), Bin(WAITING), Const(0))
"""To be computed with a release: the last mark of those who want the lease, or nothing where it is stale or absent."""
NEVER_HELD: tuple[Op, ...] = (Put(LOCKED, 0), Put(FENCE, 0), Put(RENEWALS, 0))
"""The bins of a record that is made before its lease is first taken."""


def acquire(owner: str, lease: float, grant: str) -> tuple[Op, ...]:
    """Take the lease with the next fence, which is the one value read; guarded by `free` or `broken`.

    `lease` in seconds; `grant` is an id of this acquisition alone, the same in every repeat of it.
    """
    return (
        Put(FENCE, NEXT_FENCE),
        Put(LOCKED, 1),
        Put(OWNER, owner),
        Put(TIME, SERVER_NOW),
        Put(LEASE, round(lease * 1000)),
        Put(RENEWALS, 0),
        Put(GRANT, grant),
        Read(FENCE),
    )


def free(grant: str) -> Bound:
    """Nobody holds it, and the last acquisition was not this one."""
    return _FREE.bind(grant=grant)


def broken(seen: LeaseView, grant: str) -> Bound:
    """It is held as it was `seen`: neither renewed nor taken since.

    Only for who has seen it so for the whole of the *holder's* lease, by their own monotonic clock (`Observation`).
    """
    return _BROKEN.bind(fence=seen.fence, renewals=seen.renewals, time=seen.time, grant=grant)


def held(fence: int) -> Bound:
    """It is held under this very fence. Once false, false for ever: a refusal is final even after doubt."""
    return _HELD.bind(fence=fence)


class _Stored(Struct, frozen=True):
    """The bins of a lease, with their limits."""

    locked: Annotated[int, Meta(ge=0, le=1)] = field(default=0, name=LOCKED)
    owner: str | None = field(default=None, name=OWNER)
    fence: Counter = field(default=0, name=FENCE)
    renewals: Counter = field(default=0, name=RENEWALS)
    time: Counter = field(default=0, name=TIME)
    lease: Annotated[int, Meta(ge=0, le=round(MAX_LEASE * 1000))] = field(default=0, name=LEASE)
    grant: str | None = field(default=None, name=GRANT)


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A lease as it was read. `lease` in seconds; `time` of the last renewal in ms, by the server's clock."""

    locked: bool
    owner: str | None
    fence: int
    renewals: int
    time: int
    lease: float
    grant: str | None

    @classmethod
    def of(cls, key: Key, bins: Mapping[str, Any]) -> LeaseView:
        """The lease in these bins of a record. Raises `Corrupt` where they are not as a lease leaves them: else one
        that somebody holds could pass for free.
        """
        found = decoded(_Stored, key, {bin: value for bin, value in bins.items() if value is not None})
        return cls(
            locked=found.locked == 1,
            owner=found.owner,
            fence=found.fence,
            renewals=found.renewals,
            time=found.time,
            lease=found.lease / 1000,
            grant=found.grant,
        )

    def is_unchanged(self, since: LeaseView) -> bool:
        """Whether it was neither taken nor renewed in between.

        The time tells two renewals apart that have one number: the store may have come back with an older record.
        """
        return (self.fence, self.renewals, self.time) == (since.fence, since.renewals, since.time)


@dataclass(frozen=True, slots=True)
class Observation:
    """A lease, and since when (seconds, monotonic) it has been seen to stand as it does."""

    view: LeaseView
    since: float

    def then(self, view: LeaseView, now: float) -> Observation:
        """What is known after the lease was seen once more: that it stands still, or that it has changed."""
        return Observation(view, self.since if view.is_unchanged(self.view) else now)

    def ran_out(self, now: float) -> bool:
        """Whether it stood still for one whole lease of its holder."""
        return self.view.locked and now - self.since > self.view.lease


class Standstill(Generic[K]):
    """Since when (seconds, monotonic) each of several things has been seen with one and the same stamp.

    Whoever renews something changes its stamp, so what has stood still for a whole lease by the clock of one who looks
    has not been renewed in time, whatever any other clock says.
    """

    def __init__(self) -> None:
        self._seen: dict[K, tuple[Hashable, float]] = {}

    def see(self, stamps: Mapping[K, Hashable], now: float) -> None:
        """What was read now; what is not there any more is forgotten."""
        before = self._seen
        self._seen = {
            key: before[key] if key in before and before[key][0] == stamp else (stamp, now)
            for key, stamp in stamps.items()
        }

    def lasts(self, key: K, seconds: float, now: float) -> bool:
        """Whether it has stood still for longer than so many seconds."""
        return key in self._seen and now - self._seen[key][1] > seconds


def believed_until(began: float, lease: float) -> float:
    """Until when a holder may believe: from the *start* of its first attempt, less what two clocks may drift apart."""
    return began + lease - (lease * 0.01 + 0.002)


def checked_lease(seconds: float) -> float:
    """The lease, once it is a time that a store call fits into. Raises `InvalidRequest`."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not MIN_LEASE <= seconds <= MAX_LEASE:
        raise InvalidRequest(f"lease is {seconds!r} s; it must be {MIN_LEASE} to {MAX_LEASE:.0f}")
    return float(seconds)
