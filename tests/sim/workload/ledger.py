"""Publishing by a ledger (P6): several attempts at the same rows, consumers and sweepers meanwhile."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

from latchwork.queue.sharded.ledger.ledger import Ledger, Outgoing
from latchwork.queue.sharded.queue import ShardedQueue
from latchwork.queue.sharded.rules import SEEN

from ..checkers import ledger as promises
from ..faults.kinds import Kind
from ..faults.network import Change
from ..world import Process
from .base import SimStore
from .sharded import Sharded


class Ledgers(Sharded):
    """The sharded queue, whose producers are attempts of one task."""

    name = "ledger"
    environment = (Kind.SERVER_CLOCK, Kind.CLIENT_CLOCK, Kind.SUSPEND)
    rare = ()  # a ledger that is lost with the store remembers nothing

    def setup(self) -> None:
        super().setup()
        self.rows = [f"r{number}" for number in range(self.rng.randint(1, 6))]
        self.slots: dict[str, set[str]] = defaultdict(set)
        self.moved: set[str] = set()

    def wrote(self, key: Any, change: Change) -> None:
        """Note, for each message id, the slots in which it was published and from which somebody was given it."""
        super().wrote(key, change)
        if key.set != "c_data_set" or not key.name.startswith("q_SHARD"):
            return
        if "msgId" not in change.before and "fireTS" in change.after:
            self.moved.add(key.name)  # the shovel brings it back, perhaps where a tombstone was: that is no publishing
        given = change.after.get("delivery")
        if given not in (None, SEEN, change.before.get("delivery")) and key.name not in self.moved:
            self.slots[change.after["msgId"]].add(key.name)

    def _producer(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        for _ in range(self.rng.randint(1, 2) if queue else 0):
            self.attempt(process, queue)
            self.idle(process, self.rng.choice((0.01, 3.0, 9.0)))

    def attempt(self, process: Process, queue: ShardedQueue) -> None:
        """All rows once more, in whichever order."""
        rows = self.rng.sample(self.rows, len(self.rows))
        ledger = Ledger(queue, "job", batch=self.rng.choice((2, 3)))
        self.call(process, "publish", partial(ledger.publish, 0, [Outgoing(row) for row in rows]), tuple(rows))

    def _again(self, queue: ShardedQueue) -> None:
        self.attempt(self.operator, queue)

    def check(self) -> None:
        promises.check(self)
