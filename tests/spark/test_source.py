"""The source on a real Spark: snapshots that change nothing, streams that lose nothing and read the same again (P7)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.sql import functions as f

from latchwork.errors import QueueOwned
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.spark import acknowledge, register, watch_streams
from latchwork.spark.listener import lag_of
from tests.observe.conftest import Remembering

from . import driver

ROWS = 200
ALL = Counter(range(ROWS))


@pytest.fixture
def queue(store):
    return QueueRegistry(store, "shop").create(QueueConfig("q", retry=False, shards=2))


@pytest.fixture
def options(url):
    return {"store": url, "queue": "q", "clientId": "shop"}


@pytest.fixture
def session(spark):
    register(spark)
    return spark


def publish(queue, start=0, n=ROWS):
    for number in range(start, start + n, 20):
        some = range(number, min(number + 20, start + n))
        queue.publish_many([{"id": one} for one in some], headers={"h": "x"})


def read(session, options, **more):
    return session.read.format("latchwork").options(**options, **more).load()


def stream(session, options, **more):
    settings = {"streamId": "etl", "payloadSchema": "id int"} | more
    return session.readStream.format("latchwork").options(**options, **settings).load()


def run(frame, folder, **trigger):
    """Write the stream to Parquet, which is transactional, until it has read all that is there."""
    sink = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = sink.option("path", str(folder / "out")).trigger(**trigger or {"availableNow": True}).start()
    query.awaitTermination()
    return query


def written(session, folder):
    return Counter(row.id for row in session.read.parquet(str(folder / "out")).select("payload.id").collect())


# ---- snapshots


def test_a_snapshot_has_every_unread_message_once_and_changes_nothing(session, queue, options):
    publish(queue)
    frame = read(session, options, payloadSchema="id int")
    for _ in range(2):
        assert Counter(row.id for row in frame.select("payload.id").collect()) == ALL
    row = frame.orderBy("shard", "pointer").first()
    assert (row.pointer, row.headers, row.attempts) == (1, {"h": "x"}, 0)
    assert row.message_id
    assert row.enqueued_at is not None
    assert queue.depth().ready == ROWS


@pytest.mark.long
def test_an_empty_queue_is_an_empty_frame_and_an_empty_run(session, queue, options, tmp_path):
    assert read(session, options).count() == 0
    assert read(session, options).where("shard = 1").collect() == []
    acknowledge(session, run(stream(session, options), tmp_path))


@pytest.mark.long
def test_payloads_without_a_schema_are_text_as_it_was_published_else_json_and_columns_can_be_chosen(
    session, queue, options
):
    queue.publish_many(["a", '{"b": 1}', 'say "é"', {"b": [1, None]}, 7, None])
    frame = read(session, options, columns="payload,shard")
    assert frame.columns == ["payload", "shard"]
    assert Counter(row.payload for row in frame.collect()) == Counter(
        ["a", '{"b": 1}', 'say "é"', '{"b":[1,null]}', "7", None]
    )


@pytest.mark.long
def test_texts_that_were_written_come_back_as_they_went_in(session, queue, options):
    texts = ["tea", "", '"', "null", '{"id": 1}', "a\nb\0", None]
    frame = session.createDataFrame([(text,) for text in texts], "payload string")
    frame.write.format("latchwork").mode("append").options(**options, jobId="load").save()
    for more in ({}, {"payloadSchema": "string"}):
        assert Counter(row.payload for row in read(session, options, **more).collect()) == Counter(texts)


@pytest.mark.long
@pytest.mark.parametrize("pushed", ["false", "true"])
def test_each_query_of_a_frame_has_its_own_filter_whatever_was_asked_of_the_frame_before(
    session, queue, options, pushed
):
    """Spark keeps the partitions of a read that has taken a filter, and gives them to the frame's next query."""
    publish(queue)
    session.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
    try:
        frame = read(session, options)
        of = [sum(message.shard == shard for message in queue.peek_all()) for shard in range(2)]
        assert [frame.where(f"shard = {shard}").count() for shard in range(2)] == of
        assert frame.count() == ROWS
        both = frame.where("shard = 0").unionAll(frame.where("shard = 1"))
        assert both.select("message_id").distinct().count() == ROWS
        late = frame.where("enqueued_at > now() + interval 10 minutes")
        assert [late.count(), frame.count()] == [0, ROWS]
    finally:
        session.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.long
