"""Prefetch: how many messages a worker claims at once, and those that are claimed and not begun (docs/protocols P5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ....errors import InvalidRequest, LatchworkError
from ....inputs import is_int
from ....plain import shown
from ..delivery import Delivery, extend_all
from ..envelope import Reason
from ..queue import ShardedQueue
from ..subqueue import MAX_RECEIVE
from .inflight import EXTENSIONS, extend
from .settlements import Settlements

PREFETCH = 16
"""Messages that a worker claims at once, at the most, where nothing else is asked for."""
SPAN = 0.02
"""Seconds in which what is claimed at once should be handled, and for which an acknowledgement may wait for others."""
WAIT = 0.1
"""Seconds after which a message that was claimed and not begun is handed back, as another process may be idle."""
WEIGHT = 1 / 20
"""Of the latest run in the mean time of a handler: slow ones are remembered for some fifty runs."""


def checked_prefetch(prefetch: int | None, *, batching: bool, ordered: bool) -> int:
    """The messages that are claimed at once at the most. Raises `InvalidRequest`."""
    if prefetch is None:
        return 1 if ordered else PREFETCH
    if not is_int(prefetch) or not 1 <= prefetch <= MAX_RECEIVE:
        raise InvalidRequest(
            f"prefetch is {shown(prefetch)}; it must be a whole number from 1 (no prefetch) to {MAX_RECEIVE}, or None"
        )
    if batching:
        raise InvalidRequest(f"prefetch is {prefetch} and the queue has batching: its max_size says how many; leave it")
    if ordered and prefetch > 1:
        raise InvalidRequest(f"prefetch is {prefetch}; an ordered consumer takes one message at a time: leave it out")
    return prefetch


class Pace:
    """How many messages a worker claims at once: as many as are handled within `SPAN`, and more than one only while
    claims come back full. About right only: workers that ask at once may all see one number.
    """

    def __init__(self, most: int) -> None:
        self._most, self._allowed = most, 1
        self._mean: float | None = None

    @property
    def size(self) -> int:
        """How many to claim next."""
        if self._mean is None:
            return 1
        quick = self._most if self._mean * self._most <= SPAN else int(SPAN / self._mean)
        return max(1, min(self._allowed, quick))

    def claimed(self, asked: int, found: int) -> None:
        """Twice as many the next time where there were as many as were asked for; else as many as there were."""
        self._allowed = min(2 * asked, self._most) if found >= asked else max(1, found)

    def one_by_one(self) -> None:
        """Claim one the next time, and more only as claims come back full."""
        self._allowed = 1

    def handled(self, seconds: float) -> None:
        """Take note of how long a handler ran."""
        self._mean = seconds if self._mean is None else self._mean + (seconds - self._mean) * WEIGHT


@dataclass(slots=True, eq=False)
class Waiting:
    """A message that was claimed and not begun. Times in seconds, monotonic.

    extended: when its lease began.  stays: whether it could not be handed back, and is handled here.
    """

    delivery: Delivery
    received: float
    extended: float
    stays: bool = False


class Prefetched:
    """The messages of one consumer that are claimed and not begun, for all of its workers. Safe between them.

    A message that comes back because its consumer died is behind all others: it may have been the cause.
    """

    def __init__(self, queue: ShardedQueue, settlements: Settlements) -> None:
        self._settlements, self._seams = settlements, queue.store.seams
        self._sweep = queue.config.sweep_duration.total_seconds()
        self._lock = self._seams.lock()
        self._waiting: deque[Waiting] = deque()
        self._over = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, deliveries: Sequence[Delivery]) -> None:
        """Keep messages that were just claimed."""
        waiting = [Waiting(one, one.received, one.received) for one in sorted(deliveries, key=survived_its_consumer)]
        with self._lock:
            self._waiting += waiting

    def put_back(self, one: Waiting) -> None:
        """Keep a message that was taken and may not begin yet."""
        with self._lock:
            self._waiting.append(one)

    def take(self) -> Waiting | None:
        """The next message, to be handled now; None where there is none."""
        while True:
            with self._lock:
                one = self._waiting.popleft() if self._waiting else None
            if one is None:
                return None
            if self._still_ours([one]):
                return one

    def hand_back(self, waited: float = 0.0, *, last: bool = False) -> None:
        """Let others have what has waited for so many seconds.

        What cannot be handed back stays, and is handled here: it is tried once, as each try may leave a copy behind.
        last: the consumer has ended: all of it is tried again, and the sweeper sees to what does not go.
        """
        now = self._seams.monotonic()
        with self._lock:
            self._over = self._over or last
            goes = [one for one in self._waiting if self._over or not (one.stays or now - one.received < waited)]
            self._waiting = deque(one for one in self._waiting if one not in goes)
        ours = self._still_ours(goes)
        left = self._settlements.hand_back([one.delivery for one in ours]) if ours else []
        stays = [one for one in ours if one.delivery in left]
        for one in stays:
            one.stays = True
        with self._lock:
            if not self._over:
                self._waiting += stays

    def keep(self) -> None:
        """Extend what is due."""
        now = self._seams.monotonic()
        with self._lock:
            due = [one for one in self._waiting if now - one.extended > self._sweep / EXTENSIONS]
        for one in due:
            one.extended = now
        if due:
            extend([one.delivery for one in due])

    def _still_ours(self, waiting: Sequence[Waiting]) -> list[Waiting]:
        """Return the messages that no sweep has taken, as it may in a pause of the process. A call for late ones."""
        now = self._seams.monotonic()
        return [one for one in waiting if now - one.extended < self._sweep / 2 or _extended(one.delivery)]


def _extended(delivery: Delivery) -> bool:
    try:
        return not extend_all([delivery])
    except LatchworkError:
        return False


def survived_its_consumer(delivery: Delivery) -> bool:
    """Whether the message comes back because a consumer died, or was paused, while it had it."""
    return delivery.reason == Reason.SWEPT.value
