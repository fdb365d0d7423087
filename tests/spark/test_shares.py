"""What each task of a read is given, planned without Spark (P7)."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import EqualTo, In
from pyspark.sql.types import StructType

from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.spark import ranges, source
from latchwork.spark.options import parse
from latchwork.spark.source import BatchReader, Piece, StreamReader, _limited, _shares
from latchwork.spark.table import Table
from latchwork.store.connect import connect


@pytest.fixture
def url(tmp_path):
    return f"sqlite:{tmp_path / 'store.db'}?synchronous=off"


@pytest.fixture
def queue(url):
    return QueueRegistry(connect(url), "shop").create(QueueConfig("q", shards=3))


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


def test_only_the_shards_that_are_asked_for_are_planned(queue, url):
    publish(queue, (0, 2), (1, 3), (2, 4))
    for filters, shards in (
        ([], {0, 1, 2}),
        ([EqualTo(("shard",), 1)], {1}),
        ([In(("shard",), (0, 1, 9)), EqualTo(("shard",), 1)], {1}),
        ([EqualTo(("pointer",), 1)], {0, 1, 2}),
        ([EqualTo(("shard",), 7)], set()),
    ):
        reader = BatchReader(parse({"store": url, "queue": "q", "clientId": "shop"}), Table(StructType(), typed=False))
        left = list(reader.pushFilters(filters))
        assert [one for one in left if one.attribute != ("shard",)] == [
            one for one in filters if one.attribute != ("shard",)
        ]
        assert {piece.shard for share in reader.partitions() for piece in share.pieces} == shards


@pytest.mark.parametrize(
    ("sizes", "rows", "taken"),
    [([5, 5], 4, [2, 2]), ([1, 9], 6, [1, 5]), ([3, 3], 9, [3, 3]), ([0, 2, 2], 1, [0, 1, 0])],
)
def test_a_limited_batch_takes_from_every_shard(sizes, rows, taken):
    begins = [7] * len(sizes)
    assert _limited(begins, [7 + size for size in sizes], rows) == [7 + n for n in taken]


def publish(queue, *shards):
    for shard, n in shards:
        key = next(str(one) for one in range(1000) if queue.shard_of(str(one)) == shard)
        queue.publish_many(list(range(n)), key=key)
