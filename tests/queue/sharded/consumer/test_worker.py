"""A worker: several queues in one process, by weights and by depth."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from latchwork.errors import InvalidMessageHandler, InvalidRequest, NotFound
from latchwork.queue import Consumer, QueueConfig, QueueRegistry, Worker
from latchwork.queue.sharded.consumer import worker as module
from latchwork.queue.sharded.consumer.signals import Signals
from latchwork.queue.sharded.consumer.worker import divided
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from tests.sim.stage import Stage
from tests.support.waiting import until


def registry_on(store, *names, **options):
    registry = QueueRegistry(store, "c", farm_id="f")
    for name in names:
        registry.create(QueueConfig(name, shards=1, **options))
    return registry


@pytest.mark.parametrize(
    ("threads", "busy", "given"),
    [
        (9, {"high", "low"}, {"high": 8, "low": 1}),
        (9, {"high"}, {"high": 8, "low": 1}),
        (9, {"low"}, {"high": 1, "low": 8}),
        (9, set(), {"high": 8, "low": 1}),
        (2, {"high", "low"}, {"high": 1, "low": 1}),
        (4, {"high", "low"}, {"high": 3, "low": 1}),
    ],
)
def test_threads_are_divided_by_weight_among_busy_queues_and_each_keeps_one(threads, busy, given):
    assert divided(threads, {"high": 8, "low": 1}, busy) == given
    assert sum(given.values()) == threads


def test_each_queue_is_handled_by_its_own_function():
    stage, handled = Stage(), []

    def body(store):
        registry = registry_on(store, "a", "b")
        worker = Worker(registry)
        worker.handler("a")(lambda delivery: handled.append(("a", delivery.payload)))
        worker.handler("b")(lambda delivery: handled.append(("b", delivery.payload)))
        registry.get("a").publish(1)
        registry.get("b").publish(2)
        with worker:
            store.seams.sleep(5)
            assert worker.running
        assert not worker.running
        return "done"

    stage.act("process", body)
    stage.play()
    assert stage.said["process"] == "done"
    assert sorted(handled) == [("a", 1), ("b", 2)]


def test_a_full_queue_does_not_hold_up_another_and_takes_what_that_leaves():
    """400 messages of 1 s each in `low`, then one in `high`: it is handled at once."""
    stage, began, at_once = Stage(), {}, []

    def body(store):
        registry = registry_on(store, "high", "low")
        low = []

        def slow(delivery):
            low.append(delivery)
            at_once.append(len(low))
            store.seams.sleep(1)
            low.remove(delivery)

        def urgent(delivery):
            began["high"] = store.seams.monotonic()

        worker = Worker(registry, weights={"high": 3, "low": 1})
        worker.handler("low")(slow)
        worker.handler("high")(urgent)
        registry.get("low").publish_many(range(400))
        with worker:
            store.seams.sleep(20)
            sent = store.seams.monotonic()
            registry.get("high").publish("now")
            store.seams.sleep(5)
        return began["high"] - sent

    stage.act("process", body)
    stage.play()
    assert stage.said["process"] < 0.5
    assert max(at_once) == 3, "four threads, of which one stays with `high`"


def test_a_handler_with_thresholds_works_from_so_many_messages_on_until_so_few_are_left():
    stage, counts = Stage(), []

    def body(store):
        registry = registry_on(store, "bulk")
        worker = Worker(registry)
        handled = []

        @worker.handler("bulk", start_at=10, stop_at=2)
        def handle(delivery):
            handled.append(delivery)
            store.seams.sleep(1)

        queue = registry.get("bulk")
        queue.publish_many(range(9))
        with worker:
            store.seams.sleep(30)
            counts.append(len(handled))
            queue.publish("the tenth")
            store.seams.sleep(60)
            counts.append(len(handled))

    stage.act("process", body)
    stage.play()
    assert counts[0] == 0
    assert 8 <= counts[1] <= 10


def test_the_whole_worker_is_refused_before_anything_runs():
    registry = registry_on(MemoryStore(), "a")
    worker = Worker(registry)
    with pytest.raises(InvalidRequest, match="no handlers"):
        worker.start()
    worker.handler("a")(print)
    worker.handler("nowhere")(print)
    with pytest.raises(NotFound, match="nowhere"):
        worker.start()
    assert worker.consumers == {}


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda r: Worker("registry"), "registry"),
        (lambda r: Worker(r, weights={}), "weights"),
        (lambda r: Worker(r, weights={"a": 0}), "weight of 'a'"),
        (lambda r: _handling(Worker(r, weights={5: 1}), "a").start(), "name of a queue"),
        (lambda r: Worker(r, weights={"a": 1.5}), "weight of 'a'"),
        (lambda r: Worker(r, concurrency=3), "without weights"),
        (lambda r: Worker(r, weights={"a": 1}, concurrency=0), "concurrency"),
        (lambda r: Worker(r, grace=-1), "timeout|grace"),
        (lambda r: Worker(r, upkeep="no"), "upkeep"),
        (lambda r: Worker(r).handler(""), "name of a queue"),
        (lambda r: Worker(r).handler("a", concurrency=-1), "concurrency"),
        (lambda r: Worker(r, weights={"a": 1}).handler("a", concurrency=2), "weights divide"),
        (lambda r: Worker(r).handler("a", start_at=0), "start_at"),
        (lambda r: Worker(r).handler("a", stop_at=3), "without start_at"),
        (lambda r: Worker(r).handler("a", start_at=3, stop_at=3), "stop_at"),
        (lambda r: _twice(Worker(r)), "has a handler"),
        (lambda r: _handling(Worker(r, weights={"b": 1}), "a").start(), "not in both"),
        (lambda r: _handling(Worker(r, weights={"a": 101}), "a").start(), "101 threads"),
    ],
)
def test_what_does_not_fit_is_refused_and_named(build, match):
    with pytest.raises(InvalidRequest, match=match):
        build(registry_on(MemoryStore(), "a"))


def test_only_a_function_handles():
    with pytest.raises(InvalidMessageHandler):
        Worker(registry_on(MemoryStore(), "a")).handler("a")(3)


def _handling(worker, name):
    worker.handler(name)(print)
    return worker


def _twice(worker):
    _handling(_handling(worker, "a"), "a")


PROGRAM = """
import os, sys, time
import latchwork
from latchwork.queue import QueueConfig, QueueRegistry, Worker
from latchwork.queue.sharded.consumer.signals import Signals
signalled = Signals._signalled
def told(*given):
    signalled(*given)
    os.write(1, b"told\\n")
