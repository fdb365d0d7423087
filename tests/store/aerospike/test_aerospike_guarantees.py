"""What a process says of a namespace in its log when it first connects there."""

from __future__ import annotations

import logging

import pytest

from latchwork.errors import Unavailable
from latchwork.store import Key
from latchwork.store.aerospike import info
from latchwork.store.aerospike.store import AerospikeStore
from tests.support.waiting import described, until

KEY = Key("notes", "k")
NAMESPACE = "replication-factor=1;strong-consistency={strong};nsup-period={nsup};default-ttl=0"


class Client:
    """A client of a namespace that is so; `down`: how many of its info calls fail."""

    def __init__(self, *, strong="false", nsup=120, down=0) -> None:
        self.settings, self.down, self.asked = NAMESPACE.format(strong=strong, nsup=nsup), down, 0

    def info_random_node(self, command):
        self.asked += 1
        if self.asked <= self.down:
            raise OSError("no answer")
        return f"{command}\t{self.settings}\n"

    def get(self, key, policy):
        return key, {"ttl": 60, "gen": 1}, {"n": 1}


@pytest.fixture
def said(monkeypatch, caplog):
    """What has been said so far, in a process that has said nothing before."""
    monkeypatch.setattr(info, "_said", set())
    caplog.set_level(logging.WARNING, logger=info.__name__)
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_process_says_once_what_a_namespace_does_not_promise(said):
    for _ in range(2):
        store = AerospikeStore(Client(nsup=0), "shop")
        assert [store.get(KEY).bins for _ in range(2)] == [{"n": 1}] * 2
    network, lifetimes = said()
    assert "shop" in network
    assert "network split" in network
    assert "nsup-period" in lifetimes
    AerospikeStore(Client(), "other").get(KEY)
    assert "other" in said()[2]


def test_nothing_is_said_before_the_first_call_nor_of_a_namespace_that_promises_all(said):
    AerospikeStore(Client(nsup=0), "shop")
    AerospikeStore(Client(strong="true"), "strong").get(KEY)
    assert said() == []


def test_a_call_does_not_fail_where_the_namespace_cannot_be_asked_and_another_connection_says_it(said):
    client = Client(down=1)
    store = AerospikeStore(client, "shop")
    assert [store.get(KEY).bins for _ in range(3)] == [{"n": 1}] * 3
    assert (said(), client.asked) == ([], 1)
    AerospikeStore(Client(), "shop").get(KEY)
    assert len(said()) == 1


def test_a_log_that_is_kept_in_the_store_itself_does_not_stop_its_first_call(said):
    store = AerospikeStore(Client(), "shop")

    class Keeping(logging.Handler):
        def emit(self, record):
            store.get(KEY)

    handler = Keeping()
    logger = logging.getLogger(info.__name__)
    logger.addHandler(handler)
    try:
        assert store.get(KEY).bins == {"n": 1}
    finally:
        logger.removeHandler(handler)
    assert len(said()) == 1


def test_what_is_known_of_a_namespace_ends_with_the_connection(monkeypatch):
    made = [Client(strong="true"), Client(strong="false")]
    monkeypatch.setattr("latchwork.store.aerospike.connection._connected", lambda target: made.pop(0))
    url = "aerospike://set-up-anew.invalid/shop"
    first = AerospikeStore.from_url(url)
    assert first.describe().strong_consistency
    first.close()
    assert not AerospikeStore.from_url(url).describe().strong_consistency


def test_a_store_that_connects_by_its_url_says_it_too(said, aerospike_server):
    store = AerospikeStore.from_url(f"{aerospike_server.url}?connections=11")
    assert said() == []
    if described(store).strong_consistency:
        pytest.skip("this namespace is strongly consistent")

    def says():
        store.close()
        store.get(KEY)
        return said()

    store.get(KEY)
    (told,) = said() or until(says)  # if the server had no time to answer the first connection, another one says it
    assert aerospike_server.namespace in told
    store.close()


def test_a_server_that_is_not_there_is_unavailable_and_nothing_is_said(said):
    with pytest.raises(Unavailable):
        AerospikeStore.from_url("aerospike://127.0.0.1:1/ns?connect_timeout=100")._get(KEY, ())
    assert said() == []
