"""Read-write locks: many readers or one writer, and a writer that is fenced (docs/protocols.md P12).

    lock = ReadWriteLock(store, "price-list")
    with lock.read(timeout=5) as grant:                       # others may read as well
        prices = load()
    with lock.write(timeout=30, keep_alive=True) as grant:    # alone
        grant.operate(Key("prices", "7"), Put("price", 100))

A writer has a fence, which a resource enforces. A reader has the fence of the last writer before it, its generation:
what it writes under that is refused once a later writer has been there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeVar

from ..deadline import Deadline
from ..errors import LockUnavailable, NotFound, Refused
from ..inputs import checked_kind, checked_timeout
from ..retry import Poll
from ..store.connect import as_store
from ..store.model.expr import Bin, Const, Expr, If, MapSize, Param, all_of, any_of, exists, lacks, missing
from ..store.model.form import Form
from ..store.model.ops import Op, Put, Read
from ..store.port import NEVER, Exists, Key, RecordStore
from .contender import Claim
from .holders import HOLDERS, ID, NOT_HELD_OFF, WISH, Crowd, Entering, Entry, Held, Holders, entered
from .inputs import checked_holder, checked_name
from .lease import FENCE, NEXT_FENCE, NOW_US, checked_lease
from .lock import LOCK_POLL, Grant, kept_alive

RWLOCKS = "latchwork_rwlocks"
"""The set of all read-write locks; the key is the name."""
MAX_READERS = 1_000
WRITER, ABANDONED = "writer", "abandoned"
"""The id of the acquisition that writes; the fence of a writer that died, until somebody has put things in order."""
NOT_WAITED = 2**62
"""In place of the fence that a reader saw when it began to wait: above every fence."""


class Mode(Enum):
    """What a holder does."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class User:
    """Who reads, or writes. `lease` in seconds; `since` in seconds since the epoch, by the server's clock."""

    owner: str
    mode: Mode
    fence: int
    lease: float
    since: float


class _Use(Grant):
    """What reading and writing have in common."""

    mode: ClassVar[Mode]

    def __init__(self, name: str, held: Held, claim: Claim, abandoned: int | None) -> None:
        super().__init__(name, held, claim)
        self._held, self._abandoned = held, abandoned

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, fence={self.fence}, owner={self.owner!r})"

    @property
    def abandoned(self) -> int | None:
        """The fence of a writer that died before it released, where nobody has cleared that since; else None.

        What it wrote may be half done. As it was when this was acquired.
        """
        return self._abandoned


class ReadGrant(_Use):
    """One acquisition for reading. Leaving its `with` block releases it. All else as `Grant`.

    `operate` is refused once a later writer has written to the resource, or sealed it: what follows from what was read
    is not written over what came after.
    """

    mode = Mode.READ

    @property
    def generation(self) -> int:
        """The fence of the last writer before this acquisition; greater after each writer, for ever."""
        return self._fence


class WriteGrant(_Use):
    """The one acquisition for writing. Leaving its `with` block releases it. All else as `Grant`."""

    mode = Mode.WRITE

    def clear_abandoned(self) -> None:
        """Say that what a dead writer left has been put in order. One store call.

        Raises `FencedOut` where this lease has been lost, `OutcomeUnknown`, `Unavailable`.
        """
        self.check()
        try:
            self._held.change(Put(ABANDONED, None))
        except (Refused, NotFound):
            ended = self._ended()
            self.lost.set()
            raise ended from None
        self._abandoned = None


U = TypeVar("U", bound=_Use)


class ReadWriteLock:
    """Many readers, or one writer, in one record. Handles are cheap, safe to share between threads, pickle with their
    store, and are not re-entrant: who reads and asks to write waits for itself.

    owner: a name for people and logs; default `host:pid:unique`.  lease: seconds, 0.05 to 86,400, after which a holder
    that does not renew may be succeeded.  poll: how long to pause between two looks; default 5 to 20 ms. At most 1,000
    readers at a time.
    """

    def __init__(
        self, store: RecordStore, name: str, *, owner: str | None = None, lease: float = 10.0, poll: Poll = LOCK_POLL
    ) -> None:
        self._store, self._poll = as_store(store), checked_kind("poll", poll, Poll)
        self.name, self.lease = checked_name(name), checked_lease(lease)
        self.owner = checked_holder(owner, store.seams)
        self._crowd = _Users(store, Key(RWLOCKS, name), self.owner, self.lease)

    def __repr__(self) -> str:
        return f"ReadWriteLock({self.name!r}, owner={self.owner!r}, lease={self.lease})"

    def read(self, timeout: float | None = None, *, keep_alive: bool = False) -> ReadGrant:
        """Wait until nobody writes or wishes to, then read beside others. One store call where that is so at once.

        timeout: seconds to wait, None = for ever, 0 = as `try_read`, but raising.  keep_alive: renew it in the
        background until it is released or lost. A writer that waits is let go first; after it has written, who has
        waited to read since goes before the next one that waits to write.

        Raises `LockUnavailable` when the time is over, `OutcomeUnknown` where an attempt may have taken it and cannot
        be resolved (it then ends by itself after one lease), `Unavailable`.
        """
        return self._granted(ReadGrant, timeout, keep_alive=keep_alive)

    def write(self, timeout: float | None = None, *, keep_alive: bool = False) -> WriteGrant:
        """Wait until nobody reads or writes, then be alone. One store call where that is so at once.

        While it waits, nobody who comes later is let in to read. All else as `read`.
        """
        return self._granted(WriteGrant, timeout, keep_alive=keep_alive)

    def try_read(self, *, keep_alive: bool = False) -> ReadGrant | None:
        """Read if nobody writes or wishes to; None where somebody does. One store call, or three. Does not wait."""
        return self._tried(ReadGrant, _Entering(self._crowd, Mode.READ), keep_alive=keep_alive)

    def try_write(self, *, keep_alive: bool = False) -> WriteGrant | None:
        """Write if nobody reads or writes; None where somebody does. One store call, or three. Does not wait."""
        return self._tried(WriteGrant, _Entering(self._crowd, Mode.WRITE), keep_alive=keep_alive)

    def holders(self) -> list[User]:
        """Who reads, or writes, the longest first. One read. One that died is named until another takes its place."""
        seen = self._crowd.look()
        entries = [] if seen is None else sorted(seen.entries.values(), key=lambda entry: entry.since)
        return [User(one.owner, Mode(one.held), one.fence, one.lease, one.since / 1000) for one in entries]

    def _tried(self, kind: type[U], attempts: _Entering, *, keep_alive: bool) -> U | None:
        with Deadline(self._store.seams, 0):
            claim = attempts.at_once()
        return None if claim is None else self._kept(kind, attempts, claim, keep_alive=keep_alive)

    def _granted(self, kind: type[U], timeout: float | None, *, keep_alive: bool) -> U:
        attempts = _Entering(self._crowd, kind.mode)
        claim = attempts.enter(self._poll, checked_timeout(timeout), "rwlock")
        if claim is None:
            raise LockUnavailable(
                f"the lock {self.name!r} was not to be had for {kind.mode.value} in {timeout} s; {self._crowd.told()}",
                key=self._crowd.key,
            )
        return self._kept(kind, attempts, claim, keep_alive=keep_alive)

    def _kept(self, kind: type[U], attempts: _Entering, claim: Claim, *, keep_alive: bool) -> U:
        held = Held(self._crowd, attempts.id, *_given_back(kind.mode))
        # No variable has the grant once it is kept alive: `kept_alive`.
        if keep_alive:
            return kept_alive(kind(self.name, held, claim, attempts.abandoned))
        return kind(self.name, held, claim, attempts.abandoned)


