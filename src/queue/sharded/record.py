"""The record of a queue: its settings, its sweep pointers, and what the last sweeps came to (docs/design.md 4)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from operator import index
from typing import Any

from ...errors import AlreadyExists, InvalidRequest, LatchworkError, NotFound, Unreadable
from ...retry import Poll
from ...store import Exists, Key, MapPut, Put, Record, RecordStore, Touch
from ...store.model.expr import SERVER_NOW
from ...store.model.ops import Op
from .config import BatchingConfig, GroupConfig, QueueConfig, ShovelConfig, default_timeout, milliseconds, whole_seconds

log = logging.getLogger(__name__)

VERSION = 1
TTL_FACTOR = 2
"""A queue's record lives twice the queue's expiry from its last write."""
RENEWED = 0.9
"""What is left of that time at the most where a process that asks for the queue renews it."""


@dataclass(frozen=True, slots=True)
class Live:
    """The settings that can change while the queue is in use."""

    active: bool
    concurrency: int
    shovel: ShovelConfig | None


@dataclass(frozen=True, slots=True)
class LastSweep:
    """When the queue was last swept with success and without, in ms since the epoch by the server; 0 = never."""

    success: int = 0
    failure: int = 0
    error: str | None = None


class QueueRecords:
    """The records of a client's queues in one farm."""

    def __init__(self, store: RecordStore, client_id: str, farm_id: str) -> None:
        self.store, self.client_id, self.farm_id = store, client_id, farm_id
        self.set = f"{farm_id}_{client_id}_ignis_queues"

    def key(self, name: str) -> Key:
        """Where the record of a queue is."""
        return Key(self.set, name)

    def read(self, name: str, *bins: str) -> dict[str, Any]:
        """These bins, or all. Raises `NotFound`."""
        return self.record(name, *bins).bins

    def record(self, name: str, *bins: str) -> Record:
        """The same with the time that it has left. Raises `NotFound`."""
        record = self.find(name, *bins)
        if record is None:
            raise NotFound(
                f"no queue {name!r} in set {self.set} of {self.store!r}: it was never created, or it has expired; "
                "create it",
                queue=name,
            )
        return record

    def find(self, name: str, *bins: str) -> Record | None:
        """The record with these bins, or all; None where there is none."""
        return self.store.get(self.key(name), *bins)

    def renew(self, config: QueueConfig, record: Record) -> None:
        """Let the record live its whole time again; no call where it has most of it. A failure is logged: who asks for
        a queue may want no more than to look at it.
        """
        if 0 < record.ttl < RENEWED * lifetime(config):
            try:
                self.change(config, Touch())
            except LatchworkError as failure:
                log.warning("the record of queue %s could not be renewed: %s", config.name, failure)

    def create(self, config: QueueConfig, fired: Sequence[Sequence[int]]) -> bool:
        """Create the record, its sweep pointers at what was fired under this name before. False if there is one.

        fired: of the queue, its sideline and its parked messages, by shard.
        """
        pointers, sideline, parked = ({str(n): fire for n, fire in enumerate(each)} for each in fired)
        try:
            self.store.operate(
                self.key(config.name),
                *_settings_ops(config),
                Put("createdAt", SERVER_NOW),
                Put("active", "true"),
                Put("sweepPointers", pointers),
                Put("sidelineSweep", sideline),
                Put("parkedSweep", parked),
                Put("sweptCounter", 0),
                Put("sidelineSwept", 0),
                Put("parkedSwept", 0),
                Put("sweepMarks", {}),
                Put("lastSweep", {}),
                Put("epoch", 0),
                Put("v", VERSION),
                exists=Exists.CREATE,
                ttl=lifetime(config),
                repeatable=True,
            )
        except AlreadyExists:
            return False
        return True

    def change(self, config: QueueConfig, *ops: Op) -> None:
        """Write some bins of the record, which must be there; a repeat must be harmless."""
        self.store.operate(self.key(config.name), *ops, ttl=lifetime(config), repeatable=True)


def lifetime(config: QueueConfig) -> int:
    """Seconds that the queue's record lives from each write."""
    return TTL_FACTOR * whole_seconds(config.queue_expiry)


def live_of(name: str, bins: Mapping[str, Any]) -> Live:
    """The changeable settings in the record. Raises `Unreadable`."""
    with _readable(name):
        return Live(bins.get("active") == "true", index(bins.get("concurrency", 0)), _shovel(*_shovel_bins(bins)))


def last_sweep_of(bins: Mapping[str, Any]) -> LastSweep:
    """What the last sweeps came to."""
    last = bins.get("lastSweep") or {}
    return LastSweep(last.get("success", 0), last.get("failure", 0), last.get("error"))


def differences(wanted: QueueConfig, found: QueueConfig) -> list[str]:
    """The settings in which two queues differ, for people: `shards: 4, not 8`."""
    return [
        f"{field.name}: {getattr(found, field.name)!r}, not {getattr(wanted, field.name)!r}"
        for field in fields(QueueConfig)
        if field.name not in ("unsafe_limits", "codec") and getattr(wanted, field.name) != getattr(found, field.name)
    ] + ([f"codec: {found.codec!r}, not {wanted.codec!r}"] if _codec_name(wanted) != _codec_name(found) else [])


