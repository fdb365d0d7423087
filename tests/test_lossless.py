"""What JSON would lose is refused wherever a value is stored as JSON; what it can carry is taken."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction

import msgspec
import pytest

from latchwork.coord import CountDownLatch, Group
from latchwork.errors import InvalidRequest
from latchwork.queue import Outbox, PagedQueue, QueueConfig, QueueRegistry
from latchwork.store import MemoryStore

numpy = pytest.importorskip("numpy")


def queue(store=None, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return QueueRegistry(store or MemoryStore(), "c").create(
            QueueConfig("q", shards=1, unsafe_limits=True, **options)
        )


class Name(Enum):
    A = "a"


TWINS = [
    {1: "a", "1": "b"},
    {"deep": [{"x": 0}, {1.5: "a", "1.5": "b"}]},
    {Name.A: 1, "a": 2},
    {"other": [{2**70: 1, str(2**70): 2}]},
]
"""Maps with two keys that are one in JSON."""
SOUND = [
    {1: "a", "2": "b"}, {"a": {"b": {"c": [1, 2.5, None, True, "ü\n"]}}}, [], "x", {}, {"raw": msgspec.Raw(b"[ 1 ]")},
    {"d": Decimal("1.50"), "big": 2**70}, msgspec.Raw(b'{"a": 1, "a": null}'),
]  # fmt: skip


@pytest.mark.parametrize("payload", TWINS, ids=repr)
def test_two_keys_that_are_one_in_json_are_refused(payload, tmp_path):
    publish = queue().publish
    with pytest.raises(InvalidRequest, match="two keys that are one in JSON"):
        publish(payload)
    with PagedQueue.open(tmp_path, "typed", codec=dict) as pages, pytest.raises(InvalidRequest, match="two keys"):
        pages.append(payload)
    with PagedQueue.open(tmp_path, "out") as pages, pytest.raises(InvalidRequest, match="two keys"):
        Outbox(pages, queue()).put(payload)


def test_two_keys_that_are_one_in_json_are_refused_for_a_member_and_a_party():
    with pytest.raises(InvalidRequest, match="two keys"):
        Group(MemoryStore(), "g").join("me", meta=TWINS[0], keep_alive=False)


@pytest.mark.parametrize("payload", SOUND, ids=range(len(SOUND)))
def test_every_other_payload_is_taken(payload):
    queue().publish(payload)


def test_numbers_of_numpy_are_taken_and_what_json_has_not_is_named():
    found = queue()
    found.publish({"n": numpy.int64(7), "all": [numpy.float32(1.5), numpy.float64(2.5), numpy.uint8(3)]})
    assert found.receive()[0].payload == {"n": 7, "all": [1.5, 2.5, 3]}
    for wrong, name in ((numpy.zeros(2), "numpy.ndarray"), (Fraction(1, 3), "fractions.Fraction")):
        with pytest.raises(InvalidRequest, match=f"objects of type {name}"):
            found.publish(wrong)
    for wrong in ({"n": numpy.float64("nan")}, [[1.0, float("inf")]], (float("nan"),), {"n": [{"x": float("-inf")}]}):
        with pytest.raises(InvalidRequest, match="not finite"):
            found.publish(wrong)
    latch = CountDownLatch.create(MemoryStore(), "c", "l", 1)
    with pytest.raises(InvalidRequest, match="Python's own int"):
        latch.count_down(party=numpy.int64(3))


@dataclass
class Order:
    number: int
    to: str


def test_a_typed_queue_refuses_at_publish_what_its_consumers_could_not_read():
    orders = queue(codec=Order)
    for wrong in ({"number": "seven", "to": "x"}, {"number": 7}, 7):
        with pytest.raises(InvalidRequest, match="this queue takes"):
            orders.publish(wrong)
    orders.publish(Order(7, "x"))
    orders.publish({"number": 8, "to": "y"})
    assert [one.payload for one in orders.receive(10)] == [Order(7, "x"), Order(8, "y")]
