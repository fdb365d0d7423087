"""What a fenced semaphore promises (docs/protocols P10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from latchwork.coord.holders import HOLDERS, RENEWED
from latchwork.coord.semaphore import PERMITS, SLOTS

from ..faults.network import Change
from ..history.record import Entry
from .lock import FORGETFUL, has_nothing_to_go_by, released_soon_after_faults

if TYPE_CHECKING:
    from ..workload.semaphore import SemaphoreScenario


def check(run: SemaphoreScenario) -> None:
    """All promises of a fenced semaphore."""
    fences_go_up_for_ever(run)
    released_soon_after_faults(run)
    if run.happened(*FORGETFUL):
        return
    never_more_than_there_are(run)
    each_slot_has_one_holder(run)
    a_live_holder_never_loses_its_permits(run, run.changes)
    belief_ends_before_succession(run, run.changes)
    the_resource_refuses_who_was_succeeded(run)
    run.check_linearizable(operations(run), Register(), "a semaphore")


def holders(bins: dict[str, Any]) -> dict[str, Any]:
    """The holders in the bins of a record, by id."""
    return bins.get(HOLDERS) or {}


def arrivals(change: Change) -> list[str]:
    """The ids of the acquisitions that landed with this change."""
    return [id for id in holders(change.after) if id not in holders(change.before)]


def departures(change: Change) -> list[str]:
    """The ids of those that were given back, or removed, with this change."""
    return [id for id in holders(change.before) if id not in holders(change.after)]


def fences_go_up_for_ever(run: Any) -> None:
    """Every acquisition in the record's life has a higher fence than all before it, across restarts."""
    if has_nothing_to_go_by(run):
        return
    highest = 0
    for change in run.changes:
        for id in arrivals(change):
            fence = holders(change.after)[id][0]
            run.require(fence > highest, "fences strictly increase without end", f"{fence} after {highest}")
            highest = max(highest, fence)


def never_more_than_there_are(run: SemaphoreScenario) -> None:
    """Whoever is let in finds room: there are never more than so many live, but for those before a smaller size."""
    for change in run.changes:
        held = sum(len(entry[4]) for entry in holders(change.after).values())
        if arrivals(change):
            run.require(held <= change.after[PERMITS], "never more live than there are permits", f"{change.after}")


def each_slot_has_one_holder(run: SemaphoreScenario) -> None:
    """The slots that are taken are those of the holders, and no slot is in two hands."""
    for change in run.changes:
        entries = holders(change.after)
        slots = [(slot, id) for id, entry in entries.items() for slot in entry[4]]
        run.require(
            dict(slots) == (change.after.get(SLOTS) or {}) and len(dict(slots)) == len(slots),
            "each slot has one holder", f"{entries} and {change.after.get(SLOTS)}",
        )  # fmt: skip


def a_live_holder_never_loses_its_permits(run: Any, changes: Sequence[Change]) -> None:
    """Whoever is taken out by another had stood unrenewed for its lease of true time."""
    renewed: dict[str, tuple[float, str]] = {}
    for change in changes:
        for id in arrivals(change):
            renewed[id] = (change.when, change.who)
        for id, count in (change.after.get(RENEWED) or {}).items():
            if count != (change.before.get(RENEWED) or {}).get(id) and id in renewed:
                renewed[id] = (change.when, renewed[id][1])
        for id in departures(change):
            when, who = renewed[id]
            lease = holders(change.before)[id][1] / 1000
            run.require(
                change.who == who or change.when - when >= lease - 1e-6, "a live holder never loses what it holds",
                f"{change.who} took out {who}, {change.when - when:.3f} s after its renewal",
            )  # fmt: skip


def belief_ends_before_succession(run: Any, changes: Sequence[Change]) -> None:
    """Nobody who begins to check after they were taken out, or have given back, is told that they still hold it."""
    ended: dict[int, float] = {}
    for change in changes:
        for id in departures(change):
            ended.setdefault(holders(change.before)[id][0], change.when)
    for entry in run.history.named("check"):
        end = ended.get(entry.args[0])
        run.require(
            not entry.ok or end is None or entry.called < end, "belief ends before succession",
            f"{entry.actor} believed in {entry.args[0]} at {entry.called:.3f}, which ended at {end}",
        )  # fmt: skip


