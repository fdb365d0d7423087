"""`latchwork queue group`."""

from __future__ import annotations

import pytest


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
    assert lw("queue", "group", "drop", "orders", "audit", *queue[1:]).code == 0
    assert lw("queue", "group", "drop", "orders", "audit", *queue[1:]).code == 3
    assert lw("--json", "queue", "group", "list", *queue).json == []


@pytest.mark.parametrize("start", ["now", "oldest", "2030-01-31T12:00+00:00"])
def test_it_begins_where_it_is_told(lw, queue, start):
    assert lw("queue", "publish", "orders", "1", *queue[1:]).code == 0
    assert lw("queue", "group", "create", "orders", "late", *queue[1:], "--start", start).code == 0
    (row,) = lw("--json", "queue", "group", "list", *queue).json
    assert row["ready"] == (1 if start == "oldest" else 0)


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
