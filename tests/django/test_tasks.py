"""Tasks of Django are messages of queues: published once the transaction commits, run at least once, and retried."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest

pytest.importorskip("django", reason="Django is not installed: pip install 'latchwork[django]'")

from . import project  # isort: skip # before all that needs settings

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, transaction
from django.test import Client, TestCase, override_settings

from latchwork.django import TaskResultDoesNotExist, current_delivery, task_finished, task_worker, tasks
from latchwork.errors import InvalidRequest, NotFound, OutcomeUnknown, RecordTooBig, Unavailable, Unreadable
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import MemoryStore
from latchwork.testing import FaultyStore, ManualClock, bring_back

from .tasks import attempt, long_text, no_task, note, note_async, once, once_async, ran, total

LEVELS = {"-urgent": 50, "": 0, "-bulk": -100}


@pytest.fixture
def clock():
    return ManualClock()


def made(store, results=None, without=None, **options):
    """The registry that TASKS is to name, with its queues, and that setting."""
    registry = QueueRegistry(store, "shop")
    for ending in LEVELS:
        kept = None if ending == without else results
        config = QueueConfig(  # to bring messages back is to look at each second of six times the sweep duration
            f"default{ending}", shards=1, max_deliveries=2, results=kept, sweep_duration=timedelta(minutes=5)
        )
        registry.create(config)
    ran.clear()
    return registry, override_settings(TASKS=project.backend(store=store, client_id="shop", levels=LEVELS, **options))


@pytest.fixture
def shop(clock):
    registry, setting = made(MemoryStore(clock))
    with setting:
        yield registry


def ready(shop, queue="default"):
    return shop.get(queue).depth().ready


def stored():
    """The orders of the database, which are removed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT sku FROM orders")
        found = [sku for (sku,) in cursor.fetchall()]
        cursor.execute("DELETE FROM orders")
    return found


def work(shop, queue="default"):
    """Handle what is ready, as a consumer does; the errors."""
    failures = []
    for delivery in shop.get(queue).receive(10):
        try:
            delivery.ack(tasks.task_backends["default"].run(delivery))
        except Exception as failure:
            failures.append(str(failure))
            delivery.nack("exception")
    return failures


# ---- from a transaction


def test_a_task_is_published_when_the_transaction_commits_and_not_before(shop):
    answer = Client(depth=lambda: ready(shop)).get("/order/7").content.decode()
    id, _, seen = answer.partition(" ")
    assert seen == "0", "the transaction was open"
    (message,) = shop.get("default").receive(10)
    assert (message.message_id, stored()) == (id, ["7"])


def test_a_task_of_a_transaction_that_is_rolled_back_is_not_published(shop):
    with pytest.raises(ValueError, match="refused"):
        Client(depth=lambda: 0).get("/order/bad")
    assert (ready(shop), stored()) == (0, [])


def test_a_task_goes_with_its_savepoint(shop):
    Client().get("/orders")
    assert stored() == ["kept"]
    assert [message.payload["args"] for message in shop.get("default").receive(10)] == [["kept"]]


def test_a_task_is_published_without_a_transaction_from_an_async_view_too(shop):
    id = Client().get("/awaited/9").content.decode()
    assert [message.message_id for message in shop.get("default").receive(10)] == [id]


def test_djangos_own_test_case_runs_the_publishes_that_it_captures(shop):
    with transaction.atomic():
        with TestCase.captureOnCommitCallbacks(execute=True) as callbacks:
            note.enqueue(1)
            assert ready(shop) == 0
        assert (len(callbacks), ready(shop)) == (1, 1)


def test_without_after_commit_a_task_is_published_at_once(clock):
    registry, setting = made(MemoryStore(clock), after_commit=False)
    with setting, transaction.atomic():
        note.enqueue(1)
        assert ready(registry) == 1


@pytest.mark.parametrize(
    ("error", "enqueue"),
    [
        (RecordTooBig, lambda: note.enqueue("x" * 9_000_000)),
        (TypeError, lambda: note.enqueue(object())),
        (InvalidRequest, lambda: note.using(run_after=datetime(2200, 1, 1, tzinfo=timezone.utc)).enqueue()),
    ],
)
def test_what_is_wrong_with_a_task_is_raised_before_the_transaction_commits(shop, error, enqueue):
    def order():
        with transaction.atomic():
            transaction.on_commit(lambda: committed.append(True))
            enqueue()

    committed = []
    with pytest.raises(error):
        order()
    assert (committed, ready(shop)) == ([], 0)


def test_a_queue_that_is_not_there_is_named_before_the_transaction_commits(clock):
    options = {"store": MemoryStore(clock), "client_id": "shop"}
    with override_settings(TASKS=project.backend(**options)), pytest.raises(NotFound, match="default"):
        note.enqueue()


def test_a_publish_whose_outcome_is_unknown_is_told_by_the_commit(clock):
    faulty = FaultyStore(MemoryStore(clock), seed=1, rate=0)
    _, setting = made(faulty)
    with setting:
        note.enqueue("opens the queue")
        faulty.rate, faulty.kinds = 1.0, ("reply_lost",)
        with pytest.raises(OutcomeUnknown), transaction.atomic():
            note.enqueue(2)
        faulty.rate = 0


