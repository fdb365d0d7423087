"""Every command does what it says, tells scripts by its exit code, and shows no stack trace for a user's mistake."""

from __future__ import annotations

import fcntl
import gc
import io
import json
import re
import shlex
import signal
import subprocess
import sys
import termios
import threading
import types
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import pytest

from latchwork.cli import hoist, main
from latchwork.cli.coord.waiting import holder_of
from latchwork.cli.demo import NEXT
from latchwork.cli.queue.facts import all_rows
from latchwork.coord import CountDownLatch, FencedLock
from latchwork.coord.effects.attempts import Condition
from latchwork.errors import FencedOut, InvalidRequest, Unavailable
from latchwork.observe.audit import audit_of
from latchwork.observe.snapshot import election_now
from latchwork.queue import LargeQueue, QueueConfig, QueueRegistry
from latchwork.queue.sharded.envelope import Envelope
from latchwork.queue.sharded.upkeep.upkeep import Upkeep
from latchwork.store import Exists, Key, MapPut, MemoryStore, Put, StoreInfo
from latchwork.store.connect import connect
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, FaultyStore, Outage
from tests.cli.commands import leaves
from tests.cli.conftest import command
from tests.support.waiting import until

SHOP = ("--client", "shop")


def test_a_shell_script_can_use_a_latch_as_a_barrier(run, here):
    assert run("latch", "create", "n", *SHOP, "--count", "2").code == 0
    assert here("latch", "count-down", "n", *SHOP, "--party", "a").out == "1 to go\n"
    timed_out = run("latch", "wait", "n", *SHOP, "--timeout", "0.1", "--json")
    assert (timed_out.code, timed_out.json["released"], timed_out.json["counted"]) == (4, False, ["a"])
    assert here("latch", "count-down", "n", *SHOP, "--party", "a").out == "1 to go\n"
    here("latch", "count-down", "n", *SHOP, "--party", "b")
    released = here("latch", "wait", "n", *SHOP, "--timeout", "10")
    assert (released.code, released.out) == (0, "released\n")
    assert here("latch", "delete", "n", *SHOP).code == 0
    assert here("latch", "show", "n", *SHOP).code == 3


def test_a_mistyped_party_releases_nobody_and_the_nearest_is_named(lw):
    lw("latch", "create", "p", *SHOP, "--party", "orders", "--party", "stock")
    done = lw("latch", "count-down", "p", *SHOP, "--party", "stcok")
    assert (done.code, "is 'stock' meant" in done.err) == (2, True)
    lw("latch", "count-down", "p", *SHOP, "--party", "orders")
    assert lw("latch", "show", "p", *SHOP).out.startswith("p: held, 1 to go; missing: stock\n")
    waited = lw("latch", "wait", "p", *SHOP, "--timeout", "0")
    assert (waited.code, waited.out) == (4, "timed out with 1 to go; missing: stock\n")
    assert lw("latch", "wait", "p", *SHOP, "--timeout", "0", "--json").json["missing"] == ["stock"]


def test_a_line_for_people_names_only_some_of_many_who_are_missing(lw, sqlite_url):
    CountDownLatch.create(connect(sqlite_url), "shop", "many", parties=range(20))
    assert "missing: 0, 1, 2, 3, 4, 5, 6, 7 and 12 more" in lw("latch", "show", "many", *SHOP).out


def test_a_shell_counts_parties_that_are_whole_numbers(lw, sqlite_url):
    latch = CountDownLatch.create(connect(sqlite_url), "shop", "numbers", parties=range(3))
    assert lw("latch", "count-down", "numbers", *SHOP, "--party", "2").out == "2 to go\n"
    assert latch.missing() == {0, 1}
    assert lw("latch", "count-down", "numbers", *SHOP, "--party", "3").code == 2
    CountDownLatch.create(connect(sqlite_url), "shop", "text", parties=["7", "a"])
    assert lw("latch", "count-down", "text", *SHOP, "--party", "7").out == "1 to go\n"
    CountDownLatch.create(connect(sqlite_url), "shop", "any", 2)
    assert lw("latch", "count-down", "any", *SHOP, "--party", "7").out == "1 to go\n"


def test_a_script_that_runs_again_goes_on_with_its_latch(lw):
    new = ("latch", "create", "again", *SHOP, "--party", "a", "--party", "b", "--if-absent")
    assert lw(*new).out == "there is again: 2 to go\n"
    lw("latch", "count-down", "again", *SHOP, "--party", "a")
    assert lw(*new).out == "there is again: 1 to go\n"
    other = lw("latch", "create", "again", *SHOP, "--party", "c", "--if-absent")
    assert "other parties" in other.err
    assert "--if-absent" in lw("latch", "create", "again", *SHOP, "--count", "1").err


def test_a_script_may_wait_before_another_has_created_the_latch(lw, sqlite_url):
    later = threading.Timer(0.3, lambda: CountDownLatch.create(connect(sqlite_url), "shop", "late", 0))
    assert lw("latch", "wait", "late", *SHOP, "--create-timeout", "0").code == 3
    later.start()
    assert lw("latch", "wait", "late", *SHOP, "--create-timeout", "60", "--timeout", "60").out == "released\n"
    later.join()


def test_latches_of_another_set_are_reached_by_its_suffix(lw, sqlite_url):
    mine = (*SHOP, "--set-suffix", "mine")
    assert lw("latch", "create", "s", *mine, "--count", "2").code == 0
    assert connect(sqlite_url).get(Key("D_LTCH#mine", "D_LTCH#shop#s")) is not None
    assert lw("latch", "show", "s", *SHOP).code == 3
    assert lw("latch", "count-down", "s", *mine).out == "1 to go\n"
    assert lw("latch", "show", "s", *mine).code == 0
    assert lw("latch", "wait", "s", *mine, "--timeout", "0").code == 4
    assert lw("latch", "delete", "s", *mine).out == "deleted s\n"


def test_the_command_keeps_the_time_that_a_latch_has_left(lw, sqlite_url):
    lw("latch", "create", "t", *SHOP, "--count", "2", "--ttl", "7200")
    lw("latch", "count-down", "t", *SHOP)
    assert connect(sqlite_url).get(Key("D_LTCH#distributed_latch", "D_LTCH#shop#t")).ttl > 7000


def test_a_latch_that_is_not_there_is_not_deleted_and_the_audit_says_so(lw, sqlite_url):
    lw("latch", "create", "n", *SHOP, "--count", "1")
    assert lw("latch", "delete", "n", *SHOP).code == 0
    done = lw("latch", "delete", "n", *SHOP, "--json")
    assert (done.code, done.json["error"]) == (3, "NOT_FOUND")
    assert "there is no latch 'n' of client 'shop'" in done.err
    assert [deed.after for deed in audit_of(connect(sqlite_url))] == ["there was none", "deleted"]


def test_a_latch_across_farms_names_who_is_missing(lw):
    lw("latch", "create", "x", *SHOP, "--count", "1", "--farm", "dc1", "--level", "xdc", "--farms", "dc1,dc2")
    shown = lw("latch", "show", "x", *SHOP, "--farm", "dc1", "--level", "xdc")
    assert "nothing yet from dc2" in shown.out
    assert lw("latch", "delete", "x", *SHOP, "--farm", "dc1", "--level", "xdc").code == 0
    assert lw("latch", "show", "x", *SHOP, "--farm", "dc1").code == 3


def test_a_command_runs_under_a_lock_with_its_fence_and_its_exit_code(here):
    first = here("lock", "run", "l", "--", "sh", "-c", "echo $LATCHWORK_FENCE; exit 7")
    second = here("lock", "run", "l", "--", "sh", "-c", "echo $LATCHWORK_FENCE")
    assert (first.code, second.code) == (7, 0)
    assert int(second.out) > int(first.out) > 0


def test_a_lock_that_is_held_times_out_with_4(lw, sqlite_url):
    store = connect(sqlite_url)
    with FencedLock(store, "l").acquire(1):
        assert lw("lock", "run", "l", "--timeout", "0.1", "--", "true").code == 4
    store.close()


def test_a_command_is_ended_when_its_lock_is_lost(lw, sqlite_url, monkeypatch):
    from latchwork.cli.coord import lock

    taken = []
    monkeypatch.setattr(lock, "run_under", _losing(lock.run_under, taken))
    done = lw("lock", "run", "l", "--", "sleep", "60")
    assert done.code == 1
    assert "lost" in done.err


def _losing(run_under, taken):
    def run(command, lost, *rest, **options):
        lost.set()
        return run_under(command, lost, *rest, **options)

    return run


def test_a_leader_runs_with_its_epoch_and_status_names_it(lw):
    done = lw("leader", "run", "job", "--", "sh", "-c", "test $LATCHWORK_EPOCH -gt 0")
    assert done.code == 0
    shown = lw("leader", "status", "job", "--json")
    assert shown.json["leader"] is None
    assert shown.json["epoch"] > 0


def test_messages_go_through_a_queue_by_the_command_alone(here):
    here("queue", "create", "q", *SHOP, "--shards", "2")
    ids = here("queue", "publish", "q", '{"a": 1}', '{"a": 2}', *SHOP, "--json").json["published"]
    seen = here("queue", "peek", "q", *SHOP, "--json").json
    assert {row["message_id"] for row in seen} == set(ids)
    handled = here("queue", "consume", "q", *SHOP, "--", "cat")
    assert sorted(json.loads(line)["a"] for line in handled.out.replace("}{", "}\n{").splitlines()) == [1, 2]
    facts = here("queue", "stats", "q", *SHOP, "--json").json
    assert (facts["ready"], facts["received"]) == (0, 2)


