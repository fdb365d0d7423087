"""The duty that notes each minute how every queue is, for people (docs/protocols P27)."""

from __future__ import annotations

from ....coord.election.term import Leadership
from ....errors import Corrupt
from ..history import MINUTE, figures_of, noting
from ..stats import stats_of_each
from ..workers import now_in, reading, reports_in
from .farms import HasQueues

INTO = 1.0
"""Seconds after the begin of a minute at which it is noted."""


class Recording:
    """The duty that adds one entry a minute to the history of every queue."""

    def __init__(self, farms: HasQueues) -> None:
        self._farms, self._failure_log = farms, farms.failure_log()
        self._term: int | None = None
        self._workers: dict[tuple[str, str], frozenset[str]] = {}

    def run(self, leadership: Leadership) -> float:
        """Note the minute; the seconds until the next. Four calls, whatever the number of queues, up to 500; one more
        for each further 500. None in the first minute of a term.
        """
        if leadership.epoch != self._term:  # what was known is of another time
            self._term, self._workers = leadership.epoch, {}
            return MINUTE
        queues = self._farms.queues()
        if not queues:
            return MINUTE
        store = queues[0].store
        # 1. Read who works, and what there is.
        rows = store.repeat_many([reading(queue) for queue in queues])
        now, reports = now_in(rows) or round(store.seams.wall() * 1000), reports_in(rows)
        stats = stats_of_each([(queue, {}) for queue in queues])
        # 2. Note it, unless another process leads by now; if one does and this is not known yet, it is true all the
        #    same: it is noted for the minute in which it was read.
        leadership.check()
        names = [(queue.registry.farm_id, queue.name) for queue in queues]
        figures = [
            (queue, figures_of(found, workers, self._workers.get(name), leadership.epoch))
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
