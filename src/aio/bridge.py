"""A verb of the sync surface, run on an asyncio loop without blocking it (docs/protocols P24).

    grant = await run(partial(lock.acquire, timeout=5), seams, undo=Grant.release)

The verb's own code runs in a greenlet of the loop's thread. Where it would block, for a call of the store, a pause, an
event or a lock, it parks at a `Gate`, and the coroutine that called it awaits that gate. So a verb that waits costs no
thread, and no protocol is written a second time.

A task that is cancelled meanwhile does not tear the verb apart:

1. A call of the store that is under way is finished. The time of the verb ends now, as if its timeout had come.
2. A pause that is under way ends, so that what is in doubt is asked once more; the next pause raises `CancelledError`.
   A wait for an event raises it at once.
3. What the verb has returned nevertheless is given back (`undo`), whatever else is cancelled meanwhile.
4. `CancelledError` is raised, and `ended(error)` says how the verb had ended.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, CancelledError, Future
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import wait as wait_for
from contextlib import AbstractContextManager, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from ..deadline import Deadline, present
from ..errors import LatchworkError, Unavailable
from ..forks import awaited_as_called, called
from ..seams import Seams
from .pool import Pool

try:
    from greenlet import error as greenlet_error
    from greenlet import getcurrent, greenlet
except ImportError as failure:  # pragma: no cover - where the extra is not installed
    raise ImportError('latchwork.aio needs greenlet: pip install "latchwork[aio]"') from failure

T = TypeVar("T")
R = TypeVar("R")

A_FEW = 16
"""Verbs that a loop wakes in one of its rounds."""
LOOP_LOOK = 1.0
"""Seconds after which a thread that waits for a function on a loop looks whether that loop still lives."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a verb ended whose task was cancelled while it ran.

    returned: whether it had done its work, as if nobody had cancelled it. False: it was stopped at a pause, or failed.
    result: the value that it had returned.
    undone: whether that was given back: a lock released, messages returned uncounted.
    error: why the verb, or what was to give its result back, failed. `OutcomeUnknown` has the same meaning as ever. An
        exception of a function of the user's is the `__cause__` of the `CancelledError`.
    """

    returned: bool = False
    result: Any = None
    undone: bool = False
    error: LatchworkError | None = None


def ended(cancelled: BaseException) -> Ended | None:
    """Return how the verb ended at which this `CancelledError` was raised; None if it does not come from a verb.

    Who awaits a task that was cancelled may get another error, with that of the verb as its context (Python 3.10).
    """
    error: BaseException | None = cancelled
    while error is not None:
        found: Ended | None = getattr(error, "latchwork_ended", None)
        if found is not None:
            return found
        error = error.__context__ if isinstance(error.__context__, CancelledError) else None
    return None


class Gate:
    """One thing that a verb waits for. Any thread may open it; it stays open.

    is_late: whether it was opened because its time was over.
    """

    __slots__ = ("_future", "_loop", "is_late", "is_open")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop, self.is_open, self.is_late = loop, False, False
        self._future: Future[None] | None = None

    def release(self) -> None:
        """Open it."""
        if self.is_open:
            return
        self.is_open = True
        if asyncio._get_running_loop() is self._loop:  # noqa: SLF001 - which raises nothing where there is none
            self.wake()
        else:
            (_WAKEUPS.get(self._loop) or _WAKEUPS.setdefault(self._loop, Wakeups())).add(self, self._loop)

    def expire(self) -> None:
        """Open it, as its time is over."""
        self.is_late = not self.is_open
        self.release()

    def wake(self) -> None:
        """Let the verb go on that waits for it. Called in its loop."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def passed(self) -> None:
        """Wait until it is open. Another wait may follow one that was cancelled."""
        self._future = self._loop.create_future()
        if not self.is_open:  # it may be opened by another thread from here on, which then calls `wake` in this loop
            await self._future


class Wakeups:
    """The gates of one loop that other threads have opened.

    The loop is told of many at once, as each telling is a call of the system, at which the thread and the loop take
    turns. It wakes a few verbs in each of its rounds: hundreds at once would delay whatever else it has to do.
    """

    def __init__(self) -> None:
        self._opened: deque[Gate] = deque()
        self._untold = [True]  # empty from when the loop is told until it has found nothing more: `pop` is one step

    def add(self, gate: Gate, loop: AbstractEventLoop) -> None:
        """Wake the verb that waits for the gate, soon."""
        self._opened.append(gate)
        with suppress(IndexError, RuntimeError):  # it was told already; or it is closed
            self._untold.pop()
            loop.call_soon_threadsafe(self._look, loop)

    def _look(self, loop: AbstractEventLoop) -> None:
        for _ in range(min(A_FEW, len(self._opened))):
            self._opened.popleft().wake()
        if not self._opened:
            self._untold.append(True)  # what is added from here on is told of
            if not self._opened:
                return
            try:
                self._untold.pop()  # one was added before that
            except IndexError:  # and another after it, which was told of
                return
        loop.call_soon(self._look, loop)


