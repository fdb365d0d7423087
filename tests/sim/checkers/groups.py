"""What the groups of a sharded queue promise (docs/protocols P17)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..faults.kinds import Kind
from . import sharded

if TYPE_CHECKING:
    from ..workload.groups import Groups


def check(run: Groups) -> None:
    """All promises."""
    every_group_gets_what_was_published_since_it_was_made(run)
    a_group_gets_nothing_from_before_it_was_made(run)
    only_who_has_a_message_ends_it_for_the_group(run)
    what_nobody_waits_for_is_gone(run)
    a_live_delivery_is_not_taken(run)
    sharded.nothing_is_made_up(run)
    sharded.pointers_never_go_back(run)
    sharded.a_later_leader_is_never_overwritten(run)
    sharded.drained_once_faults_stop(run)


def every_group_gets_what_was_published_since_it_was_made(run: Groups) -> None:
    """Each message whose publisher was told that it is safe is acknowledged in each group, or can be seen in it."""
    settled = _settled(run)
    for name, (_, there) in run.made.items():
        if name == "dropped":
            continue
        for publish in run.history.named("publish"):
            for payload in publish.args[0] if publish.ok and publish.called > there else ():
                run.require(
                    (name, payload) in settled or payload in run.seen[name],
                    "every group gets every message published since it was made",
                    f"{payload} of {publish.actor} is gone for {name}",
                )


def a_group_gets_nothing_from_before_it_was_made(run: Groups) -> None:
    """One that starts now has nothing whose publishing had ended when its making began."""
    if run.start != "now":
        return
    # Also of a maker that died meanwhile.
    called = min((entry.called for entry in run.history.named("make")), default=float("-inf"))
    before = {
        payload
        for entry in run.history.named("publish")
        if entry.closed is not None and not entry.unknown and entry.closed < called
        for payload in entry.args[0]
    }
    for entry in run.history.named("receive"):
        if entry.args[0] == "later":
            run.require(
                not before & set(entry.tag or ()), "a group that starts now gets what is published from then on",
                f"{before & set(entry.tag or ())}",
            )  # fmt: skip


def only_who_has_a_message_ends_it_for_the_group(run: Groups) -> None:
    """It leaves a message for the delivery that it was last given out under, or as the group is dropped."""
    for who, tag, delivery, acked in run.partings:
        if acked == "" and tag.startswith("dropped"):
            continue
        run.require(
            acked is None or (acked == delivery and run.takers.get(delivery) == who),
            "a stale receipt cannot acknowledge a newer delivery",
            f"{who} ended {tag}'s {delivery!r} by {acked!r}",
        )


def what_nobody_waits_for_is_gone(run: Groups) -> None:
    """At the end nothing is stored in the queue's slots but what waits for a group that was dropped.

    Nor what the network wrote once more after it was deleted, or so late that not everybody looked there any more: that
    expires (P5), and its publisher was not told that it is safe there.
    """
    for name, bins in run.stored.items():
        waits = set(bins.get("groups") or ())
        late = len(run.births[name]) > 1 or not bins.keys() & {"acked", "groupStamp", "delivery"}
        late = late or _came_elsewhere(run, bins)
        run.require(
            late or (waits and not waits & run.living), "a message goes when the last one has acknowledged it",
            f"{bins.get('data') or bins.get('shared')}: {bins}",
        )  # fmt: skip


def _came_elsewhere(run: Groups, bins: dict[str, Any]) -> bool:
    """Whether each reader that a stored message waits for has acknowledged it in another slot: this is a late copy.

    Where no group is left, it waits for the queue's own consumers, which have left nothing in it.
    """
    if set(bins.get("groups") or ()) & set(bins.get("acked") or ()):
        return False  # it was in this slot
    payload = json.loads(bins.get("data") or bins.get("shared") or "null")
    names = {tag.partition("~")[0] or "own" for tag in bins.get("groups") or ()} - {"dropped"}
    if not bins.get("groups") and not bins.keys() & {"shared", "delivery"}:
        names = {"own"}
    return bool(names) and all((name, payload) in _settled(run) for name in names)


def _settled(run: Groups) -> set[tuple[str, str]]:
    """What was acknowledged: group and payload."""
    return {
        done
        for entry in run.history.named("ack")
        if entry.ok or entry.unknown or len(entry.args[0]) > 1  # of several some may be done where one failed
        for done in entry.args[0]
    }


def a_live_delivery_is_not_taken(run: Groups) -> None:
    """Whoever acknowledges within the sweep duration is not told that it is lost, unless the group was dropped."""
    if run.happened(Kind.SERVER_CLOCK):
        return  # by the server's clock it was not in time
    again = {message for entry in run.history.named("publish") if entry.doubted for message in entry.args[0]}
    for entry in run.history.named("ack"):
        ((name, payload), *_) = entry.args[0]
        if entry.tag is None or name == "dropped" or (entry.doubted and payload in again):
            continue
        run.require(
            entry.outcome != "LEASE_LOST" or entry.closed - entry.tag > run.lease - 0.1,
            "a live delivery is not taken", f"{entry.actor} lost {payload} of {name} after {entry.called - entry.tag}",
        )  # fmt: skip