def config_of(name: str, bins: Mapping[str, Any]) -> QueueConfig:
    """The settings that the queue was created with. Those that a writer of another version left out have defaults.

    Raises `Unreadable` where one is missing that has none, and where one is none that a queue can have.
    """
    missing = [bin for bin in ("shards", "messageExpiry", "queueExpiry", "sweepDuration") if bin not in bins]
    if missing:
        raise Unreadable(f"the record of queue {name!r} has no {', '.join(missing)}: another program wrote it")
    with _readable(name):
        return _config(name, bins)


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as failure:
        told = (
            f"the settings in the record of queue {name!r} are none that a queue can have ({failure}): put them right"
        )
        raise Unreadable(told, queue=name) from failure


def _config(name: str, bins: Mapping[str, Any]) -> QueueConfig:
    extra = bins.get("settings") or {}
    shovel = extra["shovel"] if "shovel" in extra else _shovel_bins(bins)
    low_high = extra.get("backoff")
    sweep = timedelta(milliseconds=bins["sweepDuration"])
    values: dict[str, Any] = {
        "name": name,
        "shards": index(bins["shards"]),
        "message_expiry": timedelta(seconds=bins["messageExpiry"]),
        "queue_expiry": timedelta(seconds=bins["queueExpiry"]),
        "concurrency": extra.get("concurrency", bins.get("concurrency", 0)),
        "handler_type": bins.get("handlerType") or None,
        "sweep_duration": sweep,
        "handler_timeout": _handler_timeout(extra, sweep),
        "max_deliveries": extra.get("maxDeliveries", 5),
        "backoff": Poll(*low_high) if low_high else None,
        "shovel": _shovel(*shovel),
        "batching": _batching(bins),
        "codec": _codec(extra.get("codec", "json")),
        "unsafe_limits": bool(extra.get("unsafe", 0)),
    }
    if "groupOf" in bins:
        values |= {"of": bins["groupOf"], "tag": bins["tag"]}
    # The limits were checked when the queue was made; checking again would warn again.
    config = object.__new__(GroupConfig if "groupOf" in bins else QueueConfig)
    for field, value in values.items():
        object.__setattr__(config, field, value)
    return config


def shovel_ops(shovel: ShovelConfig | None) -> tuple[Op, ...]:
    """What writes the shovel's settings; a concurrency of 0 says that there is none."""
    interval, concurrency = _shovel_pair(shovel)
    return Put("shovelInterval", interval), Put("shovelConcur", concurrency)


def sweep_note(*, success: bool, error: str | None = None) -> tuple[Op, ...]:
    """What notes the end of a sweep."""
    if success:
        return (MapPut("lastSweep", "success", SERVER_NOW),)
    return MapPut("lastSweep", "failure", SERVER_NOW), MapPut("lastSweep", "error", error or "")


def _settings_ops(config: QueueConfig) -> tuple[Op, ...]:
    batching, shovel, backoff = config.batching, config.shovel, config.backoff
    settings: dict[str, Any] = {
        "concurrency": config.concurrency,
        "shovel": _shovel_pair(shovel),
        "handlerTimeout": milliseconds(config.handler_timeout),
        "maxDeliveries": config.max_deliveries,
        "codec": _codec_name(config),
        "unsafe": int(config.unsafe_limits),
    }
    if backoff is not None:
        settings["backoff"] = [float(n) for n in (backoff.low, backoff.high, backoff.factor, backoff.jitter)]
    group = (Put("groupOf", config.of), Put("tag", config.tag)) if isinstance(config, GroupConfig) else ()
    return (
        *group,
        Put("handlerType", config.handler_type or ""),
        Put("shards", config.shards),
        Put("queueExpiry", whole_seconds(config.queue_expiry)),
        Put("messageExpiry", whole_seconds(config.message_expiry)),
        Put("concurrency", config.concurrency),
        *shovel_ops(shovel),
        Put("sweepDuration", milliseconds(config.sweep_duration)),
        Put("maxBatchSize", batching.max_size if batching else 0),
        Put("maxWaitTime", round(batching.max_wait.total_seconds()) if batching else 0),
        Put("settings", settings),
    )


def _codec_name(config: QueueConfig) -> str:
    return "bytes" if config.codec == "bytes" else "json"


def _handler_timeout(extra: Mapping[str, Any], sweep: timedelta) -> timedelta:
    if "handlerTimeout" not in extra:
        return default_timeout(sweep)
    return timedelta(milliseconds=extra["handlerTimeout"])


def _codec(name: Any) -> str:
    if name not in ("json", "bytes"):
        raise InvalidRequest(f"codec is {name!r}; in a record it must be 'json' or 'bytes'")
    return str(name)


def _shovel_bins(bins: Mapping[str, Any]) -> list[int]:
    return [bins.get("shovelInterval", 0), bins.get("shovelConcur", 0)]


def _shovel(interval: int, concurrency: int) -> ShovelConfig | None:
    return ShovelConfig(timedelta(seconds=interval), concurrency) if concurrency else None


def _shovel_pair(shovel: ShovelConfig | None) -> list[int]:
    return [round(shovel.interval.total_seconds()), shovel.concurrency] if shovel else [0, 0]


def _batching(bins: Mapping[str, Any]) -> BatchingConfig | None:
    size, wait = bins.get("maxBatchSize", 0), bins.get("maxWaitTime", 0)
    return BatchingConfig(size, timedelta(seconds=wait)) if size else None
