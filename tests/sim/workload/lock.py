"""Fenced locks: holders that work on a resource, are paused, die, come back; and challengers."""

from __future__ import annotations

from latchwork.coord.lock import LOCKS, FencedLock, Grant
from latchwork.store import Add, Key, Once, Put

from ..checkers import lock as promises
from ..faults.kinds import WITH_THREADS, Kind
from ..world import Process
from .base import Scenario, SimStore

RESOURCE = Key("sim", "resource")
LOCK = Key(LOCKS, "lock")


class Lock(Scenario):
    """Several holders of one lock who count in a resource that the lock protects."""

    name = "lock"
    lease = 1.0
    kinds = WITH_THREADS
    horizon = 30.0
    environment = (
        Kind.SERVER_CLOCK, Kind.CLIENT_CLOCK, Kind.SUSPEND, Kind.RESTART_EMPTY, Kind.RESTART_STALE,
    )  # fmt: skip

    def setup(self) -> None:
        self.one_name = self.rng.random() < 0.5
        self.changes = self.server.watch(LOCK)
        self.writes = self.server.watch(RESOURCE)

    def people(self) -> None:
        for number in range(self.rng.randint(2, 4)):
            self.person(f"h{number}", self._holder)

    def lock(self, store: SimStore) -> FencedLock:
        """A handle; in half of the runs all handles have the same owner's name, and the same lease."""
        lease = self.lease * (1.0 if self.one_name else self.rng.choice((0.5, 1.0, 2.0)))
        return FencedLock(store, "lock", owner="same" if self.one_name else store.process.name, lease=lease)

    def _holder(self, process: Process, store: SimStore) -> None:
        lock = self.lock(store)
        for _ in range(self.rng.randint(1, 3)):
            grant = self._acquire(process, lock)
            if grant is not None:
                self._work(process, store, grant)
            self.idle(process, self.rng.choice((0.0, 0.1, 1.0)))

    def _acquire(self, process: Process, lock: FencedLock) -> Grant | None:
        alive = self.rng.random() < 0.3
        if self.rng.random() < 0.3:
            return self.call(process, "try_acquire", lambda: lock.try_acquire(keep_alive=alive)).result
        timeout = self.rng.choice((0.1, 1.5, 4.0))
        entry = self.call(process, "acquire", lambda: lock.acquire(timeout, keep_alive=alive))
        return entry.result if entry.ok else None

    def _work(self, process: Process, store: SimStore, grant: Grant) -> None:
        fence = grant.fence
        sealed = self.call(process, "seal", lambda: grant.seal(RESOURCE), fence).ok
        for _ in range(self.rng.randint(0, 3)):
            if sealed:
                # After a write in doubt a prudent holder stops: it may land between the next read and write.
                sealed = not self.call(process, "increment", lambda: self._increment(store, grant), fence).unknown
            if self.rng.random() < 0.4:
                self.call(process, "renew", grant.renew, fence)
            self.idle(process, self.rng.choice((0.0, 0.2, 1.2)))
            self.call(process, "check", grant.check, fence)
        for _ in range(self.rng.choice((0, 1, 1, 1, 2))):
            self.call(process, "release", grant.release, fence)

    def _increment(self, store: SimStore, grant: Grant) -> int:
        """A read and a write of its own, which only the fence makes one step."""
        record = store.get(RESOURCE)
        value = (record.bins.get("n", 0) if record else 0) + 1
        grant.operate(RESOURCE, Put("n", value), Add("writes", 1), once=Once(64))
        return value

    def settle(self) -> None:
        lock = self.lock(self.operator_store)
        self.operator.seams.sleep(4 * self.lease)
        self.final = self.call(self.operator, "acquire", lambda: lock.acquire(3 * self.lease))

    def check(self) -> None:
        promises.check(self)
