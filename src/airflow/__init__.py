"""Airflow: a sensor of a latch, a trigger that makes events of messages, and a pool that several deployments share.

LatchSensor(task_id="all_farms", client_id="etl", latch_id="load-{{ ds }}", timeout=3600)

trigger = MessageTrigger(client_id="shop", queue="orders")
orders = Asset("orders", watchers=[AssetWatcher(name="orders", trigger=trigger)])

with SharedPool("warehouse", 4).slot(timeout=600) as permits:      # in a task
    permits.operate(Key("tables", "orders"), Put("day", "2026-11-27"))

The store is what `latchwork.connect()` finds: set $LATCHWORK_STORE for the workers and the triggerer. A URL that is
given to a sensor or a trigger is shown by Airflow, and stored in its database: give none with a password.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

import msgspec

from ..aio.coord import CountDownLatch as AwaitedLatch
from ..aio.queue import Delivery, QueueRegistry
from ..aio.store import Store
from ..aio.store import connect as aio_connect
from ..coord import CountDownLatch, LatchLevel, Permits, Semaphore
from ..errors import InvalidRequest, LatchworkError, LockUnavailable, NotFound
from ..inputs import checked_choice, checked_switch
from ..logs import Log
from ..plain import shown
from ..queue import QueueConfig
from ..retry import may_pass
from ..seams import Seams
from ..store.connect import connect

try:
    from airflow.sdk import BaseSensorOperator, get_current_context
    from airflow.sdk.exceptions import AirflowException
    from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent
    from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing}: pip install 'latchwork[airflow]'", name=missing.name) from None

__all__ = ["LatchSensor", "LatchTrigger", "MessageTrigger", "SharedPool"]

log = Log(__name__)

IN_HAND = 100
"""Messages that a trigger has taken, and whose events Airflow has not stored yet."""
AGAIN = 5.0
"""Seconds after which messages are asked for again, where the store did not answer."""
OWNER = 255
"""Bytes of the name of a task, as the holder of a slot."""


class LatchSensor(BaseSensorOperator):  # type: ignore[misc] # Airflow is not installed where types are checked
    """A sensor that is done when a latch is released. While it waits it takes no worker, as it is deferred.

    client_id, latch_id, farm_id, level: of the latch, as for `latchwork.coord.CountDownLatch.get`. Templated.
    create_timeout: seconds for which the latch may not be there yet; default: as long as the sensor waits.
    store: a URL without a password, templated; default: what `latchwork.connect()` finds.
    deferrable: False = it looks at each `poke_interval`, in a worker.
    timeout, soft_fail and all else: as in every sensor.

    It fails where the latch has expired: that is no release. In the mode "reschedule" each look is a process of its
    own, and notices that only once `create_timeout` is over. An outage of the store does not end the wait. Airflow uses
    it in one thread at a time.
    """

    template_fields: Sequence[str] = ("client_id", "latch_id", "farm_id", "store")

    def __init__(
        self,
        *,
        client_id: str,
        latch_id: str,
        farm_id: str | None = None,
        level: str | LatchLevel = LatchLevel.DC,
        create_timeout: float | None = None,
        store: str | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.client_id, self.latch_id, self.farm_id, self.store = client_id, latch_id, farm_id, store
        named = level.value if isinstance(level, LatchLevel) else level
        self.level = checked_choice("level", named, [one.value for one in LatchLevel])
        self.create_timeout = create_timeout
        self.deferrable = checked_switch("deferrable", deferrable)
        self._there = False
        self._absent_since: float | None = None

    def execute(self, context: Any) -> Any:
        """Return at once if the latch is released; else wait in the triggerer."""
        self._there, self._absent_since = False, None
        if not self.deferrable:
            return super().execute(context)
        if not self.poke(context):
            patience = self.timeout if self.create_timeout is None else self.create_timeout
            trigger = LatchTrigger(
                client_id=self.client_id, latch_id=self.latch_id, farm_id=self.farm_id, level=self.level,
                create_timeout=0 if self._there else patience, store=self.store,
            )  # fmt: skip
            self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))
        return None

    def poke(self, context: Any) -> bool:
        """Whether the latch is released now; one call. One that is not there yet is not, nor is one whose store is
        away.

        Raises `AirflowException` where the latch was there at an earlier look, and is not any more, and, where the
        sensor waits in a worker, once `create_timeout` is over.
        """
        store = connect(self.store)
        try:
            latch = CountDownLatch.get(
                store, self.client_id, self.latch_id, farm_id=self.farm_id, level=LatchLevel(self.level)
            )
            released = latch.wait(0)
            self._there = True
            return released
        except NotFound as absent:
            if self._there or self._is_late(context, store.seams):
                raise AirflowException(str(absent)) from absent
            return False
        except LatchworkError as failure:
            if not may_pass(failure):
                raise
            log.warning("latch %s cannot be read now, and is looked at again: %s", self.latch_id, failure)
            return False
        finally:
            store.close()

    def _is_late(self, context: Any, seams: Seams) -> bool:
        """Whether the latch had to be there by now. A trigger decides that by itself."""
        if self.deferrable or self.create_timeout is None:
            return False
        if self.reschedule:  # each look is a process of its own
            first = context["ti"].get_first_reschedule_date(context)
            waited = 0.0 if first is None else seams.wall() - first.timestamp()
        else:
            now = seams.monotonic()
            self._absent_since = now if self._absent_since is None else self._absent_since
            waited = now - self._absent_since
        return waited >= self.create_timeout

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> None:  # noqa: ARG002 - as above
        """End when the trigger has fired. Raises `AirflowException` where the latch was not there, or has expired."""
        if not event["released"]:
            raise AirflowException(event["error"])


class LatchTrigger(BaseTrigger):  # type: ignore[misc] # as above
    """A trigger that fires when a latch is released, or is not there. `LatchSensor` makes it, and a triggerer
    uses it in one thread at a time.
    """

    def __init__(
        self,
        *,
        client_id: str,
        latch_id: str,
        farm_id: str | None = None,
        level: str = LatchLevel.DC.value,
        create_timeout: float = 0,
        store: str | None = None,
    ) -> None:
        super().__init__()
        self.client_id, self.latch_id, self.farm_id, self.level = client_id, latch_id, farm_id, level
        self.create_timeout, self.store = create_timeout, store

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class, and the arguments."""
        names = ("client_id", "latch_id", "farm_id", "level", "create_timeout", "store")
        return f"{__name__}.LatchTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[Any]:
        """Yield one event, `{"released", "error"}`. At most 40 reads a second for all triggers of a process."""
        async with _shared(self.store) as store:
            latch = AwaitedLatch.get(
                store, self.client_id, self.latch_id, farm_id=self.farm_id, level=LatchLevel(self.level)
            )
            try:
                await latch.wait(None, create_timeout=self.create_timeout)
                yield TriggerEvent({"released": True, "error": None})
            except NotFound as failure:
                yield TriggerEvent({"released": False, "error": str(failure)})


