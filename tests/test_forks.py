"""In a forked child all that is shared with the parent is begun anew, also where one of them fails."""

from __future__ import annotations

import multiprocessing.util  # noqa: F401 - `at_exit` uses its finalizers only where it is imported
import os
import signal
import sys
from contextvars import copy_context
from weakref import WeakSet, ref

import pytest

from latchwork import forks
from latchwork.background import FailureLog
from latchwork.logs import Log
from latchwork.seams import SYSTEM
from tests.support.forking import held_by_another_thread


def test_one_that_fails_keeps_no_other_from_being_begun_anew(monkeypatch):
    begun = []

    class Failing:
        def reset_after_fork(self):
            begun.append(self)
            raise AttributeError(f"failure {len(begun)}")

    some = [Failing() for _ in range(3)]
    monkeypatch.setattr(forks, "_ALL", WeakSet(some))
    with pytest.raises(AttributeError, match="failure 1"):
        forks._reset_all()
    assert set(begun) == set(some)


def test_members_are_listed_though_another_thread_adds_one_meanwhile():
    class One:
        pass

    class Growing(WeakSet):
        def __iter__(self):
            for one in super().__iter__():
                if len(kept) == 2:
                    kept.append(One())
                    self.add(kept[-1])
                yield one

    kept = [One(), One()]
    assert set(forks.members(Growing(kept))) == set(kept)
    assert len(kept) == 3


def test_a_child_forked_while_another_thread_logs_a_failure_does_not_wait_for_it():
    failures = FailureLog(SYSTEM, Log(__name__))
    with held_by_another_thread(failures._limited._lock):
        child = os.fork()
        if child == 0:
            signal.alarm(10)  # ends a child that waits without end
            failures.record(ValueError("a defect"), "publishing failed")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def test_what_was_to_be_called_at_exit_and_was_taken_back_is_kept_by_nobody():
    class Work:
        def end(self): ...

    work = Work()
    kept, take_back = ref(work), SYSTEM.at_exit(work.end)
    del work
    assert kept() is not None
    take_back()
    take_back()
    del take_back
    assert kept() is None


def no_more():
    pass


def fails():
    raise ValueError("in the child")


@pytest.mark.parametrize(
    ("leave", "code", "printed"),
    [
        (no_more, 0, ""),
        (fails, 1, "ValueError: in the child"),
        (sys.exit, 0, ""),
        (lambda: sys.exit(7), 7, ""),
        (lambda: sys.exit(256 + 7), 7, ""),
        (lambda: sys.exit("no luck"), 1, "no luck"),
    ],
)
def test_a_child_that_ends_in_user_code_prints_what_python_prints_and_has_its_exit_code(leave, code, printed):
    read, write = os.pipe()

    def forking(_):
        child = os.fork()
        if child == 0:
            sys.stderr = os.fdopen(write, "w")
            leave()
        return child

    child = copy_context().run(forks.run_as_ours, lambda: forks.called(forking, None))
    os.close(write)
    with os.fdopen(read) as said:
        lines = said.read().splitlines()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
    assert lines[-1:] == ([printed] if printed else [])
    assert (len(lines) > 1) is (leave is fails), "a traceback"
