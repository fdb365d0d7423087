"""Every error that Latchwork raises.

    LatchworkError                    INTERNAL_ERROR
    |-- NotFound                      NOT_FOUND          no such record: never created, deleted or expired
    |-- AlreadyExists                 ALREADY_EXISTS     it is there, and not what was asked for
    |-- Expired                       EXPIRED            its time to live ran out while it was in use
    |-- Refused                       REFUSED            the guard of a write did not hold
    |   `-- FencedOut                 FENCED_OUT         a higher fence has been seen
    |-- LeaseLost                     LEASE_LOST         the lease, or the delivery, is another's now
    |-- Interrupted                   INTERRUPTED        the worker stops; the work on the message ends
    |-- Cancelled                     CANCELLED          somebody has cancelled the message; the work on it ends
    |-- HandlerFailed                 HANDLER_FAILED     a message had its last attempt; it has no result
    |-- LockUnavailable               LOCK_UNAVAILABLE   (TimeoutError) not acquired in time
    |-- WaitTimeout                   WAIT_TIMEOUT       (TimeoutError) the condition did not come true in time
    |-- PartyLost                     PARTY_LOST         a party that others wait for died
    |-- BarrierBroken                 BARRIER_BROKEN     those who have arrived do not meet; `reason` says why
    |-- QueueFull                     QUEUE_FULL
    |-- QueueOwned                    QUEUE_OWNED        a stream owns the queue
    |-- OutcomeUnknown                OUTCOME_UNKNOWN    the write may have landed, or may still land
    |-- Unavailable                   UNAVAILABLE        nothing was written; try again later
    |   `-- Misconfigured             MISCONFIGURED      trying again does not help; a setting has to change
    |-- Unreadable                    UNREADABLE         stored bytes that no codec of ours understands
    |-- Corrupt                       CORRUPT            a file or a record that fails its checks, with the place
    |   `-- BinMismatch               BIN_MISMATCH       (InvalidRequest) a bin is not what the update needs
    |-- StorageFailed                 STORAGE_FAILED     a disk refused a write or a sync
    |-- AlreadyOpen                   ALREADY_OPEN       another process has these files open
    |-- NonDeterministicInput         NON_DETERMINISTIC_INPUT
    `-- InvalidRequest                INVALID_REQUEST    (ValueError) refused before any I/O
        |-- RecordTooBig              RECORD_TOO_BIG
        |-- TooManyConsumers          MAX_ALLOWED_CONSUMERS_EXCEEDED
        |-- InvalidShovelInterval     INVALID_SHOVEL_TIME_INTERVAL
        `-- InvalidMessageHandler     INVALID_MESSAGE_HANDLER

Absent, refused and unknown are three different answers everywhere: `NotFound`, `Refused`, `OutcomeUnknown`.
The `code` strings are stable; the messages are not.
"""

from __future__ import annotations

from typing import Any, ClassVar

from .plain import MOST_SAID, shortened


class LatchworkError(Exception):
    """Something went wrong that has no narrower name.

    `str(error)` says what happened to which record and what to do about it. Keyword details (key, limit, ...) are
    kept in `details` for logs. Errors pickle with both, so that they cross from Spark workers to the driver.
    """

    code: ClassVar[str] = "INTERNAL_ERROR"

    def __init__(self, message: str = "", **details: Any) -> None:
        super().__init__(shortened(message or (type(self).__doc__ or "").partition("\n")[0], MOST_SAID))
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.__dict__)


def _rebuild(kind: type[LatchworkError], message: str, state: dict[str, Any]) -> LatchworkError:
    error = kind(message)
    error.__dict__.update(state)
    return error


class NotFound(LatchworkError):
    """The record does not exist: it was never created, was deleted, or has expired."""

    code = "NOT_FOUND"


class AlreadyExists(LatchworkError):
    """The record exists already, and is not the one that was asked for."""

    code = "ALREADY_EXISTS"


class Expired(LatchworkError):
    """The record's time to live ran out while it was in use."""

    code = "EXPIRED"


class Refused(LatchworkError):
    """The guard of the write did not hold; nothing was written."""

    code = "REFUSED"


class FencedOut(Refused):
    """A higher fence has been seen: another holder has taken over."""

    code = "FENCED_OUT"


