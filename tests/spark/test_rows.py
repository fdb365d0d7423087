"""Rows as messages, without a session: what can be told when the write is planned, and what the rows themselves say."""

from __future__ import annotations

import math
import re
from datetime import datetime, timezone
from types import SimpleNamespace

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import types as t

from latchwork.errors import InvalidRequest, NonDeterministicInput
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded.envelope import Codec
from latchwork.spark.datasource import LatchworkSource
from latchwork.spark.sink import Rows
from latchwork.store.connect import connect

NUMBERS = t.StructType([t.StructField("id", t.LongType())])
BINARY = t.StructType([t.StructField("payload", t.BinaryType())])


@pytest.fixture
def sink(tmp_path):
    url = f"sqlite:{tmp_path / 'store.db'}?synchronous=off"
    queues = QueueRegistry(connect(url), "shop")
    for codec in ("json", "bytes"):
        queues.create(QueueConfig(codec, retry=False, shards=1, codec=codec))
    return lambda queue: LatchworkSource({"store": url, "queue": queue, "clientId": "shop", "jobId": "load"})


@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_rows_that_the_queues_codec_does_not_take_are_refused_when_the_write_is_planned(sink, kind):
    getattr(sink("json"), kind)(NUMBERS, False)
    getattr(sink("bytes"), kind)(BINARY, False)
    with pytest.raises(InvalidRequest, match=r"'bytes' takes only binary payloads, .* give a binary column 'payload'"):
        getattr(sink("bytes"), kind)(NUMBERS, False)
    with pytest.raises(InvalidRequest, match="takes no binary payloads"):
        getattr(sink("json"), kind)(BINARY, False)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([t.StructField("amount", t.LongType())], "not amount: put them into the payload"),
        ([t.StructField("key", t.LongType())], "the column 'key' is bigint; it must be string: cast it"),
    ],
)
def test_columns_beside_a_payload_that_no_message_has_are_refused_when_the_write_is_planned(sink, more, said):
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        sink("json").writer(t.StructType([t.StructField("payload", t.StringType()), *more]), False)


MONTHS, VARIANT = t.YearMonthIntervalType(), t.VariantType()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (MONTHS, "the column 'x' has the type interval year to month"),
        (t.CalendarIntervalType(), "the column 'x' has the type interval,"),
        (
            VARIANT,
            "has the type variant, which no payload can have: make it text before the write, with to_json",
        ),
        (t.ArrayType(VARIANT), "the column 'x' has the type variant"),
        (t.MapType(t.StringType(), MONTHS), "the column 'x.value' has"),
        (t.StructType([t.StructField("y", VARIANT)]), "the column 'x.y' has"),
    ],
)
def test_columns_of_a_type_that_no_payload_can_have_are_refused_when_the_write_is_planned(sink, kind, said):
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        sink("json").writer(t.StructType([t.StructField("x", kind)]), False)


@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_a_frame_without_columns_is_refused_when_the_write_is_planned(sink, kind):
    with pytest.raises(InvalidRequest, match="no columns"):
        getattr(sink("json"), kind)(t.StructType([]), False)


def outgoing(array, *, whole=True, name="x"):
    return [one.payload for one in Rows(whole).outgoing(iter([pa.RecordBatch.from_arrays([array], names=[name])]))]


def test_a_row_without_columns_is_a_message():
    rows = pa.RecordBatch.from_struct_array(pa.array([{}, {}, {}], pa.struct([])))
    assert [one.payload for one in Rows(whole=True).outgoing(iter([rows]))] == [{}, {}, {}]


STRUCTS, LISTS, MAPS = (
    pa.struct([("a", pa.string()), ("b", pa.list_(pa.float64()))]),
    pa.list_(pa.struct([("c", pa.float64())])),
    pa.map_(pa.string(), pa.float32()),
)


