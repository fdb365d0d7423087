"""The promises of barriers, over every backend and, where time matters, on a clock that the test moves."""

from __future__ import annotations

import pickle
import threading
from functools import partial

import pytest

from latchwork.coord import Barrier, Group, LatchLevel
from latchwork.coord.barrier.layout import (
    AT,
    BARRIERS,
    ENDS,
    KEPT_ENDS,
    KEPT_PAYLOADS,
    NAMES,
    PAYLOADS,
    SAID,
    STOP,
    TURN,
    payload_key,
)
from latchwork.coord.barrier.meeting import Meeting
from latchwork.coord.presence.layout import GONE, GROUPS
from latchwork.errors import (
    BarrierBroken,
    Corrupt,
    InvalidRequest,
    LatchworkError,
    NotFound,
    OutcomeUnknown,
    PartyLost,
    Unavailable,
    WaitTimeout,
)
from latchwork.retry import RetryPolicy
from latchwork.store import Exists, Key, MemoryStore, Put
from latchwork.testing.stores import Fault, FaultyStore, Outage
from tests.support.waiting import until


def barrier(store, name="b", parties=("p", "q"), **more):
    return Barrier(store, "shop", name, parties=parties, farm_id="a", **more)


def record(store, name="b"):
    return store.get(Key(BARRIERS, f"shop#{name}")).bins


def said(wait):
    """What a wait comes to: its result, or its error."""
    try:
        return wait()
    except LatchworkError as error:
        return error


def meet(*waits):
    """All of these at a time, each in a thread; what they come to."""
    results = [None] * len(waits)

    def run(number, wait):
        results[number] = said(wait)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(waits)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


# ---- on every backend


def test_all_hear_what_all_have_brought_generation_after_generation(store, name):
    handles = {party: barrier(store, name, ("p", "q", "r")) for party in ("p", "q", "r")}
    for turn in range(3):
        told = meet(*(partial(b.wait, p, {"turn": turn, "of": p}, 30) for p, b in handles.items()))
        assert told == [{p: {"turn": turn, "of": p} for p in handles}] * 3
    assert handles["p"].progress().missing == {"p", "q", "r"}
    assert handles["p"].progress().last == "met"
    assert handles["p"].delete() is True
    assert handles["p"].delete() is False
    assert handles["p"].progress().generation is None


def test_a_party_whose_time_is_over_breaks_it_for_all_and_the_next_one_is_whole_again(store, name):
    one, other = barrier(store, name), barrier(store, name)
    said(lambda: one.wait("p", timeout=0))  # it is open from here on, and who comes has arrived with its first look
    with pytest.raises(WaitTimeout):
        one.wait("p", 1, timeout=1)
    assert one.progress().last == "late p"
    three = [barrier(store, name + "3", ("p", "q", "r")) for _ in range(2)]

    def comes_second():
        until(lambda: "q" in three[0].progress().arrived)
        return three[0].wait("p", timeout=1.0)

    late, told = meet(comes_second, lambda: three[1].wait("q", timeout=30))
    assert isinstance(late, WaitTimeout)
    assert isinstance(told, BarrierBroken)
    assert told.reason == "p was late"
    assert meet(lambda: one.wait("p", 2, 30), lambda: other.wait("q", 3, 30)) == [{"p": 2, "q": 3}] * 2


def test_who_waits_hears_that_it_was_aborted_and_why(store, name):
    one, other = barrier(store, name), barrier(store, name)

    def aborts():
        while not other.progress().arrived:
            pass
        return other.abort("no disk left")

    told, done = meet(lambda: one.wait("p", timeout=30), aborts)
    assert done is True
    assert isinstance(told, BarrierBroken)
    assert told.reason == "no disk left"
    assert barrier(store, name + "x").abort("nobody is there") is False


