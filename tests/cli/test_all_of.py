"""An action on all messages that match: chosen once, done part by part, with the outcome of each."""

from __future__ import annotations

import pickle
import warnings
from datetime import timedelta

import pytest

import latchwork
from latchwork.cli import bulk
from latchwork.cli.bulk import PART, Run, choose
from latchwork.errors import Corrupt, InvalidRequest, Refused, Unavailable
from latchwork.observe.audit import Deed, audit_of, audited, note_progress
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded.shards import Shards
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, FaultyStore


def parked_in(registry, name, n, prefix="m"):
    """A queue with so many more parked messages."""
    queue = registry.create(QueueConfig(name, shards=2, max_deliveries=1))
    queue.publish_many(range(n), message_ids=[f"{prefix}-{one}" for one in range(n)], headers={"tenant": prefix})
    while held := queue.receive(100):
        for delivery in held:
            delivery.nack("exception", error="boom")
    return queue


@pytest.fixture
def store():
    clock = ManualClock()
    return FaultyStore(MemoryStore(clock), seams=clock)


MANY = 500
"""Messages: some parts."""


@pytest.fixture
def orders(store):
    return parked_in(QueueRegistry(store, "shop", farm_id="f"), "orders", MANY)


def test_what_was_chosen_stays_as_it_was_and_each_message_has_its_outcome(store):
    orders = parked_in(QueueRegistry(store, "shop", farm_id="f"), "orders", 1_100)
    chosen = choose(orders, "parked", {"reason": "exhausted"})
    assert (len(chosen.messages), chosen.more) == (1_100, False), "more than one call reads"
    assert all(message.payload is None for message in chosen.messages)
    gone = chosen.messages[7]
    orders.parked.discard([gone])
    parked_in(orders.registry, "orders", 2, "late")
    run = Run("redrive", chosen)
    assert run.go(orders) == "redrive 1,100 of 1,100: 1,099 done, 1 not there"
    assert dict(run.rows())[gone.message_id] == "not there"
    assert [one.message_id for one in orders.parked.search()] == ["late-0", "late-1"]
    assert orders.depth().ready == 1_099


def test_the_cap_holds_and_says_that_there_are_more(orders):
    chosen = choose(orders, "parked", {}, most=400)
    assert (len(chosen.messages), chosen.more) == (400, True)
    looked = choose(orders, "parked", {"header": {"tenant": "none"}}, looked=300)
    assert (looked.messages, looked.more) == ((), True)
    for most in (0, 10_001):
        with pytest.raises(InvalidRequest, match=r"1 to 10,?000"):
            choose(orders, "parked", {}, most=most)
    with pytest.raises(InvalidRequest, match="ready"):
        choose(orders, "ready", {})


def test_a_stop_leaves_what_has_not_begun(orders):
    run = Run("discard", choose(orders, "parked", {}))
    said = []

    def tell(text):
        said.append(text)
        run.stop("anna")

    assert run.go(orders, tell) == "discard 100 of 500: 400 not tried, 100 done; stopped by anna"
    assert (len(said), run.tried, orders.depth().parked) == (1, PART, MANY - PART)


def test_a_store_that_goes_away_ends_it_and_no_message_is_said_to_be_done_that_is_not(orders, store):
    run = Run("discard", choose(orders, "parked", {}))

    def tell(_):
        if run.tried == 3 * PART:
            store.plan = {store._number + n: "dropped" for n in range(1, 10_000)}

    said = run.go(orders, tell)
    store.plan = {}
    assert run.counts["done"] == 3 * PART
    assert run.counts["not tried"] == MANY - 4 * PART
    assert "it ended early: " in said
    assert orders.depth().parked == MANY - 3 * PART


