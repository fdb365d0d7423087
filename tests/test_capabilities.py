"""The capability table is true: each row runs on each backend that it names, also with every reply lost once."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from typer.main import get_command

import latchwork
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
from latchwork.errors import FencedOut, InvalidRequest, LeaseLost, OutcomeUnknown
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
    Shovel,
    Worker,
)
from latchwork.seams import SYSTEM
from latchwork.store import Add, Bin, Exists, Key, MemoryStore, Put, SQLiteStore
from latchwork.store.model.ops import writes
from latchwork.testing import ManualClock, bring_back
from latchwork.testing.stores import FaultyStore
from tests.sim.workload import SCENARIOS
from tests.support import matrix
from tests.support.backends import store as backend  # noqa: F401 - a fixture
from tests.support.waiting import until

PAGE = Path(__file__).parents[1] / "docs" / "capabilities.md"
COLUMNS = ("primitive", "as", "backends", "lost reply", "fence", "farms", "command", "simulated as")


MODES = ("memory", "SQLite", "Aerospike AP", "Aerospike SC")


def tables():
    """The page's two tables: a row for each primitive, and a row for each promise that depends on the store."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")] for line in lines]
    assert tuple(rows[0]) == COLUMNS
    end = next(place for place, row in enumerate(rows) if row[0] == "")
    assert tuple(rows[end][1:]) == MODES
    of_stores = {row[0]: dict(zip(MODES, row[1:], strict=True)) for row in rows[end + 2 :]}
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows[2:end]], of_stores


ROWS, OF_STORES = tables()


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
    return QueueRegistry(store, f"c{name}", farm_id="a").create(QueueConfig("q", retry=False, shards=2))


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


def task(store, name):
    made, seen, over = queue_on(store, name), [], threading.Event()
    worker = Worker(made.registry, upkeep=False)

    @worker.task(made.name, concurrency=1)
    def add(n: int) -> None:
        seen.append(n)
        over.set()

    add.publish(7)
    with worker:
        assert over.wait(60)
    return seen == [7]


def ordered(store, name):
    return handled(store, name, ordered=True) == list(range(5))


def publisher(store, name):
    made = queue_on(store, name)
    with made.publisher() as one:
        publications = [one.publish(n) for n in range(3)]
    return [p.result(0) == p.message_id for p in publications] == [True] * 3 and payloads(made) == ["0", "1", "2"]


def delayed(store, name):
    made = queue_on(store, name)
    made.publish("m", delay=60, message_id="later")
    waiting = [message.message_id for message in made.delayed.search(within=120)]
    return waiting == ["later"] and made.cancel("later") and payloads(made) == []


def dedup(store, name):
    made = queue_on(store, name)
    return made.publish("m", dedup="k") == made.publish("n", dedup="k") and payloads(made) == ["m"]


def unique(store, name):
    made = queue_on(store, name)
    first = made.publish("m", unique="k")
    return made.publish("n", unique="k", on_duplicate="replace") == first and payloads(made) == ["n"]


def schedules(store, name):
    registry = queue_on(store, name).registry
    registry.schedule(Schedule("nightly", "q", cron="0 3 * * *"))
    registry.pause_schedule("nightly")
    (state,) = registry.schedule_states()
    registry.resume_schedule("nightly")
    message = registry.trigger_schedule("nightly")
    return state.paused is not None and [one.message_id for one in registry.get("q").peek()] == [message]


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


def any_state(store, name):
    made = queue_on(store, name)
    ids = made.publish_many(["m", "n"])
    (held,) = made.receive()
    states = {one: made.status(one).state.value for one in ids}
    outcomes = [made.cancel(one).value for one in ids if one != held.message_id]
    return sorted(states.values()) == ["ready", "running"] and outcomes == ["done"] and payloads(made) == []


def result(store, name):
    made = QueueRegistry(store, name).create(QueueConfig("r", shards=1, results=timedelta(hours=1)))
    asked = made.publish("m")
    (delivery,) = made.receive()
    delivery.ack(42)
    return [made.result(asked, timeout=0) for _ in range(2)] == [42, 42]


def effects(store, name):
    made, account = queue_on(store, name), Key("capabilities", name)
    store.operate(account, Put("balance", 9), exists=Exists.ANY, ttl=600)
    made.publish("m", message_id="m")
    found = []
    for _ in range(2):
        (delivery,) = made.receive() or made.sideline.receive()
        found.append(delivery.operate(account, Add("balance", -2), result=Bin("balance")))
        delivery.nack()
    return found == [7, 7] and store.get(account).bins["balance"] == 7


