"""Reading a queue: a snapshot as a frame, or all that comes as a stream (docs/protocols P7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import datasource as api
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from ..queue.sharded import stream as ranges
from ..queue.sharded.pointers import ShardPointers
from .admission import Admission
from .garbage_collection import make_ready
from .offsets import Offsets, created
from .options import Options
from .table import Table

LEAST, SLOTS = 30_000, 50_000
"""Pointers that one task reads, at least and at most. Between two tasks of a core 0.1 s pass in Spark, in which
thousands of messages could be read."""
TASKS = 16
"""Tasks that share a read, within these limits."""
IDLE = 50_000
"""Pointers that the planner itself acknowledges, when there is nothing to do; more is left to `acknowledge()`."""


class Piece(NamedTuple):
    """The pointers `(after, last]` of a shard."""

    shard: int
    after: int
    last: int


@dataclass(frozen=True)
class TaskShare(api.InputPartition):
    """The part of a batch that one task reads: pieces of one or several shards.

    done: the shards, and up to which pointer, that the task acknowledges first, as `owner`; only of a stream.
    """

    pieces: tuple[Piece, ...]
    done: tuple[tuple[int, int], ...] = ()
    owner: ranges.Owner | None = None


class BatchReader(api.DataSourceReader):
    """A snapshot of the messages that were not received yet, or were given back. Reads only; messages that are received
    meanwhile may be missing.

    It takes no filters: Spark (4.2 and 4.3) keeps the partitions that a filter has left, and gives them to the next
    query of the frame too, whatever filter that one has.
    """

    def __init__(self, options: Options, table: Table) -> None:
        self._options, self._table = options, table

    def partitions(self) -> Sequence[TaskShare]:
        """Return the unread pointers of the shards, at most 50,000 in a task."""
        states = [state.checked() for state in self._options.open().pointers.states(self._options.shards)]
        return [TaskShare(pieces) for pieces in _shares(chain.from_iterable(map(_unread, states)))]

    def read(self, partition: api.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a share, in batches."""
        assert isinstance(partition, TaskShare)  # noqa: S101 - they are ours
        pointers = self._options.open().pointers
        make_ready()
        for shard, after, last in partition.pieces:
            yield from self._table.batches(shard, ranges.peek(pointers, shard, after, last, bins=self._table.bins))


