"""The stream whose driver dies between any two steps, and is started again from its checkpoint (P7)."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import timedelta

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from latchwork.errors import FencedOut, NotFound
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded import stream as ranges
from latchwork.queue.sharded.ledger.ledger import Ledger, Outgoing
from latchwork.spark import options
from latchwork.spark.options import parse
from latchwork.spark.source import StreamReader
from latchwork.spark.table import Table
from latchwork.store import MemoryStore
from latchwork.testing import FAULTS, inject_everywhere
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import Crash, FaultyStore

from .engine import Checkpoint, Engine

N = 11
SCHEMA = StructType().add("shard", LongType()).add("pointer", LongType()).add("payload", StringType())


@pytest.fixture
def clock():
    return ManualClock(seed=1)


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


@pytest.fixture
def queue(store):
    return queue_on(store)


def queue_on(store):
    made = QueueRegistry(store, "shop").create(
        QueueConfig("q", retry=False, shards=2, sweep_duration=timedelta(minutes=20))
    )
    publish(made, range(N))
    return made


@pytest.fixture
def reader(store, monkeypatch):
    """A planner of a process of its own, which reaches the store through `through`."""

    def started(through=store, limit=4):
        monkeypatch.setattr(options, "connect", lambda _url: through)
        given = {"store": "sqlite:", "queue": "q", "clientId": "shop", "streamId": "etl"}
        return StreamReader(parse(given | {"maxMessagesPerBatch": str(limit)}), Table(SCHEMA, typed=False))

    return started


def publish(queue, numbers):
    """Some as usual, some exactly once, and a slot that nobody fills."""
    for number in numbers:
        if number % 3:
            queue.publish(number, key=f"k{number}")
        else:
            Ledger(queue, f"scope{number}").publish(0, [Outgoing(number, key=f"k{number}")])
    queue.pointers.reserve({0: 1})


def left(store):
    return [record for key, record in store._records.items() if "data" in record.bins and key.set == "shop_data_set"]


def finish(kept, reader, queue, store, expected):
    """Start again, undisturbed; then everything is in the sink once, and acknowledged."""
    again = reader()
    Engine(kept, again).run()
    rows = kept.rows()
    assert Counter(int(row["payload"]) for row in rows) == Counter(expected)
    assert len({(row["shard"], row["pointer"]) for row in rows}) == len(rows)
    assert queue.depth().ready == 0
    assert not left(store)


def test_a_run_that_nothing_disturbs_reads_everything_once_in_bounded_batches(store, queue, reader):
    kept = Checkpoint()
    finish(kept, reader, queue, store, range(N))
    assert all(len(rows) <= 4 for rows in kept.sink.values())
    assert len(kept.sink) > N // 4


@pytest.mark.matrix
@pytest.mark.parametrize("step", range(1, 13))
def test_a_driver_that_dies_before_any_step_loses_and_doubles_nothing(store, queue, reader, step):
    kept = Checkpoint()
    with suppress(Crash):
        Engine(kept, reader(), crash_at=step).run()
    publish(queue, range(N, N + 3))
    finish(kept, reader, queue, store, range(N + 3))


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_a_driver_that_dies_at_any_store_call_loses_and_doubles_nothing(reader, fault):
    kept = {}

    def prepare(store):
        kept.update(checkpoint=Checkpoint(), queue=queue_on(store))

    def drive(store, done):
        Engine(kept["checkpoint"], reader(store)).run()

    def restart(store, done):
        publish(kept["queue"], range(N, N + 3))
        finish(kept["checkpoint"], lambda: reader(store), kept["queue"], store, range(N + 3))

    report = inject_everywhere(drive, prepare=prepare, recover=restart, faults=[fault])
    assert report.calls > 40
    assert not report.troubles, report


def test_a_driver_that_was_thought_dead_and_goes_on_is_fenced_off_before_it_reads(store, queue, reader):
    kept, old = Checkpoint(), reader()
    begin = old.initialOffset()
    end = old.latestOffset(begin, old.getDefaultReadLimit())
    finish(kept, reader, queue, store, range(N))
    for verb in (
        lambda: old.latestOffset(begin, old.getDefaultReadLimit()),
        lambda: old.partitions(begin, end),
        old.prepareForTriggerAvailableNow,
    ):
        with pytest.raises(FencedOut, match="another query has taken it over"):
            verb()


def planned(driver):
    """The first batch of a driver that stops for a while before its tasks run."""
    begin = driver.initialOffset()
    return driver.partitions(begin, driver.latestOffset(begin, driver.getDefaultReadLimit()))


def rows_of(driver, tasks):
    return [row["payload"] for task in tasks for batch in driver.read(task) for row in batch.to_pylist()]


def test_tasks_of_a_driver_that_was_fenced_off_fail_before_they_give_a_part_of_a_batch(store, queue, reader):
    """Its successor has acknowledged the batch: what is left of it would replace what was written in its name."""
    old = reader()
    tasks = planned(old)
    finish(Checkpoint(), reader, queue, store, range(N))
    there = dict(store._records)
    with pytest.raises(FencedOut, match="another query has taken it over"):
        rows_of(old, tasks)
    assert store._records == there, "it has put tombstones"


@pytest.mark.matrix
@pytest.mark.parametrize("at", range(1, 10))
def test_a_task_that_is_overtaken_gives_a_whole_batch_or_fails(store, queue, reader, at):
    """The successor does everything just before some call of the task."""
    old = reader(limit=100)
    tasks = planned(old)

    def overtaken():
        finish(Checkpoint(), reader, queue, store, range(N))
        reader(faulty)

    faulty = FaultyStore(store, {at: overtaken}, seams=store.seams)
    reader(faulty)
    with suppress(FencedOut):
        assert Counter(rows_of(old, tasks)) == Counter(map(str, range(N)))


def test_what_comes_after_the_start_of_a_bounded_run_is_left_for_the_next(store, queue, reader):
    bounded = reader()
    bounded.prepareForTriggerAvailableNow()
    publish(queue, [N])
    begin = bounded.initialOffset()
    kept = Checkpoint()
    kept.offsets.append(begin)
    while Engine(kept, bounded)._plan():
        Engine(kept, bounded)._batch()
    assert Counter(int(row["payload"]) for row in kept.rows()) == Counter(range(N))
    finish(kept, reader, queue, store, range(N + 1))


def test_consumers_have_the_queue_again_after_the_stream_has_let_it_go(store, queue, reader):
    Engine(Checkpoint(), reader()).run()
    publish(queue, [99])
    ranges.release(queue.pointers, ranges.current(queue.pointers, "etl"))
    got = queue.receive(5)
    assert [delivery.payload for delivery in got] == [99]


def test_a_queue_that_is_gone_is_said(store, queue, reader):
    store.delete(queue.registry.records.key("q"))
    with pytest.raises(NotFound, match="'q'"):
        reader().initialOffset()
