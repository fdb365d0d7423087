"""The connections of one process to one SQLite file: lent to threads, patient with other writers, closed by a fork.

Threads borrow a connection, so that readers do not queue behind a writer's sync, and threads that come and go do not
each open the file. Writers of one process queue at a lock of that process, which wakes the next at once; writers of
several processes ask again after pauses, for at most `busy_timeout` seconds.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ...blocking import warn_of_call
from ...deadline import call_time
from ...errors import LatchworkError, Misconfigured, OutcomeUnknown, StorageFailed, Unavailable
from ...forks import members
from ...retry import Poll
from ...seams import Lock, Seams
from ..port import Key
from .file import FAILURES, Connection, in_doubt, is_busy, meaning, of_the_parent, open_file
from .transaction import ANSWERS, Mine, SharedTransaction, Together, finish, write

T = TypeVar("T")
_WAIT = Poll(low=0.002, high=0.02, factor=2.0, jitter=0.5)
"""The pauses while another connection writes. Long beside a commit: a process that looks in vain takes time from the
one that writes, and the next writer finds in memory what it knew last only if it could write more than once."""
OVERDUE = 0.05
"""Seconds after which a writer looks again at each `_LOOK`, so that the others do not keep it out for long."""
_LOOK = Poll(low=0.001, high=0.001, jitter=0.5)
FORK_PATIENCE = 1.0
"""Seconds that a fork waits for a write of another thread, and for connections to come back: it takes milliseconds."""


class SQLitePool:
    """A pool of connections, made when they are needed, over which it runs reads and writes."""

    def __init__(self, path: Path, synchronous: str, busy_timeout: float, seams: Seams) -> None:
        self.path, self.synchronous, self.busy_timeout, self.seams = path, synchronous, busy_timeout, seams
        self._name = str(path)
        self._idle: list[Connection] = []
        self._idle_late: list[Connection] = []
        """Those whose commits do not wait for the disk."""
        self._file: tuple[int, int] | None = None
        """The file that the connections are to; None before the first."""
        self.shards: dict[Key, Any] = {}
        """What the steps know of the shards in this file (`steps.py`)."""
        self.lent: set[object] = set()
        """Who has a connection, or is about to."""
        self._watcher: tuple[Connection, object] | None = None
        """The connection that is asked for the data version, and the time that it is so: nothing is written by it."""
        self._make_locks()
        self._queue: set[object] = set()
        """Threads that wait for their turn to write."""
        self.left_open: SharedTransaction | None = None
        """A transaction that the next writer continues."""
        self.mine = Mine()
        _POOLS.add(self)

    def data_version(self) -> object:
        """Return a value that changes with each commit of any other connection, also of this process.

        A connection that does not write is asked, which takes some 5 microseconds. Another connection gives another
        value, and so does one that cannot be asked, or whose file does not stand at the path any more.
        """
        with self._lending:
            loan = object()
            self.lent.add(loan)
            watcher, self._watcher = self._watcher, None
        try:
            if watcher is not None and watcher[0].file != self._file_now():
                watcher[0].close()
                watcher = None
            # A connection that was asked before may have written since, which it does not count: it starts again.
            connection, since = watcher = watcher or (self._borrow(), object())
            ((version,),) = connection.execute("PRAGMA data_version")
        except (*FAILURES, LatchworkError):  # the next call says what is wrong
            if watcher is not None:
                watcher[0].close()
            return loan
        else:
            with self._lending:
                self._watcher, spare = watcher, self._watcher
            if spare is not None:
                self._idle.append(spare[0])
            return since, version
        finally:
            self.lent.discard(loan)

    def read(self, ask: Callable[[Connection], T]) -> T:
        """Return what `ask` returns; it may be called again while another connection is in its way.

        Within `together` it sees what was written there.
        """
        together = self.mine.together
        if together is not None and together.has_begun:
            return together.run(ask)
        with self._connection() as connection:
            return self.patiently(ask, connection)

    def write(self, change: Callable[[Connection], T], *, late: bool = False) -> T:
        """Return what `change` returns, once it is committed; after an error nothing of it is kept.

        Within `together`, once that is committed.

        late: it is on the disk with the next commit that waits for the disk, at the latest: for what a power cut may
            undo as long as nothing that came after it is kept.
        """
        together = self.mine.together
        return write(self, change, late=late) if together is None else together.run(change)

    def write_alone(self, statement: str, values: Sequence[Any]) -> bool:
        """Whether the statement has changed a row; it is a transaction by itself."""

        def change(connection: Connection) -> int:
            return connection.execute(statement, values).rowcount

        if self.mine.together is not None or self._queue or self._owned():
            return self.write(change) > 0  # with those that wait, in one commit
        connection, sound, free = None, False, False
        try:
            if not self._writing.acquire(timeout=0):
                return self.write(change) > 0
            if self.left_open is not None:  # which changes within a turn only: a thread waits for the next writer
                self.end_turn()
                return self.write(change) > 0
            self.lent.add(change)  # without the lock that a fork holds: it holds this one, too
            file = self._file
            connection, changed = self._borrow(), 0
            if file is self._file or file is None:  # else the statement is about another file
                try:
                    changed = connection.execute(statement, values).rowcount
                except sqlite3.OperationalError as failure:
                    if not is_busy(failure):
                        raise
                    changed = self.patiently(change, connection)
            sound = True
            self._idle.append(connection)
            self.lent.discard(change)
            self.end_turn()
            free = True
            return changed > 0
        except FAILURES as failure:
            if in_doubt(failure):
                raise OutcomeUnknown(
                    f"{self.path}: {failure} at a write; read the record before going on", path=self._name
                ) from failure
            raise meaning(failure, self.path) from failure
        finally:
            if not free:
                self._end_alone(change, None if sound else connection)

    def _end_alone(self, loan: object, connection: Connection | None) -> None:
        """End a write that has failed, or was interrupted, wherever that was."""
        try:
            if connection is not None:
                connection.close()
            self.lent.discard(loan)
        finally:
            try:
                self.end_turns()
            finally:
                self.end_turns()  # the rest, if it was interrupted

    def together(self) -> Together:
        """Return one transaction of this thread's calls: the one that it is in, or a new one."""
        return self.mine.together or Together(self)

    def close(self) -> None:
        """Close the connections that are not lent at the moment."""
        watching, self._watcher = self._watching(), None
        for connection in watching:
            connection.close()
        with suppress(IndexError):  # each is taken as if it were lent: other threads borrow and give back meanwhile
            for _ in range(len(self._idle_late)):
                self._idle_late.pop().close()
            for _ in range(len(self._idle)):
                self._idle.pop().close()

    def _watching(self) -> list[Connection]:
        """Return the connection that is asked for the data version, if there is one."""
        return [] if self._watcher is None else [self._watcher[0]]

    def before_fork(self, paused: list[Lock]) -> None:
        """Close the connections, once no thread uses one.

        paused: is given the locks that keep threads from making others, each at once, as a thread that waits here may
            be interrupted; the process forks nevertheless.

        A child has a copy of SQLite's knowledge of its locks, which are the parent's. While an inherited connection is
        open there, connections that the child makes take no lock, and the parent deletes the log that the child writes
        to.
        """
        for lock in (self._writing, self._lending):
            if lock.acquire(timeout=FORK_PATIENCE):
                paused.append(lock)  # noqa: PERF401 - each by itself
        if self.left_open is not None and self.has_turn:
            finish(self, self.left_open)
        _LOOK.until(self.seams, lambda: None if self.lent else True, timeout=FORK_PATIENCE)
        self.close()

    def after_fork(self) -> None:
        """Reset the pool in a forked child; refuse its use where a connection of the parent's was open."""
        if self.lent or self._idle or self._idle_late or self._watcher:
            _OF_THE_PARENT.add(self.path)
        for group in self.lent:
            if isinstance(group, SharedTransaction) and group.over is not None:
                group.over.set()  # nobody else will: where this thread waits for its end, that is the parent's
        self._idle, self._idle_late, self.lent, self._watcher = [], [], set(), None
        self._make_locks()
        self._queue, self.left_open, self.mine = set(), None, Mine()

    def _make_locks(self) -> None:
        # Locks that know their owner: a signal's handler may ask within a question, or interrupt the taking of a lock.
        self._writing, self._lending = threading.RLock(), threading.RLock()
        self._owned: Callable[[], bool] = self._writing._is_owned  # type: ignore[attr-defined]  # noqa: SLF001 - as `threading.Condition` asks

    # ---- what a write transaction needs (transaction.py)

    def take_turn(self) -> bool:
        """Wait for this process's other writers. Raises `Unavailable` where that takes too long."""
        if self._writing.acquire(timeout=0):  # as nearly always
            return True
        place, time = object(), self._time()
        try:
            self._queue.add(place)
            if self._writing.acquire(timeout=time):
                return True
        finally:
            self._queue.discard(place)
        raise Unavailable(f"{self.path}: other threads were writing for {time:.1f} s; try again later")

    def turn_within(self, seconds: float) -> bool:
        """Whether this thread has got the turn within this time."""
        return self._writing.acquire(timeout=seconds)

    @property
    def has_turn(self) -> bool:
        """Whether it is this thread's turn: an interrupt that came while it was taken has left no word of that."""
        return self._owned()

    def end_turn(self) -> None:
        """Let the next one write."""
        try:  # noqa: SIM105 - on the way of each publish, where `suppress` costs two calls more
            self._writing.release()
        except RuntimeError:
            pass  # in a child that was forked meanwhile it is nobody's turn

    def end_turns(self) -> None:
        """Let the next one write, however often this thread has taken the turn, and where it has not."""
        while self.has_turn:
            self.end_turn()

    @property
    def waits_for_the_disk(self) -> bool:
        """Whether a commit does, unless it may be late."""
        return self.synchronous == "full"

    @property
    def shares_commits(self) -> bool:
        """Whether a commit is to be for all that wait: it waits for the disk, and some do."""
        return self.synchronous == "full" and bool(self._queue)

    def lend(self, group: SharedTransaction) -> Connection:
        """Return a connection for a transaction."""
        with self._lending:  # which a fork holds
            self.lent.add(group)
        group.connection = connection = self._borrow(late=group.late)
        return connection

    def give_back(self, group: SharedTransaction, connection: Connection | None, *, sound: bool) -> None:
        """End a loan; one that has failed is not used again."""
        if connection is not None and sound:
            (self._idle_late if group.late else self._idle).append(connection)
        elif connection is not None:
            connection.close()
        self.lent.discard(group)

    # ---- patience

    def patiently(self, attempt: Callable[..., T], *given: Any) -> T:
        """Repeat `attempt` until no other connection is in its way; return its result, or raise its error once the time
        is over.
        """
        try:
            return attempt(*given)
        except sqlite3.OperationalError as failure:
            if not is_busy(failure):
                raise
            busy: list[sqlite3.Error] = [failure]

        def again() -> tuple[T] | None:
            try:
                return (attempt(*given),)
            except sqlite3.OperationalError as failure:
                if not is_busy(failure):
                    raise
                busy[0] = failure
                return None

        time = self._time()
        done = _WAIT.until(self.seams, again, timeout=min(time, OVERDUE))
        if done is None and time > OVERDUE:
            done = _LOOK.until(self.seams, again, timeout=time - OVERDUE)
        if done is None:
            raise busy[0]
        return done[0]

    @contextmanager
    def waiting_at_most(self, seconds: float) -> Iterator[None]:
        """Let this thread wait no longer for others, for what is not worth a wait."""
        self.mine.patience = seconds
        try:
            yield
        finally:
            self.mine.patience = None

    def _time(self) -> float:
        """Return the seconds to wait for others: `busy_timeout`, or the time that is left to this thread's verb."""
        limits = (self.busy_timeout, call_time(), self.mine.patience)
        return min(limit for limit in limits if limit is not None)

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """Return a connection of this process for one call; one that has failed is not used again."""
        warn_of_call()
        loan, connection, sound = object(), None, False
        try:
            with self._lending:  # which a fork holds
                self.lent.add(loan)
            connection = self._borrow()
            yield connection
            sound = True
        except FAILURES as failure:
            raise meaning(failure, self.path) from failure
        except ANSWERS:
            sound = True
            raise
        finally:
            if connection is not None and sound:
                self._idle.append(connection)
            elif connection is not None:
                connection.close()
            self.lent.discard(loan)

    def _borrow(self, *, late: bool = False) -> Connection:
        """Return a connection to the file that stands at the path now. Raises `StorageFailed` where it is gone."""
        file = self._file
        if file is not None and file != (now := self._file_now()):  # another one stands there, as after a restore
            self.close()
            self.shards.clear()
            file = self._file = now
        connection = self._connected(file, late=late)
        if connection.file is None:
            connection.file = file or self._file_now()
        self._file = self._file or connection.file
        return connection

    def _file_now(self) -> tuple[int, int]:
        """Return what tells the file from every other. Raises `StorageFailed` where it is gone: to make another would
        hide that; `Misconfigured` where it cannot be reached.
        """
        try:
            found = os.stat(self._name)  # noqa: PTH116 - twice as quick, and each call asks
        except FileNotFoundError:
            raise StorageFailed(
                f"{self.path}: the file was deleted while this process used it, and what was stored in it is gone: "
                "restore it from a copy, or start the process again to begin with an empty store"
            ) from None
        except OSError as failure:
            raise Misconfigured(
                f"{self.path}: {failure.strerror}; make the file and its directory readable and writable"
            ) from None
        return found.st_dev, found.st_ino

    def _connected(self, file: tuple[int, int] | None, *, late: bool) -> Connection:
        """Return a connection to this file: an idle one, or a new one."""
        idle = self._idle_late if late else self._idle
        with suppress(IndexError):
            while (connection := idle.pop()).file != file:
                connection.close()  # it was lent while another file was put in place of its own
            return connection
        if self.path in _OF_THE_PARENT:
            raise of_the_parent(self.path)
        return self.patiently(open_file, self.path, self.synchronous, late)


_POOLS: weakref.WeakSet[SQLitePool] = weakref.WeakSet()
_OF_THE_PARENT: set[Path] = set()
"""Files that this process has its parent's connections to."""
_forking = threading.RLock()
"""One thread forks at a time, so that none releases what another one holds."""
_PAUSED: list[Lock] = []
"""The locks to release after a fork."""


def _before_fork() -> None:
    _forking.acquire()
    for pool in members(_POOLS):
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
