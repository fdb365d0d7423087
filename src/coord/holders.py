"""A record that several hold at a time, each by a lease of its own (docs/protocols.md P10).

Every holder is an entry under the id of its acquisition: who it is and its fence, which do not change, and a stamp,
which each renewal makes larger. Nobody goes by a clock but their own: a holder believes by its own, and who has seen
the stamp of another stand still for that one's whole lease removes it, guarded by that stamp. The wish of a party that
waits for more than is free holds others off, so that it is not passed over for ever.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..deadline import Deadline
from ..errors import Corrupt, LatchworkError, NotFound, OutcomeUnknown, Refused
from ..retry import Poll, may_pass, outlive
from ..store.model.expr import SERVER_NOW, Bin, Expr, ListOf, MapValue, Param, has, largest, missing
from ..store.model.form import Form
from ..store.model.ops import Add, Compute, MapPut, MapRemove, Op, Put, ReadAll
from ..store.port import NEVER, Key, RecordStore, Update
from . import lease as rules
from .contender import Attempts, Claim, Party, Way
from .lease import Standstill
from .waiting import told

HOLDERS, RENEWED = "holders", "renewed"
"""By the id of the acquisition: [fence, lease in ms, server's ms when it was taken, owner, what is held]; its stamp,
which is when it was last renewed, by the server's clock, and always larger than before."""
WISH, WISHED = "wish", "wished"
"""Whom the others let go first, and how often that one, or one before it, has asked for that."""
WISH_LASTS = 1.0
"""Seconds for which a wish that is not repeated is heeded."""

ID, ME, PASSED, BEAT = Param("id", str), Param("me", str), Param("passed", str), Param("beat")
NOT_HELD_OFF = missing(WISH) | Bin(WISH, str).eq(ME) | (Bin(WISH, str).eq(PASSED) & Bin(WISHED).eq(BEAT))
"""Nobody but `me` wishes, or nobody who is still there: the wish `passed` was not repeated since it was seen at `beat`.
"""
_HELD = has(HOLDERS, ID)
_RENEW = Form(MapPut(RENEWED, ID, largest(MapValue(RENEWED, ID) + 1, SERVER_NOW)), when=_HELD, ttl=NEVER)
_STILL = MapValue(RENEWED, ID).eq(BEAT)
_WISH = Form(Put(WISH, ME), Add(WISHED, 1), when=NOT_HELD_OFF, ttl=NEVER)
_IS_WISH = Bin(WISH, str).eq(ME)


@dataclass(frozen=True, slots=True)
class Entry:
    """One holder, as the record has it. `lease` in seconds, `since` in ms by the server's clock."""

    id: str
    fence: int
    lease: float
    since: int
    owner: str
    held: Any
    stamp: int


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds, as it was read: by id; the wish, and how often it was said; all bins."""

    entries: Mapping[str, Entry]
    wish: str | None
    wished: int
    bins: Mapping[str, Any]

    @classmethod
    def of(cls, bins: Mapping[str, Any]) -> Holders:
        """Those in the bins of a record. Raises `Corrupt` where these are not what was written."""
        try:
            stamps = bins.get(RENEWED) or {}
            entries = {
                id: Entry(id, fence, lease / 1000, since, owner, held, stamps.get(id, 0))
                for id, (fence, lease, since, owner, held) in (bins.get(HOLDERS) or {}).items()
            }
        except (AttributeError, TypeError, ValueError):
            raise Corrupt(f"a record whose {HOLDERS!r} are none: delete it while nobody holds anything there") from None
        return cls(entries, bins.get(WISH), bins.get(WISHED) or 0, bins)


class Crowd(Party, ABC):
    """One party on a record that several hold. It remembers since when the others have stood still."""

    def __init__(self, store: RecordStore, key: Key, owner: str, lease: float) -> None:
        super().__init__(store, key, owner, lease)
        self.observed: Holders | None = None
        self._holders: Standstill[str] = Standstill()
        self._wishes: Standstill[str] = Standstill()

    def look(self, *, waiting: bool = False) -> Holders | None:
        """Who holds it now; None where there is no record. Leaves a mark if `waiting`."""
        bins = self._marking() if waiting and self._mark_is_stale() else self._reading()
        if bins is None:
            self.observed = None
            return None
        seen, now = Holders.of(bins), self.store.seams.monotonic()
        self._holders.see({id: entry.stamp for id, entry in seen.entries.items()}, now)
        self._wishes.see({} if seen.wish is None else {seen.wish: seen.wished}, now)
        self.observed = seen
        return seen

    def living(self, *, waiting: bool = False) -> Holders | None:
        """Who holds it now, once those who have stood still for a lease are taken out."""
        seen = self.look(waiting=waiting)
        dead = [] if seen is None else self.dead(seen)
        for entry in dead:
            self.remove(entry, *self.gone(entry))
        return self.look() if dead else seen

    def dead(self, seen: Holders) -> list[Entry]:
        """The holders that have stood still for a whole lease of theirs."""
        now = self.store.seams.monotonic()
        return [entry for entry in seen.entries.values() if self._holders.lasts(entry.id, entry.lease, now)]

    @abstractmethod
    def gone(self, entry: Entry) -> tuple[Op, ...]:
        """The operations that belong to taking a dead holder out."""

    def remove(self, entry: Entry, *ops: Op) -> bool:
        """Take a dead holder out, with what else belongs to that; False where it has renewed, or is gone already."""
        gone = (MapRemove(HOLDERS, (entry.id,)), MapRemove(RENEWED, (entry.id,)), *ops)
        guard = _STILL.bind(id=entry.id, beat=entry.stamp)
        try:
            self.store.operate(self.key, *gone, when=guard, ttl=NEVER, repeatable=True)
        except (Refused, NotFound) as refusal:
            return bool(refusal.details["doubt"])
        return True

    def renew(self, id: str, fence: int) -> Claim:
        """Start a lease again. Raises `Refused` or `NotFound` where nothing is held under this id any more."""
        began = self.store.seams.boottime()
        self.store.repeat(_RENEW.fill(self.key, id=id))
        return Claim(fence, rules.believed_until(began, self.lease))

    def release(self, id: str, *ops: Op) -> bool:
        """Give back what is held under this id, with what belongs to that; False where it was not held any more."""
        gone = (MapRemove(HOLDERS, (id,)), MapRemove(RENEWED, (id,)), *ops, Compute(rules.FRESH_MARK))
        try:
            mark = self.store.operate(self.key, *gone, when=_HELD.bind(id=id), ttl=NEVER, repeatable=True)[-1]
        except (Refused, NotFound) as refusal:
            return bool(refusal.details["doubt"])
        self._released(mark)
        return True

    # ---- wishes

    def passes(self, seen: Holders | None) -> dict[str, Any]:
        """The parameters with which a wish is passed that was not repeated for long."""
        wish = seen.wish if seen else None
        if seen is None or wish is None or not self._wishes.lasts(wish, WISH_LASTS, self.store.seams.monotonic()):
            return {"passed": "", "beat": 0}
        return {"passed": wish, "beat": seen.wished}

    def held_off(self, seen: Holders, me: str) -> bool:
        """Whether somebody else wishes, who is still there."""
        return seen.wish not in (None, me) and not self.passes(seen)["passed"]

    def wish(self, seen: Holders, me: str) -> None:
        """Ask the others to let `me` go first; in vain where another one has asked before."""
        with suppress(Refused, NotFound):
            self.store.repeat(_WISH.fill(self.key, me=me, **self.passes(seen)))

    def take_back_wish(self, me: str) -> None:
        """Wish no more. What cannot be said to the store is heeded for a second at most."""
        with suppress(LatchworkError):
            self.store.operate(self.key, Put(WISH, None), when=_IS_WISH.bind(me=me), ttl=NEVER, repeatable=True)

    def _reading(self) -> Mapping[str, Any] | None:
        record = self.store.get(self.key)
        return None if record is None else record.bins

    def _marking(self) -> Mapping[str, Any] | None:
        try:
            (bins,) = self.store.operate(self.key, *rules.MARK, ReadAll(), ttl=NEVER, repeatable=True)
        except NotFound:
            return None
        except OutcomeUnknown:
            return self._reading()  # whether the mark was left does not matter
        self._marked = self.store.seams.monotonic()
        return dict(bins)


class Entering(Attempts[Way, Holders]):
    """One wish to be among the holders; one that is passed over may ask the others to let it go first."""

    def __init__(self, crowd: Crowd) -> None:
        super().__init__(crowd)
        self._holders = crowd
        self._me = self._seams.unique()
        self._wished: float | None = None

    def at_once(self) -> Claim | None:
        """Try without having looked, then look; None where it is not to be had now."""
        return self.take() or self.look()

    def enter(self, poll: Poll, timeout: float | None, kind: str) -> Claim | None:
        """Enter at once, or wait for up to so many seconds; None where they were not enough. kind: for the metrics."""
        seams, claim = self._seams, None
        with Deadline(seams, timeout) as deadline:
            self._holders.let_others_go_first(poll, timeout)
            claim = outlive(seams, deadline, self.at_once, passing=may_pass)
            if claim is not None or timeout == 0:
                return claim
            try:
                claim = told(seams, kind, lambda: self.wait(poll, deadline=deadline))
            finally:
                if claim is None:  # also where the wait failed
                    self.end()
        return claim

    def end(self) -> None:
        """Wish no more, where it was in vain: nobody is to be held off for it."""
        if self._wished is not None:
            self._holders.take_back_wish(self._me)

    def _wish(self, seen: Holders) -> None:
        now = self._seams.monotonic()
        if self._wished is None or now - self._wished > WISH_LASTS / 3:
            self._wished = now
            self._holders.wish(seen, self._me)

    def _fill(self, form: Form, **more: Any) -> Update:
        """The acquisition, with what says who asks."""
        crowd = self._holders
        return form.fill(
            crowd.key, id=self.id, me=self._me, owner=crowd.owner, lease=round(crowd.lease * 1000), **more,
            **crowd.passes(crowd.observed),
        )  # fmt: skip

    def _see(self, *, waiting: bool = False) -> Holders | None:
        return self._holders.living(waiting=waiting)

    def _mine(self, seen: Holders) -> int | None:
        return seen.entries[self.id].fence if self.id in seen.entries else None

    def _renew(self, fence: int) -> Claim:
        return self._holders.renew(self.id, fence)


def entered(held: Expr) -> tuple[Op, ...]:
    """The operations that put an acquisition among the holders, after its fence was put; see `Entering._fill`."""
    entry = ListOf((Bin(rules.FENCE), Param("lease"), SERVER_NOW, Param("owner", str), held))
    return MapPut(HOLDERS, ID, entry), MapPut(RENEWED, ID, SERVER_NOW)


class Held:
    """What one acquisition holds: a lease on a part of the record.

    gone: the operations that belong to giving it back.
    """

    def __init__(self, crowd: Crowd, id: str, *gone: Op) -> None:
        self.store, self.owner, self.lease = crowd.store, crowd.owner, crowd.lease
        self._crowd, self._id, self._gone = crowd, id, gone

    def renew(self, fence: int) -> Claim:
        """Start the lease again. Raises `Refused` or `NotFound` where it is not held any more."""
        return self._crowd.renew(self._id, fence)

    def change(self, *ops: Op) -> None:
        """Change the record while it is held. Raises `Refused` or `NotFound` where it is not held any more."""
        self._crowd.store.operate(self._crowd.key, *ops, when=_HELD.bind(id=self._id), ttl=NEVER, repeatable=True)

    def release(self, fence: int) -> bool:  # noqa: ARG002 - the id says as much
        """Give it back; False where it was not held any more."""
        return self._crowd.release(self._id, *self._gone)
