"""Elections by ZooKeeper: ZooKeeper chooses the leader, the store numbers the term (docs/protocols P3).

The candidates are a line of ephemeral nodes; the first one leads. A term takes the next fence of the lock record and
renews the lease there, and it counts only while both the record and the session confirm it. So the epochs of all kinds
of election can be compared, and none is used twice, even after ZooKeeper was rebuilt.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException

from ...errors import InvalidRequest, LatchworkError, Unavailable
from ...inputs import checked_timeout
from ...logs import Log
from ...plain import shown
from ...seams import Event
from ...store.model.expr import Bin, Param
from ...store.model.ops import Put
from ...store.port import Key, RecordStore
from .. import lease as rules
from ..contender import TRANSIENT, Acquisition, Contender, TakenLease
from ..lock import LOCKS, Grant, Keeper, kept_alive
from .election import FOLLOW, STOP_TIMEOUT, Election
from .znodes import CandidateNode, line_path

log = Log("latchwork.election")
ELECTOR = "elector-fence"
"""The last fence that a ZooKeeper election has taken; equal to the record's fence while such a term lasts."""
_SUPERSEDED = (Bin(rules.LOCKED).eq(1) & Bin(rules.FENCE).eq(Param("fence")) & Bin(ELECTOR).eq(Param("fence"))) & Bin(
    rules.GRANT, str
).ne(Param("grant", str))
LOOK = 1.0
"""Seconds after which the line is read again, in case a notification was missed."""


class _Candidate(Contender):
    """A contender whose lease counts only while it is first in the line."""

    line: CandidateNode

    def renew(self, fence: int) -> TakenLease:
        claim = super().renew(fence)
        self.line.confirm()
        return claim


class _Term(Grant):
    """A grant whose candidate leaves the line as soon as the grant is lost, even while the leader's function runs."""

    def __init__(self, name: str, leased: _Candidate, claim: TakenLease) -> None:
        super().__init__(name, leased, claim)
        self._line, self._stay = leased.line, leased.line.stay

    def release(self) -> bool:
        self.give_up()
        self._line.leave(self._stay)  # first: a store that hangs must not keep the others from being elected
        return super().release()

    def _keeper(self) -> Keeper:
        return Keeper(self, self._leased, self._name, at_end=partial(self._line.leave, self._stay))


