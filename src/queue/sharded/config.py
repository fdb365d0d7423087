"""The settings of a sharded queue, and the limits of each of them (docs/design.md section 4)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ...errors import InvalidRequest, InvalidShovelInterval, TooManyConsumers
from ...inputs import Span, checked_switch, checked_text, checked_whole, is_int, span_of
from ...plain import exact_time, shown
from ...retry import Poll
from ...store.model.record import Key, checked_key
from .envelope import Codec

MAX_CONSUMERS = 100
"""Worker threads of one consumer."""
MAX_SHARDS = 512
MAX_SHOVEL_INTERVAL = timedelta(days=1)
MAX_SHOVEL_CONCURRENCY = 50
MIN_SWEEP, MAX_SWEEP = timedelta(minutes=5), timedelta(minutes=300)
MAX_EXPIRY = timedelta(days=365)
MAX_DELIVERIES = 1_000_000
MAX_BATCH, MAX_BATCH_WAIT = 200_000, timedelta(seconds=300)
MAX_NAME = 200
"""Bytes in a queue's name, so that the keys made of it stay short."""
SIDELINE, PARKED = "_SIDELINE", "_PARKED"
SCHEDULES = "latchwork-schedules"
"""Name of the record of schedules, which lies among those of the queues: no queue has it."""
SECOND, MILLISECOND = timedelta(seconds=1), timedelta(milliseconds=1)
MESSAGE_EXPIRY, QUEUE_EXPIRY = timedelta(days=15), timedelta(days=30)
"""The defaults: a message survives two weeks in which no worker runs, and then some time among the parked."""
RETRIES = Poll(low=15.0, high=3270.0, factor=2.0, jitter=0.1)
"""The pauses before the attempts of a failed message where no `backoff` is given: 15 s to about an hour."""
MAX_ATTEMPTS = 20
"""The default of `max_deliveries`: with `RETRIES`, half a day of attempts."""
HANDLER_TIMEOUT = timedelta(minutes=10)
"""The default, or half the sweep duration where that is less."""


@dataclass(frozen=True, slots=True)
class ShovelConfig:
    """The settings of a shovel: how often it moves the sideline back, and how many run at once.

    interval: 0 to 86,400 s between two passes, in whole seconds.
    concurrency: 1 to 50.
    """

    interval: timedelta
    concurrency: int = 1

    if TYPE_CHECKING:

        def __init__(self, interval: Span, concurrency: int = 1) -> None: ...

    def __post_init__(self) -> None:
        try:
            span = _whole("shovel interval", span_of("shovel interval", self.interval), SECOND)
        except InvalidRequest as failure:
            raise InvalidShovelInterval(str(failure)) from None
        object.__setattr__(self, "interval", span)
        if not timedelta() <= span <= MAX_SHOVEL_INTERVAL:
            raise InvalidShovelInterval(
                f"the shovel interval is {span.total_seconds():g} s; it must be 0 to 86400 s: choose one in that range"
            )
        checked_whole("shovel concurrency", self.concurrency, 1, MAX_SHOVEL_CONCURRENCY)


