"""A world in which time passes only when the test says so.

    clock = ManualClock()
    store = MemoryStore(clock)
    clock.at(2.0, latch.count_down)      # something happens two seconds from now
    assert latch.wait(timeout=5)         # its sleeps move the clock; no real time passes
    clock.advance(10)                    # both clocks;  clock.step(-3600) moves the wall clock alone

Ids count up and jitter is in the middle of its range, so a run repeats exactly; `ManualClock(seed=7)` draws the jitter
instead. A client whose wall clock is wrong is `clock.skewed(-30)`: the same time, read 30 seconds too early.
Threads are real; a test that uses them with this clock has to bring its own order.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from ..inputs import checked_callable, checked_number, checked_whole
from ..seams import Event, Seams, Task
from ..store.model.values import taken

START = 1_700_000_000.0
"""Seconds since the epoch at which a manual clock starts."""
MOST = 1e12
"""Seconds by which a manual clock is moved at once."""


def checked_seed(seed: float | str) -> float | str:
    """Return the seed, where it is a number or a text. Raises `InvalidRequest`."""
    return str(taken(seed)) if isinstance(seed, str) else checked_number("seed", seed, -(2.0**63), 2.0**63)


class ManualClock(Seams):
    """Seams whose clocks stand still until `advance`, `step` or a `sleep` moves them.

    seed: draws jitter; None = the middle of each range.
    max_sleeps: after this number of sleeps `sleep` raises `AssertionError`, because the program seems to run without
        end.

    `slept` holds the seconds of every sleep. Safe to share between threads; a sleep moves the clock for all of them.
    """

    time_passes = False

    def __init__(self, *, seed: float | str | None = None, max_sleeps: int = 100_000) -> None:
        self._random = None if seed is None else random.Random(checked_seed(seed))
        self._passed = 0.0
        self._stepped = 0.0
        self._ids = 0
        self._due: list[tuple[float, Callable[[], object]]] = []
        self._guard = threading.RLock()
        self.slept: list[float] = []
        self.max_sleeps = checked_whole("max_sleeps", max_sleeps, 0, 2**63)

    # ---- what the test does

    def advance(self, seconds: float) -> None:
        """Let time pass on every clock, and do on the way what `at` has planned."""
        with self._guard:
            end = self._passed + checked_number("seconds", seconds, -MOST, MOST)
            self._do_what_is_due(end)
            self._passed = max(self._passed, end)

    def _do_what_is_due(self, end: float) -> None:
        while self._due and self._due[0][0] <= end:
            when, action = self._due.pop(0)
            self._passed = max(self._passed, when)
            action()

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back; the monotonic clocks do not notice."""
        with self._guard:
            self._stepped += checked_number("seconds", seconds, -MOST, MOST)

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something after this number of seconds from now."""
        checked_callable("action", action)
        with self._guard:
            self._due.append((self._passed + checked_number("seconds", seconds, -MOST, MOST), action))
            self._due.sort(key=lambda entry: entry[0])  # those of one moment stay as they were planned

    def skewed(self, seconds: float) -> SkewedClock:
        """Return the seams of a machine whose wall clock is wrong by `seconds`."""
        return SkewedClock(self, seconds)

    # ---- the seams

    def monotonic(self) -> float:
        return self._passed

    def boottime(self) -> float:
        return self._passed

    def wall(self) -> float:
        return START + self._passed + self._stepped

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) > self.max_sleeps:
            raise AssertionError(f"more than {self.max_sleeps} sleeps: is it an endless loop?")
        self.advance(seconds)

    def unique(self) -> str:
        with self._guard:
            self._ids += 1
            return f"{self._ids:020x}"

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2 if self._random is None else self._random.uniform(low, high)

    def event(self) -> Event:
        return ManualEvent(self)


class SkewedClock(Seams):
    """Another machine's view of a manual clock: only its wall clock differs. Safe to share between threads."""

    time_passes = False

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self.clock, self.seconds = clock, checked_number("seconds", seconds, -MOST, MOST)

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def boottime(self) -> float:
        return self.clock.boottime()

    def wall(self) -> float:
        return self.clock.wall() + self.seconds

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    def unique(self) -> str:
        return self.clock.unique()

    def uniform(self, low: float, high: float) -> float:
        return self.clock.uniform(low, high)

    def event(self) -> Event:
        return self.clock.event()


class InlineClock(ManualClock):
    """A manual clock whose background tasks run inside `spawn`, in the caller's thread, to their end. Safe to share
    between threads.
    """

    def spawn(self, run: Callable[[], None], name: str) -> Task:  # noqa: ARG002 - the seams' signature
        run()
        return _ENDED


class _Ended:
    """A task that has ended."""

    def join(self, timeout: float | None = None) -> None:
        """Return at once: the work has ended."""

    def is_alive(self) -> bool:
        return False


_ENDED = _Ended()


class ManualEvent:
    """An event whose `wait` moves the clock instead of waiting."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock, self._set = clock, False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Let `timeout` seconds pass, unless it is set. Raises `AssertionError` if this would wait without end."""
        if not self._set:
            if timeout is None:
                raise AssertionError("an event that will never be set: this would wait without end")
            self._clock.sleep(timeout)
        return self._set
