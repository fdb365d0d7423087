"""A batch of messages that ends: published into, closed, waited for, and followed by one more message (P18)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from ....deadline import Deadline
from ....errors import AlreadyExists, Cancelled, InvalidRequest, LatchworkError, OutcomeUnknown
from ....inputs import checked_seconds, checked_text, checked_timeout
from ....plain import shown
from ....retry import Poll, may_pass, outlive
from ....store.rows import Rows, attempted, chunked
from ...rows import readable
from ..batches.blocks import OUT, BatchPlace, place_of, place_of_text
from ..batches.records import MAX_NAME, BatchRecords, BatchState, Tally
from ..config import QueueConfig
from ..envelope import Codec, checked_headers
from ..handles import QueueHandle
from ..ledger.dedup import KeyEntry, publish_or_find
from ..peek import CHUNK, unfired
from ..record import lifetime
from ..results import check_keeps_results
from ..selection import Outcome as Named
from .batch_end import Home, end_done
from .batch_results import BatchResult, BatchResults
from .prepared import Prepared
from .publish import Outcome, Terms, publish, store_messages, wanted_of
from .unique import refuse_unique
from .with_write import Publish

MIN_LIFE, MAX_LIFE = timedelta(minutes=1), timedelta(days=730)
MAX_FOLLOW_UP = 65_536
"""Bytes, as the record of a batch is written by each call that publishes."""
LOOKS = Poll(low=0.02, high=2.0, factor=1.5)
"""The pauses between two looks of `wait`."""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The progress of a batch at one moment.

    published: messages in it; while it is open only roughly, as calls that publish may fail.
    done: acknowledged.
    discarded: discarded, cancelled, or moved to another queue.
    parked: waiting among the parked messages.
    waiting: all others: ready, delayed, held by a consumer, failed and to be tried again, or expired.
    closed: whether no more messages can be added.
    complete: whether it is closed and no message is waited for.
    ended: whether it is complete and the follow-up is published, or it was cancelled.
    cancelled: whether it was cancelled; then the waiting ones are deleted as a consumer comes to them.
    """

    published: int
    done: int
    discarded: int
    parked: int
    waiting: int
    closed: bool
    complete: bool
    ended: bool
    cancelled: bool = False


