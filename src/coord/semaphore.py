"""Fenced semaphores: a number of permits, and resources that refuse former holders (docs/protocols P10).

    with Semaphore(store, "reports-db", permits=10).acquire(timeout=60, keep_alive=True) as permits:
        permits.operate(Key("reports", "7"), Put("state", "done"))

A count cannot be fenced, but slots can: each permit is a numbered slot, whose fence only grows. A resource keeps the
highest fence of each slot. So it refuses a holder that was paused for longer than its lease once its slot has a new
holder; all other holders are not affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from ..deadline import Deadline
from ..errors import Corrupt, InvalidRequest, NotFound, Refused
from ..inputs import checked_kind, checked_switch, checked_text, checked_timeout, checked_whole, is_int
from ..plain import counted, shown
from ..retry import Poll
from ..store.connect import as_store
from ..store.decode import damaged
from ..store.model.expr import (  # fmt: skip
    Bin,
    Const,
    Expr,
    Guard,
    If,
    MapSize,
    MapValue,
    Param,
    all_of,
    exists,
    lacks,
)
from ..store.model.form import Form
from ..store.model.ops import MapPut, MapRemove, Op, Put, Read
from ..store.port import KEEP, NEVER, Exists, Key, Once, RecordStore, Values
from .contender import TakenLease
from .holders import (
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
from .lease import FENCE, NEXT_FENCE, checked_holder, checked_lease
from .lock import LOCK_POLL, Grant, granted
from .waits import Watch

SEMAPHORES = "latchwork_semaphores"
"""The set of all semaphores; the key is the name."""
MAX_PERMITS = 1_000
PERMITS, SLOTS = "permits", "slots"
"""`permits`: how many there are. `slots`: by the number of a taken slot, the id of the acquisition."""
TOKENS = 16
"""Changes of size that a record remembers (P1)."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A holder of permits.

    lease: seconds.
    since: seconds since 1970, by the server's clock.
    """

    owner: str
    slots: tuple[int, ...]
    fence: int
    lease: float
    since: float


class Semaphore:
    """A number of permits in one record, each with a lease and a fence. Handles are cheap, safe to share between
    threads, and pickle with their store.

    permits: 1 to 1,000. The first acquisition stores this number in the record; after that only `resize` changes it,
        and a handle with another number uses the record's.
    owner: a name for people and logs; default `host:pid:unique`.
    lease: seconds, 0.05 to 86,400, after which a holder that does not renew may be replaced.
    poll: the pause between two reads of the record; default 1 to 13 ms, growing.
    """

    def __init__(
        self,
        store: RecordStore,
        name: str,
        *,
        permits: int,
        owner: str | None = None,
        lease: float = 10.0,
        poll: Poll = LOCK_POLL,
    ) -> None:
        self._store, self._poll = as_store(store), checked_kind("poll", poll, Poll)
        self.name, self.lease = checked_text("name", name), checked_lease(lease)
        self.permits = checked_whole("permits", permits, 1, MAX_PERMITS)
        self.owner = checked_holder(owner, store.seams)
        self._contender = _SemaphoreContender(store, Key(SEMAPHORES, name), self.owner, self.lease, self.permits)

    def __repr__(self) -> str:
        return f"Semaphore({self.name!r}, permits={self.permits}, owner={self.owner!r}, lease={self.lease})"

    def acquire(self, n: int = 1, *, timeout: float | None = None, keep_alive: bool = False) -> Permits:
        """Wait for `n` permits and take them, all or none. One store call if the slots that it tries are free.

        It first tries the slots that it had before, or random ones; if one of these is taken, it reads the record and
        tries again.

        timeout: seconds to wait; None = no limit; 0 = like `try_acquire`, but raises if they are not free.
        keep_alive: renew them in the background until they are released or lost.

        While a party waits for several permits, no other gets any, so that its wait ends. Permits of a dead holder are
        free once some process has seen them unchanged for one lease. An unavailable store is asked again until the
        timeout.

        Raises `LockUnavailable` after the timeout, `InvalidRequest` if `n` is more than there are. If the store is
        unavailable at the timeout: `Unavailable`, or `OutcomeUnknown` if an attempt may have taken them (they are then
        free again after one lease).
        """
        checked_switch("keep_alive", keep_alive)
        limit = checked_timeout(timeout)
        acquisition = self._acquisition(n)
        were = "was" if n == 1 else "were"
        refusal = f"{counted(n, 'permit')} of {self.name!r} {were} not acquired in {timeout} s"
        claim = acquisition.enter(self._poll, limit, refusal, kind="semaphore", verb="Semaphore.acquire")
        return self._granted(acquisition, claim, keep_alive=keep_alive)

    def try_acquire(self, n: int = 1, *, keep_alive: bool = False) -> Permits | None:
        """Take `n` permits if they are free, or if this process has seen them run out; else None. Does not wait.

        None also while a party waits for several. The wish of one that has died ends once this process has seen it for
        a second.

        One store call if the slots that it tries are free, else one read, and another try if that may succeed.
        """
        checked_switch("keep_alive", keep_alive)
        acquisition = self._acquisition(n)
        with Deadline(self._store.seams, 0):
            claim = acquisition.at_once()
        return None if claim is None else self._granted(acquisition, claim, keep_alive=keep_alive)

    def resize(self, permits: int) -> None:
        """Set the number of permits. One store call, applied exactly once.

        If the number becomes smaller, no holder loses permits: no party gets any until enough have been released.
        Raises `OutcomeUnknown`, `Unavailable`. Not promised after a reduction: that a resource refuses a paused holder
        of a removed slot, as that slot has no later holder.
        """
        checked_whole("permits", permits, 1, MAX_PERMITS)
        once = Once(TOKENS)
        self._store.operate(self._contender.key, Put(PERMITS, permits), exists=Exists.ANY, ttl=NEVER, once=once)

    def size(self) -> int:
        """Return the number of permits. One read. Raises `NotFound` if the semaphore was never used."""
        record = self._store.get(self._contender.key, PERMITS)
        if record is None or PERMITS not in record.bins:
            raise NotFound(
                f"there is no semaphore {self.name!r} in {self._store.where} yet: acquire a permit, or resize it",
                key=self._contender.key,
            )
        return _size_in(record.bins, self._contender.key)

    def holders(self) -> list[Holder]:
        """Return the holders, by the number of their first slot. One read.

        A dead holder is listed until a waiting party has replaced it.
        """
        seen = self._contender.look()
        entries = [] if seen is None else seen.entries.values()
        found = [Holder(one.owner, tuple(one.held), one.fence, one.lease, one.since / 1000) for one in entries]
        return sorted(found, key=lambda holder: holder.slots)

    def _acquisition(self, n: int) -> _SlotAcquisition:
        return _SlotAcquisition(self._contender, checked_whole("n", n, 1, MAX_PERMITS))

    def _granted(self, acquisition: _SlotAcquisition, claim: TakenLease, *, keep_alive: bool) -> Permits:
        held = HolderLease(self._contender, acquisition.id, *free_slots(acquisition.slots))
        return granted(partial(Permits, self.name, held, claim, acquisition.slots), keep_alive=keep_alive)


class Permits(Grant):
    """Permits taken together, with one fence. Leaving the `with` block releases them. Safe to share between threads.
    See `Grant` for the rest.
    """

    def __init__(self, name: str, held: HolderLease, claim: TakenLease, slots: tuple[int, ...]) -> None:
        super().__init__(name, held, claim)
        self._slots = slots

    def __repr__(self) -> str:
        return f"Permits({self._name!r}, slots={list(self.slots)}, fence={self.fence}, owner={self.owner!r})"

    @property
    def slots(self) -> tuple[int, ...]:
        """The numbers of their slots."""
        return self._slots

    @property
    def n(self) -> int:
        """The number of permits."""
        return len(self._slots)

    def operate(
        self,
        key: Key,
        *ops: Op,
        bin: str = "fences",
        when: Guard | None = None,
        exists: Exists | None = None,
        or_absent: bool = False,
        ttl: int = KEEP,
        once: Once | None = None,
        repeatable: bool = False,
    ) -> Values:
        """Write to a resource under these permits. Refused if it has seen a later holder of one of their slots.

        `bin` is a map in the resource, from the number of a slot to its highest fence. So the resource accepts at most
        as many writers at a time as there are slots, however long some were paused. Otherwise as `Grant.operate`.
        """
        return super().operate(
            key, *ops, bin=bin, when=when, exists=exists, or_absent=or_absent, ttl=ttl, once=once, repeatable=repeatable
        )

    def seal(self, key: Key, bin: str = "fences") -> None:
        """Raise a resource's fences of these slots, so that no earlier holder of one can write to it any more.

        Raises `FencedOut`. A new holder calls this before its first read.
        """
        super().seal(key, bin)

    def _guard(self, bin: str, when: Expr | None) -> Expr:
        return _fenced(bin, self.slots, when)

    def _ratchet(self, bin: str) -> tuple[Op, ...]:
        return tuple(MapPut(bin, slot, self._fence) for slot in self.slots)

    def _highest(self, value: Any) -> int | None:
        seen = [value.get(slot) for slot in self.slots] if isinstance(value, dict) else []
        return max((fence for fence in seen if type(fence) is int), default=None)

    def _has_fences(self, value: Any) -> bool:
        return isinstance(value, dict)


@lru_cache(maxsize=1024)
def _fenced(bin: str, slots: tuple[int, ...], when: Expr | None) -> Expr:
    fence = Param("my-fence")
    unseen = [lacks(bin, slot) | (MapValue(bin, Const(slot)) <= fence) for slot in slots]
    return all_of(*unseen) if when is None else all_of(*unseen, when)


# ---- the record, and the acquisitions of its slots


def free_slots(slots: Iterable[int]) -> tuple[Op, ...]:
    """Return the operations that release slots."""
    return (MapRemove(SLOTS, tuple(slots)),)


def _size_in(bins: Mapping[str, Any], key: Key) -> int:
    """Return the number of permits that a record holds. Raises `Corrupt`."""
    size = bins[PERMITS]
    if not is_int(size) or not 1 <= size <= MAX_PERMITS:
        raise damaged(key, f"bin {PERMITS!r} is not a number of permits from 1 to {MAX_PERMITS:,}")
    return int(size)


class _SemaphoreContender(SharedContender):
    """One party on a semaphore's record. It remembers its last slots, and the number of permits that it read last."""

    def __init__(self, store: RecordStore, key: Key, owner: str, lease: float, permits: int) -> None:
        super().__init__(store, key, owner, lease)
        self.permits = permits
        self.size = permits
        self.last: tuple[int, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store, self.key, self.owner, self.lease, self.permits)

    def look(self, *, waiting: bool = False, watch: Watch | None = None) -> Holders | None:
        """Read the holders; None if there is no record."""
        seen = super().look(waiting=waiting, watch=watch)
        size = self.size_of(seen)
        for entry in seen.entries.values() if seen else ():
            if not isinstance(entry.held, list | tuple) or not all(is_int(slot) for slot in entry.held):
                raise damaged(self.key, f"the slots of holder {shown(entry.id)} are not numbers")
        self.size = size
        return seen

    def size_of(self, seen: Holders | None) -> int:
        """Return the number of permits by the record as it was read. Raises `Corrupt`."""
        return _size_in(seen.bins, self.key) if seen is not None and PERMITS in seen.bins else self.permits

    def removal_ops(self, entry: HolderEntry) -> tuple[Op, ...]:
        """Return the operations that free the slots of a dead holder."""
        return free_slots(entry.held)

    def choose(self, n: int, size: int, taken: Iterable[int], before: tuple[int, ...] | None) -> tuple[int, ...]:
        """Choose `n` free slots of `size`: first the ones tried before, or held last, then others from a random one
        on.
        """
        begin, others = int(self.store.seams.uniform(0, size)), set(taken)
        order = [*(before or self.last), *(slot % size for slot in range(begin, begin + size))]
        free = [slot for slot in dict.fromkeys(order) if slot < size and slot not in others]
        return tuple(sorted(free[:n]))

    def held_by(self) -> str:
        """Return the holders that were seen last, as text for a message."""
        seen, size = self.observed, self.size  # read once: another thread may replace them
        entries = [] if seen is None else list(seen.entries.values())
        if not entries and (seen is None or seen.wish is None):
            return f"nobody held any of its {size} when it last looked: others were faster"
        if not entries:
            return super().held_by()
        held = sum(len(entry.held) for entry in entries)
        names = [f"{entry.owner!r} ({len(entry.held)})" for entry in entries[:8]]
        more = f" and {len(entries) - 8} more" if len(entries) > 8 else ""
        are = "was" if held == 1 else "were"
        return f"when it last looked, {held} of {size} {are} held, by {', '.join(names)}{more}"


