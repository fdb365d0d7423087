"""A fleet of real workers that is deployed again and again, under handlers that take longer than the grace.

In full, five minutes with handlers of 5 to 60 s: `LATCHWORK_SCALE=100 pytest -s tests/queue/sharded/test_deploys.py`.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

import latchwork
from latchwork.queue import QueueConfig, QueueRegistry
from tests.support.scale import SCALE

from .deployed import QUEUE

ROOT = Path(__file__).parents[3]
IS_FULL = SCALE >= 10
SECONDS, APART, GRACE = (300.0, 20.0, 5.0) if IS_FULL else (24.0, 4.0, 0.5)
WORK = (5.0, 60.0) if IS_FULL else (0.5, 6.0)
SIZE, JOBS = 4, 40 if IS_FULL else 20
PATIENCE = 600.0


class Deployed:
    """Four workers; a deploy sends SIGTERM to each, and starts a new process at once."""

    def __init__(self, url: str, client: str, folder: Path) -> None:
        self.log, self._errors = folder / "log", (folder / "errors").open("ab")
        self.log.touch()
        self._command = [sys.executable, "-m", "tests.queue.sharded.deployed", url, client, str(self.log), str(GRACE)]
        self._old: list[subprocess.Popen[bytes]] = []
        self.deploys = 0
        self.processes = [self._start() for _ in range(SIZE)]

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=ROOT, stderr=self._errors)

    def deploy(self) -> None:
        self.deploys += 1
        for place, process in enumerate(self.processes):
            process.send_signal(signal.SIGTERM)
            self._old.append(process)
            self.processes[place] = self._start()

    def lines(self, what: str) -> list[list[str]]:
        return [line.split() for line in self.log.read_text().splitlines() if line.startswith(what)]

    def end(self) -> set[int]:
        """End all of them; the exit codes that there were."""
        all_of_them = [*self._old, *self.processes]
        for process in all_of_them:
            process.send_signal(signal.SIGTERM)
        for process in all_of_them:
            try:
                process.wait(2 * GRACE + 10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._errors.close()
        return {process.returncode for process in all_of_them}


@pytest.mark.long
def test_no_deploy_counts_an_attempt_or_parks_or_loses_a_message(aerospike_server, tmp_path, proved):
    client, chance = f"d{time.monotonic_ns() % 10**9}", random.Random(7)
    registry = QueueRegistry(latchwork.connect(aerospike_server.url), client)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        queue = registry.create(
            QueueConfig(QUEUE, shards=8, concurrency=2, max_deliveries=1, handler_timeout=600, sweep_duration=1_200)
        )
    ids = queue.publish_many([
        {"seconds": chance.uniform(*WORK), "looks": chance.random() < 0.5} for _ in range(JOBS)
    ])  # fmt: skip
    fleet = Deployed(aerospike_server.url, client, tmp_path)
    codes = set()
    try:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(APART)
            fleet.deploy()
        end = time.monotonic() + PATIENCE  # no deploy any more: what is left is done
        while len({line[1] for line in fleet.lines("ended")}) < JOBS and time.monotonic() < end:
            time.sleep(0.2)
    finally:
        codes |= fleet.end()
    began, ended = fleet.lines("began"), fleet.lines("ended")
    depth = queue.depth()
    interrupted = sum(line[4] == "interrupted" for line in began)
    print(f"\n{fleet.deploys} deploys, {JOBS} jobs, begun {len(began)} times, {interrupted} after one; {depth}")
    assert codes <= {0, -signal.SIGTERM}, "none crashes or hangs; SIGTERM may come before a new process handles it"
    assert {line[1] for line in ended} == set(ids), "nothing is lost"
    assert {line[3] for line in began} == {"1"}, "no deploy counts an attempt"
    assert (depth.ready, depth.sideline, depth.parked, depth.delayed) == (0, 0, 0, 0)
    assert interrupted > 0, "or it proves nothing"
    proved("processes", "deploys", stopped=fleet.deploys * SIZE)
