"""Tests on real servers are skipped where the server is not on the machine, and only there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tools import servers

NO_SERVER = "no real server: "
REQUIRED = "LATCHWORK_SERVERS"
"""The variable that makes a failure of what would be skipped, where it is "required"."""


@contextmanager
def or_skip() -> Iterator[None]:
    """Skip the test if what is started here is not on this machine. What is there and does not start is a failure."""
    try:
        yield
    except servers.Unreachable as reason:
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(f"{reason} (${REQUIRED} is required)", pytrace=False)
        pytest.skip(f"{NO_SERVER}{reason}")
