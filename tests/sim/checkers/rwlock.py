"""What a read-write lock promises (docs/protocols P12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from latchwork.coord.lease import FENCE
from latchwork.coord.rwlock import ABANDONED, WRITER

from ..faults.network import Change
from ..history.record import Entry
from .lock import (
    FORGETFUL,
    has_nothing_to_go_by,
    no_update_is_lost,
    protected_counter_is_atomic,
    released_soon_after_faults,
    resource_refuses_lower_fences,
)
from .semaphore import a_live_holder_never_loses_its_permits, arrivals, departures, holders

if TYPE_CHECKING:
    from ..workload.rwlock import ReadWrite


def check(run: ReadWrite) -> None:
    """All promises of a read-write lock."""
    fences_go_up_with_each_writer(run)
    released_soon_after_faults(run)
    if run.happened(*FORGETFUL):
        return
    a_writer_is_alone(run)
    a_dead_writer_leaves_a_mark(run)
    a_live_holder_never_loses_its_permits(run, run.changes)
    belief_ends_before_succession(run)
    resource_refuses_lower_fences(run)
    no_update_is_lost(run)
    protected_counter_is_atomic(run)
    nothing_derived_is_written_over_a_later_writer(run)
    run.check_linearizable(operations(run), Register(), "a read-write lock")


def modes(bins: dict[str, Any]) -> list[str]:
    """What the holders do."""
    return [entry[4] for entry in holders(bins).values()]


def fences_go_up_with_each_writer(run: ReadWrite) -> None:
    """Every writer has a higher fence than all before it, across restarts; a reader has that of the last one."""
    if has_nothing_to_go_by(run):
        return
    highest = 0
    for change in run.changes:
        for id in arrivals(change):
            fence, mode = holders(change.after)[id][0], holders(change.after)[id][4]
            if mode == "write":
                run.require(fence > highest, "fences strictly increase without end", f"{fence} after {highest}")
                highest = fence
            elif not run.happened(*FORGETFUL):
                run.require(fence >= highest, "a reader has the generation of the last writer", f"{fence}, {highest}")
            run.require(change.after[FENCE] == fence, "a reader has the generation of the last writer", f"{fence}")


def a_writer_is_alone(run: ReadWrite) -> None:
    """No writer beside readers or another writer; the bin that names the writer is right."""
    for change in run.changes:
        found = modes(change.after)
        run.require("write" not in found or len(found) == 1, "no writer beside readers", f"{found}")
        writers = [id for id, entry in holders(change.after).items() if entry[4] == "write"]
        named = [change.after[WRITER]] if WRITER in change.after else []
        run.require(named == writers, "the writer is who is said to be", f"{named} {writers}")


def a_dead_writer_leaves_a_mark(run: ReadWrite) -> None:
    """A writer that is taken out by another leaves its fence; one that gives back leaves nothing."""
    owner: dict[str, str] = {}
    for change in run.changes:
        owner.update(dict.fromkeys(arrivals(change), change.who))
        for id in departures(change):
            fence, mode = holders(change.before)[id][0], holders(change.before)[id][4]
            if mode == "write" and change.who != owner[id]:
                run.require(change.after.get(ABANDONED) == fence, "a dead writer leaves a mark", f"{fence}")
            if mode == "read":
                run.require(
                    change.after.get(ABANDONED) == change.before.get(ABANDONED), "only a dead writer leaves a mark",
                    f"{change.after.get(ABANDONED)}",
                )  # fmt: skip


def belief_ends_before_succession(run: ReadWrite) -> None:
    """Nobody who begins to check after they were taken out, or have given back, is told that they still hold it."""
    landed, ended = landings(run), dict[str, float]()
    for change in run.changes:
        for id in departures(change):
            if change.order > landed.get(id, change.order):
                ended.setdefault(id, change.when)
    for entry in run.history.named("check"):
        end = ended.get(entry.args[1])
        run.require(
            not entry.ok or end is None or entry.called < end, "belief ends before succession",
            f"{entry.actor} believed at {entry.called:.3f} in what ended at {end}",
        )  # fmt: skip


def landings(run: ReadWrite) -> dict[str, int]:
    """When the acquisitions landed that callers were given, by id: the order of the change.

    An id may land twice. Before: an attempt in doubt landed, and was taken out while its caller knew nothing of it.
    After: one that was delivered again came after the release. So it is the last one before the caller heard of it.
    """
    heard = {
        entry.result._held._id: entry.returned
        for entry in run.history.named("read", "try_read", "write", "try_write")
        if entry.ok and entry.result is not None
    }
    return {id: change.order for change in run.changes for id in arrivals(change) if change.order < heard.get(id, 0)}


def nothing_derived_is_written_over_a_later_writer(run: ReadWrite) -> None:
    """What a reader writes under its generation is refused once a later writer has been at the resource."""
    for entry in run.history.named("derive"):
        before = [change.after.get("fence", 0) for change in run.writes if change.order < entry.order]
        run.require(
            not entry.ok or not before or before[-1] <= entry.args[0], "a generation that is over is refused",
            f"{entry.args[0]} wrote after {before[-1:]}",
        )  # fmt: skip


def operations(run: ReadWrite) -> list[Entry]:
    """What the callers did, and what happened besides: acquisitions that landed for nobody, and holders taken out."""
    said = [
        entry
        for entry in run.history.named("read", "try_read", "write", "try_write", "renew", "release")
        if (entry.ok and entry.result is not None)
        or (entry.name in ("renew", "release") and (entry.ok or entry.unknown))
    ]
    landed, found = landings(run), []
    for change in run.changes:
        for id in arrivals(change):
            if landed.get(id) != change.order:
                fence, mode = holders(change.after)[id][0], holders(change.after)[id][4]
                found.append(_by_itself(change, "landed", id, fence, mode))
        gone = [id for id in departures(change) if not any(_gave_back(entry, id, change) for entry in said)]
        found += [_by_itself(change, "removed", id) for id in gone]
    return [*said, *found]


def _gave_back(entry: Entry, id: str, change: Change) -> bool:
    mine = entry.name == "release" and entry.args[1] == id and entry.actor == change.who
    return mine and (entry.unknown or entry.result) and entry.order < change.order < entry.returned


def _by_itself(change: Change, name: str, *args: Any) -> Entry:
    return Entry("server", name, args, change.when, change.order, returned=change.order + 0.5, outcome="ok")


class Register:
    """A read-write lock as one caller at a time would see it: (who holds it, by id and mode, the last fence)."""

    initial: Any = (frozenset(), 0)

    def step(self, state: Any, entry: Entry) -> Sequence[Any]:
        return getattr(self, "_" + entry.name)(state, entry)

    def _enter(self, state: Any, id: str, fence: int, mode: str) -> Sequence[Any]:
        live, last = state
        if mode == "write":
            return ((frozenset({(id, mode)}), fence),) if not live and fence > last else ()
        alone = any(other == "write" for _, other in live)
        return ((live | {(id, mode)}, fence),) if not alone and (fence == last or not last) else ()

    def _read(self, state: Any, entry: Entry) -> Sequence[Any]:
        return self._enter(state, entry.result._held._id, entry.result.fence, "read")

    def _write(self, state: Any, entry: Entry) -> Sequence[Any]:
        return self._enter(state, entry.result._held._id, entry.result.fence, "write")

    _try_read, _try_write = _read, _write

    def _landed(self, state: Any, entry: Entry) -> Sequence[Any]:
        return self._enter(state, *entry.args)

    def _removed(self, state: Any, entry: Entry) -> Sequence[Any]:
        after = self._without(state, entry.args[0])
        return (after,) if after != state else ()

    def _without(self, state: Any, id: str) -> Any:
        return (frozenset(one for one in state[0] if one[0] != id), state[1])

    def _renew(self, state: Any, entry: Entry) -> Sequence[Any]:
        return (state,) if entry.unknown or any(one[0] == entry.args[1] for one in state[0]) else ()

    def _release(self, state: Any, entry: Entry) -> Sequence[Any]:
        after = self._without(state, entry.args[1])
        if entry.unknown:
            return (state, after)
        if entry.result and after != state:
            return (after,)
        # After doubt a refusal is taken for the first attempt's success.
        return (state,) if entry.doubted or not entry.result else ()
