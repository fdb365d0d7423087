"""A message that a consumer holds, and its settlement: acknowledge or fail it, and report the outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from ...errors import InvalidRequest, LatchworkError, LeaseLost
from ...inputs import checked_many
from ...retry import Poll
from ...store.rows import Rows
from .envelope import Envelope, Reason, date, kept_error
from .shards import Shards
from .slots import Stamped

MAX_EXTENSION = 10.0
"""Sweep durations for which one delivery may be extended in all."""

Outcome = bool | LatchworkError
"""True = settled; False = handed to another consumer or deleted by now; an error = not settled, or perhaps."""


class Source(Protocol):
    """The queue, or the sideline or parked messages of one, that a delivery came from: `Subqueue` is one."""

    pointers: Shards

    @property
    def name(self) -> str: ...
    def settle(self, held: Sequence[Stamped]) -> tuple[Rows[bool], Callable[[], None]]: ...
    def fail(self, delivery: Delivery, reason: str, error: str | None = None) -> None: ...
    def fail_later(self, delivery: Delivery, reason: str, error: str | None, delay: timedelta | float) -> None: ...


class Delivery(Struct, frozen=True, eq=False):
    """A message that was handed to this consumer, and to no other while it acknowledges or extends it in time.

    It must be acknowledged, or extended, within the queue's sweep duration; else the sweeper hands it to another
    consumer. A message may be delivered more than once (at least once delivery); `attempts` counts how often, this time
    included.

    Safe to share between threads: any of them may acknowledge, fail or extend it. The second one to acknowledge or fail
    it gets `LeaseLost`.
    """

    payload: Any
    held: Stamped
    view: Source
    received: float
    settled: bool = False
    """Whether it was acknowledged or failed by this handle: what comes later changes nothing."""
    extended: float = 0.0
    """When it was extended last, in seconds, monotonic; 0 = never."""
    stop: Callable[[], LatchworkError | None] | None = None
    """Says why the work on it should end now, if it should."""

    @property
    def message_id(self) -> str:
        """The message's id. It does not change between deliveries."""
        return self.held.envelope.msg_id

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the publisher gave."""
        return self.held.envelope.headers or {}

    @property
    def attempts(self) -> int:
        """The number of times the message was handed out, this time included."""
        return self.held.envelope.attempts

    @property
    def enqueued_at(self) -> datetime:
        """The time of publishing, by the publisher's clock, in UTC."""
        return date(self.held.envelope.enqueued_at)

    def check(self) -> None:
        """Raise if the work on the message is to end now; call it at points where it is safe to stop. No store call.

        Raises `Interrupted` once the worker stops: let it pass, and the message comes back at once, elsewhere, without
        an attempt more. Raises `LeaseLost` once the message is no longer this delivery's, or may be another consumer's:
        it was settled, given up after the handler timeout, or not extended within the sweep duration.
        """
        failure = self.stop() if self.stop is not None else None
        if failure is not None:
            raise failure
        queue = self.view.pointers
        if self.settled or queue.store.seams.monotonic() - max(self.received, self.extended) > queue.sweep:
            raise lost([self])

    @property
    def shard(self) -> int:
        """The shard that it is in."""
        return self.held.slot.shard

    @property
    def pointer(self) -> int:
        """The message's pointer within the shard, from 1."""
        return self.held.slot.pointer

    @property
    def reason(self) -> str | None:
        """The reason for which it failed before, or was interrupted; None if neither."""
        return self.held.envelope.reason

    @property
    def last_error(self) -> str | None:
        """The error of its last failure, if there was one."""
        return self.held.envelope.last_error

    def ack(self) -> None:
        """Acknowledge the message: it is done. Deletes it, if it is still this delivery's. One call.

        Raises `LeaseLost` if it has been handed to another consumer, or deleted: then it may be handled twice.
        """
        outcomes = ack_each([self])
        if outcomes != [True]:
            raise_first([self], outcomes)

    def nack(
        self,
        reason: str = Reason.REJECTED.value,
        *,
        error: str | None = None,
        delay: timedelta | float | None = None,
    ) -> None:
        """Fail the message: it is delivered again after the queue's backoff, or parked if this was its last attempt. If
        the queue does not retry, or has a shovel, it goes into the sideline. Three calls.

        reason: one of the closed set of reasons.
        error: text, of which the first 1,000 bytes are kept.
        delay: seconds or a timedelta after which it is delivered again, whatever the queue's settings say.

        Raises `InvalidRequest` for a reason outside the closed set, and for an error that is not text. Raises
        `LeaseLost` if this delivery was acknowledged or failed before (nothing changes), or if the message has been
        handed to another consumer or deleted (it was stored for later too, and may be delivered a second time). Raises
        the store's error if it could not be stored for later: then it stays for the sweeper.
        """
        if delay is None:
            self.view.fail(self, reason, error)
        else:
            self.view.fail_later(self, reason, error, delay)

    def extend(self) -> None:
        """Start the sweep duration again. One call.

        Raises `LeaseLost` if the message has been handed to another consumer, or was extended for 10 sweep durations in
        all.
        """
        for failure in extend_all([self]):
            raise failure

    def __repr__(self) -> str:
        return f"Delivery({self.view.name!r}, {self.message_id!r}, shard={self.shard}, pointer={self.pointer})"


