"""A fault at every call finds the call at which a program loses something, or does it twice, and nothing else."""

from __future__ import annotations

from unittest import mock

import pytest

from latchwork.errors import InvalidRequest
from latchwork.queue import Publish, QueueConfig, QueueRegistry
from latchwork.store import Exists, Key, MemoryStore, Put
from latchwork.testing import ManualClock, bring_back, inject_everywhere
from tests.support import struck

ORDERS = ["A-1", "A-2"]
ENDS = "latchwork.queue.sharded.queue.end_done"


def queue_of(store):
    return QueueRegistry(store, "shop").get("orders")


def published(store):
    queue = QueueRegistry(store, "shop").create(QueueConfig("orders", shards=1))
    for order in ORDERS:
        queue.publish(order)


def swept(store, done, work):
    """What upkeep and the next consumer do."""
    bring_back(queue_of(store))
    work(store, done)


def handled_then_acknowledged(store, done):
    for delivery in queue_of(store).receive(10):
        done.append(delivery.payload)
        delivery.ack()


def acknowledged_then_handled(store, done):
    for delivery in queue_of(store).receive(10):
        delivery.ack()
        done.append(delivery.payload)


def tried(work, **options):
    return inject_everywhere(
        work, prepare=published, recover=lambda store, done: swept(store, done, work), expected=ORDERS, **options
    )


def test_work_that_acknowledges_after_it_has_handled_loses_nothing_and_is_shown_to_double():
    report = tried(handled_then_acknowledged, faults={"crash_before", *struck.faults("handled first")})
    assert not report.lost
    assert not report.failed
    assert {trouble.fault for trouble in report.doubled} >= {"crash_before"}
    assert all(trouble.verb in ("operate", "delete", "delete_many") for trouble in report.doubled)


def test_work_that_acknowledges_first_is_shown_to_lose_at_the_call_that_does_it():
    report = tried(acknowledged_then_handled, faults=struck.faults("acknowledged first"))
    (trouble, *_) = report.lost
    assert trouble.fault in ("crash_after", "reply_lost")
    assert trouble.lost == ("A-1",)
    assert trouble.where.startswith("shop_data_set/")
    assert f"{trouble.fault} at call {trouble.call} ({trouble.verb} {trouble.where}): lost 'A-1'" in str(report)


def test_each_call_is_tried_in_each_way():
    report = tried(handled_then_acknowledged, faults=("crash_before", "dropped"))
    assert report.runs == 2 * report.calls
    assert report.calls == tried(handled_then_acknowledged, faults=("slow",)).runs


def written(store, done):
    store.operate(Key("s", "k"), Put("n", 1), exists=Exists.ANY)


def test_work_that_reads_a_whole_set_is_tried_at_that_call_and_named_by_its_set():
    def listed(store, done):
        if not done:
            done += [record.bins["n"] for record in store.scan("counters")]

    def careless(store, done):
        done += [record.bins["n"] for record in store.scan("counters")]

    def prepare(store):
        store.operate(Key("counters", "a"), Put("n", 1), exists=Exists.ANY)

    report = inject_everywhere(listed, prepare=prepare, expected=[1], faults=["no_server"])
    assert (report.calls, report.troubles) == (1, ())
    (trouble,) = inject_everywhere(
        careless, prepare=prepare, expected=[1], recover=lambda store, done: None, faults=["no_server"]
    ).troubles
    assert str(trouble) == "no_server at call 1 (scan set counters): lost 1"


def test_what_the_check_raises_is_reported_with_its_call():
    def check(store):
        assert store.get(Key("s", "k")) is not None, "the record is not there"

    report = inject_everywhere(
        written, recover=lambda store, done: None, check=check, faults=("dropped", "reply_lost", "no_server")
    )
    (trouble,) = report.failed
    assert (trouble.call, trouble.verb, trouble.where, trouble.fault) == (1, "operate", "s/k", "no_server")
    assert trouble.failure == "AssertionError: the record is not there"


def test_what_the_work_raises_where_a_call_fails_is_reported_unless_it_is_of_latchwork():
    def work(store, done):
        try:
            written(store, done)
        except Exception:
            raise KeyError("a mistake in its error handling") from None

    report = inject_everywhere(work, recover=written, faults=("dropped", "no_server", "crash_before"))
    (trouble,) = report.troubles
    assert (trouble.fault, trouble.failure) == ("no_server", "KeyError: 'a mistake in its error handling'")
    assert not inject_everywhere(written, recover=written).troubles


def test_work_that_is_wrong_without_a_fault_is_refused():
    with pytest.raises(InvalidRequest, match=r"without any fault the work did \['A-1'\]; expected is \[\]"):
        inject_everywhere(lambda store, done: done.append("A-1") or written(store, done), recover=written)
    with pytest.raises(InvalidRequest, match="makes no store call"):
        inject_everywhere(lambda store, done: None)
    with pytest.raises(InvalidRequest, match="fault is 'fire'; it must be one of crash_before"):
        inject_everywhere(written, faults=("fire",))
    with pytest.raises(ZeroDivisionError):
        inject_everywhere(lambda store, done: 1 / 0)


def test_each_run_has_a_store_of_its_own_which_may_be_any():
    made = []

    def make():
        made.append(MemoryStore(ManualClock()))
        return made[-1]

    report = inject_everywhere(written, faults=("reply_lost", "dropped"), make_store=make)
    assert len(made) == 1 + report.runs == 3


def test_upkeep_brings_back_what_a_group_failed_and_what_was_due_and_ends_batches():
    """As upkeep does it: else a fault would be blamed for what a later pass of upkeep mends."""
    clock = ManualClock()
    queue = QueueRegistry(MemoryStore(clock), "shop").create(QueueConfig("orders", shards=1, sweep_duration=300))
    group = queue.group("audit")
    queue.publish("delayed", delay=900)
    with queue.batch("night", then=Publish("after")) as batch:
        batch.publish("failed")
    (delivery,) = group.receive(10)
    delivery.nack()
    (delivery,) = queue.receive(10)
    with mock.patch(ENDS):  # as if the worker died at this point
        delivery.ack()
    bring_back(queue)
    assert sorted(delivery.payload for delivery in queue.receive(10)) == ["after", "delayed"]
    assert sorted(delivery.payload for delivery in group.receive(10)) == ["after", "delayed", "failed"]


@pytest.mark.long
def test_a_follow_up_that_a_dead_worker_did_not_publish_is_not_said_to_be_lost():
    def work(store, done):
        queue = queue_of(store)
        if not queue.batch("night", then=Publish("after")).progress().closed:
            with queue.batch("night", then=Publish("after")) as batch:
                batch.publish_many(ORDERS, dedups=ORDERS)

    def recover(store, done):
        work(store, done)
        for _ in range(3):
            handled_then_acknowledged(store, done)
            bring_back(queue_of(store))

    def prepare(store):
        QueueRegistry(store, "shop").create(QueueConfig("orders", shards=1))

    report = inject_everywhere(work, prepare=prepare, recover=recover, expected=[*ORDERS, "after"])
    assert (report.lost, report.failed) == ([], []), report
