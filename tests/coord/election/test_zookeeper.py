"""Elections by ZooKeeper, on a real server: sessions that end, lines that vanish, replies that get lost."""

from __future__ import annotations

import socket
import threading
import uuid
from contextlib import suppress

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException

from latchwork.coord import LeaseElection, ZooKeeperElection
from latchwork.errors import FencedOut, Unavailable
from latchwork.store import Key, MemoryStore, Put
from latchwork.testing.stores import FaultyStore
from tests.support.waiting import until

SESSION = 2.0
"""For who is to lose its session, or to renew its lease soon: a stall of the machine may cost it both as well."""
LONG = 40.0
"""Longer than any test waits: no term ends because a lease or a session ran out."""
RESOURCE = Key("resources", "r")


class Pipe:
    """Forwards connections to one server until they are cut; closed, it takes no new ones, nor while it refuses."""

    refuses = False

    def __init__(self, server: int) -> None:
        self.server, self.open = server, set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.hosts = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near = self.listener.accept()[0]
                if self.refuses:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self.server))
                self.open |= {near, far}
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source, target) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        self._shut({source, target})

    def _shut(self, ends) -> None:
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut(self) -> None:
        self._shut(self.open)
        self.open = set()

    def close(self) -> None:
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()


@pytest.fixture
def office():
    return f"office-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def closing():
    """What is to be ended after the test, last first."""
    ends = []
    yield ends
    for end in reversed(ends):
        end()


def connected(client):
    """The client, once it is connected: a server that has just begun may leave a first connection unanswered."""
    try:
        client.start(timeout=10)
    except client.handler.timeout_exception:
        client.start(timeout=20)
    return client


@pytest.fixture
def stand(zookeeper, office, closing):
    """A candidate on a client of its own; `election.client` is that."""
    store = MemoryStore()

    def make(
        candidate,
        *,
        hosts=None,
        start=True,
        kind=KazooClient,
        path="/latchwork/elections",
        store=store,
        session=LONG,
    ):
        client = connected(kind(hosts or zookeeper.hosts, timeout=session))
        closing.append(lambda: (client.stop(), client.close()))
        election = ZooKeeperElection(store, office, client, candidate=candidate, path=path)
        election.client = client
        closing.append(election.stop)
        if start:
            election.start()
        return election

    make.store = store
    return make


def test_the_session_timeout_is_the_lease(stand, office):
    assert stand("a", start=False).lease == LONG
    assert ZooKeeperElection(MemoryStore(), office, "h:1").lease == 10.0
    assert ZooKeeperElection(MemoryStore(), office, "h:1", lease=3).lease == 3.0


def test_hosts_are_connected_to_while_standing_only(zookeeper, office, closing):
    election = ZooKeeperElection(MemoryStore(), office, zookeeper.hosts, candidate="a")
    closing.append(election.stop)
    until(lambda: contenders(election) == [])  # asked over a connection for this one question
    assert not election._client.connected
    for _ in range(2):
        assert election.run(lambda leadership: election.contenders(), timeout=20) == ["a"]
        assert not election._client.connected


def test_contenders_are_named_right_after_the_start_and_to_who_does_not_stand(zookeeper, office, closing):
    first, watcher = (ZooKeeperElection(MemoryStore(), office, zookeeper.hosts, candidate=name) for name in "aw")
    closing.append(first.stop)
    first.start()
    assert first.contenders() in ([], ["a"])
    until(lambda: contenders(watcher) == ["a"])
    nowhere = ZooKeeperElection(MemoryStore(), office, "127.0.0.1:1", lease=1)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        nowhere.contenders()


def contenders(election):
    """Who stands in the line; None where ZooKeeper was too slow to say so."""
    with suppress(Unavailable):
        return election.contenders()


def test_contenders_stand_in_line_the_leader_first(stand):
    line = []
    for name in "cab":
        election = stand(name)
        line.append(name)
        until(lambda: election.contenders() == line)  # noqa: B023 - evaluated at once
    assert election.leadership is None


def test_a_name_with_slashes_has_one_line(zookeeper, closing):
    election = ZooKeeperElection(MemoryStore(), f"a/b/{uuid.uuid4().hex}", zookeeper.hosts, candidate="x")
    closing.append(election.stop)
    assert election.run(lambda leadership: election.contenders(), timeout=20) == ["x"]


def test_leadership_ends_when_the_connection_is_suspended_before_the_session_does(zookeeper, stand, closing):
    pipe = Pipe(zookeeper.port)
    closing.append(pipe.close)
    election = stand("a", hosts=pipe.hosts)
    old = until(lambda: election.leadership)
    waits = []
    threading.Thread(target=lambda: waits.append(old.lost.wait(LONG))).start()
    pipe.cut()
    until(lambda: waits)
    assert waits == [True]
    with pytest.raises(FencedOut):
        old.check()
    again = until(lambda: election.leadership)
    assert again.epoch > old.epoch, "the same session, another term"
    assert election.contenders() == ["a"], "the node of the old term has left the line"


def test_a_session_that_expired_ends_the_term_and_another_candidate_is_elected(zookeeper, stand):
    first = stand("a")
    old = until(lambda: first.leadership)
    second, session = stand("b"), first.client.client_id
    until(lambda: len(second.contenders()) == 2)
    until(lambda: _ended(zookeeper, first.client, session))
    new = until(lambda: second.leadership)
    assert new.epoch > old.epoch
    assert old.lost.is_set()
    until(lambda: second.contenders() == ["b", "a"])
    assert second.leadership is new or second.leadership.epoch == new.epoch


