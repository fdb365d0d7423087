"""An election by ZooKeeper: it chooses the candidate, the store numbers the term (docs/protocols.md P3).

Candidates stand in a line of ephemeral nodes; the first one leads. A term begins with the next fence of the lock
record, is renewed there, and is believed while both the record and the session confirm it, so epochs of all kinds of
election compare, and none is repeated after ZooKeeper was set up anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException, NoNodeError

from ..errors import InvalidRequest, LatchworkError, Refused, Unavailable
from ..seams import Event, Seams
from ..store.expr import Bin, Param
from ..store.ops import Put
from ..store.port import Key, RecordStore
from . import lease as rules
from .contender import Acquisition, Claim, Contender
from .election import FOLLOW, Election
from .inputs import checked_text, checked_timeout
from .lock import LOCKS, Grant

log = logging.getLogger("latchwork.election")
ELECTOR = "elector-fence"
"""The last fence that was taken on ZooKeeper's authority; equal to the record's fence while such a term lasts."""
_SUPERSEDED = (Bin(rules.LOCKED).eq(1) & Bin(rules.FENCE).eq(Param("fence")) & Bin(ELECTOR).eq(Param("fence"))) & Bin(
    rules.GRANT, str
).ne(Param("grant", str))
LOOK = 1.0
"""Seconds after which the line is looked at again, should a notification have been missed."""


class Line:
    """A candidate's place in the line: one ephemeral, numbered node, known by a prefix that was minted before it.

    All its prefixes begin alike, so that a node which was made too late, in a session that it was not meant for, is
    known and goes: it would stand in the line for nobody, for as long as that session lives.
    """

    def __init__(self, client: Any, path: str, candidate: str, seams: Seams, patience: float) -> None:
        self.client, self._path, self._candidate = client, path, candidate
        self._patience = patience
        self._mine = f"{seams.unique()}-"
        self._prefix = ""

    def predecessor(self) -> str | None:
        """The node right before this candidate's, which enters the line if it is not in it; None if it is first."""
        nodes, mine = self._places()
        if not mine:
            node, data = f"{self._path}/{self._prefix}", self._candidate.encode()
            self._ask(self.client.create_async(node, data, ephemeral=True, sequence=True, makepath=True))
            nodes, mine = self._places()
        if not mine:
            raise Unavailable(f"the line {self._path} in ZooKeeper vanished while entering it; it is entered again")
        place = nodes.index(mine[0])
        return nodes[place - 1] if place else None

    def watch(self, node: str, wake: Callable[[Any], None]) -> bool:
        """Be told when the node goes; whether it is still there."""
        return self._ask(self.client.exists_async(f"{self._path}/{node}", watch=wake)) is not None

    def confirm(self) -> None:
        """Raises `Refused` where this candidate is not first any more, `Unavailable` where that cannot be said."""
        nodes, mine = self._places()
        if not mine or nodes[0] != mine[0]:
            raise Refused(f"{self._candidate!r} is not the first in {self._path} any more: its session has ended")

    def leave(self) -> None:
        """Give the place up."""
        for node in self._places()[1]:
            self._delete(node)

    def names(self) -> list[str]:
        """The candidates in the line, in their order."""
        asked = [self.client.get_async(f"{self._path}/{node}") for node in self._nodes()]
        names = []
        for answer in asked:
            try:
                names.append(self._ask(answer)[0].decode())
            except NoNodeError:
                continue
        return names

    def _places(self) -> tuple[list[str], list[str]]:
        """All nodes of the line, and this candidate's, in order.

        A new session begins with a new prefix: the old node, where it is still there, goes with the old session, or by
        our hand. It may be of this session: the client sends what waited while there was none.
        """
        nodes = self._nodes()
        known = self.client.client_id
        if known is None:
            raise Unavailable(f"the connection to ZooKeeper was lost while looking at {self._path}")
        self._prefix = f"{self._mine}{known[0]:x}-"
        old = [node for node in nodes if node.startswith(self._mine) and not node.startswith(self._prefix)]
        for node in old:
            self._delete(node)
        nodes = [node for node in nodes if node not in old]
        return nodes, [node for node in nodes if node.startswith(self._prefix)]

    def _delete(self, node: str) -> None:
        try:
            self._ask(self.client.delete_async(f"{self._path}/{node}"))
        except NoNodeError:
            return

    def _nodes(self) -> list[str]:
        try:
            nodes = self._ask(self.client.get_children_async(self._path))
        except NoNodeError:
            return []
        return sorted((node for node in nodes if _number(node).isdigit()), key=_number)

    def _ask(self, asked: Any) -> Any:
        try:
            return asked.get(timeout=self._patience)
        except NoNodeError:
            raise
        except (KazooException, self.client.handler.timeout_exception) as failure:
            raise Unavailable(f"ZooKeeper did not answer about {self._path}: {failure!r}; it is asked again") from None


