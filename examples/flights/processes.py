"""The farms as child processes, and what a person sees while they work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from latchwork.coord import LatchProgress

SCRIPT = Path(__file__).with_name("farm.py")
ENDING = 60
"""Seconds that a farm has to end, once it is done or told to."""


class Farms:
    """A process for each farm; none is left when the `with` block ends."""

    def __init__(self, directory: Path, names: Iterable[str]) -> None:
        self._directory, self._wanted = directory, tuple(names)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping = False

    def __enter__(self) -> Farms:
        for name in self._wanted:
            self._running[name] = self._start(name)
            threading.Thread(target=self._watch, args=(name,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        for process in self._running.values():
            process.terminate()  # the Java process behind it ends with it
        for process in self._running.values():
            try:
                process.wait(ENDING)
            except subprocess.TimeoutExpired:
                process.kill()

    def names(self) -> list[str]:
        """The farms with their process ids."""
        return [f"{name} (process {process.pid})" for name, process in self._running.items()]

    def join(self) -> None:
        """Wait for all to end by themselves: some still repeat tasks that failed after they had counted."""
        for process in self._running.values():
            process.wait(ENDING)

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        settings = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        environment = {"SPARK_LOCAL_IP": "127.0.0.1"} | os.environ | settings
        command = [sys.executable, str(SCRIPT), name, str(self._directory)]
        with self._log(name).open("ab") as log:
            # A session of its own: Ctrl-C reaches the coordinator, which then ends its farms in order.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def _watch(self, name: str) -> None:
        status = self._running[name].wait()
        if status and not self._stopping:
            how = f"was killed by signal {-status}" if status < 0 else f"failed, see {self._log(name)}"
            print(f"\nfarm {name} {how}; it can be run again: --resume {self._directory} --farm {name}", flush=True)

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
