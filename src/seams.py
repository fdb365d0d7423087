"""The one place where the outside world's clocks, sleeps, ids, chance and threads come in.

Everything that is not a pure function takes a `Seams`, so that a test or a simulation can replace all of them at
once. It is also the one way in which anything is told to the outside (`note`, `span`, `carry`). No other module may
import time, random, uuid or secrets, or make threads, events and locks; only the stores have locks of their own, around
their records and connections.
"""

from __future__ import annotations

import atexit
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from typing import Any, Protocol


class Event(Protocol):
    """A flag that can be waited for; `threading.Event` is one."""

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


class Seams:
    """The real world. Subclass it to inject another."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back and that no administrator sets. It may stop while suspended."""
        return time.monotonic()

    def boottime(self) -> float:
        """Seconds on a clock that never goes back and that also counts suspended time, where the system has one."""
        return time.clock_gettime(_BOOTTIME)

    def wall(self) -> float:
        """Seconds since the epoch by the system clock. May step; for people and for stored dates only."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Do nothing for so many seconds."""
        time.sleep(seconds)

    def unique(self) -> str:
        """A new id of 20 hexadecimal digits (80 random bits), unlike every other."""
        return os.urandom(10).hex()

    def uniform(self, low: float, high: float) -> float:
        """A random number between the two, for jitter."""
        return random.uniform(low, high)

    def event(self) -> Event:
        """A new event, not set."""
        return threading.Event()

    def lock(self) -> Lock:
        """A new lock for the threads of this process; it may be held across store calls."""
        return threading.Lock()

    def process_name(self) -> str:
        """Where this runs, for people and logs: `host:pid`."""
        return f"{socket.gethostname()}:{os.getpid()}"

    def thread(self) -> int:
        """A number that tells the thread that asks from all others that live in this process."""
        return threading.get_ident()

    def spawn(self, run: Callable[[], None], name: str) -> Task:
        """Start `run` in the background, as a daemon thread of that name."""
        # In a context of its own: some builds of Python hand on that of the starting thread, and so its deadline.
        thread = threading.Thread(target=Context().run, args=(run,), name=name, daemon=True)
        thread.start()
        return thread

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

    # ---- what is told to the outside: nothing, unless `latchwork.observe` is used

    def note(self, event: str, value: float = 1, /, **labels: str) -> None:
        """Something has happened: an event of the closed set of `latchwork.observe.events`, with its labels there."""

    def span(
        self, name: str, origins: Sequence[Mapping[str, str]] = (), /, **attributes: str | int
    ) -> AbstractContextManager[object]:
        """A piece of work that a trace shows; `origins` are the headers of the messages that it goes on from."""
        return _UNTOLD

    def carry(self, headers: dict[str, str] | None) -> dict[str, str] | None:
        """The headers of a message, with what lets its handler go on in the present trace."""
        return headers


# macOS has no CLOCK_BOOTTIME; its monotonic clock is the closest there is.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_UNTOLD = nullcontext()

SYSTEM = Seams()
"""The seams of a program that runs for real."""
