"""The elected upkeep of a client: workers that contend for it, delayed messages, schedules, leaders who do not know.

Its leader moves what is due, publishes the ticks of schedules, sweeps, and brings failed messages back.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, ClassVar
from unittest import mock

from latchwork.queue import QueueConfig, QueueRegistry, Schedule, ShovelConfig
from latchwork.queue.sharded.queue import ShardedQueue
from latchwork.queue.sharded.upkeep import farms, scheduling
from latchwork.queue.sharded.upkeep import upkeep as upkeeps
from latchwork.queue.sharded.upkeep.upkeep import Upkeep
from latchwork.retry import Poll

from ..checkers import upkeep as promises
from ..faults.kinds import WITH_THREADS, Kind
from ..faults.network import Change
from ..world import Process
from .base import Scenario, SimStore

LEASE, SWEEP, EVERY = 3.0, 4.0, 5
"""Seconds of the upkeep's lease, of the sweep duration, and between two ticks of a schedule."""
HOUR = 3600.0
DELAYED, MESSAGES = "c_delay_set", "c_data_set"
STEADY = Schedule("steady", "q", "tick", every=timedelta(seconds=EVERY), missed="all")
SCHEDULES = (
    STEADY,
    Schedule("cron", "q", "tick", cron="* * * * *", tz="Europe/Berlin", missed="all"),
    Schedule("changed", "q", "tick", every=timedelta(seconds=3), missed="last"),
)


def _config(shards: int) -> QueueConfig:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return QueueConfig(
            "q", shards=shards, sweep_duration=SWEEP, handler_timeout=1, max_deliveries=100, unsafe_limits=True,
            shovel=ShovelConfig(1),
        )  # fmt: skip


CONFIGS = [_config(1), _config(2)]


class Believed:
    """A term in which its leader believes until `lost` is set, whatever becomes of the lease."""

    def __init__(self, epoch: int, lost: Any) -> None:
        self.epoch, self.lost = epoch, lost

    def check(self) -> None:
        """It never knows better."""


class Office:
    """An election that has such a leader."""

    leadership: Believed | None = None


class Unaware(Upkeep):
    """The upkeep of a process that goes on for a while after its term."""

    def __init__(self, registry: QueueRegistry, run: Upkept) -> None:
        super().__init__(registry)
        self._run, self._office = run, Office()
        self._duties[0]._election = self._office

    def _lead(self, leadership: Any) -> None:
        term = self._office.leadership = Believed(leadership.epoch, self._seams.event())

        def end() -> None:
            leadership.lost.wait()
            self._seams.sleep(self._run.rng.choice((1.0, 2.0, 4.0)) * LEASE)
            if any(other.leads for _, other in self._run.upkeeps if other is not self):
                self._run.plan.fire(Kind.TWO_LEADERS)
            term.lost.set()

        self._seams.spawn(end, "end")
        super()._lead(term)  # type: ignore[arg-type]  # what the duties use of a leadership


