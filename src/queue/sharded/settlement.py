"""Settlement of deliveries: acknowledge, fail, and report the outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ...errors import InvalidRequest, LatchworkError
from ...inputs import checked_many
from ...retry import Poll
from .batches.blocks import Blocks, place_of
from .delivery import Delivery, lost
from .envelope import Envelope, kept_error
from .shards import Held, PointerQueue, Slot

Outcome = bool | LatchworkError
"""True = settled; False = somebody else's or gone by now; an error = not settled, or perhaps."""


def acknowledge(deliveries: Iterable[Delivery]) -> None:
    """What `QueueView.ack_many` does."""
    given = checked_many("deliveries", deliveries)
    for delivery in given:
        if not isinstance(delivery, Delivery):
            raise InvalidRequest(f"{type(delivery).__name__} is no delivery; give what receive returned")
    given, outcomes = _removed(given)
    remember(given, outcomes)
    raise_first(given, outcomes)


def _removed(deliveries: Sequence[Delivery]) -> tuple[list[Delivery], list[Outcome]]:
    """The deliveries, those of one queue behind one another, and what came of each: one call a queue."""
    queues: dict[int, list[Delivery]] = {}
    for delivery in deliveries:
        queues.setdefault(id(delivery.view.pointers), []).append(delivery)
    outcomes: list[Outcome] = []
    for group in queues.values():
        queue = group[0].view.pointers
        rows = acknowledged(queue, [delivery.held for delivery in group])
        tell(queue, rows, "acked")
        outcomes += rows
    return [delivery for group in queues.values() for delivery in group], outcomes


def acknowledged(queue: PointerQueue, held: Sequence[Held]) -> list[Outcome]:
    """Delete messages that were handled. One call; one more where any is of a batch, which counts it first (P18).

    A message that its batch could not count is not deleted: it comes again.
    """
    counted = {one.slot: place for one in held if (place := place_of(one.envelope)) is not None}
    if not counted:
        return list(queue.remove(held))
    marks = Blocks(queue.store, queue.client_id).mark(list(counted.values()))
    failures = {slot: failure for slot, failure in zip(counted, marks, strict=True) if failure is not None}
    safe = [one for one in held if one.slot not in failures]
    outcomes: dict[Slot, Outcome] = dict(failures)
    outcomes.update(zip((one.slot for one in safe), queue.remove(safe) if safe else (), strict=True))
    return [outcomes[one.slot] for one in held]


def tell(queue: PointerQueue, outcomes: Sequence[Outcome], done: str) -> None:
    """Tell the outside what became of messages that were handed out."""
    settled, gone = outcomes.count(True), outcomes.count(False)
    for outcome, n in ((done, settled), ("lost", gone), ("unsettled", len(outcomes) - settled - gone)):
        if n:
            queue.store.seams.note("handled", n, queue=queue.name, outcome=outcome)


def tell_each(queue: PointerQueue, outcomes: Sequence[Outcome], done: Sequence[str]) -> None:
    """Report outcomes as `tell` does, if what was done differs from message to message."""
    for one in dict.fromkeys(done):
        tell(queue, [outcome for outcome, what in zip(outcomes, done, strict=True) if what == one], one)


def remember(deliveries: Sequence[Delivery], outcomes: Sequence[Outcome]) -> None:
    """Mark those that are settled, so that nothing brings them back."""
    for delivery, outcome in zip(deliveries, outcomes, strict=True):
        if outcome is True:
            delivery.settle()


def failed(queue: PointerQueue, held: Held, backoff: Poll | None, reason: str, error: str | None) -> Envelope:
    """The message as it goes into the sideline, where it waits for its backoff. Raises `InvalidRequest`."""
    if error is not None and not isinstance(error, str):
        raise InvalidRequest(f"error is a {type(error).__name__}; it must be text, as str(error), or None")
    not_before = 0
    if backoff is not None:
        pause = backoff.pause(max(1, held.envelope.attempts), queue.store.seams)
        not_before = queue.now_ms() + round(pause * 1000)
    text = kept_error(error) if error else held.envelope.last_error
    return replace(held.envelope, reason=reason, last_error=text, not_before=not_before)


def raise_first(deliveries: Sequence[Delivery], outcomes: Sequence[Outcome]) -> None:
    """Raise what kept the first of them from being settled, if anything did."""
    for outcome in outcomes:
        if isinstance(outcome, LatchworkError):
            raise outcome
    gone = [delivery for delivery, outcome in zip(deliveries, outcomes, strict=True) if outcome is not True]
    if gone:
        raise lost(gone)
