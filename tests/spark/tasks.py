"""What the tests run on executors; shipped by value."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark import TaskContext


@dataclass(frozen=True)
class Trail:
    """A folder in which every attempt leaves an empty file, named `<partition>-<attempt>-<what>`."""

    folder: str

    def mark(self, what):
        context = TaskContext.get()
        (Path(self.folder) / f"{context.partitionId()}-{context.attemptNumber()}-{what}").touch()

    def marks(self, what):
        """The (partition, attempt) pairs that got so far, sorted."""
        names = (path.name.rsplit("-", 1) for path in Path(self.folder).iterdir())
        return sorted(tuple(map(int, who.split("-"))) for who, done in names if done == what)

    def await_mark(self, name, timeout=60.0):
        """Wait until some attempt has left this very mark."""
        deadline = time.monotonic() + timeout
        while not (Path(self.folder) / name).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody marked {name}")
            time.sleep(0.02)


def fail_first(remainder):
    """Fail in the first attempt of every third partition."""
    context = TaskContext.get()
    if context.attemptNumber() == 0 and context.partitionId() % 3 == remainder:
        raise RuntimeError("made to fail")


def counting(latch, trail):
    """Pass items on and count the partition; some first attempts fail before that, some after it."""

    def task(items):
        trail.mark("begun")
        yield from latch.count_down_partitions(before(items))
        trail.mark("counted")
        fail_first(2)

    def before(items):
        yield from items
        fail_first(1)

    return task


def kill_this_executor():
    """Kill the Java process above this Python worker, as the kernel does when memory runs out."""
    daemon = os.getppid()
    status = Path(f"/proc/{daemon}/status").read_text()
    java = int(re.search(r"PPid:\s+(\d+)", status).group(1))
    os.kill(java, signal.SIGKILL)
    time.sleep(60)


def await_line(log, pattern, timeout=60.0):
    """What a log says that matches the pattern, once it does."""
    deadline = time.monotonic() + timeout
    while True:
        found = pattern.search(log.read_text() if log.exists() else "")
        if found:
            return found.group()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{log} never said {pattern.pattern}: {log.read_text()[-2000:]}")
        time.sleep(0.1)