class ZooKeeperElection(Election):
    """An election by a line of ephemeral nodes in ZooKeeper.

    A handle is one candidate. Safe to share between threads; it cannot be pickled, and must not be used in a forked
    process.

    store, name: the election's record, from which the epochs come. Every candidate of one election uses one store and
        one name, whether it is elected by ZooKeeper or by a lease.
    client_or_hosts: a kazoo client, which the caller starts and stops, or the hosts to connect to while this candidate
        takes part: "host:port,..." or a list.
    candidate: a name for people and logs.
    path: the parent of the line, which is the node `path/name`. It may be deleted at any time; that ends the term.
    lease: seconds for which a term counts without being confirmed, at most the session timeout. Default: the timeout
        that the client asks for, 10 with hosts. If the server grants a shorter timeout than asked for, pass that.

    The term ends when the connection is SUSPENDED, before the session is lost, and is not resumed. After a term, the
    candidate leaves the line as soon as there is a connection, even if the leader's function has not returned yet, and
    joins it again at the end. A waiting candidate that cannot reach the store does so too.
    After two leases without a connection, a client that was made from hosts is replaced: a rebuilt ZooKeeper
    permanently rejects clients whose last transaction id is ahead of its own. If the client is the caller's, a warning
    is logged instead.
    """

    _contender: _Candidate

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
        if not isinstance(client_or_hosts, str | KazooClient) or not client_or_hosts:
            raise InvalidRequest(
                f"no ZooKeeper: {shown(client_or_hosts)}; pass a kazoo client, or hosts as 'host:port,...'"
            )
        asked = getattr(client_or_hosts, "_session_timeout", 10_000) / 1000  # kazoo has no public name for it
        self.lease = rules.checked_lease(asked if lease is None else lease)
        try:
            self._client: Any = KazooClient(client_or_hosts, timeout=self.lease) if self._own else client_or_hosts
        except ValueError as failure:
            raise InvalidRequest(
                f"hosts are {shown(client_or_hosts)}: {failure}; pass them as 'host:port,...'"
            ) from None
        self._contender = _Candidate(
            store, Key(LOCKS, name), self.candidate, self.lease, extra=(Put(ELECTOR, Bin(rules.FENCE)),)
        )
        self._hosts = client_or_hosts
        self._patience = min(max(self.lease, 1.0), 5.0)
        self._line = self._contender.line = CandidateNode(
            self._client, self._path, self.candidate, self._seams, self._patience
        )
        self._wake = self._seams.event()
        self._warned = False

    def contenders(self) -> list[str]:
        """Return the candidates in the line, in order, the leader first. Two round trips to ZooKeeper.

        With hosts, and while this candidate does not take part, it connects for this call only. Raises `Unavailable` if
        ZooKeeper does not answer.
        """
        if self._own and (self._standing is None or not self._standing.is_alive()):
            return self._asked_apart()
        FOLLOW.until(self._seams, lambda: self._client.connected or None, timeout=self._patience)
        return self._line.names()

    def _asked_apart(self) -> list[str]:
        client: Any = KazooClient(self._hosts, timeout=self.lease)
        try:
            client.start(timeout=self._patience)
            return CandidateNode(client, self._path, self.candidate, self._seams, self._patience).names()
        except client.handler.timeout_exception:
            raise Unavailable(f"ZooKeeper did not answer at {self._hosts}: check that it runs there") from None
        finally:
            client.stop()
            client.close()

    def stop(self, timeout: float | None = STOP_TIMEOUT) -> bool:
        """Leave the line, and do what `Election.stop` does.

        Without a connection, a client of the caller's leaves the line when it is connected again.
        """
        limit = checked_timeout(timeout)
        self._stop.set()
        self._wake.set()
        return super().stop(limit)

    def _rouse(self, stop: Event) -> None:
        self._wake.set()
        super()._rouse(stop)

    def _enter(self, stop: Event) -> None:  # noqa: ARG002 - one signature for all elections
        self._client.add_listener(self._on_state)
        if self._own:
            self._client.start_async()

    def _leave(self) -> None:
        try:
            self._line.leave()
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        self._client.remove_listener(self._on_state)
        if self._own:
            with suppress(KazooException):  # a client that hangs in a call does not end in time; its thread is a daemon
                self._client.stop()
                self._client.close()

    def _cut_off(self, stop: Event) -> None:
        """Replace the client after a long time without a connection: it may never connect again."""
        if self._own:
            log.warning("%r: no connection to ZooKeeper; trying with another client", self)
            self._disconnect()
            self._client = self._line.client = KazooClient(self._hosts, timeout=self.lease)
            self._enter(stop)
        elif not self._warned:
            self._warned = True
            log.warning("%r: no connection to ZooKeeper; if ZooKeeper was rebuilt, use a new client", self)

    def _on_state(self, state: str) -> None:
        """End the term if the connection is interrupted. Called by the client's own thread, so it must not wait."""
        grant = self._grant
        if state != KazooState.CONNECTED and grant is not None:
            grant.lost.set()
        self._wake.set()

    def _woken(self, _: Any) -> None:
        """Wake the campaign. A bound method: kazoo keeps equal watches once, but a new function for every call."""
        self._wake.set()

    def _elect(self, stop: Event) -> Grant | None:
        try:
            return self._chosen(stop)
        except TRANSIENT:
            self._line.leave()  # a candidate that cannot reach the store would only block the line
            raise

    def _chosen(self, stop: Event) -> Grant | None:
        acquisition, connected = Acquisition(self._contender), self._seams.monotonic()
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

    def _claim(self, acquisition: Acquisition) -> TakenLease | None:
        """Take the next fence, if this candidate is first in the line.

        It ends a term that a ZooKeeper election has taken without waiting for its lease. The guard names that term, and
        the term is read *before* the line: a candidate that is paused in between then ends no later term. A lease that
        was taken without ZooKeeper must run out first, as for every contender.
        """
        seen = self._contender.look()
        before = self._line.predecessor()
        if before is not None:
            if not self._line.watch(before, self._woken):
                self._wake.set()
            return None
        if not self._may_take():
            return None
        if seen is not None and seen.view.locked:
            claim = acquisition.take(_SUPERSEDED.bind(fence=seen.view.fence, grant=acquisition.id))
            if claim is not None:
                return claim
        return acquisition.look()

    def _may_take(self) -> bool:
        """Whether this candidate, the first in the line, becomes the leader now."""
        return True

    def _confirmed(self, claim: TakenLease) -> Grant | None:
        """Return the term if this candidate is still first in the line after it took the fence, else None."""
        grant = _Term(self.name, self._contender, claim)
        self._grant = grant
        try:
            self._line.confirm()
        except LatchworkError:
            self._quietly(grant.release)
            return None
        return kept_alive(grant)

    def _hindrance(self) -> str:
        if self._client.connected:
            return super()._hindrance()
        hosts = f" at {self._hosts}" if self._own else ""
        return f"; there is no connection to ZooKeeper{hosts}: check that it runs there"

    def _yield_seconds(self) -> float:
        return 0.1
