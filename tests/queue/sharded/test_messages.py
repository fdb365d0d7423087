"""Messages: stored layout, codecs, keys, headers, reasons, expiry, and what each step costs."""

from __future__ import annotations

import json
import os
import signal
import threading
import zlib
from datetime import timedelta

import msgspec
import pytest

from latchwork.cli.queue.facts import all_rows
from latchwork.errors import InvalidRequest, LeaseLost, QueueOwned, RecordTooBig, Unavailable
from latchwork.queue import Consumer, QueueConfig, QueueRegistry, Reason, Shovel, Sweeper
from latchwork.queue.sharded import subqueue as view
from latchwork.queue.sharded.envelope import AROUND, Codec, Envelope, from_bins
from latchwork.queue.sharded.slots import Slot
from latchwork.retry import Poll
from latchwork.store import Exists, Key, MemoryStore, Put, SQLiteStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, Fault, FaultyStore

from .world import Election, Torn


@pytest.fixture
def queue(world):
    world.options.update(shards=4)
    return world.process().queue


def test_a_data_record_is_an_envelope_with_the_names_of_the_design(queue, world):
    message_id = queue.publish({"a": [1, "é"]}, key="k", headers={"h": "v"})
    shard = zlib.crc32(b"k") % 4
    key = Key(f"{world.client}_data_set", f"q_SHARD_{shard}_1")
    bins = world.store.get(key).bins
    assert json.loads(bins["data"]) == {"a": [1, "é"]}
    assert (bins["msgId"], bins["attempts"], bins["headers"], bins["v"]) == (message_id, 0, {"h": "v"}, 1)
    assert set(bins) == {"data", "msgId", "attempts", "enqueuedAt", "headers", "modified_at", "v"}
    (delivery,) = queue.receive()
    stamped = world.store.get(key).bins
    assert (stamped["attempts"], delivery.attempts) == (1, 1)
    assert stamped["delivery"]
    assert stamped["fireTS"] > 1_600_000_000_000
    pointers = world.store.get(Key(f"{world.client}_meta_set", f"q_SHARD_{shard}_POINTERS")).bins
    assert (pointers["LOAD_POINTER"], pointers["FIRE_POINTER"]) == (1, 1)


def test_a_delivery_says_what_it_is(queue):
    message_id = queue.publish("x", headers={"a": "b"}, message_id="order-7")
    (delivery,) = queue.receive()
    assert (delivery.payload, delivery.message_id, delivery.headers) == ("x", message_id, {"a": "b"})
    assert (message_id, delivery.pointer, delivery.attempts) == ("order-7", 1, 1)
    assert delivery.enqueued_at.tzinfo is not None


def test_the_sideline_and_the_parked_messages_have_the_same_layout(queue, world):
    queue.publish("x", key="k")
    (delivery,) = queue.receive()
    delivery.nack("rejected", error="boom")
    shard = zlib.crc32(b"k") % 4
    bins = world.store.get(Key(f"{world.client}_data_set", f"q_SIDELINE_SHARD_{shard}_1")).bins
    assert (bins["reason"], bins["lastError"], bins["attempts"]) == ("rejected", "boom", 1)
    assert bins["fireTS"]
    assert "delivery" not in bins
    assert queue.parked.name == "q_PARKED"


def test_messages_of_one_key_come_in_order_from_one_shard(queue):
    for number in range(20):
        queue.publish(number, key="customer-1")
        queue.publish(100 + number)
    received = [delivery for _ in range(10) for delivery in queue.receive(7)]
    mine = [d for d in received if d.payload < 100]
    assert [d.payload for d in mine] == list(range(20))
    assert len({d.shard for d in mine}) == 1


def test_keys_one_by_one(queue):
    queue.publish_many([1, 2, 3], keys=["a", "b", "a"])
    shards = {d.payload: d.shard for d in queue.receive(10)}
    assert shards == {1: queue.shard_of("a"), 2: queue.shard_of("b"), 3: queue.shard_of("a")}


class Order(msgspec.Struct):
    number: int


@pytest.mark.parametrize(
    ("codec", "payload"),
    [("json", {"n": 1}), ("json", None), ("bytes", b"\x00\xff"), (Order, Order(number=3))],
    ids=str,
)
def test_codecs_give_back_what_was_published(world, codec, payload):
    world.options["codec"] = codec
    queue = world.process().queue
    queue.publish(payload)
    (delivery,) = queue.receive()
    assert delivery.payload == payload


@pytest.mark.parametrize(("codec", "payload"), [("json", object()), ("bytes", "text")])
def test_a_payload_that_cannot_be_stored_is_refused_before_any_io(codec, payload):
    store = CountingStore(MemoryStore())
    queue = QueueRegistry(store, "c").create(QueueConfig("q", retry=False, codec=codec))
    store.reset()
    with pytest.raises(InvalidRequest):
        queue.publish(payload)
    assert store.total == 0


