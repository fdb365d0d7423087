"""The threads that make the blocking calls of verbs on loops: a few, started as they are needed, ended when idle."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from ..errors import InvalidRequest
from ..forks import reset_in_child
from ..inputs import checked_whole
from ..seams import Seams

THREADS = 16
"""Threads of a pool, at most, by default."""
MOST_THREADS = 1_000
IDLE = 10.0
"""Seconds without a job after which a thread ends."""


class Pool:
    """Up to `threads` daemon threads. Safe to share between threads and loops."""

    def __init__(self, seams: Seams, threads: int, name: str) -> None:
        self._seams, self._most, self._name = seams, checked_whole("threads", threads, 1, MOST_THREADS), name
        self.reset_after_fork()
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Start with no threads. A forked child begins so."""
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = self._seams.lock()
        self._threads = self._idle = self._waiting = 0
        self.is_closed = False

    def submit(self, job: Callable[[], None]) -> None:
        """Let a thread do the job, which raises nothing. Raises `InvalidRequest` once the pool is closed, and Python's
        `RuntimeError` if no thread can be started: then the job is not done.
        """
        with self._lock:
            if self.is_closed:
                raise InvalidRequest("the store was closed: connect again")
            self._jobs.put(job)
            # Counted here, as a thread that has just taken a job still counts as idle: its next one could be long away.
            self._waiting += 1
            starts = self._threads < self._most and self._waiting > self._idle
            self._threads += starts
        if starts:
            try:
                self._seams.spawn(self._work, self._name)
            except BaseException as failure:
                with self._lock:
                    self._threads -= 1
                    if self._threads and isinstance(failure, Exception):
                        return  # another thread does it; but an interrupt is raised
                    self._take_back(job)  # its caller is told that it failed: it must not be done later
                raise

    def _take_back(self, job: Callable[[], None]) -> None:
        """Forget a job that no thread has taken. Called with the lock."""
        others = []
        with suppress(Empty):
            while True:
                others.append(self._jobs.get_nowait())
        for other in others:
            if other is job:
                self._waiting -= 1
            else:
                self._jobs.put(other)

    def close(self) -> None:
        """End the threads after the jobs that were submitted. Harmless when repeated."""
        with self._lock:
            self.is_closed = True
            for _ in range(self._threads):
                self._jobs.put(None)

    def _work(self) -> None:
        jobs = self._jobs
        while True:
            with self._lock:
                self._idle += 1
            job = None
            with suppress(Empty):
                job = jobs.get(timeout=IDLE)
            with self._lock:
                self._idle -= 1
                self._waiting -= job is not None
                if job is None and (self.is_closed or jobs.empty()):
                    self._threads -= 1
                    return
            if job is not None:
                job()