def test_shards_and_times_are_compared_in_any_time_zone(session, queue, options):
    publish(queue)
    frame = read(session, options)
    of_one = [message for message in queue.peek_all() if message.shard == 1]
    assert frame.where("shard = 1").count() == len(of_one)
    assert frame.where("shard in (1, 7) and pointer > 0").count() == len(of_one)
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        session.conf.set("spark.sql.session.timeZone", zone)
        try:
            assert frame.where("enqueued_at > now() - interval 10 minutes").count() == ROWS
            assert frame.where("enqueued_at <= now() - interval 10 minutes").count() == 0
            assert frame.where("enqueued_at < now() + interval 10 minutes").count() == ROWS
            assert frame.where("enqueued_at >= now() + interval 10 minutes").count() == 0
        finally:
            session.conf.unset("spark.sql.session.timeZone")


@pytest.mark.long
def test_payloads_are_read_as_their_types(session, queue, options):
    kinds = (
        "i bigint, d double, m decimal(5,2), t timestamp, y date, b boolean, l array<int>, s struct<x int>, z binary"
    )
    row = {
        "i": 5, "d": 1, "m": "12.50", "t": "2026-01-02T03:04:05Z", "y": "2026-01-02", "b": True, "l": [1, None],
        "s": {"x": 1}, "z": "AAE=", "extra": 1,
    }  # fmt: skip
    queue.publish(row)
    queue.publish({})
    session.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        frame = read(session, options, payloadSchema=kinds).orderBy(f.col("payload.i").isNull())
        full, empty = (one.asDict(recursive=True)["payload"] for one in frame.collect())
        shown = frame.select(f.col("payload.t").cast("string")).first()[0]
    finally:
        session.conf.unset("spark.sql.session.timeZone")
    assert (full["i"], full["d"], str(full["m"]), shown) == (5, 1.0, "12.50", "2026-01-02 03:04:05")
    assert (str(full["y"]), full["b"], full["l"], full["s"], bytes(full["z"])) == (
        "2026-01-02", True, [1, None], {"x": 1}, b"\0\1",
    )  # fmt: skip
    assert set(empty.values()) == {None}


@pytest.mark.long
def test_a_payload_of_another_type_is_named_with_the_remedy(session, queue, options):
    queue.publish({"id": "text"}, message_id="odd")
    with pytest.raises(Exception, match=r"message 'odd' at .* leave the option out"):
        read(session, options, payloadSchema="id int").collect()


# ---- streams


def test_a_bounded_run_reads_everything_once_and_is_finished_by_acknowledge(session, queue, options, tmp_path):
    publish(queue)
    query = run(stream(session, options, maxMessagesPerBatch="70"), tmp_path)
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [70, 70, 60]
    assert written(session, tmp_path) == ALL
    acknowledge(session, query)
    assert queue.depth().ready == 0
    publish(queue, ROWS, 20)
    assert len(queue.receive(100)) == 20


@pytest.mark.long
def test_the_progress_shows_the_lag_and_a_listener_exports_it(session, queue, options, tmp_path):
    publish(queue)
    telemetry = Remembering()
    listener = watch_streams(session, telemetry)
    try:
        limits = {"maxBytesPerBatch": "800", "minMessagesPerBatch": "50", "maxTriggerDelay": "1h"}  # 100 messages
        query = run(stream(session, options, **limits), tmp_path)
        until(lambda: telemetry.times("stream_rate", queue="q") > telemetry.times("stream_lag", queue="q"))
    finally:
        session.streams.removeListener(listener)
    shown = [progress.sources[0] for progress in query.recentProgress if progress.numInputRows]
    assert [sum(json.loads(source.latestOffset)["shards"].values()) for source in shown] == [ROWS] * len(shown)
    lags = [lag_of(source)[1] for source in shown]
    assert (len(lags) > 1, lags) == (True, sorted(lags, reverse=True))
    assert lags[-1] == 0
    assert [value for name, value, _ in telemetry.told if name == "stream_lag"][: len(lags)] == lags
    assert telemetry.times("stream_batches", queue="q") == len(lags)
    assert written(session, tmp_path) == ALL
    acknowledge(session, query)