def _number(node: str) -> str:
    """The ten digits that ZooKeeper has put behind the prefix."""
    return node.rpartition("-")[2]


class _Candidate(Contender):
    """A contender whose lease is worth no more than its place in the line."""

    line: Line

    def renew(self, fence: int) -> Claim:
        claim = super().renew(fence)
        self.line.confirm()
        return claim


class ZooKeeperElection(Election):
    """An election by a line of ephemeral nodes in ZooKeeper.

    store, name: where the epochs come from; who uses the same ones, by ZooKeeper or by lease, stands for the same
    office.  client_or_hosts: a kazoo client that the caller has started and stops, or hosts to be connected to while
    standing, "host:port,..." or a list of them.  candidate: a name for people and logs.  path: under which the line is
    made, as `path/name`; it may be deleted at any time, which ends the term.  lease: seconds for which a term is
    believed without being confirmed, at most the session timeout; default: the timeout that the client asks for, 10
    with hosts. Where the server grants less than was asked for, give that.

    The term ends when the connection is SUSPENDED, before the session is lost, and is not resumed: after a
    reconnection within the session the candidate is elected again, with another epoch.
    After two leases without a connection, a client that was made from hosts is replaced: ZooKeeper refuses for ever
    who has seen more than it holds since it was set up anew. For a client of the caller's, a warning is logged.
    """

    def __init__(
        self,
        store: RecordStore,
        name: str,
        client_or_hosts: Any,
        *,
        candidate: str | None = None,
        path: str = "/latchwork/elections",
        lease: float | None = None,
    ) -> None:
        super().__init__(store, name, candidate)
        if not checked_text("path", path).startswith("/") or path != "/" + path.strip("/"):
            raise InvalidRequest(f"path is {path!r}; it must begin with / and not end with it")
        if isinstance(client_or_hosts, list | tuple) and all(isinstance(host, str) for host in client_or_hosts):
            client_or_hosts = ",".join(client_or_hosts)
        self._own = isinstance(client_or_hosts, str)
        if not client_or_hosts or not isinstance(client_or_hosts, str | KazooClient):
            raise InvalidRequest(f"no ZooKeeper: {client_or_hosts!r}; pass a kazoo client, or hosts as 'host:port,...'")
        asked = getattr(client_or_hosts, "_session_timeout", 10_000) / 1000  # kazoo tells it nowhere else
        self.lease = rules.checked_lease(asked if lease is None else lease)
        self._client: Any = KazooClient(client_or_hosts, timeout=self.lease) if self._own else client_or_hosts
        self._party = _Candidate(
            store, Key(LOCKS, name), self.candidate, self.lease, extra=(Put(ELECTOR, Bin(rules.FENCE)),)
        )
        self._hosts, self._path = client_or_hosts, f"{path}/{quote(name, safe='')}"
        self._patience = min(max(self.lease, 1.0), 5.0)
        self._line = self._party.line = Line(self._client, self._path, self.candidate, self._seams, self._patience)
        self._wake = self._seams.event()
        self._warned = False

    def contenders(self) -> list[str]:
        """The candidates in the line, in their order, the leader first. Two round trips to ZooKeeper.

        With hosts, and while not standing, it connects for this one question. Raises `Unavailable` where ZooKeeper does
        not answer.
        """
        if self._own and (self._task is None or not self._task.is_alive()):
            return self._asked_apart()
        FOLLOW.until(self._seams, lambda: self._client.connected or None, timeout=self._patience)
        return self._line.names()

    def _asked_apart(self) -> list[str]:
        client: Any = KazooClient(self._hosts, timeout=self.lease)
        try:
            client.start(timeout=self._patience)
            return Line(client, self._path, self.candidate, self._seams, self._patience).names()
        except client.handler.timeout_exception:
            raise Unavailable(f"ZooKeeper did not answer at {self._hosts}: check that it runs there") from None
        finally:
            client.stop()
            client.close()

    def stop(self, timeout: float | None = 10.0) -> bool:
        limit = checked_timeout(timeout)
        self._stop.set()
        self._wake.set()
        return super().stop(limit)

    def _enter(self, stop: Event) -> None:  # noqa: ARG002 - one signature for all elections
        self._client.add_listener(self._heard)
        if self._own:
            self._client.start_async()

    def _leave(self) -> None:
        try:
            if self._client.connected:
                self._line.leave()
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        self._client.remove_listener(self._heard)
        if self._own:
            with suppress(KazooException):  # one that hangs in a call does not end in time; its thread is a daemon
                self._client.stop()
                self._client.close()

    def _cut_off(self, stop: Event) -> None:
        """There was no connection for so long that there may never be one with this client."""
        if self._own:
            log.warning("%r: no connection to ZooKeeper; trying with another client", self)
            self._disconnect()
            self._client = self._line.client = KazooClient(self._hosts, timeout=self.lease)
            self._enter(stop)
        elif not self._warned:
            self._warned = True
            log.warning("%r: no connection to ZooKeeper; if that was set up anew, stand with another client", self)

    def _heard(self, state: str) -> None:
        """The connection has changed. Called by the client's own thread: it must not wait for anything."""
        grant = self._grant
        if state != KazooState.CONNECTED and grant is not None:
            grant.lost.set()
        self._wake.set()

    def _elect(self, stop: Event) -> Grant | None:
        acquisition, connected = Acquisition(self._party), self._seams.monotonic()
        while not stop.is_set():
            self._wake.clear()
            now = self._seams.monotonic()
            if self._client.connected:
                connected = now
                claim = self._claim(acquisition)
                if claim is not None:
                    return self._confirmed(claim)
            elif now - connected > 2 * self.lease:
                self._cut_off(stop)
                connected = self._seams.monotonic()
            self._wake.wait(LOOK)
        return None

    def _claim(self, acquisition: Acquisition) -> Claim | None:
        """The next fence, where this candidate is first in the line.

        ZooKeeper's authority supersedes a term that was taken on ZooKeeper's authority, without waiting for its lease;
        the guard names that term, which was looked up *before* the line: who was paused in between supersedes nobody.
        A lease that was taken without ZooKeeper is waited for as everybody does.
        """
        seen = self._party.look()
        before = self._line.predecessor()
        if before is not None:
            if not self._line.watch(before, lambda _: self._wake.set()):
                self._wake.set()
            return None
        if seen is not None and seen.view.locked:
            claim = acquisition.take(_SUPERSEDED.bind(fence=seen.view.fence, grant=acquisition.id))
            if claim is not None:
                return claim
        return acquisition.look()

    def _confirmed(self, claim: Claim) -> Grant | None:
        """The term, once the line is confirmed after the fence was taken."""
        grant = Grant(self.name, self._party, claim)
        self._grant = grant
        try:
            self._line.confirm()
        except LatchworkError:
            self._quietly(grant.release)
            return None
        grant.keep_alive()
        return grant

    def _hand_back(self, grant: Grant) -> None:
        try:
            super()._hand_back(grant)
        finally:
            if self._client.connected:
                self._line.leave()

    def _others_first(self) -> float:
        return 0.1
