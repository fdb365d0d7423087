"""Commands with a time limit: when it is over, a command is ended, with all that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Done:
    """How a command ended: its exit status (negative: a signal), and all that it printed."""

    status: int
    output: str
    late: bool = False

    def __str__(self) -> str:
        how = "was ended, out of time" if self.late else f"ended with {self.status}"
        return f"{how}: {(self.output.strip().splitlines() or ['it printed nothing'])[-1]}"


class Commands:
    """Runs commands in the project's folder, from any thread. `ended`: whether they were told to end."""

    def __init__(self) -> None:
        self.ended = False
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(self, command: Sequence[str], limit: float, environment: Mapping[str, str] | None = None) -> Done:
        """Run one to its end, or for `limit` seconds. What it leaves behind is ended too."""
        if self.ended:
            return Done(-signal.SIGKILL, "not begun", late=True)
        # A file: a pipe would stay open as long as anything that the command has started.
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
            try:
                if self.ended:
                    _end(process)
                process.wait(limit)
                late = self.ended
            except subprocess.TimeoutExpired:
                late = True
            finally:
                _end(process)
                self._running.discard(process)
            output.seek(0)
            return Done(process.wait(), output.read().decode(errors="replace"), late)

    def end(self) -> None:
        """End all that run, and begin no more."""
        self.ended = True
        for process in tuple(self._running):
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and the session that it leads."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