def the_resource_refuses_who_was_succeeded(run: SemaphoreScenario) -> None:
    """Each slot's fence goes up, and a write counts only with the highest fence in each of its slots."""
    highest: dict[int, int] = {}
    for change in run.writes:
        seen = change.after.get("fences") or {}
        written = {slot for slot, fence in seen.items() if (change.before.get("fences") or {}).get(slot) != fence}
        for slot in written:
            run.require(
                seen[slot] > highest.get(slot, 0), "a resource refuses who was succeeded in a slot", f"{slot}: {seen}"
            )
            highest[slot] = max(highest.get(slot, 0), seen[slot])
    final = run.writes[-1].after.get("fences") or {} if run.writes else {}
    for entry in run.history.named("write"):
        fence, slots = entry.args
        late = [change for change in run.writes if change.order < entry.order]
        before = late[-1].after.get("fences") or {} if late else {}
        run.require(
            not entry.ok or all(before.get(slot, 0) <= fence <= final.get(slot, 0) for slot in slots),
            "a resource refuses who was succeeded in a slot", f"{entry.actor} wrote with {fence} to {before}",
        )  # fmt: skip


def operations(run: SemaphoreScenario) -> list[Entry]:
    """What the callers did, and what happened besides: acquisitions that landed for nobody, and holders taken out, or
    given back by the thread that renews.
    """
    said = [
        entry
        for entry in run.history.named("acquire", "try_acquire", "renew", "release", "resize")
        if (entry.ok and entry.result is not None)
        or (entry.name in ("renew", "release", "resize") and (entry.ok or entry.unknown))
    ]
    granted = {entry.result.fence for entry in said if entry.name in ("acquire", "try_acquire")}
    found = []
    for change in run.changes:
        for id in arrivals(change):
            fence, slots = holders(change.after)[id][0], holders(change.after)[id][4]
            if fence not in granted:
                found.append(_by_itself(change, "landed", fence, len(slots)))
        for id in departures(change):
            fence = holders(change.before)[id][0]
            if not any(_gave_back(entry, fence, change) for entry in said):
                found.append(_by_itself(change, "removed", fence))
    return [*said, *found]


def _gave_back(entry: Entry, fence: int, change: Change) -> bool:
    mine = entry.name == "release" and entry.args[0] == fence and entry.actor == change.who
    return mine and (entry.unknown or entry.result) and entry.order < change.order < entry.returned


def _by_itself(change: Change, name: str, *args: Any) -> Entry:
    return Entry("server", name, args, change.when, change.order, returned=change.order + 0.5, outcome="ok")


class Register:
    """A semaphore as one caller at a time would see it: (how many there are, who holds how many, the highest fence)."""

    initial: Any = (3, frozenset(), 0)

    def step(self, state: Any, entry: Entry) -> Sequence[Any]:
        return getattr(self, "_" + entry.name)(state, entry)

    def _enter(self, state: Any, fence: int, n: int) -> Sequence[Any]:
        size, live, highest = state
        room = sum(count for _, count in live) + n <= size
        return ((size, live | {(fence, n)}, fence),) if room and fence > highest else ()

    def _acquire(self, state: Any, entry: Entry) -> Sequence[Any]:
        return self._enter(state, entry.result.fence, entry.args[0])

    _try_acquire = _acquire

    def _landed(self, state: Any, entry: Entry) -> Sequence[Any]:
        return self._enter(state, *entry.args)

    def _removed(self, state: Any, entry: Entry) -> Sequence[Any]:
        after = self._without(state, entry.args[0])
        return (after,) if after != state else ()

    def _without(self, state: Any, fence: int) -> Any:
        size, live, highest = state
        return (size, frozenset(one for one in live if one[0] != fence), highest)

    def _renew(self, state: Any, entry: Entry) -> Sequence[Any]:
        return (state,) if entry.unknown or any(one[0] == entry.args[0] for one in state[1]) else ()

    def _release(self, state: Any, entry: Entry) -> Sequence[Any]:
        after = self._without(state, entry.args[0])
        if entry.unknown:
            return (state, after)
        if entry.result and after != state:
            return (after,)
        # After doubt a refusal is taken for the first attempt's success.
        return (state,) if entry.doubted or not entry.result else ()

    def _resize(self, state: Any, entry: Entry) -> Sequence[Any]:
        after = (entry.args[0], *state[1:])
        return (state, after) if entry.unknown else (after,)
