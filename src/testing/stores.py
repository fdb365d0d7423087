"""Stores that count and stores that fail, around any other store.

    store = CountingStore(MemoryStore(clock))
    ...
    assert store.calls == {"operate": 1}            # attempts at the store, by verb;  store.total for their sum

    store = FaultyStore(MemoryStore(clock), {2: "reply_lost", 5: Fault("late", after=3)})
    store = FaultyStore(inner, seed=7, rate=0.2)     # faults by chance; the seed replays the run
    store.next("dropped")                            # or: whatever call comes next fails so

Calls are attempts at the store, counted from 1; a retry is a call of its own. Faults, by name (`KINDS`):

    crash_before   the process dies before the request leaves: raises `Crash`, a BaseException
    crash_after    the process dies after the write was applied
    dropped        nothing was written, and the caller knows: `Unavailable`
    request_lost   nothing was written, and the caller cannot know: `OutcomeUnknown`
    reply_lost     it was written, and the caller cannot know: `OutcomeUnknown`
    late           `OutcomeUnknown` now; written when `after` further calls have come, or when the test says
                   `deliver()`, if its guard holds *then*
    slow           it is written, but only after `seconds` have passed on the clock
    duplicate      it is delivered twice; the caller gets the first answer

A crashed client is dead: every further call raises `Crash` and does nothing (a `finally` that releases a lock must
not run against the store), until `revive()`; another process is another `FaultyStore` around the same inner store.
Reads have no doubt: a lost or late one is `Unavailable`. A batch fails row by row: `Fault("reply_lost", rows=(0, 3))`,
by default all of them, by chance some of them. A plan may also name something to do: `{3: other.acquire}` does that
just before the third call. `fired` counts faults by kind, `history` keeps every call.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NoReturn

from ..errors import InvalidRequest, LatchworkError, OutcomeUnknown, Unavailable
from ..inputs import checked_choice, checked_kind, checked_many, checked_number, checked_whole
from ..plain import shown
from ..seams import Seams
from ..store.connect import as_store
from ..store.model.ops import writes
from ..store.model.record import Key, Record, Removal, Row, Update, Values
from ..store.once import TokenClock
from ..store.port import DelegatingStore, RecordStore
from .clock import checked_seed

KINDS = ("crash_before", "crash_after", "dropped", "request_lost", "reply_lost", "late", "slow", "duplicate")
DOUBTS = ("request_lost", "reply_lost", "late")
"""The faults after which a caller cannot know."""
MOST = 2**63
"""Calls, and rows of a batch, that can be planned for."""


class Crash(BaseException):
    """The death of the process at this call. It is no `Exception`, so that no handler catches it and continues."""


@dataclass(frozen=True)
class Fault:
    """One planned fault.

    kind: one of `KINDS`.
    rows: which rows of a batch fail; None = all.
    after: a late request is applied before this number of further calls is over; None = when `deliver` is called.
    seconds: how long a slow one takes.
    """

    kind: str
    rows: tuple[int, ...] | None = None
    after: int | None = None
    seconds: float = 1.0

    def __post_init__(self) -> None:
        checked_choice("fault", self.kind, KINDS)
        checked_number("seconds", self.seconds)
        if self.rows is not None:
            rows = tuple(checked_whole("a row", row, 0, MOST) for row in checked_many("rows", self.rows))
            object.__setattr__(self, "rows", rows)
        if self.after is not None:
            checked_whole("after", self.after, 0, MOST)


Planned = str | Fault | Callable[[], object]
"""What a plan has for a call: a fault, by its name or whole, or something to do just before it."""


def _checked_fault(fault: Planned) -> Planned:
    return fault if isinstance(fault, Fault) or callable(fault) else checked_choice("fault", fault, KINDS)


def _checked_plan(plan: Mapping[int, Planned] | None) -> dict[int, Planned]:
    if plan is None:
        return {}
    if not isinstance(plan, Mapping):
        raise InvalidRequest(f"plan is {shown(plan)}; give a fault for the number of a call, such as {{1: 'dropped'}}")
    return {
        checked_whole("the number of a call", number, 1, MOST): _checked_fault(fault) for number, fault in plan.items()
    }


@dataclass
class Call:
    """One attempt at the store: its number from 1, the request, the fault if any, and what the caller saw."""

    number: int
    verb: str
    request: Any
    fault: Fault | None = None
    outcome: Any = None


class Outage(dict[int, Planned]):
    """A plan by the clock instead of by the number of calls: each call fails from `begin` to `end`, monotonic.

    Raises `InvalidRequest` if it ends before it begins: no call would fail, and a test would prove nothing.
    """

    def __init__(self, seams: Seams, begin: float, end: float, fault: Planned = "dropped") -> None:
        super().__init__()
        self.seams, self.fault = checked_kind("seams", seams, Seams), _checked_fault(fault)
        self.begin = checked_number("begin", begin, -inf, inf)
        self.end = checked_number("end", end, -inf, inf)
        if end < begin:
            raise InvalidRequest(
                f"the outage begins at {begin} and ends at {end}, so no call would fail: end is a time on the "
                "monotonic clock, such as begin + 60"
            )

    def take(self) -> Planned | None:
        """Return the fault of the next call."""
        return self.fault if self.begin <= self.seams.monotonic() < self.end else None


class CountingStore(DelegatingStore):
    """Any store, with its attempts counted by verb (`calls`), rows of batches counted one by one (`rows`). Safe to
    share between threads.

    seams: those of the client that uses it; None = the seams of the store.
    """

    def __init__(self, inner: RecordStore, *, seams: Seams | None = None) -> None:
        super().__init__(as_store(inner))
        if seams is not None:
            self.seams = checked_kind("seams", seams, Seams)
        self.token_clock = TokenClock()  # that of a client: each wrapper around one store stands for a process
        self.calls: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()
        self._guard = threading.RLock()

    @property
    def total(self) -> int:
        """The number of all calls."""
        return sum(self.calls.values())

    def reset(self) -> None:
        """Count from nothing again."""
        self.calls.clear()
        self.rows.clear()

    def _count(self, verb: str, request: Any) -> int:
        with self._guard:
            self.calls[verb] += 1
            self.rows[verb] += len(request) if verb.endswith("_many") else 1
            return self.total

    def _call(self, verb: str, request: Any, *rest: Any) -> Any:
        self._count(verb, request)
        return getattr(self.inner, f"_{verb}")(request, *rest)

    def _get(self, key: Key, bins: Sequence[str]) -> Record | None:
        found: Record | None = self._call("get", key, bins)
        return found

    def _get_many(self, keys: Sequence[Key], bins: Sequence[str]) -> list[Record | None]:
        found: list[Record | None] = self._call("get_many", keys, bins)
        return found

    def _operate(self, update: Update) -> Values:
        values: Values = self._call("operate", update)
        return values

    def _operate_many(self, updates: Sequence[Update]) -> list[Row]:
        rows: list[Row] = self._call("operate_many", updates)
        return rows

    def _delete(self, removal: Removal) -> bool:
        was_there: bool = self._call("delete", removal)
        return was_there

    def _delete_many(self, removals: Sequence[Removal]) -> list[bool | LatchworkError]:
        rows: list[bool | LatchworkError] = self._call("delete_many", removals)
        return rows

    def _query(self, set: str, bin: str, equals: str | int) -> list[Record]:
        found: list[Record] = self._call("query", set, bin, equals)
        return found

    def _scan(self, set: str) -> list[Record]:
        found: list[Record] = self._call("scan", set)
        return found

    def _ensure_index(self, set: str, bin: str, kind: type) -> None:
        self._call("ensure_index", set, bin, kind)


class FaultyStore(CountingStore):
    """Any store, failing as planned or by chance.

    plan: the faults by the number of the call, counted from 1; or an `Outage`.
    seed, rate, kinds: this share of calls fails by chance, in one of these ways. None = none do.
    seams: those of the client that uses it; None = the seams of the store.

    Kinds of faults, and what happens to batches: see the module `latchwork.testing.stores`.

    Safe to share between threads. Which call of which thread then has which number differs from run to run.
    """

    def __init__(
        self,
        inner: RecordStore,
        plan: Mapping[int, Planned] | None = None,
        *,
        seed: float | str | None = None,
        rate: float = 0.1,
        kinds: Sequence[str] = KINDS,
        seams: Seams | None = None,
    ) -> None:
        super().__init__(inner, seams=seams)
        self.plan: dict[int, Planned] = plan if isinstance(plan, Outage) else _checked_plan(plan)
        self.kinds = tuple(checked_choice("kind", kind, KINDS) for kind in checked_many("kinds", kinds))
        if seed is not None and not self.kinds:
            raise InvalidRequest("kinds has no entries, so no call can fail by chance; leave it out for all of them")
        self.rate = checked_number("rate", rate, 0, 1)
        self.fired: Counter[str] = Counter()
        self.history: list[Call] = []
        self.dead = False
        self._random = None if seed is None else random.Random(checked_seed(seed))
        self._number = 0
        self._late: list[tuple[int | None, str, Any]] = []

    # ---- what the test does

    def next(self, fault: str | Fault) -> None:
        """Let the next call fail so."""
        self.plan[self._number + 1] = _checked_fault(fault)

    def deliver(self) -> list[Any]:
        """Deliver every late request now; return the store's answers, which no caller sees otherwise."""
        with self._guard:
            landing, self._late = self._late, []
        return [self._land(verb, request) for _, verb, request in landing]

    @property
    def pending(self) -> int:
        """The number of late requests that were not delivered yet."""
        return len(self._late)

    def revive(self) -> None:
        """Start the crashed process again."""
        self.dead = False

    # ---- the calls

    def _call(self, verb: str, request: Any, *rest: Any) -> Any:
        if self.dead:
            raise Crash(f"{verb} after the process had died")
        with self._guard:
            self._count(verb, request)
            self._number += 1
            number = self._number
        self._land_due(number)
        call = Call(number, verb, request, self._fault(number, verb, request))
        self.history.append(call)
        try:
            call.outcome = self._attempt(call, rest)
        except BaseException as failure:
            call.outcome = failure
            raise
        return call.outcome

    def _fault(self, number: int, verb: str, request: Any) -> Fault | None:
        planned = self.plan.pop(number, None)
        if planned is None and isinstance(self.plan, Outage):
            planned = self.plan.take()
        if planned is None and self._random is not None and self._random.random() < self.rate:
            planned = _by_chance(self._random, self.kinds, verb, request)
        if planned is None or isinstance(planned, Fault):
            return planned
        if isinstance(planned, str):
            return Fault(planned)
        planned()
        return None

    def _attempt(self, call: Call, rest: tuple[Any, ...]) -> Any:
        send = getattr(self.inner, f"_{call.verb}")
        fault = call.fault
        if fault is None:
            return send(call.request, *rest)
        with self._guard:
            self.fired[fault.kind] += 1
        if fault.kind == "crash_before":
            self._die(call, fault)
        if fault.kind == "crash_after":
            _quietly(send, call.request, *rest)
            self._die(call, fault)
        if fault.kind == "slow":
            self.seams.sleep(fault.seconds)
            return send(call.request, *rest)
        if not _changes(call.verb, call.request):
            if fault.kind == "duplicate":
                return send(call.request, *rest)
            raise _failure(call, "dropped")
        if call.verb.endswith("_many"):
            return self._batch(call, fault)
        return self._single(call, fault)

    def _single(self, call: Call, fault: Fault) -> Any:
        if fault.kind == "duplicate":
            try:
                return self._land(call.verb, call.request, strict=True)
            finally:
                self._land(call.verb, call.request)
        self._write(call.verb, call.request, fault)
        raise _failure(call, fault.kind)

    def _batch(self, call: Call, fault: Fault) -> list[Any]:
        """Return the rows that fail and the rows that do not, each alone, as the store would report them."""
        failing = set(range(len(call.request)) if fault.rows is None else fault.rows)
        sound = [place for place in range(len(call.request)) if place not in failing or fault.kind == "duplicate"]
        answers = getattr(self.inner, f"_{call.verb}")([call.request[place] for place in sound]) if sound else []
        outcomes: dict[int, Any] = dict(zip(sound, answers, strict=True))
        for place in sorted(failing & set(range(len(call.request)))):
            self._write(call.verb, [call.request[place]], fault)
            outcomes.setdefault(place, _failure(call, fault.kind))
        return [outcomes[place] for place in range(len(call.request))]

    def _write(self, verb: str, request: Any, fault: Fault) -> None:
        """Apply at the store what the fault lets through, behind the caller's back."""
        if fault.kind in ("reply_lost", "duplicate"):
            self._land(verb, request)
        elif fault.kind == "late":
            with self._guard:
                self._late.append((None if fault.after is None else self._number + fault.after, verb, request))

    def _land_due(self, number: int) -> None:
        with self._guard:
            landing, self._late = self._late, []
            due: list[tuple[int | None, str, Any]] = []
            for entry in landing:
                (self._late if entry[0] is None or entry[0] > number else due).append(entry)
        for _, verb, request in due:
            self._land(verb, request)

    def _land(self, verb: str, request: Any, *, strict: bool = False) -> Any:
        send = getattr(self.inner, f"_{verb}")
        return send(request) if strict else _quietly(send, request)

    def _die(self, call: Call, fault: Fault) -> NoReturn:
        self.dead = True
        raise Crash(f"{fault.kind} at call {call.number}, {call.verb}")


def _by_chance(chance: random.Random, kinds: Sequence[str], verb: str, request: Any) -> Fault:
    rows = None
    if verb.endswith("_many") and chance.random() < 0.8:
        rows = tuple(place for place in range(len(request)) if chance.random() < 0.5)
    return Fault(chance.choice(kinds), rows, after=chance.choice((None, 1, 2, 5)))


def _changes(verb: str, request: Any) -> bool:
    if verb == "operate":
        return writes(request.ops)
    if verb == "operate_many":
        return any(writes(update.ops) for update in request)
    return verb in ("delete", "delete_many")


def _failure(call: Call, kind: str) -> LatchworkError:
    error = OutcomeUnknown if kind in DOUBTS else Unavailable
    return error(f"{kind} at call {call.number}, {call.verb}")


def _quietly(send: Any, *request: Any) -> Any:
    try:
        return send(*request)
    except LatchworkError as failure:
        return failure
