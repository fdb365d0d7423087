"""Latches over two stores, and against counters in a dictionary."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from latchwork.coord import CountDownLatch, CountUpDownLatch, LatchLevel
from latchwork.errors import AlreadyExists, NotFound

from .twins import Twins, came_to, failed

TTL = 60
FARMS = ("a", "b")
PARTIES = ("p", "q", 3)
picks = st.integers(0, 5)
levels = st.sampled_from(LatchLevel)
farms = st.sampled_from(FARMS)


@dataclass
class Counter:
    """One farm's counter; another one is made by each `create`."""

    count: int
    named: tuple[str, ...]
    parties: set = field(default_factory=set)


@dataclass
class Handle:
    """A latch on both sides, and the counter that it means, once it knows."""

    twins: tuple
    farm: str
    level: LatchLevel
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

    def written(self) -> None:
        self.expires = int(self.now * 1000) / 1000 + TTL

    def meant(self, handle: Handle) -> Counter | None:
        """The counter that the handle counts, or None where it would not be counted."""
        there = self.alive().get(handle.farm)
        if handle.means is None:
            handle.means = there
        return there if there is handle.means else None

    # ---- handles

    @initialize(level=levels, count=st.integers(1, 4), up=st.booleans())
    def create_first(self, level, count, up):
        self.create(CountUpDownLatch if up else CountDownLatch, "a", level, count, False)

    @rule(
        kind=st.sampled_from((CountDownLatch, CountUpDownLatch)), farm=farms, level=levels, count=st.integers(0, 4),
        named=st.booleans(),
    )  # fmt: skip
    def create(self, kind, farm, level, count, named):
        named = FARMS if named and level is LatchLevel.XDC else None
        self.made(
            lambda store: kind.create(store, "m", "l", count, farm_id=farm, level=level, farms=named, ttl=TTL),
            Handle((), farm, level), Counter(count, named or ()),
        )  # fmt: skip

    @rule(farm=farms, level=levels, parties=st.sets(st.sampled_from(PARTIES)))
    def create_with_parties(self, farm, level, parties):
        ordered = sorted(parties, key=str)
        self.made(
            lambda store: CountDownLatch.create(store, "m", "l", parties=ordered, farm_id=farm, level=level, ttl=TTL),
            Handle((), farm, level), Counter(len(parties), ()),
        )  # fmt: skip

    def made(self, make, handle, counter):
        answers = self.both(make, self.stores)
        if handle.farm in self.alive():
            assert came_to(answers) is AlreadyExists
            return
        assert not failed(answers)
        handle.twins, handle.means = answers, counter
        self.counters[handle.farm] = counter
        self.handles.append(handle)
        self.written()

    @rule(farm=farms, level=levels, count=st.none() | st.integers(0, 3))
    def join(self, farm, level, count):
        """Get a handle; with a count, one that makes the counter where there is none."""
        options = {"farm_id": farm, "level": level, "ttl": TTL}
        if count is None:
            make = lambda store: CountUpDownLatch.get(store, "m", "l", **options)  # noqa: E731
        else:
            make = lambda store: CountUpDownLatch.get_or_create(store, "m", "l", count, **options)  # noqa: E731
        handle = Handle(self.both(make, self.stores), farm, level)
        if count is not None and farm not in self.alive():
            handle.means = self.counters[farm] = Counter(count, ())
            self.written()
        self.handles.append(handle)

    # ---- counting

    @precondition(lambda self: self.handles)
    @rule(pick=picks, n=st.sampled_from((1, 1, 2, 5)), party=st.none() | st.sampled_from(PARTIES))
    def count_down(self, pick, n, party):
        handle = self.handles[pick % len(self.handles)]
        answers = self.both(lambda latch: latch.count_down(n, party=party), handle.twins)
        counter = self.meant(handle)
        if counter is None:
            assert came_to(answers) is NotFound
            return
        if party is None or party not in counter.parties:
            rest = counter.count - n
            counter.count = max(rest, min(counter.count, 0)) if handle.level is LatchLevel.DC else rest
            counter.parties |= {party} - {None}
            self.written()
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
        self.written()
        assert came_to(answers) == counter.count

    @precondition(lambda self: self.alive() and self.handles)
    @rule(pick=picks)
    def delete(self, pick):
        handle = self.handles[pick % len(self.handles)]
        answers = self.both(lambda latch: latch.delete(), handle.twins)
        self.meant(handle)
        there = self.alive()
        deleted = bool(there) and (handle.means is None or there.get(handle.farm) is handle.means)
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
        missing = not counts
        absent = {farm for counter in there.values() for farm in counter.named} - counts.keys()
        assert came_to(self.both(lambda latch: latch.counts(), handle.twins)) == (NotFound if missing else counts)
        if handle.level is LatchLevel.DC:
            missing, absent = handle.farm not in counts, set()
            counts = {farm: count for farm, count in counts.items() if farm == handle.farm}
        remaining = sum(counts.values())
        released = remaining <= 0 and not absent
        assert came_to(self.both(lambda latch: latch.count(), handle.twins)) == (NotFound if missing else remaining)
        assert came_to(self.both(lambda latch: latch.wait(0), handle.twins)) == (NotFound if missing else released)
        self.both(lambda latch: latch.progress(), handle.twins)
        self.both(lambda latch: latch.missing(), handle.twins)
        parties = self.both(lambda latch: latch.parties(), handle.twins)
        if there and handle.level is LatchLevel.XDC:
            assert came_to(parties) == {f"{farm}/{party}" for farm in there for party in there[farm].parties}


def test_latches_count_alike_over_both_stores_and_as_counters_in_a_dictionary(agree):
    agree(Latches, "latches")
