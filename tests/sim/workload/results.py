"""Messages whose results are asked for while they fail, move, are cancelled, are swept and come again (P31)."""

from __future__ import annotations

from copy import copy
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

from latchwork.queue import QueueConfig

from ..checkers import results as promises
from ..world import Process
from .base import SimStore
from .message import Messages
from .retry import CONFIGS


def keeping(config: QueueConfig) -> QueueConfig:
    kept = copy(config)
    object.__setattr__(kept, "results", timedelta(days=1))  # more than the server's clock is ever set ahead
    return kept


class Results(Messages):
    """As `Messages`, with handlers that return what their delivery is called, and people who ask for that."""

    name = "results"
    configs: ClassVar[list[QueueConfig]] = [keeping(config) for config in CONFIGS]

    def ack(self, delivery: Any) -> Any:
        return partial(delivery.ack, delivery.held.delivery)

    def _handled(self, process: Process, delivery: Any) -> Any:
        return super()._handled(process, delivery) and delivery.held.delivery

    def _asker(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        for _ in range(self.rng.randint(2, 8) if queue else 0):
            self.idle(process, self.rng.choice((0.05, 1.0, 4.0)))
            if self.ids and self.rng.random() < 0.7:
                self._ask(process, queue, self.rng.choice(sorted(self.ids)))
        super()._asker(process, store)

    def _ask(self, process: Process, queue: Any, of: str) -> None:
        self.call(process, "result", partial(queue.result, of, 0), self.ids[of], of)

    def settle(self) -> None:
        super().settle()
        queue = self._queue(self.operator_store)
        for of in sorted(self.ids):
            self._ask(self.operator, queue, of)

    def check(self) -> None:
        super().check()
        promises.check(self)
