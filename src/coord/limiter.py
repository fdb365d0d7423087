"""Rate limiters: at most `limit` calls in any window of `per` seconds (docs/protocols P13).

    limiter = RateLimiter(store, "bank-api", limit=100, per=60)
    if limiter.try_acquire().allowed:
        call_the_bank()

Allowed calls are counted in cells of a tenth of the window; a cell counts until a whole window after its end. So up to
`limit` calls are allowed at once, and never more than `limit` in any window of `per` seconds, wherever it begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from ..deadline import Deadline
from ..errors import InvalidRequest, NotFound, Refused, WaitTimeout
from ..inputs import checked_seconds, checked_text, checked_timeout, checked_whole
from ..plain import shown
from ..retry import outlive
from ..store.connect import as_store
from ..store.model.expr import SERVER_NOW, Bin, Const, Expr, If, ListOf, MapHas, MapValue, Param, all_of, exists, has
from ..store.model.form import Form
from ..store.model.ops import MapPut, MapTrim, Op, Put
from ..store.once import TokenClock
from ..store.port import Exists, Key, Once, RecordStore
from .waits import measured

LIMITS = "latchwork_limits"
"""The set of all rate limiters; the key is the name."""
CELLS = 10
"""Cells of a window. Room becomes free at most a tenth of the window late."""
MAX_LIMIT, MAX_LIMITS = 10**9, 4
MIN_PER, MAX_PER = 0.05, 366 * 86_400.0
"""Seconds."""
TOKENS = 64
"""Calls that a record remembers (P1)."""
MAX_WATCHED = 10_000
"""Limiters of one store that a process watches because they have refused a call."""
ALLOWED, LAST = "allowed", "last"
"""`allowed`: whether the last call was allowed, 1 or 0. `last`: the id of the last allowed call."""
ID, N = Param("id", str), Param("n")
_IS_LAST = Bin(LAST, str).eq(ID)

Per: TypeAlias = timedelta | float
"""The window of a limit: a timedelta, or seconds."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of a rate limiter.

    allowed: whether the call is allowed.
    remaining: how many more calls would be allowed now.
    retry_after: seconds until there may be room for as many as were asked for.
    """

    allowed: bool
    remaining: int
    retry_after: float


@dataclass(frozen=True, slots=True)
class Limit:
    """A rate: at most `most` in any window of `per` seconds."""

    most: int
    per: float

    @property
    def width(self) -> int:
        """The width of its cells in ms: a tenth of the window, rounded up."""
        return -(-round(self.per * 1000) // CELLS)

    @property
    def bin(self) -> str:
        """The name of the map bin of its cells: how many calls, by the number of the cell since 1970."""
        return f"per-{self.width}"


class RateLimiter:
    """A limit of `limit` calls in any window of `per`, over all processes. Handles are cheap, safe to share between
    threads, and pickle with their store.

    limit: 1 to 10^9.
    per: a timedelta, or seconds: 0.05 to a year.
    also: further limits, as pairs (limit, per). A call is allowed if all limits have room, and counts in all of them.

    Handles of one name may have different limits for a window: each uses its own limit, and all calls count. But all
    need the same windows: a call counts only in those of its own handle. And the record expires when it is not used for
    two windows of the handle that used it last, and what a longer window had counted is then lost. Time is the store's.
    """

    def __init__(
        self, store: RecordStore, name: str, limit: int, per: Per, *, also: Iterable[tuple[int, Per]] = ()
    ) -> None:
        self._store, self.name = as_store(store), checked_text("name", name)
        self.limits = checked_limits([(limit, per), *_pairs(also)])
        self._key = Key(LIMITS, name)
        self._watches = _ALL.setdefault(store.token_clock, {})

    def __repr__(self) -> str:
        return f"RateLimiter({self.name!r}, {', '.join(f'{one.most} per {one.per:g} s' for one in self.limits)})"

    def __reduce__(self) -> tuple[Any, ...]:
        (limit, per), *also = [(one.most, one.per) for one in self.limits]
        return partial(RateLimiter, also=also), (self._store, self.name, limit, per)

    def of_key(self, key: str) -> RateLimiter:
        """Return the limiter of one key, such as a customer: these limits, in a record of its own named `{name}/{key}`.
        So it is also the limiter that is made with that name.

        Raises `InvalidRequest` if the key is no text that a name may have in it.
        """
        (limit, per), *also = [(one.most, one.per) for one in self.limits]
        return RateLimiter(self._store, f"{self.name}/{checked_text('name', key)}", limit, per, also=also)

    def try_acquire(self, n: int = 1) -> Decision:
        """Ask for `n` calls, all or none; they are counted exactly once. Does not wait.

        One store call if there is room, else one more, which reads when there will be room. Raises `InvalidRequest` if
        `n` is more than the smallest limit, and `OutcomeUnknown` if the calls may have been counted: treat them as not
        allowed.
        """
        checked_whole("n", n, 1, min(one.most for one in self.limits))
        with Deadline(self._store.seams, 0):
            return self._decide(n)

    def acquire(self, timeout: float | None = None, *, n: int = 1) -> Decision:
        """Wait until `n` calls are allowed. One store call if there is room, else three for each time it has to wait.

        It sleeps exactly until there may be room, and asks again, as others may have been faster.

        timeout: seconds to wait; None = no limit.

        Raises `WaitTimeout` as soon as it is certain that there is no room before the timeout, and what `try_acquire`
        raises. Not promised: that a caller that asks for many calls gets them while others ask for few.
        """
        checked_whole("n", n, 1, min(one.most for one in self.limits))
        limit, seams = checked_timeout(timeout), self._store.seams
        seams.may_wait("RateLimiter.acquire", limit)
        with Deadline(seams, limit) as deadline:
            first = outlive(seams, deadline, lambda: self._decide(n))
            decision = first if first.allowed else measured(seams, "limit", lambda: self._wait(n, first, deadline))
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
        decision, (last, _) = self._ask(n), self._watched
        if not decision.allowed and self._time_stands_still():
            self._reset(last)
            return self._ask(n)
        return decision

    def _ask(self, n: int) -> Decision:
        update = _asked(self.limits).fill(self._key, id=self._store.seams.unique(), n=n)
        ((allowed, now, *spent),) = self._store.once(update)
        left = max(0, min(limit.most - counted for limit, counted in zip(self.limits, spent, strict=True)))
        if allowed:
            self._watches.pop(self._key, None)
            return Decision(True, left, 0.0)
        record = self._store.get(self._key, LAST, *(limit.bin for limit in self.limits))
        bins = record.bins if record else {}
        last = bins.get(LAST, "")
        self._watch(last if isinstance(last, str) else "")
        room = max(_until_room(limit, _cells_in(bins, limit.bin), n, now) for limit in self.limits)
        # If the server's clock was set back, the cells say a time that is too late.
        return Decision(False, left, min(room, max(0.0, self._until_reset())))

    # ---- if the server's clock was set back: the record's time stands still until the clock has caught up

    @property
    def _watched(self) -> tuple[str, float]:
        """The last allowed call, and since when (seconds, monotonic) this process knows that there was no other."""
        return self._watches.get(self._key, ("", 0.0))

    def _watch(self, last: str) -> None:
        """Remember since when, by this process's own clock, no call was allowed."""
        if self._watched[0] != last:
            if len(self._watches) >= MAX_WATCHED:
                self._watches.clear()  # what is forgotten is watched for another window
            self._watches[self._key] = (last, self._store.seams.monotonic())

    def _time_stands_still(self) -> bool:
        """Whether no call was allowed for the longest window, though the record says that there is no room."""
        return self._until_reset() <= 0

    def _until_reset(self) -> float:
        """Return the seconds until all calls that this process has watched are a window old; infinite if it has watched
        none.
        """
        last, since = self._watched
        window = max(limit.width for limit in self.limits) * (CELLS + 1) / 1000
        return since + 1.01 * window - self._store.seams.monotonic() if last else float("inf")

    def _reset(self, last: str) -> None:
        """Empty the cells, if no call was allowed since this process began to watch: then there is room for all.

        last: the allowed call that it has watched, read before its time was compared: another thread may have reset
            the limiter meanwhile, and may watch a later call.
        """
        empty = [Put(limit.bin, {}) for limit in self.limits]
        guard = _IS_LAST.bind(id=last)
        try:
            self._store.operate(self._key, *empty, when=guard, ttl=_ttl(self.limits), repeatable=True)
        except (Refused, NotFound):
            return  # a call was allowed in the meantime


