"""What is promised of one message that is asked for, and cancelled, by its id (docs/protocols P26)."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from latchwork.queue import Outcome, State

from ..faults.kinds import ON_CALLS, Kind
from . import retry, sharded
from .consumer import every_acked_publish_is_handled_or_visible
from .retry import STORE_LOST

if TYPE_CHECKING:
    from ..history.record import Entry
    from ..workload.message import Messages


FAULTS = (*ON_CALLS, Kind.ROW, Kind.SLOW_PRODUCER, Kind.SUSPEND)
"""What ends a process, or a call, between the copy of a message and what has to be done with it."""


def check(run: Messages) -> None:
    """All promises."""
    every_acked_publish_is_handled_or_visible(run)
    retry.nobody_is_handed_what_another_holds(run)
    sharded.a_live_delivery_is_not_taken(run)
    if run.happened(*STORE_LOST):
        return
    a_message_keeps_its_id(run)
    a_cancelled_message_does_not_come_again(run)
    a_message_that_is_done_does_not_come_again(run)
    a_message_that_lives_is_known(run)
    an_acknowledged_message_is_done(run)


def a_message_keeps_its_id(run: Messages) -> None:
    """However often it is stored."""
    ids: defaultdict[str, set[str]] = defaultdict(set)
    for message, of, _ in run.handed:
        ids[message].add(of)
    for message, some in ids.items():
        run.require(len(some) == 1, "a message keeps its id", f"{message}: {sorted(some)}")


def _one_copy(run: Messages, message: str) -> bool:
    """Whether the message never had a copy that nobody knows of: a fault may leave one."""
    loose = run.happened(*FAULTS) and message in run.loose.values()
    return message not in run.seen.copied and not loose


def _unknown(run: Messages, entry: Entry) -> bool:
    """Whether who asked may be told that the id is unknown: it names no slot, and had no trace yet, as its publish
    wrote the row of the message, and could not write the row of the trace.
    """
    return "~" not in entry.args[1] and run.traced.get(entry.args[1], math.inf) > entry.order


def _comes_after(run: Messages, entry: Entry) -> list[str]:
    """The deliveries of a message that began after the call had returned."""
    return [by for message, _, by in run.handed if message == entry.args[0] and run.stamped.get(by, 0) > entry.returned]


def a_cancelled_message_does_not_come_again(run: Messages) -> None:
    """Neither one that is gone, nor one whose consumer was asked."""
    for entry in run.history.named("cancel"):
        if entry.ok and entry.result in (Outcome.DONE, Outcome.ASKED) and _one_copy(run, entry.args[0]):
            came = _comes_after(run, entry)
            run.require(not came, "a cancelled message does not come again", f"{entry.args[0]}: {came}")
            gone = entry.args[0] not in run.visible
            run.require(gone, "a cancelled message does not stay", f"{entry.args[0]} ({entry.result})")


def a_message_that_is_done_does_not_come_again(run: Messages) -> None:
    """Done, and gone, are said of nothing that comes again."""
    for entry in run.history.named("status"):
        if entry.ok and entry.result.state in (State.DONE, State.GONE) and _one_copy(run, entry.args[0]):
            came = _comes_after(run, entry)
            left = entry.args[0] in run.visible
            run.require(not came and not left, "done is said of what is done", f"{entry.args[0]}: {came} {left}")


def a_message_that_lives_is_known(run: Messages) -> None:
    """Nobody is told that a message is not known whose publisher was told that it is safe."""
    for entry in run.history.named("status"):
        if entry.ok and _one_copy(run, entry.args[0]):
            state, of = entry.result.state, entry.args[1]
            known = state is not State.EXPIRED and (state is not State.UNKNOWN or _unknown(run, entry))
            run.require(known, "a message is known by its id", f"{entry.args[0]} ({of}): {state}")


def an_acknowledged_message_is_done(run: Messages) -> None:
    """Once its acknowledgement has returned; one that was asked to stop is gone.

    So is, for who asks, one that had failed: by the clocks of who moved it, its last place may be an earlier one.
    """
    asked = {entry.args[0] for entry in run.history.named("cancel", "nack")}
    acked = {entry.args[0]: entry.returned for entry in run.history.named("ack") if entry.ok}
    for entry in run.history.named("status"):
        since = acked.get(entry.args[0])
        known = since is not None and entry.order > since and not _unknown(run, entry)
        if entry.ok and known and _one_copy(run, entry.args[0]):
            run.require(
                entry.result.state is State.DONE or (entry.result.state is State.GONE and entry.args[0] in asked),
                "an acknowledged message is done",
                f"{entry.args[0]}: {entry.result.state}",
            )  # fmt: skip
