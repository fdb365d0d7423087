"""The record store's own promise: updates with a token happen exactly once (docs/protocols P1)."""

from __future__ import annotations

from typing import Any

from latchwork.store import NEVER, Add, Bin, Exists, Key, Once, Param, Put

from ..checkers.models import Counter, read_anew
from ..faults.kinds import Kind
from ..world import Process
from .base import Scenario, SimStore

COUNTER = Key("sim", "counter")
N = Bin("n")
WAS = N.eq(Param("was", int))


class Store(Scenario):
    """Several processes add to, compare-and-set and read one integer, each update exactly once."""

    name = "store"
    horizon = 30.0
    span = 1.0
    environment = (Kind.SERVER_CLOCK, Kind.CLIENT_CLOCK, Kind.SUSPEND)

    def setup(self) -> None:
        # A refused compare-and-set is final only where its request cannot arrive again: docs/reliability.md.
        self.plan.twice_refused = False
        self.capacity = self.rng.choice((2, 3, 8, 64))
        self.remembers = self.rng.random() < 0.5
        self.adds = self.rng.choice((0.0, 0.6, 0.8))
        self.operator_store.operate(COUNTER, Put("n", 0), exists=Exists.CREATE, ttl=NEVER)

    def people(self) -> None:
        for number in range(self.rng.randint(2, 4)):
            self.person(f"p{number}", self._work)

    def _work(self, process: Process, store: SimStore) -> None:
        for _ in range(self.rng.randint(2, 5)):
            self._one(process, store)
            self.idle(process, self.rng.choice((0.0, 0.01, 0.5)))

    def _one(self, process: Process, store: SimStore) -> None:
        draw = self.rng.random()
        if draw > 0.85:
            self.call(process, "read", lambda: self._read(store))
        elif draw < self.adds:
            amount = self.rng.randint(1, 3)
            self.call(process, "add", lambda: self._add(store, amount), amount)
        else:
            was, then = self.rng.sample(range(3), 2)
            self.call(process, "swap", lambda: self._swap(store, was, then), was, then)

    def _add(self, store: SimStore, amount: int) -> int:
        remembered = Once(self.capacity, result=N) if self.remembers else Once(self.capacity, answer="n")
        return store.operate(COUNTER, Add("n", amount), once=remembered)[0]

    def _swap(self, store: SimStore, was: int, then: int) -> int:
        once = Once(self.capacity, result=then)
        return store.operate(COUNTER, Put("n", then), when=WAS.bind(was=was), once=once)[0]

    def _read(self, store: SimStore) -> Any:
        record = store.get(COUNTER, "n")
        return record and record.bins["n"]

    def settle(self) -> None:
        self.operator.seams.sleep(4 * self.lease)
        self.call(self.operator, "read", lambda: self._read(self.operator_store))

    def check(self) -> None:
        entries = [part for entry in self.history.entries for part in read_anew(entry, "read")]
        self.check_linearizable(entries, Counter(), "a record")
        self.require(not self.stuck, "liveness once faults stop", f"{self.stuck} hang")
