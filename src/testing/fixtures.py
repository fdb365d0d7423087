"""pytest fixtures: put `pytest_plugins = ["latchwork.testing.fixtures"]` into the `conftest.py` of your tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..store.local.memory import MemoryStore
from ..store.port import RecordStore
from .clock import ManualClock
from .stores import CountingStore


@pytest.fixture
def latchwork_clock() -> ManualClock:
    """Return a clock that stands still until the test moves it, or the tested code waits."""
    return ManualClock()


@pytest.fixture
def latchwork_store(latchwork_clock: ManualClock) -> Iterator[RecordStore]:
    """Yield an empty store in memory on that clock, which counts its calls."""
    store = CountingStore(MemoryStore(latchwork_clock))
    yield store
    store.close()
