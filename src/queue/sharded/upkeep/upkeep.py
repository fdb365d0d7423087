"""The upkeep of a client's queues, by one elected process: sweeping, and bringing failed messages back (P5).

Every process in which a consumer runs is a candidate, so that nothing has to be started by hand. Whoever is elected
does the duties of all queues of the client, in every farm of which a process stands for election.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

from ....background import Troubles
from ....coord.election.election import Leadership, LeaseElection
from ....coord.inputs import checked_owner
from ....coord.members import MAX_NAME
from ....forks import renew_in_child
from ....retry import Poll
from ..queue import ShardedQueue
from ..registry import QueueRegistry
from .attendance import Attendance, workers_of
from .ending import Ending
from .scheduling import Scheduling
from .shovel import Shovel
from .sweeper import Sweeper
from .timers import Timers

log = logging.getLogger(__name__)

LEASE = 20.0
"""Seconds after which a leader that died is succeeded."""
LOOKS = Poll(low=4.0, high=6.0)
"""How often a candidate looks at the lease. With its reports, and its heartbeats, a process pays 0.5 calls a second."""
LIST = 60.0
"""Seconds between two listings of a client's queues and of the farms whose processes stand for election."""
SWEEP_AT_MOST, SWEEP_AT_LEAST = 900.0, 1.0
"""Seconds between two sweeps: half of the shortest sweep duration, within these bounds."""
TROUBLE = Poll(low=1.0, high=60.0, factor=2.0, jitter=0.5)
"""Pauses after a duty that failed."""
STOP_TIMEOUT = 10.0
FARM = "@"
"""Stands between the name of a candidate and the farm that its process belongs to."""


def election_name(client_id: str) -> str:
    """The election in which the upkeep of a client is decided; the commands `queue sweep` and `stats` ask it too."""
    return f"{client_id}-sweeper"


class Duty(Protocol):
    """Something that the leader does again and again."""

    def run(self, leadership: Leadership) -> float:
        """Do what is due; return the seconds after which to ask again. Stops early once the term is lost."""


class Upkeep:
    """One process's part in the upkeep of a client: it stands for election as long as somebody here has joined.

    registry: of the client and of this process's farm.  Safe to share between threads. Not promised: that a duty is
    done by one process alone. Two that both believe to lead do no harm: sweep pointers are guarded by the epoch, and a
    message is moved by whoever claims it.
    """

    def __init__(self, registry: QueueRegistry) -> None:
        self.registry = registry
        self._seams = registry.store.seams
        self._members: dict[object, str] = {}
        self.begin_anew()
        renew_in_child(self)

    def begin_anew(self) -> None:
        """Nobody has joined. A forked child begins so: what ran is its parent's."""
        self._members.clear()
        self._guard = self._seams.lock()
        self._troubles = Troubles(self._seams, log)
        candidate = f"{checked_owner(None, self._seams)}{FARM}{self.registry.farm_id}"
        self.election = LeaseElection(
            self.registry.store, election_name(self.registry.client_id), candidate=candidate, lease=LEASE, poll=LOOKS
        )
        group = workers_of(self.registry.store, self.registry.client_id, self.registry.farm_id)
        self._attendance = Attendance(group, _short(candidate), lambda: list(filter(None, self._members.values())))
        farms = Farms(self.registry, self.election)
        self._duties: list[Duty] = [
            Sweeping(farms, self.election),
            Shoveling(farms),
            Scheduling(farms),
            Timers(farms),
            Ending(farms),
        ]

    def __repr__(self) -> str:
        return f"Upkeep({self.registry.client_id!r}, farm_id={self.registry.farm_id!r}, leads={self.leads})"

    @property
    def leads(self) -> bool:
        """Whether this process believes that it is elected."""
        return self.election.leadership is not None

    def join(self, member: object, queue: str = "") -> None:
        """Take part for as long as `member` has joined, which works on that queue. No I/O here."""
        with self._guard:
            self._members[member] = queue
            self.election.start(self._lead)
            self._attendance.start()

    def leave(self, member: object, timeout: float = STOP_TIMEOUT) -> None:
        """Take part no more once nobody else has joined; gives the office up so that another process is elected.

        That goes on by itself where it takes longer than `timeout` seconds. Harmless when repeated. Who joins meanwhile
        waits for the end of this, and then stands for election anew.
        """
        with self._guard:
            self._members.pop(member, None)
            if not self._members:
                end = self._seams.monotonic() + min(timeout, STOP_TIMEOUT)
                self.election.stop(min(timeout, STOP_TIMEOUT))
                self._attendance.stop(max(0.0, end - self._seams.monotonic()))

    def _lead(self, leadership: Leadership) -> None:
        """Do the duties until the term is lost, each in a thread of its own: a long sweep delays nothing else."""
        tasks = [
            self._seams.spawn(partial(self._perform, duty, leadership), f"{self.registry.client_id}-upkeep-{number}")
            for number, duty in enumerate(self._duties)
        ]
        for task in tasks:
            task.join()

    def _perform(self, duty: Duty, leadership: Leadership) -> None:
        failures = 0
        while not leadership.lost.is_set():
            try:
                pause, failures = duty.run(leadership), 0
            except Exception as failure:  # noqa: BLE001 - a defect must not end what nobody would start again
                failures += 1
                pause = TROUBLE.pause(failures, self._seams)
                if not leadership.lost.is_set():
                    self._troubles.tell(failure, _failed(type(duty).__name__.lower(), pause))
            leadership.lost.wait(pause)


