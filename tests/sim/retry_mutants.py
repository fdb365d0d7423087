"""Rules taken out of retries and of interrupted work (P5.22 to P5.26), one at a time, as `mutants.py` lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from msgspec import structs

from latchwork.queue.sharded import envelope, shards
from latchwork.queue.sharded import subscription as queues
from latchwork.queue.sharded.consumer.runs import Runs
from latchwork.queue.sharded.delayed.entries import Due, later
from latchwork.queue.sharded.pointers import RETURNED
from latchwork.queue.sharded.queue import ShardedQueue
from latchwork.queue.sharded.rules import SEEN
from latchwork.queue.sharded.shards import Shards
from latchwork.queue.sharded.upkeep import sweep
from latchwork.store import Add, Bin, MapPut, Put, Update, exists, missing
from latchwork.store.model.form import Form
from latchwork.store.rows import Rows


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


def _taken_for_stored(*given: Any, real: Any = later) -> Any:
    return lambda held, envelopes: Rows("stored" for _ in real(*given)(held, envelopes))


def _at_once(delayed: Any, queue: Any, dues: Any, *, real: Any = later) -> Any:
    return real(delayed, queue, [Due(0, absolute=False)] * len(dues))


def _once_more(self: Any, deliveries: Any, envelopes: Any, *, real: Any = ShardedQueue._fail) -> Any:
    more = [structs.replace(one, attempts=max(0, one.attempts - 1)) for one in envelopes]
    return real(self, deliveries, more)


def _counted(message: Any) -> Any:
    return structs.replace(envelope.interrupted(message), attempts=message.attempts)


def _listed_first(self: Any, held: Any, *, real: Any = Shards.give_back) -> Any:
    notes = [(h.slot, (MapPut(RETURNED, str(h.slot.pointer), h.delivery),)) for h in held]
    self.store.repeat_many([Update(self.pointers_key(slot.shard), ops) for slot, ops in notes])
    self.bell.ring()
    with mock.patch.object(shards, "_LISTS", _NEVER):
        return real(self, held)


def _leaving_entries(self: Any, taken: Any, *, real: Any = sweep._Sweep._rehome) -> Any:
    with mock.patch.object(Shards, "strike", return_value=None):
        return real(self, taken)


_NEVER = exists("never")
_ONE_LESS = tuple(
    Add("attempts", -1) if isinstance(op, Put) and op.bin == "attempts" else op for op in shards._GIVING_BACK.ops
)

_GIVEN_BACK = exists("data") & exists("interrupted") & (missing("delivery") | Bin("delivery", str).eq(SEEN))

RETRY_RULES = (
    ("deleted though it was not stored for later", "P16: stored for later, then deleted here",
     _swap(queues, "later", _taken_for_stored)),
    ("a retry forgets its backoff", "P16: due after the pause of its attempt",
     _swap(queues, "later", _at_once)),
    ("tried once more than it may", "P5: parked when its last attempt fails", _swap(ShardedQueue, "_fail", _once_more)),
    ("what was given back counts an attempt", "P5.24: attempts as before this attempt",
     _swap(shards, "interrupted", _counted)),
    ("taken back whoever has it", "P5.22: no delivery, or a sweep's",
     _swap(shards, "_TAKING_BACK", Form(*shards._TAKING_BACK.ops, when=exists("data")))),
    ("what was given back is not listed", "P5, step 3: its slot is listed", _swap(shards, "_LISTS", _NEVER)),
    ("the sweep counts what was interrupted", "P5.26: the sweep sees interrupted",
     _swap(sweep._Sweep, "_was_interrupted", lambda self, envelope: False)),
    ("taken back whoever gave it back", "P5.22: interrupted = the delivery in the entry",
     _swap(shards, "_TAKING_BACK", Form(*shards._TAKING_BACK.ops, when=_GIVEN_BACK)), True),
    ("the sweep leaves entries of what it moves", "P5: the sweep removes the entry of a message that it moves",
     _swap(sweep._Sweep, "_rehome", _leaving_entries), True),
    ("listed before it is free", "P5.23: free, then listed", _swap(Shards, "give_back", _listed_first), True),
    ("one attempt less, each time", "P5.24: all that is put is absolute",
     _swap(shards, "_GIVING_BACK", Form(*_ONE_LESS, when=shards._GIVING_BACK.when)), True),
    ("an entry is removed whoever put it there", "P5.25: with the delivery that put it there",
     _swap(shards, "_LISTED", exists(RETURNED)), True),
    ("not marked as the stop begins", "P5.26: taken back before the process may be killed",
     _swap(Runs, "interrupting", lambda self: None), True),
)  # fmt: skip
