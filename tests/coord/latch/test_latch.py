"""The promises of latches: each party and each call counts once; released only if the target was reached."""

from __future__ import annotations

import pickle
import uuid
from enum import Enum

import pytest

from latchwork.coord import CountDownLatch, CountUpDownLatch, LatchLevel
from latchwork.coord.latch.layout import MAX_TOKENS, counted_once
from latchwork.coord.latch.progress import line
from latchwork.errors import AlreadyExists, Corrupt, InvalidRequest, NotFound, OutcomeUnknown, Unreadable
from latchwork.store import MemoryStore
from latchwork.store.model.ops import Add, MapPut, Put
from latchwork.store.port import NEVER, Exists, Key, Update
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import DOUBTS, CountingStore, FaultyStore
from tests.sim.stage import Stage
from tests.support.undecodable import Undecodable

XDC = LatchLevel.XDC
ID = "run"


def key(latch_id=None, client="shop", suffix="distributed_latch"):
    return Key(f"D_LTCH#{suffix}", f"D_LTCH#{client}#{latch_id or ID}")


@pytest.fixture(autouse=True)
def _a_latch_of_its_own(monkeypatch):
    """The real server is shared, so each test names its own records."""
    monkeypatch.setitem(globals(), "ID", f"run-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def memory(clock):
    return MemoryStore(clock)


# ---- counting


def test_released_only_when_the_target_was_reached(store):
    latch = CountDownLatch.create(store, "shop", ID, 3, farm_id="dc1")
    assert [latch.count_down(), latch.wait(0), latch.count_down(), latch.wait(0)] == [2, False, 1, False]
    assert latch.count_down() == 0
    assert latch.wait(0)
    assert latch.count() == 0


def test_a_party_counts_once_however_often_it_is_repeated(store):
    latch = CountDownLatch.create(store, "shop", ID, parties=["a", "b", "c"], farm_id="dc1")
    other = CountDownLatch.get(store, "shop", ID, farm_id="dc1")
    assert [latch.count_down(party="a"), other.count_down(party="a"), latch.count_down(party="a")] == [2, 2, 2]
    assert latch.missing() == other.missing() == {"b", "c"}
    assert other.missing(["a", "b"]) == {"b"}
    assert [other.count_down(party="b"), latch.count_down(party="c")] == [1, 0]
    assert latch.parties() == {"a", "b", "c"}
    assert latch.wait(0)


@pytest.mark.parametrize("make", [CountUpDownLatch.create, CountUpDownLatch.get_or_create])
def test_a_latch_that_counts_up_may_begin_with_parties(store, make):
    latch = make(store, "shop", ID, parties=["a", "b"], farm_id="dc1")
    assert [latch.count(), latch.count_up(), latch.count_down(party="a"), latch.missing()] == [2, 3, 2, {"b"}]
    again = CountUpDownLatch.get_or_create(store, "shop", ID, parties=["b", "a"], farm_id="dc1")
    assert (again.count(), again.missing()) == (2, {"b"}), "left as it is"


def test_a_latch_that_counts_up_begins_with_a_count_or_parties_or_nothing(memory):
    with pytest.raises(InvalidRequest, match="give one of the two"):
        CountUpDownLatch.create(memory, "shop", ID, 2, parties=["a"])
    assert CountUpDownLatch.create(memory, "shop", ID).count() == 0
    assert CountUpDownLatch.create(memory, "shop", f"{ID}-none", parties=[]).missing() == set()


@pytest.mark.parametrize("make", [CountDownLatch.create, CountUpDownLatch.get_or_create])
def test_who_is_missing_of_a_latch_that_was_created_with_a_count_is_known_by_whom_one_expects(memory, make):
    made = make(memory, "shop", ID, 2)
    for latch in (made, CountDownLatch.get(memory, "shop", ID)):
        assert latch.expected() is None
        assert latch.missing() == set()
        assert latch.missing(["a"]) == {"a"}


# ---- the parties that a latch was created for


NAMED = {"text": ["orders", "stock"], "numbers": [10, 12], "from 0 on": range(3)}


@pytest.mark.parametrize("names", NAMED.values(), ids=NAMED)
@pytest.mark.parametrize("level", list(LatchLevel))
def test_every_handle_knows_the_parties_that_a_latch_was_created_for(store, names, level):
    CountDownLatch.create(store, "shop", ID, parties=names, farm_id="dc1", level=level)
    first, *rest = names
    latch = CountDownLatch.get(store, "shop", ID, farm_id="dc1", level=level)
    assert set(latch.expected()) == set(names)
    latch.count_down(party=first)
    other = CountDownLatch.get(store, "shop", ID, farm_id="dc1", level=level)
    assert other.missing() == ({f"dc1/{name}" for name in rest} if level is XDC else set(rest))


@pytest.mark.parametrize(
    ("names", "party", "said"),
    [
        (["orders", "stock"], "stcok", "is 'stock' meant"),
        (["orders", "stock"], "x", "these are 'orders', 'stock'"),
        (["orders", "stock"], 7, "these are 'orders', 'stock'"),
        ([f"p{n}" for n in range(10)], "else", "'p4', ..."),
        (range(3), 3, "these are 0, 1, 2"),
        (range(100_000), "7", "is '7' meant"),
        ([5, 6], 7, "these are 5, 6"),
        ([], "a", "these are none"),
    ],
)
def test_a_party_that_the_latch_was_not_created_for_counts_nothing(memory, names, party, said):
    made = CountDownLatch.create(memory, "shop", ID, parties=names, farm_id="dc1")
    for latch in (made, CountDownLatch.get(memory, "shop", ID, farm_id="dc1")):
        with pytest.raises(InvalidRequest, match=said) as refusal:
            latch.count_down(party=party)
        assert repr(party) in str(refusal.value)
        assert latch.count() == len(names)
        assert latch.parties() == set()


def test_a_count_without_names_needs_none(store):
    latch = CountDownLatch.create(store, "shop", ID, parties=["a", "b"], farm_id="dc1")
    assert [latch.count_down(), CountDownLatch.get(store, "shop", ID, farm_id="dc1").count_down()] == [1, 0]


def test_any_party_counts_on_a_latch_that_was_created_with_a_count(store):
    latch = CountDownLatch.create(store, "shop", ID, 2, farm_id="dc1")
    assert [latch.count_down(party="a"), latch.count_down(party="b")] == [1, 0]


def test_whole_numbers_from_0_on_are_stored_as_how_many_they_are(memory):
    CountDownLatch.create(memory, "shop", ID, parties=[2, 0, 1], farm_id="dc1")
    CountDownLatch.create(memory, "shop", f"{ID}-text", parties=["b", "a"], farm_id="dc1")
    assert memory.get(key()).bins["names#dc1"] == 3
    assert memory.get(key(f"{ID}-text")).bins["names#dc1"] == ["a", "b"]


@pytest.mark.parametrize("names", [[f"{n:0195}" for n in range(2000)], range(100_000)], ids=["text", "numbers"])
def test_all_named_parties_fit_into_the_record_with_all_that_have_counted(store, names):
    latch = CountDownLatch.create(store, "shop", ID, parties=names, farm_id="dc1")
    *others, last = names
    store.operate(key(), Put("done#dc1", dict.fromkeys(others, 1)))
    assert latch.count_down(party=last) == len(names) - 1
    assert latch.missing() == set()
    latch.delete()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (range(100_001), "100,000"),
        (range(10**30), "100,000"),
        ([f"{n:0200}" for n in range(2000)], "410,000 bytes; at most 400,000"),
        (["a", 1], "text and some by whole numbers"),
    ],
)
def test_parties_that_do_not_fit_or_that_java_cannot_read_are_refused_before_any_io(memory, names, said):
    store = CountingStore(memory)
    for make in (CountDownLatch.create, CountDownLatch.get_or_create, CountUpDownLatch.create):
        with pytest.raises(InvalidRequest, match=said):
            make(store, "shop", ID, parties=names)
    assert store.total == 0


