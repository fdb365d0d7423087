"""The sweep of all queues of a client as one Spark job (docs/protocols P5).

The driver asks every queue what there is to sweep, and deals it out as ranges: shards of one queue, about a batch of
slots together. The executors sweep them as the local sweeper does; the driver puts the reports together and takes note
of them, so that local and distributed sweeps may follow one another.
"""

from __future__ import annotations

import pickle
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..coord.election.election import Leadership
from ..coord.election.term import Term
from ..errors import FencedOut, LatchworkError, Refused
from ..logs import Log
from ..queue.sharded.record import QueueRecords
from ..queue.sharded.registry import QueueRegistry
from ..queue.sharded.subscription import Subscription
from ..queue.sharded.sweep_record import SweepRecord, pointer_bin
from ..queue.sharded.upkeep.report import ShardReport, ShardTask, SweepReport
from ..queue.sharded.upkeep.sweep import BATCH, EPOCH_GUARD, sweep_shards
from ..queue.sharded.upkeep.sweeper import Leads, Sweeper, unread
from ..store.model.expr import Bound
from ..store.model.ops import Read
from ..store.port import Key, RecordStore
from ..typed import decoder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

log = Log(__name__)

MAX_TASKS = 256
"""Spark tasks of one sweep at most; each takes several ranges if there are more."""

Range = tuple[ShardTask, ...]
"""Shards of one queue that are swept together."""


class QueueSweep(NamedTuple):
    """A queue and what there is to sweep in it."""

    queue: Subscription
    tasks: list[ShardTask]


def sweep_on(spark: SparkSession, registry: QueueRegistry, leadership: Leads | None) -> SweepReport:
    """Sweep every queue of the registry once, active or not, on Spark's executors; return the report.

    The report, the metrics and the rules are as in `Sweeper.run_once`. `leadership` None (a candidate that does not
    lead) sweeps nothing. Every task carries the epoch and asks the store before each batch of 1,000 slots whether it
    still leads: by the record of the election, or, for a leadership of another kind, by the epoch in the queue's
    record. A deposed leader is refused on every executor; the report then says "deposed".

    Keep the registry from one sweep to the next: in it the leader remembers, by its own clock, since when it has known
    a mark; without that no acknowledged slot is ever passed. Planning takes one call a queue in the driver; if there is
    nothing to sweep, no Spark job runs.

    Raises `InvalidRequest` before any I/O if the store cannot be shipped to executors (`memory:`, a client of yours);
    else only if the queues cannot be listed, or Spark fails: then sweep again. Not promised: the counts of a task that
    Spark ran twice; the queue's own counters are right.
    """
    if leadership is None:
        return SweepReport(0)
    store, epoch = registry.store, leadership.epoch
    pickle.dumps(store)
    sweeper, began = _sweeper(registry), store.seams.monotonic()
    with store.seams.span("sweep", epoch=epoch):
        plans, report = _plan(sweeper, registry, leadership)
        ranges = [part for plan in plans for part in ranges_of(plan.tasks)]
        job = Job(store, epoch, Term.of(leadership) if isinstance(leadership, Leadership) else None)
        found = defaultdict[str, list[ShardReport]](list)
        for one in _run(spark, job, ranges):
            found[one.queue].append(one)
        for plan in plans:
            report += _finished(sweeper, epoch, plan, found[plan.queue.name])
    report.record(store.seams, store.seams.monotonic() - began)
    return report


# ---- in the driver

_SWEEPERS: weakref.WeakKeyDictionary[QueueRegistry, Sweeper] = weakref.WeakKeyDictionary()


class _NoElection:
    """An election without a leader: the sweeper of `sweep_on` sweeps nothing by itself."""

    leadership = None


def _sweeper(registry: QueueRegistry) -> Sweeper:
    """Return the one sweeper of this registry: it remembers since when marks have been known."""
    sweeper = _SWEEPERS.get(registry)
    if sweeper is None:
        # A proxy: a value that refers to its key would keep the key in memory.
        sweeper = _SWEEPERS[registry] = Sweeper(weakref.proxy(registry), _NoElection())
    return sweeper