class Measured(msgspec.Struct):
    value: float
    note: str | None = None


CYCLE: list = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "payload",
    [float("nan"), {"x": float("inf")}, [1.0, (float("-inf"),)], Measured(float("nan")), {"a": [{"b": float("nan")}]}],
    ids=str,
)
def test_a_number_that_json_has_nothing_for_is_refused_before_any_io(payload):
    store = CountingStore(MemoryStore())
    queue = QueueRegistry(store, "c").create(QueueConfig("q", retry=False))
    store.reset()
    with pytest.raises(InvalidRequest, match="not finite"):
        queue.publish(payload)
    assert store.total == 0


@pytest.mark.parametrize("payload", [None, {"x": None}, "null", [1.5, None], {"null": 1e308}], ids=str)
def test_nulls_are_published_as_they_are(queue, payload):
    queue.publish(payload)
    assert queue.receive()[0].payload == payload


def test_json_that_is_encoded_already_may_hold_null(queue):
    queue.publish({"a": msgspec.Raw(b"null"), "b": 1})
    assert queue.receive()[0].payload == {"a": None, "b": 1}


def test_a_payload_that_holds_itself_is_refused(queue):
    with pytest.raises(InvalidRequest, match="not JSON"):
        queue.publish(CYCLE)


def test_a_payload_too_big_for_a_record_is_refused_before_its_pointer_is_reserved():
    store = CountingStore(MemoryStore())
    queue = QueueRegistry(store, "c").create(QueueConfig("q", retry=False, shards=1))
    store.reset()
    for payload in ("x" * 2**20, "é" * 2**19):
        with pytest.raises(RecordTooBig, match="a reference"):
            queue.publish_many(["small", payload])
    assert store.total == 0
    queue.publish("x" * 1_000_000)
    assert len(queue.receive()[0].payload) == 1_000_000


@pytest.mark.parametrize(
    ("payloads", "asked", "named"),
    [
        ("abc", {}, "a sequence of payloads"),
        (b"abc", {}, "a sequence of payloads"),
        (None, {}, "a sequence of payloads"),
        ({"a": 1}, {}, "a sequence of payloads"),
        (["a", "b"], {"message_ids": ["1"]}, "as many message ids"),
        (["a", "b"], {"keys": ["k"]}, "1 keys for 2 payloads"),
    ],
)
def test_lists_that_do_not_fit_together_are_refused_before_any_io(payloads, asked, named):
    store = CountingStore(MemoryStore())
    queue = QueueRegistry(store, "c").create(QueueConfig("q", retry=False))
    store.reset()
    with pytest.raises(InvalidRequest, match=named):
        queue.publish_many(payloads, **asked)
    assert store.total == 0


@pytest.mark.parametrize(
    "asked",
    [{"max_messages": 0}, {"max_messages": "1"}, {"max_messages": True}, {"timeout": -1}, {"timeout": "1"}],
    ids=str,
)
def test_a_receive_that_asks_for_nonsense_is_refused(queue, asked):
    with pytest.raises(InvalidRequest):
        queue.receive(**asked)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda queue: QueueRegistry("memory:", "c"), "connect"),
        (lambda queue: QueueRegistry(queue.store, "c", farm_id=""), "farm_id"),
        (lambda queue: queue.registry.create("q"), "QueueConfig"),
        (lambda queue: queue.registry.get(""), "name"),
        (lambda queue: Consumer("q", print), "QueueRegistry.create"),
        (lambda queue: Consumer(queue, print, ignorable=7), "exception type"),
        (lambda queue: Consumer(queue, print, grace=-1), "grace"),
        (lambda queue: Shovel("q"), "QueueRegistry.create"),
        (lambda queue: Sweeper(queue.registry, None), "election"),
        (lambda queue: queue.ack_many([7]), "int"),
        (lambda queue: queue.redrive(0), "limit"),
    ],
)
def test_something_of_another_kind_is_refused_by_name(queue, make, named):
    with pytest.raises(InvalidRequest, match=named):
        make(queue)


@pytest.mark.parametrize(
    "asked",
    [
        {"headers": {"a": 1}},
        {"headers": "ab"},
        {"message_id": ""},
        {"message_id": 7},
        {"key": 7},
        {"key": b"k"},
        {"headers": {"a": "x\0"}},
        {"headers": {"a\0": "x"}},
        {"headers": {"a": "\udc80"}},
        {"message_id": "m\0"},
    ],
    ids=str,
)
def test_bad_headers_ids_and_keys_are_refused(queue, asked):
    with pytest.raises(InvalidRequest):
        queue.publish("x", **asked)
    assert queue.depth().loaded == 0