@pytest.mark.parametrize(
    ("first", "second", "said"), [("a", 1, "text"), (1, "a", "whole numbers"), (-1, "1", "numbers")]
)
@pytest.mark.parametrize("made_by_java", [False, True])
def test_text_and_whole_numbers_do_not_both_count_in_one_farm(store, first, second, said, made_by_java):
    """The Java library cannot read a map in key order that has both."""
    if made_by_java:
        store.operate(key(), Put("count#dc1", 3), exists=Exists.CREATE, ttl=600)
    else:
        CountDownLatch.create(store, "shop", ID, 3, farm_id="dc1")
    latch = CountDownLatch.get(store, "shop", ID, farm_id="dc1")
    assert latch.count_down(party=first) == 2
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=said):
            latch.count_down(party=second)
    assert [latch.count_down(party=first), latch.count()] == [2, 2]
    CountDownLatch.get_or_create(store, "shop", ID, 3, farm_id="dc2").count_down(party=second)  # a farm has its own


def test_a_party_that_counted_beside_others_of_another_kind_in_an_earlier_version_stays_counted(store):
    CountDownLatch.create(store, "shop", ID, 3, farm_id="dc1")
    store.operate(key(), Add("count#dc1", -2), MapPut("done#dc1", 1, 1), MapPut("done#dc1", "a", 1))
    latch = CountDownLatch.get(store, "shop", ID, farm_id="dc1")
    assert [latch.count_down(party="a"), latch.count_down(party=1), latch.count_down(party=2)] == [1, 1, 0]


@pytest.mark.parametrize("held", [[1, "a"], [["a"]], [1.5], "ab", -1, 100_001, {"a": 1}])
def test_names_that_are_none_are_corrupt_and_named_by_record_and_bin(memory, held):
    CountDownLatch.create(memory, "shop", ID, 3, farm_id="dc1")
    memory.operate(key(), Put("names#dc1", held))
    latch = CountDownLatch.get(memory, "shop", ID, farm_id="dc1")
    for ask in (latch.missing, latch.expected, lambda: latch.count_down(party="a")):
        with pytest.raises(Corrupt, match="names#dc1") as refusal:
            ask()
        assert refusal.value.details["key"] == key()
    assert latch.count() == 3


@pytest.mark.parametrize("nonce", ["text", 5, [1], "a/99999"])
def test_a_latch_whose_nonce_is_damaged_is_corrupt_and_can_be_deleted(memory, nonce):
    CountDownLatch.create(memory, "shop", "l", 2, farm_id="dc1")
    memory.operate(Key("D_LTCH#distributed_latch", "D_LTCH#shop#l"), Put("id#dc1", nonce))
    latch = CountDownLatch.get(memory, "shop", "l", farm_id="dc1")
    with pytest.raises(Corrupt, match="id#dc1"):
        latch.count_down()
    assert latch.delete()
    assert CountDownLatch.create(memory, "shop", "l", 2, farm_id="dc1").count_down() == 1


