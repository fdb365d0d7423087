"""Read-write locks: readers and writers of one resource, who are paused, die, and come back."""

from __future__ import annotations

from latchwork.coord.rwlock import RWLOCKS, ReadGrant, ReadWriteLock, WriteGrant
from latchwork.store import Add, Key, Once, Put

from ..checkers import rwlock as promises
from ..faults.kinds import WITH_THREADS, Kind
from ..world import Process
from .base import Scenario, SimStore

RESOURCE = Key("sim", "resource")
RECORD = Key(RWLOCKS, "rwlock")


class ReadWrite(Scenario):
    """Several users of one read-write lock; a writer makes two bins of the resource equal again."""

    name = "rwlock"
    lease = 1.0
    kinds = WITH_THREADS
    horizon = 30.0
    environment = (
        Kind.SERVER_CLOCK, Kind.CLIENT_CLOCK, Kind.SUSPEND, Kind.RESTART_EMPTY, Kind.RESTART_STALE,
    )  # fmt: skip

    def setup(self) -> None:
        self.changes = self.server.watch(RECORD)
        self.writes = self.server.watch(RESOURCE)
        self.unsure: set[int] = set()

    def people(self) -> None:
        for number in range(self.rng.randint(2, 5)):
            self.person(f"u{number}", self._user)

    def lock(self, store: SimStore) -> ReadWriteLock:
        lease = self.lease * self.rng.choice((0.5, 1.0, 2.0))
        return ReadWriteLock(store, "rwlock", owner=store.process.name, lease=lease)

    def _user(self, process: Process, store: SimStore) -> None:
        lock = self.lock(store)
        for _ in range(self.rng.randint(1, 4)):
            if self.rng.random() < 0.6:
                self._read(process, store, lock)
            else:
                self._write(process, store, lock)
            self.idle(process, self.rng.choice((0.0, 0.1, 1.0)))

    def _read(self, process: Process, store: SimStore, lock: ReadWriteLock) -> None:
        grant = self._acquire(process, "read", lock)
        if not isinstance(grant, ReadGrant):
            return
        generation = grant.generation
        for _ in range(self.rng.randint(1, 2)):
            self.call(process, "look", lambda: store.get(RESOURCE), generation)
            self.idle(process, self.rng.choice((0.0, 0.2, 1.2)))
            self.call(process, "check", grant.check, generation, grant._held._id)
        if self.rng.random() < 0.3:
            self.call(process, "derive", lambda: grant.operate(RESOURCE, Add("derived", 1), once=Once(64)), generation)
        self._release(process, grant)

    def _write(self, process: Process, store: SimStore, lock: ReadWriteLock) -> None:
        grant = self._acquire(process, "write", lock)
        if not isinstance(grant, WriteGrant):
            return
        fence = grant.fence
        sealed = self.call(process, "seal", lambda: grant.seal(RESOURCE), fence).ok
        for _ in range(self.rng.randint(0, 2)):
            if sealed:
                # After a write in doubt a prudent writer stops: it may land between the next read and write.
                sealed = not self.call(process, "increment", lambda: _increment(store, grant), fence).unknown
            if self.rng.random() < 0.4:
                self.call(process, "renew", grant.renew, fence, grant._held._id)
            self.idle(process, self.rng.choice((0.0, 0.2, 1.2)))
            self.call(process, "check", grant.check, fence, grant._held._id)
        if grant.abandoned and self.rng.random() < 0.5:
            self.call(process, "clear", grant.clear_abandoned, fence)
        self._release(process, grant)

    def _acquire(self, process: Process, verb: str, lock: ReadWriteLock) -> ReadGrant | WriteGrant | None:
        alive = self.rng.random() < 0.3
        if self.rng.random() < 0.3:
            name = f"try_{verb}"
            return self.call(process, name, lambda: getattr(lock, name)(keep_alive=alive)).result
        timeout = self.rng.choice((0.1, 1.5, 4.0))
        entry = self.call(process, verb, lambda: getattr(lock, verb)(timeout, keep_alive=alive))
        return entry.result if entry.ok else None

    def _release(self, process: Process, grant: ReadGrant | WriteGrant) -> None:
        for _ in range(self.rng.choice((0, 1, 1, 1, 2))):
            self.call(process, "release", grant.release, grant.fence, grant._held._id)

    def settle(self) -> None:
        lock = self.lock(self.operator_store)
        self.operator.seams.sleep(4 * self.lease)
        self.final = self.call(self.operator, "write", lambda: lock.write(4 * self.lease))

    def check(self) -> None:
        promises.check(self)


def _increment(store: SimStore, grant: WriteGrant) -> int:
    """A read and a write of its own, which only the fence makes one step."""
    record = store.get(RESOURCE)
    value = (record.bins.get("n", 0) if record else 0) + 1
    grant.operate(RESOURCE, Put("n", value), Add("writes", 1), once=Once(64))
    return value
