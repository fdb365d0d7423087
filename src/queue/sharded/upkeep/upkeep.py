"""The upkeep of a client's queues by one elected process: its election, its duties, and two of them, the sweep and the
shovel (P5). The other duties: `scheduling.py`, `timers.py`, `ending.py`, `recording.py`.

Every process in which a consumer runs is a candidate, so nothing has to be started separately. The elected process
performs the duties for all queues of the client, in every farm that has a candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

from ....background import FailureLog
from ....coord.election.election import Leadership, LeaseElection
from ....coord.presence.layout import MAX_NAME
from ....forks import reset_in_child
from ....logs import Log
from ....retry import Poll
from ....seams import Seams, Task
from ..registry import QueueRegistry
from ..subscription import Subscription
from .ending import Ending
from .farms import LIST, NOTICE, Farms
from .recording import Recording
from .reporter import reporter_of
from .scheduling import Scheduling
from .shovel import Shovel
from .sweeper import Sweeper
from .timers import Timers
from .worker_group import WorkerMembership, workers_of

log = Log(__name__)

LEASE = 10.0
"""Seconds after which a leader that died is succeeded, counted from a candidate's first look after its last renewal."""
LISTED = 60.0
"""Seconds for which a candidate is listed after each of its reports: they are for people, and for finding farms."""
LOOKS = Poll(low=3.0, high=4.0)
"""How often a candidate looks at the lease. docs/operations.md says what the upkeep costs a process in all."""
SWEEP_AT_MOST, SWEEP_AT_LEAST = 900.0, 1.0
"""Seconds between two sweeps: half of the shortest sweep duration, within these bounds."""
DUTY_BACKOFF = Poll(low=1.0, high=60.0, factor=2.0, jitter=0.5)
"""Pauses after a duty that failed."""
STOP_TIMEOUT = 10.0


def election_name(client_id: str) -> str:
    """Return the election in which the upkeep of a client is decided; the commands `queue sweep` and `stats` ask it
    too.
    """
    return f"{client_id}-sweeper"


class Duty(Protocol):
    """Something that the leader does again and again."""

    def run(self, leadership: Leadership) -> float:
        """Do what is due; return the seconds after which to ask again. Stops early once the term is lost."""


