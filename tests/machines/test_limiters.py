"""Rate limiters over two stores, and against a list of what was let through and when."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from latchwork.coord import Decision, RateLimiter
from latchwork.coord.limiter import CELLS, Limit
from latchwork.errors import WaitTimeout

from .twins import Twins, came_to, time_passes

LIMITS = ((4, 1000.0), (6, 9000.0))
picks = st.integers(0, 2)


class Limiters(Twins):
    """Three handles of one limiter with two windows."""

    def start(self):
        self.passed: list[tuple[int, int]] = []

    @initialize()
    def handles(self):
        (first, *also) = LIMITS
        self.limiters = [
            self.both(lambda store: RateLimiter(store, "m", *first, also=also), self.stores) for _ in range(3)
        ]

    def left(self) -> int:
        """How many have room: what was let through counts until a window after the end of its cell."""
        now, rooms = int(self.now * 1000), []
        for most, per in LIMITS:
            width = Limit(most, per).width
            rooms.append(most - sum(n for at, n in self.passed if at // width >= now // width - CELLS))
        return min(rooms)

    @rule(pick=picks, n=st.integers(1, 4))
    def ask(self, pick, n):
        left, now = self.left(), int(self.now * 1000)
        answers = self.both(lambda limiter: self.plainly(limiter.try_acquire(n)), self.limiters[pick])
        allowed, remaining = came_to(answers)
        assert allowed == (n <= left)
        if allowed:
            self.passed.append((now, n))
        assert remaining == self.left()

    @invariant()
    def the_records_are_the_same(self):
        if self.movable:  # else the cells are those of two clocks
            super().the_records_are_the_same()

    def plainly(self, decision: Decision):
        """What does not hang on a real server's clock."""
        return (decision.allowed, decision.remaining)

    @time_passes
    @rule(pick=picks, n=st.integers(1, 4), timeout=st.sampled_from((0, 500, 20_000)))
    def wait(self, pick, n, timeout):
        began = self.now
        answers = self.both(lambda limiter: limiter.acquire(timeout, n=n), self.limiters[pick])
        if came_to(answers) is WaitTimeout:
            assert self.now == began or n > self.left()
            return
        assert n <= self.left()
        self.passed.append((int(self.now * 1000), n))


def test_limiters_let_through_alike_over_both_stores_and_as_a_list_says(agree):
    agree(Limiters, "limiters")
