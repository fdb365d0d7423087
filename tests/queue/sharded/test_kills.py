"""Processes over one SQLite file that are killed and stopped at any moment: what was acknowledged is handled."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.scale import SEEDS

from . import worker

ROLES = ("produce",) * 3 + ("consume",) * 4 + ("sweep",) * 2
SECONDS = 5.0
ROOT = Path(__file__).parents[3]


class Crowd:
    """The processes, each started again when it was killed. `killed`, `stopped`: how many were."""

    def __init__(self, database: Path, log: Path, chance: random.Random) -> None:
        self._database, self._log, self._chance = database, log, chance
        self._processes = {place: self._start(role) for place, role in enumerate(ROLES)}
        self._wake: dict[int, float] = {}
        self.killed: set[str] = set()
        self.stopped = 0

    def _start(self, role: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "tests.queue.sharded.worker", role, str(self._database), str(self._log), "600"]
        return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)

    def disturb(self) -> None:
        """Kill and stop at random for some seconds; on a busy machine until there is something to judge."""
        began = time.monotonic()
        while (spent := time.monotonic() - began) < SECONDS or (spent < 90 and not self._enough()):
            time.sleep(self._chance.uniform(0.05, 0.25))
            place = self._chance.randrange(len(ROLES))
            self._stop(place) if self._chance.random() < 0.3 else self._kill(place)
            for stopped in [at for at, until in self._wake.items() if until < time.monotonic()]:
                self._processes[stopped].send_signal(signal.SIGCONT)
                del self._wake[stopped]

    def _enough(self) -> bool:
        told = self._log.read_text() if self._log.exists() else ""
        return len(self.killed) >= 5 and self.stopped > 0 and told.count("published") >= 40

    def _stop(self, place: int) -> None:
        """Some are stopped for longer than their messages wait for them."""
        self._processes[place].send_signal(signal.SIGSTOP)
        self._wake[place] = time.monotonic() + self._chance.uniform(0.05, 1.5)
        self.stopped += 1

    def _kill(self, place: int) -> None:
        self._end(place)
        self._processes[place] = self._start(ROLES[place])

    def _end(self, place: int) -> None:
        process = self._processes[place]
        process.kill()
        process.wait()
        self._wake.pop(place, None)
        self.killed.add(str(process.pid))

    def end(self) -> None:
        """Kill them all."""
        for place in self._processes:
            self._end(place)


class Story:
    """What the processes have written down."""

    def __init__(self, log: Path) -> None:
        lines = [tuple(line.rsplit(" ", 2)) for line in log.read_text().splitlines()]
        self.sure = {i for word, _, i in lines if word == "published"}
        self.published = self.sure | {i for word, _, i in lines if word == "repeated"}
        self.handled = Counter(i for word, _, i in lines if word == "handled")
        self.ended = {(who, i): word for word, who, i in lines if word not in ("published", "repeated", "handled")}
        self.open = {(who, i) for word, who, i in lines if word == "handled"} - set(self.ended)

    def unexplained(self, killed: set[str]) -> list[str]:
        """Messages that came again although no consumer or producer was killed or late with them, and other riddles."""
        excused = Counter(i for who, i in self.open if who in killed)
        excused.update(i for (_, i), word in self.ended.items() if word == "late")
        riddles = [f"{i} came {n} times" for i, n in self.handled.items() if i in self.sure and n - 1 > excused[i]]
        riddles += [f"{i} {word} {who}" for (who, i), word in self.ended.items() if word not in ("acked", "late")]
        acked = Counter(i for (_, i), word in self.ended.items() if word == "acked" and i in self.sure)
        return riddles + [f"{i} was acknowledged {n} times" for i, n in acked.items() if n > 1]


def drain(queue) -> Counter[str]:
    """Sweep and receive what is left once nobody is killed any more; what was handled here."""
    handled: Counter[str] = Counter()
    election, sweeper = worker.sweeper_of(queue)

    def sweep_and_receive(_) -> None:
        for _ in range(5):
            sweeper.run_once()
            for view in (queue, queue.sideline, queue.parked):
                while deliveries := view.receive(100):
                    handled.update(delivery.message_id for delivery in deliveries)
                    view.ack_many(deliveries)
            time.sleep(1.05)

    election.run(sweep_and_receive, timeout=60)
    return handled


@pytest.mark.slow  # more on a busy machine
@pytest.mark.parametrize("seed", SEEDS)
def test_processes_that_are_killed_and_stopped_lose_nothing(tmp_path, seed, proved):
    database, log = tmp_path / "queue.db", tmp_path / "log"
    queue = worker.queue_of(str(database))
    crowd = Crowd(database, log, random.Random(seed))
    try:
        crowd.disturb()
    finally:
        crowd.end()
    story = Story(log)
    story.handled.update(drain(queue))
    duplicates = story.handled.total() - len(story.handled)
    print(f"{len(crowd.killed)} killed, {crowd.stopped} stopped, {len(story.published)} published, {duplicates} twice")
    proved("processes", "sharded, SQLite", killed=len(crowd.killed), stopped=crowd.stopped)
    assert len(story.published) >= 20
    assert not story.published - set(story.handled)
    assert not story.unexplained(crowd.killed)
    assert (queue.depth().ready, queue.depth().sideline, queue.depth().parked) == (0, 0, 0)
