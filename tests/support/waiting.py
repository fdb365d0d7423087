"""Waiting for what happens in other threads, where no clock can be given to them."""

from __future__ import annotations

import time

from latchwork.retry import RetryPolicy

PATIENT = RetryPolicy(attempts=100, wait=0.05, max_wait=0.5)


def until(probe, timeout=60.0):
    """What `probe` returns once that is true."""
    end = time.monotonic() + timeout
    while not (found := probe()):
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.005)
    return found


def described(store):
    """What the store says of its servers. It is asked again while there is no answer: Aerospike's client gives up after
    a second, and a busy machine may need more to connect or to answer.
    """
    return PATIENT.run(store.seams, store.describe)