def test_after_a_publish_that_failed_django_publishes_no_later_task_of_the_transaction(clock):
    """As the guide says: a program that repeats only the task of the error would lose the others."""
    store = FaultyStore(MemoryStore(clock), seed=1, rate=0)
    shop, setting = made(store)
    with setting:
        note.enqueue("opens the queue")
        store.kinds = ("dropped",)

        def two_tasks():
            with transaction.atomic():
                transaction.on_commit(partial(setattr, store, "rate", 1.0))
                note.enqueue("first")
                transaction.on_commit(partial(setattr, store, "rate", 0.0))
                note.enqueue("second")

        with pytest.raises(Unavailable):
            two_tasks()
        store.rate = 0.0
    assert ready(shop) == 1


# ---- in a worker


def test_a_worker_runs_tasks_with_their_arguments_whatever_they_return(shop):
    note.enqueue(1, word="x")
    note_async.enqueue("async")
    assert work(shop) == []
    assert ran == [((1,), {"word": "x"}), "async"]
    assert work(shop) == [], "each is acknowledged"


def test_a_task_that_fails_is_tried_again_and_finished_by_its_last_attempt(shop):
    ends = []

    def receiver(task_result, **_):
        (error,) = task_result.errors
        ends.append((task_result.status, error.exception_class, "no stock" in error.traceback))

    task_finished.connect(receiver)
    try:
        id = attempt.using(priority=60).enqueue().id
        assert work(shop, "default-urgent") == ["no stock"]
        assert (ends, work(shop, "default-urgent")) == ([], []), "it waits for its second attempt"
        bring_back(shop.get("default-urgent"))
        assert work(shop, "default-urgent") == ["no stock"]
    finally:
        task_finished.disconnect(receiver)
    assert ends == [("FAILED", ValueError, True)]
    assert ran == [(1, id, 60), (2, id, 60)]
    assert shop.get("default-urgent").depth().parked == 1


@pytest.mark.parametrize("task", [once, pytest.param(once_async, marks=pytest.mark.long)], ids=["sync", "async"])
def test_an_effect_of_a_task_happens_once_though_the_task_runs_twice(shop, task):
    task.enqueue("mail")
    for _ in range(2):
        assert work(shop) == ["after the effect"]
        bring_back(shop.get("default"))
    assert ran == ["mail"]
    with pytest.raises(InvalidRequest, match="no task"):
        current_delivery()


def test_a_task_waits_until_its_time(shop, clock):
    at = datetime.fromtimestamp(clock.wall(), timezone.utc) + timedelta(minutes=20)
    note.using(run_after=at).enqueue("late")
    depth = shop.get("default").depth()
    assert (depth.ready, depth.delayed, work(shop)) == (0, 1, [])
    bring_back(shop.get("default"))
    assert (work(shop), ran) == ([], [(("late",), {})])


def test_a_priority_chooses_the_queue(shop):
    for priority in (100, 50, 49, 0, -1, -100):
        note.using(priority=priority).enqueue()
    assert [ready(shop, f"default{ending}") for ending in LEVELS] == [2, 2, 2]


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"v": 1, "task": f"{no_task.__module__}.no_task"}, "no task"),
        ({"v": 2, "task": f"{no_task.__module__}.note"}, "upgrade"),
        ("text", "not a task"),
    ],
)
def test_a_message_that_is_no_task_of_the_program_runs_nothing(shop, payload, why):
    shop.get("default").publish(payload)
    (failure,) = work(shop)
    assert (why in failure, ran) == (True, [])


def test_task_worker_works_all_queues_of_the_backend_until_it_is_stopped():
    store = MemoryStore()
    _, setting = made(store)
    done = threading.Event()

    def receiver(task_result, **_):
        if len(ran) == 3:
            done.set()

    with setting:
        worker = task_worker(upkeep=False)
        task_finished.connect(receiver)
        try:
            with worker:
                for priority in (60, 0, -60):
                    note.using(priority=priority).enqueue(priority)
                assert done.wait(30)
        finally:
            task_finished.disconnect(receiver)
    assert sorted(args for args, _ in ran) == [(-60,), (0,), (60,)]


# ---- results


@pytest.fixture
def keeping(clock):
    """The registry, of queues that keep results."""
    registry, setting = made(MemoryStore(clock), results=timedelta(hours=1))
    with setting:
        yield registry


def test_a_view_reads_what_a_task_returned_in_a_worker():
    registry, setting = made(MemoryStore(), results=60)
    with setting, task_worker(upkeep=False):
        id, long = total.using(priority=60).enqueue(3, 4).id, long_text.enqueue().id
        registry.get("default-urgent").result(id, timeout=30)
        with pytest.raises(Unreadable):
            registry.get("default").result(long, timeout=30)
        assert Client().get(f"/sum/{id}").json() == {"status": "SUCCESSFUL", "value": {"total": 7}}
        with pytest.raises(Unreadable, match="70"):
            long_text.get_result(long)


