"""What a consumer promises that claims ahead and acknowledges together (docs/protocols P5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..faults.kinds import Kind
from . import sharded

if TYPE_CHECKING:
    from ..workload.consumer import Prefetching


def check(run: Prefetching) -> None:
    """All promises."""
    every_acked_publish_is_handled_or_visible(run)
    nothing_is_deleted_before_it_was_handled(run)
    what_was_not_begun_counts_no_attempt(run)
    nothing_stays_in_the_hands_of_who_has_stopped(run)
    nothing_is_swept_from_who_lives(run)
    sharded.a_stale_receipt_acknowledges_nothing(run)
    sharded.pointers_never_go_back(run)
    sharded.drained_once_faults_stop(run)


def every_acked_publish_is_handled_or_visible(run: Prefetching) -> None:
    """But for what was lost with a store that came back empty, or was under way to it."""
    lost = max((order for order, _, _, what in run.history.notes if what == Kind.RESTART_EMPTY.value), default=0)
    for publish in run.history.named("publish"):
        for payload in publish.args[0] if publish.ok and publish.order > lost else ():
            run.require(
                payload in run.done or payload in run.visible,
                "every acknowledged publish is handled at least once or stays visible",
                f"{payload} of {publish.actor} is gone",
            )


def nothing_is_deleted_before_it_was_handled(run: Prefetching) -> None:
    """A message is deleted once a handler has accepted it, or where it was written somewhere else before."""
    if run.happened(Kind.RESTART_EMPTY, Kind.RESURRECT):
        return  # the copy may be lost, or was acknowledged before it came back
    for when, who, data in run.gone:
        run.complain("acknowledged only once its handler has ended", f"{who} deleted {data} at {when:.3f}")


def what_was_not_begun_counts_no_attempt(run: Prefetching) -> None:
    """An attempt is one that was begun, or ended with its consumer, so that a sweep brought it back."""
    if run.happened(Kind.RESURRECT, Kind.SERVER_CLOCK):
        return  # what comes back was counted before; a sweep that was early counts what is handled yet
    for when, payload, attempts, begun in run.uncounted:
        run.complain(
            "what was claimed and not begun counts no attempt",
            f"{payload} had attempt {attempts} at {when:.3f}, begun {begun} times before",
        )


def nothing_stays_in_the_hands_of_who_has_stopped(run: Prefetching) -> None:
    """Where no fault came before: what was done is acknowledged, what was not begun went back."""
    for when, who, messages in run.kept:
        run.require(
            not messages, "a stop acknowledges what is done and hands back the rest",
            f"{who} had stopped at {when:.3f} with {messages}",
        )  # fmt: skip


def nothing_is_swept_from_who_lives(run: Prefetching) -> None:
    """What a consumer has claimed is handled or goes back, also where a step of its own fails by a defect."""
    for when, who, data in run.left:
        run.complain("a consumer that lives leaves nothing to the sweep", f"{data} of {who} was swept at {when:.3f}")
