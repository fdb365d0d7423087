"""`latchwork queue batch`."""

from __future__ import annotations

import pytest

from latchwork import connect
from latchwork.queue import QueueRegistry


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


@pytest.mark.parametrize("verb", ["show", "wait", "close", "cancel"])
def test_a_batch_that_is_not_there_is_said_in_one_line_and_not_made(lw, orders, verb):
    done = lw("queue", "batch", verb, "orders", "none", "--client", "shop")
    assert done.code == 3
    assert "no batch 'none'" in done.err
    assert orders.list_batches() == []
