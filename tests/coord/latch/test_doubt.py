"""Latches that cannot be read when it matters, that are there already, or are gone; and the bar for people."""

from __future__ import annotations

import sys
from io import StringIO

import pytest

from latchwork.coord import CountDownLatch, CountUpDownLatch, LatchLevel
from latchwork.errors import AlreadyExists, InvalidRequest, NotFound, OutcomeUnknown, StorageFailed, Unavailable
from latchwork.retry import RetryPolicy
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore

TWICE = RetryPolicy(attempts=2)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return FaultyStore(MemoryStore(clock))


def before(store, plan):
    """What happens at the calls with these numbers, counted from now."""
    store.plan = {store._number + call: fault for call, fault in plan.items()}


def test_a_count_in_doubt_whose_latch_cannot_be_read_afterwards_is_unknown(store):
    latch = CountDownLatch.create(store, "shop", "run", 3, farm_id="f", policy=TWICE)
    before(store, {1: "reply_lost", 3: "dropped", 4: "dropped"})
    with pytest.raises(OutcomeUnknown, match="may have been applied"):
        latch.count_down(party="a")
    assert latch.count_down(party="a") == 2, "with a party, calling again is harmless"


def disk_fails():
    raise StorageFailed("the disk failed")


def test_a_count_in_doubt_whose_latch_a_failing_disk_cannot_show_is_unknown(store):
    latch = CountDownLatch.create(store, "shop", "run", 3, farm_id="f", policy=TWICE)
    before(store, {1: "reply_lost", 3: disk_fails})
    with pytest.raises(OutcomeUnknown, match="may have been applied"):
        latch.count_down(party="a")
    assert latch.count() == 2


def test_a_creation_in_doubt_that_a_failing_disk_cannot_show_is_unknown(store):
    before(store, {1: "reply_lost", 3: disk_fails})
    with pytest.raises(OutcomeUnknown, match="may have been applied"):
        CountDownLatch.create(store, "shop", "run", 3, farm_id="f", policy=TWICE)


@pytest.mark.parametrize("party", [None, "a"])
@pytest.mark.parametrize("call", [2, 3])
def test_a_count_in_doubt_whose_latch_is_deleted_meanwhile_is_unknown(store, party, call):
    latch = CountDownLatch.create(store, "shop", "run", 3, farm_id="f", policy=TWICE)
    before(store, {1: "reply_lost", call: latch.delete})
    with pytest.raises(OutcomeUnknown, match="may have been"):
        latch.count_down(party=party)


@pytest.mark.parametrize("level", LatchLevel)
@pytest.mark.parametrize("party", [None, "a"])
@pytest.mark.parametrize("left", [3, 1], ids=["enough left", "too few left"])
@pytest.mark.parametrize("fault", ["reply_lost", "request_lost"])
def test_a_count_in_doubt_whose_latch_is_made_again_meanwhile_is_unknown(store, level, party, left, fault):
    """It may have released the latch that it was for; it was said that there was no such latch."""
    latch = CountDownLatch.create(store, "shop", "run", left, farm_id="f", level=level, policy=TWICE)

    def made_again():
        latch.delete()
        CountDownLatch.create(store.inner, "shop", "run", 5, farm_id="f", level=level)

    before(store, {1: fault, 2: made_again})
    with pytest.raises(OutcomeUnknown, match="may have been"):
        latch.count_down(2, party=party)
    assert CountDownLatch.get(store, "shop", "run", farm_id="f", level=level).count() == 5
    assert "ops#f" not in store.inner.get(latch._key).bins


@pytest.mark.parametrize("call", [2, 3])
def test_a_count_that_goes_on_after_doubt_is_unknown_where_its_latch_is_made_again(store, call):
    """With too few left it is sent in two forms; the doubt about the first one lasts."""
    latch = CountDownLatch.create(store, "shop", "run", 1, farm_id="f", policy=TWICE)

    def made_again():
        latch.delete()
        CountDownLatch.create(store.inner, "shop", "run", 5, farm_id="f")

    before(store, {1: "reply_lost", 1 + call: made_again})
    with pytest.raises(OutcomeUnknown, match="may have been"):
        latch.count_down(2)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_count_without_a_doubt_whose_latch_is_made_again_is_not_there(store, call):
    latch = CountDownLatch.create(store, "shop", "run", 1, farm_id="f", policy=TWICE)

    def made_again():
        latch.delete()
        CountDownLatch.create(store.inner, "shop", "run", 5, farm_id="f")

    before(store, {call: made_again})
    with pytest.raises(NotFound):
        latch.count_down(2)


def test_a_count_without_a_doubt_whose_latch_is_gone_is_not_there(store):
    latch = CountDownLatch.create(store, "shop", "run", 3, farm_id="f", policy=TWICE)
    latch.delete()
    with pytest.raises(NotFound):
        latch.count_down(party="a")


def test_a_repeated_count_whose_latch_cannot_be_read_has_changed_nothing(store):
    latch = CountDownLatch.create(store, "shop", "run", 3, farm_id="f", policy=TWICE)
    latch.count_down(party="a")
    before(store, {2: "dropped", 3: "dropped"})
    with pytest.raises(Unavailable) as refused:
        latch.count_down(party="a")
    assert type(refused.value) is Unavailable
    assert latch.count() == 2


def test_a_count_up_down_latch_is_created_once(store):
    first = CountUpDownLatch.create(store, "shop", "run", 2, farm_id="f")
    with pytest.raises(AlreadyExists, match="exists already"):
        CountUpDownLatch.create(store, "shop", "run", 5, farm_id="f")
    assert first.count() == 2


