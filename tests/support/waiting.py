"""Waiting for what happens in other threads, where no clock can be given to them."""

from __future__ import annotations

import time


def until(probe, timeout=60.0):
    """What `probe` returns once that is true."""
    end = time.monotonic() + timeout
    while not (found := probe()):
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.005)
    return found
