"""The record of a queue: its settings, its sweep pointers, and the results of the last sweeps (docs/design.md 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ...errors import AlreadyExists, InvalidRequest, LatchworkError, NotFound, Unreadable
from ...logs import Log
from ...plain import counted, exact_time
from ...retry import Poll
from ...store import Exists, Key, MapPut, Put, Record, RecordStore, Touch
from ...store.decode import Counter
from ...store.model.expr import SERVER_NOW, Const, If, MapValue, has, largest
from ...store.model.ops import Op
from ...typed import converted
from .config import (
    MAX_ATTEMPTS,
    MAX_BATCH,
    MAX_BATCH_WAIT,
    MAX_CONSUMERS,
    MAX_DELIVERIES,
    MAX_EXPIRY,
    MAX_SHARDS,
    MAX_SHOVEL_CONCURRENCY,
    MAX_SHOVEL_INTERVAL,
    MAX_SWEEP,
    MESSAGE_EXPIRY,
    QUEUE_EXPIRY,
    BatchingConfig,
    GroupConfig,
    QueueConfig,
    ShovelConfig,
    default_timeout,
    milliseconds,
    whole_seconds,
)

log = Log(__name__)

VERSION = 1
TTL_FACTOR = 2
"""A queue's record lives twice the queue's expiry from its last write."""
LIVE_BINS = ("active", "concurrency", "shovelInterval", "shovelConcur", "settings")
"""The bins that `live_of` reads."""
_AT = Const("changedAt")
_CHANGED = If(has("settings", "changedAt"), largest(MapValue("settings", _AT) + 1, SERVER_NOW), SERVER_NOW)
RENEWED = 0.9
"""If at most this part of the time is left, a process that asks for the queue renews it."""


@dataclass(frozen=True, slots=True)
class Live:
    """The settings that can change while the queue is in use.

    changed: when the queue was last paused, resumed or scaled: ms since the epoch by the server's clock, and larger
        with each change, so that it also says which change a process acts on. 0 = never.
    changed_by: who did that; None = never, or not known.
    lost_at: when the queue was made again as its record was gone, in ms; 0 = never.
    resume_to: the consumers that `resume` goes back to; None = those that the queue was made with.
    retry: whether failed messages are tried again, if that was switched after the queue was made; None = it was not.
    """

    active: bool
    concurrency: int
    shovel: ShovelConfig | None
    changed: int = 0
    changed_by: str | None = None
    lost_at: int = 0
    resume_to: int | None = None
    retry: bool | None = None


@dataclass(frozen=True, slots=True)
class LastSweep:
    """The times of the last successful sweep and of the last failed one, in ms since the epoch by the server's clock;
    0 = never.
    """

    success: int = 0
    failure: int = 0
    error: str | None = None


class QueueRecords:
    """The records of a client's queues in one farm."""

    def __init__(self, store: RecordStore, client_id: str, farm_id: str) -> None:
        self.store, self.client_id, self.farm_id = store, client_id, farm_id
        self.set = f"{farm_id}_{client_id}_ignis_queues"

    def key(self, name: str) -> Key:
        """Return the key of a queue's record."""
        return Key(self.set, name)

    def read(self, name: str, *bins: str) -> dict[str, Any]:
        """Read these bins, or all. Raises `NotFound`."""
        return self.record(name, *bins).bins

    def record(self, name: str, *bins: str) -> Record:
        """Read the record, with its remaining time to live. Raises `NotFound`."""
        record = self.find(name, *bins)
        if record is None:
            raise self.absent(name)
        return record

    def absent(self, name: str, meant: str | None = None) -> NotFound:
        """Return the error for a queue that is not there. meant: a queue that is there, of a similar name."""
        listing = f"latchwork queue list --client {self.client_id} --farm {self.farm_id}"
        similar = f"is {meant!r} meant? " if meant else ""
        return NotFound(
            f"client {self.client_id!r} has no queue {name!r} in farm {self.farm_id!r} of {self.store.where}: it was "
            f"never created, or it has expired; {similar}`{listing}` lists the queues that there are",
            queue=name,
        )

    def find(self, name: str, *bins: str) -> Record | None:
        """Return the record with these bins, or all; None where there is none."""
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
    """Return seconds that the queue's record lives from each write."""
    return TTL_FACTOR * whole_seconds(config.queue_expiry)


def live_of(name: str, bins: Mapping[str, Any]) -> Live:
    """Return the changeable settings in the record. Raises `Unreadable`."""
    with _readable(name):
        stored = converted(bins, _Live)
        shovel, last = _shovel(stored.shovel_interval, stored.shovel_concur), stored.settings
        return Live(
            stored.active == "true", stored.concurrency, shovel, last.changed_at, last.changed_by, last.lost_at,
            last.resume_to, bool(last.retry) if last.retry_set else None,
        )  # fmt: skip


def last_sweep_of(bins: Mapping[str, Any]) -> LastSweep:
    """Return the result of the last sweeps. Damaged bins count as never noted: they are information for people only."""
    try:
        return converted(bins.get("lastSweep") or {}, LastSweep)
    except msgspec.ValidationError:
        return LastSweep()


