"""Who works on a queue: a record in which each process that consumes it reports (P5).

Set `{client}_meta_set`, key `{queue}_WORKERS`. Map bins by the name of a process: `workers`: `[server's ms, the
change of the settings that it acts on, threads, running, acknowledged, failed]`; `failures`: how many of these failed
for each reason, in the order of `Reason`; `hung`: handlers that hang; `runs`: of the handlers that run longest
`[message id, seconds, 1 if it was given up]`; `drains`: for how many seconds it has taken no more messages as it is
about to stop, -1 where it takes some; `rated`: how often in the last minute the rate of its consumers let no handler
begin. Two more bins tell of processes that have ended. `settled`, a map: its name -> server's ms, of one that was
killed, and what it had in hand was settled by another one; `stopped`: `[server's ms, name]` of the one that stopped
last, and `stop-drained`: for how many seconds it had taken no more messages. For people, and for the tools that tell
them: no message depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import msgspec

from ...errors import Corrupt, NotFound, Unreadable
from ...inputs import is_int
from ...store import Key, MapPut, MapRemove, Put, Read, Update, has
from ...store.decode import Counter
from ...store.model.expr import SERVER_NOW, Bound, ListOf, Param
from ...store.model.form import Form
from ...store.model.ops import Compute, Op
from ...store.port import Exists, RecordStore, Values
from ...store.rows import Rows
from ...typed import converted
from ..rows import readable
from .config import QueueConfig
from .envelope import Reason
from .record import lifetime
from .shards import Shards
from .slots import process_as_stored

WORKERS, FAILURES, HUNG, RUNS, DRAINS, RATED = "workers", "failures", "hung", "runs", "drains", "rated"
SETTLED, STOPPED, STOP_DRAINED = "settled", "stopped", "stop-drained"
REPORT = 15.0
"""Seconds between two reports of a process."""
SILENT = 50.0
"""Seconds without a report after which a process counts as dead: it has missed three. So a death is told of within a
minute."""
OVERDUE = 20.0
"""Seconds after which a report is overdue: the process may be dead, and is not called one that works."""
AHEAD = 5.0
"""Seconds by which a report must be ahead of the server's clock for that to have been set back."""
KEPT = 3600.0
"""Seconds, beside the sweep duration, for which the last report of a process that died is kept, where others are there
to remove it.
"""
WINDOW = 60.0
"""Seconds in which the acknowledged and the failed messages of a report were counted."""
LONG, MOST_RUNS = 15.0, 3
"""Seconds from which on a handler that runs is reported with its message, and how many of one process are: those that
run longest.
"""
_BINS = (WORKERS, FAILURES, HUNG, RUNS, DRAINS, SETTLED, RATED, STOP_DRAINED, STOPPED)
_READ: tuple[Op, ...] = (*map(Read, _BINS), Compute(SERVER_NOW))
_ABSENT: tuple[Any, ...] = (*[None] * len(_BINS), 0)
_STOP = ListOf((SERVER_NOW, Param("worker", str)))
_REASONS = tuple(Reason)
DAMAGED = (Corrupt, Unreadable)
"""The errors of a record that cannot be read. It is begun again with the next report."""


