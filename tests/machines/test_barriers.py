"""Barriers over two stores, and against a plain list of meetings: parties who wait, are late, die, and start again.

Each party is a process with a store of its own, which can lose replies, refuse calls and crash. A machine has one
thread, so a wait that is not to end is interrupted after a while; the next wait of that process continues it. Where
something happens in the middle of a wait, the model does not foretell the end: then the record says how the meetings
ended, and what the parties were told must agree with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from latchwork.coord import Barrier, Group, LatchLevel
from latchwork.coord.barrier.layout import KEPT_PAYLOADS, SAID, BarrierState, barrier_key, payload_key
from latchwork.errors import InvalidRequest, NotFound, OutcomeUnknown, Unavailable, WaitTimeout
from latchwork.testing.stores import Fault

from .meetings import INTERRUPTED, LEASE, Generation, Meetings, plainly
from .processes import CRASHED, STRUCK, Client, Clock, Party, calm, interrupt, strike, wait_for_all
from .twins import SQLite, Twins, came_to, outcome, time_passes

LONG = 3.0
WAYS = ((True, 0.3), (True, LONG), (False, 0.0), (False, 0.3), (False, LONG))
"""Whether the wait is interrupted, and after how many seconds it is, or its timeout is over."""
HASTY = ((True, 0.3), (False, 0.0))
STOPPED = ("interrupt", "crash_before", "crash_after", "late")
MEANWHILE = ("wait a while", "do not wait", "abort", "delete", "start again")
KEY = barrier_key("m", "b")
picks, places = st.integers(0, 5), st.integers(1, 9)
ways = st.sampled_from(WAYS)


class Barriers(Twins):
    """One barrier, its parties, and their group."""

    clock = Clock

    def start(self):
        self.memberships: dict[str, tuple] = {}
        self.numbers: list[int] = []
        self.former: list[Party] = []
        self.causes: set[tuple[str, ...]] = {("met",)}
        self.brought = self.highest = 0

    @initialize(n=st.integers(1, 3), far=st.booleans())
    def parties(self, n, far):
        names = dict.fromkeys("pqr"[:n], "a")
        if far:
            names = {f"a/{name}": "a" for name in names} | {"b/s": "b"}
        self.level = LatchLevel.XDC if far else LatchLevel.DC
        self.model = Meetings(names)
        self.processes = {name: self.process(name) for name in names}
        self.groups = {
            farm: self.both(lambda store, farm=farm: Group(store, "m", farm_id=farm), self.stores)
            for farm in set(names.values())
        }

    def process(self, name: str) -> Party:
        stores = tuple(Client(store) for store in self.stores)
        return Party(name, stores, self.handles(stores, self.model.farms, self.model.farms[name]))

    def handles(self, stores, names, farm):
        return self.both(
            lambda store: Barrier(store, "m", "b", parties=list(names), farm_id=farm, level=self.level), stores
        )

    def picked(self, pick: int) -> Party:
        return list(self.processes.values())[pick % len(self.processes)]

    def payload(self) -> str:
        """What nobody else brings."""
        self.brought += 1
        return f"payload {self.brought}"

    def started_again(self, process: Party) -> None:
        """Another process takes the place of this one, whose late requests may still land."""
        self.former.append(process)
        self.processes[process.name] = self.process(process.name)
        self.model.restart(process.name)

    # ---- nothing else happens meanwhile: the model foretells what a wait comes to

    @rule(pick=picks, way=ways)
    def wait(self, pick, way):
        self.waited(self.picked(pick), *way)

    @time_passes
    @rule(pick=picks, way=ways)
    def wait_for_the_living(self, pick, way):
        self.waited(self.picked(pick), *way, alive=True)

    @rule(pick=picks, interrupted=st.booleans(), place=places, kind=st.sampled_from(STRUCK))
    def wait_though_a_call_fails(self, pick, interrupted, place, kind):
        process = self.picked(pick)
        strike(process.stores, place, Fault(kind))
        self.waited(process, interrupted, LONG)
        calm(process.stores)

    def waited(self, process, interrupted, seconds, *, alive=False):
        payload, how = self.payload(), {"seconds": seconds, "interrupted": interrupted}
        group = self.groups[self.model.farms[process.name]] if alive else (None, None)
        answers = self.both(
            lambda barrier, clock, group: wait_for_all(barrier, clock, process.name, payload, alive=group, **how),
            process.barriers, self.clocks, group,
        )  # fmt: skip
        expected = self.model.wait(process.name, payload, alive=alive, **how)
        assert plainly(answers[0]) == expected
        return expected

    @rule(pick=picks, kind=st.none() | st.sampled_from(STRUCK), place=st.integers(1, 2))
    def abort(self, pick, kind, place):
        process, reason = self.picked(pick), self.payload()
        if kind is not None:
            strike(process.stores, place, Fault(kind))
        answers = self.both(lambda barrier: barrier.abort(reason), process.barriers)
        calm(process.stores)
        assert plainly(answers[0]) == self.model.abort(process.name, reason)

    @rule(pick=picks)
    def start_again(self, pick):
        self.started_again(self.picked(pick))

    @rule(pick=picks)
    def delete(self, pick):
        """Some time later, as the record that follows begins with the server's time."""
        deleted = self.both(lambda barrier: barrier.delete(), self.picked(pick).barriers)
        assert came_to(deleted) is self.model.delete()
        self.numbers = []
        for clock in self.clocks:
            clock.advance(0.1)

    # ---- the group

    @time_passes
    @rule(pick=picks)
    def join(self, pick):
        name = self.picked(pick).name
        group, member = self.groups[self.model.farms[name]], name.rpartition("/")[2]
        self.memberships[name] = self.both(lambda one: one.join(member, lease=LEASE, keep_alive=False), group)
        self.model.present.add(name)
        self.model.dead.discard(name)

    @time_passes
    @rule(pick=picks)
    def leave(self, pick):
        name = self.picked(pick).name
        if name not in self.memberships:
            return
        twins = self.memberships.pop(name)
        believed = not twins[0].lost.is_set()
        assert came_to(self.both(lambda membership: membership.leave(), twins)) is (name in self.model.present)
        if name in self.model.present:
            self.model.present.remove(name)
            if not believed:
                self.model.dead.add(name)

    # ---- something happens meanwhile: the record says how it ended

    @rule(pick=picks, interrupted=st.booleans(), place=places, kind=st.sampled_from(STOPPED))
    def be_stopped(self, pick, interrupted, place, kind):
        """The process is interrupted or dies at one of its calls, or a request of it lands later."""
        process = self.picked(pick)
        strike(process.stores, place, interrupt if kind == "interrupt" else Fault(kind))
        self.raced(process, interrupted, LONG, [])

    @rule(
        pick=picks, other=picks, way=st.sampled_from(HASTY), place=st.integers(1, 6), what=st.sampled_from(MEANWHILE)
    )  # fmt: skip
    def race(self, pick, other, way, place, what):
        """Something else happens between two calls of a wait."""
        process, second = self.picked(pick), self.picked(other)
        if what == "start again":
            second = self.process(process.name)
        elif second is process and "wait" in what:
            return
        payload = self.payload()
        heard: tuple[list, list] = ([], [])
        there: set[str] = set()

        def meanwhile(side: int) -> Callable[[], None]:
            barrier, clock = second.barriers[side], self.clocks[side]
            how = {"seconds": 0.0 if what == "do not wait" else 0.3, "interrupted": what != "do not wait"}

            def act() -> None:
                if what == "abort":
                    there.update(barrier.progress().arrived)
                    heard[side].append(outcome(lambda: barrier.abort(payload)))
                elif what == "delete":
                    heard[side].append(barrier.delete())
                    clock.advance(0.1)
                else:
                    heard[side].append(wait_for_all(barrier, clock, second.name, payload, alive=None, **how))

            return act

        self.causes |= {("aborted", payload), ("late", second.name)}
        lost = what != "start again" and self.has_lost(second)
        strike(process.stores, place, (meanwhile(0), meanwhile(1)))
        deleted = self.raced(process, *way, heard, may_delete=what == "delete")
        if what == "abort" and heard[0] == [True]:
            ended = [one for one in self.model.generations if one.end == ("aborted", payload)]
            assert ended, "a generation that was ended stays so"
            assert ended[0].arrived <= there, "nobody arrives at what is over"
        if what == "start again":
            self.former.append(process)
            self.processes[process.name] = second
            self.model.restart(process.name)
            self.look()
        if heard[0] and what in ("wait a while", "do not wait", "start again"):
            self.was_told(second, heard[0][0], deleted=deleted, lost=lost)
        self.look()

    @precondition(lambda self: any(store.pending for one in self.everybody() for store in one.stores))
    @rule()
    def deliver(self):
        """What was late lands now."""
        for process in self.everybody():
            self.both(lambda store: store.deliver(), process.stores)
        self.former = []
        self.look()

    def everybody(self) -> list[Party]:
        return [*self.__dict__.get("processes", {}).values(), *self.former]

    def raced(self, process, interrupted, seconds, heard, *, may_delete=False):
        payload, how = self.payload(), {"seconds": seconds, "interrupted": interrupted}
        self.causes.add(("late", process.name))
        lost = self.has_lost(process)
        answers = self.both(
            lambda barrier, clock: wait_for_all(barrier, clock, process.name, payload, alive=None, **how),
            process.barriers, self.clocks,
        )  # fmt: skip
        calm(process.stores)
        if heard:
            assert [plainly(one) for one in heard[0]] == [plainly(one) for one in heard[1]]
        deleted = may_delete and heard[0] == [True]
        if deleted:
            self.model.delete()
            self.numbers = []
        self.look()
        if answers[0] == CRASHED:
            self.started_again(process)
        else:
            self.was_told(process, answers[0], deleted=deleted, lost=lost)
        return deleted

    def has_lost(self, process) -> bool:
        """Whether the record of the generation whose end this process does not know was deleted."""
        pending = self.model.at[process.name]
        return pending is not None and pending.deleted

    def look(self) -> None:
        """Take over from the record what the model could not foretell; what it knew must not have changed."""
        now, model = self.standing(), self.model
        if model.stop:
            self.causes.add(model.stop[1])
        found = [] if now.turn is None else [*sorted(now.ends), now.turn]
        assert found[: len(self.numbers)] == self.numbers, "no generation is gone, and they only grow"
        model.generations += [Generation() for _ in found[len(model.generations) :]]
        self.numbers = found
        for number, generation in zip(found, model.generations, strict=True):
            end = tuple(now.ends[number].stored) if number in now.ends else None
            assert generation.end in (None, end), "a generation ends once"
            assert end is None or generation.end or end in self.causes, "and for a reason that there was"
            there = {name for name, at in self.at(now).items() if at == number}
            assert generation.end is None or there <= generation.arrived, "nobody arrives at what is over"
            generation.end = end
            said = generation.said | self.said(number)
            assert generation.said.items() <= said.items(), "what was read does not change"
            generation.said = said
            generation.arrived |= there
            if end == ("met",):
                assert said.keys() == model.farms.keys(), "all were there"
                assert all(self.at(now)[name] >= number for name in model.farms)
                generation.arrived = set(model.farms)
        by_number = dict(zip(found, model.generations, strict=True))
        for name, process in self.processes.items():
            record, place = process.barriers[0]._record, self.place(name)
            pending = record.pending.get(place)
            if pending in by_number:
                model.at[name] = by_number[pending]
            elif pending is None:
                model.at[name] = None
            elif model.at[name] is None or not model.at[name].deleted:
                model.at[name] = Generation(deleted=True)
            if pending is not None and record.seen.get(place) == pending:
                model.at[name].seen.add(name)
        asked = [(by_number.get(number), tuple(end.stored)) for number, end in now.stops.values()]
        model.stop = next(((one, end) for one, end in asked if one is not None), None)

    def was_told(self, process, answer, *, deleted, lost) -> None:
        """What a wait came to is how a meeting ended of which that process had not heard; or it has not heard."""
        name, model = process.name, self.model
        if answer in (INTERRUPTED, CRASHED) or isinstance(answer, OutcomeUnknown | Unavailable):
            return
        if deleted or (isinstance(answer, WaitTimeout) and "before" in str(answer)):
            return
        if isinstance(answer, NotFound):
            assert lost, f"{name} was told {answer!r}, though its record was not deleted"
            return
        ended = [one for one in model.generations if one.end and one not in model.heard[name]]
        # A party that was there only between two looks has left what it brought.
        ended = [one for one in ended if name in one.arrived or name in one.said]
        fitting = [one for one in ended if model.hears(name, one) == plainly(answer)]
        assert fitting, f"{name} was told {answer!r}, which is how no meeting ended"
        model.heard[name] += fitting[-1:]

    # ---- looking

    def standing(self) -> BarrierState:
        record = self.stores[0].get(KEY)
        return BarrierState.of(KEY, record.bins if record else {}, self.model.home)

    def place(self, name: str) -> tuple[str, str]:
        return self.model.farms[name], name.rpartition("/")[2]

    def at(self, now: BarrierState) -> dict[str, int]:
        return {name: now.at.get(self.place(name), 0) for name in self.model.farms}

    def said(self, number: int) -> dict[str, str]:
        found = {}
        for name, farm in self.model.farms.items():
            record = self.stores[0].get(payload_key(KEY, self.place(name)))
            said = (record.bins if record else {}).get(SAID + farm, {})
            if number in said:
                found[name] = json.loads(said[number])
        return found

    @rule(pick=picks)
    def ask_for_what_cannot_be(self, pick):
        process = self.picked(pick)
        farm, party = self.place(process.name)
        bad: list[Callable[[Barrier], Any]] = [
            lambda one: one.wait("nobody"),
            lambda one: one.wait(""),
            lambda one: one.wait(party, object()),
            lambda one: one.wait(party, "x" * 65_536),
            lambda one: one.wait(party, timeout=-1),
            lambda one: one.wait(party, alive="group"),
            lambda one: one.abort(""),
            lambda one: one.abort("x" * 501),
        ]
        for call in bad:
            assert came_to(self.both(call, process.barriers)) is InvalidRequest
        for names in ([], [""], "pq", ["x" * 101]):
            wrong = self.both(lambda store, names=names: outcome(lambda: self.made(store, names, farm)), self.stores)
            assert came_to(wrong) is InvalidRequest
        if self.model.now is not None:
            others = self.handles(self.stores, [*self.model.farms, f"{farm}/other"], farm)
            assert came_to(self.both(lambda one: one.wait(party, timeout=0), others)) is InvalidRequest

    def made(self, store, names, farm):
        return Barrier(store, "m", "b", parties=names, farm_id=farm, level=self.level)

    @invariant()
    def its_progress_is_as_the_model_says(self):
        if "model" not in self.__dict__:
            return
        model, process = self.model, next(iter(self.processes.values()))
        progress = self.both(lambda barrier: barrier.progress(), process.barriers)[0]
        arrived = set(model.now.arrived) if model.now else set()
        assert (progress.arrived, progress.missing) == (arrived, model.farms.keys() - arrived)
        assert progress.last == (model.last and " ".join(model.last))
        assert (progress.generation is None) == (model.now is None)

    @invariant()
    def generations_only_grow_and_end_once(self):
        """Also after the record was deleted."""
        if "model" not in self.__dict__:
            return
        now = self.standing()
        found = [] if now.turn is None else [*sorted(now.ends), now.turn]
        assert found[: len(self.numbers)] == self.numbers
        assert all(number > self.highest for number in found[len(self.numbers) :])
        self.numbers, self.highest = found, max([self.highest, *found])
        ends = [tuple(now.ends[number].stored) for number in sorted(now.ends)]
        assert ends == [one.end for one in self.model.generations[:-1]]
        kept = list(zip(found, self.model.generations, strict=True))[-KEPT_PAYLOADS:]
        assert [self.said(number) for number, _ in kept] == [generation.said for _, generation in kept]

    def teardown(self):
        """In the end, whatever lands then, all parties meet."""
        if "model" in self.__dict__:
            if any(store.pending for one in self.everybody() for store in one.stores):
                self.deliver()
            for process in list(self.processes.values()):
                self.started_again(process)
            home = self.processes[min(self.processes)]
            self.waited(home, True, LONG)
            if self.model.at[home.name] is not None:
                self.both(lambda barrier: barrier.abort("begin anew"), home.barriers)
                self.model.abort(home.name, "begin anew")
                self.waited(home, True, LONG)
            for process in reversed(self.processes.values()):
                self.waited(process, True, LONG)
            said = [self.waited(one, False, LONG) for one in self.processes.values() if self.model.at[one.name]]
            assert all(isinstance(one, dict) for one in said)
            self.its_progress_is_as_the_model_says()
            self.generations_only_grow_and_end_once()
        super().teardown()


