"""One message at a time, sidelined or parked: found, discarded, brought back or elsewhere, each told exactly."""

from __future__ import annotations

from datetime import timedelta

import pytest

from latchwork.errors import InvalidRequest, LatchworkError, Refused, Unavailable
from latchwork.queue import Outcome, QueueConfig, Shovel
from latchwork.queue.sharded import peek
from latchwork.queue.sharded.envelope import PREVIOUS_ATTEMPTS
from latchwork.queue.sharded.pointers import LOAD
from latchwork.queue.sharded.selection import MOST
from latchwork.queue.sharded.sideline import TAKEN, TAKING
from latchwork.store import MemoryStore, Put
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore
from tests.queue.sharded.world import World, dies

DONE, NOT_THERE, UNKNOWN = Outcome.DONE, Outcome.NOT_THERE, Outcome.UNKNOWN


@pytest.fixture
def sim():
    clock = ManualClock()
    return World(MemoryStore(clock), clock)


def sidelined(process, payloads, reason="rejected", **options):
    """Messages that a handler has failed: their ids."""
    ids = process.queue.publish_many(payloads, **options)
    for delivery in process.queue.receive(len(ids)):
        delivery.nack(reason=reason)
    return ids


def waiting(view):
    return {message.message_id for message in view.peek_all()}


def test_search_finds_what_is_all_of_what_was_asked_for(world):
    process = world.process()
    side = process.queue.sideline
    first = sidelined(process, ["a", "b"], headers={"from": "x", "to": "y"})
    second = sidelined(process, ["c"], reason="timeout", key="customer")
    assert {m.message_id for m in side.search()} == {*first, *second}
    assert {m.message_id for m in side.search(header={"from": "x"})} == set(first)
    assert side.search(header={"from": "x", "to": "z"}) == []
    assert [m.payload for m in side.search(reason="timeout")] == ["c"]
    assert side.search(reason="timeout", header={"from": "x"}) == []
    assert second[0] in {m.message_id for m in side.search(key="customer")}
    assert {m.shard for m in side.search(key="customer")} == {process.queue.shard_of("customer")}
    assert len(side.search(limit=2)) == 2
    assert side.search(older_than=3600) == []
    assert waiting(side) == {*first, *second}, "nothing has changed"


def test_a_damaged_number_of_messages_ends_a_search_and_says_which_record_it_is_in(sim, monkeypatch):
    process = sim.process()
    side = process.queue.sideline
    ids = sidelined(process, ["a", "b"])
    (message, *_) = side.search(limit=1)
    sim.store.operate(side.pointers.pointers_key(message.shard), Put(LOAD, 10_000_000))
    monkeypatch.setattr(peek, "MOST_SLOTS", 3_000)
    assert len(side.search(limit=1)) == 1, "enough were found before"
    before = process.store.total
    with pytest.raises(InvalidRequest, match="more than 3,000 slots to look at, or the record") as caught:
        side.search(reason="timeout")
    assert caught.value.details["found"] == []
    with pytest.raises(InvalidRequest, match="give the ones that search has found"):
        side.discard(ids)
    assert process.store.total - before <= 2 * 5, "and in few calls"
    with pytest.raises(InvalidRequest, match="lower limit"):
        side.peek(10)
    assert side.discard([message]) == {message.message_id: DONE}


def test_search_by_age(sim):
    process = sim.process()
    old = sidelined(process, ["old"])
    sim.clock.advance(100)
    sidelined(process, ["young"])
    assert [m.message_id for m in process.queue.sideline.search(older_than=timedelta(seconds=50))] == old


def test_discard_leaves_the_others_and_says_of_each_what_came_to_it(world):
    process = world.process()
    side = process.queue.sideline
    ids = sidelined(process, ["a", "b", "c"])
    assert side.discard([ids[0], "nobody"]) == {ids[0]: DONE, "nobody": NOT_THERE}
    assert waiting(side) == set(ids[1:])
    assert side.discard([ids[0]]) == {ids[0]: NOT_THERE}
    assert {delivery.message_id for delivery in side.receive(10)} == set(ids[1:]), "the tombstone is passed"
    assert side.discard(ids) == dict.fromkeys(ids, NOT_THERE), "a consumer holds them"


def test_a_message_that_search_has_found_stands_for_just_itself(sim):
    process = sim.process()
    side = process.queue.sideline
    sidelined(process, ["a", "b"], message_ids=["same", "same"])
    one, other = side.search()
    assert side.discard([one]) == {"same": DONE}
    assert [m.payload for m in side.peek()] == [other.payload]
    assert side.discard(["same"]) == {"same": DONE}
    assert side.peek() == []


def test_an_id_stands_for_all_messages_of_it(sim):
    process = sim.process()
    sidelined(process, ["a", "b"], message_ids=["same", "same"])
    assert process.queue.sideline.discard(["same"]) == {"same": DONE}
    assert process.queue.sideline.peek() == []


