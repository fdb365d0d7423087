"""The capability table is true: each row runs on each backend that it names, also with every reply lost once."""

from __future__ import annotations

import importlib
import re
import threading
from pathlib import Path

import pytest
from typer.main import get_command

from latchwork.cli.app import app
from latchwork.coord import (
    Barrier,
    CountDownLatch,
    CountUpDownLatch,
    FencedLock,
    Group,
    LeaseElection,
    RateLimiter,
    ReadWriteLock,
    Semaphore,
)
from latchwork.errors import FencedOut, OutcomeUnknown
from latchwork.queue import (
    Consumer,
    LargeQueue,
    Outbox,
    Outcome,
    PagedQueue,
    Publish,
    QueueConfig,
    QueueRegistry,
    Schedule,
)
from latchwork.seams import SYSTEM
from latchwork.store import Exists, Key, MemoryStore, Put
from latchwork.testing.stores import FaultyStore
from tests.sim.workload import SCENARIOS
from tests.support.backends import store as backend  # noqa: F401 - a fixture

PAGE = Path(__file__).parents[1] / "docs" / "capabilities.md"
COLUMNS = ("primitive", "as", "backends", "lost reply", "fence", "farms", "command", "simulated as")


def table():
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert tuple(rows[0]) == COLUMNS
    end = next(place for place, row in enumerate(rows) if row[0] == "" and place)
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows[2:end]]


ROWS = table()


# ---- what each row does, once; `name` is unlike every other


def latch(store, name):
    made = CountDownLatch.create(store, "c", name, 2, farm_id="a")
    made.count_down()
    assert made.count_down() == 0
    return made.wait(timeout=10)


def latch_up(store, name):
    made = CountUpDownLatch.create(store, "c", name, farm_id="a")
    assert made.count_up(2) == 2
    return made.count_down() == 1


def group(store, name):
    made = Group(store, name, farm_id="a")
    with made.join("p", keep_alive=False) as membership:
        return [one.fence for one in made.members()] == [membership.fence]


def barrier(store, name):
    return Barrier(store, "c", name, parties=["p"], farm_id="a").wait("p", 7, 10) == {"p": 7}


def fenced(store, name, grant, later):
    """Whether a former holder is refused by a resource once a later one has written there."""
    resource = Key("capabilities", name)
    store.operate(resource, Put("n", 0), exists=Exists.ANY, ttl=600)
    grant.operate(resource, Put("n", 1))
    grant.release()
    with later() as newer:
        newer.operate(resource, Put("n", 2))
        grant.check = lambda: None  # as one that was paused just after it had asked
        try:
            grant.operate(resource, Put("n", 3))
        except FencedOut:
            return store.get(resource).bins["n"] == 2
    return False


def lock(store, name):
    made = FencedLock(store, name)
    return fenced(store, name, made.acquire(10), lambda: made.acquire(10))


def semaphore(store, name):
    made = Semaphore(store, name, permits=1)
    return fenced(store, name, made.acquire(timeout=10), lambda: made.acquire(timeout=10))


def rwlock(store, name):
    made = ReadWriteLock(store, name)
    return fenced(store, name, made.write(10), lambda: made.write(10))


def limiter(store, name):
    made = RateLimiter(store, name, 2, 3600)
    return [made.try_acquire().allowed for _ in range(3)] == [True, True, False]


def election(store, name):
    made = LeaseElection(store, name)
    return made.run(lambda term: term.epoch, timeout=20) < made.run(lambda term: term.epoch, timeout=20)


def circular(store, name):
    made = LargeQueue.create(store, name, 100)
    offset, taken = made.enqueue("a"), made.dequeue()
    return (taken.offset, taken.value, made.dequeue()) == (offset, "a", None)


def queue_on(store, name):
    return QueueRegistry(store, f"c{name}", farm_id="a").create(QueueConfig("q", shards=2))


def payloads(queue):
    taken = queue.receive(100)
    queue.ack_many(taken)
    return sorted(str(delivery.payload) for delivery in taken)


def work_queue(store, name):
    made = queue_on(store, name)
    made.publish("m")
    return payloads(made) == ["m"]


def handled(store, name, **options):
    """What a consumer has handled of five messages of one key."""
    made, seen, over = queue_on(store, name), [], threading.Event()
    for n in range(5):
        made.publish(n, key="k")

    def handle(delivery):
        seen.append(delivery.payload)
        if len(seen) == 5:
            over.set()

    with Consumer(made, handle, upkeep=False, **options):
        assert over.wait(60)
    return seen


def consumer(store, name):
    return sorted(handled(store, name)) == list(range(5))


def ordered(store, name):
    return handled(store, name, ordered=True) == list(range(5))


def publisher(store, name):
    made = queue_on(store, name)
    with made.publisher() as one:
        publications = [one.publish(n) for n in range(3)]
    return [p.result(0) == p.message_id for p in publications] == [True] * 3 and payloads(made) == ["0", "1", "2"]


def delayed(store, name):
    made = queue_on(store, name)
    made.publish("m", delay=3600, message_id="later")
    waiting = [message.message_id for message in made.delayed.search(within=7200)]
    return waiting == ["later"] and made.cancel("later") and payloads(made) == []


def dedup(store, name):
    made = queue_on(store, name)
    return made.publish("m", dedup="k") == made.publish("n", dedup="k") and payloads(made) == ["m"]


def schedules(store, name):
    registry = queue_on(store, name).registry
    registry.schedule(Schedule("nightly", "q", cron="0 3 * * *"))
    return [one.name for one in registry.schedules()] == ["nightly"]


