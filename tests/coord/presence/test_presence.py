"""The promises of groups, over every backend and, where time matters, on a clock that the test moves."""

from __future__ import annotations

import pickle
from itertools import islice

import pytest

from latchwork.coord import CountDownLatch, Group, LatchLevel, Membership
from latchwork.coord.presence.layout import (
    ABOUT,
    BEAT,
    FENCE,
    GONE,
    GROUPS,
    ID,
    MAX_GONE,
    MAX_MEMBERS,
    MAX_META,
    MAX_NAME,
)
from latchwork.coord.waits import read
from latchwork.errors import (
    Corrupt,
    FencedOut,
    InvalidRequest,
    LatchworkError,
    OutcomeUnknown,
    PartyLost,
    RecordTooBig,
    Unavailable,
)
from latchwork.store import Add, Exists, Key, MapPut, MemoryStore, Put
from latchwork.testing.stores import Fault, FaultyStore, Outage
from tests.support.waiting import until


def bins(store, name="g"):
    return store.get(Key(GROUPS, name)).bins


def names(group):
    return [(one.farm, one.member) for one in group.members()]


def told(group, timeout, first=None):
    """What a watcher is told, the `first` changes only where it is said how many."""
    return [(change.kind, change.member.member) for change in islice(group.watch(timeout), first)]


# ---- on every backend


def test_who_joins_is_there_for_all_farms_until_it_leaves(store, name):
    east, west = Group(store, name, farm_id="east"), Group(store, name, farm_id="west")
    assert east.members() == []
    orders = east.join("orders", meta={"host": "e7"}, lease=60, keep_alive=False)
    stock = west.join("stock", lease=60, keep_alive=False)
    assert names(east) == names(west) == [("east", "orders"), ("west", "stock")]
    first, second = west.members()
    assert (first.meta, first.lease, first.fence) == ({"host": "e7"}, 60.0, orders.fence)
    assert (second.meta, second.since <= second.seen) == (None, True)
    assert orders.leave() is True
    assert orders.leave() is False
    assert names(east) == [("west", "stock")]
    stock.leave()
    assert east.members() == []
    assert east.lost() == set()


def test_a_farm_writes_its_own_bins_alone_and_the_record_lives_as_long_as_its_ttl(store, name):
    with Group(store, name, farm_id="east", ttl=500).join("p", keep_alive=False):
        record = store.get(Key("latchwork_groups", name))
        assert set(record.bins) == {"id#east", "beat#east", "about#east", "fence#east"}
        assert 490 <= record.ttl <= 500
    assert set(store.get(Key("latchwork_groups", name)).bins) == {*record.bins, "gone#east"}


def test_a_member_that_is_started_again_takes_the_place_of_the_former_one_which_is_refused(store, name):
    resource = Key("sim", name)
    group = Group(store, name)
    former = group.join("p", lease=60, keep_alive=False)
    former.operate(resource, Add("n", 1))
    later = Group(store, name).join("p", lease=60, keep_alive=False)
    assert later.fence > former.fence
    later.seal(resource)
    with pytest.raises(FencedOut):
        former.operate(resource, Add("n", 1))
    with pytest.raises(FencedOut):
        former.renew()
    assert former.lost.is_set()
    assert former.leave() is False
    later.renew()
    assert [one.fence for one in group.members()] == [later.fence]


def test_a_member_that_is_kept_alive_is_there_and_one_that_is_not_is_lost_after_its_lease(store, name):
    group = Group(store, name, farm_id="a")
    with group.join("alive", lease=6):
        joined = bins(store, name)[BEAT + "a"]["alive"]
        group.join("dead", lease=0.4, keep_alive=False)
        seen = told(Group(store, name, farm_id="a"), 30, first=3)
        assert seen == [("joined", "alive"), ("joined", "dead"), ("lost", "dead")]
        until(lambda: bins(store, name)[BEAT + "a"]["alive"] > joined)
        assert names(group) == [("a", "alive")]
        assert group.lost() == {"a/dead"}
        group.join("dead", lease=60, keep_alive=False).leave()
        assert group.lost() == set()


def test_who_leaves_when_its_time_was_over_counts_as_lost(memory, clock):
    membership = Group(memory, "g", farm_id="a").join("p", lease=1.0, keep_alive=False)
    clock.advance(1.5)
    assert membership.leave() is True
    assert Group(memory, "g", farm_id="a").lost() == {"a/p"}


