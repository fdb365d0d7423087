"""What an outbox promises when nothing goes wrong with the store, and what it refuses (docs/paged-queue.md)."""

from __future__ import annotations

import errno
import itertools
import math
import os
from enum import Enum
from functools import partial

import pytest

from latchwork.errors import (
    Corrupt,
    InvalidRequest,
    LatchworkError,
    NonDeterministicInput,
    NotFound,
    QueueFull,
    RecordTooBig,
    Refused,
    StorageFailed,
    Unavailable,
    Unreadable,
)
from latchwork.queue import Outbox, OutboxLag, PagedQueue, QueueConfig, QueueRegistry, UnopenedQueue
from latchwork.queue.outbox import outbox
from latchwork.queue.outbox.lag import stored_lag
from latchwork.queue.paged.cursor import Cursor
from latchwork.store import MemoryStore
from latchwork.store.port import MAX_TTL
from latchwork.testing.stores import FaultyStore
from tests.queue.paged.recording import RecordingFiles

from .promises import until_full
from .world import World


def test_what_is_put_is_forwarded_once_and_in_order(everywhere):
    producer = everywhere.producer()
    producer.put_some(n=40)
    assert producer.forward() == 40
    assert producer.forward() == 0
    everywhere.check()
    assert len(everywhere.received) == 40


def test_a_put_asks_no_store(world):
    producer = world.producer()
    producer.put_some()
    producer.outbox.lag()
    assert producer.calls == 0


def test_making_an_outbox_touches_no_file(world, tmp_path):
    producer = world.producer()
    assert not list(tmp_path.glob("*.cursor"))
    producer.put("a", 1)
    assert [path.name for path in tmp_path.glob("*.cursor")] == ["out-outbox.cursor"]


def test_the_id_that_a_put_returns_is_the_messages(world):
    producer = world.producer()
    told = [producer.outbox.put({"n": n}, key="k", headers={"h": str(n)}) for n in range(3)]
    producer.forward()
    found = world.queue.peek()
    assert [message.message_id for message in found] == told
    assert [message.payload for message in found] == [{"n": n} for n in range(3)]
    assert [message.headers for message in found] == [{"h": str(n)} for n in range(3)]
    assert {message.shard for message in found} == {world.queue.shard_of("k")}


def test_keys_and_headers_may_be_of_a_kind_of_text(everywhere):
    """As those of numpy are, and members of enumerations; a queue takes them too."""

    class Kind(str):
        __slots__ = ()

    class Place(str, Enum):
        HERE = "here"

    producer = everywhere.producer()
    headers = {Kind("b"): Place.HERE, Place.HERE: Kind("a")}
    producer.outbox.put_many([1, 2], keys=[Kind("here"), Place.HERE], headers=headers)
    assert producer.forward() == 2
    everywhere.queue.publish(3, key=Place.HERE, headers=headers)
    everywhere.queue.publish(4, key=Kind("here"), headers=headers)
    found = everywhere.queue.peek(10)
    assert [message.payload for message in found] == [1, 2, 3, 4]
    assert {message.shard for message in found} == {everywhere.queue.shard_of("here")}
    for message in found:
        assert message.headers == {"b": "here", "here": "a"}
        assert {type(text) for header in message.headers.items() for text in header} == {str}


def test_bytes_go_through_a_queue_of_bytes(clock, tmp_path):
    queue = QueueRegistry(MemoryStore(clock), "shop").create(QueueConfig("raw", codec="bytes"))
    outbox = Outbox(PagedQueue.open(tmp_path, "out", seams=clock), queue)
    outbox.put(b"\x00\xff")
    outbox.forward()
    assert [delivery.payload for delivery in queue.receive(5)] == [b"\x00\xff"]


def test_a_batch_of_a_thousand_costs_five_calls_and_each_repetition_of_a_key_five_more(clock, tmp_path):
    world = World(MemoryStore(clock), clock, tmp_path, settings={"page_size": 1_000_000})
    producer = world.producer()
    producer.put_all([(None, number) for number in range(1000)])
    assert (producer.forward(), producer.calls) == (1000, 5)
    producer.put_all([(f"key {number % 250}", number) for number in range(1000, 2000)])
    before = producer.calls
    assert (producer.forward(), producer.calls - before) == (1000, 4 * 5)
    world.check()


def test_an_outbox_keeps_what_it_has_not_forwarded_from_being_reclaimed(world, clock):
    producer = world.producer()
    for number in range(60):
        clock.advance(1)
        producer.put("a", number)
    assert producer.pq.disk_bytes() > 5 * 512
    producer.end()
    producer = world.producer()
    clock.advance(1)
    producer.forward()
    world.check()
    assert producer.pq.disk_bytes() <= 2 * 512


