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
    "tests.queue.sharded.groups.test_groups",
    "tests.queue.sharded.batches.test_batches",
    "tests.queue.sharded.publishing.test_publisher",
    "tests.queue.sharded.consumer.test_consumer",
)
"""Where the promises are."""
TRAVELS = "a twin is made where it is used, and is not pickled"
STAGED = "the actors of a simulation are greenlets of their own"
INLINE = "it renews within a step of the clock, which the loop's thread would wait for"
KIT = "the upkeep of the test kit takes queues of the sync surface"
HANGS = "a handler that runs too long is cancelled there"
THREADS = "it is about the threads of handlers, of which the other surface has more, or none"
PROGRAM = "it is about a program of its own; tests/aio has one of the other surface"
FORKED = "a forked child has no loop: its thread is the parent's"
ENDED = "what ends a process ends a loop, too"
THREADED = "a future for threads, whose callbacks and forks the other surface does not have"
REFUSED = "the sync surface refuses an async function, the other one any other"
SYNC_ONLY = {
    "test_a_key_that_is_no_name_an_async_function_and_a_second_block_are_refused": REFUSED,
    "test_a_function_of_which_nothing_ran_leaves_the_step_to_be_done": REFUSED,
    "test_an_async_function_is_refused_before_any_call": REFUSED,
    "test_a_forked_child_that_ends_in_the_block_does_not_end_the_step": FORKED,
    "test_a_step_is_renewed_while_the_work_lasts": INLINE,
    "test_eight_threads_make_a_fifth_of_the_calls_of_single_publishes": STAGED,
    "test_messages_wait_for_others_for_as_long_as_linger_says": STAGED,
    "test_an_interrupt_at_any_point_loses_nothing_and_hangs_nobody": STAGED,
    "test_a_coroutine_waits_for_a_publication_and_gives_up_the_wait_alone": THREADED,
    "test_a_callback_may_publish_and_what_would_wait_for_itself_is_refused": THREADED,
    "test_a_full_publisher_whose_start_was_interrupted_begins_again": ENDED,
    "test_whatever_a_handler_raises_fails_its_message_and_the_worker_goes_on": ENDED,
    "test_a_handler_that_hangs_is_given_up_and_replaced_until_the_consumer_is_saturated": HANGS,
    "test_one_handler_that_hangs_does_not_stop_a_consumer_of_one": HANGS,
    "test_a_saturated_consumer_takes_nothing_until_a_handler_returns": HANGS,
    "test_an_exception_whose_text_cannot_be_had_fails_its_message_and_the_worker_goes_on": THREADS,
    "test_a_handler_that_stops_its_own_consumer_is_refused_and_the_consumer_goes_on": THREADS,
    "test_the_keeper_goes_on_where_a_thread_cannot_be_started": THREADS,
    "test_each_message_of_a_batch_counts_by_itself": THREADS,
    "test_bad_input_is_refused_when_the_consumer_is_made": THREADS,
    "test_sigterm_drains_and_a_second_one_forces": PROGRAM,
    "test_a_child_that_a_handler_has_forked_can_be_terminated": PROGRAM,
    "test_an_async_handler_is_refused_with_the_remedy": REFUSED,
    "test_a_handler_whose_call_would_run_nothing_is_refused": REFUSED,
    "test_a_handler_that_returns_a_coroutine_unseen_fails_its_message_and_leaves_no_warning": REFUSED,
    "test_a_parked_message_is_named_until_it_is_brought_back": KIT,
    "test_a_child_forked_between_two_outcomes_knows_both": THREADED,
    "test_wherever_a_child_is_forked_it_finds_all_messages_that_wait": THREADED,
    "test_a_handle_pickles_with_its_store": TRAVELS,
    "test_a_handle_travels": TRAVELS,
    "test_a_handle_travels_with_its_limits": TRAVELS,
    "test_a_handle_travels_without_what_it_has_seen": TRAVELS,
    "test_whatever_fails_at_whatever_call_there_is_one_message_and_both_have_its_id": STAGED,
    "test_a_write_grant_that_nobody_has_any_more_counts_as_abandoned": STAGED,
    "test_a_wait_for_a_latch_that_expires_names_the_parties_that_were_missing": STAGED,
}
"""Tests there that only the sync surface can run, and why."""

EVERYWHERE = "inject_everywhere"
"""A test that uses it fails each call in turn, for long; on the other surface the table of cancellation does that."""


def parametrize(metafunc):
    """Let the test run on both surfaces, if it is one of those."""
    function = metafunc.function
    if (
        metafunc.module.__name__ not in FILES
        or function.__name__ in SYNC_ONLY
        or EVERYWHERE in function.__code__.co_names
    ):
        return
    name = f"{metafunc.module.__name__}.{function.__name__}"
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