Watches: TypeAlias = dict[Key, tuple[str, float]]
"""By limiter: the id of the last allowed call, and since when (seconds, monotonic) it has been the last."""
_ALL: WeakKeyDictionary[TokenClock, Watches] = WeakKeyDictionary()
"""What this process has seen of the limiters of each store. A handle may live for one call only, as `of_key` makes
them, and a window is longer."""


@lru_cache(maxsize=256)
def _asked(limits: tuple[Limit, ...]) -> Form:
    """Return the update that asks for calls. Parameters: `id`, `n`. Result: [allowed, server's ms, spent by limit...].

    First it stores for each limit the number of the present cell and the sum of the window's cells, then whether all
    limits have room, and then it counts the calls.
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
    """Return the sum of the present cell and the ten before it."""
    total: Expr = Const(0)
    for age in range(CELLS + 1):
        total = total + If(MapHas(bin, cell - age), MapValue(bin, cell - age), Const(0))
    return If(exists(bin), total, Const(0))


def _cells_in(bins: Mapping[str, Any], bin: str) -> dict[int, int]:
    """Return the calls that were counted, by cell. A damaged cell does not count, as in the server's sum."""
    cells = bins.get(bin)
    sound = cells.items() if isinstance(cells, Mapping) else ()
    return {cell: n for cell, n in sound if type(cell) is int and type(n) is int}


