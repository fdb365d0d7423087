"""Gauges of all queues of a client, from one snapshot that is kept for a while, however often it is read."""

from __future__ import annotations

from collections.abc import Iterator

from ..deadline import Deadline
from ..errors import InvalidRequest, LatchworkError
from ..inputs import checked_kind, checked_number
from ..logs import Log
from ..queue.sharded.registry import QueueRegistry
from ..queue.sharded.stats import QueueStats
from .base import Sample, Telemetry
from .events import GAUGES, PARTS
from .findings import OK, PROBLEM, findings_of
from .snapshot import ClientView, Snapshot, view_of

log = Log(__name__)

MAX_AGE = 15.0
"""Seconds for which a snapshot is good enough: the usual interval of a scrape."""
WITHIN = 5.0
"""Seconds after which a server that does not answer is not waited for: a scrape is given up after 10, and then nothing
says that the store cannot be read.
"""


def watch_queues(registry: QueueRegistry, telemetry: Telemetry, *, max_age: float = MAX_AGE) -> None:
    """Show depth, oldest age and last sweep of every queue of the client, and what is wrong with it, for as long as the
    process runs.

    A snapshot is taken when the gauges are read and the last one of this process is older than `max_age` seconds: three
    calls, and one for every 500 queues. One process a client is enough: the figures are the store's, not the process's.
    While the store cannot be read there are no figures, rather than old ones, and `queues_readable` is 0: after 5 s
    where its server does not answer.
    """
    checked_kind("registry", registry, QueueRegistry)
    if not isinstance(telemetry, Telemetry):
        raise InvalidRequest(f"a {type(telemetry).__name__} is not a Telemetry: give a PrometheusTelemetry, or another")
    checked_number("max_age", max_age)
    view = view_of(registry)
    telemetry.read(lambda: _samples(view, max_age))


def _samples(view: ClientView, max_age: float) -> list[Sample]:
    """Return the samples of a look that is not too old."""
    try:
        with Deadline(view.registry.store.seams, WITHIN):
            taken = view.look(max_age)
    except LatchworkError as failure:
        log.warning("no snapshot of the queues (%s): %s", failure.code, failure, extra={"code": failure.code})
        return [Sample(GAUGES["queues_readable"], (), 0)]
    samples = [Sample(GAUGES["queues_readable"], (), 1), *_findings(taken)]
    for queue in taken.queues:
        samples += [*_of(queue.stats), Sample(GAUGES["queue_workers"], (queue.name,), len(queue.at_work))]
    return samples


def _findings(taken: Snapshot) -> Iterator[Sample]:
    """Yield the worst finding of each kind about each queue, and about the client: 2 for a problem, 1 for a warning."""
    worst: dict[tuple[str, str], int] = {}
    for finding in findings_of(taken):
        if finding.state == OK:
            continue
        for where in ((finding.kind, queue) for queue in finding.queues or ("",)):
            worst[where] = max(worst.get(where, 0), 2 if finding.state == PROBLEM else 1)
    for where, weight in worst.items():
        yield Sample(GAUGES["findings"], where, weight)


def _of(facts: QueueStats) -> Iterator[Sample]:
    depth = facts.depth
    for part in PARTS:
        yield Sample(GAUGES["queue_depth"], (facts.name, part), getattr(depth, part))
    yield Sample(GAUGES["queue_oldest"], (facts.name,), facts.oldest_age or 0.0)
    if facts.last_sweep.success:
        yield Sample(GAUGES["queue_last_sweep"], (facts.name,), facts.last_sweep.success / 1000)
