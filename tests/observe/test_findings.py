"""What a person is told of a queue at three in the morning, and what it costs to ask. Over memory and SQLite."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from latchwork.coord import FencedLock
from latchwork.coord.election.candidates import Candidates
from latchwork.errors import Misconfigured
from latchwork.observe.findings import KINDS, OF_CLIENT, OF_QUEUE, OK, PROBLEM, WARNING, findings_of, why_it_waits
from latchwork.observe.snapshot import clients_in, of_client, view_of
from latchwork.plain import shown_time
from latchwork.queue import QueueConfig, QueueRegistry, Schedule, ShovelConfig
from latchwork.queue.sharded.delayed import schedules
from latchwork.queue.sharded.delayed.stored import Unsettled
from latchwork.queue.sharded.history import NOT_FAILING, Failing, noting
from latchwork.queue.sharded.stream import release, take
from latchwork.queue.sharded.upkeep.timers import Timers
from latchwork.queue.sharded.workers import WORKERS, Running, WorkerReport, reporting, settling, stopping
from latchwork.store import Exists, Key, MapPut, MemoryStore, Put, SQLiteStore
from latchwork.store.model.expr import SERVER_NOW, Const, ListOf
from latchwork.testing import bring_back
from latchwork.testing.stores import CountingStore
from tests.queue.sharded.delayed.test_delayed import Farms, run_until
from tests.support.undecodable import Undecodable


@pytest.fixture(params=["memory", "sqlite"])
def store(request, clock, tmp_path):
    if request.param == "memory":
        yield MemoryStore(clock)
    else:
        made = SQLiteStore(tmp_path / "store.db", synchronous="off", seams=clock)
        yield made
        made.close()


@pytest.fixture(autouse=True)
def _farm_of_this_machine(monkeypatch):
    monkeypatch.setenv("LATCHWORK_FARM", "f")


@pytest.fixture
def registry(store):
    return QueueRegistry(store, "shop", farm_id="f")


@pytest.fixture
def queue(registry):
    return registry.create(QueueConfig("q", shards=2, shovel=ShovelConfig(60), sweep_duration=3600))


def reports(queue, worker="w", **facts):
    """A worker reports now."""
    report = replace(WorkerReport(worker, 0.0, queue.live.changed, 1, 0, 0, 0), **facts)
    queue.store.repeat(reporting(queue, report))


def told(registry):
    """The findings by kind: the state, and the text."""
    return {one.kind: (one.state, one.what) for one in findings_of(of_client(registry))}


def test_a_queue_with_nothing_wrong_has_no_findings(registry, queue):
    reports(queue)
    queue.publish("m")
    assert told(registry) == {}


def test_a_pause_is_told_with_who_and_since_when_until_it_is_resumed(registry, queue, clock):
    queue.publish_many(range(3))
    with pytest.warns(UserWarning, match="paused"):
        queue.pause(by="anna@web-7")
    clock.advance(770)
    state, what = told(registry)["paused"]
    assert state == WARNING
    assert "paused by anna@web-7, 13 min ago; ready messages that wait, and go on expiring: 3" in what
    queue.resume()
    assert "paused" not in told(registry)


def test_a_worker_that_does_not_act_on_a_pause_is_named_after_its_time(registry, queue, clock):
    reports(queue, "late")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        queue.pause()
    reports(queue, "good")
    assert "settings" not in told(registry)
    clock.advance(11)
    state, what = told(registry)["settings"]
    assert (state, "has not reached 1 of 2 workers" in what, "late, which last reported 11 s ago" in what) == (
        PROBLEM,
        True,
        True,
    )
    assert "good" not in what


def test_a_backlog_without_a_worker_is_told_and_so_is_the_worker_that_died(registry, queue, clock):
    queue.publish_many(range(3))
    clock.advance(20)
    reports(queue)
    clock.advance(20)
    assert told(registry) == {}
    clock.advance(40)
    (one,) = findings_of(of_client(registry))
    assert (one.state, one.kind) == (PROBLEM, "no_worker"), "one cause is one problem"
    assert "worker w, which last reported 60 s ago, died or hangs; no other worker is there; " in one.what
    assert "3 ready messages wait, the oldest for 80 s" in one.what
    reports(queue, "other")
    assert told(registry)["worker_died"][0] == WARNING


def test_a_single_message_that_waits_is_told_in_plain_words(registry, queue, clock):
    queue.publish("m")
    clock.advance(57)
    assert told(registry)["no_worker"][1].endswith("no worker; 1 ready message waits, for 57 s")


def test_the_only_worker_that_died_is_told_within_a_minute_though_nothing_waits(registry, queue, clock):
    reports(queue)
    clock.advance(60)
    assert told(registry)["no_worker"][0] == PROBLEM
    with pytest.warns(UserWarning, match="paused"):
        queue.pause()
    assert told(registry)["no_worker"][0] == PROBLEM, "who resumes it has to know"


def test_one_that_reported_long_ago_is_not_said_to_work_and_the_bound_of_the_return_is_told(registry, queue, clock):
    reports(queue, "dead", running=2)
    clock.advance(25)
    reports(queue, "late")
    clock.advance(30)
    reports(queue, "fresh")
    state, what = told(registry)["worker_died"]
    assert state == WARNING
    assert "at work: 1 (fresh); overdue: late, which last reported 30 s ago" in what
    assert "in hand" not in what, "nobody has received anything yet"
    clock.advance(600)
    reports(queue, "fresh")
    assert "worker_died" not in told(registry)


def swept(registry, queue):
    """A sweep has looked at the queue now."""
    now = int(registry.store.seams.wall() * 1000)
    registry.store.operate(registry.records.key(queue.name), Put("lastSweep", {"success": now}))


def test_a_worker_that_died_is_told_until_a_sweep_has_brought_back_what_it_may_have_had(registry, clock):
    """Its last report may be from before it took the message, so it says that nothing ran."""
    queue = registry.create(QueueConfig("d", shards=1))
    queue.publish("m")
    reports(queue, "dead")
    assert queue.receive()
    clock.advance(60)
    reports(queue, "fresh")
    told_of = told(registry)["worker_died"][1]
    # 20 min without a sign of life, a sweep each 10 min, and one report
    assert "what it may have had in hand is back by the sweep, at the latest within 29 min" in told_of
    clock.advance(570)
    swept(registry, queue)
    reports(queue, "fresh")
    assert "back by the sweep, at the latest within 20 min" in told(registry)["worker_died"][1], (
        "that sweep came too early for it"
    )
    clock.advance(620)
    reports(queue, "fresh")
    assert "worker_died" in told(registry)
    swept(registry, queue)
    assert "worker_died" not in told(registry)


def test_it_is_said_to_be_back_once_it_is_and_to_wait_for_a_worker_where_none_is_there(registry, clock):
    queue = registry.create(QueueConfig("d", shards=1, sweep_duration=300))
    queue.publish("m")
    reports(queue, "dead", running=1)
    queue.receive()
    clock.advance(320)
    (what,) = [one.what for one in findings_of(of_client(registry)) if one.kind == "no_worker"]
    hand = (
        "; what it had in hand (at its last report 1 handler) is back by the sweep, at the latest within 2 min, "
        "once a worker runs again; "
    )
    assert hand + "so there is no upkeep either; queue d not swept for 5 min" in what
    clock.advance(150)
    assert "is back by the sweep, at the latest with the next one, once a worker runs" in told(registry)["no_worker"][1]
    swept(registry, queue)
    assert told(registry)["no_worker"][1].endswith("; what it had in hand (at its last report 1 handler) is back")
    clock.advance(3600)
    assert "no_worker" not in told(registry)


def test_it_comes_back_without_a_worker_of_its_own_where_that_of_another_queue_leads(registry, store, clock):
    queue = registry.create(QueueConfig("d", shards=1))
    queue.publish("m")
    reports(queue, "dead", running=1)
    queue.receive()
    clock.advance(60)
    FencedLock(store, "shop-sweeper", owner="other@f", lease=10).acquire(1)
    (found,) = findings_of(view_of(registry, "d").look())
    assert "at the latest within 29 min" in found.what
    assert "once a worker" not in found.what


def test_queues_are_told_apart_where_a_worker_of_one_goes_on(registry, clock):
    queues = [registry.create(QueueConfig(name, shards=1)) for name in "ab"]
    for queue in queues:
        reports(queue, f"vm:{queue.name}:x")
    clock.advance(60)
    store = queues[0].store
    reports(queues[0], "vm:1:x")
    store.repeat(reporting(queues[1], WorkerReport("vm:2:x", 0.0, 0, 1, 0, 0, 0)))
    store.repeat(stopping(queues[1], "vm:2:x"))
    what = told(registry)["worker_died"][1]
    assert what.endswith("; at work: in a 1 (vm:1), in b none; the last other one there, vm:2, stopped 0 s ago")


def test_a_worker_that_stopped_before_others_died_is_not_the_last_one_and_all_dead_are_for_programs(
    registry, queue, clock
):
    reports(queue, "vm:1:x")
    queue.store.repeat(settling(queue, "vm:1:x"))
    clock.advance(60)
    reports(queue, "vm:2:x")
    queue.store.repeat(stopping(queue, "vm:2:x"))
    clock.advance(60)
    for n in range(3, 8):
        reports(queue, f"vm:{n}:x")
    clock.advance(60)
    (one,) = [one for one in findings_of(of_client(registry)) if one.kind in ("worker_died", "no_worker")]
    assert (one.kind, "stopped" in one.what) == ("no_worker", False)
    assert one.row["workers"] == ["vm:3", "vm:4", "vm:5", "vm:6", "vm:7", "vm:1"]


def test_all_workers_that_died_are_one_line_whatever_the_number_of_their_queues(registry, clock):
    queues = [registry.create(QueueConfig(name, shards=1)) for name in "abc"]
    for queue in queues:
        reports(queue, "vm:24780:1f2e@f")
    clock.advance(60)
    for queue in queues:
        reports(queue, "vm:8:5b6a@f")
    died = "queues a, b, c of shop: worker vm:24780, which last reported 60 s ago, died or hangs; at work: 1 (vm:8)"
    assert told(registry) == {"worker_died": (WARNING, died)}
    reports(queues[0], "vm:7:3d4c@f")
    reports(queues[1], "vm:9:7e8f@f")
    clock.advance(60)
    for queue in queues:
        reports(queue, "vm:8:5b6a@f")
    (one,) = findings_of(of_client(registry))
    assert one.what == (
        "queues a, b, c of shop: 3 workers died or hang: vm:7 (last report 60 s ago), "
        "vm:9 (last report 60 s ago), vm:24780 (last report 2 min ago); at work: 1 (vm:8)"
    )
    assert (one.row["client"], one.row["queue"], one.row["queues"]) == ("shop", None, ["a", "b", "c"])


def test_each_worker_that_died_has_its_own_time_of_return(registry, clock):
    queue = registry.create(QueueConfig("d", shards=1))
    queue.publish_many(range(9))
    for minute in range(4):
        queue.receive()
        reports(queue, f"vm:{minute}:ab@f", running=1)
        clock.advance(240)
        reports(queue, "fresh")
        what = told(registry)["worker_died"][1].partition(" by the sweep, at the latest ")[2]
        assert (
            what
            == (
                "within 26 min",
                "within 22 min (vm:0), within 26 min (vm:1)",
                "within 18 min (vm:0), within 22 min (vm:1), within 26 min (vm:2)",
                "within 14 min to 26 min",
            )[minute]
        )
    (one,) = [one for one in findings_of(of_client(registry)) if one.kind != "backlog"]
    assert "what they had in hand (at their last reports 4 handlers) is back" in one.what
    assert one.remedy.endswith("; sooner, once its process has ended: latchwork queue recover d --client shop")


def test_a_worker_whose_messages_another_has_settled_is_dead_at_once_and_holds_nothing(registry, store, clock):
    """As a child of `latchwork worker --processes` that was killed."""
    queue = registry.create(QueueConfig("d", shards=1))
    queue.publish("m")
    assert queue.receive()
    reports(queue, "vm:1:ab@f", running=1)
    reports(queue, "vm:2:cd@f")
    store.repeat(settling(queue, "vm:1:ab@f"))
    clock.advance(2)
    (one,) = findings_of(of_client(registry))
    assert one.state == WARNING
    assert one.what == (
        "queue d of shop: worker vm:1, which last reported 2 s ago, died; what it had in hand was brought back "
        "already; at work: 1 (vm:2)"
    )
    assert "sooner" not in one.remedy
    clock.advance(600)
    reports(queue, "vm:2:cd@f")
    assert "worker_died" not in told(registry), "nothing of it comes back by a sweep"


def test_processes_that_die_again_and_again_are_a_problem_with_the_message_that_killed_the_last(registry, store, clock):
    queue = registry.create(QueueConfig("q", shards=1, backoff=60))
    queue.publish("poison")
    for n in range(3):
        reports(queue, f"host:{n}:x")
        store.repeat_many([settling(queue, f"host:{n}:x")]).raise_unless()
        clock.advance(1)
        reports(queue, "host:9:y")
        assert told(registry)["worker_died"][0] == (WARNING if n < 2 else PROBLEM)
    (held,) = queue.receive(1)
    error = "its process, child 1 (pid 16509), was killed by SIGKILL, as the system does when memory runs out (99 MB "
    queue.fail_many([held], [(delivery_reason(), error + "when it was seen last)")])
    (found,) = [one for one in findings_of(of_client(registry)) if one.kind == "worker_died"]
    assert found.what.startswith(
        "queue q of shop: processes die again and again: 3 in the last 10 min, and were replaced; the last, host:2, "
    )
    assert f"{held.message_id} (its process, child 1 (pid 16509), was killed by SIGKILL, as " in found.what
    assert f"latchwork queue cancel q --client shop --id {held.message_id}" in found.remedy
    clock.advance(150)
    reports(queue, "host:9:y")
    assert told(registry)["worker_died"][0] == WARNING, "it is over"


@pytest.mark.parametrize("parked", ["poison", "another"])
def test_no_cancel_is_offered_of_a_message_that_killed_its_processes_and_is_parked(registry, store, clock, parked):
    queue = registry.create(QueueConfig("q", shards=1, backoff=60))

    def fails():
        queue.publish("m", message_id="poison")
        (held,) = queue.receive(1)
        queue.fail_many([held], [(delivery_reason(), "its process, child 1 (pid 16509), was killed by SIGKILL")])

    def told_of(kind):
        return next(one for one in findings_of(of_client(registry)) if one.kind == kind)

    fails()
    if parked == "another":
        clock.advance(120)  # long after it was due: it has come, and perhaps it is the second one that is parked
        store.operate(queue.delayed.control, Put("horizon", int(clock.wall() * 1000)))
    for n in range(3):
        reports(queue, f"host:{n}:x")
        store.repeat_many([settling(queue, f"host:{n}:x")]).raise_unless()
        clock.advance(1)
    reports(queue, "host:9:y")
    assert "latchwork queue cancel q --client shop --id poison" in told_of("worker_died").remedy
    queue.publish("m", message_id=parked)
    (held,) = queue.receive(1)
    queue._park(held, delivery_reason())
    found = told_of("worker_died")
    assert (found.state, "poison" in found.what, "cancel" in found.remedy) == (PROBLEM, False, False)
    assert told_of("parked").state == PROBLEM
    assert told_of("retrying").what == "queue q of shop: 1 message failed, and will be tried again"


def test_a_worker_whose_handlers_hang_is_told_of_before_and_once_it_takes_no_more_messages(registry, queue, clock):
    queue.publish_many(range(5))
    clock.advance(80)
    reports(queue, "vm:1:ab@f", threads=2, hung=1)
    reports(queue, "vm:2:cd@f", threads=2)
    hangs = "queue q of shop: 1 handler of vm:1 hangs, past the handler_timeout; "
    assert told(registry)["saturated"] == (WARNING, f"{hangs}it still takes messages, and no more once 4 hang")
    (one,) = [one for one in findings_of(of_client(registry)) if one.kind == "saturated"]
    assert one.remedy.startswith("kill 1 on vm, and start another: nothing else ends a handler that hangs")
    reports(queue, "vm:1:ab@f", threads=2, hung=4)
    state, what = told(registry)["saturated"]
    hangs = "queue q of shop: 4 handlers of vm:1 hang, past the handler_timeout: it takes no more messages"
    assert (state, what) == (PROBLEM, hangs)
    store_says = queue.workers()[0]
    assert (store_says.hung, store_says.is_saturated) == (4, True)
    reports(queue, "vm:2:cd@f", threads=2, hung=5)
    assert told(registry)["saturated"][1].endswith(
        "9 handlers of vm:1 (4), vm:2 (5) hang, past the handler_timeout: they take no more messages; "
        "5 ready messages wait, the oldest for 80 s"
    )


def test_a_message_at_work_for_far_longer_than_others_is_named_with_its_worker_and_for_how_long(registry, queue, clock):
    facts = {"threads": 4, "running": 2, "longest": (Running("slow", 50), Running("quick", 16))}
    reports(queue, "vm:7:ab@f", acked=60, **facts)
    assert told(registry) == {}, "not for long yet"
    clock.advance(12)
    state, what = told(registry)["long_running"]
    assert state == WARNING
    assert "at work for far longer than others: slow on vm:7, for 62 s; the others take about 1 s" in what
    assert "after 10 min a handler is given up, and its message fails" in what
    (found,) = findings_of(of_client(registry))
    assert "`py-spy dump --pid 7` on vm" in found.remedy
    assert "latchwork queue cancel q --client shop --id slow" in found.remedy
    reports(queue, "vm:7:ab@f", acked=60, longest=(Running("quick", 16),))
    assert told(registry) == {}, "it is over"


def test_long_work_is_worth_knowing_where_all_is_long_and_a_warning_once_half_of_its_time_is_over(
    registry, queue, clock
):
    queue.publish_many(range(3))
    queue.receive()
    reports(queue, "vm:7:ab@f", running=1, longest=(Running("slow", 90),))
    state, what = told(registry)["long_running"]
    assert (state, "at work for long: slow on vm:7, for 90 s; after 10 min" in what) == (OK, True)
    assert "none was done in the last minute, and 2 ready messages wait" in what
    reports(queue, "vm:7:ab@f", running=1, longest=(Running("slow", 301),))
    assert told(registry)["long_running"][0] == WARNING
    reports(queue, "vm:7:ab@f", threads=1, hung=1, longest=(Running("slow", 700, given_up=True),))
    assert told(registry)["saturated"][1].startswith(
        "queue q of shop: 1 handler of vm:7 hangs, past the handler_timeout (messages: slow on vm:7, for 12 min)"
    )
    assert "long_running" not in told(registry)


def test_a_worker_that_drains_for_long_is_shown_so_and_as_no_worker_where_messages_wait(registry, queue, clock):
    reports(queue, "vm:7:ab@f", running=1, drains=10.0, longest=(Running("last", 20),))
    assert told(registry) == {}
    clock.advance(12)
    state, what = told(registry)["draining"]
    assert state == OK
    assert (
        "about to stop, and taking no more messages: vm:7 for 22 s (1 handler); at work: last on vm:7, for 32 s" in what
    )
    queue.publish("m")
    clock.advance(31)
    reports(queue, "vm:7:ab@f", running=1, drains=53.0)
    state, what = told(registry)["no_worker"]
    assert state == PROBLEM
    assert "no worker takes messages; about to stop: vm:7 for 53 s; 1 ready message waits, for 31 s" in what
    assert "draining" not in told(registry), "one cause is one line"
    reports(queue, "vm:8:cd@f")
    assert told(registry).keys() == {"draining"}


@pytest.mark.filterwarnings("ignore:queue 'r' is paused")
def test_a_retry_that_is_due_says_since_when_and_why_it_has_not_come(registry, store, clock):
    queue = registry.create(QueueConfig("r", shards=1, backoff=5))
    queue.publish("a", message_id="id-a")
    queue.receive()[0].nack("exception")
    reports(queue)
    clock.advance(17)
    assert (
        "id-a (exception): due 12 s ago; nobody does the upkeep, which brings it: nobody leads yet"
        in told(registry)["retrying"][1]
    )
    FencedLock(store, "shop-sweeper", owner="w", lease=600).acquire()
    assert "due 12 s ago; the upkeep brings it within some seconds" in told(registry)["retrying"][1]
    queue.pause(by="anna@web-7")
    clock.advance(3)
    assert (
        "due 15 s ago; the queue is paused by anna@web-7 for 3 s: latchwork queue resume r"
        in told(registry)["retrying"][1]
    )


def noted(queue, ready, received, failing=NOT_FAILING, *, workers=1, acked=0):
    """The upkeep notes this minute."""
    figures = [ready, 0, 0, 0, 0, 0, ready, received, 0, workers, 0, 1, acked, 0, 1, [], *failing]
    queue.store.repeat(noting(queue, int(queue.store.seams.wall() * 1000), figures))


def goes_on(queue, clock, minutes, comes, taken, **facts):
    """As many messages are published and taken each minute; the upkeep notes each as it begins."""
    clock.advance(-clock.wall() % 60)
    for _ in range(minutes):
        state = queue.depth()
        noted(queue, state.ready, state.fired)
        queue.publish_many(range(comes))
        for one in queue.receive(taken) if taken else ():
            one.ack()
        clock.advance(60)
        reports(queue, "vm:7:ab@f", **facts)


def test_a_backlog_that_grows_is_told_with_its_rate_its_age_and_its_threads_before_it_is_half_a_life_old(
    registry, queue, clock
):
    queue.scale(4)
    goes_on(queue, clock, 2, comes=60, taken=8, threads=4, running=4, acked=8)
    assert "backlog" not in told(registry), "two minutes are too few to say so"
    goes_on(queue, clock, 4, comes=60, taken=8, threads=4, running=4, acked=8)
    state, what = told(registry)["backlog"]
    assert state == WARNING, "nothing is lost yet"
    assert "312 ready messages wait, the oldest for " in what
    assert "52 a minute more come than are taken, for 6 min (taken: 8 a minute); all 4 threads of 1 worker busy" in what
    (found,) = [one for one in findings_of(of_client(registry)) if one.kind == "backlog"]
    assert found.remedy == (
        "more workers: latchwork worker MODULE:NAME; or more threads in each: "
        "latchwork queue scale q THREADS --client shop"
    )


def test_a_backlog_whose_newest_message_would_expire_is_a_problem(registry, clock):
    queue = registry.create(QueueConfig("q", shards=1, message_expiry=7200))
    goes_on(queue, clock, 6, comes=60, taken=1, threads=4, running=4, acked=1)
    found = told(registry)
    assert found["expiring"][0] == PROBLEM
    assert "; the newest would wait 6 h, and expire unread after 2 h" in found["expiring"][1]
    assert "backlog" not in found
    (one,) = [one for one in findings_of(of_client(registry)) if one.kind == "expiring"]
    assert "more threads in their program, which fixes them" in one.remedy


def test_a_burst_that_is_worked_off_is_no_warning_and_its_age_is_told_with_when_it_is_done(registry, queue, clock):
    clock.advance(-clock.wall() % 60)
    queue.publish_many(range(400))
    goes_on(queue, clock, 3, comes=0, taken=20, threads=1, running=1, acked=20)
    assert told(registry) == {}, "nothing for three minutes"
    goes_on(queue, clock, 3, comes=0, taken=20, threads=1, running=1, acked=20)
    state, what = told(registry)["backlog"]
    assert state == OK
    assert what == (
        "queue q of shop: 280 ready messages wait, the oldest for 6 min; as in the last 6 min all are taken "
        "in 14 min; the only thread of 1 worker busy"
    )


def test_messages_that_a_rate_holds_up_are_said_to_wait_for_it_and_no_worker_is_asked_for(registry, queue, clock):
    queue.publish_many(range(5))
    clock.advance(31)
    reports(queue, threads=4, running=1, rate_limited=7)
    (found,) = findings_of(of_client(registry))
    assert (found.kind, found.state) == ("backlog", OK)
    assert "5 ready messages wait, the oldest for 31 s; 1 of 4 threads of 1 worker busy" in found.what
    assert "their rate let no handler begin in the last minute" in found.what
    assert found.remedy.startswith("more workers do not help: the rate of its consumers, rate= in their program")
    taken = of_client(registry)
    assert why_it_waits(taken.queues[0], taken, is_ready=True).startswith("the rate of its consumers")


def test_what_a_rate_sends_back_is_not_counted_as_taken(registry, queue, clock):
    clock.advance(-clock.wall() % 60)
    queue.publish_many(range(400))
    for minute in range(6):
        noted(queue, 400 - 6 * minute, 20 * minute, acked=6)
        for one in queue.receive(20)[:6]:
            one.ack()
        clock.advance(60)
        reports(queue, threads=4, acked=6, rate_limited=14)
    assert "as in the last 6 min all are taken in 47 min" in told(registry)["backlog"][1]


def test_the_first_claim_of_an_ordered_consumer_says_that_it_keeps_an_order(registry):
    queue = registry.create(QueueConfig("r", shards=1))
    queue.publish("m")
    assert not of_client(registry).queues[0].stats.in_order
    queue.store.operate(queue.pointers.pointers_key(0), Put("in-hand", 0))
    assert of_client(registry).queues[0].stats.in_order


def test_a_ready_message_behind_others_of_its_shard_is_not_said_to_be_taken_soon(registry):
    queue = registry.create(QueueConfig("r", shards=1))
    queue.publish_many(range(5), key="k")
    queue.store.operate(queue.pointers.pointers_key(0), Put("in-hand", 1))
    reports(queue, threads=2, running=1)
    taken = of_client(registry)
    assert why_it_waits(taken.queues[0], taken, is_ready=True) == (
        "messages of its shard come first: its consumers keep an order, so each shard has one handler at a time"
    )


def test_messages_that_wait_for_a_stream_are_told_with_its_name_and_no_worker_is_asked_for(registry, queue, clock):
    release(queue.pointers, take(queue.pointers, "other"))
    take(queue.pointers, "etl")
    queue.publish_many(range(3))
    assert told(registry) == {}
    clock.advance(31)
    (found,) = findings_of(of_client(registry))
    assert (found.kind, found.state) == ("no_worker", WARNING)
    assert "the stream 'etl' owns it, and 3 ready messages wait, the oldest for 31 s" in found.what
    assert "start it again" in found.remedy
    assert "latchwork.spark.release" in found.remedy
    assert "latchwork worker" not in found.remedy
    reports(queue)
    clock.advance(600)
    reports(queue)
    state, what = told(registry)["no_worker"]
    assert state == PROBLEM
    assert "; workers are there, and can take none of it" in what
    taken = of_client(registry)
    assert why_it_waits(taken.queues[0], taken, is_ready=True).startswith("the stream 'etl' owns the queue")


def test_ticks_that_are_due_where_nobody_works_are_a_missing_upkeep(registry, queue, clock):
    registry.schedule(Schedule("tick", "q", every=10))
    clock.advance(60)
    assert "upkeep" not in told(registry)
    clock.advance(60)
    state, what = told(registry)["upkeep"]
    assert state == PROBLEM
    assert "; schedule tick: 12 ticks not published since " in what
    registry.pause_schedule("tick")
    assert told(registry)["schedule"][0] == WARNING
    assert told(registry).get("upkeep", (OK,))[0] == OK


def test_ticks_that_are_due_though_a_process_leads_are_told_with_why(registry, queue, clock):
    reports(queue, "vm:7:ab@f")
    registry.create(QueueConfig("gone", shards=1))
    registry.schedule(Schedule("tick", "q", every=60))
    registry.schedule(Schedule("lost", "gone", every=60))

    def of_schedules():
        reports(queue, "vm:7:ab@f")
        found = [one for one in findings_of(of_client(registry)) if one.kind == "schedule"]
        return {one.what.split()[1]: (one.state, one.what, one.remedy) for one in found}

    lease = FencedLock(registry.store, "shop-sweeper", owner="vm:7:ab@f", lease=1e4).acquire()
    clock.advance(59)
    assert of_schedules() == {}, "it may be about to publish them"
    clock.advance(241)
    registry.store.delete(registry.records.key("gone"))
    found = of_schedules()
    assert found["tick"][0] == found["lost"][0] == PROBLEM
    assert "schedule tick of shop: 5 ticks not published since " in found["tick"][1]
    assert found["tick"][1].endswith(" UTC, 5 min ago, though vm:7:ab@f leads")
    assert found["tick"][2] == "the log of the process that leads says why"
    assert found["lost"][1].endswith(" UTC, 5 min ago: there is no queue gone")
    assert found["lost"][2] == (
        "latchwork schedule remove lost --client shop; or make the queue again: "
        "latchwork queue create gone --client shop"
    )
    lease.release()
    assert set(of_schedules()) == {"lost"}, "where nobody leads, that is the finding"
    FencedLock(registry.store, "shop-sweeper", owner="vm:9:cd", lease=1e4).acquire()
    state, what, remedy = of_schedules()["tick"]
    assert state == WARNING, "it begins only now"
    assert what.endswith("; vm:9:cd leads, a sweeper without the upkeep of a worker: it publishes no schedules")
    assert remedy == "end it: then a worker leads, or `latchwork queue sweep --client shop --every 900`"


def test_a_schedule_in_a_time_zone_that_this_machine_lacks_hides_nothing_else(registry, queue, clock, monkeypatch):
    registry.schedule(Schedule("tick", "q", cron="* * * * *", tz="Europe/Berlin"))
    clock.advance(3600)

    zone_of = schedules._zone_of

    def knows_utc(name):
        if name != "UTC":
            raise Misconfigured(f"this machine does not know the time zone {name}")
        return zone_of(name)

    monkeypatch.setattr(schedules, "_zone_of", knows_utc)
    assert told(registry)["upkeep"][0] == PROBLEM
    assert of_client(registry).schedules[0].overdue() == 0


def test_three_workers_that_died_are_a_problem_where_not_many_more_are_left(registry, queue, clock):
    for number in range(3):
        reports(queue, f"vm:{number}:ab@f")
        clock.advance(7)
    clock.advance(50)
    reports(queue, "vm:20:ab@f")
    (found,) = findings_of(of_client(registry))
    assert (found.kind, found.state) == ("worker_died", PROBLEM)
    assert "3 workers died or hang: " in found.what
    assert "where they die again and again, their logs say why: one message may do it" in found.remedy
    for number in range(10, 20):
        reports(queue, f"vm:{number}:ab@f")
    assert told(registry)["worker_died"][0] == WARNING, "ten and one are left"


def test_a_queue_that_was_lost_with_the_store_and_made_again_is_told_for_an_hour(registry, queue, clock):
    queue.store.delete(registry.records.key("q"))
    queue.publish("m")
    registry.refresh()
    state, what = told(registry)["lost"]
    assert state == WARNING
    assert "queue q of shop: was gone, and was made again 0 s ago, as where the store" in what
    clock.advance(3601)
    assert "lost" not in told(registry)


def test_messages_in_hand_of_nobody_are_told_where_nobody_works(registry, clock):
    queue = registry.create(QueueConfig("r", shards=1))
    queue.publish_many(range(3))
    queue.receive(3)
    assert told(registry) == {}, "a program that does not report may have them"
    clock.advance(61)
    state, what = told(registry)["stranded"]
    assert state == WARNING
    assert "3 messages in hand of nobody that reports: of a program that calls receive() itself, or of a worker" in what
    clock.advance(19 * 60)
    queue.store.operate(registry.records.key("r"), MapPut("lastSweep", "success", SERVER_NOW))
    clock.advance(16)
    state, what = told(registry)["upkeep"]
    assert state == PROBLEM
    assert "; queue r: 3 messages in hand of nobody that reports" in what


def test_free_threads_that_take_nothing_are_told_where_a_handler_runs_all_that_time(registry, queue, clock):
    queue.publish_many(range(3))
    clock.advance(40)
    reports(queue, "vm:7:ab@f", threads=20)
    assert told(registry) == {}, "a worker that has just started"
    clock.advance(15)
    reports(queue, "vm:7:ab@f", threads=20, running=1, longest=(Running("blocks", 31),))
    state, what = told(registry)["saturated"]
    assert state == WARNING
    assert "3 ready messages wait, the oldest for 55 s, and for 31 s nothing was taken, though only 1 of 20 thr" in what
    clock.advance(15)
    reports(queue, "vm:7:ab@f", threads=20, running=1, longest=(Running("blocks", 61),))
    (found,) = [one for one in findings_of(of_client(registry)) if one.kind == "saturated"]
    assert found.state == PROBLEM
    assert (
        "the log of vm:7 says why: perhaps an async handler that keeps the loop; start another worker" in found.remedy
    )
    reports(queue, "vm:7:ab@f", threads=20, running=1, acked=1, longest=(Running("blocks", 61),))
    assert "saturated" not in told(registry), "others are done meanwhile"


def test_workers_of_which_no_handler_begins_are_told_with_how_long_it_has_been_so(registry, queue, clock):
    goes_on(queue, clock, 3, comes=0, taken=0, threads=2)
    queue.publish("m")
    clock.advance(31)
    reports(queue, "vm:7:ab@f", threads=2)
    (found,) = findings_of(of_client(registry))
    assert (found.state, found.kind) == (WARNING, "saturated")
    assert "1 ready message waits, for 31 s, and for 31 s nothing was done, and no handler runs" in found.what
    assert found.remedy.startswith("the log of vm:7 says why: perhaps its calls of the store fail")
    goes_on(queue, clock, 4, comes=2, taken=1, threads=2)
    assert told(registry)["saturated"][0] == PROBLEM, "what is taken goes back, as where the limiter is away"
    reports(queue, "vm:7:ab@f", threads=2, rate_limited=1)
    assert "saturated" not in told(registry), "the rate says why"
    reports(queue, "vm:7:ab@f", threads=2, acked=1)
    assert "saturated" not in told(registry), "one was done since"


def test_workers_of_which_no_handler_begins_are_told_also_where_they_keep_an_order(registry, queue, clock):
    goes_on(queue, clock, 3, comes=0, taken=0, threads=2)
    queue.publish("m")
    queue.store.operate(next(iter(queue.pointers.state_keys(range(2)))), Put("in-hand", 0), exists=Exists.ANY)
    clock.advance(31)
    reports(queue, "vm:7:ab@f", threads=2)
    assert told(registry)["saturated"][0] == WARNING


def test_workers_that_begin_again_after_a_pause_or_an_outage_are_not_said_to_do_nothing(registry, queue, clock):
    goes_on(queue, clock, 6, comes=0, taken=0, threads=2)
    queue.publish_many(range(9))
    clock.advance(50)
    queue.scale(2)
    reports(queue, "vm:7:ab@f", threads=2)
    assert "saturated" not in told(registry), "the resume is of this moment"
    clock.advance(40)
    reports(queue, "vm:7:ab@f", threads=2)
    assert "saturated" in told(registry)
    queue.receive()
    assert "saturated" not in told(registry), "the next report says whether that is done"


def test_a_worker_that_has_just_come_to_an_old_backlog_is_not_said_to_take_nothing(registry, queue, clock):
    queue.publish("m")
    clock.advance(-clock.wall() % 60)
    for _ in range(6):
        noted(queue, 1, 0, workers=0)
        clock.advance(60)
    reports(queue, "vm:7:ab@f", threads=2)
    assert told(registry)["backlog"][0] == OK
    assert "saturated" not in told(registry)


def test_workers_whose_program_gives_them_no_thread_are_said_to_be_why_messages_wait(registry, queue, clock):
    queue.publish("m")
    clock.advance(301)
    reports(queue, "vm:7:ab@f", threads=0)
    state, what = told(registry)["backlog"]
    says = "its workers have no thread for it now: their program says so, by concurrency=0 or start_at="
    assert (state, what) == (OK, f"queue q of shop: 1 ready message waits, for 5 min; {says}")
    taken = of_client(registry)
    assert why_it_waits(taken.queues[0], taken, is_ready=True) == says


def test_a_worker_that_ends_after_a_long_drain_leaves_its_queue_without_a_worker_at_once(registry, queue, clock):
    queue.publish("m")
    clock.advance(31)
    reports(queue, "vm:7:ab@f")
    queue.store.repeat(stopping(queue, "vm:7:ab@f"))
    assert "no_worker" not in told(registry), "another one may begin"
    queue.store.repeat(stopping(queue, "vm:7:ab@f", 80.0))
    assert told(registry)["no_worker"][0] == PROBLEM


def test_workers_without_upkeep_are_not_told_to_start_one_more_of_the_same(registry, queue):
    reports(queue)
    taken = of_client(registry)
    assert why_it_waits(taken.queues[0], taken).endswith(
        "the workers there are without it: latchwork queue sweep --client shop --every 900"
    )


def test_one_burst_and_a_backlog_that_stands_still_do_not_grow(registry, queue, clock):
    goes_on(queue, clock, 7, comes=10, taken=10, running=1, acked=10)
    queue.publish_many(range(900))
    for _ in range(12):
        goes_on(queue, clock, 1, comes=10, taken=10, running=1, acked=10)
        assert told(registry).get("backlog", (OK,))[0] == OK, "it came at once, and stays as it is"


def test_a_damaged_history_hides_nothing_else_and_midnight_no_minute(registry, queue, clock):
    clock.advance(86_400 - clock.wall() % 86_400 - 180)  # three minutes before midnight
    goes_on(queue, clock, 6, comes=60, taken=8, threads=1, running=1, acked=8)
    assert "52 a minute more come than are taken, for 6 min" in told(registry)["backlog"][1]
    day = Key(queue.pointers.meta_set, f"q_HISTORY_{datetime.fromtimestamp(clock.wall(), timezone.utc):%Y%m%d}")
    queue.store.operate(day, Put("minutes", "text"))
    state, what = told(registry)["backlog"]
    assert (state, "312 ready messages wait, the oldest for 6 min" in what) == (OK, True), "that it grows is not known"


def test_schedules_and_a_history_that_cannot_be_decoded_hide_nothing_else(store, clock):
    strange = Undecodable(store)
    registry = QueueRegistry(strange, "shop", farm_id="f")
    queue = registry.create(QueueConfig("q", shards=1))
    registry.schedule(Schedule("nightly", "q", every=60))
    noted(queue, 0, 1, Failing(int(clock.wall()) - 60, 1))
    day = Key(queue.pointers.meta_set, f"q_HISTORY_{datetime.fromtimestamp(clock.wall(), timezone.utc):%Y%m%d}")
    strange.bad = {day: "minutes", schedules.ScheduleRecords(strange, "shop", "f").key: "specs"}
    taken = view_of(registry).look()
    assert [one.name for one in taken.queues] == ["q"]
    state, what = told(registry)["unreadable"]
    assert (state, "has text that is not UTF-8" in what) == (PROBLEM, True)


def test_a_queue_of_which_every_message_fails_is_a_problem_for_as_long_as_none_is_done(registry, clock):
    queue = registry.create(QueueConfig("r", shards=1, backoff=2000))
    queue.publish("a", message_id="id-a")
    queue.receive()[0].nack("exception")
    noted(queue, 0, 1, Failing(int(clock.wall()) - 1920, 40))
    clock.advance(60)
    reports(queue)
    state, what = told(registry)["failing"]
    assert state == PROBLEM, "nothing failed in the last minute, and nothing will for half an hour"
    assert " UTC, 33 min ago, and every attempt failed; 1 message will be tried again; the last one, id-a" in what
    assert "retrying" not in told(registry), "one cause is one line"
    reports(queue, acked=1)
    assert "failing" not in told(registry)
    noted(queue, 0, 1, Failing(int(clock.wall()) - 60, 2))
    clock.advance(60)
    reports(queue)
    assert told(registry)["retrying"][0] == OK, "two failures are no proof"


def test_ticks_that_a_deactivated_queue_refuses_are_told_with_how_many_since_when_and_what_to_do(
    registry, queue, clock
):
    reports(queue)
    registry.schedule(Schedule("tick", "q", every=60))
    assert told(registry) == {}
    registry.deactivate("q")
    (found,) = [one for one in findings_of(of_client(registry)) if one.kind == "schedule"]
    assert (found.state, found.queue) == (PROBLEM, "q")
    assert found.what == "schedule tick of shop: its ticks are not published: queue q is deactivated"
    clock.advance(600)
    reports(queue)
    (found,) = [one for one in findings_of(of_client(registry)) if one.kind == "schedule"]
    assert "schedule tick of shop: 10 ticks not published since " in found.what
    assert " UTC, 10 min ago: queue q is deactivated" in found.what
    assert found.remedy == (
        "latchwork schedule remove tick --client shop; or activate it: latchwork queue activate q --client shop"
    )
    registry.activate("q")
    assert "schedule" not in told(registry)


def test_more_threads_than_shards_are_said_not_to_help_where_order_is_kept(registry, clock):
    queue = registry.create(QueueConfig("r", shards=1))
    queue.publish_many(range(9), key="k")
    reports(queue, threads=16, running=1)
    clock.advance(31)
    reports(queue, threads=16, running=1)
    assert "settings" not in told(registry), "no consumer keeps the order"
    queue.store.operate(queue.pointers.pointers_key(0), Put("in-hand", 1))
    state, what = told(registry)["settings"]
    assert state == WARNING
    assert "1 shard, and 16 threads: in order each shard has one handler at a time, so no more of them help" in what
    assert "ready messages wait, the oldest for 31 s" in what
    reports(queue, threads=1, running=1)
    assert "settings" not in told(registry)


def test_a_worker_whose_program_fixes_its_threads_is_named_beside_the_number_that_was_set(registry, queue, clock):
    queue.scale(16, by="anna@web-7")
    reports(queue, "vm:7:ab@f", threads=4)
    reports(queue, "vm:8:cd@f", threads=16)
    state, what = told(registry)["settings"]
    assert state == OK
    assert "resumed, or scaled, 0 s ago by anna@web-7: threads in each worker: 16; otherwise, as its pro" in what
    assert what.endswith("its program says: vm:7 (4)")


def test_a_resume_is_not_said_to_have_set_threads_where_every_program_fixes_them(registry, queue, clock):
    with pytest.warns(UserWarning, match="paused"):
        queue.pause(by="anna@web-7")
    queue.resume(by="anna@web-7")
    reports(queue, "vm:7:ab@f", threads=4)
    _, what = told(registry)["settings"]
    assert "resumed, or scaled, 0 s ago by anna@web-7: threads, as each program says: vm:7 (4)" in what


def test_a_retry_that_has_come_back_is_not_said_to_be_due_while_others_wait(registry, store, clock):
    queue = registry.create(QueueConfig("r", shards=1, backoff=5))
    queue.publish("a", message_id="id-a")
    queue.receive()[0].nack("exception")
    clock.advance(100)
    taken = of_client(registry)
    (state,) = taken.queues
    assert "id-a" in told(registry)["retrying"][1], "nobody has looked"
    looked = replace(taken, queues=(replace(state, stats=replace(state.stats, delayed_late=2.0)),))
    (found,) = [one for one in findings_of(looked) if one.kind == "retrying"]
    assert found.what == "queue r of shop: 1 message failed, and will be tried again"


def test_records_that_are_ahead_of_the_clock_are_told_of_as_nobody_is_missed_then(registry, queue, store, clock):
    reports(queue, "vm:7:ab@f")
    FencedLock(store, "shop-sweeper", owner="vm:7:ab@f").acquire()
    assert told(registry) == {}
    clock.step(-3600)
    looked = of_client(registry)
    ahead = replace(looked, ahead=3600.0) if isinstance(store, MemoryStore) else looked  # its time goes back too
    (found,) = [one for one in findings_of(ahead) if one.kind == "clock" and "machine" in one.what]
    assert (found.state, found.queues) == (WARNING, ("q",))
    assert "records of shop are 60 min ahead of this machine's clock, which was set back, or is wrong" in found.what


def test_a_worker_that_died_before_the_clock_was_set_back_is_not_said_to_work(registry, queue, store, clock):
    reports(queue, "vm:7:ab@f")
    at = ListOf((SERVER_NOW + 3_600_000, *[Const(0)] * 5))
    store.operate(Key("shop_meta_set", "q_WORKERS"), MapPut(WORKERS, "vm:7:ab@f", at), repeatable=True)
    queue.publish("m")
    clock.advance(31)
    state, what = told(registry)["clock"]
    assert state == WARNING
    assert "the clock of the store was set back, by 59 min at least, and since then vm:7 did not report" in what
    assert told(registry)["no_worker"][0] == PROBLEM
    reports(queue, "vm:7:ab@f")
    assert told(registry) == {}


def test_queues_that_nobody_sweeps_are_one_line(registry, clock):
    for name in "abc":
        queue = registry.create(QueueConfig(name, shards=1))
        queue.publish("m")
        queue.receive()
    clock.advance(3 * 1800)
    (one,) = findings_of(of_client(registry))
    assert (one.kind, one.client, one.queues) == ("upkeep", "shop", ("a", "b", "c"))
    assert "no upkeep of shop: nobody leads yet; no candidate; queues a, b, c not swept for up to 90 min" in one.what
    assert "run a worker or a consumer of shop" in one.remedy


def test_what_was_in_hand_is_told_for_each_queue_by_its_own_sweep(registry, clock):
    quick = registry.create(QueueConfig("quick", shards=1, sweep_duration=300))
    slow = registry.create(QueueConfig("slow", shards=1, sweep_duration=3600))
    for queue, running in ((quick, 2), (slow, 0)):
        queue.publish("m")
        queue.receive()
        reports(queue, "vm:1:ab@f", running=running)
    clock.advance(60)
    reports(quick, "vm:2:cd@f")
    reports(slow, "vm:2:cd@f")
    # The upkeep sweeps all queues at half of the shortest sweep duration: 5 min and 2.5, 60 min and 2.5
    assert told(registry)["worker_died"][1].endswith(
        "; what it had in hand (at its last report 2 handlers in quick) is back by the sweep, "
        "at the latest within 7 min in quick, within 62 min in slow"
    )
    clock.advance(400)
    swept(registry, quick)
    for queue in (quick, slow):
        reports(queue, "vm:2:cd@f")
    assert told(registry)["worker_died"][1].endswith("by the sweep, at the latest within 55 min in slow")


def test_a_queue_that_has_nothing_in_flight_is_not_named_as_one_whose_messages_come_back(registry, clock):
    """A sweep has settled all but the last slots, so it is known that nobody holds anything."""
    done, held = (registry.create(QueueConfig(name, shards=1)) for name in ("done", "held"))
    for queue in (done, held):
        queue.publish_many(range(1_100))
        queue.ack_many(queue.receive(1_000) + queue.receive(99))
        reports(queue, "dead")
    held.receive()
    clock.advance(60)
    for queue in (done, held):
        reports(queue, "fresh")
    assert told(registry)["worker_died"][1].endswith("within 29 min in done, held"), "not known of earlier slots"
    for queue in (done, held):
        registry.store.operate(registry.records.key(queue.name), Put("sweepPointers", {"0": 1_000}))
    assert told(registry)["worker_died"][1].endswith("within 29 min in held")
    clock.advance(1_000)
    for queue in (done, held):
        reports(queue, "fresh")
    (found,) = [one for one in findings_of(of_client(registry)) if one.kind == "worker_died"]
    assert found.queues == ("held",), "that line goes after 10 minutes"


def test_what_a_living_worker_has_in_hand_is_not_told_of_one_that_died_idle(registry, clock):
    queue = registry.create(QueueConfig("q", shards=1))
    queue.publish("before")
    queue.ack_many(queue.receive())
    alive = f"{registry.store.seams.process_name()}:ab@f"
    reports(queue, "vm:1:ab@f")
    reports(queue, "vm:2:cd@f")
    clock.advance(60)
    reports(queue, alive)
    queue.publish("after")
    queue.receive()
    for _ in range(2):
        (found,) = [one for one in findings_of(of_client(registry)) if one.kind == "worker_died"]
        assert "2 workers died or hang" in found.what
        assert "in hand" not in found.what
        assert "recover" not in found.remedy
    reports(queue, f"{registry.store.seams.process_name()}:ef@f")
    clock.advance(60)
    reports(queue, alive)
    (found,) = [one for one in findings_of(of_client(registry)) if one.kind == "worker_died"]
    assert "what they may have had in hand is back" in found.what, "a process of the same name may have it"
    assert "recover" not in found.remedy, "it would take what the living one has"


def test_a_message_waits_for_a_worker_that_does_not_report_and_not_for_one_that_is_busy(registry, queue, clock):
    with pytest.warns(UserWarning, match="paused"):
        queue.pause()
    reports(queue, "vm:1:ab@f", threads=0)
    clock.advance(5)
    queue.resume()
    queue.publish("m")

    def why():
        taken = of_client(registry)
        return why_it_waits(taken.queues[0], taken, is_ready=True)

    assert why() == "a worker takes it soon"
    clock.advance(12)
    assert why() == "its only worker vm:1 has not acted on the resume of 12 s ago: restart it"
    clock.advance(8)
    assert (
        why()
        == "its only worker vm:1 has not reported for 25 s, and has not acted on the resume of 20 s ago: restart it"
    )
    reports(queue, "vm:2:cd@f", running=1)
    assert why() == "when its workers last reported, all were busy (1 thread of 2 workers): start more, or scale it"


def test_a_client_that_is_over_is_no_problem_and_one_that_left_something_is(registry, store, clock):
    queue = registry.create(QueueConfig("q", shards=1))
    queue.publish_many(["done", "held"])
    done, held = queue.receive(2)
    done.ack()
    reports(queue, "vm:1:ab@f")
    store.repeat(stopping(queue, "vm:1:ab@f"))
    clock.advance(3 * 1800)
    state, what = told(registry)["upkeep"]
    assert (state, "queue q not swept for 90 min" in what) == (PROBLEM, True), "somebody has a message in hand"
    held.ack()
    state, what = told(registry)["upkeep"]
    assert state == OK
    assert what.endswith("nobody leads yet; no candidate; none is needed: queue q is empty, and nobody works there")
    counting = CountingStore(store)
    view = view_of(QueueRegistry(counting, "shop", farm_id="f"))
    view.look(), view.look()
    counting.reset()
    view.look()
    assert counting.total <= 4, "it was looked at once"
    registry.schedule(Schedule("nightly", "q", {"load": 1}, every=3600))
    assert told(registry)["upkeep"][0] == PROBLEM, "nobody publishes the ticks"
    registry.unschedule("nightly")
    queue.publish("more")
    assert told(registry)["upkeep"][0] == PROBLEM


def test_a_leader_that_reports_again_after_an_outage_is_soon_elected(registry, queue, store, clock):
    reports(queue, "vm:1:ab@f")
    FencedLock(store, "shop-sweeper", owner="vm:1:ab@f", lease=10).acquire(1)
    clock.advance(40)
    assert told(registry)["upkeep"][0] == PROBLEM
    reports(queue, "vm:1:ab@f")
    (found,) = [one for one in findings_of(of_client(registry)) if one.kind == "upkeep"]
    assert found.state == WARNING
    assert "vm:1 reports, so the store was away or restarted, or that process was paused" in found.what
    assert "an election follows within 20 s" in found.what
    assert found.remedy == "wait 20 s; if it stays so, the log of that process says why"


def test_a_clean_stop_of_the_last_worker_is_no_death_and_blames_no_earlier_one(registry, queue, store, clock):
    """As a deploy soon after a crash: the worker that goes takes back its report, of one queue after the other: it
    leads the upkeep, and works on the other queue, until its last handler ends.
    """
    other = registry.create(QueueConfig("other", shards=1))
    reports(queue, "vm:1:ab@f")
    queue.publish_many(range(3))
    FencedLock(store, "shop-sweeper", owner="vm:2:cd@f", lease=300).acquire(1)
    for _ in range(24):
        clock.advance(5)
        reports(queue, "vm:2:cd@f")
    store.repeat(stopping(queue, "vm:2:cd@f"))
    clock.advance(6)
    reports(other, "vm:2:cd@f")
    (one,) = findings_of(of_client(registry))
    assert (one.state, one.kind) == (WARNING, "worker_died")
    assert "vm:1, which last reported 2 min ago, died or hangs; the last other one, vm:2, stopped 6 s ago" in one.what
    clock.advance(30)
    found = {one.kind: (one.state, one.what) for one in findings_of(of_client(registry))}
    assert found["no_worker"][0] == PROBLEM
    assert "queue q of shop: no worker; 3 ready messages wait" in found["no_worker"][1]
    assert "vm:1" not in found["no_worker"][1]


def test_a_missing_worker_is_one_problem_with_all_that_follows_from_it(registry, queue, store, clock):
    grant = FencedLock(store, "shop-sweeper", owner="dead:1@f", lease=10).acquire(1)
    other = registry.create(QueueConfig("other", shards=1))
    assert grant
    for one in (queue, other):
        one.publish_many(range(3))
        one.receive()[0].nack()
        reports(one, "dead:1@f")
    clock.advance(3 * 3600)
    (one,) = [one for one in findings_of(of_client(registry)) if one.state == PROBLEM]
    assert (one.kind, one.queues) == ("no_worker", ("other", "q"))
    assert one.what.startswith(
        "queues other, q of shop: no worker; 4 ready messages wait, the oldest for 3 h; so there"
    )
    assert "; so there is no upkeep either; queues other, q not swept for up to 3 h; queue other: 1 delayed" in one.what
    assert "; queue q: 1 message in the sideline" in one.what


def test_where_nobody_works_at_all_that_is_one_problem_however_many_have_died(registry, clock):
    queues = [registry.create(QueueConfig(name, shards=1)) for name in "abc"]
    for queue in queues:
        queue.publish("m")
    reports(queues[0], "vm:1:ab@f")
    reports(queues[1], "vm:1:ab@f")
    clock.advance(60)
    reports(queues[0], "vm:2:cd@f")
    clock.advance(60)
    (one,) = findings_of(of_client(registry))
    assert one.queues == ("a", "b", "c")
    assert one.what == (
        "queues a, b, c of shop: 2 workers died or hang: vm:2 (last report 60 s ago), vm:1 (last report 2 min ago); "
        "no other worker is there; 3 ready messages wait, the oldest for 2 min"
    )


def test_a_process_that_has_just_started_is_no_problem(registry, queue, store, clock):
    """The old leader died long ago; the new process reports at once, is elected within 15 s, and then begins."""
    FencedLock(store, "shop-sweeper", owner="old@f", lease=10).acquire(1)
    queue.publish("later", delay=10)
    clock.advance(2 * 3600)

    def states():
        return {one.kind: one.state for one in findings_of(of_client(registry))}

    assert states() == {"upkeep": PROBLEM}
    reports(queue, "new@f")
    clock.advance(30)
    assert "the ones that run" not in findings_of(of_client(registry))[0].remedy, "it is overdue"
    reports(queue, "new@f")
    Candidates(store, "shop-sweeper").report("new@f", 60)
    assert states() == {"upkeep": WARNING}
    (one,) = findings_of(of_client(registry))
    assert "an election is under way, candidates: 1; queue q not swept for 2 h; queue q: 1 delayed message" in one.what
    assert "run a worker" not in one.remedy
    FencedLock(store, "shop-sweeper", owner="new@f", lease=10).acquire(timeout=20)
    clock.advance(2)
    reports(queue, "new@f")
    assert states() == {"upkeep": WARNING, "stranded": WARNING}
    assert "new@f was elected 2 s ago, and begins with it" in told(registry)["upkeep"][1]


def test_who_looks_for_what_failed_is_sent_to_where_it_is(registry, clock):
    def remedy(queue):
        reports(queue, failed=5)
        return next(one.remedy for one in findings_of(of_client(registry)) if (one.kind, one.queue) == found(queue))

    def found(queue):
        return ("failing", queue.name)

    plain = registry.create(QueueConfig("plain", shards=1, retry=False))
    spent = registry.create(QueueConfig("spent", shards=1, max_deliveries=1))
    again = registry.create(QueueConfig("again", shards=1))
    for queue, side in ((plain, "sideline"), (spent, "parked"), (again, "delayed")):
        assert remedy(queue) == "the logs of its workers have each failure"
        queue.publish("m")
        queue.receive()[0].nack()
        assert remedy(queue).endswith(f"; latchwork queue search {queue.name} --client shop --side {side}")


def test_discarding_single_parked_messages_makes_no_alarm(registry):
    queue = registry.create(QueueConfig("p", shards=1, max_deliveries=1))
    reports(queue)
    queue.publish_many(range(101))
    for delivery in queue.receive(101):
        delivery.nack()
    queue.parked.discard(queue.parked.peek(1))
    assert "100 parked messages, failed too often" in told(registry)["parked"][1]
    assert "expiring" not in told(registry)
    queue.publish_many(range(2))
    for delivery in queue.receive(2):
        delivery.nack()
    queue.parked.discard(queue.parked.peek(3)[1:2])
    assert "queue p of shop: at most 102 parked messages" in told(registry)["parked"][1]


def test_before_the_first_leader_an_election_is_under_way_with_its_candidates(registry, queue, store, clock):
    assert of_client(registry).upkeep == "nobody leads yet; no candidate"
    Candidates(store, "shop-sweeper").report("w", 60)
    Candidates(store, "shop-sweeper").report("dead", 60)
    assert of_client(registry).upkeep == "nobody leads yet; an election is under way, candidates: 2"
    reports(queue, "dead")
    clock.advance(25)
    assert of_client(registry).candidates == ("w",), "of which nothing says that it is dead"
    FencedLock(store, "shop-sweeper", owner="w", lease=10).acquire(1)
    assert of_client(registry).upkeep.startswith("w leads, epoch ")
    clock.advance(15)
    assert "nobody leads: w led" in of_client(registry).upkeep
    assert of_client(registry).upkeep.endswith("; no candidate"), "it was the leader that died"


def test_expired_messages_are_told_of_for_a_day_with_their_side(registry, queue, clock):
    queue.publish_many(range(3))
    reports(queue)
    clock.advance(queue.config.message_expiry.total_seconds() + 1)
    reports(queue)
    state, what = told(registry)["expired"]
    assert (
        state,
        "ready messages that expired unread, or were cancelled or never written: 3 since the queue was made" in what,
    ) == (WARNING, True)
    assert what.endswith("; when is not known, as nobody has taken messages from there since"), (
        "not `just now` for ever"
    )
    for _ in range(3):
        assert queue.receive(10) == []
        clock.advance(10)
    clock.advance(7200)
    reports(queue)
    assert "the last was noticed 2 h ago" in told(registry)["expired"][1]
    clock.advance(86_400)
    reports(queue)
    assert "expired" not in told(registry)


def test_what_left_a_side_one_by_one_is_not_called_expired_while_the_queue_is_young(registry, queue):
    queue.publish_many(range(2))
    for delivery in queue.receive(2) + queue.receive(2):
        delivery.nack()
    reports(queue)
    queue.sideline.discard(queue.sideline.search())
    assert "expired" not in told(registry)


def test_messages_that_wait_for_a_retry_are_counted_apart_and_told_of(registry, store, clock):
    queue = registry.create(QueueConfig("r", shards=1, backoff=240, sweep_duration=300))
    queue.publish("later", delay=10)
    queue.publish_many(["a", "b"], message_ids=["id-a", "id-b"])
    for delivery in queue.receive(2):
        delivery.nack("exception", error=f"ValueError: {delivery.payload} broke")
    reports(queue)
    depth = queue.depth()
    assert (depth.delayed, depth.retrying) == (3, 2)
    (found,) = [one for one in findings_of(of_client(registry)) if one.kind == "retrying"]
    assert found.state == OK
    assert found.what == (
        "queue r of shop: 2 messages failed, and will be tried again; "
        "the last one, id-b (ValueError: b broke): in 4 min"
    )
    queue.delayed.discard(["id-a"])
    assert queue.depth().retrying == 1
    bring_back(queue)
    assert (queue.depth().delayed, queue.depth().retrying) == (0, 0)
    assert "retrying" not in told(registry)


def test_the_age_of_the_oldest_message_is_that_of_one_that_was_given_back(registry, clock):
    queue = registry.create(QueueConfig("g", shards=1))
    queue.publish("old")
    (held,) = queue.receive()
    clock.advance(100)
    queue.publish("new")
    queue._given_back([held])
    assert of_client(registry).queues[0].stats.oldest_age == pytest.approx(100, abs=1)


def test_messages_wait_as_long_as_they_do_though_the_clock_of_their_publisher_is_ahead(registry, queue, clock):
    ahead = QueueRegistry(CountingStore(registry.store, seams=clock.skewed(3600)), "shop", farm_id="f")
    ahead.get("q").publish("m")
    assert of_client(registry).queues[0].stats.ready.oldest_age == 0
    clock.advance(600)
    assert of_client(registry).queues[0].stats.ready.oldest_age == pytest.approx(600, abs=2)
    assert told(registry)["no_worker"][0] == PROBLEM


@pytest.mark.parametrize(("wrong", "late"), [(300, False), (-300, True)])
def test_how_late_delayed_messages_are_depends_on_no_clock_of_who_looks(registry, queue, clock, wrong, late):
    here = QueueRegistry(CountingStore(registry.store, seams=clock.skewed(wrong)), "shop", farm_id="f")
    FencedLock(registry.store, "shop-sweeper", owner="vm:7:ab@f", lease=1e4).acquire()
    clock.advance(100)
    queue.publish("m", delay=3600)
    if late:
        clock.advance(200)
    assert ("stranded" in told(here)) is late


def test_a_group_that_nobody_reads_stays_a_problem_though_its_first_messages_have_expired(registry, clock):
    queue = registry.create(QueueConfig("q", shards=1, message_expiry=3600))
    queue.group("mails")
    queue.publish("over")
    clock.advance(3000)
    queue.publish("waits")
    clock.advance(1200)
    taken = of_client(registry)
    (group,) = [one for one in taken.queues if one.group_of]
    assert group.stats.ready.oldest_age == pytest.approx(1200, abs=1)
    (found,) = [one for one in findings_of(taken) if one.kind == "no_worker" and "q@mails" in one.queues]
    assert found.state == PROBLEM
    assert group.stats.ready.expired == 0, "it is not known whether that was for the group"
    queue.publish("too")
    assert of_client(registry).queues[1].stats.ready.oldest_age == pytest.approx(1200, abs=1)
    assert [one.payload for one in registry.get("q@mails").receive(5)] == ["waits", "too"]


def test_a_queue_that_only_its_groups_read_is_no_problem(registry, queue, clock):
    queue.group("audit")
    queue.publish("m")
    clock.advance(60)
    found = {(one.queue, one.kind): one.state for one in findings_of(of_client(registry))}
    assert found == {("q", "no_worker"): WARNING, ("q@audit", "no_worker"): PROBLEM}


@pytest.mark.parametrize("side", ["ready", "sideline", "parked"])
def test_a_message_of_any_side_that_has_waited_for_half_of_its_life_is_a_problem(registry, queue, clock, side):
    queue.publish("m")
    if side != "ready":
        queue.receive()[0].nack()
    if side == "parked":
        for delivery in queue.sideline.receive():
            queue._park(delivery, delivery_reason())
            delivery.ack()
    reports(queue)
    config = queue.config
    life = (config.queue_expiry if side == "parked" else config.message_expiry).total_seconds()
    clock.advance(life / 2 - 60)
    reports(queue)
    assert "expiring" not in told(registry)
    clock.advance(120)
    reports(queue)
    assert told(registry)["expiring"][0] == PROBLEM
    assert f"the oldest {side} message expires in" in told(registry)["expiring"][1]


def delivery_reason():
    from latchwork.queue.sharded.envelope import Reason

    return Reason.EXHAUSTED


def test_failing_faster_than_succeeding_is_told_with_the_time_that_it_is_of(registry, queue, clock):
    reports(queue, acked=10, failed=9)
    assert told(registry) == {}
    reports(queue, acked=0, failed=1)
    assert told(registry)["failing"][0] == WARNING
    reports(queue, acked=3, failed=4)
    clock.advance(12)
    what = "queue q of shop: 4 attempts failed, and 3 messages succeeded, in the minute before its worker last reported"
    assert told(registry)["failing"] == (PROBLEM, f"{what}, 12 s ago")
    reports(queue, "other")
    assert told(registry)["failing"][1].endswith("before its workers last reported, up to 12 s ago")
    reports(queue, acked=0, failed=4, reasons={"timeout": 3, "exception": 1})
    assert "4 attempts failed (timeout: 3, exception: 1), and 0 messages succeeded" in told(registry)["failing"][1]


def test_a_sideline_that_nothing_brings_back_is_told(registry, queue, store):
    plain = registry.create(QueueConfig("plain", retry=False, shards=1))
    for one in (queue, plain):
        reports(one)
        one.publish("m")
        one.receive()[0].nack()
    found = {(one.kind, one.queue): one.what for one in findings_of(of_client(registry))}
    assert found["upkeep", "q"].endswith("; no candidate; queue q: 1 message in the sideline")
    assert "which nothing brings back: the queue does not retry" in found["stranded", "plain"]
    FencedLock(store, "shop-sweeper", owner="me").acquire(1)
    found = [one.queue for one in findings_of(of_client(registry)) if one.kind == "stranded"]
    assert found == ["plain"]


def test_delayed_messages_that_nobody_delivers_are_told(registry, queue, clock):
    reports(queue)
    queue.publish("later", delay=10)
    assert told(registry) == {}
    clock.advance(61)
    reports(queue)
    assert "1 delayed message, and for 61 s nobody has looked at what is due" in told(registry)["upkeep"][1]


def test_a_sweeper_that_leads_is_told_of_where_it_leaves_delayed_messages(registry, queue, store, clock):
    reports(queue)
    FencedLock(store, "shop-sweeper", owner="vm:7:ab", lease=600).acquire(1)
    queue.publish("m")
    queue.receive(1)[0].nack("exception", delay=10)
    clock.advance(100)
    reports(queue)
    (late,) = [one for one in findings_of(of_client(registry)) if one.kind == "stranded"]
    assert (late.state, late.what.partition("; ")[2]) == (
        PROBLEM,
        "vm:7:ab leads, a sweeper without the upkeep of a worker: it delivers no delayed messages",
    )
    assert late.remedy == "end it: then a worker leads, or `latchwork queue sweep --client shop --every 900`"
    assert "due 90 s ago; vm:7:ab leads, a sweeper" in told(registry)["retrying"][1]


def test_a_leader_that_died_does_not_lead_and_a_queue_that_is_not_swept_is_told(registry, queue, store, clock):
    lock = FencedLock(store, "shop-sweeper", owner="me", lease=10)
    grant = lock.acquire(1)
    assert of_client(registry).leader.standing == f"me leads, epoch {grant.fence}"
    clock.advance(75)
    state, what = told(registry)["upkeep"]
    assert (state, "nobody leads: me led in epoch" in what, "last renewed 75 s ago" in what) == (PROBLEM, True, True)
    clock.advance(3 * 1800)
    assert "; queue q not swept for 91 min" in told(registry)["upkeep"][1]


def test_parked_messages_are_a_problem_and_the_oldest_is_named_with_its_error_and_since_when(registry, clock):
    queue = registry.create(QueueConfig("p", shards=2, max_deliveries=1))
    for name in ("first", "second"):
        queue.publish({"card": "4711"}, message_id=name)
        queue.receive()[0].nack("exception", error=f"ValueError: {name} broke\nand more")
        clock.advance(300)
    reports(queue)
    state, what = told(registry)["parked"]
    assert state == PROBLEM
    assert what == (
        "queue p of shop: 2 parked messages, failed too often: nothing brings parked messages back; "
        "the oldest, first (ValueError: first broke): 10 min ago"
    )


def test_a_snapshot_costs_four_calls_and_five_a_queue(registry, store, queue):
    counting = CountingStore(store)
    other = QueueRegistry(counting, "shop", farm_id="f")
    for name in ("a", "b"):
        made = registry.create(QueueConfig(name, shards=3))
        made.publish_many(range(4))
    other.queues()
    counting.reset()
    taken = of_client(other)
    assert [one.name for one in taken.queues] == ["a", "b", "q"]
    assert counting.total <= 4 + 5 * 3


def test_clients_are_found_by_the_names_of_their_sets(registry, queue, store):
    QueueRegistry(store, "mail_room", farm_id="f").create(QueueConfig("q", shards=1))
    QueueRegistry(store, "other", farm_id="g").create(QueueConfig("q", shards=1))
    assert clients_in(store, "f") == ["mail_room", "shop"]
    assert clients_in(CountingStore(store), "f") is None


def test_every_finding_is_of_a_kind_that_the_metrics_have(registry, queue, clock):
    reports(queue, failed=5)
    queue.publish("m")
    with pytest.warns(UserWarning, match="paused"):
        queue.pause()
    clock.advance(queue.config.message_expiry.total_seconds() - 100)
    found = findings_of(of_client(registry))
    assert found
    assert {one.kind for one in found} <= set(KINDS)
    assert [one.state for one in found] == sorted((one.state for one in found), key=[PROBLEM, WARNING].index)


def test_the_page_and_the_table_name_the_same_findings_with_the_same_states():
    page, kinds = (Path(__file__).parents[2] / "docs/operations.md").read_text(), {}
    for states, kind in re.findall(r"^\|.*\| ([a-z, ]+) \| `(\w+)` \|$", page, re.MULTILINE):
        kinds.setdefault(kind, set()).update(states.split(", "))
    table = {}
    for row in (*OF_CLIENT, *OF_QUEUE):
        table.setdefault(row.kind, set()).update(row.states)
    assert kinds == table


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (75, "75 s"), (770, "13 min"), (7300, "2 h"), (4e5, "5 days")]
)
def test_lengths_of_time_are_shown_in_a_unit_that_people_use(seconds, shown):
    assert shown_time(seconds) == shown


HOSTILE = "order 7; $(reboot)" + "x" * 60


def test_the_command_of_a_remedy_has_the_whole_id_in_quotes_and_the_farm_that_was_looked_at(
    registry, queue, monkeypatch
):
    monkeypatch.delenv("LATCHWORK_FARM")
    reports(queue, "web-1:7", running=1, longest=(Running(HOSTILE, 600.0),))
    (one,) = [one for one in findings_of(of_client(registry)) if one.kind == "long_running"]
    assert one.remedy.endswith(f"latchwork queue cancel q --client shop --farm f --id '{HOSTILE}'")
    monkeypatch.setenv("LATCHWORK_FARM", "f")
    (one,) = [one for one in findings_of(of_client(registry)) if one.kind == "long_running"]
    assert one.remedy.endswith(f"latchwork queue cancel q --client shop --id '{HOSTILE}'")


def test_a_message_that_waits_for_its_write_is_named_in_the_command_by_its_whole_id(registry, queue):
    unsettled = Unsettled(HOSTILE, 1.0, "accounts/42")
    taken = of_client(registry)
    (state,) = taken.queues
    state = replace(state, stats=replace(state.stats, unsettled=(unsettled,)))
    (one,) = [one for one in findings_of(replace(taken, queues=(state,))) if one.kind == "stranded"]
    assert one.remedy.endswith(f"discard q --client shop --side delayed --id '{HOSTILE}'")


def test_an_id_that_publish_has_made_is_told_in_full(registry, queue, clock):
    made = "3f0c9ab1d2e4f50617289c77~6b09dfef.121.1234567890"
    reports(queue, "web-1:7", running=1, longest=(Running(made, 600.0),))
    assert f" {made} on web-1:7" in told(registry)["long_running"][1]


# ---- what was silent, or said the wrong thing


def leads(store, clock, name="w@f"):
    """A process leads the upkeep, since an hour ago."""
    lock = FencedLock(store, "shop-sweeper", owner=name, lease=10_000)
    lock.acquire(1)
    clock.advance(3600)
    return lock


def test_the_view_of_one_queue_says_nothing_of_the_schedules_of_others(registry, queue, store, clock):
    other = registry.create(QueueConfig("other", shards=1))
    registry.schedule(Schedule("tick", "q", every=10))
    leads(store, clock)
    reports(other)
    assert {one.kind for one in findings_of(view_of(registry, only="other").look())} <= {"upkeep"}
    assert "schedule" in {one.kind for one in findings_of(view_of(registry, only="q").look())}


def test_a_leader_that_reports_and_has_not_led_for_minutes_is_a_problem_if_work_is_undone(
    registry, queue, store, clock
):
    FencedLock(store, "shop-sweeper", owner="w@f", lease=10).acquire(1)
    queue.publish("m", delay=5)
    clock.advance(60)
    reports(queue, "w@f")
    assert told(registry)["upkeep"][0] == WARNING
    clock.advance(600)
    reports(queue, "w@f")
    state, what = told(registry)["upkeep"]
    assert (state, "w reports, and leads no more" in what) == (PROBLEM, True)


def test_a_schedule_whose_time_zone_this_machine_does_not_know_is_told(registry, queue, store, clock, monkeypatch):
    registry.schedule(Schedule("tick", "q", cron="* * * * *", tz="Europe/Berlin"))
    reports(queue)
    assert "schedule" not in told(registry)

    known = schedules._zone_of

    def unknown(name):
        if name != "Europe/Berlin":
            return known(name)
        raise Misconfigured(f"this machine does not know the time zone {name!r}: install tzdata")

    monkeypatch.setattr(schedules, "_zone_of", unknown)
    (one,) = [one for one in findings_of(of_client(registry)) if one.kind == "schedule"]
    assert (one.state, "whether it publishes is not known here" in one.what) == (WARNING, True)
    assert "install tzdata" in one.remedy


def test_a_sideline_that_its_shovel_does_not_empty_is_told(registry, queue, store, clock):
    leads(store, clock)
    reports(queue)
    queue.publish("m")
    queue.receive()[0].nack()
    clock.advance(120)
    reports(queue)
    assert "stranded" not in told(registry)
    clock.advance(900)
    reports(queue)
    state, what = told(registry)["stranded"]
    assert (state, "1 message in the sideline, the oldest for 17 min: its shovel has not come to it" in what) == (
        WARNING,
        True,
    )


@pytest.mark.parametrize("how", ["paused", "streamed", "worked"])
def test_the_remedy_of_a_message_that_expires_soon_is_one_that_helps(registry, clock, how):
    queue = registry.create(QueueConfig("q", shards=1, message_expiry=3600))
    queue.publish("m")
    if how == "streamed":
        take(queue.pointers, "events")
    elif how == "paused":
        with pytest.warns(UserWarning, match="paused"):
            queue.pause()
    reports(queue)
    clock.advance(1900)
    reports(queue)
    (one,) = [one for one in findings_of(of_client(registry)) if one.kind == "expiring"]
    wanted = {"paused": "latchwork queue resume q", "streamed": "start it again", "worked": "start more workers"}
    assert wanted[how] in one.remedy


def test_the_sweep_that_is_named_sweeps_each_queue_in_time(registry, clock):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        queue = registry.create(QueueConfig("q", shards=1, sweep_duration=300))
    queue.publish("m", delay=5)
    clock.advance(3600)
    (one,) = [one for one in findings_of(of_client(registry)) if "queue sweep" in one.remedy]
    assert one.remedy.endswith("latchwork queue sweep --client shop --every 150`")


@pytest.mark.parametrize("shared", [True, False])
def test_a_cancel_is_named_for_a_handler_that_runs_for_long_only_where_it_works(registry, queue, clock, shared):
    of = queue.publish("m")
    if shared:
        queue.group("audit")
    reports(queue, running=1, longest=(Running(of, 4_000.0),))
    (one,) = [one for one in findings_of(of_client(registry)) if one.kind == "long_running"]
    assert ("latchwork queue cancel" in one.remedy) is not shared


def test_what_a_queue_does_not_bring_back_and_what_waits_for_its_write_is_not_said_to_come(registry, store, clock):
    queue = registry.create(QueueConfig("q", shards=1, retry=False))
    leads(store, clock)
    queue.publish("m")
    queue.receive()[0].nack()
    reports(queue)
    taken = of_client(registry)
    assert "nothing brings back what is in its sideline" in why_it_waits(taken.queues[0], taken, is_retry=True)
    assert why_it_waits(taken.queues[0], taken, waits_for="orders/7") == (
        "it comes once the write with which it goes is made"
    )


def test_delayed_messages_that_expired_as_no_upkeep_ran_are_counted_logged_and_told(registry, store, clock, caplog):
    queue = registry.create(QueueConfig("q", shards=1, message_expiry=60))
    queue.publish_many(["a", "b"], delay=5)
    queue.publish("kept", delay=200)
    clock.advance(150)
    timers = Timers(Farms(queue))
    run_until(timers, clock, 10)
    assert "2 delayed messages of q expired before anybody delivered them" in caplog.text
    assert (queue.depth().expired, queue.depth().delayed) == (2, 1)
    reports(queue)
    state, what = told(registry)["expired"]
    assert state == WARNING
    assert what.endswith(
        "delayed messages and retries that expired, as no upkeep ran: 2; the last were noticed 10 s ago"
    )
    clock.advance(90_000)
    reports(queue)
    assert "expired" not in told(registry)
