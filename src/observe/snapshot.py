"""A client at one moment: its queues, who works on them, and who does their upkeep; what all tools show is made of it.

Values only, so that it can be kept, compared and sent; `findings.py` says what is wrong in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ..coord.election.candidates import Candidates
from ..coord.lease import BINS, LeaseView
from ..coord.lock import LOCKS
from ..coord.waits.shared_reads import reads
from ..errors import Corrupt, LatchworkError, NotFound
from ..inputs import farm_or_default, is_int
from ..plain import shown_time
from ..queue.sharded.queue import QueueGroup, ShardedQueue
from ..queue.sharded.record import Live
from ..queue.sharded.registry import QueueRegistry
from ..queue.sharded.stats import QueueStats, stats_of
from ..queue.sharded.upkeep.upkeep import election_name, sweep_interval
from ..queue.sharded.workers import REPORT, WorkerReport, workers_of
from ..store.model.expr import SERVER_NOW
from ..store.model.ops import Compute
from ..store.port import Key, RecordStore, Update

BEGUN_WITHIN = 60.0
"""Seconds after its election for which a leader is not asked for what the upkeep has not done."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The holder of an election by lease, as its record shows it.

    name, epoch: of the last leader; empty and 0 where nobody ever led.
    held: whether it has not resigned.
    renewed_ago, lease: seconds, by the server's clock.
    now: the server's time, in seconds since the epoch.
    """

    name: str
    epoch: int
    held: bool
    renewed_ago: float
    lease: float
    now: float

    @property
    def leads(self) -> bool:
        """Whether its lease has not run out. One that died is no leader any more, whether or not it was succeeded."""
        return self.held and self.renewed_ago <= self.lease

    @property
    def led_for(self) -> float:
        """Seconds since it was elected, about: an epoch is not less than the time, in microseconds, when it began."""
        return max(0.0, self.now - self.epoch / 1e6)

    @property
    def is_new(self) -> bool:
        """Whether its first duties may not be done yet."""
        return self.led_for < BEGUN_WITHIN

    @property
    def standing(self) -> str:
        """How it stands, in a few words."""
        if self.leads:
            return f"{self.name} leads, epoch {self.epoch}"
        if not self.held:
            return "nobody leads"
        return (
            f"nobody leads: {self.name} led in epoch {self.epoch}, and last renewed {shown_time(self.renewed_ago)} ago "
            f"(its lease is {self.lease:g} s)"
        )


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue at one moment.

    live: the settings that can change.
    stats: depth, ages and the last sweep.
    workers: the last report of each process that consumes it, dead ones too.
    group_of: the queue that it is a group of; None = it is a queue.
    has_groups: whether it has groups.
    retries: whether its failed messages come back by themselves.
    sweep_interval: seconds between two sweeps of it.
    abandoned_after: seconds from the last report of a worker that was killed, after which a sweep brings back what it
        held.
    returns_within: seconds from the last report of a worker that was killed, within which what it held comes back by
        the sweep, while any process does the upkeep.
    made: when it was made, in seconds since the epoch; 0 = not known.
    """

    name: str
    live: Live
    stats: QueueStats
    workers: tuple[WorkerReport, ...]
    group_of: str | None
    has_groups: bool
    retries: bool
    sweep_interval: float
    abandoned_after: float
    returns_within: float
    made: float

    @property
    def paused(self) -> bool:
        """Whether no messages are handed out."""
        return self.live.concurrency == 0

    @property
    def at_work(self) -> tuple[WorkerReport, ...]:
        """The workers that live."""
        return tuple(one for one in self.workers if not one.is_silent)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A client in one farm at one moment.

    at: seconds since the epoch: the server's, where it was asked.
    leader: who does the upkeep; None = nobody ever did.
    candidates: the processes that may be elected to do it, and that are not known to be dead.
    unreadable: queues whose records cannot be read, by name, and why.
    """

    client: str
    farm: str
    at: float
    leader: Leader | None
    queues: tuple[QueueState, ...]
    unreadable: Mapping[str, str]
    candidates: tuple[str, ...] = ()

    @property
    def upkeep(self) -> str:
        """Who does the upkeep, or whether somebody soon will, in a few words."""
        return standing_of(self.leader, self.candidates)


def standing_of(leader: Leader | None, candidates: Sequence[str]) -> str:
    """Return who leads, or whether somebody soon will, in a few words. candidates: without the dead ones."""
    standing = leader.standing if leader else "nobody leads yet"
    if leader and leader.leads:
        return standing
    return f"{standing}; {f'an election is under way, candidates: {len(candidates)}' if candidates else 'no candidate'}"


@runtime_checkable
class ListsSets(Protocol):
    """A store that knows the names of its sets."""

    def sets(self) -> list[str]: ...


def clients_in(store: RecordStore, farm_id: str | None = None) -> list[str] | None:
    """Return the clients that have queues in a farm, sorted; None if this store cannot tell. One call."""
    if not isinstance(store, ListsSets):
        return None
    start, end = f"{farm_or_default(farm_id)}_", "_ignis_queues"
    sets = [name for name in store.sets() if name.startswith(start) and name.endswith(end)]
    return [name[len(start) : -len(end)] for name in sets if len(name) > len(start) + len(end)]


def snapshot(registry: QueueRegistry) -> Snapshot:
    """Return the client of this registry as it is now. Four calls, and five for each queue; six where messages are
    parked.
    """
    return with_queues(registry)[0]


def with_queues(registry: QueueRegistry, only: str | None = None) -> tuple[Snapshot, list[ShardedQueue]]:
    """Return the snapshot, and its queues, of which more may be asked. only: of this queue alone."""
    listed, unreadable = registry.scan(active=None)
    interval = sweep_interval([queue for queue, _ in listed])  # of all queues: the upkeep sweeps them together
    followed = {queue.queue_name for queue, _ in listed if isinstance(queue, QueueGroup)}
    if only is not None:
        listed = [(queue, bins) for queue, bins in listed if queue.name == only]
        unreadable = {name: failure for name, failure in unreadable.items() if name == only}
    leader, candidates = election_now(registry.store, election_name(registry.client_id))
    reports = workers_of([queue for queue, _ in listed])
    states, queues = [], []
    for (queue, bins), workers in zip(listed, reports, strict=True):
        with suppress(NotFound):  # a group that is being made, or dropped, has no pointers
            states.append(_state(queue, bins, workers, interval, has_groups=queue.name in followed))
            queues.append(queue)
    taken = Snapshot(
        registry.client_id,
        registry.farm_id,
        leader.now if leader else registry.store.seams.wall(),
        leader,
        tuple(states),
        {name: str(failure) for name, failure in unreadable.items()},
        tuple(alive(candidates, leader, reports)),
    )
    return taken, queues


def _state(
    queue: ShardedQueue, bins: Mapping[str, Any], workers: Sequence[WorkerReport], interval: float, *, has_groups: bool
) -> QueueState:
    made: Any = bins.get("createdAt")
    abandoned = REPORT + queue.config.sweep_duration.total_seconds()
    return QueueState(
        queue.name,
        queue.live,
        stats_of(queue, bins),
        tuple(workers),
        queue.queue_name if isinstance(queue, QueueGroup) else None,
        has_groups,
        queue.config.retries is not None,
        sweep_interval([queue]),
        abandoned,
        abandoned + interval,
        made / 1000 if is_int(made) else 0.0,
    )


def alive(
    candidates: Sequence[str], leader: Leader | None, reports: Sequence[Sequence[WorkerReport]] = ()
) -> list[str]:
    """Return the candidates without the ones that are known to be dead: a candidate is listed for a minute."""
    dead = {one.worker for some in reports for one in some if one.is_overdue}
    if leader and leader.held and not leader.leads:
        dead.add(leader.name)
    return [one for one in candidates if one not in dead]


def election_now(store: RecordStore, election: str) -> tuple[Leader | None, list[str]]:
    """Return who leads an election by lease, or led it last, and its candidates; None where nobody ever led. One call.

    Raises `Corrupt` for a damaged record, and the store's errors.
    """
    key, candidates = Key(LOCKS, election), Candidates(store, election)
    row, listed = store.repeat_many([Update(key, (*reads(BINS), Compute(SERVER_NOW))), candidates.reading])
    names = candidates.present(listed)
    if isinstance(row, NotFound):
        return None, names
    if isinstance(row, LatchworkError):
        raise row
    *values, now = row
    lease = LeaseView.of(key, dict(zip(BINS, values, strict=True)))
    if not is_int(now):
        raise Corrupt(f"the store has no time for {key}: it said {now!r}")
    ago = max(0.0, (now - lease.time) / 1000)
    return Leader(str(lease.owner), lease.fence, lease.locked, ago, lease.lease, now / 1000), names