def test_a_party_that_died_is_named_to_all_within_its_lease(store, name):
    group = Group(store, name, farm_id="a")
    group.join("r", lease=0.5, keep_alive=False)
    handles = [barrier(store, name, ("p", "q", "r")) for _ in range(2)]
    told = meet(
        lambda: handles[0].wait("p", timeout=30, alive=group), lambda: handles[1].wait("q", timeout=30, alive=group)
    )
    assert [type(one) for one in told] == [PartyLost, PartyLost]
    assert told[0].parties == told[1].parties == ["r"]


def test_what_is_stored_is_named_by_farm_and_lives_as_long_as_its_ttl(store, name):
    one = barrier(store, name, ("p",), ttl=500)
    assert one.wait("p", "x", 30) == {"p": "x"}
    stored = store.get(Key("latchwork_barriers", f"shop#{name}"))
    assert set(stored.bins) == {"turn#a", "ends#a", "names#a", "at#a"}
    brought = store.get(Key("latchwork_barrier_payloads", f"shop#{name}#a/p"))
    assert set(brought.bins) == {"said#a"}
    assert 490 <= stored.ttl <= 500
    assert 490 <= brought.ttl <= 500


# ---- who is started again, doubt


def test_a_party_that_was_started_again_counts_once_and_with_what_came_first(memory, clock):
    first = FaultyStore(memory, {7: "crash_before"})
    with pytest.raises(BaseException, match="crash"):
        barrier(first).wait("p", "first", 60)
    told = []
    clock.at(1.0, lambda: told.append(barrier(memory).wait("q", "q", 60)))
    assert barrier(memory).wait("p", "again", 60) == {"p": "first", "q": "q"}
    assert told == [{"p": "first", "q": "q"}]


def test_a_party_that_was_started_again_does_not_meet_its_predecessors_generation(memory, clock):
    barriers = [barrier(memory) for _ in range(2)]
    clock.at(1.0, lambda: barriers[1].wait("q", 1, 60))
    assert barriers[0].wait("p", 1, 60) == {"p": 1, "q": 1}
    with pytest.raises(WaitTimeout):
        barrier(memory).wait("p", 2, timeout=5)


def test_a_wait_whose_end_is_not_known_is_gone_on_with_by_the_next_one(memory, clock):
    away = Outage(clock, clock.monotonic() + 1, clock.monotonic() + 20)
    one, other = barrier(FaultyStore(memory, away)), barrier(memory)
    told = []
    clock.at(3.0, lambda: told.append(said(lambda: other.wait("q", "q", 0.5))))
    with pytest.raises(Unavailable):
        one.wait("p", "p", timeout=5)
    assert told == [{"p": "p", "q": "q"}]
    clock.advance(30)
    assert one.wait("p", "another", timeout=5) == {"p": "p", "q": "q"}
    with pytest.raises(WaitTimeout):
        one.wait("p", "another", timeout=5)


ARRIVES, ARRIVES_AGAIN = 6, 7
"""The calls of the first party of a new barrier."""


def test_a_party_that_has_arrived_breaks_its_meeting_though_its_repeated_arrival_was_refused(memory, clock):
    """The reply was lost, and the repeat came after the timeout: it was said that the party had not arrived."""
    faulty = FaultyStore(memory, {ARRIVES: "reply_lost", ARRIVES_AGAIN: lambda: clock.advance(10)})
    with pytest.raises(WaitTimeout, match="not all parties arrived"):
        barrier(faulty).wait("p", "p", timeout=5)
    assert barrier(memory).progress().last == "late p"
    assert barrier(memory).progress().arrived == frozenset()


def test_a_party_that_was_met_has_met_the_others_though_its_repeated_arrival_was_refused(memory, clock):
    """It was told of a timeout, and the others that they had met it."""
    told = []

    def others_meet():
        told.append(barrier(memory).wait("q", "q", 60))
        clock.advance(10)

    faulty = FaultyStore(memory, {ARRIVES: "reply_lost", ARRIVES_AGAIN: others_meet})
    assert barrier(faulty).wait("p", "p", timeout=5) == {"p": "p", "q": "q"}
    assert told == [{"p": "p", "q": "q"}]