@pytest.mark.parametrize("fault", ["reply_lost", "dropped"])
def test_a_fault_at_any_call_never_claims_more_than_was_done(fault):
    """Whatever happened to a part, `done` is gone from here, and `not tried` and `failed` are still here."""
    for at in range(1, 40):
        clock = ManualClock()
        store = FaultyStore(MemoryStore(clock), seams=clock)
        queue = parked_in(QueueRegistry(store, "shop", farm_id="f"), "orders", 3)
        run = Run("discard", choose(queue, "parked", {}))
        store.plan = {store._number + at: fault}
        run.go(queue)
        if store.plan:
            break  # there were fewer calls
        store.plan = {}
        left = {one.message_id for one in queue.parked.search()}
        for name, outcome in run.rows():
            if outcome == "done":
                assert name not in left, (at, name)
            if outcome == "not tried" or outcome.startswith("failed"):
                assert name in left, (at, name)


def test_two_messages_of_one_id_have_each_their_own_outcome(store):
    queue = parked_in(QueueRegistry(store, "shop", farm_id="f"), "orders", 1)
    parked_in(queue.registry, "orders", 1)
    chosen = choose(queue, "parked", {})
    assert [one.message_id for one in chosen.messages] == ["m-0", "m-0"]
    queue.parked.discard(chosen.messages[:1])
    run = Run("redrive", chosen)
    run.go(queue)
    assert run.outcomes == ["not there", "done"]


def test_the_audit_record_says_how_far_it_is_until_it_is_over(store):
    def interrupted():
        with audited(store, Deed("f", "anna", "redrive", "shop/orders")) as deed:
            note_progress(store, deed, "redrive 100 of 300")
            (begun,) = audit_of(store)
            assert (begun.after, begun.outcome) == ("redrive 100 of 300", "begun")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (kept,) = audit_of(store)
    assert (kept.after, kept.outcome) == ("redrive 100 of 300", "failed: KeyboardInterrupt")


def test_messages_are_chosen_over_as_many_looks_as_they_take(store, monkeypatch):
    monkeypatch.setattr(bulk, "MOST_READ", 100)
    assert len(choose(parked_in(QueueRegistry(store, "shop"), "orders", 250), "parked", {}).messages) == 250


def test_delayed_messages_are_chosen_and_cancelled(store):
    queue = QueueRegistry(store, "shop", farm_id="f").create(QueueConfig("orders", shards=2))
    queue.publish_many(range(50), delay=600, message_ids=[f"d-{n}" for n in range(50)])
    run = Run("cancel", choose(queue, "delayed", {}, most=45))
    assert run.chosen.more
    run.go(queue)
    assert (run.counts, len(queue.delayed.search())) == ({"done": 45}, 5)


@pytest.fixture
def shared(store):
    """A queue with a group, with 30 delayed messages and one that has failed, which alone cannot be cancelled."""
    queue = QueueRegistry(store, "shop", farm_id="f").create(QueueConfig("orders", shards=2))
    queue.group("audit")
    queue.publish("fails", message_id="seen")
    queue.receive()[0].nack("exception", error="boom")
    queue.publish_many(range(30), delay=600, message_ids=[f"d-{n}" for n in range(30)])
    return queue


def test_a_message_that_is_named_twice_is_cancelled_once(lw, client):
    queue = client.create(QueueConfig("orders", shards=1))
    of = queue.publish("x")
    done = lw("queue", "cancel", *WORDS, "--id", of, "--id", of, "--json")
    assert (done.code, done.json) == (0, [{"message_id": of, "outcome": "done"}])


def test_a_message_that_cannot_be_cancelled_keeps_no_other_from_it(shared):
    run = Run("cancel", choose(shared, "delayed", {}))
    assert run.chosen.names[0] == "seen", "the first of its part"
    assert run.go(shared) == "cancel 31 of 31: 30 done, 1 failed: REFUSED"
    assert dict(run.rows())["seen"] == "failed: REFUSED"
    assert [message.published_as for message in shared.delayed.search()] == ["seen"]


