"""The end of a batch: the process that finds that it is done publishes its follow-up (docs/protocols P18).

That is the one that acknowledges the last message, or closes the batch later; else the leader, within seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from ....errors import Corrupt, LatchworkError
from ....logs import Log
from ..batches.blocks import parts_of
from ..batches.records import BatchRecords, BatchState, Tally, names_in
from ..envelope import Envelope
from ..handles import QueueHandle
from ..ledger.dedup import KeyedMessage, publish_unless_there

log = Log(__name__)

SCOPE = "batch"


class Home(QueueHandle, Protocol):
    """The queue that batches belong to."""

    batches: BatchRecords


def end_done(queue: Home, batches: Collection[str]) -> None:
    """End the batches that are done, of these; each is named by its id.

    One call for each, one more if it is closed, and eight more if it is done. Raises no error of the store: the leader
    ends the batches that could not be ended here.
    """
    records = queue.batches
    for batch in batches:
        of, name, tag = parts_of(batch)
        if of != queue.name:
            continue
        try:
            index, record = records.store.get_many([records.index, records.key(name)])
            if record is None or record.bins.get("tag") != tag:
                continue
            state = records.state(name, record.bins)
            if not state.ended and Tally(records).is_done(state):
                end(queue, state, names_in(index.bins if index else {}).get(name, 0))
        except LatchworkError as failure:
            log.info("batch %s is ended by the upkeep, a little later: %s", batch, failure)


def end(queue: Home, state: BatchState, since: int) -> None:
    """Publish the follow-up of a batch that is done, and note that it has ended. Eight calls, or two if it has ended.

    Nothing is published of one that was cancelled.

    since: when the batch was listed, as read before.

    Raises the store's errors. Any number of processes may call it, again and again.
    """
    if state.then is not None and not state.ended:
        if not queue.batches.may_follow(state):
            return
        follow(queue, state, state.then)
    queue.batches.end(state, since)


def tell_parked(queue: Home, state: BatchState) -> None:
    """Publish, once, that a message of a batch is parked, and note that. Six calls."""
    if state.on_parked is not None:
        follow(queue, state, state.on_parked, why="/parked")
        queue.batches.note_told(state)


def follow(queue: Home, state: BatchState, then: Mapping[str, Any], *, why: str = "") -> None:
    """Publish a follow-up of a batch. It is published once, however many processes call this. Five calls, or one.

    why: the name of the follow-up, of one that does not come at the end.
    """
    name, data, key, headers = (then.get(part) for part in ("queue", "data", "key", "headers"))
    if not isinstance(name, str) or data is None:
        raise Corrupt(f"the follow-up of batch {state.name!r} of {queue.name} cannot be read: publish it yourself")
    target = queue.registry.get(name)
    target.open_for_publishing()
    pointers = target.pointers
    envelope = Envelope(data, target.store.seams.unique(), enqueued_at=pointers.now_ms(), headers=headers)
    bound = isinstance(key, str)
    shard = target.shard_of(key) if isinstance(key, str) else pointers.home(sum(state.tag.encode()))
    scope = f"{SCOPE}/{quote(queue.name, safe='')}"
    wanted = KeyedMessage(f"{quote(state.name, safe='')}/{state.tag}{why}", envelope, shard, bound)
    publish_unless_there(target, [wanted], 2 * state.life, scope=scope).raise_unless()
