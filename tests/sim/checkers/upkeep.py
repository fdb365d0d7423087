"""What the upkeep promises of delayed messages, schedules and failed messages (docs/protocols P5, P14, P16)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from latchwork.queue.sharded.pointers import LOAD

from ..faults.kinds import Kind
from ..faults.network import Change
from .sharded import a_later_leader_is_never_overwritten

if TYPE_CHECKING:
    from ..workload.upkeep import Upkept
    from ..world import World

STEP = {"steady": 5, "cron": 60, "changed": 3}
"""Seconds between two ticks of each schedule; all begin at whole multiples."""
SLOT = re.compile(r"q(|_SIDELINE|_PARKED)_SHARD_(\d+)_(\d+)")
SWEEPS = {"": "sweepPointers", "_SIDELINE": "sidelineSweep", "_PARKED": "parkedSweep"}
"""The sweep pointers in a queue's record, by the side of the queue."""


class Seen:
    """What the server sees of messages, entries and schedules."""

    def __init__(self, world: World, late: float) -> None:
        self._world, self._lateness = world, late
        self.writes: list[tuple[Any, Change]] = []
        """Of the queue's record and of the schedules'."""
        self.early: list[tuple[str, float]] = []
        """Messages that were taken to be moved before their time, and by how many seconds."""
        self.made: Counter[str] = Counter()
        """How often each message was published into the queue, by its id; not counting those that were moved."""
        self.entries: Counter[str] = Counter()
        """How often each message was stored for later."""
        self._live: dict[str, str] = {}  # key -> id
        self._reserved: dict[str, float] = {}  # key -> when
        self._late: set[str] = set()
        """Keys of messages that were written later than this after their reservation, so that they count as spent."""
        self._moved: set[str] = set()
        """Keys of messages that came from another slot."""
        self._swept: dict[str, Any] = {}

    def wrote(self, key: Any, change: Change) -> None:
        """A record was written."""
        if key.set == "c_delay_set" and key.name.startswith("E/"):
            self._entry(change)
        elif key.set == "c_data_set":
            self._message(key.name, change)
        elif key.set.endswith("_ignis_queues"):
            self.writes.append((key, change))
            self._swept.update({bin: change.after[bin] for bin in SWEEPS.values() if bin in change.after})
        elif key.name.endswith("_POINTERS"):
            shard = key.name.removesuffix("POINTERS")
            for pointer in range(change.before.get(LOAD, 0), change.after.get(LOAD, 0)):
                self._reserved[f"{shard}{pointer + 1}"] = self._world.now

    def removed(self, key: Any) -> None:
        """A record was deleted."""
        self._live.pop(key.name, None)

    def _entry(self, change: Change) -> None:
        after = change.after
        self.entries[after["msgId"]] += not change.before
        if "moving" in after and "moving" not in change.before:
            ahead = after["due"] / 1000 - (self._world.now + self._world.server_offset)
            if ahead > 0.001:
                self.early.append((after["msgId"], ahead))

    def _message(self, name: str, change: Change) -> None:
        if "data" not in change.after:
            if self._live.pop(name, None) and "msgId" not in change.after and name not in self._moved:
                self.made[change.before["msgId"]] -= 1  # withdrawn from a slot that was filled too late
        elif "data" not in change.before:
            self._live[name] = one = change.after["msgId"]
            if self._world.now - self._reserved[name] > self._lateness:
                self._late.add(name)
            if "fireTS" in change.after:  # which a sweep and a shovel write
                self._moved.add(name)
            else:
                self.made[one] += 1

    def left(self) -> list[str]:
        """The ids of the messages that are in the queue; but for what was written late, so that its publisher counts
        the slot as spent, and then was not dropped, as that one died or failed: nobody looks there once it was swept.
        """
        return [one for name, one in self._live.items() if name not in self._late or not self._was_passed(name)]

    def _was_passed(self, name: str) -> bool:
        side, shard, pointer = SLOT.fullmatch(name).groups()  # type: ignore[union-attr]  # all names are like this
        return int(pointer) <= self._swept.get(SWEEPS[side], {}).get(shard, 0)


