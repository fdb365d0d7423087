"""A ZooKeeper of one line in virtual time, and a client a process: sessions end, links are cut, processes sleep.

As kazoo's client, it keeps what is asked while there is no connection, drops that with the next loss of one, and calls
listeners, watches and whatever is linked to an answer in a thread of its own, which sleeps when the process does.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kazoo.client import KazooState
from kazoo.exceptions import BadVersionError, ConnectionLoss, NoNodeError

from ..world import Process, SimEvent, World

LOOK = 0.1
"""Seconds between two looks of the ensemble at its sessions."""


class NoAnswer(Exception):
    """An answer did not come in time."""


class Ensemble:
    """The nodes of one line, each with its session and its data. `kept`: each epoch that was kept, in order."""

    def __init__(self, world: World, timeout: float) -> None:
        self.world, self.timeout = world, timeout
        self.nodes: dict[str, tuple[int, bytes]] = {}
        self.watchers: dict[str, list[Callable[[], None]]] = {}
        self.kept: list[int] = []
        self.data, self.version, self.made, self.sessions = b"", 0, 0, 0
        self.heard: dict[int, float] = {}
        self.clients: list[Client] = []
        world.at(world.now + LOOK, self._look)

    def _look(self) -> None:
        """Hear of who can be heard, and end the sessions of who has not renewed for too long."""
        for client in self.clients:
            if client.reachable and client.session in self.heard:
                self.heard[client.session] = self.world.now
        for session in [one for one, when in self.heard.items() if self.world.now - when > self.timeout]:
            self.expire(session)
        for client in self.clients:
            client.notice()
        self.world.at(self.world.now + LOOK, self._look)

    def begin(self) -> int:
        """A new session."""
        self.sessions += 1
        self.heard[self.sessions] = self.world.now
        return self.sessions

    def expire(self, session: int) -> None:
        """End a session, and delete its nodes."""
        self.heard.pop(session, None)
        for node in [node for node, (owner, _) in self.nodes.items() if owner == session]:
            self.delete(node)

    def delete(self, node: str) -> None:
        """Delete a node. Raises `KeyError`."""
        del self.nodes[node]
        for told in self.watchers.pop(node, ()):
            told()

    def create(self, prefix: str, data: bytes, session: int) -> str:
        """Create an ephemeral, numbered node."""
        node = f"{prefix}{self.made:010}"
        self.made += 1
        self.nodes[node] = session, data
        return node

    def keep(self, data: bytes, version: int) -> None:
        """Set the line's own node where it has that version; -1 = whichever it has."""
        if version not in (-1, self.version):
            raise BadVersionError
        self.data, self.version = data, self.version + 1
        self.kept.append(int(data))


class Answer:
    """The answer to one request, as kazoo's: `get`, `rawlink`, `successful`, `value`, `exception`."""

    def __init__(self, client: Client) -> None:
        self._done, self._links = SimEvent(client.world), list[Callable[[Any], Any]]()
        self.value: Any = None
        self.exception: Exception | None = None

    def successful(self) -> bool:
        """Whether it has come, and is no error."""
        return self._done.is_set() and self.exception is None

    def get(self, timeout: float | None = None) -> Any:
        """The value. Raises the error, and `NoAnswer`."""
        if not self._done.wait(timeout):
            raise NoAnswer
        if self.exception is not None:
            raise self.exception
        return self.value

    def rawlink(self, link: Callable[[Any], Any]) -> None:
        """Call `link(answer)` when it has come."""
        if self._done.is_set():
            link(self)
        else:
            self._links.append(link)

    def come(self, value: Any, failure: Exception | None) -> None:
        """It comes, once."""
        if not self._done.is_set():
            self.value, self.exception = value, failure
            self._done.set()
            for link in self._links:
                link(self)


