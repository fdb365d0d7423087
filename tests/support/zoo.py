"""A ZooKeeper of one line, and clients of which the test says when they are connected."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from kazoo.client import KazooState
from kazoo.exceptions import BadVersionError, ConnectionLoss, NoNodeError
from kazoo.handlers.threading import SequentialThreadingHandler


class Zoo:
    """The nodes of one line, each with its session and its data."""

    def __init__(self):
        self.nodes, self.data, self.watchers, self.made = {}, {}, {}, 0
        self.guard = threading.RLock()
        self.kept, self.version = b"", 0  # of the line's own node

    def expire(self, session):
        for node in [node for node, owner in self.nodes.items() if owner == session]:
            self.delete(node)

    def create(self, prefix, data, session):
        node = f"{prefix}{self.made:010}"
        self.made += 1
        self.nodes[node], self.data[node] = session, data
        return node

    def delete(self, node):
        del self.nodes[node]
        for wake in self.watchers.pop(node, ()):
            wake(None)

    def watch(self, node, wake):
        self.watchers.setdefault(node, set()).add(wake)


class Client:
    """As much of a kazoo client as a line needs. before_create: what happens before a create is sent.

    As kazoo does, it keeps what is asked while there is no connection, and drops that with the next loss of one: who
    asked hears of it in another thread of kazoo, before the listeners hear of the loss or (`drops_late`) after them.
    """

    handler = SequentialThreadingHandler()  # it does not run: what is linked to an answer is called at once

    def __init__(self, zoo, session):
        self.zoo, self.session = zoo, session
        self.drops_late = False
        self.before_create = lambda: None
        self.state, self.listeners = KazooState.CONNECTED, set()
        self._answers, self._waiting = True, []

    @property
    def connected(self):
        return self.state == KazooState.CONNECTED

    @property
    def client_id(self):
        return (self.session, b"") if self.connected else None

    def add_listener(self, listener):
        self.listeners.add(listener)

    def remove_listener(self, listener):
        self.listeners.discard(listener)

    # ---- what the test does

    def cut(self):
        """The connection is lost, the session not yet."""
        self._answers = False
        if not self.drops_late:
            self._drop()
        self._become(KazooState.SUSPENDED)
        if self.drops_late:
            self._drop()

    def back(self):
        """There is a connection again, to the same session."""
        self._become(KazooState.CONNECTED)
        self._answers = True
        waiting, self._waiting = self._waiting, []
        for answer, ask in waiting:
            self._send(answer, ask)

    def cut_once_more(self):
        """There was one, too short for any answer."""
        self._become(KazooState.CONNECTED)
        self.cut()

    def lose(self):
        """The session has ended."""
        self.zoo.expire(self.session)
        self._become(KazooState.LOST)
        self._drop()

    def _become(self, state):
        self.state = state
        for listener in list(self.listeners):
            if listener(state) is True:
                self.remove_listener(listener)

    def _drop(self):
        waiting, self._waiting = self._waiting, []
        for answer, _ in waiting:
            answer.set_exception(ConnectionLoss())

    # ---- what is asked

    def get_children_async(self, path):
        return self._asked(lambda: list(self.zoo.nodes))

    def get_async(self, path):
        def ask():
            if not path[-10:].isdigit():
                return self.zoo.kept, SimpleNamespace(version=self.zoo.version)
            return self.zoo.data[_node(path)], None

        return self._asked(ask)

    def set_async(self, path, data, version):
        def ask():
            if version not in (-1, self.zoo.version):  # -1: whichever it has
                raise BadVersionError
            self.zoo.kept, self.zoo.version = data, self.zoo.version + 1

        return self._asked(ask)

    def create_async(self, path, data, **_):
        before, self.before_create = self.before_create, lambda: None
        before()
        return self._asked(lambda: self.zoo.create(_node(path), data, self.session))

    def delete_async(self, path):
        return self._asked(lambda: self.zoo.delete(_node(path)))

    def exists_async(self, path, watch):
        def ask():
            self.zoo.watch(_node(path), watch)
            return _node(path) in self.zoo.nodes or None

        return self._asked(ask)

    def _asked(self, ask):
        answer = self.handler.async_result()
        if self._answers:
            self._send(answer, ask)
        else:
            self._waiting.append((answer, ask))
        return answer

    def _send(self, answer, ask):
        try:
            with self.zoo.guard:
                value = ask()
        except KeyError:
            answer.set_exception(NoNodeError())
        except BadVersionError as failure:
            answer.set_exception(failure)
        else:
            answer.set(value)


def _node(path):
    return path.rpartition("/")[2]
