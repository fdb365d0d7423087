"""A stage for scripted interleavings: named processes, each call of which can be held, lost or late by its number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .faults.kinds import Fault, Kind
from .faults.network import Server, SimStore
from .faults.plans import Script, ScriptPlan
from .world import Process, World

__all__ = ["Fault", "Kind", "Stage"]


class Stage:
    """A world with a script. `act` adds a process; `play` runs until everybody is done."""

    def __init__(self, script: Script | None = None) -> None:
        self.world = World(0)
        self.plan = ScriptPlan(script or {})
        self.plan.bind(self.world)
        self.server = Server(self.world)
        self.said: dict[str, Any] = {}
        self.stores: dict[str, SimStore] = {}

    def act(self, name: str, body: Callable[[SimStore], Any], after: float = 0.0) -> Process:
        """A process that runs `body(store)` after so many seconds; what it returns or raises is kept in `said`."""
        process = self.world.process(name)
        process.wall_offset = self.world.server_offset
        store = self.stores[name] = SimStore(self.server, process, self.plan)

        def main() -> None:
            store.seams.sleep(after)
            try:
                self.said[name] = body(store)
            except Exception as failure:
                self.said[name] = failure

        process.spawn(main, "main", main=True)
        return process

    def play(self, until: float = 1000.0) -> Stage:
        """Run it all, late deliveries included."""
        self.world.run(until)
        self.world.end()
        return self

    def split(self, *names: str) -> None:
        """From now on these processes reach another replica, with a copy of the records as they are (F14)."""
        replica = Server(self.world)
        replica.take(self.server.snapshot())
        for name in names:
            self.stores[name].server = replica

    def heal(self) -> None:
        """The replicas find each other: of each record the version that was written last remains."""
        for replica in {id(store.server): store.server for store in self.stores.values()}.values():
            ours, theirs = self.server.snapshot(), replica.snapshot()
            newer = {key: it for key, it in theirs.items() if key not in ours or it.updated > ours[key].updated}
            self.server.take({**ours, **newer})
        for store in self.stores.values():
            store.server = self.server

    def bins(self, key: Any) -> dict[str, Any]:
        """What is in a record at the end."""
        stored = self.server._records.get(key)
        return dict(stored.bins) if stored else {}