def test_each_message_that_cannot_be_cancelled_has_its_own_error(shared, monkeypatch):
    real = type(shared).cancel

    def cancel(queue, name):
        if name == "d-7":
            raise Corrupt("d-7 is damaged")
        return real(queue, name)

    monkeypatch.setattr(type(shared), "cancel", cancel)
    with pytest.raises(Refused) as failure:
        bulk.act(shared, "cancel", "", ["d-6", "seen", "d-7", "d-8"])
    assert failure.value.details["outcomes"] == {"d-6": "done", "d-8": "done"}
    assert bulk.outcomes_in(failure.value, ["d-6", "seen", "d-7", "d-8"]) == {
        "d-6": "done", "seen": "failed: REFUSED", "d-7": "failed: CORRUPT", "d-8": "done",
    }  # fmt: skip
    pickle.loads(pickle.dumps(failure.value))  # as it may cross to another process


def test_a_cancel_ends_where_the_store_stops_answering_and_the_rest_was_not_tried(shared, store, monkeypatch):
    run, real = Run("cancel", choose(shared, "delayed", {})), type(shared).cancel

    def cancel(queue, name):
        if name == run.chosen.names[5]:
            store.plan = {store._number + n: "dropped" for n in range(1, 10_000)}
        return real(queue, name)

    monkeypatch.setattr(type(shared), "cancel", cancel)
    said = run.go(shared)
    store.plan = {}
    assert run.outcomes == ["failed: REFUSED", *["done"] * 4, "failed: UNAVAILABLE", *["not tried"] * 25]
    assert "it ended early: " in said
    assert len(shared.delayed.search()) == 31 - 4


def test_a_queue_that_is_gone_ends_a_move(orders):
    run = Run("move", choose(orders, "parked", {}), "nowhere")
    assert "it ended early: " in run.go(orders)
    assert run.counts == {"not tried": MANY - PART, "failed: NOT_FOUND": PART}


def test_damaged_messages_end_no_run(orders, monkeypatch):
    def damaged(queue, verb, side, messages, to):
        raise Corrupt("all of this part", outcomes={})

    monkeypatch.setattr(bulk, "act", damaged)
    run = Run("discard", choose(orders, "parked", {}))
    assert run.go(orders) == "discard 500 of 500: 500 failed: CORRUPT"


@pytest.mark.long
def test_to_choose_reads_a_call_for_each_1000_records_whatever_they_hold():
    clock = ManualClock()
    store = CountingStore(MemoryStore(clock))
    queue = parked_in(QueueRegistry(store, "shop", farm_id="f"), "orders", 3_000)
    store.reset()
    assert len(choose(queue, "parked", {"header": {"tenant": "m"}}).messages) == 3_000
    assert store.total <= 5


def test_the_part_that_an_interrupt_cuts_is_unknown_and_the_others_were_not_tried(orders, monkeypatch):
    run = Run("discard", choose(orders, "parked", {}))
    real, calls = bulk.act, []

    def cut(queue, verb, side, messages, to):
        calls.append(messages)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(queue, verb, side, messages, to)

    monkeypatch.setattr(bulk, "act", cut)
    with pytest.raises(KeyboardInterrupt):
        run.go(orders)
    assert (run.is_over, run.counts) == (True, {"not tried": 300, "done": 100, "unknown": 100})


@pytest.mark.long
def test_of_delayed_messages_no_more_are_looked_at_than_was_agreed():
    store = CountingStore(MemoryStore(ManualClock()))
    queue = QueueRegistry(store, "shop", farm_id="f").create(QueueConfig("orders", shards=2))
    for second in range(6):
        queue.publish_many(range(1_000), delay=400 * (second + 1))
    store.reset()
    chosen = choose(queue, "delayed", {"header": {"tenant": "none"}}, looked=2_000)
    assert (chosen.messages, chosen.more) == ((), True)
    assert store.rows["get_many"] < 20_000, "15,000 of them are buckets"


# ---- the command


