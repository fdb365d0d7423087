"""The duty that notes each minute how every queue is, for people (docs/protocols P27)."""

from __future__ import annotations

from ....coord.election.term import Leadership
from ....errors import Corrupt
from ....store.rows import Rows
from ..history import MINUTE, Failing, LastMinutes, figures_of, noting
from ..stats import stats_of_each
from ..workers import WorkerReport, now_in, reading, reports_in
from .farms import HasQueues

INTO = 1.0
"""Seconds after the begin of a minute at which it is noted."""
TAKEN_OVER = 15
"""Minutes before its first one that a new leader looks through for what failed in the time of the one before it."""


class Recording:
    """The duty that adds one entry a minute to the history of every queue."""

    def __init__(self, farms: HasQueues) -> None:
        self._farms, self._failure_log = farms, farms.failure_log()
        self._term: int | None = None
        self._workers: dict[tuple[str, str], frozenset[str]] = {}
        self._failing: dict[tuple[str, str], Failing] = {}

    def run(self, leadership: Leadership) -> float:
        """Note the minute; the seconds until the next. Four calls, whatever the number of queues, up to 500; one more
        for each further 500. None in the first minute of a term.
        """
        if leadership.epoch != self._term:  # what was known is of another time
            self._term, self._workers, self._failing = leadership.epoch, {}, {}
            return MINUTE
        queues = self._farms.queues()
        if not queues:
            return MINUTE
        store = queues[0].store
        # 1. Read who works, and what there is; of queues that are new to this term, what was noted of them last.
        names = [(queue.registry.farm_id, queue.name) for queue in queues]
        new = [(name, queue) for name, queue in zip(names, queues, strict=True) if name not in self._failing]
        before = LastMinutes(store.seams.wall(), range(TAKEN_OVER + 1))
        found = store.repeat_many([*map(reading, queues), *(one for _, queue in new for one in before.reading(queue))])
        rows, noted_before = Rows(found[: len(queues)]), before.found(Rows(found[len(queues) :]))
        for (name, _), minutes in zip(new, noted_before, strict=True):
            self._failing[name] = Failing.of(minutes)
        now, reports = now_in(rows) or round(store.seams.wall() * 1000), reports_in(rows)
        stats = stats_of_each([(queue, {}) for queue in queues])
        # 2. Note it, unless another process leads by now; if one does and this is not known yet, it is true all the
        #    same: it is noted for the minute in which it was read.
        leadership.check()
        for name, workers in zip(names, reports, strict=True):
            self._failing[name] = _failing(self._failing[name], workers, now)
        figures = [
            (queue, figures_of(found, workers, self._workers.get(name), leadership.epoch, self._failing[name]))
            for queue, name, found, workers in zip(queues, names, stats, reports, strict=True)
            if found is not None
        ]
        noted = store.repeat_many([noting(queue, now, some) for queue, some in figures])
        # 3. Replace what is damaged; the other errors are logged, and the next minute is tried.
        damaged = [one for one, row in zip(figures, noted, strict=True) if isinstance(row, Corrupt)]
        failures = [row for row in noted.errors() if not isinstance(row, Corrupt)]
        if damaged:
            failures += store.repeat_many([noting(queue, now, some, replaces=True) for queue, some in damaged]).errors()
        for failure in failures:
            self._failure_log.record(failure, "a minute of the history was not noted")
        self._workers = {
            name: frozenset(one.worker for one in workers if not one.is_silent)
            for name, workers in zip(names, reports, strict=True)
        }
        return MINUTE - now / 1000 % MINUTE + INTO


def _failing(before: Failing, workers: list[WorkerReport], now: int) -> Failing:
    """Return what has failed since a message was done, by what the workers reported at this time (ms)."""
    at_work = [one for one in workers if not one.is_silent]
    acked, failed = sum(one.acked for one in at_work), sum(one.failed for one in at_work)
    return before.after(acked, failed, now // 1000 // MINUTE * MINUTE)
