"""An election by ZooKeeper: it chooses the candidate, the store numbers the term (docs/protocols.md P3).

Candidates stand in a line of ephemeral nodes; the first one leads. A term begins with the next fence of the lock
record, is renewed there, and is believed while both the record and the session confirm it, so epochs of all kinds of
election compare, and none is repeated after ZooKeeper was set up anew.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException

from ...errors import InvalidRequest, LatchworkError, Unavailable
from ...inputs import checked_timeout
from ...seams import Event
from ...store.model.expr import Bin, Param
from ...store.model.ops import Put
from ...store.port import Key, RecordStore
from .. import lease as rules
from ..contender import PASSING, Acquisition, Claim, Contender
from ..keeper import Keeper
from ..lock import LOCKS, Grant, kept_alive
from .election import FOLLOW, Election
from .znodes import Line, line_path

log = logging.getLogger("latchwork.election")
ELECTOR = "elector-fence"
"""The last fence that was taken on ZooKeeper's authority; equal to the record's fence while such a term lasts."""
_SUPERSEDED = (Bin(rules.LOCKED).eq(1) & Bin(rules.FENCE).eq(Param("fence")) & Bin(ELECTOR).eq(Param("fence"))) & Bin(
    rules.GRANT, str
).ne(Param("grant", str))
LOOK = 1.0
"""Seconds after which the line is looked at again, should a notification have been missed."""


class _Candidate(Contender):
    """A contender whose lease is worth no more than its place in the line."""

    line: Line

    def renew(self, fence: int) -> Claim:
        claim = super().renew(fence)
        self.line.confirm()
        return claim


class _Term(Grant):
    """A grant whose candidate leaves the line as soon as it is lost, whatever the leader's function is doing."""

    def __init__(self, name: str, party: _Candidate, claim: Claim) -> None:
        super().__init__(name, party, claim)
        self._line, self._stay = party.line, party.line.stay

    def release(self) -> bool:
        self.give_up()
        self._line.leave(self._stay)  # first: a store that hangs must not keep the office empty
        return super().release()

    def _keeper(self) -> Keeper:
        return Keeper(self, self._party, self._name, at_end=partial(self._line.leave, self._stay))


def _connecting(hosts: str, lease: float) -> Any:
    """A client for these hosts. Raises `InvalidRequest` where they cannot be read."""
    try:
        return KazooClient(hosts, timeout=lease)
    except ValueError as failure:
        raise InvalidRequest(f"hosts are {hosts!r}: {failure}; pass them as 'host:port,...'") from None


class ZooKeeperElection(Election):
    """An election by a line of ephemeral nodes in ZooKeeper.

    store, name: where the epochs come from; who uses the same ones, by ZooKeeper or by lease, stands for the same
    office.  client_or_hosts: a kazoo client that the caller has started and stops, or hosts to be connected to while
    standing, "host:port,..." or a list of them.  candidate: a name for people and logs.  path: under which the line is
    made, as `path/name`; it may be deleted at any time, which ends the term.  lease: seconds for which a term is
    believed without being confirmed, at most the session timeout; default: the timeout that the client asks for, 10
    with hosts. Where the server grants less than was asked for, give that.

    The term ends when the connection is SUSPENDED, before the session is lost, and is not resumed. However a term has
    ended, the candidate leaves the line as soon as there is a connection, whether or not the leader's function has
    returned, and stands again at the end of it. So does a candidate that waits and cannot reach the store.
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
        self._path = line_path(path, name)
        if isinstance(client_or_hosts, list | tuple) and all(isinstance(host, str) for host in client_or_hosts):
            client_or_hosts = ",".join(client_or_hosts)
        self._own = isinstance(client_or_hosts, str)
        if not client_or_hosts or not isinstance(client_or_hosts, str | KazooClient):
            raise InvalidRequest(f"no ZooKeeper: {client_or_hosts!r}; pass a kazoo client, or hosts as 'host:port,...'")
        asked = getattr(client_or_hosts, "_session_timeout", 10_000) / 1000  # kazoo tells it nowhere else
        self.lease = rules.checked_lease(asked if lease is None else lease)
        self._client: Any = _connecting(client_or_hosts, self.lease) if self._own else client_or_hosts
        self._party = _Candidate(
            store, Key(LOCKS, name), self.candidate, self.lease, extra=(Put(ELECTOR, Bin(rules.FENCE)),)
        )
        self._hosts = client_or_hosts
        self._patience = min(max(self.lease, 1.0), 5.0)
        self._line = self._party.line = Line(self._client, self._path, self.candidate, self._seams, self._patience)
        self._wake = self._seams.event()
        self._warned = False

    def contenders(self) -> list[str]:
        """The candidates in the line, in their order, the leader first. Two round trips to ZooKeeper.

        With hosts, and while not standing, it connects for this one question. Raises `Unavailable` where ZooKeeper does
        not answer.
        """
        if self._own and (self._standing is None or not self._standing.is_alive()):
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
        """Leave the line, and else as `Election.stop`.

        Where there is no connection, a client of the caller's leaves it with the next one.
        """
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

    def _woken(self, _: Any) -> None:
        """A bound method is the same watch at each look; another function each time would be kept each time."""
        self._wake.set()

    def _elect(self, stop: Event) -> Grant | None:
        try:
            return self._chosen(stop)
        except PASSING:
            self._line.leave()  # who cannot reach the store would be first in the line for nothing
            raise

    def _chosen(self, stop: Event) -> Grant | None:
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
            if not self._line.watch(before, self._woken):
                self._wake.set()
            return None
        if seen is not None and seen.view.locked:
            claim = acquisition.take(_SUPERSEDED.bind(fence=seen.view.fence, grant=acquisition.id))
            if claim is not None:
                return claim
        return acquisition.look()

    def _confirmed(self, claim: Claim) -> Grant | None:
        """The term, once the line is confirmed after the fence was taken."""
        grant = _Term(self.name, self._party, claim)
        self._grant = grant
        try:
            self._line.confirm()
        except LatchworkError:
            self._quietly(grant.release)
            return None
        return kept_alive(grant)

    def _others_first(self) -> float:
        return 0.1
