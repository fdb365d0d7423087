"""A task beside the caller, started and stopped; and work that several tasks share."""

from __future__ import annotations

import math
import threading

import pytest

from latchwork.background import Activity, Background, parallel_map
from latchwork.errors import InvalidRequest
from latchwork.seams import Seams
from latchwork.testing.clock import ManualClock


class Counting(Seams):
    """The system's seams, which count what was started."""

    def __init__(self):
        self.names = []

    def spawn(self, run, name):
        self.names.append(name)
        return super().spawn(run, name)


def test_a_task_that_another_thread_starts_while_it_is_stopped_is_not_lost():
    class Racing(Background):
        """Started again in the midst of `stop`, once that knows that it has ended."""

        def __setattr__(self, name, value):
            if name == "_activity" and value is None:
                self.race()
            super().__setattr__(name, value)

        def race(self):
            if self.__dict__.pop("armed", False):
                self.start()

    class Clearing:
        def __init__(self, event):
            self.event = event

        def __getattr__(self, name):
            return getattr(self.event, name)

        def clear(self):
            task.race()
            self.event.clear()

    running = []

    def run():
        running.append(1)
        task.stopping.wait(20)
        running.pop()

    task = Racing(Seams(), run, "task")
    task.start()
    task.stopping = Clearing(task.stopping)
    task.armed = True
    assert task.stop(timeout=20)
    assert "armed" not in task.__dict__
    assert task.stop(timeout=20)
    assert not running


def test_a_task_is_started_once_and_again_only_when_it_has_ended():
    seams, may_end = Counting(), threading.Event()

    def run():
        assert task.stopping.wait(20)
        assert may_end.wait(20)

    task = Background(seams, run, "task")
    assert task.stop(timeout=0), "it does not run"
    task.start()
    task.start()
    assert task.stop(timeout=0) is False
    with pytest.raises(InvalidRequest, match="stop"):
        task.start()
    assert seams.names == ["task"], "the first has not ended yet"
    may_end.set()
    assert task.stop(timeout=20)
    assert not task.stopping.is_set()
    task.start()
    assert seams.names == ["task", "task"]
    assert task.stop(timeout=20)


def test_a_task_that_ended_after_a_stop_that_gave_up_waiting_can_be_started_again():
    seams, may_end, ends = Counting(), threading.Event(), []

    def run():
        assert task.stopping.wait(20)
        assert may_end.wait(20)
        ends.append(True)

    task = Background(seams, run, "task")
    task.start()
    assert task.stop(timeout=0) is False
    first = task._activity
    may_end.set()
    first.join(20)
    task.start()
    assert seams.names == ["task", "task"]
    assert ends == [True], "the second runs on"
    assert task.stop(timeout=20)
    assert ends == [True, True]


@pytest.mark.parametrize("starts_again", [False, True])
def test_a_stop_within_a_stop_ends_the_task_once_and_leaves_a_later_one_alone(starts_again):
    """As by a signal's handler, or by another thread that is a little faster."""
    inner = []

    class Interrupted(Counting):
        def spawn(self, run, name):
            task_of_the_system = super().spawn(run, name)
            if len(self.names) > 1:
                return task_of_the_system

            class Joined:
                is_alive = staticmethod(task_of_the_system.is_alive)

                def join(self, timeout):
                    if not inner:
                        inner.append(None)
                        inner[0] = task.stop(timeout)
                        if starts_again:
                            task.start()
                    task_of_the_system.join(timeout)

            return Joined()

    seams = Interrupted()
    task = Background(seams, lambda: task.stopping.wait(20), "task")
    task.start()
    assert task.stop(20)
    assert inner == [True]
    assert not task.stopping.is_set()
    if starts_again:
        task.start()
        assert seams.names == ["task"] * 2, "the second runs on"
    assert task.stop(20)


@pytest.mark.parametrize("timeout", [math.inf, 1e10, None])
def test_a_stop_may_wait_for_longer_than_any_life(timeout):
    task = Background(Counting(), lambda: task.stopping.wait(20), "task")
    task.start()
    assert task.stop(timeout)


@pytest.mark.parametrize("timeout", [-1, math.nan, "1", True])
def test_a_stop_for_no_length_of_time_is_refused_and_the_task_goes_on(timeout):
    task = Background(Counting(), lambda: task.stopping.wait(20), "task")
    task.start()
    with pytest.raises(InvalidRequest, match="timeout"):
        task.stop(timeout)
    assert not task.stopping.is_set()
    assert task.stop(20)


@pytest.mark.parametrize(("at_once", "started"), [(1, 0), (3, 3), (64, 10)])
def test_each_item_is_done_once_by_no_more_tasks_than_allowed(at_once, started):
    seams = Counting()
    assert sorted(parallel_map(seams, lambda n: n * n, range(10), at_once, "work")) == [n * n for n in range(10)]
    assert seams.names == [f"work-{n}" for n in range(started)]


def test_a_single_item_needs_no_task_and_none_at_all_nothing():
    seams = Counting()
    assert parallel_map(seams, str, [7], 8, "work") == ["7"]
    assert parallel_map(seams, str, [], 8, "work") == []
    assert seams.names == []


class OneAfterAnother(ManualClock):
    """Each task runs to its end before the next begins."""

    def spawn(self, run, name):
        run()
        return self

    def join(self, timeout=None):
        """It has ended."""


@pytest.mark.parametrize("at_once", [1, 4])
def test_the_first_failure_ends_the_work_of_all_and_is_raised(at_once):
    begun = []

    def work(item):
        begun.append(item)
        if item == 2:
            raise ZeroDivisionError(f"item {item}")

    with pytest.raises(ZeroDivisionError, match="item 2"):
        parallel_map(OneAfterAnother(), work, range(10), at_once, "work")
    assert begun == [0, 1, 2]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_who_is_interrupted_as_it_waits_or_starts_the_tasks_leaves_none_that_goes_on(failure):
    begun, two_work, may_end, threads = [], threading.Semaphore(0), threading.Event(), []

    class Interrupting(Seams):
        def spawn(self, run, name):
            if failure is RuntimeError and len(threads) == 2:
                self.join()  # as where the system has no thread left
            threads.append(super().spawn(run, name))
            return self

        def join(self, timeout=None):
            for _ in range(2):
                assert two_work.acquire(timeout=20)
            raise failure

    def work(item):
        begun.append(item)
        two_work.release()
        assert may_end.wait(20)

    with pytest.raises(failure):
        parallel_map(Interrupting(), work, range(10), 2 if failure is KeyboardInterrupt else 3, "work")
    may_end.set()
    for thread in threads:
        thread.join(20)
    assert sorted(begun) == [0, 1]


def test_a_task_whose_start_was_interrupted_is_waited_for_all_the_same():
    class Interrupting(Seams):
        def spawn(self, run, name):
            super().spawn(run, name)
            assert begun.wait(20)
            raise KeyboardInterrupt

    begun, may_end, done = threading.Event(), threading.Event(), []

    def run():
        begun.set()
        assert may_end.wait(20)
        done.append(True)

    activity = Activity(Interrupting())
    with pytest.raises(KeyboardInterrupt):
        activity.begin(run, "task")
    assert activity.is_alive()
    may_end.set()
    activity.join(20)
    assert done == [True]
    assert not activity.is_alive()
