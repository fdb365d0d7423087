"""Latency: from a publish in another process to the begin of the handler, at 50 a second and after a lull; idle costs.

Run it from the project's root as `python -m benchmarks.latency`. Consumers and publishers are processes of their own,
and a time begins before the publish is called. Targets: at 50 messages a second p50 <= 10 ms and p99 <= 100; after a
lull of 2 s and of 25 s p50 <= 60 ms and p99 <= 150 on Aerospike, p50 <= 10 ms on SQLite; a process that has been idle
for 10 s reads at most 20 records a second, all its queues together, counted by the server.

Beside it, where `redis-server` is on the PATH: a Redis stream by hand (`XREADGROUP` with `BLOCK`) and dramatiq on
Redis, in the interpreter that `$LATCHWORK_PEERS` names (default: this one). One that is not there is left out, with a
line that says how to install it.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks._harness import INSTALL, aerospike_url, arguments, server_operations, table, together
from benchmarks.targets import Verdict, judged
from latchwork import connect
from latchwork.queue import Consumer, QueueConfig, QueueRegistry
from latchwork.store.aerospike.store import AerospikeStore
from latchwork.testing import CountingStore
from tools.servers import Process, free_ports

ROLES = Path(__file__).with_name("_latency_roles.py")
RATE, SECONDS = 50, 8
LULLS = ((2.0, 6), (25.0, 2))
"""Seconds of quiet, and how often."""
TOGETHER = 8
"""Consumers, each of a queue of its own, for which messages are published after one lull."""
SHARDS = 32
SETTLED, COUNTED = 10.0, 45.0
"""Seconds for which a process is idle before its reads are counted, and for which they are."""
IDLE = ((1, 8), (1, 32), (4, 8), (4, 32))
"""Queues of an idle process, and the shards of each."""
PEERS = os.environ.get("LATCHWORK_PEERS", sys.executable)


class Redis(Process):
    """A Redis server that keeps nothing."""

    def __init__(self) -> None:
        super().__init__("redis")
        (self.port,) = free_ports(1)
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        return ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]

    def is_ready(self) -> bool:
        return "Ready to accept" in (self.directory / "output").read_text()


class Role:
    """A process of `program`, and what it prints."""

    def __init__(self, interpreter: str, *given: str, program: Path = ROLES) -> None:
        self.process = subprocess.Popen(
            [interpreter, str(program), *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._came = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line.strip())
            self._came.set()

    def has_said(self, lines: int, timeout: float = 30.0) -> list[str]:
        """Wait until it has printed so many lines, and take them."""
        end = time.monotonic() + timeout
        while len(self.lines) < lines:
            self._came.clear()
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError(f"{self.process.args} has said {self.lines[-3:]} and no more")
            if len(self.lines) < lines:
                self._came.wait(0.1)
        said, self.lines[:lines] = self.lines[:lines], []
        return said

    def ask(self, line: str) -> str:
        """Write it a line, and return the line that it answers."""
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.has_said(1)[0]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class System:
    """The consumers of a system, a queue and a process each, and a publisher."""

    def __init__(self, title: str, interpreter: str, name: str, url: str, stack: ExitStack) -> None:
        self.title = title
        self._random, self._lock = random.Random(title), threading.Lock()
        names = [f"q{number}" for number in range(TOGETHER)]
        self.consumers = [self._role(stack, interpreter, name, "consume", url, queue) for queue in names]
        self.publisher = self._role(stack, interpreter, name, "publish", url, *names)
        for role in (*self.consumers, self.publisher):
            role.has_said(1)

    def _role(self, stack: ExitStack, *given: str) -> Role:
        return stack.enter_context(closing(Role(*given)))

    def publish(self, place: int, number: int) -> list[float]:
        """Publish so many to one of the queues; the milliseconds that each was on its way."""
        with self._lock:
            self.publisher.ask(f"q{place} {number} {RATE}")
        return [float(line) for line in self.consumers[place].has_said(number)]

    def after_lull(self, seconds: float, times: int) -> list[float]:
        """The milliseconds of single messages, each after so many seconds of quiet, of all queues."""
        lags: list[float] = []

        def one(place: int, pauses: list[float]) -> None:
            for pause in pauses:
                time.sleep(pause)
                lags.extend(self.publish(place, 1))

        pauses = [[seconds + self._random.random() / 2 for _ in range(times)] for _ in range(TOGETHER)]
        together([lambda place=place: one(place, pauses[place]) for place in range(TOGETHER)])
        return lags


def ours(url: str) -> str:
    """Make the queues; the URL."""
    registry = QueueRegistry(connect(url), "latency")
    for number in range(TOGETHER):
        registry.create(QueueConfig(f"q{number}", shards=SHARDS))
    return url


def systems(url: str, directory: str, stack: ExitStack) -> tuple[list[System], list[str]]:
    """All that can be measured here, and a line for each other one."""
    given = [("Aerospike", sys.executable, "latchwork", ours(url))]
    given += [("SQLite", sys.executable, "latchwork", ours(f"sqlite:{directory}/latency.db"))]
    missing = []
    redis = None
    if shutil.which("redis-server"):
        redis = stack.enter_context(closing(Redis()))
        redis.start()
    for title, name, module in (("Redis stream by hand", "stream", "redis"), ("dramatiq", "dramatiq", "dramatiq")):
        found = subprocess.run([PEERS, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0
        if redis and found:
            given.append((title, PEERS, name, redis.url))
        else:
            lacking = f"{module} is not installed here. {INSTALL}" if redis else "redis-server is not on the PATH"
            missing.append(f"{title}: not measured, as {lacking}")
    return [System(*one, stack) for one in given], missing


def quantiles(lags: list[float]) -> tuple[float, float, float]:
    """The median, the 99th percentile and the longest."""
    ordered = sorted(lags)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], ordered[-1]


def after_lulls(found: list[System], seconds: float, often: int) -> list[tuple]:
    """The rows of single messages after a lull of that length, of all systems side by side."""
    done: dict[str, list[float]] = {}
    together([lambda one=one: done.update({one.title: one.after_lull(seconds, often)}) for one in found])
    return [(title, f"first after {seconds:g} s", len(lags), *quantiles(lags)) for title, lags in done.items()]


def lags(url: str) -> list[Verdict]:
    """The table of times, and what it is judged by."""
    rows, verdicts = [], []
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        found, missing = systems(url, directory, stack)
        for system in found:
            times = quantiles(system.publish(0, RATE * SECONDS))
            rows.append((system.title, f"{RATE} a second", RATE * SECONDS, *times))
        for seconds, often in LULLS:
            rows += after_lulls(found, seconds, often)
    rows.sort(key=lambda row: [one.title for one in found].index(row[0]))
    print(table(("system", "messages", "number", "p50 ms", "p99 ms", "longest ms"), rows), *missing, sep="\n")
    for title, when, _, p50, p99, _ in rows:
        if title in ("Aerospike", "SQLite"):
            steady, quick = when.endswith("a second"), title == "SQLite" or when.endswith("a second")
            verdicts.append(Verdict(f"{title}, {when}: p50 ms", 10 if quick else 60, p50, at_least=False))
            verdicts.append(Verdict(f"{title}, {when}: p99 ms", 100 if steady else 150, p99, at_least=False))
    return verdicts


def idle(url: str) -> list[Verdict]:
    """What idle processes read, side by side; a process is here a store of its own."""
    server = AerospikeStore.from_url(url)
    client, rows = server._link.connect(), []
    with ExitStack() as stack:
        stores = []
        for queues, shards in IDLE:
            store = CountingStore(stack.enter_context(closing(AerospikeStore.from_url(url))))
            stores.append(store)
            registry = QueueRegistry(store, f"idle{queues}x{shards}")
            for number in range(queues):
                queue = registry.create(QueueConfig(f"q{number}", shards=shards, concurrency=4))
                stack.enter_context(Consumer(queue, lambda _: True))
        time.sleep(SETTLED)
        before, served, began = [store.rows.total() for store in stores], _served(client, server), time.monotonic()
        time.sleep(COUNTED)
        spent, after = time.monotonic() - began, [store.rows.total() for store in stores]
        served = _served(client, server) - served
    for (queues, shards), early, late in zip(IDLE, before, after, strict=True):
        rows.append((f"{queues} queue{'s' * (queues > 1)} of {shards} shards", (late - early) / spent))
    total = ("all of these, by the server's count", served / spent)
    print("\n" + table(("an idle process", "records a second"), [*rows, total]))
    verdicts = [Verdict(f"idle, {what}: records a second", 20, rate, at_least=False) for what, rate in rows]
    return [*verdicts, Verdict("idle, server's count: records a second and process", 20, total[1] / 4, at_least=False)]


def _served(client, store: AerospikeStore) -> int:
    return server_operations(client, store.namespace)


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    with aerospike_url(options.url) as url:
        verdicts = [*lags(url), *idle(url)]
    print("\n" + judged(verdicts))


if __name__ == "__main__":
    main()
