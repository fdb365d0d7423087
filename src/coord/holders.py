"""Records with several holders at a time, each with a lease of its own (docs/protocols P10).

Each holder is an entry under the id of its acquisition: its name and its fence, which do not change, and a stamp, which
every renewal makes larger. Each process uses only its own clock: a holder counts its lease on its own clock, and a
process that has seen another holder's stamp unchanged for that holder's whole lease removes it, guarded by the stamp. A
party that waits for more than is free may leave a wish in the record: then no other party enters before it, so that it
does not wait without end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from ..errors import Corrupt, LatchworkError, NotFound, Refused
from ..store.model.expr import SERVER_NOW, Bin, Expr, ListOf, MapValue, Param, has, largest, missing
from ..store.model.form import Form
from ..store.model.ops import Add, Compute, MapPut, MapRemove, Op, Put
from ..store.once import TokenClock
from ..store.port import NEVER, Key, RecordStore, Update
from . import lease as rules
from .contender import BaseAcquisition, BaseContender, TakenLease, Way, remember
from .lease import Standstill
from .waits import INFINITY, SOON, Watch

HOLDERS, RENEWED = "holders", "renewed"
"""Maps by the id of the acquisition. `HOLDERS`: [fence, lease in ms, server's ms when it was taken, owner, what is
held]. `RENEWED`: the stamp, which is the server's ms of the last renewal, and always larger than before."""
WISH, WISHED = "wish", "wished"
"""The party that is to enter next, before all others, and how often it, or an earlier one, has asked for that."""
WISH_LASTS = 1.0
"""Seconds for which a wish counts if it is not repeated."""

ID, ME, PASSED, BEAT = Param("id", str), Param("me", str), Param("passed", str), Param("beat")
NOT_HELD_OFF = missing(WISH) | Bin(WISH, str).eq(ME) | (Bin(WISH, str).eq(PASSED) & Bin(WISHED).eq(BEAT))
"""The guard "there is no wish, or it is the wish of `me`, or it is the wish `passed`, not repeated since `beat`"."""
_HELD = has(HOLDERS, ID)
_RENEW = Form(MapPut(RENEWED, ID, largest(MapValue(RENEWED, ID) + 1, SERVER_NOW)), when=_HELD, ttl=NEVER)
_STILL = MapValue(RENEWED, ID).eq(BEAT)
_WISH = Form(Put(WISH, ME), Add(WISHED, 1), when=NOT_HELD_OFF, ttl=NEVER)
_IS_WISH = Bin(WISH, str).eq(ME)


@dataclass(frozen=True, slots=True)
class HolderEntry:
    """One holder, as it was read.

    lease: seconds.
    since: ms by the server's clock.
    """

    id: str
    fence: int
    lease: float
    since: int
    owner: str
    held: Any
    stamp: int


@dataclass(frozen=True, slots=True)
class Holders:
    """A record with several holders, as it was read.

    entries: the holders, by id.
    wish: the party that is to enter before all others, if any.
    wished: how often a wish was made.
    bins: all bins of the record.
    """

    entries: Mapping[str, HolderEntry]
    wish: str | None
    wished: int
    bins: Mapping[str, Any]

    @classmethod
    def of(cls, key: Key, bins: Mapping[str, Any]) -> Holders:
        """Read the holders from a record's bins. Raises `Corrupt` if they cannot be read."""
        try:
            stamps = bins.get(RENEWED) or {}
            entries = {
                id: HolderEntry(id, fence, lease / 1000, since, owner, held, stamps.get(id, 0))
                for id, (fence, lease, since, owner, held) in (bins.get(HOLDERS) or {}).items()
            }
        except (AttributeError, TypeError, ValueError):
            raise _damaged(key) from None
        wish, wished = bins.get(WISH), bins.get(WISHED) or 0
        if not all(map(_is_sound, entries.values())) or not isinstance(wish, str | None) or type(wished) is not int:
            raise _damaged(key)
        return cls(entries, wish, wished, bins)


def _damaged(key: Key) -> Corrupt:
    return Corrupt(
        f"the record {key.set}/{key.name} is damaged: bin {HOLDERS!r} does not hold holders, or bin {RENEWED!r}, "
        f"{WISH!r} or {WISHED!r} is not theirs: delete it while nothing is held",
        key=key,
    )


def _is_sound(entry: HolderEntry) -> bool:
    """Whether its fields are as an acquisition writes them: with a lease below 0 a living holder would look dead. Each
    kind of record checks its own field `held`.
    """
    kinds = type(entry.fence), type(entry.since), type(entry.stamp), type(entry.id), type(entry.owner)
    return kinds == (int, int, int, str, str) and 0 < entry.lease <= rules.MAX_LEASE


