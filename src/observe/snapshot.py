"""A client at one moment: its queues, who works on them, and who does their upkeep; what all tools show is made of it.

Values only, so that it can be kept, compared and sent; the folder `findings` judges it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..background import parallel_map
from ..coord.election.candidates import Candidates
from ..coord.lease import BINS, LeaseView, broken_by
from ..coord.lock import LOCKS
from ..coord.waits import reads
from ..deadline import Deadline, within_call
from ..errors import Corrupt, InvalidRequest, LatchworkError, NotFound, Unreadable
from ..forks import reset_in_child
from ..inputs import checked_many, checked_number, checked_timeout, farm_or_default, is_int
from ..plain import shown_time
from ..queue.sharded.delayed.schedules import ScheduleRecords, ScheduleState
from ..queue.sharded.history import LastMinutes, Minute
from ..queue.sharded.in_flight import CLAIMED, InHand, in_flight
from ..queue.sharded.queue import ShardedQueue
from ..queue.sharded.record import Live
from ..queue.sharded.registry import QueueRegistry
from ..queue.sharded.stats import QueueStats, stats_of_each
from ..queue.sharded.upkeep.reporter import FARM, consumers_here
from ..queue.sharded.upkeep.upkeep import election_name, sweep_interval
from ..queue.sharded.workers import REPORT, Stop, WorkerReport, process_of, reading, reports_in, stops_in
from ..seams import DIED, Seams
from ..store.connect import as_store
from ..store.model.expr import SERVER_NOW
from ..store.model.ops import Compute
from ..store.port import Key, RecordStore, Row, Update
from ..store.rows import Rows

HELD_LONG = 60.0
"""Seconds after which messages are told of that are in hand where nobody reports."""
BEGUN_WITHIN = 60.0
"""Seconds after its election in which a leader is not blamed for overdue upkeep."""
OTHERS = 60.0
"""Seconds between two listings of the queues that are not active. The active ones are listed with each look, but for
the look that lists the others, if they were listed in the `LATELY` seconds before."""
LATELY = 5.0
LOOKED_BACK = (1, 3, 6)
"""How many minutes back the history of a queue is read: to see whether it grows, and whether all messages fail."""
LEFT = 10_000
"""The last claimed slots that are searched for messages in hand, if nobody works on a queue any more."""


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
        """Whether its lease has not run out. One that died, or was made to step down, is no leader any more, whether or
        not it was succeeded.
        """
        return self.held and self.renewed_ago <= self.lease and self.stepped_down_by is None

    @property
    def stepped_down_by(self) -> str | None:
        """Who made the last leader step down, where nobody has been elected since; None where nobody did."""
        return broken_by(self.name) if self.held else None

    @property
    def only_sweeps(self) -> bool:
        """Whether it is a sweeper alone, which delivers no delayed messages: the name of a worker has its farm."""
        return FARM not in self.name

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
        if self.stepped_down_by is not None:
            return f"nobody leads: {self.stepped_down_by} made the leader step down {shown_time(self.renewed_ago)} ago"
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
    holders: the processes that have messages of it in hand, `host:pid`, "" for one that is not known; None = not known,
        or not looked at. Looked at only where a worker died, or where nobody works and it is not swept.
    abandoned: messages in hand of which no consumer has said for so long that it has them that a sweep brings them
        back; looked at as `holders`, where no worker is known.
    unreported: messages that have been in hand for a minute; looked at as `abandoned`.
    in_rate, out_rate: messages published and received a second since the look before; None = this was the first, or
        the queue was made again.
    stopped: the worker that stopped last, and took its report back; None = none is known to have.
    handler_timeout: seconds after which a handler is given up.
    shards: of the queue.
    minutes: what was noted of it some minutes ago, the oldest first: those of `LOOKED_BACK` that were noted.
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
    in_rate: float | None = None
    out_rate: float | None = None
    stopped: Stop | None = None
    handler_timeout: float = float("inf")
    shards: int = 0
    minutes: tuple[Minute, ...] = ()
    holders: tuple[str, ...] | None = None
    abandoned: int = 0
    unreported: int = 0

    @property
    def paused(self) -> bool:
        """Whether no messages are handed out."""
        return self.live.concurrency == 0

    @property
    def at_work(self) -> tuple[WorkerReport, ...]:
        """The workers that live."""
        return tuple(one for one in self.workers if not one.is_silent)

    @property
    def none_in_hand(self) -> bool:
        """Whether it is known that no consumer has a message of it in hand."""
        return self.holders == ()

    @property
    def is_shared(self) -> bool:
        """Whether groups read its messages, or it is a group: then no `queue cancel` ends one that they have."""
        return self.group_of is not None or self.has_groups

    @property
    def is_empty(self) -> bool:
        """Whether no message waits for a worker or for the upkeep. The parked ones wait for a person."""
        return _is_empty(self.stats)

    def may_hold(self, worker: WorkerReport) -> bool:
        """Whether this worker may have a message in hand: not where all that is in hand is with other workers."""
        if self.holders is None:
            return True
        others = {process_of(one.worker) for one in self.workers} - {process_of(worker.worker)}
        return any(one not in others for one in self.holders)

    @property
    def threads(self) -> int:
        """The threads of its workers, by their last reports."""
        return sum(one.threads for one in self.at_work)

    @property
    def busy(self) -> int:
        """How many of these threads are busy."""
        return sum(one.running for one in self.at_work)

    @property
    def rate_limited(self) -> int:
        """How often in the last minute the rate of its consumers let no handler begin."""
        return sum(one.rate_limited for one in self.at_work)

    @property
    def is_held_by_order(self) -> bool:
        """Whether it has more threads than shards, and its order keeps them from working."""
        return self.stats.in_order and self.busy <= self.shards < self.threads

    @property
    def draining(self) -> tuple[WorkerReport, ...]:
        """The workers that live and take no more messages, as they are about to stop."""
        return tuple(one for one in self.at_work if one.drains is not None)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A client in one farm at one moment.

    at: seconds since the epoch: the server's, where it was asked.
    leader: who does the upkeep; None = nobody ever did.
    candidates: the processes that may be elected to do it, and that are not known to be dead.
    ahead: seconds by which `at` is ahead of this machine's clock, negative if it is behind.
    unreadable: queues whose records cannot be read, by name, and why.
    schedules: by name; unreadable_schedules: the ones that cannot be read, and why.
    """

    client: str
    farm: str
    at: float
    leader: Leader | None
    queues: tuple[QueueState, ...]
    unreadable: Mapping[str, str]
    candidates: tuple[str, ...] = ()
    ahead: float = 0.0
    schedules: tuple[ScheduleState, ...] = ()
    unreadable_schedules: Mapping[str, str] = field(default_factory=dict)

    @property
    def upkeep(self) -> str:
        """Who does the upkeep, or whether somebody soon will, in a few words."""
        return standing_of(self.leader, self.candidates)

    @property
    def has_workers(self) -> bool:
        """Whether any process is known to work."""
        return any(not one.is_overdue for queue in self.queues for one in queue.at_work)


