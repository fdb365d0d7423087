"""A stream's offset, as Spark keeps it in the checkpoint: how far each shard has been read, and of which queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InvalidRequest
from .options import Options

VERSION = 1


class Offsets:
    """Makes and reads the offsets of one stream. The store's URL is in them only where it holds no password."""

    def __init__(self, options: Options) -> None:
        store = "" if "@" in options.store else options.store
        self._names = {
            "v": VERSION,
            "store": store,
            "clientId": options.client_id,
            "farmId": options.farm_id or "",
            "queue": options.queue,
            "streamId": options.stream_id or "",
        }

    def made(self, pointers: Sequence[int]) -> dict[str, Any]:
        """The offset for the last pointer read of each shard."""
        return self._names | {"shards": {str(shard): pointer for shard, pointer in enumerate(pointers)}}

    def read(self, offset: dict[str, Any]) -> list[int]:
        """The last pointer read of each shard. Raises `InvalidRequest` for the checkpoint of another queue."""
        for name in ("queue", "clientId", "streamId"):
            if offset.get(name) != self._names[name]:
                raise InvalidRequest(
                    f"the checkpoint is of {name} {offset.get(name)!r}, and the option says {self._names[name]!r}: use "
                    "another checkpointLocation"
                )
        return pointers_of(offset)


def pointers_of(offset: dict[str, Any]) -> list[int]:
    """The last pointer read of each shard."""
    return [offset["shards"][str(shard)] for shard in range(len(offset["shards"]))]
