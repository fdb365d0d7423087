"""Write transactions of one process on a SQLite file: one call's, several calls' together, several threads' at once.

A turn is one thread's part of a transaction; it has the lock of the process's writers from its first statement on. If a
commit waits for the disk (`synchronous=full`), a thread that has finished while other threads wait for their turn
leaves the transaction open for them and waits too: the last of them commits for all. If one's part fails, it is undone
alone, and no thread is answered before the commit.

An interrupt (Ctrl-C) may come at every call. So each ending may be done twice: it does what is left to do.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from ...errors import (
    AlreadyExists,
    InvalidRequest,
    LatchworkError,
    NotFound,
    OutcomeUnknown,
    Refused,
    StorageFailed,
    Unavailable,
)
from .file import FAILURES, Connection, meaning, never_commits

T = TypeVar("T")
ANSWERS = (NotFound, Refused, AlreadyExists, InvalidRequest)
"""Errors that say nothing against the connection."""
MAX_GROUP = 64
"""Threads whose writes one commit covers, so that the first of them does not wait without end."""
HAND_OVER = 0.02
"""Seconds that a thread which left the transaction open waits for the next one, before it checks whether that has given
up.
"""


class SharedTransaction:
    """An open transaction on its connection, of one thread or of several; counted by the pool as in use."""

    __slots__ = ("connection", "failure", "final", "late", "lost", "members", "over")

    def __init__(self, *, late: bool = False) -> None:
        self.connection: Connection | None = None
        self.members = 0
        self.late = late
        """Whether its commit does not wait for the disk; then no other thread joins it."""
        self.over: Over | None = None
        """Set once it has ended, where threads wait for that."""
        self.final = False
        """Whether its commit was sent: from then on no thread joins it, or takes anything back."""
        self.failure: Exception | None = InterruptedError("interrupted")
        """What its commit has failed with; an interrupt until it is known to have succeeded."""
        self.lost = False
        """Whether it was undone because of one of several."""


class Over:
    """The end of a transaction, for the threads that wait for it.

    One lock without any code around it: an interrupt within an event's `set` would leave the waiting threads
    without an end.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within this time."""
        if not self._lock.acquire(timeout=seconds):
            return False
        self.set()  # for the next one that waits
        return True

    def set(self) -> None:
        """Let the waiting threads continue."""
        with suppress(RuntimeError):  # it is set
            self._lock.release()


class Mine(threading.local):
    """What is of one thread: the transaction of its calls, if it is in one, and how long it waits for others.

    patience: at most so many seconds; None = as long as a call may take.
    """

    together: Together | None = None
    patience: float | None = None


class Writers(Protocol):
    """The pool, as far as a transaction needs it: one thread writes at a time, and connections are lent."""

    path: Path
    lent: set[object]
    left_open: SharedTransaction | None
    mine: Mine

    @property
    def has_turn(self) -> bool: ...
    @property
    def shares_commits(self) -> bool: ...
    @property
    def waits_for_the_disk(self) -> bool: ...
    def take_turn(self) -> bool: ...
    def turn_within(self, seconds: float) -> bool: ...
    def end_turn(self) -> None: ...
    def end_turns(self) -> None: ...
    def lend(self, group: SharedTransaction) -> Connection: ...
    def give_back(self, group: SharedTransaction, connection: Connection | None, *, sound: bool) -> None: ...
    def patiently(self, attempt: Callable[..., T], *given: Any) -> T: ...


class Undone(Exception):
    """The transaction was undone because of what another thread did in it."""


class Turn:
    """One thread's part of a transaction. Its maker calls `leave` at the end, whatever happens; twice is harmless."""

    __slots__ = ("_group", "_joined", "_late", "_nested", "_pool", "_taken")

    def __init__(self, pool: Writers, *, late: bool = False) -> None:
        self._pool, self._taken, self._joined, self._late = pool, False, False, late and pool.waits_for_the_disk
        self._nested = pool.has_turn
        """Whether it interrupts another turn of this thread, as a signal's handler does."""
        self._group: SharedTransaction | None = None

    def begin(self) -> Connection:
        """Wait for the lock, and begin a transaction or continue the one that was left open."""
        pool = self._pool
        self._taken = pool.take_turn()
        group = pool.left_open
        if group is not None and group.connection is not None and not group.final:
            self._group, pool.left_open, self._joined = group, None, True
            group.connection.execute("SAVEPOINT turn")
            return group.connection
        group = self._group = SharedTransaction(late=self._late)
        connection = pool.lend(group)
        pool.patiently(connection.execute, "BEGIN IMMEDIATE")
        return connection

    def undo(self, *, sound: bool) -> bool:
        """Take this part back. sound: whether the connection is, as far as is known.

        Returns whether it may have seen writes of others that were not committed after it.
        """
        pool, group = self._pool, self._group
        if group is None:
            return False
        connection = group.connection
        if connection is not None and not group.final:
            connection.forget()
            try:
                if not connection.in_transaction:  # SQLite has rolled back by itself, after some errors
                    sound = sound and not self._joined
                    group.lost = True
                elif self._joined:
                    connection.execute("ROLLBACK TO turn")
                    connection.execute("RELEASE turn")
                else:
                    connection.execute("ROLLBACK")
            except FAILURES:
                sound, group.lost = False, True
        if self._joined and not group.lost:
            finish(pool, group)  # for the others
        else:
            end(pool, group, sound=sound)
        self._group = None
        return self._joined and group.failure is not None

    def commit(self) -> None:
        """Make the transaction durable, or let a thread that waits do it. Returns once it is.

        Raises `sqlite3.Error` where nothing was written, `OutcomeUnknown`, `Undone`.
        """
        pool, group = self._pool, self._group
        assert group is not None  # noqa: S101 - there is a part to commit
        assert group.connection is not None  # noqa: S101 - it was borrowed when the part began
        if self._joined:
            group.connection.execute("RELEASE turn")
        group.members += 1
        if pool.shares_commits and not group.late and group.members < MAX_GROUP and not self._nested:
            self._leave_open(group)
        else:
            finish(pool, group)
        self._group = None
        if group.lost:
            raise Undone
        if group.failure is not None:
            if isinstance(group.failure, sqlite3.Error) and never_commits(group.failure):
                raise group.failure
            raise OutcomeUnknown(
                f"{pool.path}: {group.failure} at the commit; read the record before going on", path=str(pool.path)
            ) from group.failure

    def leave(self) -> None:
        """Let the next one write; undo what was neither undone nor committed.

        To be called again where it was interrupted, so always: `try: leave() finally: leave()`.
        """
        if self._group is not None:
            self.undo(sound=False)
        if not self._nested:
            self._pool.end_turns()
        elif self._taken:
            self._taken = False
            self._pool.end_turn()

    def _leave_open(self, group: SharedTransaction) -> None:
        """Hand the transaction over, and wait for its end; if no thread continues it, a waiting one ends it."""
        pool = self._pool
        over = group.over = group.over or Over()
        try:
            pool.left_open = group
            self._group = None
            pool.end_turn()
            while not over.wait(HAND_OVER) and group.connection is not None:
                self._finish_if_left(group)
        finally:
            if group.connection is not None:
                self._finish_if_left(group)  # interrupted

    def _finish_if_left(self, group: SharedTransaction) -> None:
        pool = self._pool
        if pool.turn_within(HAND_OVER):
            try:
                if pool.left_open is group:
                    finish(pool, group)
            finally:
                pool.end_turn()


