"""One run: a scenario, a seed, a plan; and what came of it."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from latchwork.errors import InvalidRequest, LatchworkError

from .faults.kinds import Kind
from .faults.network import Defect
from .faults.plans import Plan, RandomPlan
from .workload.base import Scenario
from .world import World


@dataclass(slots=True)
class Outcome:
    """What one run came to."""

    primitive: str
    seed: int
    violations: list[str]
    fired: Counter[Kind]
    histories: int
    undecided: int
    points: int
    steps: int
    scenario: Scenario = field(repr=False)
    faults: str = ""
    """The faults that were placed by hand, as `replay --fault` takes them."""
    senseless: bool = False
    """Whether the code failed of itself, or was asked for what it does not take: no sign of a broken promise."""

    def digest(self) -> str:
        """The whole history and the final records in one short word."""
        whole = repr((self.scenario.history.fingerprint(), self.scenario.state(), self.violations, self.steps))
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


def simulate(
    kind: type[Scenario],
    seed: int,
    plan: Plan | None = None,
    *,
    trace: bool = False,
    quiet: bool = False,
    any_order: bool = False,
) -> Outcome:
    """Run the scenario under the seed: set up, let things go wrong, let them calm down, check.

    quiet: no faults of the environment either, as in the modes that place their faults themselves.
    any_order: the rows of each batch are applied in an order of their own.
    """
    logging.disable(logging.CRITICAL)
    try:
        with kind.sizes(seed):
            return _simulated(World(seed, any_order=any_order), kind, seed, plan, trace=trace, quiet=quiet)
    finally:
        logging.disable(logging.NOTSET)


def _simulated(
    world: World, kind: type[Scenario], seed: int, plan: Plan | None, *, trace: bool, quiet: bool
) -> Outcome:
    plan = plan or RandomPlan(kind.kinds, kind.lease)
    plan.bind(world)
    scenario = kind(world, plan)
    if trace:
        scenario.server.trace = []
    plan.calm = True
    _phase(scenario, scenario.setup, "setup")
    plan.calm = False
    scenario.people()
    if not quiet:
        scenario.environs.schedule()
    world.run(world.now + kind.horizon, done=lambda: world.busy == 0)
    plan.calm = True
    world.run(world.now + kind.patience, done=lambda: world.busy == 0)
    scenario.stuck = [actor.name for process in world.processes for actor in process.actors if _stuck(actor)]
    _phase(scenario, scenario.settle, "settle")
    world.end()
    for name, failure in world.failures:
        promise = "no defect ends a thread" if isinstance(failure, Defect) else "no error but the package's own"
        scenario.complain(promise, f"{name}: {failure!r}")
    scenario.check()
    outcome = Outcome(
        kind.name, seed, scenario.violations, plan.fired, scenario.histories, scenario.undecided, plan.point,
        world.steps, scenario, plan.describe(), _senseless(scenario),
    )  # fmt: skip
    world.forget()
    return outcome


def _senseless(scenario: Scenario) -> bool:
    failures = [failure for _, failure in scenario.world.failures if not isinstance(failure, Defect)]
    strange = any(not isinstance(it, LatchworkError) or isinstance(it, InvalidRequest) for it in failures)
    return strange or any(entry.outcome == InvalidRequest.code for entry in scenario.history.entries)


def _stuck(actor: Any) -> bool:
    return actor.main and not actor.done and not actor.process.dead


def _phase(scenario: Scenario, body: Callable[[], None], name: str) -> None:
    world = scenario.world
    process = world.process(name)
    scenario.operator, scenario.operator_store = process, scenario.store_of(process)
    task = process.spawn(body, "phase")
    finished = world.run(world.now + scenario.patience, done=lambda: task.actor.done)
    if not finished:
        scenario.complain("liveness once faults stop", f"{name} did not finish in {scenario.patience} s")
    process.die()
