"""Which call suffers which fault: by chance, exactly one, or by a script."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from latchwork.store import Exists

from ..world import World
from .kinds import STRIKES, Fault, Kind

OUTAGE = (Kind.BUSY, Kind.DROPPED, Kind.REPLY_LOST, Kind.LATE)
"""Faults that may go on for several calls of a process."""
Script = Mapping[str, Mapping[int | str, "Fault | float | list[Fault | float]"]]
"""What is placed where, by process: `ScriptPlan`."""


class Plan:
    """No faults; short random delays. `point` numbers every store call of the run, each row of a batch alone."""

    held = 0.0
    """Seconds by which the next request is held up, where a script says so."""

    def __init__(self) -> None:
        self.fired: Counter[Kind] = Counter()
        self.point = 0
        self.scale = 0.002
        self.calm = False
        self.spared: set[str] = set()
        """Processes whose calls suffer nothing."""
        self.twice_refused = True
        """Whether a request that was refused may be delivered once more, later."""

    def bind(self, world: World) -> None:
        """Draw this run's settings."""
        self.world = world
        self.rng = world.rng
        self.scale = self.rng.choice((0.0005, 0.002, 0.01))

    def delay(self) -> float:
        """How long a request or a reply is under way: mostly short, now and then long."""
        draw = self.rng.random()
        return self.scale * draw if draw < 0.9 else self.scale * 10 * draw

    def hold(self) -> float:
        """Seconds for which a row of a batch is held before it applies."""
        return 0.0

    def fault(self, process: Any, verb: str, target: Any) -> Fault | None:
        """What goes wrong with this call, if anything."""
        self.point += 1
        return None

    def cut_off(self, process: Any, verb: str) -> bool:
        """Whether the client of the process knows no node now."""
        return False

    def breaks(self, process: Any, verb: str, target: Any) -> bool:
        """Whether the step of a thread of the library that makes this call fails of itself, by a defect of the code."""
        return False

    def describe(self) -> str:
        """The faults that were placed by hand; none here."""
        return ""

    def fire(self, kind: Kind) -> None:
        """Count a fault that has really happened."""
        self.fired[kind] += 1


class RandomPlan(Plan):
    """A random mix: each run draws which kinds it has at all, how often, and how many before it becomes calm."""

    def __init__(self, kinds: tuple[Kind, ...], lease: float) -> None:
        super().__init__()
        self.allowed = tuple(kind for kind in kinds if kind in STRIKES)
        self.defective = Kind.DEFECT in kinds
        self.lease = lease

    def bind(self, world: World) -> None:
        super().bind(world)
        rng = self.rng
        self.kinds = [kind for kind in self.allowed if rng.random() < 0.5] if rng.random() < 0.95 else []
        self.rate = rng.choice((0.02, 0.05, 0.1, 0.25, 0.7))
        self.budget = rng.choice((1, 2, 4, 10))
        self.outages = rng.random() < 0.3
        self.out: dict[str, list[Kind]] = {}
        # Drawn apart, so that a seed's other faults are what they were before there was this one.
        self.apart = random.Random(rng.getstate()[1][1])
        self.losses = self.apart.choice((1, 2, 4)) if self.apart.random() < 0.2 else 0
        self.gone: dict[str, float] = {}
        """Until when the client of a process knows no node."""
        self.third = random.Random(rng.getstate()[1][2])
        self.defects = self.third.choice((1, 3)) if self.defective and self.third.random() < 0.2 else 0

    def fault(self, process: Any, verb: str, target: Any) -> Fault | None:
        self.point += 1
        rng = self.rng
        if self.calm or not self.kinds or process.name in self.spared:
            return None
        if self.out.get(process.name):
            return Fault(self.out[process.name].pop())
        if rng.random() >= self.rate or self.budget <= 0:
            return None
        kind = rng.choice(self.kinds)
        if kind is Kind.ROW and not verb.endswith("_many"):
            return None
        if kind is Kind.SLOW_PRODUCER and getattr(target, "exists", None) is not Exists.CREATE:
            return None
        self.budget -= 1
        if self.outages and kind in OUTAGE:
            # The process is cut off from the store for its next calls as well.
            self.out[process.name] = [Kind.DROPPED if kind is Kind.LATE else kind] * rng.randint(2, 8)
            self.fire(Kind.CONNECTION)
        return Fault(kind, self._after(kind))

    def cut_off(self, process: Any, verb: str) -> bool:
        if self.calm or process.name in self.spared:
            return False
        # A batch that is not sent says so in a way of its own, so it is struck more often than a single call.
        if self.losses > 0 and self.apart.random() < (0.15 if verb.endswith("_many") else 0.02):
            self.losses -= 1
            self.gone[process.name] = self.world.now + self.apart.choice((1e-9, 0.05, 0.3, 1.2)) * self.lease
        return self.world.now < self.gone.get(process.name, 0.0)

    def breaks(self, process: Any, verb: str, target: Any) -> bool:
        if self.calm or self.defects == 0 or process.name in self.spared or self.third.random() >= 0.1:
            return False
        self.defects -= 1
        return True

    def _after(self, kind: Kind) -> float:
        if kind in (Kind.PAUSE, Kind.SLOW_PRODUCER):
            return self.rng.choice((0.3, 1.05, 1.5, 3.0)) * self.lease
        return self.rng.choice((0.001, 0.05, 0.5, 1.2, 3.0)) * self.lease


