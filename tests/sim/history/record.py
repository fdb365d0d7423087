"""The recording of what actors asked for and what they were told, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from latchwork.errors import LatchworkError, OutcomeUnknown, Unavailable

from ..scheduler import Killed
from ..world import World

OPEN = math.inf
"""The return time of an operation that never returned, or whose effect may still come."""


@dataclass(slots=True)
class Entry:
    """One operation. `outcome` is 'ok', 'unknown' (open-ended: it may have landed) or the code of an error."""

    actor: str
    name: str
    args: tuple[Any, ...]
    called: float
    order: int
    returned: float = OPEN
    closed: float = OPEN
    ended: int = 0
    outcome: str = "unknown"
    result: Any = None
    reason: str = ""
    doubted: bool = False
    """Whether one of its attempts was in doubt, so that its answer may be one that was read anew."""
    tag: Any = None
    """What the actor knew, for the checkers: which incarnation of the object it meant."""

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    @property
    def unknown(self) -> bool:
        return self.outcome == "unknown"


class History:
    """The entries of one run in the order of their invocation, and the notes of the environment."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.entries: list[Entry] = []
        self.notes: list[tuple[int, float, str, str]] = []

    def call(self, actor: str, name: str, run: Callable[[], Any], *args: Any) -> Entry:
        """Run an operation and record it. Errors of the package become outcomes; a crash stays open-ended."""
        entry = Entry(actor, name, args, self.world.now, self.world.tick())
        self.entries.append(entry)
        try:
            entry.result = run()
            entry.outcome = "ok"
        except Killed:
            raise
        except OutcomeUnknown as failure:
            entry.closed, entry.ended = self.world.now, self.world.tick()
            entry.reason = str(failure)
            return entry
        except Unavailable as failure:
            entry.outcome = failure.code
        except LatchworkError as failure:
            entry.outcome = failure.code
            entry.reason = str(failure)
        entry.returned = entry.ended = self.world.tick()
        entry.closed = self.world.now
        return entry

    def note(self, who: str, what: str) -> None:
        """Something that the environment did, or that an actor observed."""
        self.notes.append((self.world.tick(), self.world.now, who, what))

    def named(self, *names: str) -> list[Entry]:
        """The entries of these operations."""
        return [entry for entry in self.entries if entry.name in names]

    def fingerprint(self) -> tuple[Any, ...]:
        """All of it as one comparable value."""
        rows = [(e.actor, e.name, repr(e.args), e.called, e.closed, e.outcome, _text(e.result)) for e in self.entries]
        return (tuple(rows), tuple(note[1:] for note in self.notes))


def _text(result: Any) -> str:
    """A set is written in an order that does not depend on what its strings hash to in this process."""
    return repr(sorted(result, key=repr) if isinstance(result, set | frozenset) else result)
