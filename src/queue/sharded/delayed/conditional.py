"""Messages that are stored before the update of a record with which they go, and delivered if it is applied (P28).

Each is an entry that is due in a moment, with a condition: the attempt at the update. Who has seen the update applied
notes it in the entry; where nobody did, the upkeep asks the record when the entry is due.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....coord.effects.attempts import Condition
from ....errors import LatchworkError
from ....store import Compute, Put, Removal, Update, missing
from ....store.model.expr import SERVER_NOW
from ....store.rows import Rows
from ..envelope import Envelope
from .control import AS_FAR, IN, OUT, RETRY_IN, RETRY_OUT, counting, may_have_passed
from .entries import SKEW, WIDTH, DelayedMessages, bucket_of
from .stored import ENTRY, IF, SURE, Entry

SOON = 1_500
"""Milliseconds after which a message is due that goes with an update."""
LEAST = 1_000
"""Milliseconds from when the entry is stored to when it is due, at least: nobody looks for it before that, also by the
clock of another server.
"""
STEADY = 8
"""Buckets by which this process's idea of the server's time may go back, and its messages keep their order."""
_NOTE = (Put(SURE, 1),)
_NOT_CANCELLED = missing("cancelled")


class ConditionalMessages(DelayedMessages):
    """The messages of a queue that go with updates of records. Safe to share between threads."""

    _last_bucket = 0

    def announce(
        self, envelopes: Sequence[Envelope], shards: Sequence[int | None], conditions: Sequence[Condition]
    ) -> Rows[str]:
        """Store messages, up to 500, each with its condition; return for each the name of its entry, or the error.

        Entries and their ids go in one call, as nobody looks for them before they are due. One call; one or more for
        the first message of a process, where a row was sent again, and where the call took so long that they may have
        been due.
        """
        self._make_control()
        number = self._next_bucket()
        by, now = self.store.seams.unique(), int(self.store.seams.wall() * 1000)
        names = [one.msg_id for one in envelopes]
        tokens = [f"{by}.{next(self._numbers)}" for _ in envelopes]
        due, now_at = Put("due", number * WIDTH), Compute(SERVER_NOW)
        made = [
            self._creating(one.msg_id, one.ops(now), token, shard, due, Put(IF, list(condition)), now_at, ttl=self.kept)
            for token, one, shard, condition in zip(tokens, envelopes, shards, conditions, strict=True)
        ]
        # 1. Entries, their ids and their number, in one call.
        *stored, entered, seen = answered = self.store.repeat_many([
            *made,
            self._appending(number, self._k.get(number, 0), names, self.kept),
            Update(self.control, (*counting(IN, RETRY_IN, names), *AS_FAR)),
        ])  # fmt: skip
        rows = Rows(map(self._ours, made, stored, tokens))
        safe, _ = rows.sift(names)
        # 2. If the bucket may have been due by then, or has no room, the ids go into another one.
        moments = [moment for (moment,) in safe.values()]
        passed = None
        if not isinstance(entered, LatchworkError) and not isinstance(seen, LatchworkError):
            self._learn(entered[0])
            moments.append(entered[0])
            if not answered.sent_again:  # else the horizon may have been read long before the last entry was stored
                passed = may_have_passed(seen[0], seen[1] + LEAST)
        # Rows are applied in any order. Times that are far apart may be of a server whose clock was set meanwhile.
        earliest, latest = min(moments, default=0), max(moments, default=0)
        is_steady = latest - earliest <= SKEW * 1000
        if not safe or (is_steady and passed is not None and max(passed, latest + LEAST) < number * WIDTH):
            return rows.then(lambda places: [names[n] for n in places])
        late = bucket_of(max(latest, self._server_ms()) + SOON)
        uncounted = None if isinstance(seen, LatchworkError) else ()
        failure = self._enter({late: list(safe)}, self.kept, uncounted=uncounted).get(late)
        return rows.then(lambda places: [failure or names[n] for n in places])

    def note_applied(self, names: Sequence[str]) -> Rows[object]:
        """Note that the updates with which these messages go were applied. One call.

        A failure is harmless: the upkeep asks the records.
        """
        return Rows(self.store.repeat_many([Update(self.entry(one), _NOTE, _NOT_CANCELLED) for one in names]))

    def withdraw(self, names: Sequence[str]) -> Rows[bool]:
        """Forget messages whose updates were not applied and never will be. One call, and one to count them.

        A failure is harmless, and so is a request to store one of them that arrives later: the upkeep asks the records.
        """
        # What was cancelled, or dropped by the upkeep, is counted by who did that, and stays.
        removals = [Removal(self.entry(one), _NOT_CANCELLED) for one in names]
        rows = self.store.delete_many(removals, repeatable=True).settled()
        gone = [name for name, row in zip(names, rows, strict=True) if row is True]
        if gone:
            self.store.repeat_many([Update(self.control, counting(OUT, RETRY_OUT, gone)), self.told_no_more(gone)])
        return rows

    def waits_for(self, message_id: str) -> str | None:
        """Return in words for which update of a record a message waits; None for none, or no such message. One call."""
        record = self.store.get(self.entry(message_id), *ENTRY)
        entry = Entry.of(record.bins if record else {})
        condition = entry.condition if entry.unsure and entry.cancelled is None else None
        return None if condition is None else f"the {'end' if condition.deletes else 'update'} of {condition.key}"

    def _next_bucket(self) -> int:
        """Return the bucket for what is due in a moment, not before that of the last one."""
        number = bucket_of(self._server_ms() + SOON)
        if number < self._last_bucket <= number + STEADY:
            return self._last_bucket
        self._last_bucket = number
        return number

    def _server_ms(self) -> int:
        """Return the server's time, about. One call for the first time."""
        clock, seams = self.store.token_clock, self.store.seams
        if clock.server_ms(seams) is None:
            (now,) = self.store.operate(self.control, Compute(SERVER_NOW))
            clock.learn(seams, now)
        found = clock.server_ms(seams)
        assert found is not None  # noqa: S101 - it was learned
        return found

    def _learn(self, now: int) -> None:
        """Take note of the server's time, also at once where it was set."""
        clock, seams = self.store.token_clock, self.store.seams
        if clock.wants_to_learn(seams) or abs(self._server_ms() - now) > LEAST:
            clock.learn(seams, now)