def with_a_write(store, name):
    made, account = queue_on(store, name), Key("capabilities", name)
    (message_id,) = store.operate(
        account, Put("state", "paid"), exists=Exists.ANY, ttl=600, publish=Publish("m", queue=made)
    )
    waits = [message.message_id for message in made.delayed.search(message_id=message_id)]
    return waits == [message_id] and store.get(account).bins["state"] == "paid"


def steps(store, name):
    made = latchwork.once(store, key=name, keep=600)
    return [made.run(lambda n=n: n) for n in range(2)] == [0, 0]


def batches(store, name):
    made = queue_on(store, name)
    with made.batch("load", then=Publish("report")) as batch:
        batch.publish_many(["a", "b"])
    return payloads(made) == ["a", "b"] and batch.progress().published == 2


def batch_results(store, name):
    made = QueueRegistry(store, name).create(QueueConfig("r", shards=1, results=timedelta(hours=1)))
    with made.batch("load") as batch:
        ids = batch.publish_many(["a", "b"])
    first, second = made.receive(2)
    second.ack("B")
    before = [one.state.value for one in batch.results(timeout=0)]
    first.ack("A")
    found = [(one.message_id, one.result()) for one in batch.results(timeout=5)]
    return before == ["running", "done"] and found == list(zip(ids, ["A", "B"], strict=True))


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
    "functions as tasks": task, "order within a key": ordered, "publisher for threads": publisher,
    "delayed messages": delayed,
    "deduplication": dedup, "unique until it is done": unique,
    "schedules": schedules, "groups": groups, "effects that happen once": effects,
    "a message that goes with a write": with_a_write,
    "steps that are done once": steps, "one message at a time": one_message,
    "status and cancel of one message": any_state, "the result of a message": result,
    "batches that end": batches, "results of a batch": batch_results, "local queue and outbox": outbox,
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
UNDECIDED = ("handlers, several messages at a time", "functions as tasks", "order within a key", "batches that end")
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
    for call in matrix.sample(range(1, counted._number + 1), primitive, least=10):
        try:
            assert run(primitive, FaultyStore(MemoryStore(), {call: "reply_lost"}), tmp_path / str(call)), call
        except OutcomeUnknown:
            continue


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
    shared = {"store", "poller", "retry"}  # what all primitives stand on; the sharded queue once more
    assert set(SCENARIOS) - simulated == shared, "each other simulation is that of a row"


# ---- what the columns say


def rows_that_say(column, *values):
    return {row["primitive"] for row in ROWS if row[column] in values}


def refused(work):
    """Whether the work is refused, as that of a former holder is."""
    try:
        work()
    except (FencedOut, LeaseLost):
        return True
    return False


def stale_member():
    store = MemoryStore()
    made, resource = Group(store, "g", farm_id="a"), Key("capabilities", "member")
    store.operate(resource, Put("n", 0), exists=Exists.ANY)
    former, newer = (made.join("p", keep_alive=False) for _ in range(2))
    newer.operate(resource, Put("n", 1))
    return refused(lambda: former.operate(resource, Put("n", 2)))


def stale_leader():
    store = MemoryStore()
    made, resource = LeaseElection(store, "e"), Key("capabilities", "leader")
    store.operate(resource, Put("n", 0), exists=Exists.ANY)
    former = made.run(lambda term: term, timeout=20)
    made.run(lambda term: term.operate(resource, Put("n", 1)), timeout=20)
    former.check = lambda: None  # as one that was paused just after it had asked
    return refused(lambda: former.operate(resource, Put("n", 2)))


def stale_delivery(publish=lambda queue: queue.publish("m"), group=None):
    """A consumer dies with a message, which is handed out again: what the former one acknowledges is refused."""
    queue = queue_on(MemoryStore(ManualClock()), "stale")
    reader = queue if group is None else queue.group(group)
    publish(queue)
    (former,) = reader.receive()
    bring_back(queue)
    (newer,) = reader.receive()
    assert (newer.message_id, newer.attempts) == (former.message_id, former.attempts + 1)
    return refused(former.ack) and newer.ack() is None


def published_by_a_publisher(queue):
    with queue.publisher() as publisher:
        until(publisher.publish("m").done)  # its thread takes real time, of which the clock of the store knows nothing


def published_by_a_task(queue):
    @Worker(queue.registry).task(queue.name)
    def add(n: int) -> None: ...

    add.publish(7)


