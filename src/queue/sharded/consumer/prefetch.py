"""Prefetch: how many messages a worker claims at once, and the messages that are claimed and not begun (docs/protocols
P5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter

from ....errors import InvalidRequest
from ....inputs import is_int
from ....plain import shown
from ..delivery import Delivery
from ..envelope import Reason
from ..subqueue import MAX_RECEIVE
from ..subscription import Subscription
from .settlements import EXTENSIONS, Settlements, extend

PREFETCH = 16
"""Messages that a worker claims at once, at most, by default."""
SPAN = 0.02
"""Seconds in which what is claimed at once should be handled, and for which an acknowledgement may wait for others."""
WAIT = 0.1
"""Seconds after which a message that was claimed and not begun is handed back, as another process may be idle."""
WEIGHT = 1 / 20
"""The weight of the latest run in the mean duration of a handler: slow runs count for about fifty runs."""


def checked_prefetch(prefetch: int | None, *, batching: bool, ordered: bool) -> int:
    """Return how many messages are claimed at once, at most. Raises `InvalidRequest`."""
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
    """The number of messages that a worker claims at once: as many as are handled within `SPAN`, and more than one only
    while claims return as many as were asked for. A rough number: workers that ask at the same moment may all see the
    same one.
    """

    def __init__(self, most: int) -> None:
        self._most, self._allowed, self._quick = most, 1, 1
        self._mean: float | None = None
        self.size = 1
        """The number of messages to claim next."""

    def claimed(self, asked: int, found: int) -> None:
        """Note a claim: claim twice as many next time if there were as many as asked for; else as many as
        there were.
        """
        self._allowed = min(2 * asked, self._most) if found >= asked else max(1, found)
        self.size = min(self._allowed, self._quick)

    def one_by_one(self) -> None:
        """Claim one the next time, and more only as claims come back full."""
        self._allowed = self.size = 1

    def handled(self, seconds: float) -> None:
        """Take note of how long a handler ran."""
        self._mean = seconds if self._mean is None else self._mean + (seconds - self._mean) * WEIGHT
        self._quick = self._most if self._mean * self._most <= SPAN else max(1, int(SPAN / self._mean))
        self.size = min(self._allowed, self._quick)


@dataclass(slots=True, eq=False)
class ClaimedMessage:
    """A message that was claimed and not begun. Times in seconds, monotonic.

    extended: when it was extended last, or that was tried.
    survived: whether it comes back because a consumer died, or was paused, while it had it.
    stays: whether it could not be handed back, and is handled here.
    """

    delivery: Delivery
    received: float
    extended: float
    survived: bool
    stays: bool = False


class Prefetched:
    """The messages of one consumer that are claimed and not begun, for all of its workers. Safe between them.

    A message that comes back because its consumer died is behind all others: it may have been the cause.
    """

    def __init__(self, queue: Subscription, settlements: Settlements) -> None:
        self._settlements, self._seams = settlements, queue.store.seams
        self._sweep = queue.config.sweep_duration.total_seconds()
        self._safe = self._sweep / 2
        """Seconds after which a sweep may have taken a message, as in a pause of the process."""
        self._lock = self._seams.lock()
        self.waiting: deque[ClaimedMessage] = deque()
        self._over = False

    def put(self, deliveries: Sequence[Delivery]) -> None:
        """Keep messages that were just claimed."""
        swept = Reason.SWEPT.value
        waiting = [ClaimedMessage(d, d.received, d.received, d.held.envelope.reason == swept) for d in deliveries]
        waiting.sort(key=attrgetter("survived"))
        with self._lock:
            self.waiting += waiting

    def put_back(self, one: ClaimedMessage) -> None:
        """Keep a message that was taken and may not begin yet."""
        with self._lock:
            if one not in self.waiting:
                self.waiting.append(one)

    def take(self) -> ClaimedMessage | None:
        """Return the next message, to be handled now; None if there is none. A call for a late one, which a sweep may
        have taken.
        """
        while True:
            with self._lock:
                one = self.waiting.popleft() if self.waiting else None
            if one is None or self._ours([one]):
                return one
            self._settlements.leave_to_the_sweep([one.delivery])

    def hand_back(self, waited: float = 0.0, *, last: bool = False) -> None:
        """Hand back the messages that have waited for `waited` seconds.

        What cannot be handed back stays, and is handled here: it is tried once, as each try may leave a copy behind.
        last: the consumer has ended: all messages are tried again; the sweeper moves the ones that fail again.
        """
        now = self._seams.monotonic()
        with self._lock:
            self._over = self._over or last
            goes = [*filter(lambda one: self._over or not (one.stays or now - one.received < waited), self.waiting)]
            self.waiting = deque(one for one in self.waiting if one not in goes)
        stays = goes
        try:
            ours = self._ours(goes)
            self._settlements.leave_to_the_sweep([one.delivery for one in goes if one not in ours])
            left = self._settlements.hand_back([one.delivery for one in ours]) if ours else []
            stays = [one for one in ours if one.delivery in left]
        finally:  # after a defect all of them stay
            for one in stays:
                one.stays = True
            with self._lock:
                if not self._over:
                    self.waiting += stays

    def keep(self) -> None:
        """Extend what is due."""
        now = self._seams.monotonic()
        with self._lock:
            waiting = tuple(self.waiting)
        due = [one for one in waiting if now - one.extended > self._sweep / EXTENSIONS]
        for one in due:
            one.extended = now
        if due:
            extend([one.delivery for one in due])

    def _ours(self, some: Sequence[ClaimedMessage]) -> list[ClaimedMessage]:
        """Return which of these messages are still this consumer's. A call where a sweep may have taken some."""
        late = [one.delivery for one in some if self._is_late(one)]
        if late:
            with suppress(Exception):  # a defect, too: who does not know whether it has a message leaves it
                extend(late)
        return [one for one in some if not self._is_late(one)]

    def _is_late(self, one: ClaimedMessage) -> bool:
        """Whether a sweep may have taken the message."""
        return self._seams.monotonic() - max(one.delivery.received, one.delivery.extended) >= self._safe
