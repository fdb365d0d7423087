"""A real server that hangs, or is away for a while: no verb ends much later than its timeout, no wait before it.

Real time passes here, as the client's own timeouts are what is tested; the bounds leave a second for a busy machine, as
well as the time for which this process stood still.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from latchwork.coord import (
    Barrier,
    CountDownLatch,
    FencedLock,
    Group,
    LeaseElection,
    RateLimiter,
    ReadWriteLock,
    Semaphore,
)
from latchwork.errors import LatchworkError
from latchwork.queue import Consumer, LargeQueue, QueueConfig, QueueRegistry
from latchwork.store import Exists, Key, Put
from latchwork.store.aerospike import AerospikeStore
from tests.support.proxy import Proxy
from tests.support.real_servers import or_skip
from tests.support.waiting import described
from tools import servers

LATEST = 1.0
"""Seconds that a verb may be late."""
BUSY = 1.0
"""Seconds that a busy machine may add."""


@pytest.fixture(scope="module")
def server():
    """A server of our own, to be stopped."""
    with or_skip():
        made = servers.started(servers.Asd())
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(server):
    store = AerospikeStore.from_url(server.url)
    described(store)  # so that no test connects while the server hangs
    return store


@pytest.fixture
def store(server, shared):
    """A store on it; whatever the test did to the server, it goes on afterwards."""
    yield shared
    server.send(signal.SIGCONT)

    def answers():
        with suppress(LatchworkError):
            shared.operate(Key("hung", "answers"), Put("n", 1), exists=Exists.ANY)
            return True

    servers.until(answers)


def large(store):
    queue = LargeQueue.open_or_create(store, "hung-large", 100)
    queue.enqueue(0)
    return queue


def sharded(store, refresh=None):
    queue = QueueRegistry(store, "hung").create(QueueConfig("orders", shards=2))
    queue.publish({"n": 1})
    return queue


def stopping(store):
    """A consumer whose handler does not return before its queue's grace is over."""
    queue, begun = sharded(store), threading.Event()
    consumer = Consumer(queue, lambda _: begun.set() or time.sleep(20), concurrency=1).start()
    assert begun.wait(20)
    return consumer


VERBS = {
    "latch.wait": (lambda s: CountDownLatch.create(s, "hung", str(time.monotonic()), 1), lambda it: it.wait(1), 1),
    "lock.acquire": (lambda s: FencedLock(s, "hung"), lambda it: it.acquire(1), 1),
    "lock.try_acquire": (lambda s: FencedLock(s, "hung"), lambda it: it.try_acquire(), 0),
    "semaphore.acquire": (lambda s: Semaphore(s, "hung", permits=2), lambda it: it.acquire(timeout=1), 1),
    "semaphore.try_acquire": (lambda s: Semaphore(s, "hung", permits=2), lambda it: it.try_acquire(), 0),
    "rwlock.read": (lambda s: ReadWriteLock(s, "hung"), lambda it: it.read(1), 1),
    "rwlock.write": (lambda s: ReadWriteLock(s, "hung"), lambda it: it.write(1), 1),
    "barrier.wait": (lambda s: Barrier(s, "hung", "b", parties=["a", "b"]), lambda it: it.wait("a", timeout=1), 1),
    "group.watch": (lambda s: Group(s, "hung"), lambda it: list(it.watch(1)), 1),
    "limiter.acquire": (lambda s: RateLimiter(s, "hung", 5, 60), lambda it: it.acquire(1), 1),
    "election.run": (lambda s: LeaseElection(s, "hung"), lambda it: it.run(print, timeout=1), 1),
    "large.enqueue": (large, lambda it: it.enqueue(1, timeout=1), 1),
    "large.dequeue": (large, lambda it: it.dequeue(timeout=1), 1),
    "large.transaction": (large, lambda it: it.transaction("t", timeout=1), 1),
    "receive": (sharded, lambda it: it.receive(timeout=1), 1),
    "receive at once": (sharded, lambda it: it.receive(timeout=0), 0),
    "consumer.stop": (stopping, lambda it: it.stop(grace=1), 1),
}


@contextmanager
def stalls():
    """Gives a list of the times, in seconds, for which this process stood still: a nap of 10 ms lasted as long. Those
    below a tenth are left to `BUSY`: they are many, and would make the bound too wide.
    """
    found, over = [], threading.Event()

    def nap():
        before, is_last = time.monotonic(), False
        while not is_last:
            is_last = over.is_set()
            time.sleep(0.01)
            now = time.monotonic()
            if now - before > 0.1:
                found.append(now - before)
            before = now

    napping = threading.Thread(target=nap)
    napping.start()
    try:
        yield found
    finally:
        over.set()
        napping.join()


@pytest.mark.matrix
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_ends_a_second_after_its_timeout_while_the_server_hangs(server, store, verb):
    make, call, timeout = VERBS[verb]
    it = make(store)
    server.send(signal.SIGSTOP)
    with stalls() as stalled:
        began = time.monotonic()
        with suppress(LatchworkError):
            assert not call(it)
        took = time.monotonic() - began
    assert timeout <= took < timeout + LATEST + BUSY + sum(stalled)


class Away:
    """A server behind a proxy that is away for some seconds: nobody listens at its address."""

    def __init__(self, server, seconds):
        self.server, self.seconds, self.back = server, seconds, None
        self.proxy = Proxy(server.proxy_port, server.port)
        self.store = AerospikeStore.from_url(
            f"aerospike://127.0.0.1:{self.proxy.port}/{server.namespace}?services_alternate=true"
        )
        described(self.store)

    def begin(self):
        self.proxy.close()
        threading.Thread(target=self._come_back, daemon=True).start()

    def _come_back(self):
        time.sleep(self.seconds)
        self.back = time.monotonic()  # before it is: a call may have ended by the time that `open` has
        self.proxy.open()

    def close(self):
        self.store.close()
        self.proxy.close()


def released(store):
    latch = CountDownLatch.create(store, "away", str(time.monotonic()), 1)
    latch.count_down()
    return latch


OUTLIVING = {
    "latch.wait": (released, lambda it: it.wait(60)),
    "lock.acquire": (lambda s: FencedLock(s, "away"), lambda it: it.acquire(60).release()),
    "large.enqueue": (large, lambda it: it.enqueue(1, timeout=60) > 0),
    "receive": (sharded, lambda it: it.receive(timeout=60)),
}


@pytest.mark.parametrize("verb", OUTLIVING)
def test_a_wait_outlives_a_server_that_is_away_for_a_while(server, store, verb):
    make, call = OUTLIVING[verb]
    away = Away(server, 2.5)
    try:
        it = make(away.store)
        away.begin()
        assert call(it)
        assert away.back is not None, "not before the server was back"
    finally:
        away.close()
