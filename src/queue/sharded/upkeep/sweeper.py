"""The sweeper of all queues of a client: it plans each sweep, lets `sweep.py` do it, and stores its outcome (P5)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from threading import TIMEOUT_MAX
from typing import Any, NamedTuple, Protocol

from ....background import ERROR_BACKOFF, Background, FailureLog, parallel_map
from ....errors import Corrupt, InvalidRequest, LatchworkError, NotFound, Refused, Unreadable
from ....inputs import checked_seconds, checked_whole
from ....logs import Log
from ....store import KEEP, Compute, Key, MapPut, Put, Read, Update
from ....store.model.expr import SERVER_NOW, Bound
from ....store.model.ops import Op
from ....store.port import Values
from ..config import milliseconds
from ..groups.making import MADE, forget_dead, without_record
from ..pointers import FIRE, KNOWN, LOAD, STREAM, Pointers
from ..record import lifetime, sweep_note
from ..registry import REFRESH, QueueRegistry
from ..rules import GROUPS
from ..subscription import Subscription
from ..sweep_record import MARKS, Mark, SubqueueKind, SweepRecord, mark_name, pointer_bin
from .report import LiveMessage, ShardReport, ShardTask, Stop, SweepReport
from .sweep import EPOCH_GUARD, sides, sweep_shards

log = Log(__name__)

INITIAL_DELAY = 600.0
"""Seconds until the first sweep, as in the Java library."""
INTERVAL = 900.0
"""Seconds between sweeps, as in the Java library."""
PARALLELISM = 64
BUDGET = 5_000_000
"""The number of slots of one shard that one sweep looks at, at most; the next sweep continues behind them."""
RESCUE = 1_000_000
"""The number of slots behind the sweep pointer that are looked at in a damaged shard: it is not known how many were
used.
"""
RESCUE_BUDGET = 100_000
"""The number of these that one sweep looks at, at most; the next sweep continues behind them, or begins again."""
GONE = 2 * REFRESH
"""Seconds for which the record of a group is missing, at least, before the queue forgets the group: if the store has
lost the record of a group in use, a refresh makes it again within this time.
"""
SHORTEST = 0.01
"""Seconds between sweeps, at least."""

Bins = dict[str, Any]


class Leads(Protocol):
    """The part of a leadership that a sweep uses."""

    @property
    def epoch(self) -> int: ...
    def check(self) -> None: ...


class Elects(Protocol):
    """The part of an election that the sweeper uses."""

    @property
    def leadership(self) -> Leads | None: ...


class _SeenMark(NamedTuple):
    """A mark, and when it was seen at the latest, on this process's monotonic clock.

    since: the server's time in it, which tells it from a mark of a queue that was made again; None = this process has
        set it in this term, and has not read it since.
    epoch: of that term.
    """

    fired: int
    since: int | None
    epoch: int
    at: float

    def is_of(self, mark: Mark, epoch: int) -> bool:
        """Whether this is the mark that was read in a term."""
        same = self.epoch == epoch if self.since is None else self.since == mark[1]
        return same and self.fired == mark[0]


class _ShardPointers(NamedTuple):
    """A shard's pointers, and the server's time in ms when they were read.

    fired: None if the pointers are damaged, which `damage` says.
    unseen: whether it has handed out messages, and no sweep has seen it since its pointers began.
    groups: the names of the groups that have joined it.
    """

    place: tuple[SubqueueKind, int]
    fired: int | None
    is_streamed: bool
    now: int
    damage: Corrupt | Unreadable | None = None
    unseen: bool = False
    groups: tuple[str, ...] = ()

    @classmethod
    def of(cls, place: tuple[SubqueueKind, int], key: Key, row: Values | Corrupt | Unreadable) -> _ShardPointers:
        if isinstance(row, Corrupt | Unreadable):
            return cls(place, None, is_streamed=True, now=0, damage=row)
        *values, known, groups, now = row
        bins = {bin: value for bin, value in zip((LOAD, FIRE, STREAM), values, strict=True) if value is not None}
        damage, fired = None, None
        try:
            fired = Pointers.of(key, bins).fire or 0
        except Corrupt as failure:
            damage = failure
        unseen = known is None and bool(bins.get(FIRE))
        tags = tuple(groups) if isinstance(groups, dict) else ()
        return cls(place, fired, isinstance(bins.get(STREAM), str), now, damage, unseen, tags)


_POINTERS = (Read(LOAD), Read(FIRE), Read(STREAM), Read(KNOWN), Read(GROUPS), Compute(SERVER_NOW))


class Sweeper:
    """A sweeper of all queues of a registry, while `election` says that this process leads.

    election: all sweepers of a client use one, best named `{client_id}-sweeper`, as the commands `queue sweep` and
        `stats` name it. The epochs of two elections cannot be compared: the sweeper with the lower epochs is deposed by
        the other, and logs it.
    parallelism: queues swept at once.
    initial_delay, interval: seconds before the first sweep of `start`, and between two sweeps.

    Any number of processes may run a sweeper; only the leader's does anything. If two processes both believe that they
    lead, no message is lost. Sweep in one thread at a time: call `start`, or `run_once` yourself. Any thread may call
    `stop`.
    """

    def __init__(
        self,
        registry: QueueRegistry,
        election: Elects,
        *,
        parallelism: int = PARALLELISM,
        initial_delay: float = INITIAL_DELAY,
        interval: float = INTERVAL,
    ) -> None:
        if not isinstance(registry, QueueRegistry) or not hasattr(election, "leadership"):
            kinds = f"{type(registry).__name__} and {type(election).__name__}"
            raise InvalidRequest(f"a sweeper of {kinds}; give it a QueueRegistry and an election")
        checked_whole("parallelism", parallelism, 1, PARALLELISM)
        checked_seconds("initial_delay", initial_delay, 0, TIMEOUT_MAX)
        checked_seconds("interval", interval, SHORTEST, TIMEOUT_MAX)
        self.registry, self.election, self.parallelism = registry, election, parallelism
        self.initial_delay, self.interval = initial_delay, interval
        self._seams = registry.store.seams
        self._seen: dict[tuple[str, str], _SeenMark] = {}
        self._live: dict[tuple[str, str], dict[LiveMessage, float]] = {}
        self._next: dict[tuple[str, str], int] = {}
        self._repaired: dict[str, str] = {}
        # Of each queue the term, and since when groups that its shards name have had no record, by their tags.
        self._gone: dict[str, tuple[int, dict[str, float]]] = {}
        self._background = Background(self._seams, self._run, "latchwork-sweeper")
        self._stop = self._background.stopping
        self._failure_log = FailureLog(self._seams, log)

    # ---- running

    def run_once(self) -> SweepReport:
        """Sweep every queue once, active or not, if this process leads; return the report.

        Raises only if the queues cannot be listed.
        """
        leadership = self.election.leadership
        if leadership is None:
            return SweepReport(0)
        with self._seams.span("sweep", epoch=leadership.epoch):
            listed, unreadable = self.registry.scan(active=None)
            self.forget_others([*unreadable, *(queue.name for queue, _ in listed)])
            parts = parallel_map(
                self._seams, lambda one: self._sweep(*one, leadership), listed, self.parallelism, "latchwork-sweep"
            )
        return sum(parts, unread(leadership.epoch, unreadable))

    def start(self) -> Sweeper:
        """Sweep in the background: first after 10 minutes, then every 15."""
        self._background.start()
        return self

    def stop(self, timeout: float | None = 30) -> bool:
        """Stop before the next queue's next batch; whether it has within `timeout` seconds."""
        return self._background.stop(timeout)

    def _run(self) -> None:
        pause, failures = self.initial_delay, 0
        while not self._stop.wait(pause):
            pause = self.interval
            try:
                report = self.run_once()
                if report.led and report.ok:
                    log.info("%s", report)
                elif report.led:
                    self._failure_log.warn(str(report))
                failures = 0
            except Exception as failure:  # noqa: BLE001 - a defect must not end a task that nothing would start again
                failures += 1
                pause = max(pause, ERROR_BACKOFF.pause(failures, self._seams))
                self._failure_log.record(failure, f"the sweep failed; the next one is in {pause:g} s")

    # ---- one queue

    def _sweep(self, queue: Subscription, bins: Bins, leadership: Leads) -> SweepReport:
        """Sweep one queue, and record the result as metrics. What it meets does not stop the others' sweep."""
        began, epoch = self._seams.monotonic(), leadership.epoch
        report = SweepReport(epoch, (queue.name,))
        try:
            self._check(leadership)
            if not queue.ends(bins):
                tasks = self.tasks(queue, bins, epoch)
                shards = sweep_shards(self.registry.store, tasks, epoch, lambda: self._check(leadership))
                report = self.finish(queue, epoch, tasks, shards)
        except LatchworkError as failure:
            report = self.failed(queue, epoch, f"{failure.code}: {failure}")
        except Exception as failure:  # a defect
            log.exception("the sweep of %s failed", queue.name)
            report = self.failed(queue, epoch, repr(failure))
        report.record(self._seams, self._seams.monotonic() - began)
        return report

    def finish(
        self, queue: Subscription, epoch: int, tasks: Sequence[ShardTask], shards: Sequence[ShardReport]
    ) -> SweepReport:
        """Note the marks and the result of a queue whose tasks were swept, here or elsewhere; return its report."""
        self.swept(shards, epoch)
        error = self._repaired.pop(queue.name, None)
        failed = [one for one in shards if one.refused or one.damage or one.stop in _FAILURES]
        if failed and error is None:
            what = failed[0].error or failed[0].damage or f"{failed[0].refused} messages could not be moved"
            error = f"shard {failed[0].shard} of the {failed[0].kind.value} queue: {what}"
        # If the sweep pointers were written, that write has noted the success already.
        began = {(task.kind, task.shard): task.swept for task in tasks}
        written = any(one.rehomed or one.marked or one.swept > began[one.kind, one.shard] for one in shards)
        if (error or not written) and not self.note(queue, epoch, error):
            error = error or f"deposed: a leader of an epoch above {epoch} has swept it"
        return SweepReport(epoch, (queue.name,), tuple(shards), ((queue.name, error),) if error else ())

    def failed(self, queue: Subscription, epoch: int, error: str) -> SweepReport:
        """Return the report of a queue that could not be swept, which is noted."""
        try:
            self.note(queue, epoch, error)
        except LatchworkError as failure:
            self._failure_log.record(failure, f"the failed sweep of {queue.name} could not be noted")
        return SweepReport(epoch, (queue.name,), (), ((queue.name, error),))

    def _check(self, leadership: Leads) -> None:
        if self._stop.is_set():
            raise LatchworkError("the sweeper was stopped")
        leadership.check()

    def tasks(self, queue: Subscription, bins: Bins, epoch: int) -> list[ShardTask]:
        """Return what there is to sweep in a queue whose record holds `bins`. One call, whatever the number of shards.

        Bins that are slightly out of date are harmless: sweep pointers never move back, and a mark stays true. One call
        more each for damaged bins, which are repaired first, and reported at the end; for shards that were lost and
        began again, which are swept from their first slot; and for the groups of the queue, of which one whose record
        has been gone for long is removed. Raises `Corrupt` if the record cannot be repaired, and `Refused` if a later
        leader has swept the queue.
        """
        shards = self._shards(queue)
        self._forget_dead(queue, {tag for shard in shards for tag in shard.groups}, epoch)
        begin_again(queue, bins, epoch, [shard.place for shard in shards if shard.unseen])
        # Where a group begins was not known when its record was read, if that does not call it made.
        shards = [shard for shard in shards if shard.place[0] is not SubqueueKind.SHARED or MADE in bins]
        now = max((shard.now for shard in shards), default=0)
        notes = SweepRecord.of(self.registry.records.key(queue.name), bins, now)
        ahead = [shard for shard in shards if shard.fired is not None and notes.swept(*shard.place) > shard.fired]
        notes = notes.without(shard.place for shard in ahead)
        if notes.repairs:
            self._repair(queue, notes, epoch)
        tasks: list[ShardTask] = []
        for at in shards:
            swept, mark = notes.swept(*at.place), notes.marks.get(mark_name(*at.place))
            if at.fired is None:
                tasks.append(self._rescue(queue, at, swept, mark, epoch))
            elif swept < at.fired:
                tasks.append(self._plan(queue, at, swept, mark, epoch))
        return tasks

    def _forget_dead(self, queue: Subscription, tags: Collection[str], epoch: int) -> None:
        """Let a queue forget those of its groups that have had no record for long, or whose name another group has.

        How long is measured by this process's own clock, and begins again with each term. One call, none without tags;
        two more for each group that is forgotten.
        """
        gone, now = without_record(self.registry.records, queue.pointers, tags), self._seams.monotonic()
        term, before = self._gone.pop(queue.name, (epoch, {}))
        since = {tag: before.get(tag, now) if term == epoch else now for tag in gone}
        if since:
            self._gone[queue.name] = epoch, since
        for tag, has_successor in gone.items():
            if has_successor or now - since[tag] > GONE:
                forget_dead(queue.pointers, tag)

    def _repair(self, queue: Subscription, notes: SweepRecord, epoch: int) -> None:
        what = f"{', '.join(notes.repairs)} in the queue's record are damaged; they start from their defaults"
        log.warning("queue %s: %s", queue.name, what)
        key, guard = self.registry.records.key(queue.name), Bound(EPOCH_GUARD, {"epoch": epoch})
        self.registry.store.operate(key, *notes.ops, when=guard, ttl=lifetime(queue.config), repeatable=True)
        self._repaired[queue.name] = what

    def _shards(self, queue: Subscription) -> list[_ShardPointers]:
        """Return the shards of all subqueues that were ever used."""
        queues = sides(queue.pointers, queue.sideline.pointers, queue.parked.pointers)
        places = [(kind, shard) for kind in queues for shard in range(queue.config.shards)]
        keys = [queues[kind].pointers_key(shard) for kind, shard in places]
        rows = self.registry.store.repeat_many([Update(key, _POINTERS) for key in keys])
        found = zip(places, keys, rows.raise_unless(NotFound, Corrupt, Unreadable), strict=True)
        return [
            _ShardPointers.of(place, key, row)
            for place, key, row in found
            if isinstance(row, tuple | Corrupt | Unreadable)
        ]

    def _plan(self, queue: Subscription, at: _ShardPointers, swept: int, mark: Mark | None, epoch: int) -> ShardTask:
        duration, fired = milliseconds(queue.config.sweep_duration), at.fired or 0
        place = queue.name, mark_name(*at.place)
        limit, settled_up_to, old = fired, 0, True
        noted, since = mark if mark and swept < mark[0] <= fired else (0, 0)
        if mark and noted:
            old = self._known(*place, mark, epoch) * 1000 >= duration
            # Messages handed out since a young mark were stamped since then, so none of them can be abandoned yet.
            # A sweeper that has not known the mark for long uses its age by the server: a look too early does no harm.
            limit = fired if old or at.now - since >= duration else noted
            settled_up_to = noted if old else 0
        part = self._part(place, swept, limit, BUDGET)
        return self._task(queue, at, swept, settled_up_to=settled_up_to, noted=fired if old else 0, **part)

    def _part(self, place: tuple[str, str], swept: int, limit: int, budget: int) -> dict[str, Any]:
        """Return the part of a shard that this sweep looks at: where the last one stopped, within the budget."""
        begin = self._next.pop(place, swept)
        begin = begin if swept <= begin < limit else swept
        end = min(limit, begin + budget)
        if end < limit:
            self._next[place] = end
        return {"begin": begin, "limit": end, "stop": Stop.DRAINED if end == limit else Stop.BUDGET}

    def _rescue(self, queue: Subscription, at: _ShardPointers, swept: int, mark: Mark | None, epoch: int) -> ShardTask:
        """Return the task that moves all messages of a shard as abandoned ones, to other shards of the queue or into
        the sideline, because its pointers are damaged and nothing can be received from it.

        It moves nothing in the shard of a stream.
        """
        place, limit = (queue.name, mark_name(*at.place)), swept if at.is_streamed else swept + RESCUE
        known = self._known(*place, mark, epoch) if mark else 0.0
        old = known * 1000 >= milliseconds(queue.config.sweep_duration)
        settled_up_to = min(mark[0], limit) if mark and old else 0
        part = self._part(place, swept, limit, RESCUE_BUDGET)
        return self._task(queue, at, swept, settled_up_to=settled_up_to, noted=0, damage=str(at.damage), **part)

    def _task(self, queue: Subscription, at: _ShardPointers, swept: int, **scan: Any) -> ShardTask:
        duration = milliseconds(queue.config.sweep_duration)
        return ShardTask(
            self.registry.client_id, self.registry.farm_id, queue.config, *at.place, swept, age_ms=duration,
            abandoned=self._abandoned(queue.name, mark_name(*at.place), duration), unseen=at.unseen, **scan,
        )  # fmt: skip

    def _known(self, queue: str, name: str, mark: Mark, epoch: int) -> float:
        """Return for how many seconds this process has known the mark, by its own monotonic clock, which
        cannot be set.
        """
        now = self._seams.monotonic()
        seen = self._seen.get((queue, name))
        at = seen.at if seen is not None and seen.is_of(mark, epoch) else now
        self._seen[queue, name] = _SeenMark(*mark, epoch, at)
        return now - at

    def _abandoned(self, queue: str, name: str, duration: int) -> frozenset[LiveMessage]:
        """Return the messages whose stamps have not changed for one sweep duration, by this process's own clock."""
        now = self._seams.monotonic()
        live = self._live.get((queue, name), {})
        return frozenset(message for message, since in live.items() if (now - since) * 1000 >= duration)

    def forget_others(self, queues: Collection[str]) -> None:
        """Forget what is known of all but these queues: others are gone."""
        there = set(queues)
        self._gone = {name: known for name, known in self._gone.items() if name in there}
        for known in (self._seen, self._live, self._next):
            for place in [one for one in known if one[0] not in there]:
                del known[place]

    def swept(self, reports: Iterable[ShardReport], epoch: int) -> None:
        """Take note of the marks that were set and of the live messages, wherever the shards were swept."""
        now = self._seams.monotonic()
        for report in reports:
            place = report.queue, mark_name(report.kind, report.shard)
            if report.marked:
                self._seen[place] = _SeenMark(report.marked, None, epoch, now)
            before = self._live.pop(place, {})
            live = {message: before.get(message, now) for message in report.live_messages}
            if report.stop in _FAILURES:  # the sweep may have ended before all of them
                live = before | live
            if live:
                self._live[place] = live

    def note(self, queue: Subscription, epoch: int, error: str | None) -> bool:
        """Store when the queue was swept, and its error, if any; False if a later leader has taken over.

        A deactivated queue from which nothing was moved has no more time to live than before.
        """
        guard = Bound(EPOCH_GUARD, {"epoch": epoch})
        ops = (*sweep_note(success=error is None, error=error), Put("epoch", epoch))
        ttl = lifetime(queue.config) if queue.live.active or error else KEEP
        try:
            self.registry.store.operate(
                self.registry.records.key(queue.name), *ops, when=guard, ttl=ttl, repeatable=True
            )
        except Refused:
            log.warning(
                "the sweep of %s by epoch %d was not noted: a later leader has taken over, or a sweeper that another "
                "election chose, as the command's, named %s-sweeper: let all use one",
                queue.name, epoch, self.registry.client_id,
            )  # fmt: skip
            return False
        return True