def test_a_latch_that_cannot_be_decoded_can_be_deleted(memory):
    CountDownLatch.create(memory, "shop", ID, 2, farm_id="dc1")
    strange = Undecodable(memory)
    strange.bad[key()] = "id#dc1"
    latch = CountDownLatch.get(strange, "shop", ID, farm_id="dc1")
    with pytest.raises(Unreadable, match="id#dc1"):
        latch.count_down()
    assert latch.delete()
    assert memory.get(key()) is None


@pytest.mark.parametrize(
    ("bin", "bad", "asks"),
    [
        ("count#dc1", "many", [lambda latch: latch.count_down(party="a"), lambda latch: latch.progress()]),
        ("done#dc1", "all", [lambda latch: latch.missing()]),
        ("farms#dc1", "all", [lambda latch: latch.progress()]),
    ],
)
def test_a_damaged_bin_of_a_latch_is_corrupt_and_named(memory, bin, bad, asks):
    latch = CountDownLatch.create(memory, "shop", ID, parties=["a", "b"], farm_id="dc1", level=XDC)
    latch.count_down(party="a")
    memory.operate(key(), Put(bin, bad))
    for ask in asks:
        with pytest.raises(Corrupt, match=bin.partition("#")[0]):
            ask(latch)


# ---- joining


