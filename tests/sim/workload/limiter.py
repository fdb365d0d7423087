"""Rate limiters: callers who ask again and again, some of whom wait; and a store whose clock is set."""

from __future__ import annotations

from latchwork.coord.limiter import LIMITS, RateLimiter
from latchwork.store import Key

from ..checkers import limiter as promises
from ..faults.kinds import Kind
from ..world import Process
from .base import Scenario, SimStore

RECORD = Key(LIMITS, "limiter")
LIMIT, PER = 4, 1.0


class Limiter(Scenario):
    """Several callers of one limiter: four a second."""

    name = "limiter"
    lease = PER
    horizon = 15.0
    environment = (Kind.SERVER_CLOCK, Kind.CLIENT_CLOCK, Kind.SUSPEND, Kind.RESTART_EMPTY, Kind.RESTART_STALE)

    def setup(self) -> None:
        self.changes = self.server.watch(RECORD)

    def people(self) -> None:
        for number in range(self.rng.randint(2, 4)):
            self.person(f"c{number}", self._caller)

    def limiter(self, store: SimStore) -> RateLimiter:
        return RateLimiter(store, "limiter", LIMIT, PER)

    def _caller(self, process: Process, store: SimStore) -> None:
        limiter = self.limiter(store)
        for _ in range(self.rng.randint(4, 10)):
            n = self.rng.choice((1, 1, 1, 2, 4))
            if self.rng.random() < 0.7:
                self.call(process, "try_acquire", lambda n=n: limiter.try_acquire(n), n)
            else:
                timeout = self.rng.choice((0.3, 3.0))
                self.call(process, "acquire", lambda n=n, timeout=timeout: limiter.acquire(timeout, n=n), n)
            self.idle(process, self.rng.choice((0.0, 0.1, 0.5)))

    def settle(self) -> None:
        limiter = self.limiter(self.operator_store)
        self.final = self.call(self.operator, "acquire", lambda: limiter.acquire(6 * PER, n=LIMIT), LIMIT)

    def check(self) -> None:
        promises.check(self)