def finish(pool: Writers, group: SharedTransaction) -> None:
    """Commit for all threads that have written; the caller holds the lock."""
    try:
        if group.connection is not None and not group.final:
            group.final = True
            group.connection.execute("COMMIT")
            group.failure = None
    except FAILURES as failure:  # the connection is closed after it, which undoes what can be undone
        group.failure = failure
    finally:
        end(pool, group, sound=group.failure is None)


def end(pool: Writers, group: SharedTransaction, *, sound: bool) -> None:
    """Return the connection, and answer the threads that wait."""
    if pool.left_open is group:
        pool.left_open = None
    connection, group.connection = group.connection, None
    try:
        pool.give_back(group, connection, sound=sound)
    finally:
        pool.lent.discard(group)
        if group.over is not None:
            group.over.set()


def write(pool: Writers, change: Callable[[Connection], T], *, late: bool = False) -> T:
    """Return what `change` returns, once it is committed; after an error nothing of it is kept.

    late: its commit need not wait for the disk.
    """
    while True:
        turn = Turn(pool, late=late)
        try:
            try:
                result = change(turn.begin())
            except BaseException as failure:
                answer = isinstance(failure, ANSWERS)
                if turn.undo(sound=answer) and answer:
                    raise Undone from None  # it may be the answer to what was never committed
                raise
            turn.commit()
            return result
        except FAILURES as failure:
            raise meaning(failure, pool.path) from failure
        except Undone:
            """By another thread's failure: again."""
        finally:
            try:
                turn.leave()
            finally:
                turn.leave()  # the rest, if it was interrupted


