"""A backend for `django.tasks`: a task is a message of a queue, and is published once the transaction has committed.

TASKS = {"default": {
    "BACKEND": "latchwork.django.QueueBackend",
    "QUEUES": ["default", "mails"],
    "OPTIONS": {"store": "aerospike://db/test", "client_id": "shop"},
}}

django.setup()
worker = task_worker()          # in shop/worker.py; run it by: latchwork worker shop.worker:worker
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timezone
from functools import partial
from traceback import format_exception
from typing import Any

from ..errors import Interrupted, InvalidRequest
from ..inputs import checked_number, checked_switch, checked_text, is_int
from ..plain import shown
from ..queue import Delivery, QueueRegistry, ShardedQueue, State, Worker
from ..queue.sharded.delayed.entries import limit_of
from ..queue.sharded.envelope import Envelope, date, from_bins, message_of
from ..queue.sharded.publishing.prepared import Prepared
from ..queue.sharded.publishing.publish import Terms, ids_or_raise, publish, store_messages
from ..queue.sharded.results import comes_back, opened
from ..queue.sharded.status import Status as MessageStatus
from ..queue.sharded.status import find_message
from ..store.connect import as_store, connect

try:
    from django.db import close_old_connections, transaction
    from django.utils.module_loading import import_string
    from django.utils.timezone import is_naive, make_aware

    try:
        from django import tasks
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import Task, TaskError
        from django.tasks.exceptions import TaskResultDoesNotExist
        from django.tasks.signals import task_enqueued, task_finished, task_started
    except ImportError:  # before Django 6
        import django_tasks as tasks
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskError
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing}: pip install 'latchwork[django]'", name=missing.name) from None

__all__ = ["QueueBackend", "current_delivery", "task_worker"]

VERSION = 1
"""Of the form of a task's message: `{"v", "task", "args", "kwargs", "queue", "priority"}`."""
OPTIONS = {"store", "client_id", "after_commit", "database", "levels"}
LOWEST, HIGHEST = -100, 100
"""The priorities that Django allows."""
Status = tasks.TaskResultStatus


