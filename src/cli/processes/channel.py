"""Messages between a parent and a child: JSON documents, one a line, over a socket. Its end tells that the other has
died.
"""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ...seams import SYSTEM

PATIENCE = 2.0
"""Seconds for which a parent, and a document that is of use only now, wait for room: until the other side has read most
of what came before. Linux says that there is none once a quarter of its buffer is in use, by about 40 documents."""
CHUNK = 65_536


class Channel:
    """One end. Any thread may send; one thread reads.

    patience: seconds after which the other counts as dead if it does not read; None = it counts as dead once it is: it
        may only have been stopped, and then reads what has waited.
    is_broken: whether nothing more can be sent.
    """

    def __init__(self, end: socket.socket, patience: float | None = None) -> None:
        self._end, self._lock, self._unread = end, SYSTEM.lock(), b""
        self.is_broken = False
        end.settimeout(patience)

    def fileno(self) -> int:
        """Return the descriptor that can be read when there is a document, or the other has died."""
        return self._end.fileno()

    def send(self, **document: Any) -> bool:
        """Send a document, once there is room for it; whether that could be done."""
        line = json.dumps(document).encode() + b"\n"
        with self._lock:
            if not self.is_broken:
                try:
                    self._end.sendall(line)
                except OSError:  # it is dead, or a part was sent, and nothing can follow it
                    self.is_broken = True
            return not self.is_broken

    def offer(self, **document: Any) -> bool:
        """Send a document that is of use only now, unless there is no room for `PATIENCE`; whether it was sent."""
        try:
            _, room, _ = select.select([], [self._end], [], PATIENCE)
        except (OSError, ValueError):  # another thread has closed it
            return False
        return bool(room) and self.send(**document)

    def received(self) -> list[Mapping[str, Any]] | None:
        """Return the documents that have come, and wait for a part of one. None once the other has died."""
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