def test_an_error_of_any_text_goes_to_the_sideline_with_its_message(queue, world):
    """Not all text can be stored, and an exception says what it likes."""
    queue.publish("x")
    queue.receive()[0].nack("exception", error="bad character in 'a\0b' and \udc80")
    (message,) = queue.sideline.peek()
    assert message.last_error == "bad character in 'a\ufffdb' and ?"


@pytest.mark.parametrize("error", ["漢" * 1000, "\0" * 1000, "a" + "é" * 999], ids=["three bytes", "nul", "two bytes"])
def test_a_message_of_the_largest_size_goes_to_the_sideline_with_any_error(error):
    store = MemoryStore(ManualClock())
    queue = QueueRegistry(store, "c").create(QueueConfig("q", retry=False, codec="bytes"))
    queue.publish(b"x" * (store.describe().record_size_limit - AROUND))
    queue.receive()[0].nack("exception", error=error)
    (message,) = queue.sideline.peek()
    assert 997 < len(message.last_error.encode()) <= 1000
    assert error.replace("\0", "\ufffd").startswith(message.last_error)


@pytest.mark.parametrize("error", [ValueError("no"), b"no", 5], ids=["an exception", "bytes", "a number"])
def test_an_error_that_is_no_text_is_refused_by_name_before_any_io(counted, error):
    queue, store, _ = counted
    queue.publish("x")
    (delivery,) = queue.receive()
    store.reset()
    with pytest.raises(InvalidRequest, match=f"error is a {type(error).__name__}"):
        delivery.nack("exception", error=error)
    assert store.total == 0
    delivery.nack("exception", error=str(error))


def test_a_message_that_an_earlier_version_kept_with_a_nul_can_still_be_moved():
    bins = {"data": "1", "msgId": "m", "headers": {"trace": "a\0b"}, "lastError": "\0", "reason": "exception"}
    envelope = from_bins(bins)
    assert (envelope.headers, envelope.last_error) == ({"trace": "a\ufffdb"}, "\ufffd")


def test_headers_and_errors_of_another_kind_keep_nobody_from_reading():
    """Another program may have written them."""
    envelope = from_bins({"data": "1", "msgId": "m", "headers": {"tenant": 7, 8: "a\0"}, "lastError": 5})
    assert envelope.last_error is None
    assert envelope.headers == {"tenant": "7", "8": "a\ufffd", "latchwork-damaged": "lastError"}


@pytest.mark.parametrize("headers", ["x", 5, ["a", "b"], b"x"], ids=str)
def test_headers_that_are_no_map_count_as_none(queue, world, headers):
    """Another program may have written them; the messages received with it must not suffer."""
    queue.publish_many([0, 1], key="k")
    world.store.operate(queue.pointers.key(Slot(queue.shard_of("k"), 1)), Put("headers", headers))
    first, second = queue.receive(2)
    assert (first.payload, first.headers, second.payload) == (0, {"latchwork-damaged": "headers"}, 1)
    first.nack()
    assert queue.sideline.peek()[0].headers == {"latchwork-damaged": "headers"}


def test_a_payload_that_does_not_decode_goes_to_the_sideline_once_and_is_then_parked(queue, world):
    queue.publish("x", key="k")
    slot = Slot(queue.shard_of("k"), 1)
    world.store.operate(queue.pointers.key(slot), Put("data", "{not json"))
    assert queue.receive() == []
    (sidelined,) = queue.sideline.peek()
    assert (sidelined.reason, sidelined.unreadable, sidelined.raw) == (Reason.UNREADABLE, True, "{not json")
    assert queue.depth().sideline == 1


class Careless(msgspec.Struct):
    a: dict

    def __post_init__(self):
        if "secret" in self.a:
            raise ValueError("found secret")
        self.a["x"]


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("codec", "data", "told"),
    [
        (Careless, '{"a": {}}', "KeyError"),
        (Careless, '{"a": {"secret": 1}}', "Validation"),
        ("json", DEEP, "Recursion"),
    ],
    ids=["KeyError", "ValueError", "RecursionError"],
)
def test_whatever_decoding_raises_is_one_unreadable_message_whose_content_is_not_told(codec, data, told):
    store = MemoryStore(ManualClock())
    queue = QueueRegistry(store, "c").create(QueueConfig("q", retry=False, shards=1, codec=codec))
    queue.publish_many([{"a": {"x": number}} for number in range(3)])
    store.operate(queue.pointers.key(Slot(0, 2)), Put("data", data))
    assert [delivery.pointer for delivery in queue.receive(3)] == [1, 3]
    (unreadable,) = queue.sideline.peek()
    assert (unreadable.unreadable, unreadable.raw) == (True, data)
    assert told in unreadable.last_error
    assert "secret" not in unreadable.last_error


