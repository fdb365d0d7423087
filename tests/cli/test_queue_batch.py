"""`latchwork queue batch`."""

from __future__ import annotations

import json

import pytest

from latchwork import connect
from latchwork.cli import follow_ups, session
from latchwork.errors import Unavailable
from latchwork.queue import Publish, QueueConfig, QueueRegistry
from latchwork.queue.sharded.batches.records import BatchRecords, not_followed
from latchwork.queue.sharded.slots import Slot
from latchwork.store import Put
from latchwork.testing.stores import CountingStore
from tests.support.undecodable import Undecodable


@pytest.fixture
def orders(lw, sqlite_url):
    assert lw("queue", "create", "orders", "--client", "shop", "--shards", "1").code == 0
    store = connect(sqlite_url)
    yield QueueRegistry(store, "shop").get("orders")
    store.close()


def test_batches_are_listed_looked_at_waited_for_and_closed(lw, orders):
    where = ("--client", "shop")
    assert "no open batches of orders" in lw("queue", "batch", "list", "orders", *where).out
    batch = orders.batch("load-7")
    batch.publish_many([1, 2])
    orders.receive(1)[0].ack()
    (row,) = lw("--json", "queue", "batch", "list", "orders", *where).json
    assert (row["batch"], row["published"], row["done"], row["closed"]) == ("load-7", 2, 1, False)
    assert [one["batches"] for one in lw("--json", "stats", *where).json] == [1]
    done = lw("queue", "batch", "wait", "orders", "load-7", *where, "--timeout", "0")
    assert done.code != 0
    assert "1 of 2 messages wait" in done.err
    assert "it is not closed" in done.err
    assert lw("queue", "batch", "close", "orders", "load-7", *where).code == 0
    assert lw("queue", "batch", "close", "orders", "load-7", *where).code == 0
    orders.receive(1)[0].ack()
    assert lw("queue", "batch", "wait", "orders", "load-7", *where, "--timeout", "5").code == 0
    facts = lw("--json", "queue", "batch", "show", "orders", "load-7", *where).json
    assert (facts["done"], facts["complete"], facts["missing"]) == (2, True, [])
    lines = lw("queue", "batch", "show", "orders", "load-7", *where).out.splitlines()
    assert [line.split() for line in lines] == [
        ["batch", "load-7"], ["published", "2"], ["done", "2"], ["discarded", "0"], ["parked", "0"], ["waiting", "0"],
        ["closed", "True"], ["complete", "True"], ["ended", "True"], ["cancelled", "False"],
        ["missing", "-"],
    ]  # fmt: skip


def test_a_batch_is_cancelled_unless_all_was_done(lw, orders):
    where = ("--client", "shop")
    batch = orders.batch("load-7")
    batch.publish_many([1, 2])
    assert lw("queue", "batch", "cancel", "orders", "load-7", *where).out == "cancelled load-7 of orders\n"
    assert orders.receive(2) == []
    assert lw("--json", "queue", "batch", "show", "orders", "load-7", *where).json["cancelled"]
    with orders.batch("load-8"):
        """Nothing is in it."""
    late = lw("queue", "batch", "cancel", "orders", "load-8", *where)
    assert late.code == 3
    assert "all messages of batch 'load-8' of orders are done" in late.err


@pytest.mark.parametrize("verb", ["show", "wait", "close", "cancel", "results"])
def test_a_batch_that_is_not_there_is_said_in_one_line_and_not_made(lw, orders, verb):
    done = lw("queue", "batch", verb, "orders", "none", "--client", "shop")
    assert done.code == 3
    assert "no batch 'none'" in done.err
    assert orders.list_batches() == []


def test_results_are_printed_a_line_each_and_the_exit_code_says_if_any_is_missing(lw, sqlite_url):
    where = ("--client", "shop")
    made = lw("queue", "create", "asked", *where, "--shards", "1", "--results-hours", "1", "--max-deliveries", "1")
    assert made.code == 0, made.err
    store = connect(sqlite_url)
    queue = QueueRegistry(store, "shop").get("asked")
    batch = queue.batch("load-7")
    ids = batch.publish_many([1, 2])
    ask = ("queue", "batch", "results", "asked", "load-7", *where)
    first, second = queue.receive(2)
    first.ack({"total": "a\tb"})
    early = lw(*ask)
    assert early.code == 4
    assert early.out.splitlines()[0] == f'{ids[0]} done {{"total": "a\\tb"}}'
    assert f"{ids[1]} running WAIT_TIMEOUT: " in early.out
    assert "batch 'load-7' is not closed" in early.err
    batch.close()
    late = lw(*ask, "--timeout", "0.1")
    assert late.code == 4
    assert "1 of 2 messages without a result" in late.err
    second.nack(error="it broke")
    failed = lw("--json", *ask, "--timeout", "5")
    assert failed.code == 1
    *rows, why = [json.loads(line) for line in failed.out.splitlines()]
    assert why["error"] == "HANDLER_FAILED" if "error" in why else True
    assert [(row["message_id"], row["state"], row["code"]) for row in rows] == [
        (ids[0], "done", None), (ids[1], "parked", "HANDLER_FAILED"),
    ]  # fmt: skip
    assert (rows[0]["result"], rows[1]["result"]) == ({"total": "a\tb"}, None)
    assert "it broke" in rows[1]["error"]
    queue.parked.redrive([ids[1]])
    queue.receive()[0].ack(None)
    assert [line.partition(" ")[2] for line in lw(*ask).out.splitlines()] == ['done {"total": "a\\tb"}', "done null"]
    assert lw(*ask).code == 0
    store.close()