def test_who_leaves_its_block_by_an_error_counts_as_lost_at_once(store, name):
    group = Group(store, name, farm_id="a")
    with pytest.raises(RuntimeError), group.join("p", lease=60, keep_alive=False):
        raise RuntimeError("out of memory")
    assert group.members() == []
    assert group.lost() == {"a/p"}
    with group.join("p", lease=60, keep_alive=False):
        assert group.lost() == set()
    assert group.lost() == set()


# ---- the dead, on a clock that the test moves


def test_who_could_not_leave_and_then_fails_counts_as_lost(memory):
    store = FaultyStore(memory, dict.fromkeys((3, 4, 5), "dropped"))
    group = Group(store, "g", farm_id="a")
    member = group.join("p", keep_alive=False)
    with pytest.raises(Unavailable):
        member.leave()
    assert member.fail()
    assert group.lost() == {"a/p"}


def test_the_dead_are_named_within_one_lease_of_the_watchers_first_look(memory, clock):
    Group(memory, "g").join("p", lease=2.0, keep_alive=False)
    began, lost = clock.monotonic(), None
    for change in Group(memory, "g").watch(10):
        if change.kind == "lost":
            lost = clock.monotonic() - began
    assert 2.0 < lost < 2.3


def test_waits_that_are_shorter_than_a_lease_end_by_a_death_one_after_the_other(memory, clock):
    """As in `while not latch.wait(timeout=1, alive=group): ...`, which went on without end."""
    group = Group(memory, "g", farm_id="a")
    group.join("orders", lease=3, keep_alive=False)
    latch = CountDownLatch.create(memory, "c", "n", parties=["orders"], farm_id="a")
    assert [latch.wait(timeout=1, alive=group) for _ in range(3)] == [False] * 3
    with pytest.raises(PartyLost, match="orders"):
        latch.wait(timeout=1, alive=group)


def test_handles_that_live_for_one_call_see_together_who_has_died(memory, clock):
    """As in a web request: each of them saw the member for the first time, and showed it however long it was dead."""
    Group(memory, "g").join("orders", lease=3, keep_alive=False)
    assert [member for _, member in names(Group(memory, "g"))] == ["orders"]
    clock.advance(3.1)
    assert names(Group(memory, "g")) == []
    assert Group(memory, "g").lost() == {f"{Group(memory, 'g').farm}/orders"}


@pytest.mark.parametrize("step", [-3600, 3600])
def test_a_server_clock_that_is_set_makes_nobody_dead_who_renews_and_nobody_alive_who_does_not(memory, clock, step):
    group = Group(memory, "g")
    alive = group.join("alive", lease=2.0, keep_alive=False)
    group.join("dead", lease=2.0, keep_alive=False)
    for half in range(1, 30):
        clock.at(half * 0.5, alive.renew)
    clock.at(0.3, lambda: clock.step(step))
    assert told(group, 10) == [("joined", "alive"), ("joined", "dead"), ("lost", "dead")]


def test_a_member_of_another_farm_that_stands_still_counts_as_lost_and_is_left_where_it_is(memory, clock):
    Group(memory, "g", farm_id="far").join("p", lease=1.0, keep_alive=False)
    near = Group(memory, "g", farm_id="near")
    assert told(near, 3) == [("joined", "p"), ("lost", "p")]
    assert names(near) == [("far", "p")], "a handle that has not watched for long yet"
    clock.advance(1.5)
    assert names(near) == []
    assert near.lost() == {"far/p"}
    assert bins(memory)[ID + "far"].keys() == {"p"}, "its farm alone writes its bins"


def test_in_a_store_that_has_the_other_farms_bins_by_a_link_its_members_come_go_and_come_back(clock):
    """A link that is cut for longer than a lease looks like a death, as nothing else is known there; until it heals."""
    stores = {farm: MemoryStore(clock) for farm in ("east", "west")}
    east, west = (Group(store, "g", farm_id=farm) for farm, store in stores.items())
    far, near = west.join("q", lease=2.0, keep_alive=False), east.join("p", lease=2.0, keep_alive=False)

    def ship():
        for here, there in (("east", "west"), ("west", "east")):
            mine = {bin: value for bin, value in bins(stores[here]).items() if bin.endswith("#" + here)}
            stores[there].operate(Key(GROUPS, "g"), *(Put(*one) for one in mine.items()), exists=Exists.ANY)

    for tenth in range(300):
        if not 80 <= tenth < 150:
            clock.at(tenth / 10, ship)
        if tenth % 5 == 0:
            clock.at(tenth / 10, near.renew)
            if tenth < 250:
                clock.at(tenth / 10, far.renew)
    seen = [(change.kind, f"{change.member.farm}/{change.member.member}") for change in east.watch(29)]
    assert seen == [
        ("joined", "east/p"), ("joined", "west/q"), ("lost", "west/q"), ("joined", "west/q"), ("lost", "west/q"),
    ]  # fmt: skip
    assert ID + "east" in bins(stores["west"])