NO_TEXT = [5, 1.5, True, ["a"], {"a": 1}]
"""Payloads that only another program writes."""


def with_strange_payload(data, **options):
    clock = ManualClock()
    store = MemoryStore(clock)
    queue = QueueRegistry(store, "c").create(QueueConfig("q", retry=False, shards=1, **options))
    queue.publish_many(range(3))
    store.operate(queue.pointers.key(Slot(0, 2)), Put("data", data))
    return queue, clock


@pytest.mark.parametrize("codec", ["json", "bytes"])
@pytest.mark.parametrize("data", NO_TEXT, ids=str)
def test_a_payload_that_is_neither_text_nor_bytes_is_one_unreadable_message(data, codec):
    queue, _ = with_strange_payload(data)
    queue.codec = Codec(codec)
    if codec == "json":
        assert [delivery.pointer for delivery in queue.receive(3)] == [1, 3]
    else:
        assert queue.receive(3) == []
    (unreadable,) = [message for message in queue.sideline.peek() if message.raw == data]
    assert (unreadable.reason, unreadable.unreadable) == ("unreadable", True)


@pytest.mark.parametrize("data", NO_TEXT, ids=str)
def test_a_sweep_the_shovel_and_redrive_move_a_payload_that_is_neither_text_nor_bytes(data):
    queue, clock = with_strange_payload(data, max_deliveries=1)
    queue.pointers.stamp([Slot(0, pointer) for pointer in range(1, 4)], "a consumer that dies")
    queue.pointers.claim(0, 3)
    clock.advance(1201)
    assert Sweeper(queue.registry, Election(1)).run_once().rehomed == 3
    assert Shovel(queue).run_once().moved == 3
    assert queue.receive(3) == []
    assert [message.raw for message in queue.redrive(3)] == ["0", data, "2"]
    assert [message.raw for message in queue.peek()] == ["0", data, "2"]


def test_reasons_are_a_closed_set(queue):
    queue.publish("x")
    (delivery,) = queue.receive()
    with pytest.raises(InvalidRequest, match="saturated"):
        delivery.nack("because")
    for reason in Reason:
        assert reason.value in {
            "rejected", "exception", "timeout", "unreadable", "saturated", "swept", "exhausted", "interrupted",
        }  # fmt: skip


def test_a_failed_message_waits_for_its_backoff():
    clock = ManualClock()
    registry = QueueRegistry(MemoryStore(clock), "c")
    queue = registry.create(QueueConfig("q", retry=False, backoff=Poll(10, 600, 2, 0)))
    queue.publish("x")
    (delivery,) = queue.receive()
    delivery.nack()
    (message,) = queue.sideline.peek()
    assert message.not_before.timestamp() == clock.wall() + 10


def test_failures_of_many_cost_one_move_per_thousand_and_keep_their_own_reasons_and_errors(counted):
    queue, store, _ = counted
    queue.publish_many(range(1500))
    deliveries = [*queue.receive(1000), *queue.receive(1000)]
    verdicts = [("timeout", None) if d.payload % 2 else ("exception", f"at {d.payload}") for d in deliveries]
    store.reset()
    assert queue.fail_many(deliveries, verdicts) == [True] * 1500
    assert store.total <= 2 * 4
    kept = {message.payload: (message.reason, message.last_error) for message in queue.sideline.peek_all()}
    assert kept == {d.payload: verdict for d, verdict in zip(deliveries, verdicts, strict=True)}


def test_what_is_acknowledged_while_others_are_moved_is_not_brought_back(counted, monkeypatch):
    queue, _, _ = counted
    queue.publish_many(range(1500))
    deliveries = queue.receive(1500)
    once = iter([lambda: queue.ack_many(deliveries[1000:])])
    move = view.move

    def meanwhile(*given):
        next(once, lambda: None)()
        return move(*given)

    monkeypatch.setattr(view, "move", meanwhile)
    assert queue.fail_many(deliveries, [("timeout", None)] * 1500) == [True] * 1000 + [False] * 500
    assert queue.depth().sideline == 1000


def test_failures_of_many_are_told_row_by_row_and_raise_no_error_of_the_store():
    store = Torn(ManualClock())
    queue = QueueRegistry(store, "c").create(QueueConfig("q", retry=False))
    queue.publish_many(["a", "b", "c"])
    deliveries = queue.receive(3)
    deliveries[1].ack()
    assert queue.fail_many(deliveries, [("timeout", None)] * 3) == [True, False, True]
    queue.publish_many(["d", "e"])
    deliveries = queue.receive(2)
    store.torn = True
    outcomes = queue.fail_many(deliveries, [("timeout", None)] * 2)
    assert [type(outcome) for outcome in outcomes] == [Unavailable] * 2


