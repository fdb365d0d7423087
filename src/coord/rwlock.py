"""Read-write locks: many readers or one writer, with a fence for the writer (docs/protocols P12).

    lock = ReadWriteLock(store, "price-list")
    with lock.read(timeout=5) as grant:                       # others may read as well
        prices = load()
    with lock.write(timeout=30, keep_alive=True) as grant:    # alone
        grant.operate(Key("prices", "7"), Put("price", 100))

A resource enforces the fence of a writer. A reader has the fence of the last writer before it, its generation: its own
fenced writes are refused once a later writer has written to the resource.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import ClassVar, TypeVar

from ..deadline import Deadline
from ..errors import NotFound, Refused
from ..inputs import checked_kind, checked_switch, checked_text, checked_timeout, is_int
from ..plain import one_line
from ..retry import Poll
from ..store.connect import as_store
from ..store.decode import damaged
from ..store.model.expr import Bin, Const, Expr, If, MapSize, Param, all_of, any_of, exists, lacks, missing
from ..store.model.form import Form
from ..store.model.ops import Op, Put, Read
from ..store.port import NEVER, Exists, Key, RecordStore
from .contender import TakenLease
from .holders import (
    HOLDERS,
    ID,
    NOT_HELD_OFF,
    WISH,
    HolderEntry,
    HolderLease,
    Holders,
    SharedAcquisition,
    SharedContender,
    add_holder,
)
from .lease import FENCE, NEXT_FENCE, NOW_US, checked_holder, checked_lease
from .lock import LOCK_POLL, Grant, granted

RWLOCKS = "latchwork_rwlocks"
"""The set of all read-write locks; the key is the name."""
MAX_READERS = 1_000
WRITER, ABANDONED = "writer", "abandoned"
"""`writer`: the id of the writer's acquisition. `abandoned`: the fence of a writer that died, until it is cleared."""
NOT_WAITED = 2**62
"""The value for a reader that does not wait, instead of the fence that it saw first: greater than every fence."""


