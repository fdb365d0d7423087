"""The options of the data source "latchwork", checked before anything is planned (docs/design.md section 4)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import quote

from ..errors import InvalidRequest
from ..inputs import farm_or_default, whole_of
from ..plain import shown
from ..queue.sharded.config import OF
from ..queue.sharded.registry import AnyQueue, QueueRegistry
from ..queue.sharded.stream import MAX_STREAM
from ..store.connect import VARIABLE, connect

NAMES = (
    "store", "queue", "group", "clientId", "farmId", "jobId", "streamId", "payloadSchema", "columns", "shards",
    "maxMessagesPerBatch", "maxBytesPerBatch", "minMessagesPerBatch", "maxTriggerDelay", "publishBatch",
)  # fmt: skip
SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
MAX_JOB = 500
"""Bytes of a job's name as it is in keys."""
DELAY, MAX_DELAY = 900.0, 86_400.0
"""Seconds."""
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
COLUMNS = ("shard", "pointer", "message_id", "payload", "headers", "attempts", "enqueued_at")


@dataclass(frozen=True, slots=True)
class Options:
    """The options that the user has set; None or 0 for others."""

    store: str = field(repr=False)  # it may hold a password
    queue: str  # of a group as `QueueGroup.name` says it
    client_id: str
    farm_id: str
    job_id: str | None
    stream_id: str | None
    payload_schema: str | None
    columns: tuple[str, ...]
    max_messages: int
    max_bytes: int
    min_messages: int
    max_delay: float
    publish_batch: int
    group: str | None = None
    shards: tuple[int, ...] | None = None  # None = all

    def open(self) -> AnyQueue:
        """Return the queue, whose record lives on by that while it is active. One read, seldom a write; raises
        `NotFound`.
        """
        return QueueRegistry(connect(self.store), self.client_id, farm_id=self.farm_id).get(self.queue)


def parse(given: Mapping[str, str]) -> Options:
    """Return the options, once all of them are known and well formed. No I/O. Raises `InvalidRequest`."""
    known = {name.lower(): name for name in NAMES}
    unknown = sorted(name for name in given if name.lower() not in known and name.lower() not in SPARKS_OWN)
    if unknown:
        raise InvalidRequest(f"the data source 'latchwork' has no option {', '.join(unknown)}; use {', '.join(NAMES)}")
    values = {known[name.lower()]: value for name, value in given.items() if name.lower() in known}
    max_messages = _number("maxMessagesPerBatch", values, 1, 2**53)
    min_messages = _number("minMessagesPerBatch", values, 1, 2**53)
    if max_messages and min_messages > max_messages:
        raise InvalidRequest(
            f"the option 'minMessagesPerBatch' is {min_messages}, more than 'maxMessagesPerBatch', {max_messages}: no "
            "batch could have as many; raise 'maxMessagesPerBatch' or lower 'minMessagesPerBatch'"
        )
    return Options(
        store=_reachable(values.get("store") or os.environ.get(VARIABLE)),
        queue=_queue(values),
        client_id=values.get("clientId") or _needed("clientId", "the client that the queue belongs to"),
        farm_id=farm_or_default(values.get("farmId")),  # here, as executors may have another environment
        job_id=_short(
            "jobId", values.get("jobId"), MAX_JOB, "bytes, percent-encoded", lambda text: len(quote(text, safe=""))
        ),
        stream_id=_short("streamId", values.get("streamId"), MAX_STREAM, "characters", len),
        payload_schema=values.get("payloadSchema"),
        columns=_columns(values.get("columns")),
        max_messages=max_messages,
        max_bytes=_number("maxBytesPerBatch", values, 1, 2**53),
        min_messages=min_messages,
        max_delay=_delay(values),
        publish_batch=_number("publishBatch", values, 1, 1000),
        group=values.get("group"),
        shards=_shards(values.get("shards")),
    )


def _queue(values: Mapping[str, str]) -> str:
    """Return the name of the queue, or of its group, that is read or written."""
    queue = values.get("queue") or _needed("queue", "the queue's name")
    if "group" not in values:
        return queue
    if OF in queue:
        raise InvalidRequest(f"the option 'queue' is {shown(queue)}, a group, and 'group' is given too: name the queue")
    return f"{queue}{OF}{values['group']}"


def _reachable(store: str | None) -> str:
    """Return the store's URL. Raises `InvalidRequest` if no other process can reach the store."""
    if not store:
        _needed("store", f"a URL; or set ${VARIABLE}")
    if store.startswith("memory:"):
        raise InvalidRequest("a store in memory: no worker of Spark can reach it; use sqlite: or aerospike:")
    return store


def _needed(name: str, meaning: str) -> NoReturn:
    raise InvalidRequest(f"the option {shown(name)} of the data source 'latchwork' is missing: {meaning}")


def _short(name: str, text: str | None, most: int, unit: str, size: Callable[[str], int]) -> str | None:
    """Return the option's text, which becomes part of a key or of a record."""
    if text is not None and size(text) > most:
        raise InvalidRequest(
            f"the option {shown(name)} has {size(text)} {unit}; it must have at most {most}: shorten it"
        )
    return text


def _columns(given: str | None) -> tuple[str, ...]:
    if given is None:
        return COLUMNS
    columns = tuple(name.strip() for name in given.split(","))
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or len(set(columns)) != len(columns):
        raise InvalidRequest(f"the option 'columns' is {shown(given)}; use some of {', '.join(COLUMNS)}, each once")
    return columns


def _shards(given: str | None) -> tuple[int, ...] | None:
    if given is None:
        return None
    numbers = [whole_of(name.strip()) for name in given.split(",")]
    shards = {number for number in numbers if number is not None}
    if len(shards) != len(numbers):
        raise InvalidRequest(f"the option 'shards' is {shown(given)}; give the numbers of shards, as in 0,3, each once")
    return tuple(sorted(shards))


def _delay(values: Mapping[str, str]) -> float:
    """Return the seconds for which messages wait until there are more."""
    text = values.get("maxTriggerDelay")
    if text is None:
        return DELAY
    if "minMessagesPerBatch" not in values:
        raise InvalidRequest(
            "the option 'maxTriggerDelay' says how long messages wait for 'minMessagesPerBatch' of them: give that too"
        )
    found = re.fullmatch(r"([0-9]{1,9})\s*(ms|s|m|h)", text.strip())
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= MAX_DELAY:
        raise InvalidRequest(
            f"the option 'maxTriggerDelay' is {shown(text)}; it must be a number with its unit, ms, s, m or h, of more "
            "than nothing and at most 24h, such as 30s"
        )
    return seconds


def _number(name: str, values: Mapping[str, str], low: int, high: int) -> int:
    """Return the option's value, 0 if it is not set."""
    if name not in values:
        return 0
    text = values[name]
    number = whole_of(text)
    if number is None or not low <= number <= high:
        raise InvalidRequest(
            f"the option {shown(name)} is {shown(text)}; it must be a whole number from {low} to {high}"
        )
    return number
