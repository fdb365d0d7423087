"""What the command says at three in the morning, and with which exit code."""

from __future__ import annotations

import itertools
import re
import sys
from dataclasses import replace
from io import BytesIO, StringIO, TextIOWrapper
from types import SimpleNamespace

import pytest
from rich.console import Console

from latchwork import connect
from latchwork.cli import doctor, session, stats
from latchwork.cli.audit import person
from latchwork.cli.coord.state import AskedNames
from latchwork.cli.stats import Screen
from latchwork.cli.tables import RowsOnTerminal
from latchwork.cli.unsettled import unsettled_in
from latchwork.coord import FencedLock, Group, RateLimiter, ReadWriteLock, Semaphore
from latchwork.coord.election.candidates import Candidates
from latchwork.errors import Unavailable
from latchwork.observe.audit import Deed, audited
from latchwork.observe.findings import Finding
from latchwork.queue import QueueConfig, QueueRegistry, Schedule
from latchwork.queue.sharded.delayed.schedules import ScheduleRecords
from latchwork.queue.sharded.in_flight import in_flight
from latchwork.queue.sharded.workers import (
    LONG,
    SILENT,
    WORKERS,
    Running,
    WorkerReport,
    process_of,
    reporting,
    workers_of,
)
from latchwork.store import Key, MapPut, MemoryStore, Put
from latchwork.store.model.expr import SERVER_NOW, Const, ListOf
from latchwork.store.port import Exists
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore
from tests.support import wire
from tests.support.undecodable import Undecodable
from tests.support.waiting import until

SHOP = ("--client", "shop")


@pytest.fixture
def queue(sqlite_url):
    return QueueRegistry(connect(sqlite_url), "shop").create(QueueConfig("q", shards=1))


def test_a_pause_names_the_workers_that_do_not_act_on_it_and_those_that_do(lw, queue):
    queue.store.repeat(reporting(queue, WorkerReport("hangs", 0.0, 0, 1, 0, 0, 0)))
    queue.store.repeat(reporting(queue, WorkerReport("ahead", 0.0, 2**60, 0, 2, 0, 0)))
    done = lw("queue", "pause", "q", *SHOP, "--timeout", "0.2")
    assert done.code == 4
    assert "paused q" in done.out
    assert "go on expiring" in done.out
    assert "1 of 2 workers acted on it" in done.out
    assert "2 handlers had begun" in done.out
    assert "not yet: hangs, which last reported " in done.out
    assert lw("queue", "list", *SHOP, "--json").json[0]["consumers"] == 0, "it is paused all the same"
    assert lw("queue", "resume", "q", *SHOP, "--timeout", "0", "--json").json["not_yet"] == ["hangs"]


def test_doctor_without_a_client_looks_at_all_however_many_and_counts_those_that_are_well(lw, queue):
    for number in range(doctor.MANY):
        QueueRegistry(queue.store, f"c{number}").create(QueueConfig("q", shards=1))
    parked = QueueRegistry(queue.store, "bad").create(QueueConfig("q", shards=1, max_deliveries=1))
    parked.publish("m")
    parked.receive(1)[0].nack()
    done = lw("doctor")
    assert done.code == 1
    assert "queue q of bad: 1 parked message" in done.out
    assert f"nothing is wrong with {doctor.MANY + 1} of {doctor.MANY + 2} clients" in done.out
    assert "queues of c1:" not in done.out


def test_doctor_says_of_a_client_whose_queues_are_gone_that_the_store_may_have_come_back_empty(lw, queue):
    FencedLock(queue.store, "shop-sweeper", owner="vm:7:ab@local").acquire()
    queue.store.delete(queue.registry.records.key("q"))
    done = lw("doctor", *SHOP)
    assert done.code == 1
    assert "client shop has no queue here any more" in done.out


def test_doctor_with_a_wrong_farm_says_that_the_farm_may_be_wrong_before_it_speaks_of_loss(lw, queue):
    FencedLock(queue.store, "shop-sweeper", owner="vm:7:ab@local").acquire()
    done = lw("doctor", *SHOP, "--farm", "zz")
    assert (done.code, "in farm zz" in done.out, "check --farm" in done.out) == (1, True, True)


def test_a_scale_names_the_workers_whose_program_fixes_their_threads(lw, queue):
    queue.store.repeat(reporting(queue, WorkerReport("vm:7:ab@local", 0.0, 2**60, 4, 0, 0, 0)))
    done = lw("queue", "scale", "q", "16", *SHOP)
    assert "vm:7 keeps its own number of threads, 4: its program sets `concurrency` or `weights`" in done.out
    assert "keeps its own" not in lw("queue", "scale", "q", "4", *SHOP).out


def test_a_change_that_does_not_wait_for_the_workers_accuses_none(lw, queue):
    queue.store.repeat(reporting(queue, WorkerReport("alive", 0.0, 0, 1, 0, 0, 0)))
    done = lw("queue", "pause", "q", *SHOP, "--timeout", "0")
    assert done.code == 0
    assert "1 worker acts on it within 3 s; this was not waited for" in done.out
    assert "alive" not in done.out


def test_a_pause_names_the_groups_that_go_on(lw, queue):
    queue.group("audit")
    done = lw("queue", "pause", "q", *SHOP, "--timeout", "0")
    assert (
        "its groups go on: q@audit; each is paused by itself: latchwork queue pause q@audit --client shop" in done.err
    )
    assert "groups" not in lw("queue", "pause", "q@audit", *SHOP, "--timeout", "0").err
    assert "groups" not in lw("queue", "pause", "q", *SHOP, "--timeout", "0").err


def test_a_second_pause_keeps_who_paused_the_queue_and_since_when(lw, queue):
    with pytest.warns(UserWarning, match="paused"):
        queue.pause(by="ann@desk")
    changed = queue.live.changed
    done = lw("queue", "pause", "q", *SHOP)
    assert done.code == 0
    assert re.search(r"q is paused already: \S+ s ago by ann@desk; nothing ready", done.out)
    live = QueueRegistry(queue.store, "shop").get("q").live
    assert (live.changed, live.changed_by) == (changed, "ann@desk")


def test_doctor_exits_with_1_where_a_person_must_act_and_looks_at_every_client_if_none_is_named(lw, queue):
    assert lw("doctor").code == 0
    assert "queues of shop: 1 queue, 0 ready messages, 0 workers" in lw("doctor").out
    died = MapPut(WORKERS, "gone", ListOf((SERVER_NOW - round((SILENT + 25) * 1000), *[Const(0)] * 5)))
    queue.store.repeat(reporting(queue, WorkerReport("gone", 0.0, 0, 1, 0, 0, 0)))
    queue.store.operate(Key("shop_meta_set", "q_WORKERS"), died, repeatable=True)
    for words in ((), SHOP):
        done = lw("doctor", *words)
        assert (done.code, "every queue was swept in time" in done.out) == (1, False)
        assert "problem  queue q of shop: worker gone, which last reported " in done.out
    head, line = (text.split("\t") for text in lw("stats", *SHOP).out.splitlines())
    cells = dict(zip(head, line, strict=True))
    assert (cells["at work"], cells["wrong"]) == ("-", "no_worker")
    assert lw("stats", *SHOP, "--json").json[0]["findings"][0]["kind"] == "no_worker"