def ack_all(deliveries: Iterable[Delivery]) -> None:
    """Acknowledge deliveries, as `Subqueue.ack_many` describes."""
    queues: dict[Shards, list[Delivery]] = {}
    for delivery in checked_many("deliveries", deliveries):
        if not isinstance(delivery, Delivery):
            raise InvalidRequest(f"{type(delivery).__name__} is no delivery; give what receive returned")
        queues.setdefault(delivery.view.pointers, []).append(delivery)
    done = [delivery for some in queues.values() for delivery in some]
    raise_first(done, [outcome for some in queues.values() for outcome in ack_each(some)])


def ack_each(deliveries: Sequence[Delivery]) -> Rows[bool]:
    """Delete messages of one queue that were handled; return the outcome of each.

    One call; one more where any is of a batch, which counts it first (P18).
    """
    view = deliveries[0].view
    outcomes, then = view.settle([delivery.held for delivery in deliveries])
    record_outcomes(view.pointers, outcomes, "acked")
    mark_settled(deliveries, outcomes)
    then()
    return outcomes


def mark_settled(deliveries: Sequence[Delivery], outcomes: Sequence[Outcome]) -> None:
    """Mark deliveries that are settled, so that they are not settled again: the one thing about them that changes."""
    for delivery, outcome in zip(deliveries, outcomes, strict=True):
        if outcome is True:
            force_setattr(delivery, "settled", True)


def record_outcomes(queue: Shards, outcomes: Sequence[Outcome], done: str) -> None:
    """Record the outcomes of messages that were handed out as metrics."""
    settled, gone = outcomes.count(True), outcomes.count(False)
    for outcome, n in ((done, settled), ("lost", gone), ("unsettled", len(outcomes) - settled - gone)):
        if n:
            queue.store.seams.note("handled", n, queue=queue.name, outcome=outcome)


def record_each(queue: Shards, outcomes: Sequence[Outcome], done: Sequence[str]) -> None:
    """Record outcomes as `record_outcomes` does, if what was done differs from message to message."""
    for one in dict.fromkeys(done):
        record_outcomes(queue, [outcome for outcome, what in zip(outcomes, done, strict=True) if what == one], one)


def failed(queue: Shards, held: Stamped, backoff: Poll | None, reason: str, error: str | None) -> Envelope:
    """Return the message with why it failed, and until when it waits in the sideline. Raises `InvalidRequest`."""
    if error is not None and not isinstance(error, str):
        raise InvalidRequest(f"error is a {type(error).__name__}; it must be text, as str(error), or None")
    not_before = 0
    if backoff is not None:
        pause = backoff.pause(max(1, held.envelope.attempts), queue.store.seams)
        not_before = queue.now_ms() + round(pause * 1000)
    text = kept_error(error) if error else held.envelope.last_error
    return replace(held.envelope, reason=reason, last_error=text, not_before=not_before)


def raise_first(deliveries: Sequence[Delivery], outcomes: Sequence[Outcome]) -> None:
    """Raise the error of the first delivery that was not settled, if there is one."""
    if outcomes.count(True) == len(outcomes):  # as nearly always
        return
    Rows(outcomes).raise_unless()
    gone = [delivery for delivery, outcome in zip(deliveries, outcomes, strict=True) if outcome is not True]
    if gone:
        raise lost(gone)


def extend_all(deliveries: Sequence[Delivery]) -> list[LatchworkError]:
    """Start the sweep durations of deliveries of one queue again; what kept some from that. One call."""
    queue = deliveries[0].view.pointers
    began = queue.store.seams.monotonic()
    since = began - MAX_EXTENSION * queue.sweep
    failures: list[LatchworkError] = [_held_too_long(one) for one in deliveries if one.received < since]
    open_ = [one for one in deliveries if one.received >= since]
    outcomes = queue.extend([one.held for one in open_]) if open_ else []
    for delivery, outcome in zip(open_, outcomes, strict=True):
        if outcome is True:
            force_setattr(delivery, "extended", began)
            continue
        if outcome is False:
            force_setattr(delivery, "stop", partial(lost, [delivery]))
        failures.append(outcome or lost([delivery]))
    return failures


def _held_too_long(delivery: Delivery) -> LeaseLost:
    return LeaseLost(f"{delivery!r} was held for more than {MAX_EXTENSION:g} sweep durations: acknowledge sooner")


def lost(deliveries: list[Delivery]) -> LeaseLost:
    """Return the error for deliveries that were lost."""
    more = f" and {len(deliveries) - 1} more" if len(deliveries) > 1 else ""
    return LeaseLost(
        f"{deliveries[0]!r}{more} was handed to another consumer, or deleted: it was acknowledged or failed before, or "
        "not within the sweep duration; extend it while it is handled",
        message_ids=[delivery.message_id for delivery in deliveries],
    )
