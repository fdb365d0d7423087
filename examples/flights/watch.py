"""What a person sees while the farms work: a line for each farm, and each event when it happens."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

from data import FARMS
from plan import CLIENT, Plan
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from latchwork.coord import LatchProgress
from latchwork.errors import LatchworkError
from latchwork.queue import QueueRegistry
from latchwork.spark import SparkLatch

EVERY = 1.0
"""Seconds between two looks at what the farms have reached."""
EVERY_LINE, EVERY_LINE_IN_VAIN = 5.0, 20.0
"""Seconds between two lines where the output is no terminal; and where nothing has changed."""


class Watch:
    """Follows the farms until the latch is released; `history` and `events` are for the chart. A context manager.

    history: (seconds since the start, partitions to go by farm), whenever that has changed.
    events: (seconds since the start, what happened).
    """

    def __init__(self, plan: Plan, flights: dict[str, int]) -> None:
        self._plan, self._flights, self._began = plan, flights, time.monotonic()
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._said, self._moved = float("-inf"), 0.0
        self._latest: dict[str, str] = {}
        self._reached: dict[str, str] = {}
        self.history: list[tuple[float, dict[str, int]]] = []
        self.events: list[tuple[float, str]] = []

    def __enter__(self) -> Watch:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    @property
    def passed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def event(self, text: str, mark: str = "") -> None:
        """Say what has happened. mark: what the chart calls it; "" = it is not in the chart."""
        if mark:
            self.events.append((self.passed, mark))
        self._console.print(f"{self.passed:4.0f} s  {text}", soft_wrap=True, markup=False)

    def wait(self, latch: SparkLatch, timeout: float, at_each_look: Callable[[], object]) -> bool:
        """Wait for the latch, and show meanwhile what the farms have reached; whether it is released.

        timeout: seconds without any progress of any farm, so that a slow machine is given its time.
        """
        while not latch.wait(min(EVERY, timeout), progress=self._count):
            self._show()
            at_each_look()
            if self.passed - self._moved > timeout:
                return False
        self._said = float("-inf")
        self._show()
        return True

    def _count(self, progress: LatchProgress) -> None:
        """Take note of a count."""
        to_go = {farm: progress.counts.get(farm, self._plan.partitions) for farm in FARMS}
        if not self.history or self.history[-1][1] != to_go:
            self.history.append((self.passed, to_go))

    def _show(self) -> None:
        reached = {farm: self._step(farm, to_go) for farm, to_go in self.history[-1][1].items()}
        if reached != self._latest:
            self._latest, self._moved = reached, self.passed
        if self._live:
            self._live.update(self._table(reached), refresh=True)
        elif self.passed - self._said >= (EVERY_LINE if reached != self._reached else EVERY_LINE_IN_VAIN):
            self._said, self._reached = self.passed, reached
            self.event("; ".join(f"{farm}: {step}" for farm, step in reached.items()))

    def _table(self, reached: dict[str, str]) -> Table:
        table = Table(box=None, pad_edge=False, show_header=False)
        for farm, to_go in self.history[-1][1].items():
            done = self._plan.partitions - to_go
            table.add_row(farm, ProgressBar(self._plan.partitions, done, width=20), reached[farm])
        return table

    def _step(self, farm: str, to_go: int) -> str:
        """Where a farm is, by what it has left behind."""
        partitions = self._plan.partitions
        if to_go < partitions:
            return f"{partitions - to_go} of {partitions} partitions counted"
        if self._plan.noted("consumed", farm) is not None:
            return "aggregating"
        if self._plan.noted("published", farm) is not None:
            lag = self._plan.noted("lag", farm)
            to_read = "" if lag is None else f", {lag:,} messages behind"
            return f"streaming out, {len(_committed(self._plan, farm))} batches done{to_read}"
        try:
            registry = QueueRegistry(self._plan.store, CLIENT, farm_id=farm)
            loaded = registry.get(self._plan.queue(farm)).depth().loaded
            published = min(loaded, self._flights[farm])  # a task that failed in between has reserved slots twice
        except LatchworkError:
            published = 0
        return f"publishing, {published:,} of {self._flights[farm]:,}" if published else "starting Spark"


def _committed(plan: Plan, farm: str) -> list[Path]:
    """The batches of the farm's stream that are over."""
    return list((plan.directory / f"stream-{farm}" / "checkpoint" / "commits").glob("[0-9]*"))


def again(plan: Plan, *options: str) -> str:
    """The command that goes on with this run, to be pasted into a shell."""
    return shlex.join([sys.executable, sys.argv[0], "--resume", str(plan.directory), *options])
