"""The promises of rate limiters, over every backend and, where time matters, on a clock that the test moves."""

from __future__ import annotations

import pickle
import random
import threading
import time
from datetime import timedelta

import pytest

from latchwork.coord import Decision, RateLimiter
from latchwork.coord import limiter as limiters
from latchwork.coord.limiter import CELLS, LIMITS
from latchwork.errors import InvalidRequest, OutcomeUnknown, WaitTimeout
from latchwork.retry import RetryPolicy
from latchwork.store import Key, MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import Fault, FaultyStore

# ---- on every backend


def test_as_many_as_the_limit_go_through_at_once_and_no_more(store, name):
    handles = [RateLimiter(store, name, 3, 60) for _ in range(2)]
    decisions = [handles[turn % 2].try_acquire() for turn in range(5)]
    assert [decision.allowed for decision in decisions] == [True, True, True, False, False]
    assert [decision.remaining for decision in decisions] == [2, 1, 0, 0, 0]
    assert [decision.retry_after for decision in decisions[:3]] == [0.0, 0.0, 0.0]
    assert all(53 < decision.retry_after <= 66 for decision in decisions[3:])


def test_several_are_let_through_all_or_none(store, name):
    limiter = RateLimiter(store, name, 5, 60)
    assert limiter.try_acquire(3) == Decision(True, 2, 0.0)
    assert limiter.try_acquire(3).allowed is False
    assert limiter.try_acquire(2) == Decision(True, 0, 0.0)


def test_all_limits_of_one_limiter_hold(store, name):
    limiter = RateLimiter(store, name, 3, 60, also=[(4, 3600)])
    assert [limiter.try_acquire().allowed for _ in range(4)] == [True, True, True, False]
    wider = RateLimiter(store, name, 10, 60, also=[(4, 3600)])
    assert [wider.try_acquire().allowed for _ in range(3)] == [True, False, False], "both count together"
    assert wider.try_acquire().retry_after > 3000, "it waits for the limit that has room last"


def test_the_record_is_left_to_expire(store, name):
    RateLimiter(store, name, 3, 100, also=[(10, 1000)]).try_acquire()
    record = store.get(Key("latchwork_limits", name))
    assert 2000 < record.ttl <= 2060
    assert {bin: sum(cells.values()) for bin, cells in record.bins.items() if bin.startswith("per-")} == {
        "per-10000": 1, "per-100000": 1,
    }  # fmt: skip


def test_threads_of_several_handles_never_pass_the_limit(store, name):
    """What is let through is heard of later, never earlier; the whole takes less than a window."""
    passed: list[bool] = []

    def ask():
        limiter = RateLimiter(store, name, 20, 600)
        passed.extend(limiter.try_acquire().allowed for _ in range(30))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(passed), sum(passed)) == (120, 20)


def test_who_waits_is_let_through_when_there_is_room(store, name):
    limiter = RateLimiter(store, name, 2, 0.3)
    began = time.monotonic()
    assert all(limiter.acquire(10).allowed for _ in range(4))
    assert time.monotonic() - began >= 0.29


# ---- windows, on a clock that the test moves


@pytest.mark.parametrize("seed", range(8))
def test_never_more_than_the_limit_in_any_window_wherever_it_begins(memory, clock, seed):
    chance, limit, per = random.Random(seed), 7, 2.0
    handles = [RateLimiter(memory, "l", limit, per) for _ in range(3)]
    passed: list[tuple[float, int]] = []
    for _ in range(600):
        clock.advance(chance.choice((0.0, 0.01, 0.05, 0.3, 1.0)))
        n = chance.choice((1, 1, 1, 2, 5))
        if chance.choice(handles).try_acquire(n).allowed:
            passed.append((clock.monotonic(), n))
    for when, _ in passed:
        assert sum(n for at, n in passed if when <= at < when + per) <= limit
    assert sum(n for _, n in passed) > 0.5 * limit * clock.monotonic() / per, "and it is made use of"


@pytest.mark.parametrize("at", [0.0, 0.019, 0.02, 0.199])
def test_room_comes_back_a_window_later_and_a_tenth_of_it_late_at_most(memory, clock, at):
    clock.advance(at)
    limiter = RateLimiter(memory, "l", 1, 2.0)
    assert limiter.try_acquire().allowed
    told = limiter.try_acquire().retry_after
    assert 2.0 <= told <= 2.2
    clock.advance(told - 0.002)
    assert not limiter.try_acquire().allowed
    clock.advance(0.002)
    assert limiter.try_acquire().allowed


def test_who_waits_sleeps_exactly_as_long_as_it_is_told(memory, clock):
    limiter = RateLimiter(memory, "l", 2, 10.0)
    limiter.acquire(n=2)
    told = limiter.try_acquire().retry_after
    clock.slept.clear()
    memory.reset()
    assert limiter.acquire(60) == Decision(True, 1, 0.0)
    assert clock.slept == [told]
    assert memory.calls == {"operate": 2, "get": 1}


