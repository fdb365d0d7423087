"""A message that the store refuses for good: nothing else waits for it, it is not lost, and it says so
(docs/paged-queue.md).
"""

from __future__ import annotations

import json
import logging

import pytest

from latchwork.cli import main
from latchwork.errors import Corrupt, RecordTooBig, Unavailable, Unreadable
from latchwork.queue import OutboxLag
from latchwork.queue.outbox import outbox
from latchwork.queue.outbox.lag import stored_lag
from latchwork.queue.sharded.ledger.ledger import LEDGER_TTL
from latchwork.queue.sharded.pointers import FIRE
from latchwork.store import MemoryStore, Put
from latchwork.store.local import apply
from tests.queue.paged.failing import HOW
from tests.support import matrix

from . import promises
from .test_background import Turns
from .test_outbox import attempt
from .world import BIG, LIMIT, World


@pytest.fixture(autouse=True)
def small_records(monkeypatch):
    monkeypatch.setattr(apply, "RECORD_SIZE_LIMIT", LIMIT)


def large_records_again(monkeypatch):
    monkeypatch.setattr(apply, "RECORD_SIZE_LIMIT", 1 << 20)


def damage_shard_of(world, key):
    """Damage the pointers of the key's shard; return what mends them."""
    pointers = world.queue.pointers.pointers_key(world.queue.shard_of(key))
    world.queue.publish([key, -1], key=key)
    world.receive()
    world.received.clear()
    before = world.store.get(pointers).bins[FIRE]
    world.store.operate(pointers, Put(FIRE, before + 6))
    return lambda: world.store.operate(pointers, Put(FIRE, before))


def key_elsewhere(world, key) -> str:
    return next(other for other in map(str, range(100)) if world.queue.shard_of(other) != world.queue.shard_of(key))


def refused(producer, kind=RecordTooBig, **options):
    with pytest.raises(kind) as failure:
        producer.outbox.forward(**options)
    return failure.value


def test_a_refused_message_keeps_no_other_from_coming(world):
    producer = world.producer()
    producer.put_all([("a", 0), (None, 1)])
    producer.put_big(None, 2)
    producer.put_all([("a", 3), (None, 4)])
    for _ in range(3):
        refused(producer)
    producer.put_all([("a", 5), (None, 6)])
    refused(producer)
    world.receive()
    assert sorted(number for _, number in world.received) == [0, 1, 3, 4, 5, 6]
    assert producer.outbox.lag().messages == 1


def test_what_is_published_beside_a_refused_message_never_comes_again(world, clock):
    """It came again each time that the ledger had expired."""
    producer = world.producer()
    producer.put_big(None, 0)
    producer.put_all([(None, number) for number in range(1, 4)])
    for _ in range(8):
        refused(producer)
        world.receive()
        clock.advance(LEDGER_TTL / 2)
    assert sorted(world.received) == [(None, 1), (None, 2), (None, 3)]


@pytest.mark.parametrize("aside", [False, True])
def test_a_damaged_shard_keeps_no_message_of_the_others_from_coming(world, clock, aside):
    mend, other = damage_shard_of(world, "k"), key_elsewhere(world, "k")
    producer = world.producer()
    producer.put_all([("k", 0), (None, 1), (other, 2), ("k", 3), (None, 4), (other, 5)])
    for _ in range(4):
        refused(producer, Corrupt)
        world.receive()
        clock.advance(LEDGER_TTL)
    assert sorted(number for _, number in world.received) == [1, 2, 4, 5]
    assert producer.outbox.lag().held == 2
    if aside:
        producer.outbox.forward(set_aside=True)
        assert (producer.outbox.lag().messages, producer.outbox.lag().set_aside) == (0, 2)
        return
    mend()
    assert producer.forward() == 2
    world.check()


def test_messages_behind_a_refused_one_with_its_key_wait_for_it_and_keep_their_order(world, monkeypatch):
    producer = world.producer()
    producer.put_big("a", 0)
    producer.put_all([("b", 1), ("a", 2), (None, 3)])
    refused(producer)
    producer.put_all([("a", 4), ("b", 5)])
    refused(producer)
    world.receive()
    assert sorted(number for _, number in world.received) == [1, 3, 5]
    assert producer.outbox.lag().held == 3
    large_records_again(monkeypatch)
    assert producer.forward() == 3
    producer.put("a", 6)
    assert producer.forward() == 1
    world.check()
    assert producer.outbox.lag() == OutboxLag(0, 0, 0.0)


