"""A step that is done once, whoever asks for it and however often (docs/protocols P23), over every backend."""

from __future__ import annotations

import os
import pickle
import threading
from contextlib import nullcontext
from datetime import timedelta
from functools import partial

import pytest

import latchwork
import latchwork.coord.effects.step as steps
from latchwork.coord import OnceStep, contender
from latchwork.coord.effects.step import DONE, MAX_RESULT, ONCE, RESULTS
from latchwork.coord.lease import FENCE
from latchwork.errors import (
    Corrupt,
    FencedOut,
    InvalidRequest,
    LockUnavailable,
    OutcomeUnknown,
    RecordTooBig,
    Unavailable,
    Unreadable,
)
from latchwork.retry import ONE_ATTEMPT
from latchwork.store import Add, Key, MemoryStore, Put
from latchwork.testing import CountingStore, ManualClock
from latchwork.testing.stores import Crash, Fault, FaultyStore, Outage


@pytest.fixture
def key(name):
    return Key(ONCE, name)


def test_the_work_of_a_key_is_done_once_and_its_result_is_kept(store, name):
    calls = []
    for n in range(3):
        with latchwork.once(store, key=name) as step:
            if not step.done:
                calls.append(n)
                step.result = {"receipt": n, "lines": [1, 2.5, None, b"x"]}
        assert step.result == {"receipt": 0, "lines": [1, 2.5, None, b"x"]}
    assert calls == [0]


def test_a_function_is_called_once_for_each_key_and_repeats_get_its_result(store, name):
    calls = []

    @latchwork.once(store, key=lambda order, *, note="": f"{name} {order}", keep=timedelta(days=30))
    def charge(order: int, *, note: str = "") -> str:
        """Charge it."""
        calls.append((order, note))
        return f"receipt {order}"

    assert [charge(7), charge(7, note="again"), charge(8)] == ["receipt 7", "receipt 7", "receipt 8"]
    assert calls == [(7, ""), (8, "")]
    assert (charge.__name__, charge.__doc__) == ("charge", "Charge it.")
    assert charge.step(7).token != charge.step(8).token == charge.step(8, note="x").token


def test_two_functions_of_one_key_do_not_share_results_unless_they_have_one_name(store, name):
    def twice(of_name=None):
        @latchwork.once(store, key=lambda: name, name=of_name)
        def one():
            return 1

        @latchwork.once(store, key=lambda: name, name=of_name)
        def two():
            return 2

        return one(), two()

    assert twice() == (1, 2)
    assert twice("shared") == (1, 1)


def test_a_function_may_have_a_parameter_of_any_name(store, name):
    @latchwork.once(store, key=lambda **given: f"{name} {given['self']}")
    def work(*, self, work, key, step):
        return [self, work, key, step]

    given = {"self": "a", "work": "b", "key": "c", "step": "d"}
    assert work(**given) == work(**given) == ["a", "b", "c", "d"]
    assert work.step(**given).token == work.step(**given).token


def test_a_method_and_a_function_without_arguments_can_be_decorated(store, name):
    class Service:
        calls = 0

        @latchwork.once(store, key=lambda self, order: f"{name} {order}")
        def charge(self, order):
            self.calls += 1
            return order

    service, reports = Service(), []
    assert [service.charge(7), service.charge(7)] == [7, 7]
    assert service.calls == 1
    report = latchwork.once(store, key=f"{name} report")(reports.append)
    assert [report("monday"), report("tuesday")] == [None, None]
    assert reports == ["monday"]


