"""Both surfaces: the promises of each primitive, checked on the awaited verbs as well, by the tests of the sync ones.

Each test of a file below is run a second time, with the classes of `latchwork.aio` under the names that it uses
(`tests/aio/adapter.py`). These cases are `long`, but for a tenth of the tests, which is another one each day.
"""

from __future__ import annotations

from random import Random

import pytest

from . import matrix, scale

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
    "tests.coord.effects.test_steps",
    "tests.queue.sharded.test_promises",
    "tests.queue.ledger.test_dedup",
)
"""Where the promises are."""
TRAVELS = "a twin is made where it is used, and is not pickled"
STAGED = "the actors of a simulation are greenlets of their own"
INLINE = "it renews within a step of the clock, which the loop's thread would wait for"
FORKED = "a forked child has no loop: its thread is the parent's"
REFUSED = "the sync surface refuses an async function, the other one any other"
SYNC_ONLY = {
    "test_a_key_that_is_no_name_an_async_function_and_a_second_block_are_refused": REFUSED,
    "test_a_forked_child_that_ends_in_the_block_does_not_end_the_step": FORKED,
    "test_a_step_is_renewed_while_the_work_lasts": INLINE,
    "test_a_handle_pickles_with_its_store": TRAVELS,
    "test_a_handle_travels": TRAVELS,
    "test_a_handle_travels_with_its_limits": TRAVELS,
    "test_a_handle_travels_without_what_it_has_seen": TRAVELS,
    "test_whatever_fails_at_whatever_call_there_is_one_message_and_both_have_its_id": STAGED,
    "test_a_write_grant_that_nobody_has_any_more_counts_as_abandoned": STAGED,
    "test_a_wait_for_a_latch_that_expires_names_the_parties_that_were_missing": STAGED,
}
"""Tests there that only the sync surface can run, and why."""


def parametrize(metafunc):
    """Let the test run on both surfaces, if it is one of those."""
    if metafunc.module.__name__ not in FILES or metafunc.function.__name__ in SYNC_ONLY:
        return
    name = f"{metafunc.module.__name__}.{metafunc.function.__name__}"
    is_sampled = Random(f"{matrix.day()} {name}").random() < scale.SCALE
    cases = [
        pytest.param(SYNC, id=pytest.HIDDEN_PARAM),
        pytest.param(ASYNCIO, marks=() if is_sampled else pytest.mark.long),
    ]
    metafunc.parametrize("surface", cases, indirect=True)


@pytest.fixture(autouse=True)
def surface(request):
    """Which surface the test runs on. It comes before the fixtures that make primitives."""
    found = getattr(request, "param", SYNC)
    if found == ASYNCIO:
        from tests.aio import adapter
        from tests.queue.sharded import world

        for module in (request.module, world):
            adapter.dress(module, request.getfixturevalue("monkeypatch"))
    return found