_FAILURES = (Stop.DEPOSED, Stop.FAILED)


def unread(epoch: int, unreadable: Mapping[str, LatchworkError]) -> SweepReport:
    """Return the report of queues whose records cannot be read, so that they cannot be swept."""
    failures = tuple((name, f"{failure.code}: {failure}") for name, failure in unreadable.items())
    return SweepReport(epoch, tuple(unreadable), (), failures)


# ---- shards that the store has lost


def begin_again(queue: Subscription, bins: Bins, epoch: int, unseen: Collection[tuple[SubqueueKind, int]]) -> None:
    """Forget what the queue's record, and `bins`, say about sweeps of these shards, which no sweep has seen: their
    pointers were lost with the store, or a part of it, and began again at 1 (docs/protocols P5).

    No call, or one where it says anything. Raises the store's errors, and `Refused` if a later leader has swept the
    queue.
    """
    ops: list[Op] = []
    for kind, shard in sorted(unseen, key=str):
        swept, marks = _entries(bins, pointer_bin(kind)), _entries(bins, MARKS)
        if swept.get(str(shard)):
            swept[str(shard)] = 0
            ops.append(MapPut(pointer_bin(kind), str(shard), 0))
        if mark_name(kind, shard) in marks:
            del marks[mark_name(kind, shard)]
            ops.append(MapPut(MARKS, mark_name(kind, shard), [0, 0]))
    if not ops:
        return
    log.warning(
        "the store has lost pointers of queue %s since it was swept: their shards are swept from the beginning",
        queue.name,
    )
    key, guard = queue.registry.records.key(queue.name), Bound(EPOCH_GUARD, {"epoch": epoch})
    ttl = lifetime(queue.config) if queue.live.active else KEEP
    queue.store.operate(key, *ops, Put("epoch", epoch), when=guard, ttl=ttl, repeatable=True)


def _entries(bins: Bins, bin: str) -> Bins:
    """Return the entries of a map; none if it is damaged, which the plan repairs."""
    found = bins.get(bin)
    return found if isinstance(found, dict) else {}
