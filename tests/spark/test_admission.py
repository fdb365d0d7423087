"""How much a batch takes, how long it waits for more, and what is told of a stream that is behind."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from latchwork.errors import InvalidRequest
from latchwork.observe.base import ObservedSeams
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.seams import SYSTEM
from latchwork.spark import options, watch_streams
from latchwork.spark.listener import StreamFigures
from latchwork.spark.options import parse
from latchwork.spark.source import StreamReader
from latchwork.spark.table import Table
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore
from tests.observe.conftest import Remembering

GIVEN = {"store": "sqlite:", "queue": "q", "clientId": "shop", "streamId": "etl"}


@pytest.fixture
def clock():
    return ManualClock(seed=1)


@pytest.fixture
def store(clock):
    return CountingStore(MemoryStore(clock))


@pytest.fixture
def queue(store):
    return QueueRegistry(store, "shop").create(QueueConfig("q", retry=False, shards=3))


@pytest.fixture
def planner(store, queue, monkeypatch):
    monkeypatch.setattr(options, "connect", lambda _url: store)
    return lambda **limits: StreamReader(parse(GIVEN | limits), Table(StructType(), typed=False))


def taken(reader, begin, limit=None):
    """The offset behind the next batch, and how many messages it takes."""
    end = reader.latestOffset(begin, limit or reader.getDefaultReadLimit())
    return end, sum(end["shards"].values()) - sum(begin["shards"].values())


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({}, ReadAllAvailable()),
        ({"minMessagesPerBatch": "5"}, ReadMinRows(5)),
        ({"minMessagesPerBatch": "5", "maxBytesPerBatch": "9"}, ReadMaxBytes(9)),
        ({"minMessagesPerBatch": "5", "maxBytesPerBatch": "9", "maxMessagesPerBatch": "7"}, ReadMaxRows(7)),
    ],
)
def test_spark_is_told_one_limit_which_it_gives_back(planner, limits, told):
    assert planner(**limits).getDefaultReadLimit() == told


def test_a_batch_takes_about_as_many_bytes_as_it_may(planner, queue):
    queue.publish_many(["x" * 98] * 300)  # 100 bytes, as JSON
    reader = planner(maxBytesPerBatch="5000")
    end, messages = taken(reader, reader.initialOffset())
    assert messages == 50
    assert len(set(end["shards"].values())) <= 2, "evenly from all shards"


def test_messages_whose_sizes_grow_do_not_make_the_first_batches_small_or_the_last_ones_large(planner, queue):
    sizes = [10] * 2000 + [1000] * 2000
    for size in sizes:
        queue.publish("x" * (size - 2), key="k")
    reader = planner(maxBytesPerBatch="20000")
    begin, read, batches = reader.initialOffset(), 0, []
    while True:
        begin, messages = taken(reader, begin)
        if not messages:
            break
        batches.append(sum(sizes[read : read + messages]))
        read += messages
    assert read == len(sizes)
    assert max(batches) <= 45_000
    assert min(batches[:-1]) >= 10_000


def test_a_batch_has_no_messages_behind_those_whose_sizes_were_looked_at(planner, queue):
    for size in [1000] + [10] * 300 + [100_000] * 300:
        queue.publish("x" * (size - 2), key="k")
    reader = planner(maxBytesPerBatch="20000")
    assert 1 <= taken(reader, reader.initialOffset())[1] <= 301


def test_a_message_that_is_larger_than_a_batch_is_one(planner, queue):
    queue.publish_many(["x" * 1000] * 4)
    reader = planner(maxBytesPerBatch="1")
    assert taken(reader, reader.initialOffset())[1] == 1


def test_slots_without_messages_have_no_bytes(planner, queue):
    queue.pointers.reserve({0: 5})
    reader = planner(maxBytesPerBatch="1")
    assert taken(reader, reader.initialOffset())[1] == 5


def test_the_smaller_of_two_limits_holds(planner, queue):
    queue.publish_many(["x" * 98] * 100)
    for rows, size, messages in ((7, 5000, 7), (60, 2000, 20)):
        reader = planner(maxMessagesPerBatch=str(rows), maxBytesPerBatch=str(size))
        assert taken(reader, reader.initialOffset())[1] == messages


def test_what_the_sizes_cost_is_at_most_four_calls(planner, queue, store):
    queue.publish_many(["x"] * 50)
    plain, sized = planner(maxMessagesPerBatch="10"), planner(maxMessagesPerBatch="10", maxBytesPerBatch="20")
    costs = []
    for reader in (plain, sized):
        begin = reader.initialOffset()
        before = store.total
        taken(reader, begin)
        costs.append(store.total - before)
    assert costs[1] - costs[0] <= 4


def test_a_batch_waits_for_enough_messages_but_no_message_for_longer_than_the_delay(planner, queue, clock):
    reader = planner(minMessagesPerBatch="10", maxTriggerDelay="30s")
    begin = reader.initialOffset()
    assert taken(reader, begin)[1] == 0
    clock.advance(1000)
    queue.publish_many(range(4))
    assert taken(reader, begin)[1] == 0, "the delay begins with the first message"
    clock.advance(29)
    assert taken(reader, begin)[1] == 0
    clock.advance(1)
    begin, messages = taken(reader, begin)
    assert messages == 4
    queue.publish_many(range(9))
    assert taken(reader, begin)[1] == 0, "the next ones wait anew"
    queue.publish(0)
    begin, messages = taken(reader, begin)
    assert messages == 10
    queue.publish_many(range(2))
    clock.advance(29)
    assert taken(reader, begin)[1] == 0, "and so do these"


@pytest.mark.parametrize("limit", [{"maxBytesPerBatch": "300"}, {"maxMessagesPerBatch": "10"}], ids=str)
def test_messages_that_a_batch_leaves_behind_do_not_wait_for_a_second_delay(planner, queue, clock, limit):
    reader = planner(minMessagesPerBatch="10", maxTriggerDelay="30s", **limit)
    begin = reader.initialOffset()
    queue.publish_many(["x" * 98] * 8, key="old")
    assert taken(reader, begin)[1] == 0
    clock.advance(29)
    if "maxMessagesPerBatch" in limit:
        queue.publish_many(["x" * 98] * 30, key=next(k for k in "abcdef" if queue.shard_of(k) != queue.shard_of("old")))
    clock.advance(1)
    left = queue.depth().ready
    while left:
        begin, messages = taken(reader, begin)
        assert messages, f"{left} messages wait for longer than the delay"
        left -= messages
    queue.publish_many(range(9))
    assert taken(reader, begin)[1] == 0, "the next ones wait anew"


def test_what_is_done_is_acknowledged_while_a_batch_waits(planner, queue):
    queue.publish_many(range(10))
    reader = planner(minMessagesPerBatch="10")
    begin, _ = taken(reader, reader.initialOffset())
    queue.publish(0)
    taken(reader, begin)
    assert queue.depth().ready == 1


def test_a_run_that_reads_what_is_there_now_waits_for_nothing_more(planner, queue):
    queue.publish_many(range(4))
    reader = planner(minMessagesPerBatch="10")
    reader.prepareForTriggerAvailableNow()
    assert taken(reader, reader.initialOffset())[1] == 4


def test_spark_may_ask_for_everything_whatever_the_options_say(planner, queue):
    queue.publish_many(range(4))
    for limits in ({"minMessagesPerBatch": "10"}, {"maxMessagesPerBatch": "1"}, {"maxBytesPerBatch": "1"}):
        reader = planner(**limits)
        assert taken(reader, reader.initialOffset(), ReadAllAvailable())[1] == 4


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"maxBytesPerBatch": "0"}, "'maxBytesPerBatch' is '0'; it must be a whole number from 1"),
        ({"minMessagesPerBatch": "x"}, "'minMessagesPerBatch' is 'x'; it must be a whole number from 1"),
        (
            {"minMessagesPerBatch": "9", "maxMessagesPerBatch": "5"},
            "'minMessagesPerBatch' is 9, more than 'maxMessagesPerBatch', 5: .* or lower 'minMessagesPerBatch'",
        ),
        ({"maxTriggerDelay": "5s"}, "how long messages wait for 'minMessagesPerBatch' of them: give that too"),
        *(
            ({"minMessagesPerBatch": "9", "maxTriggerDelay": delay}, f"'maxTriggerDelay' is '{delay}'; .* such as 30s")
            for delay in ("5", "soon", "-1s", "0s", "25h", "1.5s", "99999999999s")
        ),
    ],
    ids=str,
)
def test_a_wrong_limit_is_refused_with_the_options(limits, says):
    with pytest.raises(InvalidRequest, match=says):
        parse(GIVEN | limits)


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("15m", 900), ("24h", 86_400), ("250 ms", 0.25)])
def test_a_delay_is_a_number_with_its_unit(text, seconds):
    assert parse(GIVEN | {"minMessagesPerBatch": "1", "maxTriggerDelay": text}).max_delay == seconds


# ---- lag


def test_the_progress_shows_how_far_the_queue_reaches_whatever_the_batch_takes(planner, queue, store):
    queue.publish_many(range(9))
    reader = planner(maxMessagesPerBatch="2")
    assert reader.reportLatestOffset() is None
    begin = reader.initialOffset()
    end, _ = taken(reader, begin)
    before = store.total
    latest = reader.reportLatestOffset()
    assert store.total == before
    assert sum(latest["shards"].values()) == 9
    assert latest | {"shards": {}} == end | {"shards": {}}


def test_a_bounded_run_shows_what_came_after_it_began(planner, queue):
    queue.publish_many(range(4))
    reader = planner()
    reader.prepareForTriggerAvailableNow()
    queue.publish_many(range(3))
    assert taken(reader, reader.initialOffset())[1] == 4
    assert sum(reader.reportLatestOffset()["shards"].values()) == 7


def offset(*shards):
    return json.dumps({"queue": "q", "streamId": "etl", "shards": {str(n): at for n, at in enumerate(shards)}})


def source(end, latest, rows=5, rate=50.0):
    return SimpleNamespace(endOffset=end, latestOffset=latest, numInputRows=rows, processedRowsPerSecond=rate)


def progress(*sources):
    return SimpleNamespace(runId="run", batchDuration=1500, sources=list(sources))


def test_each_batch_is_told_with_lag_rate_and_time_by_queue():
    telemetry = Remembering()
    figures = StreamFigures(ObservedSeams(SYSTEM, telemetry))
    figures.progressed(progress(source(offset(3, 4), offset(10, 4)), source('{"logOffset":1}', None)))
    figures.progressed(progress(source(offset(3, 4), None, rows=0, rate=0.0), source(None, None)))
    for none in ("None", "null"):  # as PySpark, and its Connect, give what is not known
        figures.progressed(progress(source(offset(3, 4), none, rows=0, rate=0.0), source(none, none)))
    figures.at_rest("run")
    figures.at_rest("another")
    figures.ended("run")
    figures.at_rest("run")
    of = {"queue": "q"}
    assert telemetry.told == [
        ("stream_lag", 7, of), ("stream_rate", 50.0, of), ("stream_batches", 1.5, of),
        *[("stream_lag", 0, of), ("stream_rate", 0.0, of)] * 3,
        ("stream_rate", 0.0, of), ("stream_rate", 0.0, of),
    ]  # fmt: skip


def test_what_is_no_telemetry_is_refused():
    with pytest.raises(InvalidRequest, match="a str is not a Telemetry"):
        watch_streams(None, "telemetry")
