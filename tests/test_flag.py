"""The event that all code here waits for: no interrupt leaves it so that somebody hangs."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress

import pytest

from latchwork.seams import Flag
from tests.support.interrupts import Interrupts


def waiting(flag, said, timeout=30.0):
    """A thread that waits for the flag, once it does so."""
    thread = threading.Thread(target=lambda: said.append(flag.wait(timeout)), daemon=True)
    thread.start()
    while not flag._waiting and not said:
        pass
    return thread


def test_all_who_wait_are_woken_also_where_it_is_cleared_at_once():
    flag, said = Flag(), []
    threads = [waiting(flag, said)]
    while len(flag._waiting) < 3:
        threads.append(threading.Thread(target=lambda: said.append(flag.wait(30)), daemon=True))
        threads[-1].start()
        while len(flag._waiting) < len(threads):
            pass
    flag.set()
    flag.clear()
    for thread in threads:
        thread.join(10)
    assert said == [True] * 3
    assert not flag.is_set()
    assert not flag._waiting


def test_who_waits_in_vain_is_told_so_and_nothing_is_left_of_it():
    flag = Flag()
    assert flag.wait(0) is False
    assert flag.wait(-1) is False
    assert not flag._waiting
    flag.set()
    assert flag.wait(0) is True
    assert flag.is_set()


def test_one_that_is_set_before_it_is_seen_to_wait_is_not_missed(monkeypatch):
    flag = Flag()

    class Late(list):
        """Something sets the flag just before a gate is in the list."""

        def append(self, gate):
            flag.set()
            super().append(gate)

    flag._waiting = Late()
    assert flag.wait(None) is True


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="its points are not the same each time, after an interrupt")
@pytest.mark.parametrize("verb", ["set", "wait"])
def test_an_interrupt_at_any_point_leaves_nobody_hanging(verb):
    points = 1
    while True:
        flag, said = Flag(), []
        thread = waiting(flag, said)
        interrupts = Interrupts(at=points)
        with suppress(KeyboardInterrupt):
            interrupts.run(flag.set if verb == "set" else lambda flag=flag: flag.wait(0))
        flag.set()
        thread.join(10)
        assert said == [True]
        assert flag.wait(0)
        if interrupts.struck is None:
            break
        points += 1
    assert points > 3
