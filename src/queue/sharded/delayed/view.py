"""One delayed message at a time: search, discard, redrive and move what is not due yet (docs/protocols P16)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from msgspec import structs

from ....errors import InvalidRequest, LatchworkError, NotFound, Refused
from ....inputs import checked_seconds
from ....plain import shown
from ....store import Bin, Compute, Param, Put, Read, Update, exists
from ....store.model.expr import SERVER_NOW, Bound, smallest
from ....store.rows import Rows, attempted, chunked
from ...rows import read_each, readable
from ..envelope import Codec, Message, as_new, date, message_of
from ..places import PLACES, Places, Trace
from ..selection import Criteria, Outcome, checked_ids, name_of, outcome_of, outcomes_of
from .conditional import ConditionalMessages
from .control import HORIZON
from .entries import BUCKETS, CHUNK, IDS, WAITS, WIDTH, Due, bucket_of
from .stored import ENTRY, MAX_NAME, Entry, horizon_in, ids_in, in_order, is_retry, name_elsewhere, published_id

HOUR, MOST_AHEAD = 3_600.0, 86_400.0
"""Seconds from now in which messages are due that are searched, by default and at most."""


class Elsewhere(Protocol):
    """The part of the target queue that moving a delayed message needs: `ShardedQueue` has it."""

    codec: Codec
    delayed: DelayedView

    def open_for_publishing(self) -> None: ...


class DelayedView(ConditionalMessages):
    """The delayed messages of a queue; each can be discarded, redriven or moved alone. Safe to share between threads.

    A message has the id with which it was published. Only one that was handed out before, as it failed or was put off,
    has another `message_id` here, which `search` returns; the id with which it was published, as the logs have it, is
    its `published_as`, and is taken by every verb of this view too.
    """

    def search(
        self,
        *,
        reason: str | None = None,
        header: Mapping[str, str] | None = None,
        older_than: timedelta | float | None = None,
        message_id: str | None = None,
        limit: int = 100,
        within: timedelta | float = HOUR,
    ) -> list[Message]:
        """Return up to `limit` messages, at most 1,000, that wait and match all arguments, the next ones first. Changes
        nothing.

        reason, header, older_than, message_id: as in `SideView.search`.
        within: due in this time, a timedelta or seconds, at most a day, or overdue. There is no list of all messages,
            so each quarter of a second of that time is looked at, 1,000 in a call.

        What cannot be read is left out, with a warning that names its record.

        `not_before` of a message says when it is due.
        """
        criteria = Criteria(reason, header, older_than, limit, message_id)
        seconds = checked_seconds("within", within, 0.001, MOST_AHEAD, why=" (a day)")
        now, found = self.store.seams.wall(), list[Message]()
        for _, some in self.looks(seconds):
            found += [message for message in some if criteria.matches(message, now)]
            if len(found) >= limit:
                break
        return sorted(found, key=due_of)[:limit]

    def looks(self, seconds: float) -> Iterator[tuple[int, list[Message]]]:
        """Yield what each read of messages has found that are due so far ahead, the next ones first, and how many ids
        it looked at: for pages, which bound that.
        """
        seen = set[str]()
        for some in self._next_ids(seconds):
            ids = [one for one in dict.fromkeys(some) if one not in seen]  # one may be in two buckets
            seen.update(ids)
            keys = [self.entry(one) for one in ids]
            records = readable(read_each(self.store, keys, *ENTRY))
            waiting = zip(ids, [Entry.of(record.bins if record else {}) for record in records], strict=True)
            messages = [self._message(one, entry) for one, entry in waiting if entry.waits(self.group)]
            yield len(ids), [message for message in messages if message]

    def discard(self, ids: Iterable[str | Message]) -> dict[str, Outcome]:
        """Make sure that messages are never delivered; return the outcome of each id. Two calls; up to three more where
        one is not there by its id alone, as after it has failed.

        NOT_THERE: no such message waits, or it is being delivered.

        A group keeps no traces of its messages: there it is one call more for each 250 s in which one that has failed
        may be tried again, an hour or the longest backoff. One that was failed with a longer delay is NOT_THERE, but
        under the id that `search` returns.

        Raises what `SideView.discard` raises.
        """
        named = checked_ids(ids, MAX_NAME)
        return outcomes_of(named, self._done_to(named, self.cancelled))

    def redrive(self, ids: Iterable[str | Message]) -> dict[str, Outcome]:
        """Make messages due now; return the outcome of each id. Three calls, or more as for `discard`.

        They are delivered, once, while a worker or a consumer runs. NOT_THERE: no such message waits, or it is being
        delivered already.

        Raises what `SideView.discard` raises.
        """
        named = checked_ids(ids, MAX_NAME)
        return outcomes_of(named, self._done_to(named, self._hastened))

    def _hastened(self, names: Sequence[str]) -> list[tuple[str, Outcome | LatchworkError]]:
        now, by = self._server_now()[0], self.store.seams.unique()
        hasten = Put("due", Bound(smallest(Bin("due"), Param("now")), {"now": now}))
        waiting = Bound(WAITS & exists("data"), {"by": by})
        updates = [Update(self.entry(name), (hasten, Read("group")), waiting) for name in names]
        # Their ids go along, into a bucket that has not ended: if this process dies after the call, no message is due
        # that only its bucket of before has, as it may have expired when that one is looked at.
        number = bucket_of(now) + 1
        first = self._k.get(number, 0)
        ids = [self._appending(number, first + n, some, self.kept) for n, some in enumerate(chunked(names, CHUNK))]
        rows = self.store.repeat_many([*updates, *ids])
        read, failed = Rows(rows[: len(names)]).sift(names)
        there = [name for name, (group,) in read.items() if Entry.of({"group": group}).is_of(self.group)]
        outcomes = [(name, _outcome(failure)) for name, failure in failed.items()]
        # In an earlier bucket as well, which is looked at: a message is moved once, even if two buckets have its id.
        entered = outcome_of(self.enter_again(there, now))
        return [*outcomes, *((name, entered) for name in there)]

    def move(self, ids: Iterable[str | Message], queue: Elsewhere) -> dict[str, Outcome]:
        """Move messages to another queue with the same codec; they are due when they were. Return the outcome of each
        id.

        A batch that they belong to waits for them no more. One that has failed here starts there with no attempts. The
        groups of that queue get them too, unless it is one of these that moves them.

        Three calls, and two a message, or more as for `discard`. They are stored there first, then cancelled here. A
        message that was delivered here meanwhile is cancelled there, or UNKNOWN if that is too late.

        Raises what `SideView.move` raises, and `AlreadyExists` if a message with one of the ids is stored there: also
        what a move that failed has left. `discard` it there, and move the message again. `InvalidRequest` if that queue
        takes no message that is due so far ahead; the others are moved.
        """
        if not isinstance(getattr(queue, "delayed", None), DelayedView):
            raise InvalidRequest(f"queue is {shown(queue)}; give what QueueRegistry.get returns")
        if Codec(self.config.codec).name != queue.codec.name:
            raise InvalidRequest("the queues have different codecs: take one of the same codec")
        if queue.delayed.control == self.control:
            raise InvalidRequest(f"{shown(queue)} is where these messages wait already: give another queue")
        named = checked_ids(ids, MAX_NAME)
        queue.open_for_publishing()
        return outcomes_of(named, self._done_to(named, lambda names: self._moved(names, queue.delayed)))

    def _moved(self, names: Sequence[str], target: DelayedView) -> list[tuple[str, Outcome | LatchworkError]]:
        there, rows = self._stored_at(target, names)
        gone = self.cancelled(list(there))
        back = dict(target.cancelled([there[name] for name, row in gone if row is Outcome.NOT_THERE]))
        return rows + [(name, _twice(row, back.get(there[name]))) for name, row in gone]

    # ---- steps

    def _done_to(
        self, named: Sequence[str | Message], act: Callable[[Sequence[str]], list[tuple[str, Outcome | LatchworkError]]]
    ) -> list[tuple[str, Outcome | LatchworkError]]:
        """Act on the entries of these names; then, for the ids that have none, on the messages of that id that were
        handed out before. Return the outcomes.
        """
        rows = act([name_of(one) for one in named])
        unknown = {name for name, row in rows if row is Outcome.NOT_THERE and published_id(name) == name}
        if not unknown:
            return rows
        retries, failed = self._scanned(unknown) if self.places is None else self._traced(self.places, sorted(unknown))
        try:
            again = act(list(retries)) if retries else []
        except LatchworkError as failure:  # of these alone: something was done to the others by now
            again = [(name, outcome_of(failure)) for name in retries]
        looked_for = {*failed, *retries.values()}
        rows = [row for row in rows if row[0] not in looked_for]
        return [*rows, *failed.items(), *((retries[name], row) for name, row in again)]

    def _traced(self, places: Places, ids: Sequence[str]) -> tuple[dict[str, str], dict[str, LatchworkError]]:
        """Return the names under which messages of these ids have waited, by their traces (P26), each with its id; and
        the errors of traces that cannot be read. One call.
        """
        keys = [places.key(one) for one in ids]
        found, failed = attempted(len(ids), lambda: read_each(self.store, keys, PLACES)).sift(ids)
        traces = {one: Trace.of(record.bins if record else {}) for one, record in found.items()}
        entries = {place.entry: one for one, trace in traces.items() if trace for place in trace.places if place.entry}
        return entries, failed

    def _scanned(self, ids: Collection[str]) -> tuple[dict[str, str], dict[str, LatchworkError]]:
        """As `_traced`, of a group, which keeps no traces: by the buckets of the time in which its pauses end."""
        pauses, entries = self.config.retries, dict[str, str]()
        longest = max(HOUR, pauses.high * (1 + pauses.jitter) if pauses else 0.0) + 60  # with some to spare
        try:
            for some in self._next_ids(longest):
                entries |= {one: of for one in some if (of := published_id(one)) in ids}
        except LatchworkError as failure:
            return {}, dict.fromkeys(ids, failure)
        return entries, {}

    def _next_ids(self, seconds: float) -> Iterator[Sequence[str]]:
        """Yield the ids that are overdue, or due up to `seconds` ahead, by time."""
        now, horizon = self._server_now()
        since = max(now - round(MOST_AHEAD * 1000), min(now, horizon))
        first, last = since // WIDTH, bucket_of(now + round(seconds * 1000))
        for begin in range(first, last + 1, BUCKETS):
            places = [(number, 0) for number in range(begin, min(begin + BUCKETS, last + 1))]
            while places:
                records = read_each(self.store, [self.bucket(*place) for place in places], IDS)
                full = [place for place, record in zip(places, records, strict=True) if record is not None]
                ids = [one for record in readable(records) if record for one in ids_in(record.bins.get(IDS))]
                yield from chunked(ids, BUCKETS)
                places = [(number, k + 1) for number, k in full]

    def _server_now(self) -> tuple[int, int]:
        """Return the server's time, and the time up to which all that was due is delivered; that of now, if it is
        damaged. One call.
        """
        self._make_control()
        asked = (Compute(SERVER_NOW), Read(HORIZON))
        try:
            now, horizon = self.store.operate(self.control, *asked)
        except NotFound:
            self._forget()
            self._make_control()
            now, horizon = self.store.operate(self.control, *asked)
        passed = horizon_in(horizon, int(now))
        return int(now), int(now) if passed is None else passed

    def _message(self, name: str, entry: Entry) -> Message | None:
        if entry.message is None:
            return None
        message = message_of(entry.message, Codec(self.config.codec), entry.shard, 0)
        return replace(message, message_id=name, not_before=date(entry.due) if entry.due else None)

    def cancelled(self, names: Sequence[str]) -> list[tuple[str, Outcome | LatchworkError]]:
        """Cancel messages, as `cancel` does; return the outcome of each. One call, and one to count them."""
        by = self.store.seams.unique()
        rows = self.store.repeat_many([self.cancelling(name, by) for name in names])
        gone, _ = rows.sift(names)
        if gone:
            self.left(list(gone), [batch for (batch,) in gone.values()])
        return [(name, _outcome(row)) for name, row in zip(names, rows, strict=True)]

    def _stored_at(
        self, target: DelayedView, names: Sequence[str]
    ) -> tuple[dict[str, str], list[tuple[str, Outcome | LatchworkError]]]:
        """Store copies of them there, each due when it is here; return the name that each copy has there, and the
        outcomes of those that were not stored.
        """
        records, unread = read_each(self.store, [self.entry(name) for name in names]).sift(names)
        found = {name: Entry.of(record.bins if record else {}) for name, record in records.items()}
        outcomes: list[tuple[str, Outcome | LatchworkError]] = [*unread.items()]
        there: dict[str, str] = {}
        # The groups there have not had them, unless these are copies for one of them.
        is_own = self.store is target.store and self.client_id == target.client_id
        known = is_own and self.config.of == target.config.name
        for name in in_order(found):
            entry = found[name]
            # One that goes with an update comes in a moment; or its condition would have to go along.
            if not entry.waits(self.group) or entry.message is None or not entry.due or entry.condition is not None:
                outcomes.append((name, Outcome.NOT_THERE))
                continue
            away = structs.replace(as_new(entry.message) if is_retry(name) else entry.message, batch=None)
            copy = name_elsewhere(name, away.msg_id, known=known)
            shard = None if entry.shard < 0 else entry.shard % target.config.shards
            try:
                (row,) = target.publish([away], [shard], Due(entry.due, absolute=True), names=[copy], given=True)
            except LatchworkError as failure:  # of this one alone: others are stored there by now
                row = failure
            if isinstance(row, LatchworkError):
                outcomes.append((name, outcome_of(row)))
            else:
                there[name] = copy
        return there, outcomes


def _outcome(row: Any) -> Outcome | LatchworkError:
    """Return the outcome of a guarded update of an entry."""
    if isinstance(row, NotFound | Refused):
        return Outcome.UNKNOWN if row.details.get("doubt") else Outcome.NOT_THERE
    return outcome_of(row)


def _twice(here: Outcome | LatchworkError, there: Outcome | LatchworkError | None) -> Outcome:
    """Return the outcome of a message that is stored there: cancelled here, or there because it was being delivered
    here.
    """
    if here is Outcome.DONE:
        return here
    return Outcome.NOT_THERE if there is Outcome.DONE else Outcome.UNKNOWN


def due_of(message: Message) -> float:
    """Return when a message is due, in seconds since the epoch."""
    return message.not_before.timestamp() if message.not_before else 0.0