def test_who_cannot_be_let_through_in_time_hears_so_at_once(memory, clock):
    limiter = RateLimiter(memory, "l", 1, 10.0)
    limiter.acquire()
    began = clock.monotonic()
    with pytest.raises(WaitTimeout, match="no room for 1 within 5 s"):
        limiter.acquire(5)
    assert clock.monotonic() == began


def test_a_limit_that_is_changed_goes_by_what_was_counted_before(memory, clock):
    RateLimiter(memory, "l", 10, 10.0).try_acquire(6)
    assert not RateLimiter(memory, "l", 5, 10.0).try_acquire().allowed
    assert RateLimiter(memory, "l", 5, 10.0).try_acquire().remaining == 0
    assert RateLimiter(memory, "l", 20, 10.0).try_acquire(14).allowed


# ---- the store's clock


def test_a_store_clock_set_back_lets_nobody_through_too_early_and_keeps_nobody_waiting_for_long(memory, clock):
    limiter = RateLimiter(memory, "l", 3, 2.0)
    limiter.acquire(n=3)
    clock.step(-3600)
    began = clock.monotonic()
    for turn in range(1, 4):
        assert limiter.acquire(30, n=3).allowed
        assert clock.monotonic() - began >= 2.0 * turn
    assert clock.monotonic() - began <= 3 * 5.0


def test_nobody_waits_for_longer_than_two_windows_after_the_stores_clock_was_set_back(memory, clock):
    limiter = RateLimiter(memory, "l", 3, 2.0)
    limiter.acquire(n=3)
    clock.step(-3600)
    began = clock.monotonic()
    assert limiter.acquire(30).allowed
    assert clock.monotonic() - began <= 2 * 2.0


def test_one_that_is_refused_now_and_then_is_let_through_though_the_stores_clock_was_set_back(memory, clock):
    limiter = RateLimiter(memory, "l", 3, 2.0)
    limiter.acquire(n=3)
    clock.step(-3600)
    waited = 0.0
    while not limiter.try_acquire().allowed:
        clock.advance(0.5)
        waited += 0.5
    assert 2.0 <= waited <= 3.5


def test_one_whose_handle_is_made_for_each_call_is_let_through_though_the_stores_clock_was_set_back(memory, clock):
    """As `of_key` makes it in a service, for each request."""
    users = RateLimiter(memory, "login", 3, 2.0)
    users.of_key("ada").acquire(n=3)
    clock.step(-3600)
    waited = 0.0
    while not users.of_key("ada").try_acquire().allowed:
        clock.advance(0.5)
        waited += 0.5
    assert 2.0 <= waited <= 3.5
    assert not users.of_key("ada")._watches, "of one that lets calls through nothing is kept"


def of_a_clock_set_back(memory, clock):
    """A full limiter whose store's clock was set back, watched for longer than its window."""
    limiter = RateLimiter(memory, "l", 3, 2.0)
    limiter.acquire(n=3)
    clock.step(-3600)
    assert not limiter.try_acquire().allowed
    clock.advance(2.5)
    return limiter


def test_threads_that_see_together_that_the_stores_clock_was_set_back_let_no_more_through_than_the_limit(memory, clock):
    limiter = of_a_clock_set_back(memory, clock)
    seen, allowed = limiter._time_stands_still, []

    def and_another_thread_is_faster():
        stood_still, limiter._time_stands_still = seen(), seen
        allowed.extend(limiter.try_acquire().allowed for _ in range(4))
        return stood_still

    limiter._time_stands_still = and_another_thread_is_faster
    allowed.append(limiter.try_acquire().allowed)
    assert allowed == [True] * 3 + [False] * 2


def test_what_a_process_watches_is_bounded(memory, monkeypatch):
    monkeypatch.setattr(limiters, "MAX_WATCHED", 4)
    users = RateLimiter(memory, "login", 1, 2.0)
    for user in range(9):
        assert [users.of_key(str(user)).try_acquire().allowed for _ in range(2)] == [True, False]
        assert len(users._watches) <= 4


def test_nothing_is_forgotten_while_others_are_let_through(memory, clock):
    limiter = of_a_clock_set_back(memory, clock)
    other = RateLimiter(memory, "l", 10, 2.0)
    assert other.try_acquire().allowed, "which has a larger limit"
    assert not limiter.try_acquire().allowed, "its watch begins anew"
    limiter._reset(limiter._watched[0])
    clock.advance(0.1)
    other.try_acquire()
    limiter._reset(limiter._watched[0])
    assert sum(memory.get(Key(LIMITS, "l")).bins["per-200"].values()) >= 1


def test_a_record_dated_in_the_future_fails_no_new_limiter_after_the_clock_was_set_back(memory, clock):
    """The process learned the time from the old record; so its tokens were of the future for the new one."""
    old = RateLimiter(memory, "old", 1_000, 60)
    old.try_acquire()
    clock.step(-2 * 86_400)
    old.try_acquire()
    new = RateLimiter(memory, "new", 1_000, 60)
    for _ in range(64):
        assert new.try_acquire().allowed
    clock.advance(61)
    assert [new.try_acquire().allowed for _ in range(3)] == [True] * 3


