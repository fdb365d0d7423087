"""Processes over one SQLite file that are killed and stopped at any moment: what was acknowledged is handled."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from latchwork.queue import Sweeper

from . import worker

ROLES = ("produce", "produce", "consume", "consume", "sweep", "sweep")
SECONDS = float(os.environ.get("LATCHWORK_KILL_SECONDS", "5"))
ROOT = Path(__file__).parents[2]


def start(role: str, database: Path, log: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.sharded.worker", role, str(database), str(log), "120"]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)


def disturb(processes: dict[int, subprocess.Popen], begin, chance: random.Random, log: Path) -> int:
    """Kill or pause processes at random for some seconds, and start new ones; how many were killed.

    On a busy machine it goes on until there is something to judge.
    """
    kills, began = 0, time.monotonic()
    while (spent := time.monotonic() - began) < SECONDS or (spent < 90 and (kills < 5 or lines_of(log) < 100)):
        time.sleep(chance.uniform(0.05, 0.25))
        place = chance.randrange(len(ROLES))
        if chance.random() < 0.3:
            processes[place].send_signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0.05, 0.3))
            processes[place].send_signal(signal.SIGCONT)
        else:
            processes[place].kill()
            processes[place].wait()
            processes[place] = begin(place)
            kills += 1
    return kills


def lines_of(log: Path) -> int:
    """How much the processes have done."""
    return log.read_bytes().count(b"\n") if log.exists() else 0


@pytest.mark.parametrize("seed", [1])
def test_processes_that_are_killed_and_stopped_lose_nothing(tmp_path, seed):
    database, log = tmp_path / "queue.db", tmp_path / "log"
    queue = worker.queue_of(str(database))
    begin = lambda place: start(ROLES[place], database, log)  # noqa: E731
    processes = {place: begin(place) for place in range(len(ROLES))}
    try:
        kills = disturb(processes, begin, random.Random(seed), log)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    lines = Counter(tuple(line.split()) for line in log.read_text().splitlines())
    published = {i for word, i in lines if word == "published"}
    handled = Counter({i: n for (word, i), n in lines.items() if word == "handled"})
    sweeper = Sweeper(queue.registry, worker.Election(), parallelism=1)
    for _ in range(5):
        sweeper.run_once()
        for view in (queue, queue.sideline, queue.parked):
            while deliveries := view.receive(100):
                handled.update(delivery.message_id for delivery in deliveries)
                view.ack_many(deliveries)
        time.sleep(1.05)
    print(f"{kills} kills, {len(published)} published, {handled.total() - len(handled)} duplicates")
    assert kills >= 5
    assert len(published) >= 20
    assert not published - set(handled)
    assert (queue.depth().ready, queue.depth().sideline) == (0, 0)