# ---- the record, and the attempts to be among its holders


class _Users(Crowd):
    """One party on the record of a read-write lock."""

    def gone(self, entry: Entry) -> tuple[Op, ...]:
        """A writer that died leaves a mark."""
        if entry.held == Mode.READ.value:
            return ()
        return (*_given_back(Mode.WRITE), Put(ABANDONED, entry.fence))

    def told(self) -> str:
        """Who holds it, as it was last seen, for a message."""
        entries = list(self.observed.entries.values()) if self.observed else []
        return ", ".join(f"{entry.owner!r} had it to {entry.held}" for entry in entries[:8]) or "others were faster"


def _given_back(mode: Mode) -> tuple[Op, ...]:
    """What belongs to giving it back, or to taking a dead holder out."""
    return () if mode is Mode.READ else (Put(WRITER, None),)


class _Entering(Entering[None]):
    """One wish to read, or to write."""

    def __init__(self, crowd: _Users, mode: Mode) -> None:
        super().__init__(crowd)
        self._mode, self._since = mode, NOT_WAITED
        self.abandoned: int | None = None

    def look(self, *, waiting: bool = False) -> Claim | None:
        """Look, and enter if that is possible; a writer that cannot, and is `waiting`, asks to go first."""
        seen = self._look(waiting=waiting)
        fence = None if seen is None else self._mine(seen)
        if fence is not None:
            return self._confirm(fence)
        if seen is None or self._may_enter(seen):
            return self.take()
        self._since = min(self._since, seen.bins.get(FENCE, 0))
        if waiting and self._mode is Mode.WRITE:
            self._wish(seen)
        return None

    def _may_enter(self, seen: Holders) -> bool:
        held_off = self._holders.held_off(seen, self._me)
        if self._mode is Mode.WRITE:
            return not seen.entries and not held_off
        turn = seen.bins.get(FENCE, 0) > self._since  # a writer came and went while it waited
        return WRITER not in seen.bins and len(seen.entries) < MAX_READERS and (turn or not held_off)

    def _send(self, way: None) -> int:  # noqa: ARG002 - there is one way in
        if self._mode is Mode.READ:
            values = self._store.repeat(self._fill(_READ, since=self._since))
        else:
            values = self._store.repeat(self._fill(_WRITE))
        self.abandoned = values[1]
        return int(values[0])

    def _mine(self, seen: Holders) -> int | None:
        self.abandoned = seen.bins.get(ABANDONED)
        return super()._mine(seen)


_COUNT = If(exists(HOLDERS), MapSize(HOLDERS), Const(0))
_LAST_FENCE = If(exists(FENCE), Bin(FENCE), NOW_US)
"""A reader's generation. One that makes the record begins above all fences that resources may have seen."""


def _acquisition(mode: Mode, fence: Expr, guard: Expr, *more: Op) -> Form:
    ops = (Put(FENCE, fence), *entered(Const(mode.value)), *more, Read(FENCE), Read(ABANDONED))
    return Form(*ops, when=guard, exists=Exists.ANY, or_absent=True, ttl=NEVER)


_READ = _acquisition(
    Mode.READ,
    _LAST_FENCE,
    all_of(
        missing(WRITER), _COUNT < MAX_READERS, lacks(HOLDERS, ID),
        any_of(NOT_HELD_OFF, Bin(FENCE) > Param("since")),
    ),
)  # fmt: skip
_WRITE = _acquisition(
    Mode.WRITE, NEXT_FENCE, all_of(_COUNT.eq(0), NOT_HELD_OFF), Put(WRITER, ID), Put(WISH, None)
)  # fmt: skip