def test_a_watcher_whose_read_takes_long_does_not_take_that_for_silence(memory, clock):
    Group(memory, "g", farm_id="far").join("p", lease=1.0, keep_alive=False)
    near = Group(FaultyStore(memory, {2: Fault("slow", seconds=0.8)}), "g", farm_id="near")
    assert names(near) == [("far", "p")]
    clock.advance(0.8)
    assert names(near) == [("far", "p")], "what is read late may have been so long before"


def test_watching_shows_who_leaves_joins_again_and_is_superseded(memory, clock):
    group = Group(memory, "g")
    first = group.join("p", lease=60, keep_alive=False)
    second = []
    clock.at(1.0, first.leave)
    clock.at(2.0, lambda: second.append(group.join("p", lease=60, keep_alive=False)))
    clock.at(3.0, lambda: group.join("p", lease=60, keep_alive=False))
    kinds = told(group, 4)
    assert kinds == [("joined", "p"), ("left", "p"), ("joined", "p"), ("left", "p"), ("joined", "p")]


@pytest.fixture
def while_looking(monkeypatch):
    """Let something happen once in another thread, right after a watcher has noted what it has read."""

    def plan(watcher, action):
        note = watcher._still.see

        def noting(*noted):
            note(*noted)
            monkeypatch.undo()
            action()

        monkeypatch.setattr(watcher._still, "see", noting)

    return plan


class Paused:
    """What a thread has read before it was paused."""

    def __init__(self, memory):
        self._answer = read(memory, Key(GROUPS, "g"), ())

    def read(self):
        return self._answer


def test_a_member_that_beats_is_not_removed_as_a_thread_of_the_same_handle_was_paused(memory, clock, while_looking):
    member, group = Group(memory, "g").join("p", lease=1.0, keep_alive=False), Group(memory, "g")
    paused = Paused(memory)
    clock.advance(0.9)
    member.renew()
    clock.advance(0.6)
    while_looking(group._watcher, lambda: group._watcher.look(paused))
    assert names(group) == [("local", "p")]
    member.renew()


def test_a_thread_looks_at_a_group_while_another_still_knows_a_member_that_has_left(memory, clock, while_looking):
    left, group = Group(memory, "g", farm_id="west").join("p", lease=1.0, keep_alive=False), Group(memory, "g")
    paused = Paused(memory)
    left.leave()
    clock.advance(1.5)
    while_looking(group._watcher, lambda: group._watcher.look(paused))
    assert group.members() == []


# ---- limits, cost, doubt


def test_a_farm_has_a_largest_number_of_members(memory):
    group = Group(memory, "g", farm_id="a")
    group.join("first", lease=60, keep_alive=False)
    puts = [op for n in range(MAX_MEMBERS - 1) for op in (
        MapPut(ID + "a", f"m{n}", "x"), MapPut(BEAT + "a", f"m{n}", 1), MapPut(ABOUT + "a", f"m{n}", [1, 1, 1, "null"]),
    )]  # fmt: skip
    memory.operate(Key(GROUPS, "g"), *puts)
    with pytest.raises(InvalidRequest, match="1000 members in farm 'a'"):
        group.join("one more")
    assert group.join("m7", lease=60, keep_alive=False).leave()
    assert len(Group(memory, "g", farm_id="b").members()) == MAX_MEMBERS - 1
    Group(memory, "g", farm_id="b").join("another farm's", keep_alive=False)