FORMER = {"message_expiry": timedelta(days=2), "queue_expiry": timedelta(days=2), "max_deliveries": 5, "retry": False}
"""The defaults of earlier versions that have changed since."""


def as_made_before(wanted: QueueConfig, found: QueueConfig) -> QueueConfig:
    """Return the settings that are wanted; of those which are today's defaults, what an earlier version has stored for
    its own.

    So a queue that was made with the defaults of an earlier version keeps them, and is still the same queue.
    """
    today = {
        "message_expiry": min(MESSAGE_EXPIRY, wanted.queue_expiry),
        "queue_expiry": QUEUE_EXPIRY,
        "max_deliveries": MAX_ATTEMPTS,
        "retry": True,
    }
    former = FORMER | ({"queue_expiry": found.queue_expiry} if found.queue_expiry == found.message_expiry else {})
    kept = copy(wanted)
    for name, before in former.items():
        if getattr(wanted, name) == today[name] and getattr(found, name) == before:
            object.__setattr__(kept, name, before)
    try:
        kept.check_times()
    except InvalidRequest:  # what was given and a former default contradict each other: the queues differ
        return wanted
    return kept if kept != wanted else wanted


def as_switched(wanted: QueueConfig, bins: Mapping[str, Any]) -> QueueConfig:
    """Return the settings that are wanted, with `retry` from the record where it was switched after the queue was made:
    a program that was written before that still finds its queue. Raises `Unreadable`.
    """
    with _readable(wanted.name):
        stored = converted(bins.get("settings") or {}, _Extra)
    if not stored.retry_set or wanted.retry == bool(stored.retry):
        return wanted
    kept = copy(wanted)
    object.__setattr__(kept, "retry", bool(stored.retry))
    return kept


def differences(wanted: QueueConfig, found: QueueConfig) -> list[str]:
    """Return the settings in which two queues differ, for people: `shards: 4, not 8`."""
    return [
        f"{field.name}: {_in_words(getattr(found, field.name))}, not {_in_words(getattr(wanted, field.name))}"
        for field in fields(QueueConfig)
        if field.name not in ("unsafe_limits", "codec") and getattr(wanted, field.name) != getattr(found, field.name)
    ] + ([f"codec: {found.codec!r}, not {wanted.codec!r}"] if _codec_name(wanted) != _codec_name(found) else [])


def _in_words(value: Any) -> str:
    if isinstance(value, timedelta):
        return exact_time(value)
    if isinstance(value, Poll) and value == Poll(value.low, value.low, factor=1, jitter=0):  # one length of time
        return exact_time(timedelta(seconds=value.low))
    if isinstance(value, ShovelConfig):
        return f"each {exact_time(value.interval)}, {counted(value.concurrency, 'thread')}"
    return repr(value)


def config_of(name: str, bins: Mapping[str, Any]) -> QueueConfig:
    """Return the settings that the queue was created with. Settings that another version did not write have defaults.

    Raises `Unreadable` if a setting without a default is missing, or any value is not allowed.
    """
    with _readable(name):
        stored = converted(bins, _Stored)
        extra, sweep = stored.settings, timedelta(milliseconds=stored.sweep_duration)
        shovel = (stored.shovel_interval, stored.shovel_concur) if extra.shovel is None else extra.shovel
        timeout, size = extra.handler_timeout, stored.max_batch_size
        values: dict[str, Any] = {
            "name": name,
            "shards": stored.shards,
            "message_expiry": timedelta(seconds=stored.message_expiry),
            "queue_expiry": timedelta(seconds=stored.queue_expiry),
            "concurrency": stored.concurrency if extra.concurrency is None else extra.concurrency,
            "handler_type": stored.handler_type or None,
            "sweep_duration": sweep,
            "handler_timeout": default_timeout(sweep) if timeout is None else timedelta(milliseconds=timeout),
            "max_deliveries": extra.max_deliveries,
            "retry": bool(extra.retry),
            "backoff": None if extra.backoff is None else Poll(*extra.backoff),
            "shovel": _shovel(*shovel),
            "batching": BatchingConfig(size, timedelta(seconds=stored.max_wait_time)) if size else None,
            "codec": extra.codec,
            "results": None if extra.results is None else timedelta(seconds=extra.results),
            "unsafe_limits": bool(extra.unsafe),
        }
        if stored.group_of:
            values |= {"of": stored.group_of, "tag": stored.tag}
        # not by its constructor, which would warn of unsafe limits again
        config = object.__new__(GroupConfig if stored.group_of else QueueConfig)
        for field, value in values.items():
            object.__setattr__(config, field, value)
        config.check_times()
        return config


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except (msgspec.ValidationError, InvalidRequest, UnicodeError) as failure:
        message = f"the settings in the record of queue {name!r} are not valid ({failure}): correct them"
        raise Unreadable(message, queue=name) from failure


