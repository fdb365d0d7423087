"""Payments between accounts, by processes that are killed and stopped at any moment: each is paid once (P23)."""

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

from latchwork.queue.sharded.upkeep import conditional
from latchwork.queue.sharded.upkeep.timers import QueueTimers
from latchwork.store import Exists, Put
from latchwork.store.port import Update
from tests.support.scale import FIRST, TIMES

from . import payments_worker
from .payments_worker import account, queues_of
from .world import Leadership

ROOT = Path(__file__).parents[3]
WORKERS, ACCOUNTS, PAYMENTS, SECONDS = (4, 5, 600, 6.0) if TIMES == 1 else (8, 1_000, 100_000, 600.0)
PATIENCE = 120.0
KILLED, STOPPED = 6, 2
"""There are at least so many, also on a machine that is slow."""
START = 10_000


class Workers:
    """The processes, each started again when it was killed."""

    def __init__(self, *told: str) -> None:
        self._command = [sys.executable, "-m", "tests.queue.sharded.payments_worker", *told]
        self.processes = [self._started() for _ in range(WORKERS)]
        self._wake: dict[int, float] = {}
        self.killed = self.stopped = 0

    def _started(self) -> subprocess.Popen:
        return subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.DEVNULL)

    def disturb(self, chance: random.Random) -> None:
        """Kill and stop at random; some are stopped for longer than their messages wait for them."""
        began = time.monotonic()
        while time.monotonic() - began < SECONDS or self.killed < KILLED or self.stopped < STOPPED:
            time.sleep(chance.uniform(0.1, 0.8))
            self._wake_up(time.monotonic())
            place = chance.randrange(WORKERS)
            if chance.random() < 0.3:
                self.processes[place].send_signal(signal.SIGSTOP)
                self._wake[place] = time.monotonic() + chance.uniform(0.05, 2.5 * payments_worker.SWEEP)
                self.stopped += 1
            else:
                self._kill(place)
                self.killed += 1
                self.processes[place] = self._started()
        self._wake_up(float("inf"))

    def _wake_up(self, now: float) -> None:
        for place in [one for one, until in self._wake.items() if until < now]:
            self.processes[place].send_signal(signal.SIGCONT)
            del self._wake[place]

    def _kill(self, place: int) -> None:
        self.processes[place].kill()
        self.processes[place].wait()
        self._wake.pop(place, None)

    def end(self) -> None:
        for place in range(WORKERS):
            self._kill(place)


@pytest.fixture(params=["sqlite", "aerospike"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'payments.db'}?synchronous=off"
    server = request.getfixturevalue("aerospike_server")
    return f"aerospike://{server.host}:{server.port}/{server.namespace}"


@pytest.mark.long
def test_each_payment_is_paid_charged_and_passed_on_once_however_processes_die(url, tmp_path, proved):
    client, chance = f"pay{os.getpid()}{url[:1]}", random.Random(FIRST)
    payments, mails = queues_of(url, client)
    store, accounts = payments.store, [account(client, number) for number in range(ACCOUNTS)]
    store.operate_many([Update(key, (Put("cents", START),), exists=Exists.ANY, ttl=7_200) for key in accounts])
    wanted, expected = [], Counter(dict.fromkeys(range(ACCOUNTS), START))
    for number in range(PAYMENTS):
        payer, payee, cents = *chance.sample(range(ACCOUNTS), 2), chance.randint(1, 99)
        wanted.append([f"p{number}", payer, payee, cents])
        expected[payer] -= cents
        expected[payee] += cents
    for begin in range(0, PAYMENTS, 1_000):
        payments.publish_many(wanted[begin : begin + 1_000])
    workers = Workers(url, client, str(tmp_path / "provider"), str(tmp_path / "log"))
    try:
        workers.disturb(chance)
        end, left = time.monotonic() + PATIENCE, None
        while (now := payments.depth()) and time.monotonic() < end:
            waiting = now.ready + now.sideline + now.parked
            held = not _all_gone(payments)
            if not waiting and not held:
                break
            if (waiting, held) != left:
                end, left = time.monotonic() + PATIENCE, (waiting, held)
            time.sleep(0.2)
    finally:
        workers.end()
    assert [store.get(key).bins["cents"] for key in accounts] == [expected[n] for n in range(ACCOUNTS)]
    charges = {tuple(line.split()) for line in (tmp_path / "provider").read_text().splitlines()}
    assert Counter(payment for payment, _ in charges) == Counter(payment for payment, *_ in wanted)
    assert len({token for _, token in charges}) == PAYMENTS
    passed = _passed_on(mails)
    assert passed == Counter(payment for payment, *_ in wanted)
    proved("processes", "effects", killed=workers.killed, stopped=workers.stopped, payments=PAYMENTS)


def _passed_on(mails) -> Counter:
    """The messages that come, also those of processes that died: until all are there, and then for a while."""
    timers, passed, end = QueueTimers(mails), Counter(), time.monotonic() + PATIENCE
    while time.monotonic() < end:
        timers.run(Leadership(1))
        while found := mails.receive(1_000):
            passed.update(delivery.payload for delivery in found)
        if sum(passed.values()) >= PAYMENTS:
            end = min(end, time.monotonic() + 2 * conditional.PATIENCE / 1000)
        time.sleep(0.2)
    return passed


def _all_gone(queue) -> bool:
    """Whether no record of a message is left, also of those that were handed out."""
    return not any(
        record.bins.get("data") for record in queue.store.scan(f"{queue.pointers.client_id}_data_set")
        if record.key.name.startswith(f"{queue.name}_")
    )  # fmt: skip
