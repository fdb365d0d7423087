"""A small HTTP server for probes: no client can stop it, whatever it says, or does not say, and however long.

One thread has all connections, and waits for none of them. A path whose answer asks the store is answered in another
thread, a few at a time. Stopping waits for no client and no store.
"""

from __future__ import annotations

import selectors
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

from ..background import FailureLog
from ..errors import InvalidRequest
from ..logs import Log
from ..seams import Seams

log = Log(__name__)

Answer = tuple[int, str, bytes]
"""The status, the content type, and the body."""
PATIENCE = 5.0
"""Seconds in which a client must have sent its request and taken the answer, once that is known."""
MOST = 256
"""Connections at a time; another takes the place of the oldest."""
MOST_SLOW = 4
"""Answers at a time for which the store is asked."""
MOST_HEAD = 16_384
"""Bytes of a request."""
LOOK = 0.25
"""Seconds between two looks at clients that are too late, and at whether to stop."""
TEXT = "text/plain; charset=utf-8"


def listening(host: str, port: int, *, backlog: int, most: int | None = None) -> list[socket.socket]:
    """Return sockets that listen there: one for each address of the host, of the first `most` addresses.

    Raises `InvalidRequest` if that cannot be done.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[:most]
        addresses = {(family, address[:2]) for family, _, _, _, address in found}
        return [socket.create_server(address, family=family, backlog=backlog) for family, address in addresses]
    except OSError as failure:
        raise InvalidRequest(f"cannot listen on {host}:{port}: {failure.strerror}; choose another port") from None


class _Client:
    """A connection. `until`: when it is closed, done or not (monotonic); infinite while its answer is being made."""

    __slots__ = ("received", "socket", "to_send", "until")

    def __init__(self, accepted: socket.socket, until: float) -> None:
        self.socket, self.until = accepted, until
        self.received, self.to_send = b"", b""


class Server:
    """Answers `GET`, one request a connection.

    answer: returns the answer of a path.
    slowly: whether the answer of a path may wait, for the store or for other threads; it then gets a thread of its own.

    Raises `InvalidRequest` if it cannot listen there.
    """

    def __init__(
        self, host: str, port: int, seams: Seams, answer: Callable[[str], Answer], slowly: Callable[[str], bool]
    ) -> None:
        self._seams, self._answer, self._slowly = seams, answer, slowly
        self._failure_log = FailureLog(seams, log)
        self._listener = listening(host, port, backlog=MOST, most=1)[0]
        self.port: int = self._listener.getsockname()[1]
        self._listener.setblocking(False)
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._clients: dict[socket.socket, _Client] = {}  # the oldest first
        self._answered: deque[tuple[_Client, Answer]] = deque()
        self._slow = 0
        self._stopping = False

    def start(self, name: str) -> None:
        """Begin to answer, in the background."""
        self._name = name
        self._task = self._seams.spawn(self._serve, name)

    def stop(self) -> None:
        """End within a second or so; clients that wait get no answer."""
        self._stopping = True
        self._wake()
        self._task.join(1.0)

    def _wake(self) -> None:
        with suppress(OSError):  # it is full of wakings, or closed
            self._waker.send(b".")

    # ---- the thread of all connections

    def _serve(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        try:
            while not self._stopping:
                try:
                    self._look()
                except Exception as failure:  # noqa: BLE001 - a probe that is silent counts as a dead process
                    self._failure_log.record(failure, "the probe met an error")
                    self._seams.sleep(LOOK)
        finally:
            for client in list(self._clients.values()):
                self._close(client)
            for one in (self._selector, self._listener, self._woken, self._waker):
                one.close()

    def _look(self) -> None:
        """Do what can be done now; else wait a moment."""
        for key, _ in self._selector.select(LOOK):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._woken:
                with suppress(BlockingIOError):
                    self._woken.recv(4096)
            elif key.data in self._clients:  # else it was closed a moment ago, for another one
                self._attend(self._clients[key.data])
        while self._answered:
            client, answer = self._answered.popleft()
            self._slow -= 1
            self._reply(client, answer)
        now = self._seams.monotonic()
        for client in [one for one in self._clients.values() if now >= one.until]:
            self._close(client)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # too many open files: some are closed in a moment
            self._seams.sleep(LOOK)
            return
        accepted.setblocking(False)
        if len(self._clients) >= MOST:
            # The oldest that is silent. One whose answer is being made stays: there are few of these.
            self._close(next(one for one in self._clients.values() if one.until < float("inf")))
        self._clients[accepted] = _Client(accepted, self._seams.monotonic() + PATIENCE)
        self._selector.register(accepted, selectors.EVENT_READ, accepted)

    def _attend(self, client: _Client) -> None:
        """Take what the client has sent, or send it what it can take."""
        try:
            if client.to_send:
                client.to_send = client.to_send[client.socket.send(client.to_send) :]
                if not client.to_send:
                    self._close(client)
                return
            more = client.socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            self._close(client)
            return
        client.received += more
        if not more or len(client.received) > MOST_HEAD:
            self._close(client)
        elif b"\r\n\r\n" in client.received or b"\n\n" in client.received:
            self._selector.unregister(client.socket)
            self._begin(client)

    def _begin(self, client: _Client) -> None:
        """Answer the request, now or in a thread of its own."""
        words = client.received.split(b"\n", 1)[0].decode("latin-1").split()
        if len(words) != 3 or words[0] != "GET":
            self._reply(client, (405, TEXT, b"only GET\n"))
            return
        path = words[1].partition("?")[0]
        if not self._slowly(path):
            self._reply(client, self._answer(path))
        elif self._slow >= MOST_SLOW:
            self._reply(client, (503, TEXT, b"busy: others wait for the store already\n"))
        else:
            try:
                self._seams.spawn(lambda: self._ask(client, path), f"{self._name}-answer")
            except RuntimeError:
                self._reply(client, (503, TEXT, b"no thread could be started\n"))
            else:
                client.until, self._slow = float("inf"), self._slow + 1

    def _ask(self, client: _Client, path: str) -> None:
        answer: Answer = 500, TEXT, b"it failed: see the log\n"
        try:
            answer = self._answer(path)
        except Exception as failure:  # noqa: BLE001 - the client gets an answer, whatever it was
            self._failure_log.record(failure, "the probe could not answer")
        finally:
            self._answered.append((client, answer))
            self._wake()

    def _reply(self, client: _Client, answer: Answer) -> None:
        status, kind, body = answer
        head = (
            f"HTTP/1.0 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        client.to_send, client.until = head.encode() + body, self._seams.monotonic() + PATIENCE
        self._selector.register(client.socket, selectors.EVENT_WRITE, client.socket)

    def _close(self, client: _Client) -> None:
        del self._clients[client.socket]
        with suppress(KeyError, ValueError):  # it was taken out while its answer was made
            self._selector.unregister(client.socket)
        client.socket.close()