def test_doctor_names_the_client_and_looks_at_the_one_of_the_environment(lw, queue, sqlite_url, monkeypatch):
    QueueRegistry(connect(sqlite_url), "bakery").create(QueueConfig("q", shards=1))
    with pytest.warns(UserWarning, match="paused"):
        queue.pause()
    paused = [row for row in lw("doctor", "--json").json if row["kind"] == "paused"]
    assert [(row["client"], row["queue"], row["queues"]) for row in paused] == [("shop", "q", ["q"])]
    assert "warning  queue q of shop: paused" in lw("doctor").out
    monkeypatch.setenv("LATCHWORK_CLIENT", "bakery")
    assert {row["client"] for row in lw("doctor", "--json").json} == {None, "bakery"}
    monkeypatch.setenv("LATCHWORK_CLIENT", "")
    assert {row["client"] for row in lw("doctor", "--json").json} == {None, "bakery", "shop"}


def test_what_a_person_must_act_on_is_last(lw, queue):
    queue.scale(2)
    queue.store.repeat(reporting(queue, WorkerReport("w", 0.0, queue.live.changed, 1, 0, 0, 5)))
    with pytest.warns(UserWarning, match="paused"):
        queue.pause()
    done = lw("doctor", *SHOP)
    states = [line.split()[0] for line in done.out.splitlines() if not line.startswith(" ")]
    assert states == sorted(states, key=("ok", "warning", "problem").index)
    assert states[-2:] == ["warning", "problem"]


def test_stats_of_one_queue_say_who_works_on_it_who_paused_it_and_what_is_wrong(lw, queue):
    queue.store.repeat(reporting(queue, WorkerReport("vm:7:ab@local", 0.0, queue.live.changed, 1, 0, 0, 5)))
    QueueRegistry(queue.store, "shop").create(QueueConfig("other", shards=1)).publish_many(range(2))
    queue.publish("m")
    assert queue.receive()
    with pytest.warns(UserWarning, match="paused"):
        queue.pause(by="anna@web-7")
    out = lw("queue", "stats", "q", *SHOP).out
    for line in (
        "paused                 yes by anna@web-7, ",
        "workers                1: vm:7",
        "threads each           0",
        "in flight              1",
        "problem  queue q of shop: 5 attempts failed, and 0 messages succeeded, in the minute before its worker last",
        "-> latchwork queue resume q --client shop",
    ):
        assert line in out
    assert "other" not in out
    facts = lw("queue", "stats", "q", *SHOP, "--json").json
    assert (facts["paused"], facts["workers"], [row["kind"] for row in facts["findings"]]) == (
        True,
        ["vm:7:ab@local"],
        ["failing", "paused"],
    )


def test_a_message_that_was_given_back_is_ready_and_not_in_flight(lw, queue):
    """As a deploy leaves it: it was cut, and no process is there."""
    queue.publish("m")
    queue._given_back(queue.receive())
    facts = lw("queue", "stats", "q", *SHOP, "--json").json
    assert (facts["ready"], facts["in_flight"], facts["in_flight_looked_at"]) == (1, 0, 1)


def test_the_balance_of_a_few_messages_is_no_matter_for_people(lw, queue):
    queue.publish_many(range(10))
    head, line = (text.split("\t") for text in lw("stats", *SHOP).out.splitlines())
    assert dict(zip(head, line, strict=True))["balance"] == "-"
    assert "shard balance          -" in lw("queue", "stats", "q", *SHOP).out
    queue.publish_many(range(1_000))
    assert "shard balance          1.0" in lw("queue", "stats", "q", *SHOP).out


def test_a_search_that_finds_nothing_says_where_it_looked(lw, queue):
    done = lw("queue", "search", "q", *SHOP, "--id", "x")
    assert (done.code, done.out) == (0, "no messages\n")
    assert "only parked messages were looked at; --side sideline or --side delayed looks elsewhere" in done.err


def test_who_looks_for_a_message_that_a_handler_has_is_sent_to_where_it_is_shown(lw, queue):
    message = queue.publish("m")
    queue.receive()
    hint = "what a handler has in hand is not shown here; latchwork queue show q --client shop "
    assert f"{hint}--id {message} says who has it" in lw("queue", "search", "q", *SHOP, "--id", message).err
    done = lw("queue", "peek", "q", *SHOP)
    assert (done.code, done.out) == (0, "no messages\n")
    assert f"{hint}lists it" in done.err
    for row in (
        *lw("queue", "show", "q", *SHOP, "--json").json,
        *lw("queue", "show", "q", *SHOP, "--id", message, "--json").json,
    ):
        assert (row["message_id"], row["attempts"]) == (message, 1)
        assert (row.get("since"), row["extended_at"] > "2") == (None, True), "it is not known when the work began"
    assert lw("queue", "peek", "q", *SHOP, "--side", "parked").err == ""


