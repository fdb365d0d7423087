"""What one process does for all its consumers of a client: it follows the settings of their queues, so that a pause
acts within 3 s, and reports about them (P5).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

from ....background import Activity, FailureLog
from ....errors import LatchworkError
from ....forks import reset_in_child
from ....logs import Log
from ....plain import counted
from ....store import Removal, Update
from ..envelope import Reason
from ..record import Live
from ..registry import QueueRegistry
from ..subscription import Subscription
from ..workers import (
    DAMAGED,
    KEPT,
    LONG,
    MOST_RUNS,
    REPORT,
    WINDOW,
    Running,
    WorkerReport,
    leaving,
    reporting,
    stopping,
    workers_of,
)

log = Log(__name__)
worker_log = Log("latchwork.worker")

FOLLOW = 1.5
"""Seconds between two reads of the settings: one call for all queues of the process. None where the store tells that
nothing was written, or where idle consumers listen to the bells of all these queues, and no change was announced.
"""
UNHEARD = 30.0
"""Seconds after which the settings are read though the bells announced nothing: the announcement may have been lost."""
TIDY = 600.0
"""Seconds between two looks for the reports of processes that died long ago."""
FARM = "@"
"""Stands between the name of a process and the farm that it belongs to."""


class Calls(Protocol):
    """The calls of a consumer's handler, as far as they are reported."""

    def running(self) -> list[Running]: ...
    def drains(self) -> float | None: ...


class Reported(Protocol):
    """A consumer, as far as it is reported."""

    queue: Subscription
    stats: Counter[str]

    @property
    def runs(self) -> Calls: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def running(self) -> int: ...
    @property
    def stuck(self) -> int: ...


