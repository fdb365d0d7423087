"""Messages that go with an update of a record, once they are due: was it applied? (docs/protocols P28)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ....coord.effects.attempts import Condition, applied, give_up
from ....errors import LatchworkError, NotFound, Refused, Unreadable
from ....logs import Log
from ....store import Update, missing
from ....store.model.expr import MapSize
from ....store.model.ops import MapPut
from ..delayed.conditional import ConditionalMessages
from ..delayed.control import UNSETTLED
from ..delayed.stored import Entry

log = Log(__name__)

AGAIN = 2_000
"""Milliseconds after which a record is asked again while the writer may still be at work."""
PATIENCE = 10_000
"""Milliseconds after it was due, in which a message waits for its writer; then the update is given up."""
LONG = 60_000
"""Milliseconds after which people are told of a message whose record cannot say whether it was changed."""
SELDOM = 6 * 3_600_000
"""Milliseconds between two questions, at most."""
MOST_TOLD = 20
_ROOM = missing(UNSETTLED) | (MapSize(UNSETTLED) < MOST_TOLD)


@dataclass(slots=True)
class Settled:
    """The answers for messages that were due.

    sure: their updates were applied.
    never: they never will be.
    later: when each is asked for again, in ms by the server.
    failed: the errors of the store; these are asked for again at the next look.
    """

    sure: list[str] = field(default_factory=list)
    never: list[str] = field(default_factory=list)
    later: dict[str, int] = field(default_factory=dict)
    failed: dict[str, LatchworkError] = field(default_factory=dict)


class Conditions:
    """The conditions of the messages of one queue."""

    def __init__(self, delayed: ConditionalMessages) -> None:
        self._delayed, self._store = delayed, delayed.store

    def settle(self, entries: Mapping[str, Entry], now: int, expired: Collection[str]) -> Settled:
        """Ask the records of these entries, which are unsure, except of the expired ones. Two calls, or three; and one
        for each writer that has died. None for no entries.
        """
        settled, told = Settled(), dict[str, str]()
        asked: dict[str, Condition] = {}
        for one, entry in entries.items():
            if one in expired:
                settled.never.append(one)
            elif entry.condition is None:  # damaged, or as a later version writes it: the update may have been applied
                told[one] = "which record it goes with cannot be read"
                settled.failed[one] = Unreadable(told[one])
            else:
                asked[one] = entry.condition
        # 1. Was it applied, by the marks of the record?
        rows = applied(self._store, list(asked.values())) if asked else ()
        for (one, condition), row in zip(asked.items(), rows, strict=True):
            # 2. If not: give the writer some time, then give the update up.
            age = now - entries[one].due
            answer = self._given_up(condition) if row is None and age >= PATIENCE else row
            if answer is True:
                settled.sure.append(one)
            elif answer is False:
                settled.never.append(one)
            elif answer is None:
                settled.later[one] = now + AGAIN
            elif isinstance(answer, NotFound):
                # Without a record nothing can be given up: the update may still make it. It is asked ever more rarely.
                settled.later[one] = now + (min(max(age, LONG), SELDOM) if age >= PATIENCE else AGAIN)
                told[one] = f"{condition.key} does not exist"
            else:
                settled.failed[one] = answer
                told[one] = f"{condition.key}: {answer.code}"
        # 3. What is known is noted before it has consequences: the record may be gone at the next look.
        if settled.sure:
            noted, failed = self._delayed.note_applied(settled.sure).sift(settled.sure)
            settled.sure, settled.failed = list(noted), settled.failed | failed
        waited = [one for one, entry in entries.items() if now - entry.due >= LONG]
        self._tell(
            entries, {one: told[one] for one in waited if one in told}, [one for one in waited if one not in told]
        )
        return settled

    def _given_up(self, condition: Condition) -> bool | LatchworkError:
        try:
            return give_up(self._store, condition, self._delayed.kept)
        except LatchworkError as failure:
            return failure

    def _tell(self, entries: Mapping[str, Entry], told: Mapping[str, str], over: list[str]) -> None:
        """Note for people what waits long, and take out what waits no more. A call for each, or none."""
        control = self._delayed.control
        if over:
            self._store.repeat_many([self._delayed.told_no_more(over)])
        if told:
            ops = [MapPut(UNSETTLED, one, [entries[one].due, why]) for one, why in told.items()][:MOST_TOLD]
            self._store.repeat_many([Update(control, tuple(ops), _ROOM)])
        for one, why in told.items():
            log.warning("message %s of %s waits for its update: %s", one, self._delayed.name, why)

    def delete_records(self, entries: Mapping[str, Entry]) -> dict[str, LatchworkError]:
        """Delete the records that end with these messages, all of which are sure; the errors. A call, or none."""
        deleting = {
            one: entry.condition.removal
            for one, entry in entries.items()
            if entry.condition is not None and entry.condition.deletes
        }
        if not deleting:
            return {}
        _, failed = self._store.delete_many(list(deleting.values()), repeatable=True).sift(deleting)
        return {one: failure for one, failure in failed.items() if not isinstance(failure, Refused)}