@pytest.mark.parametrize("make", [CountDownLatch.create, CountDownLatch.get_or_create])
def test_a_latch_that_is_deleted_before_its_next_creator_could_read_it_is_created_anew(store, make):
    earlier = CountDownLatch.create(store, "shop", "run", parties=["x"], farm_id="f")
    before(store, {2: earlier.delete})
    latch = make(store, "shop", "run", parties=["a", "b"], farm_id="f")
    assert latch.missing() == latch.expected() == {"a", "b"}
    assert latch.count_down(party="a") == 1


def test_a_latch_that_others_create_and_delete_all_the_time_is_not_created(store):
    def made(policy=TWICE):
        CountDownLatch.create(store.inner, "shop", "run", 1, farm_id="f", policy=policy)

    def deleted():
        CountDownLatch.get(store.inner, "shop", "run", farm_id="f").delete()

    made()
    before(store, {2: deleted, 3: made, 4: deleted})
    with pytest.raises(Unavailable, match="all the time"):
        CountDownLatch.get_or_create(store, "shop", "run", 3, farm_id="f", policy=TWICE)


@pytest.mark.parametrize("party", ["x" * 256, "é" * 128])
def test_the_name_of_a_party_has_at_most_255_bytes(store, party):
    latch = CountDownLatch.create(store, "shop", "run", 3, farm_id="f")
    store.reset()
    with pytest.raises(InvalidRequest, match="at most 255 bytes"):
        latch.count_down(party=party)
    assert store.total == 0
    assert latch.count_down(party="é" * 127) == 2


def test_a_latch_across_farms_that_is_deleted_under_a_waiter_never_reads_as_released(store, clock):
    latch = CountDownLatch.create(store, "shop", "run", 3, farm_id="a", level=LatchLevel.XDC)
    clock.at(0.3, latch.delete)
    with pytest.raises(NotFound):
        latch.wait(timeout=5)
    assert clock.monotonic() < 0.5, "seen at the next look, not at the next whole one"


class Terminal(StringIO):
    def isatty(self):
        return True


def waited(latch, clock, monkeypatch, screen):
    monkeypatch.setattr(sys, "stderr", screen)
    for party, second in (("a", 1.5), ("b", 3.0)):
        clock.at(second, lambda party=party: latch.count_down(party=party))
    assert latch.wait(timeout=10, progress=True)
    return screen.getvalue()


@pytest.fixture
def latch(store):
    return CountDownLatch.create(store, "shop", "run", parties=["a", "b"], farm_id="f")


def test_on_a_terminal_a_bar_says_who_is_waited_for_and_leaves_a_clean_line(latch, clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    first, second, third = waited(latch, clock, monkeypatch, Terminal()).split("\r\x1b[K")[1:]
    assert first.endswith("0 of 2, waiting for a, b")
    assert second.endswith("1 of 2, waiting for b")
    assert third.endswith("2 of 2\n")


def test_a_bar_counts_from_the_first_count_and_not_from_the_start_of_the_wait(latch, clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    latch.count_down(party="a")
    first, *_, last = waited(latch, clock, monkeypatch, Terminal()).split("\r\x1b[K")[1:]
    assert first.endswith("1 of 2, waiting for b")
    assert last.endswith("2 of 2\n")


def test_where_there_is_no_terminal_nothing_is_drawn(latch, clock, monkeypatch):
    assert waited(latch, clock, monkeypatch, StringIO()) == ""


def test_a_bar_that_cannot_ask_who_is_missing_is_drawn_without_names(latch, clock, monkeypatch):
    def away():
        raise Unavailable("away")

    monkeypatch.setattr(latch, "missing", away)
    assert "waiting for" not in waited(latch, clock, monkeypatch, Terminal())


def test_a_bar_asks_who_is_missing_once_a_second_at_most(store, clock, monkeypatch):
    latch = CountDownLatch.create(store, "shop", "run", parties=range(20), farm_id="f")
    asked, missing = [], latch.missing
    monkeypatch.setattr(latch, "missing", lambda: asked.append(clock.monotonic()) or missing())
    monkeypatch.setattr(sys, "stderr", Terminal())
    for party in range(20):
        clock.at(0.15 * (party + 1), lambda party=party: latch.count_down(party=party))
    assert latch.wait(timeout=10, progress=True)
    assert len(asked) <= 1 + 3 + 1, "at first, each second, and at the end"
    assert sys.stderr.getvalue().endswith("20 of 20\n")


def test_who_has_read_a_latch_is_told_that_it_has_ended_and_who_has_not_that_there_is_none(memory, clock):
    latch = CountDownLatch.create(memory, "shop", "night", 1, farm_id="dc1", ttl=20)
    waiter = CountDownLatch.get(memory, "shop", "night", farm_id="dc1")
    clock.at(1.0, latch.delete)
    named = "latch 'night' of client 'shop' in farm 'dc1' of memory:"
    with pytest.raises(NotFound, match=f"^the {named} has ended: it was deleted") as ended:
        waiter.wait(timeout=5)
    assert "43200" not in str(ended.value), "only the creator knows its ttl"
    with pytest.raises(NotFound, match=f"^there is no {named}: ") as absent:
        CountDownLatch.get(memory, "shop", "night", farm_id="dc1").count()
    assert "latchwork latch list --client shop" in str(absent.value)
    with pytest.raises(NotFound) as absent:
        CountDownLatch.get(memory, "a\nshop", "night", farm_id="dc1").count()
    assert r"latchwork latch list --client a\nshop`" in str(absent.value), "in one line, as every message"
    with pytest.raises(NotFound, match="20 s after its creator"):
        latch.count()
