"""The storing of messages that are published: now, for later, or unless their keys have one (P5, P15, P16).

A message is prepared first, with all that its publisher gave: that does no I/O, and raises what is wrong with it. Then
it is stored, alone or with others that are published on equal terms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol, TypeAlias

from ...errors import AlreadyExists, InvalidRequest, LatchworkError
from ...inputs import checked_choice, checked_each
from ...plain import shown
from ..ledger.dedup import ON_DUPLICATE, Wanted, checked_key, checked_span, publish_unless_there
from ..ledger.target import Target
from .config import QueueConfig
from .delayed import DelayedMessages, Due, checked_due
from .envelope import Envelope
from .shards import Slot
from .transfer import CHUNK, load

Outcome: TypeAlias = str | LatchworkError
"""The id of a message that is safe, or why it is not."""


class Terms(NamedTuple):
    """What messages that are stored together have in common.

    due: when they are delivered, None = at once.  remembered: seconds for which their dedup keys are, None = no keys.
    """

    due: Due | None = None
    remembered: int | None = None


class Prepared(NamedTuple):
    """A message that can be stored.

    shard: where it goes, or unless it is `bound` to it (by its key) another one.  dedup: its key, where it has one.
    """

    envelope: Envelope
    shard: int
    bound: bool
    dedup: str = ""


class Publishable(Target, Protocol):
    """A queue as far as publishing needs it: `ShardedQueue` is one."""

    @property
    def delayed(self) -> DelayedMessages: ...


def checked_payloads(payloads: Any) -> None:
    """Check that they are several payloads, and not one that can be taken for several. Raises `InvalidRequest`."""
    if isinstance(payloads, str | bytes | Mapping) or not isinstance(payloads, Collection):
        raise InvalidRequest(f"payloads is a {type(payloads).__name__}; it must be a sequence of payloads, as a list")


def checked_terms(
    config: QueueConfig,
    *,
    delay: timedelta | float | None,
    at: datetime | None,
    with_dedup: bool,
    dedup_for: timedelta | None,
    on_duplicate: str,
) -> Terms:
    """The terms that a publisher gave. Raises `InvalidRequest`."""
    due = checked_due(config, delay, at)
    if not with_dedup:
        return Terms(due)
    if due is not None:
        raise InvalidRequest("dedup with delay or at: a delayed message is one for its message_id; give that")
    checked_choice("on_duplicate", on_duplicate, ON_DUPLICATE)
    return Terms(None, checked_span(dedup_for, config.message_expiry))


def with_dedups(messages: Sequence[Prepared], dedups: Sequence[str]) -> list[Prepared]:
    """The messages with their dedup keys, one for each. Raises `InvalidRequest`."""
    checked_each("dedups", dedups, len(messages), "payloads")
    return [message._replace(dedup=checked_key(key)) for message, key in zip(messages, dedups, strict=True)]


def store_messages(queue: Publishable, messages: Sequence[Prepared], terms: Terms) -> list[Outcome]:
    """Store the messages; the outcome of each, in order. Two calls per 1,000 messages; five with dedup keys.

    Raises `Refused` where the queue is known to be deactivated; then nothing was stored.
    """
    queue.open_for_publishing()
    if terms.due is not None:
        return _store_for_later(queue, messages, terms.due)
    if terms.remembered is not None:
        wanted = [Wanted(one.dedup, one.envelope, one.shard, one.bound) for one in messages]
        return publish_unless_there(queue, wanted, terms.remembered)
    return _store_now(queue, messages)


def _store_now(queue: Publishable, messages: Sequence[Prepared]) -> list[Outcome]:
    envelopes = [message.envelope for message in messages]
    bound = {place for place, message in enumerate(messages) if message.bound}
    places = load(queue.pointers, envelopes, [message.shard for message in messages], bound=bound)
    queue.active.loaded({place.shard for place in places if isinstance(place, Slot)})
    outcomes = [
        envelope.msg_id if isinstance(place, Slot) else place for envelope, place in zip(envelopes, places, strict=True)
    ]
    failed = sum(isinstance(outcome, LatchworkError) for outcome in outcomes)
    for outcome, n in (("published", len(outcomes) - failed), ("failed", failed)):
        if n:
            queue.store.seams.note("published", n, queue=queue.name, outcome=outcome)
    return outcomes


def _store_for_later(queue: Publishable, messages: Sequence[Prepared], due: Due) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for begin in range(0, len(messages), CHUNK):
        part = messages[begin : begin + CHUNK]
        envelopes = [message.envelope for message in part]
        failures = queue.delayed.publish(envelopes, [one.shard if one.bound else None for one in part], due)
        outcomes += [failure or one.msg_id for one, failure in zip(envelopes, failures, strict=True)]
    return outcomes


def ids_or_raise(
    queue: Publishable, messages: Sequence[Prepared], outcomes: Sequence[Outcome], on_duplicate: str
) -> list[str]:
    """The ids of messages that are all safe.

    Raises the first error, whose `details["published"]` has the ids of those that are; `AlreadyExists` where
    `on_duplicate` is "raise" and a dedup key had a message.
    """
    failures = [outcome for outcome in outcomes if isinstance(outcome, LatchworkError)]
    ids = [outcome for outcome in outcomes if isinstance(outcome, str)]
    if failures:
        failures[0].details["published"] = ids
        raise failures[0]
    if on_duplicate == "raise":
        duplicates = [id for id, message in zip(ids, messages, strict=True) if id != message.envelope.msg_id]
        if duplicates:
            raise AlreadyExists(
                f"{len(duplicates)} of {len(ids)} messages are in queue {shown(queue.name)} already, by their dedup "
                "keys; the others were published",
                message_id=duplicates[0], message_ids=duplicates,
            )  # fmt: skip
    return ids
