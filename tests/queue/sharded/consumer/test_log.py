"""What a worker logs: it starts, drains and stops, it loses the store, a handler fails, a message is parked."""

from __future__ import annotations

import logging
from threading import Event

import pytest

from latchwork.background import QUIET
from latchwork.errors import Unavailable
from latchwork.queue import Consumer, QueueConfig, QueueRegistry, Worker
from latchwork.queue.sharded.consumer.log import Life
from latchwork.queue.sharded.message_log import MOST
from latchwork.store import MemoryStore
from latchwork.testing import bring_back
from latchwork.testing.clock import ManualClock
from tests.support.waiting import until


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def queue(clock):
    config = QueueConfig("q", shards=1, max_deliveries=2, sweep_duration=300)
    return QueueRegistry(MemoryStore(seams=clock), "c").create(config)


def lines(caplog, level=logging.INFO):
    return [record.getMessage() for record in caplog.records
            if record.name == "latchwork.worker" and record.levelno >= level]  # fmt: skip


def test_failures_of_one_kind_are_counted_after_some_and_those_of_another_kind_still_logged(queue, clock, caplog):
    def handler(delivery):
        if delivery.payload == "other":
            raise ValueError("another place")
        raise ValueError(f"no order {delivery.payload}")

    consumer = Consumer(queue, handler)
    queue.publish_many([*range(MOST + 37), "other"], key="k")
    for _ in range(MOST + 38):
        consumer._turns.take()
    assert len(lines(caplog)) == MOST + 1
    assert "another place" in lines(caplog)[-1]
    queue.message_log.flush()
    assert len(lines(caplog)) == MOST + 1, "the minute is not over"
    clock.advance(QUIET)
    queue.message_log.flush()
    (count,) = lines(caplog)[MOST + 1 :]
    assert count.startswith("the handler of 'q' raised ValueError (test_log.py, line ")
    assert count.endswith("): and 37 more like it")


def test_a_parked_message_is_one_line_with_its_last_error_and_what_brings_it_back(queue, caplog):
    message_id = queue.publish({"card": "4111-1111"})
    for _ in range(2):
        for delivery in queue.receive():
            delivery.nack("exception", error="no such order")
        bring_back(queue)
    assert queue.depth().parked == 1
    (line,) = lines(caplog, logging.ERROR)
    assert f"message {message_id} of 'q' is parked (exhausted, attempts: 2, " in line
    assert "last error: no such order" in line
    assert "`latchwork queue redrive` brings it back" in line
    assert "4111" not in caplog.text


def test_a_store_that_is_away_is_one_line_a_minute_and_one_when_it_is_back(clock, caplog):
    life = Life(clock, "the worker of 'shop'")
    with caplog.at_level(logging.INFO, "latchwork.worker"):
        life.found()
        for _ in range(90):
            life.lost(Unavailable("no node answers"))
            clock.advance(1)
        life.found()
        life.found()
    assert lines(caplog) == [
        "the worker of 'shop' has lost the store, and tries again (UNAVAILABLE): no node answers",
        "the worker of 'shop' has lost the store for 60 s, and tries again (UNAVAILABLE): no node answers",
        "the worker of 'shop' has the store back, after 90 s",
    ]


def test_a_worker_logs_once_that_it_works_drains_and_has_stopped_however_many_queues_it_has(caplog):
    registry = QueueRegistry(MemoryStore(), "shop")
    worker, handled = Worker(registry), []
    for name in ("mails", "orders"):
        registry.create(QueueConfig(name, shards=1, concurrency=2))
        worker.handler(name)(handled.append)
    registry.get("orders").publish(1)
    with caplog.at_level(logging.INFO, "latchwork.worker"), worker:
        until(lambda: handled and not worker.consumers["orders"].running)
        worker.stop()
    first, *rest = lines(caplog)
    assert first.startswith("the worker of 'shop' works (")
    assert first.endswith(") on memory:: 'mails' (threads: 2), 'orders' (threads: 2)")
    assert rest == [
        "the worker of 'shop' drains: it takes no more messages; no handler runs",
        "the worker of 'shop' has stopped; all handlers had finished",
    ]


def test_a_consumer_without_a_worker_logs_its_life_in_the_same_words(caplog):
    queue = QueueRegistry(MemoryStore(), "shop").create(QueueConfig("q", shards=1, concurrency=1))
    with caplog.at_level(logging.INFO, "latchwork.worker"), Consumer(queue, print, upkeep=False):
        pass
    works, drains, stopped = lines(caplog)
    assert works.startswith("the consumer of 'q' works (")
    assert works.endswith(") on memory:: 'q' (threads: 1)")
    assert drains.startswith("the consumer of 'q' drains: ")
    assert stopped == "the consumer of 'q' has stopped; all handlers had finished"


def test_handlers_that_a_stop_has_cut_are_not_said_to_hang(caplog):
    registry = QueueRegistry(MemoryStore(), "shop")
    worker, begun, goes_on = Worker(registry), Event(), Event()
    registry.create(QueueConfig("mails", shards=1, concurrency=2))
    worker.handler("mails")(lambda _: (begun.set(), goes_on.wait(60)))
    registry.get("mails").publish(1)
    with caplog.at_level(logging.INFO, "latchwork.worker"):
        worker.start()
        assert begun.wait(60)
        worker.stop(0.2)
    goes_on.set()
    cut, stopped = lines(caplog, logging.WARNING)
    assert cut.startswith("the handler of 'mails' was cut at message ")
    assert stopped == "the worker of 'shop' has stopped; handlers that had not finished: 1; their messages come again"


def test_a_worker_that_stops_while_handlers_hang_says_how_many_end_with_its_process_and_not_that_all_had_finished(
    caplog,
):
    registry = QueueRegistry(MemoryStore(), "shop")
    worker, goes_on = Worker(registry), Event()
    registry.create(QueueConfig("mails", shards=1, concurrency=2, handler_timeout=1))
    worker.handler("mails")(lambda _: goes_on.wait(60))
    registry.get("mails").publish(1)
    with caplog.at_level(logging.INFO, "latchwork.worker"):
        worker.start()
        until(lambda: worker.consumers["mails"].stuck)
        worker.stop(0.5)
    goes_on.set()
    hang = "the worker of 'shop' has stopped; handlers that hang, past the handler_timeout, and end with the process: 1"
    assert hang in lines(caplog, logging.WARNING)
    assert not [line for line in lines(caplog) if "all handlers had finished" in line]