class Mode(Enum):
    """The two ways to hold the lock."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class User:
    """A reader or the writer.

    lease: seconds.
    since: seconds since 1970, by the server's clock.
    """

    owner: str
    mode: Mode
    fence: int
    lease: float
    since: float


class _Use(Grant):
    """The common part of grants for reading and for writing."""

    mode: ClassVar[Mode]

    def __init__(self, name: str, held: HolderLease, claim: TakenLease, abandoned: int | None) -> None:
        super().__init__(name, held, claim)
        self._held, self._abandoned = held, abandoned

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, fence={self.fence}, owner={self.owner!r})"

    @property
    def abandoned(self) -> int | None:
        """The fence of a writer that died before it released, if it was not cleared since; else None.

        So is one whose lease ran out before it released, or whose grant nothing referred to any more. Its changes may
        be incomplete. The value is from the moment of this acquisition.
        """
        return self._abandoned


class ReadGrant(_Use):
    """One acquisition for reading. Leaving its `with` block releases it. Safe to share between threads. See `Grant` for
    the rest.

    `operate` is refused once a later writer has written to the resource, or sealed it: so a reader never overwrites
    newer data with results of older data.
    """

    mode = Mode.READ

    @property
    def generation(self) -> int:
        """The fence of the last writer before this acquisition. Each writer makes it greater."""
        return self._fence


class WriteGrant(_Use):
    """The only acquisition for writing. Leaving its `with` block releases it. Safe to share between threads. See
    `Grant` for the rest.
    """

    mode = Mode.WRITE
    gives_back_late = False

    def clear_abandoned(self) -> None:
        """Clear `abandoned`, after the incomplete changes of a dead writer have been repaired. One store call.

        Raises `FencedOut` if this lease is lost, `OutcomeUnknown`, `Unavailable`.
        """
        self.check()
        try:
            self._held.change(Put(ABANDONED, None))
        except (Refused, NotFound):
            ended = self._ended()
            self.lost.set()
            raise ended from None
        self._abandoned = None

    def release(self) -> bool:
        """Release the lock, as `Grant` does. If the lease has run out before, this sets `abandoned`: the work may have
        ended half-way.
        """
        if self.lost.is_set() and not self._given_back:
            self._held.release_with(Put(ABANDONED, self._fence))
        return super().release()


U = TypeVar("U", bound=_Use)


class ReadWriteLock:
    """A lock for many readers or one writer, in one record. Handles are cheap, safe to share between threads, and
    pickle with their store. They are not re-entrant: a reader that asks to write waits for itself. At most 1,000
    readers at a time.

    owner: a name for people and logs; default `host:pid:unique`.
    lease: seconds, 0.05 to 86,400, after which a holder that does not renew may be replaced.
    poll: the pause between two reads of the record; default 1 to 13 ms, growing.
    """

    def __init__(
        self, store: RecordStore, name: str, *, owner: str | None = None, lease: float = 10.0, poll: Poll = LOCK_POLL
    ) -> None:
        self._store, self._poll = as_store(store), checked_kind("poll", poll, Poll)
        self.name, self.lease = checked_text("name", name), checked_lease(lease)
        self.owner = checked_holder(owner, store.seams)
        self._contender = _RWContender(store, Key(RWLOCKS, name), self.owner, self.lease)

    def __repr__(self) -> str:
        return f"ReadWriteLock({self.name!r}, owner={self.owner!r}, lease={self.lease})"

    def read(self, timeout: float | None = None, *, keep_alive: bool = False) -> ReadGrant:
        """Wait until no party writes or waits to write, and take the lock for reading. One store call if it is free.

        timeout: seconds to wait; None = no limit; 0 = like `try_read`, but raises if the lock is not free.
        keep_alive: renew it in the background until it is released or lost.

        A waiting writer goes first. Once a writer has come and gone while this call waits, no waiting writer holds it
        off any more: it and they have an equal chance each time that the lock is free.

        Raises `LockUnavailable` after the timeout, `OutcomeUnknown` if an attempt may have taken the lock (it then runs
        out after one lease), `Unavailable`.
        """
        return self._granted(ReadGrant, timeout, keep_alive=keep_alive)

    def write(self, timeout: float | None = None, *, keep_alive: bool = False) -> WriteGrant:
        """Wait until no holder reads or writes, and take the lock for writing. One store call if it is free.

        While it waits, no new reader gets the lock. Parameters and errors as in `read`.
        """
        return self._granted(WriteGrant, timeout, keep_alive=keep_alive)

    def try_read(self, *, keep_alive: bool = False) -> ReadGrant | None:
        """Take the lock for reading; None if a party writes or waits to. One store call, or three. Does not wait.

        The wish of a writer that has died waiting ends once this process has seen it for a second.
        """
        return self._tried(ReadGrant, keep_alive=keep_alive)

    def try_write(self, *, keep_alive: bool = False) -> WriteGrant | None:
        """Take the lock for writing; None if a party reads or writes. One store call, or three. Does not wait."""
        return self._tried(WriteGrant, keep_alive=keep_alive)

    def holders(self) -> list[User]:
        """Return the readers or the writer, the oldest first. One read. A dead one is listed until it is replaced."""
        seen = self._contender.look()
        entries = [] if seen is None else sorted(seen.entries.values(), key=lambda entry: entry.since)
        try:
            return [User(one.owner, Mode(one.held), one.fence, one.lease, one.since / 1000) for one in entries]
        except ValueError:
            raise damaged(self._contender.key, f"a holder in bin {HOLDERS!r} neither reads nor writes") from None

    def _tried(self, kind: type[U], *, keep_alive: bool) -> U | None:
        checked_switch("keep_alive", keep_alive)
        acquisition = _RWAcquisition(self._contender, kind.mode)
        with Deadline(self._store.seams, 0):
            claim = acquisition.at_once()
        return None if claim is None else self._kept(kind, acquisition, claim, keep_alive=keep_alive)

    def _granted(self, kind: type[U], timeout: float | None, *, keep_alive: bool) -> U:
        checked_switch("keep_alive", keep_alive)
        acquisition = _RWAcquisition(self._contender, kind.mode)
        limit, verb = checked_timeout(timeout), "ReadWriteLock.read or .write"
        refusal = f"the lock {self.name!r} was not acquired to {kind.mode.value} in {timeout} s"
        claim = acquisition.enter(self._poll, limit, refusal, kind="rwlock", verb=verb)
        return self._kept(kind, acquisition, claim, keep_alive=keep_alive)

    def _kept(self, kind: type[U], acquisition: _RWAcquisition, claim: TakenLease, *, keep_alive: bool) -> U:
        held = HolderLease(self._contender, acquisition.id, *_release_ops(kind.mode))
        return granted(partial(kind, self.name, held, claim, acquisition.abandoned), keep_alive=keep_alive)


# ---- the record, and the acquisitions


class _RWContender(SharedContender):
    """One party on the record of a read-write lock."""

    def removal_ops(self, entry: HolderEntry) -> tuple[Op, ...]:
        """Return the further operations that remove a dead holder; for a writer, `abandoned` is set."""
        if entry.held == Mode.READ.value:
            return ()
        return (*_release_ops(Mode.WRITE), Put(ABANDONED, entry.fence))

    def held_by(self) -> str:
        """Return the holders that were seen last, as text for a message."""
        seen = self.observed  # read once: another thread may replace it
        entries = [] if seen is None else list(seen.entries.values())
        held = [f"{entry.owner!r} had it to {one_line(str(entry.held))}" for entry in entries[:8]]
        return ", ".join(held) or super().held_by()


def _release_ops(mode: Mode) -> tuple[Op, ...]:
    """Return the further operations that release the lock, or remove a dead holder."""
    return () if mode is Mode.READ else (Put(WRITER, None),)


class _RWAcquisition(SharedAcquisition[None]):
    """One acquisition of the lock for reading or for writing."""

    _contender: _RWContender

    def __init__(self, contender: _RWContender, mode: Mode) -> None:
        super().__init__(contender)
        self._mode, self._since = mode, NOT_WAITED
        self.abandoned: int | None = None

    def _try(self, seen: Holders | None, *, waiting: bool) -> TakenLease | None:
        """Enter if that is possible. A `waiting` writer that cannot enter asks to go first."""
        if seen is None or self._may_enter(seen):
            return self.take()
        self._since = min(self._since, self._fence_in(seen))
        if waiting and self._mode is Mode.WRITE:
            self._wish(seen)
        return None

    def _may_enter(self, seen: Holders) -> bool:
        held_off = self._contender.held_off(seen, self._me)
        if self._mode is Mode.WRITE:
            return not seen.entries and not held_off
        turn = self._fence_in(seen) > self._since  # a writer came and went while it waited
        return WRITER not in seen.bins and len(seen.entries) < MAX_READERS and (turn or not held_off)

    def _fence_in(self, seen: Holders) -> int:
        """Return the fence of the last writer; 0 before the first one. Raises `Corrupt`."""
        fence = seen.bins.get(FENCE, 0)
        if not is_int(fence):
            raise damaged(self._contender.key, f"bin {FENCE!r} is not a number")
        return int(fence)

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
"""A reader's generation. In a new record it starts above all fences that resources may have seen."""


def _acquisition(mode: Mode, fence: Expr, guard: Expr, *more: Op) -> Form:
    ops = (Put(FENCE, fence), *add_holder(Const(mode.value)), *more, Read(FENCE), Read(ABANDONED))
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