def test_what_is_consumed_as_json_is_one_document(lw):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    assert lw("queue", "consume", "q", *SHOP, "--timeout", "0", "--json").json == []
    lw("queue", "publish", "q", '{"a": 1}', "2", *SHOP, "--header", "h=v")
    found = lw("queue", "consume", "q", *SHOP, "--timeout", "0", "--json").json
    assert [(row["payload"], row["attempts"], row["headers"]) for row in found] == [
        ({"a": 1}, 1, {"h": "v"}), (2, 1, {"h": "v"}),
    ]  # fmt: skip
    assert lw("queue", "stats", "q", *SHOP, "--json").json["ready"] == 0
    lw("queue", "publish", "q", "3", *SHOP)
    assert [row["acked"] for row in lw("queue", "consume", "q", *SHOP, "--json", "--", "false").json] == [False]


def test_a_failure_after_the_document_is_no_second_document(lw, monkeypatch):
    def away(*_):
        raise Unavailable("no acknowledgement arrived")

    lw("queue", "create", "q", *SHOP, "--shards", "1")
    lw("queue", "publish", "q", "7", *SHOP)
    monkeypatch.setattr("latchwork.queue.ShardedQueue.ack_many", away)
    done = lw("queue", "consume", "q", *SHOP, "--timeout", "0", "--json")
    assert (done.code, [row["payload"] for row in done.json]) == (1, [7])
    assert "no acknowledgement arrived [UNAVAILABLE]" in done.err
    assert lw("queue", "stats", "absent", *SHOP, "--json").json["error"] == "NOT_FOUND", "the next command has its own"


def test_a_payload_that_is_no_text_is_consumed_all_the_same(lw, sqlite_url):
    store = connect(sqlite_url)
    queue = QueueRegistry(store, "shop").create(QueueConfig("b", retry=False, shards=1, codec="bytes"))
    queue.publish_many([b"\xff\x00", b"\xff"])
    assert lw("queue", "consume", "b", *SHOP, "--max", "1").out == "\\xff\x00\n"
    assert lw("queue", "consume", "b", *SHOP, "--json").json[0]["payload"] == "ff"
    store.close()


def test_a_queue_made_by_the_command_is_the_one_that_a_program_makes(lw, sqlite_url):
    lw("queue", "create", "q", *SHOP, "--shards", "2", "--sweep-minutes", "60")
    store = connect(sqlite_url)
    QueueRegistry(store, "shop").create(QueueConfig("q", shards=2, sweep_duration=timedelta(minutes=60)))
    store.close()


def test_what_a_command_fails_is_sidelined_shovelled_parked_and_redriven(lw):
    lw("queue", "create", "q", *SHOP, "--shards", "1", "--no-retry", "--max-deliveries", "1")
    lw("queue", "publish", "q", "1", *SHOP)
    lw("queue", "consume", "q", *SHOP, "--", "false")
    assert [row["reason"] for row in lw("queue", "peek", "q", *SHOP, "--side", "sideline", "--json").json] == [
        "rejected"
    ]
    assert lw("queue", "shovel", "q", *SHOP, "--json").json["moved"] == 1
    lw("queue", "consume", "q", *SHOP)
    assert lw("queue", "stats", "q", *SHOP, "--json").json["parked"] == 1
    assert len(lw("queue", "redrive", "q", *SHOP, "--dry-run", "--json").json) == 1
    assert len(lw("queue", "redrive", "q", *SHOP, "--json").json) == 1
    assert lw("queue", "consume", "q", *SHOP).out == "1\n"


def test_the_steps_of_a_message_that_are_done_are_named_also_when_it_is_gone(lw, sqlite_url):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    lw("queue", "publish", "q", "1", *SHOP)
    (delivery,) = QueueRegistry(connect(sqlite_url), "shop").get("q").receive()
    show = ("queue", "show", "q", *SHOP, "--id", delivery.message_id)
    (before,) = lw(*show, "--json").json
    assert (before["state"], before["attempts"], before["steps"]) == ("running", 1, [])
    delivery.once("charge").run(lambda: {"receipt": 7})
    delivery.once("mail").run(lambda: None)
    with pytest.raises(InvalidRequest):
        delivery.once("report").run(set)
    delivery.ack()
    (found,) = lw(*show, "--json").json
    assert found["state"] == "done"
    rows = found["steps"]
    results = {"charge": {"receipt": 7}, "mail": None, "report": None}
    assert {row["step"]: row["result"] for row in rows} == results
    assert [row["step"] for row in rows if row["not_kept"]] == ["report"]
    assert rows[0]["done_at"].endswith("+00:00")
    assert '{"receipt": 7}' in lw(*show).out
    assert lw("queue", "show", "q", *SHOP).code == 0
    assert lw("queue", "show", "q", *SHOP, "--id", "nobody").code == 3


def test_a_message_is_cancelled_in_any_state(lw, sqlite_url):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    ids = lw("queue", "publish", "q", "1", "2", *SHOP).out.split()
    QueueRegistry(connect(sqlite_url), "shop").get("q").receive()
    some = [part for one in ids for part in ("--id", one)]
    outcomes = lw("queue", "cancel", "q", *SHOP, *some, "--json")
    assert (outcomes.code, [row["outcome"] for row in outcomes.json]) == (0, ["asked", "done"])
    shown = lw("queue", "show", "q", *SHOP, *some, "--json").json
    assert [(row["state"], row["cancelled"]) for row in shown] == [("running", True), ("gone", True)]
    assert lw("queue", "cancel", "q", *SHOP, "--id", ids[1]).code == 3
    assert lw("queue", "cancel", "q", *SHOP).code == 2


def test_the_result_of_a_message_is_printed_or_why_there_is_none(lw, sqlite_url):
    lw("queue", "create", "q", *SHOP, "--shards", "1", "--results-hours", "1")
    done, waits = lw("queue", "publish", "q", "1", "2", *SHOP).out.split()
    QueueRegistry(connect(sqlite_url), "shop").get("q").receive()[0].ack({"total": 7})
    assert lw("queue", "result", "q", *SHOP, "--id", done).out == '{"total": 7}\n'
    assert lw("queue", "result", "q", *SHOP, "--id", done, "--json").json == {
        "message_id": done,
        "result": {"total": 7},
    }
    late = lw("queue", "result", "q", *SHOP, "--id", waits)
    assert (late.code, "no worker" in late.err) == (4, True)
    assert lw("queue", "result", "q", *SHOP, "--id", "nobody").code == 3
    lw("queue", "create", "other", *SHOP, "--shards", "1")
    assert lw("queue", "result", "other", *SHOP, "--id", done).code == 2


def test_a_mistyped_id_is_unknown_and_the_command_says_what_may_be_wrong(lw, sqlite_url):
    for name in ("q", "other"):
        lw("queue", "create", name, *SHOP, "--shards", "1")
        of = lw("queue", "publish", name, "1", *SHOP).out.strip()
        QueueRegistry(connect(sqlite_url), "shop").get(name).receive()[0].ack()
    assert "done" in lw("queue", "show", "other", *SHOP, "--id", of).out
    mistyped = of[:5] + ("0" if of[5] != "0" else "1") + of[6:]
    wrong = [("other", mistyped, "a character is wrong"), ("q", of, "another queue"), ("other", of[:24], "whole id")]
    wrong.append(("other", "mine-7", "does not know this id"))
    for queue, one, why in wrong:
        shown = lw("queue", "show", queue, *SHOP, "--id", one)
        assert (shown.code, "unknown" in shown.out, why in shown.err) == (3, True, True)


def test_a_message_that_waits_for_its_write_is_named_by_show_and_doctor(lw, sqlite_url):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    delayed = QueueRegistry(connect(sqlite_url), "shop").get("q").delayed
    waits = Condition("orders", "7", "effects", b"t" * 10, b"t" * 10, "shop_effect_set")
    delayed.announce([Envelope("1", "mail", enqueued_at=1)], [None], [waits])
    shown = lw("queue", "show", "q", *SHOP, "--id", "mail")
    assert (shown.code, "the update of " in shown.out, "'7'" in shown.out) == (0, True, True)
    since = [round(delayed.store.seams.wall() * 1000) - 3_600_000, "orders/7 does not exist"]
    delayed.store.operate(delayed.control, MapPut("unsettled", "mail", since))
    (found,) = [one for one in lw("doctor", *SHOP, "--json").json if "for the write with which it goes" in one["what"]]
    assert (found["state"], "queue discard" in found["remedy"]) == ("warning", True)
    discarded = lw("queue", "discard", "q", *SHOP, "--side", "delayed", "--id", "mail", "--json")
    assert discarded.json == [{"message_id": "mail", "outcome": "done"}]
    assert "gone" in lw("queue", "show", "q", *SHOP, "--id", "mail").out


