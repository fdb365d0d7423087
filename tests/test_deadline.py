"""The time of a verb: what each store call in it may take, and when it is too late to try again."""

from __future__ import annotations

import threading

import pytest

from latchwork.deadline import AGAIN, LATE, LEAST, SPARE, Deadline, call_time, present
from latchwork.errors import OutcomeUnknown, Unavailable
from latchwork.retry import RetryPolicy
from latchwork.seams import SYSTEM
from latchwork.testing.clock import ManualClock

PATIENT = RetryPolicy(attempts=100, wait=0.1, max_wait=0.1, jitter=0)


@pytest.fixture
def clock():
    return ManualClock()


def test_outside_of_a_verb_a_call_has_no_other_time_than_the_store_gives_it():
    assert present() is None
    assert call_time() is None


def test_a_verb_without_a_timeout_gives_its_calls_no_other_time_either(clock):
    with Deadline(clock, None) as deadline:
        assert present() is deadline
        assert (deadline.left(), call_time()) == (None, None)


def test_a_call_has_what_is_left_and_a_little_more(clock):
    with Deadline(clock, 5) as deadline:
        assert call_time() == pytest.approx(5 + LATE)
        clock.advance(4)
        assert call_time() == pytest.approx(1 + LATE)
        clock.advance(1.1)
        assert call_time() == pytest.approx(LATE), "the last look"
        assert deadline.left() == 0


def test_after_a_call_that_took_all_its_time_there_is_little_and_then_next_to_nothing(clock):
    with Deadline(clock, 1):
        late = 0.0
        for _ in range(20):
            time = call_time()
            late += time
            clock.advance(time)  # the server does not answer
    assert time == LEAST
    assert late <= 1 + 1 + 20 * LEAST, "whatever the verb still does, it is a second late"


def test_what_is_answered_is_not_cut_short_however_many_calls_it_takes(clock):
    with Deadline(clock, 0):
        for _ in range(100):
            assert call_time() == pytest.approx(LATE)
            clock.advance(LATE / 2)


def test_a_process_that_was_paused_has_time_for_a_last_look(clock):
    with Deadline(clock, 1):
        clock.advance(60)
        assert call_time() == SPARE


def test_a_verb_within_another_ends_with_it(clock):
    with Deadline(clock, 1):
        with Deadline(clock, 60), Deadline(clock, None):
            assert call_time() == pytest.approx(1 + LATE)
        with Deadline(clock, 0.5):
            assert call_time() == pytest.approx(0.5 + LATE)
        assert call_time() == pytest.approx(1 + LATE)
    assert call_time() is None


def test_a_verb_that_is_cut_ends_with_those_around_it_up_to_the_outermost_that_is_named(clock):
    with Deadline(clock, 60) as around, Deadline(clock, None) as outermost, Deadline(clock, 20) as inner:
        inner.cut(outermost)
        assert (inner.left(), outermost.left(), around.left()) == (0, 0, 60)
        assert inner.too_late(0)
        assert outermost.too_late(0)
        assert not around.too_late(0)
        assert call_time() == pytest.approx(LATE)


def test_a_thread_that_is_started_within_a_verb_has_its_own_time():
    seen, done = [], threading.Event()

    def run():
        seen.append(call_time())
        done.set()

    with Deadline(SYSTEM, 1):
        SYSTEM.spawn(run, "task")
        assert done.wait(20)
    assert seen == [None]


@pytest.mark.parametrize("failure", [Unavailable, OutcomeUnknown])
@pytest.mark.parametrize("timeout", [0, 1])
def test_nothing_is_tried_again_when_the_time_is_over(clock, failure, timeout):
    def fail():
        raise failure("away")

    with Deadline(clock, timeout), pytest.raises(failure):
        PATIENT.run(clock, fail, doubt=lambda: None)
    assert timeout <= clock.monotonic() < timeout + AGAIN


def test_a_failure_at_the_end_of_the_time_is_tried_again_if_that_is_quick(clock):
    failures = [Unavailable("a connection was closed")] * 2

    def call():
        if failures:
            raise failures.pop()
        return "done"

    with Deadline(clock, 0):
        assert PATIENT.run(clock, call) == "done"
