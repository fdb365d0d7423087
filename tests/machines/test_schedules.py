"""Schedules over two stores, and against a plan of which tick is due when: two leaders, who fail, and who changes what.

Each leader is a process with a store of its own, which can lose replies, refuse calls and crash, and another process
may do something between two of its calls. After each step all queues are emptied, so the model knows what was
published. Over a real server the last tick is set back instead of the clock.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from latchwork.errors import Corrupt, InvalidRequest, NotFound
from latchwork.queue import QueueConfig, QueueRegistry, Schedule
from latchwork.queue.sharded.delayed.schedules import ScheduleRecords, to_ms
from latchwork.queue.sharded.upkeep.scheduling import Scheduling
from latchwork.store import Compute, MapPut, MapRemove
from latchwork.store.model.expr import SERVER_NOW
from latchwork.testing.clock import START
from latchwork.testing.stores import Fault

from .processes import CRASHED, STRUCK, Client, Own, Term, Worker, calm, lead, strike
from .ticks import IN_TIME, LINES, Life, Plan
from .twins import Twins, came_to, failed, outcome, time_passes

CLIENT, FARM = f"s{os.getpid()}", "f"
NAMES, QUEUES = ("one", "two"), ("q", "r")
BEGINNINGS = ("2023-11-14T22:10:00+00:00", "2024-03-30T20:00:00+00:00", "2024-10-26T20:00:00+00:00")
"""The last two are before the nights in which an hour is skipped, and in which one comes twice."""
STOPPED = ("crash_before", "crash_after", "late", *STRUCK)
MEANWHILE = ("the other one leads", "put", "remove", "time passes", "lose the term")
MACHINES, PASSES = count(1), 20
CROWDED = 100
"""Ticks at most that are published in one step."""
picks = st.integers(0, 5)
places = st.just("latchwork-schedules") | st.integers(1, 14)
"""Calls of a pass, by their number; or that which notes a tick."""
waits = st.sampled_from((0.0, 61.0, 4_000.0, 50_000.0))
names, queues, lines = st.sampled_from(NAMES), st.sampled_from(QUEUES), st.sampled_from(LINES)
missed_ways = st.sampled_from(("skip", "last", "all"))


class Schedules(Twins):
    """Two schedules, two queues, two leaders, and an administrator."""

    def start(self):
        self.machine = 0 if self.movable else next(MACHINES)
        self.plan, self.step, self.number = Plan(), 0, 0
        self.closed: set[str] = set()
        self.landing = False
        self.former: list[Worker] = []

    @initialize(beginning=st.sampled_from(BEGINNINGS), line=lines, missed=missed_ways)
    def make(self, beginning, line, missed):
        for clock in self.clocks:
            if self.movable:
                clock.advance(datetime.fromisoformat(beginning).timestamp() - START)
        self.admin, self.leaders = self.process(), [self.process(), self.process()]
        for name in QUEUES:
            self.both(lambda registry, name=name: registry.create(QueueConfig(name, shards=1)), self.admin.registries)
        self.records = self.both(lambda store: ScheduleRecords(store, CLIENT, FARM), self.stores)
        self.put(name=NAMES[0], queue=QUEUES[0], line=line, missed=missed, kind=None, place=1)

    def process(self) -> Worker:
        stores = tuple(Client(store) for store in self.stores)
        registries = tuple(QueueRegistry(store, CLIENT, farm_id=FARM) for store in stores)
        duties = tuple(Scheduling(Own(registry)) for registry in registries)
        return Worker(stores, registries, (Term(), Term()), duties)

    @property
    def ms(self) -> int:
        """The server's time on the memory side, which stands still on a record after the clock was set back."""
        try:
            return self.stores[0].operate(self.records[0].key, Compute(SERVER_NOW))[0]
        except NotFound:
            return int(self.now * 1000)

    # ---- the administrator

    @rule(
        name=names, queue=queues, line=lines, missed=missed_ways, kind=st.none() | st.sampled_from(STRUCK),
        place=st.integers(1, 3),
    )  # fmt: skip
    def put(self, *, name, queue, line, missed, kind, place):
        """A new schedule, or other settings for one that is there."""
        self.step, name = self.step + 1, self.named(name)
        if kind is not None:
            strike(self.admin.stores, place, Fault(kind))
        life = self.new(name, queue, line, missed)
        schedule = self.schedule_of(name, life)
        assert not failed(self.both(lambda registry: registry.schedule(schedule), self.admin.registries))
        calm(self.admin.stores)
        self.plan.put(name, life, self.step)
        self.take_over_what_is_settled()

    def new(self, name: str, queue: str, line: Any, missed: str) -> Life:
        self.number += 1
        if not self.movable:  # what comes to the same at any time of day
            line, missed = LINES[2 if line.step < 3600 else 5], "last" if missed == "skip" else missed
        return Life(self.number, queue, line, missed, self.ms)

    def named(self, name: str) -> str:
        """Return a name that no machine before has used: a real server still has its ledger."""
        return f"{name} {self.machine}"

    def schedule_of(self, name: str, life: Life) -> Schedule:
        return Schedule(name, life.queue, life.number, missed=life.missed, **life.line.given)

    def take_over_what_is_settled(self) -> None:
        """The last ticks, of those that were put now: their requests may have taken a while."""
        _, last = self.records[0].read()
        for name, life in self.plan.lives.items():
            if life.last is not None and life.last != last.get(name):
                assert life.last <= last[name] <= self.ms
                life.last = last[name]

    @rule(name=names, kind=st.none() | st.sampled_from(STRUCK))
    def remove(self, name, kind):
        self.step, name = self.step + 1, self.named(name)
        if kind is not None:
            strike(self.admin.stores, 1, Fault(kind))
        removed = self.both(lambda registry: registry.unschedule(name), self.admin.registries)
        calm(self.admin.stores)
        assert came_to(removed) is (None if self.plan.remove(name, self.step) else NotFound)

    @rule()
    def list(self):
        found = self.both(lambda registry: registry.schedules(), self.admin.registries)
        if any(life.damaged for life in self.plan.lives.values()):
            assert came_to(found) is Corrupt
        else:
            assert found[0] == [self.schedule_of(name, life) for name, life in sorted(self.plan.lives.items())]

    @rule(queue=queues)
    def close_or_open(self, queue):
        """And deploy, so that every process knows it: a queue that is closed gets no ticks, which are due later."""
        closes = queue not in self.closed
        change = (
            (lambda registry: registry.deactivate(queue))
            if closes
            else lambda registry: registry.create(QueueConfig(queue, shards=1)) and None
        )
        assert came_to(self.both(change, self.admin.registries)) is None
        (self.closed.add if closes else self.closed.remove)(queue)
        self.former += self.leaders
        self.leaders = [self.process(), self.process()]

    @precondition(lambda self: self.plan.lives)
    @rule(pick=picks)
    def damage(self, pick):
        name = sorted(self.plan.lives)[pick % len(self.plan.lives)]
        self.both(lambda one: one.store.operate(one.key, MapPut("specs", name, "{"), repeatable=True), self.records)
        self.plan.lives[name].damaged = True

    @precondition(lambda self: self.plan.lives)
    @rule(pick=picks)
    def lose_the_last_tick(self, pick):
        name = sorted(self.plan.lives)[pick % len(self.plan.lives)]
        self.both(lambda one: one.store.operate(one.key, MapRemove("last", (name,)), repeatable=True), self.records)
        self.plan.lives[name].last = None

    @rule()
    def ask_for_what_cannot_be(self):
        hour = timedelta(hours=1)
        for bad in (
            {}, {"every": hour, "cron": "* * * * *"}, {"every": "x"}, {"every": timedelta(milliseconds=1500)},
            {"cron": "* * *"}, {"cron": "61 * * * *"}, {"cron": "0 0 31 2 *"}, {"cron": 5},
            {"cron": "* * * * *", "tz": "M/O"}, {"every": hour, "missed": "none"}, {"every": hour, "queue": ""},
            {"every": hour, "payload": object()}, {"every": hour, "payload": "x" * 65_536},
            {"every": hour, "name": ""}, {"every": hour, "name": "n" * 101},
        ):  # fmt: skip
            made = self.both(lambda _, bad=bad: outcome(lambda: Schedule(**{"name": "s", "queue": "q", **bad})), NAMES)
            assert came_to(made) is InvalidRequest
        self.both(lambda registry: registry.create(QueueConfig("b", shards=1, codec="bytes")), self.admin.registries)
        sound = Schedule("s", "nowhere", every=hour)
        for call, error in (
            (lambda registry: registry.schedule(sound), NotFound),
            (lambda registry: registry.schedule(Schedule("s", "b", every=hour)), InvalidRequest),
            (lambda registry: registry.schedule("s"), InvalidRequest),
            (lambda registry: registry.unschedule(""), InvalidRequest),
            (lambda registry: registry.unschedule("nobody"), NotFound),
            (lambda _: next(sound.ticks(datetime(2024, 1, 1))), InvalidRequest),  # noqa: DTZ001 - what is refused
            (lambda _: sound.due(datetime(2024, 1, 1), datetime(2024, 1, 1)), InvalidRequest),  # noqa: DTZ001
        ):
            assert came_to(self.both(call, self.admin.registries)) is error

    # ---- time

    @time_passes
    @rule(seconds=st.sampled_from((0.3, 8.0, 61.0, 400.0, 3_600.0, 30_000.0, 90_000.0)))
    def pass_time(self, seconds):
        self.let_pass(seconds)

    def let_pass(self, seconds: float) -> None:
        """Let time pass, but not for more ticks than can be published in a step, nor until a closed queue expires."""
        seconds = min(seconds, 4_000.0) if self.closed else seconds
        fine = [life.line.step for life in self.plan.lives.values() if life.missed == "all"]
        seconds = min([seconds, *(CROWDED / 5 * step for step in fine)])
        for clock in self.clocks:
            clock.advance(seconds)

    @time_passes
    @rule(seconds=st.sampled_from((1, 90, 3_000)))
    def set_the_clock_back(self, seconds):
        for clock in self.clocks:
            clock.step(-seconds)

    @precondition(lambda self: not self.movable and self.plan.lives)
    @rule(pick=picks, n=st.integers(1, 3))
    def have_been_away(self, pick, n):
        """On a real server: the last tick is so long ago."""
        name = sorted(self.plan.lives)[pick % len(self.plan.lives)]
        away = int(n * self.plan.lives[name].line.step * 1000)

        def set_back(records):
            last = to_ms(records.with_time()[2]) - away
            records.store.operate(records.key, MapPut("last", name, last), repeatable=True)

        assert not failed(self.both(set_back, self.records))
        self.plan.lives[name].last = self.ms - away

    @precondition(lambda self: not self.movable)
    @rule(pick=picks)
    def lead_on_a_server(self, pick):
        """A pass of which both sides publish as many ticks, though not the same ones."""
        due = []
        for name, life in self.plan.lives.items():
            if life.damaged or (life.queue in self.closed and life.due(self.ms)[0]):
                continue
            ticks, life.last = life.due(self.ms)
            due += [(name, life.number) for tick in ticks if tick not in self.plan.seen[name]]
            self.plan.seen[name] |= set(ticks)
        leader = self.leaders[pick % 2]
        self.both(lambda duty, term: lead(duty, term) > 0, leader.duties, leader.terms)

        def published(registry):
            got = [one for name in QUEUES for one in registry.get(name).receive(1000)]
            return sorted((one.message_id.partition("@")[0], one.payload) for one in got if one.ack() is None)

        assert self.both(published, self.admin.registries)[0] == sorted(due)

    # ---- the leaders

    @time_passes
    @rule(pick=picks, new=st.booleans(), seconds=waits)
    def lead(self, pick, new, seconds):
        """A pass in which nothing fails, by a leader that there is, or by one that has just started."""
        self.step += 1
        self.let_pass(seconds)
        if new:
            self.former.append(self.leaders[pick % 2])
            self.leaders[pick % 2] = self.process()
        self.passed(self.leaders[pick % 2])

    @time_passes
    @rule(pick=picks, queue=queues)
    def lead_while_consumers_pause(self, pick, queue):
        """Ticks are published all the same."""
        self.step += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.both(lambda registry: registry.get(queue).pause(), self.admin.registries)
        self.passed(self.leaders[pick % 2], paused=queue)

    def passed(self, leader: Worker, paused: str | None = None) -> None:
        expected = []
        for name, life in self.plan.lives.items():
            if life.damaged or (life.queue in self.closed and life.due(self.ms)[0]):
                continue
            ticks, life.last = life.due(self.ms)
            expected += [(life.queue, name, tick, life.number) for tick in ticks if tick not in self.plan.seen[name]]
        for _ in range(PASSES):  # each looks at so many ticks of a schedule, and the next one follows at once
            pauses = self.both(lead, leader.duties, leader.terms)
            assert 0 < pauses[0] <= 15
            if pauses[0] > 0.05:
                break
        if paused is not None:
            assert self.drained(paused) == []
            self.both(lambda registry: registry.get(paused).resume(), self.admin.registries)
        found = self.drained()
        assert sorted(found) == sorted(expected), "each tick that is due is published, and nothing else"
        _, last = self.records[0].read()
        assert last == {name: life.last for name, life in self.plan.lives.items() if life.last is not None}

    @time_passes
    @rule(pick=picks, place=places, kind=st.sampled_from(STOPPED), seconds=waits)
    def lead_and_fail(self, pick, place, kind, seconds):
        self.let_pass(seconds)
        leader = self.leaders[pick % 2]
        strike(leader.stores, place, Fault(kind))
        self.raced(leader)

    @time_passes
    @rule(
        pick=picks, place=places, what=st.sampled_from(MEANWHILE), name=names, line=lines, missed=missed_ways,
        seconds=waits,
    )  # fmt: skip
    def lead_while_something_happens(self, *, pick, place, what, name, line, missed, seconds):
        """Something else happens between two calls of a leader."""
        name = self.named(name)
        self.let_pass(seconds)
        leader, other = self.leaders[pick % 2], self.leaders[1 - pick % 2]
        life, happened = self.new(name, "q", line, missed), [False, False]
        schedule = self.schedule_of(name, life)

        def meanwhile(side: int) -> Callable[[], None]:
            def act() -> None:
                happened[side] = True
                if what == "the other one leads":
                    lead(other.duties[side], other.terms[side])
                elif what == "put":
                    self.admin.registries[side].schedule(schedule)
                elif what == "remove":
                    outcome(lambda: self.admin.registries[side].unschedule(name))
                elif what == "time passes":
                    self.clocks[side].advance(30)
                else:
                    leader.terms[side].lost = True

            return act

        strike(leader.stores, place, (meanwhile(0), meanwhile(1)))
        self.raced(leader, changes=lambda: happened[0] and self.changed(what, name, life))

    def changed(self, what: str, name: str, life: Life) -> None:
        if what == "put":
            self.plan.put(name, life, self.step)
        elif what == "remove":
            self.plan.remove(name, self.step)

    def raced(self, leader: Worker, changes: Callable[[], object] = lambda: None) -> None:
        """A pass whose result the model does not foretell: what is published must be due, and what is settled was."""
        self.step += 1
        began = self.ms
        came = self.both(lead, leader.duties, leader.terms)
        calm(leader.stores)
        for term in leader.terms:
            term.lost = False
        changes()
        if came[0] == CRASHED:
            self.former.append(leader)
            self.leaders[self.leaders.index(leader)] = self.process()
        before = {name: life.last for name, life in self.plan.lives.items()}
        self.judge(self.drained(), began)
        self.settled(before, began)

    @precondition(lambda self: any(store.pending for one in self.everybody() for store in one.stores))
    @rule()
    def deliver(self):
        """What was late lands now."""
        self.step += 1
        self.landing = True
        for process in self.everybody():
            self.both(lambda store: store.deliver(), process.stores)
        self.former = []
        before = {name: life.last for name, life in self.plan.lives.items()}
        self.judge(self.drained(), self.ms)
        self.settled(before, self.ms)
        self.landing = False

    def everybody(self) -> list[Worker]:
        return [*self.__dict__.get("leaders", ()), *self.former]

    def settled(self, before: dict[str, int | None], began: int) -> None:
        """Take over up to where each schedule is settled; nothing may be settled that was not published."""
        _, last = self.records[0].read()
        assert last.keys() <= self.plan.lives.keys()
        for name, life in self.plan.lives.items():
            old, new = before[name], last.get(name)
            if old is None or new is None or new == old or life.damaged:
                assert new is not None or old is None
            else:
                assert new > old, "it never goes back"
                ticks = life.line.ticks(old, new)
                assert ticks[-1:] == [new] or began <= new <= self.ms
                unpublished = set(ticks if life.missed == "all" else ticks[-1:]) - self.plan.seen[name]
                if life.missed == "skip":
                    unpublished = {tick for tick in unpublished if began - tick <= IN_TIME}
                assert not unpublished, "published first, then settled"
            life.last = new

    # ---- what was published

    def drained(self, *queues: str) -> list[tuple[str, str, int, int]]:
        """Everything that was published since the last time, each tick once."""
        found = []
        for queue in queues or QUEUES:
            taken = self.both(lambda registry, queue=queue: registry.get(queue), self.admin.registries)
            got = self.both(lambda one: one.receive(1000), taken)
            assert not failed(self.both(lambda one, some: one.ack_many(some), taken, got))
            for delivery in got[0]:
                name, _, tick = delivery.message_id.partition("@")
                found.append((queue, name, to_ms(datetime.fromisoformat(tick)), delivery.payload))
        for _, name, tick, _ in found:
            assert tick not in self.plan.seen[name], "each tick is published once"
            assert tick <= self.ms, "and none early"
            self.plan.seen[name].add(tick)
        return found

    def judge(self, found: list[tuple[str, str, int, int]], began: int) -> None:
        """Whether all of these were due, of schedules that were there in this step."""
        for queue, name, tick, number in found:
            life = self.plan.lived(name, number, self.step)
            assert life is not None or self.landing, "nothing is published of a schedule that is not there"
            if life is not None:
                assert queue == life.queue
                assert queue not in self.closed
                assert tick in life.possible(began, self.ms), "nothing is published that is not due"

    @invariant()
    def the_schedules_are_as_they_were_put(self):
        if "records" not in self.__dict__:
            return
        specs, _ = self.records[0].read()
        assert specs.keys() == self.plan.lives.keys()
        for name, life in self.plan.lives.items():
            assert life.damaged or Schedule.from_json(name, specs[name]) == self.schedule_of(name, life)

    @invariant()
    def the_records_are_the_same(self):
        if self.movable:  # else the ticks are those of two clocks
            super().the_records_are_the_same()

    def teardown(self):
        """In the end, and half a day later, a leader publishes all that is due."""
        if "records" in self.__dict__ and self.movable:
            if any(store.pending for one in self.everybody() for store in one.stores):
                self.deliver()
            for seconds in (0.0, 50_000.0):
                self.step += 1
                self.let_pass(seconds)
                self.passed(self.process())
        super().teardown()


def test_schedules_tick_alike_over_both_stores_and_as_a_plan_says(agree):
    agree(Schedules, "schedules")