class Client:
    """As much of a kazoo client as a line needs. `cut`: whether its process cannot reach ZooKeeper."""

    handler = SimpleNamespace(timeout_exception=NoAnswer)

    def __init__(self, ensemble: Ensemble, process: Process, cut: Callable[[], bool]) -> None:
        self.ensemble, self.process, self.world = ensemble, process, process.world
        self._cut = cut
        self.session = ensemble.begin()
        self.state, self._listeners = KazooState.CONNECTED, list[Callable[[str], Any]]()
        self._inbox: list[Callable[[], None]] = []
        self._mail, self._noticing = SimEvent(self.world), False
        self._asked: list[tuple[Answer, Callable[[], Any]]] = []
        self._under_way: list[Answer] = []
        ensemble.clients.append(self)
        process.spawn(self._thread, "zookeeper")

    @property
    def connected(self) -> bool:
        return self.state == KazooState.CONNECTED

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        return (self.session, b"") if self.connected else None

    @property
    def reachable(self) -> bool:
        """Whether the ensemble and this client hear of each other now."""
        return not (self.process.dead or self.process.frozen_until > self.world.now or self._cut())

    def add_listener(self, listener: Callable[[str], Any]) -> None:
        if listener not in self._listeners:
            self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[str], Any]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    # ---- its own thread

    def _thread(self) -> None:
        while True:
            self._mail.wait()
            self._mail.clear()
            while self._inbox:
                self._inbox.pop(0)()

    def _post(self, what: Callable[[], None]) -> None:
        if not self.process.dead:
            self._inbox.append(what)
            self._mail.set()

    def notice(self) -> None:
        """Find out, some time after it, that the link was cut, that it is there again, or that the session ended."""
        ended = self.session not in self.ensemble.heard
        news = not self.reachable or ended if self.connected else self.reachable
        if news and not self._noticing and not self.process.dead:
            self._noticing = True
            wait = self.world.rng.random() * 0.6 * self.ensemble.timeout
            self.world.at(self.world.now + wait, lambda: self._post(self._noticed))

    def _noticed(self) -> None:
        self._noticing = False
        if self.connected:
            self._become(KazooState.SUSPENDED)
            self._drop()
        if not self.reachable:
            return
        if self.session not in self.ensemble.heard:
            self._become(KazooState.LOST)
            self.session = self.ensemble.begin()
        self._become(KazooState.CONNECTED)
        asked, self._asked = self._asked, []
        for answer, run in asked:
            self._send(answer, run)

    def _become(self, state: str) -> None:
        self.state = state
        for listener in list(self._listeners):
            if listener(state) is True:
                self.remove_listener(listener)

    def _drop(self) -> None:
        lost = [*self._under_way, *(answer for answer, _ in self._asked)]
        self._under_way, self._asked = [], []
        for answer in lost:
            answer.come(None, ConnectionLoss())

    # ---- what is asked

    def get_children_async(self, path: str) -> Answer:
        return self._ask(lambda: list(self.ensemble.nodes))

    def get_async(self, path: str) -> Answer:
        def run() -> Any:
            if not path[-10:].isdigit():
                return self.ensemble.data, SimpleNamespace(version=self.ensemble.version)
            return self.ensemble.nodes[_node(path)][1], None

        return self._ask(run)

    def set_async(self, path: str, data: bytes, version: int) -> Answer:
        return self._ask(lambda: self.ensemble.keep(data, version))

    def create_async(self, path: str, data: bytes, **_: Any) -> Answer:
        return self._ask(lambda: self.ensemble.create(_node(path), data, self.session))

    def delete_async(self, path: str) -> Answer:
        return self._ask(lambda: self.ensemble.delete(_node(path)))

    def exists_async(self, path: str, watch: Callable[[Any], None]) -> Answer:
        def run() -> Any:
            told = self.ensemble.watchers.setdefault(_node(path), [])
            told.append(lambda: self._post(lambda: watch(None)))
            return _node(path) in self.ensemble.nodes or None

        return self._ask(run)

    def _ask(self, run: Callable[[], Any]) -> Answer:
        answer = Answer(self)
        if self.connected:
            self._send(answer, run)
        else:
            self._asked.append((answer, run))
        return answer

    def _send(self, answer: Answer, run: Callable[[], Any]) -> None:
        """The request arrives a little later, and its answer a little later than that, where the link is whole."""
        self._under_way.append(answer)
        session = self.session

        def arrive() -> None:
            if self._cut() or session not in self.ensemble.heard:
                return
            try:
                value, failure = run(), None
            except KeyError:
                value, failure = None, NoNodeError()
            except BadVersionError as refused:
                value, failure = None, refused
            if not self._cut():
                self.world.at(self.world.now + self._delay(), lambda: self._post(lambda: come(value, failure)))

        def come(value: Any, failure: Exception | None) -> None:
            if answer in self._under_way:
                self._under_way.remove(answer)
                answer.come(value, failure)

        self.world.at(self.world.now + self._delay(), arrive)

    def _delay(self) -> float:
        return self.world.rng.choice((0.0005, 0.001, 0.02))


def _node(path: str) -> str:
    return path.rpartition("/")[2]
