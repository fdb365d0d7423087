"""Latches: counted by anonymous calls, by parties, upwards, over several farms, and made again under an old name."""

from __future__ import annotations

from functools import partial
from typing import Any

from latchwork.coord.latch.latch import CountDownLatch, CountUpDownLatch, LatchLevel
from latchwork.errors import LatchworkError

from ..checkers import latch as promises
from ..faults.kinds import Kind
from ..world import Process
from .base import Scenario, SimStore


class LatchScenario(Scenario):
    """Counters, waiters and readers of one latch."""

    name = "latch"
    horizon = 20.0
    span = 1.5
    environment = (
        Kind.SERVER_CLOCK, Kind.CLIENT_CLOCK, Kind.SUSPEND, Kind.RESTART_EMPTY, Kind.RESTART_STALE, Kind.EXPIRY,
    )  # fmt: skip
    styles = ("calls", "parties", "up", "farms", "again")

    def setup(self) -> None:
        self.style = self.rng.choice(self.styles)
        self.farms = ("f0", "f1", "f2")[: self.rng.randint(2, 3)] if self.style == "farms" else ("f0",)
        self.targets = {farm: self.rng.randint(1, 5) for farm in self.farms}
        self.level = LatchLevel.XDC if self.style == "farms" else LatchLevel.DC
        self.kind = CountUpDownLatch if self.style == "up" else CountDownLatch
        # At XDC each farm creates its own counter, the later ones while others already wait.
        for farm in self.farms[:1]:
            self._create(self.operator, self.operator_store, farm)

    def _create(self, process: Process, store: SimStore, farm: str, *, join: bool = False) -> Any:
        """Make the farm's counter, or join the one that is there; the handle, if there is one."""
        options: dict[str, Any] = {"farm_id": farm, "level": self.level}
        if self.level is LatchLevel.XDC:
            options["farms"] = self.farms
        if self.style == "parties":
            options["parties"] = self.named(farm)
        else:
            options["count"] = self.targets[farm]
        make = self.kind.get_or_create if join else self.kind.create
        entry = self.call(process, "join" if join else "create", lambda: make(store, "sim", "latch", **options), farm)
        entry.tag = entry.result._nonce if entry.ok else None
        return entry.result

    def named(self, farm: str) -> list[str]:
        """The parties that the farm's counter is created for, where they are named."""
        return [f"p{number}" for number in range(self.targets[farm])]

    def handle(self, store: SimStore, farm: str) -> Any:
        """A handle as any process would get one."""
        return self.kind.get(store, "sim", "latch", farm_id=farm, level=self.level)

    def people(self) -> None:
        for number in range(self.rng.randint(2, 4)):
            farm = self.rng.choice(self.farms)
            self.person(f"c{number}", lambda process, store, farm=farm: self._counter(process, store, farm))
        for farm in self.farms[1:]:
            self.person(f"{farm}-boss", lambda process, store, farm=farm: self._boss(process, store, farm))
        if self.rng.random() < 0.2:  # somebody who does not know that it is there
            self.person("late-boss", lambda process, store: self._boss(process, store, "f0"))
        self.person("w", self._waiter)
        if self.rng.random() < 0.3:
            self.person("j", self._joiner)
        if self.style == "again":
            self.plan.spared.add("again")
            self.person("again", self._again, lives=1)

    def _boss(self, process: Process, store: SimStore, farm: str) -> None:
        self.idle(process, 0.5)
        self._create(process, store, farm)

    def _counter(self, process: Process, store: SimStore, farm: str) -> None:
        latch = self.handle(store, farm)
        for _ in range(self.rng.randint(1, 4)):
            self._count(process, latch, farm)
            self.idle(process, self.rng.choice((0.0, 0.02, 0.5)))

    def _count(self, process: Process, latch: Any, farm: str) -> None:
        draw = self.rng.random()
        if draw < 0.15:
            self.call(process, "count", latch.count).tag = latch._nonce
        elif self.style == "up" and draw < 0.45:
            n = self.rng.randint(1, 2)
            self._change(process, latch, "count_up", lambda: latch.count_up(n), farm, n)
        elif self.style == "parties" or (self.style in ("farms", "again") and draw < 0.6):
            # Now and then one that is mistyped, where they are named.
            most = self.targets[farm] - (self.style != "parties")
            party = f"p{self.rng.randint(0, most)}"
            for _ in range(self.rng.randint(1, 2)):
                self._change(process, latch, "count_party", lambda: latch.count_down(party=party), farm, party)
        else:
            n = self.rng.choice((1, 1, 2))
            self._change(process, latch, "count_down", lambda: latch.count_down(n), farm, n)

    def _change(self, process: Process, latch: Any, name: str, run: Any, *args: Any) -> None:
        """A count, remembering which incarnation of the latch the handle meant."""
        try:
            self.call(process, name, run, *args)
        finally:
            mine = [entry for entry in self.history.entries if entry.actor == process.name][-1]
            mine.tag = latch._nonce

    def _waiter(self, process: Process, store: SimStore) -> None:
        latch = self.handle(store, self.farms[0])
        for _ in range(2):
            self.call(process, "wait", lambda: latch.wait(self.rng.choice((0.1, 1.0, 5.0))))

    def _joiner(self, process: Process, store: SimStore) -> None:
        """A job that may run again: it goes on with the latch that is there, and waits for that one alone."""
        latch = self._create(process, store, self.farms[0], join=True)
        for _ in range(2 if latch else 0):
            self.idle(process, 0.5)
            entry = self.call(process, "wait", lambda: latch.wait(self.rng.choice((0.1, 1.0, 5.0))))
            entry.tag = latch._nonce

    def _again(self, process: Process, store: SimStore) -> None:
        """Delete the latch in the middle and make it again, under the same name."""
        self.idle(process, 0.3)
        self.call(process, "delete", self.handle(store, "f0").delete)
        self.idle(process, 0.1)
        self._create(process, store, "f0")

    def settle(self) -> None:
        self.operator.seams.sleep(4 * self.lease)
        for farm in self.farms:
            latch = self.handle(self.operator_store, farm)
            self.call(self.operator, "count", latch.count)
            try:
                remaining = latch.counts().get(farm, 0)
            except LatchworkError:
                return
            if remaining > 0:
                run = partial(latch.count_down, remaining)
                self._change(self.operator, latch, "count_down", run, farm, remaining)
        last = self.handle(self.operator_store, self.farms[0])
        self.final = self.call(self.operator, "wait", lambda: last.wait(10.0))

    def check(self) -> None:
        promises.check(self)
