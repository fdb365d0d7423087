"""What the command says at three in the morning, and with which exit code."""

from __future__ import annotations

import pytest

from latchwork import connect
from latchwork.coord import FencedLock
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded.workers import SILENT, WORKERS, WorkerReport, reporting
from latchwork.store import Key, MapPut
from latchwork.store.model.expr import SERVER_NOW, Const, ListOf
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


def test_doctor_exits_with_1_where_a_person_must_act_and_looks_at_every_client_if_none_is_named(lw, queue):
    assert lw("doctor").code == 0
    assert "queues of shop: 1 queue, 0 ready messages, 0 workers" in lw("doctor").out
    died = MapPut(WORKERS, "gone", ListOf((SERVER_NOW - round((SILENT + 25) * 1000), *[Const(0)] * 5)))
    queue.store.repeat(reporting(queue, WorkerReport("gone", 0.0, 0, 1, 0, 0, 0)))
    queue.store.operate(Key("shop_meta_set", "q_WORKERS"), died, repeatable=True)
    for words in ((), SHOP):
        done = lw("doctor", *words)
        assert done.code == 1
        assert "problem  queue q: no worker; the last one was gone, which last reported " in done.out
    head, line = (text.split("\t") for text in lw("stats", *SHOP).out.splitlines())
    cells = dict(zip(head, line, strict=True))
    assert (cells["at work"], cells["wrong"]) == ("-", "no_worker")
    assert lw("stats", *SHOP, "--json").json[0]["findings"][0]["kind"] == "no_worker"


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