def test_the_last_place_in_a_farm_that_another_takes_meanwhile_is_not_taken_twice(memory, monkeypatch):
    group, get = Group(memory, "g", farm_id="a"), memory._get
    group.join("first", lease=60, keep_alive=False)
    places = {f"m{n}": "x" for n in range(MAX_MEMBERS - 2)}
    memory.operate(Key(GROUPS, "g"), *(MapPut(ID + "a", name, id) for name, id in places.items()))

    def taken_after(key, bins):
        found = get(key, bins)
        monkeypatch.undo()
        memory.operate(Key(GROUPS, "g"), MapPut(ID + "a", "another", "x"))
        return found

    monkeypatch.setattr(memory, "_get", taken_after)
    with pytest.raises(InvalidRequest, match="1000 members in farm 'a'"):
        group.join("too late", keep_alive=False)


def test_the_members_of_all_farms_share_a_record_and_who_finds_no_room_in_it_is_told_what_to_do(memory):
    about = [1, 10_000, 1_764_000_000_000, "m" * MAX_META]

    def fill(farm, n):
        full = [f"{one:04}".ljust(MAX_NAME, "x") for one in range(n)]
        memory.operate(
            Key(GROUPS, "g"), Put(ID + farm, dict.fromkeys(full, "0" * 20)), Put(BEAT + farm, dict.fromkeys(full, 1)),
            Put(ABOUT + farm, dict.fromkeys(full, about)), exists=Exists.ANY,
        )  # fmt: skip

    def join_all():
        for n in range(60):
            group.join(f"new {n:03}".ljust(MAX_NAME, "x"), meta="m" * (MAX_META - 2), lease=60, keep_alive=False)

    fill("a", MAX_MEMBERS)
    fill("b", 880)
    group = Group(memory, "g", farm_id="b")
    with pytest.raises(RecordTooBig, match=r"no room for .* with 200 bytes .* all farms, \d+ in .* use several groups"):
        join_all()


def test_what_is_kept_of_those_who_have_gone_is_bounded_and_the_lost_stay_longest(memory):
    group = Group(memory, "g", farm_id="a")
    group.join("p", lease=60, keep_alive=False)
    puts = [MapPut(GONE + "a", f"m{n}", ("lost:x" if n < 5 else "left:x")) for n in range(2 * MAX_GONE + 1)]
    memory.operate(Key(GROUPS, "g"), *puts)
    group.members()
    assert len(bins(memory)[GONE + "a"]) == MAX_GONE
    assert group.lost() == {f"a/m{n}" for n in range(5)}


def test_joining_is_two_calls_and_a_heartbeat_and_leaving_are_one(memory):
    group = Group(memory, "g")
    membership = group.join("p", keep_alive=False)
    assert memory.calls == {"get": 1, "operate": 1}
    memory.reset()
    membership.renew()
    assert memory.calls == {"operate": 1}
    membership.leave()
    group.members()
    assert memory.calls == {"operate": 2, "get": 1}


def test_where_the_group_cannot_be_asked_after_doubt_the_outcome_is_unknown(memory):
    faulty = FaultyStore(memory, {2: "reply_lost", 4: "dropped", 5: "dropped", 6: "dropped"})
    with pytest.raises(OutcomeUnknown, match="may have joined"):
        Group(faulty, "g").join("p", keep_alive=False)


def test_others_who_join_and_leave_under_the_name_meanwhile_make_it_begin_again(memory):
    faulty = FaultyStore(memory, {})
    faulty.plan[2] = lambda: Group(memory, "g").join("p", keep_alive=False)
    membership = Group(faulty, "g").join("p", lease=60, keep_alive=False)
    membership.renew()
    plan = {turn: (lambda: Group(memory, "g").join("p", keep_alive=False)) for turn in range(2, 60, 2)}
    with pytest.raises(LatchworkError, match="a name of its own"):
        Group(FaultyStore(memory, plan), "g").join("p", keep_alive=False)


def test_when_the_record_is_gone_members_hear_of_it_and_may_join_anew(memory):
    group = Group(memory, "g")
    membership = group.join("p", lease=60, keep_alive=False)
    memory.inner.delete(Key(GROUPS, "g"))
    with pytest.raises(FencedOut):
        membership.renew()
    assert membership.leave() is False
    assert group.members() == []
    assert group.join("p", lease=60, keep_alive=False).fence >= membership.fence


# ---- bad input, before any I/O; handles that travel; damage


