"""The rate of a consumer: a limiter that is asked before a handler begins (docs/protocols P5, P13)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ....coord.limiter import RateLimiter
from ....errors import InvalidRequest
from ....forks import called
from ....plain import shown
from ....seams import Seams
from ..delivery import Delivery

MOST_KEYS = 10_000
"""Keys whose limiter and next turn a process remembers."""


class Rate:
    """At most as many handlers as `limiter` allows, over all processes; with `per_key`, as many of each key.

    Safe to share between the workers of a consumer.

    refused: called each time that the limiter lets no handler begin, and while it is known to; not where it cannot be
        asked.
    """

    def __init__(
        self,
        limiter: RateLimiter,
        per_key: Callable[[Delivery], str] | None,
        seams: Seams,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._limiter, self._per_key, self._seams, self._refused = limiter, per_key, seams, refused
        self._limiters: dict[str, RateLimiter] = {}
        self._turns: dict[str, float] = {}
        self._lock = seams.lock()
        # A limiter has room again a tenth of the window late (P13).
        self._between = max(1.1 * limit.per / limit.most for limit in limiter.limits)
        self._closed_until, self._refuses = 0.0, False

    @property
    def keyed(self) -> bool:
        """Whether messages of other keys may begin while the messages of one key may not."""
        return self._per_key is not None

    def key_of(self, delivery: Delivery) -> str:
        """Return the key of a message. Raises what `per_key` raises, and `InvalidRequest` for what cannot be a key."""
        if self._per_key is None:
            return ""
        key = called(self._per_key, delivery)
        if key not in self._limiters:
            if len(self._limiters) >= MOST_KEYS:
                self._limiters.clear()
            self._limiters[key] = self._limiter.of_key(key)
        return key

    def ask(self, key: str) -> float:
        """Return seconds until a handler may begin; 0 = it may now, and is counted. Raises the store's errors."""
        limiter = self._limiters.get(key) or (self._limiter.of_key(key) if key else self._limiter)
        self._refuses = False  # nor is it said to, where it cannot be asked
        decision = limiter.try_acquire()
        if decision.allowed:
            return 0.0
        self._refuses = True
        self._refused()
        return max(decision.retry_after, 0.001)

    def turn_of(self, key: str, wait: float, most: float) -> float:
        """Return after how many seconds, `most` at most, a message of the key should come again, behind the messages
        that this process has put off.

        One whose turn is later than that has none yet: it asks again then. Else it would take a turn each time, and the
        turns of the key would never be reached.
        """
        with self._lock:
            now = self._seams.monotonic()
            turn = max(now + wait, self._turns.pop(key, 0.0))
            if len(self._turns) >= MOST_KEYS:  # the key that was put off the longest ago
                self._turns.pop(next(iter(self._turns)))
            self._turns[key] = turn + self._between if turn <= now + most else turn
        return min(turn - now, most)

    # ---- without keys: no message may begin

    def close(self, seconds: float) -> None:
        """Remember that nothing may begin for this time."""
        self._closed_until = self._seams.monotonic() + seconds

    def note_closed(self) -> None:
        """Note that nothing may begin, if the limiter has said so."""
        if self._refuses:
            self._refused()

    @property
    def closed(self) -> float:
        """Seconds for which nothing may begin."""
        return max(0.0, self._closed_until - self._seams.monotonic())


def checked_rate(
    rate: Any, per_key: Any, *, batching: bool, seams: Seams, refused: Callable[[], None] = lambda: None
) -> Rate | None:
    """Return the rate that was asked for, None if there is none. Raises `InvalidRequest`."""
    if rate is None:
        if per_key is not None:
            raise InvalidRequest("per_key without rate: give rate=RateLimiter(store, name, limit, per)")
        return None
    if not isinstance(rate, RateLimiter):
        raise InvalidRequest(f"rate is {shown(rate)}; give a latchwork.coord.RateLimiter, or None")
    if per_key is not None and (not callable(per_key) or inspect.iscoroutinefunction(per_key)):
        raise InvalidRequest(f"per_key is {shown(per_key)}; give a function from a delivery to text, or None")
    if batching:
        raise InvalidRequest(
            "rate for a queue with batching: call limiter.acquire(n=len(deliveries)) in the handler instead"
        )
    return Rate(rate, per_key, seams, refused)
