"""A progress bar for a latch: on stderr, and only if that is a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import LatchworkError
from ...plain import one_line

if TYPE_CHECKING:
    from ...seams import Seams
    from .watch import LatchProgress

NAME_EVERY = 1.0
"""Seconds between two reads of the missing parties, each of which reads the whole record."""


class NamesMissing(Protocol):
    """The part of a latch that the bar uses."""

    def missing(self) -> Iterable[Any]: ...


class ProgressBar:
    """A progress bar, drawn again and again in one line: `[####----] 12 of 20, waiting for ...`.

    whole: returns how many there are in all; it is asked once, when the bar is first drawn.
    """

    def __init__(self, latch: NamesMissing, whole: Callable[[], int], seams: Seams) -> None:
        self._latch, self._whole, self._seams = latch, whole, seams
        self._total = 0
        self._named_at: float | None = None
        self._missing: list[str] = []
        self._drawn = False

    def update(self, progress: LatchProgress) -> None:
        """Draw the bar with this progress."""
        if not _is_terminal():
            return
        if not self._drawn:
            with suppress(LatchworkError):  # then it counts from here
                self._total = self._whole()
        self._total = max(self._total, progress.remaining, 1)
        self._look(progress)
        columns = shutil.get_terminal_size().columns
        self._write("\r\x1b[K" + line(progress, self._total, self._missing, columns - 1))
        self._drawn = True

    def close(self) -> None:
        """Leave the bar on the screen, and put the cursor on the next line."""
        if self._drawn:
            self._write("\n")

    def _write(self, text: str) -> None:
        """Write to stderr, and ignore errors: a closed stderr or terminal must not end a wait."""
        with suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()

    def _look(self, progress: LatchProgress) -> None:
        now = self._seams.monotonic()
        if self._named_at is not None and now - self._named_at < NAME_EVERY and not progress.released:
            return
        self._named_at = now
        try:
            parties = sorted(str(party) for party in self._latch.missing())
        except LatchworkError:
            parties = []  # the wait itself reports what is wrong; the bar only decorates it
        self._missing = [*progress.absent_farms, *parties]


def _is_terminal() -> bool:
    """Whether stderr is a terminal. Python sets stderr to None if it started without one."""
    with suppress(OSError, ValueError):
        return sys.stderr is not None and sys.stderr.isatty()
    return False


def line(progress: LatchProgress, total: int, missing: list[str], columns: int) -> str:
    """Return the bar as one line of at most `columns` columns."""
    done = min(max(total - progress.remaining, 0), total)
    width = max(4, min(30, columns - 40))
    filled = width * done // total
    text = f"[{'#' * filled}{'-' * (width - filled)}] {done} of {total}"
    if missing:
        text += (
            ", waiting for "
            + ", ".join(map(one_line, missing[:8]))
            + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        )
    return text if len(text) <= columns else text[: max(columns - 1, 0)] + "~"
