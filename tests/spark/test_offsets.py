"""What a checkpoint holds of the queue that it is of, and whose checkpoint a stream refuses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from latchwork.errors import InvalidRequest
from latchwork.spark.offsets import Offsets
from latchwork.spark.options import parse


def offsets_of(**given):
    return Offsets(parse({"store": "sqlite:/tmp/shop.db", "clientId": "shop", "queue": "orders", **given}), 7)


STATES = [SimpleNamespace(shard=shard, loaded=9) for shard in (0, 1)]


def test_a_checkpoint_names_its_store_unless_the_url_has_a_password():
    assert offsets_of().made([1, 2])["store"] == "sqlite:/tmp/shop.db"
    secret = offsets_of(store="aerospike://me:s3cret@db:3000/jobs").made([1, 2])
    assert secret["store"] == ""
    assert "s3cret" not in str(secret)


def test_a_stream_reads_its_own_checkpoint():
    assert offsets_of().read(offsets_of().made([1, 2]), STATES) == [1, 2]


@pytest.mark.parametrize("other", [{"queue": "mails"}, {"clientId": "stock"}, {"streamId": "second"}])
def test_the_checkpoint_of_another_stream_is_refused_with_both_names(other):
    ((name, value),) = other.items()
    with pytest.raises(InvalidRequest, match=f"the checkpoint is of {name} '{value}', and the option says"):
        offsets_of().read(offsets_of(**other).made([1, 2]), STATES)


def test_a_checkpoint_at_the_end_of_the_queue_is_read():
    assert offsets_of().read(offsets_of().made([9, 9]), STATES) == [9, 9]


@pytest.mark.parametrize(
    ("changed", "ahead"),
    [
        ({"shards": {"0": 1, "1": 10}}, [1]),
        ({"shards": {"1": 1, "2": 1}}, [0]),
        ({"shards": {"0": 1}}, []),
        ({"createdAt": 8}, []),
    ],
    ids=["ahead", "a shard missing", "fewer shards", "made again"],
)
def test_the_checkpoint_of_a_queue_that_is_not_the_one_in_the_store_is_refused(changed, ahead):
    with pytest.raises(InvalidRequest, match="of another queue 'orders'") as refused:
        offsets_of().read(offsets_of().made([1, 2]) | changed, STATES)
    assert refused.value.details["shards"] == ahead