def test_a_party_that_did_not_arrive_in_time_leaves_the_next_meeting_as_it_is(memory, clock):
    def begin_anew():
        barrier(memory).abort("begin anew")
        Meeting(barrier(memory)._record, ("a", "q"), '"q"').look()
        clock.advance(10)

    with pytest.raises(WaitTimeout, match="before 'p' had arrived"):
        barrier(FaultyStore(memory, {ARRIVES: begin_anew})).wait("p", "p", timeout=5)
    assert barrier(memory).progress().last == "aborted begin anew"
    assert barrier(memory).progress().arrived == {"q"}


def test_an_arrival_that_is_late_is_refused_at_the_next_generation(memory, clock):
    faulty = FaultyStore(memory, {ARRIVES: Fault("late")})
    late = barrier(faulty.with_policy(RetryPolicy(attempts=1)))
    assert isinstance(said(lambda: late.wait("p", "late", 0.001)), OutcomeUnknown | WaitTimeout)
    assert barrier(memory).abort("start anew") is True
    faulty.deliver()
    assert barrier(memory).progress().arrived == frozenset()


def test_a_party_whose_meeting_ends_before_it_is_there_arrives_at_the_next_one_at_once(memory, clock):
    """The others are there already, so nothing changes any more that could wake it."""
    said(lambda: barrier(memory).wait("p", timeout=0))

    def begin_anew():
        barrier(memory).abort("begin anew")
        Meeting(barrier(memory)._record, ("a", "q"), '"q"').look()

    before_it_arrives = FaultyStore(memory, {3: begin_anew})
    assert barrier(before_it_arrives).wait("p", "p", timeout=60) == {"p": "p", "q": "q"}
    assert clock.monotonic() < 1


def test_a_wait_that_is_continued_arrives_at_once_where_its_meeting_has_ended_without_it(memory, clock):
    said(lambda: barrier(memory).wait("p", timeout=0))
    faulty = FaultyStore(memory, {3: "crash_before"})
    one = barrier(faulty)
    with pytest.raises(BaseException, match="crash"):
        one.wait("p", "p", timeout=60)
    faulty.revive()
    barrier(memory).abort("begin anew")
    Meeting(barrier(memory)._record, ("a", "q"), '"q"').look()
    assert one.wait("p", "p", timeout=60) == {"p": "p", "q": "q"}
    assert clock.monotonic() < 1


def test_the_last_one_to_arrive_has_met_the_others_though_its_time_is_over(memory):
    first = barrier(memory)
    assert isinstance(said(lambda: first.wait("p", timeout=0)), WaitTimeout), "nobody was there before"
    arrived = Meeting(first._record, ("a", "p"), '"of p"')
    assert arrived.look() is None
    assert barrier(memory).wait("q", "of q", timeout=0) == {"p": "of p", "q": "of q"}
    assert arrived.look().kind == "met"


def test_a_meeting_is_decided_once_whoever_asks(memory, clock):
    one = barrier(memory)
    clock.at(1.0, lambda: barrier(memory).wait("q", "q", 60))
    assert one.wait("p", "p", 60) == {"p": "p", "q": "q"}
    ends = dict(record(memory)[ENDS + "a"])
    (turn,) = ends
    assert one._record.end(turn, one._record.look().ends[turn]) == one._record.look().ends[turn]
    assert not one._record.send(one._record.updates.decide.fill(one._record.key, turn=turn, end=["aborted", "x"]))
    assert record(memory)[ENDS + "a"] == ends


def test_a_record_that_is_lost_or_deleted_is_said_so_and_the_next_wait_begins_anew(memory, clock):
    one = barrier(memory)
    clock.at(1.0, one.delete)
    with pytest.raises(NotFound, match="was deleted or has expired"):
        one.wait("p", "p", 60)
    clock.at(1.0, lambda: memory.inner.delete(Key(PAYLOADS, "shop#b#a/p")))
    clock.at(2.0, lambda: said(lambda: barrier(memory).wait("q", "q", 60)))
    with pytest.raises(NotFound, match="the value of p has expired"):
        one.wait("p", "p", 60)