@dataclass(frozen=True, slots=True)
class BatchingConfig:
    """The size of the batches that a handler gets, and how long it waits for a batch to fill.

    max_size: 2 to 200,000 messages.
    max_wait: 1 to 300 s, in whole seconds.
    """

    max_size: int
    max_wait: timedelta

    if TYPE_CHECKING:

        def __init__(self, max_size: int, max_wait: Span) -> None: ...

    def __post_init__(self) -> None:
        checked_whole("batch size", self.max_size, 2, MAX_BATCH)
        span = span_of("batch wait", self.max_wait)
        object.__setattr__(self, "max_wait", span)
        _between("batch wait", span, SECOND, MAX_BATCH_WAIT)
        _whole("batch wait", span, SECOND)


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """The settings of a sharded queue; checked when made, before any I/O.

    name: 1 to 200 bytes.
    shards: 1 to 512; fixed for the queue's life.
    message_expiry: how long a message lives that nobody reads; a retry begins its life again.
    queue_expiry: at least the message's. Parked messages live for this time. A queue that is not used is forgotten
        after twice that, but not while a sweeper runs: deactivate it.
    concurrency: worker threads of each process that consumes it, 0 (paused) to 100. How many such processes there are
        is not limited.
    handler_type: a name for the kind of handler, for people.
    sweep_duration: 5 to 300 min; a message that was handed out and neither acknowledged nor extended for this time
        has lost its consumer, and comes again.
    handler_timeout: at most half of the sweep duration, which is also the default where that is less than 10 min.
    max_deliveries: the attempts of a message. When the last one fails, the message is parked.
    retry: whether a failed message comes back by itself, when its backoff is over. False or None: it stays in the
        sideline until somebody brings it back.
    backoff: how long a failed message waits: a fixed time of 1 ms to a year, or a `latchwork.retry.Poll`, which grows
        with its attempts. None: 15 s at first, then twice as long each time, up to an hour.
    shovel: failed messages wait in the sideline instead, and a pass at this interval brings back the ones whose backoff
        is over; with `backoff=None` all of them. None = no shovel.
    batching: None = the handler gets single messages.
    codec: "json", "bytes", or a type that msgspec reads from JSON.
    results: how long what a handler returns is kept for `ShardedQueue.result`, up to a year. None: it is not kept, and
        a handler returns True, None or False. False rejects the message in any case.
    unsafe_limits: allows times of seconds, for demonstrations and tests; warns.

    Expiries are whole seconds, the other times whole milliseconds.
    Raises `InvalidRequest`, `TooManyConsumers` (a concurrency over 100) or `InvalidShovelInterval`.
    """

    name: str
    _: KW_ONLY
    shards: int = 32
    message_expiry: timedelta = MESSAGE_EXPIRY
    queue_expiry: timedelta = QUEUE_EXPIRY
    concurrency: int = 1
    handler_type: str | None = None
    sweep_duration: timedelta = timedelta(minutes=20)
    handler_timeout: timedelta = HANDLER_TIMEOUT
    max_deliveries: int = MAX_ATTEMPTS
    retry: bool = True
    backoff: Any = None
    shovel: ShovelConfig | None = None
    batching: BatchingConfig | None = None
    codec: Any = "json"
    results: timedelta | None = None
    unsafe_limits: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            name: str,
            *,
            shards: int = 32,
            message_expiry: Span = MESSAGE_EXPIRY,
            queue_expiry: Span = QUEUE_EXPIRY,
            concurrency: int = 1,
            handler_type: str | None = None,
            sweep_duration: Span = timedelta(minutes=20),
            handler_timeout: Span = HANDLER_TIMEOUT,
            max_deliveries: int = MAX_ATTEMPTS,
            retry: bool | None = True,
            backoff: Any = None,
            shovel: ShovelConfig | None = None,
            batching: BatchingConfig | None = None,
            codec: Any = "json",
            results: Span | None = None,
            unsafe_limits: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        asked = self.handler_timeout is not HANDLER_TIMEOUT
        if self.message_expiry is MESSAGE_EXPIRY:  # not given: it is at most the queue's
            shorter = min(MESSAGE_EXPIRY, span_of("queue_expiry", self.queue_expiry))
            object.__setattr__(self, "message_expiry", shorter)
        elif self.queue_expiry is QUEUE_EXPIRY:  # not given: it is at least the messages'
            longer = max(QUEUE_EXPIRY, span_of("message_expiry", self.message_expiry))
            object.__setattr__(self, "queue_expiry", longer)
        for field in ("message_expiry", "queue_expiry", "sweep_duration", "handler_timeout"):
            object.__setattr__(self, field, span_of(field, getattr(self, field)))
        if self.results is not None:
            object.__setattr__(self, "results", span_of("results", self.results))
        if not asked:
            object.__setattr__(self, "handler_timeout", default_timeout(self.sweep_duration))
        _check_name(self)
        checked_whole("shards", self.shards, 1, MAX_SHARDS)
        check_concurrency(self.concurrency)
        checked_whole("max_deliveries", self.max_deliveries, 1, MAX_DELIVERIES)
        if self.codec is None or (isinstance(self.codec, str) and self.codec not in ("json", "bytes")):
            given = shown(self.codec)
            raise InvalidRequest(f"codec {given}: use 'json', 'bytes', or a type that msgspec reads from JSON")
        Codec(self.codec)
        _check_kinds(self)
        object.__setattr__(self, "retry", checked_switch("retry", False if self.retry is None else self.retry))
        object.__setattr__(self, "backoff", _backoff(self.backoff))
        object.__setattr__(self, "handler_type", self.handler_type or None)  # none and "" are stored alike
        if self.unsafe_limits:
            warnings.warn(f"queue {self.name!r} has unsafe limits: for demonstrations and tests only", stacklevel=3)
        self.check_times()

    @property
    def retries(self) -> Poll | None:
        """The pauses after which failed messages come back by themselves. None: they wait in the sideline."""
        if not self.retry or self.shovel is not None:
            return None
        return self.backoff or RETRIES

    def check_times(self) -> None:
        """Raise `InvalidRequest` if times are out of their limits, or contradict each other."""
        low = SECOND if self.unsafe_limits else MIN_SWEEP
        _between("sweep_duration", self.sweep_duration, low, MAX_SWEEP)
        _between("message_expiry", self.message_expiry, SECOND, MAX_EXPIRY)
        _between("queue_expiry", self.queue_expiry, SECOND, MAX_EXPIRY)
        if self.results is not None:
            _between("results", self.results, SECOND, MAX_EXPIRY)
            _whole("results", self.results, SECOND)
        if self.queue_expiry < self.message_expiry:
            raise InvalidRequest(
                f"queue_expiry {self.queue_expiry} is less than message_expiry {self.message_expiry}: a queue must "
                "outlive its messages; raise queue_expiry"
            )
        if not timedelta() < self.handler_timeout <= self.sweep_duration / 2:
            raise InvalidRequest(
                f"handler_timeout {self.handler_timeout} must be more than 0 and at most half of sweep_duration "
                f"{self.sweep_duration}: shorten the one or lengthen the other"
            )
        for field, unit in _UNITS.items():
            _whole(field, getattr(self, field), unit)

    @property
    def of(self) -> str:
        """The name of the queue, of a group's settings; else "", as `tag`."""
        return ""

    @property
    def tag(self) -> str:
        """What tells a group from others that had its name before (docs/protocols P17)."""
        return ""

    @property
    def stored_name(self) -> str:
        """The name in the keys of its pointers and messages."""
        return f"{self.of}@{self.tag}" if self.of else self.name