_WAKEUPS: WeakKeyDictionary[AbstractEventLoop, Wakeups] = WeakKeyDictionary()


class Verb(greenlet):  # type: ignore[misc] # greenlet has no types
    """One verb that runs on a loop.

    cancelled: what its task was cancelled with, if it was.
    failure: what the user's coroutine has raised when it was cancelled then, if it was something else.
    way_out: whether a cancel changes nothing but how it ends: it releases, acknowledges, or gives back.
    """

    def __init__(
        self, call: Callable[[], Any], seams: Seams, pool: Pool, *, limit: float | None = None, way_out: bool = False
    ) -> None:
        super().__init__()
        self.gr_context = getcurrent().gr_context  # the task's own, so that what the verb sets is seen there
        self.call, self.seams, self.pool, self.limit, self.way_out = call, seams, pool, limit, way_out
        self.loop = asyncio.get_running_loop()
        self.cancelled: CancelledError | None = None
        self.failure: BaseException | None = None
        self.deadline: Deadline | None = None
        self.is_closed = False
        self._hears = False

    def run(self) -> Any:
        """Make the call, within a deadline that a cancel can end. It is what greenlet calls first."""
        with Deadline(self.seams, self.limit) as self.deadline:
            return self.call()

    # ---- called by the code of the verb

    def offload(self, call: Callable[..., T], *given: Any, pool: Pool | None = None) -> T:
        """Return what the call returns, made by a thread of the pool. It is finished even if the task is cancelled."""
        job = Job(call, given, Gate(self.loop))
        (pool or self.pool).submit(job.run)
        self.park(job.done)
        return job.result()

    def pause(self, gate: Gate, seconds: float | None) -> None:
        """Wait until the gate is open, for this number of seconds at most (None = no limit).

        A cancel ends it. A pause that begins after a cancel raises that.
        """
        self._raise_cancelled()
        timer = None if seconds is None else self.loop.call_later(seconds, gate.expire)
        self._hears = True
        try:
            self.park(gate)
        finally:
            self._hears = False
            if timer is not None:
                timer.cancel()

    def event(self, gate: Gate, seconds: float | None) -> None:
        """Wait for something that another sets, as `pause` does; raise the cancel that has ended it."""
        self.pause(gate, seconds)
        self._raise_cancelled()

    def awaits(self, work: Awaitable[T]) -> T:
        """Return what the user's coroutine returns, run in a task of its own. A cancel ends that task, and then this
        raises.
        """
        task, done = asyncio.ensure_future(work, loop=self.loop), Gate(self.loop)
        task.add_done_callback(lambda _: done.release())
        try:
            self.event(done, None)
        except CancelledError:
            task.cancel()
            self.park(done)
            raise
        return task.result()

    def outside(self) -> AbstractContextManager[None]:
        """Let what begins within, of the user's, have its own time: a cancel ends that of the verb."""
        assert self.deadline is not None  # noqa: S101 - the verb runs
        return self.deadline.lifted()

    def _raise_cancelled(self) -> None:
        if self.cancelled is not None and not self.way_out:
            raise self.cancelled

    def park(self, gate: Gate) -> None:
        """Let the loop go on until the gate is open; the caller of a `pause`, until its task is cancelled."""
        if not gate.is_open:
            self.parent.switch(gate)

    # ---- called by the coroutine that runs it

    async def live(self) -> Any:
        """Run the verb to its end; return or raise as it does, also after a cancel, which `cancelled` has then."""
        try:
            gate = self.switch()
            while not self.dead:
                try:
                    await gate.passed()
                except CancelledError as cancelled:
                    self._cancel(cancelled)
                    if self.way_out or not self._hears:
                        continue
                gate = self.switch()
            return gate
        finally:
            if not self.dead:
                self._close()

    def _cancel(self, cancelled: CancelledError) -> None:
        self.cancelled = self.cancelled or cancelled
        deadline = present()
        if deadline is not None and self.deadline is not None and not self.way_out:
            deadline.cut(self.deadline)

    def _close(self) -> None:
        """End a verb whose coroutine is closed, as where its loop has ended: nothing can be awaited any more."""
        self.is_closed = True
        with suppress(greenlet_error, GeneratorExit, LatchworkError):  # it may be collected in another thread
            self.throw(GeneratorExit)