class Upkept(Scenario):
    """Workers of one queue, of which one at a time does the upkeep, and all who give it something to do."""

    name = "upkeep"
    lease = LEASE
    horizon = 60.0
    span = 30.0
    patience = 600.0
    kinds = (*WITH_THREADS, Kind.ROW, Kind.SLOW_PRODUCER)
    environment = (Kind.SERVER_CLOCK, Kind.CLIENT_CLOCK, Kind.SUSPEND)
    bursts: ClassVar[int] = 4
    """Times at which more faults begin: most calls are made by the upkeep, while nothing happens."""

    @classmethod
    def sizes(cls, seed: int) -> ExitStack:
        """Leases and pauses so short that there are several leaders in a run."""
        stack = ExitStack()
        for module, name, value in (
            (upkeeps, "LEASE", LEASE), (upkeeps, "LOOKS", Poll(low=0.6, high=1.0)), (upkeeps, "LISTED", 10.0),
            (upkeeps, "NOTICE", 2.0), (farms, "NOTICE", 2.0), (scheduling, "LOOK", 3.0),
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(module, name, value))
        return stack

    def setup(self) -> None:
        self.config = self.rng.choice(CONFIGS)
        self.published = 0
        self.upkeeps: list[tuple[Process, Upkeep]] = []
        self.lost_leaders = 0
        self.calm_at = self.ended_at = 0.0
        self.drained = False
        self.seen = promises.Seen(self.world, SWEEP / 2)
        self.writes = self.seen.writes
        queue = self._queue(self.operator_store)
        for schedule in SCHEDULES:
            self._schedule(self.operator, queue, schedule)
        self.server.observer = self

    def _queue(self, store: SimStore) -> ShardedQueue:
        return QueueRegistry(store, "c", farm_id="f").create(self.config)

    def _opened(self, process: Process, store: SimStore) -> ShardedQueue | None:
        process.wall_offset += self.rng.choice((-HOUR, 0.0, 0.0, HOUR))
        entry = self.call(process, "open", lambda: self._queue(store))
        return entry.result if entry.ok else None

    def server_time(self) -> float:
        """What the server's clock says now."""
        return self.world.now + self.world.server_offset

    # ---- what the server sees

    def wrote(self, key: Any, change: Change) -> None:
        """A record was written."""
        self.seen.wrote(key, change)

    def removed(self, key: Any, who: str, bins: dict[str, Any]) -> None:
        """A record was deleted."""
        self.seen.removed(key)

    # ---- people

    def people(self) -> None:
        for number in range(self.rng.randint(2, 3)):
            self.person(f"work{number}", partial(self._worker, self.rng.choice((Upkeep, partial(Unaware, run=self)))))
        for number in range(self.rng.randint(1, 2)):
            self.person(f"pub{number}", self._producer)
        self.person("ops", self._operator)
        for _ in range(self.bursts):
            self.world.at(self.world.now + self.rng.random() * self.span, self._more_faults)
        for _ in range(self.rng.randint(0, 2)):
            self.world.at(self.world.now + self.rng.random() * self.span, self._kill_the_leader)

    def _more_faults(self) -> None:
        if not self.plan.calm and hasattr(self.plan, "budget"):
            self.plan.budget += self.rng.choice((1, 2, 4))

    def _kill_the_leader(self) -> None:
        leaders = [process for process, upkeep in self.upkeeps if upkeep.leads and not process.dead]
        if leaders and not self.plan.calm and hasattr(self.plan, "budget"):
            self.lost_leaders += 1
            self.rng.choice(leaders).die()

    def _worker(self, made: Any, process: Process, store: SimStore) -> None:
        """Takes messages, and part in the upkeep."""
        queue = self._opened(process, store)
        if queue is None:
            return
        upkeep = made(queue.registry)
        self.upkeeps.append((process, upkeep))
        upkeep.join(process, "q")
        early = self.rng.randint(3, 15) if made is not Upkeep else None
        for turn in range(self.rng.randint(5, 20)):
            if turn == early:
                upkeep.leave(process, 0.0)
            self._turn(process, queue)
            self.idle(process, self.rng.choice((0.5, 2.0, 4.0)))
        draw = self.rng.random()
        if draw < 0.6:
            upkeep.leave(process, self.rng.choice((0.0, 5.0)))
        if draw < 0.3:
            self.idle(process, 10.0)

    def _turn(self, process: Process, queue: ShardedQueue) -> None:
        found = self.call(process, "receive", partial(queue.receive, self.rng.choice((1, 5))))
        found.tag = tuple(delivery.message_id for delivery in found.result) if found.ok else ()
        for delivery in found.result if found.ok else ():
            draw = self.rng.random()
            if draw < 0.05:
                continue
            if draw < 0.1:
                self.idle(process, 2 * SWEEP)
            if 0.1 < draw < 0.25:
                self.call(process, "nack", delivery.nack, delivery.message_id)
            elif draw < 0.4:
                delay = self.rng.choice((0.5, 2.0, 7.0))
                self.call(process, "postpone", partial(delivery.nack, delay=delay), delivery.message_id)
            else:
                self.call(process, "ack", delivery.ack, delivery.message_id)

    def _producer(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        for _ in range(self.rng.randint(1, 6) if queue else 0):
            self.published += 1
            one, delay = f"m{self.published}", self.rng.choice((0.0, 0.3, 2.0, 5.0, 12.0))
            when: dict[str, Any] = {"delay": delay} if delay else {}
            if self.rng.random() < 0.2:
                when = {"at": datetime.fromtimestamp(self.server_time() + delay, timezone.utc)}
            self.call(process, "publish", partial(queue.publish, one, message_id=one, **when), one, when)
            self.idle(process, self.rng.choice((0.01, 0.5, 8.0)))

    def _operator(self, process: Process, store: SimStore) -> None:
        """Replaces a schedule, removes it and puts it again, and pauses, scales and resumes the queue."""
        queue = self._opened(process, store)
        for _ in range(self.rng.randint(0, 4) if queue else 0):
            draw = self.rng.random()
            if draw < 0.5:
                self._schedule(process, queue, SCHEDULES[-1])
            elif draw < 0.6:
                self.call(process, "unschedule", partial(queue.registry.unschedule, "changed"), "changed")
            elif draw < 0.8:
                self._pause(process, queue)
            else:
                change = self.rng.choice((partial(queue.scale, 3), partial(queue.scale, 0), queue.resume))
                self.call(process, "scale", change)
            self.idle(process, 10.0)

    def _pause(self, process: Process, queue: ShardedQueue) -> None:
        """Pauses a schedule for a while, in which it may be put again, and resumes it."""
        entry = self.call(process, "pause", partial(queue.registry.pause_schedule, "changed"), "changed")
        since = self.server_time()
        self.idle(process, self.rng.choice((4.0, 7.0)))
        if self.rng.random() < 0.5:
            self._schedule(process, queue, SCHEDULES[-1])
            self.idle(process, 4.0)
        entry.tag = since, self.server_time()
        self.call(process, "resume", partial(queue.registry.resume_schedule, "changed"), "changed")

    def _schedule(self, process: Process, queue: ShardedQueue, schedule: Schedule) -> None:
        began = self.server_time()
        entry = self.call(process, "schedule", partial(queue.registry.schedule, schedule), schedule.name)
        entry.tag = began, self.server_time()

    # ---- the end

    def settle(self) -> None:
        """The server's clock is right again; somebody comes who dies of nothing, and does whatever is left to do."""
        self.world.server_offset = max(self.world.server_offset, 1_700_000_000.0)
        self.calm_at = self.server_time()
        queue = self._queue(self.operator_store)
        queue.resume()
        upkeep = Upkeep(queue.registry)
        upkeep.join(self, "q")
        for turn in range(60):
            self.operator.seams.sleep(2.0)
            if turn == 10:
                self.ended_at = self.server_time()
                for name in [schedule.name for schedule in queue.registry.schedules()]:
                    queue.registry.unschedule(name)
            self._drain(queue)
            depth = queue.depth()
            self.drained = turn > 14 and depth.ready == depth.sideline == 0 and not self.seen.left()
            if self.drained:
                break
        upkeep.leave(self)

    def _drain(self, queue: ShardedQueue) -> None:
        while found := queue.receive(100):
            for delivery in found:
                self.call(self.operator, "ack", delivery.ack, delivery.message_id)

    def check(self) -> None:
        promises.check(self)
