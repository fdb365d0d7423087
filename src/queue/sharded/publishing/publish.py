"""Storing messages that are published: for now, for later, or only if their key has no message yet (P5, P15, P16).

A message is prepared first (`prepared.py`). Then it is stored, alone or with others that are published on equal terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from ....errors import AlreadyExists, InvalidRequest, LatchworkError
from ....inputs import checked_choice, checked_each
from ....plain import shown
from ....store.rows import Rows, attempted, chunked
from ..at_once import publish_all_at_once, publish_at_once
from ..config import QueueConfig
from ..delayed.entries import Due, checked_due
from ..envelope import Envelope, check_fits, checked_headers
from ..handles import QueueHandle
from ..ledger.dedup import ON_DUPLICATE, KeyedMessage, checked_key, checked_span, publish_unless_there
from ..shards import CHUNK
from ..slots import Slot
from ..transfer import load
from .prepared import IdIs, Prepared, checked_payloads, prepared

SPREAD = 100
"""Messages of one `publish_many` that go to one shard, so that consumers find them in batches."""
Outcome: TypeAlias = str | LatchworkError
"""The id of a message that is safe, or why it is not."""


class Terms(NamedTuple):
    """The settings of messages that are stored together.

    due: when they are delivered, None = at once.
    remembered: seconds for which their dedup keys are kept, None = no keys.
    """

    due: Due | None = None
    remembered: int | None = None


NOW = Terms()


Storing: TypeAlias = Callable[["QueueHandle", Sequence[Prepared], Terms], Sequence[Outcome]]
"""A function that stores prepared messages, and returns the outcome of each."""


def publish(
    queue: QueueHandle,
    payloads: Sequence[Any],
    *,
    key: str | None,
    keys: Sequence[str | None] | None,
    headers: Mapping[str, str] | None,
    message_ids: Sequence[str] | None,
    delay: timedelta | float | None,
    at: datetime | None,
    dedups: Sequence[str] | None,
    dedup_for: timedelta | float | None,
    on_duplicate: str,
    store: Storing | None = None,
) -> list[str]:
    """Check, prepare and store messages, as `publish_many` of a queue and of its batches; return their ids, once safe.

    store: what stores the messages, None = `store_messages`.
    """
    # 1. Check all that is given, before any I/O.
    if type(payloads) is not list:  # as nearly always, and the check is slow
        checked_payloads(payloads)
    terms = checked_terms(
        queue.config, delay=delay, at=at, with_dedup=dedups is not None, dedup_for=dedup_for, on_duplicate=on_duplicate
    )
    common = None if headers is None else checked_headers(headers)
    # 2. Make the messages, each for its shard, and store them.
    name = queue.config.name
    with queue.store.seams.span("publish", [common] if common else [], queue=name, messages=len(payloads)):
        plain = terms is NOW and store is None and common is None and keys is None and message_ids is None
        if plain and len(payloads) == 1 and queue.store.steps is not None:
            one = _published(queue, next(iter(payloads)), key)
            if isinstance(one, str):
                return [one]
            messages = [one]
        else:
            messages = prepared(
                queue, payloads, key=key, keys=keys, headers=common, message_ids=message_ids, id_is=IdIs.OURS
            )
        if dedups is not None:
            messages = with_dedups(messages, dedups)
        outcomes = (store or store_messages)(queue, messages, terms)
    return ids_or_raise(queue, messages, outcomes, on_duplicate)


def _published(queue: QueueHandle, payload: Any, key: str | None) -> str | Prepared:
    """Publish a message that has nothing but what every message has, in one step; return its id. Where that was not
    done, return the message, which is then stored as any other.
    """
    store, pointers, name = queue.store, queue.pointers, queue.config.name
    seams, now, carried = store.seams, pointers.now_ms(), store.seams.carry(None)
    unique, data, shard = seams.unique(), queue.codec.encode(payload), None if key is None else queue.shard_of(key)
    check_fits(store, name, (data,), carried)
    one = Prepared(Envelope(data, unique, enqueued_at=now, headers=carried), shard, id_is=IdIs.OURS)
    if carried:
        return one
    queue.open_for_publishing()
    wanted = queue.turns(1) % queue.config.shards if shard is None else shard
    ids = publish_at_once(pointers, wanted, [one.envelope])
    if ids is None:
        if shard is None:
            queue.turns(-1)
        return one
    queue.active.loaded((wanted,))
    seams.note("published", 1, queue=name, outcome="published")
    return ids[0]


def checked_terms(
    config: QueueConfig,
    *,
    delay: timedelta | float | None,
    at: datetime | None,
    with_dedup: bool,
    dedup_for: timedelta | float | None,
    on_duplicate: str,
) -> Terms:
    """Return the terms that a publisher gave. Raises `InvalidRequest`."""
    given = with_dedup or not (delay is None and at is None and dedup_for is None)
    if not given and isinstance(on_duplicate, str) and on_duplicate == "keep":
        return NOW  # as nearly always
    due = None if delay is None and at is None else checked_due(config, delay, at)
    if isinstance(on_duplicate, str) and on_duplicate == "replace":
        raise InvalidRequest(
            "on_duplicate is 'replace' without unique: only `publish` with unique= replaces a message; else use 'keep' "
            "or 'raise'"
        )
    checked_choice("on_duplicate", on_duplicate, ON_DUPLICATE)
    remembered = checked_span(dedup_for, config.message_expiry)
    if dedup_for is not None and not with_dedup:
        raise InvalidRequest("dedup_for without dedup: there is no key to be remembered; give the key, or leave it out")
    if not with_dedup:
        return NOW if due is None else Terms(due)
    if due is not None:
        raise InvalidRequest(
            "dedup with delay or at: a delayed message takes no dedup key; give it a message_id, which only "
            "one delayed message can have"
        )
    return Terms(None, remembered)


def _shards_for(queue: QueueHandle, bound: Sequence[int | None]) -> list[int]:
    """Return the shards of messages that are stored together: few where none is given, as each costs a row."""
    start, shards = queue.turns(1 + len(bound) // SPREAD), queue.config.shards
    return [(start + n // SPREAD) % shards if shard is None else shard for n, shard in enumerate(bound)]


def with_dedups(messages: Sequence[Prepared], dedups: Sequence[str]) -> list[Prepared]:
    """Return the messages with their dedup keys, one for each. Raises `InvalidRequest`."""
    checked_each("dedups", dedups, len(messages))
    return [replace(message, dedup=checked_key(key)) for message, key in zip(messages, dedups, strict=True)]


def store_messages(queue: QueueHandle, messages: Sequence[Prepared], terms: Terms) -> Rows[str]:
    """Store the messages; the outcome of each, in order. Two calls per 1,000 messages; five with dedup keys.

    Raises `Refused` where the queue is known to be deactivated; then nothing was stored.
    """
    queue.open_for_publishing()
    if terms.due is not None:
        return _store_for_later(queue, messages, terms.due)
    if terms.remembered is not None:
        return publish_unless_there(queue, wanted_of(queue, messages), terms.remembered)
    envelopes, keyed = [message.envelope for message in messages], [message.shard for message in messages]
    wanted = _shards_for(queue, keyed)
    if all(one.id_is is IdIs.OURS and one.envelope.bare for one in messages):
        ids = publish_all_at_once(queue.pointers, envelopes, wanted)
        if ids is not None:
            queue.active.loaded(set(wanted))
            note_published(queue, len(ids))
            return Rows(ids)
    bound = {place for place, shard in enumerate(keyed) if shard is not None}
    names, given = ({n for n, one in enumerate(messages) if one.id_is is kind} for kind in (IdIs.OURS, IdIs.GIVEN))
    places = load(queue.pointers, envelopes, wanted, bound=bound, names=names, given=given)
    shards = [place.shard for place in places if isinstance(place, Slot)]
    queue.active.loaded(set(shards))
    note_published(queue, len(shards), len(places) - len(shards))
    if len(shards) == len(places):  # as nearly always
        return Rows([envelope.msg_id for envelope in envelopes])
    return places.then(lambda there: [envelopes[n].msg_id for n in there])


def wanted_of(queue: QueueHandle, messages: Sequence[Prepared]) -> list[KeyedMessage]:
    """Return the messages, which have dedup keys, as a ledger takes them."""
    shards = _shards_for(queue, [message.shard for message in messages])
    return [
        KeyedMessage(one.dedup, one.envelope, shard, one.shard is not None)
        for one, shard in zip(messages, shards, strict=True)
    ]


def _store_for_later(queue: QueueHandle, messages: Sequence[Prepared], due: Due) -> Rows[str]:
    outcomes: Rows[str] = Rows()
    for part in chunked(messages, CHUNK):
        envelopes, shards = [message.envelope for message in part], [message.shard for message in part]
        given = any(one.id_is is IdIs.GIVEN for one in part)
        rows = attempted(len(part), partial(queue.delayed.publish, envelopes, shards, due, given=given))
        failed = sum(not isinstance(one, AlreadyExists) for one in rows.errors())
        note_published(queue, sum(isinstance(row, str) for row in rows), failed)
        outcomes += rows.recover(AlreadyExists, partial(_there_already, queue, envelopes))
    return outcomes


def note_published(queue: QueueHandle, stored: int, failed: int = 0) -> None:
    """Record how many messages were published, and how many could not be, as metrics."""
    for outcome, n in (("published", stored), ("failed", failed)):
        if n:
            queue.store.seams.note("published", n, queue=queue.config.name, outcome=outcome)


def _there_already(
    queue: QueueHandle, envelopes: Sequence[Envelope], places: Mapping[int, LatchworkError]
) -> list[str | LatchworkError]:
    """Return why these messages are not stored: others with their ids wait, which is made sure of first.

    Who stored those may have got an error, and publishes them again.
    """
    entered = queue.delayed.enter_found([envelopes[n].msg_id for n in places])
    return [row if isinstance(row, LatchworkError) else places[n] for n, row in zip(places, entered, strict=True)]


def ids_or_raise(
    queue: QueueHandle, messages: Sequence[Prepared], outcomes: Sequence[Outcome], on_duplicate: str
) -> list[str]:
    """Return the ids of the messages if all are safe.

    Raises the first error, whose `details["published"]` has the ids of the messages that are safe, and
    `details["not_published"]` the code of the error of each other one, by its place; `AlreadyExists` if `on_duplicate`
    is "raise" and a dedup key had a message.
    """
    ids = [outcome for outcome in outcomes if isinstance(outcome, str)]
    for failure in Rows(outcomes).errors():
        failure.details["published"] = ids
        failure.details["not_published"] = {n: row.code for n, row in enumerate(outcomes) if not isinstance(row, str)}
        raise failure
    if on_duplicate == "raise":
        pairs = zip(ids, messages, strict=True)  # without a key, an id may differ as it names the message's slot
        duplicates = [id for id, message in pairs if message.dedup and id != message.envelope.msg_id]
        if duplicates:
            raise AlreadyExists(
                f"{len(duplicates)} of {len(ids)} messages are in queue {shown(queue.name)} already, by their dedup "
                "keys; the others were published",
                message_id=duplicates[0], message_ids=duplicates,
            )  # fmt: skip
    return ids