@dataclass(frozen=True, slots=True)
class Watched:
    """Since when the holders of one record, and its wish, are unchanged."""

    holders: Standstill[str] = field(default_factory=Standstill)
    wishes: Standstill[str] = field(default_factory=Standstill)


_ALL: WeakKeyDictionary[TokenClock, dict[Key, Watched]] = WeakKeyDictionary()
"""What this process has seen of the holders of each store's records. A handle may live for one call only, as for one
web request: by itself it would never see a dead holder, or the wish of a dead party, stand still for long enough."""


class SharedContender(BaseContender, ABC):
    """One party on a record with several holders. It knows since when this process has seen each of them unchanged."""

    def __init__(self, store: RecordStore, key: Key, owner: str, lease: float) -> None:
        super().__init__(store, key, owner, lease)
        self.observed: Holders | None = None
        self._looked = 0.0
        self._all = _ALL.setdefault(store.token_clock, {})
        self._watched = self._all.get(key) or Watched()

    def look(self, *, waiting: bool = False, watch: Watch | None = None) -> Holders | None:
        """Read the holders; None if there is no record. Leaves a mark if `waiting`.

        watch: the wait that this look is part of.
        """
        answer = self._read(watch, waiting=waiting)
        if answer.record is None:
            self.observed = None
            return None
        seen, now = Holders.of(self.key, answer.record.bins), answer.answered
        self._watched.holders.see({id: entry.stamp for id, entry in seen.entries.items()}, now)
        self._watched.wishes.see({} if seen.wish is None else {seen.wish: seen.wished}, now)
        self.observed, self._looked = seen, now
        is_used = bool(seen.entries) or seen.wish is not None
        remember(self._all, self.key, self._watched if is_used else None)
        return seen

    def living(self, *, waiting: bool = False, watch: Watch | None = None) -> Holders | None:
        """Remove the dead holders, and return the others; None if there is no record."""
        seen = self.look(waiting=waiting, watch=watch)
        dead = [] if seen is None else self.dead(seen)
        for entry in dead:
            self.remove(entry, *self.removal_ops(entry))
        return self.look(watch=watch) if dead else seen

    def due(self, *, wishes: bool) -> float:
        """Return when (seconds, monotonic) a holder may be dead, or one of the `wishes` is to be looked at."""
        seen = self.observed
        if seen is None:
            return INFINITY
        dead = min((self._watched.holders.since(one.id) + one.lease for one in seen.entries.values()), default=INFINITY)
        if wishes or seen.wish is not None:
            dead = min(dead, self._looked + WISH_LASTS / 4)
        return dead + SOON

    def dead(self, seen: Holders) -> list[HolderEntry]:
        """Return the holders that were seen unchanged for their whole lease."""
        now = self.store.seams.monotonic()
        return [
            entry
            for entry in seen.entries.values()
            if self._watched.holders.lasts(entry.id, entry.stamp, entry.lease, now)
        ]

    def held_by(self) -> str:
        """Return why it could not be had though nobody held it, as text for a message."""
        seen = self.observed  # read once: another thread may replace it
        if seen is None or seen.wish is None:
            return super().held_by()
        return (
            "nobody held it when it last looked, but a party that waits goes first; if that has died, the others are "
            f"held off until this process has seen it for {WISH_LASTS:g} s: wait longer than that"
        )

    @abstractmethod
    def removal_ops(self, entry: HolderEntry) -> tuple[Op, ...]:
        """Return the further operations that remove a dead holder."""

    def remove(self, entry: HolderEntry, *ops: Op) -> bool:
        """Remove a dead holder, together with `ops`. False if it has renewed, or is gone already."""
        removal = (MapRemove(HOLDERS, (entry.id,)), MapRemove(RENEWED, (entry.id,)), *ops)
        guard = _STILL.bind(id=entry.id, beat=entry.stamp)
        try:
            self.store.operate(self.key, *removal, when=guard, ttl=NEVER, repeatable=True)
        except (Refused, NotFound) as refusal:
            return bool(refusal.details["doubt"])
        return True

    def renew(self, id: str, fence: int) -> TakenLease:
        """Renew a lease. Raises `Refused` or `NotFound` if nothing is held under this id any more."""
        began = self.store.seams.boottime()
        self.store.repeat(_RENEW.fill(self.key, id=id))
        return TakenLease(fence, rules.believed_until(began, self.lease))

    def release(self, id: str, *ops: Op) -> bool:
        """Release what is held under this id, together with `ops`. False if it was not held any more."""
        removal = (MapRemove(HOLDERS, (id,)), MapRemove(RENEWED, (id,)), *ops, Compute(rules.FRESH_MARK))
        began = self.store.seams.monotonic()
        try:
            mark = self.store.operate(self.key, *removal, when=_HELD.bind(id=id), ttl=NEVER, repeatable=True)[-1]
        except (Refused, NotFound) as refusal:
            return bool(refusal.details["doubt"])
        self._released(mark, began)
        return True

    # ---- wishes

    def passes(self, seen: Holders | None) -> dict[str, Any]:
        """Return the parameters of `NOT_HELD_OFF` that ignore a wish which was not repeated in time."""
        wish, clock = seen.wish if seen else None, self.store.seams.monotonic
        if seen is None or wish is None or not self._watched.wishes.lasts(wish, seen.wished, WISH_LASTS, clock()):
            return {"passed": "", "beat": 0}
        return {"passed": wish, "beat": seen.wished}

    def held_off(self, seen: Holders, me: str) -> bool:
        """Whether another party has a wish that was repeated in time."""
        return seen.wish not in (None, me) and not self.passes(seen)["passed"]

    def wish(self, seen: Holders, me: str) -> None:
        """Ask the others to let `me` go first. No effect if another party has asked before."""
        with suppress(Refused, NotFound):
            self.store.repeat(_WISH.fill(self.key, me=me, **self.passes(seen)))

    def take_back_wish(self, me: str) -> None:
        """Remove the wish of `me`. If the store does not answer, the wish counts for one more second at most."""
        with suppress(LatchworkError):
            self.store.operate(self.key, Put(WISH, None), when=_IS_WISH.bind(me=me), ttl=NEVER, repeatable=True)


