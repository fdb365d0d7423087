"""The lease on a record, with a fence: the bins, guards and operations of docs/protocols P2, as values.

Any record may carry the bins of a lease; nothing else may write these bins, other bins may be written freely. No guard
compares times: a server's clock may be set, even by an hour. A lease has run out when the party that wants it has seen
it unchanged for its whole length, by its own monotonic clock (`Observation`); the guard then requires that it is still
unchanged. This module does no I/O; `contender.py` sends these operations.

The record stores the id of its last acquisition (`grant-id`). No more is needed: a repeat of the last acquisition is
refused and recognised, and an older one does not count any more.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta, Struct, field

from ..errors import InvalidRequest
from ..inputs import checked_seconds, checked_text
from ..plain import shown
from ..seams import Seams
from ..store.decode import Counter, decoded
from ..store.model.expr import SERVER_NOW, Bin, Bound, Const, If, Param, exists, largest, missing
from ..store.model.ops import Add, Op, Put, Read
from ..store.model.record import Key

K = TypeVar("K", bound=Hashable)
LOCKED, OWNER, TIME, LEASE = "locked", "lock-owner", "lock-time-ms", "lease-ms"
RENEWALS, FENCE, GRANT = "renewals", "fencing-ctr", "grant-id"
BINS = (LOCKED, OWNER, TIME, LEASE, RENEWALS, FENCE, GRANT)
WAITING = "waiting-ms"
"""The mark of waiting parties: when one last waited, by the server's clock, and larger with each mark. No guard uses
it; a release reads it, so that the party that releases lets the others go first."""

MIN_LEASE, MAX_LEASE = 0.05, 86_400.0
"""Seconds."""

NOW_US = SERVER_NOW * 1000
"""Microseconds since 1970, from which fences are made."""
NEXT_FENCE = If(exists(FENCE), largest(Bin(FENCE) + 1, NOW_US), NOW_US)
"""Greater than every earlier fence, also after a store restarted empty or from an old copy."""

_NOT_MINE = missing(GRANT) | Bin(GRANT, str).ne(Param("grant", str))
_FREE = (missing(LOCKED) | Bin(LOCKED).eq(0)) & _NOT_MINE
_HELD = Bin(LOCKED).eq(1) & Bin(FENCE).eq(Param("fence"))
_UNCHANGED = _HELD & Bin(RENEWALS).eq(Param("renewals")) & Bin(TIME).eq(Param("time"))
_BROKEN = _UNCHANGED & _NOT_MINE

RENEW: tuple[Op, ...] = (Put(TIME, SERVER_NOW), Add(RENEWALS, 1))
"""Renews the lease; guarded by `held`. Harmless when repeated."""
RELEASE: tuple[Op, ...] = (Put(LOCKED, 0),)
"""Releases the lease; guarded by `held`. The fence stays, so a repeat never frees a later acquisition."""
MARK: tuple[Op, ...] = (Put(WAITING, If(exists(WAITING), largest(Bin(WAITING) + 1, SERVER_NOW), SERVER_NOW)),)
"""Leaves the mark of a waiting party: at the start of a wait, and again before the mark is stale."""
_BROKEN_BY = "nobody, broken by "
"""The begin of the owner's name, for people, of a lease that was taken from its holder."""
STALE = 1.0
"""Seconds for which a mark counts."""
FRESH_MARK = If(SERVER_NOW - Bin(WAITING) < round(STALE * 1000), Bin(WAITING), Const(0))
"""Computed with a release: the last mark of waiting parties; 0 if it is stale, unknown if there is none."""
NEVER_HELD: tuple[Op, ...] = (Put(LOCKED, 0), Put(FENCE, 0), Put(RENEWALS, 0))
"""The bins of a record that is created before its lease is first taken."""


