"""Both surfaces: the promises of each primitive, checked on the awaited verbs as well, by the tests of the sync ones.

Each test of a file below is run a second time, with the classes of `latchwork.aio` under the names that it uses
(`tests/aio/adapter.py`). Such a case is `long`, but for a few of each file.
"""

from __future__ import annotations

import pytest

SYNC, ASYNCIO = "sync", "asyncio"

FILES = (
    "tests.coord.lock.test_lock",
    "tests.coord.test_semaphore",
    "tests.coord.test_rwlock",
    "tests.coord.test_limiter",
    "tests.coord.latch.test_latch",
    "tests.coord.barrier.test_barrier",
    "tests.coord.presence.test_presence",
    "tests.coord.election.test_election",
)
"""Where the promises are."""
TRAVELS = "a twin is made where it is used, and is not pickled"
STAGED = "the actors of a simulation are greenlets of their own"
SYNC_ONLY = {
    "test_a_handle_pickles_with_its_store": TRAVELS,
    "test_a_handle_travels": TRAVELS,
    "test_a_handle_travels_with_its_limits": TRAVELS,
    "test_a_handle_travels_without_what_it_has_seen": TRAVELS,
    "test_a_write_grant_that_nobody_has_any_more_counts_as_abandoned": STAGED,
}
"""Tests there that only the sync surface can run, and why."""


def parametrize(metafunc):
    """Let the test run on both surfaces, if it is one of those."""
    if metafunc.module.__name__ not in FILES or metafunc.function.__name__ in SYNC_ONLY:
        return
    cases = [pytest.param(SYNC, id=pytest.HIDDEN_PARAM), pytest.param(ASYNCIO)]
    metafunc.parametrize("surface", cases, indirect=True)


@pytest.fixture(autouse=True)
def surface(request):
    """Which surface the test runs on. It comes before the fixtures that make primitives."""
    found = getattr(request, "param", SYNC)
    if found == ASYNCIO:
        from tests.aio import adapter

        adapter.dress(request.module, request.getfixturevalue("monkeypatch"))
    return found
