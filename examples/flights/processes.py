"""The farms and the plain consumers as child processes, and what a person sees while they work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from latchwork.coord import LatchProgress

FOLDER = Path(__file__).parent
ENDING = 60
"""Seconds that a process has to end, once it is done or told to."""


class Children:
    """The farms and the plain consumers; no process is left when the `with` block ends."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._starting = threading.Lock()
        self._stopping = False

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        with self._starting:
            self._stopping = True
        for process in self._running.values():
            process.terminate()  # the Java process behind a farm ends with it
        for process in self._running.values():
            try:
                process.wait(ENDING)
            except subprocess.TimeoutExpired:
                process.kill()

    def start(self, name: str, script: str, *arguments: str, killed: Callable[[], object] | None = None) -> None:
        """Start a script with the run's directory. killed: what to do where it is killed; default: say so."""
        with self._starting:
            if not self._stopping:
                self._running[name] = self._process(name, script, arguments)
                threading.Thread(target=self._watch, args=(name, killed), daemon=True).start()

    def names(self) -> list[str]:
        """The children with their process ids."""
        return [f"{name} (process {process.pid})" for name, process in self._running.items()]

    def join(self, names: Iterable[str]) -> None:
        """Wait for these to end by themselves: some still repeat tasks that failed after they had counted."""
        for name in names:
            self._running[name].wait(ENDING)

    def _process(self, name: str, script: str, arguments: Iterable[str]) -> subprocess.Popen[bytes]:
        settings = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        settings["PYTHONPATH"] = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
        environment = {"SPARK_LOCAL_IP": "127.0.0.1"} | os.environ | settings
        command = [sys.executable, str(FOLDER / script), str(self._directory), *arguments]
        with self._log(name).open("ab") as log:
            # A session of its own: Ctrl-C reaches the coordinator, which then ends its children in order.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def _watch(self, name: str, killed: Callable[[], object] | None) -> None:
        status = self._running[name].wait()
        if not status or self._stopping:
            return
        how = f"was killed by signal {-status}" if status < 0 else f"failed, see {self._log(name)}"
        print(f"\n{name} {how}", flush=True)
        if killed is not None and status < 0:
            killed()

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"


def show_progress() -> bool | Callable[[LatchProgress], None]:
    """The latch's own bar on a terminal; elsewhere a line every few seconds, for logs."""
    if sys.stderr.isatty():
        return True
    said_at = 0.0

    def say(progress: LatchProgress) -> None:
        nonlocal said_at
        if progress.released or time.monotonic() - said_at >= 5:
            said_at = time.monotonic()
            left = ", ".join(f"{farm} {count}" for farm, count in progress.counts.items())
            print(f"partitions to go: {left}", file=sys.stderr, flush=True)

    return say
