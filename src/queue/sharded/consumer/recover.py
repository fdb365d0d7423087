"""What a worker that died had in hand, brought back at once because a person asks for it (docs/protocols P5).

It is settled by the same steps as what a killed child of `latchwork worker --processes` had, in the name of the
delivery that has each message. A worker counts as dead once it has not reported for 50 s. That is no proof: so a person
decides, who can see whether its process has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, cast

from ....errors import InvalidRequest
from ....plain import shown, shown_time
from ..in_flight import InHand, in_flight
from ..registry import QueueRegistry
from ..slots import MAX_PROCESS
from ..subscription import Subscription
from ..workers import SILENT, WorkerReport, dead_workers, process_of, settling, short_name
from .in_hand import LEFT, Noted, Stage, settle_for

LOOKED = 100_000
"""Slots at most that are looked at, those that were claimed last."""


class Left(NamedTuple):
    """What workers that died have in hand.

    dead: their reports, by the name `host:pid`.
    is_all: whether no more of it can be elsewhere.
    """

    dead: Mapping[str, WorkerReport]
    held: tuple[InHand, ...]
    is_all: bool


def left_by(queue: Subscription, workers: Collection[str] = ()) -> Left:
    """Return what workers that died have in hand. Nothing changes. Three calls, and one for each 1,000 slots that were
    claimed since the last sweep.

    workers: which, `host:pid`; empty = all. Raises `InvalidRequest` for one that is not known to be dead.
    """
    reports = queue.workers()
    dead = dead_workers(reports)
    for name in workers:
        if name not in dead:
            raise InvalidRequest(f"worker {shown(name)} {_why_not(name, reports)}")
    dead = {name: one for name, one in dead.items() if not workers or name in workers}
    names = {process_of(one.worker) for one in dead.values()}
    if not names:
        return Left({}, (), is_all=True)
    registry = cast(QueueRegistry, queue.registry)
    bins = None if queue.reader else registry.records.read(queue.name)
    found = in_flight(queue, bins, LOOKED)
    return Left(dead, tuple(one for one in found.held if one.worker in names), found.is_all)


def recover(queue: Subscription, left: Left, by: str) -> dict[str, int]:
    """Bring back what these workers had in hand; return how many were `failed`, as the sweep would have them, and
    `given back`, uncounted, as the worker was about to stop. Up to eight calls per 1,000.

    by: the person who asks for it, for the error that the messages have. What another one has by now is left alone. A
    worker of which everything was found and settled is said to hold nothing from then on.
    """
    told = {"failed": 0, "given back": 0}
    for name, report in left.dead.items():
        noted = [
            Noted(0, Stage.BEGUN, *one.slot, one.delivery)
            for one in left.held
            if one.delivery is not None and one.worker == process_of(report.worker)
        ]
        why = f"its worker {name} died: brought back by {by}, {shown_time(report.ago)} after its last report"
        found = settle_for(queue, noted, why, counts=True)
        settled = sum(found.values()) - found[LEFT]
        if left.is_all and settled == len(noted):
            queue.store.repeat_many([settling(queue, report.worker)])
        told = {what: n + found[what] for what, n in told.items()}
    return told


def _why_not(name: str, reports: Sequence[WorkerReport]) -> str:
    """Return why what a worker has in hand is not taken from it."""
    known = [one for one in reports if short_name(one.worker) == name]
    if not known:
        dead = ", ".join(sorted(dead_workers(reports))) or "none"
        return f"has not reported about this queue; the ones that died: {dead}"
    last = min(known, key=lambda one: one.ago)
    if not last.is_silent:
        dead = f"it counts as dead after {SILENT:.0f} s without a report; end its process first"
        return f"reported {shown_time(last.ago)} ago: {dead}"
    same = process_of(last.worker)
    others = [short_name(one.worker) for one in reports if not one.is_silent and process_of(one.worker) == same]
    return (
        f"died, and {others[0]} works: the messages of both name {shown(same)}, the last {MAX_PROCESS} characters, so "
        "they cannot be told apart; leave its messages to the sweep"
    )
