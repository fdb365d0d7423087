"""One message at a time: search, discard, redrive and move what is in a sideline or parked (docs/protocols P5).

Only messages that were not received: a message that a consumer holds comes back by itself if the consumer dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple

from msgspec.structs import replace

from ...coord.effects.marks import Applied, Effect
from ...errors import InvalidRequest, LatchworkError, NotFound, OutcomeUnknown, Refused
from ...inputs import is_int
from ...plain import shown
from ...store import Bin, Param, Put, Record, Update, exists, missing
from ...store.model.expr import SINCE_UPDATE, Bound
from ...store.model.ops import ReadAll
from ...store.rows import Rows
from ..rows import read_each
from .envelope import CONTENT, Codec, Envelope, Message, as_new, from_bins
from .handles import SubscriptionHandle
from .peek import CHUNK, messages_in, unfired
from .places import TAKEN
from .selection import Criteria, Outcome, checked_ids, outcome_of, outcomes_of
from .shards import Shards
from .slots import Slot, Stamped
from .subqueue import FailurePolicy, Subqueue
from .transfer import into, move

TAKING = 60_000
"""Milliseconds, by the server's clock, after which another process may move it: the first one has died."""

_FREE = missing(TAKEN) | Bin(TAKEN, str).eq(Param("me", str)) | (SINCE_UPDATE > TAKING)
_WAITS = exists("data") & missing("delivery") & Bin("msgId", str).eq(Param("id", str))
_MAY_TAKE = _WAITS & _FREE
_STILL_MINE = _WAITS & Bin(TAKEN, str).eq(Param("me", str))
_DROP_ALL = tuple(Put(bin, None) for bin in CONTENT)
_DROP = tuple(put for put in _DROP_ALL if put.bin != "batch")
"""The operations that delete a message and leave its place in a batch, for the process that has to complete that."""


class WaitingMessage(NamedTuple):
    """A message that waits, the seconds for which its id is to be kept where it goes, and its bin `batch`."""

    slot: Slot
    message_id: str
    keep: int
    batch: object = None


