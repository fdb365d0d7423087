"""What a full screen shows, read in the background: the screen itself never waits for a store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...deadline import Deadline
from ...errors import InvalidRequest, LatchworkError, OutcomeUnknown
from ...observe.snapshot import Overview, snapshot
from ...plain import one_line, shown
from ...seams import Seams, Task
from ...store import RecordStore

PATIENCE = 2.0
"""Seconds after which a look that has no answer yet is shown as such, and after which it gives up."""
SAMPLES = 120
"""Looks that a queue's line in the table of queues is drawn of, at most."""

CHOSEN = ("chosen",)
"""Stands for what an action is to be done to, among the parts of pages."""

Place = tuple[str, str, str]
"""A farm, a client, and a queue."""


def outboxes_of(given: Sequence[str]) -> list[Place]:
    """Return the outboxes that these texts name: `DIRECTORY:PREFIX`, or `DIRECTORY:PREFIX:NAME`.

    Raises `InvalidRequest`.
    """
    found = []
    for one in given:
        parts = one.split(":") if isinstance(one, str) else []
        if len(parts) not in {2, 3} or not all(parts):
            raise InvalidRequest(f"the outbox {shown(one)} is none: write DIRECTORY:PREFIX or DIRECTORY:PREFIX:NAME")
        found.append((parts[0], parts[1], parts[2] if len(parts) > 2 else "outbox"))
    return found


@dataclass(frozen=True, slots=True)
class Fetched:
    """Something that one page alone needs. value None and no failure = it is being read for the first time."""

    value: Any = None
    failure: str | None = None
    at: float = float("-inf")


class Feed:
    """The reader behind a screen. Two threads: one looks at everything regularly, one reads and does what is asked.

    stores: of each farm.
    clients: None = all that there are.
    every: seconds between two looks.
    outboxes: directory, prefix and name of each that is shown.
    """

    def __init__(
        self,
        stores: Mapping[str, RecordStore],
        clients: Sequence[str] | None,
        every: float,
        seams: Seams,
        outboxes: Sequence[Place] = (),
    ) -> None:
        self.outboxes = outboxes
        self.stores, self.clients, self.every, self.seams = stores, clients, every, seams
        self.found: Overview | None = None
        self.failure: str | None = None
        self.said = ""
        """What became of the last action."""
        self.is_acting = False
        self.chosen: Fetched | None = None
        """What was chosen last, until somebody takes it."""
        self.aside: Task | None = None
        """The thread of the last action that goes on for long."""
        self.ready: dict[Place, deque[float | None]] = {}
        self._began: float | None = None
        self._fetched: dict[tuple[str, ...], Fetched] = {}
        self._wanted: deque[tuple[tuple[str, ...] | None, Callable[[], Any]]] = deque()
        self._look_now, self._work, self._over = seams.event(), seams.event(), False

    def start(self) -> None:
        """Begin to read."""
        self.seams.spawn(self._look_on, "top-looks")
        self.seams.spawn(self._work_on, "top-work")

    def stop(self) -> None:
        """Read no more; what waits for a store is not waited for."""
        self._over = True
        self._look_now.set()
        self._work.set()

    @property
    def silent(self) -> float:
        """Seconds for which the present look has had no answer."""
        began = self._began
        return 0.0 if began is None else self.seams.monotonic() - began

    def look_now(self) -> None:
        """Look again at once."""
        self._look_now.set()

    def fetched(self, key: tuple[str, ...], read: Callable[[], Any], every: float) -> Fetched:
        """Return what `read` returned last; let it be called again if that is older than `every` seconds."""
        known = self._fetched.get(key)
        if known is None or self.seams.monotonic() - known.at > every:
            known = known or Fetched()
            self._fetched[key] = Fetched(known.value, known.failure, self.seams.monotonic())
            self._wanted.append((key, read))
            self._work.set()
        return self._fetched[key]

    def forget(self) -> None:
        """Read again whatever a page needs."""
        self._fetched.clear()

    def act(self, action: Callable[[], str]) -> None:
        """Do something in the background; `said` is then what became of it."""
        self.said, self.is_acting = "", True
        self._wanted.append((None, action))
        self._work.set()

    def act_aside(self, action: Callable[[], str]) -> None:
        """Do something that goes on for long, in a thread of its own; `said` is then what became of it."""

        def act() -> None:
            self._do(action)

        self.said = ""  # before it begins: it may end at once
        self.aside = self.seams.spawn(act, "top-run")

    def choose(self, read: Callable[[], Any]) -> None:
        """Read in the background the messages for an action; `chosen` then has them."""
        self.chosen = None
        self._wanted.append((CHOSEN, read))
        self._work.set()

    def take_chosen(self) -> Fetched | None:
        """Return what was chosen, once; None while it is being read."""
        found, self.chosen = self.chosen, None
        return found

    def _look_on(self) -> None:
        while not self._over:
            self._look_now.clear()
            self._began = self.seams.monotonic()
            self.look()
            self._began = None
            self._look_now.wait(self.every)

    def look(self) -> None:
        """Look at everything once."""
        try:
            self.found = snapshot(self.stores, self.clients, max_age=self.every / 2, timeout=PATIENCE)
        except LatchworkError as failure:
            self.failure = str(failure)
            return
        except Exception as defect:  # noqa: BLE001 - the next look may succeed; without this there would be none
            self.failure = f"it failed: {type(defect).__name__}: {defect}"
            return
        self.failure = None
        for one in self.found.clients:
            for queue in one.taken.queues if one.taken and not one.away else ():
                place = one.farm, one.client, queue.name
                self.ready.setdefault(place, deque(maxlen=SAMPLES)).append(queue.stats.ready.waiting)

    def _work_on(self) -> None:
        while not self._over:
            self._work.clear()
            while self._wanted and not self._over:
                self.work()
            self._work.wait(60.0)

    def work(self) -> None:
        """Read, or do, the first thing that was asked for."""
        key, call = self._wanted.popleft()
        if key is None:
            self._do(call, 4 * PATIENCE)
            return
        value, failure = self._outcome(call, PATIENCE)
        found = Fetched(value, failure and one_line(failure), self.seams.monotonic())
        if key == CHOSEN:
            self.chosen = found
        else:
            self._fetched[key] = found

    def _do(self, call: Callable[[], Any], timeout: float | None = None) -> None:
        value, failure = self._outcome(call, timeout)
        self.said, self.is_acting = one_line(f"FAILED: {failure}" if failure else str(value)), False
        self.forget()
        self.look_now()

    def _outcome(self, call: Callable[[], Any], timeout: float | None) -> tuple[Any, str | None]:
        try:
            with Deadline(self.seams, timeout):
                return call(), None
        except OutcomeUnknown as error:  # of an action: it did not fail for certain
            return f"UNKNOWN whether it was done: {error} [{error.code}]", None
        except LatchworkError as error:
            return None, f"{error} [{error.code}]"
        except Exception as defect:  # noqa: BLE001 - a page that cannot be shown must not end the others
            return None, f"it failed: {type(defect).__name__}: {defect}"
