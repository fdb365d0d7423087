"""Rules taken out of what is unique until it is done (P30), one at a time, as `mutants.py` lists them.

P30.3 and P30.7 to P30.10 are too rare for chance: `tests/queue/sharded/test_unique.py` shows them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any
from unittest import mock

from latchwork.queue.sharded import queue as queues
from latchwork.queue.sharded import unique_keys
from latchwork.queue.sharded.publishing import unique
from latchwork.queue.sharded.status import State
from latchwork.queue.sharded.transfer import load
from latchwork.store import Bin, Param, exists

Attempt = unique._Attempt
_IS_IT = exists("data") & Bin("msgId", str).eq(Param("id", str))


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


def _always_claimed(self: Any, *given: Any, real: Any = unique_keys.UniqueKeys.claim) -> bool:
    real(self, *given)
    return True


def _elsewhere(self: Any, name: str, *, real: Any = Attempt._written) -> bool:
    shard = self._shard
    if not real(self, name) and self._due is None:
        load(self._queue.pointers, [unique.replace(self._envelope, msg_id=name)], [shard], moved=True)
    return True


def _freed_first(self: Any, part: Any, held: Any, *, real: Any = queues.ShardedQueue.settle_in) -> Any:
    self.unique_keys.free([one.envelope for one in held])
    return real(self, part, held)


@contextmanager
def _replaced_in_hand() -> Any:
    reachable = mock.patch.object(Attempt, "_is_out_of_reach", return_value=False)
    with reachable, mock.patch.object(unique, "_WAITS_HERE", _IS_IT):
        yield


UNIQUE_RULES = (
    ("whoever claims a key has it", "P30.1: guarded by what was read",
     _swap(unique_keys.UniqueKeys, "claim", _always_claimed)),
    ("a message that is tried again has lost its key", "P30.2: a key passes on only from a message that is over",
     _swap(unique, "LIVES", unique.LIVES - {State.RETRYING})),
    ("a message in dead hands has lost its key", "P30.2: a key passes on only from a message that is over",
     _swap(unique, "LIVES", unique.LIVES - {State.RUNNING})),
    ("a publisher goes to another place", "P30.4: it begins again under another id",
     _swap(Attempt, "_written", _elsewhere)),
    ("freed before it is removed", "P30.5: freed after the message was removed",
     _swap(queues.ShardedQueue, "settle_in", _freed_first)),
    ("replaced in hand", "P30.6: guarded by no delivery", _replaced_in_hand),
)  # fmt: skip
