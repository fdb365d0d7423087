"""Barriers: parties who meet again and again, are late, die, and are started again; who aborts, and who deletes."""

from __future__ import annotations

import random
from functools import partial

from latchwork.coord import Barrier, Group
from latchwork.coord.barrier.layout import BARRIERS
from latchwork.store import Key

from ..checkers import barrier as promises
from ..faults.kinds import WITH_THREADS, Kind
from ..history.record import Entry
from ..world import Process
from .base import Scenario, SimStore

RECORD = Key(BARRIERS, "c#barrier")


class Meetings(Scenario):
    """Two or three parties of one farm, each of which is one process at a time."""

    name = "barrier"
    lease = 1.0
    kinds = WITH_THREADS
    horizon = 20.0
    environment = (
        Kind.SERVER_CLOCK, Kind.CLIENT_CLOCK, Kind.SUSPEND, Kind.RESTART_EMPTY, Kind.RESTART_STALE, Kind.EXPIRY,
    )  # fmt: skip
    rare = (Kind.RESURRECT,)  # of runs in which somebody deletes

    def setup(self) -> None:
        self.changes = self.server.watch(RECORD)
        self.parties = ["p", "q", "r"][: self.rng.randint(2, 3)]
        self.grouped = self.rng.random() < 0.5
        self.brought = 0
        self.finals: list[Entry] = []

    def people(self) -> None:
        for party in self.parties:
            self.person(party, self._party)
        if self.rng.random() < 0.4:
            self.person("aborts", self._aborts)
        # Drawn apart, so that a seed's other people do what they did before there was this one.
        if random.Random(self.rng.getstate()[1][3]).random() < 0.3:
            self.person("deletes", self._deletes)

    def barrier(self, store: SimStore) -> Barrier:
        return Barrier(store, "c", "barrier", parties=self.parties, farm_id="a")

    def _party(self, process: Process, store: SimStore) -> None:
        barrier, party, group = self.barrier(store), process.name[0], None
        if self.grouped:
            group = Group(store, "group", farm_id="a")
            joined = self.call(process, "join", lambda: group.join(party, lease=self.lease))
            if not joined.ok:
                return
        for _ in range(self.rng.randint(1, 4)):
            timeout = self.rng.choice((0.5, 2.0, 8.0))
            self._meet(process, barrier, party, timeout=timeout, group=group)
            self.idle(process, self.rng.choice((0.0, 0.1, 1.0)))

    def _meet(
        self, process: Process, barrier: Barrier, party: str, *, timeout: float, group: Group | None = None
    ) -> Entry:
        self.brought += 1
        brought = f"{process.name} {party} {self.brought}"
        return self.call(
            process, "wait", lambda: barrier.wait(party, brought, timeout, alive=group), party, brought, timeout
        )

    def _aborts(self, process: Process, store: SimStore) -> None:
        self.idle(process, 3.0)
        self.call(process, "abort", lambda: self.barrier(store).abort("no reason"))

    def _deletes(self, process: Process, store: SimStore) -> None:
        self.idle(process, 1.5)
        self.call(process, "delete", self.barrier(store).delete)

    def settle(self) -> None:
        """Once what the dead have left is aborted, all meet: as many threads of one process."""
        barrier, done = self.barrier(self.operator_store), self.operator.seams.event()
        self.operator.seams.sleep(4 * self.lease)
        self.call(self.operator, "abort", lambda: barrier.abort("begin anew"))

        def meets(party: str) -> None:
            self.finals.append(self._meet(self.operator, barrier, party, timeout=20.0))
            if len(self.finals) == len(self.parties):
                done.set()

        for party in self.parties:
            self.operator.seams.spawn(partial(meets, party), f"meets-{party}")
        done.wait(60)

    def check(self) -> None:
        promises.check(self)