class QueueBackend(BaseTaskBackend):  # type: ignore[misc] # Django has no types
    """A task backend whose queues are sharded queues. They must have been created, with the codec "json".

    OPTIONS has these:

    store: a URL, as for `latchwork.connect`, or a store, as what `observe` returns. Default: what connect() finds.
    client_id: of the queues. It must be given.
    after_commit: whether a task is published when the transaction has committed, and not at all if that is rolled back;
        default True. Without a transaction it is published at once.
    database: the alias of the database whose transaction that is; default "default".
    levels: for each ending of a queue's name the lowest priority that goes there, as
        {"-urgent": 50, "": 0, "-bulk": -100}. Each such queue must be there too. Default: no priorities.

    A task runs at least once, and is tried again as its queue says. Its result is kept where its queue keeps results:
    `QueueConfig(results=)`. Django makes a backend for each thread; all of a process share one store. Safe to share
    between threads.
    """

    supports_defer = True
    supports_async_task = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        given = dict(self.options)
        unknown = sorted(given.keys() - OPTIONS)
        if unknown:
            raise InvalidRequest(f"option {shown(unknown[0])} of {self!r} is unknown; there are {sorted(OPTIONS)}")
        self.levels = _checked_levels(given.get("levels"))
        self.supports_priority = self.levels != {"": LOWEST}
        place = given.get("store"), checked_text("client_id", given.get("client_id", ""))
        make: Callable[[Any], Any] = connect if isinstance(place[0], str | None) else as_store
        self.registry = _REGISTRIES.get(place) or _REGISTRIES.setdefault(place, QueueRegistry(make(place[0]), place[1]))
        self._after_commit = checked_switch("after_commit", given.get("after_commit", True))
        self._database = checked_text("database", given.get("database", "default"))

    def __repr__(self) -> str:
        return f"QueueBackend({self.alias!r})"

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Publish the task once the transaction has committed; return its `TaskResult`, which is ready. Two calls.

        The id is the message's. What is wrong with the task, or its queue, is raised here, so that the transaction does
        not commit. Raises Django's error for an invalid task, `NotFound` for a queue that was not created,
        `InvalidRequest` and `RecordTooBig`.

        At the commit, and from the block that commits: `Unavailable` if the task was not published, `OutcomeUnknown` if
        it may run. The transaction has committed then, and Django publishes no task that was enqueued later in it.
        """
        self.validate_task(task)
        queue = self.registry.get(self.queue_for(task.queue_name, task.priority))
        result = _result(task, queue.store.seams.unique(), self.alias, args, kwargs)
        message = {
            "v": VERSION,
            "task": task.module_path,
            "args": result.args,
            "kwargs": result.kwargs,
            "queue": task.queue_name,
            "priority": task.priority,
        }

        def store(_: Any, messages: Sequence[Prepared], terms: Terms) -> list[str]:
            publish_now = partial(self._publish, queue, messages, terms, result)
            if self._after_commit:
                transaction.on_commit(publish_now, using=self._database)
            else:
                publish_now()
            return [result.id]

        publish(
            queue, [message], key=None, keys=None, headers=None, message_ids=[result.id], delay=None,
            at=_due(task.run_after, queue), dedups=None, dedup_for=None, on_duplicate="keep", store=store,
        )  # fmt: skip
        return result

    def _publish(self, queue: ShardedQueue, messages: Sequence[Prepared], terms: Terms, result: Any) -> None:
        ids_or_raise(queue, messages, store_messages(queue, messages, terms), "keep")
        _set(result, enqueued_at=self._now())
        task_enqueued.send(type(self), task_result=result)

    # ---- results

    @property
    def supports_get_result(self) -> bool:
        """Whether all queues of the backend keep results. One call for each queue that this process has not used yet.
        Raises `NotFound` for a queue that was not created, and the store's errors.
        """
        keeps = [queue.config.results is not None for queue in self._all_queues()]
        return bool(keeps) and all(keeps)

    def get_result(self, result_id: str) -> Any:
        """Return the `TaskResult` of a task, as it is now: READY, RUNNING, SUCCESSFUL, or FAILED once it has had its
        last attempt. Three calls at most for each queue of the backend, until it is found.

        Raises Django's `TaskResultDoesNotExist` for an id that no queue knows, as before the commit or once the result
        is kept no longer, and for a task that was cancelled, discarded, or not taken in time; `Unreadable` if the task
        is done and what it returned could not be kept; `InvalidRequest` if a queue where it may be keeps no results;
        `NotFound` for a queue that was not created; the store's errors.
        """
        why, without = "it is not known", ""
        for queue in self._all_queues():
            if queue.config.results is None:
                without = queue.name
                continue
            found = find_message(queue._find(result_id))  # noqa: SLF001 - as `status`, with the message
            if found.status.kept is not None:
                return self._done(result_id, opened(found.status.kept, result_id))
            envelope = None if found.status.state is State.EXPIRED else from_bins(found.bins)
            if envelope is not None:
                return self._not_done(queue, found.status, found.bins.get("modified_at"), envelope)
            if found.status.state is not State.UNKNOWN:
                why = f"its message is {found.status.state.value}"
        if without:
            raise InvalidRequest(
                f"queue {shown(without)} keeps no results, and task {shown(result_id)} may be there: create it with "
                "QueueConfig(results=timedelta(...)), or `latchwork queue create --results-hours`"
            )
        raise TaskResultDoesNotExist(f"task {shown(result_id)} has no result: {why}")

    def _done(self, id: str, kept: Any) -> Any:
        task, content = self._task_of(kept)
        result = _result(task, id, self.alias, content["args"], content["kwargs"])
        times = {name: datetime.fromisoformat(content[name]) for name in ("enqueued_at", "started_at", "finished_at")}
        result.worker_ids.extend(content["worker_ids"])
        _set(result, status=Status.SUCCESSFUL, last_attempted_at=times["started_at"], **times)
        _set(result, _return_value=content["returned"])
        return result

    def _not_done(self, queue: ShardedQueue, found: MessageStatus, at: Any, envelope: Envelope) -> Any:
        """Return what is known of a task that waits, runs or has failed."""
        message = message_of(envelope, queue.codec, 0, 0)
        task, content = self._task_of(message.payload)
        result = _result(task, message.message_id, self.alias, content["args"], content["kwargs"])
        result.worker_ids.extend([found.worker or ""] * found.attempts)
        _set(result, enqueued_at=message.enqueued_at)
        if found.error:
            result.errors.append(_error_of(found.error))
        if found.state is State.RUNNING:
            _set(result, status=Status.RUNNING, started_at=found.since, last_attempted_at=found.since)
        elif found.state is State.PARKED or (found.state is State.RETRYING and not comes_back(queue.config)):
            _set(result, status=Status.FAILED, finished_at=date(at) if is_int(at) else None)
        return result

    def _all_queues(self) -> list[ShardedQueue]:
        return [self.registry.get(name) for name in self.queue_names(sorted(self.queues))]

    def queue_names(self, names: Collection[str]) -> list[str]:
        """Return the names of the sharded queues of these queues, with all of their levels."""
        return [self.queue_for(name, level) for name in names for level in self.levels.values()]

    def queue_for(self, queue_name: str, priority: int = 0) -> str:
        """Return the name of the sharded queue to which tasks of this queue and priority go."""
        allowed = {level: ending for ending, level in self.levels.items() if level <= priority}
        return queue_name + allowed[max(allowed)]

    # ---- in a worker

    def run(self, delivery: Delivery) -> dict[str, Any] | None:
        """Run the task of a message: the handler of the worker. Return what is to be kept as its result, None in a
        queue that keeps none. Raises what the task raises, and then it is tried again; `InvalidRequest` for a message
        that has no task of this program.
        """
        config = self.registry.get(delivery.view.name).config
        task, content = self._task_of(delivery.payload)
        result = _result(task, delivery.message_id, self.alias, content["args"], content["kwargs"])
        result.worker_ids.extend([self.registry.store.seams.process_name()] * delivery.attempts)
        began = self._now()
        _set(result, status=Status.RUNNING, enqueued_at=delivery.enqueued_at, started_at=began, last_attempted_at=began)
        close_old_connections()
        running = _RUNNING.set(delivery)
        try:
            task_started.send(type(self), task_result=result)
            context = [tasks.TaskContext(task_result=result)] if task.takes_context else []
            returned = task.call(*context, *result.args, **result.kwargs)
            _set(result, status=Status.SUCCESSFUL, finished_at=self._now(), _return_value=returned)
            task_finished.send(type(self), task_result=result)
        except Interrupted:  # by the end of the worker: the message goes back, uncounted
            raise
        except Exception as failure:
            if not result.is_finished:  # else a receiver of the signal has failed
                is_last = delivery.attempts >= config.max_deliveries or not comes_back(config)
                self._failed(result, failure, is_last=is_last)
            raise
        finally:
            _RUNNING.reset(running)
            close_old_connections()
        if config.results is None:
            return None
        times = {name: getattr(result, name).isoformat() for name in ("enqueued_at", "started_at", "finished_at")}
        return {**content, **times, "worker_ids": result.worker_ids, "returned": returned}

    def _failed(self, result: Any, failure: Exception, *, is_last: bool) -> None:
        kind, trace = type(failure), "".join(format_exception(failure))
        result.errors.append(TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=trace))
        _set(result, status=Status.FAILED if is_last else Status.READY)
        if is_last:
            _set(result, finished_at=self._now())
            task_finished.send(type(self), task_result=result)

    def _task_of(self, content: Any) -> tuple[Any, Mapping[str, Any]]:
        """Return the task that a message names, which must be a task: a message must not run just any function."""
        if not isinstance(content, dict) or content.get("v") != VERSION:
            found = content.get("v") if isinstance(content, dict) else type(content).__name__
            raise InvalidRequest(
                f"a message with the form {shown(found)} is not a task that this version can run; it knows {VERSION}: "
                "publish by the task's enqueue(), and upgrade the workers first"
            )
        task = import_string(content["task"])
        if not isinstance(task, Task):
            raise InvalidRequest(
                f"{shown(content['task'])} is a {type(task).__name__}, and no task: decorate it with @task"
            )
        return task.using(queue_name=content["queue"], priority=content["priority"], backend=self.alias), content

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.registry.store.seams.wall(), timezone.utc)


def task_worker(alias: str = "default", *, queues: Collection[str] | None = None, **settings: Any) -> Worker:
    """Return a worker that runs the tasks of a backend; call it after `django.setup()`, and run what it returns.

    alias: of the backend, in TASKS.
    queues: names of queues; default the QUEUES of the backend. Each is worked with all of its levels.
    settings: of the `Worker`, such as weights, by the names of the sharded queues: {"default-urgent": 8, "default": 2}.

    No call. Raises `InvalidRequest`.
    """
    backend = tasks.task_backends[alias]
    if not isinstance(backend, QueueBackend):
        raise InvalidRequest(f"the backend {shown(alias)} is a {type(backend).__name__}; it must be a QueueBackend")
    names = sorted(backend.queues) if queues is None else list(queues)
    if isinstance(queues, str) or not names:
        raise InvalidRequest(f"queues is {shown(queues)}; give the names of the queues, as QUEUES has none")
    worker = Worker(backend.registry, **settings)
    for name in backend.queue_names(names):
        worker.handler(name)(backend.run)
    return worker


def current_delivery() -> Delivery:
    """Return the delivery of the task that runs: for its `operate` and `once`, whose effects happen once however often
    the task runs, and its `check`, at points where a long task may stop. Raises `InvalidRequest` outside of a task.
    """
    delivery = _RUNNING.get()
    if delivery is None:
        raise InvalidRequest("no task of a QueueBackend runs here; call this in a task, in the context of its call")
    return delivery


_RUNNING: ContextVar[Delivery | None] = ContextVar("latchwork_task", default=None)
_REGISTRIES: dict[tuple[Any, str], QueueRegistry] = {}
"""Of this process, by the store that was asked for and the client: Django makes a backend for each thread."""


def _checked_levels(levels: Any) -> dict[str, int]:
    if levels is None:
        return {"": LOWEST}
    example = "give the lowest priority of each, as {'-urgent': 50, '': 0, '-bulk': -100}"
    if not isinstance(levels, Mapping) or not all(isinstance(ending, str) for ending in levels):
        raise InvalidRequest(f"levels is {shown(levels)}; it has endings of queues' names: {example}")
    found = dict(levels)
    for level in found.values():
        if not is_int(level) or not LOWEST <= level <= HIGHEST:
            raise InvalidRequest(f"a level of {shown(level)}; it must be {LOWEST} to {HIGHEST}: {example}")
    if LOWEST not in found.values() or len(set(found.values())) < len(found):
        raise InvalidRequest(f"levels is {shown(found)}; each differs from the others, and one is {LOWEST}: {example}")
    return found


def _result(task: Any, id: str, backend: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return a result that is ready. Raises `TypeError` for arguments that are not JSON."""
    return tasks.TaskResult(
        task=task, id=id, status=Status.READY, enqueued_at=None, started_at=None, finished_at=None,
        last_attempted_at=None, args=args, kwargs=kwargs, backend=backend, errors=[], worker_ids=[],
    )  # fmt: skip


def _set(result: Any, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(result, name, value)  # as Django's own backends do: it is frozen for others


def _due(run_after: datetime | None, queue: ShardedQueue) -> datetime | None:
    """Return when the task is due. Raises `InvalidRequest` if that is too far ahead, before the transaction commits."""
    if run_after is None:
        return None
    due = make_aware(run_after) if is_naive(run_after) else run_after
    ahead, limit = due.timestamp() - queue.store.seams.wall(), limit_of(queue.config).total_seconds()
    checked_number("the number of seconds until run_after", max(0.0, ahead), 0, limit)
    return due


def _error_of(text: str) -> Any:
    """Return an error as it is kept with a message: the name of its class without the module, and its text."""
    name = text.partition(":")[0]
    return TaskError(exception_class_path=f"builtins.{name}" if hasattr(builtins, name) else name, traceback=text)