def test_a_party_that_has_arrived_is_told_that_the_record_was_lost_though_it_was_made_again_at_once(memory, clock):
    """It went on to the new meeting with what it had brought to the old one, which others may have met already."""
    one = barrier(memory)

    def makes_it_again():
        one.delete()
        Meeting(barrier(memory)._record, ("a", "q"), '"q"').look()

    clock.at(1.0, makes_it_again)
    with pytest.raises(NotFound, match="was deleted or has expired"):
        one.wait("p", "old", 60)
    clock.at(1.0, lambda: barrier(memory).wait("q", "q", 60))
    assert one.wait("p", "new", 60) == {"p": "new", "q": "q"}


@pytest.mark.parametrize("arrived", ["crash_before", "crash_after"])
def test_a_wait_whose_end_is_not_known_is_not_gone_on_with_at_a_record_that_was_made_again(memory, clock, arrived):
    """Others may have met what it had brought to the old one."""
    faulty = FaultyStore(memory, {ARRIVES: arrived})
    one, other = barrier(faulty), barrier(memory)
    with pytest.raises(BaseException, match="crash"):
        one.wait("p", "old", 60)
    faulty.revive()
    other.delete()
    Meeting(barrier(memory)._record, ("a", "q"), '"q"').look()
    clock.advance(1)
    Meeting(barrier(memory)._record, ("a", "q"), '"q"').look()
    with pytest.raises(NotFound, match="was deleted or has expired"):
        one.wait("p", "new", 60)
    clock.at(1.0, lambda: other.wait("q", "q", 60))
    assert one.wait("p", "new", 60) == {"p": "new", "q": "q"}


@pytest.mark.parametrize("met", [1, KEPT_PAYLOADS, KEPT_PAYLOADS + 1])
def test_after_the_clock_was_set_back_parties_meet_at_a_record_that_was_made_again(memory, clock, met):
    """What they brought was trimmed away as it was written: it looked older than all that they had brought before."""
    one, other = barrier(memory), barrier(memory)

    def meets(value):
        told = []
        clock.at(1.0, lambda: told.append(other.wait("q", value, 60)))
        return [one.wait("p", value, 60), *told]

    for turn in range(met):
        assert meets(turn) == [{"p": turn, "q": turn}] * 2
    last = max(record(memory)[ENDS + "a"])
    one.delete()
    clock.step(-3_600)
    for turn in range(KEPT_PAYLOADS + 1):
        assert meets(f"new {turn}") == [{"p": f"new {turn}", "q": f"new {turn}"}] * 2
    assert min(record(memory)[ENDS + "a"]) > last, "generations only grow"


def test_a_barrier_that_is_opened_goes_on_above_what_any_party_has_brought(memory, clock):
    """One party was away for some generations, and knows nothing of them."""
    one, other = barrier(memory), barrier(memory)
    told = []
    clock.at(1.0, lambda: told.append(other.wait("q", 1, 60)))
    one.wait("p", 1, 60)
    for _ in range(3):
        said(lambda: other.wait("q", 2, timeout=1))
    newest = max(memory.get(Key(PAYLOADS, "shop#b#a/q")).bins[SAID + "a"])
    assert newest > max(memory.get(Key(PAYLOADS, "shop#b#a/p")).bins[SAID + "a"])
    one.delete()
    clock.step(-3_600)
    said(lambda: one.wait("p", 3, timeout=1))
    assert record(memory)[TURN + "a"] > newest