@dataclass(frozen=True, slots=True)
class ClientState:
    """A client in one farm, as its store has it: true of the store, whichever process asks.

    client: empty where the store could not even say which clients there are.
    store: where it is kept, without secrets.
    taken: its figures; None = they are not known.
    age: seconds since these were read; None = never.
    away: why there are no newer figures; None = there is no reason to ask for newer ones.
    """

    client: str
    farm: str
    store: str
    taken: Snapshot | None
    age: float | None
    away: str | None


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A consumer of this process: its counts since it was started."""

    queue: str
    threads: int
    running: int
    acked: int
    failed: int


@dataclass(frozen=True, slots=True)
class ProcessState:
    """This process: true of it alone, and as it is now.

    name: host and process id.
    dead_threads: the threads of the library that an error has ended, with the error's type.
    """

    name: str
    consumers: tuple[ConsumerState, ...]
    dead_threads: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Overview:
    """What `snapshot` found: of each client in each farm, and of this process."""

    clients: tuple[ClientState, ...]
    process: ProcessState


def standing_of(leader: Leader | None, candidates: Sequence[str]) -> str:
    """Return who leads, or whether a process soon will, in a few words. candidates: without dead ones."""
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


def snapshot(
    stores: RecordStore | Mapping[str, RecordStore],
    clients: str | Sequence[str] | None = None,
    *,
    max_age: float = 1.0,
    timeout: float = 2.5,
) -> Overview:
    """Return the clients in each farm as they are now, or were at most `max_age` seconds ago, and this process's own
    figures.

    stores: of each farm, by its name; or one store, of the farm $LATCHWORK_FARM.
    clients: None = all that have queues there, if the store can tell: one call more.
    timeout: seconds for each farm. One that does not answer is shown with the last figures that are known of it, their
        age, and why there are no newer ones.

    Costs as `ClientView.look` for each client and farm; nothing within `max_age` seconds of a look, whoever asked for
    it. Raises `InvalidRequest`.
    """
    farms = stores if isinstance(stores, Mapping) else {farm_or_default(None): stores}
    named = None if clients is None else [clients] if isinstance(clients, str) else checked_many("clients", clients)
    checked_number("max_age", max_age)
    limit = checked_timeout(timeout)
    if not farms:
        raise InvalidRequest("stores is empty: give a store, or one of each farm, as {farm: store}")
    registries = {
        farm: [QueueRegistry(store, one, farm_id=farm) for one in named or ()] for farm, store in farms.items()
    }

    found: dict[str, list[ClientState]] = {}

    def look(farm: str) -> None:
        known = None if named is None else registries[farm]
        found[farm] = _farm(farm, as_store(farms[farm]), known, max_age, limit)

    seams = as_store(next(iter(farms.values()))).seams
    parallel_map(seams, look, list(farms), len(farms), "latchwork-snapshot")
    return Overview(tuple(one for farm in farms for one in found[farm]), process_now(seams))


def process_now(seams: Seams) -> ProcessState:
    """Return the figures of this process. No call."""
    consumers = tuple(
        ConsumerState(one.queue.name, one.concurrency, one.running, one.stats["acked"], one.stats["failed"])
        for one in consumers_here()
    )
    return ProcessState(seams.process_name(), consumers, dict(DIED))


def _farm(
    farm: str, store: RecordStore, registries: list[QueueRegistry] | None, max_age: float, timeout: float | None
) -> list[ClientState]:
    """Return the clients of one farm; a client without a name if the store cannot be asked which there are."""
    with Deadline(store.seams, timeout):
        if registries is None:
            try:
                names = clients_in(store, farm)
            except LatchworkError as failure:
                return [ClientState("", farm, store.where, None, None, str(failure))]
            if names is None:
                raise InvalidRequest(f"{store.where} cannot list its clients: name them")
            registries = [QueueRegistry(store, name, farm_id=farm) for name in names]
        return [_looked(view_of(registry), max_age) for registry in registries]


def _looked(view: ClientView, max_age: float) -> ClientState:
    away = None
    try:
        view.look(max_age)
    except LatchworkError as failure:
        away = str(failure)
    registry = view.registry
    return ClientState(registry.client_id, registry.farm_id, registry.store.where, view.taken, view.age, away)


def of_client(registry: QueueRegistry) -> Snapshot:
    """Return the client of this registry as it is now. Costs as `ClientView.look`."""
    return view_of(registry).look()


def view_of(registry: QueueRegistry, only: str | None = None) -> ClientView:
    """Return this process's one view of the registry's client in its farm; only: of this queue alone."""
    views: dict[tuple[str, str, str | None], ClientView] = registry.store.__dict__.setdefault("_views", _Views())
    where = registry.client_id, registry.farm_id, only
    return views.get(where) or views.setdefault(where, ClientView(registry, only))


class _Views(dict[Any, Any]):
    """The views of a store's clients, which stay where they are when the store is pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Views, ()


