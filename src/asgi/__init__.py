"""A lifespan for Starlette, FastAPI and Litestar: a store, publishers and, if wanted, a worker.

latchwork = Lifespan("aerospike://db/test", client_id="shop", publish=["orders"])
app = FastAPI(lifespan=latchwork)            # Starlette(lifespan=latchwork), Litestar(lifespan=[latchwork])

@app.post("/orders")
async def order(order: Order) -> str:
    return await (await latchwork.publisher("orders").publish(order.model_dump()))
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from ..aio.consumer import Worker
from ..aio.queue import Publisher, QueueRegistry
from ..aio.store import Store, connect
from ..errors import InvalidRequest
from ..inputs import checked_callable, checked_kind
from ..plain import shown

__all__ = ["Lifespan"]

T = TypeVar("T")


class Lifespan:
    """What a service needs while it runs: called with the application, it is an async context manager.

    url: of the store, as for `latchwork.connect`.
    client_id: of the queues.
    publish: names of queues, each of which gets a publisher; they must exist when the service starts.
    worker: a function that makes a worker of the registry; it is started with the service, and drained at its end. Its
        handlers may use the store, the registry and the publishers, also while it drains.

    Each process of a server (uvicorn's and gunicorn's workers) opens its own. Signals are left to the server. It is
    safe to share between threads.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        client_id: str,
        publish: Collection[str] = (),
        worker: Callable[[QueueRegistry], Worker] | None = None,
    ) -> None:
        if isinstance(publish, str) or not isinstance(publish, Collection):
            raise InvalidRequest(f"publish is {shown(publish)}; give a list of the names of queues")
        self._url, self._client_id, self._publish = url, client_id, list(publish)
        self._make_worker = None if worker is None else checked_callable("worker", worker)
        self._publishers: dict[str, Publisher] = {}
        self._registry: QueueRegistry | None = None
        self._store: Store | None = None
        self._is_open = False

    @asynccontextmanager
    async def __call__(self, app: object = None) -> AsyncIterator[None]:  # noqa: ARG002 - what the servers call it with
        """Open all for as long as the block lasts; at its end the worker drains, and what waits is published.

        Raises `InvalidRequest` while it is open already, as for another application.
        """
        if self._is_open:
            raise InvalidRequest("this Lifespan is open, and serves one application at a time: make another one")
        async with AsyncExitStack() as stack:
            self._is_open = True
            stack.callback(setattr, self, "_is_open", False)
            store = await stack.enter_async_context(connect(self._url))
            registry = QueueRegistry(store, self._client_id)
            queues = [await registry.get(name) for name in self._publish]
            opened = {queue.name: await stack.enter_async_context(queue.publisher()) for queue in queues}
            # From before the worker starts until it has drained: its handlers use them too.
            self._store, self._registry, self._publishers = store, registry, opened
            stack.callback(self._forget)
            if self._make_worker is not None:
                worker = checked_kind("what the function `worker` returned", self._make_worker(registry), Worker)
                await stack.enter_async_context(worker)
            yield

    def _forget(self) -> None:
        self._store, self._registry, self._publishers = None, None, {}

    @property
    def store(self) -> Store:
        """The store. Raises `InvalidRequest` while the service does not run."""
        return _there(self._store)

    @property
    def registry(self) -> QueueRegistry:
        """The registry. Raises `InvalidRequest` while the service does not run."""
        return _there(self._registry)

    def publisher(self, queue: str) -> Publisher:
        """Return the publisher of this queue, which all requests share. Raises `InvalidRequest` if it has none."""
        return _there(self._publishers.get(queue))


def _there(found: T | None) -> T:
    if found is None:
        raise InvalidRequest("the service does not run yet, or any more, or was given no such queue to publish to")
    return found
