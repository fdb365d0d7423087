"""Rate limiters: never more than so many in any stretch of so many seconds (docs/protocols.md P13).

    limiter = RateLimiter(store, "bank-api", limit=100, per=60)
    if limiter.try_acquire().allowed:
        call_the_bank()

What is let through is counted in cells, ten of which make a window; a cell counts until a whole window after its end is
over. So up to `limit` go through at once, and never more than `limit` in any window of `per` seconds, wherever it
begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeAlias

from ..deadline import Deadline
from ..errors import InvalidRequest, NotFound, Refused, WaitTimeout
from ..inputs import checked_timeout, checked_whole, is_int
from ..retry import outlive
from ..store.connect import as_store
from ..store.model.expr import SERVER_NOW, Bin, Const, Expr, If, ListOf, MapHas, MapValue, Param, all_of, exists, has
from ..store.model.form import Form
from ..store.model.ops import MapPut, MapTrim, Op, Put
from ..store.once import Once
from ..store.port import Exists, Key, RecordStore
from .inputs import checked_name
from .waiting import told

LIMITS = "latchwork_limits"
"""The set of all rate limiters; the key is the name."""
CELLS = 10
"""Cells of a window. What was let through comes back a tenth of the window late at most."""
MAX_LIMIT, MAX_LIMITS = 10**9, 4
MIN_PER, MAX_PER = 0.05, 366 * 86_400.0
"""Seconds."""
TOKENS = 64
"""Calls that a record remembers (P1)."""
ALLOWED, LAST = "allowed", "last"
"""Whether the last call was let through, 1 or 0; the id of the last one that was."""
ID, N = Param("id", str), Param("n")
_IS_LAST = Bin(LAST, str).eq(ID)

Per: TypeAlias = timedelta | float
"""The window of a limit: a timedelta, or seconds."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a call was let through; how many more would be; seconds until as many as were asked for may have room."""

    allowed: bool
    remaining: int
    retry_after: float


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `most` in any window of `per` seconds."""

    most: int
    per: float

    @property
    def width(self) -> int:
        """How wide its cells are, in ms: so wide that those of a window are together as long as it, or longer."""
        return -(-round(self.per * 1000) // CELLS)

    @property
    def bin(self) -> str:
        """The map bin of its cells: how many, by the number of the cell since the epoch."""
        return f"per-{self.width}"


class RateLimiter:
    """At most `limit` in any window of `per` seconds, over all processes. Handles are cheap, safe to share between
    threads, and pickle with their store.

    limit: 1 to 10^9.
    per: a timedelta, or seconds: 0.05 to a year.
    also: further limits, as pairs (limit, per), that hold as well: a call is let through where all of them have room,
        and counts in all.

    Handles of one name may have different limits for a window: each goes by its own, and all count together. Time is
    the store's. A limiter that is not used for two windows leaves nothing behind.
    """

    def __init__(
        self, store: RecordStore, name: str, limit: int, per: Per, *, also: Iterable[tuple[int, Per]] = ()
    ) -> None:
        self._store, self.name = as_store(store), checked_name(name)
        self.limits = checked_limits([(limit, per), *_pairs(also)])
        self._key = Key(LIMITS, name)
        self._watched: tuple[str, float] = ("", 0.0)

    def __repr__(self) -> str:
        return f"RateLimiter({self.name!r}, {', '.join(f'{one.most} per {one.per:g} s' for one in self.limits)})"

    def __reduce__(self) -> tuple[Any, ...]:
        (limit, per), *also = [(one.most, one.per) for one in self.limits]
        return _made, (self._store, self.name, limit, per, also)

    def try_acquire(self, n: int = 1) -> Decision:
        """Ask to let `n` through, all or none; they are counted exactly once. Does not wait.

        One store call where there is room, else one more, which reads when there will be. Raises `InvalidRequest` for
        more than the smallest limit, and `OutcomeUnknown` where they may have been counted: they are not let through.
        """
        checked_whole("n", n, 1, min(one.most for one in self.limits))
        with Deadline(self._store.seams, 0):
            return self._decide(n)

    def acquire(self, timeout: float | None = None, *, n: int = 1) -> Decision:
        """Wait until `n` are let through. One store call where there is room, else three for each time it has to wait.

        It sleeps exactly until there may be room, and asks again, as others may have been first. timeout: seconds to
        wait, None = for ever. Raises `WaitTimeout` as soon as it is certain that there is no room before that, and what
        `try_acquire` raises. Not promised: that who asks for many is let through while others ask for few.
        """
        checked_whole("n", n, 1, min(one.most for one in self.limits))
        limit, seams = checked_timeout(timeout), self._store.seams
        with Deadline(seams, limit) as deadline:
            first = outlive(seams, deadline, lambda: self._decide(n))
            decision = first if first.allowed else told(seams, "limit", lambda: self._wait(n, first, deadline))
        if decision is None:
            raise WaitTimeout(f"{self!r} has no room for {n} within {timeout} s; wait longer, or ask for fewer")
        return decision

    def _wait(self, n: int, decision: Decision, deadline: Deadline) -> Decision | None:
        while not decision.allowed:
            left = deadline.left()
            if left is not None and decision.retry_after > left:
                return None
            self._store.seams.sleep(decision.retry_after)
            decision = outlive(self._store.seams, deadline, lambda: self._decide(n))
        return decision

    def _decide(self, n: int) -> Decision:
        decision = self._ask(n)
        if not decision.allowed and self._time_stands_still():
            self._begin_anew()
            return self._ask(n)
        return decision

    def _ask(self, n: int) -> Decision:
        update = _asked(self.limits).fill(self._key, id=self._store.seams.unique(), n=n)
        ((allowed, now, *spent),) = self._store.once(update)
        left = max(0, min(limit.most - counted for limit, counted in zip(self.limits, spent, strict=True)))
        if allowed:
            return Decision(True, left, 0.0)
        record = self._store.get(self._key, LAST, *(limit.bin for limit in self.limits))
        bins = record.bins if record else {}
        self._watch(bins.get(LAST, ""))
        return Decision(
            False, left, max(_until_room(limit, bins.get(limit.bin) or {}, n, now) for limit in self.limits)
        )

    # ---- where the server's clock was set back: for this record its time stands still until it has caught up

    def _watch(self, last: str) -> None:
        """Note since when, by this handle's own clock, nothing was let through."""
        if self._watched[0] != last:
            self._watched = (last, self._store.seams.monotonic())

    def _time_stands_still(self) -> bool:
        """Whether nothing was let through for the longest window, and yet it is said that there is no room."""
        last, since = self._watched
        window = max(limit.width for limit in self.limits) * (CELLS + 1) / 1000
        return last != "" and self._store.seams.monotonic() - since > 1.01 * window

    def _begin_anew(self) -> None:
        """Forget what was counted, if nothing was let through since it was watched: then there is room for all."""
        empty = [Put(limit.bin, {}) for limit in self.limits]
        guard = _IS_LAST.bind(id=self._watched[0])
        try:
            self._store.operate(self._key, *empty, when=guard, ttl=_ttl(self.limits), repeatable=True)
        except (Refused, NotFound):
            return  # somebody was let through meanwhile