KINDS = [CountDownLatch, CountUpDownLatch]


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_runs_again_goes_on_with_its_latch(store, kind):
    first = kind.get_or_create(store, "shop", ID, parties=["a", "b"], farm_id="dc1")
    assert first.count_down(party="a") == 1
    again = kind.get_or_create(store, "shop", ID, parties=["a", "b"], farm_id="dc1")
    assert [again.count_down(party="a"), again.count_down(party="b")] == [1, 0]
    assert first.wait(0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_latch_that_is_there_for_other_parties_is_not_joined(store, kind):
    kind.create(store, "shop", ID, parties=["a", "b"], farm_id="dc1")
    with pytest.raises(AlreadyExists, match="other parties, 2"):
        kind.get_or_create(store, "shop", ID, parties=["a", "c"], farm_id="dc1")
    assert kind.get_or_create(store, "shop", ID, 5, farm_id="dc1").count() == 2
    with pytest.raises(AlreadyExists, match="get_or_create"):
        kind.create(store, "shop", ID, 5, farm_id="dc1")


def test_joining_takes_two_calls_and_the_first_count_no_more_than_one(memory):
    CountDownLatch.create(memory, "shop", ID, 10, farm_id="dc1")
    store = CountingStore(memory)
    latch = CountDownLatch.get_or_create(store, "shop", ID, 10, farm_id="dc1")
    assert store.total == 2
    latch.count_down()
    assert store.total == 3


@pytest.mark.parametrize(("kind", "names"), [(str, ("a", "b")), (int, (1, 2))])
def test_a_party_may_be_a_member_of_an_enumeration(store, kind, names):
    one, other = Enum("Job", dict(zip(("ONE", "OTHER"), names, strict=True)), type=kind)
    latch = CountDownLatch.create(store, "shop", ID, parties=[one, other])
    assert latch.count_down(party=one) == 1
    assert latch.parties() == {names[0]}
    assert latch.missing() == {other}


def test_a_dc_latch_never_goes_below_zero(store):
    latch = CountDownLatch.create(store, "shop", ID, 2, farm_id="dc1")
    assert [latch.count_down(5), latch.count_down(), latch.count_down(party="late")] == [0, 0, 0]
    assert latch.counts() == {"dc1": 0}


def test_a_count_up_down_latch_holds_until_what_was_added_is_done(store):
    latch = CountUpDownLatch.get_or_create(store, "shop", ID, 1, farm_id="dc1")
    again = CountUpDownLatch.get_or_create(store, "shop", ID, 99, farm_id="dc1")
    assert again.count_up(2) == 3
    assert [latch.count_down(), latch.wait(0), latch.count_down(2), latch.wait(0)] == [2, False, 0, True]


def test_counting_takes_one_store_call(memory):
    store = CountingStore(memory)
    latch = CountDownLatch.create(store, "shop", ID, 10, farm_id="dc1")
    assert store.total == 1
    for count in (latch.count_down, lambda: latch.count_down(party=7), latch.count):
        store.reset()
        count()
        assert store.total == 1


def test_a_handle_reads_which_latch_it_means_once(memory):
    store = CountingStore(memory)
    CountDownLatch.create(memory, "shop", ID, 10, farm_id="dc1")
    latch = CountDownLatch.get(store, "shop", ID, farm_id="dc1")
    assert store.total == 0
    latch.count_down()
    latch.count_down()
    assert store.total == 3


# ---- lost replies


@pytest.mark.parametrize("party", [None, "p"])
def test_an_outcome_that_stays_unknown_is_said_and_a_party_may_simply_try_again(memory, party):
    creator = CountDownLatch.create(memory, "shop", ID, 5, farm_id="dc1")
    store = FaultyStore(memory, dict.fromkeys(range(2, 40), "reply_lost"))
    latch = CountDownLatch.get(store, "shop", ID, farm_id="dc1")
    with pytest.raises(OutcomeUnknown):
        latch.count_down(party=party)
    assert creator.count() == 4
    if party:
        assert CountDownLatch.get(memory, "shop", ID, farm_id="dc1").count_down(party=party) == 4


def test_a_late_count_after_delete_and_re_create_is_refused(store, surface):
    latch = CountDownLatch.create(store, "shop", ID, 5, farm_id="dc1")
    travels = surface == "sync" and not isinstance(store, MemoryStore)
    late = pickle.loads(pickle.dumps(latch)) if travels else latch
    joined = CountDownLatch.get(store, "shop", ID, farm_id="dc1")
    joined.count_down()
    assert latch.delete()
    again = CountDownLatch.create(store, "shop", ID, 5, farm_id="dc1")
    for handle in (late, joined):
        for party in (None, "p"):
            with pytest.raises(NotFound):
                handle.count_down(party=party)
    assert again.count() == 5
    assert not latch.delete()


# ---- absent is not released


def test_never_created_raises_and_never_reads_as_released(store):
    latch = CountDownLatch.get(store, "shop", "never", farm_id="dc1")
    for ask in (
        latch.count,
        latch.counts,
        lambda: latch.wait(0),
        latch.count_down,
        latch.parties,
        lambda: latch.missing(["a"]),
    ):
        with pytest.raises(NotFound):
            ask()


def test_another_farms_counter_does_not_release_this_farm(store):
    CountDownLatch.create(store, "shop", ID, 0, farm_id="dc1")
    latch = CountDownLatch.get(store, "shop", ID, farm_id="dc2")
    with pytest.raises(NotFound):
        latch.wait(0)
    with pytest.raises(NotFound):
        latch.count_down()


def test_an_old_handle_is_not_released_by_a_latch_that_was_made_again(store):
    made = CountDownLatch.create(store, "shop", ID, 2, farm_id="dc1")
    counted = CountDownLatch.get(store, "shop", ID, farm_id="dc1")
    counted.count_down()
    fresh = CountDownLatch.get(store, "shop", ID, farm_id="dc1")
    made.delete()
    CountDownLatch.create(store, "shop", ID, 0, farm_id="dc1")
    for latch in (made, counted):
        for ask in (latch.count, latch.counts, latch.progress, latch.parties, latch.missing, lambda: latch.wait(0)):  # noqa: B023
            with pytest.raises(NotFound, match="made again"):
                ask()
    assert fresh.wait(0), "which has meant no other"


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("level", list(LatchLevel))
def test_a_waiter_is_not_released_by_a_latch_that_was_made_again_between_two_looks(memory, clock, level, count):
    CountDownLatch.create(memory, "shop", ID, 2, farm_id="dc1", level=level)

    def again():
        memory.delete(key())
        CountDownLatch.create(memory, "shop", ID, count, farm_id="dc1", level=level)

    clock.at(1.0, again)
    with pytest.raises(NotFound, match="made again"):
        CountDownLatch.get(memory, "shop", ID, farm_id="dc1", level=level).wait(timeout=10)
    assert clock.monotonic() < 2.1


def test_a_waiter_across_farms_notices_that_another_farm_made_its_counter_again(memory, clock):
    CountDownLatch.create(memory, "shop", ID, 0, farm_id="dc1", level=XDC)
    theirs = CountDownLatch.create(memory, "shop", ID, 2, farm_id="dc2", level=XDC)
    theirs.count_down()
    # a record that is shipped: the bins of one farm change by themselves
    clock.at(1.0, lambda: memory.operate(key(), Put("id#dc2", "later/64"), Put("count#dc2", 0)))
    with pytest.raises(NotFound, match="made again"):
        CountDownLatch.get(memory, "shop", ID, farm_id="dc1", level=XDC).wait(timeout=10)


def test_a_handle_whose_farm_is_gone_from_the_record_is_told_so(store):
    mine = CountDownLatch.create(store, "shop", ID, 1, farm_id="dc1", level=XDC)
    mine.delete()
    CountDownLatch.create(store, "shop", ID, 0, farm_id="dc2", level=XDC)
    with pytest.raises(NotFound):
        mine.wait(0)


def test_a_waiter_that_comes_before_the_creator_waits_for_it(memory, clock):
    clock.at(3.0, lambda: CountDownLatch.create(memory, "shop", ID, 1, farm_id="dc1"))
    clock.at(5.0, lambda: CountDownLatch.get(memory, "shop", ID, farm_id="dc1").count_down())
    latch = CountDownLatch.get(memory, "shop", ID, farm_id="dc1")
    assert latch.wait(timeout=60, create_timeout=4)
    assert 5.0 <= clock.monotonic() <= 5.1


@pytest.mark.parametrize("level", list(LatchLevel))
def test_a_latch_that_nobody_creates_in_time_is_not_found(memory, clock, level):
    latch = CountDownLatch.get(memory, "shop", ID, farm_id="dc1", level=level)
    with pytest.raises(NotFound):
        latch.wait(create_timeout=4)
    assert 4.0 <= clock.monotonic() <= 4.1
    assert latch.wait(timeout=1, create_timeout=4) is False, "nor was it released in time"
    assert latch.wait(timeout=1, create_timeout=None) is False
    clock.at(1.0, lambda: CountDownLatch.create(memory, "shop", ID, 1, farm_id="dc1", level=level))
    clock.at(2.0, lambda: memory.delete(key()))
    with pytest.raises(NotFound):
        latch.wait(create_timeout=60)
    assert clock.monotonic() < 9, "what was there once is not waited for"


def test_a_handle_that_knows_its_latch_does_not_wait_for_another_to_be_created(memory, clock):
    latch = CountDownLatch.create(memory, "shop", ID, 1, farm_id="dc1")
    latch.delete()
    with pytest.raises(NotFound):
        latch.wait(create_timeout=60)
    assert clock.monotonic() == 0


def test_expiry_under_a_waiter_raises(memory, clock):
    latch = CountDownLatch.create(memory, "shop", ID, 1, farm_id="dc1", ttl=30)
    with pytest.raises(NotFound):
        latch.wait(timeout=60)
    assert 30 <= clock.monotonic() < 31


@pytest.mark.parametrize("make", [CountDownLatch.create, CountDownLatch.get_or_create])
def test_every_count_of_the_creator_gives_the_record_its_time_to_live_again(memory, clock, make):
    latch = make(memory, "shop", ID, 3, farm_id="dc1", ttl=30)
    for party in (None, "p"):
        clock.advance(20)
        latch.count_down(party=party)
    clock.advance(20)
    assert latch.count() == 1


JOIN = {
    "get": lambda store, **options: CountDownLatch.get(store, "shop", ID, farm_id="dc1", **options),
    "get_or_create": lambda store, **options: CountDownLatch.get_or_create(
        store, "shop", ID, 3, farm_id="dc1", **options
    ),
}


@pytest.mark.parametrize("join", JOIN.values(), ids=JOIN)
@pytest.mark.parametrize("party", [None, "p"])
def test_a_handle_that_did_not_create_the_latch_keeps_the_time_that_it_has_left(store, join, party):
    for ttl, least, most in ((7200, 7100, 7200), (None, -1, -1)):  # the second as the Java library may make it
        if ttl is None:
            store.operate(key(), Put("count#dc1", 3), exists=Exists.CREATE, ttl=NEVER)
        else:
            CountDownLatch.create(store, "shop", ID, 3, farm_id="dc1", ttl=ttl)
        join(store).count_down(party=party)
        assert least <= store.get(key()).ttl <= most
        store.delete(key())


@pytest.mark.parametrize("join", JOIN.values(), ids=JOIN)
def test_a_handle_that_is_told_a_time_to_live_gives_it(memory, join):
    CountDownLatch.create(memory, "shop", ID, 3, farm_id="dc1", ttl=7200)
    join(memory, ttl=60).count_down()
    assert memory.get(key()).ttl == 60


@pytest.mark.parametrize("make", [CountDownLatch.create, CountDownLatch.get_or_create])
def test_a_latch_outlives_a_night_and_ends_before_the_next_one(memory, make):
    latch = make(memory, "shop", ID, 3, farm_id="dc1")
    assert memory.get(key()).ttl == 12 * 3600
    memory._server.advance(10 * 3600)
    latch.count_down()
    assert memory.get(key()).ttl == 12 * 3600
    memory._server.advance(14 * 3600)
    with pytest.raises(NotFound, match=r"has ended: .* expired, 43200 s after its creator's last count"):
        latch.count_down()


@pytest.mark.parametrize("level", [LatchLevel.DC, XDC])
def test_a_wait_for_a_latch_that_expires_names_the_parties_that_were_missing(level):
    stage = Stage()

    def counts(store):
        latch = CountDownLatch.create(
            store, "shop", ID, parties=["orders", "stock", "mails"], farm_id="dc1", level=level, ttl=20
        )
        latch.count_down(party="orders")

    def waits(store):
        CountDownLatch.get(store, "shop", ID, farm_id="dc1", level=level).wait(60)

    stage.act("creator", counts)
    stage.act("late", lambda store: CountDownLatch.get(store, "shop", ID, farm_id="dc1").count_down(party="mails"), 10)
    stage.act("waiter", waits, after=1)
    stage.play()
    failure = stage.said["waiter"]
    assert isinstance(failure, NotFound)
    missing = "'stock'" if level is LatchLevel.DC else "'dc1/stock'"
    assert f"or has expired, with 1 to go; missing: {missing}; create it with a ttl" in str(failure)


# ---- several farms


def test_an_xdc_latch_waits_for_the_share_of_every_farm_it_names(store):
    mine = CountDownLatch.create(store, "shop", ID, 1, farm_id="dc1", level=XDC, farms=["dc1", "dc2"])
    assert mine.count_down() == 0
    assert not mine.wait(0)
    assert mine.progress().absent_farms == ("dc2",)
    theirs = CountDownLatch.create(store, "shop", ID, 1, farm_id="dc2", level=XDC)
    assert not theirs.wait(0)
    theirs.count_down(party="p")
    assert mine.wait(0)
    assert theirs.wait(0)
    assert mine.counts() == {"dc1": 0, "dc2": 0}


def test_a_share_that_the_java_library_brought_is_one(store):
    mine = CountDownLatch.create(store, "shop", ID, 0, farm_id="dc1", level=XDC, farms=["dc1", "dc2"])
    store.operate(key(), Put("count#dc2", 1))
    assert mine.progress().absent_farms == ()
    with pytest.raises(AlreadyExists):
        CountDownLatch.create(store, "shop", ID, 5, farm_id="dc2", level=XDC)
    store.operate(key(), Add("count#dc2", -1))
    assert mine.wait(0)


def test_at_the_level_of_one_data_centre_a_counter_that_java_took_below_zero_is_there(store):
    store.operate(key(), Put("count#dc1", -1), exists=Exists.CREATE, ttl=600)
    with pytest.raises(AlreadyExists):
        CountDownLatch.create(store, "shop", ID, 5, farm_id="dc1")
    assert store.get(key()).bins == {"count#dc1": -1}


@pytest.mark.parametrize("kind", DOUBTS)
def test_a_share_that_is_added_to_counts_of_java_is_added_once(memory, kind):
    memory.operate(key(), Put("count#dc1", -2), exists=Exists.CREATE, ttl=600)
    store = FaultyStore(memory, {1: kind})
    latch = CountDownLatch.create(store, "shop", ID, 5, farm_id="dc1", level=XDC)
    store.deliver()
    assert latch.count() == 3


def test_the_farms_that_were_named_hold_for_every_handle(store):
    CountDownLatch.create(store, "shop", ID, 0, farm_id="dc1", level=XDC, farms=["dc1", "dc2"])
    assert not CountDownLatch.get(store, "shop", ID, farm_id="dc1", level=XDC).wait(0)


def test_two_farms_creating_at_once_bring_both_shares(memory):
    other = FaultyStore(memory)
    store = FaultyStore(memory, {1: lambda: CountDownLatch.create(other, "shop", ID, 2, farm_id="dc2", level=XDC)})
    latch = CountDownLatch.create(store, "shop", ID, 3, farm_id="dc1", level=XDC)
    assert latch.counts() == {"dc1": 3, "dc2": 2}
    assert latch.count() == 5


def test_one_farm_may_count_below_zero_for_the_share_of_another(store):
    CountDownLatch.create(store, "shop", ID, 4, farm_id="dc1", level=XDC)
    worker = CountUpDownLatch.get_or_create(store, "shop", ID, 0, farm_id="dc2", level=XDC)
    assert [worker.count_down(), worker.count_down(3)] == [-1, -4]
    assert worker.count() == 0
    assert worker.wait(0)


@pytest.mark.parametrize("party", [None, "p"])
def test_a_count_of_one_data_centre_never_raises_a_counter_that_others_took_below_zero(store, party):
    """It would arm their latch again."""
    mine = CountDownLatch.create(store, "shop", ID, 0, farm_id="dc1", level=XDC)
    CountDownLatch.create(store, "shop", ID, 1, farm_id="dc2", level=XDC)
    assert mine.count_down() == -1
    assert mine.progress().released
    assert CountDownLatch.get(store, "shop", ID, farm_id="dc1").count_down(party=party) == -1
    assert mine.progress().released


def test_parties_and_missing_name_the_farm_across_farms(store):
    mine = CountDownLatch.create(store, "shop", ID, parties=[0, 1], farm_id="dc1", level=XDC, farms=["dc1", "dc2"])
    theirs = CountDownLatch.create(store, "shop", ID, parties=[0], farm_id="dc2", level=XDC)
    mine.count_down(party=0)
    theirs.count_down(party=0)
    assert mine.parties() == {"dc1/0", "dc2/0"}
    assert mine.missing() == theirs.missing() == {"dc1/1"}
    CountDownLatch.create(store, "shop", ID, parties=["x"], farm_id="dc3", level=XDC)
    assert mine.missing() == {"dc1/1", "dc3/x"}, "of all farms"


def test_an_xdc_count_is_the_sum_over_all_farms_also_those_that_nobody_named(store):
    CountDownLatch.create(store, "shop", ID, 5, farm_id="head", level=XDC)
    mine = CountDownLatch.create(store, "shop", ID, 1, farm_id="dc1", level=XDC, farms=["dc1"])
    assert mine.count() == 6
    mine.count_down()
    assert not mine.wait(0)
    CountDownLatch.get(store, "shop", ID, farm_id="head", level=XDC).count_down(5)
    assert mine.wait(0)


def test_a_record_without_a_counter_never_reads_as_released_across_farms(store):
    store.operate(key(), Put("done#dc1", {"a": 1}), exists=Exists.CREATE, ttl=60)
    latch = CountDownLatch.get(store, "shop", ID, farm_id="dc1", level=XDC)
    for look in (lambda: latch.wait(0), latch.count, latch.progress):
        with pytest.raises(NotFound):
            look()


def test_a_farm_that_comes_while_others_wait_is_counted_in(memory, clock):
    mine = CountDownLatch.create(memory, "shop", ID, 3, farm_id="dc1", level=XDC)
    java = Key("D_LTCH#distributed_latch", f"D_LTCH#shop#{ID}")
    clock.at(1.0, lambda: memory.operate(java, Add("count#dc2", -3)))
    assert mine.wait(timeout=60)
    assert clock.monotonic() < 3


def test_a_farm_of_another_program_counts_also_where_its_name_is_none_that_we_give(memory, clock):
    """The Java library takes names of farms that are refused here, as they would end a command of the server."""
    mine = CountDownLatch.create(memory, "shop", ID, 3, farm_id="dc1", level=XDC)
    memory._operate(Update(key(), (Put("count#dc:2", 2),), exists=Exists.UPDATE, ttl=600))
    assert mine.progress().counts == {"dc1": 3, "dc:2": 2}
    clock.at(1.0, lambda: mine.count_down(3))
    clock.at(2.0, lambda: memory._operate(Update(key(), (Add("count#dc:2", -2),))))
    assert mine.wait(timeout=60)
    assert clock.monotonic() < 4


def test_a_waiter_across_farms_reads_who_has_counted_once_a_second_at_most(memory, clock):
    store = CountingStore(memory)
    CountDownLatch.create(memory, "shop", ID, parties=range(9), farm_id="dc1", level=XDC)
    whole = []
    store._get = lambda key, bins: (whole.append(1) if not bins else None, memory._get(key, bins))[1]
    assert not CountDownLatch.get(store, "shop", ID, farm_id="dc1", level=XDC).wait(timeout=10)
    assert 2 <= len(whole) <= 12


def test_a_waiter_across_farms_reads_the_whole_record_no_more_often_where_counters_change(memory, clock):
    store = CountingStore(memory)
    latch = CountDownLatch.create(memory, "shop", ID, 90, farm_id="dc1", farms=["dc1", "dc2"], level=XDC)
    for n in range(80):
        clock.at(0.05 * n, latch.count_down)
    whole, told = [], []
    store._get = lambda key, bins: (whole.append(1) if not bins else None, memory._get(key, bins))[1]
    waiter = CountDownLatch.get(store, "shop", ID, farm_id="dc1", level=XDC)
    assert not waiter.wait(timeout=5, progress=told.append)
    assert 2 <= len(whole) <= 7
    assert len(told) > 40
    assert {seen.absent_farms for seen in told} == {("dc2",)}


# ---- waiting


@pytest.mark.parametrize("level", list(LatchLevel))
def test_a_waiter_whose_latch_is_damaged_meanwhile_is_told_so_at_once(memory, clock, level):
    latch = CountDownLatch.create(memory, "shop", ID, 1, farm_id="dc1", level=level)
    clock.at(1.0, lambda: memory.operate(key(), Put("count#dc1", "many")))
    with pytest.raises(Corrupt, match="count#'dc1' is not a number"):
        latch.wait(timeout=10)
    assert clock.monotonic() < 1.1


def test_a_waiter_sees_the_release_within_a_poll_and_asks_at_most_40_times_a_second(memory, clock):
    store = CountingStore(memory)
    latch = CountDownLatch.create(memory, "shop", ID, 1, farm_id="dc1")
    clock.at(10.0, latch.count_down)
    assert CountDownLatch.get(store, "shop", ID, farm_id="dc1").wait(timeout=60)
    assert 10.0 <= clock.monotonic() <= 10.03
    assert store.total <= 40 * 10


def test_a_wait_that_times_out_says_false_and_takes_its_time_no_longer(memory, clock):
    latch = CountDownLatch.create(memory, "shop", ID, 1, farm_id="dc1")
    assert latch.wait(timeout=2.5) is False
    assert clock.monotonic() == pytest.approx(2.5)


def test_progress_is_told_whenever_a_counter_changes_and_only_then(memory, clock):
    latch = CountDownLatch.create(memory, "shop", ID, 2, farm_id="dc1")
    clock.at(1.0, latch.count_down)
    clock.at(2.0, latch.count_down)
    told = []
    assert latch.wait(timeout=5, progress=lambda seen: told.append(seen.remaining))
    assert told == [2, 1, 0]


def test_the_bar_fits_its_columns_and_names_what_is_missing(memory):
    latch = CountDownLatch.create(memory, "shop", ID, 20, farm_id="dc1")
    latch.count_down(5)
    names = [f"dc1/{n}" for n in range(15)]
    text = line(latch.progress(), 20, names, 200)
    assert "5 of 20, waiting for dc1/0, dc1/1" in text
    assert text.endswith("dc1/7 and 7 more")
    assert line(latch.progress(), 20, names, len(text)) == text
    assert line(latch.progress(), 20, names, len(text) - 1) == text[:-2] + "~"
    assert line(latch.progress(), 20, names[:8], 200).endswith("dc1/6, dc1/7")
    assert all(len(line(latch.progress(), 20, ["dc1/1"] * 15, columns)) <= columns for columns in range(5, 120))


# ---- the Java library's records


def test_a_latch_in_the_java_layout_is_counted_down_by_ours_and_the_other_way_round(store):
    store.operate(key(), Put("count#dc1", 3), exists=Exists.CREATE, ttl=600)
    latch = CountDownLatch.get(store, "shop", ID, farm_id="dc1")
    assert [latch.count_down(), latch.count_down(party="p"), latch.count_down(party="p")] == [2, 1, 1]
    store.operate(key(), Add("count#dc1", -1))
    assert latch.wait(0)

    ours = CountDownLatch.create(store, "shop", f"{ID}-ours", 2, farm_id="dc1")
    store.operate(key(f"{ID}-ours"), Add("count#dc1", -1))
    assert ours.count_down() == 0
    assert store.get(key(f"{ID}-ours"), "count#dc1").bins == {"count#dc1": 0}


def test_a_java_latch_made_under_the_id_of_a_deleted_one_is_not_counted_by_an_old_handle(store):
    latch = CountDownLatch.create(store, "shop", ID, 3, farm_id="dc1")
    latch.delete()
    store.operate(key(), Put("count#dc1", 3), exists=Exists.CREATE, ttl=600)
    with pytest.raises(NotFound):
        latch.count_down()


# ---- bad input


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"farm_id": "frankfurt1"}, "frankfurt1"),
        ({"farm_id": ""}, "farm_id"),
        ({"farm_id": "count#1"}, "count#"),
        ({"farms": ["xcount#"], "level": XDC}, "count#"),
        ({"client_id": ""}, "client_id"),
        ({"client_id": "a#b"}, "a#b"),
        ({"latch_id": ""}, "latch_id"),
        ({"count": -1}, "-1"),
        ({"count": True}, "True"),
        ({"count": None}, "count"),
        ({"count": 2, "parties": ["a"]}, "parties"),
        ({"parties": [""], "count": None}, "party"),
        ({"parties": "ab", "count": None}, "list"),
        ({"parties": 3, "count": None}, "list"),
        ({"parties": [2**63], "count": None}, "party"),
        ({"latch_id": "\ud800"}, "Unicode"),
        ({"ttl": 0}, "ttl"),
        ({"ttl": 10**12}, "ttl"),
        ({"set_suffix": "x" * 57}, "56"),
        ({"level": "xdc"}, "LatchLevel"),
        ({"farms": ["dc1"]}, "XDC"),
        ({"farms": "dc1", "level": XDC}, "list"),
        ({"farms": 7, "level": XDC}, "list"),
        ({"store": "sqlite:x"}, "connect"),
        ({"policy": None}, "policy is None"),
    ],
)
def test_bad_input_names_the_value_before_any_io(memory, arguments, named):
    store = CountingStore(memory)
    good = {"store": store, "client_id": "shop", "latch_id": ID, "count": 1, "farm_id": "dc1"}
    with pytest.raises(InvalidRequest, match=named):
        CountDownLatch.create(**(good | arguments))
    assert store.total == 0


