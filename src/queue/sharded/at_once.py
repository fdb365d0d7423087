"""Publishing and receiving in one step each, on a store that has such steps (docs/protocols/port.md).

What a step does not do, since a shard or a message has more than nearly all have, the queue does call by call, here as
on every other store. So each function says whether it has done it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import Corrupt, InvalidRequest
from ...store.model.messages import Fresh
from .envelope import Envelope, from_all
from .shards import CHUNK, Shards
from .slots import Claim, Slot, StampMiss


def publish_at_once(queue: Shards, shard: int, messages: Sequence[Envelope]) -> list[str] | None:
    """Store bare messages in a shard; return their ids, which name their slots (P26). None = it was not done.

    Raises `Unavailable`, `OutcomeUnknown` and the store's other errors.
    """
    steps, store = queue.store.steps, queue.store
    if steps is None or queue.bell.is_needed or len(messages) > CHUNK:
        return None
    part = queue.at(shard), [Fresh(one.data, one.msg_id, one.enqueued_at) for one in messages]
    try:
        ids = store.policy.run(store.seams, steps.append, [part], queue.id_at, messages[0].enqueued_at, queue.ttl)
    except (Corrupt, InvalidRequest):
        return None
    return None if ids is None else ids[0]


def publish_all_at_once(queue: Shards, messages: Sequence[Envelope], shards: Sequence[int]) -> list[str] | None:
    """Store bare messages, each in its shard, all of them or none; else as `publish_at_once`."""
    if not messages or len(set(shards)) == 1:
        return publish_at_once(queue, shards[0], messages) if messages else None
    steps, store = queue.store.steps, queue.store
    if steps is None or queue.bell.is_needed or len(messages) > CHUNK:
        return None
    by_shard: dict[int, list[Fresh]] = {}
    for one, shard in zip(messages, shards, strict=True):
        by_shard.setdefault(shard, []).append(Fresh(one.data, one.msg_id, one.enqueued_at))
    parts = [(queue.at(shard), some) for shard, some in by_shard.items()]
    try:
        ids = store.policy.run(store.seams, steps.append, parts, queue.id_at, queue.now_ms(), queue.ttl)
    except (Corrupt, InvalidRequest):
        return None
    if ids is None:
        return None
    following = {shard: iter(some) for shard, some in zip(by_shard, ids, strict=True)}
    return [next(following[shard]) for shard in shards]


def takes_at_once(queue: Shards) -> bool:
    """Whether `take_at_once` claims and stamps nearly all messages of this queue. No call."""
    return queue.store.steps is not None and type(queue) is Shards


def take_at_once(
    queue: Shards, shard: int, n: int, me: str
) -> tuple[Claim | None, dict[Slot, Envelope | StampMiss]] | None:
    """Claim up to `n` slots of a shard, and stamp the messages there: the claim, None if there was nothing to claim;
    and what is in each slot. None = it was not done.

    Raises `Unavailable`, `OutcomeUnknown` and the store's other errors.
    """
    steps = queue.store.steps
    if steps is None or not takes_at_once(queue):
        return None
    try:
        took = queue.store.policy.run(queue.store.seams, steps.take, queue.at(shard), n, me, queue.now_ms())
    except Corrupt:
        return None
    if took is None:
        return None
    if not took.found:
        return None, {}
    messages = iter(from_all([bins or {} for bins in took.found]))
    found = [
        StampMiss.ABSENT if bins is None else message or StampMiss.TAKEN
        for bins, message in zip(took.found, messages, strict=True)
    ]
    slots = (Slot(shard, pointer) for pointer in range(took.after + 1, took.last + 1))
    return Claim(took.after, took.last, took.loaded), dict(zip(slots, found, strict=True))
