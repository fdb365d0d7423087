"""Deletions in a strongly consistent namespace leave a tombstone: the server refuses others there."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from latchwork.errors import LatchworkError
from latchwork.store import Key, Put
from latchwork.store.aerospike.store import AerospikeStore
from latchwork.store.model.record import Exists, Removal, Update
from latchwork.testing import ManualClock
from tools import servers

KEY, OTHER = Key("durable", "k"), Key("durable", "other")
LAST_BIN = (Put("n", None),)
DELETIONS = {
    "delete": lambda store: store.delete(KEY),
    "delete_many": lambda store: _first(store.delete_many([Removal(KEY)])),
    "the last bin": lambda store: store.operate(KEY, *LAST_BIN),
    "the last bin, in a batch": lambda store: _first(store.operate_many([Update(KEY, LAST_BIN)])),
}


def _first(rows):
    if isinstance(rows[0], LatchworkError):
        raise rows[0]


class Client:
    """A client of a namespace that is so; keeps the policies of what it is asked. down: info calls that fail."""

    def __init__(self, *, strong, down=0) -> None:
        self.settings = f"replication-factor=1;strong-consistency={strong};nsup-period=120;default-ttl=0"
        self.policies, self.down = [], down

    def info_random_node(self, command):
        self.down -= 1
        if self.down >= 0:
            raise OSError("no answer")
        return f"{command}\t{self.settings}\n"

    def remove(self, key, policy):
        self.policies.append(policy)

    def operate_ordered(self, key, ops, meta, policy):
        self.policies.append(policy)
        return key, {}, []

    operate = operate_ordered

    def batch_write(self, batch, policy):
        self.policies += [row.policy for row in batch.batch_records]
        for row in batch.batch_records:
            row.result, row.record = 0, (row.key, {"gen": 1, "ttl": 1}, {})
        return SimpleNamespace(result=0, batch_records=batch.batch_records)


@pytest.mark.parametrize("name", DELETIONS)
@pytest.mark.parametrize("strong", ["true", "false"])
def test_what_deletes_asks_for_a_tombstone_where_the_namespace_is_strongly_consistent_and_only_there(name, strong):
    client = Client(strong=strong)
    DELETIONS[name](AerospikeStore(client, "ns"))
    (policy,) = client.policies
    assert policy.get("durable_delete", False) is (strong == "true")


def test_a_namespace_that_could_not_be_asked_is_asked_again():
    clock = ManualClock()
    store = AerospikeStore(client := Client(strong="true", down=2), "asked-again", seams=clock)
    store.delete(KEY)
    store.delete(KEY)
    clock.advance(2)
    store.delete(KEY)
    assert [policy.get("durable_delete", False) for policy in client.policies] == [False, False, True]


def test_a_new_connection_asks_again_at_once(monkeypatch):
    clients = [Client(strong="false"), Client(strong="true")]
    made = iter(clients)
    monkeypatch.setattr("latchwork.store.aerospike.connection._connected", lambda target: next(made))
    for _ in range(2):
        store = AerospikeStore.from_url("aerospike://set-up-anew.invalid/durable")
        store.delete(KEY)
        store.close()
    assert [one.policies[0].get("durable_delete", False) for one in clients] == [False, True]


def test_a_thread_that_comes_while_another_asks_waits_for_the_answer():
    client, asked, answered = Client(strong="true"), threading.Event(), threading.Event()
    store = AerospikeStore(client, "asked-at-once")
    inner = client.info_random_node

    def slow(command):
        asked.set()
        assert answered.wait(60)
        return inner(command)

    store.describe()  # so that what the log says of the namespace does not ask here
    store._link._info, client.info_random_node = None, slow
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(store.delete, KEY)
        assert asked.wait(60)
        second = threads.submit(store.delete, OTHER)
        answered.set()
        assert (first.result(60), second.result(60)) == (True, True)
    assert [policy["durable_delete"] for policy in client.policies] == [True, True]


@pytest.mark.parametrize("name", DELETIONS)
def test_the_server_gets_the_wish_and_a_community_edition_refuses_it(name, aerospike_server):
    """Which shows that it arrives: no Enterprise Edition is at hand, and this one knows the wish and refuses it."""
    if not isinstance(aerospike_server, servers.Asd):
        pytest.skip("only of a server whose edition is known")
    store = AerospikeStore.from_url(f"{aerospike_server.url}?connections=13")
    store.operate(KEY, Put("n", 1), exists=Exists.ANY)
    store._link.durable = True
    try:
        with pytest.raises(LatchworkError, match=r"code (16|25)"):
            DELETIONS[name](store)
        assert store.operate(KEY, Put("n", 2)) == (), "what deletes nothing is done"
        assert store.get(KEY).bins == {"n": 2}
    finally:
        store._link.durable = False
        store.delete(KEY)
        store.close()
