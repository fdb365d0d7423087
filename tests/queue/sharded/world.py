"""A world for the sharded queue: one store, one clock, and as many processes as a test wants, each with its faults.

    world = World(MemoryStore(clock), clock)
    a, b = world.process(), world.process({3: "crash_after"})     # two clients; the second dies at its third call
    world.lapse()                                                 # one sweep duration passes, and a little

Over a real server the server's clock cannot be moved, so there the sweep duration is short and `lapse` really waits.
"""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count

from latchwork.errors import FencedOut, Unavailable
from latchwork.queue import QueueConfig, QueueRegistry, Sweeper
from latchwork.store import MemoryStore, RecordStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import Crash, FaultyStore

NAMES = count()


class Torn(MemoryStore):
    """While it is torn its pointers can be reached and its messages cannot, as without the master of a partition."""

    torn = False

    def _operate(self, update):
        if self.torn and update.key.set.endswith("_data_set"):
            raise Unavailable("no node has the partition")
        return super()._operate(update)


class Leadership:
    """A leadership that the test ends when it likes."""

    def __init__(self, epoch: int) -> None:
        self.epoch, self.over, self.checks = epoch, False, 0

    def check(self) -> None:
        self.checks += 1
        if self.over:
            raise FencedOut("deposed")


class Election:
    def __init__(self, epoch: int) -> None:
        self.leadership = Leadership(epoch)


@dataclass
class World:
    store: RecordStore
    clock: ManualClock
    real: bool = False
    shards: int = 2
    options: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        # One index takes the real server two seconds to make, so its runs share one.
        self.client = f"t{os.getpid()}" if self.real else f"t{next(NAMES)}"
        self.seconds = 1.0 if self.real else 1200.0
        self.waits = self.real
        """Whether `lapse` really waits; else time passes by the clocks of this process alone."""
        self.epochs = count(1)
        self.handled: set[str] = set()
        self.acked: set[str] = set()

    def take_time(self) -> None:
        """Give a real server a longer sweep duration, before the first process: on a busy machine, what was just
        received or extended is not to be abandoned when a sweep comes.
        """
        if self.real:
            self.seconds = 3.0

    def config(self, **options) -> QueueConfig:
        times = {
            "sweep_duration": timedelta(seconds=self.seconds),
            "handler_timeout": timedelta(seconds=self.seconds / 2),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return QueueConfig(
                "q",
                **{
                    "retry": False,
                    "shards": self.shards,
                    **times,
                    "unsafe_limits": self.real,
                    **self.options,
                    **options,
                },
            )

    def process(self, plan=None, **faults) -> Process:
        return Process(self, FaultyStore(self.store, plan, seams=self.clock, **faults))

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        if self.waits:
            time.sleep(seconds)

    def lapse(self, durations: float = 1.0) -> None:
        self.pass_time(self.seconds * durations + 0.06)

    def recover(self, sweeps: int = 3) -> None:
        """What happens when faults stop: sweeps at intervals, then everything is handled and acknowledged."""
        process = self.process()
        sweeper = process.sweeper()
        for _ in range(sweeps):
            sweeper.run_once()
            process.handle_all()
            self.lapse()
        report = sweeper.run_once()
        assert report.ok, report.failures
        process.handle_all()

    def lost(self, published) -> set[str]:
        """Acknowledged publishes that nobody has handled."""
        return set(published) - self.handled


class Process:
    """A client with a registry and a queue of its own; its calls are numbered from its first use of the queue."""

    def __init__(self, world: World, store: FaultyStore) -> None:
        self.world, self.store = world, store
        plan, store.plan = store.plan, {}
        chance, store._random = store._random, None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.registry = QueueRegistry(store, world.client, farm_id="f")
            self.queue = self.registry.create(world.config())
        store.plan = {store._number + number: fault for number, fault in plan.items()}
        store._random = chance
        self.began = store._number

    @property
    def calls(self) -> int:
        return self.store._number - self.began

    def fails(self, numbers, fault) -> None:
        """Let the calls with these numbers, counted from now, fail so."""
        self.store.plan |= {self.store._number + number: fault for number in numbers}

    def sweeper(self, epoch: int | None = None) -> Sweeper:
        return Sweeper(self.registry, Election(epoch or next(self.world.epochs)), parallelism=1)

    def receive(self, n: int = 10):
        """Receive as a handler would: what was received has been handled."""
        deliveries = self.queue.receive(n)
        self.world.handled |= {delivery.message_id for delivery in deliveries}
        return deliveries

    def handle_all(self) -> None:
        """Handle and acknowledge everything in the queue and its sideline."""
        for view in (self.queue, self.queue.sideline, self.queue.parked):
            while deliveries := view.receive(100):
                self.world.handled |= {delivery.message_id for delivery in deliveries}
                view.ack_many(deliveries)


def dies(run) -> bool:
    """Whether the process crashed while it ran."""
    try:
        run()
    except Crash:
        return True
    return False