class SharedAcquisition(BaseAcquisition[Holders, Way]):
    """One acquisition of a place among the holders. It may ask the others to let it go first."""

    _contender: SharedContender

    def __init__(self, contender: SharedContender) -> None:
        super().__init__(contender)
        self._me = self._seams.unique()
        self._wished: float | None = None

    def _see(self, *, waiting: bool = False) -> Holders | None:
        return self._contender.living(waiting=waiting, watch=self._watch)

    def _mine(self, seen: Holders) -> int | None:
        return seen.entries[self.id].fence if self.id in seen.entries else None

    def _renew(self, fence: int) -> TakenLease:
        return self._contender.renew(self.id, fence)

    def _due(self) -> float:
        return self._contender.due(wishes=self._wished is not None)

    def _wish(self, seen: Holders) -> None:
        now = self._seams.monotonic()
        if self._wished is None or now - self._wished > WISH_LASTS / 3:
            self._wished = now
            self._contender.wish(seen, self._me)

    def _end(self) -> None:
        """Remove the wish, so that it does not keep others out."""
        if self._wished is not None:
            self._contender.take_back_wish(self._me)

    def _fill(self, form: Form, **more: Any) -> Update:
        """Return the update of the acquisition, with the parameters of this party."""
        party = self._contender
        return form.fill(
            party.key, id=self.id, me=self._me, owner=party.owner, lease=round(party.lease * 1000), **more,
            **party.passes(party.observed),
        )  # fmt: skip


def add_holder(held: Expr) -> tuple[Op, ...]:
    """Return the operations that add an acquisition to the holders, after its fence was put (`_fill` has the rest)."""
    entry = ListOf((Bin(rules.FENCE), Param("lease"), SERVER_NOW, Param("owner", str), held))
    return MapPut(HOLDERS, ID, entry), MapPut(RENEWED, ID, SERVER_NOW)


class HolderLease:
    """The lease of one holder, on its part of the record.

    release_ops: further operations that release it.
    """

    def __init__(self, contender: SharedContender, id: str, *release_ops: Op) -> None:
        self.store, self.owner, self.lease = contender.store, contender.owner, contender.lease
        self._contender, self._id, self._release_ops = contender, id, release_ops

    def renew(self, fence: int) -> TakenLease:
        """Renew the lease. Raises `Refused` or `NotFound` if it is not held any more."""
        return self._contender.renew(self._id, fence)

    def change(self, *ops: Op) -> None:
        """Update the record under this lease. Raises `Refused` or `NotFound` if it is not held any more."""
        guard = _HELD.bind(id=self._id)
        self.store.operate(self._contender.key, *ops, when=guard, ttl=NEVER, repeatable=True)

    def release_with(self, *ops: Op) -> None:
        """Add operations to those that release it."""
        self._release_ops = (*self._release_ops, *ops)

    def release(self, fence: int) -> bool:  # noqa: ARG002 - the id names the lease
        """Release the lease. False if it was not held any more."""
        return self._contender.release(self._id, *self._release_ops)