class SinglePlan(Plan):
    """Given faults at given points, and nothing else. Notes the site of every call: what is asked of which bins."""

    def __init__(self, faults: Mapping[int, Fault] | None = None) -> None:
        super().__init__()
        self.faults = faults or {}
        self.sites: dict[int, str] = {}
        self.batches: list[int] = []
        """The points at which a batch begins."""
        self.steps: list[int] = []
        """The points at which threads of the library call."""

    def fault(self, process: Any, verb: str, target: Any) -> Fault | None:
        self.point += 1
        if process.name in self.spared or self.calm:
            return None
        self.sites[self.point] = _site(verb, target)
        return self.faults.get(self.point)

    def cut_off(self, process: Any, verb: str) -> bool:
        """For the call that begins now."""
        if process.name in self.spared or self.calm:
            return False
        if verb.endswith("_many"):
            self.batches.append(self.point + 1)
        fault = self.faults.get(self.point + 1)
        if fault is None or fault.kind is not Kind.NO_NODE:
            return False
        self.point += 1
        return True

    def breaks(self, process: Any, verb: str, target: Any) -> bool:
        if process.name in self.spared or self.calm:
            return False
        self.steps.append(self.point + 1)
        fault = self.faults.get(self.point + 1)
        if fault is None or fault.kind is not Kind.DEFECT:
            return False
        self.point += 1
        return True

    def describe(self) -> str:
        return " ".join(f"{point}:{fault.kind.name}:{fault.after}" for point, fault in self.faults.items())

    @classmethod
    def parse(cls, words: list[str]) -> SinglePlan:
        """The plan that `describe` has put into words."""
        parts = [word.split(":") for word in words]
        return cls({int(point): Fault(Kind[kind], float(after)) for point, kind, after in parts})


def _site(verb: str, target: Any) -> str:
    """The place in the code that a call comes from, as far as the call itself tells."""
    ops = getattr(target, "ops", ())
    return f"{verb} {' '.join(f'{type(op).__name__}:{_generic(op)}' for op in ops)}".strip()


def _named(verb: str, target: Any) -> str:
    """The call by its record and its site."""
    key = getattr(target, "key", target)
    return f"{getattr(key, 'name', key)} {_site(verb, target)}"


def _generic(op: Any) -> str:
    bin = getattr(op, "bin", "")
    return _without_numbers(bin) if isinstance(bin, str) else ""


@lru_cache
def _without_numbers(bin: str) -> str:
    return re.sub(r"\d+", "0", bin)


class ScriptPlan(Plan):
    """Faults and delays by process: `{"a": {2: Fault(...), 3: 1.5}}` = the second call of a fails, the third waits.

    A number delays the call by so many seconds before it applies; every other call takes one millisecond. A text stands
    for the calls of the process whose record or site has it (`"Add:renewals"`), a list for the first ones in a row.
    """

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.calls: Counter[str] = Counter()
        self.struck: Counter[tuple[str, str]] = Counter()

    def bind(self, world: World) -> None:
        super().bind(world)
        world.preempt = 0.0

    def delay(self) -> float:
        return 0.001 + self.hold()

    def hold(self) -> float:
        held, self.held = self.held, 0.0
        return held

    def fault(self, process: Any, verb: str, target: Any) -> Fault | None:
        self.point += 1
        self.calls[process.name] += 1
        entry = self._entry(process.name, verb, target)
        if isinstance(entry, Fault) or entry is None:
            return entry
        self.held = entry
        return None

    def breaks(self, process: Any, verb: str, target: Any) -> bool:
        """Where the script has a defect for a text, at the first call whose record or site has it."""
        for text, row in self.script.get(process.name, {}).items():
            planned = isinstance(row, Fault) and row.kind is Kind.DEFECT and not self.struck[process.name, text]
            if planned and text in _named(verb, target):
                self.struck[process.name, text] += 1
                return True
        return False

    def _entry(self, name: str, verb: str, target: Any) -> Fault | float | None:
        script = self.script.get(name, {})
        for text in (key for key in script if isinstance(key, str)):
            row = script[text]
            if isinstance(row, Fault) and row.kind is Kind.DEFECT:
                continue
            if text in _named(verb, target):
                row = row if isinstance(row, list) else [row]
                self.struck[name, text] += 1
                return row[self.struck[name, text] - 1] if self.struck[name, text] <= len(row) else None
        entry = script.get(self.calls[name])
        return None if isinstance(entry, list) else entry