def test_a_refused_message_is_named_and_kept_over_a_restart(world, monkeypatch, caplog):
    world.settings = {"page_size": 1 << 16}
    producer = world.producer()
    producer.put("a", 0)
    place = producer.pq.cursor("outbox").tail
    message_id = producer.put_big("a", 1)
    failure = refused(producer)
    assert (failure.details["page"], failure.details["position"]) == place
    assert failure.details["message_id"] == message_id
    assert "set_aside=True" in str(failure)
    assert message_id in caplog.text
    producer.end()
    producer = world.producer()
    refused(producer)
    large_records_again(monkeypatch)
    assert producer.forward() == 1
    world.check()


def test_a_refused_message_is_set_aside_on_request_and_those_behind_it_come(world, tmp_path, caplog):
    world.settings = {"page_size": 1 << 16}
    producer = world.producer()
    producer.put("a", 0)
    page, position = producer.pq.cursor("outbox").tail
    message_id = producer.put_big("a", 1)
    world.acknowledged.pop()
    producer.put_all([("a", 2), (None, 3)])
    refused(producer)
    assert producer.outbox.forward(set_aside=True) == 1
    world.check()
    path = tmp_path / f"out-outbox.{page}.{position}.refused"
    told = json.loads(path.read_bytes())
    assert (told["message_id"], told["key"], told["payload"]) == (message_id, "a", ["a", 1])
    assert told["headers"] == {"big": BIG}
    assert "the limit is" in told["error"]
    assert str(path) in caplog.text
    assert producer.outbox.lag() == OutboxLag(0, 0, 0.0, set_aside=1)
    assert sorted(one.name for one in tmp_path.iterdir() if "outbox" in one.name) == [
        f"out-outbox.{page}.{position}.refused", "out-outbox.cursor", "out-outbox.cursor.new",
    ]  # fmt: skip
    producer.end()
    assert world.producer().forward() == 0
    world.check()


def test_forwarding_on_with_messages_set_aside_needs_no_earlier_attempt(world):
    producer = world.producer()
    producer.put_big("a", 0)
    world.acknowledged.pop()
    producer.put_all([("a", 1), (None, 2)])
    assert producer.outbox.forward(set_aside=True) == 2
    world.check()


def test_a_message_is_not_set_aside_while_it_is_unknown_whether_it_was_published(world):
    producer = world.producer()
    producer.put_big(None, 0)
    refused(producer)
    calls = producer.store._number
    producer.store.plan = dict.fromkeys(range(calls + 1, calls + 60), "dropped")
    with pytest.raises(Unavailable):
        producer.outbox.forward(set_aside=True)
    assert (producer.outbox.lag().held, producer.outbox.lag().set_aside) == (1, 0)


def test_a_refusal_that_may_pass_holds_nothing_back(world):
    producer = world.producer()
    producer.put_some()
    producer.store.plan = dict.fromkeys(range(producer.store._number + 3, producer.store._number + 60), "dropped")
    with pytest.raises(Unavailable):
        producer.outbox.forward(set_aside=True)
    producer.store.plan = {}
    assert (producer.outbox.lag().held, producer.outbox.lag().messages) == (0, 9)
    assert producer.forward() == 9
    world.check()


def test_no_batch_begins_while_a_whole_one_is_held_back(world, monkeypatch):
    monkeypatch.setattr(outbox, "BATCH", 4)
    monkeypatch.setattr(outbox, "STEP", 1)
    producer = world.producer()
    producer.put_big("a", 0)
    producer.put_all([("a", number) for number in range(1, 9)])
    producer.put(None, 9)
    refused(producer)
    assert (producer.outbox.lag().held, producer.outbox.lag().messages) == (4, 10)
    world.acknowledged.remove(("a", 0))
    assert producer.outbox.forward(set_aside=True) == 9
    world.check()


