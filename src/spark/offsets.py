"""A stream's offset, as Spark keeps it in the checkpoint: how far each shard has been read, and of which queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InvalidRequest
from ..plain import shown
from ..queue.sharded.pointers import ShardPointers
from ..queue.sharded.subscription import Subscription
from .options import Options

VERSION = 1


class Offsets:
    """The maker and reader of the offsets of one stream. They contain the store's URL only if it has no password.

    created: when the queue was created, by its record. It distinguishes the queue from one of that name in another
        store, or in this one after a loss of records: there the pointers of a checkpoint would mean messages that were
        never read.
    """

    def __init__(self, options: Options, created: int) -> None:
        store = "" if "@" in options.store else options.store
        self._created = created
        self._names = {
            "v": VERSION,
            "store": store,
            "clientId": options.client_id,
            "farmId": options.farm_id,
            "queue": options.queue,
            "streamId": options.stream_id or "",
            "createdAt": created,
        }

    def made(self, pointers: Sequence[int]) -> dict[str, Any]:
        """Return the offset for the last pointer read of each shard."""
        return self._names | {"shards": {str(shard): pointer for shard, pointer in enumerate(pointers)}}

    def read(self, offset: dict[str, Any], states: Sequence[ShardPointers]) -> list[int]:
        """Return the last pointer read of each shard. Raises `InvalidRequest` for the checkpoint of another queue."""
        for name in ("queue", "clientId", "streamId"):
            if offset.get(name) != self._names[name]:
                raise InvalidRequest(
                    f"the checkpoint is of {name} {shown(offset.get(name))}, and the option says "
                    f"{shown(self._names[name])}: use another checkpointLocation"
                )
        return pointers_of(offset, self._created, states)


def created(queue: Subscription) -> int:
    """Return when the queue was created, in ms by the server; 0 if its record does not say. One read."""
    at: int = queue.registry.records.read(queue.name, "createdAt").get("createdAt", 0)
    return at


def pointers_of(offset: dict[str, Any], created: int, states: Sequence[ShardPointers]) -> list[int]:
    """Return the last pointer read of each shard. Raises `InvalidRequest` if the queue in the store is not
    that one.
    """
    pointers = [offset["shards"].get(str(shard)) for shard in range(len(offset["shards"]))]
    ahead = [state.shard for state, read in zip(states, pointers, strict=False) if read is None or read > state.loaded]
    if offset.get("createdAt", created) != created or len(pointers) != len(states) or ahead:
        raise InvalidRequest(
            f"the checkpoint is of another queue {shown(offset['queue'])}: of another store, or of one that has lost "
            "its records since, or was restored; use another checkpointLocation, which begins at what is not "
            "acknowledged",
            shards=ahead,
        )
    return pointers
