"""The lines in the log about the life of a worker: it starts, drains, has stopped; it loses the store, and gets it
back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ....background import QUIET
from ....errors import LatchworkError, OutcomeUnknown, Unavailable
from ....logs import Log
from ....seams import Seams

log = Log("latchwork.worker")

AWAY = (Unavailable, OutcomeUnknown)
"""The errors of calls while the store is away."""


class Life:
    """The life of one worker, or of a consumer that no worker has. Safe to share between threads.

    name: of the worker or consumer, for people.
    """

    def __init__(self, seams: Seams, name: str) -> None:
        self.name, self._seams = name, seams
        self._lock = seams.lock()
        self._pid = 0
        self._drains = self._ended = False
        self._failing: set[int] = set()
        """The threads whose last call found no store."""
        self._lost_at = self._said_at = 0.0

    def started(self, store: str, threads: Mapping[str, int]) -> None:
        """Log that it works on this store, in how many threads for each queue."""
        self._pid = os.getpid()
        queues = ", ".join(f"{queue!r} (threads: {count})" for queue, count in sorted(threads.items()))
        log.info("%s works (%s) on %s: %s", self.name, self._seams.process_name(), store, queues)

    def drains(self, running: int, grace: float) -> None:
        """Log that it takes no more messages, once."""
        if self._pid == os.getpid() and not self._drains:
            self._drains = True
            handlers = f"handlers that run, for up to {grace:g} s: {running}" if running else "no handler runs"
            log.info("%s drains: it takes no more messages; %s", self.name, handlers)

    def stopped(self, given_up: int, hang: int = 0) -> None:
        """Log that it has stopped, once, and how many handlers had not finished, or hang: these had been given up."""
        if self._pid == os.getpid() and not self._ended:
            self._ended = True
            if given_up:
                log.warning(
                    "%s has stopped; handlers that had not finished: %d; their messages come again", self.name, given_up
                )
            if hang:
                log.warning(
                    "%s has stopped; handlers that hang, past the handler_timeout, and end with the process: %d",
                    self.name, hang,
                )  # fmt: skip
            if not given_up and not hang:
                log.info("%s has stopped; all handlers had finished", self.name)

    def lost(self, failure: LatchworkError) -> None:
        """Log that this thread has found no store: when the first thread does, and then once a minute."""
        with self._lock:
            now = self._seams.monotonic()
            if not self._failing:
                self._lost_at, self._said_at = now, now - QUIET
            self._failing.add(self._seams.thread())
            if now - self._said_at < QUIET:
                return
            self._said_at, seconds = now, now - self._lost_at
        since = f" for {seconds:.0f} s" if seconds else ""
        log.warning(
            "%s has lost the store%s, and tries again (%s): %s", self.name, since, failure.code, failure,
            extra={"code": failure.code},
        )  # fmt: skip

    def found(self) -> None:
        """Log that the store is back, where this thread has found none before."""
        if not self._failing:  # as nearly always
            return
        with self._lock:
            if self._seams.thread() not in self._failing:
                return  # it has perhaps not asked the store
            self._failing.clear()
            seconds = self._seams.monotonic() - self._lost_at
        log.info("%s has the store back, after %.0f s", self.name, seconds)
