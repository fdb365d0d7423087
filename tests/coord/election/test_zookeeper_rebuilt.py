"""A candidate that ZooKeeper does not take back: it has lost its data, and refuses who has seen more than it holds."""

from __future__ import annotations

import shutil
from functools import partial

import pytest
from kazoo.handlers.threading import SequentialThreadingHandler

from latchwork.coord import ZooKeeperElection
from latchwork.coord.election import zookeeper
from latchwork.errors import InvalidRequest, WaitTimeout
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from tests.support import waiting
from tests.support.real_servers import or_skip
from tools.servers import ZooKeeper, started

until = partial(waiting.until, timeout=30.0)


class Cut:
    """A kazoo client that is never connected."""

    connected = False

    def __init__(self, hosts="", timeout=10.0):
        self.hosts, self.listeners, self.log = hosts, [], []
        self._session_timeout = timeout * 1000

    def add_listener(self, listener):
        self.listeners.append(listener)

    def remove_listener(self, listener):
        self.listeners.remove(listener)

    def get_children_async(self, path):
        return SequentialThreadingHandler().async_result()  # it is never answered

    def start_async(self):
        self.log.append("started")

    def stop(self):
        self.log.append("stopped")

    def close(self):
        self.log.append("closed")


@pytest.fixture
def clients(monkeypatch):
    """All clients, in the order in which they were made."""
    made = []

    class Noted(Cut):
        def __init__(self, *given, **how):
            super().__init__(*given, **how)
            made.append(self)

    monkeypatch.setattr(zookeeper, "KazooClient", Noted)
    return made


@pytest.fixture
def clock():
    return ManualClock()


def stand(election, clock, seconds):
    stop = clock.event()
    clock.at(seconds, stop.set)
    election._campaign(stop, None, None)


def test_a_client_of_ones_own_is_replaced_after_two_leases_without_a_connection(clients, clock):
    election = ZooKeeperElection(MemoryStore(clock), "office", "h:1", lease=3)
    stand(election, clock, 20)
    assert len(clients) == 1 + 2, "one more after each two leases"
    assert all(client.log == ["started", "stopped", "closed"] for client in clients)
    assert not any(client.listeners for client in clients)
    assert election._line.client is clients[-1]


def test_a_client_of_the_callers_is_left_alone_and_a_warning_is_logged_once(clients, clock, caplog):
    election = ZooKeeperElection(MemoryStore(clock), "office", zookeeper.KazooClient("h:1", timeout=3))
    stand(election, clock, 20)
    (client,) = clients
    assert client.log == []
    assert caplog.text.count("use a new client") == 1


def test_a_candidate_that_no_zookeeper_answers_says_so_when_its_time_is_over(clients):
    election = ZooKeeperElection(MemoryStore(), "office", "h:1")
    with pytest.raises(WaitTimeout, match=r"not within 0.05 s; there is no connection to ZooKeeper at h:1"):
        election.run(lambda _: None, timeout=0.05)


@pytest.mark.parametrize("hosts", [["h:1", "i:2"], ("h:1", "i:2"), "h:1,i:2"])
def test_hosts_are_given_as_a_text_or_as_a_list(clients, hosts):
    ZooKeeperElection(MemoryStore(), "office", hosts)
    assert clients[0].hosts == "h:1,i:2"


@pytest.mark.parametrize("hosts", [[], (), "", [1], None, {"h:1"}])
def test_what_names_no_zookeeper_is_refused(hosts):
    with pytest.raises(InvalidRequest, match="no ZooKeeper"):
        ZooKeeperElection(MemoryStore(), "office", hosts)


@pytest.fixture
def server():
    with or_skip():
        one = started(ZooKeeper())
    yield one
    one.close()


@pytest.mark.long
def test_a_candidate_is_elected_again_after_zookeeper_has_lost_its_data(server):
    election = ZooKeeperElection(MemoryStore(), "office", server.hosts, lease=0.5)
    election.start()
    old = until(lambda: election.leadership)
    server.kill()
    shutil.rmtree(server.directory / "data")
    server.start()
    assert until(lambda: election.leadership if old.lost.is_set() else None).epoch > old.epoch
    assert election.stop() is True