class MessageTrigger(BaseEventTrigger):  # type: ignore[misc] # as above
    """A trigger for the watchers of assets: each message of a queue is an event of the asset.

    client_id, queue: of the queue, or of a group of it as `queue@group`, which must be there. Its payloads are JSON.
    store: as in `LatchSensor`.

    The event has the message's `id`, `payload` and `headers`. A message is acknowledged when Airflow has stored its
    event, and not before; where that fails it comes again. So an event may be there twice, with the same id. A message
    with a whole number of more than 64 bits has no event: it is failed, and parked in the end.

    All watchers of one queue in a triggerer get each message together, and take it once. Airflow uses it in one thread
    at a time.
    """

    def __init__(self, *, client_id: str, queue: str, store: str | None = None) -> None:
        super().__init__()
        self.client_id, self.queue, self.store = client_id, queue, store

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class, and the arguments."""
        return f"{__name__}.MessageTrigger", _queue_of(vars(self))

    def shared_stream_key(self) -> tuple[str, ...]:
        """Return the key that names the queue: triggers with the same key take messages together."""
        return "latchwork", self.store or "", self.client_id, self.queue

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Return what takes the messages, and acknowledges them once their events are stored."""
        return Messages(**_queue_of(kwargs))

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield an event for each message."""
        async for event in shared_stream:
            yield TriggerEvent(event)

    async def run(self) -> AsyncIterator[Any]:
        """Yield an event for each message, and acknowledge it when the next one is asked for.

        A triggerer does not call this: it takes the messages by the stream that triggers share.
        """
        messages = Messages(**_queue_of(vars(self)))
        try:
            async for event, delivery in messages.open_stream():
                yield TriggerEvent(event)
                await messages.settle(delivery)
        finally:
            await messages.aclose()


class Messages(SharedStreamProducer):  # type: ignore[misc] # as above
    """The messages of a queue, as a stream that the triggers of a triggerer share."""

    def __init__(self, *, client_id: str, queue: str, store: str | None = None) -> None:
        self._client_id, self._queue, self._url = client_id, queue, store
        self._room = asyncio.Semaphore(IN_HAND)
        self._store: Store | None = None

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, Any], Delivery]]:
        """Yield each message as it comes: what its event says, and the delivery. Does not end."""
        self._store = aio_connect(self._url)
        registry, queue = QueueRegistry(self._store, self._client_id), None
        while True:
            await self._room.acquire()
            try:
                queue = queue or await registry.get(self._queue)
                _check_json(queue.config)
                (delivery,) = await queue.receive(1, timeout=None)
            except LatchworkError as failure:
                if isinstance(failure, NotFound | InvalidRequest):
                    raise
                self._room.release()
                log.warning("%s gives no messages now, and is asked again in %s s: %s", self._queue, AGAIN, failure)
                await asyncio.sleep(AGAIN)
                continue
            event = {"id": delivery.message_id, "payload": delivery.payload, "headers": dict(delivery.headers)}
            try:
                msgspec.msgpack.encode(event)
            except OverflowError:  # Airflow sends events so, and its triggerer would end
                log.warning("%s has a whole number of more than 64 bits, and Airflow cannot take its event", delivery)
                await self.settle(delivery, error="Airflow takes no whole number of more than 64 bits")
                continue
            yield event, delivery

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Acknowledge the messages whose events all triggers have stored; fail the others, so that they come again."""
        for delivery, outcome in batch:
            await self.settle(delivery, error=None if outcome.is_clean else "Airflow has not stored its event")

    async def settle(self, delivery: Delivery, *, error: str | None = None) -> None:
        """Acknowledge a message, or fail it. An error is logged: the message comes again by the sweep."""
        try:
            await (delivery.ack() if error is None else delivery.nack(error=error))
        except LatchworkError as failure:
            log.warning("%s may come again: %s", delivery, failure)
        finally:
            self._room.release()

    def get_advance_lane(self, broker_payload: Delivery) -> str:
        """Return the message's id: no message waits for another one to be acknowledged."""
        return broker_payload.message_id

    async def aclose(self) -> None:
        """Close the store. What is not acknowledged comes again."""
        if self._store is not None:
            await self._store.close()