@dataclass(frozen=True, slots=True)
class GroupConfig(QueueConfig):
    """The settings of a group of a queue: the queue's own where no others were given.

    name: `{queue}@{group}`, under which its record is kept.
    """

    of: str = ""
    tag: str = ""


_OF_A_GROUP = (
    "concurrency", "handler_type", "handler_timeout", "max_deliveries", "retry", "backoff", "shovel", "batching",
)  # fmt: skip
OF = "@"
"""Stands between the names of a queue and of its group."""
MAX_GROUP = 64
"""Characters in the name of a group."""


def group_config(queue: QueueConfig, name: str, mark: str, settings: Mapping[str, Any]) -> GroupConfig:
    """Return the settings of a group that is to be made; its tag ends in the mark. Raises `InvalidRequest`."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_GROUP:
        raise InvalidRequest(f"group name {shown(name)}: it must be text of 1 to {MAX_GROUP} characters")
    unknown = sorted(settings.keys() - set(_OF_A_GROUP))
    if unknown:
        raise InvalidRequest(f"a group has no {', '.join(unknown)} of its own: give {', '.join(_OF_A_GROUP)}")
    values = {field.name: getattr(queue, field.name) for field in fields(QueueConfig)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the queue has warned of its limits
        return GroupConfig(
            **{**values, **settings, "name": f"{queue.name}{OF}{name}"}, of=queue.name, tag=f"{name}~{mark}"
        )


_KINDS: dict[str, type] = {"handler_type": str, "shovel": ShovelConfig, "batching": BatchingConfig}

# As the queue's record holds them.
_UNITS = {
    "message_expiry": SECOND, "queue_expiry": SECOND, "sweep_duration": MILLISECOND, "handler_timeout": MILLISECOND,
}  # fmt: skip


def check_concurrency(concurrency: int, most: int = MAX_CONSUMERS) -> int:
    """Return the worker threads of a consumer, once they are 0 to 100, or to `most`. Raises `TooManyConsumers` or
    `InvalidRequest`.
    """
    if is_int(concurrency) and concurrency > most:
        raise TooManyConsumers(
            f"concurrency is {shown(concurrency)}: a consumer has at most {most} worker threads; run more processes"
        )
    checked_whole("concurrency", concurrency, 0, most)
    return concurrency


def default_timeout(sweep_duration: timedelta) -> timedelta:
    """Return the default of the handler timeout: at most half the sweep duration, in whole milliseconds."""
    half = sweep_duration / 2
    return min(HANDLER_TIMEOUT, half - half % MILLISECOND)


def whole_seconds(span: timedelta) -> int:
    """Return the length of time in whole seconds, rounded up, at least 1."""
    return max(1, math.ceil(span.total_seconds()))


def milliseconds(span: timedelta) -> int:
    """Return the length of time in whole milliseconds."""
    return round(span.total_seconds() * 1000)


def _check_name(config: QueueConfig) -> None:
    name, what, whole = config.name, "queue name", ""
    if config.of:
        what, whole = "group name", ", with its queue's name and the @: give the group a shorter one"
    if not isinstance(name, str) or not 1 <= len(name.encode(errors="replace")) <= MAX_NAME:
        raise InvalidRequest(f"{what} {shown(name)}: it must be text of 1 to {MAX_NAME} bytes{whole}")
    if name.endswith((SIDELINE, PARKED)):
        raise InvalidRequest(
            f"{what} {shown(name)} ends like the sideline or the parked messages of another: rename it"
        )
    if name == SCHEDULES:
        raise InvalidRequest(f"{what} {shown(name)} is the name of the record of schedules: rename it")
    checked_key(Key("-", name))


def _check_kinds(config: QueueConfig) -> None:
    for field, kind in _KINDS.items():
        value = getattr(config, field)
        if value is not None and not isinstance(value, kind):
            raise InvalidRequest(f"{field} is {shown(value)}; give a {kind.__name__}, or None")
    checked_switch("unsafe_limits", config.unsafe_limits)
    if config.handler_type:
        checked_text("handler_type", config.handler_type)


def _backoff(value: Any) -> Poll | None:
    """Return the pauses of failed messages; one length of time is the pause after every attempt."""
    if value is None or isinstance(value, Poll):
        return value
    if not isinstance(value, timedelta | int | float):
        raise InvalidRequest(f"backoff is {shown(value)}; give a timedelta, a number of seconds, a Poll, or None")
    span = span_of("backoff", value)
    _between("backoff", span, MILLISECOND, MAX_EXPIRY)
    seconds = span.total_seconds()
    return Poll(seconds, seconds, factor=1, jitter=0)


def _between(what: str, value: timedelta, low: timedelta, high: timedelta) -> None:
    if not low <= value <= high:
        raise InvalidRequest(
            f"{what} is {exact_time(value)}; it must be {exact_time(low)} to {exact_time(high)}: choose one in that "
            "range"
        )


def _whole(what: str, value: timedelta, unit: timedelta) -> timedelta:
    if value % unit:
        units = "seconds" if unit == SECOND else "milliseconds"
        raise InvalidRequest(f"{what} is {exact_time(value)}; it must be in whole {units}: round it")
    return value
