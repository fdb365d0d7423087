"""Consumers at a rate: all of them ask one limiter before a handler begins, for all messages or for those of each key.

What may not begin soon is put off: it waits among the delayed messages, so somebody moves these here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

from latchwork.coord.limiter import LIMITS, RateLimiter
from latchwork.errors import LatchworkError
from latchwork.queue import Consumer
from latchwork.queue.sharded.queue import ShardedQueue
from latchwork.queue.sharded.upkeep.timers import Timers
from latchwork.store import Key

from ..checkers import rate as promises
from ..faults.network import Change
from ..world import Process
from .base import SimStore
from .consumer import Prefetching
from .limiter import LIMIT, PER
from .sharded import SWEEP, Sharded, Term

KEYS = ("a", "b")
DELAYED = "c_delay_set"
MOVED = 40.0
"""Seconds in which what was put off has come back, once nobody puts anything off any more."""
LONGEST = 300.0
"""More seconds than any message waits. To look further ahead costs as much as all the rest of a run."""


class Own:
    """The one queue, for the timers."""

    def __init__(self, queue: ShardedQueue) -> None:
        self._queue = queue

    def queues(self) -> list[ShardedQueue]:
        """The queue."""
        return [self._queue]


def moves_what_is_due(run: Sharded, queue: ShardedQueue, seconds: float = MOVED) -> None:
    """Move messages for as long as any can be put off."""
    timers, end = Timers(Own(queue)), run.world.now + seconds
    while run.world.now < end:
        try:
            pause = timers.run(Term(0))
        except LatchworkError:
            pause = 1.0
        run.operator.seams.sleep(min(max(pause, 0.1), SWEEP))


def still_waiting(queue: ShardedQueue) -> set[str]:
    """The messages that wait for their time at the end, when the server's clock has caught up."""
    return {message.payload for message in queue.delayed.search(limit=1000, within=LONGEST)}


def clock_catches_up(run: Sharded) -> bool:
    """Let the server's clock catch up; return whether it was behind. Until then, what waited comes late (P16)."""
    behind = run.world.server_offset < run.world.furthest_offset
    run.world.server_offset = max(run.world.server_offset, run.world.furthest_offset)
    return behind


class Rated(Prefetching):
    """Two or three consumers of one limiter: four a second, in all or of each key."""

    name = "rate"
    most_messages: ClassVar[int] = 2
    at_once: ClassVar[tuple[int, ...]] = (1, 4, 10)

    def setup(self) -> None:
        self.keyed = self.rng.random() < 0.5
        names = {key: f"rate/{key}" for key in KEYS} if self.keyed else {"": "rate"}
        self.allowed: dict[str, list[Change]] = {
            key: self.server.watch(Key(LIMITS, name)) for key, name in names.items()
        }
        self.starts: list[tuple[int, str]] = []
        super().setup()

    def key_of(self, payload: str) -> str:
        """The key of a message, "" where all have one limit."""
        return KEYS[int(payload.lstrip("m")) % len(KEYS)] if self.keyed else ""

    def _messages(self) -> Iterator[dict[str, Any]]:
        yield from super()._messages()
        yield from (stored.bins for key, stored in self.server._records.items() if key.set == DELAYED)

    # ---- people

    def people(self) -> None:
        super().people()
        self.person("timers", self._timers)

    def _timers(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        if queue is None:
            return
        timers = Timers(Own(queue))
        for _ in range(self.rng.randint(10, 40)):
            moved = self.call(process, "move", partial(timers.run, Term(0)))
            process.seams.sleep(min(0.5, moved.result) if moved.ok else 0.5)

    def _consumer(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        if queue is None:
            return
        limiter = RateLimiter(store, "rate", LIMIT, PER)
        consumer = Consumer(
            queue, partial(self._handled, process, 0.0), concurrency=self.rng.choice((1, 2)), upkeep=False,
            rate=limiter,
            per_key=(lambda delivery: self.key_of(delivery.payload)) if self.keyed else None,
        )  # fmt: skip
        consumer.start()
        self.idle(process, self.rng.choice((1.0, 5.0, 15.0)))
        if self.rng.random() < 0.6:
            consumer.stop(self.rng.choice((0.0, 0.5, 5.0)))

    def _handled(self, process: Process, slow: float, delivery: Any) -> bool:
        self.starts.append((self.world.tick(), self.key_of(delivery.payload)))
        return super()._handled(process, slow, delivery)

    # ---- the end

    def settle(self) -> None:
        queue = self._queue(self.operator_store)
        moves_what_is_due(self, queue)
        super().settle()
        if clock_catches_up(self):
            moves_what_is_due(self, queue)
            self._drain(queue)
        self.visible |= still_waiting(queue)

    def check(self) -> None:
        promises.check(self)