def test_a_message_at_work_is_shown_with_for_how_long_or_at_least_how_long(lw, queue):
    known, other = queue.publish_many(["m", "n"])
    queue.receive(2)
    me = queue.store.seams.process_name()
    report = WorkerReport(f"{me}:ab@local", 0.0, 0, 2, 2, 0, 0, longest=(Running(known, 480.0),))
    queue.store.repeat(reporting(queue, report))
    first, second = lw("queue", "show", "q", *SHOP, "--json").json
    assert (first["message_id"], second["message_id"]) == (known, other), "the longest first"
    assert (first["at_work_s"] // 10, first["at_work_is_least"]) == (48, False)
    assert (second["at_work_s"] < 60, second["at_work_is_least"]) == (True, True)
    (row,) = lw("queue", "show", "q", *SHOP, "--id", known, "--json").json
    assert (row["at_work_s"] // 10, row["at_work_is_least"]) == (48, False)
    out = lw("queue", "show", "q", *SHOP).out
    assert "\trunning\t8 min\t" in out
    assert "\trunning\tat least " in out


def test_a_store_whose_disk_is_full_is_told_as_that_with_what_frees_it(lw, queue, monkeypatch):
    def write(*_, **__):
        raise Unavailable("/x/s.db: database or disk is full; nothing was written; free some space", sqlite=13)

    monkeypatch.setattr(doctor, "examine", write)
    done = lw("doctor", *SHOP)
    assert done.code == 1
    assert "problem  the store takes no writes: /x/s.db: database or disk is full" in done.out
    assert "-> free some space there" in done.out


def test_messages_that_a_worker_could_not_settle_are_told_apart_from_those_at_work(lw, queue):
    queue.publish_many(range(2))
    queue.receive(2)
    me = queue.store.seams.process_name()
    for slot in ((0, 1), (0, 2)):
        at = round((queue.store.seams.wall() - 90) * 1000)
        queue.store.operate(queue.pointers.key(slot), Put("fireTS", at), repeatable=True)
    queue.store.repeat(reporting(queue, WorkerReport(f"{me}:ab@local", 0.0, 0, 2, 0, 0, 0)))
    err = lw("queue", "show", "q", *SHOP).err
    assert f"worker {me} has 2 messages in hand that no handler works on" in err
    assert re.search(r"the sweep brings them back, at the latest within (29|30|33|34) min", err), err
    told = " ".join(lw("doctor", *SHOP).out.split())
    assert f"messages of shop are in hand though no handler works on them: 2 in q by {me}" in told
    assert "after 50 s `latchwork queue recover q --client shop`" in told
    queue.store.repeat(reporting(queue, WorkerReport(f"{me}:ab@local", 0.0, 0, 2, 1, 0, 0)))
    assert f"worker {me} has 1 message in hand that no handler works on" in lw("queue", "show", "q", *SHOP).err
    queue.store.repeat(reporting(queue, WorkerReport(f"{me}:ab@local", 0.0, 0, 2, 2, 0, 0)))
    assert "that no handler works on" not in lw("queue", "show", "q", *SHOP).err
    assert "no handler works on" not in lw("doctor", *SHOP).out


@pytest.mark.parametrize(("ago", "found"), [(10.0, 1), (20.0, 0)])
def test_a_message_that_was_claimed_about_when_its_worker_last_reported_may_have_a_handler(ago, found):
    now, me = 1_000.0, "vm:7:ab@local"
    state = SimpleNamespace(at_work=[SimpleNamespace(worker=me, ago=ago, running=0)], returns_within=60.0)
    held = [SimpleNamespace(worker=process_of(me), stamped=(now - LONG - 15) * 1000)]
    assert [one.messages for one in unsettled_in(state, held, now, batches=False)] == [1] * found


def test_a_redrive_says_what_it_left_and_doctor_asks_for_all_of_many(lw, queue):
    parked = QueueRegistry(queue.store, "shop").create(QueueConfig("many", shards=1, max_deliveries=1))
    parked.publish_many(range(101))
    for delivery in parked.receive(101):
        delivery.nack()
    assert "latchwork queue redrive many --client shop --all" in " ".join(lw("doctor", *SHOP).out.split())
    err = lw("queue", "redrive", "many", *SHOP, "--limit", "60").err
    assert "brought back: 60 messages" in err
    assert "still parked: at most 41 messages; --all brings back all, --limit more at once" in err
    told = " ".join(lw("doctor", *SHOP).out.split())
    assert "then latchwork queue redrive many --client shop" in told
    assert "--all" not in told
    assert "still parked" not in lw("queue", "redrive", "many", *SHOP).err


def test_what_a_worker_may_still_settle_by_itself_is_told_without_a_kill(lw, queue):
    queue.publish(1)
    queue.receive(1)
    me = queue.store.seams.process_name()
    at = round((queue.store.seams.wall() - 90) * 1000)
    queue.store.operate(queue.pointers.key((0, 1)), Put("fireTS", at), repeatable=True)
    queue.store.repeat(reporting(queue, WorkerReport(f"{me}:ab@local", 0.0, 0, 2, 0, 0, 0)))
    FencedLock(queue.store, "shop-sweeper", owner=f"{me}:ab@local").acquire()
    told = " ".join(lw("doctor", *SHOP).out.split())
    assert "messages of shop are in hand though no handler works on them" in told
    assert "workers settle by themselves what they can; look again in 30 s" in told
    assert "kill -9" not in told


def test_a_message_that_is_due_or_ready_says_since_when_and_why_nobody_has_it(lw, sqlite_url):
    queue = QueueRegistry(connect(sqlite_url), "shop").create(QueueConfig("r", shards=1, backoff=0.01))
    ready = queue.publish("ready", delay=0)
    (failed,) = queue.publish_many(["failed"])
    queue.receive(2)[1].nack("exception")
    until(
        lambda: re.search(
            r"r?~\S+: due \S+ s ago; nobody does the upkeep", lw("queue", "show", "r", *SHOP, "--id", failed).err
        )
    )
    again = queue.publish("again")
    told = lw("queue", "show", "r", *SHOP, "--id", again).err
    assert re.search(r"ready for \S+ s; no worker is there: start one: latchwork worker MODULE:NAME", told)
    assert "ready for" not in lw("queue", "show", "r", *SHOP, "--id", ready).err
    with pytest.warns(UserWarning, match="paused"):
        queue.pause(by="anna@web-7")
    told = lw("queue", "show", "r", *SHOP, "--id", again).err
    assert re.search(r"the queue is paused by anna@web-7 for \S+ s: latchwork queue resume r --client shop", told)


def test_a_worker_that_drains_is_marked_where_workers_are_counted(lw, queue):
    queue.store.repeat(reporting(queue, WorkerReport("vm:7:ab@local", 0.0, 0, 1, 1, 0, 0, drains=90.0)))
    head, line = (text.split("\t") for text in lw("stats", *SHOP).out.splitlines())
    assert dict(zip(head, line, strict=True))["at work"] == "1 (1 draining)"
    assert "workers                1: vm:7 (draining)" in lw("queue", "stats", "q", *SHOP).out


def test_who_has_changed_a_queue_when_and_from_what_is_told(lw, queue):
    assert "changed" not in lw("queue", "list", *SHOP).out.splitlines()[0] or "- " not in lw("queue", "list", *SHOP).out
    lw("queue", "scale", "q", "7", *SHOP, "--timeout", "0")
    me = person()
    assert re.search(rf"\d+(\.\d)? s ago by {me}", lw("queue", "list", *SHOP).out)
    doctor = lw("doctor", *SHOP).out
    assert re.search(rf"ok +queue q of shop: resumed, or scaled, \S+ s ago by {me}: threads in each worker: 7", doctor)
    assert "latchwork audit --client shop --about q" in doctor
    lw("lock", "break", "x", "--fence", "1")
    lw("queue", "pause", "q", *SHOP, "--timeout", "0")
    pause, scale = lw("audit", *SHOP, "--about", "q", "--json").json
    assert (scale["who"], scale["what"], scale["on"]) == (me, "scale", "shop/q")
    assert (scale["before"], scale["after"], scale["outcome"]) == ("1 thread", "7 threads", "done")
    assert (pause["what"], pause["before"]) == ("pause", "7 threads")
    shown = lw("audit", *SHOP, "--limit", "1")
    assert (shown.out.count("\n"), "the newest 1 of 2" in shown.err) == (2, True)
    assert lw("audit", "--client", "other").out == "nobody is known to have done anything\n"


def died(queue, worker, ago):
    """This worker reported so many seconds ago for the last time."""
    queue.store.repeat(reporting(queue, WorkerReport(worker, 0.0, 0, 1, 0, 0, 0)))
    entry = MapPut(WORKERS, worker, ListOf((SERVER_NOW - ago * 1000, *[Const(0)] * 5)))
    queue.store.operate(Key("shop_meta_set", f"{queue.name}_WORKERS"), entry, repeatable=True)


def test_a_message_whose_worker_died_is_told_of_with_its_return_and_comes_sooner_if_it_is_asked_for(lw, queue):
    message, other = queue.publish_many(["held", "other"])
    assert len(queue.receive(2)) == 2
    me = queue.store.seams.process_name()
    queue.store.repeat(reporting(queue, WorkerReport(f"{me}:ab@local", 0.0, 0, 1, 0, 0, 0)))
    ask = ("queue", "recover", "q", *SHOP)
    alive = lw(*ask)
    assert (alive.code, alive.out) == (0, "nothing to bring back\n")
    assert f"no worker of q is known to have died; last reports: {me} (" in alive.err
    refused = lw(*ask, "--worker", me)
    assert (refused.code, "it counts as dead after 50 s without a report; end its process first" in refused.err) == (
        2,
        True,
    )
    died(queue, f"{me}:ab@local", 610)
    assert "latchwork queue recover q --client shop" in lw("doctor", *SHOP).out
    told = (
        f"worker {me}, which last reported 10 min ago, died or hangs: the sweep brings back the messages that it has "
        "in hand, at the latest within 20 min, while any worker of shop runs; sooner: latchwork queue recover q "
        "--client shop"
    )
    for words in (("show", "--id", message), ("show",), ("cancel", "--id", other)):
        assert told in lw("queue", words[0], "q", *SHOP, *words[1:]).err, words
    sought = lw("queue", "redrive", "q", *SHOP, "--id", message)
    assert (sought.code, f"{message} is running: {me} has it in hand\n" in sought.err, told in sought.err) == (
        3,
        True,
        True,
    )
    rehearsed = lw(*ask, "--dry-run", "--json")
    assert [(row["message_id"], row["worker"]) for row in rehearsed.json] == [(message, me), (other, me)]
    assert "would be brought back: 2 messages" in rehearsed.err
    assert "brought back: 2 messages" in lw(*ask).err
    found = lw("queue", "show", "q", *SHOP, "--id", message, "--json").json[0]
    assert (found["state"], found["attempts"]) == ("retrying", 1)
    assert found["error"].startswith(f"its worker {me} died: brought back by ")
    assert "back by the sweep" not in lw("doctor", *SHOP).out


def test_a_sweep_that_was_not_elected_says_why_and_what_to_do_instead(lw, queue):
    FencedLock(queue.store, "shop-sweeper", owner="vm:7:ab@local", lease=0.2).acquire(1)
    until(lambda: "nobody leads" in lw("leader", "status", "shop-sweeper").out)
    done = lw("queue", "sweep", *SHOP, "--timeout", "0.05")
    assert done.code == 4
    assert "is replaced once its lease was seen unchanged for 0.2 s" in done.err
    assert "what a worker that died had in hand is back at once by: latchwork queue recover QUEUE" in done.err
    FencedLock(queue.store, "shop-sweeper", owner="vm:8:cd@local", lease=60).acquire(5)
    assert "vm:8 leads, and sweeps every queue" in lw("queue", "sweep", *SHOP, "--timeout", "0.05").err


def test_a_worker_that_takes_no_more_messages_is_seen_in_stats_and_doctor(lw, queue):
    queue.store.repeat(reporting(queue, WorkerReport("vm:7:ab@local", 0.0, queue.live.changed, 1, 0, 0, 0, hung=2)))
    head, line = (text.split("\t") for text in lw("stats", *SHOP).out.splitlines())
    cells = dict(zip(head, line, strict=True))
    assert (cells["at work"], cells["wrong"]) == ("1 (1 saturated)", "saturated")
    assert "workers                1: vm:7 (saturated)" in lw("queue", "stats", "q", *SHOP).out
    done = lw("doctor", *SHOP)
    assert done.code == 1
    assert "problem  queue q of shop: 2 handlers of vm:7 hang, past the handler_timeout: it takes no more" in done.out


def test_a_mistyped_client_lock_or_latch_is_told_which_one_is_meant(lw, queue):
    for words in (("pause", "q"), ("publish", "q", "1"), ("stats", "q")):
        done = lw("queue", *words, "--client", "shp")
        assert (done.code, "the clients that have some: shop; is 'shop' meant?" in done.err) == (3, True)
    assert lw("lock", "list").code == 3
    FencedLock(queue.store, "vault", owner="web-1", lease=60).acquire()
    FencedLock(queue.store, "night", owner="web-2", lease=60).acquire().release()
    Candidates(queue.store, "shop-sweeper").report("vm:1:ab@local", 60)
    FencedLock(queue.store, "shop-sweeper", owner="vm:1:ab@local").acquire()
    listed = lw("lock", "list", "--json").json
    assert [(row["lock"], row["owner"]) for row in listed] == [("night", None), ("vault", "web-1")], "no elections"
    assert "is 'vault' meant?; `latchwork lock list` lists the locks that there are" in lw("lock", "show", "valt").err
    lw("latch", "create", "night", *SHOP, "--count", "1")
    assert "is 'shop-sweeper' meant?" in lw("leader", "status", "shop-sweper").err
    for words in (("show", "nigt"), ("count-down", "nigt"), ("wait", "nigt", "--timeout", "1"), ("delete", "nigt")):
        done = lw("latch", *words, *SHOP)
        assert (done.code, "is 'night' meant?" in done.err) == (3, True)
    done = lw("lock", "break", "valt", "--fence", "1")
    assert (done.code, "the lock 'valt' was never taken in this store; is 'vault' meant?" in done.err) == (3, True)


def test_a_mistyped_name_of_any_primitive_is_told_which_one_is_meant(lw, queue):
    store = queue.store
    Group(store, "nightly").join("m", keep_alive=False)
    Semaphore(store, "reports", permits=1, lease=60, owner="me").acquire()
    ReadWriteLock(store, "prices", lease=60, owner="me").write()
    RateLimiter(store, "calls", limit=5, per=1).try_acquire()
    queue.registry.schedule(Schedule("daily", "q", "tick", every=60))
    for words, is_meant in (
        (("group", "members", "nighly"), "nightly"),
        (("semaphore", "show", "report"), "reports"),
        (("rwlock", "show", "price"), "prices"),
        (("schedule", "next", "daly", *SHOP), "daily"),
    ):
        done = lw(*words)
        assert (words, done.code, f"is '{is_meant}' meant?" in done.err) == (words, 3, True)
    out = lw("doctor", "--limiter", "cals", "--group", "zzz").out
    assert "or the name is wrong; is 'calls' meant?" in out
    assert out.count("meant?") == 1


@pytest.mark.parametrize("terminal", [True, False])
def test_publishing_without_a_payload_says_what_it_reads_and_that_there_was_nothing(lw, queue, monkeypatch, terminal):
    nothing = TextIOWrapper(BytesIO())
    monkeypatch.setattr(nothing, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stdin", nothing)
    done = lw("queue", "publish", "q", *SHOP)
    assert (done.code, done.out) == (0, "")
    reads = "latchwork: reading messages from standard input, one in each line; Ctrl-D ends\n"
    assert done.err == (reads if terminal else "") + "latchwork: nothing was published\n"
    assert lw("queue", "publish", "q", *SHOP, "--json").json == {"published": []}


def test_a_dry_run_says_that_nothing_was_brought_back(lw, queue):
    queue = queue.registry.create(QueueConfig("spent", shards=1, max_deliveries=1))
    queue.publish("m")
    queue.receive()[0].nack()
    rehearsed = lw("queue", "redrive", "spent", *SHOP, "--dry-run")
    assert "latchwork: would be brought back: 1 message" in rehearsed.err
    done = lw("queue", "redrive", "spent", *SHOP)
    assert (done.err, done.out) == ("latchwork: brought back: 1 message\n", rehearsed.out)


def test_stats_leave_their_table_on_a_screen_of_24_lines_whatever_is_wrong(lw, queue, monkeypatch):
    for n in range(3):
        queue.registry.create(QueueConfig(f"q{n}", shards=1, concurrency=n + 1))
    screen = Console(width=80, height=24, file=StringIO(), force_terminal=True, color_system=None)
    monkeypatch.setattr("latchwork.cli.stats.terminal", lambda: screen)
    monkeypatch.setattr("latchwork.cli.tables.terminal", lambda: screen)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    long = "so many words that a terminal has to break them into two lines, of which a person is told anyway"
    found = [Finding(state, f"{n} {long}", f"remedy {n}") for n, state in enumerate(["problem"] * 2 + ["warning"] * 9)]
    monkeypatch.setattr("latchwork.cli.stats.findings_of", lambda _: found)
    said = lw("stats", *SHOP).out.splitlines()
    table = screen.file.getvalue().splitlines()
    assert len(said) + len(table) <= 23
    assert re.fullmatch("and [0-9] more: latchwork doctor --client shop", said[0])
    assert said[-1].endswith("-> remedy 0"), "what a person must act on is last"


def test_a_live_table_keeps_the_problems_with_their_remedies_in_24_lines():
    long = "a problem of which a person is told in so many words that the terminal has to break them into two lines"
    found = [Finding(state, f"{n} {long}", f"remedy {n}") for n, state in enumerate(["problem"] * 5 + ["warning"] * 9)]
    rows = [{"queue": f"q{n}", "ready": 10**30, "why": "x" * 70} for n in range(20)]

    def shown(found):
        console = Console(width=80, height=24, file=StringIO(), force_terminal=True, color_system=None)
        console.print(Screen(RowsOnTerminal(rows), found, "--client shop"))
        return console.file.getvalue().splitlines()

    lines = shown(found)
    assert len(lines) <= 23
    for n in range(5):
        assert [line for line in lines if f"-> remedy {n}" in line], "each problem is whole"
    assert lines[0].startswith("q0")
    assert lines[-1] == "and 8 more: latchwork doctor --client shop"
    assert [line for line in shown(found[:2]) if "more:" in line] == []
    assert len(shown(found[:2])) == 23, "the table has the rest"


@pytest.fixture
def store_that_is_away(monkeypatch):
    """Let the looks of `stats` with these numbers, from 1 on, fail."""

    def let_fail(*looks):
        look, count = stats._Watcher.look, itertools.count(1)

        def looked(watcher):
            if next(count) in looks:
                raise Unavailable("no server answers")
            return look(watcher)

        monkeypatch.setattr(stats._Watcher, "look", looked)

    return let_fail


def test_stats_goes_on_watching_while_the_store_is_away(lw, store_that_is_away):
    lw("queue", "create", "q", *SHOP)
    store_that_is_away(2, 3, 5)
    done = lw("stats", *SHOP, "--watch", "--rounds", "6", "--every", "0", "--json")
    assert (done.code, done.out.count('"queue": "q"')) == (0, 3)
    assert done.err == 2 * "latchwork: the store is away, and is asked again each 0 s: no server answers\n"


@pytest.mark.parametrize("look", [1, 2])
def test_stats_fails_where_the_store_is_away_at_its_first_look_or_its_last(lw, store_that_is_away, look):
    lw("queue", "create", "q", *SHOP)
    store_that_is_away(look)
    done = lw("stats", *SHOP, "--watch", "--rounds", "2", "--every", "0")
    assert (done.code, done.err) == (1, "latchwork: no server answers [UNAVAILABLE]\n")


def test_a_live_table_says_above_its_last_figures_that_the_store_is_away(
    lw, sqlite_url, store_that_is_away, monkeypatch
):
    lw("queue", "create", "q", *SHOP)
    screen = Console(width=60, height=12, file=StringIO(), force_terminal=True, color_system=None)
    monkeypatch.setattr(stats, "terminal", lambda: screen)
    store_that_is_away(2, 3)
    watcher = stats._Watcher(QueueRegistry(connect(sqlite_url), "shop"), AskedNames.of("shop", None, {}))
    stats._live(watcher, 0, 4, empty="")
    shown = re.split(r"\r(?:\x1b\[2K|\x1b\[1A)+", screen.file.getvalue())
    assert [one.startswith("the store is away") for one in shown] == [False, True, False, False]
    assert ["sideline: 0" in one for one in shown] == [True] * 4, "the figures stay"


def test_a_leader_that_died_does_not_lead(lw, sqlite_url):
    store = connect(sqlite_url)
    FencedLock(store, "e", owner="me", lease=0.05).acquire(1)
    done = until(lambda: (done := lw("leader", "status", "e")).code and done)
    assert done.code == 1
    assert "e: nobody leads: me led in epoch" in done.out
    told = lw("leader", "status", "e", "--json").json
    assert (told["leader"], told["last_leader"], told["renewed_s_ago"] > 0) == (None, "me", True)
    FencedLock(store, "f", owner="me", lease=60).acquire(1)
    done = lw("leader", "status", "f")
    assert (done.code, "f: me leads, epoch" in done.out, "last renewed " in done.out) == (0, True, True)


def test_a_name_that_never_existed_is_another_answer_than_nothing_there(lw, queue):
    for words in (
        ("leader", "status", "NEVER"),
        ("queue", "list", "--client", "NEVER"),
        ("queue", "sweep", "--client", "NEVER", "--timeout", "1"),
        ("stats", "--client", "NEVER"),
        ("schedule", "list", "--client", "NEVER"),
        ("latch", "list", "--client", "NEVER"),
        ("group", "members", "NEVER"),
        ("rwlock", "show", "NEVER"),
        ("queue", "stats", "NEVER", *SHOP),
    ):
        done = lw(*words)
        assert (words, done.code, "NEVER" in done.err) == (words, 3, True)
    assert "the clients that have some: shop" in lw("queue", "list", "--client", "NEVER").err
    assert "`latchwork queue list --client shop --farm local` lists the queues" in lw("queue", "stats", "x", *SHOP).err
    assert lw("doctor", "--client", "NEVER").code == 1
    assert lw("schedule", "list", *SHOP).code == 0
    assert lw("queue", "list", *SHOP).code == 0
    Group(queue.store, "g").join("m", keep_alive=False).leave()
    assert lw("group", "members", "g").code == 0


def test_a_queue_that_does_not_exist_is_named_with_its_store_and_the_nearest_name(lw, queue):
    queue.registry.create(QueueConfig("mails", shards=1))
    done = lw("queue", "stats", "mals", *SHOP)
    assert done.code == 3
    where = f"sqlite:{queue.store.path}"
    assert f"client 'shop' has no queue 'mals' in farm 'local' of {where}: it was never created" in done.err
    assert "is 'mails' meant?" in done.err
    assert "synchronous" not in done.err
    assert "meant" not in lw("queue", "stats", "zzz", *SHOP).err


def test_a_latch_shows_when_it_expires(lw):
    lw("latch", "create", "night", *SHOP, "--count", "1", "--ttl", "7200")
    assert re.search(
        r"\nexpires in \S+ (min|h); a count of its creator renews that\n", lw("latch", "show", "night", *SHOP).out
    )
    assert 7100 < lw("latch", "show", "night", *SHOP, "--json").json["lives_s"] <= 7200


def test_an_election_with_candidates_and_no_leader_yet_is_none_that_never_existed(lw, sqlite_url):
    Candidates(connect(sqlite_url), "e").report("w", 60)
    done = lw("leader", "status", "e")
    told = "e: nobody leads yet; an election is under way, candidates: 1"
    assert (done.code, told in done.out, "candidates: w\n" in done.out) == (0, True, True)


def test_an_interrupted_pause_says_that_it_is_stored_and_who_has_not_taken_it(lw, queue, monkeypatch):
    queue.store.repeat(reporting(queue, WorkerReport("hangs", 0.0, 0, 1, 0, 0, 0)))
    looks = []

    def interrupted(*_, **__):
        looks.append(1)
        if len(looks) > 1:
            raise KeyboardInterrupt
        return workers_of(*_, **__)

    monkeypatch.setattr("latchwork.queue.sharded.subscription.workers_of", interrupted)
    done = lw("queue", "pause", "q", *SHOP)
    assert done.code == 130
    assert "The pause is stored, and all workers will act on it; not yet: hangs" in done.err
    assert lw("queue", "list", *SHOP, "--json").json[0]["consumers"] == 0


def test_the_id_of_the_log_finds_a_message_that_waits_for_its_retry(lw, queue):
    queue.publish_many(["a", "b"], message_ids=["id-a", "id-b"])
    for delivery in queue.receive(2):
        delivery.nack()
    found = lw("queue", "search", "q", *SHOP, "--side", "delayed", "--id", "id-a", "--json").json
    assert [(row["message_id"], row["attempts"], row["due_at"] is not None) for row in found] == [("id-a", 1, True)]
    assert lw("queue", "redrive", "q", *SHOP, "--side", "delayed", "--id", "id-a").out.split("\n")[1] == "id-a\tdone"
    assert lw("queue", "discard", "q", *SHOP, "--side", "delayed", "--id", "id-b").code == 0
    missing = lw("queue", "discard", "q", *SHOP, "--id", "id-b")
    assert (missing.code, "--side delayed" in missing.err) == (3, True)


def test_a_queue_that_does_not_retry_is_switched_to_retries(lw, sqlite_url):
    old = QueueRegistry(connect(sqlite_url), "shop").create(QueueConfig("old", shards=1, retry=False, backoff=0.05))
    assert lw("queue", "set", "old", *SHOP, "--retry").code == 0
    new = QueueRegistry(connect(sqlite_url), "shop").create(QueueConfig("old", shards=1, backoff=0.05))
    for queue, sideline, delayed in ((old, 1, 0), (new, 1, 1)):  # a process that runs goes on as before
        queue.publish("m")
        queue.receive()[0].nack()
        depth = new.depth()
        assert (depth.sideline, depth.retrying) == (sideline, delayed)
    assert new.config.retries is not None, "so the upkeep brings back what is in the sideline, too"
    assert lw("queue", "set", "never", *SHOP, "--retry").code == 3


def test_a_queue_that_was_not_paused_is_not_said_to_be_resumed(lw, queue):
    changed = queue.live.changed
    done = lw("queue", "resume", "q", *SHOP)
    assert (done.code, done.out.splitlines()[0]) == (0, "q was not paused: 1 worker thread in each consumer process")
    assert QueueRegistry(queue.store, "shop").get("q").live.changed == changed


def test_stats_without_a_client_are_those_of_the_only_one_and_else_name_them_all(lw, queue):
    assert [row["queue"] for row in lw("stats", "--json").json] == ["q"]
    QueueRegistry(queue.store, "bakery").create(QueueConfig("q", shards=1))
    done = lw("stats")
    assert (done.code, "--client ID; clients with queues: bakery, shop" in done.err) == (2, True)
    assert lw("stats", "--farm", "elsewhere").code == 3


def test_a_candidate_that_died_is_no_contender(lw, queue):
    for name in ("vm:1:ab@local", "vm:2:cd@local"):
        Candidates(queue.store, "shop-sweeper").report(name, 60)
        queue.store.repeat(reporting(queue, WorkerReport(name, 0.0, 0, 1, 0, 0, 0)))
    assert lw("leader", "status", "shop-sweeper", "--json").json["contenders"] == ["vm:1:ab@local", "vm:2:cd@local"]
    died = MapPut(WORKERS, "vm:1:ab@local", ListOf((SERVER_NOW - 25_000, *[Const(0)] * 5)))
    queue.store.operate(Key("shop_meta_set", "q_WORKERS"), died, repeatable=True)
    done = lw("leader", "status", "shop-sweeper")
    assert "candidates: 1" in done.out
    assert "candidates: vm:2:cd@local\n" in done.out


READING = """
    stats
    stats --client shop --watch --rounds 1
    doctor --client shop
    queue list --client shop
    queue stats q --client shop
    queue peek q --client shop
    queue search q --client shop
    queue redrive q --client shop
    queue show q --client shop
    queue recover q --client shop
    queue wait q --client shop --depth 1 --timeout 1
    queue sweep --client shop
    queue pause q --client shop
    queue publish q 1 --client shop
    queue consume q --client shop
    queue batch list q --client shop
    queue group list q --client shop
    schedule list --client shop
    latch show l --client shop
    latch list --client shop
    latch wait l --client shop --timeout 1
    lock show l
    lock list
    rwlock show l
    semaphore show s
    group members g
    leader status e
    leader status e --farm-store eu=URL --farm-store us=URL
    large info b
    barrier show b --client shop --party x
"""


@pytest.mark.parametrize("line", [*filter(None, map(str.strip, READING.splitlines()))])
def test_no_command_makes_a_file_but_those_that_begin_something(line, lw, tmp_path):
    url = f"sqlite:{tmp_path / 'mistyped.db'}"
    done = lw(*line.replace("URL", url).split(), store=url)
    assert (done.code, list(tmp_path.iterdir())) == (1 if line.startswith("doctor") else 3, [])
    assert f"there is no file {tmp_path / 'mistyped.db'}" in done.out + done.err


def test_a_wait_for_a_latch_that_is_to_be_created_may_begin_before_there_is_a_file(lw, tmp_path):
    url = f"sqlite:{tmp_path / 'new.db'}"
    done = lw("latch", "wait", "l", *SHOP, "--timeout", "0.2", "--create-timeout", "0.1", store=url)
    assert (done.code, "there is no latch 'l'" in done.err) == (3, True)
    assert lw("latch", "create", "l", *SHOP, "--count", "0", store=url).code == 0
    assert lw("latch", "wait", "l", *SHOP, store=url).out == "released\n"


def test_the_threads_that_run_are_said_where_programs_fix_them(lw, queue):
    said = ("queue", "list", *SHOP), ("queue", "stats", "q", *SHOP)
    report = WorkerReport("vm:7:ab@local", 0.0, queue.live.changed, queue.concurrency, 0, 0, 0)
    queue.store.repeat(reporting(queue, report))
    assert [text for words in said if "as its program says" in (text := lw(*words).out)] == []
    queue.store.repeat(reporting(queue, replace(report, threads=4)))
    for words in said:
        assert f"{queue.concurrency} (as its program says: vm:7 4)" in lw(*words).out
    facts = lw("queue", "stats", "q", *SHOP, "--json").json
    assert (facts["consumers"], facts["worker_threads"]) == (queue.concurrency, {"vm:7:ab@local": 4})
    assert [one["consumers"] for one in lw("queue", "list", *SHOP, "--json").json] == [queue.concurrency]
    for n in range(1, 5):
        queue.store.repeat(reporting(queue, replace(report, worker=f"vm:{n}:ab@local", threads=4)))
    for words in said:
        assert re.search(r"\(as its program says: vm:\d 4, vm:\d 4, vm:\d 4 and 2 more\)", lw(*words).out)


def test_the_age_of_an_attempt_is_not_that_of_an_earlier_one_which_hangs(lw, queue):
    queue.publish("m", message_id="m")
    assert queue.receive()
    hangs, worker = Running("m", 180.0, given_up=True), f"{in_flight(queue).held[0].worker}:ab@local"
    report = WorkerReport(worker, 0.0, 0, 2, 2, 0, 0, hung=1, longest=(hangs,))
    queue.store.repeat(reporting(queue, report))
    for words in (("queue", "show", "q"), ("queue", "show", "q", "--id", "m")):
        (row,) = lw(*words, *SHOP, "--json").json
        assert (row["state"], row["at_work_is_least"], row["at_work_s"] < 60) == ("running", True, True)
    queue.store.repeat(reporting(queue, replace(report, longest=(hangs._replace(given_up=False),))))
    (row,) = lw("queue", "show", "q", *SHOP, "--json").json
    assert (row["at_work_is_least"], row["at_work_s"] >= 180) == (False, True)


def test_a_broken_lock_says_when_it_can_be_taken_and_how_sooner_and_takes_the_fence_as_it_was_printed(lw, queue):
    grant = FencedLock(queue.store, "long", owner="web-1", lease=600).acquire()
    done = lw("lock", "break", "long", "--fence", f"{grant.fence:,}")
    first, sooner = done.out.splitlines()
    assert first == "broke long: who has waited for 600 s, the lease of its holder, takes it"
    assert sooner.startswith("sooner, if the process of its holder has ended: latchwork lock break long --fence ")
    shown, when = lw("lock", "show", "long").out.splitlines()
    assert shown.startswith("long was broken by ")
    assert "nobody holds it, fence " in shown
    assert "who has waited for 600 s" in when
    waits = lw("lock", "run", "long", "--timeout", "0.1", "--", "true")
    assert "has broken it, and nobody holds it: who has waited for 600 s" in waits.err
    assert lw(*sooner.partition("latchwork ")[2].split()).out == "broke long: it can be taken at once\n"
    assert lw("lock", "run", "long", "--timeout", "20", "--", "true").code == 0


def test_a_fence_is_listed_so_that_it_can_be_copied_into_a_command(lw, queue):
    grant = FencedLock(queue.store, "vault", owner="web-1", lease=60).acquire()
    assert str(grant.fence) in lw("lock", "list").out.split()
    assert lw("lock", "list", "--json").json[0]["fence"] == grant.fence
    for wrong in ("0", "-1", "x", ""):
        assert lw("lock", "break", "vault", "--fence", wrong).code == 2


def test_a_client_whose_election_is_damaged_does_not_hide_the_others_and_the_store_is_not_blamed(lw, queue):
    parked = QueueRegistry(queue.store, "zoo").create(QueueConfig("q", shards=1, max_deliveries=1))
    parked.publish("m")
    parked.receive(1)[0].nack()
    queue.store.operate(Key("latchwork_locks", "shop-sweeper"), Put("fencing-ctr", "seven"), exists=Exists.ANY)
    done = lw("doctor")
    assert done.code == 1
    assert "problem  client shop cannot be looked at: " in done.out
    assert "queue q of zoo: 1 parked message" in done.out
    assert "the store does not answer" not in done.out
    assert "restore this record from a copy" in done.out


def test_an_election_that_cannot_be_decoded_hides_no_other_client_and_the_store_is_not_blamed(
    warm, aerospike_store, aerospike_server
):
    if not hasattr(aerospike_server, "host"):
        pytest.skip("no address")
    for client in ("shop", "zoo"):
        QueueRegistry(aerospike_store, client).create(QueueConfig("q", shards=1)).publish("m")
    election = Key("latchwork_locks", "shop-sweeper")
    assert wire.put(aerospike_server, election, {"lock-owner": (wire.TEXT, b"\xff\xfe")}) == 0
    for more in ((), SHOP):
        done = warm.run("--store", aerospike_server.url, "doctor", *more)
        assert done.returncode == 1
        assert f"problem  client shop cannot be looked at: {election}: " in done.stdout
        assert "restore this record from a copy" in done.stdout
        assert ("queues of zoo: 1 queue" in done.stdout) is not bool(more)
        assert "the store does not answer" not in done.stdout


def test_a_record_that_cannot_be_decoded_is_named_by_doctor_and_the_store_is_not_blamed(lw, queue, monkeypatch):
    strange = Undecodable(queue.store)
    Group(strange, "g").join("m", keep_alive=False)
    strange.bad[Key("latchwork_groups", "g")] = "members"
    monkeypatch.setattr(session, "connect", lambda _: strange)
    done = lw("doctor", *SHOP, "--group", "g")
    assert "a record is damaged, and what needs it was not looked at: " in done.out
    assert "restore this record from a copy" in done.out
    assert "queues of shop: 1 queue" in done.out
    assert "the store does not answer" not in done.out


def test_a_java_that_cannot_be_run_hides_nothing_else_that_doctor_found(lw, queue, monkeypatch, tmp_path):
    (tmp_path / "java").write_bytes(b"\x7fELF nothing")
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = lw("doctor", *SHOP)
    assert "warning  Java cannot be run: " in done.out
    assert "queues of shop: 1 queue" in done.out


def test_a_java_that_hangs_is_not_said_to_be_missing(lw, queue, monkeypatch, tmp_path):
    (tmp_path / "java").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(doctor, "JAVA_TIME", 0.2)
    done = lw("doctor", *SHOP)
    assert "warning  Java did not answer within 0.2 s" in done.out
    assert "install" not in next(line for line in done.out.splitlines() if "Java" in line)


def test_the_audit_finds_an_id_with_a_slash_and_an_action_before_the_newest_500(lw, queue):
    for number in range(501):
        deed = Deed("local", "ann", "count-down", f"shop/nightly/{number}")
        with audited(queue.store, deed):
            pass
        if not number:
            with audited(queue.store, Deed("local", "bob", "discard", "shop/q/load/7")):
                pass
    (one,) = lw("audit", "--about", "load/7", "--json").json
    assert one["who"] == "bob"
    (one,) = lw("audit", "--about", "0", "--json").json
    assert one["on"] == "shop/nightly/0"
    assert "an action on many messages does not name each" in lw("audit", "--about", "never").out


def test_a_paused_queue_is_resumed_by_the_command_as_it_is_printed(lw, queue):
    assert lw("queue", "pause", "q", *SHOP).code == 0
    told = lw("queue", "consume", "q", *SHOP, "--timeout", "0").err
    words = re.search(r"latchwork (queue resume .*)", told)[1].split()
    assert lw(*words, "--timeout", "0").code == 0


def test_damage_elsewhere_in_the_file_hides_nothing_of_the_queues(lw, queue):
    parked = queue.registry.create(QueueConfig("parks", shards=1, max_deliveries=1))
    parked.publish("m")
    parked.receive(1)[0].nack()
    queue.store.operate(Key("s", "k"), Put("text", "canary"), exists=Exists.CREATE)
    queue.store.close()
    queue.store.path.write_bytes(queue.store.path.read_bytes().replace(b"canary", b"damage"))
    done = lw("doctor", *SHOP)
    assert "the file is damaged: Key(set='s', name='k')" in done.out
    assert "queue parks of shop: 1 parked message" in done.out


def test_damage_within_a_queue_and_of_a_schedule_is_told_whether_or_not_the_client_is_named(lw, queue):
    queue.publish("m")
    queue.publish("later", delay=600)
    assert lw("doctor").code == lw("doctor", *SHOP).code == 0
    registry, (pointers, *_) = queue.registry, queue.pointers.state_keys([0])
    registry.schedule(Schedule("nightly", "q", every=60))
    schedules = ScheduleRecords(registry.store, registry.client_id, registry.farm_id).key
    queue.store.operate(pointers, Put("LOAD_POINTER", "damaged"))
    queue.store.operate(queue.delayed.control, Put("in", "damaged"))
    queue.store.operate(schedules, MapPut("specs", "nightly", "damaged"))
    done = lw("doctor")
    assert done.code == 1
    told = " ".join(done.out.split())
    assert "queue q of shop: 2 records of its shards, or of its delayed messages, are damaged" in told
    assert "latchwork doctor --client shop names them" in told
    assert "schedule nightly of shop: schedule 'nightly' cannot be read" in told
    assert "unreadable" in lw("stats", *SHOP, "--json").json[0]["findings"][0]["kind"]
    told = " ".join(lw("doctor", *SHOP).out.split())
    assert f"the record {pointers.set}/{pointers.name} is damaged" in told
    control = queue.delayed.control
    assert f"the record {control.set}/{control.name} is damaged, which says how many delayed messages wait" in told
    assert "schedule nightly of shop: schedule 'nightly' cannot be read" in told
    assert "2 records of its shards" not in told, "each is named"
    assert queue.depth().damaged == 2


def test_a_damaged_lock_has_a_row_of_its_own_in_the_list_of_locks_on_a_terminal_too(lw, queue, monkeypatch):
    for name in ("a", "b", "c"):
        FencedLock(queue.store, name, owner="me").acquire(1)
    queue.store.operate(Key("latchwork_locks", "b"), Put("fencing-ctr", "seven"), exists=Exists.ANY)
    assert len({line.count("\t") for line in lw("lock", "list").out.splitlines()}) == 1
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    done = lw("lock", "list")
    assert (done.code, "its record is damaged" in done.out) == (0, True)


@pytest.mark.parametrize(
    ("ahead", "said"), [(0.0003, "+0 ms"), (-0.0003, "+0 ms"), (2.0, "-2000 ms"), (-2.0, "+2000 ms")]
)
def test_clocks_differ_by_a_number_of_milliseconds_that_a_person_would_write(ahead, said):
    clock = ManualClock()
    finding = doctor._skew(CountingStore(MemoryStore(clock), seams=clock.skewed(ahead)))
    assert f"differ by {said} " in finding.what
