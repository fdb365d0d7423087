"""Reading a queue: a snapshot as a frame, or all that comes as a stream (docs/protocols.md P7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as api
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from ..queue.envelope import Envelope
from ..queue.pointers import ShardState
from . import ranges
from .offsets import Offsets
from .options import Options
from .table import Table

SLOTS = 10_000
"""Pointers that one task reads at most."""
IDLE = 50_000
"""Pointers that the planner itself acknowledges, when there is nothing to do; more is left to `acknowledge()`."""


@dataclass(frozen=True)
class Range(api.InputPartition):
    """The pointers `(after, last]` of a shard. A stream's first range of a shard acknowledges up to `boundary` before.

    boundary: None in a batch read, and in a shard's other ranges.
    """

    shard: int
    after: int
    last: int
    boundary: int | None = None
    owner: ranges.Owner | None = None


class BatchReader(api.DataSourceReader):
    """A snapshot of what nobody has received yet. Reads only; what is received meanwhile may be missing."""

    def __init__(self, options: Options, table: Table) -> None:
        self._options, self._table = options, table
        self._shards: set[int] | None = None
        self._since: datetime | None = None
        self._until: datetime | None = None

    def pushFilters(self, filters: list[api.Filter]) -> Iterable[api.Filter]:  # noqa: N802 - Spark's name
        """Read only the shards, and pass on only the times, that are asked for; what is left to Spark."""
        for one in filters:
            column = getattr(one, "attribute", None)
            if column == ("shard",) and isinstance(one, api.EqualTo | api.In):
                wanted = set(one.value if isinstance(one, api.In) else [one.value])
                self._shards = wanted if self._shards is None else self._shards & wanted
                continue
            if column == ("enqueued_at",):
                self._narrow(one)
            yield one

    def _narrow(self, one: api.Filter) -> None:
        """Spark looks at the times again, so bounds that are included here do no harm."""
        value = getattr(one, "value", None)
        if not isinstance(value, datetime):
            return
        moment = value.astimezone(timezone.utc)
        if isinstance(one, api.GreaterThan | api.GreaterThanOrEqual | api.EqualTo):
            self._since = moment if self._since is None else max(self._since, moment)
        if isinstance(one, api.LessThan | api.LessThanOrEqual | api.EqualTo):
            self._until = moment if self._until is None else min(self._until, moment)

    def partitions(self) -> Sequence[Range]:
        """The unread pointers of each shard, at most 10,000 in a task."""
        states = self._options.open().pointers.states()
        chosen = [state for state in states if self._shards is None or state.shard in self._shards]
        return [part for state in chosen for part in _split(state.shard, state.fired, state.loaded)]

    def read(self, partition: api.InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a range, in batches."""
        assert isinstance(partition, Range)  # noqa: S101 - they are ours
        pointers = self._options.open().pointers
        found = ranges.peek(pointers, partition.shard, partition.after, partition.last)
        return self._table.batches(partition.shard, (message for message in found if self._wanted(message[1])))

    def _wanted(self, envelope: Envelope) -> bool:
        early = self._since is not None and envelope.enqueued_at < int(self._since.timestamp() * 1000)
        return not early and (self._until is None or envelope.enqueued_at <= self._until.timestamp() * 1000)


class StreamReader(api.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The planner's side runs in one process beside the driver, `read` on the executors."""

    def __init__(self, options: Options, table: Table) -> None:
        self._options, self._table = options, table
        self._offsets = Offsets(options)
        self._owner: ranges.Owner | None = None
        self._cap: list[int] | None = None

    # ---- planning

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where consumers have come to."""
        self._own()
        return self._offsets.made([state.fired for state in self._states()])

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """`maxMessagesPerBatch`, or no limit."""
        return ReadMaxRows(self._options.max_messages) if self._options.max_messages else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read what is there now, and nothing that comes later."""
        self._cap = [state.loaded for state in self._states()]

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """How far the next batch may read.

        Spark asks for it only once everything up to `start` is done, and it never commits the last batch: so where
        there is nothing new, what is done is acknowledged here; else the next batch's tasks do it.
        """
        owner, states = self._own(), self._states()
        ends = [state.loaded for state in states]
        if self._cap is not None:
            ends = [min(end, cap) for end, cap in zip(ends, self._cap, strict=True)]
        begins = self._offsets.read(start)
        ends = [max(begin, end) for begin, end in zip(begins, ends, strict=True)]
        if isinstance(limit, ReadMaxRows):
            ends = _limited(begins, ends, limit.max_rows)
        if ends != begins:
            return self._offsets.made(ends)
        self._acknowledge(owner, states, begins)
        return start

    def _acknowledge(self, owner: ranges.Owner, states: Sequence[ShardState], done: Sequence[int]) -> None:
        pointers, left = self._options.open().pointers, IDLE
        for state, boundary in zip(states, done, strict=True):
            if state.fired < boundary and left > 0:
                left -= ranges.acknowledge(pointers, owner, state.shard, min(boundary, state.fired + left))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Range]:
        """The ranges of a batch; its tasks first acknowledge what is before `start`, which is done."""
        owner, states = self._own(), self._states()
        parts: list[Range] = []
        for state, begin, last in zip(states, self._offsets.read(start), self._offsets.read(end), strict=True):
            pieces = _split(state.shard, max(begin, state.fired), last)
            if state.fired < begin:
                pieces = pieces or [Range(state.shard, begin, begin)]
                pieces[0] = Range(state.shard, pieces[0].after, pieces[0].last, begin)
            parts += [Range(p.shard, p.after, p.last, p.boundary, owner) for p in pieces]
        return parts

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the next `latestOffset` or `partitions` begins at this boundary and acknowledges up to it."""

    # ---- on the executors

    def read(self, partition: api.InputPartition) -> Iterator[pa.RecordBatch]:
        """Acknowledge what is done, then the messages of a range, in batches."""
        assert isinstance(partition, Range)  # noqa: S101 - they are ours
        pointers = self._options.open().pointers
        if partition.boundary is not None and partition.owner is not None:
            ranges.acknowledge(pointers, partition.owner, partition.shard, partition.boundary)
        messages = ranges.read(pointers, partition.shard, partition.after, partition.last)
        return self._table.batches(partition.shard, messages)

    def _own(self) -> ranges.Owner:
        if self._owner is None:
            self._owner = ranges.take(self._options.open().pointers, self._options.stream_id or "")
        return self._owner

    def _states(self) -> list[ShardState]:
        return self._options.open().pointers.states()


def _split(shard: int, after: int, last: int) -> list[Range]:
    return [Range(shard, first, min(first + SLOTS, last)) for first in range(after, last, SLOTS)]


def _limited(begins: Sequence[int], ends: Sequence[int], rows: int) -> list[int]:
    """At most so many rows in all, shared out evenly, what one shard does not need going to the others."""
    left = {shard: end - begin for shard, (begin, end) in enumerate(zip(begins, ends, strict=True)) if end > begin}
    taken = dict.fromkeys(range(len(begins)), 0)
    while left and rows > 0:
        share = max(1, rows // len(left))
        for shard in list(left):
            n = min(share, left[shard], rows)
            taken[shard] += n
            left[shard] -= n
            rows -= n
            if not left[shard]:
                del left[shard]
    return [begin + taken[shard] for shard, begin in enumerate(begins)]
