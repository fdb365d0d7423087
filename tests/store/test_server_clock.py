"""What a server makes of its own clock when somebody sets it: time since the last update is never negative, and no
record is dated back (docs/protocols P0.3). The local stores count as a real server does.
"""

from __future__ import annotations

import random
import time
import uuid

import pytest

from latchwork.errors import AlreadyExists, NotFound, Refused
from latchwork.store import Add, Compute, Exists, Key, MemoryStore, Put, SQLiteStore
from latchwork.store.aerospike.store import AerospikeStore
from latchwork.store.model.expr import SERVER_NOW, SINCE_UPDATE
from latchwork.testing.clock import ManualClock
from tests.support.scale import length

HOUR = 3600
STAMPS = (Compute(SERVER_NOW), Compute(SINCE_UPDATE))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def local(request, tmp_path, clock):
    if request.param == "memory":
        yield MemoryStore(clock)
        return
    made = SQLiteStore(tmp_path / "store.db", synchronous="off", seams=clock)
    yield made
    made.close()


@pytest.fixture
def real(server_with_clock):
    made = AerospikeStore.from_url(server_with_clock.url)
    yield made
    made.close()


class Local:
    """A local store, and its clock."""

    def __init__(self, store, clock):
        self.store, self._clock, self._ahead = store, clock, 0
        self._began = clock.wall()

    def set_clock(self, ahead):
        self._clock.step(ahead - self._ahead)
        self._ahead = ahead

    def true_time(self):
        return self._began


class Real:
    """A real server, and its clock."""

    def __init__(self, store, server):
        self.store, self._server = store, server

    def set_clock(self, ahead):
        self._server.set_clock(ahead)

    def true_time(self):
        return time.time()


def steps(seed):
    """A way through writes, reads, deletes and steps of the clock: what is done, and with which number."""
    rng = random.Random(seed)
    for _ in range(40):
        yield rng.choice(("clock", "write", "write", "read", "read", "guard", "make", "delete")), rng.randint(-3, 3)


def told(world, key, seed):
    """What the store says of its time, and of the time since the update, in whole hours ahead of true time."""
    said = []
    for what, number in steps(seed):
        if what == "clock":
            world.set_clock(number * HOUR)
        else:
            said.append((what, number, _answer(world, key, what, number)))
    world.set_clock(0)
    return said


def _answer(world, key, what, number):
    store = world.store
    try:
        if what == "delete":
            return store.delete(key)
        if what == "write":
            return _hours(world, store.operate(key, Add("n", 1), *STAMPS))
        if what == "make":
            return _hours(world, store.operate(key, Put("n", 1), *STAMPS, exists=Exists.CREATE, ttl=100 * HOUR))
        if what == "guard":
            passed = (number * HOUR - 1800) * 1000 < SINCE_UPDATE
            return _hours(world, store.operate(key, Add("n", 1), *STAMPS, when=passed))
        return _hours(world, store.operate(key, *STAMPS))
    except (NotFound, Refused, AlreadyExists) as failure:
        return type(failure).__name__


def _hours(world, stamps):
    now, since = stamps
    return round((now / 1000 - world.true_time()) / HOUR), round(since / 1000 / HOUR)


def test_a_local_store_says_of_its_time_what_a_real_server_says(local, clock, real, server_with_clock):
    for seed in range(length(10, least=4)):
        key = Key("clock", uuid.uuid4().hex)
        assert told(Local(local, clock), key, seed) == told(Real(real, server_with_clock), key, seed), seed


# ---- the facts themselves, so that they are known where no real server is to be had


def test_the_time_since_an_update_is_never_negative(local, clock):
    key = Key("clock", "k")
    local.operate(key, Put("n", 1), exists=Exists.ANY)
    clock.step(-HOUR)
    (written,) = local.operate(key, Compute(SERVER_NOW))
    clock.advance(10)
    assert local.operate(key, *STAMPS) == (written, 0)


def test_a_record_is_never_dated_back(local, clock):
    key = Key("clock", "k")
    (made,) = local.operate(key, Put("n", 1), Compute(SERVER_NOW), exists=Exists.ANY)
    clock.step(-HOUR)
    clock.advance(60)
    assert local.operate(key, Add("n", 1), *STAMPS) == (made, 0)
    clock.step(HOUR)
    assert local.operate(key, *STAMPS) == (made + 60_000, 60_000)


def test_a_new_record_has_the_time_of_the_clock_as_it_is(local, clock):
    old, new = Key("clock", "old"), Key("clock", "new")
    (before,) = local.operate(old, Put("n", 1), Compute(SERVER_NOW), exists=Exists.ANY)
    clock.step(-HOUR)
    assert local.operate(new, Put("n", 1), Compute(SERVER_NOW), exists=Exists.ANY) == (before - HOUR * 1000,)
    local.delete(old)
    assert local.operate(old, Put("n", 1), Compute(SERVER_NOW), exists=Exists.ANY) == (before - HOUR * 1000,)


def test_a_time_to_live_counts_by_the_clock_as_it_is(local, clock):
    key = Key("clock", "k")
    local.operate(key, Put("n", 1), exists=Exists.ANY)
    clock.step(-HOUR)
    local.operate(key, Add("n", 1), ttl=60)
    assert local.get(key).ttl == 60
    clock.advance(61)
    assert local.get(key) is None
