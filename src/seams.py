"""The one place that provides clocks, sleeps, ids, random numbers and threads.

All code that is not pure takes a `Seams`, so that a test or a simulation can replace all of them at once. No other
module may import time, random, uuid or secrets, or make threads, events and locks; only the stores have locks of their
own, around their records and connections. A `Seams` is also where metrics and traces are reported
(`instrumentation.py`).
"""

from __future__ import annotations

import atexit
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Any, Protocol, TypeVar

from .forks import run_as_ours
from .instrumentation import Instrumentation
from .loops import refuse_wait

T = TypeVar("T")


class Event(Protocol):
    """A flag that can be waited for; `threading.Event` and `Flag` are."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Lock(Protocol):
    """A mutual exclusion within one process; `threading.Lock` is one."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...


class Task(Protocol):
    """A background activity; `threading.Thread` is one."""

    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class Flag:
    """An event that an interrupt, or a signal's handler, finds whole at any point.

    A `threading.Event` has one lock for all who set it and wait for it. An interrupt within its `set` may leave that
    lock locked, and every waiting thread hangs, however short its timeout. Here each waiting thread has a lock of its
    own, which `set` releases in one step; one that an interrupt leaves out is woken by the next `set`, or its timeout.
    """

    __slots__ = ("_set", "_waiting")

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[threading.Lock] = []

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._set

    def set(self) -> None:
        """Set it, and wake all who wait."""
        self._set = True
        for gate in tuple(self._waiting):
            with suppress(RuntimeError):  # another thread has set it at this moment
                gate.release()

    def clear(self) -> None:
        """Let it not be set. Threads that were woken before continue."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, for `timeout` seconds at most (None = no limit); whether it was."""
        if self._set:
            return True
        gate = threading.Lock()
        gate.acquire()
        try:
            self._waiting.append(gate)
            # A `set` that came before this gate was in the list is noticed here.
            return self._set or gate.acquire(timeout=-1 if timeout is None else max(0.0, timeout)) or self._set
        finally:
            with suppress(ValueError):  # an interrupt came before it was in the list
                self._waiting.remove(gate)


class Seams(Instrumentation):
    """The clocks, sleeps, ids and random numbers of this machine. A test gives a subclass instead."""

    time_passes = True
    """Whether time passes by itself; False = only when the program sleeps or waits, also in the background."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back and that no administrator sets. It may stop while
        suspended.
        """
        return time.monotonic()

    def boottime(self) -> float:
        """Return seconds on a clock that never goes back and that also counts suspended time, where the
        system has one.
        """
        return time.clock_gettime(_BOOTTIME)

    def wall(self) -> float:
        """Return seconds since the epoch by the system clock. May step; for people and for stored dates only."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Do nothing for this number of seconds."""
        time.sleep(seconds)

    def unique(self) -> str:
        """Return a new id of 20 hexadecimal digits (80 random bits), unlike every other."""
        return os.urandom(10).hex()

    def uniform(self, low: float, high: float) -> float:
        """Return a random number between the two, for jitter."""
        return random.uniform(low, high)

    def event(self) -> Event:
        """Return a new event, not set."""
        return Flag()

    def lock(self) -> Lock:
        """Return a new lock for the threads of this process; it may be held across store calls."""
        return threading.Lock()

    def process_name(self) -> str:
        """Return where this runs, for people and logs: `host:pid`."""
        return f"{socket.gethostname()}:{os.getpid()}"

    def thread(self) -> int:
        """Return a number that no other live thread of this process has."""
        return threading.get_ident()

    def spawn(self, run: Callable[[], None], name: str) -> Task:
        """Start `run` in the background, as a daemon thread of that name. An exception that ends it stays in `DIED`."""

        def watched() -> None:
            try:
                run_as_ours(run)
            except BaseException as failure:
                DIED[name] = type(failure).__name__
                raise

        # In a context of its own: some builds of Python hand on that of the starting thread, and so its deadline.
        thread = threading.Thread(target=Context().run, args=(watched,), name=name, daemon=True)
        thread.start()
        return thread

    def apart(self, call: Callable[..., T], *given: Any) -> T:
        """Return what the call returns; it takes a while, so on a loop a thread makes it."""
        return call(*given)

    def may_wait(self, verb: str, timeout: float | None) -> None:
        """Raise `InvalidRequest` if `verb` may wait now, and this thread runs an asyncio loop."""
        if timeout is None or timeout > 0:
            refuse_wait(verb)

    def at_exit(self, run: Callable[[], None]) -> Callable[[], None]:
        """Call `run` when this process ends in order; what is returned takes that back. It may be called twice."""
        atexit.register(run)
        # A child that `multiprocessing` has forked ends without `atexit`, and calls only its own module's finalizers.
        children = sys.modules.get("multiprocessing.util")
        finalizer = None if children is None else children.Finalize(None, run, exitpriority=100)

        def take_back() -> None:
            atexit.unregister(run)
            if finalizer is not None:
                finalizer.cancel()

        return take_back


DIED: dict[str, str] = {}
"""The threads of this library that an exception has ended in this process, and the type of it. None should, and nothing
starts them again, so a process that has any is ill: its probe says so."""
os.register_at_fork(after_in_child=DIED.clear)  # they were the parent's

# macOS has no CLOCK_BOOTTIME; its monotonic clock is the closest there is.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

SYSTEM = Seams()
"""The seams of a program that runs for real."""
