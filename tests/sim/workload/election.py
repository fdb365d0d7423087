"""Elections: candidates who lead for a while, resign, are paused, die; and an office that only leaders may write to."""

from __future__ import annotations

from latchwork.coord.election.election import LeaseElection
from latchwork.coord.fencing import Fenced
from latchwork.coord.lock import LOCKS
from latchwork.store import Add, Key, Once, Put

from ..checkers import election as promises
from ..faults.kinds import WITH_THREADS, Kind
from ..world import Process
from .base import Scenario, SimStore

OFFICE = Key(LOCKS, "office")
RESOURCE = Key("sim", "resource")


class Election(Scenario):
    """Several candidates for one office."""

    name = "election"
    lease = 1.0
    horizon = 15.0
    kinds = (*WITH_THREADS, Kind.TWO_LEADERS)
    environment = (Kind.SERVER_CLOCK, Kind.CLIENT_CLOCK, Kind.SUSPEND, Kind.RESTART_EMPTY, Kind.RESTART_STALE)

    def setup(self) -> None:
        self.changes = self.server.watch(OFFICE)
        self.writes = self.server.watch(RESOURCE)
        self.unsure: set[int] = set()

    def people(self) -> None:
        for number in range(self.rng.randint(2, 3)):
            self.person(f"c{number}", self._candidate)
        if self.rng.random() < 0.5:
            self.person("ops", self._operator)

    def _operator(self, process: Process, store: SimStore) -> None:
        """Makes leaders step down."""
        election = LeaseElection(store, "office", candidate=process.name, lease=self.lease)
        for _ in range(self.rng.randint(1, 3)):
            self.idle(process, 4.0)
            self.call(process, "step_down", lambda: self._step_down(store, election))

    def _step_down(self, store: SimStore, election: LeaseElection) -> bool:
        record = store.get(OFFICE)
        return record is not None and election.step_down(max(1, record.bins["fencing-ctr"]))

    def _candidate(self, process: Process, store: SimStore) -> None:
        election = LeaseElection(store, "office", candidate=process.name, lease=self.lease)
        for _ in range(self.rng.randint(1, 2)):
            if self.rng.random() < 0.4:
                self._run(process, store, election)
            else:
                self._stand(process, store, election)

    def _run(self, process: Process, store: SimStore, election: LeaseElection) -> None:
        """One term, by `run`."""

        def lead(leadership: Fenced) -> None:
            self.call(process, "elected", lambda term=leadership: term.epoch, leadership.epoch)
            self._work(process, store, leadership)

        self.call(process, "run", lambda: election.run(lead, timeout=self.rng.choice((0.5, 3.0))))

    def _stand(self, process: Process, store: SimStore, election: LeaseElection) -> None:
        """Stand in the background, and act whenever this candidate leads."""
        election.start()
        for _ in range(self.rng.randint(4, 10)):
            leadership = election.leadership
            if leadership is not None:
                self.call(process, "elected", lambda term=leadership: term.epoch, leadership.epoch)
                self._work(process, store, leadership)
                if self.rng.random() < 0.4:
                    self.call(process, "resign", election.resign)
            self.idle(process, 0.5)
        self.call(process, "stop", election.stop)

    def _work(self, process: Process, store: SimStore, leadership: Fenced) -> None:
        """Write what follows from what was read; after a doubt no more in this term, as its write may still land."""
        epoch = leadership.epoch
        sealed = epoch not in self.unsure and self.call(process, "seal", lambda: leadership.seal(RESOURCE), epoch).ok
        for _ in range(self.rng.randint(1, 3)):
            if sealed and self.call(process, "increment", lambda: self._increment(store, leadership), epoch).unknown:
                sealed = False
                self.unsure.add(epoch)
            self.idle(process, self.rng.choice((0.0, 0.2, 1.0)))
            self.call(process, "check", leadership.check, epoch)

    def _increment(self, store: SimStore, leadership: Fenced) -> int:
        record = store.get(RESOURCE)
        value = (record.bins.get("n", 0) if record else 0) + 1
        leadership.operate(RESOURCE, Put("n", value), Add("writes", 1), once=Once(64))
        return value

    def settle(self) -> None:
        self.operator.seams.sleep(4 * self.lease)
        election = LeaseElection(self.operator_store, "office", candidate="operator", lease=self.lease)
        self.final = self.call(
            self.operator, "run", lambda: election.run(lambda term: term.epoch, timeout=4 * self.lease)
        )

    def check(self) -> None:
        if any("has seen the fence" in entry.reason for entry in self.history.named("increment", "seal")):
            self.plan.fire(Kind.TWO_LEADERS)
        promises.check(self)