class Running(NamedTuple):
    """A handler that has run for long: the message that it was called with, of a batch the first.

    seconds: since it was called.
    given_up: whether it ran longer than the `handler_timeout`: its message has failed then.
    """

    message_id: str
    seconds: float
    given_up: bool = False


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
    hung: handlers that were given up after the queue's `handler_timeout`, and have not returned.
    settled: whether it was killed, and another process has settled what it had in hand.
    longest: the handlers that ran longest at the report, of those that ran for long; their seconds are until now. An
        earlier version does not report them.
    drains: seconds for which it has taken no more messages, as it is about to stop; None = it takes some.
    rate_limited: how often, in the minute before the report, the rate of its consumers let no handler begin. An earlier
        version does not report it.
    ahead: seconds by which the report is ahead of the server's clock, which was set back since; `ago` is 0 then.
    """

    worker: str
    ago: float
    acts_on: int
    threads: int
    running: int
    acked: int
    failed: int
    reasons: Mapping[str, int] = field(default_factory=dict)
    hung: int = 0
    settled: bool = False
    longest: tuple[Running, ...] = ()
    drains: float | None = None
    ahead: float = 0.0
    rate_limited: int = 0

    @property
    def is_silent(self) -> bool:
        """Whether the process is dead: it was waited for, or so many reports are missing that it is, or is cut off from
        the store.
        """
        return self.settled or self.ago > SILENT

    @property
    def is_overdue(self) -> bool:
        """Whether it is not known to work, though it may not count as dead yet."""
        return self.settled or self.ago > OVERDUE or self.is_ahead

    @property
    def is_ahead(self) -> bool:
        """Whether the server's clock was set back since the report, so that it is not known how old this is."""
        return self.ahead > AHEAD

    @property
    def is_saturated(self) -> bool:
        """Whether so many of its handlers hang that it takes no more messages."""
        return 0 < 2 * self.threads <= self.hung


class Stop(NamedTuple):
    """The process that stopped last of those that worked on a queue, and took its report back.

    ago: seconds since then.
    drained: seconds for which it had taken no more messages before that.
    """

    worker: str
    ago: float
    drained: float = 0.0


def short_name(worker: str) -> str:
    """Return the `host:process` of a worker's name, by which a person finds it."""
    name, _, _ = worker.partition("@")
    return name.rpartition(":")[0] if name.count(":") > 1 else name


def process_of(worker: str) -> str:
    """Return the name of a worker's process as its deliveries have it. Nothing else may be compared with a delivery."""
    return process_as_stored(short_name(worker))


def dead_workers(reports: Sequence[WorkerReport]) -> dict[str, WorkerReport]:
    """Return the workers that died, by the name `host:pid`; none whose deliveries look the same as those of a process
    that works: of a container that was started again, or of a host whose long name ends in the same way.
    """
    alive = {process_of(one.worker) for one in reports if not one.is_silent}
    return {short_name(one.worker): one for one in reports if one.is_silent and process_of(one.worker) not in alive}


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
    hung = MapPut(HUNG, Param("worker", str), Param("hung"))
    runs, drains, rated = (
        MapPut(RUNS, Param("worker", str), Param("runs", list)),
        MapPut(DRAINS, Param("worker", str), Param("drains")),
        MapPut(RATED, Param("worker", str), Param("rated")),
    )
    return Form(report, reasons, hung, runs, drains, rated, exists=Exists.ANY, ttl=ttl)


def reporting(queue: HasWorkers, report: WorkerReport) -> Update:
    """Return the update by which a process reports; harmless when repeated."""
    return _form(lifetime(queue.config)).fill(
        _key(queue), worker=report.worker, acts_on=report.acts_on, threads=report.threads, running=report.running,
        acked=report.acked, failed=report.failed, hung=report.hung,
        runs=[[one.message_id, round(one.seconds), int(one.given_up)] for one in report.longest],
        drains=-1 if report.drains is None else round(report.drains), rated=report.rate_limited,
        **{one.value: report.reasons.get(one.value, 0) for one in _REASONS},
    )  # fmt: skip


def leaving(queue: HasWorkers, workers: Sequence[str]) -> Update:
    """Return the update that removes these processes; harmless when repeated."""
    return Update(_key(queue), _forgetting(workers))


def _forgetting(workers: Sequence[str]) -> tuple[Op, ...]:
    return tuple(MapRemove(bin, tuple(workers)) for bin in (WORKERS, FAILURES, HUNG, RUNS, DRAINS, SETTLED, RATED))


def stopping(queue: HasWorkers, worker: str, drained: float = 0.0) -> Update:
    """Return the update by which a process that stops takes its report back; harmless when repeated.

    drained: seconds for which it has taken no more messages.
    """
    stop = Put(STOPPED, Bound(_STOP, {"worker": worker})), Put(STOP_DRAINED, round(drained))
    ops: tuple[Op, ...] = (*_forgetting([worker]), *stop)
    return Update(_key(queue), ops)


