"""The background task, and real processes that are killed while they put and forward."""

from __future__ import annotations

import math
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import latchwork
from latchwork.errors import InvalidRequest
from latchwork.queue import Outbox, PagedQueue, QueueConfig, QueueRegistry
from latchwork.queue.outbox import outbox as outbox_module
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore
from tests.support.scale import SEEDS, length

from .world import World

CYCLES = length(8, least=4)
ROOT = Path(__file__).parents[3]


def eventually(condition, seconds=20.0) -> bool:
    """Whether it comes true; the time is a limit for what hangs, not a measure."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture
def real(tmp_path):
    """An outbox on the system's clock over a store that can go away."""
    store = FaultyStore(MemoryStore())
    queue = QueueRegistry(store, "shop").create(QueueConfig("q", shards=2))
    outbox = Outbox(PagedQueue.open(tmp_path, "out"), queue)
    yield store, queue, outbox
    assert outbox.stop()


def test_what_is_put_arrives_while_the_background_task_runs(real):
    _, queue, outbox = real
    assert outbox.start() is outbox.start()
    for number in range(20):
        outbox.put(number, key="a")
    assert eventually(lambda: outbox.lag().messages == 0)
    assert [delivery.payload for delivery in queue.receive(100)] == list(range(20))


def test_after_stop_nothing_is_forwarded_until_it_is_started_again(real):
    store, _, outbox = real
    outbox.start()
    assert outbox.stop(timeout=20)
    calls = store.total
    outbox.put("x")
    assert (store.total, outbox.lag().messages) == (calls, 1)
    outbox.start()
    assert eventually(lambda: outbox.lag().messages == 0)


def test_a_defect_does_not_end_the_background_task(real, monkeypatch, caplog):
    _, queue, outbox = real
    publish, raised = outbox_module.publish, []

    def fails_once(*arguments, **options):
        if not raised:
            raised.append(ZeroDivisionError("a defect"))
            raise raised[0]
        return publish(*arguments, **options)

    monkeypatch.setattr(outbox_module, "publish", fails_once)
    outbox.put("x")
    outbox.start()
    assert eventually(lambda: outbox.lag().messages == 0)
    assert raised
    assert "ZeroDivisionError" in caplog.text
    assert len(queue.receive(10)) == 1


def test_it_can_be_stopped_before_it_was_started(real):
    assert real[2].stop()


class Turns(ManualClock):
    """The background task runs inside `start`, as far as the test lets it: it is stopped by what `at` has planned."""

    def spawn(self, run, name):
        run()
        return Ended()


class Ended:
    def join(self, timeout=None):
        return None

    def is_alive(self):
        return False


def test_pauses_grow_while_the_store_is_away_and_the_failure_is_told(tmp_path):
    clock = Turns()
    world = World(MemoryStore(clock), clock, tmp_path)
    producer = world.producer(seed=1, rate=1.0, kinds=("dropped",))
    producer.put_some()
    failures = []
    clock.at(200, lambda: failures.append(producer.outbox.failure))
    clock.at(200, lambda: producer.outbox.stop(0))  # the task itself does it: it cannot wait for its end
    producer.outbox.start()
    pauses = [seconds for seconds in clock.slept if seconds > 1.5]
    assert pauses[:5] == sorted(pauses[:5])
    assert max(pauses) == 15.0
    assert failures[0].code == "UNAVAILABLE"
    assert producer.outbox.lag().messages == 9


def test_it_goes_on_by_itself_when_the_store_is_back(tmp_path):
    clock = Turns()
    world = World(MemoryStore(clock), clock, tmp_path)
    producer = world.producer(seed=1, rate=1.0, kinds=("dropped", "request_lost", "reply_lost", "late"))
    producer.put_some(n=30)

    def back():
        producer.store.rate = 0.0

    clock.at(100, back)
    clock.at(300, producer.outbox.stop)
    producer.outbox.start()
    producer.store.deliver()
    assert producer.outbox.failure is None
    assert producer.outbox.lag().messages == 0
    world.check()


def test_an_idle_outbox_asks_no_store(tmp_path):
    clock = Turns()
    world = World(MemoryStore(clock), clock, tmp_path)
    producer = world.producer()
    clock.at(1000, producer.outbox.stop)
    producer.outbox.start()
    assert producer.calls == 0


def test_pages_of_an_idle_outbox_are_deleted_once_they_are_past_their_lifetime(tmp_path):
    clock, held = Turns(), []
    world = World(MemoryStore(clock), clock, tmp_path, settings={"lifetime": 600.0})
    producer = world.producer()
    producer.put_some(n=60)
    clock.at(500, lambda: held.append(producer.pq.disk_bytes()))
    clock.at(700, lambda: held.append(producer.pq.disk_bytes()))
    clock.at(700, lambda: producer.outbox.stop(0))
    producer.outbox.start()
    before, after = held
    assert (before > 512, after) == (True, 512), "the page to which it writes stays"
    world.check()


@pytest.mark.slow  # more on a busy machine
@pytest.mark.parametrize("seed", SEEDS)
def test_producers_killed_at_any_moment_lose_double_and_reorder_nothing(tmp_path, seed, proved):
    """Several lives of a real process over SQLite, each killed; what it had said was put is in the queue once."""
    url = f"sqlite:{tmp_path / 'store.db'}?synchronous=off"
    chance, acknowledged = random.Random(7 + seed), set()
    for cycle in range(CYCLES):
        first = 100_000 * cycle
        last = a_life(url, tmp_path / "local", first, lines=chance.randrange(1, 60))
        acknowledged |= set(range(first, last))
    queue = QueueRegistry(latchwork.connect(url), "shop").create(QueueConfig("q", shards=3))
    with PagedQueue.open(tmp_path / "local", "out", page_size=2048) as pq:
        Outbox(pq, queue).forward()
    found = []
    while deliveries := queue.receive(1000):
        found += [tuple(delivery.payload) for delivery in deliveries]
        queue.ack_many(deliveries)
    numbers = [number for _, number in found]
    assert len(numbers) == len(set(numbers)), "doubled"
    assert acknowledged <= set(numbers), "lost"
    for key in "ab":
        assert (order := [number for k, number in found if k == key]) == sorted(order), f"order of {key}"
    proved("processes", "outbox, SQLite", killed=CYCLES)


def a_life(url, directory, first, *, lines) -> int:
    """Let a producer say so many lines and kill it; the number after the last that it had acknowledged."""
    command = [sys.executable, "-m", "tests.queue.outbox.producer_process", url, str(directory), str(first)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    told = [process.stdout.readline() for _ in range(lines)]
    process.send_signal(signal.SIGKILL)
    told += process.stdout.readlines()
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close()
    return max(int(line) for line in told if line.endswith(b"\n"))


def test_a_stop_for_no_length_of_time_is_refused_and_it_goes_on(real):
    outbox = real[2].start()
    with pytest.raises(InvalidRequest, match="timeout"):
        outbox.stop("1")
    assert not outbox._background.stopping.is_set()
    assert outbox.stop(math.inf)
