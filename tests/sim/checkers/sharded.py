"""What the sharded queue and its sweeper promise (docs/design.md section 5, docs/protocols P5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from latchwork.queue.sharded.pointers import FIRE, LOAD

from ..faults.kinds import Kind

if TYPE_CHECKING:
    from ..workload.sharded import Sharded


def check(run: Sharded) -> None:
    """All promises of the queue."""
    every_acked_publish_is_delivered_or_visible(run)
    nothing_is_made_up(run)
    a_stale_receipt_acknowledges_nothing(run)
    pointers_never_go_back(run)
    a_later_leader_is_never_overwritten(run)
    a_live_delivery_is_not_taken(run)
    drained_once_faults_stop(run)


def every_acked_publish_is_delivered_or_visible(run: Sharded) -> None:
    """Each message whose publisher was told that it is safe is acknowledged by a consumer, or can still be seen.

    Except what was lost with a store that came back empty, or was under way to it.
    """
    lost = max((order for order, _, _, what in run.history.notes if what == Kind.RESTART_EMPTY.value), default=0)
    settled = {entry.args[0] for entry in run.history.named("ack") if entry.ok or entry.unknown}
    for publish in run.history.named("publish"):
        for payload in publish.args[0] if publish.ok and publish.order > lost else ():
            run.require(
                payload in settled or payload in run.visible,
                "every acknowledged publish is delivered at least once or stays visible",
                f"{payload} of {publish.actor} is gone",
            )


def nothing_is_made_up(run: Sharded) -> None:
    """What is delivered was published."""
    published = {payload for entry in run.history.named("publish") for payload in entry.args[0]}
    for entry in run.history.named("receive"):
        run.require(set(entry.tag or ()) <= published, "only published messages are delivered", f"{entry.tag}")


def a_stale_receipt_acknowledges_nothing(run: Sharded) -> None:
    """Whoever deletes a message is the one for whom it was last stamped."""
    for when, who, name, delivery in run.deletes:
        owner = run.stampers.get(delivery or "")
        run.require(
            who == owner, "a stale receipt cannot acknowledge a newer delivery",
            f"{who} deleted {name}, which was {owner}'s, at {when:.3f}",
        )  # fmt: skip


def a_live_delivery_is_not_taken(run: Sharded) -> None:
    """Whoever acknowledges within the sweep duration is not told that somebody else has the message.

    Except where the acknowledgement was done and its reply lost, and the publisher, whose reply had been lost as well,
    wrote the message again before the acknowledgement was repeated: then it does come again.
    """
    if run.happened(Kind.SERVER_CLOCK, Kind.RESURRECT, Kind.RESTART_EMPTY):
        return  # by the server's clock it was not in time; another message has come back
    again = {message for entry in run.history.named("publish") if entry.doubted for message in entry.args[0]}
    for entry in run.history.named("ack"):
        if entry.doubted and entry.args[0] in again:
            continue
        held = entry.called - entry.tag if entry.tag is not None else None
        took = entry.closed - entry.called
        run.require(
            entry.outcome != "LEASE_LOST" or held is None or held + took > run.lease - 0.1,
            "a live delivery is not taken", f"{entry.actor} lost {entry.args[0]} after {held}",
        )  # fmt: skip


def pointers_never_go_back(run: Sharded) -> None:
    """Load and fire pointers only grow, and nothing is fired that was not loaded."""
    for key, change in run.writes:
        if not key.name.endswith("_POINTERS"):
            continue
        before, after = change.before, change.after
        forward = all(after.get(bin, 0) >= before.get(bin, 0) for bin in (LOAD, FIRE))
        run.require(
            forward and after.get(FIRE, 0) <= after.get(LOAD, 0), "pointers only go forward",
            f"{key.name}: {before.get(FIRE)}/{before.get(LOAD)} -> {after.get(FIRE)}/{after.get(LOAD)}",
        )  # fmt: skip


def a_later_leader_is_never_overwritten(run: Sharded) -> None:
    """In the queue's record neither the epoch nor any sweep pointer goes back, unless the store has lost records."""
    for key, change in run.writes:
        if not key.set.endswith("_ignis_queues"):
            continue
        run.require(
            change.after.get("epoch", 0) >= change.before.get("epoch", 0), "two sweepers are safe",
            f"epoch {change.before.get('epoch')} -> {change.after.get('epoch')}",
        )  # fmt: skip
        for bin in ("sweepPointers", "sidelineSweep", "sharedSweep"):
            before, after = change.before.get(bin) or {}, change.after.get(bin) or {}
            run.require(
                run.happened(Kind.RESTART_EMPTY)
                or all(after.get(shard, 0) >= pointer for shard, pointer in before.items()),
                "sweep pointers only go forward", f"{bin}: {before} -> {after}",
            )  # fmt: skip


def drained_once_faults_stop(run: Sharded) -> None:
    """Once faults have stopped, sweeping, shovelling and receiving empties the queue."""
    run.require(run.drained, "liveness once faults stop", "the queue was not drained")
    run.require(not run.stuck, "liveness once faults stop", f"{run.stuck} hang")
