"""Several processes on one queue, some killed, some stopped past their lease: every committed entry comes out once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from latchwork.queue import LargeQueue
from latchwork.store import SQLiteStore
from tests.support.scale import SEEDS, length
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[3]
LEASE = 0.2
PUTTERS, TAKERS = length(5, least=3), length(3, least=2)
KILLED, STOPPED = length(4, least=2), length(6, least=3)
"""Of the stopped ones, so many are killed as well."""
ENOUGH = 100
"""Entries without which the run would show little."""


class Crowd:
    """The processes, their logs, and what the parent found out about those that it has killed."""

    def __init__(self, store, directory):
        self.queue = LargeQueue.create(store, "q", 60, entries_per_record=7, lease=LEASE)
        self.directory, self.url = directory, store.url
        self.running = {}
        self.told = {}
        for number in range(PUTTERS + TAKERS):
            self.start("put" if number < PUTTERS else "take", number)

    def start(self, role, number):
        command = [
            sys.executable,
            "-m",
            "tests.queue.circular.worker",
            role,
            self.url,
            "q",
            str(number),
            str(self.directory),
        ]
        self.running[role, number] = subprocess.Popen(command, cwd=ROOT)

    def log(self, role, number):
        path = self.directory / f"{role}-{number}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def kill(self, who):
        """Kill it, and ask the queue what became of the transaction that it was in."""
        process = self.running.pop(who)
        process.send_signal(signal.SIGKILL)
        process.wait()
        lines = self.log(*who)
        if lines and lines[-1].keys() <= {"txn", "values"}:
            self.told[lines[-1]["txn"]] = self.queue.transaction(lines[-1]["txn"])

    def stop_for_a_while(self, who):
        self.running[who].send_signal(signal.SIGSTOP)
        time.sleep(LEASE * 1.5)
        self.running[who].send_signal(signal.SIGCONT)

    def finish(self):
        (self.directory / "stop").touch()
        for process in self.running.values():
            assert process.wait(30) == 0
        self.running.clear()

    def end(self):
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    # ---- what they said

    def committed(self):
        """Offset -> value of all that was put in and committed, by what its process or the queue has said."""
        found = {}
        for number in range(PUTTERS):
            values = {}
            for line in self.log("put", number):
                values.setdefault(line["txn"], line.get("values"))
                if line.get("offsets"):
                    found.update(zip(range(*line["offsets"]), values[line["txn"]], strict=True))
            for txn, transaction in self.told.items():
                if txn in values and transaction is not None:
                    found.update(zip(transaction.offsets, values[txn], strict=True))
        return found

    def taken(self):
        """(offset, value) of all that was taken; the value is None where its process died with it in its hands."""
        found = []
        for number in range(PUTTERS, PUTTERS + TAKERS):
            for line in self.log("take", number):
                found += [tuple(entry) for entry in line.get("entries", ())]
        for txn, transaction in self.told.items():
            if txn.startswith("take") and transaction is not None:
                found += [(offset, None) for offset in transaction.offsets]
        return found


@pytest.mark.slow  # more on a busy machine
@pytest.mark.parametrize("seed", SEEDS)
def test_every_committed_entry_is_dequeued_exactly_once_in_order_though_processes_are_killed(tmp_path, seed, proved):
    store = SQLiteStore(tmp_path / "store.db", synchronous="off")
    crowd, rng = Crowd(store, tmp_path), random.Random(11 + seed)
    try:
        while len(list(tmp_path.glob("*-*"))) < PUTTERS + TAKERS:
            time.sleep(0.02)
        for turn in range(STOPPED):
            crowd.stop_for_a_while(rng.choice(sorted(crowd.running)))
            if turn < KILLED:
                crowd.kill(("put", turn) if turn % 2 else ("take", PUTTERS + turn // 2))
        until(lambda: crowd.queue.info().tail_offset > ENOUGH)
        crowd.finish()
        left = [(entry.offset, entry.value) for entry in crowd.queue.dequeue_many(60)]
        committed, taken = crowd.committed(), crowd.taken() + left
        assert len(committed) > ENOUGH
        assert sorted(offset for offset, _ in taken) == sorted(committed) == list(range(crowd.queue.info().tail_offset))
        assert all(value in (None, committed[offset]) for offset, value in taken)
        for number in range(PUTTERS):
            mine = [value for _, value in sorted(committed.items()) if value[0] == str(number)]
            assert mine == sorted(mine)
        for number in range(PUTTERS, PUTTERS + TAKERS):
            offsets = [entry[0] for line in crowd.log("take", number) for entry in line.get("entries", ())]
            assert offsets == sorted(offsets)
        proved("processes", "circular, SQLite", killed=KILLED, stopped=STOPPED)
    finally:
        crowd.end()
        store.close()
