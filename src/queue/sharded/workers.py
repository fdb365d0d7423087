"""Who works on a queue: a record in which each process that consumes it reports (P5).

Set `{client}_meta_set`, key `{queue}_WORKERS`, two map bins. `workers`: the name of a process -> `[server's ms, the
change of the settings that it acts on, threads, running, acknowledged, failed]`; `failures`: the same name -> how many
of these failed for each reason, in the order of `Reason`. For people, and for the tools that tell them: no message
depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import msgspec

from ...errors import NotFound
from ...inputs import is_int
from ...store import Key, MapPut, MapRemove, Read, Update
from ...store.decode import Counter
from ...store.model.expr import SERVER_NOW, ListOf, Param
from ...store.model.form import Form
from ...store.model.ops import Compute
from ...store.port import Exists, RecordStore, Values
from ...store.rows import Rows
from ...typed import converted
from .config import QueueConfig
from .envelope import Reason
from .record import lifetime
from .shards import Shards

WORKERS, FAILURES = "workers", "failures"
REPORT = 15.0
"""Seconds between two reports of a process."""
SILENT = 50.0
"""Seconds without a report after which a process counts as dead: it has missed three. So a death is told of within a
minute."""
OVERDUE = 20.0
"""Seconds after which a report is overdue: the process may be dead, and is not called one that works."""
KEPT = 3600.0
"""Seconds, beside the sweep duration, for which the last report of a process that died is kept, where others are there
to remove it.
"""
WINDOW = 60.0
"""Seconds in which the acknowledged and the failed messages of a report were counted."""
_READ = (Read(WORKERS), Read(FAILURES), Compute(SERVER_NOW))
_REASONS = tuple(Reason)


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The last report of a process about its consumers of one queue.

    worker: `host:process:id@farm`; the upkeep's candidate has the same name.
    ago: seconds since the report, by the server's clock.
    acts_on: the `changed` of the settings that it acts on.
    threads: worker threads that it wants, 0 while it is paused.
    running: handlers that run.
    acked, failed: messages in the minute before the report.
    reasons: of the failed ones, where there were any; an earlier version does not report them.
    """

    worker: str
    ago: float
    acts_on: int
    threads: int
    running: int
    acked: int
    failed: int
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_silent(self) -> bool:
        """Whether so many reports are missing that the process is dead, or cut off from the store."""
        return self.ago > SILENT

    @property
    def is_overdue(self) -> bool:
        """Whether it is not known to work, though it does not count as dead yet."""
        return self.ago > OVERDUE


def short_name(worker: str) -> str:
    """Return the `host:process` of a worker's name, by which a person finds it."""
    name, _, _ = worker.partition("@")
    return name.rpartition(":")[0] if name.count(":") > 1 else name


class HasWorkers(Protocol):
    """A queue, as far as its workers' record goes."""

    store: RecordStore
    pointers: Shards
    config: QueueConfig


def _key(queue: HasWorkers) -> Key:
    return Key(queue.pointers.meta_set, f"{queue.config.name}_WORKERS")


@lru_cache(maxsize=64)
def _form(ttl: int) -> Form:
    numbers = (Param("acts_on"), Param("threads"), Param("running"), Param("acked"), Param("failed"))
    report = MapPut(WORKERS, Param("worker", str), ListOf((SERVER_NOW, *numbers)))
    reasons = MapPut(FAILURES, Param("worker", str), ListOf(tuple(Param(one.value) for one in _REASONS)))
    return Form(report, reasons, exists=Exists.ANY, ttl=ttl)


def reporting(queue: HasWorkers, report: WorkerReport) -> Update:
    """Return the update by which a process reports; harmless when repeated."""
    return _form(lifetime(queue.config)).fill(
        _key(queue), worker=report.worker, acts_on=report.acts_on, threads=report.threads, running=report.running,
        acked=report.acked, failed=report.failed, **{one.value: report.reasons.get(one.value, 0) for one in _REASONS},
    )  # fmt: skip


def leaving(queue: HasWorkers, workers: Sequence[str]) -> Update:
    """Return the update that removes these processes; harmless when repeated."""
    return Update(_key(queue), (MapRemove(WORKERS, tuple(workers)), MapRemove(FAILURES, tuple(workers))))


def workers_of(queues: Sequence[HasWorkers]) -> list[list[WorkerReport]]:
    """Return the reports of each queue's processes, by name. One call for all, none for no queues.

    What cannot be read in a record counts as not reported. Raises the store's errors.
    """
    return reports_in(queues[0].store.repeat_many([reading(queue) for queue in queues])) if queues else []


def reading(queue: HasWorkers) -> Update:
    """Return the update that reads the reports of a queue, for a batch; `reports_in` says what they are."""
    return Update(_key(queue), _READ)


def reports_in(rows: Rows[Values]) -> list[list[WorkerReport]]:
    """Return the reports by the rows of `reading`. Raises the store's errors."""
    return [_reports(*row) for row in rows.raise_unless(NotFound).values((None, None, 0))]


def now_in(rows: Rows[Values]) -> int | None:
    """Return the server's time (ms) by the rows of `reading`; None where there was no record to ask."""
    return max((now for _, _, now in rows.values((None, None, 0))), default=0) or None


def _reports(found: Any, failures: Any, now: int) -> list[WorkerReport]:
    entries, reports = found.items() if isinstance(found, Mapping) else (), []
    for worker, entry in sorted(entries, key=str):
        try:
            at, *numbers = converted(entry, tuple[Counter, Counter, Counter, Counter, Counter, Counter])
        except msgspec.ValidationError:
            continue
        if type(worker) is str:
            counts = failures.get(worker) if isinstance(failures, Mapping) else None
            acts_on, threads, running, acked, failed = numbers
            ago = max(0.0, (now - at) / 1000)
            reports.append(WorkerReport(worker, ago, acts_on, threads, running, acked, failed, _reasons(counts)))
    return reports


def _reasons(counts: Any) -> dict[str, int]:
    counts = counts if isinstance(counts, list) else ()
    return {one.value: n for one, n in zip(_REASONS, counts, strict=False) if is_int(n) and n > 0}