# ---- refusals


@pytest.mark.parametrize(
    ("payload", "options", "told"),
    [
        ({1, 2}.__iter__(), {}, "not JSON"),
        ("x", {"key": 7}, "key is a int"),
        ("x", {"key": "\ud800"}, "Unicode"),
        ("x", {"headers": {"a": 1}}, "header"),
        ("x", {"headers": {"a": "b\0"}}, "NUL"),
        ("\ud800", {}, "not JSON"),
    ],
)
def test_what_the_queue_would_not_take_is_refused_before_it_is_written(world, payload, options, told):
    producer = world.producer()
    with pytest.raises(InvalidRequest, match=told):
        producer.outbox.put(payload, **options)
    assert list(producer.pq.read()) == []


def test_a_message_larger_than_a_record_is_refused(world):
    producer = world.producer()
    with pytest.raises(RecordTooBig, match="limit is 1000000"):
        producer.outbox.put("x" * 1_000_000)
    assert list(producer.pq.read()) == []


def test_many_are_all_checked_before_the_first_is_written(world):
    producer = world.producer()
    with pytest.raises(InvalidRequest, match="not JSON"):
        producer.outbox.put_many([1, 2, object()])
    with pytest.raises(InvalidRequest, match="as many keys"):
        producer.outbox.put_many([1, 2], keys=["a"])
    assert list(producer.pq.read()) == []
    assert producer.outbox.put_many([]) == []


@pytest.mark.parametrize(
    "arguments",
    [{"payloads": payloads} for payloads in (None, 5, "ab", b"ab", {"a": 1}, iter([1, 2]))]
    + [{"payloads": [1, 2], "keys": keys} for keys in (5, "ab", {"a": 1, "b": 2}, iter(["a", "b"]), ["a"])],
    ids=lambda arguments: f"{arguments!r:.40}",
)
def test_what_is_not_several_messages_and_as_many_keys_is_refused(world, arguments):
    producer = world.producer()
    with pytest.raises(InvalidRequest, match="put_many takes"):
        producer.outbox.put_many(**arguments)
    assert list(producer.pq.read()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"name": "a/b"}, {"name": ""}, {"name": None}, {"disk_budget": 0}, {"disk_budget": math.nan},
        {"disk_budget": True}, {"disk_budget": "x"}, {"ledger_ttl": 0}, {"ledger_ttl": 1.5}, {"ledger_ttl": math.nan},
        {"ledger_ttl": math.inf}, {"ledger_ttl": 10**9}, {"ledger_ttl": None}, {"ledger_ttl": True}, {"pq": None},
        {"queue": None},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(world, options):
    with pytest.raises(InvalidRequest):
        Outbox(**{"pq": world.producer().pq, "queue": world.queue, **options})


@pytest.mark.parametrize("options", [{"disk_budget": 1}, {"ledger_ttl": 1}, {"disk_budget": None}], ids=str)
def test_the_least_settings_that_can_be_are_taken(world, options):
    assert Outbox(world.producer().pq, world.queue, **options).name == "outbox"


@pytest.mark.parametrize("wrong", ["registry", "config"])
def test_a_queue_that_cannot_be_opened_later_is_refused_at_once(world, wrong):
    given = {"registry": world.queue.registry, "config": QueueConfig("mails")}
    with pytest.raises(InvalidRequest, match=wrong):
        UnopenedQueue(**{**given, wrong: "mails"})


def test_the_longest_ledger_is_one_that_the_store_takes(world):
    world.options = {"ledger_ttl": MAX_TTL}
    producer = world.producer()
    producer.put_some()
    producer.forward()
    world.check()


def test_a_full_disk_budget_refuses_and_drops_nothing(world):
    world.options = {"disk_budget": 2000}
    producer = world.producer()
    with pytest.raises(QueueFull, match="2000 bytes") as refused:
        until_full(producer)
    assert refused.value.details["budget"] == 2000
    assert 1800 < refused.value.details["size"] <= 2000
    before = len(world.acknowledged)
    with pytest.raises(QueueFull):
        producer.put("a", before)
    producer.forward()
    producer.put_some(first=before, n=5)
    producer.forward()
    world.check()
    assert len(world.received) == before + 5


