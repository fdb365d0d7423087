"""The farms and the plain consumers as child processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

FOLDER = Path(__file__).parent
ENDING = 60
"""Seconds that a process has to end, once it is done or told to."""


def environment() -> dict[str, str]:
    """Spark's Python is this one, and finds these modules."""
    settings = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    settings["PYTHONPATH"] = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
    return {"SPARK_LOCAL_IP": "127.0.0.1"} | os.environ | settings


class Children:
    """The farms and the plain consumers; no process is left when the `with` block ends."""

    def __init__(self, directory: Path, event: Callable[[str, str], object]) -> None:
        self._directory, self._event = directory, event
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._starting = threading.Lock()
        self._stopping = False
        self._ended: set[str] = set()

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

    def start(
        self, name: str, script: str, *arguments: str, again: str = "", planned: Callable[[], object] | None = None
    ) -> None:
        """Start a script with the run's directory.

        again: the command that starts it again, said where it fails or is killed.
        planned: what to do where it is killed, if that is meant to happen.
        """
        with self._starting:
            if not self._stopping:
                self._running[name] = self._process(name, script, arguments)
                threading.Thread(target=self._watch, args=(name, again, planned), daemon=True).start()

    def names(self) -> list[str]:
        """The children with their process ids."""
        return [f"{name} (process {process.pid})" for name, process in self._running.items()]

    def join(self, names: Iterable[str]) -> None:
        """Wait for these to end by themselves: some still repeat tasks that failed after they had counted."""
        for name in names:
            self._running[name].wait(ENDING)

    def end(self, names: Iterable[str]) -> None:
        """Tell these to end in order, those that were started."""
        for name in set(names) & self._running.keys() - self._ended:
            self._ended.add(name)
            self._running[name].terminate()

    def _process(self, name: str, script: str, arguments: Iterable[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(FOLDER / script), str(self._directory), *arguments]
        with self._log(name).open("ab") as log:
            # A session of its own: Ctrl-C reaches the coordinator, which then ends its children in order.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(), start_new_session=True
            )

    def _watch(self, name: str, again: str, planned: Callable[[], object] | None) -> None:
        status = self._running[name].wait()
        if not status or self._stopping or name in self._ended:
            return
        how = f"{name} failed, see {self._log(name)}" if status > 0 else f"{name} was killed by signal {-status}"
        if status < 0 and planned is not None:
            self._event(f"{how}, as planned; what it held is swept and handled by others", f"{name} killed, as planned")
            planned()
        else:
            short = f"{name} failed" if status > 0 else f"{name} killed"
            self._event(f"{how}; to run it again: {again}" if again else how, short)

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"