@pytest.mark.parametrize(
    ("kind", "value", "column"),
    [
        (pa.float64(), lambda x: x, "x"),
        (pa.float32(), lambda x: x, "x"),
        (STRUCTS, lambda x: {"a": "t", "b": [1.0, x]}, "x.b"),
        (LISTS, lambda x: [{"c": 1.0}, {"c": x}], "x.c"),
        (MAPS, lambda x: {"k": 1.0, "l": x}, "x.value"),
    ],
    ids=["double", "float", "struct", "list", "map"],
)
def test_a_number_that_json_cannot_hold_is_refused_with_the_name_of_its_column(kind, value, column):
    good = [value(1.5), None, value(None)]
    assert outgoing(pa.array(good, kind)) == [{"x": one} for one in good]
    for odd in (math.nan, math.inf, -math.inf):
        with pytest.raises(InvalidRequest, match=f"column '{column}' has a NaN .* make it null, or cast"):
            outgoing(pa.array([*good, value(odd)], kind))
        with pytest.raises(InvalidRequest, match=f"column '{column.replace('x', 'payload', 1)}' has a NaN"):
            outgoing(pa.array([value(odd)], kind), whole=False, name="payload")
        assert outgoing(pa.array([*good, value(odd)], kind)[:3]) == [{"x": one} for one in good]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (lambda time: time, lambda t: t),
        (lambda time: pa.struct([("at", time)]), lambda t: {"at": t}),
        (pa.list_, lambda t: [t, None]),
        (lambda time: pa.map_(pa.string(), time), lambda t: {"k": t}),
        (lambda time: pa.list_(pa.struct([("m", pa.map_(pa.string(), time))])), lambda t: [{"m": {"k": t}}]),
    ],
    ids=["column", "struct", "list", "map", "nested"],
)
def test_an_instant_is_the_same_message_whatever_time_zone_the_session_has(kind, value):
    """Spark gives timestamps with the session's zone, also where Python knows no zone of that name."""
    utc = kind(pa.timestamp("us", tz="UTC"))
    rows = [value(datetime(2026, 7, 1, 12, tzinfo=timezone.utc)), None]
    for zone in ("UTC", "Europe/Berlin", "GMT+02:00", "PST"):
        there = pa.array(rows, utc).cast(kind(pa.timestamp("us", tz=zone)))
        encoded = [Codec().encode(row["x"]) for row in outgoing(there)]
        assert encoded == [Codec().encode(value("2026-07-01T12:00:00Z")), "null"]


def test_input_that_is_not_the_same_is_not_said_to_be_completed_by_running_it_again(sink, monkeypatch):
    monkeypatch.setattr(pyspark.TaskContext, "_taskContext", SimpleNamespace(partitionId=lambda: 0))
    writer = sink("json").writer(NUMBERS, False)
    writer.write(iter([pa.RecordBatch.from_pydict({"id": [1]})]))
    with pytest.raises(NonDeterministicInput, match=r"publish it under another scope$"):
        writer.write(iter([pa.RecordBatch.from_pydict({"id": [2]})]))


def test_input_with_a_row_that_is_refused_is_completed_once_that_is_mended(sink, monkeypatch):
    monkeypatch.setattr(pyspark.TaskContext, "_taskContext", SimpleNamespace(partitionId=lambda: 0))
    source = sink("json")
    writer = source.writer(t.StructType([t.StructField("x", t.DoubleType())]), False)

    def rows(last):
        return iter([pa.RecordBatch.from_pydict({"x": [float(n) for n in range(1_000)]}), last])

    with pytest.raises(InvalidRequest, match=r"has a NaN .* \[.* the same input, with this mended, again under"):
        writer.write(rows(pa.RecordBatch.from_pydict({"x": [math.nan]})))
    result = writer.write(rows(pa.RecordBatch.from_pydict({"x": [None]}, pa.schema([("x", pa.float64())]))))
    assert (result.messages, result.new) == (1_001, 1)