class LeaseLost(LatchworkError):
    """The lease, or the delivery, is no longer this caller's."""

    code = "LEASE_LOST"


class Interrupted(LatchworkError):
    """The worker stops: end the work on the message at a safe point. It goes on elsewhere; no attempt is counted."""

    code = "INTERRUPTED"


class Cancelled(LatchworkError):
    """Somebody has cancelled the message: end the work on it at a safe point. It does not come again."""

    code = "CANCELLED"


class HandlerFailed(LatchworkError):
    """The message has failed and is not tried again by itself, so it has no result; `reason` and `error` say why."""

    code = "HANDLER_FAILED"

    @property
    def reason(self) -> str | None:
        """The reason, of the closed set."""
        reason: str | None = self.details.get("reason")
        return reason

    @property
    def error(self) -> str | None:
        """The error of its last failure."""
        error: str | None = self.details.get("error")
        return error


class LockUnavailable(LatchworkError, TimeoutError):
    """The lock was not acquired within the timeout."""

    code = "LOCK_UNAVAILABLE"


class WaitTimeout(LatchworkError, TimeoutError):
    """The condition did not come true within the timeout."""

    code = "WAIT_TIMEOUT"


class PartyLost(LatchworkError):
    """A party that others wait for died; `parties` has the names."""

    code = "PARTY_LOST"

    @property
    def parties(self) -> list[str]:
        """The names of the dead."""
        return list(self.details.get("parties", ()))


class BarrierBroken(LatchworkError):
    """The parties that have arrived at a barrier do not meet; `reason` says why."""

    code = "BARRIER_BROKEN"

    @property
    def reason(self) -> str:
        """The reason for which it was broken."""
        return str(self.details.get("reason", ""))


class QueueFull(LatchworkError):
    """The queue has no room for the entry; nothing was written."""

    code = "QUEUE_FULL"


class QueueOwned(LatchworkError):
    """A stream owns the queue; consumers and other streams are refused until it releases the queue."""

    code = "QUEUE_OWNED"


class OutcomeUnknown(LatchworkError):
    """The write may have landed, or may still land; read the record before deciding what to do."""

    code = "OUTCOME_UNKNOWN"


class Unavailable(LatchworkError):
    """The store could not take the request; nothing was written.

    `slow` asks the retry layer for a long pause: the server is out of memory or disk, not merely busy.
    """

    code = "UNAVAILABLE"
    slow = False


class Misconfigured(Unavailable):
    """The store cannot do what was asked until a setting is changed; nothing was written."""

    code = "MISCONFIGURED"


class Unreadable(LatchworkError):
    """The stored bytes cannot be decoded."""

    code = "UNREADABLE"


class Corrupt(LatchworkError):
    """A file or a record fails its checks at the place named."""

    code = "CORRUPT"


class StorageFailed(LatchworkError):
    """The disk refused a write or a sync; what was acknowledged before is safe, this write is not."""

    code = "STORAGE_FAILED"


class AlreadyOpen(LatchworkError):
    """Another process has these files open."""

    code = "ALREADY_OPEN"


class NonDeterministicInput(LatchworkError):
    """A repeated attempt produced other rows than the first, so exactly-once cannot be kept."""

    code = "NON_DETERMINISTIC_INPUT"


class InvalidRequest(LatchworkError, ValueError):
    """The request breaks a limit; it was refused before any I/O."""

    code = "INVALID_REQUEST"


class BinMismatch(Corrupt, InvalidRequest):
    """A bin is missing, or has another type than the update needs; nothing was written.

    Either the record is damaged or the update is not meant for it: the store cannot tell which.
    """

    code = "BIN_MISMATCH"


class RecordTooBig(InvalidRequest):
    """The record would be larger than the store takes; nothing was written."""

    code = "RECORD_TOO_BIG"


class TooManyConsumers(InvalidRequest):
    """A queue takes at most 100 consumers."""

    code = "MAX_ALLOWED_CONSUMERS_EXCEEDED"


class InvalidShovelInterval(InvalidRequest):
    """A shovel interval is 0 to 86,400 seconds."""

    code = "INVALID_SHOVEL_TIME_INTERVAL"


class InvalidMessageHandler(InvalidRequest):
    """The handler cannot be called, or is not the kind that the queue was created with."""

    code = "INVALID_MESSAGE_HANDLER"
