"""What each task of a read is given, planned without Spark (P7)."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from latchwork.errors import InvalidRequest, QueueOwned
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded import stream as ranges
from latchwork.spark import acknowledge, release, source
from latchwork.spark.admission import limited
from latchwork.spark.options import parse
from latchwork.spark.source import BatchReader, Piece, StreamReader, _shares
from latchwork.spark.table import Table
from latchwork.store.connect import connect


@pytest.fixture
def url(tmp_path):
    return f"sqlite:{tmp_path / 'store.db'}?synchronous=off"


@pytest.fixture
def queue(url):
    return QueueRegistry(connect(url), "shop").create(QueueConfig("q", retry=False, shards=3))


@pytest.fixture
def planner(url, queue):
    def started():
        options = parse({"store": url, "queue": "q", "clientId": "shop", "streamId": "etl"})
        return StreamReader(options, Table(StructType(), typed=False))

    return started


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(source, "LEAST", 4)
    monkeypatch.setattr(source, "SLOTS", 10)
    monkeypatch.setattr(source, "TASKS", 3)


@pytest.mark.parametrize(
    ("shards", "tasks"), [([], 1), ([0, 0], 1), ([1, 0, 2], 1), ([4, 4, 4], 3), ([12], 3), ([1, 13], 3), ([70, 30], 10)]
)
def test_every_pointer_is_in_one_task_and_a_task_has_neither_too_little_nor_too_much(shards, tasks):
    shares = _shares([Piece(shard, 100, 100 + n) for shard, n in enumerate(shards)])
    pointers = [(one.shard, n) for share in shares for one in share for n in range(one.after, one.last)]
    assert pointers == [(shard, 100 + n) for shard, size in enumerate(shards) for n in range(size)]
    assert len(shares) == tasks
    assert all(sum(one.last - one.after for one in share) <= 10 for share in shares)


def test_the_checkpoint_of_another_store_is_refused_before_anything_is_acknowledged(queue, planner, tmp_path):
    """Its pointers mean messages that nobody has read."""
    publish(queue, (0, 20), (1, 3))
    begin = planner().initialOffset()
    end = begin | {"shards": {"0": 20, "1": 3, "2": 0}}
    url = f"sqlite:{tmp_path / 'other.db'}?synchronous=off"
    other = QueueRegistry(connect(url), "shop").create(QueueConfig("q", retry=False, shards=3))
    publish(other, (0, 30), (1, 30))
    options = parse({"store": url, "queue": "q", "clientId": "shop", "streamId": "etl"})
    reader = StreamReader(options, Table(StructType(), typed=False))
    for ask in (lambda: reader.latestOffset(end, ReadAllAvailable()), lambda: reader.partitions(begin, end)):
        with pytest.raises(InvalidRequest, match="another queue 'q'"):
            ask()
    assert (other.depth().ready, len(other.peek(100))) == (60, 60)


def test_a_checkpoint_that_is_ahead_of_its_queue_is_refused(queue, planner):
    """The records were restored from before it, or lost."""
    publish(queue, (0, 5))
    reader = planner()
    begin = reader.initialOffset()
    ahead = begin | {"shards": {"0": 6, "1": 0, "2": 0}}
    for ask in (lambda: reader.latestOffset(ahead, ReadAllAvailable()), lambda: reader.partitions(begin, ahead)):
        with pytest.raises(InvalidRequest, match="has lost its records"):
            ask()
    assert len(queue.peek()) == 5


def test_the_farm_is_the_one_of_where_the_options_were_given(monkeypatch):
    monkeypatch.setenv("LATCHWORK_FARM", "eu")
    options = parse({"store": "sqlite:", "queue": "q", "clientId": "shop"})
    monkeypatch.delenv("LATCHWORK_FARM")
    assert options.farm_id == "eu"


def test_a_store_that_no_worker_can_reach_is_refused_with_the_options():
    with pytest.raises(InvalidRequest, match="no worker"):
        parse({"store": "memory:", "queue": "q", "clientId": "shop"})


@pytest.mark.parametrize("given", [{"jobId": "é" * 84}, {"streamId": "s" * 257}])
def test_a_name_that_a_key_cannot_hold_is_refused_with_the_options(given):
    with pytest.raises(InvalidRequest, match="at most"):
        parse({"store": "sqlite:", "queue": "q", "clientId": "shop"} | given)


def test_a_queue_whose_query_never_finished_a_batch_is_let_go_of_by_hand(queue, planner):
    publish(queue, (0, 3))
    planner().initialOffset()
    with pytest.raises(QueueOwned, match=r"or latchwork\.spark\.release"):
        queue.receive()
    release(queue, "etl")
    assert len(queue.receive(10)) == 3


class EndsMeanwhile:
    """A query that ends, with one more batch, as soon as its progress was read."""

    name = "q"

    def __init__(self, *ends):
        self.ends, self.isActive = list(ends), True

    @property
    def lastProgress(self):  # noqa: N802 - Spark's name
        end = self.ends[0]
        self.ends, self.isActive = self.ends[-1:], False
        return SimpleNamespace(sources=[SimpleNamespace(endOffset=json.dumps(end))])


class Local:
    """A session that runs `mapInArrow` here."""

    def createDataFrame(self, rows, schema):  # noqa: N802 - Spark's name
        return SimpleNamespace(repartition=lambda *_: self._frame(rows), schema=schema)

    def _frame(self, rows):
        batch = pa.RecordBatch.from_pylist([dict(zip(("shard", "last"), row, strict=True)) for row in rows])
        run = lambda function, _: SimpleNamespace(count=lambda: len(list(function(iter([batch])))))  # noqa: E731
        return SimpleNamespace(mapInArrow=run, schema=None)


def test_a_query_that_ends_while_it_is_acknowledged_keeps_its_queue_until_its_last_batch_is(queue, planner):
    """A release with the progress from before its end would deliver the messages of its last batch again."""
    publish(queue, (0, 20))
    begin = planner().initialOffset()
    query = EndsMeanwhile(*(begin | {"shards": {"0": read, "1": 0, "2": 0}} for read in (8, 20)))
    assert acknowledge(Local(), query, store=queue.store) == 8
    with pytest.raises(QueueOwned):
        queue.receive()
    assert acknowledge(Local(), query, store=queue.store) == 12
    assert queue.receive(10) == []


def test_a_repeated_batch_has_the_same_partitions_whatever_was_acknowledged_in_between(queue, planner):
    """Else a sink that tells rows by their partition, as ours does, would publish them again."""
    publish(queue, (0, 20), (1, 3), (2, 9))
    first = planner()
    begin = first.initialOffset()
    middle = begin | {"shards": {"0": 13, "1": 3, "2": 0}}
    end = begin | {"shards": {"0": 20, "1": 3, "2": 9}}
    before = first.partitions(middle, end)
    assert sorted(one for share in before for one in share.done) == [(0, 13), (1, 3)]
    for shard, boundary in (one for share in before for one in share.done):
        ranges.acknowledge(queue.pointers, before[0].owner, shard, boundary)
    again = planner().partitions(middle, end)
    assert [share.pieces for share in again] == [share.pieces for share in before]
    assert [share.done for share in again] == [()] * len(before)


def test_what_consumers_have_taken_since_the_checkpoint_is_not_read_again(queue, planner):
    publish(queue, (0, 20))
    first = planner()
    begin = first.initialOffset()
    end = first.latestOffset(begin, first.getDefaultReadLimit())
    ranges.acknowledge(queue.pointers, first._own()[0], 0, 15)
    pieces = [piece for share in planner().partitions(begin, end) for piece in share.pieces]
    assert sum(piece.last - piece.after for piece in pieces) == 5


def test_a_snapshot_has_what_a_worker_gave_back_as_it_stopped(queue, url):
    """It waits, and comes first: depth and peek count it too."""
    publish(queue, (0, 8))
    held = queue.receive(6)
    assert all(queue.give_back([one for one in held if one.pointer in (2, 3, 5)]))
    reader = BatchReader(parse({"store": url, "queue": "q", "clientId": "shop"}), Table(StructType(), typed=False))
    pieces = [piece for share in reader.partitions() for piece in share.pieces]
    pointers = [n + 1 for piece in pieces for n in range(piece.after, piece.last)]
    assert pointers == [message.pointer for message in queue.peek_all()] == [2, 3, 5, 7, 8]
    assert pieces[0] == Piece(0, 1, 3), "those that stand together are read together"


def test_a_snapshot_takes_no_filters(queue, url):
    """Spark would keep what one query's filter has left for the next query of the same frame."""
    publish(queue, (0, 2), (1, 3), (2, 4))
    reader = BatchReader(parse({"store": url, "queue": "q", "clientId": "shop"}), Table(StructType(), typed=False))
    filters = [EqualTo(("shard",), 1)]
    assert list(reader.pushFilters(filters)) == filters
    assert {piece.shard for share in reader.partitions() for piece in share.pieces} == {0, 1, 2}


@pytest.mark.parametrize(
    ("sizes", "rows", "taken"),
    [([5, 5], 4, [2, 2]), ([1, 9], 6, [1, 5]), ([3, 3], 9, [3, 3]), ([0, 2, 2], 1, [0, 1, 0])],
)
def test_a_limited_batch_takes_from_every_shard(sizes, rows, taken):
    begins = [7] * len(sizes)
    assert limited(begins, [7 + size for size in sizes], rows) == [7 + n for n in taken]


def test_a_limit_below_the_number_of_shards_leaves_none_of_them_behind():
    begins, ends = [0] * 8, [1000] * 8
    for _ in range(20):
        begins = limited(begins, ends, 4)
    assert begins == [10] * 8


def publish(queue, *shards):
    for shard, n in shards:
        key = next(str(one) for one in range(1000) if queue.shard_of(str(one)) == shard)
        queue.publish_many(list(range(n)), key=key)
