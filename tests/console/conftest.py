"""A store with something of everything, and people who look at it over HTTP."""

from __future__ import annotations

import asyncio
import re
import threading
import warnings
from html import unescape
from urllib.parse import urlencode

import pytest
from httpx import ASGITransport, BaseTransport, Client, Response

from latchwork.console import Access, app
from latchwork.coord import CountDownLatch, FencedLock, Semaphore
from latchwork.coord.election.candidates import Candidates
from latchwork.queue import QueueConfig, QueueRegistry, Schedule
from latchwork.queue.sharded.history import NOT_FAILING, figures_of, noting
from latchwork.queue.sharded.stats import stats_of
from latchwork.queue.sharded.stream import take
from latchwork.queue.sharded.workers import WorkerReport, reporting
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore

BASE = "http://localhost:8765"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
ORIGIN = {"Origin": BASE, "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return FaultyStore(MemoryStore(clock), seams=clock)


@pytest.fixture
def registry(store):
    return QueueRegistry(store, "shop", farm_id="iad")


@pytest.fixture
def orders(registry):
    return fill(registry)


def fill(registry, text="plain"):
    """A queue with messages in each side, and one of everything beside it; `text` stands wherever a text can."""
    store, queue = registry.store, registry.create(QueueConfig("orders", shards=2, max_deliveries=1))
    queue.publish_many([{"secret": f"{text} {n}"} for n in range(3)], message_ids=[f"{text}-{n}" for n in range(3)],
                       headers={"tenant": text})  # fmt: skip
    for delivery in queue.receive(3):
        delivery.nack("exception", error=text)
    queue.publish({"secret": text}, delay=600, message_id=f"{text}-later")
    queue.publish({"secret": text})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        queue.pause(by=text)
    queue.resume(by=text)
    report = WorkerReport(f"{text}:17:x@iad", 0.0, queue.live.changed, 4, 1, 5, 2, reasons={"exception": 2})
    queue.store.repeat(reporting(queue, report))
    queue.store.repeat(
        noting(queue, int(store.seams.wall() * 1000), figures_of(stats_of(queue), [report], None, 1, NOT_FAILING))
    )
    latch = CountDownLatch.create(store, "shop", text[:40], parties=[text, "b"], farm_id="iad")
    assert latch.count() == 2
    FencedLock(store, f"lock {text}", owner=text).acquire(0)
    FencedLock(store, f"office {text}", owner=text).acquire(0)  # as an election has it
    Candidates(store, f"office {text}").report(text, 60)
    Semaphore(store, f"db {text}", permits=3, owner=text).acquire(timeout=0)
    take(registry.create(QueueConfig("streamed", shards=1)).pointers, text)
    registry.schedule(Schedule("often", queue="orders", every=30, payload=text))
    return queue


class _Here(threading.local):
    """The event loop of this thread."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()


HERE = _Here()


class Transport(BaseTransport):
    """Hands each request to an application on the loop of this thread. Starlette's own client starts a loop and a
    thread for each, which took half of the time.
    """

    def __init__(self, app):
        self._inner = ASGITransport(app, client=("testclient", 50_000))

    def handle_request(self, request):
        return HERE.loop.run_until_complete(self._answered(request))

    async def _answered(self, request):
        answer = await self._inner.handle_async_request(request)
        return Response(answer.status_code, headers=answer.headers, content=await answer.aread())


def client(app):
    """A browser at an application, that keeps cookies and follows no redirection."""
    return Client(transport=Transport(app), base_url=BASE, follow_redirects=False)


class Person:
    """Somebody with a browser, as far as HTTP goes."""

    def __init__(self, store, access, **settings):
        settings.setdefault("actions", True)
        self.app = app({"iad": store}, ["shop"], authorize=access if callable(access) else lambda _: access, **settings)
        self.http = client(self.app)

    def get(self, path, **headers):
        return self.http.get(path, headers=headers)

    def post(self, path, fields, headers=ORIGIN):
        return self.http.post(path, content=urlencode(fields, doseq=True), headers=FORM | headers)

    def asks(self, verb, **more):
        """The fields of the confirmation, and its page."""
        page = self.http.get("/act", params={"verb": verb, **KEY, **more})
        return fields_of(page.text), page

    def does(self, verb, **more):
        fields, page = self.asks(verb, **more)
        return self.post("/act", fields) if "ticket" in fields else page


KEY = {"farm": "iad", "client": "shop", "name": "orders"}


def fields_of(page):
    """The hidden fields of the form of a page; of those that come more than once a list."""
    fields = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page):
        fields.setdefault(name, []).append(unescape(value))
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}


class Served:
    """What a command would serve: the configuration, and the addresses at which it listens."""

    config = None
    addresses = ()


def serving(monkeypatch):
    """Let `latchwork console` end where it would serve; what it would serve is then in what is returned."""
    served = Served()

    def run(server, sockets):
        served.config, served.addresses = server.config, [one.getsockname()[0] for one in sockets]
        for one in sockets:
            one.close()
        server.started = True

    monkeypatch.setattr("uvicorn.Server.run", run)
    return served


@pytest.fixture
def person(store):
    return lambda role="viewer", payloads=False, **more: Person(store, Access("anna", role, payloads), **more)
