"""One fault at every call, then faults by chance: whatever was acknowledged is handled, and nothing is left behind."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress

import pytest

from latchwork.errors import LatchworkError
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import KINDS, Crash, Fault

from .world import World

STEPS = 40
"""More calls than any process of the scenario makes; the test says so if not."""
SEEDS = 60


class Run:
    """Producers, a consumer and a sweeper of which one has faults; what each of them was told."""

    def __init__(self, role: str, plan=None, seed: int | None = None) -> None:
        clock = ManualClock()
        self.world = World(MemoryStore(clock), clock)
        self.role, self.plan, self.seed = role, plan, seed
        self.published: set[str] = set()
        self.fired: Counter[str] = Counter()
        self.calls = 0
        self.depth = 0
        self.chance = random.Random(seed)

    def process(self, role: str):
        if self.role not in (role, "all"):
            return self.world.process()
        if self.seed is None:
            return self.world.process(self.plan)
        return self.world.process(self._interruptions(), seed=self.chance.randrange(10**6), rate=0.1)

    def _interruptions(self) -> dict:
        """What the others do, or how long it takes, between two calls of this process."""
        if self.depth >= 2:
            return {}
        return {self.chance.randrange(1, 12): self._interruption for _ in range(self.chance.randrange(3))}

    def _interruption(self) -> None:
        self.depth += 1
        acts = (self._wait, lambda: self.act("consumer", self._consume), lambda: self.act("sweeper", self._sweep))
        for _ in range(self.chance.randrange(1, 7)):
            self.chance.choice(acts)()
        self.depth -= 1

    def _wait(self) -> None:
        self.world.lapse(self.chance.choice((0.2, 0.6, 1.0)))

    def act(self, role: str, act) -> None:
        process = self.process(role)
        with suppress(LatchworkError, Crash):
            act(process)
        process.store.deliver()
        self.fired += process.store.fired
        if role == self.role:
            self.calls = process.calls

    def go(self) -> None:
        world = self.world
        self.act("producer", self._produce)
        self.act("consumer", self._consume)
        world.lapse()
        self.act("sweeper", self._sweep)
        self.act("producer", self._produce)
        world.lapse()
        self.act("consumer", self._consume)
        world.lapse()
        self.act("sweeper", self._sweep)
        world.recover(sweeps=8)
        assert not world.lost(self.published), f"lost: {world.lost(self.published)}"
        self._nothing_left()

    def _produce(self, process) -> None:
        self.published.add(process.queue.publish("one"))
        self.published |= set(process.queue.publish_many(["two", "three", "four"]))

    def _consume(self, process) -> None:
        deliveries = process.queue.receive(2) + process.queue.receive(3)
        if deliveries:
            deliveries.pop().nack()
        for delivery in deliveries[:2]:
            delivery.extend()
            self._handled(delivery)
            delivery.ack()
        more = process.queue.receive(3)
        self._handled(*more)
        process.queue.ack_many(more)

    def _handled(self, *deliveries) -> None:
        self.world.handled |= {delivery.message_id for delivery in deliveries}

    def _sweep(self, process) -> None:
        process.sweeper().run_once()

    def _nothing_left(self) -> None:
        queue = self.world.process().queue
        bins = queue.registry.records.read("q")
        for view, bin in ((queue, "sweepPointers"), (queue.sideline, "sidelineSweep")):
            for state in view.pointers.states():
                assert state.fired == state.loaded, f"{view.name}: unfired in {state}"
                assert bins[bin][str(state.shard)] == state.fired, f"{view.name}: unswept in {state}"


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ["producer", "consumer", "sweeper"])
def test_a_single_fault_at_any_call_loses_nothing(role, kind):
    fired = 0
    for number in range(1, STEPS):
        run = Run(role, {number: Fault(kind, after=2 if number % 2 else None, seconds=5)})
        run.go()
        fired += run.fired[kind]
        if number > run.calls + 4 and not run.fired[kind]:
            break
    assert fired >= 4, f"{kind} fired {fired} times only"


@pytest.mark.parametrize("rows", [(0,), (1, 2)], ids=str)
@pytest.mark.parametrize("kind", ["dropped", "request_lost", "reply_lost", "late"])
def test_rows_of_a_batch_that_fail_alone_lose_nothing(kind, rows):
    for role in ("producer", "consumer", "sweeper"):
        for number in range(1, 16):
            Run(role, {number: Fault(kind, rows=rows)}).go()


def test_faults_by_chance_lose_nothing():
    """The seed is in the message of a failure, and replays it."""
    fired: Counter[str] = Counter()
    for seed in range(SEEDS):
        run = Run("all", seed=seed)
        try:
            run.go()
        except AssertionError as failure:
            raise AssertionError(f"seed {seed}: {failure}") from failure
        fired += run.fired
    print(f"{SEEDS} runs, faults: {dict(fired)}")
    assert set(fired) == set(KINDS), f"kinds that never fired: {set(KINDS) - set(fired)}"