def test_a_batch_whose_cursor_the_full_disk_does_not_take_is_published_once(world):
    files = RecordingFiles()
    producer = world.producer(files=files)
    producer.put_some(n=9)
    calls = []
    for _ in range(4):
        files.fail("write", "cursor", errno.ENOSPC)
        with pytest.raises(StorageFailed):
            producer.forward()
        calls.append(producer.calls)
    assert calls == calls[:1] * 4
    assert producer.forward() == 0
    assert producer.calls == calls[0]
    producer.put_some(first=9, n=2)
    assert producer.forward() == 2
    world.check()


def test_the_disk_budget_holds_after_a_restart(world):
    world.options = {"disk_budget": 2000}
    producer = world.producer()
    with pytest.raises(QueueFull):
        until_full(producer)
    producer.end()
    with pytest.raises(QueueFull):
        world.producer().put("a", 1000)


def test_a_message_larger_than_the_whole_budget_is_a_bad_request(world):
    world.options = {"disk_budget": 100}
    with pytest.raises(InvalidRequest, match="whole disk_budget is 100"):
        world.producer().outbox.put("x" * 200)


def test_messages_that_no_outbox_has_put_are_refused_with_their_place(world):
    producer = world.producer()
    producer.put("a", 0)
    producer.forward()
    place = producer.pq.cursor("outbox").committed
    producer.pq.append(b"not ours")
    with pytest.raises(Unreadable, match="a local queue of its own") as refused:
        producer.forward()
    assert (refused.value.details["page"], refused.value.details["position"]) == place


def test_only_what_is_behind_a_message_that_no_outbox_has_put_waits_for_it(world):
    producer = world.producer()
    producer.put_some(n=3)
    place = producer.pq.cursor("outbox").tail
    producer.pq.append(b"not ours")
    producer.put_some(first=3, n=2)
    for _ in range(2):
        with pytest.raises(Unreadable) as refused:
            producer.forward()
        assert (refused.value.details["page"], refused.value.details["position"]) == place
        assert len(world.queue.peek(10)) == 3
    assert producer.outbox.forward(skip_corrupt=True) == 2
    world.check()


def test_messages_that_no_outbox_has_put_are_skipped_on_request_however_many(world):
    world.settings = {"page_size": 1 << 20}
    producer = world.producer()
    producer.pq.append_many([b"not ours"] * 1_500)
    producer.put_some(n=2)
    assert producer.outbox.forward(skip_corrupt=True) == 2
    assert producer.outbox.lag().messages == 0
    world.check()


@pytest.mark.parametrize("begun", range(1, 14))
def test_messages_come_once_whatever_was_begun_with_or_without_those_behind_a_foreign_one(world, begun):
    producer = world.producer()
    for number, skips in enumerate([True, False]):
        producer.put("k", 3 * number)
        producer.put("l", 3 * number + 1)
        producer.pq.append(b"not ours")
        producer.put("k", 3 * number + 2)
        calls = producer.store._number
        producer.store.plan = dict.fromkeys(range(calls + begun, calls + 80), "dropped")
        attempt(producer, skip_corrupt=skips)
        producer.store.plan = {}
        if producer.outbox.lag().messages:
            with pytest.raises(Unreadable):
                producer.forward()
        producer.outbox.forward(skip_corrupt=True)
    world.check()


def test_messages_of_another_codec_are_not_sent(world, clock):
    producer = world.producer()
    producer.put("a", 0)
    raw = QueueRegistry(world.store, "shop").create(QueueConfig("raw", codec="bytes"))
    with pytest.raises(Unreadable, match="another codec"):
        Outbox(producer.pq, raw).forward()


def test_a_deactivated_queue_is_waited_for(world):
    producer = world.producer()
    producer.put_some()
    registry = producer.outbox._queue.registry
    registry.deactivate("q")
    with pytest.raises(Refused, match="deactivated"):
        producer.forward()
    registry.create(world.config)
    producer.forward()
    world.check()


def test_a_put_whose_sync_fails_is_not_acknowledged(world):
    files = RecordingFiles()
    producer = world.producer(files=files)
    producer.put("a", 0)
    files.fail("sync", ".page", errno.EIO)
    with pytest.raises(StorageFailed):
        producer.outbox.put(["a", 1], key="a")


# ---- several


def test_two_outboxes_over_one_local_queue_forward_everything_to_two_queues(world):
    producer = world.producer()
    other = QueueRegistry(world.store, world.client).create(QueueConfig("copy", shards=1))
    copies = Outbox(producer.pq, other, name="copies")
    assert copies.lag().messages == 0
    producer.put_some()
    producer.forward()
    copies.forward()
    world.check()
    assert len(other.receive(100)) == 9


