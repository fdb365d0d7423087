"""A client at one moment: its queues, who works on them, and who does their upkeep; what all tools show is made of it.

Values only, so that it can be kept, compared and sent; `findings.py` says what is wrong in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ..coord.lease import BINS, LeaseView
from ..coord.lock import LOCKS
from ..coord.waits.shared_reads import reads
from ..errors import Corrupt, NotFound
from ..inputs import farm_or_default, is_int
from ..queue.sharded.queue import QueueGroup, ShardedQueue
from ..queue.sharded.record import Live
from ..queue.sharded.registry import QueueRegistry
from ..queue.sharded.stats import QueueStats, stats_of
from ..queue.sharded.upkeep.upkeep import election_name, sweep_interval
from ..queue.sharded.workers import WorkerReport, workers_of
from ..store.model.expr import SERVER_NOW
from ..store.model.ops import Compute
from ..store.port import Key, RecordStore


@dataclass(frozen=True, slots=True)
class Leader:
    """The holder of an election by lease, as its record shows it.

    name, epoch: of the last leader.
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
    unreadable: queues whose records cannot be read, by name, and why.
    """

    client: str
    farm: str
    at: float
    leader: Leader | None
    queues: tuple[QueueState, ...]
    unreadable: Mapping[str, str]


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
    """Return the client of this registry as it is now. Four calls, and five for each queue."""
    return with_queues(registry)[0]


def with_queues(registry: QueueRegistry) -> tuple[Snapshot, list[ShardedQueue]]:
    """Return the snapshot, and its queues, of which more may be asked."""
    listed, unreadable = registry.scan(active=None)
    leader = leader_of(registry.store, election_name(registry.client_id))
    reports = workers_of([queue for queue, _ in listed])
    followed = {queue.queue_name for queue, _ in listed if isinstance(queue, QueueGroup)}
    states, queues = [], []
    for (queue, bins), workers in zip(listed, reports, strict=True):
        with suppress(NotFound):  # a group that is being made, or dropped, has no pointers
            states.append(_state(queue, bins, workers, has_groups=queue.name in followed))
            queues.append(queue)
    taken = Snapshot(
        registry.client_id,
        registry.farm_id,
        leader.now if leader else registry.store.seams.wall(),
        leader,
        tuple(states),
        {name: str(failure) for name, failure in unreadable.items()},
    )
    return taken, queues


def _state(
    queue: ShardedQueue, bins: Mapping[str, Any], workers: Sequence[WorkerReport], *, has_groups: bool
) -> QueueState:
    made: Any = bins.get("createdAt")
    return QueueState(
        queue.name,
        queue.live,
        stats_of(queue, bins),
        tuple(workers),
        queue.queue_name if isinstance(queue, QueueGroup) else None,
        has_groups,
        queue.config.retries is not None,
        sweep_interval([queue]),
        made / 1000 if is_int(made) else 0.0,
    )


def leader_of(store: RecordStore, election: str) -> Leader | None:
    """Return who leads an election by lease, or led it last; None where nobody ever did. One call.

    Raises `Corrupt` for a damaged record.
    """
    key = Key(LOCKS, election)
    try:
        *values, now = store.operate(key, *reads(BINS), Compute(SERVER_NOW), repeatable=True)
    except NotFound:
        return None
    lease = LeaseView.of(key, dict(zip(BINS, values, strict=True)))
    if not is_int(now):
        raise Corrupt(f"the store has no time for {key}: it said {now!r}")
    ago = max(0.0, (now - lease.time) / 1000)
    return Leader(str(lease.owner), lease.fence, lease.locked, ago, lease.lease, now / 1000)


def shown_time(seconds: float) -> str:
    """Return a length of time for people: `75 s`, `12 min`, `5 h`, `3 days`."""
    for unit, name in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
