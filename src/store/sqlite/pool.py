"""The connections of one process to one SQLite file: lent to threads, patient with other writers, closed by a fork.

Threads borrow a connection, so that readers do not queue behind a writer's sync, and threads that come and go do not
each open the file. Writers of one process queue at a lock of that process, which wakes the next at once; writers of
several processes ask again after short pauses, for at most `busy_timeout` seconds.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ...deadline import call_time
from ...errors import AlreadyExists, InvalidRequest, Misconfigured, NotFound, OutcomeUnknown, Refused, Unavailable
from ...retry import Poll
from ...seams import Lock, Seams
from .file import FAILURES, is_busy, meaning, never_commits, open_file

T = TypeVar("T")
_WAIT = Poll(low=0.0005, high=0.003, jitter=0.5)
"""Short, since a writer that has just committed is quick to begin again: whoever asks seldom waits for seconds."""
FORK_PATIENCE = 1.0
"""Seconds that a fork waits for a write of another thread, and for connections to come back: it takes milliseconds."""
_ANSWERS = (NotFound, Refused, AlreadyExists, InvalidRequest)
"""Errors that say nothing against the connection."""


class SQLitePool:
    """Runs reads and writes over connections that it makes when they are needed."""

    def __init__(self, path: Path, synchronous: str, busy_timeout: float, seams: Seams) -> None:
        self.path, self.synchronous, self.busy_timeout, self.seams = path, synchronous, busy_timeout, seams
        self._idle: list[sqlite3.Connection] = []
        self._lent: set[object] = set()
        self._watcher: sqlite3.Connection | None = None
        # Locks that know their owner: a signal's handler may ask within a question, or interrupt the taking of a lock.
        self._writing, self._lending = threading.RLock(), threading.RLock()
        _POOLS.add(self)

    def data_version(self) -> object:
        """Another value after each commit of any other connection, those of this process too.

        A connection that writes nothing itself is asked, some 5 microseconds; another connection gives another value,
        and so does one that cannot be asked.
        """
        with self._lending:
            loan = object()
            self._lent.add(loan)
            watcher, self._watcher = self._watcher, None
        try:
            watcher = watcher or self._borrow()
            ((version,),) = watcher.execute("PRAGMA data_version")
        except FAILURES:
            if watcher is not None:
                watcher.close()
            return loan
        else:
            with self._lending:
                self._watcher, spare = watcher, self._watcher
            if spare is not None:
                self._idle.append(spare)
            return watcher, version
        finally:
            self._lent.discard(loan)

    def read(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        """What `ask` returns; it may be called again while another connection is in its way."""
        with self._connection() as connection:
            return self._patiently(lambda: ask(connection))

    def write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """What `change` returns, once it is committed; an error leaves nothing of it behind."""
        taken = False
        try:
            time = self._time()
            taken = self._writing.acquire(timeout=time)
            if not taken:
                message = f"{self.path}: other threads were writing for {time:.1f} s; try again later"
                raise Unavailable(message)
            with self._connection() as connection:
                self._patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
                try:
                    result = change(connection)
                except BaseException:
                    if connection.in_transaction:  # SQLite has rolled back by itself after some errors
                        connection.execute("ROLLBACK")
                    raise
                self._commit(connection)
                return result
        finally:
            # An interrupt that came while the lock was taken has left no word of that.
            if taken or self._writing._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - as Condition asks
                self._writing.release()

    def close(self) -> None:
        """Close the connections that are not lent at the moment."""
        idle, self._idle = self._idle, []
        watcher, self._watcher = self._watcher, None
        for connection in (*idle, *filter(None, [watcher])):
            connection.close()

    def before_fork(self, paused: list[Lock]) -> None:
        """Close the connections, once no thread uses one.

        paused: is given the locks that keep threads from making others, each at once, as whoever waits here may be
        interrupted; the process forks nevertheless.

        A child has a copy of what SQLite knows of its locks, which are the parent's. While an inherited connection is
        open there, those that the child makes take no lock, and the parent deletes the log that the child writes to.
        """
        for lock in (self._writing, self._lending):
            if lock.acquire(timeout=FORK_PATIENCE):
                paused.append(lock)  # noqa: PERF401 - each by itself
        _WAIT.until(self.seams, lambda: None if self._lent else True, timeout=FORK_PATIENCE)
        self.close()

    def after_fork(self) -> None:
        """Reset the pool in a forked child; refuse its use where a connection of the parent's was open."""
        if self._lent or self._idle or self._watcher:
            _INHERITED.setdefault(self.path, []).append([*self._idle, *filter(None, [self._watcher])])
        self._idle, self._lent, self._watcher = [], set(), None
        self._writing, self._lending = threading.RLock(), threading.RLock()

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as failure:  # the connection is closed after it, which undoes what can be undone
            if never_commits(failure):
                raise
            raise OutcomeUnknown(
                f"{self.path}: {failure} at the commit; read the record before going on", path=str(self.path)
            ) from failure

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """What `attempt` returns, once nobody is in its way any more, or its error where its time is over."""
        try:
            return attempt()
        except sqlite3.OperationalError as failure:
            if not is_busy(failure):
                raise
            busy: list[sqlite3.Error] = [failure]

        def again() -> tuple[T] | None:
            try:
                return (attempt(),)
            except sqlite3.OperationalError as failure:
                if not is_busy(failure):
                    raise
                busy[0] = failure
                return None

        done = _WAIT.until(self.seams, again, timeout=self._time())
        if done is None:
            raise busy[0]
        return done[0]

    def _time(self) -> float:
        """Seconds to wait for others: `busy_timeout`, or what the verb that this thread is in has left."""
        time = call_time()
        return self.busy_timeout if time is None else min(self.busy_timeout, time)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection of this process for one call; one that has failed is not used again."""
        loan, connection, sound = object(), None, False
        try:
            with self._lending:  # which a fork holds
                self._lent.add(loan)
            connection = self._borrow()
            yield connection
            sound = True
        except FAILURES as failure:
            raise meaning(failure, self.path) from failure
        except _ANSWERS:
            sound = True
            raise
        finally:
            if connection is not None and sound:
                self._idle.append(connection)
            elif connection is not None:
                connection.close()
            self._lent.discard(loan)

    def _borrow(self) -> sqlite3.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            if self.path in _INHERITED:
                raise Misconfigured(
                    f"{self.path}: this process was forked while a call of another thread had lasted for more than "
                    f"{FORK_PATIENCE:g} s; fork before the store is used, or start processes by spawn"
                ) from None
            return self._patiently(lambda: open_file(self.path, self.synchronous))


_POOLS: weakref.WeakSet[SQLitePool] = weakref.WeakSet()
_INHERITED: dict[Path, list[list[sqlite3.Connection]]] = {}
"""Files that this process has its parent's connections to; kept, since one that is collected is closed, which drops
the parent's locks (sqlite.org/howtocorrupt.html, 2.6)."""
_forking = threading.RLock()
"""One thread forks at a time, so that none lets go of what another one holds."""
_PAUSED: list[Lock] = []
"""While a process forks: what lets its threads go on."""


def _before_fork() -> None:
    _forking.acquire()
    for pool in tuple(_POOLS):
        pool.before_fork(_PAUSED)


def _after_fork_in_parent() -> None:
    while _PAUSED:
        _PAUSED.pop().release()
    _forking.release()


def _after_fork() -> None:
    global _forking
    _forking = threading.RLock()
    _PAUSED.clear()
    for pool in _POOLS:
        pool.after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)
