"""What a latch promises (docs/design.md section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..faults.kinds import Kind
from ..history.record import Entry

if TYPE_CHECKING:
    from ..workload.latch import LatchScenario

FORGETFUL = (Kind.RESTART_EMPTY, Kind.RESTART_STALE, Kind.EXPIRY)
UNNAMED = "?"
COUNTS = ("count_down", "count_party", "count_up")


def check(run: LatchScenario) -> None:
    """All promises of a latch."""
    only_released_if_the_target_was_reached(run)
    if run.happened(*FORGETFUL):
        return
    each_arrival_counts_once(run)
    released_once_the_target_is_reached(run)


def only_released_if_the_target_was_reached(run: LatchScenario) -> None:
    """For every wait that said True: whatever may have been counted by then reaches the target."""
    for wait in run.history.named("wait"):
        if not (wait.ok and wait.result):
            continue
        counts = [entry for entry in run.history.named(*COUNTS) if entry.order < wait.returned and _may(entry)]
        latches = {entry.tag for entry in counts} if run.style == "again" else {None}
        if run.style == "again" and wait.tag is not None:
            latches = {wait.tag}  # its handle means no other
        most = max((_total(counts, latch) for latch in latches), default=0)
        target = sum(run.targets.values())
        run.require(
            most >= target,
            "released only if the target was reached",
            f"{wait.actor} was released at {most} of {target}",
        )
        made = {entry.args[0] for entry in run.history.named("create", "join") if entry.order < wait.returned}
        run.require(made == set(run.farms), "a farm whose share is missing holds the latch", f"only {made} had theirs")


def _may(entry: Entry) -> bool:
    """Whether the entry may have counted down; NOT_FOUND may follow an attempt that counted on what is gone now."""
    return (entry.ok or entry.unknown or entry.outcome == "NOT_FOUND") and entry.name != "count_up"


def _total(counts: list[Entry], latch: Any) -> int:
    mine = [entry for entry in counts if latch is None or entry.tag in (None, latch)]
    parties = {entry.args for entry in mine if entry.name == "count_party"}
    return len(parties) + sum(entry.args[1] for entry in mine if entry.name == "count_down")


def each_arrival_counts_once(run: LatchScenario) -> None:
    """Some order of exactly-once effects explains every number that anybody was told."""
    made = ("create", "join")
    names = (*COUNTS, *made) if run.style == "farms" else (*COUNTS, *made, "count", "wait", "delete")
    for farm in run.farms:
        entries = [
            part
            for entry in run.history.named(*names)
            if not entry.args or entry.args[0] == farm
            for part in _parts(entry, gone=run.style == "again", later=_may_land_later(run, entry))
        ]
        run.check_linearizable(entries, Model(run, farm), "a latch")


def _may_land_later(run: LatchScenario, entry: Entry) -> bool:
    """Whether a request of the entry may land after its end: it is delivered twice, or an attempt in doubt is late."""
    return run.happened(Kind.DUPLICATE) or (entry.doubted and run.happened(Kind.LATE))


def _parts(entry: Entry, *, gone: bool, later: bool) -> list[Entry]:
    """A count that repeats another, or follows doubt, has its effect at one moment and reads at another.

    A create that was refused, and of which a request lands when the latch is gone, makes it again: not promised (P8).
    One of a job that joined the latch was refused, too.
    """
    if entry.name in COUNTS and entry.ok and (entry.doubted or entry.name == "count_party"):
        return [replace(entry, result=None), replace(entry, name="count", args=())]
    if gone and later and entry.outcome == "ALREADY_EXISTS":
        return [entry, replace(entry, outcome="unknown")]
    if gone and later and entry.name == "join" and entry.ok:
        return [entry, replace(entry, name="create", outcome="unknown", tag=None)]
    if gone and entry.name in COUNTS and entry.outcome == "NOT_FOUND":
        return [replace(entry, outcome="unknown")]
    if entry.name == "wait" and not (entry.ok and entry.result):
        return []
    return [entry]


def released_once_the_target_is_reached(run: LatchScenario) -> None:
    """Once faults have stopped and the operator has counted what remained, a waiter is released."""
    final = getattr(run, "final", None)
    made = {entry.args[0] for entry in run.history.named("create", "join") if entry.ok}
    if made >= set(run.farms):
        run.require(final is not None and final.ok and final.result, "released once the target is reached", f"{final}")


class Model:
    """A farm's counter as one caller at a time would see it: which latch, what remains (None: no latch), parties.

    And `others`: what the present latch is not, if its name is not known. Nobody heard the name of one whose creator
    crashed, or was told that its creation is unknown; the first who means it says it.
    """

    def __init__(self, run: LatchScenario, farm: str) -> None:
        self.initial: Any = (None, None, frozenset(), frozenset())
        self.floored = run.style != "farms"
        self.target = run.targets[farm]
        self.named = frozenset(run.named(farm)) if run.style == "parties" else None

    def step(self, state: Any, entry: Entry) -> Sequence[Any]:
        if entry.outcome == "UNAVAILABLE":
            return (state,)
        if entry.outcome == "NOT_FOUND":
            return self._without(state, entry)
        if entry.outcome == "INVALID_REQUEST":
            return () if self._is_named(entry) else (state,)
        return getattr(self, "_" + entry.name)(state, entry)

    def _without(self, state: Any, entry: Entry) -> Sequence[Any]:
        """The entry's latch is gone: there is none, or another one."""
        latch, remaining, parties, others = state
        if latch == UNNAMED and entry.tag is not None:
            return ((latch, remaining, parties, others | {entry.tag}),)
        return (state,) if latch is None or entry.tag not in (None, latch) else ()

    def _with(self, state: Any, entry: Entry) -> Sequence[Any]:
        """The entry's latch is there, and is named by its handle."""
        latch, remaining, parties, others = state
        if latch is None or entry.tag in (None, latch):
            return (state,) if latch is not None else ()
        return ((entry.tag, remaining, parties, others),) if latch == UNNAMED and entry.tag not in others else ()

    def _created(self, state: Any, entry: Entry) -> Sequence[Any]:
        return ((entry.tag or UNNAMED, self.target, frozenset(), state[3]),)

    def _create(self, state: Any, entry: Entry) -> Sequence[Any]:
        if entry.outcome == "ALREADY_EXISTS":
            return (state,) if state[0] is not None else ()
        return self._created(state, entry) if state[0] is None else ()

    def _join(self, state: Any, entry: Entry) -> Sequence[Any]:
        return self._created(state, entry) if state[0] is None else self._with(state, entry)

    def _is_named(self, entry: Entry) -> bool:
        return self.named is None or entry.name != "count_party" or entry.args[1] in self.named

    def _delete(self, state: Any, entry: Entry) -> Sequence[Any]:
        latch, _, _, others = state
        gone = (None, None, frozenset(), others | {latch} - {None, UNNAMED})
        return (gone,) if entry.unknown or entry.result == (latch is not None) else ()

    def _count_down(self, state: Any, entry: Entry) -> Sequence[Any]:
        return self._change(state, entry, -entry.args[1])

    def _count_up(self, state: Any, entry: Entry) -> Sequence[Any]:
        return self._change(state, entry, entry.args[1])

    def _change(self, state: Any, entry: Entry, amount: int) -> Sequence[Any]:
        return [after for meant in self._with(state, entry) for after in self._changed(meant, entry, amount)]

    def _changed(self, state: Any, entry: Entry, amount: int) -> Sequence[Any]:
        latch, remaining, parties, others = state
        after = max(remaining + amount, 0) if self.floored else remaining + amount
        return ((latch, after, parties, others),) if entry.unknown or entry.result in (after, None) else ()

    def _count_party(self, state: Any, entry: Entry) -> Sequence[Any]:
        if not self._is_named(entry):
            return ()
        return [self._counted(meant, entry.args[1]) for meant in self._with(state, entry)]

    def _counted(self, state: Any, party: str) -> Any:
        latch, remaining, parties, others = state
        if party in parties:
            return state
        after = max(remaining - 1, 0) if self.floored else remaining - 1
        return latch, after, parties | {party}, others

    def _count(self, state: Any, entry: Entry) -> Sequence[Any]:
        return self._with(state, entry) if state[1] == entry.result else ()

    def _wait(self, state: Any, entry: Entry) -> Sequence[Any]:
        return self._with(state, entry) if state[1] is not None and state[1] <= 0 else ()
