"""What a barrier promises (docs/protocols P11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latchwork.coord.barrier.layout import AT, ENDS, MET, TURN

from ..faults.kinds import Kind
from ..history.record import Entry
from .lock import FORGETFUL

if TYPE_CHECKING:
    from ..workload.barrier import Meetings

FARM = "a"
UNKNOWN = ("unknown", "UNAVAILABLE")
BROKEN = ("BARRIER_BROKEN", "PARTY_LOST", "WAIT_TIMEOUT")


def check(run: Meetings) -> None:
    """All promises of a barrier."""
    all_meet_in_the_end(run)
    if run.happened(*FORGETFUL, Kind.EXPIRY, Kind.RESURRECT):
        return  # who was there is not known any more
    each_generation_ends_once(run)
    nobody_arrives_out_of_turn(run)
    met_means_that_all_are_there(run)
    all_hear_of_one_meeting(run)
    all_meet_or_all_hear_that_it_is_broken(run)
    nobody_meets_what_is_over(run)
    a_wait_in_doubt_is_gone_on_with(run)


def all_meet_in_the_end(run: Meetings) -> None:
    """Once faults have stopped, all parties meet."""
    run.require(not run.stuck, "liveness once faults stop", f"{run.stuck} hang")
    said = [entry.outcome for entry in run.finals]
    run.require(said == ["ok"] * len(run.parties), "liveness once faults stop", f"{said}")
    found = [entry.result for entry in run.finals if entry.ok]
    run.require(all(one == found[0] for one in found), "all hear of one meeting", f"{found}")


def ends(bins: dict[str, Any]) -> dict[int, list[str]]:
    """How generations ended, by the bins of a record."""
    return bins.get(ENDS + FARM) or {}


def each_generation_ends_once(run: Meetings) -> None:
    """How a generation ended never changes; the next one has a higher number."""
    ended: dict[int, list[str]] = {}
    for change in run.changes:
        for turn, end in ends(change.after).items():
            run.require(ended.setdefault(turn, end) == end, "a generation ends once", f"{ended[turn]}, then {end}")
        run.require(
            change.after[TURN + FARM] >= change.before.get(TURN + FARM, 0), "generations go up", f"{change.after}"
        )


def nobody_arrives_out_of_turn(run: Meetings) -> None:
    """A party arrives at the generation whose turn it is, once."""
    for change in run.changes:
        before, after = (bins.get(AT + FARM) or {} for bins in (change.before, change.after))
        for party, turn in after.items():
            run.require(
                before.get(party) == turn or turn == change.before.get(TURN + FARM), "nobody arrives out of turn",
                f"{party} at {turn}, in {change.before.get(TURN + FARM)}",
            )  # fmt: skip


def met_means_that_all_are_there(run: Meetings) -> None:
    """A generation is met where all parties have arrived at it."""
    for change in run.changes:
        for turn, (kind, *_) in ends(change.after).items():
            at = change.before.get(AT + FARM) or {}
            run.require(
                kind != MET or turn in ends(change.before) or all(at.get(party) == turn for party in run.parties),
                "met means that all are there", f"{turn}: {at}",
            )  # fmt: skip


def met(run: Meetings) -> list[Entry]:
    """The waits that ended in a meeting."""
    return [entry for entry in run.history.named("wait") if entry.ok]


def all_hear_of_one_meeting(run: Meetings) -> None:
    """Of two who hear that somebody brought something, each hears what the other hears of all."""
    heard: dict[tuple[str, str], dict[str, str]] = {}
    for entry in met(run):
        run.require(sorted(entry.result) == run.parties, "all are in a meeting", f"{entry.result}")
        for pair in entry.result.items():
            run.require(
                heard.setdefault(pair, entry.result) == entry.result, "all hear of one meeting",
                f"{entry.actor} heard {entry.result}, another {heard[pair]}",
            )  # fmt: skip


def waits(run: Meetings) -> dict[str, Entry]:
    """All waits by what they brought, which each does only once."""
    return {entry.args[1]: entry for entry in run.history.named("wait")}


def all_meet_or_all_hear_that_it_is_broken(run: Meetings) -> None:
    """What was brought by one who heard that it is broken is in no meeting.

    Who hears that a party has died once the record is deleted is not told how the meeting ended: not promised (P11).
    """
    by_brought = waits(run)
    for entry in met(run):
        for brought in entry.result.values():
            other = by_brought[brought]
            run.require(
                other.outcome not in BROKEN or (other.outcome == "PARTY_LOST" and deleted_while(run, other)),
                "all meet, or all hear that it is broken",
                f"{entry.actor} met {brought!r}, which heard {other.outcome}",
            )  # fmt: skip


def deleted_while(run: Meetings, wait: Entry) -> bool:
    """Whether the record may have been deleted during this wait."""
    return any(wait.order < one.returned and one.order < wait.returned for one in run.history.named("delete"))


def nobody_meets_what_is_over(run: Meetings) -> None:
    """A wait hears of a meeting that ended while it waited, or of one that it, or its predecessor, has not heard of."""
    by_brought = waits(run)
    for entry in met(run):
        mine = entry.result[entry.args[0]]
        run.require(
            mine == entry.args[1] or by_brought[mine].outcome in UNKNOWN, "nobody meets what is over",
            f"{entry.actor} waited with {entry.args[1]!r} and met as {mine!r}: {by_brought[mine].outcome}",
        )  # fmt: skip
        for brought in entry.result.values():
            other = by_brought[brought]
            run.require(
                mine != entry.args[1] or not other.ok or other.ended > entry.order, "nobody meets what is over",
                f"{entry.actor} met {brought!r}, which was over",
            )  # fmt: skip


def a_wait_in_doubt_is_gone_on_with(run: Meetings) -> None:
    """Where a wait did not hear that it was met, the next one of its process does, and meets nobody else."""
    found = {brought for entry in met(run) for brought in entry.result.values()}
    before: dict[tuple[str, str], Entry] = {}
    for entry in run.history.named("wait"):
        if entry.actor == "operator":
            continue
        last = before.get((entry.actor, entry.args[0]))
        if last is not None and last.outcome in UNKNOWN and last.args[1] in found and entry.ok:
            run.require(
                entry.result[entry.args[0]] == last.args[1], "a wait in doubt is gone on with",
                f"{entry.actor} met as {entry.result[entry.args[0]]!r} after {last.args[1]!r}",
            )  # fmt: skip
        before[entry.actor, entry.args[0]] = entry
