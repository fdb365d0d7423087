"""The signal by which readers that follow learn that something was appended in this process."""

from __future__ import annotations

from collections.abc import Callable

from ...seams import Event, Seams


class Signal:
    """A condition that threads wait for. They check it again at each `notify`."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self.waiting: set[Event] = set()

    def notify(self) -> None:
        """Wake all threads that wait."""
        for event in tuple(self.waiting):
            event.set()

    def deadline(self, timeout: float | None) -> float | None:
        """Return the moment `timeout` seconds from now, for `wait`; None for no limit."""
        return None if timeout is None else self._seams.monotonic() + timeout

    def wait(self, condition: Callable[[], bool], deadline: float | None) -> None:
        """Return once the condition is true, or the deadline has passed."""
        if condition():
            return
        event = self._seams.event()
        self.waiting.add(event)  # before the next look, so that nothing falls between the look and the wait
        try:
            while not condition():
                left = None if deadline is None else deadline - self._seams.monotonic()
                if left is not None and left <= 0:
                    return
                event.wait(left)
                event.clear()
        finally:
            self.waiting.discard(event)