class Job(Generic[T]):
    """A call that a thread of the pool makes for a verb, in the verb's context: its deadline, its trace."""

    __slots__ = ("_call", "_context", "_failure", "_given", "_result", "done")

    def __init__(self, call: Callable[..., T], given: tuple[Any, ...], done: Gate) -> None:
        self._call, self._given, self._context, self.done = call, given, copy_context(), done
        self._result: T | None = None
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Make the call."""
        try:
            self._result = called(self._in_context, self._given)  # it may be, or call, a function of the user's
        except BaseException as failure:  # noqa: BLE001 - raised by `result`, in the verb
            self._failure = failure
        self.done.release()

    def _in_context(self, given: tuple[Any, ...]) -> T:
        return self._context.run(self._call, *given)

    def result(self) -> T:
        """Return the value that the call has returned, or raise its error."""
        if self._failure is None:
            return self._result  # type: ignore[return-value] # it was returned by the call
        try:
            raise self._failure
        finally:
            self._failure = None  # its traceback refers to this frame


def verb_of() -> Verb | None:
    """Return the verb that runs now in this thread; None outside of one, where code may block."""
    now = getcurrent()
    return now if type(now) is Verb and not now.is_closed else None


def awaited(work: Awaitable[T]) -> T:
    """Return what the user's coroutine returns. Called by a verb that runs on a loop."""
    verb = verb_of()
    assert verb is not None  # noqa: S101 - who calls it runs on a loop
    with verb.outside():
        task = asyncio.ensure_future(work, loop=verb.loop)
    try:
        return verb.awaits(task)
    except CancelledError:
        verb.failure = None if task.cancelled() else task.exception()
        raise


def in_its_own_time(function: Callable[[R], T]) -> Callable[[R], T]:
    """Return a function of the user's for a verb to call, so that a task that it begins has not the verb's time."""

    def outside(given: R) -> T:
        verb = verb_of()
        assert verb is not None  # noqa: S101 - a verb calls it
        with verb.outside():
            return function(given)

    return outside


def on_loop(function: Callable[[R], Awaitable[object]]) -> Callable[[R], object]:
    """Return a function for another thread, which runs the async `function` on this loop and waits for its end."""
    loop = asyncio.get_running_loop()

    def in_thread(given: R) -> object:
        async def work() -> object:
            return await awaited_as_called(function(given))

        future = asyncio.run_coroutine_threadsafe(work(), loop)
        while not loop.is_closed():
            if wait_for([future], LOOP_LOOK).done:  # not by `result`, as the function may raise `TimeoutError` too
                return future.result()
        raise Unavailable("the loop of the leader's function has ended: stop the election before it")

    return in_thread


async def run(
    call: Callable[[], T],
    seams: Seams,
    pool: Pool,
    *,
    undo: Callable[[T], object] | None = None,
    lease: float | None = None,
    whole: bool = False,
) -> T:
    """Run a verb on this loop; return its result.

    undo: gives back what the verb has returned, if its task was cancelled. It may take `lease` seconds.
    lease: of a way out without `undo`: the verb itself releases, acknowledges or gives back, within this time, and a
        cancel comes after that.
    whole: whether a cancel comes after the verb, however long that takes.
    """
    way_out = lease is not None and undo is None
    verb = Verb(call, seams, pool, limit=lease if way_out else None, way_out=way_out or whole)
    try:
        result = await verb.live()
    except CancelledError:
        if verb.cancelled is None:
            raise  # the verb's own code has raised it: it comes from a function of the user's
        raise _told(verb.cancelled, Ended()) from verb.failure
    except Exception as failure:
        if verb.cancelled is None:
            raise
        own = failure if isinstance(failure, LatchworkError) else None  # else a function of the user's has raised it
        raise _told(verb.cancelled, Ended(error=own)) from failure
    if verb.cancelled is None:
        return result  # type: ignore[no-any-return] # by the greenlet, which has no types
    if undo is None:
        raise _told(verb.cancelled, Ended(True, result))
    raise _told(verb.cancelled, await _undone(undo, result, seams, pool, lease))


async def _undone(undo: Callable[[T], object], result: T, seams: Seams, pool: Pool, lease: float | None) -> Ended:
    """Give the result of a cancelled verb back; return how the verb has ended then."""
    way_out = Verb(lambda: undo(result), seams, pool, limit=lease, way_out=True)
    try:
        await way_out.live()
    except LatchworkError as failure:
        return Ended(True, result, undone=False, error=failure)
    return Ended(True, result, undone=True)


def add_failure(error: BaseException | None, failure: LatchworkError) -> None:
    """Say in the outcome of a cancelled block, `error`, that a way out failed; raise that if it was struck itself."""
    if isinstance(error, CancelledError):
        before = ended(error) or Ended()
        _told(error, before if before.error is not None else replace(before, error=failure))
    verb = verb_of()
    if verb is not None and verb.cancelled is not None:
        raise failure


def _told(cancelled: CancelledError, how: Ended) -> CancelledError:
    cancelled.latchwork_ended = how  # type: ignore[attr-defined] # read by `ended`
    return cancelled