def _plan(sweeper: Sweeper, registry: QueueRegistry, leadership: Leads) -> tuple[list[QueueSweep], SweepReport]:
    """Return what there is to sweep, and a report of the queues that could not be read."""
    listed, unreadable = registry.scan(active=None)
    sweeper.forget_others([*unreadable, *(queue.name for queue, _ in listed)])
    plans, report = [], unread(leadership.epoch, unreadable)
    for queue, bins in listed:
        try:
            leadership.check()
            if queue.ends(bins):
                report += SweepReport(leadership.epoch, (queue.name,))
                continue
            plans.append(QueueSweep(queue, sweeper.tasks(queue, bins, leadership.epoch)))
        except LatchworkError as failure:
            report += sweeper.failed(queue, leadership.epoch, f"{failure.code}: {failure}")
        except Exception as failure:  # a defect in one queue must not stop the others' sweep
            log.exception("the sweep of %s failed", queue.name)
            report += sweeper.failed(queue, leadership.epoch, repr(failure))
    return plans, report


def _finished(sweeper: Sweeper, epoch: int, plan: QueueSweep, shards: Sequence[ShardReport]) -> SweepReport:
    try:
        return sweeper.finish(plan.queue, epoch, plan.tasks, shards)
    except LatchworkError as failure:
        return sweeper.failed(plan.queue, epoch, f"{failure.code}: {failure}")
    except Exception as failure:  # as above
        log.exception("the sweep of %s failed", plan.queue.name)
        return sweeper.failed(plan.queue, epoch, repr(failure))


def ranges_of(tasks: Iterable[ShardTask]) -> list[Range]:
    """Return the shards of one queue in groups of about one batch of slots, or one shard where that has more."""
    ranges: list[Range] = []
    group: list[ShardTask] = []
    slots = 0
    for task in tasks:
        group.append(task)
        slots += task.limit - task.begin
        if slots >= BATCH:
            ranges.append(tuple(group))
            group, slots = [], 0
    return [*ranges, tuple(group)] if group else ranges


def _run(spark: SparkSession, job: Job, ranges: Sequence[Range]) -> list[ShardReport]:
    """Sweep the ranges on the executors, dealt out so that each task has some of every queue's."""
    if not ranges:
        return []
    n = min(len(ranges), MAX_TASKS)
    hands = [tuple(ranges[first::n]) for first in range(n)]
    rows = spark.range(0, n, 1, n).mapInArrow(_task(job, hands), "reports binary").collect()
    return [report for row in rows for report in decoder(list[ShardReport])(row.reports)]


# ---- on the executors


@dataclass(frozen=True, slots=True)
class Job:
    """The common data of every task of a sweep: where the queues are, and the term in which they are swept."""

    store: RecordStore
    epoch: int
    term: Term | None

    def sweep(self, tasks: Range) -> list[ShardReport]:
        """Sweep the shards of one range."""
        first = tasks[0]
        record = QueueRecords(self.store, first.client_id, first.farm_id).key(first.config.name)
        check = self.term.check if self.term else lambda: self._check(record)
        return sweep_shards(self.store, self._from_there(record, tasks), self.epoch, check)

    def _check(self, record: Key) -> None:
        """Raise `FencedOut` if a later leader has written to the queue's record. One read."""
        try:
            self.store.operate(record, Read("epoch"), when=Bound(EPOCH_GUARD, {"epoch": self.epoch}), repeatable=True)
        except Refused:
            raise FencedOut(f"a leader later than epoch {self.epoch} has swept {record}", epoch=self.epoch) from None

    def _from_there(self, record: Key, tasks: Range) -> list[ShardTask]:
        """Return the tasks from where the sweep pointers are now: an earlier attempt of this task may have
        moved them.
        """
        try:
            found = self.store.get(record, *{pointer_bin(task.kind) for task in tasks})
            notes = SweepRecord.of(record, found.bins if found else {}, now=0)
        except LatchworkError:
            return list(tasks)  # the first batch will meet the same error, and report it
        return [self._further(task, notes.swept(task.kind, task.shard)) for task in tasks]

    def _further(self, task: ShardTask, swept: int) -> ShardTask:
        """Return the task from this sweep pointer on; from its own if this one is behind it or beyond the limit."""
        swept = swept if task.swept < swept <= task.limit else task.swept
        return replace(task, swept=swept, begin=max(task.begin, swept))


def _task(
    job: Job, hands: Sequence[tuple[Range, ...]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow`: the numbers of tasks go in, the reports of their ranges come out as JSON."""

    def sweep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - an optional extra, needed only inside a task

        for batch in batches:
            for number in batch.column(0).to_pylist():
                reports = [report for part in hands[number] for report in job.sweep(part)]
                yield pa.RecordBatch.from_pydict({"reports": [msgspec.json.encode(reports)]})

    return sweep