def test_the_error_of_results_is_that_of_the_first_message_that_is_not_done_or_else_has_no_result(lw, sqlite_url):
    where = ("--client", "shop")
    settings = ("--shards", "1", "--results-hours", "1", "--max-deliveries", "1")
    assert lw("queue", "create", "asked", *where, *settings).code == 0
    store = connect(sqlite_url)
    queue = QueueRegistry(store, "shop").get("asked")
    with queue.batch("load-7") as batch:
        ids = batch.publish_many([1, 2, 3, 4])
    broken, also_broken, *at_work = queue.receive(4)
    broken.nack(error="it broke")
    also_broken.nack(error="it broke too")
    ask = ("queue", "batch", "results", "asked", "load-7", *where)
    done = lw(*ask)
    assert done.code == 4
    assert ids[2] in done.err.splitlines()[-1]
    for delivery in at_work:
        delivery.ack()
    done = lw(*ask)
    assert done.code == 1
    assert ids[0] in done.err.splitlines()[-1]
    store.close()


def test_results_of_a_queue_that_keeps_none_are_refused_with_the_remedy(lw, orders):
    orders.batch("load-7")
    done = lw("queue", "batch", "results", "orders", "load-7", "--client", "shop")
    assert done.code == 2
    assert "keeps no results" in done.err


def test_a_batch_of_which_messages_expired_is_said_never_to_end_with_the_command_that_ends_it(lw, orders):
    show = ("queue", "batch", "show", "orders", "load-7", "--client", "shop")
    with orders.batch("load-7") as batch:
        batch.publish_many(range(5))
    orders.receive(1)[0].ack()
    held = orders.receive(1)
    assert lw("--json", *show).json["lost"] == 0
    assert "cannot end" not in lw(*show).out
    for pointer in (3, 4, 5):  # as where they expire
        orders.store.delete(orders.pointers.key(Slot(0, pointer)))
    facts = lw("--json", *show).json
    assert (facts["waiting"], facts["missing"], facts["lost"]) == (4, [], 3), "one is in hand"
    assert lw(*show).out.splitlines()[-1] == (
        "3 messages of it expired unread, or can no longer come: this batch cannot end; end it, without its follow-up: "
        "latchwork queue batch cancel orders load-7 --client shop"
    )
    held[0].ack()
    assert lw("--json", *show).json["lost"] == 3
    assert lw("queue", "batch", "cancel", "orders", "load-7", "--client", "shop").code == 0
    assert lw("--json", *show).json["lost"] == 0


def test_an_open_batch_of_which_nothing_waits_is_said_to_be_open_with_the_command_that_closes_it(lw, orders):
    show = ("queue", "batch", "show", "orders", "load-7", "--client", "shop")
    batch = orders.batch("load-7")
    batch.publish_many(range(2))
    assert "not closed" not in lw(*show).out, "its messages wait"
    for delivery in orders.receive(2):
        delivery.ack()
    assert lw(*show).out.splitlines()[-1] == (
        "it is not closed, and none of its messages waits: it ends once its publisher closes it; where that has died, "
        "publish the rest, or close it: latchwork queue batch close orders load-7 --client shop"
    )
    assert lw("queue", "batch", "close", "orders", "load-7", "--client", "shop").code == 0
    assert "not closed" not in lw(*show).out
    assert lw("--json", *show).json["complete"] is True


def test_a_cancelled_batch_that_was_never_closed_asks_nobody_to_close_it(lw, orders):
    orders.batch("load-7").publish_many(range(2))
    assert lw("queue", "batch", "cancel", "orders", "load-7", "--client", "shop").code == 0
    assert "close it" not in lw("queue", "batch", "show", "orders", "load-7", "--client", "shop").out


