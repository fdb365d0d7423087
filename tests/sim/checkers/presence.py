"""What a group promises (docs/protocols P9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latchwork.coord.presence.layout import ABOUT, BEAT, GONE, ID

from ..faults.kinds import Kind
from ..faults.network import Change
from .lock import FORGETFUL, has_nothing_to_go_by

if TYPE_CHECKING:
    from ..workload.presence import Presence

FARM = "a"


def check(run: Presence) -> None:
    """All promises of a group."""
    everybody_is_seen_to_be_gone_in_the_end(run)
    if run.happened(*FORGETFUL, Kind.EXPIRY):
        return  # who is in no record any more hears of that; what it had been there is not known
    fences_go_up_for_ever(run)
    nobody_comes_back_under_an_id(run)
    a_member_that_renews_in_time_is_never_called_dead(run)
    what_is_watched_is_what_happened(run)
    who_counts_as_lost_was_called_lost(run)
    belief_ends_before_succession(run)
    a_former_member_is_refused(run)


def ids(bins: dict[str, Any]) -> dict[str, str]:
    """The members in the bins of a record, with their ids."""
    return bins.get(ID + FARM) or {}


def arrivals(change: Change) -> list[tuple[str, str]]:
    """The members that joined with this change, with their ids."""
    return [pair for pair in ids(change.after).items() if ids(change.before).get(pair[0]) != pair[1]]


def departures(change: Change) -> list[tuple[str, str]]:
    """Those that went, or were superseded."""
    return [pair for pair in ids(change.before).items() if ids(change.after).get(pair[0]) != pair[1]]


def everybody_is_seen_to_be_gone_in_the_end(run: Presence) -> None:
    """Once faults have stopped and all have left or died, a watch of some leases shows nobody."""
    final = run.final
    run.require(final.ok and final.result == [], "liveness once faults stop", f"{final.outcome} {final.result}")
    run.require(not run.stuck, "liveness once faults stop", f"{run.stuck} hang")


def fences_go_up_for_ever(run: Presence) -> None:
    """Every joining has a higher fence than all before it."""
    highest = 0
    for change in run.changes:
        for name, _ in arrivals(change):
            fence = change.after[ABOUT + FARM][name][0]
            run.require(
                fence > highest or has_nothing_to_go_by(run), "fences strictly increase", f"{fence} after {highest}"
            )
            highest = fence


def nobody_comes_back_under_an_id(run: Presence) -> None:
    """An id that went never comes back: not by a heartbeat after a pause, nor by a joining that is late, or twice."""
    gone: set[str] = set()
    for change in run.changes:
        for name, id in arrivals(change):
            run.require(id not in gone, "who has gone is never resurrected", f"{name} {id} at {change.when:.3f}")
        gone.update(id for _, id in departures(change))


def a_member_that_renews_in_time_is_never_called_dead(run: Presence) -> None:
    """Whoever is called lost by another had not been heard of for its lease of true time.

    One that finds its own time over says so itself.
    """
    heard: dict[str, float] = {}
    owner: dict[str, str] = {}
    for change in run.changes:
        owner.update({id: change.who for _, id in arrivals(change)})
        for name, id in ids(change.after).items():
            beat = change.after[BEAT + FARM].get(name)
            if id not in heard or beat != (change.before.get(BEAT + FARM) or {}).get(name):
                heard[id] = change.when
        for name, id in departures(change):
            lost = (change.after.get(GONE + FARM) or {}).get(name) == f"lost:{id}" and name not in ids(change.after)
            lease = change.before[ABOUT + FARM][name][1] / 1000
            run.require(
                not lost or change.who == owner[id] or change.when - heard[id] >= lease - 1e-6,
                "who renews in time is never called dead",
                f"{name} {id}: {change.when - heard[id]:.3f} s after it was heard of",
            )


def what_is_watched_is_what_happened(run: Presence) -> None:
    """Who is told of as joined was there before; as lost, was called lost before; as left, had gone otherwise.

    How one went is known until the next one of its name goes: after that it counts as having left.
    """
    joined: dict[str, float] = {}
    gone: dict[str, tuple[float, str]] = {}
    since: dict[str, float] = {}
    for change in run.changes:
        for _, id in arrivals(change):
            joined.setdefault(id, change.when)
        for name, id in departures(change):
            how = (change.after.get(GONE + FARM) or {}).get(name)
            since[name] = change.when
            gone.setdefault(id, (change.when, "lost" if how == f"lost:{id}" else "left"))
    for when, kind, name, id in run.seen:
        if kind == "joined":
            right = id in joined and joined[id] <= when
        else:
            right = (
                id in gone
                and gone[id][0] <= when
                and kind in (gone[id][1], "left" if since[name] > gone[id][0] else "")
            )
        run.require(right, "what is watched is what happened", f"{kind} {name} {id} at {when:.3f}: {gone.get(id)}")


def who_counts_as_lost_was_called_lost(run: Presence) -> None:
    """Whoever `lost` names had been called lost by then."""
    called: dict[str, float] = {}
    for change in run.changes:
        for name, how in (change.after.get(GONE + FARM) or {}).items():
            if how.startswith("lost:"):
                called.setdefault(f"{FARM}/{name}", change.when)
    for entry in run.history.named("lost"):
        for name in entry.result if entry.ok else ():
            run.require(
                called.get(name, float("inf")) <= entry.closed, "who counts as lost was called lost",
                f"{name} at {entry.closed:.3f}",
            )  # fmt: skip


def belief_ends_before_succession(run: Presence) -> None:
    """Nobody who begins to check after they were called lost is told that they are still there.

    Who is superseded by one of its own name may believe until its lease is over, and no longer.
    """
    ended: dict[str, float] = {}
    for change in run.changes:
        for name, id in departures(change):
            superseded = name in ids(change.after)
            ended.setdefault(id, change.when + superseded * change.before[ABOUT + FARM][name][1] / 1000)
    for entry in run.history.named("check"):
        end = ended.get(entry.args[0])
        run.require(
            not entry.ok or end is None or entry.called < end, "belief ends before succession",
            f"{entry.actor} believed at {entry.called:.3f} in what ended at {end}",
        )  # fmt: skip


def a_former_member_is_refused(run: Presence) -> None:
    """What a member alone writes to refuses a former one of its name once the later one has written."""
    for name, changes in run.writes.items():
        highest = 0
        for change in changes:
            fence = change.after.get("fence", 0)
            run.require(fence >= highest, "a former member is refused", f"{name}: {fence} after {highest}")
            highest = max(highest, fence)
