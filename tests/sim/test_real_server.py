"""A real Aerospike: histories of threads behind a proxy that loses requests and replies, judged by the simulator's
checkers; and a server that is killed and comes back empty.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid

import pytest

from latchwork.coord.latch.latch import CountDownLatch
from latchwork.coord.lock import FencedLock
from latchwork.errors import LatchworkError, NotFound
from latchwork.retry import RetryPolicy
from latchwork.store import NEVER, Add, Bin, Exists, Key, Once, Param, Put
from latchwork.store.aerospike.store import AerospikeStore
from tests.support.proxy import Fault
from tests.support.real_servers import or_skip
from tests.support.scale import FIRST, scaled
from tools import servers

from .checkers.linearizable import linearizable
from .checkers.models import Counter
from .history.record import History

N = Bin("n")
WAS = N.eq(Param("was", int))
AT_ONCE = 8
"""Histories at a time, each of a record of its own: most of what they do is wait for replies that do not come."""
ROUNDS = scaled(3)
PATIENCE = 250
"""Milliseconds after which a client takes a reply for lost."""
LOSSES = (Fault.DROP_REQUEST, Fault.DROP_REPLY, Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.LATE)
POLICY = RetryPolicy(attempts=3, wait=0.01, max_wait=0.05)


class Clock:
    """The order of what several threads see, for `History`."""

    def __init__(self):
        self._ticks = itertools.count(1)

    @property
    def now(self):
        return time.monotonic()

    def tick(self):
        return next(self._ticks)


def work(store, history, me, chance, key):
    """Additions, compare-and-sets and reads of one integer, each update exactly once."""
    once = Once(64, result=N)
    for _ in range(8):
        draw = chance.random()
        if draw < 0.2:
            history.call(me, "read", lambda: store.get(key, "n").bins["n"])
        elif draw < 0.7:
            history.call(me, "add", lambda: store.operate(key, Add("n", 1), once=once)[0], 1)
        else:
            was = chance.randrange(6)
            put = (Put("n", was + 1), WAS.bind(was=was))
            history.call(
                me, "swap", lambda put=put: store.operate(key, put[0], when=put[1], once=once)[0], was, was + 1
            )


@pytest.fixture
def stores(aerospike_server, aerospike_proxy):
    url = (
        f"aerospike://127.0.0.1:{aerospike_proxy.port}/{aerospike_server.namespace}"
        f"?services_alternate=true&socket_timeout={PATIENCE}&total_timeout={PATIENCE}"
    )
    made = [AerospikeStore.from_url(url).with_policy(POLICY) for _ in range(3)]
    yield made
    for store in made:
        store.close()


def test_histories_behind_a_proxy_that_loses_requests_and_replies_are_linearizable(
    stores, aerospike_store, aerospike_proxy, proved
):
    chance = random.Random(3 + FIRST)
    for _ in range(ROUNDS):
        histories = {Key("histories", uuid.uuid4().hex): History(Clock()) for _ in range(AT_ONCE)}
        for key in histories:
            aerospike_store.operate(key, Put("n", 0), exists=Exists.CREATE, ttl=NEVER)
        losses = (chance.choice(LOSSES) if chance.random() < 0.1 else Fault.PASS for _ in range(60 * AT_ONCE))
        aerospike_proxy.script.extend(losses)
        threads = [
            threading.Thread(target=work, args=(store, history, f"t{place}", random.Random(chance.random()), key))
            for key, history in histories.items()
            for place, store in enumerate(stores)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        aerospike_proxy.script.clear()
        aerospike_proxy.release()
        for key, history in histories.items():
            history.call("end", "read", lambda key=key: aerospike_store.get(key, "n").bins["n"])
            assert len(history.entries) == 25
            assert linearizable(history.entries, Counter()), [repr(entry) for entry in history.entries]
    fired = sum(aerospike_proxy.fired[fault] for fault in LOSSES)
    assert fired >= ROUNDS * AT_ONCE
    proved("histories", "real Aerospike", {"histories": ROUNDS * AT_ONCE, "F2 on a real server": fired})


@pytest.fixture
def own_server():
    """A server of this test alone, with its records in memory."""
    with or_skip():
        server = servers.started(servers.Asd())
    yield server
    server.close()


def test_a_killed_server_that_comes_back_empty_repeats_no_fence_and_releases_nobody(own_server, proved):
    store = AerospikeStore.from_url(own_server.url).with_policy(POLICY)
    first = FencedLock(store, "lock", lease=1.0).acquire(5)
    latch = CountDownLatch.create(store, "c", "l", 1)
    own_server.kill()
    with pytest.raises(LatchworkError) as away:
        latch.count()
    assert not isinstance(away.value, NotFound), "a server that is away is no absent record"
    own_server.start()
    second = servers.until(lambda: _acquired(store), timeout=30)
    assert second.fence > first.fence
    with pytest.raises(NotFound):
        latch.wait(1)
    store.close()
    proved("processes", "Aerospike server", {"killed": 1, "F6 on a real server": 1})


def _acquired(store):
    """The lock, once the client has found the server again."""
    try:
        return FencedLock(store, "lock", lease=1.0).acquire(1)
    except LatchworkError:
        return None