def acquire(owner: str, lease: float, grant: str) -> tuple[Op, ...]:
    """Return the operations that take the lease; the only value they read is its new fence. Guarded by `free` or
    `broken`.

    lease: seconds.
    grant: the id of this acquisition; every repeat carries it, and no other acquisition does.
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


def seize(by: str, grant: str, *, at_once: bool) -> tuple[Op, ...]:
    """Return the operations that take the lease from its holder for nobody: it runs out, and is then broken. Guarded by
    `held`.

    by: who does it, for people.
    grant: a new id, so that the holder does not find it as an acquisition of its own.
    at_once: it has run out already; else it does after the holder's whole lease.
    """
    ended: tuple[Op, ...] = (Put(LEASE, 0),) if at_once else ()
    owner = Put(OWNER, f"{_BROKEN_BY}{by}")
    return (Put(FENCE, NEXT_FENCE), owner, Put(TIME, SERVER_NOW), Put(RENEWALS, 0), Put(GRANT, grant), *ended)


def free(grant: str) -> Bound:
    """Return the guard "the lease is free, and the last acquisition was not this one"."""
    return _FREE.bind(grant=grant)


def broken(seen: LeaseView, grant: str) -> Bound:
    """Return the guard "the lease is held as it was `seen`: neither renewed nor taken since".

    Use it only after observing the lease unchanged for the whole of the *holder's* lease on this process's monotonic
    clock (`Observation`).
    """
    return _BROKEN.bind(fence=seen.fence, renewals=seen.renewals, time=seen.time, grant=grant)


def held(fence: int) -> Bound:
    """Return the guard "the lease is held under this fence". Once false, it stays false: a refusal is final, even if an
    earlier attempt is in doubt.
    """
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
    """A lease as it was read.

    time: of the last renewal, in ms by the server's clock.
    lease: seconds.
    """

    locked: bool
    owner: str | None
    fence: int
    renewals: int
    time: int
    lease: float
    grant: str | None

    @classmethod
    def of(cls, key: Key, bins: Mapping[str, Any]) -> LeaseView:
        """Return the lease in these bins of a record.

        Raises `Corrupt` where they are not as a lease leaves them: else one that is held could pass for free.
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

    @property
    def broken_by(self) -> str | None:
        """Who has taken it from its holder, where it waits until the lease of that one is over; None = nobody has."""
        return broken_by(self.owner) if self.locked else None

    def is_unchanged(self, since: LeaseView) -> bool:
        """Whether the lease was neither taken nor renewed since the other view.

        The time is compared as well, because the store may have come back with an older copy of the record: then two
        different renewals have one number.
        """
        return (self.fence, self.renewals, self.time) == (since.fence, since.renewals, since.time)


def broken_by(owner: str | None) -> str | None:
    """Return who has taken a lease from its holder, by the name of its owner; None where that is a holder's."""
    return owner[len(_BROKEN_BY) :] if owner is not None and owner.startswith(_BROKEN_BY) else None


@dataclass(frozen=True, slots=True)
class Observation:
    """A lease, and since when it was seen unchanged (seconds, monotonic)."""

    view: LeaseView
    since: float

    def then(self, view: LeaseView, now: float) -> Observation:
        """Return the observation after another read; `since` starts again if the lease has changed."""
        return Observation(view, self.since if view.is_unchanged(self.view) else now)

    def ran_out(self, now: float) -> bool:
        """Whether the lease is held, and was seen unchanged for its whole length: 0 s if it was broken at once."""
        return self.view.locked and (now - self.since > self.view.lease or not self.view.lease)


class Standstill(Generic[K]):
    """The stamp of each of several keys, and since when it was seen unchanged (seconds, monotonic).

    A renewal changes the stamp. So a holder whose stamp was seen unchanged for its whole lease, by the observer's own
    clock, has not renewed in time, whatever other clocks say.
    """

    def __init__(self) -> None:
        self._seen: dict[K, tuple[Hashable, float]] = {}

    def see(self, stamps: Mapping[K, Hashable], now: float) -> None:
        """Remember the stamps that were read now, and forget keys that do not exist any more."""
        before = self._seen
        self._seen = {
            key: before[key] if key in before and before[key][0] == stamp else (stamp, now)
            for key, stamp in stamps.items()
        }

    def since(self, key: K) -> float:
        """Return since when the stamp of this key was seen unchanged; infinite for a key that does not exist
        any more.
        """
        return self._seen.get(key, (None, float("inf")))[1]

    def lasts(self, key: K, stamp: Hashable, seconds: float, now: float) -> bool:
        """Whether this key was seen with this stamp, and no other, for longer than `seconds`.

        The stamp is the one that the caller has read: another thread may have remembered an older one meanwhile, as
        its answer came first and it was paused.
        """
        seen, since = self._seen.get(key, (None, now))
        return seen == stamp and now - since > seconds


def believed_until(began: float, lease: float) -> float:
    """Return until when a holder may rely on its lease.

    It counts from the *start* of the first attempt, less a margin for two clocks that do not run equally fast.
    """
    return began + lease - (lease * 0.01 + 0.002)


def checked_lease(seconds: float) -> float:
    """Check the length of a lease in seconds, and return it. Raises `InvalidRequest`."""
    return float(checked_seconds("lease", seconds, MIN_LEASE, MAX_LEASE))


def checked_owner(owner: str | None, seams: Seams) -> str:
    """Check the name of an owner or a candidate, and return it; make one up if it is None. Raises `InvalidRequest`."""
    if owner is None:
        return f"{seams.process_name()}:{seams.unique()}"
    return checked_text("owner", owner)


def checked_holder(owner: str | None, seams: Seams) -> str:
    """Check an owner's name of at most 255 bytes, as one record keeps many names. Raises `InvalidRequest`."""
    name = checked_owner(owner, seams)
    if len(name.encode()) > 255:
        raise InvalidRequest(f"owner is {shown(name)} of {len(name.encode())} bytes; it must have at most 255 bytes")
    return name