def test_a_batch_that_is_done_says_why_its_follow_up_has_not_come_with_the_remedy(lw, orders):
    where = ("--client", "shop")
    registry = orders.registry
    registry.create(QueueConfig("reports", shards=1))
    with orders.batch("load-7", then=Publish("over", queue="reports")) as batch:
        batch.publish(1)
    registry.deactivate("reports")
    orders.receive(1)[0].ack()
    show = ("queue", "batch", "show", "orders", "load-7", *where)
    said = lw(*show).out
    assert "all of it is done, and its follow-up is not published: queue reports is deactivated" in said
    assert "latchwork queue activate reports --client shop" in said
    assert lw("queue", "activate", "reports", *where).code == 0
    assert "the upkeep publishes it within 25 s" in lw(*show).out
    assert "follow-up" not in lw("--json", *show).out


def test_a_batch_without_a_follow_up_is_not_said_to_miss_one(lw, orders, monkeypatch):
    monkeypatch.setattr(BatchRecords, "end", lambda *_: None)  # as if who was to end it had died
    with orders.batch("load-7") as batch:
        batch.publish(1)
    orders.receive(1)[0].ack()
    facts = lw("--json", "queue", "batch", "show", "orders", "load-7", "--client", "shop").json
    assert (facts["complete"], facts["ended"]) == (True, False)
    assert "follow-up" not in lw("queue", "batch", "show", "orders", "load-7", "--client", "shop").out


@pytest.fixture
def unfollowed(orders):
    """A batch that is done, whose follow-up its queue `reports` has refused; and one that is open, with the same."""
    registry = orders.registry
    registry.create(QueueConfig("reports", shards=1))
    orders.batch("open", then=Publish("over", queue="reports")).publish(0, delay=60)
    with orders.batch("load-7", then=Publish("over", queue="reports")) as batch:
        batch.publish(1)
    registry.deactivate("reports")
    orders.receive(1)[0].ack()
    return registry


def follow_ups_in(done):
    return [(one["state"], one["what"], one["remedy"]) for one in done.json if "follow-up" in one["what"]]


def test_doctor_names_a_batch_whose_follow_up_is_refused_with_the_reason_and_the_remedy(lw, unfollowed):
    done = "batch load-7 of queue orders of shop is done, and its follow-up is not published"
    activate = "latchwork queue activate reports --client shop"
    for options in ((), ("--client", "shop")):
        told = lw("doctor", *options, "--json")
        assert told.code == 1
        assert follow_ups_in(told) == [("problem", f"{done}: queue reports is deactivated", activate)]
    unfollowed.store.delete(unfollowed.records.key("reports"))
    create = "latchwork queue create reports --client shop"
    assert follow_ups_in(lw("doctor", "--json")) == [("problem", f"{done}: there is no queue reports", create)]
    for then in ({"data": "x"}, {"queue": "reports"}):
        unfollowed.store.operate(unfollowed.get("orders").batches.key("load-7"), Put("then", then))
        ((state, what, remedy),) = follow_ups_in(lw("doctor", "--json"))
        assert (state, what) == ("problem", f"{done}: its record does not say what it is")
        assert "publish that message yourself" in remedy


def test_doctor_says_nothing_of_a_follow_up_that_its_queue_takes(lw, unfollowed):
    unfollowed.activate("reports")
    assert follow_ups_in(lw("doctor", "--json")) == []


def test_doctor_names_a_record_of_batches_that_cannot_be_read_and_those_beside_it(lw, unfollowed, monkeypatch):
    bad = unfollowed.create(QueueConfig("bad", shards=1))
    bad.batch("b")
    strange = Undecodable(unfollowed.store)
    strange.bad[bad.batches.index] = "names"
    monkeypatch.setattr(session, "connect", lambda _: strange)
    told = lw("doctor", "--client", "shop", "--json")
    assert [state for state, _, _ in follow_ups_in(told)] == ["problem"], "the other one is named all the same"
    assert any("batches of queue bad of shop: " in one["what"] for one in told.json)


def test_follow_ups_that_cannot_be_looked_at_hide_nothing_else_that_doctor_found(lw, unfollowed, monkeypatch):
    with pytest.warns(UserWarning, match="paused"):
        unfollowed.get("orders").pause()

    def away(*_):
        raise Unavailable("node A is away")

    monkeypatch.setattr(follow_ups, "not_followed", away)
    told = lw("doctor", "--json")
    assert [state for state, _, _ in follow_ups_in(told)] == ["warning"]
    assert any("paused" in one["what"] for one in told.json)


def test_batches_cost_doctor_two_calls_however_many_there_are(unfollowed):
    store = CountingStore(unfollowed.store)
    registry = QueueRegistry(store, "shop")
    queues = [registry.create(QueueConfig(f"q{n}", shards=1)) for n in range(3)]
    for n in range(5):
        queues[0].batch(f"b{n}")
    records = [queue.batches for queue in (registry.get("orders"), *queues)]
    store.reset()
    assert [(one.queue, name) for one, name, _ in not_followed(records)] == [("orders", "load-7")]
    assert store.total == 2