# ---- doubt, costs


@pytest.mark.parametrize("kind", ["reply_lost", "request_lost"])
def test_a_call_whose_reply_is_lost_is_counted_once(memory, kind):
    faulty = FaultyStore(memory, {2: kind})
    limiter = RateLimiter(faulty, "l", 5, 60)
    assert [limiter.try_acquire().remaining for _ in range(3)] == [4, 3, 2]


def test_a_call_that_arrives_late_or_twice_is_counted_once(memory):
    faulty = FaultyStore(memory, {1: Fault("late"), 3: "duplicate"})
    limiter = RateLimiter(faulty, "l", 5, 60)
    assert limiter.try_acquire().remaining == 4
    faulty.deliver()
    assert [limiter.try_acquire().remaining for _ in range(2)] == [3, 2]


def test_where_no_attempt_is_answered_the_outcome_is_unknown_and_never_more_than_the_limit_pass(memory):
    faulty = FaultyStore(memory, {1: "reply_lost"})
    with pytest.raises(OutcomeUnknown):
        RateLimiter(faulty.with_policy(RetryPolicy(attempts=1)), "l", 2, 60).try_acquire()
    assert RateLimiter(memory, "l", 2, 60).try_acquire().remaining == 0


def test_one_call_where_there_is_room_and_one_more_where_there_is_none(memory):
    limiter = RateLimiter(memory, "l", 2, 60, also=[(2, 600)])
    limiter.try_acquire()
    memory.reset()
    assert limiter.try_acquire().allowed
    assert memory.calls == {"operate": 1}
    memory.reset()
    assert not limiter.try_acquire().allowed
    assert memory.calls == {"operate": 1, "get": 1}


def test_the_record_stays_small(memory, clock):
    limiter = RateLimiter(memory, "l", 10**6, 2.0)
    for _ in range(500):
        limiter.try_acquire(100)
        clock.advance(0.05)
    assert len(memory.get(Key(LIMITS, "l")).bins["per-200"]) <= CELLS + 1


# ---- bad input, before any I/O; handles that travel


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1), "limit is 0"),
        ((1.5, 1), "limit is 1.5"),
        ((True, 1), "limit is True"),
        ((10**9 + 1, 1), "limit is 1000000001"),
        ((1, 0.01), "per is 0.01; it must be seconds, or a timedelta, of 0.05"),
        ((1, float("nan")), "per is nan"),
        ((1, "1"), "per is '1'"),
        ((1, True), "per is True"),
        ((1, 10**9), "per is 1000000000; it must be"),
    ],
)
def test_bad_limits_are_refused_before_any_call(memory, arguments, message):
    with pytest.raises(InvalidRequest, match=message):
        RateLimiter(memory, "l", *arguments)
    with pytest.raises(InvalidRequest, match=message):
        RateLimiter(memory, "l", 5, 77, also=[arguments])
    assert memory.total == 0


def test_bad_names_times_and_numbers_are_refused_before_any_call(memory):
    limiter = RateLimiter(memory, "l", 5, 60, also=[(3, 1)])
    for bad in (0, -1, 1.5, True, None, 4):
        with pytest.raises(InvalidRequest, match="n is"):
            limiter.try_acquire(bad)
        with pytest.raises(InvalidRequest, match="n is"):
            limiter.acquire(n=bad)
    with pytest.raises(InvalidRequest, match="timeout"):
        limiter.acquire(-1)
    with pytest.raises(InvalidRequest, match="name"):
        RateLimiter(memory, "", 1, 1)
    with pytest.raises(InvalidRequest, match="pairs"):
        RateLimiter(memory, "l", 1, 1, also=[5])
    with pytest.raises(InvalidRequest, match="nearly the same window"):
        RateLimiter(memory, "l", 1, 60, also=[(2, 60.0)])
    with pytest.raises(InvalidRequest, match="5 limits; at most 4"):
        RateLimiter(memory, "l", 1, 1, also=[(9, 10**n) for n in range(1, 5)])
    assert memory.total == 0


def test_a_handle_travels_with_its_limits(shared_store, name):
    limiter = RateLimiter(shared_store, name, 3, 60, also=[(5, 600)])
    limiter.try_acquire()
    twin = pickle.loads(pickle.dumps(limiter))
    assert repr(twin) == repr(limiter) == f"RateLimiter({name!r}, 3 per 60 s, 5 per 600 s)"
    assert twin.try_acquire().remaining == 1


def test_a_window_may_be_a_timedelta():
    store = MemoryStore(ManualClock())
    limiter = RateLimiter(store, "l", 1, timedelta(minutes=1), also=[(5, timedelta(hours=1))])
    assert repr(limiter) == repr(RateLimiter(store, "l", 1, 60, also=[(5, 3600)]))
    with pytest.raises(InvalidRequest, match="per is datetime"):
        RateLimiter(store, "l", 1, timedelta(milliseconds=1))
