"""What the poller of a process promises (docs/protocols P19)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from latchwork.coord.waits import PATIENCE

from ..faults.kinds import ON_CALLS, Kind

if TYPE_CHECKING:
    from ..workload.poller import Polling

SOON, LATE = 0.3, 4.0
"""Seconds after a release, or its time, in which a wait ends: where no call failed, and with the repeats of one."""


def check(run: Polling) -> None:
    """All promises of the poller."""
    only_what_was_released_ends_a_wait(run)
    each_wait_ends_soon_after_the_release(run)
    no_wait_outlasts_its_time(run)
    one_read_at_a_time(run)


def only_what_was_released_ends_a_wait(run: Polling) -> None:
    """A wait says True only if somebody may have counted the latch down by then."""
    for wait in run.history.named("wait"):
        if wait.ok and wait.result:
            counts = [one for one in run.history.named("count_down") if one.args == wait.args[:1]]
            run.require(
                any(one.order < wait.returned for one in counts), "only a release ends a wait", f"{wait.args[0]}"
            )


def each_wait_ends_soon_after_the_release(run: Polling) -> None:
    """Once a latch is released, each wait for it ends within a tick; where calls fail, after their repeats."""
    bound = _bound(run)
    for wait in run.history.named("wait"):
        released = run.released.get(wait.args[0])
        if released is None or not wait.ok or run.happened(Kind.PAUSE):
            continue
        run.require(
            wait.closed <= max(released, wait.called) + bound, "a release is seen within a tick",
            f"{wait.args[0]} was released at {released}, and its wait ended at {wait.closed}",
        )  # fmt: skip


def no_wait_outlasts_its_time(run: Polling) -> None:
    """A wait ends with its time, and a call of its own."""
    for wait in run.history.named("wait", "acquire"):
        if wait.closed < float("inf") and not run.happened(Kind.PAUSE):
            run.require(
                wait.closed - wait.called <= wait.args[1] + _bound(run), "no wait outlasts its time",
                f"{wait.args} took {wait.closed - wait.called} s",
            )  # fmt: skip


def _bound(run: Polling) -> float:
    return LATE if run.happened(*ON_CALLS, Kind.ROW, Kind.CONNECTION, Kind.NO_NODE) else SOON


def one_read_at_a_time(run: Polling) -> None:
    """No thread reads for all while another does, unless that one takes so long that it may hang."""
    if run.happened(Kind.PAUSE):
        return
    for process, reads in run.reads.items():
        for first, second in pairwise(reads):
            run.require(
                second[0] >= first[1] or second[0] - first[0] >= PATIENCE, "one read at a time",
                f"{process} reads from {first[0]} to {first[1]}, and again from {second[0]}",
            )  # fmt: skip
