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
        self._looked = float("-inf")

    def watch(self, files: Iterable[str]) -> None:
        """Watch these files too, from now on."""
        for file in files:
            self._times.setdefault(file, _changed_at(file))

    def watch_folder(self) -> None:
        """Watch every module below the current folder too: what a program needs that cannot be loaded is not known."""
        for folder, below, names in os.walk(Path.cwd()):
            below[:] = [name for name in below if not name.startswith(".") and name not in _NOT_OURS]
            self.watch(f"{folder}{os.sep}{name}" for name in names if name.endswith(".py"))

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
        return changed[0] if changed else None


def _changed_at(file: str) -> int:
    """Return when a file was changed (ns); 0 where there is none."""
    try:
        return Path(file).stat().st_mtime_ns
    except OSError:
        return 0