@pytest.mark.parametrize(
    ("arguments", "given", "message"),
    [
        (("",), {}, "member is ''"),
        ((5,), {}, "member is 5"),
        (("x" * 101,), {}, "101 bytes; at most 100"),
        (("p",), {"lease": 0}, "lease is 0"),
        (("p",), {"meta": {"x": object()}}, "meta cannot be stored as JSON"),
        (("p",), {"meta": float("nan")}, "meta cannot be stored as JSON"),
        (("p",), {"meta": "x" * 200}, "meta has 202 bytes"),
    ],
)
def test_bad_members_are_refused_before_any_call(memory, arguments, given, message):
    with pytest.raises(InvalidRequest, match=message):
        Group(memory, "g").join(*arguments, **given)
    assert memory.total == 0


def test_bad_groups_and_times_are_refused_before_any_call(memory):
    for given in ({"farm_id": "much-too-long"}, {"farm_id": ""}, {"ttl": 0}, {"ttl": 1.5}):
        with pytest.raises(InvalidRequest):
            Group(memory, "g", **given)
    with pytest.raises(InvalidRequest, match="name"):
        Group(memory, "")
    with pytest.raises(InvalidRequest, match="timeout"):
        Group(memory, "g").watch(-1)
    assert memory.total == 0


def test_a_lease_is_not_longer_than_the_record_lives_which_would_expire_under_the_member(memory):
    group = Group(memory, "g", ttl=5)
    with pytest.raises(InvalidRequest, match=r"lease is 5.5 s, and the record of .* lives for 5 s"):
        group.join("p", lease=5.5, keep_alive=False)
    assert memory.total == 0
    group.join("p", lease=5, keep_alive=False)


def test_a_handle_travels(shared_store, name):
    group = Group(shared_store, name, farm_id="a", ttl=77)
    twin = pickle.loads(pickle.dumps(group))
    assert repr(twin) == repr(group) == f"Group({name!r}, farm='a')"
    membership = twin.join("p", lease=60, keep_alive=False)
    assert isinstance(membership, Membership)
    assert repr(membership) == f"Membership('{name}/p', fence={membership.fence})"
    assert names(group) == [("a", "p")]


@pytest.mark.parametrize("damage", [
    {ID + "a": "x"}, {ABOUT + "a": {"p": [1]}}, {GONE + "a": {"q": 5}}, {BEAT + "a": {"p": 2**63 - 1}},
    {ABOUT + "a": {"p": [1, 1000, 1, "[" * 100_000]}}, {ABOUT + "a": {"p": [1, 0, 1, "null"]}}, {FENCE + "a": -1},
])  # fmt: skip
def test_a_damaged_record_is_said_to_be_corrupt(memory, damage):
    Group(memory, "g", farm_id="a").join("p", keep_alive=False)
    memory.operate(Key(GROUPS, "g"), *(Put(bin, value) for bin, value in damage.items()), exists=Exists.UPDATE)
    with pytest.raises(Corrupt):
        Group(memory, "g").members()


@pytest.mark.parametrize("ids", ["x", {n: n for n in range(5_000)}, {"p": 1}])
def test_whoever_joins_a_damaged_group_is_told_so_and_not_that_it_is_full(memory, ids):
    Group(memory, "g", farm_id="a").join("p", keep_alive=False)
    memory.operate(Key(GROUPS, "g"), Put(ID + "a", ids), exists=Exists.UPDATE)
    with pytest.raises(Corrupt, match="id#"):
        Group(memory, "g", farm_id="a").join("q", keep_alive=False)


# ---- waits that know the dead


def test_a_wait_for_a_latch_names_the_dead_within_their_lease(memory, clock):
    group = Group(memory, "g", farm_id="a")
    latch = CountDownLatch.create(memory, "c", "l", parties=["orders", "stock", "mails"], farm_id="a")
    for party in ("orders", "mails"):
        group.join(party, lease=2.0, keep_alive=False)
    alive = group.join("stock", lease=2.0, keep_alive=False)
    for half in range(1, 60):
        clock.at(half * 0.5, alive.renew)
    clock.at(1.0, lambda: latch.count_down(party="mails"))
    began = clock.monotonic()
    with pytest.raises(PartyLost, match="waits for orders, who died") as lost:
        CountDownLatch.get(memory, "c", "l", farm_id="a").wait(60, alive=group)
    assert lost.value.parties == ["orders"]
    assert lost.value.code == "PARTY_LOST"
    assert 2.0 < clock.monotonic() - began < 2.6
    assert latch.missing() == {"orders", "stock"}
    assert latch.missing(lost_in=group) == {"orders"}