def test_one_message_at_a_time_is_searched_discarded_brought_back_and_moved(lw):
    for name in ("q", "other"):
        lw("queue", "create", name, *SHOP, "--shards", "1", "--no-retry")
    lw("queue", "publish", "q", "1", "2", "3", *SHOP, "--header", "from=x")
    lw("queue", "consume", "q", *SHOP, "--max", "3", "--", "false")
    side = ("--side", "sideline", "--json")
    found = lw("queue", "search", "q", *SHOP, *side, "--header", "from=x", "--reason", "rejected", "--key", "k").json
    ids = {row["payload"]: row["message_id"] for row in found}
    assert sorted(ids) == [1, 2, 3]
    assert lw("queue", "search", "q", *SHOP, *side, "--older-than", "3600").json == []
    done = lw("queue", "discard", "q", *SHOP, *side, "--id", ids[1], "--id", "nobody")
    assert (done.json, done.code) == (
        [{"message_id": ids[1], "outcome": "done"}, {"message_id": "nobody", "outcome": "not there"}], 3,
    )  # fmt: skip
    assert lw("queue", "redrive", "q", *SHOP, *side, "--id", ids[2]).json == [{"message_id": ids[2], "outcome": "done"}]
    assert lw("queue", "consume", "q", *SHOP).out == "2\n"
    assert lw("queue", "move", "q", *SHOP, *side, "--to", "other", "--id", ids[3]).code == 0
    assert lw("queue", "consume", "other", *SHOP).out == "3\n"
    assert lw("queue", "discard", "q", *SHOP).code == 2
    assert lw("queue", "redrive", "q", *SHOP, "--side", "sideline").code == 2
    assert lw("queue", "search", "q", *SHOP, "--side", "main").code == 2
    assert lw("queue", "search", "q", *SHOP, "--side", "delayed", "--json").json == []


def test_pause_resume_scale_and_deactivate_change_the_queues_record(lw, monkeypatch):
    lw("queue", "create", "q", *SHOP, "--shards", "1", "--concurrency", "3")
    assert "expiring" in lw("queue", "pause", "q", *SHOP).out
    assert lw("queue", "list", *SHOP, "--json").json[0]["paused"].partition(" s ago by ")[2]
    assert lw("queue", "resume", "q", *SHOP, "--json").json["consumers"] == 3
    lw("queue", "scale", "q", "5", *SHOP)
    (row,) = lw("queue", "list", *SHOP, "--json").json
    assert row.pop("changed").partition(" s ago by ")[2]
    assert row == {"queue": "q", "active": True, "shards": 1, "consumers": 5, "paused": None}
    refused = lw("queue", "deactivate", "q", *SHOP, "--confirm", "other")
    assert refused.code == 2
    monkeypatch.setattr("sys.stdin", io.StringIO("other\nq\n"))
    assert lw("queue", "deactivate", "q", *SHOP).code == 2
    assert lw("queue", "deactivate", "q", *SHOP).code == 0
    assert lw("queue", "deactivate", "q", *SHOP, "--confirm", "q").code == 0
    assert lw("queue", "deactivate", "never", *SHOP, "--confirm", "never").code == 3
    assert lw("queue", "list", *SHOP, "--json").json[0]["active"] is False
    assert lw("queue", "activate", "q", *SHOP, "--json").json["active"] is True
    assert lw("queue", "activate", "never", *SHOP).code == 3
    assert lw("queue", "list", *SHOP, "--json").json[0]["active"] is True


def test_a_sweep_stands_for_election_and_is_seen_in_the_statistics(lw):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    assert lw("stats", *SHOP, "--json").json[0]["swept_s_ago"] is None
    assert lw("queue", "sweep", *SHOP, "--json").json["failures"] == []
    assert lw("stats", *SHOP, "--json").json[0]["swept_s_ago"] >= 0


def test_a_sweep_says_in_words_what_it_did_and_when_the_rest_is_due(lw, sqlite_url):
    registry = QueueRegistry(connect(sqlite_url), "shop")
    queue = registry.create(QueueConfig("q", shards=1, sweep_duration=3600))
    queue.publish_many(range(2))
    queue.receive()
    out = lw("queue", "sweep", *SHOP).out
    assert ": brought back 0 messages (slots looked at: 1, done with: 0); in flight and not due yet: 1\n" in out
    assert "the first is due within 60 min, if its handler is gone: a sweep then brings it back" in out
    facts = lw("queue", "sweep", *SHOP, "--json").json
    assert (facts["live"], 3500 < facts["first_due_s"] <= 3600) == (1, True)


def test_the_statistics_say_who_leads_and_what_is_in_somebodys_hands(lw, sqlite_url):
    store = connect(sqlite_url)
    queue = QueueRegistry(store, "shop").create(QueueConfig("q", retry=False, shards=4))
    queue.publish_many(range(40), keys=["k"] * 40)
    queue.receive()[0].ack()
    queue.receive(3)
    (row,) = lw("stats", *SHOP, "--json").json
    assert (row["ready"], row["in_flight"], row["in_flight_looked_at"]) == (36, 3, 4)
    assert (row["leader"], row["shard_balance"]) == (None, 4.0)
    grant = FencedLock(store, "shop-sweeper", owner="me").acquire(1)
    (row,) = lw("stats", *SHOP, "--json").json
    assert (row["leader"], row["leader_epoch"]) == ("me", grant.fence)
    head, line = (text.split("\t") for text in lw("stats", *SHOP).out.splitlines())
    assert dict(zip(head, line, strict=True))["swept s ago"] == "-"


def test_a_wait_for_a_latch_that_was_deleted_once_it_was_released_says_released(lw, sqlite_url, monkeypatch):
    CountDownLatch.create(connect(sqlite_url), "shop", "n", 1).count_down()
    ask = CountDownLatch.parties

    def deleted_meanwhile(latch):
        latch.delete()
        return ask(latch)

    monkeypatch.setattr(CountDownLatch, "parties", deleted_meanwhile)
    monkeypatch.setenv("LATCHWORK_CLIENT", "shop")
    waited = lw("latch", "wait", "n", "--json")
    assert (waited.code, waited.json["released"]) == (0, True)


def test_a_wait_for_a_latch_that_is_out_of_reach_once_it_was_released_says_released(lw, sqlite_url, monkeypatch):
    CountDownLatch.create(connect(sqlite_url), "shop", "n", 1).count_down()

    def out_of_reach(latch):
        raise Unavailable(f"{latch!r} cannot be read")

    monkeypatch.setattr(CountDownLatch, "parties", out_of_reach)
    monkeypatch.setenv("LATCHWORK_CLIENT", "shop")
    waited = lw("latch", "wait", "n", "--json")
    assert (waited.code, waited.json["released"]) == (0, True)


def test_the_circular_queue_by_the_command_alone(lw):
    assert lw("large", "create", "bus", "1000", "--json").json["capacity"] == 1000
    assert lw("large", "enqueue", "bus", '{"a": 1}', "text", "--json").json["offsets"] == [0, 1]
    assert lw("large", "read", "bus", "1").out == '"text"\n'
    assert len(lw("large", "dequeue", "bus", "-n", "5", "--json").json) == 2
    assert lw("large", "dequeue", "bus").code == 3
    assert lw("large", "info", "nothing").code == 3


def test_entries_that_were_taken_and_could_not_be_printed_are_not_lost(lw, warm, sqlite_url):
    lw("large", "create", "bus", "10")
    lw("large", "enqueue", "bus", "first", "second")
    done = warm.run("--store", sqlite_url, "large", "dequeue", "bus", "-n", "5", stdout="/dev/full")
    assert done.returncode == 1
    rows = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert rows == [{"offset": 0, "value": "first"}, {"offset": 1, "value": "second"}]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_entries_that_were_taken_are_not_lost_where_a_signal_ends_their_output(lw, warm, sqlite_url, number):
    """Ctrl-C reaches `| less` and this command, which still writes what the pipe has no room for."""
    lw("large", "create", "bus", "400")
    LargeQueue.open(connect(sqlite_url), "bus").enqueue_many(["x" * 1000] * 400)
    process = warm.start("--store", sqlite_url, "large", "dequeue", "bus", "-n", "400")
    try:
        until(lambda: unread(process.stdout))
        process.send_signal(number)
        until(lambda: unread(process.stderr) or process.poll() is not None)
        for more in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # as from some people, and from a terminal's end
            process.send_signal(more)
        _, err = process.communicate()
    finally:
        process.close()
    offsets = [json.loads(line)["offset"] for line in err.splitlines() if line.startswith("{")]
    assert (process.returncode, offsets) == (130, list(range(400)))
    assert err.endswith("latchwork: interrupted\n")


