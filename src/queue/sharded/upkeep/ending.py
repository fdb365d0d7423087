"""The duty that ends batches which no other process has ended, because it died or was in doubt; and that tells of
parked messages (docs/protocols P18).
"""

from __future__ import annotations

from typing import NamedTuple

from ....coord.election.term import Leadership
from ....errors import LatchworkError
from ....store import Record
from ....store.rows import chunked
from ...rows import read_each, readable
from ..batches.blocks import place_of
from ..batches.records import NAMES, BatchState, Tally, names_in
from ..peek import unfired
from ..publishing.batch_end import end, tell_parked
from ..queue import ShardedQueue
from .farms import HasQueues

DISCOVER = 5.0
"""Seconds between two looks at which batches there are."""
LOOK = 1.0
"""Seconds between two looks while some are closed, and not done."""
AGAIN = 15.0
"""Seconds after which a batch whose end failed is tried again."""
STEP = 1_000
"""Batches that are read at once."""
WHOLE = 60.0
"""Seconds after which all parked messages are looked at again, and not only the ones that are new."""


class _Looked(NamedTuple):
    """How far the parked messages of a queue were looked at since a moment: the last pointer of each shard."""

    since: float
    last: dict[int, int]


class Ending:
    """The duty that ends the batches of every queue: publishes what follows, once, and notes it."""

    def __init__(self, farms: HasQueues) -> None:
        self._farms, self._failure_log = farms, farms.failure_log()
        self._tallies: dict[tuple[str, str, str], Tally] = {}
        self._later: dict[tuple[str, str, str], float] = {}
        self._looked: dict[str, _Looked] = {}

    def run(self, leadership: Leadership) -> float:
        """End the batches that are done; return the seconds until the next run. One call without batches, else two and
        some for each batch.
        """
        queues = [queue for queue in self._farms.queues() if not queue.reader]
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
        waits, untold = False, dict[ShardedQueue, dict[str, BatchState]]()
        for some in chunked(listed, STEP):
            records = read_each(store, [queue.batches.key(name) for queue, name, _ in some])
            for (queue, name, since), record in zip(some, records, strict=True):
                leadership.check()
                try:
                    state = self._state(queue, name, since, record)
                    if state is not None:
                        if state.on_parked is not None and not state.told and not state.ended:
                            untold.setdefault(queue, {})[queue.batches.place(state, 0).batch] = state
                        waits = self._look(queue, since, state) or waits
                except Exception as failure:  # noqa: BLE001 - a defect that one batch meets must not stop the others
                    leadership.check()
                    self._failure_log.record(failure, f"batch {name!r} of {queue.name} is ended later")
        self._looked = {
            name: looked for name, looked in self._looked.items() if any(name == one.name for one in untold)
        }
        for queue, states in untold.items():
            leadership.check()
            try:
                self._tell(queue, states)
            except Exception as failure:  # noqa: BLE001 - as above
                leadership.check()
                self._failure_log.record(failure, f"parked messages of batches of {queue.name} are told of later")
        return LOOK if waits else DISCOVER

    def _tell(self, queue: ShardedQueue, states: dict[str, BatchState]) -> None:
        """Publish for each of these batches, named by their ids, that a message of it is parked, if any is. A call,
        and one for each 1,000 messages that were parked since the last look.
        """
        parked, now = queue.parked.pointers, queue.store.seams.monotonic()
        looked = self._looked.get(queue.name)
        if looked is None or now >= looked.since + WHOLE:  # who parked one may have been paused before it was there
            looked = self._looked[queue.name] = _Looked(now, {})
        new = [slot for slot in unfired(parked) if slot.pointer > looked.last.get(slot.shard, 0)]
        done = True
        for some in chunked(new, STEP):
            for envelope in readable(parked.look(some)):
                place = place_of(envelope) if envelope else None
                state = states.pop(place.batch, None) if place is not None else None
                if state is not None:
                    done = self._told(queue, state) and done
        if done:
            looked.last.update((slot.shard, slot.pointer) for slot in new)

    def _told(self, queue: ShardedQueue, state: BatchState) -> bool:
        """Tell of a parked message of one batch; whether that could be done."""
        try:
            tell_parked(queue, state)
        except LatchworkError as failure:  # as where the queue that it goes to is deactivated
            self._failure_log.record(failure, f"batch {state.name!r} of {queue.name} tells of parked messages later")
            return False
        return True

    def _state(
        self, queue: ShardedQueue, name: str, since: int, record: Record | LatchworkError | None
    ) -> BatchState | None:
        """Return a batch that is listed; None where there is none."""
        if isinstance(record, LatchworkError):
            raise record
        if record is None:
            queue.batches.forget(name, since)
            return None
        return queue.batches.state(name, record.bins)

    def _look(self, queue: ShardedQueue, since: int, state: BatchState) -> bool:
        """End one batch, if it is done; whether it is worth looking again soon."""
        name = state.name
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
