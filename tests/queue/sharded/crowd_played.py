"""The crowd of `test_crowd_killed` in one process, on the clock of the test: any call of one can be its last, or others
go on before it, as while its process is stopped.
"""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

from latchwork.queue import QueueRegistry
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import Crash, FaultyStore

from . import crowd_worker
from .crowd_story import Story
from .crowd_worker import CONFIG, Handling, Log, Publishing


class Chance:
    """Fails the first messages, and acknowledges the others together."""

    def __init__(self, fails: int) -> None:
        self.fails = fails

    def random(self) -> float:
        self.fails -= 1
        return 0.0 if self.fails >= 0 else 0.5


class MortalLog(Log):
    """A process that was killed writes no more; each line takes a millisecond."""

    def __init__(self, path: str, store: FaultyStore, who: int) -> None:
        super().__init__(path)
        self.store, self.who = store, who

    def write(self, word: str, whom: str, messages) -> None:
        self.store.seams.advance(0.001)
        if not self.store.dead:
            super().write(word, whom, messages)


class Process:
    """One process: a publisher, a reader or a leader, by what is called of it."""

    def __init__(self, crowd: PlayedCrowd, whom: str = "own", fails: int = 0) -> None:
        self.crowd, self.store = crowd, FaultyStore(crowd.store, seams=crowd.clock)
        self.log = MortalLog(str(crowd.log), self.store, next(crowd.numbers))
        self.registry = QueueRegistry(self.store, "c", farm_id="f")
        self.queue = self.registry.create(CONFIG)
        view = self.queue if whom == "own" else self.queue.group(whom)
        self.handling = Handling(view, whom, self.log, Chance(fails))
        self.publishing = Publishing(self.queue, self.log, None)
        self.term = SimpleNamespace(epoch=self.log.who, check=lambda: None, lost=SimpleNamespace())
        self.election = SimpleNamespace(leadership=self.term)
        self._duties = crowd_worker.lead(self.registry, self.election, self.log)

    def lead(self) -> None:
        """Do the upkeep once."""
        rounds = iter((False, True))
        self.term.lost = SimpleNamespace(is_set=lambda: next(rounds), wait=lambda _: None)
        self._duties(self.term)

    def publish(self, key: str) -> None:
        self.publishing.published("-", [key], self.queue.publish_many, dedups=[key])

    def at(self, number: int, what) -> None:
        """Let it die with this call from now on, or something happen just before it."""
        self.store.plan = {self.store.total + number: what}

    def until_dead(self, run) -> None:
        try:
            run()
        except Crash:
            self.crowd.killed.add(str(self.log.who))


class PlayedCrowd:
    """A leader, and a reader for the queue's own consumers and for a group; the others are the test's."""

    def __init__(self, log, monkeypatch) -> None:
        self.clock = ManualClock()
        self.store, self.log, self.numbers, self.killed = MemoryStore(self.clock), log, count(1), set[str]()
        times = SimpleNamespace(monotonic=self.clock.monotonic, sleep=self.clock.sleep)
        monkeypatch.setattr(crowd_worker, "time", times)
        monkeypatch.setattr("tests.queue.sharded.crowd_story.READERS", ("own", "a"))
        log.touch()
        Process(self).queue.group("a")
        self.leader, self.own, self.group = self.process(), self.process("own"), self.process("a")
        follow = crowd_worker.noted(crowd_worker.batch_end.follow, self.leader.log)
        monkeypatch.setattr(crowd_worker.batch_end, "follow", follow)

    def process(self, whom: str = "own", fails: int = 0) -> Process:
        return Process(self, whom, fails)

    def go_on(self, seconds: float, leader: Process | None = None) -> None:
        """The others lead and read for this time."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            (leader or self.leader).lead()
            self.own.handling.step()
            self.group.handling.step()
            self.clock.advance(0.3)

    def story(self) -> Story:
        story = Story(self.log)
        story.killed = self.killed
        story.read_on()
        return story
