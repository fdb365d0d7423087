"""Read-write locks over two stores: several users, a resource, leases that run out."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from latchwork.coord import ReadWriteLock
from latchwork.errors import FencedOut, LockUnavailable
from latchwork.store import Add, Key

from .twins import Twins, came_to, failed, time_passes

LEASE = 10.0
RESOURCE = Key("machines", "resource")
picks = st.integers(0, 5)
modes = st.sampled_from(("read", "write"))


@dataclass
class Held:
    """A grant on both sides, how many writers there had been when it was given, and whether it is over."""

    twins: tuple
    mode: str
    generation: int
    gone: bool = False

    @property
    def believed(self) -> bool:
        return not self.twins[0].lost.is_set()


class ReadWriteLocks(Twins):
    """One lock, three who use it, and a resource that they write to under their fences."""

    def start(self):
        self.held: list[Held] = []
        self.writers = self.seen = self.total = 0
        self.dead: int | None = None

    @initialize()
    def owners(self):
        self.locks = [
            self.both(lambda store, owner=owner: ReadWriteLock(store, "m", owner=owner, lease=LEASE), self.stores)
            for owner in ("a", "b", "a")
        ]

    def live(self) -> list[str]:
        """What those do who are not out for sure: who is believed in, or was not found to be removed."""
        return [held.mode for held in self.held if not held.gone]

    def swept(self) -> None:
        """Whoever is not in the record any more was removed, which may only be once nobody believes in it."""
        record = self.stores[0].get(Key("latchwork_rwlocks", "m"))
        ids = record.bins["holders"] if record else {}
        for held in self.held:
            if not held.gone and held.twins[0]._held._id not in ids:
                assert not held.believed
                held.gone = True
                if held.mode == "write":
                    self.dead = held.generation

    @rule(pick=picks, mode=modes, timeout=st.sampled_from((None, 0)))
    def enter(self, pick, mode, timeout):
        if timeout is None:
            answers = self.both(lambda lock: getattr(lock, f"try_{mode}")(), self.locks[pick % 3])
        else:
            answers = self.both(lambda lock: getattr(lock, mode)(timeout), self.locks[pick % 3])
        granted = not failed(answers) and answers[0] is not None
        assert granted or came_to(answers) is (None if timeout is None else LockUnavailable)
        before = len(self.live())
        self.swept()
        if not granted:
            assert "write" in self.live() or (mode == "write" and self.live()), before
            return
        assert "write" not in self.live()
        assert mode == "read" or not self.live()
        self.writers += mode == "write"
        new = Held(answers, mode, self.writers)
        for side, grant in enumerate(answers):
            for held in self.held:
                assert (held.twins[side].fence < grant.fence) == (held.generation < new.generation)
        assert (answers[0].abandoned is None) == (self.dead is None)
        self.held.append(new)

    @precondition(lambda self: self.held)
    @rule(pick=picks)
    def renew(self, pick):
        held = self.held[-1 - pick % len(self.held)]
        believed = held.believed
        assert came_to(self.both(lambda grant: grant.renew(), held.twins)) is (None if believed else FencedOut)

    @precondition(lambda self: self.held)
    @rule(pick=picks)
    def release(self, pick):
        held = self.held[-1 - pick % len(self.held)]
        self.swept()
        if held.mode == "write" and not held.believed and not held.gone:
            self.dead = held.generation  # it may have been interrupted in its work, as one that died
        assert came_to(self.both(lambda grant: grant.release(), held.twins)) is (not held.gone)
        held.gone = True

    @precondition(lambda self: any(held.mode == "write" for held in self.held))
    @rule(pick=picks)
    def clear(self, pick):
        writers = [held for held in self.held if held.mode == "write"]
        held = writers[-1 - pick % len(writers)]
        believed = held.believed
        answers = self.both(lambda grant: grant.clear_abandoned(), held.twins)
        assert came_to(answers) is (None if believed else FencedOut)
        if believed:
            self.dead = None

    @precondition(lambda self: self.held)
    @rule(pick=picks, amount=st.integers(1, 3))
    def write(self, pick, amount):
        held = self.held[-1 - pick % len(self.held)]
        may = held.believed and held.generation >= self.seen
        answers = self.both(lambda grant: grant.operate(RESOURCE, Add("n", amount)), held.twins)
        assert came_to(answers) == (() if may else FencedOut)
        if may:
            self.seen = held.generation
            self.total += amount
        for store in self.stores:
            record = store.get(RESOURCE, "n")
            assert (record.bins.get("n", 0) if record else 0) == self.total

    @time_passes
    @rule(pick=picks, mode=modes)
    def outlast_the_leases(self, pick, mode):
        self.outlasted(LEASE, lambda: self.enter(pick, mode, None), self.held)


def test_read_write_locks_grant_alike_over_both_stores_and_no_writer_beside_others(agree):
    agree(ReadWriteLocks, "read-write locks")
