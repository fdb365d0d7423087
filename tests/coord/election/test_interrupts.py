"""An interrupt at every instruction of an election's verbs: nobody leads for ever because a caller was interrupted.

The process lives on; whoever has the handle can stop it, and a `run` that was interrupted has ended by itself.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from latchwork.coord import LeaseElection
from tests.sim.stage import Stage
from tests.support import matrix
from tests.support.interrupts import Interrupts, points_of

LEASE = 1.0


def elected_elsewhere(interrupts, body, settle):
    """Whether another process is elected though a verb of this one was interrupted, and it lives on."""
    stage = Stage()

    def process(store):
        election = LeaseElection(store, "office", lease=LEASE)

        def verb():
            body(election)

        with suppress(KeyboardInterrupt):
            interrupts.run(verb)
        settle(election)
        store.seams.sleep(30 * LEASE)

    def other(store):
        return LeaseElection(store, "office", lease=LEASE).run(lambda term: term.epoch, timeout=20 * LEASE)

    stage.act("a", process)
    stage.act("b", other, after=1.0)
    return isinstance(stage.play().said["b"], int)


def runs(election):
    election.run(lambda term: term.epoch, timeout=5)


def starts(election):
    election.start()


def leads_and_stops(election):
    election.start()
    election._seams.sleep(LEASE / 2)
    election.stop()


def leads_and_resigns(election):
    election.start()
    election._seams.sleep(LEASE / 2)
    election.resign()


def nothing(election):
    """Nobody has the handle any more."""


def stops(election):
    assert election.stop()


@pytest.mark.parametrize(
    ("body", "settle"), [(runs, nothing), (starts, stops), (leads_and_stops, stops), (leads_and_resigns, stops)]
)
def test_an_office_is_free_wherever_python_may_interrupt_its_candidate(body, settle):
    elected_elsewhere(Interrupts(), body, settle)
    points = points_of(lambda interrupts: elected_elsewhere(interrupts, body, settle))
    for at in matrix.sample(range(points), body.__name__, least=10):
        interrupts = Interrupts(at)
        assert elected_elsewhere(interrupts, body, settle), (at, interrupts.struck)
        assert interrupts.struck


def test_without_the_second_end_a_run_that_is_interrupted_as_it_ends_would_lead_on(monkeypatch):
    def once(self, runner, timeout):
        if timeout and self._owner is runner:
            self.stop(timeout)
            self._owner = None

    monkeypatch.setattr(LeaseElection, "_end", once)
    elected_elsewhere(Interrupts(), runs, nothing)
    count = points_of(lambda interrupts: elected_elsewhere(interrupts, runs, nothing))
    assert not all(elected_elsewhere(Interrupts(at), runs, nothing) for at in reversed(range(count)))
