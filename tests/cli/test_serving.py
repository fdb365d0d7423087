"""The small HTTP server of probes: what a client gets of an answer."""

from __future__ import annotations

import socket
from contextlib import closing

from latchwork.cli import serving
from latchwork.cli.serving import TEXT, Server
from latchwork.seams import SYSTEM

LARGE = b"queue_depth 7\n" * 400_000


def test_an_answer_larger_than_what_a_connection_holds_comes_whole_and_then_the_connection_ends(monkeypatch):
    monkeypatch.setattr(serving, "PATIENCE", 600.0)  # with which the server would end it in the end
    server = Server("127.0.0.1", 0, SYSTEM, lambda _: (200, TEXT, LARGE), lambda _: False)
    server.start("probe")
    try:
        with closing(socket.create_connection(("127.0.0.1", server.port), timeout=20)) as client:
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            received = b"".join(iter(lambda: client.recv(65_536), b""))
    finally:
        server.stop()
    assert received.partition(b"\r\n\r\n")[2] == LARGE