def test_redrive_brings_just_these_back_with_no_attempts(world):
    process = world.process()
    ids = sidelined(process, ["a", "b", "c"])
    assert process.queue.sideline.redrive([ids[1], "nobody"]) == {ids[1]: DONE, "nobody": NOT_THERE}
    (delivery,) = process.queue.receive(10)
    assert (delivery.message_id, delivery.attempts, delivery.headers[PREVIOUS_ATTEMPTS]) == (ids[1], 1, "1")
    assert waiting(process.queue.sideline) == {ids[0], ids[2]}


def test_parked_messages_are_brought_back_by_id(sim):
    sim.options = {"max_deliveries": 1}
    process = sim.process()
    ids = sidelined(process, ["a", "b"])
    Shovel(process.queue).run_once()
    assert process.queue.receive(10) == []
    assert process.queue.parked.redrive([ids[0]]) == {ids[0]: DONE}
    assert [delivery.message_id for delivery in process.queue.receive(10)] == [ids[0]]
    assert process.queue.parked.discard([ids[1]]) == {ids[1]: DONE}
    assert process.queue.parked.peek_all() == []


def test_move_brings_messages_into_another_queue(sim):
    process = sim.process()
    other = process.registry.create(QueueConfig("other", retry=False, shards=3))
    ids = sidelined(process, ["a", "b"])
    assert process.queue.sideline.move([ids[0]], other) == {ids[0]: DONE}
    assert [(d.message_id, d.payload) for d in other.receive(5)] == [(ids[0], "a")]
    assert waiting(process.queue.sideline) == {ids[1]}


def test_a_message_cannot_be_moved_where_it_would_not_be_read(sim):
    process = sim.process()
    side = process.queue.sideline
    raw = process.registry.create(QueueConfig("raw", retry=False, codec="bytes"))
    gone = process.registry.create(QueueConfig("gone", retry=False))
    process.registry.deactivate("gone")
    ids = sidelined(process, ["a"])
    with pytest.raises(InvalidRequest, match="codec"):
        side.move(ids, raw)
    with pytest.raises(InvalidRequest, match="use redrive"):
        side.move(ids, process.queue)
    with pytest.raises(InvalidRequest, match="what QueueRegistry"):
        side.move(ids, "other")
    with pytest.raises(Refused, match="deactivated"):
        side.move(ids, gone)
    assert waiting(side) == set(ids)


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda side: side.discard("one"), "ids"),
        (lambda side: side.discard([7]), "message id"),
        (lambda side: side.discard([f"m{n}" for n in range(MOST + 1)]), "1000"),
        (lambda side: side.search(limit=0), "limit"),
        (lambda side: side.search(limit=MOST + 1), "limit"),
        (lambda side: side.search(reason="bored"), "reason"),
        (lambda side: side.search(older_than=-1), "older_than"),
        (lambda side: side.search(older_than=float("nan")), "older_than"),
        (lambda side: side.search(header={"a": 1}), "header"),
        (lambda side: side.search(key=7), "key"),
    ],
)
def test_nonsense_is_refused_before_anything_is_asked_of_the_store(sim, ask, named):
    process = sim.process()
    process.store.reset()
    with pytest.raises(InvalidRequest, match=named):
        ask(process.queue.sideline)
    assert process.store.total == 0


# ---- what fails


def test_a_discard_whose_reply_is_lost_is_found_done(sim):
    process = sim.process()
    ids = sidelined(process, ["a"])
    process.fails([3], "reply_lost")
    assert process.queue.sideline.discard(ids) == {ids[0]: DONE}
    assert waiting(process.queue.sideline) == set()


def test_a_discard_of_which_nobody_knows_is_unknown(sim):
    process = sim.process()
    ids = sidelined(process, ["a"])
    process.fails(range(3, 20), "reply_lost")
    assert process.queue.sideline.discard(ids) == {ids[0]: UNKNOWN}


def test_a_discard_that_was_certainly_not_made_is_raised_with_what_came_to_the_others(sim):
    process = sim.process()
    ids = sidelined(process, ["a", "b"])
    process.fails(range(3, 20), "dropped")
    with pytest.raises(Unavailable) as failure:
        process.queue.sideline.discard([*ids, "nobody"])
    assert failure.value.details["outcomes"] == {"nobody": NOT_THERE}
    process.store.plan = {}
    assert waiting(process.queue.sideline) == set(ids)


