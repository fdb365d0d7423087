"""Messages between a parent and a child: JSON documents, one a line, over a socket. Its end tells that the other has
died.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ...seams import SYSTEM

PATIENCE = 2.0
"""Seconds for which a document may wait until the other side has read what came before. After that the other side
counts as dead: it has not read for thousands of documents."""
CHUNK = 65_536


class Channel:
    """One end. Any thread may send; one thread reads.

    is_broken: whether nothing more can be sent.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end, self._lock, self._unread = end, SYSTEM.lock(), b""
        self.is_broken = False
        end.settimeout(PATIENCE)

    def fileno(self) -> int:
        """Return the descriptor that can be read when there is a document, or the other has died."""
        return self._end.fileno()

    def send(self, **document: Any) -> bool:
        """Send a document; whether that could be done."""
        line = json.dumps(document).encode() + b"\n"
        with self._lock:
            if not self.is_broken:
                try:
                    self._end.sendall(line)
                except OSError:  # it is dead, or a part was sent, and nothing can follow it
                    self.is_broken = True
            return not self.is_broken

    def received(self) -> list[Mapping[str, Any]] | None:
        """Return the documents that have come; wait for a part of one for `PATIENCE` at most. None once the other has
        died.
        """
        try:
            data = self._end.recv(CHUNK)
        except TimeoutError:
            return []
        except OSError:
            return None
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close this end."""
        with suppress(OSError):
            self._end.close()
