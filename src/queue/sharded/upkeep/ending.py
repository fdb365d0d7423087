"""The duty that publishes what follows on batches, once all of their messages are done (docs/protocols P18)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote

from ....background import Troubles
from ....coord.election.term import Leadership
from ....errors import Corrupt, LatchworkError
from ...ledger.dedup import Wanted, publish_unless_there
from ..batches.records import NAMES, BatchState, Tally, names_in
from ..envelope import Envelope
from ..queue import QueueGroup, ShardedQueue

DISCOVER = 5.0
"""Seconds between two looks at which batches there are."""
LOOK = 1.0
"""Seconds between two looks while some are closed, and not done."""
AGAIN = 15.0
"""Seconds after which a batch whose end failed is tried again."""
STEP = 1_000
"""Batches that are read at once."""
SCOPE = "batch"


class HasQueues(Protocol):
    """What tells the queues whose batches are to be ended."""

    def queues(self) -> list[ShardedQueue]: ...
    def troubles(self) -> Troubles: ...


class Ending:
    """Ends the batches of every queue: publishes what follows, once, and notes it."""

    def __init__(self, farms: HasQueues) -> None:
        self._farms, self._troubles = farms, farms.troubles()
        self._tallies: dict[tuple[str, str, str], Tally] = {}
        self._later: dict[tuple[str, str, str], float] = {}

    def run(self, leadership: Leadership) -> float:
        """End what is done; the seconds until the next look. One call without batches, else two and some a batch."""
        queues = [queue for queue in self._farms.queues() if not isinstance(queue, QueueGroup)]
        if not queues:
            return DISCOVER
        store = queues[0].store
        indexes = store.get_many([queue.batches.index for queue in queues], NAMES)
        listed = [
            (queue, name, since)
            for queue, index in zip(queues, indexes, strict=True)
            for name, since in names_in(index.bins if index else {}).items()
        ]
        there = {(queue.name, name) for queue, name, _ in listed}
        self._tallies = {key: tally for key, tally in self._tallies.items() if key[:2] in there}
        self._later = {key: until for key, until in self._later.items() if key[:2] in there}
        waits = False
        for begin in range(0, len(listed), STEP):
            some = listed[begin : begin + STEP]
            records = store.get_many([queue.batches.key(name) for queue, name, _ in some])
            for (queue, name, since), record in zip(some, records, strict=True):
                leadership.check()
                try:
                    waits = self._look(queue, name, since, record.bins if record else None) or waits
                except LatchworkError as failure:
                    leadership.check()
                    self._troubles.tell(failure, f"batch {name!r} of {queue.name} is ended later")
        return LOOK if waits else DISCOVER

    def _look(self, queue: ShardedQueue, name: str, since: int, bins: Mapping[str, Any] | None) -> bool:
        """End one batch, if it is done; whether it is worth while to look again soon."""
        if bins is None:
            queue.batches.forget(name, since)
            return False
        state = queue.batches.state(name, bins)
        key, now = (queue.name, name, state.tag), queue.store.seams.monotonic()
        if not state.closed or now < self._later.get(key, now):
            return False
        self._later[key] = now + AGAIN  # unless it comes to its end
        if not state.complete:
            queue.batches.settle_open(state)
            state = queue.batches.read(name, state.tag)
        tally = self._tallies.setdefault(key, Tally(queue.batches))
        waits = not state.ended and tally.counts(state).settled < state.given
        if not waits:
            if state.then is not None and not state.ended:
                follow(queue, state, state.then)
            queue.batches.end(state, since)
        del self._later[key]
        return waits


def follow(queue: ShardedQueue, state: BatchState, then: Mapping[str, Any]) -> None:
    """Publish what follows on a batch, however often this is called, by whomever. Five calls, or one."""
    name, data, key, headers = (then.get(part) for part in ("queue", "data", "key", "headers"))
    if not isinstance(name, str) or data is None:
        raise Corrupt(f"the follow-up of batch {state.name!r} of {queue.name} cannot be read: publish it yourself")
    target = queue.registry.get(name)
    target.open_for_publishing()
    pointers = target.pointers
    envelope = Envelope(data, queue.store.seams.unique(), enqueued_at=pointers.now_ms(), headers=headers)
    bound = isinstance(key, str)
    shard = target.shard_of(key) if isinstance(key, str) else pointers.home(sum(state.tag.encode()))
    scope = f"{SCOPE}/{quote(queue.name, safe='')}"
    wanted = Wanted(f"{quote(state.name, safe='')}/{state.tag}", envelope, shard, bound)
    (outcome,) = publish_unless_there(target, [wanted], 2 * state.life, scope=scope)
    if isinstance(outcome, LatchworkError):
        raise outcome
