"""Payments between accounts, by processes that are killed and stopped at any moment, beside outages of the server: each
is paid once (P23, P28).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from latchwork.queue.sharded.upkeep import conditions
from latchwork.queue.sharded.upkeep.timers import QueueTimers
from latchwork.store import Exists, Put
from latchwork.store.port import Update
from tests.support.outage import Place
from tests.support.proxy import Fault
from tests.support.real_servers import or_skip
from tests.support.scale import FIRST, TIMES
from tools import servers

from . import payments_worker
from .payments_worker import account, queues_of
from .world import Leadership

ROOT = Path(__file__).parents[3]
WORKERS, ACCOUNTS, PAYMENTS, SECONDS = (4, 5, 600, 6.0) if TIMES == 1 else (8, 1_000, 100_000, 600.0)
PAUSE = 0.8 if TIMES == 1 else 4.0
"""Seconds between two processes that are killed or stopped, at most: to start another one takes half a second."""
PATIENCE = 120.0
KILLED, STOPPED = 6, 2
"""There are at least so many, also on a machine that is slow."""
START = 10_000
Outage = Callable[[], AbstractContextManager[None]]


class Ground:
    """A store, as the test and as the workers reach it; the outages that it can have."""

    def __init__(self, url: str, ways: tuple[str, ...], outages: dict[str, Outage] | None = None) -> None:
        self.url, self.ways, self.outages = url, ways, outages or {}

    @contextmanager
    def disturbed(self, chance: random.Random) -> Iterator[Counter[str]]:
        """Have outages now and then; yield how many there were, by name."""
        over, count = threading.Event(), Counter[str]()

        def disturb() -> None:
            while not over.is_set():
                name = chance.choice(list(self.outages))
                with self.outages[name]():
                    over.wait(chance.uniform(0.3, 4.0))
                count[name] += 1
                over.wait(chance.uniform(0.5, 8.0))

        disturbing = threading.Thread(target=disturb)
        if self.outages:
            disturbing.start()
        try:
            yield count
        finally:
            over.set()
            if self.outages:
                disturbing.join()


class Workers:
    """The processes, each started again when it was killed."""

    def __init__(self, ways: tuple[str, ...], *told: str) -> None:
        self._ways, self._told = ways, told
        self.processes = [self._started(place) for place in range(WORKERS)]
        self._wake: dict[int, float] = {}
        self.killed = self.stopped = 0

    def _started(self, place: int) -> subprocess.Popen:
        way = self._ways[place % len(self._ways)]
        command = [sys.executable, "-m", "tests.queue.sharded.payments_worker", way, *self._told]
        return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)

    def disturb(self, chance: random.Random) -> None:
        """Kill and stop at random; some are stopped for longer than their messages wait for them."""
        began = time.monotonic()
        while time.monotonic() - began < SECONDS or self.killed < KILLED or self.stopped < STOPPED:
            time.sleep(chance.uniform(0.1, PAUSE))
            self._wake_up(time.monotonic())
            place = chance.randrange(WORKERS)
            if chance.random() < 0.3:
                self.processes[place].send_signal(signal.SIGSTOP)
                self._wake[place] = time.monotonic() + chance.uniform(0.05, 2.5 * payments_worker.SWEEP)
                self.stopped += 1
            else:
                self._kill(place)
                self.killed += 1
                self.processes[place] = self._started(place)
        self._wake_up(float("inf"))

    def _wake_up(self, now: float) -> None:
        for place in [one for one, until in self._wake.items() if until < now]:
            self.processes[place].send_signal(signal.SIGCONT)
            del self._wake[place]

    def _kill(self, place: int) -> None:
        assert self.processes[place].poll() is None, "a worker has ended by itself"
        self.processes[place].kill()
        self.processes[place].wait()
        self._wake.pop(place, None)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture(params=["sqlite", "aerospike"])
def ground(request, tmp_path):
    """A store of this test alone. Half of the workers reach a server through a proxy, so that they lose it alone."""
    if request.param == "sqlite":
        url = f"sqlite:{tmp_path / 'payments.db'}?synchronous=off"
        yield Ground(url, (url,))
        return
    with ExitStack() as stack:
        with or_skip():
            server = servers.started(servers.Asd(data_size="2G"))
        stack.callback(server.close)
        place = Place([server])
        stack.callback(place.close)
        behind = f"aerospike://{server.host}:{server.proxy_port}/{server.namespace}?services_alternate=true"
        yield Ground(server.url, (server.url, behind), {
            "stopped": place.stopped,
            "refused": place.refused,
            "black hole": partial(place.during, Fault.DROP_REQUEST),
            "cut": partial(place.during, Fault.CUT_AFTER),
        })  # fmt: skip


@pytest.mark.long
def test_each_payment_is_paid_charged_and_passed_on_once_however_processes_die(ground, tmp_path, proved):
    client, chance = f"pay{os.getpid()}{ground.url[:1]}", random.Random(FIRST)
    payments, mails = queues_of(ground.url, client)
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
    workers = Workers(ground.ways, client, str(tmp_path / "provider"), str(tmp_path / "log"))
    try:
        with ground.disturbed(random.Random(FIRST)) as happened:
            workers.disturb(chance)
        end, left = time.monotonic() + PATIENCE, None
        while (now := payments.depth()) and time.monotonic() < end:
            waiting = now.ready + now.sideline + now.parked
            held = not waiting and not _all_gone(payments)
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
    proved("outages", "effects", outages=happened.total())
    print(dict(happened))


def _passed_on(mails) -> Counter:
    """The messages that come, also those of processes that died: until all are there, and then for a while."""
    timers, passed, end = QueueTimers(mails), Counter(), time.monotonic() + PATIENCE
    while time.monotonic() < end:
        timers.run(Leadership(1))
        while found := mails.receive(1_000):
            passed.update(delivery.payload for delivery in found)
        if sum(passed.values()) >= PAYMENTS:
            end = min(end, time.monotonic() + 2 * conditions.PATIENCE / 1000)
        time.sleep(0.2)
    return passed


def _all_gone(queue) -> bool:
    """Whether no record of a message is left, also of those that were handed out."""
    return not any(
        record.bins.get("data") for record in queue.store.scan(f"{queue.pointers.client_id}_data_set")
        if record.key.name.startswith(f"{queue.name}_")
    )  # fmt: skip
