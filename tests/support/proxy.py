"""A TCP proxy in front of an Aerospike server that makes real requests and replies go missing.

It knows the frames of the protocol, so that faults hit data requests only and the client's own questions about the
cluster pass; or all of them, as in an outage. A server tells its clients where its nodes are: start one with the
proxy's port as its alternate address (`servers.Asd` does) and connect with `services_alternate=true`.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from enum import Enum

_HEADER, _DATA = 8, 3


class Fault(Enum):
    """What happens to one data request."""

    PASS = "it and its reply pass"
    DROP_REQUEST = "it never arrives; the connection stays open"
    DROP_REPLY = "it arrives, its reply does not"
    CUT_BEFORE = "the connection is cut before it arrives"
    CUT_AFTER = "it arrives, and the connection is cut instead of a reply"
    RESET = "it arrives, and the connection is reset instead of a reply"
    HALF = "it arrives, and the connection is reset in the middle of the reply"
    LATE = "it arrives only at `release`, when nobody waits for it any more"


_CUTS = (Fault.CUT_AFTER, Fault.RESET, Fault.HALF)
_RESETS = (Fault.RESET, Fault.HALF)


class Proxy:
    """Forwards connections to one server. `script` holds the faults of the data requests to come; then all pass.

    `outage`: what happens to every request as long as it is set, the client's own questions included;
    `Fault.DROP_REQUEST` makes a black hole.  `fired` counts the requests by fault, `swallowed` the replies that came
    and were not passed on.
    """

    def __init__(self, port: int, server: int) -> None:
        self.port, self.server = port, server
        self.script: deque[Fault] = deque()
        self.fired: dict[Fault, int] = dict.fromkeys(Fault, 0)
        self.outage: Fault | None = None
        self.requests = 0
        self.delay = 0.0
        self.swallowed = 0
        self._held: list[bytes] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.open()

    def open(self) -> None:
        """Listen, from the beginning, and again after `close`."""
        self._listener: socket.socket | None = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Cut everything, and listen no more: the server is gone as far as clients can see."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener:
            _shut(listener)
        self.cut()

    def cut(self) -> None:
        """Cut every connection there is; new ones are accepted."""
        with self._lock:
            for end in self._open:
                _shut(end)
            self._open.clear()

    def release(self) -> int:
        """Let the late requests arrive, each on a connection of its own; how many there were."""
        with self._lock:
            held, self._held = self._held, []
        for frame in held:
            with socket.create_connection(("127.0.0.1", self.server), 5) as upstream:
                upstream.sendall(frame)
                upstream.recv(_HEADER)
        return len(held)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._serve, args=(listener, client), daemon=True).start()

    def _serve(self, listener: socket.socket, client: socket.socket) -> None:
        try:
            upstream = socket.create_connection(("127.0.0.1", self.server), 5)
        except OSError:
            client.close()
            return
        upstream.settimeout(None)
        link = _Link(self, client, upstream)
        with self._lock:
            closed = self._listener is not listener  # after it was accepted, so nobody has cut it
            if not closed:
                self._open |= {client, upstream}
        if closed:
            link.close()
            return
        threading.Thread(target=link.replies, daemon=True).start()
        with suppress(OSError):
            while frame := _frame(client):
                if not self._request(link, frame):
                    break
        link.close()
        with self._lock:
            self._open -= {client, upstream}

    def _request(self, link: _Link, frame: bytes) -> bool:
        """Pass one request on as the script says; False ends the connection."""
        fault = self._next(frame)
        if fault is Fault.CUT_BEFORE:
            return False
        if fault is Fault.LATE:
            with self._lock:
                self._held.append(frame)
        if fault in (Fault.DROP_REQUEST, Fault.LATE):
            return True
        link.fault = fault
        link.upstream.sendall(frame)
        return True

    def _next(self, frame: bytes) -> Fault:
        if self.outage is not None:
            self.fired[self.outage] += 1
            return self.outage
        if frame[1] != _DATA:
            return Fault.PASS
        if self.delay:
            time.sleep(self.delay)
        with self._lock:
            self.requests += 1
            fault = self.script.popleft() if self.script else Fault.PASS
            self.fired[fault] += 1
        return fault


class _Link:
    """One connection and its continuation to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, upstream: socket.socket) -> None:
        self.proxy, self.client, self.upstream = proxy, client, upstream
        self.fault = Fault.PASS

    def replies(self) -> None:
        with suppress(OSError):
            while data := self.upstream.recv(65_536):
                fault = self.fault
                if fault is Fault.PASS:
                    self.client.sendall(data)
                    continue
                with self.proxy._lock:
                    self.proxy.swallowed += 1
                if fault is Fault.HALF:
                    self.client.sendall(data[: len(data) // 2])
                if fault in _RESETS:
                    _reset(self.client)
                if fault in _CUTS:
                    break
        self.close()

    def close(self) -> None:
        _shut(self.client)
        _shut(self.upstream)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _reset(end: socket.socket) -> None:
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RD)  # whoever reads from it keeps it open
    end.close()


def _frame(source: socket.socket) -> bytes:
    """The next whole frame: version, type, six bytes of length, body; empty at the end."""
    header = _exactly(source, _HEADER)
    return header and header + _exactly(source, int.from_bytes(header[2:], "big"))


def _exactly(source: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = source.recv(count - len(data))
        if not more:
            return b""
        data += more
    return bytes(data)