Signals._signalled = told
registry = QueueRegistry(latchwork.connect(sys.argv[1]), "c")
worker = Worker(registry, grace=60)
for name in ("a", "b"):
    registry.create(QueueConfig(name, shards=1))
    @worker.handler(name)
    def handle(delivery):
        print("begins", flush=True)
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
        time.sleep(0.5)  # in which an end that is forced cuts it
        print("ends", flush=True)
registry.get("a").publish(1)
print(worker.run(), flush=True)
"""


@pytest.mark.parametrize(
    ("signals", "said"),
    [
        ([signal.SIGTERM], ["ends", "True"]),
        ([signal.SIGTERM, signal.SIGTERM], ["False"]),
        # The kernel and the shell each send it where a terminal is closed.
        ([signal.SIGHUP, signal.SIGHUP], ["ends", "True"]),
    ],
)
def test_a_signal_drains_every_queue_and_a_second_one_forces_but_no_second_hangup(tmp_path, signals, said):
    may_end = tmp_path / "may_end"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, f"sqlite:{tmp_path / 'store.db'}?synchronous=off", str(may_end)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "begins\n"
        for number in signals:
            os.kill(process.pid, number)
            # a second signal that came before the first one was handled would be one with it
            assert process.stdout.readline() == "told\n"
        if "ends" in said:
            may_end.touch()
        out, _ = process.communicate(timeout=50)
    finally:
        process.kill()
        process.wait()
    assert out.split() == said


@pytest.mark.parametrize("before", [signal.SIG_IGN, lambda *_: None], ids=["nohup", "the-programs-own"])
def test_a_hangup_that_the_program_ignores_or_handles_itself_is_left_alone(before):
    kept = signal.signal(signal.SIGHUP, before)
    try:
        with Signals(lambda: False) as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is before
        assert not signals.drains
    finally:
        signal.signal(signal.SIGHUP, kept)


def test_a_worker_that_cuts_a_handler_says_in_its_own_log_that_the_message_comes_again(caplog):
    registry, began, goes_on = registry_on(MemoryStore(), "a"), threading.Event(), threading.Event()
    worker = Worker(registry)
    worker.handler("a")(lambda _: began.set() or goes_on.wait(60))
    registry.get("a").publish("m")
    with caplog.at_level(logging.INFO):
        worker.start()
        assert began.wait(60)
        assert not worker.stop(0)
        goes_on.set()
    said = {record.getMessage(): record.name for record in caplog.records}
    (cut,) = [line for line in said if "was cut at message" in line]
    assert said[cut] == "latchwork.worker"
    assert "handlers that had not finished: 1; their messages come again" in caplog.text


def test_a_worker_stops_all_its_consumers_and_leaves_no_thread(tmp_path):
    before = threading.active_count()
    registry = registry_on(MemoryStore(), "a", "b")
    worker = _handling(_handling(Worker(registry), "a"), "b")
    worker.start()
    with pytest.raises(InvalidRequest, match="started before"):
        worker.start()
    assert worker.stop()
    until(lambda: threading.active_count() <= before)


def test_a_handler_that_stops_its_own_worker_is_refused_before_anything_is_stopped():
    registry = registry_on(MemoryStore(), "a", "b")
    worker, said, over = Worker(registry, upkeep=False), [], []

    @worker.handler("a")
    def stops(delivery):
        with pytest.raises(InvalidRequest, match=r"stops its own consumer.*Thread\(target=stop\)") as refused:
            worker.stop()
        said.append(refused.value)

    @worker.handler("b")
    def ends(delivery):
        over.append(threading.Thread(target=worker.stop))
        over[0].start()

    runs = threading.Thread(target=worker.run)
    runs.start()
    registry.get("a").publish(1)
    until(lambda: said)
    assert worker.running
    registry.get("b").publish(2)  # which does as the error says
    runs.join(60)
    assert not runs.is_alive()
    over[0].join(60)
    until(lambda: registry.get("a").depth().ready + registry.get("b").depth().ready == 0)


def test_a_grace_that_is_no_length_of_time_is_refused_and_the_worker_goes_on():
    worker = Worker(registry_on(MemoryStore(), "a"), upkeep=False)
    worker.handler("a")(print)
    with worker:
        with pytest.raises(InvalidRequest, match="grace"):
            worker.stop("soon")
        assert worker.running


def test_the_consumers_of_a_worker_stop_together_each_with_the_whole_grace():
    """One after the other, each that hangs would end half a second after the one before."""
    worker = Worker(registry_on(MemoryStore(ManualClock()), "a"), grace=60)
    together = threading.Barrier(3)
    answers = dict(zip("abc", (True, False, True), strict=True))
    worker.consumers = {name: _Stopping(together, all_done) for name, all_done in answers.items()}
    assert not worker.stop()
    assert all(consumer.grace == 60 for consumer in worker.consumers.values())


class _Stopping:
    """A consumer whose end waits for the ends of all others."""

    running = given_up = hung = 0

    def __init__(self, together, all_done):
        self.together, self.all_done, self.grace = together, all_done, None

    def refuse_own_handler(self):
        """No handler of it runs."""

    def stop(self, grace):
        if self.grace is None:
            self.grace = grace
            self.together.wait(20)
        return self.all_done


def test_a_depth_that_cannot_be_read_changes_nothing(monkeypatch, caplog):
    from latchwork.errors import Unavailable

    registry = registry_on(MemoryStore(), "a")
    worker = Worker(registry)
    worker.handler("a", start_at=5)(print)
    worker.consumers = {"a": worker._consumer(registry.get("a"), worker._handlers["a"])}

    def unavailable(self):
        raise Unavailable("no node has the partition")

    monkeypatch.setattr(type(registry.get("a").pointers), "states", unavailable)
    for is_open in (True, False):
        assert worker._opens("a", worker._handlers["a"], is_open=is_open) is is_open
    assert "depth of a" in caplog.text
    assert module.DEPTH_EVERY >= 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_group_that_was_dropped_and_made_again_is_taken_up_within_15_s(fails, monkeypatch):
    stage, handled, start, starts = Stage(), [], Consumer.start, []

    def sometimes(consumer):
        starts.append(consumer)
        if fails and len(starts) == 2:
            raise RuntimeError("can't start new thread")
        return start(consumer)

    monkeypatch.setattr(Consumer, "start", sometimes)

    def body(store):
        queue = registry_on(store, "q").get("q")
        queue.group("g")
        worker = Worker(QueueRegistry(store, "c", farm_id="f"))
        worker.handler("q@g")(lambda delivery: handled.append(delivery.payload))
        with worker:
            queue.publish("before")
            store.seams.sleep(3)
            queue.group("g").drop()
            store.seams.sleep(20)
            queue.group("g")
            queue.publish("after")
            store.seams.sleep(15)
        return worker.running

    stage.act("process", body)
    stage.play()
    assert stage.said["process"] is False
    assert handled == ["before", "after"]


def test_a_worker_that_is_stopped_while_it_takes_up_a_group_leaves_none_of_its_consumers_at_work(monkeypatch):
    stage, start, starts = Stage(), Consumer.start, []

    def slow(consumer):
        starts.append(consumer)
        found = start(consumer)
        consumer.queue.store.seams.sleep(len(starts) - 1)
        return found

    monkeypatch.setattr(Consumer, "start", slow)

    def body(store):
        queue = registry_on(store, "q").get("q")
        queue.group("g")
        worker = Worker(QueueRegistry(store, "c", farm_id="f"))
        worker.handler("q@g")(print)
        with worker:
            queue.group("g").drop()
            queue.group("g")
            while len(starts) < 2:
                store.seams.sleep(0.1)
        store.seams.sleep(5)
        return [consumer._supervisor.is_alive() for consumer in starts]

    stage.act("process", body)
    stage.play()
    assert stage.said["process"] == [False, False]