@pytest.mark.long
def test_a_query_that_goes_on_waits_for_enough_messages(session, queue, options, tmp_path):
    publish(queue, 0, 20)
    limits = {"minMessagesPerBatch": "50", "maxTriggerDelay": "1h"}
    sink = stream(session, options, **limits).writeStream.format("parquet").option("path", str(tmp_path / "out"))
    sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = sink.trigger(processingTime="50 milliseconds").start()
    try:
        until(lambda: query.lastProgress is not None)
        publish(queue, 20, 20)
        publish(queue, 40, 20)
        query.processAllAvailable()
        (rows,) = [one.numInputRows for one in query.recentProgress if one.numInputRows]
        assert rows == 60
    finally:
        query.stop()
    acknowledge(session, query)


@pytest.mark.long
def test_a_run_that_found_nothing_new_is_finished_by_acknowledge_too(session, queue, options, tmp_path):
    """As after a driver that was killed between its last batch and the acknowledgement."""
    publish(queue)
    run(stream(session, options), tmp_path)
    acknowledge(session, run(stream(session, options), tmp_path))
    publish(queue, ROWS, 20)
    assert len(queue.receive(100)) == 20


@pytest.mark.long
def test_the_next_run_goes_on_where_the_last_one_ended(session, queue, options, tmp_path):
    for first in (0, 100):
        publish(queue, first, 100)
        query = run(stream(session, options), tmp_path)
    assert written(session, tmp_path) == ALL
    acknowledge(session, query)


def test_a_batch_that_is_repeated_before_its_commit_reads_the_same(session, queue, options, tmp_path):
    publish(queue)
    seen = []

    def fails_once(frame, batch):
        seen.append(Counter(row.id for row in frame.select("payload.id").collect()))
        if len(seen) == 1:
            raise RuntimeError("made to fail")

    def start():
        frame = stream(session, options)
        sink = frame.writeStream.foreachBatch(fails_once).option("checkpointLocation", str(tmp_path / "checkpoint"))
        return sink.trigger(availableNow=True).start()

    with pytest.raises(Exception, match="made to fail"):
        start().awaitTermination()
    assert queue.depth().ready == ROWS
    publish(queue, ROWS, 20)
    query = start()
    query.awaitTermination()
    assert seen[0] == seen[1] == ALL
    assert seen[2] == Counter(range(ROWS, ROWS + 20))
    acknowledge(session, query)
    assert queue.depth().ready == 0


@pytest.mark.long
def test_a_second_stream_and_a_consumer_are_refused_with_the_owners_name(session, queue, options, tmp_path):
    publish(queue)

    def fails(frame, batch):
        raise RuntimeError("made to fail")

    sink = stream(session, options).writeStream.foreachBatch(fails)
    with pytest.raises(Exception, match="made to fail"):
        sink.option("checkpointLocation", str(tmp_path / "one")).start().awaitTermination()
    with pytest.raises(QueueOwned, match="'etl'"):
        queue.receive(1)
    with pytest.raises(Exception, match="the stream 'etl' owns it"):
        run(stream(session, options, streamId="other"), tmp_path)


@pytest.mark.long
def test_a_start_under_the_same_name_takes_over_and_fences_the_running_query_off(session, queue, options, tmp_path):
    publish(queue)

    def start(name):
        sink = stream(session, options).writeStream.format("noop").trigger(processingTime="100 milliseconds")
        return sink.option("checkpointLocation", str(tmp_path / name)).start()

    first = start("one")
    first.processAllAvailable()
    second = start("two")
    second.processAllAvailable()
    with pytest.raises(Exception, match="is no longer owned by the stream 'etl' under epoch"):
        first.awaitTermination(60)
    second.stop()
    acknowledge(session, second)
    assert queue.depth().ready == 0