def test_a_forked_child_neither_puts_nor_forwards(world):
    """The parent goes on; a child that published too would take its own view of where a batch ends."""
    producer = world.producer()
    producer.put_some()
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (producer.forward, lambda: producer.outbox.put("x"), producer.outbox._forward_batch):
            try:
                call()
            except LatchworkError:
                refused += 1
        os._exit(0 if (refused, producer.calls) == (3, 0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    producer.forward()
    world.check()


def test_after_its_local_queue_was_closed_nothing_is_forwarded(world):
    producer = world.producer()
    producer.put_some()
    producer.pq.close()
    with pytest.raises(InvalidRequest, match="closed"):
        producer.forward()
    assert producer.calls == 0


def test_what_is_damaged_stops_the_forwarding_or_is_skipped_on_request(world, tmp_path):
    world.settings = {"page_size": 4096}
    producer = world.producer()
    producer.put_some(n=3)
    page, position = producer.pq.cursor("outbox").tail
    producer.put_some(first=3, n=1)
    producer.put_some(first=4, n=4)
    damaged_at(tmp_path / f"out-{page}.page", position)
    with pytest.raises(Corrupt) as damage:
        producer.forward()
    assert damage.value.details["position"] == position
    assert len(world.queue.peek(10)) == 3
    assert producer.outbox.forward(skip_corrupt=True) == 4
    world.receive()
    assert sorted(number for _, number in world.received) == [0, 1, 2, 4, 5, 6, 7]


@pytest.fixture
def with_one_to_damage(world, tmp_path):
    """A producer with five messages and one among them that is not acknowledged: its position, and what damages it."""
    world.settings = {"page_size": 4096}
    producer = world.producer()
    producer.put_some(n=2)
    page, position = producer.pq.cursor("outbox").tail
    producer.outbox.put("unreadable soon")
    producer.put_some(first=2, n=3)

    return producer, position, partial(damaged_at, tmp_path / f"out-{page}.page", position)


def begin_to_forward(producer, **options):
    """The store goes away once the first messages are in the ledger: with `skip_corrupt` that was looked at before."""
    calls = producer.store._number + len(options)
    producer.store.plan = dict.fromkeys(range(calls + 4, calls + 60), "dropped")
    with pytest.raises(Unavailable):
        producer.outbox.forward(**options)
    producer.store.plan = {}


def test_what_an_attempt_with_skip_corrupt_has_begun_waits_for_another_one(world, with_one_to_damage):
    producer, position, damage = with_one_to_damage
    damage()
    begin_to_forward(producer, skip_corrupt=True)
    for _ in range(2):
        with pytest.raises(Corrupt, match="skip_corrupt=True") as failure:
            producer.forward()
        assert failure.value.details["position"] == position
    assert producer.outbox.forward(skip_corrupt=True) == 5
    world.check()


def test_a_message_that_was_in_the_ledger_before_its_damage_is_not_passed_over(with_one_to_damage):
    producer, _, damage = with_one_to_damage
    begin_to_forward(producer)
    damage()
    with pytest.raises(Corrupt):
        producer.forward()
    with pytest.raises(NonDeterministicInput):
        producer.outbox.forward(skip_corrupt=True)


def test_messages_of_one_key_come_once_and_in_order_whatever_was_begun_before_one_is_damaged(clock, tmp_path):
    for number, (first, begun) in enumerate(itertools.product(("skipping", "plain"), range(1, 18))):
        directory = tmp_path / str(number)
        directory.mkdir()
        world = World(MemoryStore(clock), clock, directory, settings={"page_size": 4096})
        producer = world.producer()
        producer.put("k", 0)
        page, position = producer.pq.cursor("outbox").tail
        producer.outbox.put(["k", 1], key="k")
        producer.put("k", 2)
        damage = partial(damaged_at, directory / f"out-{page}.page", position)
        if first == "skipping":
            damage()
        producer.store.plan = dict.fromkeys(
            range(producer.store._number + begun, producer.store._number + 80), "dropped"
        )
        attempt(producer, skip_corrupt=first == "skipping")
        if first == "plain" and not producer.outbox.lag().messages:
            continue
        producer.store.plan = {}
        damage()
        attempt(producer)
        if attempt(producer, skip_corrupt=True) is NonDeterministicInput:
            assert first == "plain"
            assert producer.outbox.lag().messages  # the last one waits
            world.acknowledged.pop()
        world.check()


def attempt(producer, **options):
    """The kind of error, or None."""
    try:
        producer.outbox.forward(**options)
    except LatchworkError as failure:
        return type(failure)
    return None


def damaged_at(path, position):
    with path.open("r+b") as file:
        file.seek(position + 20)
        file.write(b"\xff\xff")


def test_a_repeat_of_a_batch_is_not_shorter_though_messages_are_put_while_it_is_read(world, monkeypatch):
    monkeypatch.setattr(outbox, "BATCH", 2 * outbox.STEP)
    producer = world.producer()
    producer.put_all([(None, number) for number in range(150)])
    read, lengths, published = Cursor.read, [], outbox.publish

    def read_and_put(self, n, **options):
        if n < outbox.STEP:
            producer.put_all([(None, number) for number in range(150, 250)])
            monkeypatch.setattr(Cursor, "read", read)
        return read(self, n, **options)

    def counted(queue, name, entries, **options):
        lengths.append(len(entries))
        published(queue, name, entries, **options)

    monkeypatch.setattr(Cursor, "read", read_and_put)
    monkeypatch.setattr(outbox, "publish", counted)
    producer.store.plan = dict.fromkeys(range(producer.store._number + 1, producer.store._number + 60), "dropped")
    with pytest.raises(Unavailable):
        producer.forward()
    producer.store.plan = {}
    producer.forward()
    assert lengths[:2] == [200, 200]
    world.check()


# ---- starting without the store


def test_a_producer_starts_and_puts_while_the_store_is_away(clock, tmp_path):
    store = FaultyStore(MemoryStore(clock), dict.fromkeys(range(1, 50), "dropped"), seams=clock)
    registry = QueueRegistry(store, "shop")
    outbox = Outbox(PagedQueue.open(tmp_path, "out", seams=clock), UnopenedQueue(registry, QueueConfig("q")))
    outbox.put({"n": 1})
    with pytest.raises(InvalidRequest):
        outbox.put(object())
    assert outbox.lag().messages == 1
    store.plan.clear()
    assert outbox.forward() == 1
    assert [delivery.payload for delivery in registry.get("q").receive(5)] == [{"n": 1}]


# ---- the lag


def test_the_lag_counts_messages_bytes_and_the_age_of_the_oldest(world, clock):
    producer = world.producer()
    assert producer.outbox.lag() == OutboxLag(0, 0, 0.0)
    for number in range(30):
        producer.put("a", number)
        clock.advance(2)
    lag = producer.outbox.lag()
    assert (lag.messages, lag.seconds) == (30, 60.0)
    assert lag.bytes > 30 * 40
    producer.forward()
    assert producer.outbox.lag() == OutboxLag(0, 0, 0.0)


def test_the_lag_is_read_from_the_files_while_the_producer_runs(world, tmp_path, clock):
    producer = world.producer()
    with pytest.raises(NotFound):
        stored_lag(tmp_path, "out")
    for number in range(30):
        producer.put("a", number)
        clock.advance(2)
        assert stored_lag(tmp_path, "out", seams=clock) == producer.outbox.lag()
    producer.forward()
    assert stored_lag(tmp_path, "out", seams=clock) == OutboxLag(0, 0, 0.0)
    with pytest.raises(NotFound):
        stored_lag(tmp_path / "nowhere", "out")


def test_the_lag_is_read_from_the_files_while_the_producer_opens_its_next_page(world, tmp_path, clock):
    producer = world.producer()
    for number in range(3):
        producer.put("a", number)
    (tmp_path / "out-2.page").write_bytes(bytes((tmp_path / "out-1.page").stat().st_size))
    (tmp_path / "out-2.idx").touch()
    assert stored_lag(tmp_path, "out", seams=clock).messages == 3


def test_a_damaged_cursor_is_told_of_by_who_reads_the_lag_from_the_files(world, tmp_path):
    world.producer().put("a", 1)
    (cursor,) = tmp_path.glob("*.cursor")
    cursor.write_bytes(b"torn")
    with pytest.raises(Corrupt, match="delete it") as refused:
        stored_lag(tmp_path, "out")
    assert refused.value.details["file"] == str(cursor)


def test_the_lag_is_read_from_a_disk_that_is_read_only(world, tmp_path, clock, monkeypatch):
    producer = world.producer()
    producer.put("a", 1)
    opened = os.open

    def open_read_only(path, flags, *mode, **given):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system", path)
        return opened(path, flags, *mode, **given)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", open_read_only)
        found = stored_lag(tmp_path, "out", seams=clock)
    assert found == producer.outbox.lag()
