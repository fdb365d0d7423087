"""Hunters of updates that happen once, latches, locks, semaphores and elections."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from latchwork.coord import CountDownLatch, FencedLock, LeaseElection, Semaphore
from latchwork.errors import LatchworkError
from latchwork.store import NEVER, Add, Bin, Exists, Key, Once, Param, Put

from ..checkers.linearizable import linearizable
from ..checkers.models import Counter
from ..history.record import Entry, History
from .ground import Ground, Hunter

N = Bin("n")
WAS = N.eq(Param("was", int))
OPERATIONS = 24
"""Of one record's history, so that the search for an order is short."""
PARTIES = frozenset(f"p{number}" for number in range(6))
LEASE = 2.0


class Updates(Hunter):
    """Integers, one after the other: additions and swaps exactly once, and reads, by three threads."""

    name, expected = "store", frozenset({"REFUSED"})

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.histories: dict[Key, History] = {}

    def people(self) -> Sequence[Callable[[], None]]:
        return [self._one] * 3

    def _one(self) -> None:
        key = self._present()
        if key is None:
            return
        once, draw, was = Once(64, result=N), self.chance.random(), self.chance.randrange(6)
        put, when = Put("n", was + 1), WAS.bind(was=was)
        if draw < 0.2:
            self._read(key)
        elif draw < 0.7:
            self.call_in(self.histories[key], "add", lambda: self.store.operate(key, Add("n", 1), once=once)[0], 1)
        else:
            swap = (lambda: self.store.operate(key, put, when=when, once=once)[0], was, was + 1)
            self.call_in(self.histories[key], "swap", *swap)

    def _read(self, key: Key) -> None:
        self.call_in(self.histories[key], "read", lambda: self.store.get(key, "n").bins["n"])

    def _present(self) -> Key | None:
        """The record that is worked on: another once its history is long enough; None where it cannot be made."""
        with self.lock:
            last = next(reversed(self.histories), None)
            if last is None or len(self.histories[last].entries) >= OPERATIONS:
                last = Key("hunt", uuid.uuid4().hex)
                try:
                    self.store.operate(last, Put("n", 0), exists=Exists.CREATE, ttl=NEVER)
                except LatchworkError:
                    return None
                self.histories[last] = History(self.ground.clock)  # type: ignore[arg-type] # as in Hunter
            return last

    def settle(self) -> None:
        for key in self.histories:
            self._read(key)

    def entries(self) -> list[Entry]:
        return [entry for history in self.histories.values() for entry in history.entries]

    def check(self) -> None:
        for key, history in self.histories.items():
            if not linearizable(history.entries, Counter()):
                self.complain("updates are linearizable", f"{key}: {[repr(entry) for entry in history.entries]}")


class Latches(Hunter):
    """Latches, one after the other; two threads count parties, each as often as chance will have it, and one waits."""

    name, expected = "latch", frozenset({"WAIT_TIMEOUT"})

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.counted: dict[str, set[str]] = {}

    def people(self) -> Sequence[Callable[[], None]]:
        return [self._count, self._count, self._wait]

    def _present(self) -> tuple[str, CountDownLatch | None]:
        """The latch that is not released, and a handle of it; another where it is; None where it cannot be had."""
        with self.lock:
            name = next(reversed(self.counted), "")
            try:
                if name and self.counted[name] < PARTIES:
                    return name, CountDownLatch.get(self.store, "hunt", name)
                name = uuid.uuid4().hex
                latch = CountDownLatch.create(self.store, "hunt", name, parties=sorted(PARTIES))
            except LatchworkError:
                return name, None
            self.counted[name] = set()
            return name, latch

    def _count(self) -> None:
        (name, latch), party = self._present(), self.chance.choice(sorted(PARTIES))
        if latch is not None and self.call("count", lambda: latch.count_down(party=party), name, party).ok:
            self.counted[name].add(party)

    def _wait(self) -> None:
        name, latch = self._present()
        if latch is not None:
            self.call("wait", lambda: latch.wait(timeout=1.0), name)

    def check(self) -> None:
        begun = [entry for entry in self.history.entries if entry.name == "count"]
        for entry in self.history.named("wait"):
            counted = {count.args[1] for count in begun if count.args[0] == entry.args[0] and count.order < entry.ended}
            if entry.ok and entry.result and counted < PARTIES:
                self.complain("released only if the target was reached", f"without {sorted(PARTIES - counted)}")
        for name, counted in self.counted.items():
            latch = CountDownLatch.get(self.store, "hunt", name)
            missing, left = set(latch.missing(expected=sorted(PARTIES))), latch.count()
            if missing & counted or left != len(missing):
                self.complain("each party counts once", f"{left} left, missing {missing}, counted {counted}")