class Reporter:
    """The reports of one process about its consumers. It runs in the background while any consumer has joined.

    Safe to share between threads. Failures are logged; the next look tries again.
    """

    def __init__(self, registry: QueueRegistry) -> None:
        self._registry, self._seams = registry, registry.store.seams
        self._id = self._seams.unique()
        self._consumers: dict[object, tuple[Reported, Callable[[], None]]] = {}
        self.reset_after_fork()
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Start with no consumers. In a forked child the threads that ran are the parent's."""
        self._consumers.clear()
        self._guard, self._wake = self._seams.lock(), self._seams.event()
        self._failure_log = FailureLog(self._seams, log)
        self._activity: Activity | None = None
        self._last, self._carried = _LastReport(), Counter[tuple[str, str]]()

    @property
    def worker(self) -> str:
        """The name of this process among the workers, and among the candidates for the upkeep."""
        return f"{self._seams.process_name()}:{self._id}{FARM}{self._registry.farm_id}"

    def consumers(self) -> list[Reported]:
        """Return the consumers that have joined."""
        with self._guard:
            return [consumer for consumer, _ in self._consumers.values()]

    def join(self, consumer: Reported, reported: Callable[[], None]) -> None:
        """Report about this consumer until it leaves: first at once. No I/O here.

        reported: called, again and again, while the store has a report of it: whoever looks sees it, and sees it die.
        """
        with self._guard:
            self._consumers[consumer] = consumer, reported
            self._wake.set()
            if self._activity is None or not self._activity.is_alive():
                if self._activity is not None:
                    self._activity.cancel()  # a start failed, and after an interrupt it may still begin
                self._activity, self._last = Activity(self._seams), _LastReport()
                self._activity.begin(partial(self._run, self._last), f"{self._registry.client_id}-reports")

    def leave(self, consumer: Reported, timeout: float) -> None:
        """Report no more about this consumer. With the last one the process takes its reports back; if that takes
        longer than `timeout` seconds, it goes on in the background. Harmless when repeated.
        """
        with self._guard:
            self._consumers.pop(consumer, None)
            activity = None if self._consumers else self._activity
        self._wake.set()
        if activity is not None:
            activity.join(timeout)

    def counted(self, consumers: Iterable[Reported]) -> Counter[tuple[str, str]]:
        """Return what these have acknowledged, and what failed and why, in the last `WINDOW` seconds, about; by queue.
        What is carried does not count. No I/O here.
        """
        return _counts(consumers) - self._last.before

    def carry(self, counts: Counter[tuple[str, str]]) -> None:
        """Report these counts, of processes that have ended, with those of this one, from now on. No I/O here."""
        self._carried = counts
        self._wake.set()

    def _run(self, last: _LastReport) -> None:
        while True:
            self._wake.clear()
            with self._guard:
                joined = list(self._consumers.values())
            consumers = [consumer for consumer, _ in joined]
            try:
                self._look(consumers, last)
                for _, reported in joined:
                    reported()
            except Exception as failure:  # noqa: BLE001 - a defect must not end a task that nothing would start again
                self._failure_log.record(
                    failure, f"{self.worker} could not report, or follow the settings of its queues"
                )
            with self._guard:
                if not consumers and not self._consumers:
                    self._activity = None
                    return
            self._wake.wait(FOLLOW)

    def _look(self, consumers: list[Reported], last: _LastReport) -> None:
        """Follow the settings; report if it is time to, or if anything has changed that others wait for."""
        queues = {consumer.queue.name: consumer.queue for consumer in consumers}
        # 1. Take back the reports about queues that no consumer is left for.
        if gone := [queue for name, queue in last.queues.items() if name not in queues]:
            with suppress(LatchworkError):  # it then counts as dead, once it is silent
                self._registry.store.repeat_many([
                    stopping(queue, self.worker, last.drained(queue.name, self._seams.monotonic())) for queue in gone
                ])  # fmt: skip
            last.queues = {name: queue for name, queue in last.queues.items() if name in queues}
        # 2. Read the settings, unless it is known that they have not changed. Asked before the read: what is written in
        #    between is read again.
        now, version = self._seams.monotonic(), self._registry.store.data_version()
        heard = {name: queue.active.heard for name, queue in queues.items()}
        changes = {name: one.changes for name, one in heard.items()}
        listens = all(now - one.at <= FOLLOW for one in heard.values()) and now < last.followed + UNHEARD
        unchanged = (listens and changes == last.changes) or (version is not None and version == last.version)
        if not unchanged:
            self._registry.follow(list(queues.values()))
            last.changes, last.version, last.followed = changes, version, now
            self._tell(queues, consumers, last)
        # 3. Report.
        acts_on, carried = {name: queue.live.changed for name, queue in queues.items()}, self._carried
        takes = {consumer.queue.name for consumer in consumers if consumer.runs.drains() is None}
        is_news = acts_on != last.acts_on or carried != last.carried or takes != last.takes
        if queues and (is_news or now >= last.at + REPORT):
            counts = last.counted(now, _counts(consumers)) + carried
            reports = {name: self._report(name, consumers, counts) for name in queues}
            self._send([reporting(queues[name], report) for name, report in reports.items()])
            last.drains = {name: now - one.drains for name, one in reports.items() if one.drains is not None}
            last.queues, last.acts_on, last.takes, last.carried, last.at = queues, acts_on, takes, carried, now
        if queues and now >= last.tidied + TIDY:
            last.tidied = now
            self._tidy(list(queues.values()))

    def _send(self, reports: Sequence[Update]) -> None:
        """Store the reports. A record that is damaged is begun again: all others report too, within `REPORT` seconds.
        One call; two more where any is damaged. Raises the store's errors.
        """
        store = self._registry.store
        rows = store.repeat_many(reports)
        if damaged := {one.key: row for one, row in zip(reports, rows, strict=True) if isinstance(row, DAMAGED)}:
            for key, row in damaged.items():
                log.warning("%s is begun again: %s", key, row)
            store.delete_many([Removal(key) for key in damaged], repeatable=True).raise_unless()
            rows = store.repeat_many(reports)
        rows.raise_unless()

    def _tell(self, queues: Mapping[str, Subscription], consumers: list[Reported], last: _LastReport) -> None:
        """Log each change of the settings that others have made: paused, resumed, or another number of threads."""
        for name, queue in queues.items():
            live, before = queue.live, last.live.get(name)
            who = f" by {live.changed_by}" if live.changed_by else ""
            if not live.concurrency and (before is None or before.changed != live.changed):
                worker_log.info("queue %r is paused%s: no handler begins until it is resumed", name, who)
            elif before is not None and before.changed != live.changed:
                verb = "goes on at" if before.concurrency else "is resumed with"
                own = [one.concurrency for one in consumers if one.queue.name == name]
                differs = any(threads not in (0, live.concurrency) for threads in own)
                keeps = f"; this program keeps its own number, {sum(own)}" if differs else ""
                threads = f" {counted(live.concurrency, 'thread')}"
                worker_log.info("queue %r %s%s%s%s", name, verb, threads, who, keeps)
        last.live = {name: queue.live for name, queue in queues.items()}

    def _report(self, name: str, consumers: list[Reported], counts: Mapping[tuple[str, str], int]) -> WorkerReport:
        own = [consumer for consumer in consumers if consumer.queue.name == name]
        live = own[0].queue.live
        threads = sum(one.concurrency for one in own) if live.concurrency else 0
        running = sum(one.running for one in own)
        reasons = {one.value: counts[name, f"failed_{one.value}"] for one in Reason}
        longest = sorted((run for one in own for run in one.runs.running()), key=lambda run: -run.seconds)
        drains = [one.runs.drains() for one in own]
        return WorkerReport(
            self.worker, 0.0, live.changed, threads, running, counts[name, "acked"], counts[name, "failed"], reasons,
            sum(one.stuck for one in own),
            longest=tuple(run for run in longest[:MOST_RUNS] if run.seconds >= LONG),
            drains=None if None in drains else max(seconds for seconds in drains if seconds is not None),
            rate_limited=counts[name, "rate_limited"],
        )  # fmt: skip

    def _tidy(self, queues: list[Subscription]) -> None:
        """Remove the reports of processes that have been silent for long."""
        old = {
            queue: [one.worker for one in found if one.ago > KEPT + queue.config.sweep_duration.total_seconds()]
            for queue, found in zip(queues, workers_of(queues), strict=True)
        }
        if any(old.values()):
            self._registry.store.repeat_many([leaving(queue, names) for queue, names in old.items() if names])


