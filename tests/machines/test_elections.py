"""Elections by a lease over two stores: candidates who lead, resign, are succeeded; and the roster of who stands.

A candidate's campaign is its own thread, which a machine cannot step through; so here a candidate is elected by the
step that its campaign takes again and again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from latchwork.coord import LeaseElection
from latchwork.coord.contender import Acquisition
from latchwork.coord.election.election import Leadership
from latchwork.coord.election.term import Term
from latchwork.coord.lock import Grant
from latchwork.errors import FencedOut
from latchwork.store import Add, Key

from .twins import Twins, came_to, time_passes

LEASE = 10.0
OFFICE = Key("machines", "office")
NAMES = ("a", "b", "c")
picks = st.integers(0, 5)


@dataclass
class Office:
    """One term on both sides: what its campaign holds, and what its leader has in hand."""

    grants: tuple[Grant, Grant]
    leaderships: tuple[Leadership, Leadership]
    place: int
    resigned: bool = False

    @property
    def believed(self) -> bool:
        return not self.leaderships[0].lost.is_set()


def elected(election: LeaseElection) -> Any:
    """One look of a campaign: the grant of a new term, or None."""
    party = election._contender
    claim = Acquisition(party).look(waiting=True)
    return None if claim is None else Grant(election.name, party, claim)


class Elections(Twins):
    """Three candidates for one office."""

    def start(self):
        self.terms: list[Office] = []
        self.seen = -1
        self.present: dict[str, float] = {}

    @initialize()
    def candidates(self):
        self.elections = {
            name: self.both(
                lambda store, name=name: LeaseElection(store, "m", candidate=name, lease=LEASE), self.stores
            )
            for name in NAMES
        }

    @rule(name=st.sampled_from(NAMES))
    def stand(self, name):
        believed = any(term.believed for term in self.terms)
        free = not self.terms or self.terms[-1].resigned
        grants = self.both(elected, self.elections[name])
        assert not free or came_to(grants) is not None
        if came_to(grants) is None:
            return
        assert not believed
        leaderships = tuple(Leadership(grant, store, "m") for grant, store in zip(grants, self.stores, strict=True))
        for earlier in self.terms:
            pairs = zip(earlier.leaderships, leaderships, strict=True)
            assert all(old.epoch < new.epoch for old, new in pairs)
        self.terms.append(Office(grants, leaderships, len(self.terms)))

    @precondition(lambda self: self.terms)
    @rule(pick=picks)
    def renew(self, pick):
        term = self.terms[-1 - pick % len(self.terms)]
        believed = term.believed
        assert came_to(self.both(Grant.renew, term.grants)) is (None if believed else FencedOut)

    @precondition(lambda self: self.terms)
    @rule(pick=picks)
    def resign(self, pick):
        term = self.terms[-1 - pick % len(self.terms)]
        in_office = term is self.terms[-1] and not term.resigned
        assert came_to(self.both(Grant.release, term.grants)) is in_office
        term.resigned = True

    @precondition(lambda self: self.terms)
    @rule(pick=picks)
    def lead(self, pick):
        term = self.terms[-1 - pick % len(self.terms)]
        may = term.believed and term.place >= self.seen
        sealed = self.both(lambda leadership: leadership.seal(OFFICE), term.leaderships)
        wrote = self.both(lambda leadership: leadership.operate(OFFICE, Add("n", 1)), term.leaderships)
        assert (came_to(sealed), came_to(wrote)) == ((None, ()) if may else (FencedOut, FencedOut))
        self.seen = term.place if may else self.seen

    @precondition(lambda self: self.terms)
    @rule(name=st.sampled_from(NAMES))
    def hand_over(self, name):
        """The leader resigns, and whoever succeeds goes on where the office has seen the last one."""
        self.lead(0)
        self.resign(0)
        self.stand(name)
        self.lead(0)

    @precondition(lambda self: self.terms)
    @rule(pick=picks)
    def check_from_elsewhere(self, pick):
        term = self.terms[-1 - pick % len(self.terms)]
        answers = self.both(lambda leadership: Term.of(leadership).check(), term.leaderships)
        if term.believed or term is not self.terms[-1] or term.resigned:
            assert came_to(answers) is (None if term.believed else FencedOut)

    # ---- the roster

    @rule(name=st.sampled_from(NAMES), leaves=st.booleans())
    def report_or_leave(self, name, leaves):
        if leaves:
            self.both(lambda election: election._candidates.leave(name), self.elections[name])
            self.present.pop(name, None)
            return
        self.both(lambda election: election._candidates.report(name, LEASE), self.elections[name])
        self.present[name] = self.now

    @precondition(lambda self: self.present)
    @rule()
    def ask_who_stands(self):
        named = self.both(lambda election: election.contenders(), self.elections["a"])
        assert set(came_to(named)) <= set(self.present)
        assert set(came_to(named)) >= {name for name, since in self.present.items() if self.now - since < LEASE}
        if any(self.now - since > LEASE + 0.01 for since in self.present.values()):
            late = {name for name, since in self.present.items() if self.now - since > LEASE + 0.01}
            assert not late & set(came_to(named))

    @time_passes
    @rule()
    def outlast_the_lease(self):
        self.outlasted(LEASE, lambda: self.stand("a"), self.terms)


def test_elections_choose_alike_over_both_stores_and_never_two(agree):
    agree(Elections, "elections")
