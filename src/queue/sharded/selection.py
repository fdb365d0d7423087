"""Single messages that somebody selects, by criteria or by their ids, and what came of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from itertools import islice

from ...errors import InvalidRequest, LatchworkError, OutcomeUnknown
from ...inputs import checked_seconds, checked_whole
from ...plain import shown
from .envelope import MAX_ID, Message, checked_headers, checked_id, reason_of

MOST = 1_000
"""Messages that one call names, or finds."""


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


class Criteria:
    """A search. Raises `InvalidRequest`."""

    def __init__(
        self,
        reason: str | None,
        header: Mapping[str, str] | None,
        older_than: timedelta | float | None,
        limit: int,
        message_id: str | None = None,
    ) -> None:
        checked_whole("limit", limit, 1, MOST)
        seconds = None if older_than is None else checked_seconds("older_than", older_than, 0)
        self.reason = None if reason is None else reason_of(reason)
        self.headers, self.age, self.limit = checked_headers(header) or {}, seconds, limit
        self.message_id = None if message_id is None else checked_id(message_id, 2 * MAX_ID)

    def matches(self, message: Message, now: float) -> bool:
        """Whether the message is one. now: seconds since the epoch."""
        return (
            self.reason in (None, message.reason)
            and self.message_id in (None, message.message_id, message.published_as)
            and all(message.headers.get(name) == value for name, value in self.headers.items())
            and (self.age is None or now - message.enqueued_at.timestamp() > self.age)
        )


def checked_ids(ids: Iterable[str | Message], longest: int = MAX_ID) -> list[str | Message]:
    """Return the messages that are named, each once. Raises `InvalidRequest`.

    longest: characters of an id, at most.
    """
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InvalidRequest(f"ids is {shown(ids)}; give a list of message ids, or of messages that search has found")
    given = list(islice(ids, MOST + 1))
    if len(given) > MOST:
        raise InvalidRequest(f"more than {MOST} ids: give at most {MOST} in a call")
    places = {
        (one.message_id, one.shard, one.pointer) if isinstance(one, Message) else (checked_id(one, longest),): one
        for one in given
    }
    return list(places.values())


def name_of(one: str | Message) -> str:
    """Return the id of a message that is named."""
    return one.message_id if isinstance(one, Message) else one


def outcome_of(row: object) -> Outcome | LatchworkError:
    """Return the outcome of a message by that of a call for it, which was not refused."""
    if isinstance(row, OutcomeUnknown):
        return Outcome.UNKNOWN
    return row if isinstance(row, LatchworkError) else Outcome.DONE


def outcomes_of(
    ids: Sequence[str | Message],
    rows: Sequence[tuple[str, Outcome | LatchworkError]],
    afterwards: LatchworkError | None = None,
) -> dict[str, Outcome]:
    """Return the outcome of each id, of all its messages if several wait.

    afterwards: what failed once the messages were dealt with.

    Raises the first error of a message to which certainly nothing was done. `details["failures"]` then has the code of
    the error of each such message, and `details["outcomes"]` all others.
    """
    outcomes = {name_of(one): Outcome.NOT_THERE for one in ids}
    failures: dict[str, LatchworkError] = {}
    for name, row in rows:
        if isinstance(row, LatchworkError):
            failures.setdefault(name, row)
        elif Outcome.UNKNOWN in (row, outcomes[name]):
            outcomes[name] = Outcome.UNKNOWN
        elif row is Outcome.DONE:
            outcomes[name] = row
    for name in failures:
        if outcomes[name] is not Outcome.UNKNOWN:
            del outcomes[name]
    for failure in (*failures.values(), *([afterwards] if afterwards else [])):
        failure.details["outcomes"] = outcomes
        failure.details["failures"] = {name: row.code for name, row in failures.items() if name not in outcomes}
        raise failure
    return outcomes