class _Fenced(Hunter):
    """What has fences: later ones are higher, and a resource counts each update that was not refused."""

    keys: tuple[Key, ...]

    def _used(self, grant: Any, key: Key) -> None:
        self.call("operate", lambda: grant.operate(key, Add("n", 1), exists=Exists.ANY, once=Once(1000)), key)
        self.ground.over.wait(self.chance.choice((0.0, 0.05)))
        self.call("release", grant.release)

    def check(self) -> None:
        taken = [entry for entry in self.history.named("acquire") if entry.ok and entry.result is not None]
        self.in_order(sorted((entry.order, entry.ended, entry.result.fence) for entry in taken))
        for key in self.keys:
            uses = [entry for entry in self.history.named("operate") if entry.args == (key,)]
            done, unknown = sum(entry.ok for entry in uses), sum(entry.unknown for entry in uses)
            record = self.store.get(key, "n")
            counted = record.bins["n"] if record else 0
            if not done <= counted <= done + unknown:
                self.complain("each update once", f"{counted} of {done} done and {unknown} unknown")

    def in_order(self, taken: Sequence[tuple[int, int, int]]) -> None:
        """Complain unless who begins after another has had its fence gets a higher one: (begun, had, fence)."""
        had = sorted((ended, fence) for _, ended, fence in taken)
        highest, place = -1, 0
        for begun, _, fence in taken:
            while place < len(had) and had[place][0] < begun:
                highest, place = max(highest, had[place][1]), place + 1
            if fence <= highest:
                self.complain("fences strictly increase", f"{fence} after {highest}")
        if len({fence for _, _, fence in taken}) < len(taken):
            self.complain("no fence is given twice", str(sorted(fence for _, _, fence in taken)))


class Locks(_Fenced):
    """One lock, and three who want it again and again."""

    name, expected = "lock", frozenset({"LOCK_UNAVAILABLE", "FENCED_OUT", "LEASE_LOST"})
    keys = (Key("hunt", "lock's resource"),)

    def people(self) -> Sequence[Callable[[], None]]:
        return [self._take] * 3

    def _take(self) -> None:
        lock, kept = FencedLock(self.store, "lock", lease=LEASE), self.chance.random() < 0.5
        entry = self.call("acquire", lambda: lock.acquire(timeout=3.0, keep_alive=kept))
        if entry.ok and (kept or self.chance.random() < 0.9):  # else its holder is gone, and its lease has to run out
            self._used(entry.result, self.keys[0])


class Semaphores(_Fenced):
    """Two permits, and four who want one or both."""

    name, expected = "semaphore", Locks.expected
    keys = (Key("hunt", "semaphore's resource"),)

    def people(self) -> Sequence[Callable[[], None]]:
        return [self._take] * 4

    def _take(self) -> None:
        permits = Semaphore(self.store, "permits", permits=2, lease=LEASE)
        n = self.chance.choice((1, 1, 2))
        entry = self.call("acquire", lambda: permits.acquire(n, timeout=3.0, keep_alive=self.chance.random() < 0.5), n)
        if entry.ok:
            self._used(entry.result, self.keys[0])


class Elections(_Fenced):
    """Two candidates for one office, each of which gives its terms up after a while."""

    name = "election"
    keys = ()

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.terms: list[tuple[int, str]] = []
        self.places = itertools.count()

    def people(self) -> Sequence[Callable[[], None]]:
        return [self._stand] * 2

    def _stand(self) -> None:
        name = f"candidate {next(self.places)}"
        election = LeaseElection(self.store, "office", candidate=name, lease=LEASE)

        def lead(leadership: Any) -> None:
            self.terms.append((leadership.epoch, name))
            leadership.lost.wait(self.chance.choice((0.1, 0.5, 3.0)))

        election.start(lead)
        self.ground.over.wait()
        before = len(self.terms)
        self.ground.until("election: somebody is elected", lambda: len(self.terms) > before)
        if election.start(lead):
            self.complain("a campaign goes on", f"that of {name} had ended")
        if not election.stop(30):
            self.complain("a campaign ends when it is told to", name)

    def check(self) -> None:
        self.in_order([(0, 0, epoch) for epoch, _ in self.terms])
        for _, terms in itertools.groupby(sorted(self.terms, key=lambda term: term[1]), key=lambda term: term[1]):
            epochs = [epoch for epoch, _ in terms]
            if epochs != sorted(epochs):
                self.complain("epochs strictly increase", str(epochs))
