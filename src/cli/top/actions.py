"""What a person can do on the screen, each with its consequence in words, said before it is done."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...observe.snapshot import QueueState, Snapshot
from ...plain import counted, one_line, shown_time
from ...queue import ShardedQueue
from ...queue.sharded.config import MAX_CONSUMERS
from ..queue.queue import person
from .feed import Feed
from .pages import handle_of, view_of

MOST = 1_000
"""Parked messages that are redriven at once."""


@dataclass(frozen=True, slots=True)
class Action:
    """Something that is done once it is confirmed. run: returns what became of it; raises the store's errors."""

    title: str
    consequence: str
    run: Callable[[], str]


def switch(feed: Feed, key: Sequence[str], taken: Snapshot, state: QueueState) -> Action:
    """Return the pause of a queue, or its end where it is paused."""
    name, workers = one_line(state.name), counted(len(state.at_work), "worker")
    if not state.paused:
        ready = counted(state.stats.ready.waiting, "ready message")
        life = shown_time(state.stats.ready.life)
        return Action(
            f"pause {name}",
            f"Within 3 s no handler begins in {workers}. Handlers that have begun go on to their end. {ready} wait, "
            f"and go on expiring, each after {life}.",
            lambda: _paused(handle_of(feed, key)),
        )
    since = f", {shown_time(taken.at - state.live.changed / 1000)} ago" if state.live.changed else ""
    who = f"It was paused by {state.live.changed_by or 'its maker'}{since}: is the reason gone? "
    return Action(
        f"resume {name}",
        one_line(who) + f"{workers} will take its messages again within 3 s; ready: {state.stats.ready.waiting:,}.",
        lambda: _resumed(handle_of(feed, key)),
    )


def _paused(queue: ShardedQueue) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the screen says it
        queue.pause(by=person())
    return f"paused {queue.name}; it names below who has not acted on it in 10 s"


def _resumed(queue: ShardedQueue) -> str:
    queue.resume(by=person())
    return f"resumed {queue.name}, {counted(queue.concurrency, 'thread')} in each worker"


def scale(feed: Feed, key: Sequence[str], state: QueueState, threads: int) -> Action | str:
    """Return the change of the number of threads; why it cannot be, where it cannot."""
    if not 0 <= threads <= MAX_CONSUMERS:
        return f"{threads} threads: give 0 to {MAX_CONSUMERS}"
    now, name = state.live.concurrency, one_line(state.name)
    what = "0 threads: that is a pause. " if not threads else "It is paused, and works again. " if not now else ""
    return Action(
        f"scale {name} from {now} to {threads}",
        f"{what}Each of {counted(len(state.at_work), 'worker')} has {counted(threads, 'thread')} within 3 s: at most "
        f"{threads * len(state.at_work):,} handlers at a time.",
        lambda: _scaled(handle_of(feed, key), threads),
    )


def _scaled(queue: ShardedQueue, threads: int) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        queue.scale(threads, by=person())
    return f"{queue.name}: {counted(threads, 'thread')} in each worker"


def redrive_all(feed: Feed, key: Sequence[str], state: QueueState) -> Action | str:
    """Return the redrive of the parked messages of a queue; why it cannot be, where there are none."""
    parked, name = state.stats.parked.waiting, one_line(state.name)
    if not parked:
        return f"nothing is parked in {name}"
    return Action(
        f"redrive {name}",
        f"{counted(min(parked, MOST), 'parked message')} of {parked:,} go back to the queue, and start again with no "
        "attempts. What made them fail will do so again, unless it was repaired.",
        lambda: f"redriven: {len(handle_of(feed, key).redrive(MOST)):,}",
    )


def one_message(feed: Feed, key: Sequence[str], verb: str, side: str, message: str) -> Action | str:
    """Return what is done to one message: `redrive`, `discard` or `cancel`; why it cannot be, where it cannot."""
    shown, name = one_line(message), one_line(key[2])
    if side == "ready":
        return "a ready message is its workers': pause the queue, or let them have it"
    if verb == "cancel" and side != "delayed":
        return "only a delayed message can be cancelled; d discards this one"
    consequence = {
        "redrive": f"It is tried again now, and starts with no attempts. It leaves {side}.",
        "discard": f"It is deleted from {side}, and no handler gets it any more. This cannot be undone.",
        "cancel": "It is never delivered. This cannot be undone.",
    }[verb]
    return Action(f"{verb} {shown} of {name}", consequence, lambda: _done(handle_of(feed, key), verb, side, message))


def _done(queue: ShardedQueue, verb: str, side: str, message: str) -> str:
    if verb == "cancel":
        done = queue.cancel(message)
        return f"cancelled {message}" if done else f"{message} was not cancelled: it is due already, or not there"
    view = view_of(queue, side)
    found = view.redrive([message]) if verb == "redrive" else view.discard([message])
    outcomes = Counter(outcome.value for outcome in found.values())
    return f"{verb} {message}: " + (", ".join(outcomes) or "it was not there")
