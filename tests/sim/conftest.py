"""What simulated processes leave behind in this one."""

from __future__ import annotations

import pytest

from latchwork.queue.sharded.upkeep import reporter


@pytest.fixture(autouse=True)
def forget_reporters():
    """A simulated process that was killed takes back no report: its reporter would be asked by the next snapshot."""
    before = set(reporter._ALL)
    yield
    for name in set(reporter._ALL) - before:
        reporter._ALL.pop(name, None)
