"""The ledger: every message of a scope is published once, whatever happened to earlier attempts (P6)."""

from __future__ import annotations

import dataclasses
import random
import tracemalloc
from collections import Counter
from contextlib import suppress
from datetime import timedelta

import pytest

from latchwork.errors import (
    InvalidRequest,
    LatchworkError,
    NonDeterministicInput,
    OutcomeUnknown,
    RecordTooBig,
    Refused,
)
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded import stream as ranges
from latchwork.queue.sharded.envelope import Envelope
from latchwork.queue.sharded.ledger.ledger import LEDGER_TTL, Ledger, Outgoing, chunks
from latchwork.queue.sharded.slots import Slot, Stamped, WriteResult
from latchwork.store import MemoryStore
from latchwork.testing import inject_everywhere
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, Crash, Fault, FaultyStore
from tests.support import struck

N = 25
SWEEP = 1200.0


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr("latchwork.queue.sharded.ledger.ledger.CHUNK", 10)


def queue_on(store, **settings):
    options = {"shards": 3, "sweep_duration": timedelta(seconds=SWEEP)}
    return QueueRegistry(store, "shop").create(QueueConfig("q", **options | settings))


def rows(n=N, start=0):
    return [Outgoing({"n": number}) for number in range(start, start + n)]


def shuffled(messages, seed=1):
    again = list(messages)
    random.Random(seed).shuffle(again)
    return again


def claimed(queue):
    """All slots that are reserved, claimed by a consumer that pauses before it looks at them."""
    shards = [state.shard for state in queue.pointers.states() if queue.pointers.claim(state.shard, 1000)]
    return [Slot(shard, n) for shard in shards for n in range(1, queue.pointers.states([shard])[0].fired + 1)]


def consumed(queue, slots=()):
    """The numbers in the queue, each as often as it is handed out; all are acknowledged. slots: claimed before."""
    found = Counter()
    if slots:
        queue.pointers.write_tombstones(slots)
    for slot, envelope in zip(slots, queue.pointers.stamp(slots, "me") if slots else (), strict=True):
        if isinstance(envelope, Envelope):
            found[queue.codec.decode(envelope.data)["n"]] += 1
            assert queue.pointers.remove([Stamped(slot, "me", envelope)]) == [True]
    while True:
        got = queue.receive(1000)
        if not got:
            return found
        found.update(delivery.payload["n"] for delivery in got)
        queue.ack_many(got)


ONCE = Counter(range(N))


def records(queue, scope="job", partition=0):
    return Ledger(queue, scope)._records(partition)


# ---- once


def test_everything_is_published_once(store):
    queue = queue_on(store)
    done = Ledger(queue, "job").publish(0, rows())
    assert (done.messages, done.new) == (N, N)
    assert consumed(queue) == ONCE


def test_the_same_again_in_another_order_publishes_nothing(store):
    queue = queue_on(store)
    Ledger(queue, "job").publish(0, rows())
    again = Ledger(queue, "job").publish(0, shuffled(rows()))
    assert (again.messages, again.new) == (N, 0)
    assert consumed(queue) == ONCE


def test_the_same_again_after_it_was_consumed_publishes_nothing(store):
    queue = queue_on(store)
    Ledger(queue, "job").publish(0, rows())
    assert consumed(queue) == ONCE
    assert Ledger(queue, "job").publish(0, shuffled(rows())).new == 0
    assert consumed(queue) == Counter()


def test_equal_rows_are_as_many_messages_as_there_are(store):
    queue = queue_on(store)
    for order in (rows(5) * 3, shuffled(rows(5) * 3)):
        Ledger(queue, "job").publish(0, order)
    assert consumed(queue) == Counter(dict.fromkeys(range(5), 3))


def test_other_partitions_and_other_scopes_are_other_messages(store):
    queue = queue_on(store)
    ids = set()
    for scope in ("job", "job2"):
        for partition in (0, 1):
            assert Ledger(queue, scope).publish(partition, rows(3)).new == 3
            ids |= {msg_id for chunk in chunks(records(queue, scope, partition)) for msg_id in chunk.places}
    assert len(ids) == 12
    assert consumed(queue) == Counter(dict.fromkeys(range(3), 4))