def test_failures_of_many_with_a_reason_outside_the_closed_set_are_refused_before_any_io(counted):
    queue, store, _ = counted
    queue.publish_many(["a", "b"])
    deliveries = queue.receive(2)
    store.reset()
    with pytest.raises(InvalidRequest, match="because"):
        queue.fail_many(deliveries, [("timeout", None), ("because", None)])
    assert store.total == 0


def test_acknowledging_twice_or_too_late_is_said(queue):
    queue.publish_many(["a", "b"])
    first, second = queue.receive(2)
    first.ack()
    with pytest.raises(LeaseLost):
        first.ack()
    with pytest.raises(LeaseLost) as lost:
        queue.ack_many([first, second])
    assert lost.value.details["message_ids"] == [first.message_id]
    with pytest.raises(LeaseLost):
        second.ack()
    with pytest.raises(LeaseLost):
        second.nack()


def test_deliveries_of_several_queues_are_acknowledged_together_each_where_it_is(counted):
    queue, store, _ = counted
    queue.publish_many(["a", "b", "c"])
    first, gone, third = queue.receive(3)
    first.nack()
    gone.ack()
    deliveries = [*queue.sideline.receive(5), third]
    store.reset()
    queue.ack_many(deliveries)
    assert store.total == 2
    queue.publish("d")
    (other,) = queue.receive()
    with pytest.raises(LeaseLost) as lost:
        queue.ack_many([gone, *deliveries, other])
    assert set(lost.value.details["message_ids"]) == {gone.message_id, *(d.message_id for d in deliveries)}
    with pytest.raises(LeaseLost):
        other.ack()
    assert (queue.depth().ready, queue.depth().sideline) == (0, 0)


def test_what_a_handle_has_acknowledged_or_failed_it_cannot_fail_again(counted):
    queue, store, _ = counted
    queue.publish_many(["a", "b", "c"])
    deliveries = queue.receive(3)
    acked, failed, left = deliveries
    acked.ack()
    failed.nack("timeout")
    store.reset()
    for done in (acked, failed):
        with pytest.raises(LeaseLost, match="before") as refused:
            done.nack()
        assert refused.value.details["message_ids"] == [done.message_id]
    assert store.total == 0
    assert queue.fail_many(deliveries, [("exception", None)] * 3) == [False, False, True]
    assert sorted((m.payload, m.reason) for m in queue.sideline.peek()) == [("b", "timeout"), ("c", "exception")]
    assert {left, acked, left} == {acked, left}, "deliveries are told apart by identity"


def test_a_delivery_whose_acknowledgement_failed_can_still_be_failed():
    store = FaultyStore(MemoryStore(ManualClock()))
    queue = QueueRegistry(store, "c").create(QueueConfig("q", retry=False))
    queue.publish("x")
    (delivery,) = queue.receive()
    store.plan = {store._number + attempt: "dropped" for attempt in range(1, store.policy.attempts + 1)}
    with pytest.raises(Unavailable):
        delivery.ack()
    delivery.nack()
    assert queue.depth().sideline == 1


def test_a_queue_that_a_stream_owns_says_so(queue, world):
    queue.publish("x", key="k")
    world.store.operate(queue.pointers.pointers_key(queue.shard_of("k")), Put("stream", "s1"))
    with pytest.raises(QueueOwned, match="s1"):
        world.process().queue.receive()


def test_extension_ends_after_ten_sweep_durations():
    clock = ManualClock()
    queue = QueueRegistry(MemoryStore(clock), "c").create(
        QueueConfig("q", retry=False, message_expiry=timedelta(days=2))
    )
    queue.publish("x")
    (delivery,) = queue.receive()
    for _ in range(20):
        clock.advance(590)
        delivery.extend()
    clock.advance(590)
    with pytest.raises(LeaseLost, match="10 sweep durations"):
        delivery.extend()


def test_messages_that_expire_unread_are_counted_and_leave_nothing_behind(simulated):
    process = simulated.process()
    queue = process.queue
    queue.publish_many(["a", "b", "c"])
    simulated.clock.advance(15 * 86_400 + 1)
    for received in ([], queue.receive(10)):
        assert received == []
        depth = queue.depth()
        assert (depth.ready, depth.expired) == (0, 3)
    simulated.recover()
    assert process.registry.records.read("q")["sweptCounter"] == 0


def test_a_message_that_expires_in_a_consumers_hands_is_lost_to_it(simulated):
    queue = simulated.process().queue
    queue.publish("a")
    (delivery,) = queue.receive()
    simulated.clock.advance(15 * 86_400 + 1)
    with pytest.raises(LeaseLost):
        delivery.ack()
    simulated.recover()
    assert queue.depth().sideline == 0


