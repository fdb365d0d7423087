"""The seams of verbs that run on a loop: what would block a verb parks it; what blocks a thread still does.

Threads (renewals, elections, publishers) and verbs of several loops use the same events and locks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

from ..seams import Event, Flag, Lock, Seams, Task
from .bridge import Gate, Verb, verb_of

T = TypeVar("T")


class LoopSeams(Seams):
    """The seams of a store (`inner`), where a verb on a loop waits without blocking it.

    If a test moves the clock of `inner` by hand, a pause moves it, and lets the loop go on once.
    """

    def __init__(self, inner: Seams) -> None:
        self.inner = inner
        self.time_passes = inner.time_passes
        self._is_real = getattr(inner.sleep, "__func__", None) is Seams.sleep
        self.monotonic, self.boottime, self.wall = inner.monotonic, inner.boottime, inner.wall  # type: ignore[method-assign] # as quick as before
        self.unique, self.uniform = inner.unique, inner.uniform  # type: ignore[method-assign] # as above

    def sleep(self, seconds: float) -> None:
        verb = verb_of()
        if verb is None:
            self.inner.sleep(seconds)
        elif self._is_real:
            verb.pause(Gate(verb.loop), max(0.0, seconds))
        else:
            verb.pause(Gate(verb.loop), 0.0)
            self.inner.sleep(seconds)

    def event(self) -> Event:
        return LoopFlag() if self._is_real else _StillEvent(self.inner.event())

    def lock(self) -> Lock:
        return LoopLock(self.inner.lock())

    def process_name(self) -> str:
        return self.inner.process_name()

    def thread(self) -> int:
        """Return a number of the task that runs now; outside of a loop, of the thread."""
        with suppress(RuntimeError):
            return id(asyncio.current_task())
        return self.inner.thread()

    def spawn(self, run: Callable[[], None], name: str) -> Task:
        """Start a thread, also from a verb: what renews leases must not depend on the user's loop."""
        over = self.event()

        def to_its_end() -> None:
            try:
                run()
            finally:
                over.set()

        return _Thread(self.inner.spawn(to_its_end, name), over)

    def apart(self, call: Callable[..., T], *given: Any) -> T:
        verb = verb_of()
        return call(*given) if verb is None else verb.offload(call, *given)

    def may_wait(self, verb: str, timeout: float | None) -> None:
        if verb_of() is None:
            self.inner.may_wait(verb, timeout)

    def at_exit(self, run: Callable[[], None]) -> Callable[[], None]:
        return self.inner.at_exit(run)

    def note(self, event: str, value: float = 1, /, **labels: str) -> None:
        self.inner.note(event, value, **labels)

    def span(
        self, name: str, origins: Sequence[Mapping[str, str]] = (), /, **attributes: str | int
    ) -> AbstractContextManager[object]:
        return self.inner.span(name, origins, **attributes)

    def carry(self, headers: dict[str, str] | None) -> dict[str, str] | None:
        return self.inner.carry(headers)


class LoopFlag(Flag):
    """An event that threads and verbs wait for. A verb's gate stands among the gates of the threads."""

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> bool:
        verb = verb_of()
        if verb is None:
            return super().wait(timeout)
        if self._set:
            return True
        gate: Any = Gate(verb.loop)  # which `set` releases as it does the lock of a thread
        try:
            self._waiting.append(gate)
            if not self._set:  # a `set` that came before the gate was in the list is noticed here
                verb.event(gate, None if timeout is None else max(0.0, timeout))
            return self._set or not gate.is_late
        finally:
            self._waiting.remove(gate)


class LoopLock:
    """A lock for threads and verbs. A verb that waits for it parks, and a cancel does not end that: it is held for the
    time of a store call at most.
    """

    __slots__ = ("_lock", "_waiting")

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._waiting: deque[Gate] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; False if it is not free, or not within `timeout` seconds (-1 = no limit)."""
        if self._lock.acquire(False):
            return True
        verb = verb_of() if blocking else None
        if verb is None:
            return self._lock.acquire(blocking, timeout)
        return self._parked(verb, timeout)

    def _parked(self, verb: Verb, timeout: float) -> bool:
        end = None if timeout < 0 else verb.loop.time() + timeout
        while True:
            gate = Gate(verb.loop)
            timer = None if end is None else verb.loop.call_at(end, gate.expire)
            self._waiting.append(gate)
            taken = stays = False
            try:
                taken = self._lock.acquire(False)  # it may have been freed before the gate was in the list
                if not taken:
                    verb.park(gate)
                    taken = self._lock.acquire(False)
                if taken or gate.is_late:
                    return taken
                stays = True  # whoever has it now wakes one of those that wait
            finally:
                if timer is not None:
                    timer.cancel()
                try:
                    self._waiting.remove(gate)
                except ValueError:  # a release has chosen this verb; if it leaves without the lock, another is to try
                    if not (taken or stays):
                        self._wake_one()

    def release(self) -> None:
        """Free it, and let the verb that has waited longest try; a thread may be faster, and then wakes it again."""
        self._lock.release()
        self._wake_one()

    def _wake_one(self) -> None:
        if self._waiting:
            with suppress(IndexError):  # another thread has taken it
                self._waiting.popleft().release()

    def __enter__(self) -> bool:
        return self._lock.acquire(False) or self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()


class _StillEvent:
    """An event of a clock that a test moves: a wait lets the loop go on once, and then moves the clock."""

    def __init__(self, event: Event) -> None:
        self._event = event
        self.is_set, self.set, self.clear = event.is_set, event.set, event.clear

    def wait(self, timeout: float | None = None) -> bool:
        verb = verb_of()
        if verb is not None and not self._event.is_set():
            verb.event(Gate(verb.loop), 0.0)
        return self._event.wait(timeout)


class _Thread:
    """A thread that verbs may join without blocking their loop."""

    def __init__(self, thread: Task, over: Event) -> None:
        self._thread, self._over = thread, over

    def join(self, timeout: float | None = None) -> None:
        if verb_of() is None:
            self._thread.join(timeout)
        else:
            self._over.wait(timeout)

    def is_alive(self) -> bool:
        # It is alive for a moment after `join` has seen its end.
        return not self._over.is_set() and self._thread.is_alive()