@pytest.mark.parametrize("n", [0, -1, 1.5, True, None])
def test_a_count_of_less_than_one_is_refused(memory, n):
    latch = CountUpDownLatch.create(memory, "shop", ID, 1, farm_id="dc1")
    store = CountingStore(memory)
    for count in (latch.count_down, latch.count_up):
        with pytest.raises(InvalidRequest):
            count(n)
    assert store.total == 0
    assert latch.count() == 1


@pytest.mark.parametrize("expected", [5, "abc", [["a"]]])
def test_expected_parties_that_are_no_list_of_names_are_refused_before_any_io(memory, expected):
    store = CountingStore(memory)
    with pytest.raises(InvalidRequest, match=r"expected (is|holds)"):
        CountDownLatch.get(store, "shop", ID).missing(expected)
    assert store.total == 0


@pytest.mark.parametrize("timeout", [-1, "1", True, float("nan")])
@pytest.mark.parametrize("what", ["timeout", "create_timeout"])
def test_a_timeout_that_is_no_length_of_time_is_refused(memory, what, timeout):
    store = CountingStore(memory)
    with pytest.raises(InvalidRequest, match=f"^{what} is"):
        CountDownLatch.get(store, "shop", ID).wait(**{what: timeout})
    assert store.total == 0


def test_the_longest_name_of_a_farm_has_nine_bytes(memory):
    assert CountDownLatch.create(memory, "shop", ID, 1, farm_id="frankfurt").counts() == {"frankfurt": 1}


