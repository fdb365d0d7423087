"""Fenced semaphores: holders of some permits that work on a resource, are paused, die; and who changes the size."""

from __future__ import annotations

from latchwork.coord.semaphore import SEMAPHORES, Permits, Semaphore
from latchwork.store import Add, Key, Once

from ..checkers import semaphore as promises
from ..faults.kinds import WITH_THREADS, Kind
from ..world import Process
from .base import Scenario, SimStore

RESOURCE = Key("sim", "resource")
RECORD = Key(SEMAPHORES, "semaphore")
SIZE = 3


class SemaphoreScenario(Scenario):
    """Several holders of one semaphore of three, each of one to three permits."""

    name = "semaphore"
    lease = 1.0
    kinds = WITH_THREADS
    horizon = 30.0
    environment = (
        Kind.SERVER_CLOCK, Kind.CLIENT_CLOCK, Kind.SUSPEND, Kind.RESTART_EMPTY, Kind.RESTART_STALE,
    )  # fmt: skip

    def setup(self) -> None:
        self.changes = self.server.watch(RECORD)
        self.writes = self.server.watch(RESOURCE)

    def people(self) -> None:
        for number in range(self.rng.randint(2, 5)):
            self.person(f"h{number}", self._holder)
        if self.rng.random() < 0.3:
            self.person("boss", self._boss)

    def semaphore(self, store: SimStore) -> Semaphore:
        """A handle; its lease is its own."""
        lease = self.lease * self.rng.choice((0.5, 1.0, 2.0))
        return Semaphore(store, "semaphore", permits=SIZE, owner=store.process.name, lease=lease)

    def _holder(self, process: Process, store: SimStore) -> None:
        semaphore = self.semaphore(store)
        for _ in range(self.rng.randint(1, 3)):
            permits = self._acquire(process, semaphore, self.rng.choice((1, 1, 1, 2, 3)))
            if permits is not None:
                self._work(process, permits)
            self.idle(process, self.rng.choice((0.0, 0.1, 1.0)))

    def _boss(self, process: Process, store: SimStore) -> None:
        semaphore = self.semaphore(store)
        for _ in range(self.rng.randint(1, 2)):
            self.idle(process, 2.0)
            size = self.rng.randint(1, 4)
            self.call(process, "resize", lambda size=size: semaphore.resize(size), size)

    def _acquire(self, process: Process, semaphore: Semaphore, n: int) -> Permits | None:
        alive = self.rng.random() < 0.3
        if self.rng.random() < 0.3:
            return self.call(process, "try_acquire", lambda: semaphore.try_acquire(n, keep_alive=alive), n).result
        timeout = self.rng.choice((0.1, 1.5, 4.0))
        entry = self.call(process, "acquire", lambda: semaphore.acquire(n, timeout=timeout, keep_alive=alive), n)
        return entry.result if entry.ok else None

    def _work(self, process: Process, permits: Permits) -> None:
        fence = permits.fence
        self.call(process, "seal", lambda: permits.seal(RESOURCE), fence)
        for _ in range(self.rng.randint(0, 2)):
            self.call(process, "write", lambda: _write(permits), fence, permits.slots)
            if self.rng.random() < 0.4:
                self.call(process, "renew", permits.renew, fence)
            self.idle(process, self.rng.choice((0.0, 0.2, 1.2)))
            self.call(process, "check", permits.check, fence)
        for _ in range(self.rng.choice((0, 1, 1, 1, 2))):
            self.call(process, "release", permits.release, fence)

    def settle(self) -> None:
        semaphore = self.semaphore(self.operator_store)
        self.operator.seams.sleep(5 * self.lease)
        record = self.operator_store.get(RECORD, "permits")
        size = record.bins["permits"] if record else SIZE
        self.final = self.call(self.operator, "acquire", lambda: semaphore.acquire(size, timeout=4 * self.lease), size)

    def check(self) -> None:
        promises.check(self)


def _write(permits: Permits) -> None:
    permits.operate(RESOURCE, Add("n", 1), once=Once(64))