def test_a_record_that_is_deleted_as_its_meeting_is_broken_is_said_to_be_gone(memory):
    faulty, key = FaultyStore(memory), Key(BARRIERS, "shop#b")
    waiting = barrier(faulty)
    assert isinstance(said(lambda: waiting.wait("p", timeout=0)), WaitTimeout)
    faulty.plan = {faulty._number + 5: lambda: memory.delete(key)}
    assert isinstance(said(lambda: waiting.wait("p", timeout=0)), NotFound)
    assert isinstance(said(lambda: waiting.wait("p", timeout=0)), WaitTimeout), "of the next meeting"
    faulty.plan = {faulty._number + 2: lambda: memory.delete(key)}
    assert isinstance(said(lambda: waiting.abort("enough")), NotFound)
    assert waiting.abort("enough") is False


def test_parties_that_met_and_found_that_what_one_brought_is_lost_meet_again(memory, clock):
    """As where it has expired, since the last one came too late."""
    one, other, told = barrier(memory), barrier(memory), []
    clock.at(1.0, lambda: memory.inner.delete(Key(PAYLOADS, "shop#b#a/p")))
    clock.at(2.0, lambda: told.append(said(lambda: other.wait("q", "q", 60))))
    told.append(said(lambda: one.wait("p", "p", 60)))
    assert [type(end) for end in told] == [NotFound, NotFound]
    clock.at(1.0, lambda: told.append(said(lambda: other.wait("q", "q2", 60))))
    told.append(said(lambda: one.wait("p", "p2", 60)))
    assert told[2:] == [{"p": "p2", "q": "q2"}] * 2


@pytest.mark.parametrize("damage", [5, {0: "["}])
def test_what_a_party_brought_is_said_to_be_corrupt_where_it_is_damaged(memory, clock, damage):
    key = Key(PAYLOADS, "shop#b#a/q")

    def spoil():
        said(lambda: Meeting(barrier(memory)._record, ("a", "q"), '"q"').look())
        spoilt = damage if damage == 5 else dict.fromkeys(memory.get(key).bins[SAID + "a"], "[")
        memory.operate(key, Put(SAID + "a", spoilt))

    clock.at(1, spoil)
    with pytest.raises(Corrupt, match="a/q"):
        barrier(memory).wait("p", "p", 60)


def test_what_is_kept_of_the_past_is_bounded(memory):
    one = barrier(memory, parties=["p"])
    for turn in range(70):
        one.wait("p", turn, 5)
    assert len(record(memory)[ENDS + "a"]) == 64
    assert len(memory.get(Key(PAYLOADS, "shop#b#a/p")).bins[SAID + "a"]) == KEPT_PAYLOADS


def test_a_meeting_is_broken_by_its_dead_however_many_there_are_and_however_often(memory):
    parties = [f"p{n:04}".ljust(100, "x") for n in range(1_000)]
    group, one = Group(memory, "g", farm_id="a"), barrier(memory, parties=parties)
    died = {name: f"lost:{n:020x}" for n, name in enumerate(parties[1:])}
    memory.operate(Key(GROUPS, "g"), Put(GONE + "a", died), exists=Exists.ANY)
    for _ in range(KEPT_ENDS + 2):
        told = said(lambda: one.wait(parties[0], timeout=5, alive=group))
        assert isinstance(told, PartyLost)
    assert told.parties == parties[1:6]
    assert "and 994 more died" in str(told)
    assert len(record(memory)[ENDS + "a"]) == KEPT_ENDS


def test_a_meeting_that_ends_is_over_though_nobody_can_be_asked_who_is_alive(memory, clock):
    away = Group(FaultyStore(memory, Outage(clock, 0, 1_000)), "g", farm_id="a")
    said(lambda: barrier(memory).wait("p", timeout=0))
    clock.at(5, lambda: Meeting(barrier(memory)._record, ("a", "q"), '"q"').look())
    assert barrier(memory).wait("p", "p", 60, alive=away) == {"p": "p", "q": "q"}
    assert clock.monotonic() < 10
    with pytest.raises(WaitTimeout):
        barrier(memory).wait("p", timeout=5, alive=away)


