"""One leader over all farms: candidates of each, a ZooKeeper over them, and farms that are cut off (P21)."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

from kazoo.client import KazooClient

from latchwork.coord.election.across import GlobalElection
from latchwork.coord.fencing import Fenced
from latchwork.coord.lock import LOCKS
from latchwork.store import Add, Exists, Key, Put

from ..checkers import across as promises
from ..faults.kinds import ON_CALLS, Kind
from ..faults.network import Change, Server, SimStore
from ..faults.zookeeper import Client, Ensemble
from ..world import Process, ServerClock
from .base import Scenario

OFFICE = Key(LOCKS, "office")
RESOURCE = Key("sim", "resource")
LEASE = 1.0
CALM = 25.0
"""Seconds in which everybody who can has taken part, once faults have stopped."""


class FarmClock(ServerClock):
    """The clock of one farm's store."""

    def __init__(self, world: Any, off: float) -> None:
        super().__init__(world)
        self._off = off

    def wall(self) -> float:
        return super().wall() + self._off


class FarmStore(SimStore):
    """A farm's store as a process of this or another farm sees it."""

    def __init__(self, run: Across, farm: str, process: Process) -> None:
        super().__init__(run.servers[farm], process, run.plan)
        self._run, self._farm = run, farm

    def _cut_off(self, verb: str, target: Any) -> bool:
        if self._run.is_cut(self.process, self._farm):
            self.world.pause(0.05)
            return True
        return super()._cut_off(verb, target)


class Across(Scenario):
    """Two or three farms; the first one is preferred."""

    name = "across"
    lease = LEASE
    horizon = 25.0
    span = 10.0
    patience = 400.0
    kinds = ON_CALLS
    environment = (Kind.CLIENT_CLOCK, Kind.SUSPEND)

    def setup(self) -> None:
        names = ["iad", "lhr", "sin"][: self.rng.randint(2, 3)]
        self.servers = {name: self.server if name == "iad" else Server(self.world) for name in names}
        for server in self.servers.values():
            server.seams = FarmClock(self.world, self.rng.choice((0.0, 0.0, -3600.0, 3600.0)))
        self.offices = {name: server.watch(OFFICE) for name, server in self.servers.items()}
        self.resources: dict[str, list[Change]] = {n: server.watch(RESOURCE) for n, server in self.servers.items()}
        self.ensemble = Ensemble(self.world, LEASE)
        self.farm_of: dict[str, str] = {}
        self.no_zookeeper: set[str] = set()
        self.no_store: set[str] = set()
        self.apart: set[str] = set()
        self.elected: list[tuple[int, int, str, frozenset[str]]] = []
        self.left: list[str] = []
        self.final: list[tuple[str, frozenset[str], str | None]] = []

    def is_cut(self, process: Process, farm: str) -> bool:
        """Whether the process cannot reach the farm's store: it is away, or one of the two farms is apart."""
        home = self.farm_of[process.name]
        return farm in self.no_store or (farm != home and not {farm, home}.isdisjoint(self.apart | self.no_store))

    # ---- people

    def people(self) -> None:
        for farm in self.servers:
            for number in range(self.rng.randint(1, 2)):
                self.farm_of[f"{farm}{number}"] = farm
                self.person(f"{farm}{number}", partial(self._service, farm))
        for _ in range(self.rng.randint(0, 3)):
            self._plan_a_cut()

    def _plan_a_cut(self) -> None:
        farm, begin = self.rng.choice(list(self.servers)), self.world.now + self.rng.random() * self.span
        which = self.rng.choice(
            ([self.no_zookeeper], [self.no_store], [self.no_zookeeper, self.no_store], [self.apart], [self.apart])
        )

        def cut() -> None:
            if not self.plan.calm:
                for links in which:
                    links.add(farm)
                self.history.note("world", f"{farm} is cut off")

        def heal() -> None:
            for links in which:
                links.discard(farm)

        self.world.at(begin, cut)
        self.world.at(begin + self.rng.choice((0.5, 2.0, 6.0)), heal)

    def candidate(self, farm: str, process: Process) -> GlobalElection:
        """A candidate of the farm."""
        self.farm_of.setdefault(process.name, farm)
        stores = {name: FarmStore(self, name, process) for name in self.servers}
        election = GlobalElection(
            stores, "office", zookeeper=KazooClient("h:1"), farm_id=farm, candidate=process.name, lease=LEASE,
            prefer=["iad"], resources=[RESOURCE],
        )  # fmt: skip
        client: Any = Client(self.ensemble, process, lambda: farm in self.no_zookeeper)
        election._client = election._line.client = client
        return election

    def _service(self, farm: str, process: Process, store: SimStore) -> None:
        self.farm_of.setdefault(process.name, farm)
        election = self.candidate(farm, process)
        for _ in range(self.rng.randint(1, 2)):
            job = partial(self._job, farm, process, election)
            every, timeout = self.rng.choice((0.0, 0.3)), self.rng.choice((3.0, 8.0))
            self.call(process, "run", partial(election.run_in_one_farm, job, every=every, timeout=timeout))
            self.idle(process, 1.0)

    def _job(self, farm: str, process: Process, election: GlobalElection, leadership: Fenced) -> None:
        # The public one is empty once the term is lost, and a job may begin in just that moment.
        epoch, unsealed = leadership.epoch, election.unsealed or election._unsealed
        self.elected.append((self.world.tick(), epoch, farm, unsealed))
        for _ in range(self.rng.randint(1, 3)):
            self.call(process, "write", lambda: self._write(leadership), epoch)
            self.idle(process, self.rng.choice((0.0, 0.2, 0.6)))

    def _write(self, leadership: Fenced) -> None:
        leadership.operate(
            RESOURCE, Put("by", leadership.epoch), Add("writes", 1), exists=Exists.ANY, or_absent=True, repeatable=True
        )

    # ---- the end: everybody is there; the preferred farm is cut off, and comes back

    def settle(self) -> None:
        self.no_zookeeper.clear()
        self.no_store.clear()
        self.apart.clear()
        self.operator.seams.sleep(3 * LEASE)
        for farm in self.servers:
            process = self.world.process(f"last-{farm}")
            election = self.candidate(farm, process)
            process.spawn(partial(self._last, farm, process, election), "main")
        self._wait_and_note()
        cuts = self.rng.choice(([self.no_zookeeper], [self.no_store], [self.no_zookeeper, self.no_store]))
        for links in cuts:
            links.add("iad")
        self._wait_and_note()
        for links in cuts:
            links.discard("iad")
        self._wait_and_note()

    def _last(self, farm: str, process: Process, election: GlobalElection) -> None:
        election.run_in_one_farm(partial(self._job, farm, process, election), every=0.2, timeout=None)

    def _wait_and_note(self) -> None:
        """Who led last, and how often anybody has, after so many seconds."""
        self.operator.seams.sleep(CALM)
        begun = len(self.elected)
        self.operator.seams.sleep(3.0)
        recent = self.elected[begun:]
        cut = frozenset(self.no_zookeeper | self.no_store)
        self.final.append(("recent", cut, recent[-1][2] if recent else None))

    def state(self) -> Hashable:
        """The records of all farms."""
        return repr([
            (name, sorted((key, repr(stored.bins)) for key, stored in server._records.items()))
            for name, server in self.servers.items()
        ])  # fmt: skip

    def check(self) -> None:
        promises.check(self)
