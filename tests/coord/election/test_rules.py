"""The rules of docs/protocols P3, one by one: an interleaving that each decides, and the mutants without it."""

from __future__ import annotations

from unittest import mock

import pytest
from kazoo.client import KazooClient

from latchwork.coord import ZooKeeperElection, lease
from latchwork.coord import fencing as fenced
from latchwork.coord.contender import Acquisition
from latchwork.coord.election import election, zookeeper
from latchwork.coord.lock import LOCKS
from latchwork.errors import FencedOut, Refused
from latchwork.store import Bin, Key, MemoryStore, Put
from latchwork.testing.clock import ManualClock
from tests.support.broken import breaks

RECORD = Key(LOCKS, "office")
RESOURCE = Key("resources", "r")
LEASE = 10.0


class Place:
    """A line of which the test says who is first; `pause` happens right after somebody was told."""

    stay = 0

    def __init__(self):
        self.first, self.pause = True, lambda: None

    def predecessor(self):
        first, pause, self.pause = self.first, self.pause, lambda: None
        pause()
        return None if first else "somebody"

    def watch(self, node, wake):
        return True

    def confirm(self):
        if not self.first:
            raise Refused("not first any more")

    def leave(self, stay=None):
        self.first = False


class World:
    def __init__(self):
        self.clock = ManualClock()
        self.clock.spawn = lambda run, name: None
        self.store = MemoryStore(self.clock)

    def candidate(self, name):
        one = ZooKeeperElection(self.store, "office", KazooClient("h:1"), candidate=name)
        one._line = one._contender.line = Place()
        return one

    def elect(self, one):
        """One try; the term or None."""
        claim = one._claim(Acquisition(one._contender))
        grant = claim and one._confirmed(claim)
        return grant and election.Leadership(grant, self.store, "office")


# ---- scenarios


def who_was_paused_between_the_line_and_the_fence_dethrones_nobody(world):
    world.elect(world.candidate("before"))
    slow, new = world.candidate("slow"), world.candidate("new")
    terms = []

    def session_lost_and_succeeded():
        slow._line.first = False
        terms.append(world.elect(new))

    slow._line.pause = session_lost_and_succeeded
    assert world.elect(slow) is None
    assert world.store.get(RECORD).bins["fencing-ctr"] == terms[0].epoch
    assert world.store.get(RECORD).bins["lock-owner"] == "new"
    new._grant.renew()


def a_fence_that_was_taken_after_the_session_was_lost_is_given_back(world):
    slow = world.candidate("slow")
    slow._line.pause = slow._line.leave
    assert world.elect(slow) is None
    assert world.store.get(RECORD).bins["locked"] == 0


def the_term_ends_at_suspended(world):
    one = world.candidate("a")
    term = world.elect(one)
    one._on_state("SUSPENDED")
    assert term.lost.is_set()


def a_term_outlives_neither_its_deadline_nor_its_place(world):
    one = world.candidate("a")
    term = world.elect(one)
    one._line.first = False
    with pytest.raises(FencedOut):
        one._grant.renew()
    with pytest.raises(FencedOut):
        term.check()


def a_paused_leader_wakes_up_to_a_lost_term_before_any_thread_has_told_it(world):
    one = world.candidate("a")
    term = world.elect(one)
    world.clock.advance(LEASE)
    assert term.lost.is_set()
    with pytest.raises(FencedOut):
        term.operate(RESOURCE, Put("x", 1))


def zookeepers_word_supersedes_the_term_of_its_own_candidate_at_once(world):
    old = world.elect(world.candidate("old"))
    new = world.elect(world.candidate("new"))
    assert new is not None
    assert new.epoch > old.epoch


def a_leader_by_lease_is_not_superseded_by_zookeepers_word(world):
    holder = election.LeaseElection(world.store, "office", candidate="lease", lease=LEASE)
    grant = holder._elect(world.clock.event())
    assert world.elect(world.candidate("a")) is None
    grant.renew()
    grant.release()
    assert world.elect(world.candidate("a")).epoch > grant.fence


def epochs_outlive_zookeeper_and_the_store(world):
    terms = [world.elect(world.candidate("a"))]
    world.clock.advance(1)
    world.store._records.clear()
    terms.append(world.elect(world.candidate("b")))
    world.clock.step(-3600)
    terms.append(world.elect(world.candidate("c")))
    epochs = [term.epoch for term in terms]
    assert epochs == sorted(set(epochs))


# ---- mutants


def swap(owner, name, value):
    return lambda: mock.patch.object(owner, name, value)


_BY_ZOOKEEPER = Bin(zookeeper.ELECTOR).eq(Bin(lease.FENCE))

CASES = [
    (who_was_paused_between_the_line_and_the_fence_dethrones_nobody, {
        "the guard does not name the term": swap(zookeeper, "_SUPERSEDED", _BY_ZOOKEEPER),
    }),
    (a_fence_that_was_taken_after_the_session_was_lost_is_given_back, {
        "the line is not confirmed after the fence": swap(Place, "confirm", lambda self: None),
    }),
    (the_term_ends_at_suspended, {
        "it ends with the session": swap(zookeeper.KazooState, "CONNECTED", "SUSPENDED"),
    }),
    (a_term_outlives_neither_its_deadline_nor_its_place, {
        "renewed by the store alone": swap(zookeeper._Candidate, "renew", zookeeper.Contender.renew),
    }),
    (a_paused_leader_wakes_up_to_a_lost_term_before_any_thread_has_told_it, {
        "a flag that a thread sets": swap(fenced.Lost, "is_set", lambda self: self._event.is_set()),
    }),
    (zookeepers_word_supersedes_the_term_of_its_own_candidate_at_once, {
        "its own terms are waited for": swap(zookeeper, "ELECTOR", "unused"),
    }),
    (a_leader_by_lease_is_not_superseded_by_zookeepers_word, {
        "every term is superseded": swap(zookeeper, "_SUPERSEDED", Bin(lease.LOCKED).eq(1)),
    }),
    (epochs_outlive_zookeeper_and_the_store, {
        "the next epoch is one more": swap(
            lease, "NEXT_FENCE", lease.If(lease.exists(lease.FENCE), Bin(lease.FENCE) + 1, lease.SERVER_NOW * 0 + 1)),
    }),
]  # fmt: skip
MUTANTS = [
    pytest.param(scenario, mutate, id=f"{scenario.__name__}-{name}")
    for scenario, mutants in CASES
    for name, mutate in mutants.items()
]


@pytest.mark.parametrize("scenario", [case[0] for case in CASES], ids=lambda scenario: scenario.__name__)
def test_rule(scenario, proved):
    scenario(World())
    proved("rules, by script", "P3", held=1)


@pytest.mark.parametrize(("scenario", "mutate"), MUTANTS)
def test_without_the_rule_it_would_not_hold(scenario, mutate, proved):
    with mutate():
        assert breaks(scenario, World())
    proved("rules, by script", "P3", {"broken without": 1})
