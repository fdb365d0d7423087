"""One delayed message at a time: found, discarded, due now, or moved to another queue, each told exactly."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import quote

import pytest

from latchwork.errors import AlreadyExists, Corrupt, InvalidRequest, RecordTooBig, Unavailable
from latchwork.queue import Outcome, QueueConfig, QueueRegistry
from latchwork.queue.sharded.delayed import entries
from latchwork.queue.sharded.envelope import AROUND
from latchwork.queue.sharded.ledger.chunks import LedgerRecords
from latchwork.queue.sharded.upkeep import timers as module
from latchwork.queue.sharded.upkeep.timers import MEMORY, SCOPE, Timers
from latchwork.store import Exists, MemoryStore, Put, SQLiteStore
from latchwork.store.rows import Rows
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore
from tests.queue.sharded.delayed.test_delayed import Farms, payloads, run_until
from tests.support.sqlite_damage import damage_row

DONE, NOT_THERE, UNKNOWN = Outcome.DONE, Outcome.NOT_THERE, Outcome.UNKNOWN


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return FaultyStore(MemoryStore(clock), seams=clock)


@pytest.fixture
def queue(store):
    return QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", shards=2))


@pytest.fixture
def other(queue):
    return queue.registry.create(QueueConfig("other", shards=3))


def fails(store, numbers, kind):
    store.plan |= {store._number + number: kind for number in numbers}


def test_search_finds_the_next_ones_first_with_when_they_are_due(queue, clock):
    queue.publish("later", delay=100, message_id="b")
    queue.publish("soon", delay=10, message_id="a", headers={"from": "x"})
    queue.publish("far", delay=7200, message_id="c")
    found = queue.delayed.search()
    assert [(m.message_id, m.payload) for m in found] == [("a", "soon"), ("b", "later")]
    assert (found[0].not_before - found[0].enqueued_at).total_seconds() == pytest.approx(10, abs=0.5)
    assert [m.message_id for m in queue.delayed.search(header={"from": "x"})] == ["a"]
    assert [m.message_id for m in queue.delayed.search(limit=1)] == ["a"]
    assert [m.message_id for m in queue.delayed.search(within=timedelta(hours=3))] == ["a", "b", "c"]
    assert queue.delayed.search(older_than=60) == []


@pytest.mark.parametrize("verb", ["cancel", "discard", "redrive", "move"])
def test_every_id_that_search_returns_is_taken_by_the_verbs_for_one_message(queue, other, verb):
    queue.publish("a", message_id="m" * 256)
    (delivery,) = queue.receive(1)
    delivery.nack(delay=60)
    (found,) = queue.delayed.search()
    assert len(found.message_id) > 256
    if verb == "cancel":
        assert queue.cancel(found.message_id)
    else:
        more = [other] if verb == "move" else []
        assert getattr(queue.delayed, verb)([found.message_id], *more) == {found.message_id: DONE}


def test_a_message_whose_redrive_was_cut_short_comes_all_the_same(store, clock):
    config = QueueConfig("short", shards=1, message_expiry=timedelta(minutes=2), queue_expiry=timedelta(hours=1))
    queue = QueueRegistry(store, "c", farm_id="f").create(config)
    queue.publish("a", delay=600, message_id="a")
    fails(store, range(3, 12), "dropped")  # the redrive's own bucket, after the message was made due
    with pytest.raises(Unavailable):
        queue.delayed.redrive(["a"])
    store.plan = {}
    timers, found = Timers(Farms(queue)), []
    for _ in range(10):
        run_until(timers, clock, 62)
        found += payloads(queue)
    assert found == ["a"]


@pytest.mark.parametrize("verb", ["discard", "redrive", "move"])
def test_the_id_that_the_log_has_names_a_message_that_is_tried_again(queue, other, clock, verb):
    queue.publish_many(["a", "b"], message_ids=["m", "n"])
    for delivery in queue.receive(2):
        delivery.nack()
    queue.publish("c", delay=60, message_id="m#x")
    (found,) = queue.delayed.search(message_id="m")
    assert (found.published_as, found.payload) == ("m", "a")
    clock.advance(900)  # long overdue, as while nobody does the upkeep
    assert queue.delayed.search(message_id="m") == [found]
    more = [other] if verb == "move" else []
    outcomes = {"m": DONE, "nobody": NOT_THERE}
    assert getattr(queue.delayed, verb)(["m", "nobody"], *more) == outcomes
    assert len(queue.delayed.search(message_id="m")) == (verb == "redrive")
    assert {one.payload for one in queue.delayed.search()} >= {"b", "c"}


@pytest.mark.parametrize("days", [0.5, 2])
@pytest.mark.parametrize("verb", ["discard", "redrive", "move"])
def test_a_message_that_is_tried_again_is_found_however_long_it_waits(queue, other, clock, verb, days):
    slow = queue.registry.create(QueueConfig("slow", shards=2, backoff=timedelta(days=days)))
    for of, delay in ((slow, None), (queue, timedelta(days=days))):
        id, gone = of.publish_many(["a", "b"])
        held, done = of.receive(2)
        held.nack(delay=delay)
        done.ack()
        before = of.store._number
        outcomes = getattr(of.delayed, verb)([id, gone, "nobody"], *([other] if verb == "move" else []))
        assert outcomes == {id: DONE, gone: NOT_THERE, "nobody": NOT_THERE}
        assert of.store._number - before <= {"discard": 5, "redrive": 7, "move": 12}[verb]
        run_until(Timers(Farms(of)), clock, 10)
        assert payloads(of) == (["a"] if verb == "redrive" else [])
        assert of.depth().retrying == 0


@pytest.mark.parametrize("verb", ["discard", "redrive"])
def test_a_trace_that_cannot_be_read_hides_no_message_but_its_own(clock, tmp_path, verb):
    store = SQLiteStore(tmp_path / "s.db", synchronous="off", seams=clock)
    queue = QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", shards=2))
    bad, good = queue.publish_many(["a", "b"])
    for delivery in queue.receive(2):
        delivery.nack()
    damage_row(store, queue.pointers.places.key(bad))
    with pytest.raises(Corrupt) as failure:
        getattr(queue.delayed, verb)([bad, good])
    store.close()
    assert failure.value.details["outcomes"] == {good: DONE}


def test_what_is_there_by_its_own_id_costs_no_search(store, queue):
    queue.publish("a", delay=60, message_id="m")
    before = store._number
    assert queue.delayed.discard(["m"]) == {"m": DONE}
    assert store._number - before == 2


def test_more_than_a_record_of_a_bucket_holds_is_found(queue, monkeypatch):
    monkeypatch.setattr(entries, "CHUNK", 20)
    ids = [f"m{n}" for n in range(28)]
    queue.publish_many(ids, delay=5, message_ids=ids)
    assert {m.message_id for m in queue.delayed.search(limit=1000)} == set(ids)


def test_what_was_discarded_never_comes(queue, clock):
    queue.publish_many(["a", "b"], delay=5, message_ids=["a", "b"])
    assert queue.delayed.discard(["a", "nobody"]) == {"a": DONE, "nobody": NOT_THERE}
    assert [m.message_id for m in queue.delayed.search()] == ["b"]
    assert queue.depth().delayed == 1
    timers = Timers(Farms(queue))
    run_until(timers, clock, 20)
    assert payloads(queue) == ["b"]
    assert queue.delayed.discard(["b"]) == {"b": NOT_THERE}


def test_what_is_redriven_comes_now_and_once(queue, clock):
    queue.publish_many(["a", "b"], delay=60, message_ids=["a", "b"])
    timers = Timers(Farms(queue))
    run_until(timers, clock, 3)
    assert queue.delayed.redrive(["a", "nobody"]) == {"a": DONE, "nobody": NOT_THERE}
    run_until(timers, clock, 5)
    assert payloads(queue) == ["a"]
    assert queue.delayed.redrive(["a"]) == {"a": NOT_THERE}
    run_until(timers, clock, 80)
    assert payloads(queue) == ["b"]
    assert queue.depth().delayed == 0


def test_what_is_redriven_is_counted_once(queue, clock):
    queue.publish_many(["a", "b"], delay=100, message_ids=["a", "b"])
    queue.delayed.redrive(["a"])
    assert queue.depth().delayed == 2
    run_until(Timers(Farms(queue)), clock, 5)
    assert queue.depth().delayed == 1
    run_until(Timers(Farms(queue)), clock, 100)
    assert queue.depth().delayed == 0


def test_a_redriven_message_that_was_far_off_is_not_taken_for_one_that_has_expired(queue, clock):
    queue.publish("a", delay=timedelta(days=1, hours=20), message_id="a")
    timers = Timers(Farms(queue))
    run_until(timers, clock, 3)
    queue.delayed.redrive(["a"])
    run_until(timers, clock, 5)
    assert payloads(queue) == ["a"]


def test_a_moved_message_waits_elsewhere_for_its_time(queue, other, clock):
    queue.publish("a", delay=30, message_id="a")
    assert queue.delayed.move(["a", "nobody"], other) == {"a": DONE, "nobody": NOT_THERE}
    assert queue.delayed.search() == []
    assert [m.message_id for m in other.delayed.search()] == ["a"]
    timers = Timers(Farms(queue, other))
    run_until(timers, clock, 25)
    assert payloads(other) == []
    run_until(timers, clock, 20)
    assert (payloads(queue), payloads(other)) == ([], ["a"])


@pytest.mark.parametrize("was_put_off", [False, True], ids=["published", "put off"])
def test_a_message_on_its_way_here_is_not_there_too(queue, other, clock, monkeypatch, was_put_off):
    queue.publish("a", delay=None if was_put_off else 5, message_id="a")
    for delivery in queue.receive():
        assert queue.put_off(delivery, 5.0) is True
    stored = type(queue.delayed)._stored_at

    def meanwhile(self, *args):
        there, rows = stored(self, *args)
        if there:
            run_until(Timers(Farms(queue)), clock, 10)
        return there, rows

    monkeypatch.setattr(type(queue.delayed), "_stored_at", meanwhile)
    assert queue.delayed.move(["a"], other) == {"a": NOT_THERE}
    run_until(Timers(Farms(queue, other)), clock, 10)
    assert (payloads(queue), payloads(other)) == (["a"], [])


def test_a_message_that_has_failed_has_no_attempts_where_it_is_moved(queue, other, clock):
    of = queue.publish("a")
    queue.receive()[0].nack(delay=5)
    assert queue.delayed.move([of], other) == {of: DONE}
    assert (other.status(of).state, other.status(of).attempts) == ("delayed", 0)
    assert (other.depth().delayed, other.depth().retrying, queue.depth().delayed) == (1, 0, 0)
    assert other.delayed.move([of], queue) == {of: DONE}
    run_until(Timers(Farms(queue, other)), clock, 10)
    assert (payloads(queue), payloads(other)) == (["a"], [])


def test_an_id_that_waits_there_already_is_told(queue, other):
    queue.publish("a", delay=30, message_id="a")
    other.publish("b", delay=30, message_id="a")
    with pytest.raises(AlreadyExists):
        queue.delayed.move(["a"], other)
    assert [m.payload for m in queue.delayed.search()] == ["a"]
    with pytest.raises(InvalidRequest, match="wait already"):
        queue.delayed.move(["a"], queue)


def test_a_message_that_the_other_queue_does_not_take_leaves_no_copy_of_those_before_it(queue, clock):
    short = QueueConfig("short", shards=1, message_expiry=timedelta(minutes=2), queue_expiry=timedelta(hours=1))
    other = queue.registry.create(short)
    queue.publish("soon", delay=30, message_id="a")
    queue.publish("far", delay=4000, message_id="b")
    with pytest.raises(InvalidRequest, match="1 h ahead at most") as refused:
        queue.delayed.move(["b", "a"], other)
    assert refused.value.details["outcomes"] == {"a": DONE}
    assert [m.message_id for m in queue.delayed.search(within=4100)] == ["b"]
    run_until(Timers(Farms(queue, other)), clock, 40)
    assert (payloads(queue), payloads(other)) == ([], ["soon"])


def test_of_messages_that_fail_for_different_reasons_each_has_the_code_of_its_own_error(queue):
    short = QueueConfig("short", shards=1, message_expiry=timedelta(minutes=2), queue_expiry=timedelta(hours=1))
    other = queue.registry.create(short)
    other.publish("there", delay=30, message_id="twice")
    queue.publish("soon", delay=30, message_id="soon")
    queue.publish("twice", delay=60, message_id="twice")
    queue.publish("far", delay=4000, message_id="far")
    with pytest.raises(AlreadyExists) as failed:
        queue.delayed.move(["far", "twice", "soon", "nobody"], other)
    assert failed.value.details["outcomes"] == {"soon": DONE, "nobody": NOT_THERE}
    assert failed.value.details["failures"] == {"far": "INVALID_REQUEST", "twice": "ALREADY_EXISTS"}


@pytest.mark.parametrize("verb", ["redrive", "move"])
def test_what_was_done_before_messages_that_have_failed_could_not_be_looked_at_is_told(queue, other, store, verb):
    queue.publish("a", message_id="failed")
    queue.receive()[0].nack(delay=60)
    queue.publish("b", delay=60, message_id="waits")
    more, of = [other] if verb == "move" else [], queue.delayed
    real = of._traced

    def traced(*given):
        fails(store, range(2, 20), "dropped")
        return real(*given)

    of._traced = traced
    with pytest.raises(Unavailable) as failure:
        getattr(of, verb)(["waits", "failed"], *more)
    assert failure.value.details["outcomes"] == {"waits": DONE}
    assert failure.value.details["failures"] == {"failed": "UNAVAILABLE"}


def test_what_a_move_that_failed_has_left_there_is_discarded_and_the_message_is_moved_again(queue, other, store, clock):
    queue.publish("a", delay=30, message_id="a")
    other.publish("b", delay=1)
    fails(store, range(3, 12), "dropped")  # from the bucket of the copy on
    with pytest.raises(Unavailable):
        queue.delayed.move(["a"], other)
    store.plan = {}
    with pytest.raises(AlreadyExists, match="cancel it"):
        queue.delayed.move(["a"], other)
    assert other.delayed.discard(["a"]) == {"a": DONE}
    assert queue.delayed.move(["a"], other) == {"a": DONE}
    run_until(Timers(Farms(queue, other)), clock, 40)
    assert (payloads(queue), payloads(other)) == ([], ["b", "a"])
    assert (queue.depth().delayed, other.depth().delayed) == (0, 0)


def test_a_discard_that_may_have_been_made_is_unknown_and_one_that_was_not_is_raised(queue, store):
    queue.publish_many(["a", "b"], delay=5, message_ids=["a", "b"])
    fails(store, range(1, 9), "reply_lost")
    assert queue.delayed.discard(["a"]) == {"a": UNKNOWN}
    store.plan = {}
    fails(store, range(1, 9), "dropped")
    with pytest.raises(Unavailable) as failure:
        queue.delayed.discard(["b"])
    assert failure.value.details["outcomes"] == {}
    store.plan = {}
    assert [m.message_id for m in queue.delayed.search()] == ["b"]


@pytest.mark.parametrize("within", [0, -1, 86_401, True, "1"])
def test_a_search_goes_no_further_than_a_day(queue, within):
    with pytest.raises(InvalidRequest, match="within"):
        queue.delayed.search(within=within)


# ---- what cannot be delivered


def damaged(queue):
    """Publish a delayed message whose record in the ledger is damaged; return the key of that record."""
    queue.publish("m", delay=1, message_id="m")
    by = queue.store.get(queue.delayed.entry("m"), "by").bins["by"]
    scope = f"{SCOPE}/{quote(f'm/{by}', safe='')}"
    record = LedgerRecords(queue.store, "c", "q", scope, partition=0, ttl=MEMORY).key(0)
    queue.store.operate(record, Put("slots", "no map"), exists=Exists.CREATE)
    return record


def too_big(queue):
    """Publish a delayed message that has no room for the names of the groups."""
    for n in range(30):
        queue.group(f"{n:064}")
    queue.publish("m" * (queue.store.describe().record_size_limit - AROUND - 2), delay=1, message_id="m")


@pytest.mark.parametrize("verb", ["discard", "cancel", "move"])
@pytest.mark.parametrize("made", [damaged, too_big])
def test_a_message_that_cannot_be_delivered_for_good_is_found_and_each_verb_takes_it(queue, other, clock, made, verb):
    made(queue)
    timers = Timers(Farms(queue, other))
    run_until(timers, clock, 10)
    (found,) = queue.delayed.search()
    assert (found.message_id, found.payload[0], queue.status("m").state) == ("m", "m", "delayed")
    if verb == "cancel":
        assert queue.cancel("m") is DONE
    else:
        more = [other] if verb == "move" else []
        assert getattr(queue.delayed, verb)(["m"], *more) == {"m": DONE}
    run_until(timers, clock, 130)
    assert (queue.delayed.search(), queue.depth().delayed) == ([], 0)
    assert ([one[0] for one in payloads(other)], payloads(queue)) == (["m"] if verb == "move" else [], [])


@pytest.mark.parametrize("meanwhile", ["another leader marks it", "an attempt is in doubt", "the store is away"])
def test_a_message_that_may_be_on_its_way_is_taken_by_nobody(queue, clock, monkeypatch, meanwhile):
    """Else it is said to be discarded, and comes."""

    def publish(of, wanted, *_, **__):
        if meanwhile == "another leader marks it":
            of.store.operate(of.delayed.entry("m"), Put("moving", 7))
        if meanwhile == "the store is away":
            return Rows([Unavailable("away") for _ in wanted])
        return Rows([RecordTooBig("too big", doubt=meanwhile == "an attempt is in doubt") for _ in wanted])

    monkeypatch.setattr(module, "publish_unless_there", publish)
    queue.publish("m", delay=1, message_id="m")
    run_until(Timers(Farms(queue)), clock, 10)
    assert (queue.delayed.search(), queue.delayed.discard(["m"])) == ([], {"m": NOT_THERE})
    monkeypatch.undo()
    run_until(Timers(Farms(queue)), clock, 65)
    assert payloads(queue) == ["m"]


def test_a_message_that_could_not_be_delivered_comes_once_it_can(queue, clock):
    record = damaged(queue)
    timers = Timers(Farms(queue))
    run_until(timers, clock, 10)
    queue.store.delete(record)
    run_until(timers, clock, 65)
    assert (payloads(queue), queue.depth().delayed) == (["m"], 0)
