"""Faults that no call causes: clocks that are set, stores that restart, time that passes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from .kinds import Kind

if TYPE_CHECKING:
    from ..workload.base import Scenario


class Environment:
    """Draws, for each kind that the scenario names, whether and when it happens in this run."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.snapshots: list[dict[Any, Any]] = []

    def schedule(self) -> None:
        """Put this run's events on the calendar."""
        scenario, rng = self.scenario, self.scenario.rng
        for kind in scenario.environment:
            if rng.random() < 0.3:
                when = scenario.world.now + rng.random() * scenario.span
                scenario.world.at(when, self._event(kind))
        # Drawn apart, so that a seed's other faults are what they were before there were these.
        apart = random.Random(rng.getstate()[1][1])
        for kind in scenario.rare:
            if apart.random() < 0.15:
                scenario.world.at(scenario.world.now + apart.random() * scenario.span, self._event(kind))

    def _event(self, kind: Kind) -> Any:
        def strike() -> None:
            if not self.scenario.plan.calm and self.commit(kind):
                self.scenario.plan.fire(kind)
                self.scenario.history.note("world", kind.value)

        return strike

    def commit(self, kind: Kind) -> bool:
        """Do it now; whether there was anything to do."""
        return bool(getattr(self, "_" + kind.name.lower())())

    def _server_clock(self) -> bool:
        lease = self.scenario.lease
        world = self.scenario.world
        world.server_offset += self.scenario.rng.choice((-3600, -2 * lease, 1.5 * lease, 100 * lease))
        world.furthest_offset = max(world.furthest_offset, world.server_offset)
        return True

    def _client_clock(self) -> bool:
        alive = self._alive()
        for process in alive:
            process.wall_offset += self.scenario.rng.choice((-86_400.0, -2.0, 0.0, 2.0, 3600.0))
        return bool(alive)

    def _suspend(self) -> bool:
        alive = self._alive()
        if alive:
            self.scenario.rng.choice(alive).freeze(
                self.scenario.rng.choice((0.6, 1.5, 4.0)) * self.scenario.lease, suspend=True
            )
        return bool(alive)

    def _alive(self) -> list[Any]:
        return [process for process in self.scenario.world.processes if not process.dead]

    def _restart_empty(self) -> bool:
        self._restart({})
        self.scenario.server.deleted.clear()
        return True

    def _restart(self, records: dict[Any, Any]) -> None:
        """A restart takes its time, also by the server's clock."""
        self.scenario.world.server_offset += 0.01
        self.scenario.server.restart(records)

    def _restart_stale(self) -> bool:
        """Comes back as it was a little while ago: now, a later event puts the records of this moment back."""
        server, world = self.scenario.server, self.scenario.world
        before = server.snapshot()
        if not before:
            return False
        delay = self.scenario.rng.choice((0.1, 0.5, 2.0)) * self.scenario.lease
        world.at(world.now + delay, lambda: self._restart(before))
        return True

    def _resurrect(self) -> bool:
        return self.scenario.server.resurrect() > 0

    def _expiry(self) -> bool:
        """The server's housekeeping finds everything that can expire to be due."""
        server = self.scenario.server
        due = [key for key, stored in server.snapshot().items() if stored.expires is not None]
        for key in due:
            server._records.pop(key)
        return bool(due)