class SideView(Subqueue):
    """The sideline of a queue, or its parked messages. Its messages can be received, and each can be discarded,
    redriven or moved alone. Safe to share between threads.
    """

    def __init__(self, pointers: Shards, codec: Codec, failure_policy: FailurePolicy, main: SubscriptionHandle) -> None:
        super().__init__(pointers, codec, failure_policy)
        self._main = main

    @property
    def reader(self) -> str:
        """The name of the group that reads it; "" for the queue's own consumers."""
        return self._main.reader

    def with_message(self, update: Update, effect: Effect, publish: Any) -> Callable[[], Applied]:
        """Return what applies the effect of a message together with a message that is published."""
        return self._main.with_message(update, effect, publish)

    def settle(self, held: Sequence[Stamped]) -> tuple[Rows[bool], Callable[[], None]]:
        """Delete messages that were handled, each once its batch, which is the main queue's, has counted it."""
        return self._main.settle_in(self.pointers, held)

    def search(
        self,
        *,
        reason: str | None = None,
        key: str | None = None,
        header: Mapping[str, str] | None = None,
        older_than: timedelta | float | None = None,
        message_id: str | None = None,
        limit: int = 100,
    ) -> list[Message]:
        """Return up to `limit` messages, at most 1,000, that were not received and match all arguments. Changes
        nothing.

        reason: why they are here.
        key: in the shard of this key; also messages of other keys of that shard, as no message keeps its key.
        header: with these headers.
        older_than: published longer ago than this, a timedelta or seconds, by the clocks of its publisher and of this
            machine.
        message_id: with this id, as the logs have it.

        A batch read per 1,000 slots, until enough were found. A message that cannot be read is left out, with a warning
        that names its record. Raises `InvalidRequest` after 1,000,000 slots, with `details["found"]`.
        """
        criteria = Criteria(reason, header, older_than, limit, message_id)
        shard = None if key is None else self._main.shard_of(key)
        now = self.store.seams.wall()
        found: list[Message] = []
        slots = unfired(self.pointers)
        try:
            while len(found) < limit and (some := list(islice(slots, CHUNK))):
                found += [
                    message
                    for message in messages_in(self.pointers, self.codec, some)
                    if shard in (None, message.shard) and criteria.matches(message, now)
                ]
        except InvalidRequest as failure:
            failure.details["found"] = found
            raise
        return found[:limit]

    def discard(self, ids: Iterable[str | Message]) -> dict[str, Outcome]:
        """Delete messages that were not received, for good; return the outcome of each id.

        ids: at most 1,000 message ids, which stand for all messages of these ids that wait here, or messages that
            `search` has found, which stand for just these.

        One call, and one to look for each 1,000 that wait here; if only messages are given, one look. Raises the
        store's errors: if nothing was looked at yet, nothing was done; else the error is that of the first message to
        which nothing was done. `details["failures"]` has the code of the error of each such message, and
        `details["outcomes"]` has the others. A record here that cannot be read keeps no other message from it; its
        error is that of the message that was found there, and of an id that was found nowhere. Raises `InvalidRequest`,
        with nothing done, if more than 1,000,000 slots would have to be looked at for an id.
        """
        named = checked_ids(ids)
        found, unread = self._found(named)
        rows = self._drop(found, self.store.seams.unique(), _MAY_TAKE, _DROP)
        outcomes = [*zip([one.message_id for one in found], rows, strict=True), *unread]
        return outcomes_of(named, outcomes, self._left_batches(found, rows))

    def redrive(self, ids: Iterable[str | Message]) -> dict[str, Outcome]:
        """Move messages back to their queue at once, to start again with no attempts; return the outcome of each id.

        ids, errors: as for `discard`. Four calls, and the calls to find them. They are loaded there first, then removed
            here: one that was received here meanwhile is UNKNOWN, as it may be delivered twice.
        """
        return self._bring(ids, self._main)

    def move(self, ids: Iterable[str | Message], queue: SubscriptionHandle) -> dict[str, Outcome]:
        """Move messages to another queue of the same codec, to start there with no attempts; else as `redrive`.

        A batch that they belong to waits for them no more, as when they are discarded. The groups of that queue get
        them too. Raises `Refused` if that queue is known to be deactivated.
        """
        if not hasattr(queue, "open_for_publishing"):
            raise InvalidRequest(f"queue is {shown(queue)}; give what QueueRegistry.get returns")
        if queue.codec.name != self.codec.name:
            raise InvalidRequest(
                f"messages of a queue of {self.codec.name} go to no queue of {queue.codec.name}: take one of that codec"
            )
        if queue.pointers.pointers_key(0) == self._main.pointers.pointers_key(0):
            raise InvalidRequest(f"{shown(queue)} is where these messages came from: use redrive")
        return self._bring(ids, queue)

    # ---- finding them

    def _found(self, named: Sequence[str | Message]) -> tuple[list[WaitingMessage], list[tuple[str, LatchworkError]]]:
        """Return where the messages are, and the errors of those that may be in a record that cannot be read."""
        ids = {one for one in named if isinstance(one, str)}
        messages = {Slot(one.shard, one.pointer): one.message_id for one in named if isinstance(one, Message)}
        slots: Iterator[Slot] = unfired(self.pointers) if ids else iter(sorted(messages))
        found: dict[Slot, WaitingMessage] = {}
        unread: dict[Slot, LatchworkError] = {}
        while some := list(islice(slots, CHUNK)):
            records = read_each(self.store, [self.pointers.key(slot) for slot in some], "msgId", "keepId", "batch")
            there, damaged = records.sift(some)
            unread |= damaged
            for slot, record in there.items():
                name = record.bins.get("msgId") if record else None
                if (
                    record is not None
                    and isinstance(name, str)
                    and (name in ids or (name and name == messages.get(slot)))
                ):
                    keep = record.bins.get("keepId", 0)
                    found[slot] = WaitingMessage(slot, name, keep if is_int(keep) else 0, record.bins.get("batch"))
        ids -= {one.message_id for one in found.values()}
        beyond = [(messages[slot], row) for slot, row in unread.items() if slot in messages]
        beyond += [(name, row) for row in list(unread.values())[:1] for name in sorted(ids)]
        return [found[slot] for slot in sorted(found)], beyond

    # ---- what is done to them

    def _drop(
        self, found: Sequence[WaitingMessage], me: str, when: Any, drop: Sequence[Put]
    ) -> list[Outcome | LatchworkError]:
        """Leave a tombstone in place of the message: consumers pass it, and a repeat of this finds it done."""
        gone = (*drop, Put(TAKEN, me), Put("modified_at", self.pointers.now_ms()))
        least = int(self.pointers.sweep) + 1
        updates = [
            Update(
                self.pointers.key(one.slot), gone, Bound(when, {"me": me, "id": one.message_id}),
                ttl=max(least, one.keep),
            )
            for one in found
        ]  # fmt: skip
        return [self._dropped(one, me, row) for one, row in zip(found, self.store.repeat_many(updates), strict=True)]

    def _dropped(self, one: WaitingMessage, me: str, row: Any) -> Outcome | LatchworkError:
        if isinstance(row, Refused) and row.details.get("doubt"):
            try:
                record = self.store.get(self.pointers.key(one.slot), TAKEN, "data")
            except LatchworkError:
                return Outcome.UNKNOWN
            return Outcome.DONE if record is not None and record.bins == {TAKEN: me} else Outcome.NOT_THERE
        return Outcome.NOT_THERE if isinstance(row, NotFound | Refused) else outcome_of(row)

    def _bring(self, ids: Iterable[str | Message], queue: SubscriptionHandle) -> dict[str, Outcome]:
        """Take them, load them there, and leave tombstones here."""
        named = checked_ids(ids)
        queue.open_for_publishing()
        found, unread = self._found(named)
        me, away = self.store.seams.unique(), queue is not self._main
        taken, others = self._take(found, me).sift(found)
        held = [Stamped(one.slot, me, row) for one, row in taken.items() if isinstance(row, Envelope)]
        waiting, gone = {one.slot: one for one in found}, dict[Slot, Outcome | LatchworkError]()

        def remove(some: Sequence[Stamped]) -> Rows[bool]:
            there = [waiting[one.slot] for one in some]
            rows = self._drop(there, me, _STILL_MINE, _DROP if away else _DROP_ALL)
            gone.update(zip((one.slot for one in there), rows, strict=True))
            # It is there. Where it may be here as well it may come twice.
            return Rows(row is Outcome.DONE or OutcomeUnknown("it may be in both queues") for row in rows)

        envelopes = [as_new(one.envelope) for one in held]
        if away:  # the groups there have not had it, unless it is a copy for one of them
            here, there = self.pointers, queue.pointers
            is_own = here.store is there.store and here.client_id == there.client_id
            known = is_own and self._main.config.of == queue.config.name
            envelopes = [replace(one, batch=None, known=known) for one in envelopes]
        moved = move(held, into(queue.pointers, queue.active.loaded, renewed=away), envelopes, remove)
        rows: list[tuple[str, Outcome | LatchworkError]] = [*unread]
        rows += [(one.message_id, failure) for one, failure in others.items()]
        rows += [(one.message_id, row) for one, row in taken.items() if isinstance(row, Outcome)]
        rows += [(waiting[one.slot].message_id, outcome_of(row)) for one, row in zip(held, moved, strict=True)]
        if not away:
            return outcomes_of(named, rows)
        left = self._left_batches(found, [gone.get(one.slot, Outcome.NOT_THERE) for one in found])
        return outcomes_of(named, rows, left)

    def _left_batches(
        self, found: Sequence[WaitingMessage], rows: Sequence[Outcome | LatchworkError]
    ) -> LatchworkError | None:
        """Remove deleted messages from the count of their batches (P18). No call without batches.

        Also those of which only the tombstone was found: the process that left it may have died before this. Returns
        the store's error, if any; the same call again completes it.
        """
        gone = [one.batch for one, row in zip(found, rows, strict=True) if one.batch and row is Outcome.DONE]
        others = [one for one, row in zip(found, rows, strict=True) if one.batch and row is Outcome.NOT_THERE]
        try:
            records = read_each(self.store, [self.pointers.key(one.slot) for one in others], TAKEN, "data", "delivery")
            for one, record in zip(others, records, strict=True):
                if isinstance(record, Record) and record.bins.keys() == {TAKEN}:
                    gone.append(one.batch)
            self.pointers.counting.gone(gone)
        except LatchworkError as failure:
            return failure
        return next(iter(records.errors()), None)

    def _take(self, found: Sequence[WaitingMessage], me: str) -> Rows[Envelope | Outcome]:
        """Keep others who bring messages elsewhere from these for a minute; consumers are kept from nothing."""
        ops = (Put(TAKEN, me), ReadAll())
        updates = [
            Update(self.pointers.key(one.slot), ops, Bound(_MAY_TAKE, {"me": me, "id": one.message_id}))
            for one in found
        ]
        taken: Rows[Envelope | Outcome] = self.store.repeat_many(updates).then(
            lambda found: [from_bins(bins) or Outcome.NOT_THERE for (bins,) in found.values()]
        )
        return taken.recover((NotFound, Refused), lambda places: [Outcome.NOT_THERE] * len(places))
