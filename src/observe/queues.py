"""Gauges of all queues of a client, from one snapshot that is kept for a while, however often it is read."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import InvalidRequest, LatchworkError
from ..inputs import checked_kind, checked_number
from ..logs import Log
from ..queue.sharded.registry import QueueRegistry
from ..queue.sharded.stats import QueueStats
from .base import Sample, Telemetry
from .events import GAUGES, PARTS
from .findings import OK, PROBLEM, Finding, findings_of
from .snapshot import Snapshot, snapshot

log = Log(__name__)

MAX_AGE = 15.0
"""Seconds for which a snapshot is good enough: the usual interval of a scrape."""


def watch_queues(registry: QueueRegistry, telemetry: Telemetry, *, max_age: float = MAX_AGE) -> None:
    """Show depth, oldest age and last sweep of every queue of the client, and what is wrong with it, for as long as the
    process runs.

    A snapshot is taken when the gauges are read and the last one is older than `max_age` seconds: four calls, and five
    a queue. One process a client is enough: the figures are the store's, not the process's. While the
    store cannot be read there are no figures, rather than old ones, and `queues_readable` is 0.
    """
    checked_kind("registry", registry, QueueRegistry)
    if not isinstance(telemetry, Telemetry):
        raise InvalidRequest(f"a {type(telemetry).__name__} is no Telemetry: give a PrometheusTelemetry, or another")
    checked_number("max_age", max_age)
    telemetry.read(_Snapshot(registry, max_age).samples)


class _Snapshot:
    def __init__(self, registry: QueueRegistry, max_age: float) -> None:
        self._registry, self._max_age = registry, max_age
        self._seams = registry.store.seams
        self._lock = self._seams.lock()
        self._taken: float | None = None
        self._samples: list[Sample] = []

    def samples(self) -> list[Sample]:
        """Return the samples of the last snapshot; take a new one if it is too old."""
        with self._lock:
            now = self._seams.monotonic
            if self._taken is None or now() - self._taken > self._max_age:
                self._samples = self._look()
                self._taken = now()  # after the read: a thread that waited for a slow read does not read again
            return self._samples

    def _look(self) -> list[Sample]:
        try:
            taken = snapshot(self._registry)
        except LatchworkError as failure:
            log.warning("no snapshot of the queues (%s): %s", failure.code, failure, extra={"code": failure.code})
            return [Sample(GAUGES["queues_readable"], (), 0)]
        return [Sample(GAUGES["queues_readable"], (), 1), *_findings(taken), *_queues(taken)]


def _queues(taken: Snapshot) -> Iterator[Sample]:
    for queue in taken.queues:
        yield from _of(queue.stats)
        yield Sample(GAUGES["queue_workers"], (queue.name,), len(queue.at_work))


def _findings(taken: Snapshot) -> Iterator[Sample]:
    """Yield the worst finding of each kind about each queue, and about the client: 2 for a problem, 1 for a warning."""
    worst: dict[tuple[str, str], int] = {}
    for finding in findings_of(taken):
        if finding.state == OK:
            continue
        for where in ((finding.kind, queue) for queue in finding.queues or ("",)):
            worst[where] = max(worst.get(where, 0), _weight(finding))
    for where, weight in worst.items():
        yield Sample(GAUGES["findings"], where, weight)


def _weight(finding: Finding) -> int:
    return 2 if finding.state == PROBLEM else 1


def _of(facts: QueueStats) -> Iterator[Sample]:
    depth = facts.depth
    for part in PARTS:
        yield Sample(GAUGES["queue_depth"], (facts.name, part), getattr(depth, part))
    yield Sample(GAUGES["queue_oldest"], (facts.name,), facts.oldest_age or 0.0)
    if facts.last_sweep.success:
        yield Sample(GAUGES["queue_last_sweep"], (facts.name,), facts.last_sweep.success / 1000)