def unread(pipe):
    """The bytes that wait in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_why_a_circular_queue_gives_nothing_or_cannot_be_opened_is_said(lw, sqlite_url):
    lw("large", "create", "bus", "10")
    empty = lw("large", "dequeue", "bus")
    assert (empty.code, "is empty" in empty.err) == (3, True)
    lw("large", "enqueue", "bus", "7")
    LargeQueue.open(connect(sqlite_url), "bus").group("audit", hold_head=True)
    held = lw("large", "dequeue", "bus")
    assert (held.code, "is empty" in held.err, "a consumer group holds" in held.err) == (3, False, True)
    LargeQueue.create(connect(sqlite_url), "apart", 10, buffer_store=MemoryStore())
    apart = lw("large", "info", "apart")
    assert (apart.code, "there is no queue" in apart.err, "no buffer records" in apart.err) == (3, False, True)


def test_what_the_demo_says_to_do_next_can_be_done(lw, monkeypatch):
    lines = [line.partition("#")[0].strip() for line in NEXT.splitlines() if line.startswith("  ")]
    variable, _, client = lines.pop(0).removeprefix("export ").partition("=")
    monkeypatch.setenv(variable, client)
    ran = [lw(*shlex.split(line)[1:]) for line in lines]
    assert [one.code for one in ran] == [0] * 5
    assert '{"to": "you"}' in ran[2].out


def test_the_demo_shows_every_primitive_and_leaves_nothing_behind(lw, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    told = lw("demo", "--json").json
    assert set(told) == {
        "latch", "barrier", "lock", "rwlock", "semaphore", "limiter", "presence", "election", "large_queue",
        "sharded_queue", "group", "batch", "paged_queue", "outbox",
    }  # fmt: skip
    assert told["rwlock"].endswith("a writer beside them: False; a reader beside a writer: False")
    assert told["semaphore"].endswith("a third one: False")
    assert told["limiter"].endswith("3 allowed")
    assert told["presence"].endswith("members ['web-1', 'web-2'], after they left []")
    assert told["group"].endswith("{'audit': [1], 'search': [1]}")
    assert told["batch"].endswith("all done: True")
    assert "refused" in told["lock"]
    assert "100 handled" in told["sharded_queue"]
    assert "100 forwarded, 100 in the queue" in told["outbox"]
    assert [path.name for path in tmp_path.iterdir() if "demo" in path.name] == []


def test_doctor_finds_nothing_wrong_with_a_good_store_and_says_what_it_is(here, url):
    connect(url).get(Key("s", "k"))
    done = here("doctor", "--json")
    found = {finding["what"]: finding["state"] for finding in done.json}
    assert done.code == 0
    assert any(what.startswith("connected") for what in found)
    if url.startswith("aerospike"):
        assert any(state == "warning" and "AP mode" in what for what, state in found.items())


def test_doctor_names_damaged_records_and_what_to_do(lw, sqlite_url):
    store = connect(sqlite_url)
    store.operate(Key("s", "k"), Put("text", "canary"), exists=Exists.CREATE)
    assert "every record and every index in the file is sound" in lw("doctor").out
    store.close()
    store.path.write_bytes(store.path.read_bytes().replace(b"canary", b"damage"))
    done = lw("doctor")
    assert done.code == 1
    assert "the file is damaged: Key(set='s', name='k')" in done.out
    assert "restore it from a copy" in done.out


def test_doctor_names_damaged_records_of_queues_and_what_to_do(lw, sqlite_url):
    for name in ("sound", "hurt", "strange"):
        assert lw("queue", "create", name, *SHOP, "--shards", "4").code == 0
    store = connect(sqlite_url)
    registry = QueueRegistry(store, "shop")
    hurt = registry.get("hurt")
    store.operate(hurt.sideline.pointers.pointers_key(2), Put("FIRE_POINTER", "many"), exists=Exists.ANY)
    registry.records.change(hurt.config, Put("sweepMarks", "none"))
    registry.records.change(registry.get("strange").config, Put("shards", 2**31))
    store.close()
    done = lw("doctor", *SHOP)
    assert done.code == 1
    assert "ok       queues of shop: the records of 1 queue, and the pointers of their shards, are sound" in done.out
    assert "hurt_SIDELINE_SHARD_2_POINTERS is damaged" in done.out
    assert "delete the record" in done.out
    assert "warning  queue hurt of shop: sweepMarks in its record are damaged" in done.out
    assert "problem  queue strange of shop: the settings in the record of queue 'strange'" in done.out
    assert "shards" in done.out


def test_doctor_says_on_which_nodes_the_shards_of_a_queue_are(here, url):
    assert here("queue", "create", "placed", *SHOP, "--shards", "6").code == 0
    done = here("doctor", "--json", *SHOP)
    placed = [finding["what"] for finding in done.json if "queue placed of shop: shards" in finding["what"]]
    assert placed == (
        ["queue placed of shop: shards 6, nodes 1, shards on the fullest node 6"] if "aerospike" in url else []
    )


def test_doctor_says_what_will_not_work(lw):
    done = lw("doctor", "--zookeeper", "127.0.0.1:1", store="aerospike://127.0.0.1:1/test?total_timeout=300")
    assert done.code == 1
    assert [line.split()[0] for line in done.out.splitlines()].count("problem") == 2, "the store, and ZooKeeper"
    assert "127.0.0.1:1: Connection time-out" in done.out
    assert "->" in done.out


@pytest.mark.long
def test_a_command_warns_of_a_namespace_only_where_more_is_asked_for(aerospike_server):
    if connect(aerospike_server.url).describe().strong_consistency:
        pytest.skip("this namespace is strongly consistent")

    def stats(*more):
        words = command(aerospike_server.url, "--json", *more, "queue", "list", *SHOP)
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    quiet, verbose = stats(), stats("-v")
    assert "not strongly consistent" not in quiet.stderr
    assert "not strongly consistent" in verbose.stderr
    assert quiet.stdout == verbose.stdout


def test_a_command_that_waits_for_a_store_that_is_away_says_so(warm):
    store = "aerospike://127.0.0.1:1/test?total_timeout=300"
    waiting = warm.start("--store", store, "lock", "run", "x", "--", "true")
    try:
        assert "the store is unavailable, and is asked again" in waiting.stderr.readline()
    finally:
        waiting.close()


def test_doctor_blames_no_store_for_a_name_that_is_none(lw, sqlite_url):
    connect(sqlite_url).get(Key("s", "k"))
    for wrong in (("--client", ""), ("--client", "x" * 300), ("--semaphore", ""), ("--client", "c", "--barrier", "")):
        done = lw("doctor", *wrong)
        assert (done.code, done.out.count("problem  names: ")) == (1, 1), done.out
        assert "does not answer" not in done.out


def test_doctor_names_ids_that_are_too_long_and_options_that_there_are(lw):
    assert "names of sets and bins fit" in lw("doctor", *SHOP, "--farm", "dc1").out
    done = lw("doctor", *SHOP, "--farm", "much-too-long")
    assert (done.code, "much-too-long" in done.out) == (1, True)
    option = import_module("latchwork.cli.doctor").connections(1000, 100).remedy.split()[1]
    assert option.startswith("?")
    connect(f"aerospike://h/ns{option}")


@pytest.mark.parametrize(("seconds", "state", "told"), [(50, "warning", "two calls"), (0, "ok", "default-ttl is 0")])
def test_doctor_says_what_a_default_ttl_does_and_what_it_does_not(seconds, state, told):
    info = StoreInfo("aerospike", "", True, 2, seconds, 2, 1024 * 1024)
    (finding,) = [one for one in import_module("latchwork.cli.doctor").settings_of(info) if "default-ttl" in one.what]
    assert finding.state == state
    assert told in finding.what


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("latch", "show", "never", *SHOP), 3, "NOT_FOUND"),
        (("latch", "create", "n", *SHOP, "--count", "-1"), 2, "count"),
        (("latch", "create", "n", *SHOP, "--count", "1", "--farm", "much-too-long"), 2, "much-too-long"),
        (("queue", "stats", "never", *SHOP), 3, "NOT_FOUND"),
        (("queue", "publish", "never", "1", *SHOP), 3, "NOT_FOUND"),
        (("queue", "create", "q", *SHOP, "--shards", "513"), 2, "512"),
        (("queue", "create", "q", *SHOP, "--concurrency", "101"), 2, "MAX_ALLOWED_CONSUMERS_EXCEEDED"),
        (("queue", "create", "q", *SHOP, "--shovel-seconds", "86401"), 2, "INVALID_SHOVEL_TIME_INTERVAL"),
        (("lock", "run", "l", "--", "no-such-program"), 127, "no-such-program"),
        (("large", "create", "bus", "0"), 2, "capacity"),
        (("queue", "create", "q", *SHOP, "--expiry-hours", "nan"), 2, "--expiry-hours is nan"),
        (("queue", "create", "q", *SHOP, "--expiry-hours", "1e12"), 2, "--expiry-hours is 1"),
        (("queue", "create", "q", *SHOP, "--sweep-minutes", "inf"), 2, "--sweep-minutes is inf"),
        (("queue", "create", "q", *SHOP, "--shovel-seconds", "1e15"), 2, "--shovel-seconds is 1"),
        (("stats", *SHOP, "--watch", "--every", "-1"), 2, "--every is -1"),
        (("stats", *SHOP, "--watch", "--every", "nan"), 2, "--every is nan"),
        (("queue", "sweep", *SHOP, "--every", "0.5"), 2, "--every is 0.5"),
        (("large", "info", "never"), 3, "there is no file "),
        (("latch", "create", "n", *SHOP, "--count", "1", "--farms", "a,b"), 2, "only with --level xdc"),
    ],
)
def test_a_users_mistake_is_one_line_and_an_exit_code(lw, arguments, code, told):
    done = lw(*arguments)
    assert done.code == code
    assert told in done.err
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err
    failure = lw(*arguments[:3], "--json", *arguments[3:])
    assert (failure.code, failure.err) == (done.code, done.err)
    assert f"[{failure.json['error']}]" in done.err
    assert failure.json["message"] in done.err


def test_a_wrong_store_url_does_not_show_its_password(lw):
    done = lw("stats", *SHOP, store="aerospike://me:hunter2@127.0.0.1:1/test?nonsense=1")
    assert done.code == 2
    assert "hunter2" not in done.err + done.out


def test_global_options_may_stand_anywhere_before_the_command_that_is_run():
    assert hoist(["latch", "show", "n", "--json", "--store", "x"]) == ["--json", "--store", "x", "latch", "show", "n"]
    assert hoist(["lock", "run", "l", "--", "ls", "--json"]) == ["lock", "run", "l", "--", "ls", "--json"]
    assert hoist(["--store=y", "stats", "-v"]) == ["--store=y", "-v", "stats"]


@pytest.mark.parametrize("runner", [["lock", "run"], ["leader", "run"], ["queue", "consume"]])
def test_a_command_that_is_run_keeps_its_own_options(runner):
    words = hoist([*runner, "--json", "--timeout", "5", "n", "echo", "-v", "--json", "--", "x"])
    assert words == ["--json", *runner, "--timeout", "5", "n", "--", "echo", "-v", "--json", "--", "x"]
    assert hoist([*runner, "n", "--timeout=5", "-v"]) == ["-v", *runner, "n", "--timeout=5"]


def test_a_pipe_gets_plain_lines(run):
    run("queue", "create", "q", *SHOP, "--shards", "1")
    lines = run("queue", "list", *SHOP).out.splitlines()
    assert lines[0].split("\t") == ["queue", "active", "shards", "threads each", "paused", "changed"]
    assert "\x1b" not in "".join(lines)


def test_every_command_has_help_with_an_example():
    found = dict(leaves())
    assert len(found) >= 25
    assert [path for path, one in found.items() if "Example: latchwork " + " ".join(path) not in (one.help or "")] == []


def test_the_waiting_bar_is_drawn_on_a_terminal_only(here, url):
    CountDownLatch.create(connect(url), "shop", "bar", 1, farm_id="dc1")
    piped = here("latch", "wait", "bar", *SHOP, "--farm", "dc1", "--timeout", "0.1")
    assert piped.err == ""


def test_a_program_that_cannot_be_run_is_refused_before_a_message_is_taken(lw):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    lw("queue", "publish", "q", "1", "2", *SHOP)
    for more in ((), ("--follow",)):
        done = lw("queue", "consume", "q", *SHOP, *more, "--", "./no-such.sh")
        assert (done.code, "./no-such.sh" in done.err) == (127, True)
    facts = lw("queue", "stats", "q", *SHOP, "--json").json
    assert (facts["ready"], facts["sideline"]) == (2, 0)


@pytest.mark.parametrize(
    ("more", "target"),
    [(("--", "true"), "latchwork.cli.run.supervise.SupervisedRun.result"), (("--json",), "json.dumps")],
)
def test_what_was_taken_when_ctrl_c_comes_goes_back_uncounted(lw, monkeypatch, more, target):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    lw("queue", "publish", "q", "1", *SHOP)
    with monkeypatch.context() as patched:
        patched.setattr(target, _interrupted_once(target))
        done = lw("queue", "consume", "q", *SHOP, *more)
    assert done.code == 130
    (row,) = lw("queue", "peek", "q", *SHOP, "--json").json
    assert (row["reason"], row["attempts"]) == ("interrupted", 0)


def _interrupted_once(target):
    """Raises where the messages are handled or printed; what comes after it works."""
    real = json.dumps if target == "json.dumps" else None
    left = [1]

    def call(value, *_, **options):
        rows = real is None or (isinstance(value, list) and value and "attempts" in value[0])
        if rows and left:
            left.pop()
            raise KeyboardInterrupt
        return real(value, **options)

    return call


def test_a_command_that_fails_is_told_on_stderr_and_by_the_exit_code(lw):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    lw("queue", "publish", "q", "1", *SHOP)
    done = lw("queue", "consume", "q", *SHOP, "--", "false")
    assert (done.code, done.err) == (
        1,
        "latchwork: 1 of 1 failed: the queue's settings say whether they come again or are parked\n",
    )
    lw("queue", "publish", "q", "1", *SHOP)
    assert lw("queue", "consume", "q", *SHOP, "--", "true").code == 0


@pytest.mark.parametrize(("timeout", "taken"), [(50, [1]), (0, Unavailable), (5, Unavailable)])
def test_waiting_for_a_message_outlives_an_outage_that_is_shorter_than_its_timeout(timeout, taken):
    module, clock = import_module("latchwork.cli.queue.consume"), ManualClock()
    memory = MemoryStore(seams=clock)
    QueueRegistry(memory, "shop").create(QueueConfig("q", retry=False, shards=1)).publish(1)
    store = FaultyStore(memory, Outage(clock, clock.monotonic() + 0.1, clock.monotonic() + 20))
    queue = QueueRegistry(store, "shop").get("q")
    clock.advance(0.2)
    taking = module._Taking(queue, 10, timeout, module._Drained(), module._InHand(queue))
    if taken is Unavailable:
        with pytest.raises(Unavailable):
            taking.some(1)
    else:
        assert [delivery.payload for delivery in taking.some(1)] == taken


def test_a_consumer_that_is_to_drain_does_not_wait_for_a_store_that_is_away():
    module, clock = import_module("latchwork.cli.queue.consume"), ManualClock()
    memory, drained = MemoryStore(seams=clock), module._Drained()
    QueueRegistry(memory, "shop").create(QueueConfig("q", retry=False, shards=1)).publish(1)
    store = FaultyStore(memory, Outage(clock, clock.monotonic() + 0.1, float("inf")))
    queue = QueueRegistry(store, "shop").get("q")
    clock.at(3, lambda: drained._signalled(signal.SIGTERM, None))
    clock.advance(0.2)
    assert module._Taking(queue, 10, 1_000_000, drained, module._InHand(queue)).some(1) == []


def test_followed_messages_are_documents_with_json(lw, monkeypatch):
    monkeypatch.setattr(import_module("latchwork.cli.queue.consume"), "Consumer", _Following)
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    (first,) = lw("queue", "publish", "q", '{"a": 1}', *SHOP, "--header", "h=v", "--json").json["published"]
    told = lw("queue", "consume", "q", *SHOP, "--follow", "--json").json
    assert (told["payload"], told["headers"], told["message_id"]) == ({"a": 1}, {"h": "v"}, first)


@pytest.mark.parametrize("timeout", [60, 3600])
def test_what_a_follower_has_taken_may_finish_at_sigterm_as_long_as_a_handler_may_run(
    lw, sqlite_url, monkeypatch, timeout
):
    module, graces = import_module("latchwork.cli.queue.consume"), []
    monkeypatch.setattr(module, "Consumer", lambda *given, grace=10.0: graces.append(grace) or _Following(*given))
    config = QueueConfig("q", retry=False, shards=1, sweep_duration=7200, handler_timeout=timeout)
    QueueRegistry(connect(sqlite_url), "shop").create(config).publish(1)
    assert lw("queue", "consume", "q", *SHOP, "--follow").code == 0
    assert graces == [timeout]


class _Following:
    """A consumer that stops after one message."""

    def __init__(self, queue, handler, grace=0.0):
        self.queue, self.handler = queue, handler

    def run(self):
        return self.handler(self.queue.receive()[0])


@pytest.mark.parametrize("arguments", [(), ("stats", "--nope"), ("queue", "create"), ("large", "create", "b", "many")])
def test_a_usage_error_is_a_document_with_json(lw, arguments):
    done = lw("--json", *arguments)
    assert (done.code, done.json["error"]) == (2, "USAGE")
    assert "Usage: latchwork" in done.err
    assert done.json["message"] in done.err


def test_ctrl_c_is_a_document_with_json(lw, monkeypatch):
    monkeypatch.setattr("latchwork.cli.coord.latch.CountDownLatch.wait", _interrupt)
    lw("latch", "create", "n", *SHOP, "--count", "1")
    done = lw("latch", "wait", "n", *SHOP, "--json")
    assert (done.code, done.err, done.json["error"]) == (130, "latchwork: interrupted\n", "INTERRUPTED")


def _interrupt(*_arguments, **_options):
    raise KeyboardInterrupt


def test_ctrl_c_while_the_command_is_loaded_says_so_and_exits_130(lw, monkeypatch):
    class Interrupting:
        def find_spec(self, name, *_):
            return _interrupt() if name == "latchwork.cli.app" else None

    monkeypatch.delitem(sys.modules, "latchwork.cli.app")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    done = lw("stats", *SHOP)
    assert (done.code, done.err) == (130, "latchwork: interrupted\n")


TWICE = """
import os, signal, sys, threading
import latchwork.cli as cli