def test_who_was_away_for_too_long_hears_that_it_has_gone_on(memory):
    one, other = barrier(memory), barrier(memory)
    said(lambda: one.wait("p", timeout=1))
    one._record.pending["a", "p"] = turn = record(memory)[AT + "a"]["p"]
    for _ in range(65):
        said(lambda: other.wait("q", timeout=1))
    assert turn not in record(memory)[ENDS + "a"]
    with pytest.raises(BarrierBroken, match="gone on without 'p'"):
        one.wait("p", timeout=1)


def test_a_meeting_costs_so_many_calls(memory, clock):
    one = barrier(memory, parties=["p"])
    one.wait("p", timeout=5)
    memory.reset()
    one.wait("p", timeout=5)
    assert memory.calls == {"get": 2, "operate": 3, "get_many": 1}


# ---- several farms, whose bins are shipped


class Farms:
    """Two stores, each of which has the other's bins some time later."""

    def __init__(self):
        self.connected, self.stop = True, threading.Event()
        self.stores = {farm: MemoryStore() for farm in ("east", "west")}
        parties = ["east/p", "west/q"]
        self.barriers = {
            farm: Barrier(store, "shop", "b", parties=parties, farm_id=farm, level=LatchLevel.XDC)
            for farm, store in self.stores.items()
        }
        self.groups = {farm: Group(store, "g", farm_id=farm) for farm, store in self.stores.items()}

    def __enter__(self):
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def run(self):
        while not self.stop.wait(0.02):
            if self.connected:
                self.ship()

    def ship(self):
        # What a party has brought is shipped last, as records are shipped in no order.
        keys = [(BARRIERS, "shop#b"), ("latchwork_groups", "g"), (PAYLOADS, "shop#b#east/p"),
                (PAYLOADS, "shop#b#west/q")]  # fmt: skip
        for key in keys:
            for here, there in (("east", "west"), ("west", "east")):
                found = self.stores[here].get(Key(*key))
                mine = {} if found is None else {bin: v for bin, v in found.bins.items() if bin.endswith("#" + here)}
                if mine:
                    self.stores[there].operate(Key(*key), *(Put(*one) for one in mine.items()), exists=Exists.ANY)


def test_parties_of_two_farms_meet_again_and_again():
    with Farms() as farms:
        east, west = farms.barriers["east"], farms.barriers["west"]
        for turn in range(5):
            told = meet(lambda n=turn: east.wait("p", n, 30), lambda n=turn: west.wait("q", -n, 30))
            assert told == [{"east/p": turn, "west/q": -turn}] * 2


def test_a_party_that_died_is_named_in_every_farm():
    with Farms() as farms:
        east, west = farms.barriers["east"], farms.barriers["west"]
        farms.groups["west"].join("q", lease=0.5, keep_alive=False)
        with pytest.raises(PartyLost) as lost:
            east.wait("p", timeout=30, alive=farms.groups["east"])
        assert lost.value.parties == ["west/q"]
        farms.groups["east"].join("p", lease=0.5, keep_alive=False)
        while west.progress().last is None:
            pass
        with pytest.raises(PartyLost) as lost:
            west.wait("q", timeout=30, alive=farms.groups["west"])
        assert lost.value.parties == ["east/p"]
        assert lost.value.details["doubt"] is True, "nobody is left in the farm that decides"


def test_a_farm_that_is_cut_off_does_not_know_how_it_ended_and_hears_later():
    with Farms() as farms:
        east, west = farms.barriers["east"], farms.barriers["west"]
        said(lambda: east.wait("p", timeout=0))
        until(lambda: west.progress().generation is not None)
        time_is_over = said(lambda: west.wait("q", "Q", 0.5))
        assert isinstance(time_is_over, OutcomeUnknown)
        farms.connected = False
        assert isinstance(said(lambda: west.wait("q", timeout=0.5)), OutcomeUnknown)
        farms.connected = True
        told = meet(lambda: east.wait("p", "P", 30), lambda: west.wait("q", "another", 30))
        assert [type(one) for one in told] == [BarrierBroken, WaitTimeout], "west had asked for that"


