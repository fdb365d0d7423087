"""What messages promise that go with writes (docs/protocols P28)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import sharded

if TYPE_CHECKING:
    from ..workload.writes import Writes

NOT_WRITTEN = ("REFUSED", "UNAVAILABLE", "NOT_FOUND", "ALREADY_EXISTS")


def check(run: Writes) -> None:
    """All promises of messages that go with writes, and those of the queue that they depend on."""
    each_write_has_one_message(run)
    who_was_told_was_told_the_truth(run)
    a_deleted_record_was_there_once(run)
    run.require(run.most <= 0, "a record has room for so many marks", f"{run.most} more")
    run.require(not run._waiting(), "liveness once faults stop", f"{run._waiting()} wait")
    sharded.drained_once_faults_stop(run)


def each_write_has_one_message(run: Writes) -> None:
    """Each applied update has exactly one message, and each message has its update."""
    for name in run.applied.keys() | run.made.keys():
        wrote, came = run.applied[name], run.made[name]
        run.require(wrote <= 1, "a write is applied once", f"{name}: {wrote} times")
        run.require(wrote == came, "a write and its message, or neither", f"{name}: {wrote} writes, {came} messages")


def who_was_told_was_told_the_truth(run: Writes) -> None:
    """What succeeded was written, and what failed for certain was not."""
    for entry in run.history.named("write", "pass"):
        (name,) = entry.args
        if entry.ok:
            run.require(run.applied[name] == 1, "what succeeded is written", f"{name} is not")
        elif entry.name == "write" and entry.outcome in NOT_WRITTEN:
            run.require(not run.applied[name], "what failed is not written", f"{name} is: {entry.outcome}")
    for entry in run.history.named("many"):
        for name, row in zip(entry.tag, entry.result, strict=True) if entry.ok else ():
            if isinstance(row, tuple):
                run.require(run.applied[name] == 1, "what succeeded is written", f"{name} is not")
            elif row.code in NOT_WRITTEN:
                run.require(not run.applied[name], "what failed is not written", f"{name} is: {row.code}")


def a_deleted_record_was_there_once(run: Writes) -> None:
    """Each True of a delete is one removal."""
    told = sum(entry.ok and entry.result is True for entry in run.history.named("delete"))
    gone = sum(times for name, times in run.applied.items() if len(name) == 20 and " " not in name)
    run.require(told <= gone, "a record that was deleted is gone", f"{told} deletes were told of, {gone} were made")
