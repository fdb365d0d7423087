"""Latches over two stores, and against counters in a dictionary."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from latchwork.coord import CountDownLatch, CountUpDownLatch, LatchLevel
from latchwork.errors import AlreadyExists, InvalidRequest, NotFound
from latchwork.store import Add, Exists, Key

from .twins import Twins, came_to, failed

TTL, HOUR = 60, 3600
FARMS = ("a", "b")
PARTIES = ("p", "q", 3)
KEY = Key("D_LTCH#distributed_latch", "D_LTCH#m#l")
picks = st.integers(0, 5)
levels = st.sampled_from(LatchLevel)
farms = st.sampled_from(FARMS)
kinds = st.sampled_from((CountDownLatch, CountUpDownLatch))
parties = st.sets(st.sampled_from(PARTIES))
XDC = LatchLevel.XDC
WAYS = ("create", "create, farms named", "join", "join, farms named")


@dataclass(eq=False)
class Counter:
    """One farm's counter; another one is made by each `create`."""

    count: int
    farms: tuple[str, ...] = ()
    named: frozenset | None = None
    parties: set = field(default_factory=set)
    by_java: bool = False

    def joined(self) -> bool:
        """Whether the farm has brought it: counts of the Java library make one by themselves."""
        return self.count >= 0 or not self.by_java

    def takes(self, party) -> bool:
        """Whether the party may count: it was named, or is of the kind of those who have counted."""
        if self.named is not None and party not in self.named:
            return False
        return (
            not self.parties
            or party in self.parties
            or isinstance(party, str) == isinstance(next(iter(self.parties)), str)
        )


@dataclass
class Handle:
    """A latch on both sides, the seconds that its counts give the record, and the counter that it means, once known."""

    twins: tuple
    farm: str
    level: LatchLevel
    ttl: int | None = None
    means: Counter | None = None


