"""A stream's offset, as Spark keeps it in the checkpoint: how far each shard has been read, and of which queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InvalidRequest
from ..plain import shown
from ..queue.sharded.pointers import ShardState
from ..queue.sharded.queue import ShardedQueue
from .options import Options

VERSION = 1


class Offsets:
    """Makes and reads the offsets of one stream. The store's URL is in them only where it holds no password.

    created: when the queue was, by its record. It tells it from one of the same name in another store, or in this one
    after a loss of records: there the pointers of a checkpoint mean messages that nobody has read.
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
        """The offset for the last pointer read of each shard."""
        return self._names | {"shards": {str(shard): pointer for shard, pointer in enumerate(pointers)}}

    def read(self, offset: dict[str, Any], states: Sequence[ShardState]) -> list[int]:
        """The last pointer read of each shard. Raises `InvalidRequest` for the checkpoint of another queue."""
        for name in ("queue", "clientId", "streamId"):
            if offset.get(name) != self._names[name]:
                raise InvalidRequest(
                    f"the checkpoint is of {name} {shown(offset.get(name))}, and the option says "
                    f"{shown(self._names[name])}: use another checkpointLocation"
                )
        return pointers_of(offset, self._created, states)


def created(queue: ShardedQueue) -> int:
    """When the queue was created, in ms by the server; 0 where its record does not say. One read."""
    at: int = queue.registry.records.read(queue.name, "createdAt").get("createdAt", 0)
    return at


def pointers_of(offset: dict[str, Any], created: int, states: Sequence[ShardState]) -> list[int]:
    """The last pointer read of each shard. Raises `InvalidRequest` where the queue in the store is not that one."""
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