class ClientView:
    """A client in one farm as this process saw it last, however many ask for it. Safe to share between threads.

    only: the name of the one queue that is looked at; None = all.
    """

    def __init__(self, registry: QueueRegistry, only: str | None) -> None:
        self.registry, self._only, self._seams = registry, only, registry.store.seams
        self.reset_after_fork()
        reset_in_child(self)
        self.taken: Snapshot | None = None
        self.queues: tuple[ShardedQueue, ...] = ()
        """The queues of the last look, of which more may be asked."""
        self._at = self._tried = self._listed = self._listed_active = float("-inf")
        self._failure: LatchworkError | None = None
        self._active, self._others = _Listed(), _Listed()
        self._counts: dict[str, _Counts] = {}
        self._known: dict[str, tuple[int, tuple[str, ...] | None]] = {}  # of queues that are over: fired, holders

    def reset_after_fork(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may hold it."""
        self._lock = self._seams.lock()

    @property
    def age(self) -> float | None:
        """Seconds since the last look that succeeded; None where there was none."""
        return None if self.taken is None else self._seams.monotonic() - self._at

    def look(self, max_age: float = 0.0) -> Snapshot:
        """Return the client as it is now, or was at most `max_age` seconds ago when another one looked.

        Three calls, and one for every 500 queues or part of them. One more at the first look, where a queue was
        deactivated since the last, and once a minute if looks are rarer than each 5 s; two more for each queue of which
        a worker died, until it was swept, and, once, for each empty queue on which nobody works, that nobody sweeps;
        more where messages have expired, as `ShardedQueue.depth` says. Raises the store's errors; whoever asks within
        `max_age` seconds of a look that failed gets its error.
        """
        with within_call(self._lock, "the look at the queues"):
            if not max_age or self._seams.monotonic() - self._tried > max_age:
                self._try()
            if self._failure is not None:
                raise self._failure
            assert self.taken is not None  # noqa: S101 - else it failed
            return self.taken

    def _try(self) -> None:
        try:
            self._look()
            self._at, self._failure = self._seams.monotonic(), None
        except LatchworkError as failure:
            self._failure = failure
        # After the look: a thread that waited for a slow one does not look again. One that an interrupt ended was none.
        self._tried = self._seams.monotonic()

    def _look(self) -> None:
        registry = self.registry
        # 1. The queues.
        listed, unreadable = self._list()
        interval = sweep_interval([queue for queue, _ in listed])  # of all queues: the upkeep sweeps them together
        followed = {queue.queue_name for queue, _ in listed if queue.reader}
        if self._only is not None:
            listed = [(queue, bins) for queue, bins in listed if queue.name == self._only]
            unreadable = {name: failure for name, failure in unreadable.items() if name == self._only}
        # 2. Who works on them, and who does the upkeep.
        election = Election(registry.store, election_name(registry.client_id))
        schedules = ScheduleRecords(registry.store, registry.client_id, registry.farm_id)
        # Minutes are by the server's clock: by as much ahead of this machine's as it was at the last look.
        noted = LastMinutes(self._seams.wall() + (self.taken.ahead if self.taken else 0.0), LOOKED_BACK)
        reads_of_queues = [
            *(reading(queue) for queue, _ in listed), *(one for queue, _ in listed for one in noted.reading(queue)),
        ]  # fmt: skip
        rows = registry.store.repeat_many([*election.reading, schedules.reading, *reads_of_queues])
        leader, candidates = election.found(rows[:2])
        scheduled, damaged = _schedules(schedules, rows[2])
        if self._only is not None:  # those of other queues say nothing of this one
            scheduled = tuple(one for one in scheduled if one.schedule.queue == self._only)
        about, minutes = Rows(rows[3 : 3 + len(listed)]), noted.found(Rows(rows[3 + len(listed) :]))
        reports, stops = reports_in(about), stops_in(about)
        at = leader.now if leader else self._seams.wall()
        # 3. What is in them.
        stats = stats_of_each(listed)
        states, leads = [], leader is not None and leader.leads
        for (queue, bins), found, workers, stop, some in zip(listed, stats, reports, stops, minutes, strict=True):
            if found is not None:
                is_followed = queue.name in followed
                state = self._state(
                    queue, bins, found, workers, interval=interval, at=at, leads=leads, has_groups=is_followed
                )
                states.append(replace(state, stopped=stop, minutes=some))
        self.queues = tuple(queue for (queue, _), found in zip(listed, stats, strict=True) if found is not None)
        reasons = {name: str(failure) for name, failure in unreadable.items()}
        self.taken = Snapshot(
            registry.client_id, registry.farm_id, at, leader, tuple(states), reasons,
            tuple(alive(candidates, leader, reports)), at - self._seams.wall(), scheduled, damaged,
        )  # fmt: skip

    def _list(self) -> _Listed:
        """Return the queues by name: the active ones as they are now, the others as they were listed within a minute.

        One call. Two at first, where a queue that was active is no longer, and once a minute where looks are rarer
        than each 5 s.
        """
        now, known = self._seams.monotonic(), {queue.name for queue, _ in self._active.queues}
        is_due = now >= self._listed + OTHERS
        if not is_due or now > self._listed_active + LATELY:
            self._active, self._listed_active = _Listed(*self.registry.scan(active=True)), now
        if is_due or known - {queue.name for queue, _ in self._active.queues}:
            self._others, self._listed = _Listed(*self.registry.scan(active=False)), now
        # By name, as one that was deactivated between two listings is in both.
        queues = {queue.name: (queue, bins) for queue, bins in [*self._others.queues, *self._active.queues]}
        unreadable = {**self._others.unreadable, **self._active.unreadable}
        return _Listed([queues[name] for name in sorted(queues)], unreadable)

    def _state(
        self,
        queue: ShardedQueue,
        bins: Mapping[str, Any],
        stats: QueueStats,
        workers: Sequence[WorkerReport],
        *,
        interval: float,
        at: float,
        leads: bool,
        has_groups: bool,
    ) -> QueueState:
        """Return a queue as it is at this moment, without what is known of it elsewhere."""
        if stats.delayed_late is not None:  # by the server's clock, as the time up to which is looked
            stats = replace(stats, delayed_late=max(0.0, stats.delayed_late + at - self._seams.wall()))
        made: Any = bins.get("createdAt")
        abandoned = REPORT + queue.config.sweep_duration.total_seconds()
        swept = at - (stats.last_sweep.success or (made if is_int(made) else 0)) / 1000
        holders: tuple[str, ...] | None = None if stats.depth.fired else ()
        # What a worker that died had in hand is back once a sweep has been, so long after its last report.
        died = any(one.is_silent and one.ago - abandoned < swept for one in workers)
        # Where nobody works and nothing waits, a sweep is missed only if somebody has something in hand.
        unswept = not leads or swept > 2 * sweep_interval([queue])
        over = all(one.is_silent for one in workers) and unswept and _is_empty(stats)
        left: Sequence[InHand] = ()
        if holders is None and (died or over):
            holders, left = self._holders(queue, bins, stats.depth.fired, is_over=over)
        stamps = [one.stamped / 1000 for one in left if one.stamped is not None] if over and not workers else []
        ago = [self._seams.wall() - one for one in stamps]
        now = _Counts(self._seams.monotonic(), stats.depth.loaded, stats.depth.fired)
        before = self._counts.get(queue.name)
        if before is None or now.at > before.at:
            self._counts[queue.name] = now
        in_rate, out_rate = now.rates(before) if before is not None and now.follows(before) else (None, None)
        return QueueState(
            queue.name, queue.live, stats, tuple(workers),
            queue.queue_name if queue.reader else None, has_groups,
            retries=queue.config.retries is not None, sweep_interval=sweep_interval([queue]),
            abandoned_after=abandoned, returns_within=abandoned + interval,
            made=made / 1000 if is_int(made) else 0.0, in_rate=in_rate, out_rate=out_rate,
            handler_timeout=queue.config.handler_timeout.total_seconds(), shards=queue.config.shards, holders=holders,
            abandoned=sum(one > abandoned for one in ago), unreported=sum(one > HELD_LONG for one in ago),
        )  # fmt: skip

    def _holders(
        self, queue: ShardedQueue, bins: Mapping[str, Any], fired: int, *, is_over: bool
    ) -> tuple[tuple[str, ...] | None, Sequence[InHand]]:
        """Return which processes have messages of a queue in hand, None = not known, and which messages they are. Two
        calls or more.

        is_over: nobody works on it. While nothing more is handed out, it then stays true that nobody has any.
        """
        if is_over and (known := self._known.get(queue.name)) is not None and known[0] == fired:
            return known[1], ()
        held = in_flight(queue, bins, LEFT if is_over else CLAIMED)
        holders = tuple(sorted({one.worker or "" for one in held.held})) if held.is_all else None
        if is_over and not holders:
            self._known[queue.name] = fired, holders
        return holders, held.held


def _is_empty(stats: QueueStats) -> bool:
    depth, waits = stats.depth, stats.ready.waiting or stats.sideline.waiting
    return not (waits or depth.delayed or depth.retrying or stats.is_streamed)


def _schedules(records: ScheduleRecords, row: Row) -> tuple[tuple[ScheduleState, ...], dict[str, str]]:
    """Return the schedules, and why the others cannot be read. Raises the store's errors."""
    states, damaged = list[ScheduleState](), dict[str, str]()
    try:
        stored = records.found(row)
    except (Corrupt, Unreadable) as failure:
        return (), {records.key.name: str(failure)}
    for name in sorted(stored.specs):
        try:
            states.append(stored.state(name))
        except Corrupt as failure:
            damaged[name] = str(failure)
    return tuple(states), damaged


class _Listed(NamedTuple):
    """Queues, each with its record, and the errors of those that cannot be read, by name."""

    queues: Sequence[tuple[ShardedQueue, Mapping[str, Any]]] = ()
    unreadable: Mapping[str, LatchworkError] = MappingProxyType({})


class _Counts(NamedTuple):
    """What was published and received when a queue was looked at (monotonic)."""

    at: float
    published: int
    received: int

    def follows(self, before: _Counts) -> bool:
        """Whether these counts go on from earlier ones: not where the queue was lost meanwhile, and made again."""
        return self.at > before.at and self.published >= before.published and self.received >= before.received

    def rates(self, before: _Counts) -> tuple[float, float]:
        """Return the messages a second, in and out, since an earlier look."""
        seconds = self.at - before.at
        return (self.published - before.published) / seconds, (self.received - before.received) / seconds


def alive(
    candidates: Sequence[str], leader: Leader | None, reports: Sequence[Sequence[WorkerReport]] = ()
) -> list[str]:
    """Return the candidates that are not known to be dead: a candidate is listed for a minute."""
    dead = {one.worker for some in reports for one in some if one.is_overdue}
    if leader and leader.held and not leader.leads:
        dead.add(leader.name)
    return [one for one in candidates if one not in dead]


class Election:
    """An election by lease, as its records show it.

    Raises `Corrupt` for a damaged record, and the store's errors.
    """

    def __init__(self, store: RecordStore, name: str) -> None:
        self._key, self._candidates = Key(LOCKS, name), Candidates(store, name)

    @property
    def reading(self) -> list[Update]:
        """The two updates that read it, for a batch."""
        return [Update(self._key, (*reads(BINS), Compute(SERVER_NOW))), self._candidates.reading]

    def found(self, rows: Sequence[Row]) -> tuple[Leader | None, list[str]]:
        """Return who leads, or led last, and the candidates, by the rows of `reading`; None where nobody ever led."""
        row, listed = rows
        names = self._candidates.present(listed)
        if isinstance(row, NotFound):
            return None, names
        if isinstance(row, LatchworkError):
            raise row
        *values, now = row
        lease = LeaseView.of(self._key, dict(zip(BINS, values, strict=True)))
        if not is_int(now):
            raise Corrupt(f"the store has no time for {self._key}: it said {now!r}")
        if lease.owner is None:  # nobody led here: a candidate has tried its store, or a farm was sealed
            return None, names
        ago = max(0.0, (now - lease.time) / 1000)
        return Leader(str(lease.owner), lease.fence, lease.locked, ago, lease.lease, now / 1000), names


def election_now(store: RecordStore, name: str) -> tuple[Leader | None, list[str]]:
    """Return who leads an election by lease, or led it last, and its candidates; None where nobody ever led. One call.

    Raises as `Election`.
    """
    election = Election(store, name)
    return election.found(store.repeat_many(election.reading))
