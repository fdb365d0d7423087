"""Rules taken out of batches that end (P18), one at a time, as `mutants.py` lists them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from typing import Any
from unittest import mock

from latchwork.errors import LatchworkError
from latchwork.queue.sharded import queue as queues
from latchwork.queue.sharded import shards
from latchwork.queue.sharded.batches import records
from latchwork.queue.sharded.batches.blocks import BLOCK, Blocks, place_of
from latchwork.queue.sharded.batches.records import BatchRecords, BatchState
from latchwork.queue.sharded.hooks import RowsBeside
from latchwork.queue.sharded.publishing import batch_end
from latchwork.queue.sharded.publishing import batch_results as results
from latchwork.queue.sharded.publishing.batch import QueueBatch
from latchwork.queue.sharded.publishing.batch_results import BatchResults
from latchwork.store import Param, Put, has


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


def _deleted_first(queue: Any, held: Any) -> Any:
    outcomes = queue.remove(held)
    done = [place for one, outcome in zip(held, outcomes, strict=True) if outcome is True
            and (place := place_of(one.envelope))]  # fmt: skip
    _, whole = Blocks(queue.store, queue.client_id).mark(done)
    return outcomes, whole


def _deleted_though_not_counted(queue: Any, held: Any) -> Any:
    places = [place for one in held if (place := place_of(one.envelope))]
    _, whole = Blocks(queue.store, queue.client_id).mark(places)
    return queue.remove(held), whole


def _counted() -> Any:
    """Deliveries are counted, not messages."""
    numbers = count()

    def mark(self: Any, places: Any, _: Any = None, *, real: Any = Blocks.mark) -> Any:
        return real(self, [place._replace(ordinal=next(numbers) % BLOCK) for place in places])

    return mock.patch.object(Blocks, "mark", mark)


def _nothing_taken_out(self: Any, state: BatchState) -> None:
    self.store.operate(self.key(state.name), Put("settled", 1), repeatable=True)


def _failed_ones_stay(self: Any, me: str, _: Any, outcomes: Any) -> None:
    self._vouch([one.batch for one in outcomes if not isinstance(one, LatchworkError)])
    self._records.confirm(self._state, me)


def _ended_while_open() -> Any:
    """Whether it is closed is not asked."""
    stack = ExitStack()

    def state(self: Any, name: str, bins: Any, real: Any = BatchRecords.state) -> BatchState:
        found = real(self, name, bins)
        return replace(found, closed=found.closed or 1) if found.given else found

    stack.enter_context(mock.patch.object(BatchRecords, "state", state))
    return stack


def _followed_without_ledger(queue: Any, state: BatchState, then: Any) -> None:
    queue.publish("next")


class _OwnBlockAlone:
    """Who acknowledges the last message of a block asks for no other block."""

    def __init__(self, _: BatchRecords) -> None:
        pass

    def is_done(self, state: BatchState) -> bool:
        return state.complete


def _without_names() -> Any:
    return mock.patch.object(shards, "RowsBeside", return_value=RowsBeside({}))


def _as_if_closed(self: Any, state: Any, number: int, *, real: Any = BatchRecords.look) -> Any:
    now, *parts = real(self, state, number)
    return replace(now, closed=1, settled=True), *parts


def _result_of_another(self: Any, finds: Any, block: Any, *, real: Any = BatchResults._kept) -> Any:
    found = real(self, finds, block)
    return dict(zip(found, reversed(found.values()), strict=True))


BATCH_RULES = (
    ("the mark comes after the delete", "P18: first the mark, then the delete",
     _swap(queues, "count_and_remove", _deleted_first), False, 170),
    ("what was not counted is deleted", "P18: where the mark fails nothing is deleted",
     _swap(queues, "count_and_remove", _deleted_though_not_counted), False, 1190),
    ("deliveries are counted", "P18: ordinals, each once", _counted),
    ("what a dead publisher left is waited for", "P18: ordinals of calls that had not ended go out",
     _swap(BatchRecords, "settle_open", _nothing_taken_out)),
    ("a publish that failed is waited for", "P18: ordinals whose message was refused or is in doubt go out",
     _swap(QueueBatch, "_count", _failed_ones_stay)),
    ("a call ends after the close", "P18: open without me, guarded by not closed",
     _swap(records, "_MAY_END", records._SAME & has("open", Param("me", str)))),
    ("a batch ends while it is open", "P18: ended: closed", _ended_while_open),
    ("the follow-up is published without the ledger", "P18: published through the ledger",
     _swap(batch_end, "follow", _followed_without_ledger)),
    ("messages of a cancelled batch are handed out", "P18.12: a consumer asks before it hands out",
     _swap(Blocks, "cancelled", lambda *_: set())),
    ("a message is created without its name", "P18.14: its name goes with it", _without_names),
    ("results of an open batch are all", "P18.15: once the batch is complete",
     _swap(BatchRecords, "look", _as_if_closed)),
    ("what was counted is over", "P18.16: asked where it is", _swap(results, "may_come", lambda *_: False)),
    ("a slot names its message", "P18.18: what is there has its id", _swap(BatchResults, "_kept", _result_of_another)),
    ("a settled block ends a batch", "P18: who finds a block settled counts all blocks",
     _swap(batch_end, "Tally", _OwnBlockAlone)),
)  # fmt: skip