def handled_again(**options):
    """A handler has worked on a message, and then fails: it gets the message again."""
    queue, seen, over = queue_on(MemoryStore(), "again"), [], threading.Event()
    queue.publish("m", key="k")

    def handle(delivery):
        seen.append(delivery.message_id)
        if len(seen) == 1:
            raise ValueError
        over.set()

    with Consumer(queue, handle, upkeep=False, **options):
        while not over.wait(0.05):
            Shovel(queue).run_once()
    return len(seen) == 2 and len(set(seen)) == 1


def stale_effect():
    """The message is another's by then, which has applied the effect: the former attempt is refused."""
    store, account = MemoryStore(ManualClock()), Key("capabilities", "stale")
    queue = queue_on(store, "stale")
    queue.publish("m")
    (former,) = queue.receive()
    bring_back(queue)
    (newer,) = queue.receive()
    newer.operate(account, Add("n", 1))
    late = type(former)(former.payload, former.held, former.view, store.seams.monotonic())
    return refused(lambda: late.operate(account, Add("n", 1))) and store.get(account).bins["n"] == 1


def stale_step():
    store = MemoryStore(ManualClock())
    former = latchwork.once(store, key="stale")
    former.__enter__().result = 1
    latchwork.once(store, key="stale").run(lambda: 2)
    return refused(lambda: former.__exit__(None, None, None))


HANDED_OUT_AGAIN = {
    "work queue": stale_delivery, "groups": lambda: stale_delivery(group="audit"),
    "publisher for threads": lambda: stale_delivery(published_by_a_publisher),
    "handlers, several messages at a time": handled_again,
    "functions as tasks": lambda: stale_delivery(published_by_a_task),
    "order within a key": lambda: handled_again(ordered=True),
}  # fmt: skip
FENCED = {
    "presence": stale_member, "fenced lock": lambda: lock(MemoryStore(), "n"),
    "semaphore": lambda: semaphore(MemoryStore(), "n"), "read-write lock": lambda: rwlock(MemoryStore(), "n"),
    "election by lease": stale_leader, "work queue": stale_delivery, "groups": lambda: stale_delivery(group="audit"),
    "handlers, several messages at a time": stale_delivery,
    "functions as tasks": lambda: stale_delivery(published_by_a_task),
    "effects that happen once": stale_effect, "steps that are done once": stale_step,
}  # fmt: skip
FENCED_ELSEWHERE = {
    "election by ZooKeeper": (
        ELSEWHERE["election by ZooKeeper"],
        "leadership_ends_when_the_connection_is_suspended_before_the_session_does",
    ),
    "one leader over all farms": (
        ELSEWHERE["one leader over all farms"],
        "a_deposed_farm_is_refused_by_its_own_store",
    ),
    "circular queue": (
        "tests/queue/circular/test_counterexamples.py",
        "not_committed_is_final_for_a_dead_holder_whose_commit_is_on_its_way",
    ),
    "order within a key": (
        "tests/queue/sharded/consumer/test_ordered.py",
        "a_claim_of_a_former_holder_that_comes_late_claims_nothing",
    ),
    "once per micro-batch": (
        ELSEWHERE["once per micro-batch"],
        "a_driver_that_was_thought_dead_and_goes_on_is_fenced_off_and_doubles_nothing",
    ),
}
"""Rows whose fence needs more than a store, and the test that shows it."""


@pytest.mark.parametrize("primitive", HANDED_OUT_AGAIN)
def test_what_is_handed_out_at_least_once_may_be_handed_out_again(primitive):
    assert HANDED_OUT_AGAIN[primitive]()


def test_the_page_says_at_least_once_of_these_rows_and_once_of_all_others():
    assert rows_that_say("lost reply", "at least once") == set(HANDED_OUT_AGAIN)
    assert len(rows_that_say("lost reply", "once", "at least once")) == len(ROWS)


@pytest.mark.parametrize("primitive", FENCED)
def test_a_former_holder_is_refused_where_the_page_says_that_there_is_a_fence(primitive):
    assert FENCED[primitive]()


def test_the_page_says_so_of_these_rows_and_of_no_other():
    assert {row["primitive"] for row in ROWS} - rows_that_say("fence", "-") == {*FENCED, *FENCED_ELSEWHERE}
    for path, test in FENCED_ELSEWHERE.values():
        assert f"def test_{test}(" in (PAGE.parents[1] / path).read_text()
    for row in ROWS:
        assert row["fence"] != "-" or not hasattr(named_by(row), "operate"), row


def named_by(row):
    package, _, name = row["as"].strip("`").partition(".")
    return getattr(importlib.import_module(f"latchwork.{package}"), name)