@lru_cache(maxsize=256)
def _asked(limits: tuple[Limit, ...]) -> Form:
    """The question, with its parameters `id` and `n`. Its answer: [allowed, server's ms, what each limit has spent...].

    For each limit the number of the present cell and what the cells of the window have spent are noted first, then
    whether there is room in all, and then that is counted.
    """
    notes: list[Op] = []
    counts: list[Op] = []
    for place, limit in enumerate(limits):
        cell, spent = Bin(f"cell{place}"), Bin(f"spent{place}")
        notes += [Put(cell.name, SERVER_NOW // limit.width), Put(spent.name, _window(limit.bin, cell))]
        counted = N * Bin(ALLOWED)
        now = If(has(limit.bin, cell), MapValue(limit.bin, cell), Const(0))
        counts += [
            MapPut(limit.bin, cell, now + counted),
            MapTrim(limit.bin, CELLS + 1),
            Put(spent.name, spent + counted),
        ]
    room = all_of(*(Bin(f"spent{place}") + N <= limit.most for place, limit in enumerate(limits)))
    last = If(exists(LAST), Bin(LAST, str), Const(""))
    answer = ListOf((Bin(ALLOWED), SERVER_NOW, *(Bin(f"spent{place}") for place in range(len(limits)))))
    return Form(
        *notes,
        Put(ALLOWED, If(room, Const(1), Const(0))),
        Put(LAST, If(Bin(ALLOWED).eq(1), ID, last)),
        *counts,
        exists=Exists.ANY,
        or_absent=True,
        ttl=_ttl(limits),
        once=Once(TOKENS, result=answer),
    )


def _window(bin: str, cell: Expr) -> Expr:
    """What was let through in the present cell and in as many before it as make a window."""
    total: Expr = Const(0)
    for age in range(CELLS + 1):
        total = total + If(MapHas(bin, cell - age), MapValue(bin, cell - age), Const(0))
    return If(exists(bin), total, Const(0))


def _until_room(limit: Limit, cells: Mapping[int, int], n: int, now: int) -> float:
    """Seconds until `n` have room, if nobody else is let through."""
    present = now // limit.width
    counting = sorted(cell for cell in cells if cell >= present - CELLS)
    over, until = sum(cells[cell] for cell in counting) + n - limit.most, now
    for cell in counting:
        if over <= 0:
            break
        over, until = over - cells[cell], (cell + CELLS + 1) * limit.width
    return (until - now) / 1000


def _ttl(limits: tuple[Limit, ...]) -> int:
    """Seconds after which the record says nothing any more, and some."""
    return 60 + round(2 * max(limit.per for limit in limits))


def _seconds(per: Per) -> float:
    """The window in seconds. Raises `InvalidRequest`."""
    seconds = per.total_seconds() if isinstance(per, timedelta) else per
    if not (is_int(seconds) or isinstance(seconds, float)) or not MIN_PER <= seconds <= MAX_PER:
        raise InvalidRequest(f"per is {per!r}; it must be a timedelta, or seconds, of {MIN_PER} to {MAX_PER:.0f} s")
    return float(seconds)


def _made(store: RecordStore, name: str, limit: int, per: float, also: list[tuple[int, float]]) -> RateLimiter:
    return RateLimiter(store, name, limit, per, also=also)


def _pairs(also: Iterable[tuple[int, Per]]) -> list[tuple[int, Per]]:
    try:
        return [(limit, per) for limit, per in also]
    except (TypeError, ValueError):
        raise InvalidRequest(f"also is {also!r}; give further limits as pairs (limit, per)") from None


def checked_limits(pairs: Sequence[tuple[int, Per]]) -> tuple[Limit, ...]:
    """The limits, once they are such that a record can keep them. Raises `InvalidRequest`."""
    if len(pairs) > MAX_LIMITS:
        raise InvalidRequest(f"{len(pairs)} limits; at most {MAX_LIMITS} in one limiter")
    limits = tuple(Limit(checked_whole("limit", limit, 1, MAX_LIMIT), _seconds(per)) for limit, per in pairs)
    if len({limit.width for limit in limits}) < len(limits):
        raise InvalidRequest(f"{len(pairs)} limits, of which two have nearly the same window: keep the smaller one")
    return limits