def settling(queue: HasWorkers, worker: str) -> Update:
    """Return the update which notes that what this process had in hand was settled by another one, after its death;
    refused where it has no report. Harmless when repeated.
    """
    return Update(_key(queue), (MapPut(SETTLED, worker, SERVER_NOW),), has(WORKERS, worker))


def workers_of(queues: Sequence[HasWorkers]) -> list[list[WorkerReport]]:
    """Return the reports of each queue's processes, by name. One call for all, none for no queues.

    What cannot be read in a record counts as not reported. Raises the store's errors.
    """
    return reports_in(queues[0].store.repeat_many([reading(queue) for queue in queues])) if queues else []


def reading(queue: HasWorkers) -> Update:
    """Return the update that reads the reports of a queue, for a batch; `reports_in` says what they are."""
    return Update(_key(queue), _READ)


def reports_in(rows: Rows[Values]) -> list[list[WorkerReport]]:
    """Return the reports by the rows of `reading`; none of a record that cannot be read, which is logged. Raises the
    store's other errors.
    """
    return [_reports(*row) for row in _read(rows)]


def stops_in(rows: Rows[Values]) -> list[Stop | None]:
    """Return who stopped last, by the rows of `reading`; None where nobody is known to have. Raises as `reports_in`."""
    return [_stop(row[-2], row[-3], row[-1]) for row in _read(rows)]


def now_in(rows: Rows[Values]) -> int | None:
    """Return the server's time (ms) by the rows of `reading`; None where there was no record to ask."""
    return max((row[-1] for row in rows.values(_ABSENT)), default=0) or None


def _read(rows: Rows[Values]) -> list[Values]:
    found = rows.raise_unless(NotFound, *DAMAGED)
    return [row or _ABSENT for row in readable(Rows([None if isinstance(row, NotFound) else row for row in found]))]


def _reports(found: Any, *more: Any) -> list[WorkerReport]:
    maps: list[Mapping[Any, Any]] = [one if isinstance(one, Mapping) else {} for one in (found, *more[:6])]
    entries, failures, hung, runs, drains, settled, rated = maps
    reports, now = [], more[-1]
    for worker, entry in sorted(entries.items(), key=str):
        try:
            at, *numbers = converted(entry, tuple[Counter, Counter, Counter, Counter, Counter, Counter])
        except msgspec.ValidationError:
            continue
        if type(worker) is str:
            acts_on, threads, running, acked, failed = numbers
            ago = max(0.0, (now - at) / 1000)
            hangs: Any = hung.get(worker)
            drained: Any = drains.get(worker)
            over: Any = settled.get(worker)
            held_up: Any = rated.get(worker)
            counts: Any = failures.get(worker)
            each = zip(_REASONS, counts if isinstance(counts, list) else (), strict=False)
            reasons = {one.value: n for one, n in each if is_int(n) and n > 0}
            reports.append(
                WorkerReport(
                    worker, ago, acts_on, threads, running, acked, failed, reasons,
                    hangs if is_int(hangs) and hangs > 0 else 0, is_int(over) and over >= at,
                    _longest(runs.get(worker), ago), drained + ago if is_int(drained) and drained >= 0 else None,
                    max(0.0, (at - now) / 1000), held_up if is_int(held_up) and held_up > 0 else 0,
                )
            )  # fmt: skip
    return reports


def _stop(found: Any, drained: Any, now: int) -> Stop | None:
    if not isinstance(found, list) or len(found) != 2 or not is_int(found[0]) or type(found[1]) is not str:
        return None
    return Stop(found[1], max(0.0, (now - found[0]) / 1000), drained if is_int(drained) and drained > 0 else 0.0)


def _longest(stored: Any, ago: float) -> tuple[Running, ...]:
    """Return the handlers that run longest, by what was stored this number of seconds ago; none for what is damaged."""
    try:
        found = converted(stored, list[tuple[str, Counter, Counter]])
    except msgspec.ValidationError:
        return ()
    return tuple(Running(message_id, seconds + ago, bool(given_up)) for message_id, seconds, given_up in found)