class Farms:
    """The registries of all farms whose processes stand for election, listed anew each minute."""

    def __init__(self, own: QueueRegistry, election: LeaseElection) -> None:
        self._own, self._election, self._seams = own, election, own.store.seams
        self._registries = {own.farm_id: own}
        self._queues: list[ShardedQueue] = []
        self._listed = float("-inf")
        self._lock = self._seams.lock()

    def troubles(self) -> Troubles:
        """What a duty says of its failures."""
        return Troubles(self._seams, log)

    def registries(self) -> list[QueueRegistry]:
        """One of each farm, this process's first."""
        self.queues()
        return list(self._registries.values())

    def queues(self) -> list[ShardedQueue]:
        """All queues, active or not; two calls a farm and one for the candidates where it is time to list them."""
        with self._lock:
            if self._seams.monotonic() >= self._listed + LIST:
                for candidate in self._election.contenders():
                    farm = candidate.rpartition(FARM)[2]
                    if FARM in candidate and farm not in self._registries:
                        self._registries[farm] = QueueRegistry(self._own.store, self._own.client_id, farm_id=farm)
                self._queues = [queue for one in self._registries.values() for queue in one.queues(active=None)]
                self._listed = self._seams.monotonic()
            return self._queues


class Sweeping:
    """Sweeps every queue, each half of the shortest sweep duration; the first time as soon as the term begins."""

    def __init__(self, farms: Farms, election: LeaseElection) -> None:
        self._farms, self._election = farms, election
        self._sweepers: dict[str, Sweeper] = {}
        self._troubles = farms.troubles()

    def run(self, leadership: Leadership) -> float:
        """Sweep all farms; the seconds until the next sweep."""
        for registry in self._farms.registries():
            sweeper = self._sweepers.setdefault(registry.farm_id, Sweeper(registry, self._election))
            leadership.check()
            report = sweeper.run_once()
            if report.led and report.ok:
                log.debug("%s", report)
            elif report.led:
                self._troubles.warn(str(report))
        return sweep_interval(self._farms.queues())


def sweep_interval(queues: Sequence[ShardedQueue]) -> float:
    """The seconds between two sweeps: half of the shortest sweep duration, within bounds."""
    durations = [queue.config.sweep_duration.total_seconds() for queue in queues]
    return min(SWEEP_AT_MOST, max(SWEEP_AT_LEAST, min(durations, default=2 * LIST) / 2))


class Shoveling:
    """Brings failed messages back, for each queue at the interval of its `ShovelConfig`, which is followed."""

    def __init__(self, farms: Farms) -> None:
        self._farms, self._troubles = farms, farms.troubles()
        self._last: dict[tuple[str, str], float] = {}

    def run(self, leadership: Leadership) -> float:
        """Make the passes that are due; the seconds until the next one."""
        pause = LIST
        for queue in self._farms.queues():
            if queue.live.shovel is None:
                continue
            seams, name = queue.store.seams, (queue.registry.farm_id, queue.name)
            # an interval of 0 means "as soon as there is something", for which a consumer's pause is often enough
            interval = max(queue.live.shovel.interval.total_seconds(), 1.0)
            if seams.monotonic() - self._last.get(name, float("-inf")) >= interval:
                self._last[name] = seams.monotonic()
                self._pass(queue, leadership)
            pause = min(pause, self._last[name] + interval - seams.monotonic())
        return max(pause, 0.0)

    def _pass(self, queue: ShardedQueue, leadership: Leadership) -> None:
        leadership.check()
        try:
            report = Shovel(queue).run_once()
        except Exception as failure:  # noqa: BLE001 - the others' passes go on
            self._troubles.tell(failure, _failed(f"shoveling {queue.name}", LIST))
        else:
            if report.errors:
                self._troubles.warn(f"the shovel of {queue.name}: {len(report.errors)} not moved: {report.errors[0]}")


_ALL: WeakValueDictionary[tuple[int, str, str], Upkeep] = WeakValueDictionary()


def upkeep_of(registry: QueueRegistry) -> Upkeep:
    """The one upkeep of this process for the registry's store, client and farm."""
    name = (id(registry.store), registry.client_id, registry.farm_id)
    return _ALL.get(name) or _ALL.setdefault(name, Upkeep(registry))


def _short(candidate: str) -> str:
    """The candidate's name where a member's has room: without the end of a long one's farm."""
    return candidate.encode()[:MAX_NAME].decode(errors="ignore")


def _failed(what: str, pause: float) -> str:
    return f"upkeep: {what} failed, and is tried again in {pause:.0f} s"
