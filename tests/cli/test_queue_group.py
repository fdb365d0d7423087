"""`latchwork queue group`."""

from __future__ import annotations

from contextlib import closing

import pytest

import latchwork
from latchwork.queue import QueueRegistry


@pytest.fixture
def queue(lw):
    assert lw("queue", "create", "orders", "--client", "shop", "--shards", "1").code == 0
    return ("orders", "--client", "shop")


def test_a_group_is_created_listed_looked_at_and_dropped(lw, queue):
    done = lw("queue", "group", "list", *queue)
    assert "no groups of orders" in done.out + done.err
    assert lw("queue", "group", "create", "orders", "audit", *queue[1:], "--concurrency", "3").code == 0
    assert lw("queue", "publish", "orders", '{"n": 1}', *queue[1:]).code == 0
    (row,) = lw("--json", "queue", "group", "list", *queue).json
    assert row == {"group": "audit", "consumers": 3, "ready": 1, "sideline": 0, "parked": 0}
    facts = lw("--json", "queue", "group", "stats", "orders", "audit", *queue[1:]).json
    assert (facts["queue"], facts["ready"], facts["in_flight"]) == ("orders@audit", 1, 0)
    lines = lw("queue", "group", "stats", "orders", "audit", *queue[1:]).out.splitlines()
    told = dict(line.rsplit(maxsplit=1) for line in lines[:6])
    assert told["queue"] == "orders@audit"
    assert (told["workers"], told["threads each"], told["ready"]) == ("none", "3", "1")
    assert lw("queue", "group", "drop", "orders", "audit", *queue[1:]).code == 0
    assert lw("queue", "group", "drop", "orders", "audit", *queue[1:]).code == 3
    assert lw("--json", "queue", "group", "list", *queue).json == []


def test_a_publish_to_a_group_is_refused_and_says_where_to_publish(lw, queue):
    assert lw("queue", "group", "create", "orders", "audit", *queue[1:]).code == 0
    done = lw("queue", "publish", "orders@audit", "1", *queue[1:], "--json")
    assert (done.code, done.json["error"]) == (2, "INVALID_REQUEST")
    assert "publish to the queue 'orders'" in done.json["message"]


def test_what_was_published_before_a_group_was_made_is_none_of_its_messages_in_flight(lw, queue, sqlite_url):
    assert lw("queue", "publish", "orders", "1", "2", "3", *queue[1:]).code == 0
    for name, start in (("late", "now"), ("early", "oldest")):
        assert lw("queue", "group", "create", "orders", name, *queue[1:], "--start", start).code == 0
    rows = {row["queue"]: row for row in lw("--json", "stats", *queue[1:]).json}
    late, early = rows["orders@late"], rows["orders@early"]
    assert (late["ready"], late["in_flight"], late["shard_balance"]) == (0, 0, None)
    assert (early["ready"], early["in_flight"]) == (3, 0)
    assert lw("queue", "publish", "orders", "4", *queue[1:]).code == 0
    with closing(latchwork.connect(sqlite_url)) as store:
        for name, held in (("late", 1), ("early", 4)):
            assert len(QueueRegistry(store, "shop").get(f"orders@{name}").receive(10)) == held
    rows = {row["queue"]: row for row in lw("--json", "stats", *queue[1:]).json}
    assert [rows[f"orders@{name}"]["in_flight"] for name in ("late", "early")] == [1, 4]


def test_a_group_of_an_even_queue_is_even(lw):
    assert lw("queue", "create", "even", "--client", "shop", "--shards", "4").code == 0
    assert lw("queue", "group", "create", "even", "audit", "--client", "shop").code == 0
    for n in range(8):
        assert lw("queue", "publish", "even", str(n), "--client", "shop").code == 0
    rows = {row["queue"]: row for row in lw("--json", "stats", "--client", "shop").json}
    assert rows["even@audit"]["shard_balance"] == rows["even"]["shard_balance"]


def test_a_group_whose_maker_died_keeps_no_other_from_being_looked_at(lw, queue, sqlite_url):
    assert lw("queue", "group", "create", "orders", "audit", *queue[1:]).code == 0
    with closing(latchwork.connect(sqlite_url)) as store:
        group = QueueRegistry(store, "shop").get("orders@audit")
        assert store.delete(group.pointers.pointers_key(0))
    assert [row["queue"] for row in lw("--json", "stats", *queue[1:]).json] == ["orders"]
    done = lw("queue", "group", "stats", "orders", "audit", *queue[1:])
    assert (done.code, done.out) == (3, "")
    assert "'orders@audit' is being made, or dropped" in done.err
    done = lw("doctor", *queue[1:])
    assert "group orders@audit of shop is being made, or dropped" in done.out
    assert "queues of shop: the records of 1 queue, and the pointers of their shards, are sound" in done.out
    assert lw("queue", "group", "drop", "orders", "audit", *queue[1:]).code == 0
    assert "orders@audit" not in lw("doctor", *queue[1:]).out


@pytest.mark.parametrize("start", ["now", "oldest", "2030-01-31T12:00+00:00"])
def test_it_begins_where_it_is_told(lw, queue, start):
    assert lw("queue", "publish", "orders", "1", *queue[1:]).code == 0
    assert lw("queue", "group", "create", "orders", "late", *queue[1:], "--start", start).code == 0
    (row,) = lw("--json", "queue", "group", "list", *queue).json
    assert row["ready"] == (1 if start == "oldest" else 0)


def test_a_queue_whose_name_is_like_that_of_a_group_is_none_and_stays(lw, queue):
    assert lw("queue", "create", "orders@own", *queue[1:], "--shards", "1").code == 0
    for verb in ("drop", "stats"):
        done = lw("queue", "group", verb, "orders", "own", *queue[1:])
        assert (done.code, "no group 'own' of queue 'orders'" in done.err) == (3, True)
    assert lw("queue", "stats", "orders@own", *queue[1:]).code == 0


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (("create", "orders", "a", "--start", "soon"), "--start is 'soon'", 2),
        (("create", "orders", "a", "--start", "2030-01-31"), "time zone", 2),
        (("create", "nowhere", "a"), "nowhere", 3),
        (("stats", "orders", "none"), "orders@none", 3),
        (("drop", "orders", "none"), "orders@none", 3),
    ],
)
def test_what_is_wrong_is_said_in_one_line(lw, queue, arguments, said, code):
    done = lw("queue", "group", *arguments, "--client", "shop")
    assert done.code == code
    assert said in done.err
    assert "Traceback" not in done.err