_Seconds = Annotated[int, Meta(ge=1, le=whole_seconds(MAX_EXPIRY))]
_Consumers = Annotated[int, Meta(ge=0, le=MAX_CONSUMERS)]
_ShovelInterval = Annotated[int, Meta(ge=0, le=whole_seconds(MAX_SHOVEL_INTERVAL))]
_Shovels = Annotated[int, Meta(ge=0, le=MAX_SHOVEL_CONCURRENCY)]


class _Extra(Struct, frozen=True, rename="camel"):
    """The entries of the bin `settings`."""

    concurrency: _Consumers | None = None
    resume_to: _Consumers | None = None
    changed_at: Counter = 0
    changed_by: str | None = None
    lost_at: Counter = 0
    shovel: tuple[_ShovelInterval, _Shovels] | None = None
    handler_timeout: Annotated[int, Meta(ge=1, le=milliseconds(MAX_SWEEP))] | None = None
    max_deliveries: Annotated[int, Meta(ge=1, le=MAX_DELIVERIES)] = 5
    retry: Annotated[int, Meta(ge=0, le=1)] = 0
    retry_set: Annotated[int, Meta(ge=0, le=1)] = 0
    backoff: tuple[float, float, float, float] | None = None
    codec: Annotated[str, Meta(pattern="^(json|bytes)$")] = "json"
    results: _Seconds | None = None
    unsafe: Annotated[int, Meta(ge=0, le=1)] = 0


class _Live(Struct, frozen=True, rename="camel"):
    """The bins of the changeable settings."""

    active: str = ""
    concurrency: _Consumers = 0
    shovel_interval: _ShovelInterval = 0
    shovel_concur: _Shovels = 0
    settings: _Extra = _Extra()


class _Stored(_Live, frozen=True, rename="camel", kw_only=True):
    """The bins of all settings, each within the limits that a queue is created with."""

    shards: Annotated[int, Meta(ge=1, le=MAX_SHARDS)]
    message_expiry: _Seconds
    queue_expiry: _Seconds
    sweep_duration: Annotated[int, Meta(ge=1, le=milliseconds(MAX_SWEEP))]
    handler_type: str = ""
    max_batch_size: Annotated[int, Meta(ge=0, le=MAX_BATCH)] = 0
    max_wait_time: Annotated[int, Meta(ge=0, le=whole_seconds(MAX_BATCH_WAIT))] = 0
    group_of: str = ""
    tag: str = ""


def resume_to(name: str, bins: Mapping[str, Any]) -> int:
    """Return the number of consumers after a pause, 0 = not stored. Raises `Unreadable`."""
    with _readable(name):
        return converted(bins.get("settings") or {}, _Extra).resume_to or 0


def concurrency_ops(n: int, by: str) -> tuple[Op, ...]:
    """Return the operations that set the number of consumers; a number above 0 is what `resume` goes back to."""
    kept = (MapPut("settings", "resumeTo", n),) if n else ()
    return Put("concurrency", n), *kept, MapPut("settings", "changedAt", _CHANGED), MapPut("settings", "changedBy", by)


LOST = MapPut("settings", "lostAt", SERVER_NOW)
"""Notes when the queue was made again as its record was gone."""


def again_ops(live: Live) -> tuple[Op, ...]:
    """Return the operations that write what was changed since a queue was made, into its record that is made again."""
    ops: list[Op] = [Put("concurrency", live.concurrency), *shovel_ops(live.shovel), LOST]
    if live.resume_to is not None:
        ops.append(MapPut("settings", "resumeTo", live.resume_to))
    if live.changed:
        ops.append(MapPut("settings", "changedAt", live.changed))
    if live.changed_by is not None:
        ops.append(MapPut("settings", "changedBy", live.changed_by))
    if live.retry is not None:
        ops += retry_ops(live.retry)
    return tuple(ops)


def retry_ops(retry: bool) -> tuple[Op, ...]:
    """Return the operations that switch whether failed messages are tried again, and note that it was switched."""
    return MapPut("settings", "retry", int(retry)), MapPut("settings", "retrySet", 1)


def shovel_ops(shovel: ShovelConfig | None) -> tuple[Op, ...]:
    """Return the operations that write the shovel's settings; a concurrency of 0 says that there is none."""
    interval, concurrency = _shovel_pair(shovel)
    return Put("shovelInterval", interval), Put("shovelConcur", concurrency)


def sweep_note(*, success: bool, error: str | None = None) -> tuple[Op, ...]:
    """Return the operations that note the end of a sweep."""
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
        "retry": int(config.retry),
        "codec": _codec_name(config),
        "unsafe": int(config.unsafe_limits),
    }
    if backoff is not None:
        settings["backoff"] = [float(n) for n in (backoff.low, backoff.high, backoff.factor, backoff.jitter)]
    if config.results is not None:
        settings["results"] = whole_seconds(config.results)
    group = (Put("groupOf", config.of), Put("tag", config.tag)) if config.of else ()
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


def _shovel(interval: int, concurrency: int) -> ShovelConfig | None:
    return ShovelConfig(timedelta(seconds=interval), concurrency) if concurrency else None


def _shovel_pair(shovel: ShovelConfig | None) -> list[int]:
    return [round(shovel.interval.total_seconds()), shovel.concurrency] if shovel else [0, 0]