def _ended(zookeeper, client, session):
    """Whether the session of the client has ended.

    Another client takes it and closes it. The first one may have taken it back before that: then it is to be repeated.
    """
    if client.client_id not in (None, session):  # None: without a connection it may still take it back
        return True
    expire(zookeeper, session)
    return False


def expire(zookeeper, session):
    """Take a session, and close it."""
    thief = connected(KazooClient(zookeeper.hosts, client_id=session, timeout=LONG))
    thief.stop()
    thief.close()


def test_a_session_that_the_server_gives_up_ends_the_term(zookeeper, stand, closing):
    """The leader is cut off for good: it has stopped believing before its successor begins."""
    pipe = Pipe(zookeeper.port)
    closing.append(pipe.close)
    first = stand("a", hosts=pipe.hosts, session=SESSION)
    old = until(lambda: first.leadership)
    second = stand("b")
    until(lambda: len(second.contenders()) == 2)
    pipe.close()
    new = until(lambda: second.leadership)
    assert old.lost.is_set()
    assert new.epoch > old.epoch


def test_a_candidate_that_stops_while_it_is_cut_off_leaves_the_line_once_it_is_not(zookeeper, stand, closing):
    pipe = Pipe(zookeeper.port)
    closing.append(pipe.close)
    first = stand("a", hosts=pipe.hosts)
    until(lambda: first.leadership)
    second = stand("b")
    until(lambda: len(second.contenders()) == 2)
    pipe.refuses = True
    pipe.cut()
    until(lambda: not first.client.connected)
    assert first.stop() is True
    pipe.refuses = False
    until(lambda: second.leadership)
    assert second.contenders() == ["b"]


def test_the_line_may_vanish_and_come_back(stand):
    crowd = [stand(name, path="/some/where", session=SESSION) for name in "ab"]
    epoch = until(lambda: crowd[0].leadership or crowd[1].leadership).epoch
    until(lambda: sorted(contenders(crowd[0]) or ()) == ["a", "b"])
    until(lambda: _deleted(crowd[0].client, "/some"))
    until(lambda: any((term := one.leadership) and term.epoch > epoch for one in crowd))
    until(lambda: sorted(contenders(crowd[0]) or ()) == ["a", "b"])


def _deleted(client, path):
    """Whether it could be deleted with all below; candidates come back meanwhile, or the connection is lost."""
    with suppress(KazooException):
        client.delete(path, recursive=True)
        return True
    return False


class Forgetful(KazooClient):
    """Loses the reply to its first create of a numbered node, and shows it only once it was asked again."""

    lost = 0

    def create_async(self, path, *rest, **how):
        answer = super().create_async(path, *rest, **how)
        if how.get("sequence") and not self.lost:
            self.lost = 1
            answer.get(timeout=10)
            broken = self.handler.async_result()
            broken.set_exception(ConnectionLoss())
            return broken
        return answer


def test_a_node_whose_create_was_in_doubt_is_recognised(stand):
    election = stand("a", kind=Forgetful)
    until(lambda: election.leadership)
    assert election.client.lost == 1
    assert election.contenders() == ["a"], "one node, not a ghost before it"


def test_a_rebuilt_zookeeper_repeats_no_epoch(stand):
    """Another, empty line for the same office: the store goes on counting, and ends the term of the old one."""
    before, after = stand("a"), stand("b", path="/rebuilt", start=False)
    old = until(lambda: before.leadership)
    old.operate(RESOURCE, Put("by", "a"))
    after.start()
    new = until(lambda: after.leadership)
    assert new.epoch > old.epoch
    new.seal(RESOURCE)
    old.lost.is_set = lambda: False
    with pytest.raises(FencedOut):
        old.operate(RESOURCE, Put("by", "a"))
    del old.lost.is_set
    with pytest.raises(FencedOut):
        before._grant.renew()
    assert old.lost.is_set()


def test_a_leader_by_lease_is_waited_for(stand, office, closing):
    """Both kinds for one office: no leader that is well is removed by the other kind."""
    by_lease = LeaseElection(stand.store, office, candidate="lease", lease=LONG)
    closing.append(by_lease.stop)
    by_lease.start()
    epoch = until(lambda: by_lease.leadership).epoch
    by_zookeeper = stand("zk")
    until(lambda: has_seen(by_zookeeper, epoch))
    assert by_zookeeper.leadership is None
    assert by_lease.leadership.epoch == epoch
    by_lease.stop()
    later = until(lambda: by_zookeeper.leadership)
    assert later.epoch > epoch
    by_lease.start()
    until(lambda: has_seen(by_lease, later.epoch))
    assert by_lease.leadership is None
    later.check()


def has_seen(election, epoch):
    """Whether it has looked at the office since that epoch holds it."""
    seen = election._contender.observed
    return seen is not None and seen.view.fence == epoch


def test_a_store_that_is_away_for_a_while_does_not_end_the_campaign(stand):
    store = FaultyStore(stand.store, dict.fromkeys(range(1, 8), "dropped"))
    election = stand("a", store=store)
    until(lambda: election.leadership)
    assert store.fired["dropped"] >= 3