def _until_room(limit: Limit, cells: Mapping[int, int], n: int, now: int) -> float:
    """Return the seconds until `n` calls have room, if no other call is allowed before."""
    present = now // limit.width
    counting = sorted(cell for cell in cells if cell >= present - CELLS)
    over, until = sum(cells[cell] for cell in counting) + n - limit.most, now
    for cell in counting:
        if over <= 0:
            break
        over, until = over - cells[cell], (cell + CELLS + 1) * limit.width
    return (until - now) / 1000


def _ttl(limits: tuple[Limit, ...]) -> int:
    """Return the record's time to live in seconds: a minute more than its counts matter."""
    return 60 + round(2 * max(limit.per for limit in limits))


def _pairs(also: Iterable[tuple[int, Per]]) -> list[tuple[int, Per]]:
    try:
        return [(limit, per) for limit, per in also]
    except (TypeError, ValueError):
        raise InvalidRequest(f"also is {shown(also)}; give further limits as pairs (limit, per)") from None


def checked_limits(pairs: Sequence[tuple[int, Per]]) -> tuple[Limit, ...]:
    """Check the limits, and return them. Raises `InvalidRequest`."""
    if len(pairs) > MAX_LIMITS:
        raise InvalidRequest(f"{len(pairs)} limits; at most {MAX_LIMITS} in one limiter")
    limits = tuple(
        Limit(checked_whole("limit", limit, 1, MAX_LIMIT), float(checked_seconds("per", per, MIN_PER, MAX_PER)))
        for limit, per in pairs
    )
    if len({limit.width for limit in limits}) < len(limits):
        raise InvalidRequest(f"{len(pairs)} limits, of which two have nearly the same window: keep the smaller one")
    return limits
