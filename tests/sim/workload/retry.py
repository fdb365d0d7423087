"""A sharded queue whose failed messages come back by themselves, with consumers that stop in the middle of their work.

Some consumers receive by hand, others are workers whose handlers ask when to end. Who stops marks what is in hand, then
gives it back, goes on to the end, or is killed.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, ClassVar

from latchwork.queue import Consumer
from latchwork.queue.sharded.config import PARKED, QueueConfig
from latchwork.queue.sharded.queue import ShardedQueue
from latchwork.queue.sharded.upkeep.timers import Timers
from latchwork.retry import Poll

from ..checkers import retry as promises
from ..faults.kinds import Kind
from ..faults.network import Change
from ..scheduler import Killed
from ..world import Process
from .base import SimStore
from .rate import DELAYED, Own, clock_catches_up, moves_what_is_due, still_waiting
from .sharded import SWEEP, Sharded, Term

BACKOFF = Poll(low=1.0, high=4.0, factor=2, jitter=0)
MOVED = 3 * BACKOFF.high
"""Seconds in which what has failed has come back, once nothing fails any more."""
DEEDS = ("ack", "nack", "nack", "nack", "nack", "hold", "forget", "stop", "stop")
"""What becomes of messages that were received by hand."""

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    CONFIGS = [
        QueueConfig(
            "q", shards=shards, sweep_duration=SWEEP, handler_timeout=1, max_deliveries=most, backoff=BACKOFF,
            unsafe_limits=True,
        )
        for shards in (1, 2)
        for most in (2, 3)
    ]  # fmt: skip


class Retried(Sharded):
    """Producers, consumers that fail and stop, sweepers, and who moves what is due."""

    name = "retry"
    kinds = (*Sharded.kinds, Kind.DEFECT)
    configs: ClassVar[list[QueueConfig]] = CONFIGS

    def setup(self) -> None:
        self.done: set[str] = set()
        self.seen = promises.Seen(self.world, BACKOFF, self._stored)
        self.by_hand = self.rng.random() < 0.6
        self.returned: list[str] = []
        super().setup()

    # ---- what the server sees

    def wrote(self, key: Any, change: Change) -> None:
        """A record was written."""
        super().wrote(key, change)
        if key.set == "c_data_set" and PARKED in key.name:
            self.seen.parks(change)
        elif key.set == "c_data_set":
            self.seen.stamps(change)
        elif key.set == DELAYED and key.name.startswith("E/"):
            self.seen.waits(key.name, change)

    def _stored(self, message: str) -> list[dict[str, Any]]:
        """The bins of the records that have the message now."""
        records = [it.bins for key, it in self.server._records.items() if key.set in ("c_data_set", DELAYED)]
        return [bins for bins in records if bins.get("data") == f'"{message}"']

    # ---- people

    def people(self) -> None:
        for number in range(self.rng.randint(1, 2)):
            self.person(f"pub{number}", self._producer)
        for number in range(self.rng.randint(1, 3)):
            self.person(f"con{number}", self._consumer if self.by_hand else self._worker)
        for number in range(self.rng.randint(1, 2)):
            self.person(f"sweep{number}", self._sweeper)
        self.person("timers", self._timers)

    def _handle(self, process: Process, deliveries: list[Any], since: float) -> None:
        """Messages that were received by hand."""
        deed = self.rng.choice(DEEDS)
        if deed == "hold":
            self.idle(process, 2 * SWEEP)
        if deed == "stop":
            deliveries = self._stop(process, deliveries)
        for delivery in deliveries if deed != "forget" else ():
            if deed == "nack":
                self.call(process, "nack", delivery.nack, delivery.payload)
            else:
                self.done.add(delivery.payload)
                self.call(process, "ack", self.ack(delivery), delivery.payload).tag = since

    def ack(self, delivery: Any) -> Any:
        """Return the call that acknowledges it."""
        return delivery.ack

    def _stop(self, process: Process, deliveries: list[Any]) -> list[Any]:
        """What is handled to its end all the same, after the attempts were taken back."""
        if not deliveries:
            return []
        view, draw = deliveries[0].view, self.rng.random()
        self.idle(process, 1.0)
        self.call(process, "mark", partial(view.interrupting, deliveries))
        self.idle(process, 1.0)
        if draw < 0.3:
            process.die()
            raise Killed
        if draw < 0.8:
            self.call(process, "give back", partial(view.give_back, deliveries))
            return []
        return deliveries

    def _worker(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        if queue is None:
            return
        handle = partial(self._handled, process)
        consumer = Consumer(queue, handle, concurrency=self.rng.choice((1, 2)), upkeep=False)
        consumer.start()
        self.idle(process, self.rng.choice((0.5, 3.0, 10.0)))
        if self.rng.random() < 0.3:
            process.die()
            raise Killed
        consumer.stop(self.rng.choice((0.0, 0.3, 2.0)))

    def _handled(self, process: Process, delivery: Any) -> bool:
        """Work in steps, and ask between them whether to end."""
        for _ in range(self.rng.choice((0, 1, 5, 9))):
            process.seams.sleep(0.1)
            delivery.check()
        accepted = self.rng.random() < 0.6
        if accepted:
            self.done.add(delivery.payload)
        return accepted

    def _timers(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        if queue is None:
            return
        timers = Timers(Own(queue))
        for _ in range(self.rng.randint(10, 40)):
            moved = self.call(process, "move", partial(timers.run, Term(0)))
            process.seams.sleep(min(0.5, moved.result) if moved.ok else 0.5)

    # ---- the end

    def settle(self) -> None:
        queue = self._queue(self.operator_store)
        self._returns(queue)
        moves_what_is_due(self, queue, MOVED)
        super().settle()
        if clock_catches_up(self):
            moves_what_is_due(self, queue, MOVED)
            self._drain(queue)
        self.visible |= still_waiting(queue)

    def _returns(self, queue: ShardedQueue) -> None:
        """Give a message back, and ask for messages at once."""
        self.call(self.operator, "publish", partial(queue.publish_many, ["last"]), ("last",))
        deliveries = queue.receive(1000)
        queue.give_back(deliveries)
        again = queue.receive(1000)
        missing = {one.payload for one in deliveries} - {one.payload for one in again}
        self.returned = sorted(missing)
        queue.give_back(again)

    def _drain(self, queue: ShardedQueue) -> None:
        while found := queue.receive(100):
            for delivery in found:
                self.done.add(delivery.payload)
                self.call(self.operator, "ack", delivery.ack, delivery.payload)

    def check(self) -> None:
        promises.check(self)