def test_the_farm_that_decides_says_met_and_the_other_one_hears_it_when_it_is_back():
    with Farms() as farms:
        east, west = farms.barriers["east"], farms.barriers["west"]
        said(lambda: east.wait("p", timeout=0))
        heard = []
        waits = threading.Thread(target=lambda: heard.append(said(lambda: west.wait("q", "Q", 30))))
        waits.start()
        while not east.progress().arrived:
            pass
        farms.connected = False
        farms.ship()
        assert east.wait("p", "P", 30) == {"east/p": "P", "west/q": "Q"}
        assert heard == []
        farms.connected = True
        waits.join(30)
        assert heard == [{"east/p": "P", "west/q": "Q"}]


def test_a_party_that_may_have_arrived_is_told_so_where_the_deciding_farm_does_not_answer(memory, clock):
    """Its arrival was applied, the repeat was refused, and a party was seen to be dead before the record was read."""
    faulty = FaultyStore(memory, seams=clock)
    parties, level = ["east/p", "west/q"], LatchLevel.XDC
    east = Barrier(memory, "shop", "b", parties=parties, farm_id="east", level=level)
    west = Barrier(faulty, "shop", "b", parties=parties, farm_id="west", level=level)
    Group(memory, "g", farm_id="east").join("p", lease=0.5, keep_alive=False)

    def opens():
        said(lambda: east.wait("p", timeout=0))
        arrives = faulty._number + 3
        faulty.plan = {arrives: "reply_lost", arrives + 1: lambda: clock.advance(0.6)}

    clock.at(0.3, opens)
    with pytest.raises(PartyLost) as lost:
        west.wait("q", timeout=30, alive=Group(memory, "g", farm_id="west"))
    assert east.progress().arrived == {"west/q"}
    assert lost.value.details["doubt"] is True


@pytest.mark.parametrize("made_again", [True, False])
def test_a_party_of_a_farm_that_does_not_decide_is_told_that_the_record_it_had_arrived_at_was_lost(
    memory, clock, made_again
):
    """The next wait of its handle met others with what others had met before, or said that it had not arrived."""
    faulty, parties, level = FaultyStore(memory), ["east/p", "west/q"], LatchLevel.XDC
    east = Barrier(memory, "shop", "b", parties=parties, farm_id="east", level=level)
    west = Barrier(faulty, "shop", "b", parties=parties, farm_id="west", level=level)
    said(lambda: east.wait("p", timeout=0))
    faulty.plan = {4: "crash_before"}
    with pytest.raises(BaseException, match="crash"):
        west.wait("q", "old", 60)
    faulty.revive()
    assert east.wait("p", "P") == {"east/p": "P", "west/q": "old"}
    assert east.delete()
    clock.advance(1)
    if made_again:
        said(lambda: east.wait("p", timeout=0))
    with pytest.raises(NotFound, match="was deleted or has expired"):
        west.wait("q", "new", timeout=1)
    said(lambda: east.wait("p", timeout=0))
    clock.at(1.0, lambda: east.wait("p", "P"))
    assert west.wait("q", "new", timeout=2) == {"east/p": "P", "west/q": "new"}


@pytest.mark.parametrize("is_shipped", [True, False])
def test_an_old_arrival_in_another_farm_does_not_count_once_the_clock_was_set_back(memory, clock, is_shipped):
    """The farm that decides has lost the record, and opens the barrier anew."""
    parties, level = ["east/p", "west/q"], LatchLevel.XDC
    east = Barrier(memory, "shop", "b", parties=parties, farm_id="east", level=level)
    west = Barrier(memory, "shop", "b", parties=parties, farm_id="west", level=level)
    said(lambda: east.wait("p", timeout=0))
    clock.at(1.0, lambda: east.wait("p", "P", 60))
    assert west.wait("q", "Q", 60) == {"east/p": "P", "west/q": "Q"}
    arrivals = record(memory)[AT + "west"]
    east.delete()
    clock.step(-3_600)
    memory.operate(Key(BARRIERS, "shop#b"), Put(AT + "west", arrivals), exists=Exists.ANY)  # shipped once more
    for place in () if is_shipped else (("east", "p"), ("west", "q")):  # what they brought was lost, or comes later
        memory.delete(payload_key(Key(BARRIERS, "shop#b"), place))
    with pytest.raises(WaitTimeout):
        east.wait("p", "P again", timeout=1)


