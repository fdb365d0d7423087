"""The kinds of fault, by their numbers in the fault model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """One way in which things go wrong. The value is the number of the fault model and a name."""

    CRASH_BEFORE = "F1 crash before"
    CRASH_AFTER = "F1 crash after"
    BUSY = "F2 never sent"
    DROPPED = "F2 dropped"
    REPLY_LOST = "F2 reply lost"
    LATE = "F2 applied late"
    DUPLICATE = "F3 duplicate"
    PAUSE = "F4 pause"
    SUSPEND = "F4 suspend"
    CLIENT_CLOCK = "F5 client clock"
    SERVER_CLOCK = "F5 server clock"
    RESTART_EMPTY = "F6 empty"
    RESTART_STALE = "F6 stale"
    RESURRECT = "F6 resurrected"
    CONNECTION = "F7 connection lost"
    SLOW_PRODUCER = "F8 slow producer"
    TWO_LEADERS = "F10 two leaders"
    ROW = "F11 failed row"
    EXPIRY = "F12 expiry"
    WRAP = "F13 generation wrap"
    SPLIT_BRAIN = "F14 split brain"
    NO_NODE = "F15 no node"
    DEFECT = "F16 defect"


ON_CALLS = (
    Kind.CRASH_BEFORE,
    Kind.CRASH_AFTER,
    Kind.BUSY,
    Kind.DROPPED,
    Kind.REPLY_LOST,
    Kind.LATE,
    Kind.DUPLICATE,
    Kind.PAUSE,
)
"""The faults that strike a call."""
WITH_THREADS = (*ON_CALLS, Kind.DEFECT)
"""The faults that strike a call of who has threads of the library: a step of them may also fail of itself."""
STRIKES = (*ON_CALLS, Kind.SLOW_PRODUCER, Kind.ROW)
"""What a random plan may strike a call with; the other kinds come about, or are the environment's."""
EXHAUSTIVE = (Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.DROPPED, Kind.REPLY_LOST, Kind.LATE)
"""The faults that the exhaustive mode puts on every single call."""
BETWEEN_CALLS = (
    Kind.SUSPEND,
    Kind.CLIENT_CLOCK,
    Kind.SERVER_CLOCK,
    Kind.RESTART_EMPTY,
    Kind.RESTART_STALE,
    Kind.RESURRECT,
    Kind.EXPIRY,
)
"""The faults that the environment commits on its own."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault on one call: `after` = seconds until it takes effect (a late delivery, the length of a pause)."""

    kind: Kind
    after: float = 0.0
