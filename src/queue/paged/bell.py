"""How readers that follow learn, within the process, that something was appended."""

from __future__ import annotations

from collections.abc import Callable

from ...seams import Event, Seams


class Bell:
    """Threads wait for a condition and look at it again whenever the bell is rung."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self.waiting: set[Event] = set()

    def ring(self) -> None:
        """Wake everyone who waits."""
        for event in tuple(self.waiting):
            event.set()

    def deadline(self, timeout: float | None) -> float | None:
        """The moment `timeout` seconds from now, for `wait`; None for never."""
        return None if timeout is None else self._seams.monotonic() + timeout

    def wait(self, condition: Callable[[], bool], deadline: float | None) -> bool:
        """Whether the condition came true before the deadline."""
        if condition():
            return True
        event = self._seams.event()
        self.waiting.add(event)  # before the next look, so that nothing falls between the look and the wait
        try:
            while not condition():
                left = None if deadline is None else deadline - self._seams.monotonic()
                if left is not None and left <= 0:
                    return False
                event.wait(left)
                event.clear()
            return True
        finally:
            self.waiting.discard(event)
