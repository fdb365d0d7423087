"""Eight processes over three groups and two batches at a time, killed and stopped at any moment (P5, P15, P17, P18).

For the queue's own consumers and for each group nothing that was acknowledged to a publisher is lost, and what comes
again has its reason; each batch's follow-up is there once, after all of the batch, and each deduplication key once.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.scale import FIRST, TIMES

from . import crowd_worker
from .crowd_story import Story

ROOT = Path(__file__).parents[3]
ROLES = ("publish", "publish", "own", "own", "own", *crowd_worker.GROUPS)
SECONDS, PATIENCE = (5.0 if TIMES == 1 else 30.0 * TIMES), 90.0
KILLED, STOPPED, PUBLISHED = 4, 2, 100
"""There are at least so many, also on a machine that is slow."""


class Crowd:
    """The processes, each started again when it was killed."""

    def __init__(self, url: str, client: str, log: Path) -> None:
        self._command = [sys.executable, "-m", "tests.queue.sharded.crowd_worker"]
        self._told = [url, client, str(log)]
        self.processes = [self._started(role) for role in ROLES]
        self._wake: dict[int, float] = {}
        self.killed: set[str] = set()
        self.stopped = 0
        self.done: list[str] = []
        """What was done to whom, and when."""

    def _started(self, role: str) -> subprocess.Popen:
        return subprocess.Popen([*self._command, role, *self._told], cwd=ROOT, stderr=subprocess.DEVNULL)

    def disturb(self, chance: random.Random, story: Story) -> None:
        """Kill and stop at random; some are stopped for longer than their messages wait for them.

        Where the machine is slow they are left alone until they have published as much as they should have by then.
        """
        began = time.monotonic()
        while (past := time.monotonic() - began) < SECONDS or len(self.killed) < KILLED or self.stopped < STOPPED:
            time.sleep(chance.uniform(0.2, 1.0))
            self._wake_up(time.monotonic())
            story.read_on()
            if len(story.safe) <= PUBLISHED * min(1.0, past / SECONDS) and past < SECONDS + PATIENCE:
                continue
            place = chance.randrange(len(ROLES))
            if chance.random() < 0.3:
                self._signal(place, signal.SIGSTOP)
                self._wake[place] = time.monotonic() + chance.uniform(0.05, 1.5 * crowd_worker.SWEEP)
                self.stopped += 1
            else:
                self.kill(place)
                self.processes[place] = self._started(ROLES[place])
        self._wake_up(float("inf"))

    def _wake_up(self, now: float) -> None:
        for place in [one for one, until in self._wake.items() if until < now]:
            self._signal(place, signal.SIGCONT)
            del self._wake[place]

    def _signal(self, place: int, number: signal.Signals) -> None:
        self.done.append(f"{time.monotonic():.4f} {number.name} {self.processes[place].pid} {ROLES[place]}")
        self.processes[place].send_signal(number)

    def kill(self, place: int) -> None:
        self._signal(place, signal.SIGKILL)
        self.processes[place].wait()
        self._wake.pop(place, None)
        self.killed.add(str(self.processes[place].pid))

    def end(self) -> None:
        for place in range(len(ROLES)):
            self.kill(place)


@pytest.fixture(params=["sqlite", "aerospike"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'crowd.db'}?synchronous=off"
    server = request.getfixturevalue("aerospike_server")
    return f"aerospike://{server.host}:{server.port}/{server.namespace}"


def settled(holds, story) -> None:
    """Read on until it holds, or nothing has come for long enough: what is lacking then is found by the checks."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if story.read_on():
            end = time.monotonic() + PATIENCE
        if holds():
            return
        time.sleep(0.1)


@pytest.mark.long
def test_groups_batches_and_keys_lose_and_double_nothing_however_processes_die(url, tmp_path, proved):
    log, client = tmp_path / "log", f"crowd{os.getpid()}{url[:1]}"
    log.touch()
    queue = crowd_worker.queue_of(url, client)
    groups = [queue.group(name) for name in crowd_worker.GROUPS]
    crowd, story = Crowd(url, client, log), Story(log)
    try:
        settled(lambda: story.safe and story.handled, story)
        crowd.disturb(random.Random(FIRST), story)
        killed = len(crowd.killed)
        # Publishers end; what they have left open is closed, and all others bring the rest to its end.
        for place, role in enumerate(ROLES):
            if role == "publish":
                crowd.kill(place)
        story.killed = crowd.killed
        for batch in queue.list_batches():
            batch.close()

        def empty() -> bool:
            return not any(one.ready + one.sideline for one in (each.depth() for each in (queue, *groups)))

        settled(lambda: not any(story.waited_for()) and empty(), story)
        open_ = [batch.name for batch in queue.list_batches()]
    finally:
        crowd.end()
    story.read_on()
    figures = story.figures()
    print(figures, {"killed": killed, "stopped": crowd.stopped})
    proved(
        "processes", f"groups and batches, {url.partition(':')[0]}", killed=killed, stopped=crowd.stopped,
        **figures,
    )  # fmt: skip
    wrong = story.wrong()
    if wrong:  # the log is gone when somebody reads this
        print(*crowd.done, *story.lines_about(" ".join(wrong)), sep="\n")
    assert wrong == []
    assert open_ == []
    assert figures["published"] > PUBLISHED
