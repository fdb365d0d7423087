"""Rules taken out of the coordination set (protocols P9 to P13, P19), one at a time, as `mutants.py` lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

from msgspec import structs

from latchwork.coord import contender, fencing, holders, lease, limiter, rwlock, semaphore
from latchwork.coord.barrier import barrier, meeting
from latchwork.coord.barrier import layout as generations
from latchwork.coord.presence import layout as members
from latchwork.coord.presence import presence
from latchwork.coord.waits import Poller, Watch
from latchwork.store import RecordStore
from latchwork.store.model.expr import SERVER_NOW, Bin, Bound, Const, If, Param, all_of, exists, has, lacks, missing
from latchwork.store.model.form import Form, plain
from latchwork.store.model.ops import Compute, MapPut, MapTrim, Put

TRUE = Const(True)
Rule = tuple[Any, ...]


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


_RENEW_ANY = MapPut(holders.RENEWED, holders.ID, SERVER_NOW)


def _form(name: str, *ops: Any, **changes: Any) -> Callable[[], Any]:
    """With other parts in a form of the holders."""
    old = getattr(holders, name)
    kept = {part: getattr(old, part) for part in ("when", "exists", "or_absent", "ttl")}
    return _swap(holders, name, Form(*ops, **{**kept, **changes}))


def _lasts_a_moment(self: Any, key: Any, stamp: Any, seconds: float, now: float) -> bool:
    return key in self._seen and now - self._seen[key][1] > 0.3


def _believed_anew(self: Any, fence: int) -> Any:
    return contender.TakenLease(fence, self._seams.boottime() + self._contender.lease)


HELD_RULES: tuple[Rule, ...] = (
    ("a holder is removed though it has renewed", "P10.4: guarded by the stamp that was seen",
     _swap(holders, "_STILL", holders._HELD), True),
    ("removed by the challenger's lease", "P10.4: the holder's whole lease",
     _swap(lease.Standstill, "lasts", _lasts_a_moment)),
    ("renewing needs no id", "P10.3: renew guarded by the id",
     _form("_RENEW", _RENEW_ANY, when=exists(holders.RENEWED))),
    ("giving back needs no id", "P10.3: release guarded by the id",
     _swap(holders, "_HELD", exists(holders.HOLDERS))),
    ("belief without end", "P10.4: start of the first attempt + lease - drift",
     _swap(lease, "believed_until", lambda began, lease: began + 1e9)),
)  # fmt: skip
SEMAPHORE_RULES: tuple[Rule, ...] = (
    *HELD_RULES,
    ("slots are taken out of others' hands", "P10.1: each slot is in nobody's hands",
     _swap(semaphore, "lacks", lambda bin, key: TRUE)),
    ("more are let in than there are", "P10.1: size + n <= permits", _swap(semaphore, "_ROOM", TRUE)),
    ("one id goes with several choices of slots", "P10.2: an id goes with its slots",
     _swap(semaphore._SlotAcquisition, "_begin_again", lambda self: None)),
    ("the next fence is one more", "P10.1: max(fencing-ctr + 1, server time)",
     _swap(semaphore, "NEXT_FENCE", If(exists(lease.FENCE), Bin(lease.FENCE) + 1, Const(1)))),
    ("a guard without the ratchet", "P10.7: guards fences[slot] <= f and stores it",
     _swap(semaphore.Permits, "_ratchet", lambda self, bin: (Put("another", self._fence),))),
    ("a ratchet without the guard", "P10.7: guards fences[slot] <= f and stores it",
     _swap(semaphore, "_fenced", lambda bin, slots, when: TRUE if when is None else when)),
    ("what was found counts without being renewed", "P10.2: counts only once it is renewed",
     _swap(contender.BaseAcquisition, "_confirm", _believed_anew)),
)  # fmt: skip


# ---- rate limiters (P13)


def _without_token(self: Any, update: Any, *, token: Any = None) -> Any:
    """A call that is repeated as it is."""
    *ops, answer = (*plain(update).ops, Compute(Bound(update.form.once.result, update.params)))
    return self.policy.run(
        self.seams, self._operate, structs.replace(update, ops=(*ops, answer), form=None, params={}), doubt=lambda: None
    )


def _cells_of_a_window(count: int) -> Callable[[Any, Any], Any]:
    def window(bin: str, cell: Any, real: Any = limiter._window) -> Any:
        with mock.patch.object(limiter, "CELLS", count - 1):
            return real(bin, cell)

    return window


LIMITER_RULES: tuple[Rule, ...] = (
    ("the oldest cell of a window does not count", "P13.1: a cell counts until a window after its end",
     _swap(limiter, "_window", _cells_of_a_window(limiter.CELLS))),
    ("whether there is room is not asked", "P13.1: spent + n <= limit", _swap(limiter, "all_of", lambda *parts: TRUE)),
    ("cells are dropped that still count", "P13.1: the newest eleven are kept",
     _swap(limiter, "MapTrim", lambda bin, keep: MapTrim(bin, 3))),
    ("a call in doubt is repeated without its token", "P13.2: exactly once",
     _swap(RecordStore, "once", _without_token)),
    ("forgotten though somebody was let through", "P13.4: guarded by last",
     _swap(limiter, "_IS_LAST", exists(limiter.LAST))),
    ("forgotten before a window was watched", "P13.4: nothing let through for a window of one's own clock",
     _swap(limiter.RateLimiter, "_time_stands_still", lambda self: self._watched[0] != "")),
)  # fmt: skip


# ---- read-write locks (P12)

_ROOM = rwlock._COUNT < rwlock.MAX_READERS
_ANEW = lacks(holders.HOLDERS, holders.ID)


def _reading(guard: Any, fence: Any = rwlock._LAST_FENCE) -> Callable[[], Any]:
    return _swap(rwlock, "_READ", rwlock._acquisition(rwlock.Mode.READ, fence, guard))


def _writing(guard: Any, fence: Any = rwlock.NEXT_FENCE) -> Callable[[], Any]:
    more = (Put(rwlock.WRITER, holders.ID), Put(rwlock.WISH, None))
    return _swap(rwlock, "_WRITE", rwlock._acquisition(rwlock.Mode.WRITE, fence, guard, *more))


RWLOCK_RULES: tuple[Rule, ...] = (
    *HELD_RULES,
    ("readers are let in beside a writer", "P12.1: nobody writes",
     _reading(all_of(_ROOM, _ANEW, holders.NOT_HELD_OFF))),
    ("a writer is let in beside readers", "P12.1: nobody holds it",
     _writing(missing(rwlock.WRITER) & holders.NOT_HELD_OFF)),
    ("the next fence is the last one", "P12.1: max(fencing-ctr + 1, server time)",
     _writing(rwlock._COUNT.eq(0) & holders.NOT_HELD_OFF, rwlock._LAST_FENCE)),
    ("a reader's generation is the time", "P12.3: the fence of the last writer",
     _reading(all_of(missing(rwlock.WRITER), _ROOM, _ANEW, holders.NOT_HELD_OFF), lease.NOW_US)),
    ("a dead writer leaves no mark", "P12.4: abandoned = its fence",
     _swap(rwlock._RWContender, "removal_ops",
           lambda self, entry: (Put(rwlock.WRITER, None),) if entry.held == "write" else ())),
    ("a ratchet without the guard", "P2: guards bin <= f and stores bin = f",
     _swap(fencing, "_fenced", lambda bin, when: TRUE if when is None else when)),
)  # fmt: skip


# ---- the poller (P19)


def _keeps_the_turn(self: Any, watch: Any, *, real: Any = Poller._leave) -> None:
    turn = self._turn
    real(self, watch)
    self._turn = turn


def _each_for_itself(self: Any, watch: Any, now: float, *, real: Any = Poller._plan) -> Any:
    self._turn = None
    return real(self, watch, now)


def _goes_on(self: Any, watch: Any, end: float, due: Any, *, real: Any = Poller.wait) -> None:
    real(self, watch, end + 5.0, due)


POLLER_RULES = (
    ("who leaves keeps the turn", "P19: a thread that ends its wait passes the turn on",
     _swap(Poller, "_leave", _keeps_the_turn)),
    ("each thread reads for itself", "P19.10: one read at a time", _swap(Poller, "_plan", _each_for_itself)),
    ("an answer wakes nobody", "P19: an answer that is worth a look wakes its thread",
     _swap(Watch, "hand", lambda self, answer: setattr(self, "handed", answer))),
    ("a wait goes on after its time", "P19: a wait lasts no longer than its time and one call",
     _swap(Poller, "wait", _goes_on)),
)  # fmt: skip


# ---- presence (P9)

_MEMBER = Param("member", str)


def _bins(**changes: Callable[[Any], Any]) -> Callable[[], Any]:
    """With other guards and updates of a farm."""

    def bins_of(farm: str, ttl: int, real: Any = members.bins_of) -> Any:
        bins = real(farm, ttl)
        return replace(bins, **{name: make(bins) for name, make in changes.items()})

    return _swap(presence, "bins_of", bins_of)


def _joining(guard: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda bins: Form(*bins.join.ops, when=guard(bins), exists=bins.join.exists, or_absent=True, ttl=bins.ttl)


def _there(bins: Any) -> Any:
    return has(members.ID + bins.farm, _MEMBER)


PRESENCE_RULES: tuple[Rule, ...] = (
    ("called dead though it was heard of", "P9.4: guarded by the stamp that was seen",
     _bins(still=lambda bins: bins.held), True),
    ("called dead by the watcher's lease", "P9.4: the member's whole lease",
     _swap(lease.Standstill, "lasts", _lasts_a_moment)),
    ("a joining asks for nothing", "P9.2: as it was read", _bins(join=_joining(lambda bins: TRUE))),
    ("any heartbeat will do", "P9.3: heartbeats guarded by the id",
     _bins(heartbeat=lambda bins: Form(*bins.heartbeat.ops, when=_there(bins), ttl=bins.ttl))),
    ("leaving needs no id", "P9.3: leaving guarded by the id", _bins(held=_there)),
    ("belief without end", "P9.3: start of the first attempt + lease - drift",
     _swap(presence, "believed_until", lambda began, lease: began + 1e9)),
)  # fmt: skip


# ---- barriers (P11)


def _meeting(**changes: Callable[[Any, str], Any]) -> Callable[[], Any]:
    """With other updates of a farm."""

    def updates_of(farm: str, home: str, ttl: int, real: Any = generations.updates_of) -> Any:
        updates = real(farm, home, ttl)
        return replace(updates, **{name: make(getattr(updates, name), home) for name, make in changes.items()})

    return _swap(barrier, "updates_of", updates_of)


def _guarded(guard: Any) -> Callable[[Any, str], Any]:
    """The update with another guard."""
    return lambda form, home: Form(
        *form.ops, when=guard(home), exists=form.exists, or_absent=form.or_absent, ttl=form.ttl
    )


def _turn(home: str) -> Any:
    return exists(generations.TURN + home)


def _anew_each_time(self: Any, record: Any, place: Any, payload: str) -> None:
    self._record, self.place, self._payload, self.turn, self.arrived = record, place, payload, None, False
    self.watch = record.watch()


BARRIER_RULES: tuple[Rule, ...] = (
    ("an end may be changed", "P11.3: guarded by the turn", _meeting(decide=_guarded(_turn))),
    ("arriving at any generation", "P11.2: guarded by the turn", _meeting(arrive=_guarded(_turn))),
    ("met without all", "P11.3: all have arrived",
     _swap(meeting.BarrierRecord, "all_here", lambda self, now, turn: sum(at >= turn for at in now.at.values()) > 1)),
    ("met by those of earlier generations", "P11.3: at this generation",
     _swap(meeting.BarrierRecord, "all_here", lambda self, now, turn: len(now.at) == len(self.places))),
    ("a wait in doubt is forgotten", "P11.4: the next wait goes on with it",
     _swap(meeting.Meeting, "__init__", _anew_each_time)),
    ("a record that was made again goes unnoticed", "P11.6: the record has the waiter's generation",
     _swap(meeting.Meeting, "_made_again", lambda self, now, turn: False)),
    ("what was brought may change", "P11.2: once a generation",
     _meeting(put_payload=_guarded(lambda home: TRUE)), True),
)  # fmt: skip
