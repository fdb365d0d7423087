"""Cancelling a message, in whatever state it is (docs/protocols P26)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import LatchworkError, NotFound, OutcomeUnknown, Refused
from ...plain import shown
from ...store import Compute, Read, Update, exists
from .places import ASKING, TAKEN, Place, Trace, dropping
from .rules import GROUPS
from .selection import Outcome
from .status import Finder

ROUNDS = 6
"""How often the places of a message are tried, while it moves from one to another."""
_LOOK = (Read("msgId"), Read(TAKEN), Read("batch"), Compute(exists("data")), Compute(exists(GROUPS)))
_LOOK_LATER = (Read("moving"), Read("cancelled"))


class Cancelling:
    """One cancel of one message."""

    def __init__(self, find: Finder) -> None:
        self._find, self._store = find, find.delayed.store
        self._me, self._now = self._store.seams.unique(), find.sides["main"].now_ms()
        self._answers: list[Outcome] = []
        self._failures: list[LatchworkError] = []
        self._entries: list[str] = []
        self._batches: list[object] = []

    def run(self) -> Outcome:
        """Make sure that the message does not come again; return the outcome."""
        tried, marked, open_ = set[object](), False, self._find.known()
        for look in range(ROUNDS):
            # 1. Drop it, or ask who has it, at each place; note in its trace that it is cancelled, and read that.
            before, asked = open_, Outcome.ASKED in self._answers
            again, trace = self._round(open_, make=asked, later=look > 1)
            marked = marked or trace is not None
            # 2. The trace may name others. Who moves the message from now on finds it cancelled.
            tried.update(place[1:] for place in before)
            open_ = again + [place for place in (trace.places if trace else ()) if place[1:] not in tried]
            asked = Outcome.ASKED in self._answers
            if not open_ and (marked if asked else Outcome.DONE in self._answers or not before):
                break
        else:
            self._answers.append(Outcome.UNKNOWN)
        self._find.delayed.left(self._entries, self._batches)
        for outcome in (Outcome.UNKNOWN, Outcome.ASKED, Outcome.DONE):
            if outcome in self._answers:
                return outcome
        if marked:  # nothing was there to be cancelled
            self._store.repeat_many([self._find.places.unmarking(self._find.message_id, self._me)])
        for failure in self._failures:
            raise failure
        return Outcome.NOT_THERE

    def _round(self, places: Sequence[Place], *, make: bool, later: bool) -> tuple[list[Place], Trace | None]:
        """Try these places; return the ones that are to be tried again, and the trace, None where there is none."""
        find = self._find
        rows = [row for place in places for row in self._rows(place)]
        *found, row = self._store.repeat_many([*rows, find.places.marking(find.message_id, self._me, make=make)])
        again, left = list[Place](), iter(found)
        for place in places:
            mine = [next(left) for _ in range(2 if place.slot is None else 3)]
            outcome = self._entry(place, mine) if place.slot is None else self._slot(mine, later=later)
            if outcome is None:
                again.append(place)
            elif isinstance(outcome, LatchworkError):
                self._failures.append(outcome)
            else:
                self._answers.append(outcome)
        if isinstance(row, LatchworkError) and not isinstance(row, NotFound | Refused):
            self._failures.append(row)
            if make:  # who moves it may not find that it is cancelled
                self._answers.append(Outcome.UNKNOWN)
        return again, Trace.of({"places": row[0]}) if isinstance(row, tuple) else None

    def _rows(self, place: Place) -> list[Update]:
        key, of = self._find.key(place), self._find.message_id
        if place.slot is None:
            return [self._find.delayed.cancelling(place.entry, self._me), Update(key, _LOOK_LATER)]
        side = self._find.sides[place.side]
        drop = dropping(key, of, self._me, self._now, side.cancelled_ttl)
        return [drop, ASKING.fill(key, id=of, me=self._me), Update(key, _LOOK)]

    def _slot(self, rows: Sequence[Any], *, later: bool) -> Outcome | LatchworkError | None:
        """Return what happened at a slot; None: the message was taken, or given back, between two rows.

        later: the slot was not in the trace at first: the message has moved there meanwhile.
        """
        dropped, asked, look = rows
        outcome = _failed(rows)
        if isinstance(dropped, tuple):
            self._batches.append(dropped[0])
            outcome = Outcome.DONE
        elif isinstance(asked, tuple):
            outcome = Outcome.ASKED
        elif isinstance(look, tuple) and look[0] == self._find.message_id:
            name, by, batch, there, shared = look
            if shared and there:
                return Refused(
                    f"groups wait for the message {shown(name)}, or have had it: it cannot be cancelled for all of them"
                )
            if by is not None and not there:
                self._batches.append(batch)  # who left the tombstone may have died before this
                outcome = Outcome.DONE if later or by == self._me else outcome
            elif there and outcome is Outcome.NOT_THERE:
                return None
        return outcome

    def _entry(self, place: Place, rows: Sequence[Any]) -> Outcome | LatchworkError:
        cancelled, look = rows
        if isinstance(look, tuple) and look[1] == self._me:
            self._entries.append(place.entry)
            self._batches += cancelled if isinstance(cancelled, tuple) else ()
            return Outcome.DONE
        if isinstance(look, tuple) and look[0] is not None and look[1] is None:
            return Outcome.ASKED  # on its way: who moves it drops it
        return _failed(rows)


def _failed(rows: Sequence[Any]) -> Outcome | LatchworkError:
    """Return what these rows say, of which none did anything as far as is known. The last one has looked after that."""
    failures = [row for row in rows if isinstance(row, LatchworkError)]
    looked = isinstance(rows[-1], tuple | NotFound)
    for failure in failures:
        if isinstance(failure, OutcomeUnknown) or (failure.details.get("doubt") and not looked):
            return Outcome.UNKNOWN
    return next((one for one in failures if not isinstance(one, NotFound | Refused)), Outcome.NOT_THERE)
