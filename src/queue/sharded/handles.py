"""A registry and a queue as the files below theirs need them, which cannot import them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from ...coord.effects.marks import Applied, Effect
from ...store import RecordStore, Update
from ...store.rows import Rows
from .active import ActiveShards
from .config import QueueConfig
from .delayed.conditional import ConditionalMessages
from .envelope import Codec
from .record import QueueRecords
from .shards import Shards
from .slots import Stamped
from .unique_keys import UniqueKeys


class RegistryHandle(Protocol):
    """The registry that made a queue or a group: a `QueueRegistry`."""

    store: RecordStore
    client_id: str
    farm_id: str
    idle_look: float
    records: QueueRecords
    next_refresh: float

    def refresh_if_due(self) -> None: ...
    def get(self, name: str) -> Any: ...
    def publishable(self, name: str) -> Any: ...
    def set_concurrency(self, queue: Any, n: int, by: str | None = None) -> None: ...
    def resume(self, queue: Any, by: str | None = None) -> None: ...
    def make_group(self, queue: Any, name: str, start: str | datetime, settings: Mapping[str, Any]) -> Any: ...
    def groups_of(self, queue: Any) -> list[Any]: ...
    def made_again(self, group: Any) -> Any: ...
    def forget(self, group: Any) -> None: ...


class SubscriptionHandle(Protocol):
    """A queue, or a group of one: a `Subscription`."""

    registry: RegistryHandle
    config: QueueConfig
    codec: Codec
    pointers: Shards
    active: ActiveShards

    @property
    def name(self) -> str: ...
    @property
    def reader(self) -> str: ...
    @property
    def store(self) -> RecordStore: ...
    @property
    def delayed(self) -> ConditionalMessages: ...
    @property
    def sideline(self) -> Any: ...
    @property
    def parked(self) -> Any: ...
    def with_message(self, update: Update, effect: Effect, publish: Any) -> Callable[[], Applied]: ...
    def settle_in(self, part: Shards, held: Sequence[Stamped]) -> tuple[Rows[bool], Callable[[], None]]: ...
    def open_for_publishing(self) -> None: ...
    def shard_of(self, key: str) -> int: ...
    def workers(self) -> list[Any]: ...


class QueueHandle(SubscriptionHandle, Protocol):
    """A queue that is published to: a `ShardedQueue`."""

    unique_keys: UniqueKeys

    def turns(self, n: int) -> int: ...
    def status(self, message_id: str) -> Any: ...
