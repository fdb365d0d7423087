"""What an election promises (docs/design.md section 5, docs/protocols P3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import lock

if TYPE_CHECKING:
    from ..workload.election import Election


def check(run: Election) -> None:
    """All promises of an election."""
    lock.tokens_go_up_for_ever(run)
    one_leader_an_epoch(run)
    lost_is_final(run)
    lock.released_soon_after_faults(run)
    if run.happened(*lock.FORGETFUL):
        return
    lock.resource_refuses_lower_fences(run)
    lock.no_update_is_lost(run)
    lock.a_live_holder_never_loses_it(run, run.changes)
    lock.belief_ends_before_succession(run)
    lock.protected_counter_is_atomic(run)


def one_leader_an_epoch(run: Election) -> None:
    """No two candidates ever lead in the same epoch."""
    if lock.has_nothing_to_go_by(run):
        return
    leaders: dict[int, str] = {}
    for entry in run.history.named("elected"):
        first = leaders.setdefault(entry.args[0], entry.actor)
        run.require(first == entry.actor, "at most one leader an epoch", f"{entry.args[0]}: {first}, {entry.actor}")


def lost_is_final(run: Election) -> None:
    """Once a term was found lost it never comes back."""
    if lock.has_nothing_to_go_by(run):
        return
    lost: dict[int, float] = {}
    for entry in run.history.named("check"):
        epoch = entry.args[0]
        if entry.outcome == "FENCED_OUT":
            lost.setdefault(epoch, entry.returned)
        run.require(
            not entry.ok or epoch not in lost or entry.order < lost[epoch], "lost is final", f"{entry.actor} in {epoch}"
        )
