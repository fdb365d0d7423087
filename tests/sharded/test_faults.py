"""One fault at every call, then faults by chance: whatever was acknowledged is handled, and nothing is left behind."""

from __future__ import annotations

from collections import Counter

import pytest

from latchwork.errors import LatchworkError
from latchwork.store import MemoryStore
from tests.clock import ManualClock
from tests.faulty import KINDS, Crash, Fault

from .world import World

STEPS = 40
"""More calls than any process of the scenario makes; the test says so if not."""
SEEDS = 150


class Run:
    """Producers, a consumer and a sweeper of which one has faults; what each of them was told."""

    def __init__(self, role: str, plan=None, seed: int | None = None) -> None:
        clock = ManualClock()
        self.world = World(MemoryStore(clock), clock)
        self.role, self.plan, self.seed = role, plan, seed
        self.published: set[str] = set()
        self.fired: Counter[str] = Counter()
        self.calls = 0

    def process(self, role: str):
        faulty = role == self.role or self.role == "all"
        if not faulty:
            return self.world.process()
        if self.seed is None:
            return self.world.process(self.plan)
        return self.world.process(seed=self.seed * 7 + len(role), rate=0.12)

    def act(self, role: str, act) -> None:
        process = self.process(role)
        try:
            act(process)
        except (LatchworkError, Crash):
            pass
        process.store.deliver()
        self.fired += process.store.fired
        if role == self.role:
            self.calls = process.calls

    def go(self) -> None:
        world = self.world
        self.act("producer", self._produce)
        self.act("consumer", self._consume)
        world.lapse()
        self.act("sweeper", lambda process: process.sweeper().run_once())
        self.act("producer", self._produce)
        world.lapse()
        self.act("consumer", self._consume)
        world.lapse()
        self.act("sweeper", lambda process: process.sweeper().run_once())
        world.recover()
        assert not world.lost(self.published), f"lost: {world.lost(self.published)}"
        self._nothing_left()

    def _produce(self, process) -> None:
        self.published.add(process.queue.publish("one"))
        self.published |= set(process.queue.publish_many(["two", "three", "four"]))

    def _consume(self, process) -> None:
        for turn, delivery in enumerate(process.receive(2) + process.receive(3)):
            if turn % 3 == 0:
                delivery.nack()
            elif turn % 3 == 1:
                delivery.extend()
                delivery.ack()
        process.queue.ack_many(process.receive(3))

    def _nothing_left(self) -> None:
        queue = self.world.process().queue
        bins = queue.registry.records.read("q")
        for view, bin in ((queue, "sweepPointers"), (queue.sideline, "sidelineSweep")):
            for state in view.pointers.states():
                assert state.fired == state.loaded, f"{view.name}: unfired in {state}"
                assert bins[bin][str(state.shard)] == state.fired, f"{view.name}: unswept in {state}"


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
