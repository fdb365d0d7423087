"""A fleet of real workers, some of which are killed, and what their handlers have written down.

As a program, `python -m tests.queue.sharded.fleet URL CLIENT LOG LEASE QUICK`, it is one of them: it handles what
comes, takes part in the upkeep, and has nothing beside it.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import latchwork
from latchwork.cli.coord.elections import lease_of
from latchwork.queue import Delivery, QueueConfig, QueueRegistry, ShovelConfig, Worker
from latchwork.queue.sharded.upkeep import upkeep
from latchwork.retry import Poll

ROOT = Path(__file__).parents[3]
LATER, TRIES, TICKS = "later", "tries", "ticks"
FAILS = 2
"""How often each message of `TRIES` is rejected before it is handled."""
IN_HAND = 3.0
"""Seconds after which the acknowledgement of a message that was handled has surely been sent."""


def registry_of(url: str, client: str, *, quick: bool) -> QueueRegistry:
    """The registry of the fleet, with all its queues: with times of seconds, or with those that users have."""
    times = {"sweep_duration": 10, "handler_timeout": 5, "shovel": ShovelConfig(1), "unsafe_limits": True}
    registry = QueueRegistry(latchwork.connect(url), client, farm_id="f")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (LATER, TRIES, TICKS):
            registry.create(QueueConfig(name, shards=8, concurrency=2, max_deliveries=1000, **(times if quick else {})))
    return registry


def main(url: str, client: str, path: str, lease: str, quick: str) -> None:
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(process)d %(name)s %(message)s")
    if float(lease) != upkeep.LEASE:  # a shorter lease, so that a short test sees as many successions
        upkeep.LEASE, upkeep.LOOKS = float(lease), Poll(low=float(lease) / 5, high=float(lease) / 3)
    log, me = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), os.getpid()
    worker = Worker(registry_of(url, client, quick=quick == "True"), grace=5)

    def note(delivery: Delivery) -> None:
        """A line that is on its way to the file system before the handler returns."""
        line = (
            f"{delivery.message_id} {me} {delivery.attempts} {time.time():.3f} {delivery.enqueued_at.timestamp():.3f}"
        )
        os.write(log, f"{line}\n".encode())

    worker.handler(LATER)(note)
    worker.handler(TICKS)(note)

    @worker.handler(TRIES)
    def fail_first(delivery: Delivery) -> bool:
        note(delivery)
        return delivery.attempts > FAILS

    worker.run()


@dataclass(frozen=True)
class Handling:
    """A line of the log: who handled which message at what time, the how manieth attempt it was."""

    message: str
    pid: int
    attempt: int
    at: float
    published: float


class Fleet:
    """So many workers; one that is killed is started again."""

    def __init__(self, url: str, client: str, folder: Path, *, lease: float, size: int = 4, quick: bool = True) -> None:
        self.registry, self.log = registry_of(url, client, quick=quick), folder / "log"
        self.log.touch()
        facts = [url, client, str(self.log), str(lease), str(quick)]
        self._command = [sys.executable, "-m", "tests.queue.sharded.fleet", *facts]
        self._errors = (folder / "errors").open("ab")
        self.killed: dict[int, float] = {}
        """When each process was killed, by its id."""
        self.leaders: list[tuple[float, int]] = []
        """Of the killed, those that led."""
        self._led: list[tuple[float, bool]] = []
        self.processes = [self._start() for _ in range(size)]

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=ROOT, stderr=self._errors)

    def leader(self) -> int | None:
        """The place of the worker that is elected; None where nobody is, or one that was killed."""
        lease = lease_of(self.registry.store, upkeep.election_name(self.registry.client_id))
        pids = [process.pid for process in self.processes]
        pid = int(str(lease.owner).split(":")[1]) if lease and lease.locked else 0
        return pids.index(pid) if pid in pids else None

    def watch(self, seconds: float) -> None:
        """Wait so long, and note meanwhile whether somebody leads."""
        end = time.time() + seconds
        while (now := time.time()) < end:
            self._led.append((now, self.leader() is not None))
            time.sleep(0.1)

    def led_at(self, moment: float) -> bool:
        """Whether somebody led at that time and for half a second from then on, as far as was watched."""
        seen = [led for at, led in self._led if moment - 0.2 <= at <= moment + 0.5]
        return bool(seen) and all(seen)

    def kill(self, place: int) -> None:
        """Kill the worker at this place, and start another."""
        process = self.processes[place]
        if self.leader() == place:
            self.leaders.append((time.time(), process.pid))
        process.kill()
        process.wait()
        self.killed[process.pid] = time.time()
        self.processes[place] = self._start()

    def end(self) -> None:
        """Let all of them finish."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._errors.close()
        self.registry.store.close()

    def served(self) -> int:
        """The requests of clients that a real server has counted: single records, batches and queries."""
        link, namespace = self.registry.store._link.connect(), self.registry.store.namespace
        told = link.info_random_node(f"namespace/{namespace}"), link.info_random_node("statistics")
        counts = dict(pair.split("=", 1) for one in told for pair in re.split(r"[;\t]", one.strip()) if "=" in pair)
        names = [
            name
            for name in counts
            if re.match(r"client_(read|write|delete)_|batch_index_complete|[ps]i_query_short_basic_complete", name)
        ]
        return sum(int(counts[name]) for name in names)

    def handled(self) -> list[Handling]:
        """What has been handled until now, in the order of its time."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return sorted(
            (Handling(m, int(pid), int(n), float(at), float(put)) for m, pid, n, at, put in lines),
            key=lambda one: one.at,
        )

    def doubles(self, handlings: list[Handling], *, tries: int = 1) -> Doubles:
        """Of each message all handlings but the first `tries`, by what they come from."""
        by_message: dict[str, list[Handling]] = defaultdict(list)
        for one in handlings:
            by_message[one.message].append(one)
        found = Doubles()
        for ones in by_message.values():
            extra = max(0, len(ones) - tries)
            in_dead_hands = min(extra, sum(self._died_with(one) for one in ones))
            found.killed += in_dead_hands
            # At least once allows a copy of what a leader was bringing back as it was killed; not of a message that
            # nobody has failed with, which is moved once.
            if any(one.attempt > 1 and self._was_moved_by_the_dead(one) for one in ones):
                found.copied += extra - in_dead_hands
            elif extra > in_dead_hands:
                found.unexplained.append(repr(ones))
        return found

    def _died_with(self, one: Handling) -> bool:
        died = self.killed.get(one.pid)
        return died is not None and died - one.at < IN_HAND

    def _was_moved_by_the_dead(self, one: Handling) -> bool:
        return any(abs(one.at - died) < IN_HAND for died, _ in self.leaders)


class Doubles:
    """What came more often than it should, by its reason."""

    def __init__(self) -> None:
        self.killed, self.copied = 0, 0
        self.unexplained: list[str] = []


def counted(handlings: list[Handling]) -> Counter[str]:
    """How often each message was handled."""
    return Counter(one.message for one in handlings)


if __name__ == "__main__":
    main(*sys.argv[1:])
