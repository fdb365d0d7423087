"""The simulated world: processes with clocks of their own, and the seams through which primitives see it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent

from latchwork.seams import Seams

from .scheduler import Actor, Hub, Killed, Wake

EPOCH = 1_700_000_000.0
"""What the server's clock says when a run begins."""


SPIN = 1e-5
"""Seconds that a call takes which needs none."""
STILL = 100_000
"""Times that a process reads its clock at one moment: then a thread does so in a loop, and never waits."""


class Process:
    """A program on some machine: it has clocks, actors, and a life that can end."""

    def __init__(self, world: World, name: str) -> None:
        rng = world.rng
        self.world = world
        self.name = name
        self.dead = False
        self.doubts = 0
        self.frozen_until = 0.0
        self.wall_offset = EPOCH + rng.uniform(-2.0, 2.0)
        self.boot = rng.uniform(0.0, 100_000.0)
        self.suspended = 0.0
        self.actors: list[Actor] = []
        self.seams = SimSeams(self)
        self.on_death: Callable[[], None] = lambda: None

    def spawn(self, body: Callable[[], None], name: str, *, main: bool = False) -> SimTask:
        """Start a thread of this process; the run goes on until all main ones are done."""
        if self.dead:
            raise Killed
        actor = Actor(self.world, self, body, f"{self.name}.{name}")
        actor.main = main
        self.world.busy += main
        self.actors.append(actor)
        self.world.start(actor)
        return SimTask(actor)

    def die(self) -> None:
        """The process is killed where it stands: nothing that it does from here on has an effect."""
        if self.dead:
            return
        self.dead = True
        for actor in self.actors:
            self.world.bury(actor)
        self.on_death()

    def exit(self) -> None:
        """The program ends: its other threads end with it, and nobody takes its place."""
        self.on_death = lambda: None
        self.die()

    def freeze(self, seconds: float, *, suspend: bool = False) -> None:
        """Stop all threads for so long; a suspended machine's monotonic clock stops as well."""
        self.frozen_until = max(self.frozen_until, self.world.now + seconds)
        if suspend:
            self.suspended += seconds


class World(Hub):
    """One run: the hub, the server's clock, and the processes."""

    def __init__(self, seed: int, *, any_order: bool = False) -> None:
        super().__init__(seed)
        self.shuffler = random.Random(seed) if any_order else None
        """Gives the order in which the rows of a batch are applied; None: as they were given."""
        self.processes: list[Process] = []
        self.server_offset = EPOCH
        self.furthest_offset = EPOCH
        """The server's clock at its furthest: until it is there again, time stands still on some records (P0.3)."""
        self.preempt = self.rng.choice((0.0, 0.0, 0.02, 0.1))
        self._ticks = 0

    def tick(self) -> int:
        """The next number in the order in which things happen."""
        self._ticks += 1
        return self._ticks

    def process(self, name: str) -> Process:
        """Boot another process."""
        process = Process(self, name)
        self.processes.append(process)
        return process

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Run an action of the environment at a time."""
        self.push(max(when, self.now), action)

    def end(self) -> None:
        """Kill whatever still lives, so that nothing outlives the run."""
        for process in self.processes:
            process.exit()

    def forget(self) -> None:
        """Let go of all that the run has made: what still refers to one lock of it must not keep all alive."""
        for process in self.processes:
            process.actors.clear()
            process.on_death = lambda: None
        self.processes.clear()
        self._heap.clear()
        self.failures.clear()


class ServerClock(Seams):
    """The clock of the server, which somebody may set."""

    def __init__(self, world: World) -> None:
        self.world = world

    def wall(self) -> float:
        return self.world.now + self.world.server_offset


class SimSeams(Seams):
    """One process's view of clocks, chance, ids and threads. Each of them is a point where others may run."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world = process.world
        self.rng = process.world.rng
        self._moment, self._reads, self._loops = 0.0, 0, False

    def _read(self) -> None:
        """Note that the clock is read. A thread that reads it in a loop has failed; from then on each read takes time,
        so that the run ends.
        """
        world = self.world
        if self._loops and getcurrent() is not world.greenlet:
            world.pause(0.001)
        elif world.now != self._moment:
            self._moment, self._reads = world.now, 0
        elif (reads := self._reads + 1) < STILL:
            self._reads = reads
        else:
            self._loops = True
            world.failures.append((self.process.name, RuntimeError("a thread reads the clock again and again")))

    def _preempted(self) -> None:
        """Between a clock being read and what is done about it, anything may happen."""
        world = self.world
        if world.preempt and self.rng.random() < world.preempt and getcurrent() is not world.greenlet:
            world.pause(self.rng.choice((0.0, 0.001, 0.02)))

    def monotonic(self) -> float:
        self._read()
        process = self.process
        value = self.world.now + process.boot - process.suspended
        self._preempted()
        return value

    def boottime(self) -> float:
        self._read()
        value = self.world.now + self.process.boot
        self._preempted()
        return value

    def wall(self) -> float:
        value = self.world.now + self.process.wall_offset
        self._preempted()
        return value

    def sleep(self, seconds: float) -> None:
        self.world.pause(seconds)

    def unique(self) -> str:
        return f"{self.rng.getrandbits(80):020x}"

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.rng.random()

    def event(self) -> SimEvent:
        return SimEvent(self.world)

    def lock(self) -> SimLock:
        return SimLock(self.world)

    def process_name(self) -> str:
        return self.process.name

    def thread(self) -> int:
        return id(getcurrent())

    def spawn(self, run: Callable[[], None], name: str) -> SimTask:
        return self.process.spawn(run, name)

    def at_exit(self, run: Callable[[], None]) -> Callable[[], None]:
        return lambda: None  # a simulated process is killed


class SimEvent:
    """An event whose waiters are greenlets."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.flag = False
        self.waiters: list[Wake] = []

    def is_set(self) -> bool:
        return self.flag

    def set(self) -> None:
        self.flag = True
        for waiter in self.waiters:
            self.world.wake(waiter)
        self.waiters.clear()

    def clear(self) -> None:
        self.flag = False

    def wait(self, timeout: float | None = None) -> bool:
        if self.flag:
            # Time passes even for who need not wait, or a loop around a set event would stop the world.
            self.world.pause(SPIN)
            return True
        wake = self.world.appointment()
        self.waiters.append(wake)
        self.world.wait(wake, timeout)
        return self.flag


class SimLock:
    """A lock between the greenlets of one process."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.held = False
        self.waiters: list[Wake] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking and self.world.preempt and self.world.rng.random() < self.world.preempt:
            self.world.pause(0.0)
        end = None if timeout < 0 else self.world.now + timeout
        while self.held:
            if not blocking or (end is not None and self.world.now >= end):
                return False
            wake = self.world.appointment()
            self.waiters.append(wake)
            self.world.wait(wake, None if end is None else end - self.world.now)
        self.held = True
        return True

    def release(self) -> None:
        if not self.held:
            raise RuntimeError("release of a lock that is not held")
        self.held = False
        for waiter in self.waiters:
            self.world.wake(waiter)
        self.waiters.clear()

    def locked(self) -> bool:
        return self.held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.release()


class SimTask:
    """A background activity in a simulated process."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor

    def join(self, timeout: float | None = None) -> None:
        if self.actor.done:
            return
        wake = self.actor.hub.appointment()
        self.actor.joiners.append(wake)
        self.actor.hub.wait(wake, timeout)

    def is_alive(self) -> bool:
        return not self.actor.done