@pytest.fixture
def client(lw, sqlite_url):
    """The queues of a client in a file, and one to move messages to."""
    store = latchwork.connect(sqlite_url)
    registry = QueueRegistry(store, "shop")
    registry.create(QueueConfig("by-hand", shards=2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield registry
    store.close()


@pytest.fixture
def filled(client):
    return parked_in(client, "orders", 250)


@pytest.fixture
def few(client):
    return parked_in(client, "orders", 5)


WORDS = ("orders", "--client", "shop")


def test_all_that_match_are_taken_by_the_command_and_the_outcome_of_each_is_printed(lw, filled):
    dry = lw("--json", "queue", "discard", *WORDS, "--all", "--dry-run", "--most", "7")
    assert (len(dry.json), "would discard 7 messages; others match" in dry.err) == (7, True)
    moved = lw("queue", "move", *WORDS, "--to", "by-hand", "--all", "--reason", "exhausted", "--most", "120")
    assert (moved.code, moved.out.count("done"), "move 120 of 120: 120 done" in moved.err) == (0, 120, True)
    redriven = lw("--json", "queue", "redrive", *WORDS, "--all", "--header", "tenant=m")
    assert [row["outcome"] for row in redriven.json] == ["done"] * 130
    assert "no messages" in lw("queue", "redrive", *WORDS, "--all").out
    deeds = audit_of(filled.store)
    assert [(one.what, one.target) for one in deeds] == [
        ("redrive", "shop/orders/130 messages"), ("move", "shop/orders/120 messages"),
    ]  # fmt: skip


def test_everything_is_discarded_only_where_the_queue_is_named_twice(lw, filled):
    refused = lw("queue", "discard", *WORDS, "--all")
    assert (refused.code, "--confirm 'orders'" in refused.err) == (2, True)
    assert filled.depth().parked == 250
    assert lw("queue", "discard", *WORDS, "--all", "--confirm", "orders").code == 0
    assert filled.depth().parked == 0
    filled.publish("x", delay=60)
    assert lw("queue", "cancel", *WORDS, "--all").code == 2
    assert lw("queue", "cancel", *WORDS, "--all", "--confirm", "orders").code == 0


@pytest.mark.parametrize(
    "more",
    [("--most", "3"), ("--header", "a=b"), ("--older-than", "3"), ("--all", "--id", "m-1"), ("--all", "--most", "0"),
     ("--all", "--reason", "x", "--side", "ready"), ("--all", "--reason", "x", "--header", "a")],
)  # fmt: skip
def test_what_means_nothing_is_refused(lw, few, more):
    assert lw("queue", "discard", *WORDS, *more).code == 2
    assert few.depth().parked == 5


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C comes after the first part of a run."""
    real = Run._take

    def take(run, queue, part):
        if run.tried:
            raise KeyboardInterrupt
        return real(run, queue, part)

    monkeypatch.setattr(Run, "_take", take)


@pytest.mark.usefixtures("interrupted")
def test_ctrl_c_says_what_was_done_of_each(lw, filled):
    done = lw("queue", "redrive", *WORDS, "--all")
    assert done.code == 130
    assert (done.out.count("\tdone"), done.out.count("\tnot tried")) == (100, 150)
    assert filled.depth().ready == 100


@pytest.fixture
def refusing(client):
    """Three delayed messages of a queue with a group, and one that has failed and cannot be cancelled."""
    queue = client.create(QueueConfig("orders", shards=2))
    queue.group("audit")
    queue.publish("fails", message_id="seen")
    queue.receive()[0].nack("exception", error="boom")
    queue.publish_many(range(3), delay=600, message_ids=["d-0", "d-1", "d-2"])
    return queue


def test_messages_named_after_one_that_cannot_be_cancelled_are_cancelled_and_told(lw, refusing):
    ids = [word for one in ("d-0", "seen", "d-1") for word in ("--id", one)]
    done = lw("queue", "cancel", *WORDS, *ids, "--json")
    assert (done.code, done.json["error"]) == (1, "REFUSED")
    assert done.json["outcomes"] == [
        {"message_id": "d-0", "outcome": "done"},
        {"message_id": "seen", "outcome": "failed: REFUSED"},
        {"message_id": "d-1", "outcome": "done"},
    ]
    for line in ("d-0: done", "seen: failed: REFUSED", "d-1: done"):
        assert f"latchwork: {line}\n" in done.err
    (deed,) = audit_of(refusing.store)
    assert deed.outcome == "failed: REFUSED"
    assert deed.after.startswith("2 done, 1 failed: REFUSED; seen: failed: REFUSED; groups wait for the message")


@pytest.fixture
def unlike(client):
    """Delayed messages of which the queue `short` takes some, and two not, for different reasons."""
    queue = client.create(QueueConfig("orders", shards=2))
    queue.publish_many(range(3), delay=60, message_ids=["d-0", "d-1", "twice"])
    queue.publish_many(range(2), delay=4000, message_ids=["far-0", "far-1"])
    expiry = {"message_expiry": timedelta(minutes=5), "queue_expiry": timedelta(hours=1)}
    client.create(QueueConfig("short", shards=1, **expiry)).publish("there", delay=30, message_id="twice")
    return queue


def moved(lw, *ids):
    words = [word for one in ids for word in ("--id", one)]
    return lw("queue", "move", *WORDS, "--to", "short", "--side", "delayed", *words, "--json")


def test_of_messages_that_fail_for_different_reasons_each_is_told_with_its_own(lw, unlike):
    done = moved(lw, "far-0", "d-0", "twice", "nobody")
    assert (done.code, {row["message_id"]: row["outcome"] for row in done.json["outcomes"]}) == (
        1,
        {"far-0": "failed: INVALID_REQUEST", "d-0": "done", "twice": "failed: ALREADY_EXISTS", "nobody": "not there"},
    )
    assert "latchwork: far-0: failed: INVALID_REQUEST\n" in done.err
    (deed,) = audit_of(unlike.store)
    assert "far-0: failed: INVALID_REQUEST" in deed.after
    assert "twice: failed: ALREADY_EXISTS" in deed.after


def test_the_exit_code_of_several_messages_is_not_chosen_by_the_error_of_one(lw, unlike):
    assert (moved(lw, "far-0", "d-0").code, moved(lw, "d-1", "nobody").code) == (1, 3)
    assert (moved(lw, "far-1").code, moved(lw, "nobody").code) == (2, 3)


def test_what_was_brought_back_before_a_redrive_failed_is_told(lw, client, monkeypatch):
    queue = client.create(QueueConfig("orders", shards=2, max_deliveries=1))
    keys = [next(key for key in "abcdefgh" if queue.shard_of(key) == shard) for shard in (0, 1)]
    queue.publish_many(range(2), keys=keys, message_ids=["m-0", "m-1"])
    while held := queue.receive(2):
        for delivery in held:
            delivery.nack("exception", error="boom")
    real = Shards.claim

    def claim(self, shard, *rest, **more):
        if self.name.endswith("_PARKED") and shard == 1:
            raise Unavailable("no node")
        return real(self, shard, *rest, **more)

    monkeypatch.setattr(Shards, "claim", claim)
    done = lw("queue", "redrive", *WORDS, "--json")
    assert (done.code, done.json["error"], queue.depth().ready) == (1, "UNAVAILABLE", 1)
    assert done.json["outcomes"] == [{"message_id": "m-0", "outcome": "done"}]
    assert "latchwork: m-0: done\n" in done.err
    (deed,) = audit_of(queue.store)
    assert deed.after == "1 done; no node"


@pytest.mark.usefixtures("filled", "interrupted")
def test_the_outcomes_of_an_interrupted_run_are_the_one_json_document(lw):
    done = lw("--json", "queue", "redrive", *WORDS, "--all")
    assert (done.code, len(done.json), "latchwork: interrupted\n" in done.err) == (130, 250, True)


def test_a_run_that_cannot_be_recorded_prints_the_error_alone(lw, few, monkeypatch):
    def refused(store, deed):
        raise Unavailable("the audit record cannot be written")

    monkeypatch.setattr("latchwork.observe.audit.audited", refused)
    done = lw("--json", "queue", "discard", *WORDS, "--all", "--reason", "exhausted")
    assert (done.code, done.json["error"]) == (1, "UNAVAILABLE")
    assert "not tried" not in lw("queue", "discard", *WORDS, "--all", "--reason", "exhausted").out
    assert few.depth().parked == 5
