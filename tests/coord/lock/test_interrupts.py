"""An interrupt at every instruction of a lock's verbs: either the caller has the grant, or nothing renews the lease any
more. The process lives on; another one has to get the lock, within about a lease.
"""

from __future__ import annotations

import gc
import sys
from contextlib import suppress

import pytest

from latchwork.coord import FencedLock, Semaphore, lock
from latchwork.store import Key, Put
from tests.sim.stage import Stage
from tests.support import matrix
from tests.support.interrupts import Interrupts, points_of

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] not in ((3, 11), (3, 12)),
    reason="other Pythons trace other instructions; from 3.13 on they are not the same after an interrupt",
)
LEASE = 1.0
SOON = 2.5
"""Seconds in which a lock that is not renewed any more is had: a lease of its holder, one of watching, and a look."""
LEAST = 10
"""Instructions of a verb that a sample has."""
LAST = 120
"""Instructions at the end of a verb of which each single one is tried; before, nothing is renewed yet."""


def had_by_another(holder, interrupts, *, settle=lambda lock: None, make=FencedLock, traceback=True):
    """Whether another process gets the lock though the holder's was interrupted and lives on.

    holder: what it does, with `lock` and a list for what it has.  settle: what it can do after the interrupt.
    traceback: whether that of the interrupt is kept, with all variables of the functions that it went through, as an
    interactive Python keeps the last one.
    """
    stage = Stage()

    def process(store):
        lock, has = make(store, "lock", lease=LEASE), []

        def verb():
            holder(lock, has)

        try:
            interrupts.run(verb)
        except KeyboardInterrupt as failure:
            if traceback:
                has.append(failure)
        settle(lock)
        for grant in has:
            if not isinstance(grant, KeyboardInterrupt):
                grant.release()
        store.seams.sleep(10 * LEASE)

    stage.act("a", process)
    stage.act("b", lambda store: make(store, "lock", lease=LEASE).acquire(timeout=SOON).fence, after=0.5)
    return isinstance(stage.play().said["b"], int)


def semaphore(store, name, *, lease):
    return Semaphore(store, name, permits=1, lease=lease)


def takes(lock, has):
    has.append(lock.acquire(timeout=5, keep_alive=True))


def tries(lock, has):
    has.append(lock.try_acquire(keep_alive=True))


def keeps_alive(lock, has):
    has.append(lock.acquire(timeout=5))
    has[0].keep_alive()


def takes_for_a_block(lock, has):
    with lock.acquire(timeout=5, keep_alive=True):
        pass


def takes_for_a_block_by_name(lock, has):
    with lock.acquire(timeout=5, keep_alive=True) as grant:
        grant.check()


def is_in_a_block(lock, has):
    with lock:
        pass


def gives_up_what_it_cannot_keep_for_itself(lock):
    """Who holds the handle holds the grant of its block."""
    if lock.grant is not None:
        lock.grant.release()


def struck(holder, points, *, everywhere, **rest):
    """Where the lock was not had by another process after an interrupt."""
    some = matrix.sample(points, holder.__name__, least=LEAST)
    return list(strikes(holder, some, everywhere=everywhere, **rest))


def strikes(holder, points, *, everywhere, **rest):
    """Yield these places one by one, for whoever needs only the first."""
    for at in points:
        interrupts = Interrupts(at, everywhere=everywhere)
        if not had_by_another(holder, interrupts, **rest):
            yield at, interrupts.struck
        assert interrupts.struck, "the run is not the same each time"


def points(holder, *, everywhere, **rest):
    had_by_another(holder, Interrupts(), **rest)  # what is made once in a process is made before they are counted
    return points_of(lambda interrupts: had_by_another(holder, interrupts, **rest), everywhere=everywhere)


VERBS = [takes, tries, keeps_alive]
each_verb = pytest.mark.parametrize("holder", VERBS, ids=lambda holder: holder.__name__)
each_block = pytest.mark.parametrize(
    "holder", [takes_for_a_block, takes_for_a_block_by_name], ids=lambda holder: holder.__name__
)


@each_verb
def test_a_lock_is_held_by_nobody_wherever_python_may_interrupt_its_verbs(holder):
    count = points(holder, everywhere=False)
    assert count > 100
    assert not struck(holder, range(count), everywhere=False)


@each_block
def test_a_lock_is_held_by_nobody_wherever_python_may_interrupt_a_block(holder):
    count = points(holder, everywhere=False)
    assert not struck(holder, range(count), everywhere=False, traceback=False)


@each_block
def test_a_traceback_that_is_kept_keeps_a_lock_only_where_its_block_was_interrupted_as_it_began_or_ended(holder):
    """Before the first instruction of ours: nobody can do anything then, but whoever has the traceback."""
    count = points(holder, everywhere=False)
    kept = {where for _, where in struck(holder, range(count), everywhere=False)}
    assert {where.split(":")[0] for where in kept} <= {"Grant.__enter__", "Grant.__exit__"}
    assert len(kept) <= 2


