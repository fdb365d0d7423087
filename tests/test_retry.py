"""The retry layer: bounded, jittered, and never a second try of what may have happened."""

from __future__ import annotations

from dataclasses import replace

import pytest

from latchwork.deadline import AGAIN, Deadline
from latchwork.errors import InvalidRequest, Misconfigured, NotFound, OutcomeUnknown, Refused, Unavailable
from latchwork.retry import LATCH_POLICY, QUEUE_POLICY, Poll, RetryPolicy, again
from latchwork.store import Exists, Key, MemoryStore, Put, Read, Removal, Update
from latchwork.store.contract.records import raises
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import Fault, FaultyStore

KEY = Key("s", "k")


class Calls:
    """Something to try, that fails as told and then succeeds; it counts its calls."""

    def __init__(self, *failures):
        self.failures, self.count = list(failures), 0

    def __call__(self):
        self.count += 1
        if self.failures:
            raise self.failures.pop(0)
        return "done"


# ---- policies


@pytest.mark.parametrize("policy", [None, 3, "latch"])
def test_a_store_takes_no_other_policy(policy):
    raises(InvalidRequest, MemoryStore().with_policy, policy)


def test_the_defaults_are_those_of_the_sources():
    assert (LATCH_POLICY.attempts, LATCH_POLICY.wait) == (5, 0.01)
    assert (QUEUE_POLICY.attempts, QUEUE_POLICY.wait) == (3, 0.1)
    assert LATCH_POLICY.jitter > 0 < QUEUE_POLICY.jitter


@pytest.mark.parametrize(
    "options",
    [{"attempts": 0}, {"attempts": 101}, {"wait": -1}, {"wait": 3, "max_wait": 2}, {"jitter": 1.1}, {"jitter": -0.1},
     {"attempts": 2.5}, {"attempts": "3"}, {"wait": float("nan")}, {"wait": "1"}, {"max_wait": float("inf")},
     {"jitter": float("nan")}, {"deadline": "x"}, {"deadline": float("nan")}],
)  # fmt: skip
def test_a_policy_without_bounds_is_refused(options):
    raises(InvalidRequest, RetryPolicy, **options)


def test_a_deadline_beyond_any_life_is_none():
    assert RetryPolicy(deadline=float("inf")) == RetryPolicy()


def test_what_was_never_applied_is_tried_again_until_it_succeeds():
    clock, call = ManualClock(), Calls(Unavailable("1"), Unavailable("2"))
    assert RetryPolicy(attempts=3, wait=0.1).run(clock, call) == "done"
    assert (call.count, clock.slept) == (3, [0.1, 0.2])


@pytest.mark.parametrize("attempts", [1, 2, 3, 7])
def test_tries_are_bounded_and_the_last_error_is_raised_as_it_is(attempts):
    clock, failures = ManualClock(), [Unavailable(str(n)) for n in range(10)]
    call = Calls(*failures)
    assert raises(Unavailable, RetryPolicy(attempts=attempts).run, clock, call) is failures[attempts - 1]
    assert (call.count, len(clock.slept)) == (attempts, attempts - 1)


@pytest.mark.parametrize("failure", [OutcomeUnknown(), Refused(), NotFound(), Misconfigured(), ValueError()])
def test_nothing_else_is_tried_again(failure):
    clock = ManualClock()
    for before in ((), (Unavailable(),)):
        call = Calls(*before, failure)
        with pytest.raises(type(failure)):
            RetryPolicy(attempts=5).run(clock, call)
        assert call.count == len(before) + 1


def test_doubt_is_retried_only_where_a_repeat_is_harmless_and_is_told_each_time():
    clock, doubts = ManualClock(), []
    call = Calls(OutcomeUnknown(), Unavailable(), OutcomeUnknown())
    assert RetryPolicy(attempts=5).run(clock, call, doubt=lambda: doubts.append(1)) == "done"
    assert len(doubts) == 2
    doubts.clear()
    call = Calls(*[OutcomeUnknown() for _ in range(9)])
    raises(OutcomeUnknown, RetryPolicy(attempts=3).run, clock, call, doubt=lambda: doubts.append(1))
    assert (call.count, len(doubts)) == (3, 3)


