"""A publisher for threads: few calls, an outcome for each message, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import wait
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest

from latchwork.deadline import call_time
from latchwork.errors import (
    AlreadyExists,
    InvalidRequest,
    LatchworkError,
    OutcomeUnknown,
    RecordTooBig,
    Refused,
    Unavailable,
    WaitTimeout,
)
from latchwork.queue import Publication, QueueConfig, QueueRegistry
from latchwork.queue.sharded.publishing import publisher as module
from latchwork.seams import SYSTEM, Seams
from latchwork.store import MemoryStore, Put
from latchwork.store.rows import Rows
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, FaultyStore
from tests.sim.stage import Stage
from tests.support.interrupts import Interrupts, points_of

THREADS = 8


def queue_on(store, **options):
    return QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", **{"shards": 4, **options}))


def payloads(queue):
    return sorted(delivery.payload for delivery in queue.receive(1000))


class Gate(MemoryStore):
    """A store that holds the calls which change records until it is opened."""

    def __init__(self, seams=SYSTEM):
        super().__init__(seams)
        self.open, self.reached = threading.Event(), threading.Event()
        self.open.set()

    def _held(self):
        if not self.open.is_set():
            self.reached.set()
            assert self.open.wait(30)

    def _operate(self, update):
        self._held()
        return super()._operate(update)

    def _operate_many(self, updates):
        self._held()
        return super()._operate_many(updates)


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def gate():
    return Gate()


# ---- what it is for: fewer calls


def calls_of_eight_threads(publish):
    """The store calls of 8 threads of a process, each of which publishes 10 messages one after the other."""
    stage, calls = Stage(), []

    def process(store):
        counted = CountingStore(store)
        queue = queue_on(counted)
        counted.reset()
        with queue.publisher() as publisher:
            ones = [publish(queue, publisher) for _ in range(THREADS)]
            tasks = [store.seams.spawn(lambda one=one: [one(n) for n in range(10)], "t") for one in ones]
            for task in tasks:
                task.join()
        calls.append(counted.total)
        return len(queue.receive(1000))

    stage.act("a", process)
    assert stage.play().said["a"] == THREADS * 10
    return calls[0]


def test_eight_threads_make_a_fifth_of_the_calls_of_single_publishes():
    alone = calls_of_eight_threads(lambda queue, _: queue.publish)
    together = calls_of_eight_threads(lambda _, publisher: lambda n: publisher.publish(n).result(5))
    assert alone >= 5 * together, (alone, together)


def test_messages_wait_for_others_for_as_long_as_linger_says():
    def took(linger):
        stage = Stage()

        def process(store):
            with queue_on(store).publisher(linger=linger) as publisher:
                began = store.seams.monotonic()
                publisher.publish(1).result(5)
                return store.seams.monotonic() - began

        stage.act("a", process)
        return stage.play().said["a"]

    assert took(0.5) - took(0) == pytest.approx(0.5, abs=0.05)
    assert took(timedelta(seconds=0.5)) == pytest.approx(took(0.5), abs=0.05)


def test_what_comes_while_a_group_is_stored_goes_together(gate):
    queue = queue_on(gate)
    counted = CountingStore(gate)
    queue = queue_on(counted)
    with queue.publisher(linger=0) as publisher:
        gate.open.clear()
        first = publisher.publish("first")
        assert gate.reached.wait(30)
        others = [publisher.publish(n) for n in range(500)]
        counted.reset()
        gate.open.set()
        assert {one.result(30) for one in others} == {one.message_id for one in others}
        assert first.result(30) == first.message_id
    assert counted.total <= 6  # two of the first, two of the others, and a ring of the bell each
    assert len(queue.receive(1000)) == 501


# ---- as `publish` does


def test_keys_headers_ids_and_delays_are_those_of_publish(store):
    queue = queue_on(store)
    with queue.publisher() as publisher:
        one = publisher.publish({"n": 1}, key="k", headers={"a": "b"}, message_id="mine")
        late = publisher.publish({"n": 2}, delay=timedelta(seconds=50), message_id="late")
        assert (one.result(30), late.result(30)) == ("mine", "late")
    (delivery,) = queue.receive(10)
    assert (delivery.payload, delivery.message_id, delivery.headers) == ({"n": 1}, "mine", {"a": "b"})
    assert delivery.shard == queue.shard_of("k")
    assert [message.message_id for message in queue.delayed.search()] == ["late"]


def test_a_payload_is_published_as_it_was_when_it_was_given(store):
    queue, payload = queue_on(store), {"n": 1}
    with queue.publisher() as publisher:
        publisher.publish(payload)
        payload["n"] = 2
    assert payloads(queue) == [{"n": 1}]


def test_one_message_a_dedup_key_also_within_a_group(gate):
    queue = queue_on(gate)
    with queue.publisher() as publisher:
        gate.open.clear()
        publisher.publish("first")
        assert gate.reached.wait(30)
        some = [publisher.publish(n, dedup="invoice-7") for n in (1, 2)]
        strict = publisher.publish(3, dedup="invoice-7", on_duplicate="raise")
        gate.open.set()
        assert {one.result(30) for one in some} == {some[0].message_id}
        with pytest.raises(AlreadyExists) as refused:
            strict.result(30)
    assert refused.value.details["message_id"] == some[0].message_id
    assert {delivery.payload for delivery in queue.receive(10)} == {"first", 1}


def test_a_dedup_key_holds_among_messages_without_one_and_the_order_of_their_key_too(gate):
    queue = queue_on(gate)
    with queue.publisher() as publisher:
        gate.open.clear()
        publisher.publish(0, key="k")
        assert gate.reached.wait(30)
        for n, dedup in enumerate([None, "invoice-7", "invoice-7", None], 1):
            publisher.publish(n, key="k", dedup=dedup)
        gate.open.set()
    assert [delivery.payload for delivery in queue.receive(10)] == [0, 1, 2, 4]


def test_messages_of_one_key_are_stored_in_the_order_of_their_publisher(store, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 50)
    queue = queue_on(store)
    with queue.publisher() as publisher:
        for n in range(600):
            publisher.publish(n, key="k")
    assert [delivery.payload for delivery in queue.receive(600)] == list(range(600))


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": -1}, {"dedup": ""}, {"dedup": "a", "delay": 3}, {"dedup": "a", "on_duplicate": "maybe"},
        {"headers": {1: "a"}}, {"message_id": ""}, {"key": 7}, {"timeout": -1}, {"payload": object()},
        {"dedup_for": "a day"}, {"on_duplicate": "ignore"},
    ],
    ids="-".join,
)  # fmt: skip
def test_bad_input_is_refused_at_once_and_nothing_waits(store, wrong):
    publisher = queue_on(store).publisher()
    with pytest.raises(InvalidRequest):
        publisher.publish(**{"payload": 1, **wrong})
    assert publisher.flush(0)
    with pytest.raises(RecordTooBig):
        publisher.publish("x" * 2**21)


def test_a_time_too_far_ahead_is_refused_at_once_and_nothing_waits(store):
    publisher = queue_on(store).publisher()
    with pytest.raises(InvalidRequest, match="ahead at most"):
        publisher.publish("x", at=datetime(2999, 1, 1, tzinfo=timezone.utc))
    assert publisher.flush(0)


@pytest.mark.parametrize(
    "wrong", [{"linger": -1}, {"linger": 2}, {"linger": "a"}, {"waiting": 0}, {"waiting": 2**30}, {"waiting_bytes": 0}]
)
def test_bad_settings_are_refused(store, wrong):
    with pytest.raises(InvalidRequest):
        queue_on(store).publisher(**wrong)


def test_a_group_has_no_publisher(store):
    with pytest.raises(InvalidRequest):
        queue_on(store).group("audit").publisher()


# ---- each outcome is its own


def test_each_message_fails_alone(store):
    queue = queue_on(store, shards=2)
    whole, damaged = (next(k for k in map(str, range(99)) if queue.shard_of(k) == shard) for shard in (0, 1))
    queue.publish(0, key=damaged)
    store.operate(queue.pointers.pointers_key(1), Put("LOAD_POINTER", "damaged"))
    with queue.publisher(linger=0.05) as publisher:
        good, bad = publisher.publish(1, key=whole), publisher.publish(2, key=damaged)
        assert good.result(30) == good.message_id
        with pytest.raises(LatchworkError) as failed:
            bad.result(30)
    assert failed.value.details["message_id"] == bad.message_id
    assert good.exception() is None
    assert bad.exception() is not None
    assert repr(good).endswith("published)")


def faults(store, kind, after=0):
    """Let every call from now on fail so, but for the first few."""
    store.plan = dict.fromkeys(range(store._number + 1 + after, store._number + 500), kind)


def test_a_store_that_is_away_fails_the_group_and_nothing_is_published():
    store = FaultyStore(MemoryStore(), {})
    queue = queue_on(store)
    faults(store, "dropped")
    with queue.publisher() as publisher:
        some = [publisher.publish(n) for n in range(3)]
        assert [type(one.exception(30)) for one in some] == [Unavailable] * 3
    store.plan = {}
    assert queue.receive(10) == []


def test_what_is_in_doubt_stays_in_doubt_and_is_not_published_again():
    store = FaultyStore(MemoryStore(), {})
    queue = queue_on(store)
    queue.publish("before")
    assert payloads(queue) == ["before"]
    faults(store, "reply_lost", after=1)
    with queue.publisher() as publisher:
        one = publisher.publish("m")
        with pytest.raises(OutcomeUnknown):
            one.result(60)
    store.plan = {}
    assert [delivery.payload for delivery in queue.receive(10)] == ["m"], "once, though its publisher does not know"


def test_a_deactivated_queue_refuses_every_message_of_the_group(store):
    queue = queue_on(store)
    queue.registry.deactivate("q")
    with queue.publisher() as publisher:
        some = [publisher.publish(n) for n in range(2)]
    assert [type(one.exception()) for one in some] == [Refused] * 2
    assert some[0].exception() is not some[1].exception()


def test_a_defect_leaves_nobody_waiting(store, monkeypatch, caplog):
    queue = queue_on(store)
    monkeypatch.setattr("latchwork.queue.sharded.publishing.publisher.store_messages", lambda *_: 1 / 0)
    with queue.publisher() as publisher:
        assert isinstance(publisher.publish(1).exception(30), OutcomeUnknown)
    assert "ZeroDivisionError" in caplog.text


def test_a_thread_that_an_exception_ends_leaves_nothing_to_the_next_one_of_its_number(monkeypatch):
    class OneNumber(Seams):
        def thread(self):
            return 7

        def spawn(self, run, name):
            def ended():
                with suppress(SystemExit):
                    run()

            self.spawned = super().spawn(ended, name)
            return self.spawned

    seams = OneNumber()
    monkeypatch.setattr("latchwork.queue.sharded.publishing.publisher.store_messages", lambda *_: sys.exit(1))
    publisher = queue_on(MemoryStore(seams)).publisher()
    assert isinstance(publisher.publish(1).exception(30), OutcomeUnknown)
    seams.spawned.join(30)
    assert publisher.close(30), "this thread is not in a callback"


def test_failures_that_nobody_asks_for_are_logged(store, caplog):
    queue = queue_on(store)
    queue.registry.deactivate("q")
    with queue.publisher() as publisher:
        publisher.publish(1)
    assert "1 message not published to queue 'q' (REFUSED)" in caplog.text


# ---- waiting


def test_a_publication_that_is_not_known_in_time_is_a_timeout_and_may_be_asked_again(gate):
    publisher = queue_on(gate).publisher()
    gate.open.clear()
    one = publisher.publish(1)
    with pytest.raises(WaitTimeout):
        one.result(0)
    assert not one.done()
    assert not publisher.flush(0)
    assert not publisher.close(0)
    gate.open.set()
    assert one.result(30)
    assert publisher.close(30)
    assert one.done()


def test_as_much_waits_as_may_and_then_publish_waits(gate):
    queue = queue_on(gate)
    gate.open.clear()
    publisher = queue.publisher(waiting=2)
    for n in range(2):
        publisher.publish(n)
    with pytest.raises(WaitTimeout, match="2 messages wait"):
        publisher.publish(2, timeout=0)
    waits = threading.Thread(target=lambda: publisher.publish(3), daemon=True)
    waits.start()
    gate.open.set()
    waits.join(30)
    assert not waits.is_alive()
    assert publisher.close(30)
    assert payloads(queue) == [0, 1, 3]


def test_bytes_that_wait_are_bounded_too_but_one_message_may_always(gate):
    queue = queue_on(gate)
    publisher = queue.publisher(waiting_bytes=10)
    gate.open.clear()
    publisher.publish("x" * 100)
    with pytest.raises(WaitTimeout):
        publisher.publish("y", timeout=0)
    gate.open.set()
    assert publisher.close(30)


def test_who_waits_for_room_is_refused_when_it_is_closed(gate):
    publisher = queue_on(gate).publisher(waiting=1)
    gate.open.clear()
    publisher.publish(1)
    said = []

    def publish():
        try:
            publisher.publish(2)
        except InvalidRequest as failure:
            said.append(failure)

    waits = threading.Thread(target=publish, daemon=True)
    waits.start()
    assert not publisher.close(0)
    waits.join(30)
    assert len(said) == 1
    gate.open.set()
    assert publisher.close(30)
    assert publisher.close(30), "harmless when repeated"


def test_a_closed_publisher_takes_nothing(store):
    publisher = queue_on(store).publisher()
    publisher.close()
    with pytest.raises(InvalidRequest, match="closed"):
        publisher.publish(1)


def test_a_flush_ends_when_all_that_was_published_before_is_known(store):
    publisher = queue_on(store).publisher(linger=1)
    some = [publisher.publish(n) for n in range(2500)]
    assert publisher.flush(60)
    assert all(one.done() for one in some)


# ---- callbacks


def test_callbacks_get_the_publication_and_none_of_them_keeps_others_from_theirs(gate, caplog):
    queue, called = queue_on(gate), []
    with queue.publisher() as publisher:
        gate.open.clear()
        one, other = publisher.publish(1), publisher.publish(2)
        one.add_done_callback(lambda it: 1 / 0)
        one.add_done_callback(lambda it: called.append(it.result()))
        other.add_done_callback(called.append)
        gate.open.set()
    assert called == [one.message_id, other]
    one.add_done_callback(called.append)
    assert called[-1] == one, "at once where it is known"
    assert "ZeroDivisionError" in caplog.text


def test_a_coroutine_waits_for_a_publication_and_gives_up_the_wait_alone(gate):
    queue = queue_on(gate)

    async def published():
        first = publisher.publish(1)
        assert await asyncio.wait_for(asyncio.wrap_future(first), 60) == first.message_id
        assert type(first) is Publication
        gate.open.clear()
        second = publisher.publish(2)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(second), 0.01)
        assert (second.cancel(), second.cancelled(), second.running(), second.done()) == (False, False, True, False)
        gate.open.set()
        return second

    with queue.publisher() as publisher:
        second = asyncio.run(published())
        assert wait([second], timeout=30).not_done == set(), "of concurrent.futures"
    assert second.done()
    assert payloads(queue) == [1, 2]


def test_a_callback_that_exits_keeps_no_other_message_from_being_stored(gate, caplog):
    publisher = queue_on(gate).publisher()
    gate.open.clear()
    publisher.publish(1).add_done_callback(lambda _: sys.exit("by mistake"))
    other = publisher.publish(2, delay=60)  # of another group
    gate.open.set()
    assert publisher.flush(30)
    assert other.result(0)
    assert publisher.close(30)
    assert "by mistake" in caplog.text


def test_a_callback_may_publish_and_what_would_wait_for_itself_is_refused(gate):
    queue, said, texts, over = queue_on(gate), [], [], threading.Event()
    publisher = queue.publisher(waiting=1)
    gate.open.clear()

    def callback(_):
        publisher.publish("again")
        for verb in (lambda: publisher.publish("full"), publisher.flush, publisher.close):
            try:
                verb()
            except LatchworkError as failure:
                said.append(failure.code)
                texts.append(str(failure))
        over.set()

    publisher.publish("first").add_done_callback(callback)
    gate.open.set()
    assert over.wait(30)
    assert publisher.close(30)
    assert said == ["WAIT_TIMEOUT", "INVALID_REQUEST", "INVALID_REQUEST"]
    assert texts[0].endswith("a callback of a publication cannot wait for room: publish in another thread")
    assert payloads(queue) == ["again", "first"]


# ---- threads that come and go


def test_the_thread_ends_when_nothing_comes_and_another_begins(store):
    started = []

    class Counted(Seams):
        def spawn(self, run, name):
            started.append(name)
            return super().spawn(run, name)

    queue = queue_on(MemoryStore(Counted()))
    publisher = queue.publisher()
    started.clear()
    for _ in range(2):
        publisher.publish(1).result(30)
        sender = publisher._sender
        if sender is not None:
            sender.join(30)
    publisher.publish(2).result(30)
    assert started == ["latchwork-publisher-q"] * 3


def test_where_no_thread_can_be_started_nothing_is_published():
    class Full(Seams):
        full = False

        def spawn(self, run, name):
            if self.full:
                raise RuntimeError("can't start new thread")
            return super().spawn(run, name)

    seams = Full()
    queue = queue_on(MemoryStore(seams))
    publisher = queue.publisher()
    seams.full = True
    with pytest.raises(Unavailable, match="no thread"):
        publisher.publish(1)
    seams.full = False
    publisher.publish(2).result(30)
    assert payloads(queue) == [2]


def test_a_full_publisher_whose_start_was_interrupted_begins_again():
    class Interrupted(Seams):
        starts = 0

        def spawn(self, run, name):
            if name.startswith("latchwork-publisher"):
                self.starts += 1
                if self.starts == 1:
                    raise KeyboardInterrupt
            return super().spawn(run, name)

    queue = queue_on(MemoryStore(Interrupted()))
    publisher = queue.publisher(waiting=1)
    with pytest.raises(KeyboardInterrupt):
        publisher.publish("a")
    assert publisher.publish("b", timeout=5).result(30)
    assert payloads(queue) == ["a", "b"]


# ---- forks


class NoThread(Seams):
    """A system in which nothing is stored in the background."""

    def spawn(self, run, name):
        return None


def test_a_child_forked_between_two_outcomes_knows_both():
    publisher = queue_on(MemoryStore(NoThread())).publisher()
    one, other = publisher.publish(1), publisher.publish(2)
    one._resolve(one.message_id)
    publisher.reset_after_fork()
    assert one.result(0) == one.message_id
    assert isinstance(other.exception(0), OutcomeUnknown)


@pytest.mark.parametrize("n", [1, 20, 30])
def test_wherever_a_child_is_forked_it_finds_all_messages_that_wait(n, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 20)
    publisher = queue_on(MemoryStore(NoThread())).publisher()
    some, lost = [publisher.publish(n) for n in range(n)], []

    def trace(frame, event, _):
        if frame.f_code is publisher._taken.__func__.__code__:
            lost.append(len(set(some) - {pending.publication for pending in publisher._unanswered()}))
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        publisher._taken(*next(iter(publisher._waiting.items())))
    finally:
        sys.settrace(before)
    assert set(lost) == {0}
    publisher.reset_after_fork()


# ---- Ctrl-C


def interrupted(body):
    """A scenario for `Interrupts`: what was published, and what is there though `body` was interrupted."""

    def scenario(interrupts):
        stage = Stage()

        def process(store):
            queue = queue_on(store)
            publisher = queue.publisher()
            kept = [publisher.publish("kept"), publisher.publish("kept too")]
            with suppress(KeyboardInterrupt):
                interrupts.run(lambda: body(publisher))
            after = publisher.publish("after") if not publisher._closed else None
            assert publisher.close(60), "nothing hangs"
            assert all(one.result(0) for one in [*kept, *([after] if after else [])])
            return sorted(delivery.payload for delivery in queue.receive(100))

        stage.act("a", process)
        return stage.play().said["a"]

    return scenario


@pytest.mark.parametrize(
    "body",
    [lambda it: it.publish("x"), lambda it: it.publish("x").result(5), lambda it: it.flush(5), lambda it: it.close(5)],
    ids=["publish", "result", "flush", "close"],
)
def test_an_interrupt_at_any_point_loses_nothing_and_hangs_nobody(body):
    scenario = interrupted(body)
    for at in range(points_of(scenario)):
        there = scenario(Interrupts(at))
        assert not isinstance(there, Exception), (at, there)
        assert {"kept", "kept too"} <= set(there), at
        assert len(there) == len(set(there)), at


def test_it_is_made_without_a_call_and_without_a_thread(store):
    counted = CountingStore(store)
    queue = queue_on(counted)
    counted.reset()
    publisher = queue.publisher()
    assert repr(publisher) == "Publisher('q')"
    assert publisher._sender is None
    assert counted.total == 0


def test_an_interpreter_that_ends_and_starts_no_thread_does_not_wait_for_a_store_that_is_away(monkeypatch):
    class Ends(ManualClock):
        def spawn(self, run, name):
            raise RuntimeError("can't create new thread at interpreter shutdown")

    def away(_queue, messages, _terms):
        clock.sleep(min(10.0, call_time() or 10.0))
        return Rows([Unavailable("the store is away")] * len(messages))

    monkeypatch.setattr(module, "store_messages", away)
    monkeypatch.setattr(module, "CHUNK", 50)
    clock = Ends()
    publisher = queue_on(MemoryStore(clock)).publisher(waiting=1_000)
    with monkeypatch.context() as patch:
        patch.setattr(publisher, "_keep_sending", lambda: None)
        publications = [publisher.publish(n) for n in range(1_000)]
    publisher._at_exit()
    assert all(one.done() for one in publications)
    assert clock.monotonic() < module.EXIT + 2
