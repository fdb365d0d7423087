"""What came of a message that somebody has named."""

from __future__ import annotations

from enum import Enum


class Outcome(str, Enum):
    """The outcome for a message that was named.

    NOT_THERE: no message of that id waits there, or a consumer has it by now; nothing was done.
    ASKED: only of a cancel: a consumer has it, and was asked to end its work.
    UNKNOWN: it may have been done, or was done to one of two copies, so that the message may be delivered twice.

    As a condition only DONE is true.
    """

    DONE = "done"
    ASKED = "asked"
    NOT_THERE = "not there"
    UNKNOWN = "unknown"

    def __bool__(self) -> bool:
        return self is Outcome.DONE