@each_verb
def test_a_lock_is_held_by_nobody_whichever_single_instruction_is_interrupted_as_it_is_handed_out(holder):
    count = points(holder, everywhere=True)
    assert not struck(holder, range(count - LAST, count), everywhere=True)


@pytest.mark.long
def test_without_the_weak_reference_or_the_handing_out_it_would_be_held(monkeypatch):
    count = points(takes, everywhere=True)
    with monkeypatch.context() as patch:
        patch.setattr(lock, "ref", lambda grant: lambda: grant)
        assert any(strikes(takes, range(count - LAST, count), everywhere=True))
    with monkeypatch.context() as patch:
        patch.setattr(lock.Keeper, "handed_out", property(lambda self: True, lambda self, value: None), raising=False)
        assert any(strikes(takes, range(count - LAST, count), everywhere=True))


def test_whoever_has_the_handle_can_end_a_block_that_was_interrupted_as_it_began_or_ended():
    settle = gives_up_what_it_cannot_keep_for_itself
    count = points(is_in_a_block, everywhere=False, settle=settle)
    assert not struck(is_in_a_block, range(count), everywhere=False, settle=settle)


def test_permits_are_held_by_nobody_wherever_python_may_interrupt():
    count = points(takes, everywhere=False, make=semaphore)
    assert not struck(takes, range(count), everywhere=False, make=semaphore)
    count = points(takes, everywhere=True, make=semaphore)
    assert not struck(takes, range(count - LAST, count), everywhere=True, make=semaphore)


def released(interrupts):
    """Whether a grant whose release was interrupted can be released once more, and frees the lock at once."""
    stage = Stage()

    def process(store):
        lock = FencedLock(store, "lock", lease=LEASE)
        grant = lock.acquire(timeout=5, keep_alive=True)

        def verb():
            grant.release()

        try:
            interrupts.run(verb)
        except KeyboardInterrupt:
            grant.release()
        assert grant.lost.is_set()
        return lock.acquire(timeout=0).fence > grant.fence

    stage.act("a", process)
    return stage.play().said["a"]


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_release_that_is_interrupted_anywhere_can_be_repeated(everywhere):
    released(Interrupts())
    for at in matrix.sample(range(points_of(released, everywhere=everywhere)), "released", least=LEAST):
        interrupts = Interrupts(at, everywhere=everywhere)
        assert released(interrupts) is True, (at, interrupts.struck)


def dropped(interrupts):
    """Whether a lock is had by another process though its holder's release was interrupted, and it forgot its grant."""
    stage = Stage()

    def process(store):
        grant = FencedLock(store, "lock", lease=LEASE).acquire(timeout=5, keep_alive=True)

        def verb():
            grant.release()

        with suppress(KeyboardInterrupt):
            interrupts.run(verb)
        verb.__closure__[0].cell_contents = None
        gc.collect()
        store.seams.sleep(10 * LEASE)

    stage.act("a", process)
    stage.act("b", lambda store: FencedLock(store, "lock", lease=LEASE).acquire(timeout=SOON).fence, after=0.5)
    return isinstance(stage.play().said["b"], int)


@pytest.fixture
def quickly_collected():
    """What was there before the test is nothing that a collection has to look through."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_a_release_that_is_interrupted_anywhere_and_forgotten_leaves_the_lock_to_others(quickly_collected):
    dropped(Interrupts())
    for at in matrix.sample(range(points_of(dropped)), "dropped", least=LEAST):
        interrupts = Interrupts(at)
        assert dropped(interrupts), (at, interrupts.struck)


def test_a_grant_that_nobody_has_any_more_is_given_back_and_said_so(caplog):
    stage = Stage()

    def process(store):
        FencedLock(store, "lock", lease=30).acquire(timeout=5, keep_alive=True)
        store.seams.sleep(30)

    stage.act("a", process)
    stage.act("b", lambda store: FencedLock(store, "lock", lease=1).acquire(timeout=15).fence, after=1)
    assert isinstance(stage.play().said["b"], int), "after a third of its lease, not after all of it"
    assert "the grant of 'lock' with fence" in caplog.text
    assert "it is released now" in caplog.text


def test_a_grant_that_is_only_in_use_is_kept():
    stage = Stage()

    def process(store):
        grant = FencedLock(store, "lock", lease=LEASE).acquire(timeout=5, keep_alive=True)
        store.seams.sleep(5 * LEASE)
        grant.operate(Key("sim", "record"), Put("n", 1))
        return grant.release()

    stage.act("a", process)
    assert stage.play().said["a"] is True