@pytest.mark.parametrize("begun", range(2, 9))
def test_a_message_held_back_for_longer_than_a_ledger_is_kept_comes_once(world, clock, monkeypatch, begun):
    """An outage at the moment at which it is published at last, when the ledger of the refusal was about to expire."""
    producer = world.producer()
    producer.put_big(None, 0)
    for _ in range(3):
        refused(producer)
        clock.advance(LEDGER_TTL * 0.9)
    large_records_again(monkeypatch)
    calls = producer.store._number
    producer.store.plan = dict.fromkeys(range(calls + begun, calls + 60), "dropped")
    attempt(producer)
    producer.store.plan = {}
    world.receive()
    clock.advance(LEDGER_TTL * 0.2)
    attempt(producer)
    world.check()
    assert producer.outbox.lag().messages == 0


def test_the_file_of_what_is_held_back_is_checked(world, tmp_path):
    producer = world.producer()
    producer.put_big("a", 0)
    refused(producer)
    path = tmp_path / "out-outbox.held"
    whole = path.read_bytes()
    path.write_bytes(whole[:9] + b"\xff" + whole[10:])
    failure = refused(producer, Corrupt)
    assert failure.details["file"] == str(path)
    for later in (b"\x92\x02\x90", b"\x92\x02\x91\x01"):
        producer.pq._layout.store_held("outbox", later)
        assert "upgrade" in str(refused(producer, Unreadable))
    path.write_bytes(whole)
    refused(producer)


def test_the_background_task_goes_on_beside_a_refused_message_and_tells_its_error(tmp_path, caplog, monkeypatch):
    clock = Turns()
    world = World(MemoryStore(clock), clock, tmp_path)
    producer = world.producer()
    producer.put_big("a", 0)
    producer.put_all([("b", 1), (None, 2)])
    told = []
    clock.at(30, lambda: told.append(producer.outbox.failure))
    clock.at(40, lambda: producer.put("b", 3))
    clock.at(45, lambda: told.append(producer.outbox.lag().messages))
    clock.at(50, lambda: large_records_again(monkeypatch))
    clock.at(80, lambda: told.append(producer.outbox.failure))
    clock.at(80, lambda: producer.outbox.stop(0))
    producer.outbox.start()
    failure, waiting, after = told
    assert isinstance(failure, RecordTooBig)
    assert (waiting, after) == (1, None)
    assert "holds message" in caplog.text
    assert not [one for one in caplog.records if one.levelno > logging.WARNING]
    world.check()


def test_the_command_says_what_is_held_back_and_set_aside(world, tmp_path, capsys, clock):
    producer = world.producer()
    producer.put_big("a", 0)
    producer.put("a", 1)
    refused(producer)
    assert stored_lag(tmp_path, "out", seams=clock) == producer.outbox.lag()
    assert stats(capsys, tmp_path) == (2, 2, None)
    producer.outbox.forward(set_aside=True)
    assert stored_lag(tmp_path, "out", seams=clock) == producer.outbox.lag()
    assert stats(capsys, tmp_path) == (0, None, 1)
    with pytest.raises(SystemExit):
        main(["outbox", "stats", str(tmp_path), "out"])
    assert "1 more were set aside" in capsys.readouterr().out


def stats(capsys, directory):
    with pytest.raises(SystemExit):
        main(["outbox", "stats", str(directory), "out", "--json"])
    told = json.loads(capsys.readouterr().out)
    return told["messages"], told.get("held"), told.get("set_aside")


@pytest.mark.parametrize("kind", ["crash_before", "crash_after", "request_lost", "reply_lost", "late", "dropped"])
def test_a_refusal_amid_faults_neither_loses_nor_doubles_nor_reorders(kind):
    calls = matrix.sample(range(1, promises.REFUSED_CALLS), kind, least=2)
    promises.a_refusal_amid_faults_neither_loses_nor_doubles_nor_reorders([kind], calls)


@pytest.mark.parametrize("how", HOW, ids=lambda how: how.__name__)
def test_a_disk_that_fails_amid_a_refusal_neither_loses_nor_doubles(how):
    calls = matrix.sample(range(1, 40), how.__name__)
    fired = promises.a_disk_that_fails_amid_a_refusal_neither_loses_nor_doubles([how], calls)
    print(f"{how.__name__}: {dict(fired)}")
    assert sum(fired.values()) >= 3 * len([at for at in calls if at <= 20])
