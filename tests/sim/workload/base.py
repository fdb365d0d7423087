"""What every scenario has: a world, a server, people who come back after a crash, and a calm end."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from ..checkers.linearizable import Model, Undecided, linearizable
from ..faults.environment import Environment
from ..faults.kinds import BETWEEN_CALLS, ON_CALLS, Kind
from ..faults.network import Server, SimStore
from ..faults.plans import Plan
from ..history.record import Entry, History
from ..world import Process, World


class Scenario:
    """One primitive under one seed. Subclasses say who does what, and what must hold."""

    name: ClassVar[str]
    lease: ClassVar[float] = 1.0
    horizon: ClassVar[float] = 20.0
    """Seconds of virtual time with faults."""
    span: ClassVar[float] = 4.0
    """Seconds of virtual time in which the environment commits its faults."""
    patience: ClassVar[float] = 60.0
    """Seconds of virtual time that may pass without faults until everything promised has come true."""
    kinds: ClassVar[tuple[Kind, ...]] = ON_CALLS
    environment: ClassVar[tuple[Kind, ...]] = ()
    rare: ClassVar[tuple[Kind, ...]] = ()
    """What the environment commits in a few runs only."""
    restarts: ClassVar[float] = 0.7
    """How likely a crashed process comes back."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.rng = world.rng
        self.server = Server(world, wrap=self.rng.random() < 0.2)
        if self.server.wrap:
            plan.fire(Kind.WRAP)
        self.history = History(world)
        self.violations: list[str] = []
        self.histories = 0
        self.undecided = 0
        self.environs = Environment(self)

    # ---- for subclasses to fill in

    @classmethod
    def sizes(cls, seed: int) -> AbstractContextManager[object]:
        """Sizes of the code that are other ones during the run, so that a short one reaches what is behind them."""
        return nullcontext()

    def setup(self) -> None:
        """What exists before the faults begin; runs in an actor of its own."""

    def people(self) -> None:
        """Start the actors."""
        raise NotImplementedError

    def settle(self) -> None:
        """What is done once faults have stopped; runs in an actor of its own."""

    def check(self) -> None:
        """Complain about whatever does not hold."""
        raise NotImplementedError

    # ---- what they use

    def store_of(self, process: Process) -> SimStore:
        """The process's own view of the store."""
        return SimStore(self.server, process, self.plan)

    def person(self, name: str, body: Callable[[Process, SimStore], None], *, lives: int = 3) -> Process:
        """Boot a process that runs `body`; when it crashes another one of its kind may take its place."""
        process = self.world.process(name)
        process.on_death = lambda: self._reborn(name, body, lives - 1)
        store = self.store_of(process)

        def main() -> None:
            body(process, store)
            process.exit()

        process.spawn(main, "main", main=True)
        return process

    def _reborn(self, name: str, body: Callable[[Process, SimStore], None], lives: int) -> None:
        if lives > 0 and self.rng.random() < self.restarts:
            self.world.busy += 1
            delay = self.rng.choice((0.01, 0.5, 2.0)) * self.lease

            def boot() -> None:
                self.world.busy -= 1
                self.person(f"{name}'", body, lives=lives)

            self.world.at(self.world.now + delay, boot)

    def call(self, process: Process, name: str, run: Callable[[], Any], *args: Any) -> Entry:
        """Record an operation of a process."""
        before = process.doubts
        entry = self.history.call(process.name, name, run, *args)
        entry.doubted = process.doubts > before
        return entry

    def idle(self, process: Process, most: float) -> None:
        """The process does something else for up to so many seconds."""
        process.seams.sleep(self.rng.random() * most)

    def complain(self, promise: str, detail: str) -> None:
        """A promise did not hold."""
        self.violations.append(f"{promise}: {detail}")

    def require(self, holds: object, promise: str, detail: str) -> None:
        """Complain unless it holds."""
        if not holds:
            self.complain(promise, detail)

    def check_linearizable(self, entries: Sequence[Entry], model: Model, what: str) -> None:
        """Complain unless some order of effects explains these entries."""
        self.histories += 1
        try:
            if not linearizable(entries, model):
                self.complain(f"{what} is linearizable", f"no order explains its {len(entries)} operations")
        except Undecided:
            self.undecided += 1

    def happened(self, *kinds: Kind) -> bool:
        """Whether any of these faults was committed in this run."""
        return any(self.plan.fired[kind] for kind in kinds)

    def state(self) -> Hashable:
        """The records, for the fingerprint of the run."""
        return repr(sorted((key, repr(stored.bins)) for key, stored in self.server._records.items()))


__all__ = ["BETWEEN_CALLS", "ON_CALLS", "Kind", "Process", "Scenario", "SimStore"]