def groups(store, name):
    made = queue_on(store, name)
    audit = made.group("audit")
    made.publish("m")
    return payloads(audit) == payloads(made) == ["m"]


def one_message(store, name):
    made = queue_on(store, name)
    made.publish("m")
    made.receive()[0].nack()
    (message,) = made.sideline.search()
    outcomes = made.sideline.redrive([message.message_id])
    return outcomes == {message.message_id: Outcome.DONE} and payloads(made) == ["m"]


def batches(store, name):
    made = queue_on(store, name)
    with made.batch("load", then=Publish("report")) as batch:
        batch.publish_many(["a", "b"])
    return payloads(made) == ["a", "b"] and batch.progress().published == 2


def outbox(store, name, folder):
    made = queue_on(store, name)
    with PagedQueue.open(folder, "local") as local:
        box = Outbox(local, made, name="w")
        box.put("m")
        box.forward()
    return payloads(made) == ["m"]


PROGRAMS = {
    "count-down latch": latch, "count-up-down latch": latch_up, "presence": group, "barrier": barrier,
    "fenced lock": lock, "semaphore": semaphore, "read-write lock": rwlock, "rate limiter": limiter,
    "election by lease": election, "circular queue": circular, "work queue": work_queue,
    "handlers, several messages at a time": consumer,
    "order within a key": ordered, "publisher for threads": publisher, "delayed messages": delayed,
    "deduplication": dedup, "schedules": schedules, "groups": groups, "one message at a time": one_message,
    "batches that end": batches, "local queue and outbox": outbox,
}  # fmt: skip
ELSEWHERE = {
    "election by ZooKeeper": "tests/coord/election/test_zookeeper.py",
    "one leader over all farms": "tests/coord/election/test_across.py",
    "latch of Spark partitions": "tests/spark/test_latch_on_spark.py",
    "barrier of Spark drivers": "tests/spark/test_barrier.py",
    "once per micro-batch": "tests/spark/test_batches.py",
}
"""Rows that need ZooKeeper or Spark, and the tests that run them there."""
HANDED_OUT = ("Leadership", "QueueRegistry", "ConsumerGroup")
"""What takes a store and is no primitive: a term of an election, where queues are made, readers of a circular queue."""
UNDECIDED = ("handlers, several messages at a time", "order within a key", "batches that end")
"""Rows in whose program a background thread, or several calls, make it a matter of chance which reply is lost."""


def run(primitive, store, folder):
    program, name = PROGRAMS[primitive], f"cap{SYSTEM.unique()[:10]}"
    return program(store, name, folder) if program is outbox else program(store, name)


@pytest.mark.parametrize("primitive", PROGRAMS)
def test_each_row_runs_on_every_backend(primitive, backend, tmp_path):  # noqa: F811 - a fixture
    (row,) = [row for row in ROWS if row["primitive"] == primitive]
    assert row["backends"].startswith("all")
    assert run(primitive, backend, tmp_path) is True


@pytest.mark.parametrize("primitive", [one for one in PROGRAMS if one not in UNDECIDED])
def test_a_lost_reply_counts_once_or_is_said_to_be_unknown(primitive, tmp_path):
    counted = FaultyStore(MemoryStore(), {})
    assert run(primitive, counted, tmp_path / "whole")
    (row,) = [row for row in ROWS if row["primitive"] == primitive]
    for call in range(1, counted._number + 1):
        try:
            assert run(primitive, FaultyStore(MemoryStore(), {call: "reply_lost"}), tmp_path / str(call)), call
        except OutcomeUnknown:
            continue
    assert row["lost reply"] in ("once", "at least once")


def test_every_row_is_run_here_or_where_its_servers_are():
    assert sorted(row["primitive"] for row in ROWS) == sorted([*PROGRAMS, *ELSEWHERE])
    for primitive, path in ELSEWHERE.items():
        (row,) = [row for row in ROWS if row["primitive"] == primitive]
        assert row["as"].strip("`").rpartition(".")[2] in (PAGE.parents[1] / path).read_text()


def test_every_primitive_has_a_row():
    """Each public class of coordination that is made with a store, and each of queues that people make or ask for."""
    named = {row["as"].strip("`") for row in ROWS}
    for package in ("coord", "queue", "spark"):
        module = importlib.import_module(f"latchwork.{package}")
        for name in module.__all__:
            made = getattr(module, name)
            is_primitive = "store" in getattr(getattr(made, "__init__", None), "__annotations__", {})
            if is_primitive and name not in HANDED_OUT:
                assert f"{package}.{name}" in named, name
    for name in named:
        package, _, attribute = name.partition(".")
        assert hasattr(importlib.import_module(f"latchwork.{package}"), attribute), name


def test_each_row_names_a_command_and_a_simulation_that_are_there():
    commands = get_command(app).commands
    for row in ROWS:
        for column, there in (("command", commands), ("simulated as", SCENARIOS)):
            name = row[column].strip("`")
            assert name == "-" or name in there, (row["primitive"], column)
    simulated = {row["simulated as"].strip("`") for row in ROWS}
    shared = {"store", "poller"}  # what all primitives stand on
    assert set(SCENARIOS) - simulated == shared, "each other simulation is that of a row"


def test_fences_are_of_what_has_a_grant():
    """What is said to have a fence is refused in its program or in its own tests; what has none has no `operate`."""
    for row in ROWS:
        assert re.fullmatch(r"-|[a-z ,']+", row["fence"]), row