class Together:
    """The calls of one thread that are one transaction: `with` it. It begins with the first call that writes.

    An answer of a call, such as `Refused`, changes nothing and does not end it. Any other error of a call does: then
    nothing is written, later calls fail, and so does leaving the `with`.
    """

    __slots__ = ("_connection", "_depth", "_failure", "_pool", "_turn")

    def __init__(self, pool: Writers) -> None:
        self._pool, self._depth = pool, 0
        self._turn: Turn | None = None
        self._connection: Connection | None = None
        self._failure: BaseException | None = None

    @property
    def has_begun(self) -> bool:
        """Whether a call has written."""
        return self._turn is not None

    def __enter__(self) -> None:
        self._depth += 1
        self._pool.mine.together = self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        self._failure = self._failure or error
        if self._depth:
            return
        if self._pool.mine.together is not self:  # a forked child: the end of the block belongs to the parent
            return
        self._pool.mine.together = None
        turn, void = self._turn, False
        try:
            if turn is not None and self._failure is None:
                turn.commit()
            elif turn is not None:
                void = turn.undo(sound=isinstance(self._failure, Exception))
        except FAILURES as failure:
            raise _rolled_back(meaning(failure, self._pool.path)) from failure
        except Undone:
            raise self._void() from None
        finally:
            if turn is not None:
                try:
                    turn.leave()
                finally:
                    turn.leave()  # the rest, if it was interrupted
        if void and isinstance(self._failure, ANSWERS):
            raise self._void() from None  # it may be the answer to what was never committed
        if self._failure is not None and error is None:
            raise self._failure

    def run(self, call: Callable[[Connection], T]) -> T:
        """Return the result of one call of the transaction."""
        if self._failure is not None:
            raise _rolled_back(
                StorageFailed(f"{self._pool.path}: an earlier call of this transaction failed; nothing is written")
            )
        if self._connection is None:
            self._begin()
        assert self._connection is not None  # noqa: S101 - it has begun
        try:
            return call(self._connection)
        except LatchworkError:
            raise  # by the rules of a store, which come before the first statement that changes anything
        except BaseException as failure:
            self._connection, self._failure = None, failure
            assert self._turn is not None  # noqa: S101 - it has begun
            self._turn.leave()  # so does the end of the block, if this is interrupted
            if isinstance(failure, FAILURES):
                self._failure = _rolled_back(meaning(failure, self._pool.path))
                raise self._failure from failure
            raise

    def _begin(self) -> None:
        """Begin the transaction. If this fails, nothing has begun, and the call may be made again."""
        turn = self._turn = Turn(self._pool)
        try:
            self._connection = turn.begin()
        except BaseException as failure:
            turn.leave()  # so does the end of the block, if this is interrupted
            self._turn = None
            if isinstance(failure, FAILURES):
                raise meaning(failure, self._pool.path) from failure
            raise

    def _void(self) -> LatchworkError:
        return _rolled_back(
            Unavailable(f"{self._pool.path}: another thread's write failed, and this one's went with it; try again")
        )


def _rolled_back(failure: LatchworkError) -> LatchworkError:
    failure.details["rolled_back"] = True
    return failure