@pytest.mark.parametrize("kind", ["crash_before", "crash_after", "dropped", "reply_lost", "request_lost", "late"])
def test_a_fault_at_any_call_of_a_redrive_loses_nothing_and_tells_no_untruth(sim, kind):
    for call in range(1, 12):
        process = sim.process()
        ids = sidelined(process, [call])
        failing = sim.process()
        failing.fails([call], kind)
        outcome = None

        def bring(failing=failing, ids=ids):
            nonlocal outcome
            try:
                outcome = failing.queue.sideline.redrive(ids)[ids[0]]
            except LatchworkError:
                outcome = "not done"

        dies(bring)
        failing.store.plan = {}
        failing.store.deliver()
        there = [delivery.message_id for delivery in process.queue.receive(10)].count(ids[0])
        here = ids[0] in waiting(process.queue.sideline)
        assert there + here >= 1, (kind, call)
        if outcome is DONE:
            assert (there, here) == (1, False), (kind, call)
        if outcome in (NOT_THERE, "not done"):
            assert (there, here) == (0, True), (kind, call)
        process.queue.sideline.discard(ids)
        sim.clock.advance(TAKING / 1000 + 1)


def test_a_message_that_is_received_while_it_is_brought_back_is_unknown_as_it_may_come_twice(sim):
    process, other = sim.process(), sim.process()
    ids = sidelined(process, ["a"])
    got = []
    process.store.plan[process.store._number + 5] = lambda: got.extend(other.queue.sideline.receive())
    assert process.queue.sideline.redrive(ids) == {ids[0]: UNKNOWN}
    assert len(got) == len(process.queue.receive(5)) == 1


def test_what_somebody_died_with_can_be_brought_back_a_minute_later(sim):
    process, dying = sim.process(), sim.process()
    ids = sidelined(process, ["a"])
    dying.fails([4], "crash_before")
    assert dies(lambda: dying.queue.sideline.redrive(ids))
    assert process.queue.sideline.redrive(ids) == {ids[0]: NOT_THERE}
    sim.clock.advance(TAKING / 1000 + 0.1)
    assert process.queue.sideline.redrive(ids) == {ids[0]: DONE}


def test_the_id_that_a_ledger_needs_is_kept(sim):
    process = sim.process()
    process.queue.publish("a", dedup="k", dedup_for=timedelta(days=1))
    process.queue.receive()[0].nack()
    (message,) = process.queue.sideline.search()
    assert process.queue.sideline.discard([message]) == {message.message_id: DONE}
    record = sim.store.get(process.queue.sideline.pointers.key((message.shard, message.pointer)))
    assert (record.bins["msgId"], "data" in record.bins) == (message.message_id, False)
    assert record.ttl > timedelta(hours=23).total_seconds()


def test_what_took_the_slot_of_a_message_meanwhile_is_not_discarded_in_its_place(sim):
    process = sim.process()
    ids = sidelined(process, ["a"])
    (message,) = process.queue.sideline.search()
    key = process.queue.sideline.pointers.key((message.shard, message.pointer))
    process.store.plan[process.store._number + 3] = lambda: sim.store.operate(key, Put("msgId", "another"))
    assert process.queue.sideline.discard(ids) == {ids[0]: NOT_THERE}
    assert waiting(process.queue.sideline) == {"another"}


def test_who_paused_for_a_minute_while_another_brought_a_message_back_says_that_it_may_come_twice(sim):
    process, other = sim.process(), sim.process()
    ids = sidelined(process, ["a"])
    said = []

    def meanwhile():
        sim.clock.advance(TAKING / 1000 + 1)
        said.append(other.queue.sideline.redrive(ids))

    process.store.plan[process.store._number + 4] = meanwhile
    assert process.queue.sideline.redrive(ids) == {ids[0]: UNKNOWN}
    assert said == [{ids[0]: DONE}]


def test_a_message_that_another_has_taken_over_is_left_to_them(sim):
    process = sim.process()
    ids = sidelined(process, ["a"])
    (message,) = process.queue.sideline.search()
    key = process.queue.sideline.pointers.key((message.shard, message.pointer))
    process.store.plan[process.store._number + 6] = lambda: sim.store.operate(key, Put(TAKEN, "another"))
    assert process.queue.sideline.redrive(ids) == {ids[0]: UNKNOWN}
    assert waiting(process.queue.sideline) == set(ids)


def test_a_redrive_that_may_have_loaded_a_message_is_unknown(sim):
    process = sim.process()
    ids = sidelined(process, ["a"])
    process.fails(range(5, 30), "reply_lost")
    assert process.queue.sideline.redrive(ids) == {ids[0]: UNKNOWN}
    assert len(sim.process().queue.receive(5)) == 1


def test_what_each_costs(sim):
    store = CountingStore(sim.store)
    sim.store = store
    process = sim.process()
    ids = sidelined(process, range(100))
    side = process.queue.sideline
    found = side.search(limit=100)
    store.reset()
    side.discard(ids[:10])
    assert store.total == 3
    store.reset()
    side.discard(found[50:60])
    assert store.total == 2
    store.reset()
    side.redrive(ids[20:30])
    assert store.total == 6