def test_the_farm_is_taken_from_the_environment_where_none_is_given(memory, monkeypatch):
    monkeypatch.setenv("LATCHWORK_FARM", "")
    assert "'local'" in repr(CountDownLatch.get(memory, "shop", ID))
    monkeypatch.setenv("LATCHWORK_FARM", "env")
    CountDownLatch.create(memory, "shop", ID, 1)
    monkeypatch.delenv("LATCHWORK_FARM")
    CountDownLatch.create(memory, "shop", ID, 1)
    assert CountDownLatch.get(memory, "shop", ID, farm_id="env").counts() == {"env": 1, "local": 1}


@pytest.mark.parametrize(("count", "kept"), [(10, 64), (100, 100), (100_000, MAX_TOKENS)])
def test_a_latch_remembers_as_many_tokens_as_it_has_counts_within_bounds(memory, count, kept):
    latch = CountDownLatch.create(memory, "shop", ID, count, farm_id="dc1")
    for _ in range(kept + 10):
        latch.count_down()
    assert len(memory.get(key()).bins["ops#dc1"]) == kept


def test_latches_of_the_same_size_share_what_a_count_is_made_of(memory):
    """So that a count of a new latch costs no more than one of an old latch."""
    counted_once.cache_clear()
    counts = []
    for latch_id, size in (("one", 10), ("two", 10), ("large", 100)):
        latch = CountDownLatch.create(memory, "shop", f"{ID}-{latch_id}", size, farm_id="dc1")
        made = counted_once.cache_info().misses
        latch.count_down()
        latch.count_down(size)
        counts.append(counted_once.cache_info().misses - made)
    assert counts == [2, 0, 2]


