"""The checker itself: it accepts what some order explains, refuses what none does, and counts what it gives up on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from .checkers import latch
from .checkers import linearizable as checker
from .checkers.linearizable import Undecided, linearizable
from .checkers.models import Counter
from .faults.kinds import Kind
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


# ---- a latch that is made again under its name: its model, and what may land later


def of_latch(tag, name, called, *args, result=None, outcome="ok", doubted=False):
    entry = operation(name, called, called + 1, *args, result=result, outcome=outcome)
    entry.tag, entry.doubted = tag, doubted
    return entry


def latch_explains(*entries, fired=()):
    """Whether the checker of latches finds an order for this history of one that is made again."""
    found = []
    latch.each_arrival_counts_once(
        SimpleNamespace(
            style="again", farms=("f",), targets={"f": 2}, history=SimpleNamespace(named=lambda *_: entries),
            happened=lambda *kinds: bool({*kinds} & {*fired}),
            check_linearizable=lambda parts, model, what: found.append(linearizable(parts, model)),
        )
    )  # fmt: skip
    return found == [True]


FIRST_LATCH = (of_latch("one", "create", 1, "f"), of_latch(None, "delete", 3, result=True))
MADE_IN_DOUBT = of_latch(None, "create", 5, "f", outcome="unknown")


def test_a_handle_of_an_earlier_latch_does_not_mean_one_whose_name_nobody_heard():
    """Found by seed 90015955: it was thought that an unknown name may be any, also that of the latch before."""
    not_found = of_latch("one", "count", 7, outcome="NOT_FOUND")
    assert latch_explains(*FIRST_LATCH, MADE_IN_DOUBT, not_found, of_latch("two", "count", 9, result=2))
    for name, args, result in (("count", (), 2), ("count_down", ("f", 1), 1), ("count_party", ("f", "p"), 1)):
        hit = of_latch("one", name, 7, *args, result=result)
        assert not latch_explains(*FIRST_LATCH, MADE_IN_DOUBT, hit), name


def test_who_means_a_latch_of_unknown_name_first_names_it():
    named = of_latch("two", "count_down", 7, "f", 1, result=1)
    assert latch_explains(*FIRST_LATCH, MADE_IN_DOUBT, named, of_latch("two", "count", 9, result=1))
    assert not latch_explains(*FIRST_LATCH, MADE_IN_DOUBT, named, of_latch("three", "count", 9, result=1))
    assert not latch_explains(*FIRST_LATCH, MADE_IN_DOUBT, named, of_latch("two", "count", 9, outcome="NOT_FOUND"))


@pytest.mark.parametrize("name", ["create", "join"])
@pytest.mark.parametrize("kind", [Kind.LATE, Kind.DUPLICATE])
def test_only_a_create_of_which_a_request_may_land_later_makes_a_deleted_latch_again(name, kind):
    made, deleted = FIRST_LATCH
    outcome, tag = ("ok", "one") if name == "join" else ("ALREADY_EXISTS", None)
    found = of_latch("two", "count", 9, result=2)
    for doubted in (True, False):
        entry = of_latch(tag, name, 2, "f", outcome=outcome, doubted=doubted)
        assert latch_explains(made, entry, deleted, found, fired=[kind]) is (doubted or kind is Kind.DUPLICATE)
        assert not latch_explains(made, entry, deleted, found)