def test_the_callers_own_ids_are_kept_and_must_be_unique(store):
    queue = queue_on(store)
    Ledger(queue, "job").publish(0, [Outgoing({"n": 1}, message_id="a"), Outgoing({"n": 2}, message_id="b")])
    assert {message.message_id for message in queue.peek()} == {"a", "b"}
    with pytest.raises(InvalidRequest, match="'a' comes twice"):
        Ledger(queue, "other").publish(0, [Outgoing(1, message_id="a"), Outgoing(2, message_id="a")])


def test_messages_of_one_key_go_to_one_shard_with_their_headers(store):
    queue = queue_on(store)
    Ledger(queue, "job").publish(0, [Outgoing({"n": n}, key="k", headers={"h": str(n)}) for n in range(5)])
    found = queue.peek(10)
    assert {message.shard for message in found} == {queue.shard_of("k")}
    assert [message.headers for message in found] == [{"h": str(n)} for n in range(5)]


def test_what_is_not_deterministic_is_said(store):
    queue = queue_on(store)
    Ledger(queue, "job").publish(0, rows())
    with pytest.raises(NonDeterministicInput, match="5 messages that an earlier attempt published"):
        Ledger(queue, "job").publish(0, rows(N, start=5))


def test_a_deactivated_queue_is_refused(store):
    queue = queue_on(store)
    queue.registry.deactivate("q")
    with pytest.raises(Refused, match="deactivated"):
        Ledger(queue, "job").publish(0, rows(1))


def test_bad_scopes_are_refused(store):
    for scope in ("", "x" * 2_049, 7):
        with pytest.raises(InvalidRequest, match="scope"):
            Ledger(queue_on(store), scope)


def ids_of(queue, messages):
    """The message ids that these get, in a scope that nothing was published under before."""
    Ledger(queue, "fresh").publish(0, messages)
    return [msg_id for chunk in chunks(records(queue, "fresh")) for msg_id in chunk.places]


@pytest.mark.parametrize(
    "one",
    [Outgoing(b"a", key="k"), Outgoing(b"", key="k"), Outgoing(b"", headers={"h": "1"}), Outgoing(b"a1", key="k")],
    ids=repr,
)
def test_a_message_whose_content_reads_like_another_ones_key_and_headers_is_another_message(store, one):
    """Else their ids differ by the ordinal only, and a repeat in another order takes one for the other."""
    described = repr((one.key, sorted((one.headers or {}).items()))).encode()
    size = str(len(one.payload)).encode()
    alike = [Outgoing(one.payload + rest) for rest in (described, size + described, b":" + described)]
    ids = ids_of(queue_on(store, codec="bytes"), [one, *alike])
    assert len({msg_id.rpartition("-")[0] for msg_id in ids}) == len(ids) == 4


def test_rows_without_key_and_headers_have_the_ids_that_earlier_versions_gave_them(store):
    """So that an attempt that was begun by one version is completed by the next."""
    (msg_id,) = ids_of(queue_on(store), [Outgoing({"n": 1})])
    assert msg_id == "a8af405af592629770ae5370-1"


