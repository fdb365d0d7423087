"""Histories of real processes: each worker prints what it asks for and what it is told, with the time of one clock.

A worker that is killed leaves its last operation open: it may have been applied or not. The clock is the machine's
monotonic one, which all processes share.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

from tests.sim.history.record import OPEN, Entry

PRELUDE = """
import json, pickle, sys, time
from latchwork.errors import LatchworkError
store, me, chance = pickle.loads(bytes.fromhex(sys.argv[1])), sys.argv[2], __import__("random").Random(int(sys.argv[3]))
def say(*fact):
    print(json.dumps([time.monotonic_ns(), *fact]), flush=True)
def call(name, args, run, result=lambda value: None):
    say("call", name, args)
    try:
        value = run()
    except LatchworkError as failure:
        say("failed", failure.code)
        return None
    say("ok", result(value))
    return value
say("ready")
sys.stdin.readline()
"""


@dataclass
class Worker:
    """One process; `ended` is when it was killed, `stopped` whether it was stopped for longer than its lease.

    late: whether it was told that what it held had been taken over, as one is that the machine was too busy to run.
    """

    name: str
    process: subprocess.Popen
    ended: float = OPEN
    stopped: bool = False
    late: bool = False
    lines: list = field(default_factory=list)

    @property
    def mortal(self) -> bool:
        """Whether others may have taken over what it held."""
        return self.stopped or self.late or self.ended != OPEN


def play(store, code, seed, *, workers, kills, stops, pause) -> list[Entry]:
    """Let so many workers run the code, kill some and stop others for `pause` seconds; what they did, in order."""
    chance = random.Random(seed)
    crowd = [_start(store, code, f"w{number}", seed * 100 + number) for number in range(workers)]
    for worker in crowd:
        assert worker.process.stdout.readline(), "it is ready"
    for worker in crowd:
        worker.process.stdin.write("\n")
        worker.process.stdin.flush()
    for worker in chance.sample(crowd, kills + stops):
        time.sleep(chance.uniform(0.02, 0.15))
        if kills:
            kills -= 1
            worker.process.send_signal(signal.SIGKILL)
            worker.ended = time.monotonic_ns()
        else:
            worker.stopped = True
            os.kill(worker.process.pid, signal.SIGSTOP)
            time.sleep(pause)
            os.kill(worker.process.pid, signal.SIGCONT)
    for worker in crowd:
        out, _ = worker.process.communicate(timeout=60)
        assert worker.process.returncode in (0, -signal.SIGKILL), out
        worker.lines = [json.loads(line) for line in out.splitlines() if line.endswith("]")]
    return sorted((entry for worker in crowd for entry in _entries(worker)), key=lambda entry: entry.order)


def _start(store, code, name, seed) -> Worker:
    command = [sys.executable, "-c", PRELUDE + code, pickle.dumps(store).hex(), name, str(seed)]
    return Worker(name, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))


def _entries(worker: Worker) -> list[Entry]:
    """What one worker did, by the clock that all share."""
    found: list[Entry] = []
    for when, kind, *facts in worker.lines:
        if kind == "call":
            found.append(Entry(worker.name, facts[0], tuple(facts[1]), when, when, tag=worker))
        elif kind in ("ok", "failed"):
            entry = found[-1]
            entry.closed = when
            if kind == "ok" or facts[0] != "OUTCOME_UNKNOWN":
                entry.returned, entry.outcome = when, "ok" if kind == "ok" else facts[0]
            entry.result = facts[0] if kind == "ok" else None
            worker.late |= entry.name == "release" and entry.result is False
    return found