def test_deleting_twice_is_no_error_and_waiters_are_told(store):
    latch = CountDownLatch.create(store, "shop", ID, 1, farm_id="dc1")
    assert latch.delete()
    assert not latch.delete()
    with pytest.raises(NotFound):
        latch.wait(1)


def test_a_count_given_up_leaves_no_token_in_a_latch_made_again_under_the_same_id(memory):
    store = FaultyStore(memory)
    latch = CountDownLatch.create(store, "shop", ID, 5, farm_id="dc1")

    def made_again():
        memory.delete(key())
        CountDownLatch.create(memory, "shop", ID, 5, farm_id="dc1")

    store.plan = {store._number + 1: "request_lost", store._number + 2: made_again}
    with pytest.raises(OutcomeUnknown):  # a lost request looks like a lost reply, and the old latch cannot be asked
        latch.count_down()
    assert "ops#dc1" not in memory.get(key()).bins
    assert CountDownLatch.get(memory, "shop", ID, farm_id="dc1").count() == 5


def test_a_delete_that_lands_late_does_not_delete_a_latch_made_again_under_the_same_id(memory):
    CountDownLatch.create(memory, "shop", ID, 1, farm_id="dc1")
    store = FaultyStore(memory, dict.fromkeys(range(2, 9), "late"))
    with pytest.raises(OutcomeUnknown):
        CountDownLatch.get(store, "shop", ID, farm_id="dc1").delete()
    memory.delete(key())
    again = CountDownLatch.create(memory, "shop", ID, 1, farm_id="dc1")
    store.deliver()
    assert again.count() == 1


def test_a_latch_can_be_deleted_by_a_farm_that_has_no_share_in_it(store):
    CountDownLatch.create(store, "shop", ID, 1, farm_id="dc1")
    assert CountDownLatch.get(store, "shop", ID, farm_id="dc2").delete()
    assert store.get(key()) is None
