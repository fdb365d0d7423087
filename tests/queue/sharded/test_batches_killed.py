"""Workers over a real store that are killed and stopped at any moment: each batch ends, and what follows comes once."""

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

import latchwork
from latchwork.queue import Publish

from . import batch_worker

ROOT = Path(__file__).parents[3]
WORKERS, SECONDS, PATIENCE = 4, 4.0, 60.0
BATCHES, MESSAGES = 2, 60


@pytest.fixture(params=["sqlite", "aerospike"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'batches.db'}?synchronous=off"
    server = request.getfixturevalue("aerospike_server")
    return f"aerospike://{server.host}:{server.port}/{server.namespace}"


def started(url, client, log):
    command = [sys.executable, "-m", "tests.queue.sharded.batch_worker", url, client, str(log), "300"]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)


def disturb(processes, url, client, log, chance):
    """Kill and stop workers at random for some seconds; how many were killed."""
    killed, stopped, began = 0, {}, time.monotonic()
    while time.monotonic() - began < SECONDS or killed < 5:
        time.sleep(chance.uniform(0.05, 0.3))
        place = chance.randrange(WORKERS)
        if chance.random() < 0.3:
            processes[place].send_signal(signal.SIGSTOP)
            stopped[place] = time.monotonic() + chance.uniform(0.05, 1.5)
        else:
            processes[place].kill()
            processes[place].wait()
            stopped.pop(place, None)
            processes[place] = started(url, client, log)
            killed += 1
        for awake in [one for one, until in stopped.items() if until < time.monotonic()]:
            processes[awake].send_signal(signal.SIGCONT)
            del stopped[awake]
    for place in stopped:
        processes[place].send_signal(signal.SIGCONT)
    return killed


def test_each_batch_ends_and_what_follows_comes_once_however_workers_die(url, tmp_path, proved):
    client, log = f"k{os.getpid()}{url[:1]}", tmp_path / "log"
    log.touch()
    queue = batch_worker.queue_of(url, client)
    processes = [started(url, client, log) for _ in range(WORKERS)]
    try:
        batches = []
        for number in range(BATCHES):
            with queue.batch(f"b{number}", then=Publish(f"{batch_worker.NEXT}{number}")) as batch:
                for begin in range(0, MESSAGES, 20):
                    batch.publish_many([f"{number}.{begin + n}" for n in range(20)])
            batches.append(batch)
        killed = disturb(processes, url, client, log, random.Random(7))
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and not all(batch.progress().ended for batch in batches):
            time.sleep(0.2)
        progress = [batch.progress() for batch in batches]
        time.sleep(2)  # what comes twice would come now
    finally:
        for process in processes:
            process.kill()
            process.wait()
    lines = [line.split() for line in log.read_text().splitlines()]
    ids = {name: {i for word, what, i in lines if (word, what) == ("handled", name)} for _, name, _ in lines}
    handled = Counter(what for word, what, _ in lines if word == "handled")
    for number, one in enumerate(progress):
        assert (one.published, one.done, one.ended) == (MESSAGES, MESSAGES, True), one
        assert all(handled[f"{number}.{n}"] for n in range(MESSAGES))
        assert len(ids.get(f"{batch_worker.NEXT}{number}", ())) <= 1, "one message, however often it was delivered"
    left = {message.payload for view in (queue, queue.sideline) for message in view.peek_all()}
    for number in range(BATCHES):
        assert ids.get(f"{batch_worker.NEXT}{number}") or f"{batch_worker.NEXT}{number}" in left
    proved("real processes", "batches", killed=killed, follow_ups=BATCHES)
    latchwork.connect(url).close()
