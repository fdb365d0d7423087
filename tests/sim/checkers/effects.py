"""What effects promise that happen once (docs/protocols P23)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ..faults.kinds import Kind
from . import sharded

if TYPE_CHECKING:
    from ..workload.effects import Effects

STORE_LOST = (Kind.RESTART_EMPTY, Kind.RESURRECT)


def check(run: Effects) -> None:
    """All promises of effects, and those of the queue that they depend on."""
    if not run.happened(*STORE_LOST):
        no_effect_is_applied_twice(run)
        what_was_acknowledged_has_its_effects(run)
        every_delivery_gets_the_same_result(run)
        a_replaced_attempt_is_told(run)
        a_step_that_is_done_stays_done(run)
        a_live_holder_keeps_its_step(run)
    every_attempt_has_the_same_token(run)
    marks_have_no_more_than_their_room(run)
    sharded.every_acked_publish_is_delivered_or_visible(run)
    sharded.drained_once_faults_stop(run)


def no_effect_is_applied_twice(run: Effects) -> None:
    """The record counts each effect once, however often its message was delivered."""
    for effect, times in run.applied.items():
        run.require(times == 1, "an effect is applied once", f"{effect}: {times} times")


def what_was_acknowledged_has_its_effects(run: Effects) -> None:
    """A handler that ended well has made all its effects, as the records say."""
    for entry in run.history.named("ack"):
        for name in ("debit", "fee") if entry.ok else ():
            effect = f"{entry.args[0]} {name}"
            run.require(run.applied[effect] == 1, "an effect that was told of is there", f"{effect} is not")


def every_delivery_gets_the_same_result(run: Effects) -> None:
    """The result of an effect and of a step is that of the first."""
    found = defaultdict(set)
    for entry in run.history.named("operate", "mail"):
        if entry.ok:
            found[(entry.name, *entry.args)].add(entry.result)
    for what, results in found.items():
        run.require(len(results) == 1, "every delivery gets the same result", f"{what}: {sorted(map(str, results))}")


def a_replaced_attempt_is_told(run: Effects) -> None:
    """Who asks for an effect that was applied, of a message that another has by then, is not told that all is well."""
    for entry in run.history.named("operate"):
        run.require(
            not (entry.tag and entry.ok), "an attempt that was replaced is told so",
            f"{entry.actor} was told {entry.result} of {entry.args} at {entry.called:.3f}",
        )  # fmt: skip


def a_step_that_is_done_stays_done(run: Effects) -> None:
    """No attempt takes a step that is done, and none puts another result in its place."""
    run.require(not run.redone, "a step that is done is not done again", ", ".join(run.redone))


def a_live_holder_keeps_its_step(run: Effects) -> None:
    """Who needs less than a lease for a step is not told that another has taken it over."""
    for entry in run.history.named("mail"):
        replaced = entry.outcome == "FENCED_OUT" and "taken over" in entry.reason
        run.require(
            not replaced or entry.closed - entry.called > 0.9 * run.step_lease, "a live holder keeps its step",
            f"{entry.actor} lost {entry.args} after {entry.closed - entry.called:.3f} s",
        )  # fmt: skip


def marks_have_no_more_than_their_room(run: Effects) -> None:
    """The bin stays small."""
    run.require(run.most <= 0, "a record has room for so many marks", f"{run.most} more")


def every_attempt_has_the_same_token(run: Effects) -> None:
    """The provider sees one token for each message, and another one for each."""
    tokens = defaultdict(set)
    for message, token in run.sent:
        tokens[message].add(token)
    once = [token for found in tokens.values() for token in found]
    run.require(
        len(once) == len(set(once)) == len(tokens), "each message has one token", f"{len(once)} of {len(tokens)}"
    )