class Upkeep:
    """The part of one process in the upkeep of a client: it takes part in the election as long as a consumer of the
    process has joined.

    registry: of the client and of this process's farm.

    Safe to share between threads. Not promised: that a duty is performed by one process alone. Two processes that both
    believe that they lead are harmless: sweep pointers are guarded by the epoch, and only the process that has claimed
    a message moves it.
    """

    def __init__(self, registry: QueueRegistry) -> None:
        self.registry = registry
        self._seams, self._reporter = registry.store.seams, reporter_of(registry)
        self._members: dict[object, str] = {}
        self.reset_after_fork()
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Start with no members. In a forked child the threads that ran are the parent's."""
        self._members.clear()
        self._guard = self._seams.lock()
        self._failure_log = FailureLog(self._seams, log)
        candidate = self._reporter.worker
        self.election = UpkeepElection(
            self.registry.store, election_name(self.registry.client_id), candidate=candidate, lease=LEASE, poll=LOOKS
        )
        group = workers_of(self.registry.store, self.registry.client_id, self.registry.farm_id)
        self._worker_membership = WorkerMembership(
            group,
            candidate.encode()[:MAX_NAME].decode(errors="ignore"),  # the end of a long farm is left out
            lambda: list(filter(None, self._members.values())),
        )
        farms = Farms(self.registry, self.election)
        self._duties: list[Duty] = [
            Sweeping(farms, self.election, self._seams),
            Shoveling(farms),
            Scheduling(farms),
            Timers(farms),
            Ending(farms),
            Recording(farms),
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
            self._worker_membership.start()

    def leave(self, member: object, timeout: float = STOP_TIMEOUT) -> None:
        """Stop taking part when the last one of this process leaves; resign, so that another process is elected.

        If that takes longer than `timeout` seconds, it continues in the background. Harmless when repeated. A consumer
        that joins meanwhile waits until this has ended, and then takes part in the election again.
        """
        with self._guard:
            self._members.pop(member, None)
            if not self._members:
                end = self._seams.monotonic() + min(timeout, STOP_TIMEOUT)
                self.election.stop(min(timeout, STOP_TIMEOUT))
                self._worker_membership.stop(max(0.0, end - self._seams.monotonic()))

    def begin(self, leadership: Leadership, *, sweeps: bool = True) -> list[Task]:
        """Begin the duties of the leader, each in a thread of its own, which ends once the term is lost: a long sweep
        delays nothing else. sweeps: whether the sweep is one of them.
        """
        duties = [duty for duty in self._duties if sweeps or not isinstance(duty, Sweeping)]
        return [
            self._seams.spawn(partial(self._perform, duty, leadership), f"{self.registry.client_id}-upkeep-{number}")
            for number, duty in enumerate(duties)
        ]

    def _lead(self, leadership: Leadership) -> None:
        for task in self.begin(leadership):
            task.join()

    def _perform(self, duty: Duty, leadership: Leadership) -> None:
        failures = 0
        while not leadership.lost.is_set():
            try:
                pause, failures = duty.run(leadership), 0
            except Exception as failure:  # noqa: BLE001 - a defect must not end a task that nothing would start again
                failures += 1
                pause = DUTY_BACKOFF.pause(failures, self._seams)
                if not leadership.lost.is_set():
                    self._failure_log.record(failure, _failed(type(duty).__name__.lower(), pause))
            leadership.lost.wait(pause)


class UpkeepElection(LeaseElection):
    """A campaign that no error ends, because it would not be started again, and consumers survive these errors too."""

    def _is_final(self, failure: Exception) -> bool:  # noqa: ARG002 - whatever it is
        return False

    @property
    def _present_for(self) -> float:
        return LISTED


class Sweeping:
    """The duty that sweeps every queue, each half of the shortest sweep duration; first when the term begins."""

    def __init__(self, farms: Farms, election: LeaseElection, seams: Seams) -> None:
        self._farms, self._election, self._seams = farms, election, seams
        self._sweepers: dict[str, Sweeper] = {}
        self._last: tuple[int, float] | None = None  # the epoch, and the end of its last sweep
        self._failure_log = farms.failure_log()

    def run(self, leadership: Leadership) -> float:
        """Sweep all farms if that is due; the seconds until the next look at whether it is."""
        clock, interval = self._seams.monotonic, sweep_interval(self._farms.queues())
        if self._last is None or self._last[0] != leadership.epoch or clock() >= self._last[1] + interval:
            for registry in self._farms.registries():
                sweeper = self._sweepers.setdefault(registry.farm_id, Sweeper(registry, self._election))
                leadership.check()
                report = sweeper.run_once()
                if report.led and report.ok:
                    log.debug("%s", report)
                elif report.led:
                    self._failure_log.warn(str(report))
            self._last = leadership.epoch, clock()
        return max(0.0, min(NOTICE, self._last[1] + interval - clock()))


def sweep_interval(queues: Sequence[Subscription]) -> float:
    """Return the seconds between two sweeps: half of the shortest sweep duration, within bounds."""
    durations = [queue.config.sweep_duration.total_seconds() for queue in queues]
    return min(SWEEP_AT_MOST, max(SWEEP_AT_LEAST, min(durations, default=2 * LIST) / 2))


class Shoveling:
    """The duty that brings messages back from the sideline, for each queue at the present interval of its
    `ShovelConfig`. Where messages come back by themselves, what an earlier version has put there, each minute.
    """

    def __init__(self, farms: Farms) -> None:
        self._farms, self._failure_log = farms, farms.failure_log()
        self._last: dict[tuple[str, str], float] = {}

    def run(self, leadership: Leadership) -> float:
        """Make the passes that are due; the seconds until the next one."""
        pause = NOTICE
        for queue in self._farms.queues():
            shovel, interval = queue.live.shovel, LIST
            if shovel is None and queue.config.retries is None:
                continue
            seams, name = queue.store.seams, (queue.registry.farm_id, queue.name)
            if shovel is not None:  # 0 means "as soon as a message is due": a consumer's pause is short enough
                interval = max(shovel.interval.total_seconds(), 1.0)
            # One sum for both, as a difference may round the other way: then nothing is due, and the pause is 0 s.
            if seams.monotonic() >= self._last.get(name, float("-inf")) + interval:
                self._last[name] = seams.monotonic()
                self._pass(queue, leadership)
            pause = min(pause, self._last[name] + interval - seams.monotonic())
        return max(pause, 0.0)

    def _pass(self, queue: Subscription, leadership: Leadership) -> None:
        leadership.check()
        try:
            report = Shovel(queue).run_once(ends=leadership.lost.is_set)
        except Exception as failure:  # noqa: BLE001 - the others' passes go on
            self._failure_log.record(failure, _failed(f"shoveling {queue.name}", LIST))
        else:
            if report.errors:
                self._failure_log.warn(
                    f"the shovel of {queue.name}: {len(report.errors)} not moved: {report.errors[0]}"
                )


_ALL: WeakValueDictionary[tuple[int, str, str], Upkeep] = WeakValueDictionary()


def upkeep_of(registry: QueueRegistry) -> Upkeep:
    """Return the one upkeep of this process for the registry's store, client and farm."""
    name = (id(registry.store), registry.client_id, registry.farm_id)
    return _ALL.get(name) or _ALL.setdefault(name, Upkeep(registry))


def _failed(what: str, pause: float) -> str:
    return f"upkeep: {what} failed, and is tried again in {pause:.0f} s"