@pytest.mark.long
def test_a_killed_driver_that_is_started_again_has_everything_once(session, queue, url, tmp_path):
    """Killed with SIGKILL, the Java process too, in the middle of its second batch; another session goes on."""
    publish(queue)
    with driver_at(url, tmp_path) as process:
        until((tmp_path / "checkpoint" / "offsets" / "1").exists)
        os.killpg(process.pid, signal.SIGKILL)
    assert queue.depth().ready > 0
    query = driver.stream(session, url, tmp_path, per_batch=70)
    query.awaitTermination()
    assert written(session, tmp_path) == ALL
    acknowledge(session, query)
    assert queue.depth().ready == 0
    assert len(queue.receive(1)) == 0


@pytest.mark.long
def test_a_stream_from_queue_to_queue_is_repeated_with_the_same_partitions(session, queue, options, tmp_path, trail):
    """The batch fails once, when some of its partitions are published and the batch before it is acknowledged."""
    other = queue.registry.create(QueueConfig("r", retry=False, shards=2))
    many = Counter(range(20 + 31_000))  # more than one task's share

    def fails_in_its_last_partition(batches):
        rows = 0
        for batch in batches:
            rows += len(batch)
            yield batch
        if rows >= 30_000:
            trail.mark("published")
        if TaskContext.get().partitionId() == 1 and len(trail.marks("failed")) < 4:
            trail.await_mark("0-0-published")
            trail.mark("failed")
            raise RuntimeError("made to fail")

    def run_through():
        rows = stream(session, options).select("payload.id").mapInArrow(fails_in_its_last_partition, "id int")
        sink = rows.writeStream.format("latchwork").options(**options | {"queue": "r"})
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    publish(queue, 0, 20)
    run_through()
    queue.publish_many([{"id": n} for n in range(20, 31_020)])
    with pytest.raises(Exception, match="made to fail"):
        run_through()
    assert other.depth().ready > 20
    acknowledge(session, run_through())
    assert Counter(message.payload["id"] for message in other.peek_all()) == many


@pytest.mark.long
def test_a_query_that_goes_on_reads_what_comes_and_lets_it_go(session, queue, options, tmp_path):
    sink = stream(session, options).writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(processingTime="200 milliseconds")
    query = query.start()
    try:
        for first in (0, 100):
            publish(queue, first, 100)
            query.processAllAvailable()
        acknowledge(session, query)
        assert queue.depth().ready == 0
    finally:
        query.stop()
    assert written(session, tmp_path) == ALL
    acknowledge(session, query)
    publish(queue, 0, 20)
    assert len(queue.receive(100)) == 20


def test_a_wrong_option_is_one_clear_error_at_planning(session, queue, options, tmp_path):
    with pytest.raises(Exception, match="'streamId' is missing"):
        run(session.readStream.format("latchwork").options(**options).load(), tmp_path)
    with pytest.raises(Exception, match="use some of shard, pointer"):
        read(session, options, columns="payload,offset")
    with pytest.raises(Exception, match="no queue 'nope'"):
        read(session, options | {"queue": "nope"})


@pytest.mark.long
def test_the_checkpoint_of_another_queue_is_refused(session, store, queue, options, tmp_path):
    publish(queue, 0, 20)
    acknowledge(session, run(stream(session, options), tmp_path))
    QueueRegistry(store, "shop").create(QueueConfig("r", retry=False, shards=2)).publish({"id": 1})
    with pytest.raises(Exception, match="the checkpoint is of queue 'q', and the option says 'r'"):
        run(stream(session, options | {"queue": "r"}), tmp_path)
    shutil.rmtree(tmp_path / "checkpoint")


@contextmanager
def driver_at(url, folder):
    """A driver in a process group of its own, of which nothing is left."""
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "tests.spark.driver", url, str(folder)]
    with (folder / "driver.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=root, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def until(condition, timeout=240.0):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)
