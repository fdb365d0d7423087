"""A fault at every store call of a piece of work, to find the calls at which it loses something or does it twice.

    def work(store, done):                                   # as one process would do it
        queue = QueueRegistry(store, "shop").get("orders")
        for delivery in queue.receive(10):
            done.append(delivery.payload["order"])           # what the world sees: a charge, a mail, a row
            delivery.ack()

    report = inject_everywhere(work, prepare=publish_two_orders, recover=sweep_and_work, expected=["A-1", "A-2"])
    assert not report.lost, report

The guide page on testing has the whole program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidRequest, LatchworkError
from ..inputs import checked_callable, checked_choice, checked_many
from ..plain import shown
from ..store.connect import as_store
from ..store.local.memory import MemoryStore
from ..store.model.record import Key
from ..store.port import RecordStore
from .clock import ManualClock
from .stores import KINDS, Call, CountingStore, Crash, Fault, FaultyStore

Work = Callable[[RecordStore, list[Any]], object]
"""The code to try. It gets the store, and a list to which it appends everything that it does outside of the store."""
LASTING = {"no_server": "dropped", "no_replies": "reply_lost"}
"""Faults that last from a call to the end of the work: each later call meets them too, so no retry helps."""
FAULTS = (*KINDS, *LASTING)
LAST = 10_000
"""Calls that a lasting fault lasts for."""
WIDTH = 100
"""Characters of a failure in a report."""


@dataclass(frozen=True)
class Trouble:
    """One run that went wrong.

    call: the number of the call that failed, counted from 1.
    verb, where: the verb of that call, and its record; of a batch, the first record.
    fault: how it failed, one of `FAULTS`.
    lost: effects that were expected and never done.
    doubled: effects that were done more often than expected.
    failure: what the work raised at its recovery, or what `check` raised; None where it raised nothing.
    """

    call: int
    verb: str
    where: str
    fault: str
    lost: tuple[Hashable, ...] = ()
    doubled: tuple[Hashable, ...] = ()
    failure: str | None = None

    def __str__(self) -> str:
        lost = f"lost {', '.join(map(repr, self.lost))}" if self.lost else ""
        doubled = f"doubled {', '.join(map(repr, self.doubled))}" if self.doubled else ""
        what = "; ".join(filter(None, (lost, doubled, self.failure)))
        return f"{self.fault} at call {self.call} ({self.verb} {self.where}): {what}"


@dataclass(frozen=True)
class Report:
    """The result of all runs: how many calls the work makes, how many runs there were, and which went wrong."""

    calls: int
    runs: int
    troubles: tuple[Trouble, ...]

    @property
    def lost(self) -> list[Trouble]:
        """The runs that lost something."""
        return [trouble for trouble in self.troubles if trouble.lost]

    @property
    def doubled(self) -> list[Trouble]:
        """The runs that did something twice."""
        return [trouble for trouble in self.troubles if trouble.doubled]

    @property
    def failed(self) -> list[Trouble]:
        """The runs whose recovery, or whose check, raised."""
        return [trouble for trouble in self.troubles if trouble.failure]

    def __str__(self) -> str:
        lines = [f"{self.calls} store calls, {self.runs} runs, {len(self.troubles)} of them went wrong"]
        return "\n  ".join([*lines, *map(str, self.troubles)])


def inject_everywhere(
    work: Work,
    *,
    prepare: Callable[[RecordStore], object] | None = None,
    recover: Work | None = None,
    expected: Iterable[Hashable] = (),
    check: Callable[[RecordStore], object] | None = None,
    faults: Sequence[str] = FAULTS,
    make_store: Callable[[], RecordStore] | None = None,
) -> Report:
    """Run the work many times: once for each of its store calls and each kind of fault, with that fault at that call.

    Each run has a new store, and three steps:

    1. `prepare` fills the store, without faults.
    2. `work` runs. At the call in question the process dies, or the call fails before or after the store has done it.
       With a lasting fault, all later calls fail too. A call is one attempt, so the work does not see a fault that a
       retry of the store hides.
    3. `recover` runs on that store, without faults, as another process would, and finishes the work.

    Then the run compares the effects of both steps with the expected ones.

    work: the code to try. It may raise an error of Latchwork if a call fails; `recover` then runs as after a crash.
    prepare: fills the store; None = the work needs nothing there.
    recover: what another process, or the next attempt, does; None = the work itself once more.
    expected: what `work` and `recover` together must append to their list, in any order, each as often as listed here.
    check: looks at the store at the end, and raises `AssertionError` if something is wrong.
    faults: how calls fail: `latchwork.testing.KINDS`, explained in `latchwork.testing.stores`; `no_server`, where no
        call from there on arrives; `no_replies`, where each is done and no reply comes. Without any, the work runs once
        and nothing fails: the report has no run.
    make_store: a new, empty store; None = one in memory, with a `ManualClock` of its own, so that no wait takes time.

    Returns a `Report`. Raises `InvalidRequest` for an unknown fault and for work that makes no store call, and whatever
    the work raises when nothing fails, because then the work itself is wrong.

    Not promised: that two faults at once do no harm, nor what threads of the work do; run it in one thread.
    """
    faults = [checked_choice("fault", name, FAULTS) for name in checked_many("faults", faults)]
    for what, given in (
        ("work", work), ("prepare", prepare), ("recover", recover), ("check", check), ("make_store", make_store)
    ):  # fmt: skip
        if given is not None or what == "work":
            checked_callable(what, given)
    trial = _Trial(work, prepare or _nothing, recover or work, _counted(expected), check or _nothing)
    make = make_store or (lambda: MemoryStore(ManualClock()))
    calls = trial.without_fault(make())
    runs = [(number, fault) for number in range(1, calls + 1) for fault in faults]
    troubles = [trial.with_fault(make(), number, fault) for number, fault in runs]
    return Report(calls, len(runs), tuple(trouble for trouble in troubles if trouble is not None))


def _counted(expected: Iterable[Hashable]) -> Counter[Hashable]:
    entries = checked_many("expected", expected)
    try:
        return Counter(entries)
    except TypeError:
        raise InvalidRequest(
            f"expected has {shown(entries)}; give values that can be keys of a map, such as texts"
        ) from None


def _nothing(_: RecordStore) -> None:
    """Do nothing: there is nothing to prepare, or to check."""


@dataclass(frozen=True)
class _Trial:
    """The work that is tried, and its expected result."""

    work: Work
    prepare: Callable[[RecordStore], object]
    recover: Work
    expected: Counter[Hashable]
    check: Callable[[RecordStore], object]

    def without_fault(self, store: RecordStore) -> int:
        """Return how many store calls the work makes. Raises `InvalidRequest` if it makes none, or does not do as
        expected.
        """
        done: list[Any] = []
        self.prepare(as_store(store))
        counting = CountingStore(store)
        self.work(counting, done)
        if not counting.total:
            raise InvalidRequest("the work makes no store call: it has to use the store that it is given")
        self.recover(store, done)
        self.check(store)
        if Counter(done) != self.expected:
            raise InvalidRequest(
                f"without any fault the work did {shown(done)}; expected is {shown([*self.expected.elements()])}"
            )
        return counting.total

    def with_fault(self, store: RecordStore, number: int, fault: str) -> Trouble | None:
        """Return what went wrong when that call, or each from there on, fails; None if nothing did."""
        done: list[Any] = []
        self.prepare(store)
        faulty = FaultyStore(store)
        # Into the plan itself, as a store checks each entry of a plan that it is given, and these may be thousands.
        if fault in LASTING:
            faulty.plan.update(dict.fromkeys(range(number, number + LAST), LASTING[fault]))
        else:
            faulty.plan[number] = Fault(fault, after=1)
        failures = [_failure_of(lambda: self.work(faulty, done), Crash, LatchworkError)]  # these are as planned
        faulty.deliver()
        failures.append(_failure_of(lambda: self.recover(store, done)))
        failures.append(_failure_of(lambda: self.check(store)))
        seen = Counter(done)
        lost, doubled = tuple((self.expected - seen).elements()), tuple((seen - self.expected).elements())
        failure = next(filter(None, failures), None)
        if not (lost or doubled or failure):
            return None
        call = faulty.history[number - 1]
        return Trouble(number, call.verb, _where(call), fault, lost, doubled, failure)


def _failure_of(run: Callable[[], object], *planned: type[BaseException]) -> str | None:
    """Return the error that it raised, in a line; None if the error was planned, or there was none."""
    try:
        run()
    except planned:
        return None
    except Exception as failure:  # noqa: BLE001 - whatever the code under test raises is what it is tried for
        return f"{type(failure).__name__}: {failure}".partition("\n")[0][:WIDTH]
    return None


def _where(call: Call) -> str:
    """Return the record that a call was about: the first, and how many others, for a batch."""
    if isinstance(call.request, str):
        return f"set {call.request}"
    many = call.verb.endswith("_many")
    first = call.request[0] if many else call.request
    key = first if isinstance(first, Key) else first.key
    return f"{key.set}/{key.name}" + (f" and {len(call.request) - 1} more" if many and len(call.request) > 1 else "")
