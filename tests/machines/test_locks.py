"""Fenced locks over two stores: several owners, a resource, leases that run out."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from latchwork.coord import FencedLock
from latchwork.errors import FencedOut, LockUnavailable
from latchwork.store import Add, Key

from .twins import Twins, came_to, failed, time_passes

LEASE = 10.0
RESOURCE = Key("machines", "resource")
picks = st.integers(0, 5)


@dataclass
class Held:
    """A grant on both sides; its place in the order of all grants; whether it was given back."""

    twins: tuple
    place: int
    released: bool = False

    @property
    def believed(self) -> bool:
        return not self.twins[0].lost.is_set()


class Locks(Twins):
    """One lock, three who want it, and a resource that they write to under their fences."""

    def start(self):
        self.grants: list[Held] = []
        self.seen = -1
        self.total = 0

    @initialize()
    def owners(self):
        self.locks = [
            self.both(lambda store, owner=owner: FencedLock(store, "m", owner=owner, lease=LEASE), self.stores)
            for owner in ("a", "b", "a")
        ]

    def may_be_taken(self) -> bool:
        """Nobody holds it for sure: the newest grant was given back."""
        return not self.grants or self.grants[-1].released

    @rule(pick=picks, timeout=st.sampled_from((None, 0)))
    def take(self, pick, timeout):
        lock = self.locks[pick % 3]
        take = FencedLock.try_acquire if timeout is None else lambda one: one.acquire(timeout=timeout)
        believed = any(held.believed for held in self.grants)
        answers = self.both(take, lock)
        granted = not failed(answers) and answers[0] is not None
        assert granted or came_to(answers) is (None if timeout is None else LockUnavailable)
        if granted:
            assert not believed
            for side, grant in enumerate(answers):
                assert all(held.twins[side].fence < grant.fence for held in self.grants)
            self.grants.append(Held(answers, len(self.grants)))
        else:
            assert not self.may_be_taken()

    @precondition(lambda self: self.grants)
    @rule(pick=picks)
    def renew(self, pick):
        held = self.grants[-1 - pick % len(self.grants)]
        believed = held.believed
        answers = self.both(lambda grant: grant.renew(), held.twins)
        assert came_to(answers) is (None if believed else FencedOut)

    @precondition(lambda self: self.grants)
    @rule(pick=picks)
    def release(self, pick):
        held = self.grants[-1 - pick % len(self.grants)]
        newest = held is self.grants[-1]
        answers = self.both(lambda grant: grant.release(), held.twins)
        assert came_to(answers) is (newest and not held.released)
        held.released = True

    @precondition(lambda self: self.grants)
    @rule(pick=picks, amount=st.integers(1, 3))
    def write(self, pick, amount):
        held = self.grants[-1 - pick % len(self.grants)]
        may = held.believed and held.place >= self.seen
        answers = self.both(lambda grant: grant.operate(RESOURCE, Add("n", amount)), held.twins)
        assert came_to(answers) == (() if may else FencedOut)
        if may:
            self.seen = held.place
            self.total += amount
        for store in self.stores:
            record = store.get(RESOURCE, "n")
            assert (record.bins.get("n", 0) if record else 0) == self.total

    @precondition(lambda self: self.grants)
    @rule(pick=picks)
    def seal(self, pick):
        held = self.grants[-1 - pick % len(self.grants)]
        may = held.believed and held.place >= self.seen
        answers = self.both(lambda grant: grant.seal(RESOURCE), held.twins)
        assert came_to(answers) is (None if may else FencedOut)
        self.seen = held.place if may else self.seen

    @precondition(lambda self: self.grants)
    @rule(pick=picks)
    def check(self, pick):
        held = self.grants[-1 - pick % len(self.grants)]
        believed = held.believed
        assert came_to(self.both(lambda grant: grant.check(), held.twins)) is (None if believed else FencedOut)

    @time_passes
    @rule(pick=picks)
    def outlast_the_lease(self, pick):
        self.outlasted(LEASE, lambda: self.take(pick, None), self.grants)


def test_locks_grant_alike_over_both_stores_and_never_to_two(agree):
    agree(Locks, "locks")