# ---- bad input, handles that travel, damage


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"parties": []}, "parties is empty"),
        ({"parties": "pq"}, "give a list"),
        ({"parties": [""]}, "party is ''"),
        ({"parties": [7]}, "party is 7"),
        ({"parties": ["x" * 101]}, "101 bytes; at most 100"),
        ({"parties": [str(n) for n in range(1001)]}, "more than 1,000"),
        ({"parties": ["p"], "level": LatchLevel.XDC}, "in no farm"),
        ({"parties": ["p"], "level": "dc"}, "level"),
        ({"parties": ["p"], "ttl": 0}, "ttl"),
        ({"parties": ["p"], "farm_id": "much-too-long"}, "farm_id"),
    ],
)
def test_bad_barriers_are_refused_before_any_call(memory, given, message):
    with pytest.raises(InvalidRequest, match=message):
        Barrier(memory, "shop", "b", **given)
    for client, name in (("", "b"), ("a#b", "b"), ("shop", "")):
        with pytest.raises(InvalidRequest):
            Barrier(memory, client, name, parties=["p"])
    assert memory.total == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("stranger",), "not one of the parties"),
        (("p", object()), "cannot be stored as JSON"),
        (("p", "x" * 65_536), "65538 bytes as JSON; at most 65536"),
        (("p", None, -1), "timeout"),
    ],
)
def test_bad_waits_are_refused_before_any_call(memory, arguments, message):
    with pytest.raises(InvalidRequest, match=message):
        barrier(memory).wait(*arguments)
    with pytest.raises(InvalidRequest, match="must be a Group"):
        barrier(memory).wait("p", alive="g")
    with pytest.raises(InvalidRequest, match="reason"):
        barrier(memory).abort("")
    assert memory.total == 0


def test_who_names_other_parties_is_refused(memory):
    said(lambda: barrier(memory).wait("p", timeout=0))
    other = barrier(memory, parties=["p", "r"])
    with pytest.raises(InvalidRequest, match="other parties"):
        other.wait("p", timeout=1)
    with pytest.raises(InvalidRequest, match="other parties"):
        other.progress()  # a name that is no party's would be shown as missing
    assert other.abort("no input") is True, "a person who breaks it need not know them all"


def test_a_handle_travels(shared_store, name):
    one = barrier(shared_store, name, ("p",))
    twin = pickle.loads(pickle.dumps(one))
    assert repr(twin) == repr(one) == f"Barrier('shop#{name}', farm='a', parties=1)"
    assert twin.wait("p", [1], 30) == {"p": [1]}


@pytest.mark.parametrize("damage", [
    {ENDS + "a": {1: 5}}, {AT + "a": "x"}, {STOP + "a": [1]}, {TURN + "a": "x"}, {ENDS + "a": {1: ["late", 5]}},
    {ENDS + "a": {"x": ["met"]}}, {AT + "a": {"p": "x"}}, {STOP + "a": ["x", "late"]}, {STOP + "a": [1, 5]},
    {AT + "a": {"p": 2**60}}, {TURN + "a": 2**63 - 1}, {NAMES + "a": 5},
])  # fmt: skip
def test_a_damaged_record_is_said_to_be_corrupt(memory, damage):
    said(lambda: barrier(memory).wait("p", timeout=0))
    memory.operate(Key(BARRIERS, "shop#b"), *(Put(bin, value) for bin, value in damage.items()), exists=Exists.UPDATE)
    assert TURN + "a" in record(memory)
    with pytest.raises(Corrupt):
        barrier(memory).progress()
