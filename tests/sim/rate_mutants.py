"""Rules taken out of consumers at a rate (P5, P13), one at a time, as `mutants.py` lists them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

from latchwork.coord.limiter import RateLimiter
from latchwork.errors import LatchworkError
from latchwork.queue.sharded import subscription as queues
from latchwork.queue.sharded.consumer.prefetch import Prefetched
from latchwork.queue.sharded.consumer.rate import Rate
from latchwork.queue.sharded.consumer.turn import LIMITER_RETRY, Turns

from .faults.network import Defect


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


def _allowed_where_it_cannot_be_asked(self: Any, rate: Rate, key: str) -> float:
    try:
        return rate.ask(key)
    except LatchworkError:
        return 0.0


def _a_limit_for_each_process(self: Any, key: str, *, real: Any = Rate.ask) -> float:
    mine = RateLimiter(self._limiter._store, f"{self._limiter.name}-{id(self)}", 4, 1.0)
    with mock.patch.object(self, "_limiter", mine), mock.patch.object(self, "_limiters", {}):
        return float(real(self, key))


def _one_for_all_keys(self: Any, delivery: Any, *, real: Any = Rate.key_of) -> str:
    real(self, delivery)
    return min(self._limiters, default="")


def _in_nobodys_hand(self: Any, rate: Rate, key: str) -> float:
    """As if no step between a claim and its settlement could fail of itself."""
    try:
        return rate.closed or rate.ask(key)
    except LatchworkError as failure:
        self.consumer.report(failure)
        return LIMITER_RETRY


def _believing() -> Any:
    stack = ExitStack()
    stack.enter_context(mock.patch.object(Turns, "_rate_wait", _in_nobodys_hand))
    stack.enter_context(mock.patch.object(Prefetched, "put_back", _put_back_unless_by_a_defect))
    return stack


def _put_back_unless_by_a_defect(self: Any, one: Any, *, real: Any = Prefetched.put_back) -> None:
    if not isinstance(sys.exc_info()[1], Defect):
        real(self, one)


RATE_RULES = (
    ("a defect leaves what was claimed in nobody's hand", "P5.31",
     _believing, True),
    ("nobody is asked", "P5: the limiter is asked before each handler begins",
     _swap(Rate, "ask", lambda self, key: 0.0)),
    ("who cannot be asked has allowed it", "P5: where the limiter cannot be asked no handler begins",
     _swap(Turns, "_rate_wait", _allowed_where_it_cannot_be_asked)),
    ("each process has a limit of its own", "P13: one record for all processes",
     _swap(Rate, "ask", _a_limit_for_each_process)),
    ("one key's limit serves all", "P5: each key has the limits for itself", _swap(Rate, "key_of", _one_for_all_keys)),
    ("who waits has begun", "P5: what is put off counts no attempt",
     _swap(queues, "not_begun", lambda envelope: envelope)),
)  # fmt: skip