def test_barriers_meet_alike_over_both_stores_and_as_a_list_of_meetings_says(agree):
    agree(Barriers, "barriers")


def test_a_party_that_arrived_between_two_looks_of_the_model_may_hear_how_that_meeting_ended(tmp_path):
    state = Barriers(SQLite(tmp_path / "store.db"))
    try:
        state.parties(n=1, far=True)
        state.wait(pick=0, way=(False, 0.0))
        state.wait(pick=1, way=(False, 0.0))
        state.race(other=0, pick=0, place=1, way=(True, 0.3), what="start again")
    finally:
        state.teardown()


@pytest.mark.parametrize("far", [False, True])
def test_a_party_whose_record_was_deleted_and_made_again_hears_that_it_was_lost(tmp_path, far):
    state = Barriers(SQLite(tmp_path / "store.db"))
    try:
        state.parties(n=3, far=far)
        state.wait(pick=0, way=(True, 0.3))
        last = len(state.processes) - 1
        state.wait(pick=last, way=(True, 0.3))
        state.delete(pick=0)
        state.wait(pick=0, way=(True, 0.3))
        state.wait(pick=0, way=(True, 0.3))
        assert state.waited(state.picked(last), True, 0.3) == (NotFound,)
        assert state.waited(state.picked(last), True, 0.3) == "interrupted"
    finally:
        state.teardown()
