"""The end of a batch: the process that finds that it is done publishes its follow-up (docs/protocols P18).

That is the one that acknowledges the last message, or closes the batch later; else the leader, within seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from ....errors import Corrupt, LatchworkError
from ....logs import Log
from ..envelope import Envelope
from ..ledger.dedup import KeyedMessage, publish_unless_there
from ..ledger.target import HasRecords, LedgerTarget
from .blocks import parts_of
from .records import BatchRecords, BatchState, Tally, names_in

log = Log(__name__)

SCOPE = "batch"


class Finds(HasRecords, Protocol):
    """The registry that finds the queue of a follow-up: `QueueRegistry` is one."""

    def get(self, name: str) -> LedgerTarget: ...


class Home(Protocol):
    """The queue that a batch belongs to: `ShardedQueue` is one."""

    batches: BatchRecords

    @property
    def name(self) -> str: ...
    @property
    def registry(self) -> Finds: ...


def end_done(queue: Home, batches: Collection[str]) -> None:
    """End the batches that are done, of these; each is named by its id.

    One call for each, one more if it is closed, and seven more if it is done. Raises no error of the store: the leader
    ends the batches that could not be ended here.
    """
    for batch in batches:
        try:
            _end_if_done(queue, *parts_of(batch))
        except LatchworkError as failure:
            log.info("batch %s is ended by the upkeep, a little later: %s", batch, failure)


def _end_if_done(queue: Home, of: str, name: str, tag: str) -> None:
    """End the batch with this tag, if it belongs to the queue and is done."""
    if of != queue.name:
        return
    records = queue.batches
    index, record = records.store.get_many([records.index, records.key(name)])
    if record is None or record.bins.get("tag") != tag:
        return
    state = records.state(name, record.bins)
    if state.ended or not Tally(records).is_done(state):
        return
    end(queue, state, names_in(index.bins if index else {}).get(name, 0))


def end(queue: Home, state: BatchState, since: int) -> None:
    """Publish the follow-up of a batch that is done, and note that it has ended. Seven calls, or one if it has ended.

    since: when the batch was listed, as read before.

    Raises the store's errors. Any number of processes may call it, again and again.
    """
    if state.then is not None and not state.ended:
        follow(queue, state, state.then)
    queue.batches.end(state, since)


def follow(queue: Home, state: BatchState, then: Mapping[str, Any]) -> None:
    """Publish the follow-up of a batch. It is published once, however many processes call this. Five calls, or one."""
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
    wanted = KeyedMessage(f"{quote(state.name, safe='')}/{state.tag}", envelope, shard, bound)
    publish_unless_there(target, [wanted], 2 * state.life, scope=scope).raise_unless()
