"""Files of a program, watched for changes: `latchwork worker --reload`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

LOOK = 0.5
"""Seconds between two looks."""
_NOT_OURS = {"node_modules", "site-packages", "__pycache__"}


class Files:
    """The files that are watched, and when each was changed."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}
        self._folder: dict[str, int] = {}
        self._watches_folder = False
        self._looked = float("-inf")

    def begin(self) -> None:
        """Note how the current folder is. Call it before the program is loaded: what changes meanwhile is a change."""
        self._folder, self._watches_folder = _modules(), False

    def watch(self, files: Iterable[str]) -> None:
        """Watch these files too: those of the current folder from `begin` on, others from now on."""
        for file in files:
            self._times.setdefault(file, self._folder.get(file, _changed_at(file)))

    def watch_folder(self) -> None:
        """Watch every module below the current folder too, until the program is loaded again: what a program needs that
        cannot be loaded is not known. Changes count that came since `begin`, and so do new files.
        """
        self._watches_folder = True

    def changed(self, now: float) -> str | None:
        """Return a file that has changed since it was watched, or was asked for last. None also between two looks.

        now: seconds, monotonic.
        """
        if now < self._looked + LOOK:
            return None
        self._looked = now
        changed = [file for file, at in self._times.items() if _changed_at(file) != at]
        for file in changed:
            self._times[file] = _changed_at(file)
        if self._watches_folder:
            before, self._folder = self._folder, _modules()
            changed += sorted({file for file, _ in before.items() ^ self._folder.items()})
        return changed[0] if changed else None


def _modules() -> dict[str, int]:
    """Return the modules below the current folder, and when each was changed."""
    found: dict[str, int] = {}
    for folder, below, names in os.walk(Path.cwd()):
        below[:] = [name for name in below if not name.startswith(".") and name not in _NOT_OURS]
        files = [f"{folder}{os.sep}{name}" for name in names if name.endswith(".py")]
        found |= {file: _changed_at(file) for file in files}
    return found


def _changed_at(file: str) -> int:
    """Return when a file was changed (ns); 0 where there is none."""
    try:
        return Path(file).stat().st_mtime_ns
    except OSError:
        return 0
