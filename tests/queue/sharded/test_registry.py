"""The registry: one queue of a name, its stored record, and how processes learn of each other's changes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from latchwork.errors import AlreadyExists, InvalidRequest, NotFound, Refused, TooManyConsumers, Unavailable, Unreadable
from latchwork.queue import BatchingConfig, QueueConfig, QueueRegistry, ShovelConfig
from latchwork.queue.sharded import registry as registry_module
from latchwork.retry import Poll
from latchwork.store import Key, MemoryStore, Put
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore


@pytest.fixture
def registry(world):
    return QueueRegistry(world.store, world.client, farm_id="dc1")


def other(world):
    return QueueRegistry(world.store, world.client, farm_id="dc1")


FULL = QueueConfig(
    "full",
    shards=3,
    message_expiry=timedelta(hours=1),
    queue_expiry=timedelta(hours=2),
    concurrency=4,
    handler_type="email",
    sweep_duration=timedelta(minutes=10),
    handler_timeout=timedelta(minutes=2),
    max_deliveries=7,
    backoff=Poll(1, 60, 2, 0.1),
    shovel=ShovelConfig(timedelta(seconds=30), 2),
    batching=BatchingConfig(100, timedelta(seconds=5)),
    codec="bytes",
)


def test_the_record_of_a_queue_has_the_bins_of_the_java_library(registry, world):
    registry.create(FULL)
    record = world.store.get(Key(f"dc1_{world.client}_ignis_queues", "full"))
    bins = dict(record.bins)
    assert bins.pop("createdAt") > 1_600_000_000_000
    assert bins.pop("settings")["maxDeliveries"] == 7
    assert bins == {
        "handlerType": "email", "shards": 3, "queueExpiry": 7200, "messageExpiry": 3600, "concurrency": 4,
        "shovelConcur": 2, "shovelInterval": 30, "active": "true", "sweptCounter": 0, "sidelineSwept": 0,
        "sweepPointers": {"0": 0, "1": 0, "2": 0}, "sidelineSweep": {"0": 0, "1": 0, "2": 0},
        "parkedSweep": {"0": 0, "1": 0, "2": 0}, "parkedSwept": 0,
        "sweepDuration": 600_000, "maxBatchSize": 100, "maxWaitTime": 5, "sweepMarks": {}, "lastSweep": {},
        "epoch": 0, "v": 1,
    }  # fmt: skip
    assert 14_390 <= record.ttl <= 14_400


def test_equal_settings_are_the_same_queue(registry, world):
    queue = registry.create(FULL)
    assert registry.create(FULL) is queue
    elsewhere = other(world)
    assert elsewhere.create(FULL).publish(b"x")
    assert elsewhere.get("full").config == FULL
    assert registry.get("full").depth().ready == 1


@pytest.mark.parametrize("shards", [1, 4])
def test_other_settings_are_refused_and_named(registry, world, shards):
    registry.create(QueueConfig("q", shards=2, concurrency=1))
    with pytest.raises(AlreadyExists, match=f"shards: 2, not {shards}.*concurrency: 1, not 9") as refused:
        other(world).create(QueueConfig("q", shards=shards, concurrency=9))
    assert refused.value.code == "ALREADY_EXISTS"


def test_times_that_differ_are_said_in_words(registry):
    registry.create(QueueConfig("q", message_expiry=108))
    with pytest.raises(AlreadyExists, match=r"\(message_expiry: 108 s, not 3 min\)"):
        registry.create(QueueConfig("q", message_expiry=180))
    registry.create(QueueConfig("r", backoff=5))
    with pytest.raises(AlreadyExists, match=r"\(backoff: 5 s, not 10 s; shovel: None, not each 1 min, 2 threads\)"):
        registry.create(QueueConfig("r", backoff=10, shovel=ShovelConfig(60, 2)))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"backoff": -1}, "backoff is -1 s; it must be 0.001 s to 365 days"),
        ({"message_expiry": timedelta(days=400)}, "message_expiry is 400 days; it must be "),
        ({"sweep_duration": 600.0005}, "sweep_duration is 600.0005 s; it must be in whole milliseconds"),
    ],
)
def test_a_time_that_is_not_allowed_is_said_in_words(settings, told):
    with pytest.raises(InvalidRequest) as refused:
        QueueConfig("q", **settings)
    assert told in str(refused.value)


def test_a_queue_that_was_scaled_is_still_the_same(registry, world):
    registry.create(QueueConfig("q", concurrency=2)).scale(5)
    assert other(world).create(QueueConfig("q", concurrency=2)).concurrency == 5


def test_a_queue_that_is_not_there_is_not_found(registry):
    for ask in (registry.get, registry.deactivate, registry.activate, registry.last_sweep):
        with pytest.raises(NotFound):
            ask("nobody")


def test_queues_are_listed_by_activity(registry, world):
    for name in ("b", "a", "c"):
        registry.create(QueueConfig(name))
    registry.deactivate("b")
    lists = other(world)
    assert [q.name for q in lists.queues()] == ["a", "c"]
    assert [q.name for q in lists.queues(active=False)] == ["b"]
    assert [q.name for q in lists.queues(active=None)] == ["a", "b", "c"]


def test_a_deactivated_queue_takes_no_more_messages_until_it_is_created_again(registry):
    queue = registry.create(QueueConfig("q"))
    registry.deactivate("q")
    with pytest.raises(Refused):
        queue.publish("x")
    assert registry.create(QueueConfig("q")) is queue
    assert queue.publish("x")


def test_a_queue_that_is_activated_takes_messages_again_with_the_settings_that_it_has(registry, world):
    queue = registry.create(QueueConfig("q", shards=3))
    registry.deactivate("q")
    other(world).activate("q")
    registry.refresh()
    assert queue.publish("x")
    assert registry.get("q").config.shards == 3


def test_a_group_is_not_activated(registry):
    registry.create(QueueConfig("q")).group("mail")
    with pytest.raises(InvalidRequest, match="group"):
        registry.activate("q@mail")


def test_refresh_adopts_drops_and_follows(registry, world, clock):
    mine = registry.create(QueueConfig("mine", shovel=ShovelConfig(timedelta(seconds=60), 1)))
    elsewhere = other(world)
    elsewhere.create(QueueConfig("theirs"))
    elsewhere.get("mine").scale(9)
    record = elsewhere.records.key("mine")
    world.store.operate(record, Put("shovelInterval", 5), Put("shovelConcur", 3))
    registry.refresh()
    assert mine.concurrency == 9
    assert mine.live.shovel == ShovelConfig(timedelta(seconds=5), 3)
    assert set(registry._queues) == {"mine", "theirs"}
    world.store.delete(elsewhere.records.key("theirs"))
    registry.refresh()
    assert set(registry._queues) == {"mine"}


class Turning(MemoryStore):
    """Between the two queries of a listing it does what `then` says, once."""

    then = None

    def _query(self, set, bin, equals):
        if equals == "false" and self.then:
            then, self.then = self.then, None
            then()
        return super()._query(set, bin, equals)


def pause(queue):
    with pytest.warns(UserWarning, match="is paused"):
        queue.pause()


def test_a_group_that_another_thread_drops_during_a_refresh_fails_no_receive(registry, monkeypatch):
    group = registry.create(QueueConfig("q", shards=1)).group("g")
    group.receive()
    find = registry.records.find

    def find_as_it_is_dropped(name, *bins):
        monkeypatch.setattr(registry.records, "find", find)
        found = find(name, *bins)
        registry.forget(group)  # the last step of the other thread's `drop`
        return found

    registry.store.delete(registry.records.key(group.name))
    monkeypatch.setattr(registry.records, "find", find_as_it_is_dropped)
    registry.refresh()
    assert [queue.name for queue in registry.queues()] == ["q"]


def test_a_queue_that_is_activated_while_a_refresh_lists_is_neither_dropped_nor_forgotten():
    store = Turning(ManualClock())
    here, there = QueueRegistry(store, "c"), QueueRegistry(store, "c")
    queue, config = here.create(QueueConfig("q")), QueueConfig("q")
    there.create(config)
    there.deactivate("q")
    store.then = lambda: there.create(config)
    here.refresh()
    assert (here.get("q") is queue, queue.live.active) == (True, True)
    pause(there.get("q"))
    here.refresh()
    assert queue.concurrency == 0


def test_a_queue_that_is_deactivated_while_it_is_listed_is_listed_once():
    store = Turning(ManualClock())
    registry = QueueRegistry(store, "c")
    registry.create(QueueConfig("q"))
    store.then = lambda: registry.deactivate("q")
    assert [queue.live.active for queue in registry.queues(active=None)] == [False]


@pytest.mark.parametrize("shards", [1, 2], ids=["with the same settings", "with others"])
def test_an_object_from_before_a_queue_was_made_anew_follows_it_and_keeps_it_alive(shards):
    clock = ManualClock()
    store, day = MemoryStore(clock), timedelta(days=1)
    here, there = QueueRegistry(store, "c"), QueueRegistry(store, "c")
    times = {"message_expiry": day, "queue_expiry": day}
    old = here.create(QueueConfig("q", shards=1, **times))
    store.delete(here.records.key("q"))
    here.refresh()
    new = there.create(QueueConfig("q", shards=shards, **times))
    here.refresh()
    assert (here.get("q") is old) == (shards == 1)
    clock.advance(100_000)
    assert old.publish("x")  # which refreshes
    clock.advance(100_000)
    assert [queue.name for queue in there.queues()] == ["q"]
    pause(new)
    here.refresh()
    assert old.concurrency == 0


def test_a_queue_whose_record_cannot_be_read_for_a_while_stays_the_same_object(caplog):
    store = MemoryStore(ManualClock())
    registry = QueueRegistry(store, "c")
    queue = registry.create(QueueConfig("q", shards=2))
    for shards in ("two", 2):
        store.operate(registry.records.key("q"), Put("shards", shards))
        registry.refresh()
        assert registry.get("q") is queue
    assert "'q'" in caplog.text


@pytest.mark.parametrize("changed", [0, 1], ids=["by the first", "by the second"])
def test_objects_of_one_queue_with_different_codecs_follow_each_other(changed):
    store = MemoryStore(ManualClock())
    QueueRegistry(store, "c").create(QueueConfig("q"))
    registry = QueueRegistry(store, "c")
    both = registry.get("q"), registry.create(QueueConfig("q", codec=dict))
    pause(both[changed])
    assert [queue.concurrency for queue in both] == [0, 0]
    QueueRegistry(store, "c").get("q").scale(7)
    registry.refresh()
    assert [queue.concurrency for queue in both] == [7, 7]


def test_queues_in_use_refresh_after_one_minute_and_then_every_five():
    clock = ManualClock()
    store = CountingStore(MemoryStore(clock))
    queue = QueueRegistry(store, "c").create(QueueConfig("q"))
    store.reset()
    looked = []
    for _ in range(12):
        clock.advance(61)
        queue.publish("x")
        looked.append(store.calls["query"])
        store.reset()
    assert looked == [2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 2, 0]


def test_a_queue_in_use_does_not_expire_and_an_unused_one_does():
    clock = ManualClock()
    store = MemoryStore(clock)
    registry = QueueRegistry(store, "c")
    day = timedelta(days=1)
    used = registry.create(QueueConfig("used", message_expiry=day, queue_expiry=day))
    registry.create(QueueConfig("unused", message_expiry=day, queue_expiry=day))
    for _ in range(5):
        clock.advance(43_000)
        used.publish("x")
    assert [queue.name for queue in registry.queues()] == ["used"]


@pytest.mark.parametrize("how", ["create", "get"])
@pytest.mark.parametrize("hours", [7, 24, 47])
def test_a_queue_that_short_lived_processes_use_keeps_its_record_and_its_settings(simulated, how, hours):
    config = QueueConfig("q", message_expiry=timedelta(days=1), queue_expiry=timedelta(days=1))
    other(simulated).create(config).scale(7)
    for _ in range(1 + 200 // hours):
        simulated.clock.advance(hours * 3600)
        registry = other(simulated)
        queue = registry.create(config) if how == "create" else registry.get("q")
        assert queue.concurrency == 7
    simulated.clock.advance(49 * 3600)
    with pytest.raises(NotFound):
        other(simulated).get("q")


@pytest.mark.parametrize("how", ["create", "get"])
def test_a_queue_can_be_looked_at_where_its_record_cannot_be_renewed(simulated, how, caplog, monkeypatch):
    config = QueueConfig("q", message_expiry=timedelta(days=2), queue_expiry=timedelta(days=2))
    other(simulated).create(config)
    simulated.clock.advance(48 * 3600)
    registry = other(simulated)

    def full(*what):
        raise Unavailable("the device is full")

    monkeypatch.setattr(registry.records, "change", full)
    queue = registry.create(config) if how == "create" else registry.get("q")
    assert queue.depth().ready == 0
    assert "the device is full" in caplog.text


def test_a_queue_that_a_long_lived_process_asks_for_again_and_again_lives_on(simulated):
    config = QueueConfig("q", message_expiry=timedelta(days=1), queue_expiry=timedelta(days=1))
    other(simulated).create(config)
    registry = other(simulated)
    for _ in range(60):
        simulated.clock.advance(3600)
        assert registry.get("q").depth().ready == 0
    assert other(simulated).get("q").depth().ready == 0


@pytest.mark.parametrize("how", ["create", "get"])
def test_to_ask_for_a_queue_that_was_used_lately_writes_nothing(how):
    clock = ManualClock()
    store = CountingStore(MemoryStore(clock))
    config = QueueConfig("q", message_expiry=timedelta(days=2), queue_expiry=timedelta(days=2))
    QueueRegistry(store, "c").create(config)
    written = {}
    for hours in (8, 2):
        clock.advance(hours * 3600)
        registry = QueueRegistry(store, "c")
        store.reset()
        registry.create(config) if how == "create" else registry.get("q")
        written[hours] = store.calls["operate"]
    assert written == {8: 0, 2: 1}


def test_a_deactivated_queue_that_is_asked_for_lives_no_longer():
    clock = ManualClock()
    store = MemoryStore(clock)
    day = timedelta(days=1)
    QueueRegistry(store, "c").create(QueueConfig("q", message_expiry=2 * day, queue_expiry=2 * day))
    QueueRegistry(store, "c").deactivate("q")
    for _ in range(4):
        clock.advance(86_000)
        registry = QueueRegistry(store, "c")
        assert not registry.get("q").live.active
    clock.advance(2000)
    with pytest.raises(NotFound):
        QueueRegistry(store, "c").get("q")


@pytest.mark.parametrize("wrong", ["9", None, True, 0, 61], ids=repr)
def test_a_pause_between_looks_that_is_none_is_refused_by_its_value(wrong):
    with pytest.raises(
        InvalidRequest, match=f"idle_look is {wrong!r}; it must be seconds, or a timedelta, of 0.05 to 60"
    ):
        QueueRegistry(MemoryStore(), "c", idle_look=wrong)


def test_a_queue_created_again_goes_on_from_its_pointers(registry, world):
    queue = registry.create(QueueConfig("q", shards=1))
    queue.publish_many(["a", "b", "c"])
    assert len(queue.receive(2)) == 2
    world.store.delete(registry.records.key("q"))
    again = other(world).create(QueueConfig("q", shards=1))
    assert [d.payload for d in again.receive(5)] == ["c"]


def test_pause_gives_nothing_and_warns_and_resume_goes_back(registry, world):
    queue = registry.create(QueueConfig("q", concurrency=3))
    queue.publish("x")
    with pytest.warns(UserWarning, match="go on expiring"):
        queue.pause()
    assert (queue.concurrency, queue.receive()) == (0, [])
    assert other(world).get("q").concurrency == 0
    queue.scale(6)
    with pytest.warns(UserWarning, match="is paused"):
        queue.pause()
    queue.resume()
    assert queue.concurrency == 6
    assert len(queue.receive()) == 1
    with pytest.raises(TooManyConsumers):
        queue.scale(101)


def test_the_farm_is_the_argument_else_the_environment_else_local(monkeypatch):
    store = MemoryStore()
    monkeypatch.delenv("LATCHWORK_FARM", raising=False)
    assert QueueRegistry(store, "c").records.set == "local_c_ignis_queues"
    monkeypatch.setenv("LATCHWORK_FARM", "blr")
    assert QueueRegistry(store, "c").records.set == "blr_c_ignis_queues"
    assert QueueRegistry(store, "c", farm_id="x").records.set == "x_c_ignis_queues"


@pytest.mark.parametrize("client_id", ["", "c" * 60])
def test_a_client_id_that_makes_no_set_name_is_refused_before_any_io(client_id):
    store = CountingStore(MemoryStore())
    with pytest.raises(InvalidRequest):
        QueueRegistry(store, client_id)
    assert store.total == 0


def test_a_type_to_decode_is_the_callers_and_survives_a_refresh():
    store = MemoryStore()
    QueueRegistry(store, "c").create(QueueConfig("q"))
    registry = QueueRegistry(store, "c")
    assert registry.get("q").config.codec == "json"
    typed = registry.create(QueueConfig("q", codec=dict[str, int]))
    assert typed.codec.kind == dict[str, int]
    registry.refresh()
    assert registry.get("q") is typed


@pytest.mark.parametrize(("sweep", "timeout"), [(5, 2.5), (20, 10), (40, 10), (300, 10)])
def test_a_record_that_says_no_handler_timeout_has_the_default_of_its_sweep_duration(sweep, timeout):
    """As the Java library leaves one: it has no bin for the timeout."""
    store = MemoryStore()
    registry = QueueRegistry(store, "c")
    config = QueueConfig("q", sweep_duration=timedelta(minutes=sweep), max_deliveries=5, retry=False)
    registry.create(config)
    store.operate(registry.records.key("q"), Put("settings", {}), Put("sweepDuration", sweep * 60_000))
    read = QueueRegistry(store, "c")
    assert read.get("q").config.handler_timeout == timedelta(minutes=timeout)
    assert QueueRegistry(store, "c").create(config).config == config


@pytest.mark.matrix
@pytest.mark.parametrize(
    "strange",
    [
        {"shovelConcur": 60, "shovelInterval": 30},
        {"shovelConcur": 60, "shovelInterval": 30, "settings": {}},
        {"shovelConcur": 1, "shovelInterval": "soon"},
        {"settings": {"shovel": [0]}},
        {"settings": {"backoff": 5}},
        {"settings": {"codec": "msgpack"}},
        {"settings": {"codec": ["json"]}},
        {"settings": {"codec": 5}},
        {"maxBatchSize": 1, "maxWaitTime": 5},
        {"shards": "8"},
        {"concurrency": "two"},
        {"sweepDuration": "long"},
        {"messageExpiry": 10**18},
        {"shards": 0},
        {"shards": -1},
        {"shards": 513},
        {"shards": 2**31},
        {"shards": True},
        {"shards": 8.0},
        {"concurrency": 101},
        {"concurrency": -1},
        {"concurrency": 2**62},
        {"messageExpiry": 0},
        {"messageExpiry": 2**62},
        {"queueExpiry": 5},
        {"queueExpiry": [1]},
        {"sweepDuration": 0},
        {"sweepDuration": 1000},
        {"sweepDuration": 2**62},
        {"handlerType": 7},
        {"shovelInterval": -5},
        {"shovelConcur": 2**40},
        {"maxBatchSize": 2**40},
        {"maxBatchSize": 10, "maxWaitTime": 2**40},
        {"settings": "text"},
        {"settings": {"handlerTimeout": 2**40}},
        {"settings": {"maxDeliveries": 0}},
        {"settings": {"maxDeliveries": "many"}},
        {"settings": {"resumeTo": "many"}},
        {"settings": {"shovel": [2**40, 1]}},
        {"settings": {"shovel": {"a": 1}}},
        {"settings": {"unsafe": "yes"}},
        {"settings": {1: 2}},
    ],
    ids=str,
)
def test_a_record_that_no_settings_can_be_made_of_is_left_out_and_stops_no_other(strange, caplog):
    store = MemoryStore()
    registry = QueueRegistry(store, "c")
    for name in ("a", "b"):
        registry.create(QueueConfig(name))
    store.operate(registry.records.key("a"), *(Put(bin, value) for bin, value in strange.items()))
    assert [queue.name for queue in registry.queues(active=None)] == ["b"]
    assert "'a'" in caplog.text
    with pytest.raises(Unreadable, match="correct them"):
        QueueRegistry(store, "c").get("a")


@pytest.mark.parametrize(
    "settings",
    [
        {"batching": BatchingConfig(10, 2)},
        {"shovel": ShovelConfig(91)},
        {"message_expiry": 1},
        {"sweep_duration": 1_200.001},
        {"handler_timeout": 0.001},
        {"backoff": 5},
        {"backoff": timedelta(days=365)},
    ],
    ids=str,
)
def test_a_queue_of_any_settings_can_be_made(settings):
    registry = QueueRegistry(MemoryStore(), "c")
    queue = registry.create(QueueConfig("q", **settings))
    assert registry.create(QueueConfig("q", **settings)) is queue


@pytest.mark.parametrize(("stored", "pointer"), [(7, 7), (0, 0), (-1, 0), (2**63, 0), ("7", 0), (None, 0)])
def test_a_damaged_sweep_pointer_counts_as_none(stored, pointer):
    assert registry_module._swept({"3": stored}, 3) == pointer
    assert registry_module._swept({"3": stored}, 4) == 0