def test_a_result_follows_its_task_through_all_states(keeping, clock):
    result = attempt.using(priority=60).enqueue()
    queue = keeping.get("default-urgent")

    def seen():
        result.refresh()
        return result.status, result.attempts, [error.exception_class for error in result.errors]

    assert seen() == ("READY", 0, [])
    (delivery,) = queue.receive()
    assert seen() == ("RUNNING", 1, [])
    assert result.started_at == result.last_attempted_at == datetime.fromtimestamp(clock.wall(), timezone.utc)
    delivery.nack("exception", error="ValueError: no stock")
    assert seen() == ("READY", 1, [ValueError])
    bring_back(queue)
    clock.advance(5)
    assert work(keeping, "default-urgent") == ["no stock"]
    assert seen() == ("FAILED", 2, [ValueError])
    assert result.finished_at == datetime.fromtimestamp(clock.wall(), timezone.utc)
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


def test_a_finished_result_is_that_of_its_only_success_for_as_long_as_it_is_kept(keeping, clock):
    result = total.enqueue(3, 4)
    enqueued = result.enqueued_at
    clock.advance(2)
    assert work(keeping) == []
    result.refresh()
    now = datetime.fromtimestamp(clock.wall(), timezone.utc)
    assert (result.return_value, result.args, result.enqueued_at) == ({"total": 7}, [3, 4], enqueued)
    assert (result.started_at, result.finished_at, result.errors, result.attempts) == (now, now, [], 1)
    clock.advance(3_601)
    with pytest.raises(TaskResultDoesNotExist, match="done"):
        result.refresh()


def test_a_result_is_awaited_too(keeping):
    async def story():
        result = await total.aenqueue(1)
        await sync_to_async(work)(keeping)
        await result.arefresh()
        return result.return_value, (await total.aget_result(result.id)).return_value

    assert async_to_sync(story)() == ({"total": 1}, {"total": 1})


def test_a_task_that_was_to_run_later_and_was_not_taken_in_time_has_no_result(keeping, clock):
    later = datetime.fromtimestamp(clock.wall() + 60, timezone.utc)
    result = total.using(run_after=later).enqueue(1)
    result.refresh()
    assert result.status == "READY"
    clock.advance(61 + keeping.get("default").config.message_expiry.total_seconds())
    with pytest.raises(TaskResultDoesNotExist, match="expired"):
        result.refresh()


def test_a_task_that_is_not_there_has_no_result(keeping):
    with pytest.raises(TaskResultDoesNotExist, match="not known"):
        total.get_result("1")
    with transaction.atomic():
        result = total.enqueue(1)
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()
    assert keeping.get("default").cancel(result.id)
    with pytest.raises(TaskResultDoesNotExist, match="gone"):
        result.refresh()


def test_a_queue_that_keeps_no_results_is_refused_with_the_remedy(clock):
    _, setting = made(MemoryStore(clock), results=60, without="-bulk")
    with setting:
        assert not tasks.task_backends["default"].supports_get_result
        kept = total.enqueue(1)
        kept.refresh()
        assert kept.status == "READY", "its own queue keeps them"
        with pytest.raises(InvalidRequest, match=r"'default-bulk' keeps no results.*results="):
            total.get_result(total.using(priority=-60).enqueue(1).id)


# ---- settings


def test_the_backend_says_what_it_supports(shop):
    backend = tasks.task_backends["default"]
    assert (backend.supports_defer, backend.supports_async_task, backend.supports_priority) == (True, True, True)
    assert not backend.supports_get_result
    with pytest.raises(InvalidRequest, match="results="):
        note.get_result("1")


def test_the_backend_says_that_it_has_results(keeping):
    assert tasks.task_backends["default"].supports_get_result


def test_the_backends_of_all_threads_share_one_store(shop):
    found = []
    thread = threading.Thread(target=lambda: found.append(tasks.task_backends["default"].registry))
    thread.start()
    thread.join(30)
    assert found == [tasks.task_backends["default"].registry]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "client_id"),
        ({"client_id": "shop", "url": "memory:"}, "'url'"),
        ({"client_id": "shop", "levels": {"": 0}}, "-100"),
        ({"client_id": "shop", "levels": {"": -100, "-x": 101}}, "101"),
        ({"client_id": "shop", "levels": {"": -100, "-x": -100}}, "differs"),
        ({"client_id": "shop", "store": 7}, "store"),
    ],
)
def test_a_wrong_option_is_named(options, why):
    setting = project.backend(**{"store": "memory:", **options})
    with override_settings(TASKS=setting), pytest.raises(InvalidRequest, match=why):
        tasks.task_backends["default"]


def test_task_worker_refuses_what_it_cannot_work(shop):
    with pytest.raises(InvalidRequest, match="queues"):
        task_worker(queues="default")
    dummy = override_settings(TASKS={"default": {"BACKEND": f"{tasks.__name__}.backends.dummy.DummyBackend"}})
    with dummy, pytest.raises(InvalidRequest, match="DummyBackend"):
        task_worker()