def test_a_wait_for_a_latch_goes_on_while_nobody_it_waits_for_is_lost(memory, clock):
    group = Group(memory, "g", farm_id="a")
    latch = CountDownLatch.create(memory, "c", "l", parties=["orders", "7"], farm_id="a")
    for member in ("a stranger", "7", "orders"):
        group.join(member, lease=1.0, keep_alive=False)
    latch.count_down(party="7")
    clock.at(0.9, lambda: latch.count_down(party="orders"))
    clock.at(3.0, lambda: None)
    assert latch.wait(10, alive=group) is True
    assert latch.wait(0, alive=group) is True
    other = CountDownLatch.create(memory, "c", "m", parties=["x"], farm_id="a")
    assert other.wait(3, alive=group) is False, "who is not among its parties does not matter"
    assert other.missing(lost_in=group) == set()


def test_a_party_that_was_started_again_is_waited_for(memory, clock):
    group = Group(memory, "g", farm_id="a")
    latch = CountDownLatch.create(memory, "c", "l", parties=["p"], farm_id="a")
    group.join("p", lease=1.0, keep_alive=False)
    clock.at(0.5, lambda: group.join("p", lease=60, keep_alive=False))
    clock.at(5.0, lambda: latch.count_down(party="p"))
    assert latch.wait(10, alive=group) is True


def test_a_wait_over_several_farms_names_the_dead_of_all_of_them(memory, clock):
    xdc = {"level": LatchLevel.XDC}
    east = CountDownLatch.create(memory, "c", "l", parties=["p"], farms=["east", "west"], farm_id="east", **xdc)
    CountDownLatch.create(memory, "c", "l", parties=["q"], farms=["east", "west"], farm_id="west", **xdc)
    Group(memory, "g", farm_id="west").join("q", lease=1.0, keep_alive=False)
    group = Group(memory, "g", farm_id="east")
    with pytest.raises(PartyLost) as lost:
        east.wait(10, alive=group)
    assert lost.value.parties == ["west/q"]
    assert east.missing(["west/q", "east/p"], lost_in=group) == {"west/q"}, "as the wait has seen it"


def test_a_wait_outlives_an_outage_in_which_nobody_can_be_asked_who_is_there(memory, clock):
    latch = CountDownLatch.create(memory, "c", "l", parties=["p"], farm_id="a")
    Group(memory, "g", farm_id="a").join("p", lease=60, keep_alive=False)
    now = clock.monotonic()
    away = FaultyStore(memory, Outage(clock, now + 1, now + 15))
    clock.at(20.0, lambda: latch.count_down(party="p"))
    assert latch.wait(60, alive=Group(away, "g", farm_id="a")) is True
    assert away.fired["dropped"] > 3


def test_a_wait_ends_with_its_latch_while_nobody_can_be_asked_who_is_there(memory, clock):
    latch = CountDownLatch.create(memory, "c", "l", parties=["p"], farm_id="a")
    away = Group(FaultyStore(memory, Outage(clock, 0, 1_000)), "g", farm_id="a")
    clock.at(5.0, lambda: latch.count_down(party="p"))
    assert latch.wait(60, alive=away) is True
    assert clock.monotonic() < 10


def test_a_wait_outlives_an_outage_that_begins_between_its_look_at_the_group_and_its_next_read_of_the_latch(
    memory, clock, monkeypatch
):
    outage = Outage(clock, float("inf"), float("inf"))
    latch = CountDownLatch.create(FaultyStore(memory, outage), "c", "l", parties=["p"], farm_id="a")
    there = MemoryStore(clock)
    group = Group(there, "g", farm_id="a")
    group.join("a stranger", lease=1.0, keep_alive=False)  # it dies, so the wait reads who has counted
    read_group = there._get

    def outage_begins(key, bins):
        if clock.monotonic() >= 3 and outage.begin == float("inf"):
            outage.begin, outage.end = clock.monotonic(), clock.monotonic() + 5
        return read_group(key, bins)

    monkeypatch.setattr(there, "_get", outage_begins)
    clock.at(20.0, lambda: latch.count_down(party="p"))
    assert latch.wait(60, alive=group) is True
    assert 3 <= outage.begin < 4


def test_a_wait_is_not_given_just_anything_as_a_group(memory):
    latch = CountDownLatch.create(memory, "c", "l", 1)
    for call in (lambda: latch.wait(1, alive="g"), lambda: latch.missing(lost_in="g")):
        with pytest.raises(InvalidRequest, match="must be a Group"):
            call()
