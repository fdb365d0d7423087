"""What people have chosen to do to all messages that match, and how far it is: in this process alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..cli.bulk import MOST_CHOSEN, Run
from ..cli.top import pages
from ..cli.top.actions import Action, of_all, run_of_filter
from ..errors import InvalidRequest, LatchworkError, NotFound, Unavailable
from ..logs import Log
from ..observe.audit import Deed
from ..plain import counted, one_line
from ..seams import Seams
from .actions import LIFE, Wanted
from .messages import match_of
from .reader import Reader

log = Log(__name__)
KEPT = 32
"""Runs that are remembered, at most."""
VERBS = ("redrive", "discard", "move", "cancel")


@dataclass(slots=True)
class Held:
    """A run, and the queue that it is of. at: when it was chosen (monotonic)."""

    id: str
    key: tuple[str, str, str]
    run: Run
    at: float
    title: str = field(default="")


class Runs:
    """The runs of this process. Safe to share between threads."""

    def __init__(self, seams: Seams) -> None:
        self._seams, self._lock = seams, seams.lock()
        self._held = OrderedDict[str, Held]()

    def chosen(self, reader: Reader, wanted: Wanted, given: Mapping[str, str]) -> Wanted:
        """Choose the messages that a query asks for, and return what is then to be confirmed. Changes nothing in the
        store. Raises `InvalidRequest`, `NotFound`, and the store's errors.
        """
        if wanted.verb not in VERBS:
            raise InvalidRequest(f"{wanted.verb} cannot be done to all messages that match; {', '.join(VERBS)} can")
        if pages.queue_in(reader, wanted.key) is None:
            raise NotFound(f"there is no queue {one_line('/'.join(wanted.key))}, or its store is away")
        most, text = given.get("most", "") or str(MOST_CHOSEN), given.get("q", "")
        if not (most.isascii() and most.isdigit() and 0 < len(most) < 7 and 1 <= int(most) <= MOST_CHOSEN):
            raise InvalidRequest(f"the largest number of messages is {one_line(most)[:20]}; give 1 to {MOST_CHOSEN:,}")
        run = run_of_filter(
            pages.handle_of(reader, wanted.key), wanted.verb, wanted.side, text, wanted.to,
            match=match_of(given, wanted.side), most=int(most),
        )  # fmt: skip
        held = Held(self._seams.unique(), wanted.key, run, self._seams.monotonic())
        action = of_all(held.key, held.run)
        if isinstance(action, str):
            raise InvalidRequest(action)
        held.title = action.title
        self._put(held)
        return Wanted(wanted.verb, wanted.key, wanted.side, to=wanted.to, run=held.id)

    def _put(self, held: Held) -> None:
        with self._lock:
            self._make_room()
            if len(self._held) >= KEPT:
                raise InvalidRequest(f"{KEPT} actions run here already: wait until one has ended, or stop one")
            self._held[held.id] = held

    def _make_room(self) -> None:
        """Forget choices that are old. If there is still no room, also forget runs that are over or have not begun."""
        for one in list(self._held.values()):
            is_old = not one.run.has_begun and self._seams.monotonic() - one.at > LIFE
            if is_old or (len(self._held) >= KEPT and (one.run.is_over or not one.run.has_begun)):
                del self._held[one.id]

    def get(self, id: str, key: Sequence[str] | None = None) -> Held:
        """Return a run, of this queue. Raises `NotFound`."""
        with self._lock:
            held = self._held.get(id)
        if held is None or key not in (None, held.key):
            raise NotFound(
                "this choice is not known here any more: it was made too long ago, before a restart, or in another "
                "process of the console; the audit record says what was done; choose again"
            )
        return held

    def of(self, key: Sequence[str]) -> list[Held]:
        """Return the runs of a queue that have begun, the newest first."""
        with self._lock:
            held = list(self._held.values())
        return [one for one in reversed(held) if one.key == tuple(key) and one.run.has_begun]

    def action_of(self, wanted: Wanted) -> Action | str:
        """Return the action on these messages, or the action that stops it; or why it cannot be done."""
        held = self.get(wanted.run, wanted.key)
        if wanted.verb == "stop":
            if held.run.is_over:
                return f"it has ended: {held.run.said}"
            return Action(
                f"stop {one_line(held.title)}",
                "The part that has begun goes on to its end: at most 100 messages. What was done stays done.",
                held.key,
                lambda _, deed: _stopped(held.run, deed),
            )
        if held.run.has_begun or held.run.verb != wanted.verb:
            return f"it has begun already: {held.run.said}"
        return of_all(held.key, held.run)

    def begin(self, wanted: Wanted, action: Action, reader: Reader, who: str, why: str) -> None:
        """Do it in the background, once. Raises `Unavailable` where no thread can be started: it has then not begun."""
        held = self.get(wanted.run, wanted.key)
        with self._lock:
            if held.run.has_begun:
                return
            held.run.has_begun, held.run.by = True, who

        def run() -> None:
            try:
                action.do(reader, who, why)
            except LatchworkError as failure:  # nothing was done: it could not be kept, or there is no such queue
                held.run.failure = held.run.failure or one_line(str(failure))
            except Exception as defect:  # noqa: BLE001 - the page has to say that it ended
                held.run.failure = f"it failed: {type(defect).__name__}"
                log.error(  # noqa: TRY400 - not the exception itself: its text may be confidential
                    "%s failed: %s", one_line(held.title), type(defect).__name__
                )
            finally:
                held.run.is_over = True

        try:
            self._seams.spawn(run, "console-run")
        except RuntimeError as failure:
            held.run.has_begun, held.run.by = False, ""  # it may be confirmed again
            raise Unavailable(f"no thread could be started, so nothing was done: {failure}; try again") from None


def _stopped(run: Run, deed: Deed) -> str:
    run.stop(deed.who)
    return f"stopped after {counted(run.tried, 'message')}"


def facts_of(held: Held) -> dict[str, Any]:
    """Return a run as JSON has it, with the outcome of each message."""
    run = held.run
    rows = [{"message": name, "outcome": outcome} for name, outcome in run.rows()]
    return {
        "what": held.title, "by": run.by, "began": run.has_begun, "over": run.is_over, "said": run.said,
        "counts": run.counts, "rows": rows,
    }  # fmt: skip