def test_what_the_work_raised_is_not_kept_and_the_next_one_does_it(store, name):
    step = latchwork.once(store, key=name)
    with pytest.raises(ZeroDivisionError):
        step.run(lambda: 1 // 0)
    assert step.run(lambda: 7) == 7
    assert step.run(lambda: 8) == 7


def test_while_one_works_on_it_others_are_told_so_or_wait_for_the_result(store, name):
    began, go_on, found = threading.Event(), threading.Event(), []

    def slow():
        began.set()
        assert go_on.wait(30)
        return "first"

    threads = [threading.Thread(target=lambda: found.append(latchwork.once(store, key=name).run(slow)))]
    threads[0].start()
    assert began.wait(30)
    with pytest.raises(LockUnavailable, match="works on it, with fence"):
        latchwork.once(store, key=name, timeout=0).run(slow)
    threads.append(threading.Thread(target=lambda: found.append(latchwork.once(store, key=name).run(slow))))
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert found == ["first", "first"]


def test_it_costs_two_calls_also_where_it_is_done():
    counting = CountingStore(MemoryStore(ManualClock()))
    for calls in ({"operate": 2}, {"operate": 1, "get": 1}):
        counting.reset()
        latchwork.once(counting, key="k").run(lambda: 7)
        assert counting.calls == calls


def test_it_is_remembered_for_keep_from_the_last_time_that_it_was_asked_for_in_its_second_half():
    clock = ManualClock()
    store = MemoryStore(clock)
    ran = []
    once = latchwork.once(store, key="k", keep=timedelta(hours=2))
    for hours in (0, 1.5, 1.5, 0.5, 1.4, 2.5):
        clock.advance(hours * 3600)
        once.run(lambda hours=hours: ran.append(hours))
    assert ran == [0, 2.5]


def test_a_step_that_is_done_is_found_though_its_record_expires_or_the_store_fails_before_its_time_begins_again():
    clock = ManualClock()
    for fault in (lambda: clock.advance(30), "reply_lost", Fault("dropped")):
        store = FaultyStore(MemoryStore(clock).with_policy(ONE_ATTEMPT))
        latchwork.once(store, key="k", keep=60).run(lambda: 7)
        clock.advance(40)
        store.plan = {5: fault}
        assert latchwork.once(store, key="k", keep=60).run(lambda: 8) == 7
        assert len(store.history) == 5, "the end of its time was written, or would have been"


def test_an_outage_between_the_two_calls_of_who_finds_it_under_way_is_outlived():
    clock = ManualClock()
    held = latchwork.once(MemoryStore(clock), key="k", lease=60)
    with held as step:
        faulty = FaultyStore(held._store, dict.fromkeys(range(2, 30), "dropped"))
        clock.at(20.0, lambda: held.__exit__(None, None, None))
        step.result = 7
        assert latchwork.once(faulty, key="k", timeout=60).run(lambda: 8) == 7


def test_a_step_under_way_is_kept_from_others_for_its_lease_though_it_is_remembered_for_less_time():
    clock = ManualClock()
    store = MemoryStore(clock)
    step = partial(latchwork.once, store, key="k", keep=60, lease=300, timeout=0)
    with step() as mine:
        clock.advance(290)
        mine.check()
        with pytest.raises(LockUnavailable):
            step().run(lambda: 8)
        mine.result = 7
    assert store.get(Key(ONCE, "k")).ttl == 60
    assert step().run(lambda: 8) == 7


def test_a_handle_whose_block_was_interrupted_as_it_ended_does_not_wait_for_itself():
    handle = latchwork.once(MemoryStore(), key="k", lease=0.3, timeout=30)
    handle.__enter__()
    handle._step = None  # an interrupt came after this line of `__exit__`
    with handle as step:
        assert not step.done


def test_a_thread_may_forget_what_it_saw_of_many_steps_while_another_does(monkeypatch):
    class Raced(dict):
        def __iter__(self):
            first = next(super().__iter__())
            self.pop(first)  # by another thread
            return iter([first])

    store = MemoryStore(ManualClock())
    monkeypatch.setattr(contender, "MAX_OBSERVED", 1)
    monkeypatch.setitem(contender._ALL, store.token_clock, Raced({Key(ONCE, "another"): None}))
    with latchwork.once(store, key="k"), pytest.raises(LockUnavailable):
        latchwork.once(store, key="k", timeout=0).run(lambda: 8)


# ---- a holder that was replaced, or died


def test_a_step_of_a_process_that_died_is_free_after_a_lease_and_has_the_same_token_and_a_higher_fence():
    clock = ManualClock()
    store = MemoryStore(clock)
    dying = FaultyStore(store)
    tokens = []
    once = latchwork.once(dying, key="k")
    with once as step:
        tokens.append((step.token, step.fence))
        dying.next("crash_before")
        step.result = "lost"
        with pytest.raises(Crash):
            once.__exit__(None, None, None)
    began = clock.monotonic()
    with latchwork.once(store, key="k") as step:
        assert not step.done
        tokens.append((step.token, step.fence))
    assert 10 < clock.monotonic() - began < 11
    assert tokens[0][0] == tokens[1][0]
    assert tokens[0][1] < tokens[1][1]


def test_requests_that_do_not_wait_go_on_with_the_step_of_a_dead_process_after_a_lease():
    clock = ManualClock()
    store = MemoryStore(clock)
    dying = FaultyStore(store, {2: "crash_before"})
    with pytest.raises(Crash):
        latchwork.once(dying, key="k").run(lambda: 1)
    told = []
    for _ in range(8):
        try:
            told.append(latchwork.once(store, key="k", timeout=0).run(lambda: "done"))
        except LockUnavailable:
            told.append("under way")
        clock.advance(2)
    assert told == ["under way"] * 6 + ["done"] * 2


def test_the_result_of_a_holder_that_was_replaced_is_refused_and_it_is_told():
    clock = ManualClock()
    store = MemoryStore(clock)
    former = latchwork.once(store, key="k")
    with former as step:
        assert latchwork.once(store, key="k").run(lambda: "second") == "second"
        with pytest.raises(FencedOut):
            step.check()
        step.result = "first"
        with pytest.raises(FencedOut, match="taken over by another attempt"):
            former.__exit__(None, None, None)
    assert latchwork.once(store, key="k").run(lambda: "third") == "second"


class Hand(ManualClock):
    """A clock whose background work the test runs by hand."""

    time_passes = True

    def __init__(self):
        super().__init__()
        self.work = []

    def spawn(self, run, name):
        self.work.append(run)


def test_a_step_is_renewed_while_the_work_lasts():
    clock, told = Hand(), []
    store = MemoryStore(clock)
    once = latchwork.once(store, key="k")
    step = once.__enter__()
    (keep_alive,) = clock.work

    def challenge():
        with pytest.raises(LockUnavailable):
            latchwork.once(store, key="k", timeout=0).run(lambda: "second")
        step.check()
        told.append("under way")

    def end():
        step.result = "first"
        once.__exit__(None, None, None)

    for number in range(1, 60):
        clock.at(number * 2, challenge)
    clock.at(121, end)
    keep_alive()
    assert len(told) == 59
    assert latchwork.once(store, key="k").run(lambda: "third") == "first"


@pytest.mark.parametrize("fault", ["reply_lost", "dropped", "request_lost", "duplicate", Fault("late", after=1)])
@pytest.mark.parametrize("call", [1, 2])
def test_a_fault_at_either_call_leaves_it_done_once(fault, call):
    store, ran = MemoryStore(ManualClock()), []
    faulty = FaultyStore(store, {call: fault})
    assert latchwork.once(faulty, key="k").run(lambda: ran.append(1)) is None
    faulty.deliver()
    assert latchwork.once(store, key="k").run(lambda: ran.append(2)) is None
    assert ran == [1]


def test_an_outage_shorter_than_a_lease_at_the_end_of_the_work_leaves_no_window():
    clock = ManualClock()
    faulty = FaultyStore(MemoryStore(clock), {})
    with latchwork.once(faulty, key="k", lease=10) as step:
        faulty.plan = Outage(clock, clock.monotonic(), clock.monotonic() + 8, "reply_lost")
        step.result = 7
    assert latchwork.once(faulty, key="k").run(lambda: 8) == 7
    with pytest.raises((OutcomeUnknown, Unavailable)), latchwork.once(faulty, key="l", lease=10):
        faulty.plan = Outage(clock, clock.monotonic(), clock.monotonic() + 60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_that_ends_in_the_block_does_not_end_the_step(tmp_path):
    store = latchwork.connect(f"sqlite:{tmp_path}/s.db")
    once = latchwork.once(store, key="k")
    with once as step:
        child = os.fork()
        if not child:
            try:
                once.__exit__(None, None, None)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(LockUnavailable):
            latchwork.once(store, key="k", timeout=0).run(lambda: 1)
        step.result = 7
    assert once.run(lambda: 8) == 7


def test_it_is_remembered_for_no_less_than_was_asked():
    store = MemoryStore(ManualClock())
    for n, keep in enumerate((60.5, timedelta(seconds=60, microseconds=1), 61)):
        latchwork.once(store, key=str(n), keep=keep).run(lambda: 7)
        assert store.get(Key(ONCE, str(n))).ttl == 61


# ---- results


def test_a_result_that_cannot_be_kept_is_an_error_and_the_work_is_not_repeated(store, name):
    ran = []

    def work(result):
        ran.append(1)
        return result

    for number, (result, error) in enumerate(
        (({1, 2}, InvalidRequest), (2**70, InvalidRequest), ("x" * MAX_RESULT, RecordTooBig))
    ):
        step = latchwork.once(store, key=f"{name} {number}")
        with pytest.raises(error, match=r"cannot be kept: .*\. The step counts as done: it is not done again"):
            step.run(work, result)
        with pytest.raises(Unreadable, match=r"could not be kept: .*\. It is not done again: go on without"):
            step.run(work, result)
        with step as found:
            assert found.done, "who does not ask for the result can go on"
    assert len(ran) == 3


def test_a_function_of_which_nothing_ran_leaves_the_step_to_be_done(store, name):
    async def charge():
        return "async"

    class Charge:
        async def __call__(self):
            return "async"

    def forgets_to_await():
        return charge()

    def generate():
        yield "generated"

    once = latchwork.once(store, key=name)
    for work, said in (
        (charge, "async function, whose result comes later"), (Charge(), "async function"),
        (partial(charge), "async function"), (generate, "has a `yield`"),
        (forgets_to_await, "is a coroutine, and nothing of it ran"),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest, match=said):
            once.run(work)
    assert once.run(lambda: "charged") == once.run(lambda: "twice") == "charged"


def test_an_async_function_is_refused_before_any_call():
    counting = CountingStore(MemoryStore(ManualClock()))
    with pytest.raises(InvalidRequest, match="async function"):
        latchwork.once(counting, key="k").run(later)
    assert counting.total == 0


@pytest.mark.parametrize("is_replaced", [False, True])
def test_where_the_record_has_no_room_for_the_result_the_end_says_whether_the_step_is_done(is_replaced):
    memory, key = MemoryStore(ManualClock()), Key(ONCE, "k")
    store = FaultyStore(memory)
    with pytest.raises(FencedOut) if is_replaced else nullcontext(), latchwork.once(store, key="k") as step:
        memory.operate(key, Put("others", "x" * (1024 * 1024 - MAX_RESULT // 2)))
        step.result = "x" * (MAX_RESULT - 100)
        # The second call of the end keeps that there was no room.
        store.plan[3] = partial(memory.operate, key, Add(FENCE, 1)) if is_replaced else "reply_lost"
    assert store.calls["operate"] >= 3
    assert bool(memory.get(key).bins.get(DONE)) is not is_replaced


def test_a_result_may_be_set_again_and_not_after_it_is_done(store, name):
    once = latchwork.once(store, key=name)
    with once as step:
        with pytest.raises(InvalidRequest):
            step.result = object()
        step.result = "a reference"
    with once as step, pytest.raises(InvalidRequest, match=r"step\.done"):
        step.result = "another"
    assert step.result == "a reference"


def test_a_damaged_record_is_told_of(store, key):
    latchwork.once(store, key=key.name).run(lambda: 7)
    for bin, wrong in (
        (DONE, 7), (DONE, {"": "x"}), (DONE, {"": [float("inf"), 1]}), (DONE, {"": [1, "7"]}), (DONE, {"": [1, 1, 1]}),
        (DONE, {"": [1, 2**62]}),
        (RESULTS, {}), (RESULTS, {"": True}), (RESULTS, {"": []}), (RESULTS, {"": [1, 2]}),
    ):  # fmt: skip
        before = store.get(key).bins[bin]
        store.operate(key, Put(bin, wrong))
        with pytest.raises(Corrupt):
            latchwork.once(store, key=key.name, timeout=0).run(lambda: 8)
        store.operate(key, Put(bin, before))
    assert latchwork.once(store, key=key.name).run(lambda: 8) == 7


# ---- what is refused before any call


async def later():
    """Nothing would wait for it."""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": ""}, "key"),
        ({"key": "k" * 1001}, "at most 1,000"),
        ({"key": 7}, "key"),
        ({"key": "k", "keep": 59}, "keep"),
        ({"key": "k", "timeout": -1}, "timeout"),
        ({"key": "k", "lease": 0}, "lease"),
        ({"key": "k", "name": "n"}, "name with a key"),
    ],
)
def test_what_no_step_can_be_is_refused_before_any_call(options, said):
    counting = CountingStore(MemoryStore(ManualClock()))
    with pytest.raises(InvalidRequest, match=said):
        latchwork.once(counting, **options)
    assert counting.total == 0


def test_a_handle_does_not_travel_and_says_what_does():
    with pytest.raises(InvalidRequest, match="OnceStep cannot be pickled: pickle the store"):
        pickle.dumps(steps.once(MemoryStore(), key="a"))


def test_a_key_that_is_no_name_an_async_function_and_a_second_block_are_refused():
    counting = CountingStore(MemoryStore(ManualClock()))
    with pytest.raises(InvalidRequest, match="the key of a call"):
        latchwork.once(counting, key=lambda order: order)(print)(None)
    with pytest.raises(InvalidRequest, match="async"):
        latchwork.once(counting, key=lambda: "k")(later)
    with pytest.raises(InvalidRequest, match="is not a store"):
        latchwork.once("memory:", key="k")
    assert counting.total == 0
    once = latchwork.once(counting, key="k")
    assert isinstance(once, OnceStep)
    with once, pytest.raises(InvalidRequest, match="in a block already"):
        once.__enter__()