def test_pauses_double_up_to_their_limit_and_are_jittered():
    clock, policy = ManualClock(), RetryPolicy(attempts=8, wait=0.1, max_wait=1.0, jitter=0.5)
    assert [policy.pause(n, clock) for n in range(1, 7)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    chance = ManualClock(seed=1)
    drawn = [policy.pause(1, chance) for _ in range(200)]
    assert 0.05 <= min(drawn) < 0.06
    assert 0.14 < max(drawn) <= 0.15


def test_a_store_that_is_full_is_left_alone_for_the_longest_pause():
    clock, failure = ManualClock(), Unavailable("out of disk")
    failure.slow = True
    RetryPolicy(attempts=3, wait=0.1, max_wait=2.0).run(clock, Calls(failure, failure))
    assert clock.slept == [2.0, 2.0]


def test_no_try_begins_after_the_deadline():
    for deadline, tries in ((0, 1), (0.05, 1), (0.25, 2), (0.75, 4), (100, 6)):
        clock, call = ManualClock(), Calls(*[Unavailable() for _ in range(20)])
        policy = RetryPolicy(attempts=6, wait=0.1, max_wait=10, jitter=0, deadline=deadline)
        raises(Unavailable, policy.run, clock, call)
        assert call.count == tries, deadline
        assert clock.monotonic() <= deadline or tries == 6


@pytest.mark.parametrize(
    ("failure", "harmless", "expected"),
    [
        (Unavailable(), False, True),
        (Misconfigured(), False, False),
        (OutcomeUnknown(), False, False),
        (OutcomeUnknown(), True, True),
        (Refused(), True, False),
        (KeyError(), True, False),
    ],
)
def test_which_failures_may_be_sent_again(failure, harmless, expected):
    assert again(failure, (lambda: None) if harmless else None) is expected


# ---- waiting for a condition


def test_a_wait_asks_at_once_and_stops_at_the_answer():
    clock = ManualClock()
    assert Poll().until(clock, lambda: 7, timeout=None) == 7
    assert clock.slept == []
    clock.at(1.0, lambda: answers.append("yes"))
    answers = []
    assert Poll().until(clock, lambda: answers[0] if answers else None, timeout=None) == "yes"
    assert 1.0 <= clock.monotonic() <= 1.2


def test_pauses_grow_from_the_low_to_the_high_one_and_stay_finite():
    clock, poll = ManualClock(), Poll(low=0.005, high=0.1, factor=2)
    assert [round(poll.pause(n, clock), 3) for n in (1, 2, 3, 6, 63, 64, 10**6)] == [
        0.005, 0.01, 0.02, 0.1, 0.1, 0.1, 0.1,
    ]  # fmt: skip


@pytest.mark.parametrize("timeout", [0, 0.001, 1.0, 7.77])
def test_a_wait_that_is_over_answers_none_and_has_asked_at_the_very_end(timeout):
    clock, asked = ManualClock(), []
    assert Poll().until(clock, lambda: asked.append(clock.monotonic()), timeout=timeout) is None
    assert asked[0] == 0
    assert asked[-1] == clock.monotonic() == pytest.approx(timeout)


def test_zero_is_an_answer_and_only_none_is_not():
    assert Poll().until(ManualClock(), lambda: 0, timeout=5) == 0


def test_an_event_cuts_a_pause_short():
    clock, asked = ManualClock(), []
    wake = clock.event()
    wake.set()
    assert Poll().until(clock, lambda: asked.append(1) or (True if len(asked) > 5 else None), timeout=9, wake=wake)
    assert clock.monotonic() == 0


def test_errors_of_the_question_pass_through():
    raises(NotFound, Poll().until, ManualClock(), Calls(NotFound()), timeout=9)


# ---- the store's verbs


@pytest.fixture
def inner():
    store = MemoryStore(ManualClock())
    store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
    return store


def test_reads_are_repeated_whatever_went_wrong(inner):
    store = FaultyStore(inner, {1: "reply_lost", 2: "late", 4: "dropped", 6: "request_lost"})
    assert store.get(KEY).bins == {"n": 0}
    assert store.get_many([KEY])[0].bins == {"n": 0}
    assert store.operate(KEY, Read("n")) == (0,)
    assert store.fired.total() == 4


@pytest.mark.parametrize("fault", ["reply_lost", "request_lost", "late"])
def test_a_write_in_doubt_is_sent_again_only_where_it_is_said_to_be_harmless(inner, fault):
    store = FaultyStore(inner, {1: fault})
    raises(OutcomeUnknown, store.operate, KEY, Put("n", 1))
    assert store.total == 1
    store = FaultyStore(inner, {1: fault})
    assert store.operate(KEY, Put("n", 2), Read("n"), repeatable=True) == (2,)


def test_an_answer_after_doubt_says_so(inner):
    store = FaultyStore(inner, {1: "reply_lost"})
    failure = raises(Refused, store.operate, KEY, Put("n", 5), when=_n_is(0), repeatable=True)
    assert failure.details["doubt"] is True
    failure = raises(Refused, store.operate, KEY, Put("n", 6), when=_n_is(0), repeatable=True)
    assert failure.details["doubt"] is False


def test_unavailable_after_doubt_is_unknown(inner):
    store = FaultyStore(inner, {1: "late", **dict.fromkeys(range(2, 9), "dropped")})
    raises(OutcomeUnknown, store.operate, KEY, Put("n", 5), repeatable=True)
    store = FaultyStore(inner, {1: "late", **dict.fromkeys(range(2, 9), "dropped")})
    raises(OutcomeUnknown, store.delete, KEY, repeatable=True)


def test_a_delete_whose_reply_was_lost_says_it_was_there(inner):
    store = FaultyStore(inner, {1: "reply_lost"})
    assert store.delete(KEY, repeatable=True) is True
    assert store.delete(KEY, repeatable=True) is False


def test_only_the_rows_that_were_never_applied_are_sent_again(inner):
    store = FaultyStore(inner, {1: Fault("dropped", rows=(0, 2)), 2: Fault("dropped", rows=(1,))})
    rows = [Update(Key("s", str(n)), (Put("n", n), Read("n")), exists=Exists.CREATE) for n in range(4)]
    assert store.operate_many(rows) == [(0,), (1,), (2,), (3,)]
    assert [len(call.request) for call in store.history] == [4, 2, 1]


def test_rows_in_doubt_are_reported_and_left_alone(inner):
    store = FaultyStore(inner, {1: Fault("reply_lost", rows=(1,)), 2: Fault("dropped", rows=(0,))})
    removals = [Removal(KEY), Removal(KEY), Removal(KEY)]
    found = store.delete_many(removals)
    assert [type(row) for row in found] == [bool, OutcomeUnknown, bool]
    assert store.total == 1


def test_rows_that_stay_unavailable_are_reported_when_the_policy_stops(inner):
    store = FaultyStore(inner, dict.fromkeys(range(1, 9), Fault("dropped", rows=(0,))))
    rows = [Update(Key("s", str(n)), (Put("n", n), Read("n")), exists=Exists.CREATE) for n in range(2)]
    first, second = store.operate_many(rows)
    assert (type(first), second) == (Unavailable, (1,))
    assert store.total == store.policy.attempts


@pytest.mark.parametrize("rows", [1, 2])
def test_a_batch_in_doubt_is_sent_again_no_later_than_a_single_call(inner, rows):
    clock, patient = inner.seams, RetryPolicy(attempts=50, wait=1.0, max_wait=1.0, jitter=0, deadline=3.0)
    store = FaultyStore(inner, dict.fromkeys(range(1, 99), "request_lost"))
    updates, removals = [Update(Key("s", str(n)), (Put("n", n),)) for n in range(rows)], [Removal(KEY)] * rows
    for policy, timeout in ((patient, None), (replace(patient, deadline=None), 2.0)):
        view = store.with_policy(policy)
        for call in (lambda: view.repeat_many(updates), lambda: view.delete_many(removals, repeatable=True)):  # noqa: B023 - called at once
            began, before = clock.monotonic(), store.total
            with Deadline(clock, timeout):
                assert {type(row) for row in call()} == {OutcomeUnknown}
            assert clock.monotonic() - began <= (timeout or 3.0) + AGAIN
            assert 1 < store.total - before < 6


def test_a_batch_that_ends_in_doubt_as_a_whole_leaves_no_row_of_it_as_never_applied(inner):
    class Failing(FaultyStore):
        def _operate_many(self, updates):
            found = super()._operate_many(updates)
            if self.total == 2:
                raise OutcomeUnknown("the whole batch")
            return found

    store = Failing(inner, {1: Fault("dropped", rows=(1,))})
    rows = [Update(Key("s", str(n)), (Put("n", n), Read("n")), exists=Exists.CREATE) for n in range(2)]
    first, second = store.operate_many(rows)
    assert (first, type(second)) == ((0,), OutcomeUnknown)
    assert inner.get(Key("s", "1")).bins == {"n": 1}


def _n_is(value):
    from latchwork.store import Bin

    return Bin("n").eq(value)
