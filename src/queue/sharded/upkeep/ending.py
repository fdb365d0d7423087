"""The duty that ends batches which no other process has ended, because it died or was in doubt (docs/protocols P18)."""

from __future__ import annotations

from ....coord.election.term import Leadership
from ....errors import LatchworkError
from ....store import Record
from ....store.rows import chunked
from ...rows import read_each
from ..batches.ends import end
from ..batches.records import NAMES, Tally, names_in
from ..queue import QueueGroup, ShardedQueue
from .farms import HasQueues

DISCOVER = 5.0
"""Seconds between two looks at which batches there are."""
LOOK = 1.0
"""Seconds between two looks while some are closed, and not done."""
AGAIN = 15.0
"""Seconds after which a batch whose end failed is tried again."""
STEP = 1_000
"""Batches that are read at once."""


class Ending:
    """The duty that ends the batches of every queue: publishes what follows, once, and notes it."""

    def __init__(self, farms: HasQueues) -> None:
        self._farms, self._failure_log = farms, farms.failure_log()
        self._tallies: dict[tuple[str, str, str], Tally] = {}
        self._later: dict[tuple[str, str, str], float] = {}

    def run(self, leadership: Leadership) -> float:
        """End the batches that are done; return the seconds until the next run. One call without batches, else two and
        some for each batch.
        """
        queues = [queue for queue in self._farms.queues() if not isinstance(queue, QueueGroup)]
        if not queues:
            return DISCOVER
        store = queues[0].store
        listed: list[tuple[ShardedQueue, str, int]] = []
        indexes = read_each(store, [queue.batches.index for queue in queues], NAMES)
        for queue, index in zip(queues, indexes, strict=True):
            if isinstance(index, LatchworkError):
                self._failure_log.record(index, f"batches of {queue.name} are ended later")
            elif index is not None:
                listed += [(queue, name, since) for name, since in names_in(index.bins).items()]
        there = {(queue.name, name) for queue, name, _ in listed}
        self._tallies = {key: tally for key, tally in self._tallies.items() if key[:2] in there}
        self._later = {key: until for key, until in self._later.items() if key[:2] in there}
        waits = False
        for some in chunked(listed, STEP):
            records = read_each(store, [queue.batches.key(name) for queue, name, _ in some])
            for (queue, name, since), record in zip(some, records, strict=True):
                leadership.check()
                try:
                    waits = self._look(queue, name, since, record) or waits
                except Exception as failure:  # noqa: BLE001 - a defect that one batch meets must not stop the others
                    leadership.check()
                    self._failure_log.record(failure, f"batch {name!r} of {queue.name} is ended later")
        return LOOK if waits else DISCOVER

    def _look(self, queue: ShardedQueue, name: str, since: int, record: Record | LatchworkError | None) -> bool:
        """End one batch, if it is done; whether it is worth looking again soon."""
        if isinstance(record, LatchworkError):
            raise record
        if record is None:
            queue.batches.forget(name, since)
            return False
        state = queue.batches.state(name, record.bins)
        key, now = (queue.name, name, state.tag), queue.store.seams.monotonic()
        if not state.closed or now < self._later.get(key, now):
            return False
        self._later[key] = now + AGAIN  # removed if the batch ends
        if not state.complete:
            queue.batches.settle_open(state)
            state = queue.batches.read(name, state.tag)
        tally = self._tallies.setdefault(key, Tally(queue.batches))
        waits = not state.ended and not tally.is_done(state)
        if not waits:
            end(queue, state, since)
        del self._later[key]
        return waits