class Latches(Twins):
    """One latch of two farms, and some handles on it."""

    def start(self):
        self.counters: dict[str, Counter] = {}
        self.expires = 0.0
        self.handles: list[Handle] = []

    def alive(self) -> dict[str, Counter]:
        """The counters by farm, as long as the record lives."""
        if self.movable and self.now >= self.expires:
            self.counters = {}
        return self.counters

    def written(self, ttl: int | None) -> None:
        if ttl is not None:
            self.expires = int(self.now * 1000) / 1000 + ttl

    def meant(self, handle: Handle) -> Counter | None:
        """The counter that the handle counts, or None where it would not be counted."""
        there = self.alive().get(handle.farm)
        if handle.means is None:
            handle.means = there
        return there if there is handle.means else None

    # ---- handles

    @initialize(level=levels, count=st.integers(1, 4), up=st.booleans())
    def create_first(self, level, count, up):
        self.create(CountUpDownLatch if up else CountDownLatch, "a", level, count, "create")

    @rule(kind=kinds, farm=farms, level=levels, count=st.integers(0, 4), how=st.sampled_from(WAYS))
    def create(self, kind, farm, level, count, how):
        named, join = FARMS if "named" in how and level is XDC else None, "join" in how
        options = {"farm_id": farm, "level": level, "farms": named}
        self.made(kind, join, options, Counter(count, named or ()), count=count)

    @rule(kind=kinds, farm=farms, level=levels, parties=parties, join=st.booleans())
    def create_with_parties(self, kind, farm, level, parties, join):
        options = {"farm_id": farm, "level": level}
        self.made(kind, join, options, Counter(len(parties), (), frozenset(parties)), parties=sorted(parties, key=str))

    def made(self, kind, join, options, counter, **what):
        """Creates, or joins the counter that is there."""
        make, ttl = (kind.get_or_create, HOUR) if join else (kind.create, TTL)
        options = options if join else {**options, "ttl": TTL}
        answers = self.both(lambda store: make(store, "m", "l", **what, **options), self.stores)
        if len({isinstance(party, str) for party in counter.named or ()}) > 1:
            assert came_to(answers) is InvalidRequest
            return
        farm, level = options["farm_id"], options["level"]
        there = self.alive().get(farm)
        if there is not None and level is XDC and not there.joined():
            counter.count += there.count
            counter.parties = there.parties
            there = None
        if there is None:
            assert not failed(answers)
            self.counters[farm] = counter
            self.handles.append(Handle(answers, farm, level, ttl, counter))
            self.written(ttl)
        elif not join or (None not in (counter.named, there.named) and counter.named != there.named):
            assert came_to(answers) is AlreadyExists
        else:
            assert not failed(answers)
            self.handles.append(Handle(answers, farm, level, None, there))

    @rule(kind=kinds, farm=farms, level=levels, ttl=st.none() | st.just(TTL))
    def get(self, kind, farm, level, ttl):
        answers = self.both(lambda store: kind.get(store, "m", "l", farm_id=farm, level=level, ttl=ttl), self.stores)
        self.handles.append(Handle(answers, farm, level, ttl))

    @rule(farm=farms)
    def java_counts_down(self, farm):
        """It makes the counter where there is none."""
        self.both(lambda store: store.operate(KEY, Add(f"count#{farm}", -1), exists=Exists.ANY, ttl=TTL), self.stores)
        self.alive().setdefault(farm, Counter(0, by_java=True)).count -= 1
        self.written(TTL)

    # ---- counting

    @precondition(lambda self: self.handles)
    @rule(pick=picks, n=st.sampled_from((1, 1, 2, 5)), party=st.none() | st.sampled_from(PARTIES))
    def count_down(self, pick, n, party):
        handle = self.handles[pick % len(self.handles)]
        answers = self.both(lambda latch: latch.count_down(n, party=party), handle.twins)
        counter = self.meant(handle)
        if party is not None and handle.means and handle.means.named is not None and party not in handle.means.named:
            assert came_to(answers) is InvalidRequest
        elif counter is None:
            assert came_to(answers) is NotFound
        elif party is not None and not counter.takes(party):
            assert came_to(answers) is InvalidRequest
        else:
            if party is None or party not in counter.parties:
                rest = counter.count - n
                counter.count = max(rest, min(counter.count, 0)) if handle.level is LatchLevel.DC else rest
                counter.parties |= {party} - {None}
                self.written(handle.ttl)
            assert came_to(answers) == counter.count

    @precondition(lambda self: any(isinstance(handle.twins[0], CountUpDownLatch) for handle in self.handles))
    @rule(pick=picks, n=st.integers(1, 3))
    def count_up(self, pick, n):
        able = [handle for handle in self.handles if isinstance(handle.twins[0], CountUpDownLatch)]
        handle = able[pick % len(able)]
        answers = self.both(lambda latch: latch.count_up(n), handle.twins)
        counter = self.meant(handle)
        if counter is None:
            assert came_to(answers) is NotFound
            return
        counter.count += n
        self.written(handle.ttl)
        assert came_to(answers) == counter.count

    @precondition(lambda self: self.alive() and self.handles)
    @rule(pick=picks)
    def delete(self, pick):
        handle = self.handles[pick % len(self.handles)]
        answers = self.both(lambda latch: latch.delete(), handle.twins)
        self.meant(handle)
        there = self.alive()
        # One that the Java library made has no nonce to go by.
        sure = handle.means is not None and not handle.means.by_java
        deleted = bool(there) and (not sure or there.get(handle.farm) is handle.means)
        assert came_to(answers) == deleted
        if deleted:
            self.counters = {}

    # ---- looking

    @precondition(lambda self: self.handles)
    @rule(pick=picks)
    def look(self, pick):
        handle = self.handles[pick % len(self.handles)]
        there = self.alive()
        counts = {farm: counter.count for farm, counter in sorted(there.items())}
        missing = not counts or not self.is_the_one(handle, there.get(handle.farm))
        assert came_to(self.both(lambda latch: latch.counts(), handle.twins)) == (NotFound if missing else counts)
        parties, left = (came_to(self.both(verb, handle.twins)) for verb in (_parties, _missing))
        if missing:
            assert (parties, left) == (NotFound, NotFound)
        else:
            farms = there if handle.level is XDC else {handle.farm: there.get(handle.farm) or Counter(0)}
            counted = {farm: counter.parties for farm, counter in farms.items()}
            assert parties == self.names(handle, counted)
            assert left == self.names(handle, {farm: (one.named or set()) - one.parties for farm, one in farms.items()})
        absent = {farm for counter in there.values() for farm in counter.farms}
        absent -= {farm for farm, counter in there.items() if counter.joined()}
        if handle.level is LatchLevel.DC:
            missing, absent = missing or handle.farm not in counts, set()
            counts = {farm: count for farm, count in counts.items() if farm == handle.farm}
        remaining = sum(counts.values())
        released = remaining <= 0 and not absent
        assert came_to(self.both(lambda latch: latch.count(), handle.twins)) == (NotFound if missing else remaining)
        assert came_to(self.both(lambda latch: latch.wait(0), handle.twins)) == (NotFound if missing else released)
        self.both(lambda latch: latch.progress(), handle.twins)

    @precondition(lambda self: self.handles)
    @rule(pick=picks)
    def ask_who_was_named(self, pick):
        handle = self.handles[pick % len(self.handles)]
        answers = self.both(lambda latch: latch.expected(), handle.twins)
        self.meant(handle)
        if handle.means is None:
            assert came_to(answers) is NotFound
        else:
            named = came_to(answers)
            assert (None if named is None else set(named)) == handle.means.named

    def is_the_one(self, handle, there) -> bool:
        """Whether a look of the handle is at the latch that it means. The Java library's has no nonce to go by."""
        if handle.means is None or there is handle.means:
            return True
        return handle.means.by_java and (there is None or there.by_java)

    def names(self, handle, by_farm) -> set:
        """Parties as a handle names them."""
        if handle.level is LatchLevel.DC:
            return set(by_farm[handle.farm])
        return {f"{farm}/{party}" for farm, parties in by_farm.items() for party in parties}


def _parties(latch):
    return latch.parties()


def _missing(latch):
    return latch.missing()


def test_latches_count_alike_over_both_stores_and_as_counters_in_a_dictionary(agree):
    agree(Latches, "latches")
