"""What goes with a write: done if the write is, and only then (docs/protocols P28)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..rows import Rows
from .record import Removal, Update, Values


class WithWrite(Protocol):
    """A message that is published with a write, both or neither; `latchwork.queue.Publish` is one."""

    def with_updates(self, store: Any, updates: Sequence[Update], publishes: Sequence[Any]) -> Rows[Values]:
        """Apply the updates, each with its message or without one; return what each has read, or its error."""

    def with_removal(self, store: Any, removal: Removal) -> bool:
        """Delete a record; whether it was there."""