# ---- how many


@pytest.mark.parametrize("limit", [0, True, 1.0, None], ids=str)
def test_a_look_at_a_number_of_messages_that_is_none_is_refused(queue, limit):
    with pytest.raises(InvalidRequest, match="whole number"):
        queue.peek(limit)


def test_any_number_of_messages_may_be_asked_for(counted):
    queue = counted[0]
    queue.publish_many(range(2500))
    assert len(queue.peek(5000)) == len(queue.peek(10**30)) == 2500
    assert len(queue.peek(1500)) == 1500
    assert len(queue.receive(1200)) == 1200
    deliveries = queue.receive(10**30)
    assert len({delivery.payload for delivery in deliveries}) == len(deliveries) == 1300
    assert queue.receive(5000) == []


def test_messages_of_one_shard_come_in_order_however_many_are_asked_for(simulated):
    queue = simulated.process().queue
    queue.publish_many(range(1700), key="k")
    assert [message.payload for message in queue.peek(1600)] == list(range(1600))
    assert [d.payload for d in queue.receive(1600, shards={queue.shard_of("k")})] == list(range(1600))


def test_what_was_received_is_handed_out_though_more_could_not_be():
    store = FaultyStore(MemoryStore(ManualClock()))
    queue = QueueRegistry(store, "c").create(QueueConfig("q", retry=False, shards=1))
    queue.publish_many(range(2200))
    store.plan = {store._number + call: "dropped" for call in range(5, 30)}  # a glance, a look, a claim, a stamp
    assert len(queue.receive(2200)) == 1000
    store.plan = {}
    assert len(queue.receive(2200)) == 1200


def test_a_look_goes_on_past_slots_that_hold_no_message(counted):
    queue, store, clock = counted
    queue.publish_many(range(12), key="k")
    clock.advance(15 * 86_400 + 1)
    queue.publish_many(["a", "b"], key="k")
    assert [message.payload for message in queue.peek(10)] == ["a", "b"]
    store.reset()
    assert [message.payload for message in queue.peek(1)] == ["a"]
    assert store.total == 3


# ---- another library's pointers


def of_another_library(store, queue, payload="java"):
    """A message in shard 0 as the Java library leaves it: nothing counts yet what was fired."""
    lasting = {"exists": Exists.ANY, "ttl": 3600}
    store.operate(queue.key(Slot(0, 1)), Put("data", json.dumps(payload)), **lasting)
    store.operate(queue.pointers_key(0), Put("LOAD_POINTER", 1), **lasting)


def test_a_message_of_another_library_counts_as_in_flight_while_somebody_has_it(world):
    queue = world.process().queue
    of_another_library(world.store, queue.pointers)
    (delivery,) = queue.receive()
    assert all_rows(queue.registry, queue.name)[1][0]["in_flight"] == 1
    delivery.ack()
    assert all_rows(queue.registry, queue.name)[1][0]["in_flight"] == 0


def test_a_message_that_another_library_loaded_before_anything_was_fired_is_received(world):
    queue = world.process().queue
    of_another_library(world.store, queue.pointers)
    assert [message.payload for message in queue.peek()] == ["java"]
    (delivery,) = queue.receive()
    assert delivery.payload == "java"
    delivery.ack()
    assert (queue.depth().fired, queue.receive()) == (1, [])


def test_a_parked_message_whose_headers_are_no_text_can_be_brought_back(world):
    queue = world.process().queue
    of_another_library(world.store, queue.parked.pointers)
    world.store.operate(queue.parked.pointers.key(Slot(0, 1)), Put("headers", {"latchwork-attempts": 5, "n": 1}))
    assert [message.payload for message in queue.redrive(5)] == ["java"]
    assert queue.receive()[0].headers == {"latchwork-attempts": "5", "n": "1"}


def test_redrive_brings_back_what_another_library_loaded_before_anything_was_fired(world):
    queue = world.process().queue
    of_another_library(world.store, queue.parked.pointers)
    assert [message.payload for message in queue.redrive(5)] == ["java"]
    assert [delivery.payload for delivery in queue.receive()] == ["java"]


def test_the_shovel_brings_back_what_another_library_loaded_before_anything_was_fired(world):
    queue = world.process().queue
    of_another_library(world.store, queue.sideline.pointers)
    assert Shovel(queue).run_once().moved == 1
    assert [delivery.payload for delivery in queue.receive()] == ["java"]


