"""Rules taken out of the results of messages (P31), one at a time, as `mutants.py` lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from latchwork.queue.sharded import queue as queues
from latchwork.queue.sharded.results import NOTHING
from latchwork.queue.sharded.shards import Shards


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


def _without(self: Any, held: Any, *, real: Any = Shards.remove) -> Any:
    return real(self, [one._replace(result=None) for one in held])


def _also_of_moves(self: Any, held: Any, *, real: Any = Shards.remove) -> Any:
    return real(self, [one._replace(result=one.result or NOTHING) for one in held])


RESULT_RULES = (
    ("acknowledged without its result", "P31.1: the result and the acknowledgement are one update",
     _swap(Shards, "remove", _without)),
    ("a result of nobody", "P31.1: the result is that of the attempt that is acknowledged",
     _swap(queues, "kept", lambda value, codec: ['"nobody"'])),
    ("a move leaves a result", "P31.4: only an acknowledgement leaves a result",
     _swap(Shards, "remove", _also_of_moves)),
    ("a result is kept for a second", "P31: for as long as results are kept",
     _swap(Shards, "_kept_for", lambda self, held: 0 if held.result is None else 1)),
)  # fmt: skip
