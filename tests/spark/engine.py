"""Spark's micro-batch engine as far as a source can tell: offsets logged, tasks, a transactional sink, commits logged.

What is kept over a restart is what Spark keeps: the two logs of the checkpoint, and the sink. As on Spark, the source
is told of a commit only when the next batch is planned, and never of the last one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from latchwork.testing.stores import Crash


@dataclass
class Checkpoint:
    """What outlives the driver. `sink` has the rows of each batch, which replace those of an earlier attempt at it."""

    offsets: list = field(default_factory=list)
    commits: int = 0
    sink: dict = field(default_factory=dict)

    def rows(self):
        return [row for batch in sorted(self.sink) for row in self.sink[batch]]


class Engine:
    """One start of the query. `crash_at`: the number of the step before which the driver dies."""

    def __init__(self, checkpoint, reader, *, crash_at=None, seed=0):
        self.kept, self.reader = checkpoint, reader
        self.steps, self._crash_at, self._chance = 0, crash_at, random.Random(seed)

    def run(self, *, available_now=True):
        """Until there is nothing more to read."""
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        if not self.kept.offsets:
            begin = self.reader.initialOffset()
            self._step(lambda: self.kept.offsets.append(begin))
        if self.kept.commits < len(self.kept.offsets) - 1:
            self._batch()
        while self._plan():
            self._batch()

    def _plan(self):
        begin = self.kept.offsets[-1]
        if self.kept.commits:
            self.reader.commit(begin)
        end = self.reader.latestOffset(begin, self.reader.getDefaultReadLimit())
        if end == begin:
            return False
        self._step(lambda: self.kept.offsets.append(end))
        return True

    def _batch(self):
        begin, end = self.kept.offsets[-2:]
        rows = []
        for task in self.reader.partitions(begin, end):
            for _ in range(self._chance.choice([1, 1, 2])):  # some attempts are repeated
                read = [row for batch in self.reader.read(task) for row in batch.to_pylist()]
            rows += read
        self._step(lambda: self.kept.sink.update({self.kept.commits: rows}))
        self._step(self._commit)

    def _commit(self):
        self.kept.commits += 1

    def _step(self, act):
        self.steps += 1
        if self.steps == self._crash_at:
            raise Crash
        act()
