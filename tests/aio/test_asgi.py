"""One service on Starlette, FastAPI and Litestar: it publishes by its requests, and its worker handles that."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

import latchwork
from latchwork import aio
from latchwork.asgi import Lifespan
from latchwork.errors import InvalidRequest, NotFound
from latchwork.queue import QueueConfig, QueueRegistry, Worker
from latchwork.store import MemoryStore

HANDLED = []


def starlette(service, order):
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def endpoint(request):
        return PlainTextResponse(await order())

    return Starlette(routes=[Route("/order", endpoint)], lifespan=service)


def fastapi(service, order):
    from fastapi import FastAPI
    from fastapi.responses import PlainTextResponse

    app = FastAPI(lifespan=service)

    async def endpoint():
        return PlainTextResponse(await order())

    app.get("/order")(endpoint)
    return app


def litestar(service, order):
    from litestar import Litestar, get

    async def endpoint() -> str:
        return await order()

    return Litestar(route_handlers=[get("/order", media_type="text/plain")(endpoint)], lifespan=[service])


FRAMEWORKS = {"starlette": starlette, "fastapi": fastapi, "litestar": litestar}


def worker_of(registry):
    worker = aio.Worker(registry, upkeep=False)

    @worker.handler("orders", concurrency=20)
    async def handle(delivery):
        HANDLED.append(delivery.payload)

    return worker


async def served(app, requests):
    """Run an ASGI application through its lifespan, with some requests at a time in it; their bodies."""
    told, asked = asyncio.Queue(), asyncio.Queue()
    await asked.put({"type": "lifespan.startup"})
    life = asyncio.ensure_future(
        app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, asked.get, told.put)
    )
    started = await told.get()
    assert started["type"] == "lifespan.startup.complete", started

    async def one():
        answers = []

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            answers.append(message)

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "path": "/order",
            "raw_path": b"/order", "query_string": b"", "headers": [], "client": ("here", 1), "server": ("here", 2),
            "scheme": "http", "root_path": "", "state": {},
        }  # fmt: skip
        await app(scope, receive, send)
        assert answers[0]["status"] == 200, answers
        return b"".join(answer.get("body", b"") for answer in answers)

    bodies = await asyncio.gather(*(one() for _ in range(requests)))
    await asked.put({"type": "lifespan.shutdown"})
    assert (await told.get())["type"] == "lifespan.shutdown.complete"
    await life
    return bodies


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_same_service_runs_on_each_framework(framework, tmp_path):
    pytest.importorskip(framework)
    HANDLED.clear()
    url = f"sqlite:{tmp_path}/s.db?synchronous=off"
    store = latchwork.connect(url)
    queue = QueueRegistry(store, "shop").create(QueueConfig("orders", shards=1))
    service = Lifespan(url, client_id="shop", publish=["orders"], worker=worker_of)

    async def order():
        async with aio.FencedLock(service.store, "stock"):
            publication = await service.publisher("orders").publish({"sku": 7})
            return await publication

    with pytest.raises(InvalidRequest, match="does not run"):
        _ = service.store
    bodies = asyncio.run(asyncio.wait_for(served(FRAMEWORKS[framework](service, order), 10), 60))
    assert len(set(bodies)) == 10
    assert len(HANDLED) + queue.depth().ready == 10, "what was published is handled, or still there"
    with pytest.raises(InvalidRequest, match="does not run"):
        service.publisher("orders")
    store.close()


@pytest.mark.parametrize("wrong", [{"publish": "orders"}, {"publish": 3}, {"worker": 3}])
def test_settings_of_a_service_that_cannot_be_are_refused(wrong):
    with pytest.raises(InvalidRequest):
        Lifespan("memory:", client_id="shop", **wrong)


def test_a_worker_that_is_not_awaited_is_refused_by_its_name():
    service = Lifespan("memory:", client_id="shop", worker=lambda _: Worker(QueueRegistry(MemoryStore(), "shop")))

    async def main():
        async with service():
            pass

    with pytest.raises(InvalidRequest, match="worker"):
        asyncio.run(main())


def test_a_service_that_is_open_is_refused_to_a_second_application_and_opens_again_once_it_is_closed():
    service = Lifespan("memory:", client_id="shop")

    async def main():
        for _ in range(2):
            async with service("first"):
                with pytest.raises(InvalidRequest, match="make another one"):
                    async with service("second"):
                        pass
                assert not await service.registry.queues(), "the first application has what it opened"

    asyncio.run(main())


def test_a_service_that_did_not_open_can_be_opened_again(tmp_path):
    url = f"sqlite:{tmp_path}/s.db?synchronous=off"
    service = Lifespan(url, client_id="shop", publish=["orders"])

    async def run():
        async with service():
            return await (await service.publisher("orders").publish("first"))

    with pytest.raises(NotFound):
        asyncio.run(run())
    with latchwork.connect(url) as store:
        QueueRegistry(store, "shop").create(QueueConfig("orders", shards=1))
    assert asyncio.run(run())


def test_a_handler_publishes_by_the_service_from_its_first_message_until_the_worker_has_drained(tmp_path):
    url = f"sqlite:{tmp_path}/s.db?synchronous=off"
    store = latchwork.connect(url)
    registry = QueueRegistry(store, "shop")
    queue, following = (registry.create(QueueConfig(name, shards=1)) for name in ("orders", "next"))
    queue.publish("first")
    handled = []

    async def run():
        began, ends = asyncio.Event(), asyncio.Event()

        class Eager(aio.Worker):
            """A worker whose start lasts until it has handled a message."""

            async def __aenter__(self):
                entered = await super().__aenter__()
                while len(handled) < 1:  # it may fail, and come again much later
                    await asyncio.sleep(0.01)
                return entered

        def make(registry):
            worker = Eager(registry, upkeep=False)

            @worker.handler("orders", concurrency=1)
            async def handle(delivery):
                if delivery.payload == "last":
                    began.set()
                    await ends.wait()
                try:
                    handled.append(await (await service.publisher("next").publish(delivery.payload)))
                except InvalidRequest as failure:
                    handled.append(failure)
                    raise

            return worker

        service = Lifespan(url, client_id="shop", publish=["next"], worker=make)
        async with service():
            queue.publish("last")
            await began.wait()
            asyncio.get_running_loop().call_later(0.1, ends.set)  # by now the worker drains

    asyncio.run(asyncio.wait_for(run(), 60))
    assert [message.payload for message in following.peek()] == ["first", "last"], handled
    store.close()


SERVICE = """
import os
from latchwork import aio
from latchwork.asgi import Lifespan
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

