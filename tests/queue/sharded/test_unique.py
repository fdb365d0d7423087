"""A key has one message until it is done (docs/protocols P30)."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from latchwork.errors import AlreadyExists, Corrupt, InvalidRequest, OutcomeUnknown, Refused, Unavailable
from latchwork.queue import Consumer, Outcome, Shovel, ShovelConfig, State
from latchwork.queue.sharded.publishing.unique import ON_DUPLICATE
from latchwork.store import MemoryStore, Put, SQLiteStore
from latchwork.testing import CountingStore, FaultyStore, bring_back, inject_everywhere
from tests.support import struck
from tests.support.waiting import until

from .test_one_message import calls, due, made


def again(queue, payload="new", **options):
    return queue.publish(payload, unique="k", **options)


def kept(queue, of):
    """Whether this message has the key, whatever is asked for."""
    with pytest.raises(AlreadyExists) as refused:
        again(queue, on_duplicate="raise")
    return again(queue) == of == refused.value.details["message_id"]


def in_state(queue, clock, state):
    """The id of a message of the key in this state, and its delivery where somebody has it."""
    of = queue.publish("m", unique="k", delay=60 if state == "delayed" else None)
    clock.advance(2)
    held = queue.receive() if state not in ("ready", "delayed") else []
    if state in ("retrying", "again"):
        held.pop().nack()
    if state == "again":
        held = due(queue, clock)
    if state == "swept":
        bring_back(queue)
    if state == "back":
        queue.give_back(held)
    return of, held


LIVING = ("ready", "running", "retrying", "again", "delayed", "swept", "back")


@pytest.mark.parametrize("state", LIVING)
def test_a_key_keeps_its_message_in_every_state_in_which_that_lives(store, clock, state):
    queue = made(store, retry=True)
    of, _ = in_state(queue, clock, state)
    assert kept(queue, of)
    moved, later = state in ("again", "retrying", "swept"), state in ("retrying", "delayed")
    assert calls(store, again, queue) == (of, 2 + moved + later)


def _acked(queue, held, of, clock):
    held[0].ack()


def _parked(queue, held, of, clock):
    held[0].nack()
    due(queue, clock)[0].nack()
    assert queue.status(of).state is State.PARKED


def _discarded(queue, held, of, clock):
    _parked(queue, held, of, clock)
    assert queue.parked.discard([of]) == {of: Outcome.DONE}


def _cancelled(queue, held, of, clock):
    queue.give_back(held)
    assert queue.cancel(of) is Outcome.DONE


def _asked(queue, held, of, clock):
    assert queue.cancel(of) is Outcome.ASKED
    assert again(queue) == of, "its handler is still at work"
    held[0].nack()


def _expired(queue, held, of, clock):
    queue.give_back(held)
    clock.advance(16 * 86_400)


ENDS = {"acknowledged": _acked, "parked": _parked, "discarded": _discarded, "cancelled": _cancelled,
        "cancelled in hand": _asked, "expired": _expired}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_a_key_is_free_once_its_message_has_ended(store, clock, end):
    queue = made(store)
    of, held = in_state(queue, clock, "running")
    ENDS[end](queue, held, of, clock)
    clock.advance(2)
    other, n = calls(store, again, queue)
    assert other != of
    assert n == 4 if end == "acknowledged" else n <= 7 or end == "expired", "with a look at what was made anew"
    assert kept(queue, other)
    assert [one.payload for one in queue.receive(10)] == ["new"]


@pytest.mark.parametrize("ahead", [0, 7200, -7200])
@pytest.mark.parametrize("state", ["delayed", "retrying"])
def test_a_key_is_free_once_the_life_of_a_message_that_waits_is_over(store, clock, state, ahead):
    """By the server's time, whatever this machine's clock says, and though nobody does the upkeep."""
    queue = made(store, message_expiry=600, retry=True)
    of, _ = in_state(queue, clock, state)
    life = (queue.status(of).due - queue.status(of).since).total_seconds() + 600
    publisher = made(CountingStore(store, seams=clock.skewed(ahead)), message_expiry=600, retry=True)
    clock.advance(life - 10)
    assert kept(publisher, of)
    clock.advance(20)
    other, n = calls(store, again, publisher)
    assert other != of
    assert n == (9 if state == "retrying" else 8)
    assert kept(publisher, other)
    assert queue.depth().retrying == queue.depth().delayed == 0
    assert [one.payload for one in due(queue, clock, 100)] == ["new"]


def test_a_message_whose_life_is_over_does_not_come_beside_the_next_one_of_its_key(store, clock):
    """The server that has its record may be behind: the leader would take it for one that is due."""
    queue = made(store, message_expiry=600)
    of = queue.publish("m", unique="k", delay=60)
    clock.advance(670)
    assert again(queue) != of
    clock.step(-60)
    assert [one.payload for one in due(queue, clock, 20)] == ["new"]


def test_what_it_costs(store, clock):
    queue = made(store)
    assert calls(store, queue.publish, "m")[1] == 2
    of, n = calls(store, again, queue)
    assert n == 4
    assert calls(store, lambda: again(queue, on_duplicate="replace")) == (of, 4)
    plain, unique = queue.receive(2)
    assert (calls(store, plain.ack)[1], calls(store, unique.ack)[1]) == (1, 2)
    queue.publish("first of the process", delay=9)
    assert calls(store, lambda: again(queue, delay=5))[1] == 4
    assert calls(store, lambda: again(queue, delay=5, on_duplicate="replace"))[1] == 4


@pytest.mark.parametrize("state", ["ready", "back", "delayed", "retrying"])
def test_a_message_that_waits_is_replaced_and_runs_once(store, clock, state):
    queue = made(store)
    of, _ = in_state(queue, clock, state)
    delay = 30 if state in ("delayed", "retrying") else None
    assert again(queue, "newer", headers={"h": "1"}, delay=delay, on_duplicate="replace") == of
    assert again(queue, "newest", delay=delay, on_duplicate="replace") == of
    if delay:
        assert due(queue, clock, 28) == []
    found = due(queue, clock, 5)
    assert [(one.payload, one.message_id, one.attempts) for one in found] == [("newest", of, 1)]
    assert dict(found[0].headers) == {}
    found[0].ack()
    assert due(queue, clock, 100) == []


def test_a_delayed_message_that_is_replaced_without_a_delay_comes_now(store, clock):
    queue = made(store)
    of, _ = in_state(queue, clock, "delayed")
    assert again(queue, on_duplicate="replace") == of
    assert [one.payload for one in due(queue, clock, 5)] == ["new"]


@pytest.mark.parametrize("on_duplicate", ["keep", "replace"])
@pytest.mark.parametrize("delay", [None, 5, 100])
@pytest.mark.parametrize("state", ["delayed", "retrying"])
def test_a_delayed_message_is_counted_once_however_often_it_is_kept_or_replaced(
    store, clock, state, delay, on_duplicate
):
    queue = made(store)
    queue.publish("another", delay=1_000)
    of, _ = in_state(queue, clock, state)
    for _ in range(3):
        assert again(queue, delay=delay, on_duplicate=on_duplicate) == of
        clock.advance(0.5)
    assert queue.depth().delayed == 2
    (found,) = due(queue, clock, 120)
    assert found.message_id == of
    assert (queue.depth().delayed, queue.depth().retrying) == (1, 0)


@pytest.mark.parametrize("state", ["running", "again"])
def test_a_message_in_hand_is_not_replaced(store, clock, state):
    queue = made(store)
    of, held = in_state(queue, clock, state)
    with pytest.raises(AlreadyExists, match="in hand") as refused:
        again(queue, on_duplicate="replace")
    assert refused.value.details["message_id"] == of
    held[0].ack()
    assert again(queue, on_duplicate="replace") != of


def test_what_groups_or_a_stream_read_is_not_replaced(store):
    queue = made(store, shards=1)
    queue.group("audit")
    again(queue)
    with pytest.raises(AlreadyExists, match="groups or a stream"):
        again(queue, on_duplicate="replace")
    queue.receive()[0].ack()
    assert again(queue)


def test_what_groups_have_is_not_replaced_while_it_waits_for_its_retry(store):
    queue = made(store, shards=1)
    audit = queue.group("audit")
    again(queue)
    audit.receive()[0].ack()
    queue.receive()[0].nack("exception")
    with pytest.raises(AlreadyExists, match="groups or a stream"):
        again(queue, on_duplicate="replace")
    assert (audit.depth().ready, queue.depth().retrying) == (0, 1)


def test_what_groups_have_is_not_replaced_while_it_is_put_off(store):
    queue = made(store, shards=1)
    audit = queue.group("audit")
    again(queue, "old")
    assert queue.put_off(queue.receive()[0], 60.0) is True
    with pytest.raises(AlreadyExists, match="groups or a stream"):
        again(queue, on_duplicate="replace")
    assert [one.payload for one in audit.receive()] == ["old"]


@pytest.mark.parametrize("came_back", [False, True])
def test_what_groups_have_is_not_replaced_in_the_sideline_nor_once_a_shovel_has_brought_it_back(store, came_back):
    queue = made(store, shards=1, shovel=ShovelConfig(1))
    queue.group("audit")
    again(queue)
    queue.receive()[0].nack()
    if came_back:
        store.seams.advance(12)
        assert Shovel(queue).run_once().moved == 1
    with pytest.raises(AlreadyExists, match="groups or a stream"):
        again(queue, on_duplicate="replace")


@pytest.mark.parametrize("delay", [None, 30])
def test_what_is_replaced_in_the_sideline_comes_after_its_own_delay(store, delay):
    queue = made(store, shovel=ShovelConfig(1), backoff=3600)
    of = again(queue, "old")
    queue.receive()[0].nack()
    assert again(queue, on_duplicate="replace", delay=delay) == of
    if delay is not None:
        store.seams.advance(delay - 5)
        assert Shovel(queue).run_once().moved == 0
        store.seams.advance(10)
    assert Shovel(queue).run_once().moved == 1
    assert [one.payload for one in queue.receive(10)] == ["new"]


def test_a_parked_message_that_comes_back_has_its_key_again_unless_another_one_has_taken_it(store, clock):
    queue = made(store)
    of, held = in_state(queue, clock, "running")
    _parked(queue, held, of, clock)
    queue.redrive(10)
    assert kept(queue, of)
    (delivery,) = queue.receive()
    _parked(queue, [delivery], of, clock)
    other = again(queue)
    queue.redrive(10)
    assert kept(queue, other)
    found = {one.message_id: one for one in queue.receive(10)}
    assert found.keys() == {of, other}
    found[of].ack()
    assert kept(queue, other), "only its own message frees a key"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"unique": ""}, "unique"), ({"unique": 7}, "unique"), ({"unique": "x" * 257}, "257"),
        ({"unique": "k", "message_id": "m"}, "message_id"), ({"unique": "k", "dedup": "d"}, "dedup"),
        ({"unique": "k", "on_duplicate": "drop"}, "on_duplicate"), ({"on_duplicate": "replace"}, "on_duplicate"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_before_any_call(store, options, named):
    queue = made(store)
    with pytest.raises(InvalidRequest, match=named):
        calls(store, lambda: queue.publish("m", **options))
    before = store.total
    with queue.publisher() as publisher, pytest.raises(InvalidRequest, match="alone"):
        publisher.publish("m", unique="k")
    assert store.total == before
    batch = queue.batch("b")
    before = store.total
    with pytest.raises(InvalidRequest, match="alone"):
        batch.publish("m", unique="k")
    assert store.total == before
    assert "replace" in ON_DUPLICATE


@pytest.mark.parametrize("option", ["unique", "dedup"])
def test_a_key_has_at_most_256_characters(store, option):
    queue = made(store)
    assert queue.publish("m", **{option: "k" * 256})
    with pytest.raises(InvalidRequest, match=f"{option} has 257 characters; give at most 256"):
        queue.publish("m", **{option: "k" * 257})
    assert queue.depth().ready == 1


def test_a_publisher_that_dies_before_its_write_holds_the_key_up_for_a_second(clock):
    store = FaultyStore(MemoryStore(clock))
    queue = made(store)
    store.plan |= {store._number + 4: "request_lost", store._number + 5: "request_lost"}
    store.plan |= {store._number + n: "request_lost" for n in range(4, 12)}
    with pytest.raises(OutcomeUnknown):
        again(queue)
    store.plan.clear()
    began = clock.monotonic()
    of = again(queue, "second")
    assert 0.9 < clock.monotonic() - began < 2
    assert [(one.payload, one.message_id) for one in queue.receive(10)] == [("second", of)]


@pytest.mark.parametrize("delay", [None, 5])
def test_a_publisher_that_was_paused_before_its_write_finds_its_place_sealed(clock, delay):
    inner = MemoryStore(clock)
    store = Paused(inner)
    slow, fast = made(store), made(inner)
    store.between = lambda: others.append(again(fast, "fast", delay=delay))
    others = []
    clock_at = clock.monotonic()
    assert again(slow, "slow", delay=delay) == others[0]
    assert clock.monotonic() - clock_at >= 1
    assert [one.payload for one in due(fast, clock, 10)] == ["fast"]


def test_a_key_whose_record_is_damaged_is_named_and_one_whose_record_names_nobody_is_free(store):
    queue = made(store)
    again(queue)
    (record,) = store.scan("c_unique_set")
    store.operate(record.key, Put("id", 7))
    with pytest.raises(Corrupt, match="delete the record"):
        again(queue)
    store.operate(record.key, Put("id", None))
    of = again(queue, "next")
    assert [one.payload for one in queue.receive(10) if one.message_id == of] == ["next"]


@pytest.mark.parametrize("call", range(1, 5))
def test_of_two_publishers_at_once_one_publishes_and_both_have_the_id_of_its_message(clock, call):
    inner = MemoryStore(clock)
    store = FaultyStore(inner)
    first, second = made(store), made(inner)
    others = []
    store.plan |= {store._number + call: lambda: others.append(again(second, "second"))}
    assert [again(first, "first")] == others
    assert [one.message_id for one in due(second, clock, 10)] == others


@pytest.mark.parametrize("delay", [None, 60])
def test_a_replacement_that_arrives_late_undoes_no_later_one(clock, delay):
    inner = MemoryStore(clock)
    store = Sent(inner)
    slow, fast = made(store), made(inner)
    of = again(fast, delay=delay)
    assert again(slow, "first", delay=delay, on_duplicate="replace") == of
    assert again(fast, "second", delay=delay, on_duplicate="replace") == of
    (row, _) = inner.repeat_many(store.replacing)
    assert isinstance(row, Refused)
    assert [one.payload for one in due(fast, clock, 70)] == ["second"]


class Sent(CountingStore):
    """A store that keeps the updates by which a message was replaced."""

    replacing = ()

    def repeat_many(self, updates, instead=None):
        if any(isinstance(op, Put) and op.bin == "replaced" for op in updates[0].ops):
            self.replacing = updates
        return super().repeat_many(updates, instead)


class Paused(CountingStore):
    """A store whose owner is paused once, after it has taken a key."""

    between = None

    def repeat(self, update):
        answer = super().repeat(update)
        if update.key.set == "c_unique_set" and update.or_absent and self.between:
            between, self.between = self.between, None
            between()
        return answer


@pytest.mark.parametrize(
    "how",
    [{}, pytest.param({"delay": 5}, marks=pytest.mark.long), {"delay": 5, "on_duplicate": "replace"}],
)
def test_it_is_published_once_and_not_lost_whatever_call_fails(how):
    def publish(store, done):
        again(made(store), **how)

    def check(store):
        queue = made(store)
        assert [one.payload for one in due(queue, store.seams, 10)] == ["new"]

    report = inject_everywhere(publish, check=check, faults=struck.faults("a publish of a key"))
    assert report.calls > 2
    assert not report.troubles, report


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("sqlite", marks=pytest.mark.long), "aerospike"])
def test_two_publishers_a_worker_that_stops_and_one_that_cancels_leave_one_message_at_a_time(kind, request, tmp_path):
    if kind == "aerospike":
        real = request.getfixturevalue("aerospike_store")
    else:
        real = SQLiteStore(tmp_path / "s.db", synchronous="off")
    queue = made(real, "unique", sweep_duration=120, handler_timeout=60, backoff=0.05)
    running, most, ids, stop = set(), [], set(), threading.Event()

    def handler(delivery):
        running.add(delivery.message_id)
        most.append(len(running))
        stop.wait(0.02)  # in which another one of the key would begin
        running.discard(delivery.message_id)
        return delivery.payload % 3 > 0

    def publisher(n):
        while not stop.is_set() and len(ids) < 20:
            with suppress(AlreadyExists, Unavailable):  # the other one publishes, and cancels, all the time
                ids.add(queue.publish(n, unique="k", on_duplicate=ON_DUPLICATE[n % 3]))
            n += 1
            if n % 7 == 0 and ids:
                queue.cancel(max(ids))

    threads = [threading.Thread(target=publisher, args=(n,)) for n in (1, 5)]
    try:
        with Consumer(queue, handler, concurrency=4):
            for thread in threads:
                thread.start()
            until(lambda: len(ids) >= 10)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert max(most) == 1, "two of one key ran at once"