class SharedPool:
    """A pool of slots that the tasks of several Airflow deployments share: a `latchwork.coord.Semaphore`.

    name, slots: of the semaphore; as many slots as the first task says (`resize` changes it).
    store: a URL, or None for what `latchwork.connect()` finds.
    lease: seconds after which the slots of a worker that died are free, counted from when a task has begun to wait.

    Unlike a pool of Airflow, it is asked by the task, which takes a worker while it waits. Safe to share between
    threads.
    """

    def __init__(self, name: str, slots: int, *, store: str | None = None, lease: float = 30.0) -> None:
        self.name, self.slots, self._url, self.lease = name, slots, store, lease

    def __repr__(self) -> str:
        return f"SharedPool({self.name!r}, {self.slots})"

    @contextmanager
    def slot(self, n: int = 1, *, timeout: float | None) -> Iterator[Permits]:
        """Hold `n` slots for the block, kept alive, in the name of the task that runs.

        timeout: seconds to wait, None = no limit; more than the lease, as a shorter wait never gets the slot of a
            worker that died. Raises `LockUnavailable` after it: let the task's `retries` go on.

        Write by `permits.operate`: a task whose slot was given to another one, as after a pause of its machine, is
        refused. `permits.check()` raises as soon as that is known. Raises what a semaphore raises.
        """
        store = connect(self._url)
        try:
            semaphore = Semaphore(store, self.name, permits=self.slots, owner=_running(), lease=self.lease)
            try:
                held = semaphore.acquire(n, timeout=timeout, keep_alive=True)
            except LockUnavailable:
                if timeout is not None and timeout <= self.lease:
                    log.warning(
                        "a slot of %r that a dead worker has is free only to a task that waits for longer than the "
                        "lease, %s s; this one has waited for %s s", self.name, self.lease, timeout,
                    )  # fmt: skip
                raise
            with held as permits:
                yield permits
        finally:
            store.close()


@asynccontextmanager
async def _shared(url: str | None) -> AsyncIterator[Store]:
    """The store of all latches that this process waits for by this URL: what waits by one store is read together.

    The last one closes it. The triggers of a process run on one loop.
    """
    store, users = _OPEN.get(url) or (aio_connect(url), 0)
    _OPEN[url] = store, users + 1
    try:
        yield store
    finally:
        store, users = _OPEN.pop(url)
        if users > 1:
            _OPEN[url] = store, users - 1
        else:
            await store.close()


_OPEN: dict[str | None, tuple[Store, int]] = {}
"""By URL: the store, and how many use it."""


def _check_json(config: QueueConfig) -> None:
    """Raise `InvalidRequest` for a queue of bytes: Airflow's triggerer would end with an event that has some."""
    if config.codec == "bytes":
        raise InvalidRequest(
            f"the payloads of {shown(config.name)} are bytes, and Airflow stores JSON: use a queue with codec='json'"
        )


def _queue_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name in ("client_id", "queue", "store")}


def _running() -> str | None:
    """Return the name of the task that runs: `dag.task@run#try`; None outside of one."""
    try:
        task = get_current_context()["ti"]
    except RuntimeError:
        return None
    name = f"{task.dag_id}.{task.task_id}@{task.run_id}#{task.try_number}"
    return name.encode()[:OWNER].decode(errors="ignore")