def test_a_repeat_keeps_no_rows_of_what_is_written_already(store):
    """Else it would hold a whole partition in memory."""
    queue = queue_on(store)
    first = range(100)
    Ledger(queue, "job").publish(0, (Outgoing(f"{n}" + "x" * 50_000) for n in first))
    tracemalloc.start()
    Ledger(queue, "job").publish(0, (Outgoing(f"{n}" + "x" * 50_000) for n in sorted(first, key=lambda n: n % 10)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


# ---- faults


def attempt(store, clock, fault=None, at=0, order=None):
    """An attempt of a process of its own; whether it got to the end."""
    try:
        publish(FaultyStore(store, {at: fault} if fault else None, seams=clock), order or rows())
    except (Crash, LatchworkError):
        return False
    return True


def publish(store, messages):
    """An attempt of a process of its own."""
    Ledger(QueueRegistry(store, "shop").get("q"), "job").publish(0, messages)


CALLS = 16
"""Store calls of a fault-free attempt: one for the queue, one look, four for each of three chunks, and spare ones."""


@pytest.mark.parametrize("later", [0, pytest.param(86_400, marks=pytest.mark.long)])
@pytest.mark.parametrize("consume", [pytest.param(False, marks=pytest.mark.long), True])
def test_after_a_fault_at_any_call_another_attempt_makes_it_once(consume, later):
    """consume: consumers take what the first attempt has written before the other one begins."""

    def another(store, done):
        queue = QueueRegistry(store, "shop").get("q")
        if consume:
            done += consumed(queue).elements()
        store.seams.advance(later)
        for order in (shuffled(rows()), rows()):
            publish(store, order)
        done += consumed(queue).elements()

    report = inject_everywhere(
        lambda store, done: publish(store, rows()),
        prepare=queue_on,
        recover=another,
        expected=range(N),
        faults=struck.faults("an attempt"),
    )
    assert 13 <= report.calls <= CALLS
    assert not report.troubles, report


@pytest.mark.parametrize("pause", [0, SWEEP])
def test_two_attempts_at_once_both_come_to_their_end_and_make_it_once(pause):
    """The second runs from beginning to end just before some call of the first, which pauses there."""
    for at in range(1, CALLS + 1):
        store = MemoryStore(ManualClock())
        queue = queue_on(store)

        def meanwhile(store=store):
            store.seams.advance(pause)
            publish(store, shuffled(rows()))

        publish(FaultyStore(store, {at: meanwhile}), rows())
        assert consumed(queue) == ONCE, at


FEW = 3
"""Messages of one chunk."""


@pytest.mark.parametrize("second_at", range(3, 24, 4))
@pytest.mark.parametrize("third_at", [3, 8, 13, 99])
def test_two_late_attempts_that_move_the_same_messages_make_it_once(store, clock, second_at, third_at):
    """Both find a chunk that is too old, and one is in the middle of moving its messages when the other comes."""
    queue = queue_on(store)
    attempt(store, clock, "crash_after", 5, order=rows(FEW))
    slots = claimed(queue)
    clock.advance(SWEEP)
    third = lambda: attempt(store, clock, "crash_after", third_at, order=rows(FEW))  # noqa: E731
    attempt(store, clock, third, second_at, order=rows(FEW))
    assert attempt(store, clock, order=rows(FEW))
    assert consumed(queue, slots) == Counter(range(FEW))


@pytest.mark.parametrize("at", range(6, 20, 2))
def test_a_message_that_expires_unread_while_it_is_moved_is_published_in_its_new_place(store, clock, at):
    queue = queue_on(store, message_expiry=timedelta(days=1))
    attempt(store, clock, "crash_after", 5, order=rows(FEW))
    claimed(queue)
    clock.advance(SWEEP)
    attempt(store, clock, "crash_after", at, order=rows(FEW))
    clock.advance(90_000)
    assert attempt(store, clock, order=rows(FEW))
    assert consumed(queue) == Counter(range(FEW))


@pytest.mark.parametrize("at", range(6, 20, 2))
def test_a_message_that_is_handed_out_while_it_is_moved_comes_once(store, clock, at):
    queue = queue_on(store)
    attempt(store, clock, "crash_after", 5, order=rows(FEW))
    slots = claimed(queue)
    clock.advance(SWEEP)
    attempt(store, clock, "crash_after", at, order=rows(FEW))
    first = consumed(queue, slots)
    assert attempt(store, clock, order=rows(FEW))
    assert first + consumed(queue) == Counter(range(FEW))


@pytest.mark.parametrize("at", range(3, 12, 2))
@pytest.mark.parametrize("until", [3, 6, 10])
def test_what_the_first_attempt_notes_at_the_last_moment_is_not_moved(store, clock, at, until):
    """Everything was there in time; the first attempt comes to say so while a later one moves the messages."""
    queue = queue_on(store)
    attempt(store, clock, "crash_before", 6, order=rows(FEW))
    slots = claimed(queue)
    clock.advance(SWEEP)
    faulty = FaultyStore(store, {until: "crash_after", at: lambda: records(queue).finish(0, 0)}, seams=clock)
    with suppress(Crash):
        Ledger(QueueRegistry(faulty, "shop").get("q"), "job").publish(0, rows(FEW))
    assert attempt(store, clock, order=rows(FEW))
    assert consumed(queue, slots) == Counter(range(FEW))


def test_rows_that_nobody_can_have_passed_stay_where_they_are_however_late_the_next_attempt_is(store, clock):
    """A stream may have read them already, without a stamp; moved, they would be read once more."""
    queue = queue_on(store, shards=1)
    attempt(store, clock, "crash_before", 6, order=rows(FEW))
    owner = ranges.take(queue.pointers, "stream")
    (read,) = ranges.read(queue.pointers, 0, 0, FEW)
    clock.advance(SWEEP)
    assert attempt(store, clock, order=rows(FEW))
    assert [state.loaded for state in ranges.states(queue.pointers, owner)] == [FEW]
    assert list(ranges.read(queue.pointers, 0, 0, FEW)) == [read]
    assert len(read) == FEW


@pytest.mark.parametrize("acknowledge", [True, False])
def test_a_repeat_of_what_was_written_and_handed_out_moves_nothing_and_costs_three_calls_more(
    store, clock, acknowledge
):
    counting = CountingStore(store)
    queue = queue_on(counting)
    assert not attempt(store, clock, "crash_before", at=6, order=rows(8))  # all is written; that it is, is not noted
    reserved = [state.loaded for state in queue.pointers.states()]
    deliveries = queue.receive(5)
    if acknowledge:
        queue.ack_many(deliveries)
    unread = [state.loaded - state.fired for state in queue.pointers.states()]
    assert sum(unread) == 3
    counting.reset()
    assert Ledger(queue, "job").publish(0, rows(8)).new == 0
    # Two looks for chunks; the slots' groups, as another has reserved them; the messages, their ids; the pointers, who
    # was given them; the note.
    assert counting.total == 2 + 1 + 2 + 2 + 1
    assert [state.loaded for state in queue.pointers.states()] == reserved


def test_slots_that_a_hasty_consumer_has_given_up_are_replaced(store, clock):
    queue = queue_on(store)
    attempt(store, clock, "crash_after", 4)
    slots = [Slot(state.shard, n) for state in queue.pointers.states() for n in range(1, state.loaded + 1)]
    assert len(slots) == 10
    queue.pointers.write_tombstones(slots)
    assert attempt(store, clock)
    assert consumed(queue) == ONCE


LASTING = {"message_expiry": timedelta(days=30), "queue_expiry": timedelta(days=30)}


def test_attempts_make_it_once_for_as_long_as_the_ledger_is_kept_from_the_first_one():
    """However early some of it was consumed, and wherever another attempt crashed in between."""

    def prepare(store):
        queue = queue_on(store, **LASTING)
        last_row_missing = {5: Fault("request_lost", rows=(2,)), 6: "crash_before"}
        with suppress(Crash):
            publish(FaultyStore(store, last_row_missing, seams=store.seams), rows(FEW))
        assert consumed(queue) == Counter(range(FEW - 1))
        store.seams.advance(LEDGER_TTL * 0.7)

    def another(store, done):
        queue = QueueRegistry(store, "shop").get("q")
        done += consumed(queue).elements()
        store.seams.advance(LEDGER_TTL * 0.3 - 10)
        publish(store, rows(FEW))
        done += consumed(queue).elements()

    report = inject_everywhere(
        lambda store, done: publish(store, rows(FEW)),
        prepare=prepare,
        recover=another,
        expected=[FEW - 1],
        faults=struck.faults("an attempt of many"),
    )
    assert not report.troubles, report


def test_what_a_late_attempt_has_finished_is_kept_from_then_on(store, clock):
    queue = queue_on(store, **LASTING)
    attempt(store, clock, "crash_before", 6, order=rows(FEW))
    clock.advance(LEDGER_TTL * 0.7)
    assert attempt(store, clock, order=rows(FEW))
    assert consumed(queue) == Counter(range(FEW))
    clock.advance(LEDGER_TTL * 0.9)
    assert attempt(store, clock, order=rows(FEW))
    assert consumed(queue) == Counter()


@pytest.mark.parametrize("found", ["tombstones", "nothing"])
def test_slots_that_were_left_stay_closed_as_long_as_the_ledger(store, clock, found):
    """Else an attempt that stopped before its write would publish once more when it goes on."""
    queue = queue_on(store, message_expiry=timedelta(hours=1))
    attempt(store, clock, "crash_after", 4)
    slots = [Slot(state.shard, n) for state in queue.pointers.states() for n in range(1, state.loaded + 1)]
    if found == "tombstones":
        queue.pointers.write_tombstones(slots)
    else:
        clock.advance(SWEEP)
    assert attempt(store, clock)
    assert consumed(queue) == ONCE
    clock.advance(timedelta(days=1).total_seconds())
    late = [Envelope("{}", f"late-{slot.pointer}") for slot in slots]
    assert queue.pointers.write(slots, late) == [WriteResult.SPENT] * len(slots)


# ---- cost


def test_a_chunk_costs_four_calls_and_an_empty_ledger_one(store):
    queue_on(store)
    counting = CountingStore(store)
    queue = QueueRegistry(counting, "shop").get("q")
    before = counting.total
    Ledger(queue, "job").publish(0, rows(10))
    assert counting.total - before == 1 + 4


@pytest.mark.parametrize("batch", [0, 1001, True, "10", 2.5])
def test_a_batch_is_a_whole_number_of_messages_that_one_call_takes(store, batch):
    with pytest.raises(InvalidRequest, match="batch is"):
        Ledger(queue_on(store), "scope", batch=batch)


def test_an_acknowledgement_in_doubt_stays_in_doubt_where_its_record_cannot_be_read(store):
    faulty = FaultyStore(store)
    queue = queue_on(faulty)
    Ledger(queue, "job").publish(0, rows(1))
    (delivery,) = queue.receive()
    sent = faulty._number
    faulty.plan.update({sent + 1: "reply_lost"} | dict.fromkeys(range(sent + 3, sent + 20), "dropped"))
    with pytest.raises(OutcomeUnknown):
        delivery.ack()


# ---- what does not fit


@pytest.mark.parametrize(
    "large",
    [
        Outgoing({"n": "x" * 2**20}),
        Outgoing({"n": 12}, headers={"trace": "x" * 2**20}),
        Outgoing({"n": "漢" * 350_000}),
    ],
    ids=["payload", "headers", "three bytes a character"],
)
def test_a_row_that_is_too_large_is_refused_before_a_chunk_names_it(store, large):
    """A chunk with a message that can never be written could never be completed: mended, the input goes on."""
    queue = queue_on(store)
    sound = rows()
    with pytest.raises(RecordTooBig, match="publish a reference"):
        Ledger(queue, "job").publish(0, [*sound[:12], large, *sound[13:]])
    assert all(chunk.written for chunk in chunks(records(queue))), "none is half published"
    assert Ledger(queue, "job").publish(0, sound).messages == N
    assert consumed(queue) == ONCE


def test_the_error_names_the_message_that_is_too_large_and_the_others_go_on_without_it(store):
    queue = queue_on(store)
    messages = [Outgoing(n, f"m{n}") for n in range(5)] + [Outgoing("x" * 2**20, "large")]
    with pytest.raises(RecordTooBig) as refused:
        Ledger(queue, "job").publish(0, messages)
    assert refused.value.details["refused"] == ["large"]
    assert Ledger(queue, "job").publish(0, messages[:5], without=["large"]).new == 5


def test_a_message_that_is_in_the_ledger_is_not_refused_for_its_size(store, monkeypatch):
    queue = queue_on(store)
    messages = [Outgoing("x" * 500_000, "large")]
    Ledger(queue, "job").publish(0, messages)
    describe = store.describe
    monkeypatch.setattr(store, "describe", lambda: dataclasses.replace(describe(), record_size_limit=2**17))
    assert Ledger(queue, "job").publish(0, messages).new == 0


def test_headers_that_are_too_large_are_refused_before_a_pointer_is_reserved(store):
    queue = queue_on(store)
    with pytest.raises(RecordTooBig, match="of them headers"):
        queue.publish("x", headers={"trace": "x" * 2**20})
    assert [state.loaded for state in queue.pointers.states()] == [0, 0, 0]