def test_who_waits_for_messages_that_no_claim_gets_asks_rarely(counted, monkeypatch):
    queue, store, clock = counted
    of_another_library(store, queue.pointers)
    monkeypatch.setattr(queue.pointers, "begin_firing", lambda states: None)
    monkeypatch.setattr(queue.active._wake, "wait", clock.sleep)
    store.reset()
    assert queue.receive(timeout=3) == []
    looks, calls_of_each = 3 / 0.05 + 1, 3
    assert store.total <= looks * calls_of_each


def test_who_waits_for_messages_of_a_paused_queue_looks_about_once_a_second_and_not_at_the_store(counted):
    queue, store, clock = counted
    queue.publish("x")
    with pytest.warns(UserWarning, match="paused"):
        queue.pause()
    store.reset()
    clock.slept.clear()
    assert queue.receive(timeout=30) == []
    assert (store.total, len(clock.slept)) == (0, 30)


def test_who_waits_for_messages_of_the_sideline_reads_one_that_cannot_be_decoded_about_once_a_second(counted):
    queue, store, _ = counted
    queue.publish("x", key="k")
    store.operate(queue.pointers.key(Slot(queue.shard_of("k"), 1)), Put("data", "{not json"))
    assert queue.receive() == []
    assert queue.depth().sideline == 1
    store.reset()
    assert queue.sideline.receive(timeout=10) == []
    assert store.total <= 11 * 7, "look, claim, read, move"
    assert queue.depth().sideline == 1


# ---- forks


def exit_of_child(run):
    """How a forked child ends in which `run` says whether all is well; an alarm ends one that hangs."""
    child = os.fork()
    if not child:
        signal.alarm(10)
        code = 1
        try:
            code = 0 if run() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_forked_while_another_thread_looks_for_messages_publishes_and_receives():
    queue = QueueRegistry(MemoryStore(ManualClock()), "c").create(QueueConfig("q", retry=False))
    looking, go_on, states = threading.Event(), threading.Event(), queue.pointers.states

    def slow():
        looking.set()
        assert go_on.wait(10)
        return states()

    def publishes():
        queue.pointers.states = states
        queue.publish("from the child")
        return [delivery.payload for delivery in queue.receive()] == ["from the child"]

    queue.pointers.states = slow
    looks = threading.Thread(target=queue.receive)
    looks.start()
    assert looking.wait(10)
    try:
        assert exit_of_child(publishes) == 0
    finally:
        go_on.set()
        looks.join()


def test_a_child_forked_while_another_thread_has_a_lock_publishes_and_asks():
    registry = QueueRegistry(MemoryStore(ManualClock()), "c")
    queue = registry.create(QueueConfig("q", retry=False))

    def publishes():
        queue.publish("from the child")
        return registry.get("q") is queue

    with queue._lock, registry._lock:
        assert exit_of_child(publishes) == 0


def test_a_slot_that_was_set_aside_before_a_fork_is_the_parents_alone():
    clock = ManualClock()
    queue = QueueRegistry(MemoryStore(clock), "c").create(QueueConfig("q", retry=False, shards=1))
    queue.pointers.reserve({0: 1})
    ends = []

    def child_receives_nothing():
        return not queue.awaits() and queue.receive() == []

    def meanwhile():
        queue.pointers.write([Slot(0, 1)], [Envelope('"m"', "m")])
        ends.append(exit_of_child(child_receives_nothing))

    clock.at(0.01, meanwhile)
    assert [delivery.payload for delivery in queue.receive()] == ["m"]
    assert ends == [0]


# ---- what it costs


@pytest.fixture
def counted():
    clock = ManualClock()
    store = CountingStore(MemoryStore(clock))
    queue = QueueRegistry(store, "c").create(QueueConfig("q", retry=False))
    store.reset()
    return queue, store, clock


def test_a_single_publish_is_two_calls_and_a_thousand_are_two(counted):
    queue, store, _ = counted
    queue.publish("x")
    assert store.total == 2
    queue.publish_many(range(1000))
    assert store.total == 4


def test_a_receive_where_nothing_is_ready_writes_nothing(store):
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
    queue.publish_many(range(4))
    queue.ack_many(queue.receive(4))
    before = store.get(queue.pointers.pointers_key(0)).generation
    assert queue.receive(4) == []
    assert queue.receive() == []
    assert store.get(queue.pointers.pointers_key(0)).generation == before


def test_a_message_drained_singly_is_three_calls(counted):
    queue, store, _ = counted
    queue.publish_many(range(640))
    queue.receive()[0].ack()
    store.reset()
    for _ in range(600):
        queue.receive()[0].ack()
    assert store.total / 600 == pytest.approx(3.0, abs=0.01)


def test_messages_drained_in_hundreds_are_three_calls_a_hundred(counted):
    queue, store, _ = counted
    queue.publish_many(range(3200))
    store.reset()
    drained = 0
    while deliveries := queue.receive(100, timeout=0.01):
        queue.ack_many(deliveries)
        drained += len(deliveries)
    assert drained == 3200
    assert store.total / drained <= 0.05


