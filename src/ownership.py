"""Warns about files that other users of this machine could change. They are used nevertheless."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .logs import Log

log = Log(__name__)

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_warned: set[str] = set()


def warn_of_others(path: str | os.PathLike[str]) -> None:
    """Log a warning, once a process, for a file that belongs to another user or that other users may write to."""
    found, name = Path(path).stat(), os.fspath(path)
    if hasattr(os, "getuid") and found.st_uid not in (os.getuid(), 0):
        _say(f"{name} belongs to another user ({found.st_uid}), who can change what is in it")
    if found.st_mode & _OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        _say(f"{name} may be written to by other users (mode {mode:o}): chmod 600 unless that is intended")


def _say(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        log.warning("%s", text)
