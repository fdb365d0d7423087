"""Fenced semaphores over two stores: several owners of several permits, a resource, leases that run out, sizes."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from latchwork.coord import Semaphore
from latchwork.errors import FencedOut, InvalidRequest, LockUnavailable, NotFound
from latchwork.store import Add, Key

from .twins import Twins, came_to, failed, time_passes

LEASE = 10.0
SIZE = 3
RESOURCE = Key("machines", "resource")
picks = st.integers(0, 5)


@dataclass
class Held:
    """Some permits on both sides, and whether they were given back, or removed."""

    twins: tuple
    gone: bool = False

    @property
    def slots(self) -> tuple:
        return self.twins[0].slots

    @property
    def believed(self) -> bool:
        return not self.twins[0].lost.is_set()


class Semaphores(Twins):
    """One semaphore, three who want it, and a resource that they write to under their fences."""

    def start(self):
        self.held: list[Held] = []
        self.seen: dict[int, int] = {}
        self.size, self.resized = SIZE, False
        self.total = 0

    @initialize()
    def owners(self):
        self.semaphores = [
            self.both(
                lambda store, owner=owner: Semaphore(store, "m", permits=SIZE, owner=owner, lease=LEASE), self.stores
            )
            for owner in ("a", "b", "a")
        ]

    def live(self) -> int:
        return sum(len(held.slots) for held in self.held if not held.gone)

    @rule(pick=picks, n=st.integers(1, 4), timeout=st.sampled_from((None, 0)))
    def take(self, pick, n, timeout):
        semaphore = self.semaphores[pick % 3]
        take = (lambda one: one.try_acquire(n)) if timeout is None else lambda one: one.acquire(n, timeout=0)
        answers = self.both(take, semaphore)
        if came_to(answers) is InvalidRequest:
            assert n > self.size
            return
        assert n <= self.size or failed(answers) or answers[0] is None
        if failed(answers) or answers[0] is None:
            assert came_to(answers) is (None if timeout is None else LockUnavailable)
            assert self.live() + n > self.size
            return
        self.swept()
        assert self.live() + n <= self.size
        for side, permits in enumerate(answers):
            assert all(held.twins[side].fence < permits.fence for held in self.held)
            assert permits.slots == answers[0].slots
        self.held.append(Held(answers))

    def swept(self) -> None:
        """Whoever is not among the holders any more was removed, which may only be once nobody believes in it."""
        told = self.both(lambda one: [holder.fence for holder in one.holders()], self.semaphores[0])
        fences = set(told[0])
        for held in self.held:
            if not held.gone and held.twins[0].fence not in fences:
                assert not held.believed
                held.gone = True

    @rule(size=st.integers(1, 4))
    def resize(self, size):
        self.both(lambda one: one.resize(size), self.semaphores[0])
        self.size, self.resized = size, True

    @precondition(lambda self: self.held)
    @rule(pick=picks)
    def renew(self, pick):
        held = self.held[-1 - pick % len(self.held)]
        believed = held.believed
        assert came_to(self.both(lambda permits: permits.renew(), held.twins)) is (None if believed else FencedOut)

    @precondition(lambda self: self.held)
    @rule(pick=picks)
    def release(self, pick):
        held = self.held[-1 - pick % len(self.held)]
        self.swept()
        assert came_to(self.both(lambda permits: permits.release(), held.twins)) is (not held.gone)
        held.gone = True

    @precondition(lambda self: self.held)
    @rule(pick=picks, amount=st.integers(1, 3))
    def write(self, pick, amount):
        place = len(self.held) - 1 - pick % len(self.held)
        held = self.held[place]
        may = held.believed and all(self.seen.get(slot, -1) <= place for slot in held.slots)
        answers = self.both(lambda permits: permits.operate(RESOURCE, Add("n", amount)), held.twins)
        assert came_to(answers) == (() if may else FencedOut)
        if may:
            self.seen.update(dict.fromkeys(held.slots, place))
            self.total += amount
        for store in self.stores:
            record = store.get(RESOURCE, "n")
            assert (record.bins.get("n", 0) if record else 0) == self.total

    @rule(pick=picks)
    def look(self, pick):
        semaphore = self.semaphores[pick % 3]
        told = self.both(lambda one: [(held.owner, held.slots, held.lease) for held in one.holders()], semaphore)
        assert sum(len(slots) for _, slots, _ in told[0]) >= self.live() - SIZE
        used = self.held or self.resized
        assert came_to(self.both(lambda one: one.size(), semaphore)) == (self.size if used else NotFound)

    @time_passes
    @rule(pick=picks)
    def outlast_the_leases(self, pick):
        """Whoever looks for two leases finds room for all."""
        self.outlasted(LEASE, lambda: self.take(pick, self.size, None), self.held)


def test_semaphores_grant_alike_over_both_stores_and_never_more_than_there_are(agree):
    agree(Semaphores, "semaphores")