class _LastReport:
    """The last report of a process, and what it has counted before."""

    def __init__(self) -> None:
        self.queues: dict[str, Subscription] = {}
        self.acts_on: dict[str, int] = {}
        self.takes: set[str] = set()
        self.drains: dict[str, float] = {}
        self.live: dict[str, Live] = {}
        self.changes: dict[str, int] = {}
        self.at = self.followed = self.tidied = float("-inf")
        self.version: object = None
        self.carried = Counter[tuple[str, str]]()
        self._counted: deque[tuple[float, Counter[tuple[str, str]]]] = deque()

    def drained(self, queue: str, now: float) -> float:
        """Return for how many seconds this process has taken no more messages of a queue, by its last report."""
        return now - self.drains.get(queue, now)

    @property
    def before(self) -> Counter[tuple[str, str]]:
        """What had been counted when the last `WINDOW` seconds began, about."""
        return self._counted[0][1] if len(self._counted) > 1 else Counter()

    def counted(self, now: float, counts: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
        """Return what was counted in the last `WINDOW` seconds, about."""
        self._counted.append((now, counts))
        while len(self._counted) > 2 and self._counted[1][0] <= now - WINDOW:
            self._counted.popleft()
        return counts - self.before


def _counts(consumers: Iterable[Reported]) -> Counter[tuple[str, str]]:
    """Return by queue the messages that were acknowledged, and that failed and why, and how often a rate let no handler
    begin.
    """
    found: Counter[tuple[str, str]] = Counter()
    for consumer in consumers:
        for what in ("acked", "failed", "rate_limited", *(f"failed_{one.value}" for one in Reason)):
            found[consumer.queue.name, what] += consumer.stats[what]
    return found


_ALL: WeakValueDictionary[tuple[int, str, str], Reporter] = WeakValueDictionary()


def reporter_of(registry: QueueRegistry) -> Reporter:
    """Return the one reporter of this process for the registry's store, client and farm."""
    name = (id(registry.store), registry.client_id, registry.farm_id)
    return _ALL.get(name) or _ALL.setdefault(name, Reporter(registry))


def consumers_here() -> list[Reported]:
    """Return all consumers of this process that report."""
    return [consumer for reporter in list(_ALL.values()) for consumer in reporter.consumers()]
