"""Cancelling a message, in whatever state it is (docs/protocols P26)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import LatchworkError, NotFound, OutcomeUnknown, Refused
from ...plain import shown
from ...store import Compute, Read, Update, exists
from .delayed.stored import is_retry
from .places import ASKING, MAIN, PLACES, TAKEN, Place, Trace, dropping
from .rules import GROUPS
from .selection import Outcome
from .status import LIVING, Finder, copies

ROUNDS = 7
"""How often the places of a message are tried, while it moves from one to another."""
_LOOK = (Read("msgId"), Read(TAKEN), Read("batch"), Compute(exists("data")), Compute(exists(GROUPS)))
_LOOK_LATER = (Read("moving"), Read("cancelled"))
_LOOK_AT_TRACE = (Read(PLACES),)
_LOOK_FOR_GROUPS = (Read(GROUPS),)


class Cancelling:
    """One cancel of one message."""

    def __init__(self, find: Finder) -> None:
        self._find, self._store = find, find.delayed.store
        self._me, self._now = self._store.seams.unique(), find.sides["main"].now_ms()
        self._answers: list[Outcome] = []
        self._failures: list[LatchworkError] = []
        self._entries: list[str] = []
        self._batches: list[object] = []
        self._has_groups = False

    def run(self) -> Outcome:
        """Make sure that the message does not come again; return the outcome."""
        tried, marked, open_ = set[object](), False, self._find.known()
        for look in range(ROUNDS):
            # 1. Drop it, or ask who has it, at each place. From the second round on, when it is known that no groups
            #    wait for it, note in its trace that it is cancelled, in the update that reads the trace.
            before = open_
            again, trace = self._round(open_, look, make=self._did(Outcome.ASKED))
            if look == 0 and self._has_groups and self._may_be_shared():
                self._failures.insert(0, self._refusal())
                break
            marked = marked or (look > 0 and trace is not None)
            # 2. The trace may name others. Who moves the message from now on finds it cancelled.
            tried.update(place[1:] for place in before)
            open_ = again + [place for place in (trace.places if trace else ()) if place[1:] not in tried]
            is_noted = marked or (trace is None and not self._did(Outcome.ASKED))
            if not open_ and (is_noted if self._did(Outcome.DONE, Outcome.ASKED) else not before):
                break
        else:
            self._answers.append(Outcome.UNKNOWN)
        self._find.delayed.left(self._entries, self._batches)
        for outcome in (Outcome.UNKNOWN, Outcome.ASKED, Outcome.DONE):
            if self._did(outcome):
                return outcome
        if marked:  # nothing was there to be cancelled
            self._store.repeat_many([self._find.places.unmarking(self._find.message_id, self._me)])
        for failure in self._failures:
            raise failure
        return Outcome.NOT_THERE

    def _round(self, places: Sequence[Place], look: int, *, make: bool) -> tuple[list[Place], Trace | None]:
        """Try these places; return the ones that are to be tried again, and the trace, None where there is none."""
        find = self._find
        rows = [row for place in places for row in self._rows(place)]
        if look == 0:
            shard = find.first.slot.shard if find.first else 0
            rows.append(Update(find.sides[MAIN].pointers_key(shard), _LOOK_FOR_GROUPS))
            rows.append(Update(find.places.key(find.message_id), _LOOK_AT_TRACE))
        else:
            rows.append(find.places.marking(find.message_id, self._me, make=make))
        *found, row = self._store.repeat_many(rows)
        again, left = list[Place](), iter(found)
        if look == 0:
            pointers = found[-1]
            self._has_groups = pointers != (None,) and not isinstance(pointers, NotFound)
        for place in places:
            mine = [next(left) for _ in range(2 if place.slot is None else 3)]
            outcome = self._entry(place, mine) if place.slot is None else self._slot(mine, later=look > 1)
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

    def _did(self, *outcomes: Outcome) -> bool:
        return any(one in outcomes for one in self._answers)

    def _may_be_shared(self) -> bool:
        """Whether groups may wait for it, also where the queue's own consumers have failed it. Two calls, or three."""
        if self._did(Outcome.UNKNOWN) or any(isinstance(failure, Refused) for failure in self._failures):
            return True
        found = copies(self._find)
        return any(GROUPS in one.bins for one in found) and any(one.status.state in LIVING for one in found)

    def _refusal(self) -> Refused:
        return Refused(
            f"groups wait for the message {shown(self._find.message_id)}, or have had it: it cannot be cancelled for "
            "all of them. If it has failed in the queue, discard it there: in `delayed`, `sideline` or `parked`. That "
            "ends it for the queue alone"
        )

    def _rows(self, place: Place) -> list[Update]:
        """Return the updates of one place. The store applies them in any order."""
        key, of = self._find.key(place), self._find.message_id
        if place.slot is None:
            return [self._find.delayed.cancelling(place.entry, self._me), Update(key, _LOOK_LATER)]
        side = self._find.sides[place.side]
        drop = dropping(key, of, self._me, self._now, side.cancelled_ttl)
        return [drop, ASKING.fill(key, id=of, me=self._me), Update(key, _LOOK)]

    def _slot(self, rows: Sequence[Any], *, later: bool) -> Outcome | LatchworkError | None:
        """Return what happened at a slot; None: the message was taken, given back or dropped between two rows.

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
            _, by, batch, there, shared = look
            if shared and there:
                return self._refusal()
            if by is not None and not there:
                self._batches.append(batch)  # who left the tombstone may have died before this
                outcome = Outcome.DONE if later or by == self._me else outcome
            elif there and outcome is Outcome.NOT_THERE:
                return None
        return outcome

    def _entry(self, place: Place, rows: Sequence[Any]) -> Outcome | LatchworkError | None:
        """Return what happened at an entry; None: it was marked, or cancelled, after the look."""
        cancelled, look = rows
        moving, by = look if isinstance(look, tuple) else (None, None)
        if isinstance(cancelled, tuple) or by == self._me:
            self._entries.append(place.entry)
            self._batches += cancelled if isinstance(cancelled, tuple) else ()
            return Outcome.DONE
        if moving is not None and by is None:
            # On its way: who moves it drops it, unless groups get it there. They have had one that is tried again.
            return self._refusal() if self._has_groups and not is_retry(place.entry) else Outcome.ASKED
        outcome = _failed(rows)
        return None if outcome is Outcome.NOT_THERE and look == (None, None) else outcome


def _failed(rows: Sequence[Any]) -> Outcome | LatchworkError:
    """Return what these rows say, of which none did anything as far as is known. The last one has looked."""
    failures = [row for row in rows if isinstance(row, LatchworkError)]
    looked = isinstance(rows[-1], tuple | NotFound)
    for failure in failures:
        if isinstance(failure, OutcomeUnknown) or (failure.details.get("doubt") and not looked):
            return Outcome.UNKNOWN
    return next((one for one in failures if not isinstance(one, NotFound | Refused)), Outcome.NOT_THERE)