service = Lifespan(client_id="shop", publish=["orders"])

async def order(request):
    publication = await service.publisher("orders").publish({"sku": 7})
    return PlainTextResponse(f"{os.getpid()} {await publication}")

app = Starlette(routes=[Route("/order", order)], lifespan=service)
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.long
@pytest.mark.parametrize("server", ["uvicorn", "gunicorn"])
def test_a_server_with_four_workers_publishes_all_that_it_has_answered(server, tmp_path):
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    pytest.importorskip(server)
    (tmp_path / "service.py").write_text(SERVICE)
    url, port = f"sqlite:{tmp_path}/s.db?synchronous=off", free_port()
    store = latchwork.connect(url)
    queue = QueueRegistry(store, "shop").create(QueueConfig("orders", shards=1))
    at = f"127.0.0.1:{port}"
    command = {
        "uvicorn": ["uvicorn", "service:app", "--workers", "4", "--port", str(port), "--log-level", "warning"],
        "gunicorn": ["gunicorn", "service:app", "-w", "4", "-b", at, "-k", "uvicorn.workers.UvicornWorker"],
    }[server]
    if server == "gunicorn":
        pytest.importorskip("uvicorn.workers")
    child = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=tmp_path, env={**os.environ, "LATCHWORK_STORE": url}, start_new_session=True,
    )  # fmt: skip
    answers = []

    def ask():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)  # workers may still start
        connection.request("GET", "/order")
        answers.append(connection.getresponse().read().decode())
        connection.close()

    try:
        _until_it_answers(port)
        end = time.monotonic() + 20
        while len(answers) < 60 or (len({answer.split()[0] for answer in answers}) < 2 and time.monotonic() < end):
            threads = [threading.Thread(target=ask) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        child.send_signal(signal.SIGTERM)
        child.wait(30)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert len({answer.split()[0] for answer in answers}) > 1, "several processes have answered"
    assert queue.depth().ready == len(answers)
    store.close()


def _until_it_answers(port):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise AssertionError("the server has not started")
