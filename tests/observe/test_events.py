"""Every event is told where it happens, once, with labels of its closed set."""

from __future__ import annotations

import ast
import pickle
import re
import warnings
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from latchwork.coord import CountDownLatch, FencedLock
from latchwork.deadline import call_time
from latchwork.errors import (
    AlreadyExists,
    FencedOut,
    InvalidRequest,
    LatchworkError,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from latchwork.observe import EVENTS, GAUGES, observe, watch_queues
from latchwork.observe.findings import findings_of
from latchwork.observe.snapshot import of_client
from latchwork.queue import Consumer, Publish, QueueConfig, QueueRegistry, Shovel, Sweeper
from latchwork.retry import RetryPolicy
from latchwork.seams import SYSTEM
from latchwork.store import Add, Bin, Exists, Key, MemoryStore, Once, Put, Read, SQLiteStore, Update
from latchwork.testing import bring_back
from latchwork.testing.stores import Fault, FaultyStore, Outage
from tests.observe.conftest import Remembering
from tests.queue.sharded.world import Election

SRC = Path(__file__).resolve().parents[2] / "src"
KEY = Key("s", "k")


@pytest.fixture
def record(store, faulty):
    """A record with a number, and nothing told so far."""
    store.operate(KEY, Put("n", 1), exists=Exists.CREATE)
    store.seams._telemetry.told.clear()
    return store


def queue_of(store, **options):
    config = QueueConfig("q", shards=2, sweep_duration=timedelta(minutes=5), **options)
    return QueueRegistry(store, "c", farm_id="f").create(config)


# ---- attempts at the store


def test_every_attempt_is_timed_by_verb_and_outcome(record, faulty, telemetry):
    faulty.next(Fault("slow", seconds=3))
    record.get(KEY)
    record.get(Key("s", "nobody"))
    record.delete(Key("s", "nobody"))
    record.ensure_index("s", "n", int)
    record.query("s", "n", 1)
    record.scan("s")
    with pytest.raises(Refused):
        record.operate(KEY, Put("n", 2), when=Bin("n").eq(7))
    assert telemetry.told == [
        ("store_calls", 3.0, {"verb": "get", "outcome": "done"}),
        ("store_calls", 0.0, {"verb": "get", "outcome": "absent"}),
        ("store_calls", 0.0, {"verb": "delete", "outcome": "absent"}),
        ("store_calls", 0.0, {"verb": "ensure_index", "outcome": "done"}),
        ("store_calls", 0.0, {"verb": "query", "outcome": "done"}),
        ("store_calls", 0.0, {"verb": "scan", "outcome": "done"}),
        ("store_calls", 0.0, {"verb": "operate", "outcome": "refused"}),
    ]


def test_each_row_of_a_batch_counts_by_its_own_outcome(record, telemetry):
    updates = [Update(KEY, (Add("n", 1),)), Update(Key("s", "nobody"), (Add("n", 1),))]
    record.operate_many(updates)
    assert telemetry.total("store_rows", verb="operate_many", outcome="done") == 1
    assert telemetry.total("store_rows", verb="operate_many", outcome="absent") == 1
    assert telemetry.times("store_calls", verb="operate_many", outcome="partial") == 1
    record.get_many([KEY, Key("s", "nobody")], "n")
    assert telemetry.total("store_rows", verb="get_many", outcome="absent") == 1
    assert telemetry.times("store_calls", verb="get_many", outcome="done") == 1


@pytest.mark.parametrize(
    ("fault", "reason"), [("dropped", "not_applied"), ("reply_lost", "in_doubt"), ("request_lost", "in_doubt")]
)
def test_each_retry_is_told_with_the_class_of_what_went_wrong(record, faulty, telemetry, fault, reason):
    faulty.plan = {faulty._number + 1: fault, faulty._number + 2: fault}
    record.operate(KEY, Add("n", 1), once=Once(8))
    assert telemetry.total("retries") == telemetry.total("retries", reason=reason) == 2


def test_a_server_that_needs_a_pause_is_told_apart(record, faulty, telemetry):
    def out_of_memory(update):
        del faulty._operate
        failure = Unavailable("out of memory")
        failure.slow = True
        raise failure

    faulty._operate = out_of_memory
    record.operate(KEY, Add("n", 1))
    assert telemetry.total("retries", reason="overloaded") == 1


def test_a_batch_that_is_sent_again_is_a_retry(store, faulty, telemetry):
    queue = queue_of(store)
    queue.publish("a")
    faulty.next("dropped")
    queue.publish_many(["b", "c"])
    faulty.next(Fault("request_lost"))
    assert queue.receive(10)
    assert telemetry.total("retries") >= 2


def test_nothing_is_a_retry_that_is_not_sent_again(record, faulty, telemetry):
    faulty.next("dropped")
    with pytest.raises(Unavailable):
        record.with_policy(RetryPolicy(attempts=1)).get(KEY)
    faulty.next("reply_lost")
    with pytest.raises(OutcomeUnknown):
        record.operate(KEY, Add("n", 1))
    assert telemetry.times("retries") == 0


# ---- doubts


def test_an_update_that_had_landed_is_a_doubt_resolved_as_applied(record, faulty, telemetry):
    faulty.next("reply_lost")
    record.operate(KEY, Add("n", 1), once=Once(8))
    assert [labels for name, _, labels in telemetry.told if name == "doubts"] == [{"outcome": "applied"}]


def test_a_monotone_guard_that_refuses_after_doubt_is_resolved_as_refused(record, faulty, telemetry):
    faulty.next("request_lost")
    with pytest.raises(Refused):
        record.operate(KEY, Add("n", 1), when=Bin("n").eq(7), once=Once(8, monotone=True))
    assert telemetry.total("doubts", outcome="refused") == telemetry.total("doubts") == 1


def test_an_update_that_was_cancelled_after_doubt_says_so(record, faulty, telemetry):
    faulty.next("late")
    with pytest.raises(Refused):
        record.operate(KEY, Add("n", 1), when=Bin("n").eq(7), once=Once(8))
    assert telemetry.total("doubts", outcome="cancelled") == telemetry.total("doubts") == 1


def test_an_update_that_nobody_could_resolve_is_unknown(record, faulty, telemetry):
    faulty.plan = {faulty._number + n: "reply_lost" for n in range(1, 9)}
    with pytest.raises(OutcomeUnknown):
        record.operate(KEY, Add("n", 1), once=Once(8))
    assert telemetry.total("doubts", outcome="unknown") == telemetry.total("doubts") == 1


def test_an_update_without_trouble_tells_of_no_doubt(record, telemetry):
    record.operate(KEY, Add("n", 1), once=Once(8))
    with pytest.raises(Refused):
        record.operate(KEY, Add("n", 1), when=Bin("n").eq(7), once=Once(8))
    latch = CountDownLatch.create(record, "c", "l", count=1)
    latch.count_down()
    latch.count_down()  # below zero: it goes on under the token of a refusal, which is no doubt
    assert telemetry.times("doubts") == 0


# ---- effects


def test_an_effect_is_told_of_as_done_and_each_repeat_that_it_saved_as_found(store, telemetry):
    queue = queue_of(store, retry=False)
    queue.publish("m")
    for view in (queue, queue.sideline):
        (delivery,) = view.receive()
        delivery.operate(KEY, Add("n", 1))
        delivery.once("mail").run(lambda: 7)
        delivery.nack()
    for kind in ("record", "step"):
        assert [telemetry.total("effects", kind=kind, outcome=one) for one in ("done", "found")] == [1, 1]


# ---- fences and waits


def test_a_fence_that_a_resource_refuses_is_told_apart_from_one_that_its_holder_knows_lost(store, clock, telemetry):
    lock = FencedLock(store, "l", lease=10)
    old = lock.acquire(0)
    old.lost.extend(clock.boottime() + 1000)  # it believes for longer than it may, as after a pause
    FencedLock(store, "l").acquire(30).seal(KEY)
    with pytest.raises(FencedOut):
        old.operate(KEY, Put("n", 1))
    assert (telemetry.total("fences_refused", by="resource"), telemetry.total("fences_refused", by="holder")) == (1, 0)
    old.lost.set()
    with pytest.raises(FencedOut):
        old.operate(KEY, Put("n", 1))
    assert (telemetry.total("fences_refused", by="resource"), telemetry.total("fences_refused", by="holder")) == (1, 1)


def test_waits_for_latches_and_held_locks_are_timed_by_outcome(store, clock, telemetry):
    latch = CountDownLatch.create(store, "c", "l", count=1)
    assert not latch.wait(timeout=3)
    clock.at(1.0, latch.count_down)
    assert latch.wait(timeout=3)
    waits = [(value, labels) for name, value, labels in telemetry.told if name == "waits"]
    assert waits[0] == (pytest.approx(3.0), {"kind": "latch", "outcome": "timed_out"})
    assert waits[1] == (pytest.approx(1.0, abs=0.06), {"kind": "latch", "outcome": "done"})
    latch.delete()
    with pytest.raises(NotFound):
        latch.wait(timeout=1)
    assert telemetry.times("waits", outcome="failed") == 1

    grant = FencedLock(store, "m", lease=60).acquire(0)
    assert telemetry.times("waits", kind="lock") == 0, "a lock that is free is not waited for"
    clock.at(2.0, grant.release)
    FencedLock(store, "m").acquire(5)
    assert telemetry.times("waits", kind="lock", outcome="done") == 1


# ---- queues


def test_messages_are_counted_from_publish_to_settlement(store, clock, telemetry):
    queue = queue_of(store, max_deliveries=1)
    queue.publish_many(["a", "b", "c"])
    assert telemetry.total("published", queue="q", outcome="published") == 3
    first, second, third = queue.receive(3)
    queue.ack_many([first])
    second.nack("rejected")
    queue.store.delete(queue.pointers.key(third.held.slot))
    with pytest.raises(LeaseLost):
        third.ack()
    handled = {labels["outcome"]: value for name, value, labels in telemetry.told if name == "handled"}
    assert handled == {"acked": 1, "rejected": 1, "lost": 1}


def test_a_message_that_was_delivered_too_often_counts_as_exhausted(store, clock, telemetry):
    queue = queue_of(store, max_deliveries=1)
    queue.publish("a")
    queue.receive(1)
    clock.advance(1300)
    sweeper = Sweeper(queue.registry, Election(1), parallelism=1)
    for _ in range(3):
        sweeper.run_once()
        clock.advance(1300)
    assert telemetry.total("swept", queue="q", outcome="rehomed") == 1
    Shovel(queue).run_once()
    assert not queue.receive(1)
    assert telemetry.total("handled", queue="q", outcome="exhausted") == 1


def test_a_publish_that_fails_counts_as_failed(store, faulty, telemetry):
    queue = queue_of(store)
    faulty.plan = {faulty._number + n: "dropped" for n in range(1, 9)}
    with pytest.raises(Unavailable):
        queue.publish("a")
    assert telemetry.total("published", outcome="failed") == telemetry.total("published") == 1


def test_a_message_for_later_and_one_with_a_write_count_as_published_once(store, clock, telemetry):
    queue = queue_of(store)
    queue.publish("later", delay=5, message_id="a")
    queue.publish_many([1, 2], delay=5)
    assert telemetry.total("published", queue="q", outcome="published") == 3
    store.operate(Key("orders", "7"), Put("n", 1), exists=Exists.ANY, publish=Publish("with", queue=queue))
    assert telemetry.total("published", queue="q", outcome="published") == 4
    with pytest.raises(AlreadyExists):
        queue.publish("later", delay=5, message_id="a")
    assert telemetry.total("published", outcome="failed") == 0
    bring_back(queue_of(store.inner))
    assert telemetry.total("published") == 4


def test_a_message_for_later_that_cannot_be_stored_counts_as_failed(store, faulty, telemetry):
    queue = queue_of(store)
    faulty.plan = dict.fromkeys(range(faulty._number + 1, faulty._number + 50), "dropped")
    with pytest.raises(Unavailable):
        queue.publish("later", delay=5)
    assert telemetry.total("published", outcome="failed") == 1


def test_a_slot_that_holds_no_message_counts_as_expired(store, clock, telemetry):
    queue = queue_of(store)
    queue.pointers.reserve({0: 2})
    queue.receive(5)
    assert telemetry.total("expired", queue="q") == 2


def test_a_consumer_times_its_handler(telemetry):
    store = observe(MemoryStore(), telemetry)
    queue = queue_of(store)
    queue.publish_many([1, 2, 3])

    def handler(delivery):
        if delivery.payload == 1:
            raise ValueError
        return delivery.payload == 2

    consumer = Consumer(queue, handler, concurrency=1).start()
    done = SYSTEM.monotonic() + 20
    while telemetry.total("handled") < 3 and SYSTEM.monotonic() < done:
        SYSTEM.sleep(0.01)
    consumer.stop()
    handled = {labels["outcome"]: value for name, value, labels in telemetry.told if name == "handled"}
    assert handled == {"exception": 1, "acked": 1, "rejected": 1}
    assert telemetry.times("handling", queue="q", outcome="raised") == 1
    assert telemetry.times("handling", queue="q", outcome="returned") == 2


def test_sweeps_are_told_by_outcome_with_the_time_of_the_last_success(store, faulty, clock, telemetry):
    queue = queue_of(store)
    queue.publish("a")
    queue.receive(1)
    sweeper = Sweeper(queue.registry, Election(1), parallelism=1)
    assert sweeper.run_once().ok
    assert telemetry.times("sweeps", queue="q", outcome="swept") == 1
    succeeded = [value for name, value, _ in telemetry.told if name == "last_sweep"]
    assert succeeded == [clock.wall()]
    clock.advance(100)
    sweeper.registry.listed()
    faulty.plan = {faulty._number + n: "dropped" for n in range(3, 40)}
    assert not sweeper.run_once().ok
    assert telemetry.times("sweeps", queue="q", outcome="failed") == 1
    assert [value for name, value, _ in telemetry.told if name == "last_sweep"] == succeeded


def test_a_process_that_does_not_lead_tells_of_no_sweep(store, telemetry):
    queue = queue_of(store)
    standby = Election(1)
    standby.leadership = None
    Sweeper(queue.registry, standby).run_once()
    assert telemetry.times("sweeps") == telemetry.times("last_sweep") == 0


def test_one_snapshot_serves_all_who_look_until_it_is_old(store, faulty, clock, telemetry):
    queue = queue_of(store)
    queue.publish_many(["a", "b", "c"])
    clock.advance(60)
    watch_queues(queue.registry, telemetry, max_age=15)
    (source,) = telemetry.sources
    before = faulty.total
    found = {(sample.event.name, *sample.labels): sample.value for sample in source()}
    cost = faulty.total - before
    assert found[("queue_depth", "q", "ready")] == 3
    assert found[("queue_depth", "q", "sideline")] == found[("queue_depth", "q", "parked")] == 0
    assert found[("queue_oldest", "q")] == 60
    assert found[("queues_readable",)] == 1
    assert cost <= 4 + 5
    queue.receive(1)
    after = faulty.total
    assert {(s.event.name, *s.labels): s.value for s in source()} == found
    assert faulty.total == after
    clock.advance(16)
    assert {(s.event.name, *s.labels): s.value for s in source()}[("queue_depth", "q", "ready")] == 2


def test_a_finding_that_is_ok_is_not_counted_in_the_figures(store, clock, telemetry):
    queue = queue_of(store)
    queue.scale(2)
    queue.publish("waits")
    watch_queues(queue.registry, telemetry)
    (source,) = telemetry.sources
    clock.advance(60)
    assert {one.kind: one.state for one in findings_of(of_client(queue.registry))}["settings"] == "ok"
    found = {sample.labels: sample.value for sample in source() if sample.event.name == "findings"}
    assert found[("no_worker", "q")] == 2
    assert ("settings", "q") not in found


def test_figures_are_told_to_a_telemetry_alone(store):
    for wrong in ({}, Remembering):
        with pytest.raises(InvalidRequest, match="is not a Telemetry: give a PrometheusTelemetry"):
            watch_queues(queue_of(store).registry, wrong)


def test_a_group_whose_maker_died_keeps_no_figures_of_others_away(store, telemetry):
    queue = queue_of(store)
    queue.group("g")
    assert store.delete(queue.group("g").pointers.pointers_key(0))
    watch_queues(queue.registry, telemetry)
    (source,) = telemetry.sources
    found = {(sample.event.name, *sample.labels): sample.value for sample in source()}
    assert found[("queues_readable",)] == 1
    assert found[("queue_depth", "q", "ready")] == 0


def test_a_snapshot_of_a_store_that_is_away_has_no_figures_rather_than_old_ones(store, faulty, clock, telemetry):
    queue = queue_of(store)
    watch_queues(queue.registry, telemetry)
    (source,) = telemetry.sources
    assert len(source()) > 1
    clock.advance(60)
    faulty.plan = {faulty._number + n: "dropped" for n in range(1, 9)}
    assert [(s.event.name, s.value) for s in source()] == [("queues_readable", 0)]


def test_a_server_that_does_not_answer_is_told_of_before_a_scrape_is_given_up(store, faulty, clock, telemetry):
    queue = queue_of(store)
    watch_queues(queue.registry, telemetry)
    (source,) = telemetry.sources

    def hangs():
        time = call_time()
        clock.advance(60 if time is None else min(time, 60))
        raise Unavailable("no answer")

    faulty.plan = Outage(clock, 0, 1e9, hangs)
    began = clock.monotonic()
    assert [(sample.event.name, sample.value) for sample in source()] == [("queues_readable", 0)]
    assert clock.monotonic() - began < 8


def test_a_look_that_takes_long_serves_all_who_have_waited_for_it(store, faulty, clock, telemetry):
    queue = queue_of(store)
    watch_queues(queue.registry, telemetry, max_age=15)
    (source,) = telemetry.sources
    faulty.next(Fault("slow", seconds=16))
    first, looked = source(), faulty.total
    clock.advance(15)
    assert source() == first
    assert faulty.total == looked
    clock.advance(1)
    source()
    assert faulty.total > looked


# ---- a telemetry that fails


class Failing(Remembering):
    """It cannot be told anything."""

    def record(self, event, value, labels) -> None:
        super().record(event, value, labels)
        raise RuntimeError("no more room for figures")


class NoTraces(Remembering):
    """An adapter whose traces fail at one of their steps, as where its collector is away."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def fail(self, step):
        if step == self.step:
            raise OSError("the collector is away")

    def span(self, name, origins, attributes):
        self.fail("span")

        @contextmanager
        def traced():
            self.fail("enter")
            yield
            self.fail("exit")

        return traced()

    def carry(self, headers):
        self.fail("carry")
        return headers


@pytest.mark.parametrize("step", ["span", "enter", "exit", "carry"])
def test_a_trace_that_fails_neither_keeps_a_message_from_its_queue_nor_from_its_handler(faulty, step, caplog):
    store = observe(faulty, NoTraces(step))
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
    for payload in ("a", "b"):
        queue.publish(payload, headers={"h": "1"})
    seen = []
    consumer = Consumer(queue, lambda delivery: seen.append(delivery.payload), upkeep=False)
    consumer._turns.take(), consumer._turns.take(), consumer._settlements.send()
    assert (seen, consumer.stats["acked"], queue.depth().ready) == (["a", "b"], 2, 0)
    assert len([record for record in caplog.records if "incomplete" in record.getMessage()]) == 1


def test_what_a_block_raises_passes_a_trace_that_fails_at_its_end(faulty):
    with pytest.raises(ZeroDivisionError), observe(faulty, NoTraces("exit")).seams.span("wait", kind="latch"):
        raise ZeroDivisionError


def test_a_telemetry_that_fails_changes_nothing_of_what_it_is_told_of(faulty, caplog):
    failing = Failing()
    store = observe(faulty, failing)
    assert store.operate(KEY, Put("n", 1), Read("n"), exists=Exists.ANY) == (1,)
    assert store.operate_many([Update(KEY, (Add("n", 1), Read("n")))]) == [(2,)]
    faulty.next("dropped")
    assert store.operate(KEY, Add("n", 1), Read("n")) == (3,)
    with pytest.raises(NotFound):
        store.operate(Key("s", "nobody"), Add("n", 1))
    assert {name for name, _, _ in failing.told} == {"store_calls", "store_rows", "retries"}
    (said,) = [record for record in caplog.records if record.name == "latchwork.observe.base"]
    assert "Failing" in said.getMessage()
    assert "no more room" in str(said.exc_info[1])


# ---- the rules


def test_every_event_in_the_sources_is_of_the_closed_set_with_its_labels():
    seen = set()
    for path in SRC.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "seams.note(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("seams.note"):
                name = node.args[0].value
                assert {keyword.arg for keyword in node.keywords} == set(EVENTS[name].labels), f"{path}: {name}"
                seen.add(name)
    assert seen == EVENTS.keys() - {"store_calls", "store_rows"}
    assert not EVENTS.keys() & GAUGES.keys()


def test_labels_take_only_the_values_of_their_closed_set(store, faulty, clock, telemetry):
    """Whatever a mix of everything with faults tells is in the table, so the number of series is bounded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        queue = queue_of(store)
    faults = FaultyStore(faulty.inner, seed=5, rate=0.2, kinds=("dropped", "reply_lost", "request_lost", "late"))
    faults.seams = clock
    shaky = queue_of(observe(faults, telemetry))
    latch = CountDownLatch.create(observe(faults, telemetry), "c", "mix", count=1000)
    tried = (
        lambda: shaky.publish("a"),
        lambda: [delivery.nack("exception") for delivery in shaky.receive(5)],
        lambda: shaky.ack_many(shaky.receive(5)),
        lambda: Sweeper(shaky.registry, Election(1), parallelism=1).run_once(),
        latch.count_down,
        lambda: FencedLock(shaky.store, "l", lease=0.05).acquire(1),
    )
    for turn in range(120):
        with suppress(LatchworkError):
            tried[turn % len(tried)]()
    assert queue.depth().loaded
    for name, _, labels in telemetry.told:
        allowed = EVENTS[name].labels
        assert labels.keys() == allowed.keys()
        for label, value in labels.items():
            assert value in allowed[label] if allowed[label] else value in ("q", "q_SIDELINE", "q_PARKED"), (
                name,
                labels,
            )
    assert {name for name, _, _ in telemetry.told} >= {"store_calls", "store_rows", "retries", "doubts", "published"}


def test_a_message_in_hand_that_was_cancelled_is_told_of_as_the_table_says(store, telemetry):
    queue = queue_of(store)
    queue.publish("m")
    queue.drop_cancelled(queue.receive())
    assert telemetry.total("handled", queue="q", outcome="cancelled") == 1
    assert "cancelled" in EVENTS["handled"].labels["outcome"]


def test_telling_costs_no_store_call(clock, telemetry):
    def calls(wrap):
        counted = FaultyStore(MemoryStore(clock), seams=clock)
        queue = queue_of(wrap(counted))
        queue.publish_many(["a", "b"])
        queue.ack_many(queue.receive(2))
        CountDownLatch.create(queue.store, "c", "l", count=1).count_down()
        return counted.calls

    assert calls(lambda store: store) == calls(lambda store: observe(store, telemetry))


def test_an_observed_store_pickles_as_the_plain_one_and_keeps_its_other_sides(tmp_path, telemetry):
    plain = SQLiteStore(tmp_path / "s.db")
    observed = observe(observe(plain, telemetry), telemetry)
    assert type(pickle.loads(pickle.dumps(observed))) is SQLiteStore
    latch = CountDownLatch.get(observed, "c", "l")
    assert pickle.loads(pickle.dumps(latch))._store.seams is SYSTEM
    assert repr(observed) == repr(plain)
    assert observed.describe() == plain.describe()
    observed.operate(KEY, Put("n", 1), exists=Exists.CREATE)
    assert plain.operate(KEY, Read("n")) == (1,)
    view = observed.with_policy(RetryPolicy(attempts=1))
    view.get(KEY)
    assert telemetry.times("store_calls", verb="get") == 2, "both telemetries hear of what a view does"
    observed.close()


def test_what_is_no_telemetry_is_refused():
    with pytest.raises(InvalidRequest, match="PrometheusTelemetry"):
        observe(MemoryStore(), object())


def test_a_store_that_is_not_observed_tells_nothing():
    assert re.search(r"^prometheus|^opentelemetry", "\n".join(_imported()), re.MULTILINE) is None


def _imported():
    import subprocess
    import sys

    code = "import latchwork, latchwork.queue, latchwork.coord, latchwork.observe, sys; print('\\n'.join(sys.modules))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
