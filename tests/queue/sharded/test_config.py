"""Every limit of a queue's settings is checked before any I/O, and says value, limit and remedy."""

from __future__ import annotations

import warnings
from datetime import timedelta

import pytest

from latchwork.errors import InvalidRequest, InvalidShovelInterval, TooManyConsumers
from latchwork.queue import BatchingConfig, QueueConfig, ShovelConfig
from latchwork.queue.sharded.config import check_concurrency
from latchwork.retry import Poll
from latchwork.testing.clock import ManualClock


@pytest.mark.parametrize(
    "settings",
    [
        {"shards": 1},
        {"shards": 512},
        {"concurrency": 0},
        {"concurrency": 100},
        {"message_expiry": timedelta(days=365), "queue_expiry": timedelta(days=365)},
        {"sweep_duration": timedelta(minutes=5), "handler_timeout": timedelta(seconds=150)},
        {"sweep_duration": timedelta(minutes=300)},
        {"shovel": ShovelConfig(timedelta(0), 1)},
        {"shovel": ShovelConfig(timedelta(seconds=86_400), 50)},
        {"batching": BatchingConfig(2, timedelta(seconds=1))},
        {"batching": BatchingConfig(200_000, timedelta(seconds=300))},
        {"codec": "bytes"},
        {"codec": dict[str, int]},
        {"backoff": Poll(1, 60, 2, 0.1)},
    ],
    ids=str,
)
def test_the_ends_of_each_range_are_taken(settings):
    config = QueueConfig("q", **settings)
    for name, value in settings.items():
        assert getattr(config, name) == value


def test_an_empty_handler_type_is_none_as_it_is_read_back():
    assert QueueConfig("q", handler_type="") == QueueConfig("q")


@pytest.mark.parametrize(
    "settings",
    [
        {"shards": 0},
        {"shards": 513},
        {"shards": 1.5},
        {"shards": True},
        {"concurrency": -1},
        {"message_expiry": timedelta(0)},
        {"message_expiry": timedelta(days=3), "queue_expiry": timedelta(days=2)},
        {"queue_expiry": timedelta(days=366), "message_expiry": timedelta(days=1)},
        {"sweep_duration": timedelta(minutes=4), "handler_timeout": timedelta(minutes=1)},
        {"sweep_duration": timedelta(minutes=301)},
        {"handler_timeout": timedelta(minutes=11)},
        {"handler_timeout": timedelta(0)},
        {"max_deliveries": 0},
        {"codec": "pickle"},
        {"codec": None},
        {"codec": 5},
        {"handler_type": 5},
        {"shovel": 60},
        {"batching": (2, 1)},
        {"backoff": "5 s"},
        {"backoff": True},
        {"backoff": 0},
        {"backoff": -5},
        {"backoff": float("nan")},
        {"backoff": timedelta(days=366)},
        {"message_expiry": "2 days"},
    ],
    ids=str,
)
def test_beyond_each_range_is_refused(settings):
    with pytest.raises(InvalidRequest) as refused:
        QueueConfig("q", **settings)
    assert refused.value.code == "INVALID_REQUEST"


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda: BatchingConfig(10, 1.5), InvalidRequest),
        (lambda: ShovelConfig(0.5), InvalidShovelInterval),
        (lambda: QueueConfig("q", message_expiry=1.5), InvalidRequest),
        (lambda: QueueConfig("q", queue_expiry=timedelta(days=20, microseconds=1)), InvalidRequest),
        (lambda: QueueConfig("q", sweep_duration=1_200.0004), InvalidRequest),
        (lambda: QueueConfig("q", handler_timeout=0.0004), InvalidRequest),
    ],
)
def test_a_time_that_the_record_cannot_hold_is_refused_with_the_remedy(ask, error):
    with pytest.raises(error, match=r"in whole (milli)?seconds: round it"):
        ask()


@pytest.mark.parametrize("backoff", [5, 5.0, timedelta(seconds=5)], ids=str)
def test_a_length_of_time_as_backoff_is_the_pause_after_every_attempt(backoff):
    config = QueueConfig("q", backoff=backoff)
    assert [config.backoff.pause(attempt, ManualClock()) for attempt in (1, 2, 50)] == [5, 5, 5]
    assert config == QueueConfig("q", backoff=5)


@pytest.mark.parametrize(
    "name", ["", "x" * 201, "orders_SIDELINE", "orders_PARKED", "latchwork-schedules", None, "\ud800"]
)
def test_a_name_that_would_collide_or_be_too_long_is_refused(name):
    with pytest.raises(InvalidRequest):
        QueueConfig(name)


def test_more_than_a_hundred_consumers_have_their_own_code():
    for ask in (lambda: QueueConfig("q", concurrency=101), lambda: check_concurrency(101)):
        with pytest.raises(TooManyConsumers) as refused:
            ask()
        assert refused.value.code == "MAX_ALLOWED_CONSUMERS_EXCEEDED"


@pytest.mark.parametrize("seconds", [-1, 86_401])
def test_a_shovel_interval_out_of_range_has_its_own_code(seconds):
    with pytest.raises(InvalidShovelInterval) as refused:
        ShovelConfig(timedelta(seconds=seconds), 1)
    assert refused.value.code == "INVALID_SHOVEL_TIME_INTERVAL"


@pytest.mark.parametrize("concurrency", [0, 51])
def test_a_shovel_has_1_to_50_workers(concurrency):
    with pytest.raises(InvalidRequest):
        ShovelConfig(timedelta(seconds=60), concurrency)


@pytest.mark.parametrize(("size", "wait"), [(1, 10), (200_001, 10), (100, 0.5), (100, 301)])
def test_batching_out_of_range_is_refused(size, wait):
    with pytest.raises(InvalidRequest):
        BatchingConfig(size, timedelta(seconds=wait))


def test_unsafe_limits_allow_seconds_and_warn():
    times = {"sweep_duration": timedelta(seconds=2), "handler_timeout": timedelta(seconds=1)}
    with pytest.raises(InvalidRequest):
        QueueConfig("q", **times)
    with pytest.warns(UserWarning, match="unsafe limits"):
        QueueConfig("q", **times, unsafe_limits=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(InvalidRequest, match="half of sweep_duration"):
            QueueConfig("q", **times | {"handler_timeout": timedelta(seconds=2)}, unsafe_limits=True)


def test_the_handler_timeout_follows_a_short_sweep_duration_unless_asked_for():
    short = timedelta(minutes=5)
    assert QueueConfig("q").handler_timeout == timedelta(minutes=10)
    assert QueueConfig("q", sweep_duration=short).handler_timeout == short / 2
    odd = short + timedelta(milliseconds=1)
    assert QueueConfig("q", sweep_duration=odd).handler_timeout == short / 2, "in whole milliseconds"
    with pytest.raises(InvalidRequest, match="half of sweep_duration"):
        QueueConfig("q", sweep_duration=short, handler_timeout=timedelta(minutes=10))
