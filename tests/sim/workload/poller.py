"""The poller of a process: threads that wait for latches and locks together, while others release them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from latchwork.coord.latch.latch import CountDownLatch
from latchwork.coord.lock import FencedLock
from latchwork.store import Key, Record

from ..checkers import poller as promises
from ..faults.kinds import ON_CALLS
from ..faults.plans import Plan
from ..world import Process, World
from .base import Scenario, SimStore

LATCHES, LOCKS = 4, 2


class Watched(SimStore):
    """A store whose common reads are noted: when each was sent, and answered."""

    reads: list[list[float]]

    def _get_many(self, keys: Sequence[Key], bins: Sequence[str]) -> list[Record | None]:
        read = [self.world.now, float("inf")]
        self.reads.append(read)
        try:
            return super()._get_many(keys, bins)
        finally:
            read[1] = self.world.now


class Polling(Scenario):
    """A process with many waiting threads, and others that count down and hold the locks that it waits for."""

    name = "poller"
    horizon = 30.0
    patience = 60.0
    kinds = ON_CALLS

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.reads: dict[str, list[list[float]]] = {}

    def setup(self) -> None:
        self.released: dict[str, float] = {}
        self.latches = [f"latch{number}" for number in range(self.rng.randint(1, LATCHES))]
        for name in self.latches:
            self.call(
                self.operator, "create", lambda name=name: CountDownLatch.create(self.operator_store, "sim", name, 1)
            )

    def store_of(self, process: Process) -> Watched:
        store = Watched(self.server, process, self.plan)
        store.reads = self.reads.setdefault(process.name, [])
        return store

    # ---- people

    def people(self) -> None:
        self.person("waits", self._waits, lives=1)
        for number in range(self.rng.randint(1, 2)):
            self.person(f"releases{number}", self._releases)

    def _waits(self, process: Process, store: SimStore) -> None:
        threads = [
            process.spawn(partial(self._thread, process, store, number), f"t{number}", main=True)
            for number in range(self.rng.randint(2, 7))
        ]
        for thread in threads:
            thread.join()

    def _thread(self, process: Process, store: SimStore, number: int) -> None:
        self.idle(process, 0.5)
        for _ in range(self.rng.randint(1, 3)):
            timeout = self.rng.choice((0.3, 3.0, 12.0))
            if self.rng.random() < 0.7:
                name = self.rng.choice(self.latches)
                latch = CountDownLatch.get(store, "sim", name)
                self.call(process, "wait", partial(latch.wait, timeout), name, timeout)
            else:
                self._hold(process, store, timeout)
            self.idle(process, 0.3)

    def _hold(self, process: Process, store: SimStore, timeout: float) -> None:
        name = f"lock{self.rng.randrange(LOCKS)}"
        taken = self.call(
            process, "acquire", partial(FencedLock(store, name, lease=2.0).acquire, timeout), name, timeout
        )
        if taken.ok:
            self.idle(process, self.rng.choice((0.01, 0.4)))
            self.call(process, "release", taken.result.release, name)

    def _releases(self, process: Process, store: SimStore) -> None:
        for name in self.latches:
            self.idle(process, 2.0)
            self.call(process, "count_down", partial(self._count_down, store, name), name)
            if self.rng.random() < 0.3:
                self._hold(process, store, 3.0)

    def _count_down(self, store: SimStore, name: str) -> int:
        left: int = CountDownLatch.get(store, "sim", name).count_down()
        self.released.setdefault(name, self.world.now)
        return left

    # ---- the end

    def check(self) -> None:
        promises.check(self)