def test_a_local_publish_wakes_who_waits(counted):
    queue, store, _ = counted
    queue.receive(timeout=60)
    queue.publish("x")
    store.reset()
    assert len(queue.receive(timeout=60)) == 1
    assert store.total == 2


def test_what_this_process_publishes_costs_no_look(counted):
    queue, store, _ = counted
    queue.receive(timeout=60)
    store.reset()
    for n in range(10):
        queue.publish(n)
        queue.receive()[0].ack()
    assert store.total == 10 * (2 + 2 + 1)


def test_what_others_publish_is_found_within_a_second_whatever_this_process_publishes(counted):
    queue, store, clock = counted
    queue.receive(timeout=60)
    QueueRegistry(store, "c").create(QueueConfig("q", retry=False)).publish("theirs", key="b")
    found = []
    for _ in range(11):
        queue.publish_many(["mine", "mine"], key="a")
        found += [delivery.payload for delivery in queue.receive()]
        clock.advance(0.1)
    found += [delivery.payload for delivery in queue.receive(100)]
    assert "theirs" in found


def test_messages_that_could_not_be_read_when_they_were_claimed_come_with_a_later_receive():
    store = Torn(ManualClock())
    queue = QueueRegistry(store, "c").create(QueueConfig("q", retry=False, shards=1))
    queue.publish_many(list("abcdef"))
    first = queue.receive()
    store.torn = True
    for _ in range(5):
        with pytest.raises(Unavailable):
            queue.receive(2)
    store.torn = False
    while found := queue.receive(4):
        first += found
    assert {(delivery.payload, delivery.attempts) for delivery in first} == {(one, 1) for one in "abcdef"}


def test_a_message_that_is_stamped_once_more_has_all_its_time_from_then_on(simulated):
    """The first stamp was in doubt; it is given out only now."""
    simulated.options = {"shards": 1}
    process = simulated.process()
    process.queue.publish("x")
    pointers = process.queue.pointers
    slot = Slot(0, pointers.claim(0, 1).last)
    first = pointers.stamp([slot], "me")
    simulated.lapse(0.9)
    assert pointers.stamp([slot], "me") == first
    sweeper = process.sweeper()
    for _ in range(3):
        simulated.lapse(0.3)
        assert sweeper.run_once().rehomed == 0
    simulated.lapse(0.3)
    assert sweeper.run_once().rehomed == 1


def test_a_slot_that_waits_for_its_message_is_nobodys_who_asks_for_other_shards():
    clock = ManualClock()
    queue = QueueRegistry(MemoryStore(clock), "c").create(QueueConfig("q", retry=False, shards=2))
    queue.pointers.reserve({0: 1})
    others = []

    def meanwhile():
        queue.pointers.write([Slot(0, 1)], [Envelope('"m"', "m")])
        assert (queue.awaits({0}), queue.awaits({1})) == (True, False)
        others.extend(queue.receive(1, shards={1}))

    clock.at(0.01, meanwhile)
    assert [delivery.payload for delivery in queue.receive(1, shards={0})] == ["m"]
    assert others == []
    assert not queue.awaits()


def test_an_error_names_what_was_published_nevertheless(world):
    process = world.process()
    process.fails([2], "dropped")
    process.fails(range(2, 6), "dropped")
    with pytest.raises(Exception, match="dropped") as failed:
        process.queue.publish_many(range(3))
    assert failed.value.details["published"] == []


@pytest.mark.parametrize("rows", [None, (1, 3)], ids=["all rows", "some rows"])
def test_an_attempt_of_a_batch_counts_once_whichever_reply_is_lost(simulated, rows):
    process = simulated.process()
    for number in range(1, 9):
        ids = process.queue.publish_many(range(4), key="k")
        received = simulated.process({number: Fault("reply_lost", rows=rows)}).receive(4)
        assert [(delivery.message_id, delivery.attempts) for delivery in received] == [(id, 1) for id in ids]
        process.queue.ack_many(received)


def test_a_transaction_that_waits_long_for_its_turn_publishes_once(clock, tmp_path):
    """Nobody could pass the slots meanwhile, as they are reserved and filled in one step."""
    store = SQLiteStore(tmp_path / "store.db", synchronous="off", seams=clock)
    queue = QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", retry=False, shards=1))
    reserve = queue.pointers.reserve

    def after_others(counts):
        clock.advance(queue.pointers.sweep)
        return reserve(counts)

    queue.pointers.reserve = after_others
    queue.publish("m")
    assert [one.payload for one in queue.receive(10)] == ["m"]
    store.close()