def written_bins(primitive, folder):
    store = FaultyStore(MemoryStore(), {})
    run(primitive, store, folder)
    updates = [one for call in store.history for one in (call.request if "many" in call.verb else [call.request])]
    return {op.bin for update in updates for op in getattr(update, "ops", ()) if writes((op,))}


@pytest.mark.parametrize("primitive", PROGRAMS)
def test_what_works_over_farms_by_its_bins_writes_those_of_its_farm_alone(primitive, tmp_path):
    """The programs are of the farm `a`, wherever they have one."""
    bins = written_bins(primitive, tmp_path)
    assert bins, "something is written"
    by_bins = all(bin.endswith("#a") for bin in bins)
    assert (primitive in rows_that_say("farms", "bins")) is by_bins


def test_rows_that_need_a_server_or_files_beside_the_store_say_so():
    for row in ROWS:
        assert row["backends"] in ("all", "all, and ZooKeeper", "all, and files", "SQLite, Aerospike")
        assert row["farms"] in ("bins", "no", "ZooKeeper")
    assert rows_that_say("backends", "all, and files") == {one for one, run in PROGRAMS.items() if run is outbox}
    needs_zookeeper = {row["primitive"] for row in ROWS if "zookeeper" in parameters_of(row)}
    assert rows_that_say("backends", "all, and ZooKeeper") == {*needs_zookeeper, "election by ZooKeeper"}
    assert rows_that_say("farms", "ZooKeeper") == needs_zookeeper
    assert rows_that_say("backends", "SQLite, Aerospike") == {
        row["primitive"] for row in ROWS if row["as"].startswith("`spark.")
    }
    with pytest.raises(InvalidRequest, match="lives in one process"):
        pickle.dumps(MemoryStore())  # so what runs in Spark's processes cannot have it


def parameters_of(row):
    return getattr(getattr(named_by(row), "__init__", None), "__annotations__", {})


# ---- the second table: what depends on the store

SPLIT_BRAIN = ("tests/sim/test_split_brain.py", "one_of_two_updates_is_lost_not_promised")
LOST_NODE = ("tests/test_cluster.py", "a_node_that_dies_loses_nothing_that_was_acknowledged")
TOMBSTONES = (
    "tests/store/aerospike/test_aerospike_durable.py",
    "what_deletes_asks_for_a_tombstone_where_the_namespace_is_strongly_consistent_and_only_there",
)
WRITES_AND_DIES = """
import os, sys
from latchwork.store import Exists, Key, Put, SQLiteStore
store = SQLiteStore(sys.argv[1])
for name in ("kept", "deleted"):
    store.operate(Key("capabilities", name), Put("n", 1), exists=Exists.ANY)
store.delete(Key("capabilities", "deleted"))
os.kill(os.getpid(), 9)
"""


def test_sqlite_outlives_its_process_and_deletes_stay_deleted_while_memory_is_gone_with_it(tmp_path):
    path = tmp_path / "capabilities.db"
    ended = subprocess.run([sys.executable, "-c", WRITES_AND_DIES, str(path)], check=False, timeout=120)
    assert ended.returncode == -9
    after = SQLiteStore(str(path))
    assert after.get(Key("capabilities", "kept")).bins == {"n": 1}
    assert after.get(Key("capabilities", "deleted")) is None
    assert OF_STORES["survives the loss of the process"]["SQLite"] == "yes"
    assert OF_STORES["deletes stay deleted after a cold restart"]["SQLite"] == "yes"
    assert OF_STORES["survives the loss of the process"]["memory"] == "no"
    assert (MemoryStore().describe().replication_factor, after.describe().replication_factor) == (1, 1)
    assert OF_STORES["survives the loss of a node"]["SQLite"] == OF_STORES["survives the loss of a node"]["memory"]


def test_what_the_page_says_of_aerospike_is_shown_or_asked_of_the_server_by_these_tests():
    for row, column, said, (path, test) in (
        ("survives a split brain", "Aerospike AP", "no: last write wins", SPLIT_BRAIN),
        ("survives the loss of a node", "Aerospike AP", "with two replicas", LOST_NODE),
        ("deletes stay deleted after a cold restart", "Aerospike SC", "yes", TOMBSTONES),
    ):
        assert OF_STORES[row][column] == said
        assert f"def test_{test}(" in (PAGE.parents[1] / path).read_text()
    assert OF_STORES["an update happens once or is said to be unknown"] == dict.fromkeys(MODES, "yes")