class _SlotAcquisition(SharedAcquisition[tuple[int, ...]]):
    """One acquisition of slots. Its id belongs to these slots: to try other slots it takes another id."""

    _contender: _SemaphoreContender

    def __init__(self, contender: _SemaphoreContender, n: int) -> None:
        super().__init__(contender)
        self._n = n
        self._named: tuple[int, ...] | None = None
        self.slots: tuple[int, ...] = ()

    def at_once(self) -> TakenLease | None:
        """Try slots as if they were free, then read the record; None if not enough are free now."""
        party, size = self._contender, self._contender.size  # read once: another thread may read another number
        claim = self.take(party.choose(self._n, size, (), self._named)) if self._n <= size else None
        return claim or self.look()

    def _try(self, seen: Holders | None, *, waiting: bool) -> TakenLease | None:
        """Take slots if enough are free and no other party goes first. If not, and `waiting` for several, ask to go
        first.
        """
        party, size = self._contender, self._contender.size_of(seen)
        if self._n > size:
            raise InvalidRequest(f"n is {self._n}; the semaphore has {size} permits: ask for fewer, or resize it")
        if seen is None:
            return self.take(party.choose(self._n, size, (), self._named))
        taken = seen.bins.get(SLOTS) or {}
        if not isinstance(taken, Mapping):
            raise Corrupt(f"{party.key}: bin {SLOTS!r} is not a map: correct the record")
        if size - len(taken) >= self._n and not party.held_off(seen, self._me):
            return self.take(party.choose(self._n, size, taken, self._named))
        if waiting and self._n > 1:
            self._wish(seen)
        return None

    def _send(self, way: tuple[int, ...] | None) -> int:
        party = self._contender
        slots = party.choose(self._n, party.size, (), self._named) if way is None else way
        if self._named not in (None, slots):
            self._begin_again()
        self._named = slots
        params = {f"slot{place}": slot for place, slot in enumerate(slots)}
        given = {"n": self._n, "permits": party.permits, "highest": slots[-1], "slots": list(slots)}
        # An absent record asks for no guard (P0.1): only slots that it will have may make it.
        update = self._fill(_taking(self._n, makes=slots[-1] < party.permits), **given, **params)
        try:
            (fence,) = self._store.repeat(update)
        except NotFound as lost:  # nobody refuses it for good: the next look says how many permits there are
            doubt = lost.details["doubt"]
            raise Refused(f"the record {party.key} was lost", key=party.key, doubt=doubt) from None
        self.slots = party.last = slots
        return int(fence)

    def _mine(self, seen: Holders) -> int | None:
        fence = super()._mine(seen)
        if fence is not None:
            self.slots = self._contender.last = tuple(seen.entries[self.id].held)
        return fence


_ROOM = If(exists(SLOTS), MapSize(SLOTS), Const(0)) + Param("n") <= Bin(PERMITS)
_EXISTS = Param("highest") < Bin(PERMITS)
"""The slots were not removed by a reduction: in one that was, a former holder meets no later fence."""


@lru_cache(maxsize=2 * MAX_PERMITS)
def _taking(n: int, *, makes: bool) -> Form:
    """Return the update that takes `n` slots, and, if it `makes` the record, does so where it is absent. Parameters:
    `slot0` and so on, the `highest` of them, `slots`, and the ones of the holder.
    """
    slots = [Param(f"slot{place}") for place in range(n)]
    return Form(
        Put(FENCE, NEXT_FENCE),
        Put(PERMITS, If(exists(PERMITS), Bin(PERMITS), Param("permits"))),
        *(MapPut(SLOTS, slot, ID) for slot in slots),
        *add_holder(Param("slots", list)),
        Put(WISH, None),
        Read(FENCE),
        when=all_of(*(lacks(SLOTS, slot) for slot in slots), _ROOM, _EXISTS, NOT_HELD_OFF),
        exists=Exists.ANY if makes else Exists.UPDATE,
        or_absent=makes,
        ttl=NEVER,
    )
