"""A message in a consumer's hands, and what can be done with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import force_setattr

from ...errors import LatchworkError, LeaseLost
from .envelope import Reason, date
from .shards import Held, PointerQueue

MAX_EXTENSION = 10.0
"""Sweep durations for which one delivery may be extended in all."""


class View(Protocol):
    """The queue, or the sideline or parked messages of one, that a delivery came from: `QueueView` is one."""

    pointers: PointerQueue

    @property
    def name(self) -> str: ...
    def ack_many(self, deliveries: Iterable[Delivery]) -> None: ...
    def fail(self, delivery: Delivery, reason: str, error: str | None = None) -> None: ...
    def fail_later(self, delivery: Delivery, reason: str, error: str | None, delay: timedelta | float) -> None: ...


class Delivery(Struct, frozen=True, eq=False):
    """A message that was handed to this consumer, and to nobody else while it acknowledges or extends it in time.

    It must be acknowledged, or extended, within the queue's sweep duration; else the sweeper gives it to somebody else.
    A message may come more than once (at least once delivery); `attempts` counts how often, this time included.
    """

    payload: Any
    held: Held
    view: View
    received: float
    settled: bool = False
    """Whether it was acknowledged or failed by this handle: what comes later changes nothing."""

    @property
    def message_id(self) -> str:
        """The message's id, the same in every delivery."""
        return self.held.envelope.msg_id

    @property
    def headers(self) -> Mapping[str, str]:
        """What the publisher put beside the payload."""
        return self.held.envelope.headers or {}

    @property
    def attempts(self) -> int:
        """How often the message was handed out, this time included."""
        return self.held.envelope.attempts

    @property
    def enqueued_at(self) -> datetime:
        """When the message was published, by its publisher's clock, in UTC."""
        return date(self.held.envelope.enqueued_at)

    @property
    def shard(self) -> int:
        """The shard that it is in."""
        return self.held.slot.shard

    @property
    def pointer(self) -> int:
        """Its pointer within the shard, from 1."""
        return self.held.slot.pointer

    @property
    def reason(self) -> str | None:
        """Why it was in the sideline before, if it was."""
        return self.held.envelope.reason

    @property
    def last_error(self) -> str | None:
        """The error of its last failure, if there was one."""
        return self.held.envelope.last_error

    def ack(self) -> None:
        """Done: delete the message, if it is still this delivery's. One call.

        Raises `LeaseLost` where it is somebody else's or gone by now: then it may be handled twice.
        """
        self.view.ack_many([self])

    def nack(
        self,
        reason: str = Reason.REJECTED.value,
        *,
        error: str | None = None,
        delay: timedelta | float | None = None,
    ) -> None:
        """Failed: put the message into the sideline, with its reason and error, then delete it here.

        error: text, of which the first 1,000 bytes are kept.
        delay: seconds or a timedelta. The message does not go into the sideline; it comes again after so long, as one
            that was published with a delay. Four calls.

        Raises `InvalidRequest` for a reason outside the closed set, and for an error that is no text; `LeaseLost` where
        this delivery was acknowledged or failed before, and nothing changes, or where it was somebody else's or gone by
        now, so that it is in the sideline and may come a second time; the store's error where it could not be put
        there: then it stays for the sweeper.
        """
        if delay is None:
            self.view.fail(self, reason, error)
        else:
            self.view.fail_later(self, reason, error, delay)

    def settle(self) -> None:
        """Remember that it was acknowledged or failed: the one thing about a delivery that changes."""
        force_setattr(self, "settled", True)

    def extend(self) -> None:
        """Start the sweep duration again. One call.

        Raises `LeaseLost` where it is somebody else's by now, or was extended for 10 sweep durations in all.
        """
        for failure in extend_all([self]):
            raise failure

    def __repr__(self) -> str:
        return f"Delivery({self.view.name!r}, {self.message_id!r}, shard={self.shard}, pointer={self.pointer})"


def extend_all(deliveries: Sequence[Delivery]) -> list[LatchworkError]:
    """Start the sweep durations of deliveries of one queue again; what kept some from that. One call."""
    queue = deliveries[0].view.pointers
    since = queue.store.seams.monotonic() - MAX_EXTENSION * queue.sweep
    failures: list[LatchworkError] = [_held_too_long(one) for one in deliveries if one.received < since]
    open_ = [one for one in deliveries if one.received >= since]
    outcomes = queue.extend([one.held for one in open_]) if open_ else []
    for delivery, outcome in zip(open_, outcomes, strict=True):
        if outcome is not True:
            failures.append(outcome or lost([delivery]))
    return failures


def _held_too_long(delivery: Delivery) -> LeaseLost:
    return LeaseLost(f"{delivery!r} was held for more than {MAX_EXTENSION:g} sweep durations: acknowledge sooner")


def lost(deliveries: list[Delivery]) -> LeaseLost:
    """The error that says so."""
    more = f" and {len(deliveries) - 1} more" if len(deliveries) > 1 else ""
    return LeaseLost(
        f"{deliveries[0]!r}{more} was given to somebody else, or is gone: it was acknowledged or failed before, or not "
        "within the sweep duration; extend it while it is handled",
        message_ids=[delivery.message_id for delivery in deliveries],
    )
