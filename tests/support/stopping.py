"""Stopping a process as a machine stops one that hangs: it neither goes on nor ends."""

from __future__ import annotations

import os
import signal

from latchwork.errors import Unavailable
from latchwork.store import Exists, Key, Put

from .waiting import until


def stop_between_writes(child, store):
    """Stop a child that uses this SQLite file, not within a write: nobody else could write until it goes on."""

    def is_stopped():
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        try:
            store.operate(Key("resources", "free"), Put("n", 1), exists=Exists.ANY)
        except Unavailable:
            os.kill(child.pid, signal.SIGCONT)
            return False
        return True

    until(is_stopped)