signal.signal(signal.SIGINT, signal.default_int_handler)
me, kill, number = os.getpid(), os.kill, signal.SIGINT
moment, times, say = sys.argv[1], int(sys.argv[2]), cli._say

def interrupt():
    for _ in range(times):
        kill(me, number)

def told(text):
    if moment == "before the line":
        interrupt()
    say(text)
    if moment == "after the line":
        interrupt()

class AtTheEnd:
    def __del__(self, interrupt=interrupt):
        interrupt()

def interrupted(*_):
    kill(me, number)
    threading.Event().wait(60)

cli._say, cli._run = told, interrupted
if moment == "as threads are joined":
    threading.Thread(target=lambda: (threading.main_thread().join(), interrupt())).start()
if moment == "as Python ends":
    at_the_end = AtTheEnd()
cli.main(["--json", "stats"])
"""


def interrupted_again(moment, times):
    return subprocess.run(
        [sys.executable, "-c", TWICE, moment, str(times)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("moment", ["before the line", "after the line", "as threads are joined", "as Python ends"])
def test_ctrl_c_that_comes_twice_says_so_once_and_exits_130(moment):
    done = interrupted_again(moment, 1)
    assert (done.returncode, done.stderr) == (130, "latchwork: interrupted\n")
    assert json.loads(done.stdout) == {"error": "INTERRUPTED", "message": "interrupted"}


def test_ctrl_c_that_comes_again_and_again_ends_a_command_that_hangs_in_its_last_words():
    done = interrupted_again("before the line", 100)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(("target", "code"), [("/dev/full", 1), ("&-", 0)])
def test_output_that_goes_nowhere_shows_no_stack_trace(lw, sqlite_url, target, code):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    words = shlex.join(command(sqlite_url, "queue", "list", *SHOP))
    done = subprocess.run(f"{words} >{target}", shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == code


def test_a_message_that_could_not_be_printed_is_not_acknowledged(lw, warm, sqlite_url):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    lw("queue", "publish", "q", "1", *SHOP)
    consume = ("--store", sqlite_url, "queue", "consume", "q", *SHOP, "--json")
    assert warm.run(*consume, stdout="/dev/full").returncode == 1
    facts = lw("queue", "stats", "q", *SHOP, "--json").json
    assert (facts["ready"], facts["sideline"]) == (1, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ("queue", "consume", "q", *SHOP, "--max", "0"),
        ("queue", "consume", "q", *SHOP, "--max", "-1"),
        ("stats", *SHOP, "--rounds", "-1"),
        ("doctor", "--processes", "-1"),
        ("doctor", "--pool", "0"),
    ],
)
def test_a_number_that_makes_no_sense_is_a_usage_error(lw, arguments):
    done = lw(*arguments)
    assert (done.code, f"Invalid value for {arguments[-2]!r}" in done.err) == (2, True)


def test_a_header_without_a_name_or_an_equals_sign_is_refused(lw):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    for header in ("tenant", "=x"):
        done = lw("queue", "publish", "q", "1", *SHOP, "--header", header)
        assert (done.code, repr(header) in done.err) == (2, True)
    assert lw("queue", "stats", "q", *SHOP, "--json").json["ready"] == 0


def test_a_store_that_an_unset_variable_names_is_refused(lw):
    done = lw("queue", "list", *SHOP, store="")
    assert (done.code, "--store is empty" in done.err) == (2, True)


def test_farms_may_be_written_with_blanks(lw):
    there = ("latch", "create", "x", *SHOP, "--count", "1", "--level", "xdc", "--farms", "iad, fra", "--farm")
    lw(*there, "iad")
    lw(*there, "fra")
    for farm in ("iad", "fra"):
        lw("latch", "count-down", "x", *SHOP, "--farm", farm)
    waited = lw("latch", "wait", "x", *SHOP, "--farm", "iad", "--level", "xdc", "--timeout", "0", "--json")
    assert (waited.code, waited.json["absent_farms"]) == (0, [])


def test_json_values_are_numbers_and_documents_as_they_are(lw):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    lw("queue", "publish", "q", '{"a": 1}', *SHOP)
    assert lw("queue", "peek", "q", *SHOP, "--json").json[0]["payload"] == {"a": 1}
    assert '{"a": 1}' in lw("queue", "peek", "q", *SHOP).out
    facts = lw("queue", "stats", "q", *SHOP, "--json").json
    assert facts["shard_balance"] == 1.0
    (row,) = lw("stats", *SHOP, "--json").json
    assert set(row) == set(facts) | {
        "in_rate", "out_rate", "leader", "leader_epoch", "workers", "overdue_workers", "saturated_workers",
        "silent_workers", "draining_workers", "paused", "changed_by", "changed_s_ago", "findings",
    }  # fmt: skip
    assert row["workers"] == []
    lw("large", "create", "bus", "10")
    lw("large", "enqueue", "bus", '{"a": 1}')
    assert lw("large", "dequeue", "bus", "--json").json == [{"offset": 0, "value": {"a": 1}}]


def test_reasons_that_were_only_looked_at_in_part_say_so(lw, monkeypatch):
    for module in ("queue.facts", "stats"):
        monkeypatch.setattr(import_module(f"latchwork.cli.{module}"), "SAMPLE", 2)
    lw("queue", "create", "q", *SHOP, "--shards", "1", "--no-retry")
    lw("queue", "publish", "q", "1", "2", *SHOP)
    lw("queue", "consume", "q", *SHOP, "--", "false")
    assert "looked at" not in lw("stats", *SHOP).out
    lw("queue", "publish", "q", "3", *SHOP)
    lw("queue", "consume", "q", *SHOP, "--", "false")
    assert "rejected 2 of 2 looked at" in lw("stats", *SHOP).out
    facts = lw("queue", "stats", "q", *SHOP, "--json").json
    assert (facts["sideline"], facts["sidelined_looked_at"]) == (3, 2)


def test_a_look_at_a_sideline_whose_messages_have_expired_costs_some_calls_to_count_them_and_no_more():
    clock = ManualClock()
    store = CountingStore(MemoryStore(clock))
    queue = QueueRegistry(store, "shop").create(QueueConfig("q", retry=False))
    queue.publish_many(range(3000))
    queue.fail_many(queue.receive(3000), [("rejected", None)] * 3000)
    store.reset()
    assert all_rows(queue.registry, queue.name)[1][0]["sidelined_looked_at"] == 200
    calls = store.total
    clock.advance(timedelta(days=16).total_seconds())
    all_rows(queue.registry, queue.name)  # once, it looks for what is in hand where nobody works any more
    store.reset()
    assert all_rows(queue.registry, queue.name)[1][0]["sidelined_looked_at"] == 0
    assert store.total <= calls + queue.config.shards, "one for each shard that is counted"


def test_a_sweep_that_failed_in_the_very_millisecond_of_a_success_is_shown_as_failed(lw, sqlite_url):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    registry = QueueRegistry(connect(sqlite_url), "shop")
    registry.records.change(registry.get("q").config, Put("lastSweep", {"success": 5, "failure": 5, "error": "no"}))
    facts = lw("queue", "stats", "q", *SHOP, "--json").json
    assert (facts["sweep_error"], facts["sweep_failed_s_ago"] > 0) == ("no", True)


def test_doctor_names_the_store_that_it_tried_and_not_its_password(lw, monkeypatch):
    monkeypatch.setenv("LATCHWORK_STORE", "sqlite:/nowhere")
    done = lw("doctor", store="aerospike://me:hunter2@127.0.0.1:1/test?total_timeout=300")
    assert "check aerospike://me:***@127.0.0.1:1/test" in done.out
    assert "hunter2" not in done.out + done.err


def test_doctor_names_what_there_is_to_check_of_a_store_in_a_file(lw):
    done = lw("doctor", store="sqlite:/nowhere/shop.db")
    assert (done.code, "connected" in done.out) == (1, False)
    assert "-> check sqlite:/nowhere/shop.db: the file and its directory\n" in done.out


def test_doctor_makes_no_file_where_there_is_none_and_says_so(lw, tmp_path):
    done = lw("doctor", store=f"sqlite:{tmp_path}/mistyped.db")
    assert done.code == 1
    assert f"problem  there is no file {tmp_path}/mistyped.db" in done.out
    assert "the first program that writes makes it" in done.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("edition", ["community", "enterprise"])
def test_doctor_says_that_deletes_are_not_durable_where_no_tombstones_are_left(edition):
    findings = import_module("latchwork.cli.doctor").settings_of
    first, *_ = findings(StoreInfo("aerospike", edition, False, 2, 0, 2, 1))
    assert "cold restart" in first.what
    found = findings(StoreInfo("aerospike", edition, True, 2, 0, 2, 1))
    assert not any("cold restart" in one.what for one in found)


def test_doctor_reports_zookeeper_hosts_that_are_none(lw, sqlite_url):
    connect(sqlite_url).get(Key("s", "k"))
    done = lw("doctor", "--zookeeper", "")
    assert (done.code, "bad hostname" in done.out, "connected" in done.out) == (1, True, True)


def test_remedies_are_those_of_the_command(lw):
    lw("latch", "create", "n", *SHOP, "--count", "1")
    assert ".get()" not in lw("latch", "create", "n", *SHOP, "--count", "1").err
    lw("large", "create", "bus", "1")
    lw("large", "enqueue", "bus", "1")
    full = lw("large", "enqueue", "bus", "2")
    assert (full.code, "--overwrite" in full.err, "overwrite_if_full" in full.err) == (1, True, False)


def test_a_queues_name_is_not_folded_on_a_narrow_terminal():
    from rich.console import Console

    from latchwork.cli.tables import RowsOnTerminal

    console = Console(width=30, file=io.StringIO())
    console.print(
        RowsOnTerminal([{"queue": "orders-of-today", "why": "one or other long reason", "sweep error": "x" * 40}])
    )
    assert "orders-of-today" in console.file.getvalue()


def test_a_follower_that_cannot_print_ends_and_leaves_the_rest_in_the_queue(lw, warm, sqlite_url):
    lw("queue", "create", "q", *SHOP, "--shards", "1", "--no-retry")
    lw("queue", "publish", "q", *map(str, range(200)), *SHOP)
    done = warm.run("--store", sqlite_url, "queue", "consume", "q", *SHOP, "--follow", stdout="/dev/full")
    assert (done.returncode, "No space left" in done.stderr, done.stderr.count("\n")) == (1, True, 1)
    facts = lw("queue", "stats", "q", *SHOP, "--json").json
    assert (facts["ready"], facts["sideline"], facts["in_flight"]) == (200, 0, 0), "no message is to blame"


def test_an_entry_that_json_has_no_word_for_is_shown_all_the_same(lw, sqlite_url):
    values = [{b"k": 1}, [float("inf"), b"\xff"], {"a": {b"k": [float("nan"), None, True, 1.5, "x"]}}]
    told = ["{\"b'k'\": 1}", '["inf", "ff"]', '{"a": {"b\'k\'": ["nan", null, true, 1.5, "x"]}}']
    bus = LargeQueue.create(connect(sqlite_url), "bus", 100)
    bus.enqueue_many(values * 2)
    assert [lw("large", "read", "bus", str(at)).out.rstrip() for at in range(3)] == told
    assert lw("large", "read", "bus", "2", "--json").json["value"] == json.loads(told[2])
    assert [line.split("\t")[1] for line in lw("large", "dequeue", "bus", "-n", "3").out.splitlines()[1:]] == told
    found = lw("large", "dequeue", "bus", "-n", "3", "--json").json
    assert [row["value"] for row in found] == [json.loads(text) for text in told]


NOT_JSON = pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python 3.14 reads it to its end: text, not JSON")


@pytest.mark.parametrize(
    "text",
    [
        "1e999",
        '{"a": 1, "b": {"c": 1, "c": 2}}',
        '{"a": [-1e400]}',
        pytest.param("[" * 50_000, marks=NOT_JSON, id="deep"),
    ],
)
def test_an_entry_that_would_not_be_kept_as_it_is_written_is_refused(lw, text):
    lw("large", "create", "bus", "100")
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    for words in (("large", "enqueue", "bus", text), ("queue", "publish", "q", *SHOP, text)):
        done = lw(*words)
        assert (done.code, done.err.count("\n"), "INVALID_REQUEST" in done.err) == (2, 1, True)
    assert lw("large", "info", "bus", "--json").json["size"] == 0


def test_an_error_of_several_lines_stays_in_its_cell(lw, sqlite_url):
    queue = QueueRegistry(connect(sqlite_url), "shop").create(QueueConfig("q", retry=False, shards=1))
    queue.publish(1)
    queue.receive()[0].nack("exception", error="one\ntwo\tmore \x1b[31mred\u2028\x9b")
    head, line = lw("queue", "peek", "q", *SHOP, "--side", "sideline").out.split("\n")[:2]
    cells = dict(zip(head.split("\t"), line.split("\t"), strict=True))
    assert cells["last_error"] == r"one\ntwo\tmore \x1b[31mred\u2028\x9b"


@pytest.fixture
def piped(monkeypatch):
    """Gives the command these bytes on stdin."""
    return lambda data: monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def test_a_line_of_stdin_ends_at_a_newline_and_at_nothing_else(lw, sqlite_url, piped):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    piped('{"text": "a\u2028b\x85c"}\r\n\n\r\n{"n": 2}\n'.encode())
    assert lw("queue", "publish", "q", *SHOP).code == 0
    found = lw("queue", "consume", "q", *SHOP, "--timeout", "0", "--json").json
    assert [row["payload"] for row in found] == [{"text": "a\u2028b\x85c"}, {"n": 2}]
    QueueRegistry(connect(sqlite_url), "shop").create(QueueConfig("b", retry=False, shards=1, codec="bytes"))
    piped(b"one\xc2\x85two\r\ncaf\xe9")
    lw("queue", "publish", "b", *SHOP)
    lw("queue", "publish", "b", "caf\udce9", *SHOP)
    found = lw("queue", "consume", "b", *SHOP, "--timeout", "0", "--json").json
    assert [bytes.fromhex(row["payload"]) for row in found] == [b"one\xc2\x85two\r", b"caf\xe9", b"caf\xe9"]


def test_a_line_that_is_not_utf_8_is_a_users_mistake(lw, piped):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    piped(b'"caf\xe9"\n')
    done = lw("queue", "publish", "q", *SHOP)
    assert (done.code, done.err.count("\n"), "not UTF-8 at byte 4" in done.err) == (2, 1, True)


def test_a_paused_queue_says_so_when_it_is_consumed(lw):
    lw("queue", "create", "q", *SHOP, "--shards", "1", "--concurrency", "0")
    for more in ((), ("--json",)):
        done = lw("queue", "consume", "q", *SHOP, "--timeout", "0", *more)
        assert (done.code, done.out) == (0, "[]\n" if more else "")
        assert "'q' is paused and gives no messages: latchwork queue resume q" in done.err
    lw("queue", "resume", "q", *SHOP)
    assert lw("queue", "consume", "q", *SHOP, "--timeout", "0").err == ""


def test_garbage_is_collected_while_a_command_runs_and_after_it(lw, monkeypatch):
    collecting = []
    monkeypatch.setattr("latchwork.cli.session.Session.close", lambda _: collecting.append(gc.isenabled()))
    lw("lock", "state", "l", *SHOP)
    lw("no-such-command")
    assert (collecting, gc.isenabled()) == ([True], True)


def test_with_json_a_command_leaves_stdout_to_the_document(lw, warm, sqlite_url):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    lw("queue", "publish", "q", "1", *SHOP)
    words = ("queue", "consume", "q", *SHOP, "--json", "--timeout", "0", "--", "echo", "handled")
    done = warm.run("--store", sqlite_url, *words)
    assert ([row["acked"] for row in json.loads(done.stdout)], done.stderr) == ([True], "handled\n")


@pytest.mark.parametrize(
    "words",
    [
        ("lock", "run", "l", "--timeout", "30"),
        ("leader", "run", "e", "--timeout", "30"),
        ("queue", "consume", "q", *SHOP, "--timeout", "0"),
    ],
)
def test_a_command_that_is_run_finds_the_same_store(lw, sqlite_url, tmp_path, words):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    lw("queue", "publish", "q", "1", *SHOP)
    there = tmp_path / "told"
    assert lw(*words, "--", "sh", "-c", f"echo $LATCHWORK_STORE > {there}").code == 0
    assert there.read_text() == f"{sqlite_url}\n"


class _Elected:
    """An election that this candidate has won; its pauses take no time, and the third one is Ctrl-C."""

    epoch = 7

    def __init__(self, store, name, candidate=None):
        self.clock, self.name, self.pauses = store.seams, name, []
        self.leadership = self.lost = self

    def run(self, lead, timeout):
        assert timeout is None, "who stays waits for ever"
        return lead(self)

    def check(self):
        pass

    def is_set(self):
        return False

    def wait(self, seconds):
        self.pauses.append(seconds)
        if len(self.pauses) == 3:
            raise KeyboardInterrupt
        self.clock.advance(seconds)


def test_a_sweep_that_stays_passes_what_was_acknowledged_and_outlives_an_error(lw, monkeypatch):
    from latchwork.cli import session
    from latchwork.cli.queue import sweep as commands

    clock = ManualClock()
    store = MemoryStore(clock)
    queue = QueueRegistry(store, "shop").create(QueueConfig("q", retry=False, shards=1))
    queue.publish_many([1, 2])
    queue.ack_many(queue.receive(2))
    monkeypatch.setattr(session, "connect", lambda _: store)
    monkeypatch.setattr(commands, "LeaseElection", _Elected)
    monkeypatch.setattr(Upkeep, "begin", lambda *_, sweeps: [])
    real, fail = commands.Sweeper.run_once, [False, True, False]
    monkeypatch.setattr(commands.Sweeper, "run_once", lambda sweeper: _or_unavailable(fail.pop(0), real, sweeper))
    done = lw("queue", "sweep", *SHOP, "--every", "1300", "--json")
    first, last = (json.loads(line) for line in done.out.splitlines()[:2])
    assert (done.code, first["scanned"], first["acked"], last["acked"]) == (130, 2, 0, 2)
    assert "the store is away [UNAVAILABLE]; the next sweep is in 1300 s" in done.err


def test_a_sweep_that_stays_delivers_what_is_due_as_the_upkeep_of_a_worker_does(sqlite_url, warm):
    queue = QueueRegistry(connect(sqlite_url), "shop").create(QueueConfig("q", shards=1))
    queue.publish("later", delay=0.1)
    sweep = warm.start("--store", sqlite_url, "queue", "sweep", *SHOP, "--every", "900")
    try:
        until(lambda: queue.receive(1))
        leader, _ = election_now(queue.store, "shop-sweeper")
        assert leader.leads
        assert not leader.only_sweeps
    finally:
        sweep.send_signal(signal.SIGINT)
        assert sweep.wait(60) == 130
        sweep.close()


def _or_unavailable(fails, real, sweeper):
    if fails:
        raise Unavailable("the store is away")
    return real(sweeper)


def test_a_sweep_stands_in_the_election_that_the_statistics_ask(lw, sqlite_url):
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    seen = FencedLock(connect(sqlite_url), "shop-sweeper", owner="me").acquire(1)
    assert lw("queue", "sweep", *SHOP, "--timeout", "0.1").code == 4
    seen.release()
    help_ = " ".join(lw("queue", "sweep", "--help").out.split())
    assert "CLIENT-sweeper" in help_
    assert "passes no slot whose message is missing" in help_


def test_the_statistics_call_a_queue_that_is_not_active_inactive(lw, sqlite_url):
    lw("queue", "create", "old", *SHOP, "--shards", "1")
    lw("queue", "sweep", *SHOP)
    lw("queue", "deactivate", "old", *SHOP, "--confirm", "old")
    head, line = (text.split("\t") for text in lw("stats", *SHOP).out.splitlines())
    cells = dict(zip(head, line, strict=True))
    assert (cells["state"], float(cells["swept s ago"]) >= 0) == ("inactive", True)


def test_no_queues_are_said_of_the_store_that_was_asked(lw, sqlite_url):
    connect(sqlite_url).get(Key("s", "k"))  # the first call makes the file
    told = f"latchwork: client 'shop' has no queues in farm 'local' of {sqlite_url.partition('?')[0]} [NOT_FOUND]\n"
    assert "latchwork large create never CAPACITY" in lw("large", "info", "never").err
    assert lw("queue", "list", *SHOP).err == lw("stats", *SHOP).err == told


def test_the_statistics_of_a_client_that_has_nothing_are_not_found_and_name_the_clients_that_there_are(lw, sqlite_url):
    assert lw("stats", *SHOP).code == 3
    lw("queue", "create", "q", *SHOP, "--shards", "1")
    done = lw("stats", "--client", "shoop", "--json")
    assert (done.code, done.json["error"]) == (3, "NOT_FOUND")
    assert done.json["message"].endswith("; the clients that have some: shop; is 'shop' meant?")


def test_a_name_that_the_output_cannot_write_is_escaped(lw, sqlite_url, monkeypatch):
    QueueRegistry(connect(sqlite_url), "shop").create(QueueConfig("\xfcber", retry=False, shards=1))
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    lw("queue", "list", *SHOP)
    assert b"\\xfcber\t" in written.getvalue()


def test_a_typer_that_is_too_old_is_not_called_missing(lw, monkeypatch):
    monkeypatch.setitem(sys.modules, "typer", types.ModuleType("typer"))
    assert "typer is of another version than needed" in lw("stats", *SHOP).code


def test_the_command_says_on_stderr_which_store_it_uses_where_none_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("LATCHWORK_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(SystemExit):
        main(["--json", "queue", "list", "--client", "shop"])
    said = capsys.readouterr()
    assert json.loads(said.out)["error"] == "NOT_FOUND"
    assert said.err.startswith(
        f"latchwork: the store is sqlite:{tmp_path}/latchwork/store.db; "
        "to use another, give --store or set $LATCHWORK_STORE\n"
    )


RUN = {
    "lock run": ("lock", "run", "n"),
    "leader run": ("leader", "run", "n"),
    "semaphore run": ("semaphore", "run", "n", "--permits", "1"),
    "rwlock read": ("rwlock", "read", "n"),
    "rwlock write": ("rwlock", "write", "n"),
    "group run": ("group", "run", "n"),
    "queue consume": ("queue", "consume", "q", *SHOP),
}
"""Each command that runs a program."""


@pytest.fixture
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.matrix
@pytest.mark.usefixtures("_in_a_folder")
@pytest.mark.parametrize("words", RUN.values(), ids=RUN)
@pytest.mark.parametrize(("program", "code"), [("nothing-of-that-name", 127), ("./plain.txt", 126), ("./none", 127)])
def test_what_cannot_be_run_ends_as_in_a_shell_and_holds_nothing(lw, words, program, code):
    Path("plain.txt").write_text("no program")
    lw("queue", "create", "q", *SHOP)
    lw("queue", "publish", "q", *SHOP, "1")
    for _ in range(2):
        done = lw(*words, "--", program, "secret-argument")
        assert (done.code, done.out) == (code, "")
        assert f"cannot run '{program}'" in done.err
        assert len(done.err.splitlines()) == 1
        assert "secret" not in done.err
    assert lw(*words, "--", "true").code == 0, "at once: nobody holds it"


def test_a_lock_is_broken_by_the_fence_of_its_holder_and_that_is_recorded(lw, sqlite_url):
    store = connect(sqlite_url)
    grant = FencedLock(store, "nightly", owner="web-1", lease=3600).acquire()
    assert lw("lock", "break", "nightly", "--fence", str(grant.fence - 1), "--at-once").code == 3
    words = ("lock", "break", "nightly", "--fence", str(grant.fence), "--at-once", "--why", "web-1 hangs")
    assert lw(*words).out == "broke nightly: it can be taken at once\n"
    assert FencedLock(store, "nightly").acquire(0).fence > grant.fence
    with pytest.raises(FencedOut):
        grant.renew()
    assert lw(*words).code == 3, "another holds it now"
    done = [(deed.target, deed.before[:13], deed.why) for deed in audit_of(store) if deed.after == "broken"]
    assert done == [("lock/nightly", "held by web-1", "web-1 hangs")]


def test_count_down_and_the_settings_of_a_queue_are_recorded(lw, sqlite_url):
    assert lw("latch", "create", "eod", "--client", "c", "--party", "a").code == 0
    assert lw("latch", "count-down", "eod", "--client", "c", "--party", "a").code == 0
    assert lw("queue", "create", "q", "--client", "c", "--shards", "1").code == 0
    assert lw("queue", "set", "q", "--client", "c", "--retry").code == 0
    found = {deed.what: (deed.target, deed.after, deed.outcome) for deed in audit_of(connect(sqlite_url))}
    assert found["count-down"] == ("c/eod/a", "0 to go", "done")
    assert found["set"] == ("c/q", "failed messages are tried again", "done")


def test_what_ends_or_replaces_something_for_others_is_recorded(lw, sqlite_url):
    shop = ("--client", "shop")
    store = connect(sqlite_url)
    orders = QueueRegistry(store, "shop").create(QueueConfig("orders", shards=1))
    orders.group("search")
    for name in ("a", "b"):
        orders.batch(name).publish(1)
    lw("latch", "create", "eod", *shop, "--count", "1")
    for words in (
        ("queue", "group", "drop", "orders", "search", *shop),
        ("queue", "batch", "close", "orders", "a", *shop),
        ("queue", "batch", "cancel", "orders", "b", *shop),
        ("schedule", "put", "daily", *shop, "--queue", "orders", "--every", "60"),
        ("schedule", "remove", "daily", *shop),
        ("latch", "delete", "eod", *shop),
        ("semaphore", "resize", "db", "8"),
        ("barrier", "abort", "nightly", *shop, "--party", "x", "--reason", "no input"),
    ):
        assert lw(*words).code == 0, words
    found = {deed.what: (deed.target, deed.after, deed.outcome) for deed in audit_of(store)}
    assert found == {
        "drop": ("shop/orders/orders@search", "", "done"),
        "close-batch": ("shop/orders/a", "", "done"),
        "cancel-batch": ("shop/orders/b", "", "done"),
        "put-schedule": ("shop/daily", "to orders, every 60 s", "done"),
        "remove-schedule": ("shop/daily", "", "done"),
        "delete": ("shop/eod", "deleted", "done"),
        "resize": ("semaphore/db", "8 permits", "done"),
        "abort": ("shop/nightly", "nobody waited", "done"),
    }


def test_who_holds_a_lock_is_shown_and_whether_its_holder_is_silent(lw, sqlite_url):
    assert lw("lock", "show", "nightly").code == 3
    store = connect(sqlite_url)
    grant = FencedLock(store, "nightly", owner="web-1", lease=0.05).acquire()
    held = lw("--json", "lock", "show", "nightly").json
    assert (held["held"], held["owner"], held["fence"], held["lease"]) == (True, "web-1", grant.fence, 0.05)
    until(lambda: lw("--json", "lock", "show", "nightly").json["ran_out"])
    assert re.search(r"renewed \d+\.\d s ago, its lease is 0\.05 s: it has run out", lw("lock", "show", "nightly").out)
    assert holder_of(store, "nightly").endswith("its lease has run out, so it is free within 0.05 s")
    grant.release()
    assert lw("lock", "show", "nightly").out == f"nightly is free; its last fence is {grant.fence}\n"


def test_the_latches_of_a_client_are_listed_and_no_others(here, url):
    store = connect(url)
    CountDownLatch.create(store, "shop", "night#1", 3, farm_id="jfk", ttl=600).count_down()
    CountDownLatch.create(store, "shop2", "other", 1)
    (row,) = here("latch", "list", *SHOP, "--json").json
    assert (row["latch"], row["remaining"], row["counts"]) == ("night#1", 2, {"jfk": 2})
    assert 0 < row["lives_s"] <= 600
    assert here("latch", "list", *SHOP).out.splitlines()[1].startswith("night#1\t2\tjfk 2\t")
    assert here("latch", "list", "--client", "nobody").code == 3
