"""The store fails, the process is killed, the machine crashes: once each, and in order, nevertheless.

A run at a smaller scale than 1 takes a sample of the calls and places at which that happens.
"""

from __future__ import annotations

import pytest

from latchwork.testing.stores import KINDS
from tests.queue.paged.failing import HOW
from tests.support import matrix
from tests.support.scale import scaled

from . import promises

SEEDS = scaled(25, least=10)


def test_the_call_numbers_cover_a_batch():
    producer = promises.Life().born()
    producer.put_some(n=9)
    producer.forward()
    assert 20 <= producer.calls < promises.CALLS


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_any_call_neither_loses_nor_doubles_nor_reorders(kind):
    calls = matrix.sample(range(1, promises.CALLS), kind, least=2)
    fired = promises.a_fault_at_any_call_neither_loses_nor_doubles_nor_reorders([kind], calls)
    print(f"{kind} fired {fired[kind]} times")
    assert fired[kind] >= 3 * len(calls)


@pytest.mark.parametrize("how", HOW, ids=lambda how: how.__name__)
def test_a_disk_that_fails_at_any_call_neither_loses_nor_doubles(how):
    afterwards = matrix.sample(promises.AFTERWARDS, how.__name__, least=2)
    fired = promises.a_disk_that_fails_at_any_call_neither_loses_nor_doubles([how], afterwards)
    print(f"{how.__name__}: {dict(fired)}")
    assert {"open", "file write", "file sync", "replace", "sync_directory"} <= set(fired)


def test_an_interrupt_anywhere_neither_loses_nor_doubles():
    at = matrix.sample(promises.PLACES, "an interrupt")
    places = promises.an_interrupt_anywhere_neither_loses_nor_doubles(at)
    print(f"interrupted at {places} places")
    assert places >= 3 * len([place for place in at if place <= 150])


def test_rows_that_fail_alone_keep_their_order():
    promises.rows_that_fail_alone_keep_their_order(matrix.sample(range(1, promises.CALLS), "rows"))


def test_a_process_killed_anywhere_between_two_batches_repeats_nothing():
    promises.a_process_killed_anywhere_between_two_batches_repeats_nothing(
        matrix.sample(range(1, promises.CALLS), "kills")
    )


def test_what_was_put_survives_the_machine():
    promises.what_was_put_survives_the_machine()


def test_what_is_published_is_on_the_disk():
    promises.what_is_published_is_on_the_disk()


def test_what_waits_is_not_reclaimed():
    promises.what_waits_is_not_reclaimed()


def test_a_full_budget_refuses_and_drops_nothing():
    promises.a_full_budget_refuses()


def test_outboxes_of_one_name_stay_apart():
    promises.outboxes_of_one_name_stay_apart()


def test_objects_of_one_outbox_take_turns():
    promises.objects_of_one_outbox_take_turns()


def test_any_mix_of_faults_neither_loses_nor_doubles_nor_reorders():
    """The seed is in the message of a failure, and replays it."""
    fired = promises.any_mix_of_faults_neither_loses_nor_doubles_nor_reorders(range(SEEDS))
    print(f"{SEEDS} runs, faults: {dict(fired)}")
    assert set(fired) == set(KINDS), f"kinds that never fired: {set(KINDS) - set(fired)}"
