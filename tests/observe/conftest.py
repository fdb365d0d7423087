"""What the tests of metrics and traces share: a telemetry that remembers, and stores that fail as planned."""

from __future__ import annotations

import pytest

from latchwork.observe import Telemetry, observe
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore


class Remembering(Telemetry):
    """Keeps everything that it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float, dict[str, str]]] = []
        self.sources = []

    def record(self, event, value, labels) -> None:
        self.told.append((event.name, value, dict(labels)))

    def read(self, source) -> None:
        self.sources.append(source)

    def total(self, event, **labels) -> float:
        """What was added to a counter."""
        return sum(value for name, value, found in self.told if name == event and labels.items() <= found.items())

    def times(self, event, **labels) -> int:
        """How often something was told."""
        return sum(name == event and labels.items() <= found.items() for name, _, found in self.told)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def telemetry():
    return Remembering()


@pytest.fixture
def faulty(clock):
    """A store in memory that fails as the test says."""
    return FaultyStore(MemoryStore(clock), seams=clock)


@pytest.fixture
def store(faulty, telemetry):
    """The same, observed."""
    return observe(faulty, telemetry)
