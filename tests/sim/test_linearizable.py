"""The checker itself: it accepts what some order explains, refuses what none does, and counts what it gives up on."""

from __future__ import annotations

import pytest

from .checkers import linearizable as checker
from .checkers.linearizable import Undecided, linearizable
from .checkers.models import Counter
from .history.record import Entry


def operation(name, called, returned, *args, result=None, outcome="ok"):
    entry = Entry("a", name, args, float(called), called, outcome=outcome, result=result)
    if outcome != "unknown":
        entry.returned = returned
    return entry


def test_operations_in_sequence_are_explained():
    assert linearizable([operation("add", 1, 2, 1, result=1), operation("read", 3, 4, result=1)], Counter())


def test_a_stale_read_is_refused():
    assert not linearizable([operation("add", 1, 2, 1, result=1), operation("read", 3, 4, result=0)], Counter())


def test_a_read_during_a_write_may_see_either():
    for seen in (0, 1):
        assert linearizable([operation("add", 1, 4, 1, result=1), operation("read", 2, 3, result=seen)], Counter())


def test_an_add_that_counted_twice_is_refused():
    assert not linearizable([operation("add", 1, 2, 1, result=1), operation("read", 3, 4, result=2)], Counter())


def test_an_unknown_add_may_have_landed_or_not_or_later():
    unknown = operation("add", 1, None, 1, outcome="unknown")
    for seen in (0, 1):
        assert linearizable([unknown, operation("read", 3, 4, result=seen)], Counter())
    reads = [operation("read", 3, 4, result=0), operation("read", 5, 6, result=1)]
    assert linearizable([unknown, *reads], Counter())
    assert not linearizable([unknown, *reads, operation("read", 7, 8, result=0)], Counter())


def test_an_unknown_add_has_no_effect_before_it_was_called():
    entries = [operation("read", 1, 2, result=1), operation("add", 3, None, 1, outcome="unknown")]
    assert not linearizable(entries, Counter())


def test_real_time_order_is_kept_between_two_writers():
    entries = [operation("add", 1, 2, 1, result=2), operation("add", 3, 4, 1, result=1)]
    assert not linearizable(entries, Counter())


def test_too_long_a_history_is_undecided_not_accepted():
    with pytest.raises(Undecided):
        linearizable([operation("read", n, n + 1, result=0) for n in range(0, 400, 2)], Counter())


def test_giving_up_is_undecided_not_accepted(monkeypatch):
    monkeypatch.setattr(checker, "MAX_STATES", 5)
    entries = [operation("add", n, 100 + n, 2**n, outcome="ok", result=-1) for n in range(1, 10)]
    entries += [operation("add", n, None, 2**n, outcome="unknown") for n in range(10, 20)]
    with pytest.raises(Undecided):
        linearizable(entries, Counter())
