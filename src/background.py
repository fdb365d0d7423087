"""What runs beside the caller: a task that is started and stopped, and work that several tasks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from .errors import InvalidRequest
from .inputs import checked_timeout
from .seams import Seams, Task

T = TypeVar("T")
R = TypeVar("R")


class Background:
    """One task in the background, started and stopped as often as wanted. It ends once `stopping` is set."""

    def __init__(self, seams: Seams, run: Callable[[], None], name: str) -> None:
        self._seams, self._run, self._name = seams, run, name
        self._task: Task | None = None
        self.stopping = seams.event()

    def start(self) -> None:
        """Start it, unless it runs. `InvalidRequest`: it was asked to end and has not yet."""
        if self._task is not None and self._task.is_alive():
            if self.stopping.is_set():
                raise InvalidRequest(f"{self._name} still does its last work; start it when stop() has returned True")
            return
        self.stopping.clear()
        self._task = self._seams.spawn(self._run, self._name)

    def stop(self, timeout: float | None) -> bool:
        """Ask it to end; whether it has within `timeout` seconds (None: for ever). It may be started again then.

        `InvalidRequest` for what is no length of time; then it goes on.
        """
        timeout = checked_timeout(timeout)
        if self._task is None:
            return True
        self.stopping.set()
        self._task.join(timeout)
        if self._task.is_alive():
            return False
        self._task = None
        self.stopping.clear()
        return True


def shared(seams: Seams, work: Callable[[T], R], items: Sequence[T], at_once: int, name: str) -> list[R]:
    """What `work` made of each item, in the order in which they were done, by up to `at_once` tasks.

    The first exception ends it for all of them, once each has done what it is at, and is raised.
    """
    waiting = list(reversed(items))
    results: list[R] = []
    failures: list[Exception] = []

    def take_turns() -> None:
        while not failures:
            try:
                item = waiting.pop()
            except IndexError:
                return
            try:
                results.append(work(item))
            except Exception as failure:  # noqa: BLE001 - raised below
                failures.append(failure)

    tasks = min(at_once, len(items))
    if tasks <= 1:
        take_turns()
    else:
        for task in [seams.spawn(take_turns, f"{name}-{n}") for n in range(tasks)]:
            task.join()
    if failures:
        raise failures[0]
    return results
