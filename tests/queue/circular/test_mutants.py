"""Seeded bugs, each of which a counterexample must catch: what cannot fail proves nothing."""

from __future__ import annotations

import pytest

from latchwork.queue import LargeQueue
from latchwork.queue.circular import buffer as circular_slots
from latchwork.queue.circular import lock as circular_lock
from latchwork.queue.circular import plan as circular_plan
from latchwork.queue.circular.lock import QueueLock
from latchwork.store import Bin
from tests.queue.circular import test_counterexamples
from tests.support.broken import breaks

ALWAYS = Bin("fencing-ctr") >= 0


def commit_without_fence(patch):
    patch.setattr(QueueLock, "_guard", lambda self, hold, head: ALWAYS.bind())


def slots_without_fence(patch):
    patch.setattr(circular_slots, "not_stale", lambda fence: (Bin("fencing-mark") >= 0).bind())


def readers_do_not_check_the_offset(patch):
    patch.setattr(
        circular_slots, "entry_of", lambda slot, offset: circular_slots.Entry(offset, slot[1]) if slot else None
    )


def overwrite_before_the_head_is_committed(patch):
    patch.setattr(circular_plan.Planner, "_move_head", lambda self, hold, head: True)
    plan = circular_plan.Planner._enqueue

    def added(self, hold, requests):
        made = plan(self, hold, requests)
        if made is not None and made.parts:
            end = made.parts[-1][1].stop
            made.moves = {**made.moves, "head-offset": max(hold.head, end - self._lock.layout.capacity)}
        return made

    patch.setattr(circular_plan.Planner, "_enqueue", added)


def doubt_is_taken_for_failure(patch):
    patch.setattr(QueueLock, "_settled", lambda self, hold, txn: self.release(hold) and False)


def doubt_is_taken_for_success(patch):
    patch.setattr(QueueLock, "_settled", lambda self, hold, txn: True)


def lock_is_broken_while_it_is_held(patch):
    patch.setattr(circular_lock.rules.Observation, "ran_out", lambda self, now: True)
    patch.setattr(circular_lock.rules, "broken", lambda seen, grant: ALWAYS.bind())


def status_without_a_fence(patch):
    patch.setattr(LargeQueue, "_decided", lambda self, txn, began, timeout: [0, -1, 0])


def old_entry_of_an_id_answers(patch):
    patch.setattr(circular_plan, "_used_before", lambda hold, *rest: ())


MUTANTS = [
    commit_without_fence,
    slots_without_fence,
    readers_do_not_check_the_offset,
    overwrite_before_the_head_is_committed,
    doubt_is_taken_for_failure,
    doubt_is_taken_for_success,
    lock_is_broken_while_it_is_held,
    status_without_a_fence,
    old_entry_of_an_id_answers,
]


def suspects():
    """All that may catch a mutant."""
    yield from (
        lambda test=test: test()
        for name, test in vars(test_counterexamples).items()
        if name.startswith("test_") and not hasattr(test, "pytestmark")
    )
    yield lambda: test_counterexamples.test_commit_in_doubt_is_resolved("reply_lost")
    for holds in test_counterexamples.HOLES:
        yield lambda holds=holds: test_counterexamples.test_hole_is_shut(holds)


def test_all_is_well_without_a_mutant():
    for number, suspect in enumerate(suspects()):
        assert not breaks(suspect), number


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_caught(mutant, monkeypatch, proved):
    everything = list(suspects())
    mutant(monkeypatch)
    assert any(breaks(suspect) for suspect in everything), f"nothing catches {mutant.__name__}"
    proved("mutants", "circular, scripted", seeded=1, caught=1)