class StreamReader(api.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The planner's side runs in one process beside the driver, `read` on the executors."""

    def __init__(self, options: Options, table: Table) -> None:
        self._options, self._table = options, table
        self._made: Offsets | None = None
        self._owner: ranges.Owner | None = None
        self._cap: list[int] | None = None
        self._admission = Admission(options)
        self._latest: dict[str, Any] | None = None

    # ---- planning

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the position of the consumers."""
        _, states = self._own()
        return self._offsets.made([state.fired for state in states])

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return one of the limits that are set, or no limit."""
        return self._admission.read_limit()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read the messages that are there now, and none that come later."""
        _, states = self._own()
        self._cap = [state.loaded for state in states]

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the next batch.

        Spark asks for it only once everything up to `start` is done, and it never commits the last batch. So if there
        is nothing new, this acknowledges the messages that are done; else the next batch's tasks do.
        """
        owner, states = self._own()
        ends = [state.loaded for state in states]
        self._latest = self._offsets.made(ends)
        if self._cap is not None:
            ends = [min(end, cap) for end, cap in zip(ends, self._cap, strict=True)]
        begins = self._offsets.read(start, states)
        ends = [max(begin, end) for begin, end in zip(begins, ends, strict=True)]
        ends = self._admission.admitted(begins, ends, limit, bounded=self._cap is not None)
        if ends != begins:
            return self._offsets.made(ends)
        self._acknowledge(owner, states, begins)
        return start

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the end of the queue when the present trigger looked, whatever its limits; a query's progress shows
        it.

        None before the first look. No call to the store: the progress is of that trigger.
        """
        return self._latest

    def _acknowledge(self, owner: ranges.Owner, states: Sequence[ShardPointers], done: Sequence[int]) -> None:
        pointers, left = self._options.open().pointers, IDLE
        for state, boundary in zip(states, done, strict=True):
            if state.fired < boundary and left > 0:
                left -= ranges.acknowledge(pointers, owner, state.shard, min(boundary, state.fired + left))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[TaskShare]:
        """Return the shares of a batch; its tasks first acknowledge the messages before `start`, which are done.

        Each share follows from the two offsets alone, so a repeated batch has equal partitions, and a sink that relies
        on that (Latchwork's does) finds its rows again.
        """
        owner, states = self._own()
        begins, ends = self._offsets.read(start, states), self._offsets.read(end, states)
        shares = _shares([Piece(*one) for one in zip(range(len(begins)), begins, ends, strict=True)])
        done = [(state.shard, begin) for state, begin in zip(states, begins, strict=True) if state.fired < begin]
        fired = [state.fired for state in states]
        # Without what consumers have taken meanwhile: the queue was released, and the checkpoint is older.
        unread = [
            tuple(one._replace(after=min(max(one.after, fired[one.shard]), one.last)) for one in pieces)
            for pieces in shares
        ]
        return [TaskShare(some, tuple(done[number :: len(shares)]), owner) for number, some in enumerate(unread)]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the next `latestOffset` or `partitions` begins at this boundary and acknowledges up to it."""

    # ---- on the executors

    def read(self, partition: api.InputPartition) -> Iterator[pa.RecordBatch]:
        """Acknowledge the messages that are done; then yield those of a share, in batches.

        Raises `FencedOut` if another query has taken the queue over and the share may no longer be whole.
        """
        assert isinstance(partition, TaskShare)  # noqa: S101 - they are ours
        owner, pointers = partition.owner, self._options.open().pointers
        assert owner is not None  # noqa: S101 - a stream has one
        make_ready()
        for shard, boundary in partition.done:
            ranges.acknowledge(pointers, owner, shard, boundary)
        for shard, after, last in partition.pieces:
            found = ranges.read(pointers, shard, after, last, owner, bins=self._table.bins)
            yield from self._table.batches(shard, found)

    @property
    def _offsets(self) -> Offsets:
        if self._made is None:
            self._made = Offsets(self._options, created(self._options.open()))
        return self._made

    def _own(self) -> tuple[ranges.Owner, list[ShardPointers]]:
        """Return the owner of the queue, and its pointers. The first call takes the queue; later ones raise `FencedOut`
        if it is lost.
        """
        pointers = self._options.open().pointers
        if self._owner is None:
            self._owner = ranges.take(pointers, self._options.stream_id or "")
        return self._owner, ranges.states(pointers, self._owner)


def _unread(state: ShardPointers) -> list[Piece]:
    """Return the pointers of a shard that wait: those below FIRE that were given back, then those above it."""
    pieces: list[Piece] = []
    for pointer in sorted(state.returned):
        if pieces and pieces[-1].last == pointer - 1:
            pieces[-1] = pieces[-1]._replace(last=pointer)
        else:
            pieces.append(Piece(state.shard, pointer - 1, pointer))
    return [*pieces, Piece(state.shard, state.fired, state.loaded)]


def _shares(unread: Iterable[Piece]) -> list[tuple[Piece, ...]]:
    """Return the pointers in shares of about equal size, so that a task has enough to do, but not too much.

    At least one share, because without one Spark makes up a partition.
    """
    whole = [piece for piece in unread if piece.after < piece.last]
    total = sum(piece.last - piece.after for piece in whole)
    size = min(max(-(-total // TASKS), LEAST), SLOTS)
    shares: list[list[Piece]] = []
    room = 0
    for piece in whole:
        rest = piece
        while rest.after < rest.last:
            if not room:
                shares.append([])
            room = room or size
            end = min(rest.after + room, rest.last)
            shares[-1].append(rest._replace(last=end))
            room, rest = room - (end - rest.after), rest._replace(after=end)
    return [tuple(share) for share in shares] or [()]
