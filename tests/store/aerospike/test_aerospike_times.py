"""What the client is told about the time of a call: the store's own, or what the present verb has left."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

import pytest
from aerospike import exception as driver

from latchwork.deadline import LATE, Deadline
from latchwork.errors import LatchworkError
from latchwork.store import Bin, Exists, Key, Put, Removal, Update
from latchwork.store.aerospike import AerospikeStore
from latchwork.store.aerospike.connection import config_of
from latchwork.store.aerospike.url import parse
from latchwork.store.model.form import Form
from latchwork.testing.clock import ManualClock

KEY = Key("set", "name")
TIMES = ("socket_timeout", "total_timeout", "connect_timeout")
FORM = Form(Put("n", 1), when=Bin("n") > 0)


class Client:
    """Notes the times in the policy of each call, which then fails."""

    def __init__(self):
        self.told = []

    def __getattr__(self, verb):
        def call(*given, policy=None):
            policy = policy or given[-1]
            self.told.append({name: policy[name] for name in TIMES if name in policy})
            raise driver.TimeoutError(9, "", "file.c", 1, False)

        return call

    def info_random_node(self, command):
        raise driver.ClientError(-1, "not asked here", "file.c", 1, False)

    def query(self, *_):
        return SimpleNamespace(where=lambda _: None, results=self.results)


ONE = {
    "get": lambda s: s._get(KEY, ()),
    "get some": lambda s: s._get(KEY, ("n",)),
    "operate": lambda s: s._operate(Update(KEY, (Put("n", 1),))),
    "form": lambda s: s._operate(FORM.fill(KEY)),
    "delete": lambda s: s._delete(Removal(KEY)),
}
MANY = {
    "get_many": lambda s: s._get_many([KEY], ()),
    "operate_many": lambda s: s._operate_many([Update(KEY, (Put("n", 1),), exists=Exists.CREATE)]),
    "delete_many": lambda s: s._delete_many([Removal(KEY)]),
    "query": lambda s: s._query("set", "n", 1),
}


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def told(clock):
    """Calls a verb and says which times the client was told."""
    client = Client()
    store = AerospikeStore(client, "test", seams=clock)

    def asked(verb):
        client.told.clear()
        with suppress(LatchworkError):
            verb(store)
        (told,) = client.told
        return told

    return asked


@pytest.mark.parametrize("verb", [*ONE, *MANY])
def test_without_a_deadline_the_client_keeps_its_own_times(told, clock, verb):
    assert told({**ONE, **MANY}[verb]) == {}
    with Deadline(clock, None):
        assert told({**ONE, **MANY}[verb]) == {}


@pytest.mark.parametrize("verb", ONE)
def test_a_call_for_a_record_ends_with_the_verb(told, clock, verb):
    with Deadline(clock, 4):
        assert told(ONE[verb]) == {"socket_timeout": 3000, "total_timeout": 4000 + LATE * 1000}
        clock.advance(3)
        assert told(ONE[verb]) == {"socket_timeout": 1000 + LATE * 1000, "total_timeout": 1000 + LATE * 1000}


@pytest.mark.parametrize("verb", MANY)
def test_a_batch_ends_with_the_verb_where_the_server_is_silent_and_not_while_rows_come(told, clock, verb):
    with Deadline(clock, 1):
        assert told(MANY[verb]) == {"socket_timeout": 1000 + LATE * 1000, "connect_timeout": 1000 + LATE * 1000}


@pytest.mark.parametrize("verb", [*ONE, *MANY])
def test_a_verb_with_much_time_makes_no_call_longer(told, clock, verb):
    with Deadline(clock, 600):
        assert told({**ONE, **MANY}[verb]) == {}


@pytest.mark.parametrize("verb", [*ONE, *MANY])
def test_a_call_after_the_end_still_has_a_moment(told, clock, verb):
    with Deadline(clock, 1):
        clock.advance(60)
        assert all(time >= 1 for time in told({**ONE, **MANY}[verb]).values())


def test_times_of_the_url_are_kept_where_they_are_shorter(clock):
    store = AerospikeStore.from_url("aerospike://host/test?socket_timeout=200&total_timeout=700")
    with Deadline(clock, 0):
        assert store._link.times.of_one({}) == {"socket_timeout": 200, "total_timeout": LATE * 1000}
        assert store._link.times.of_many({}) == {}
    with Deadline(clock, 5):
        assert store._link.times.of_one({}) == {}


def test_a_connection_on_which_a_call_timed_out_is_not_kept():
    policies = config_of(parse("aerospike://host/test"))["policies"]
    kinds = ("read", "write", "operate", "remove", "batch", "batch_parent_write", "query")
    assert [policies[kind]["timeout_delay"] for kind in kinds] == [0] * len(kinds)
