"""Messages as rows, without a session: payloads of a type, and schemas that are the queue's."""

from __future__ import annotations

import json
from datetime import date, time
from decimal import Decimal

import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from latchwork.errors import InvalidRequest, Unreadable
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded.envelope import Envelope
from latchwork.spark.datasource import LatchworkSource
from latchwork.spark.payload import Payloads
from latchwork.spark.table import Table
from latchwork.store.connect import connect

LONG = t.LongType()
OWN = t.StructType(
    [
        t.StructField("shard", t.IntegerType()),
        t.StructField("pointer", LONG),
        t.StructField("message_id", t.StringType()),
        t.StructField("payload", t.StringType()),
        t.StructField("headers", t.MapType(t.StringType(), t.StringType())),
        t.StructField("attempts", t.IntegerType()),
        t.StructField("enqueued_at", t.TimestampType()),
    ]
)


def one_field(kind, *, nullable=True):
    payload = t.StructType([t.StructField("x", kind, nullable)])
    return Table(t.StructType([t.StructField("payload", payload)]), typed=True)


def read(table, *payloads):
    messages = [(n, Envelope(payload, f"m{n}")) for n, payload in enumerate(payloads, 1)]
    return [row["payload"]["x"] for batch in table.batches(7, [messages]) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("kind", "fits", "does_not"),
    [
        (t.IntegerType(), "2147483647", "2147483648"),
        (t.ByteType(), "127", "300"),
        (LONG, "9223372036854775807", "9223372036854775808"),
        (t.ArrayType(t.ShortType()), "[1, null]", "[1, 40000]"),
        (t.DecimalType(5, 2), "1.25", "1.23456"),
        (t.DecimalType(5, 2), '"999.99"', '"1234567.1"'),
        (t.DecimalType(5, 2), '"1"', '"NaN"'),
        (t.FloatType(), "3.4e38", "1e300"),
        (t.FloatType(), "-3.4e38", "-1e39"),
        (t.BinaryType(), '"AAE="', '"ab cd!efg=?h"'),
        (t.TimeType(), '"12:30:00.5"', '"25:00:00"'),
        (t.TimeType(), "null", '"12:30:00+02:00"'),
        (t.NullType(), "null", "1"),
        (t.MapType(t.IntegerType(), LONG), '{"1": 1}', '{"a": 1}'),
        (t.MapType(t.IntegerType(), LONG), '{"-1": 1}', '{"1.5": 1}'),
        (t.MapType(LONG, LONG), '{"0": 1}', '{"null": 1}'),
        (t.MapType(t.DoubleType(), LONG), '{"1.5": 1}', '{"": 1}'),
        (t.MapType(t.BooleanType(), LONG), '{"true": 1}', '{"1": 1}'),
        (t.MapType(t.DateType(), LONG), '{"2026-07-01": 1}', '{"July": 1}'),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_its_type_is_refused_with_the_message_it_is_of(kind, fits, does_not):
    table = one_field(kind)
    good, bad = (f'{{"x": {value}}}' for value in (fits, does_not))
    assert len(read(table, good)) == 1
    with pytest.raises(Unreadable, match=r"message 'm2' at 7/2 is not of the type .* leave the option out"):
        read(table, good, bad, good)


@pytest.mark.parametrize(
    ("kind", "keys", "read_as"),
    [
        (t.StringType(), ["1", "true"], ["1", "true"]),
        (t.ShortType(), ["1", "-2"], [1, -2]),
        (t.DoubleType(), ["1.5", "2"], [1.5, 2.0]),
        (t.BooleanType(), ["true", "false"], [True, False]),
        (t.DecimalType(5, 2), ["1.25"], [Decimal("1.25")]),
        (t.DateType(), ["2026-07-01"], [date(2026, 7, 1)]),
        (t.TimeType(), ["12:30:00"], [time(12, 30)]),
    ],
    ids=str,
)
def test_the_keys_of_a_map_are_read_from_text_as_their_type(kind, keys, read_as):
    payload = json.dumps({"x": dict.fromkeys(keys, 7)})
    assert read(one_field(t.MapType(kind, LONG)), payload) == [[(key, 7) for key in read_as]]


@pytest.mark.parametrize("payload", ["{}", '{"x": null}'])
def test_a_field_that_is_not_null_has_a_value_in_every_row(payload):
    assert read(one_field(LONG), payload) == [None]
    assert read(one_field(LONG, nullable=False), '{"x": 1}') == [1]
    with pytest.raises(Unreadable, match=r"message 'm1' at 7/1 .*'x' is missing or null"):
        read(one_field(LONG, nullable=False), payload)


# ---- schemas


@pytest.fixture
def source(tmp_path):
    url = f"sqlite:{tmp_path / 'store.db'}?synchronous=off"
    QueueRegistry(connect(url), "shop").create(QueueConfig("q", retry=False, shards=1))
    return lambda **more: LatchworkSource({"store": url, "queue": "q", "clientId": "shop", "streamId": "etl", **more})


@pytest.mark.parametrize("kind", ["reader", "streamReader"])
def test_a_schema_that_is_not_the_queues_is_refused_when_the_query_is_planned(source, kind):
    numbers = t.StructType([t.StructField("payload", t.StructType([t.StructField("id", LONG)]))])
    for schema, more in (
        (t.StructType([t.StructField("id", LONG)]), {}),
        (t.StructType([t.StructField("id", LONG)]), {"payloadSchema": "id long"}),
        (numbers, {}),
        (numbers, {"columns": "payload"}),
        (t.StructType(OWN.fields[::-1]), {}),
        (t.StructType([t.StructField("shard", LONG)]), {"columns": "shard"}),
    ):
        with pytest.raises(InvalidRequest, match=r"leave \.schema\(\.\.\.\) out, .*'payloadSchema' .* 'columns'"):
            getattr(source(**more), kind)(schema)


NEVER = [
    t.DayTimeIntervalType(),
    t.YearMonthIntervalType(),
    t.CalendarIntervalType(),
    t.VariantType(),
    t.VarcharType(9),
    t.MapType(t.StructType([t.StructField("id", LONG)]), LONG),
    t.MapType(t.ArrayType(LONG), LONG),
]


@pytest.mark.parametrize("odd", NEVER, ids=str)
@pytest.mark.parametrize("within", [lambda kind: kind, t.ArrayType, lambda kind: t.MapType(t.StringType(), kind)])
def test_a_type_that_no_payload_can_be_read_as_is_refused_when_the_query_is_planned(source, odd, within):
    payload = t.StructType([t.StructField("x", within(odd))])
    schema = t.StructType([t.StructField("payload", payload)])
    for kind in ("reader", "streamReader"):
        with pytest.raises(InvalidRequest, match=r"'payloadSchema' has .* leave the option out"):
            getattr(source(columns="payload", payloadSchema="x int"), kind)(schema)


@pytest.mark.parametrize("kind", ["reader", "streamReader"])
def test_the_schema_of_the_queue_is_taken_as_spark_gives_it_back(source, kind):
    numbers = t.StructType([t.StructField("payload", t.StructType([t.StructField("id", LONG)]))])
    without_zone = t.StructType([t.StructField("enqueued_at", t.TimestampNTZType())])
    for schema, more in (
        (OWN, {}),
        (numbers, {"columns": "payload", "payloadSchema": "id long"}),
        (without_zone, {"columns": "enqueued_at"}),
    ):
        assert getattr(source(**more), kind)(schema)._table.schema == schema


NESTED = t.StructType(
    [
        t.StructField("id", LONG, nullable=False),
        t.StructField("name", t.StringType()),
        t.StructField("when", t.DateType()),
        t.StructField("price", t.DecimalType(20, 2)),
        t.StructField(
            "lines", t.ArrayType(t.StructType([t.StructField("sku", t.StringType()), t.StructField("n", LONG)]))
        ),
        t.StructField("days", t.ArrayType(t.DateType())),
        t.StructField("by", t.MapType(t.StringType(), t.DoubleType())),
        t.StructField("at", t.StructType([t.StructField("x", t.DoubleType()), t.StructField("b", t.BinaryType())])),
    ]
)
SAMPLES = [
    {"id": 1, "name": "a", "when": "2026-07-01", "price": "1.20", "lines": [{"sku": "s", "n": 2}, None, {}], "more": 1},
    {"id": 2, "days": ["2026-07-02", None], "by": {"x": 1, "y": None}, "at": {"x": 3, "b": "AAE="}},
    {"id": 3, "at": None, "lines": [], "by": {}, "days": None, "name": "\u00e9\0"},
    {"id": -(2**63), "at": {}},
    None,
]


def columns_of(kind, payloads, *, at_once):
    """The column as it is made in one pass, or as it is made one by one."""
    payload_type = Payloads(kind)
    rows = [(n, Envelope(json.dumps(one), f"m{n}")) for n, one in enumerate(payloads)]
    arrow = to_arrow_type(kind, timezone="UTC")
    column = payload_type._at_once(arrow, rows) if at_once else payload_type._one_by_one(arrow, 0, rows)
    return column.to_pylist()


def test_a_batch_that_is_decoded_in_one_pass_reads_as_one_that_is_decoded_one_by_one():
    whole = columns_of(NESTED, SAMPLES, at_once=True)
    assert whole == columns_of(NESTED, SAMPLES, at_once=False)
    assert whole[0]["lines"] == [{"sku": "s", "n": 2}, None, {"sku": None, "n": None}]
    assert whole[1]["at"] == {"x": 3.0, "b": b"\0\1"}
    assert (whole[3]["id"], whole[4]) == (-(2**63), None)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", [LONG, t.ShortType(), t.DoubleType(), t.BooleanType(), t.StringType()], ids=str)
@pytest.mark.parametrize("within", [lambda k: k, t.ArrayType, lambda k: t.StructType([t.StructField("x", k)])])
@pytest.mark.parametrize(
    "value", [True, 1, 1.5, 40_000, 2**63, 2**70, -1, "1", "", [], {}, [1], {"x": 1}, {"y": 1}, None]
)
def test_what_is_taken_in_one_pass_is_what_is_taken_one_by_one(kind, within, value):
    """The one pass may refuse more, as then they are decoded one by one; it must take nothing more."""
    for payload in (value, [value], {"x": value}):
        try:
            at_once = columns_of(within(kind), [payload], at_once=True)
        except Exception:
            continue
        assert at_once == columns_of(within(kind), [payload], at_once=False)


def test_a_batch_with_a_value_that_only_the_conversion_takes_is_read_all_the_same():
    assert read(one_field(LONG), '{"x": 1}', '{"x": 2.0}', "{}") == [1, 2, None]


def test_only_the_bins_that_the_columns_need_are_read():
    payload, ids = OWN["payload"], OWN["message_id"]
    assert Table(t.StructType([payload]), typed=False).bins == ("data",)
    assert Table(t.StructType([ids, OWN["shard"], payload]), typed=False).bins == ("data", "msgId")
    assert set(Table(OWN, typed=False).bins) >= {"data", "msgId", "headers", "reason", "lastError"}