def check(run: Upkept) -> None:
    """All promises."""
    every_message_comes(run)
    none_comes_early(run)
    none_is_published_twice(run)
    every_tick_is_published(run)
    only_ticks_are_published(run)
    nothing_is_published_of_a_pause(run)
    ticks_are_settled_once(run)
    a_later_leader_is_never_overwritten(run)
    run.require(run.drained, "liveness once faults stop", f"{run.seen.left()} are left")
    run.require(not run.stuck, "liveness once faults stop", f"{run.stuck} hang")


def _settled(run: Upkept) -> set[str]:
    return {entry.args[0] for entry in run.history.named("ack") if entry.ok or entry.unknown}


def every_message_comes(run: Upkept) -> None:
    """What was published, for now or for later, is acknowledged by a consumer; so is what one of them has failed."""
    settled = _settled(run)
    for verb in ("publish", "nack", "postpone"):
        for entry in run.history.named(verb):
            run.require(
                not entry.ok or entry.args[0] in settled,
                "a message for later, and one that failed, comes", f"{entry.args[0]} of {entry.actor} is gone",
            )  # fmt: skip


def none_comes_early(run: Upkept) -> None:
    """By the server's clock, unless that was set back."""
    for one, ahead in () if run.happened(Kind.SERVER_CLOCK) else run.seen.early:
        run.complain("no message comes before its time", f"{one} was moved {ahead:.3f} s early")


def none_is_published_twice(run: Upkept) -> None:
    """A tick, or a message for later, comes again only where a consumer has postponed it, or a mover left a copy."""
    at_once = {entry.args[0] for entry in run.history.named("publish") if not entry.args[1]}
    for one, times in run.seen.made.items():
        most = run.seen.entries[one] + ("@" in one)
        run.require(
            one in at_once or times <= most, "each tick, and each message for later, is published once",
            f"{one} was published {times} times instead of {most}",
        )  # fmt: skip


def _ticks(name: str, after: float, to: float) -> Iterator[str]:
    step = STEP[name]
    at = (int(after) // step + 1) * step
    while at <= to:
        yield f"{name}@{(datetime.fromtimestamp(at, timezone.utc)).isoformat()}"
        at += step


def every_tick_is_published(run: Upkept) -> None:
    """Each tick of a schedule with `missed="all"` that nobody has replaced."""
    if run.happened(Kind.SERVER_CLOCK):
        return  # between two of its times there were none
    for entry in run.history.named("schedule"):
        if entry.ok and entry.args[0] != "changed":
            for tick in _ticks(entry.args[0], entry.tag[1], run.ended_at - 15):
                run.require(run.seen.made[tick], "each tick is published", f"{tick} was not")


def nothing_is_published_of_a_pause(run: Upkept) -> None:
    """No tick of a schedule that was due between a pause that was done and the resume, by the server's clock."""
    ended = [*run.history.named("unschedule"), *run.history.named("resume")]
    if run.happened(Kind.SERVER_CLOCK) or any(entry.unknown for entry in ended):
        return  # one of these may have ended a pause later
    for entry in run.history.named("pause"):
        for tick in _ticks(entry.args[0], *entry.tag) if entry.ok and entry.tag else ():
            run.require(not run.seen.made[tick], "a paused schedule publishes nothing", f"{tick} was published")


def only_ticks_are_published(run: Upkept) -> None:
    """Everything that was put into the queue was published, or is a tick."""
    published = {entry.args[0] for entry in run.history.named("publish")}
    for one in run.seen.made:
        name, at, tick = one.partition("@")
        right = name in STEP and at and datetime.fromisoformat(tick).timestamp() % STEP[name] == 0
        run.require(one in published or right, "a tick has one id", f"{one} was published")


def ticks_are_settled_once(run: Upkept) -> None:
    """The tick up to which a schedule is settled never goes back, unless the server's clock was set back."""
    if run.happened(Kind.SERVER_CLOCK):
        return
    for key, change in run.seen.writes:
        if key.name == "latchwork-schedules":
            before, after = change.before.get("last") or {}, change.after.get("last") or {}
            run.require(
                all(after.get(name, at) >= at for name, at in before.items()), "a tick is settled once",
                f"{before} -> {after} by {change.who}",
            )  # fmt: skip