class QueueBatch:
    """Messages of a queue that are counted as they are done, each once, however often it is delivered.

    Made by `ShardedQueue.batch`. Safe to share between threads; other processes ask for it by its name. `with` closes
    it, unless the block raises: then it stays open and can be continued.

    A message is done once the queue's own consumers have acknowledged it; if an acknowledgement raised `LeaseLost`, it
    may be done as well. A message whose publishing raised is not waited for, though it may be delivered.
    """

    def __init__(self, queue: Home, records: BatchRecords, state: BatchState) -> None:
        self._queue, self._records, self._state = queue, records, state
        self.store = queue.store

    @property
    def name(self) -> str:
        """The batch's name within the queue."""
        return self._state.name

    def __repr__(self) -> str:
        return f"QueueBatch({self._queue.name!r}, {self.name!r})"

    def __enter__(self) -> QueueBatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self.close()

    # ---- publishing

    def publish(
        self,
        payload: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        delay: timedelta | float | None = None,
        at: datetime | None = None,
        dedup: str | None = None,
        dedup_for: timedelta | float | None = None,
        unique: str | None = None,
        on_duplicate: str = "keep",
    ) -> str:
        """Publish one message into the batch, as `ShardedQueue.publish` does. Four calls: publish in hundreds.

        As `publish_many`. unique: refused, as the message of a key may be of no batch, or another one.
        """
        refuse_unique(unique, "a batch")
        ids = None if message_id is None else [message_id]
        dedups = None if dedup is None else [dedup]
        return self.publish_many(
            [payload], key=key, headers=headers, message_ids=ids,
            delay=delay, at=at, dedups=dedups, dedup_for=dedup_for, on_duplicate=on_duplicate,
        )[0]  # fmt: skip

    def publish_many(
        self,
        payloads: Sequence[Any],
        *,
        key: str | None = None,
        keys: Sequence[str | None] | None = None,
        headers: Mapping[str, str] | None = None,
        message_ids: Sequence[str] | None = None,
        delay: timedelta | float | None = None,
        at: datetime | None = None,
        dedups: Sequence[str] | None = None,
        dedup_for: timedelta | float | None = None,
        on_duplicate: str = "keep",
    ) -> list[str]:
        """Publish messages into the batch, as `ShardedQueue.publish_many` does. Two calls more than that, in all.

        dedups: a message whose key already has one counts where that one does: in this batch, if it belongs to it. So a
            publisher that died can be run again with its keys.

        Raises what `ShardedQueue.publish_many` raises, and `Refused` if the batch is closed. If it was closed during
        the call: `Refused`, or `OutcomeUnknown` if it is not known whether these messages count; its
        `details["published"]` has the ids of the messages that will be delivered nevertheless.
        """
        return publish(
            self._queue, payloads, key=key, keys=keys, headers=headers, message_ids=message_ids,
            delay=delay, at=at, dedups=dedups, dedup_for=dedup_for, on_duplicate=on_duplicate, store=self._store,
        )  # fmt: skip

    def _store(self, queue: QueueHandle, messages: Sequence[Prepared], terms: Terms) -> list[Outcome]:
        """Store the messages as of this batch, and count them."""
        if not messages:
            return []
        queue.open_for_publishing()
        if terms.due is not None:
            self._queue.delayed.ahead(terms.due)
        me, ordinals = self._records.begin(self._state, len(messages))
        places = [self._records.place(self._state, ordinal) for ordinal in ordinals]
        messages = [
            replace(one, envelope=replace(one.envelope, batch=place.text))
            for one, place in zip(messages, places, strict=True)
        ]
        outcomes = self._stored(messages, terms)
        self._count(me, places, outcomes)
        return [one.message_id if isinstance(one, KeyEntry) else one for one in outcomes]

    def _stored(self, messages: Sequence[Prepared], terms: Terms) -> Rows[KeyEntry]:
        """Store the messages; return for each the message that it became, and the place in a batch that this message
        has.
        """

        def store() -> Rows[KeyEntry]:
            if terms.remembered is not None:
                return publish_or_find(self._queue, wanted_of(self._queue, messages), terms.remembered)
            return store_messages(self._queue, messages, terms).then(
                lambda ids: [KeyEntry(one, messages[n].envelope.batch) for n, one in ids.items()]
            )

        return attempted(len(messages), store)

    def _count(self, me: str, places: Sequence[BatchPlace], outcomes: Sequence[KeyEntry | LatchworkError]) -> None:
        """Count the messages that are safe: first take out the ordinals of the others, then confirm the call."""
        unused: list[BatchPlace] = []
        found: dict[str, None] = {}
        for place, outcome in zip(places, outcomes, strict=True):
            if isinstance(outcome, LatchworkError):
                unused.append(place)
            elif outcome.batch != place.text:
                unused.append(place)
                found |= {outcome.batch: None} if outcome.batch else {}
        try:
            self._vouch(list(found))
            self._records.blocks.take_out(unused, OUT)
            self._records.confirm(self._state, me)
        except LatchworkError as failure:
            safe = [one.message_id for one in outcomes if isinstance(one, KeyEntry)]
            if not safe:
                return  # the errors of the messages are raised, as these may be delivered
            known = failure.code in ("REFUSED", "NOT_FOUND")
            raised = failure if known else OutcomeUnknown(f"{self!r}: whether what was published counts: {failure}")
            raised.details["published"] = safe
            raise raised from failure

    def _vouch(self, found: Sequence[str]) -> None:
        """Vouch for messages that were published before, if they are of this batch. One call, or none."""
        batch = self._records.place(self._state, 0).batch
        places = [place_of_text(text) for text in found]
        mine = [place for place in places if place is not None and place.batch == batch]
        for failure in self._records.blocks.vouch(mine) if mine else ():
            if failure is not None:
                raise failure

    # ---- its end

    def close(self) -> None:
        """Add no more messages: once all that were published are done, the follow-up is published. Three calls.

        Of calls that publish at this moment, only confirmed messages count; the others raise `Refused`. Harmless when
        repeated. Raises `NotFound`, `Refused` if its queue has too many batches that have not ended, and the store's
        errors: then close it again.
        """
        self._state = self._records.close(self._state)
        place = self._records.place(self._state, self._state.given)
        if not self._state.ended and self._records.blocks.close(place):
            end_done(self._queue, [place.batch])

    def cancel(self) -> Named:
        """Cancel what is not done yet: no more messages may come, none that it has is handed out any more, and no
        follow-up is published. Two calls.

        DONE: that is so, also if it was cancelled before. A handler that runs learns it from `Delivery.check`, once its
        message was extended; if it fails instead, the message is not handed out again. What waits is deleted as a
        consumer comes to it: until then it counts as waiting, and as part of the depth. NOT_THERE: all was done, and
        the follow-up, if there is one, comes. Only DONE is true as a condition.

        A group gets its messages nevertheless, and so does a Spark stream. Raises `NotFound`, and the store's errors,
        after which it is not known: cancel it again.
        """
        return Named.DONE if self._records.cancel(self._state) else Named.NOT_THERE

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the batch is closed and all of it is done, for at most `timeout` seconds (None = no limit); return
        whether it is.

        It looks every 20 ms at first, every 2 s later, with two calls, and one more for each further 500,000 messages
        that are done, once. The follow-up comes at that moment; if the process that was to publish it died, up to 5 s
        later, or 25 s if the one that does the upkeep died too. Raises `NotFound` once the batch has expired, and
        `Cancelled` if it was cancelled.
        """
        seams, tally, limit = self.store.seams, Tally(self._records), checked_timeout(timeout)
        seams.may_wait("QueueBatch.wait", limit)

        def complete() -> bool | None:
            state = self._records.read(self.name, self._state.tag)
            if state.cancelled:
                raise Cancelled(f"{self!r} was cancelled: not all of it was done")
            return tally.is_done(state) or None

        with Deadline(seams, limit) as deadline:
            return bool(
                outlive(
                    seams, deadline, lambda: LOOKS.until(seams, complete, timeout=deadline.left()), passing=may_pass
                )
            )

    def results(self, timeout: float | None = None) -> Iterator[BatchResult]:
        """Return what came out of each message, in the order in which they were published, one by one as they are done;
        of a queue with `QueueConfig(results=)`, which it had when they were published.

            totals = [one.result() for one in batch.results(timeout=60)]

        It begins once the batch is closed, and waits for each message until it has a result, or gets none unless
        somebody brings it back: `BatchResult.error` then says why, as `ShardedQueue.result` does. The end of the
        iteration says that these were all.

        timeout: seconds from now on, None = no limit. When they are over, what is known is told at once: the error of a
            message that is not done is `WaitTimeout`, and that is raised at the end if the batch was not closed when
            the first of them were read. 0: all is told as it is now.

        Two calls for each 500 messages; three to six where some of these have moved. While it waits it looks as
        `ShardedQueue.result` does, with two calls or three. It holds the results of 500 messages at a time.

        Raises `InvalidRequest` where the queue keeps no results; from the iteration `NotFound` once the batch has
        expired, and the store's errors, after which `next` goes on where it was. A record that cannot be read is the
        error of its messages alone. For one thread.
        """
        check_keeps_results(self._queue)
        return BatchResults(self._queue, self._records, self._state, checked_timeout(timeout))

    def progress(self) -> BatchProgress:
        """Return the progress. Three calls, and one for each 500,000 messages and each 1,000 parked ones."""
        state = self._records.read(self.name, self._state.tag)
        counts, parked = Tally(self._records).counts(state), len(self.missing())
        published = max(0, state.given - counts.out)
        waiting = max(0, published - counts.done - counts.gone)
        return BatchProgress(
            published, counts.done, counts.gone, min(parked, waiting), max(0, waiting - parked),
            closed=bool(state.closed), complete=state.complete and not waiting, ended=bool(state.ended),
            cancelled=bool(state.cancelled),
        )  # fmt: skip

    def missing(self) -> list[str]:
        """Return the ids of its messages that are parked: they hold it up until they are redriven or discarded.

        One call, and one for each 1,000 parked messages of the queue. One that cannot be read is left out, with a
        warning that names its record.
        """
        parked = self._queue.parked.pointers
        batch = self._records.place(self._state, 0).batch
        slots, ids = list(unfired(parked)), list[str]()
        for some in chunked(slots, CHUNK):
            for envelope in readable(parked.look(some)):
                place = place_of(envelope) if envelope else None
                if envelope and place and place.batch == batch:
                    ids.append(envelope.msg_id)
        return ids


def checked_name(name: str) -> str:
    """Return the name of a batch, once it is text of 1 to 128 characters. Raises `InvalidRequest`."""
    if len(checked_text("batch name", name)) > MAX_NAME:
        raise InvalidRequest(f"a batch name has {len(name)} characters; give at most {MAX_NAME}")
    return name


def checked_life(life: timedelta | float | None, config: QueueConfig) -> int:
    """Return the whole seconds that a batch lives, never fewer than asked. Raises `InvalidRequest`."""
    if life is None:
        return lifetime(config)
    least = 1 if config.unsafe_limits else MIN_LIFE.total_seconds()
    return math.ceil(checked_seconds("life", life, least, MAX_LIFE.total_seconds(), why=" (two years)"))


def stored_follow_up(then: Publish | None, codec: Codec, queue: str) -> dict[str, Any] | None:
    """Return the follow-up as the record of a batch keeps it. Raises `InvalidRequest`."""
    if then is None:
        return None
    headers = checked_headers(then.headers)
    if then.key is not None:
        checked_text("key", then.key)
    kept = {"queue": queue, "data": codec.encode(then.payload), "key": then.key, "headers": headers}
    size = len(str(kept).encode(errors="replace"))
    if size > MAX_FOLLOW_UP:
        raise InvalidRequest(f"the follow-up has about {size} bytes; give at most {MAX_FOLLOW_UP}, as a reference")
    return {name: value for name, value in kept.items() if value is not None}


def check_alike(
    queue: str, state: BatchState, then: Mapping[str, Any] | None, on_parked: Mapping[str, Any] | None
) -> None:
    """Raise `AlreadyExists` if a batch has other follow-ups than those asked for; not of one that was cancelled."""
    asked = ((then, state.then), (on_parked, state.on_parked))
    if not state.cancelled and any(given is not None and given != there for given, there in asked):
        raise AlreadyExists(
            f"batch {shown(state.name)} of queue {shown(queue)} is there, with another follow-up: give "
            "that, or another name"
        )
