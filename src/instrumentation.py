"""The points where metrics and traces are reported: none of them does anything until `latchwork.observe` is used.

`Seams` has them, so that all code reaches them without an argument of its own; `observe` overrides them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext


class Instrumentation:
    """Metrics and traces that go nowhere."""

    def note(self, event: str, value: float = 1, /, **labels: str) -> None:
        """Record an event of the closed set of `latchwork.observe.events`, with its labels."""

    def span(
        self, name: str, origins: Sequence[Mapping[str, str]] = (), /, **attributes: str | int
    ) -> AbstractContextManager[object]:
        """Start a piece of work in a trace; `origins` are the headers of the messages that caused it."""
        return _NO_SPAN

    def carry(self, headers: dict[str, str] | None) -> dict[str, str] | None:
        """Return the headers of a message with what lets its handler continue the present trace."""
        return headers


_NO_SPAN = nullcontext()
