"""What live handles of each primitive do when the store comes back empty: say that it is gone, or begin again."""

from __future__ import annotations

import shutil
import warnings

import pytest

import latchwork
from latchwork.coord import CountDownLatch, FencedLock, RateLimiter, Semaphore
from latchwork.errors import FencedOut, LeaseLost, NotFound
from latchwork.queue import LargeQueue, QueueConfig, QueueRegistry, Sweeper
from latchwork.store import Key, MemoryStore, Put
from latchwork.testing.clock import ManualClock
from tests.support.real_servers import or_skip
from tools import servers

from .queue.sharded.world import Election


class Emptied:
    """A store in memory that is emptied."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.sweep, self.pause = 300, self.clock.advance

    def come_back_empty(self) -> None:
        self.store._records.clear()
        self.clock.advance(0.01)  # a restart takes its time

    def close(self) -> None:
        pass


class Restarted:
    """A real server that is started again with nothing of what it had, its indexes included."""

    def __init__(self) -> None:
        self.server = servers.started(servers.Asd())
        self.store = latchwork.connect(self.server.url)
        self.sweep, self.pause = 1, self.store.seams.sleep

    def come_back_empty(self) -> None:
        self.server.stop()
        smd = self.server.directory / "work" / "smd"
        shutil.rmtree(smd)
        smd.mkdir()
        self.server.start()
        servers.until(lambda: _answers(self.store))

    def close(self) -> None:
        self.store.close()
        self.server.close()


def _answers(store) -> bool:
    try:
        return store.get(Key("t", "t")) is None
    except latchwork.LatchworkError:
        return False


@pytest.fixture(
    params=[Emptied, pytest.param(Restarted, marks=pytest.mark.long)], ids=["memory", "aerospike"], scope="module"
)
def place(request):
    with or_skip():
        made = request.param()
    yield made
    made.close()


@pytest.fixture(scope="module")
def handles(place):
    """A handle of each primitive, used before the store came back empty."""
    store = place.store
    found = {"latch": CountDownLatch.create(store, "shop", "run", parties=["a", "b"], farm_id="f")}
    found["latch"].count_down(party="a")
    found["lock"] = FencedLock(store, "account", lease=30)
    found["grant"] = found["lock"].acquire(timeout=20)
    found["renewed"] = FencedLock(store, "other", lease=30).acquire(timeout=20)
    found["semaphore"] = Semaphore(store, "permits", permits=2, lease=30)
    found["permits"] = found["semaphore"].acquire(timeout=20)
    found["limiter"] = RateLimiter(store, "calls", 2, 60)
    found["limiter"].try_acquire(2)
    found["large"] = LargeQueue.create(store, "large", 100)
    found["large"].enqueue_many([1, 2, 3])
    found["group"] = found["large"].group("g")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = QueueConfig(
            "orders",
            retry=False,
            shards=1,
            sweep_duration=place.sweep,
            handler_timeout=place.sweep / 2,
            unsafe_limits=True,
        )
    found["queue"] = queue = QueueRegistry(store, "shop", farm_id="f").create(config)
    found["sweeper"] = Sweeper(queue.registry, Election(1))
    queue.publish_many(range(10))
    found["deliveries"] = queue.receive(5)
    queue.ack_many(found["deliveries"][:2])
    found["sweeper"].run_once()
    place.come_back_empty()
    return found


def test_a_latch_is_gone_and_never_reads_as_released(handles):
    for ask in (
        lambda: handles["latch"].count_down(party="b"),
        handles["latch"].count,
        lambda: handles["latch"].wait(20),
    ):
        with pytest.raises(NotFound):
            ask()


def test_the_next_grant_has_a_higher_fence_and_its_resource_refuses_the_one_from_before(handles):
    before, account = handles["grant"], Key("accounts", "42")
    after = handles["lock"].acquire(timeout=20)
    assert after.fence > before.fence
    after.operate(account, Put("balance", 1))
    with pytest.raises(FencedOut):
        before.operate(account, Put("balance", 2))
    assert before.release() is False


def test_a_grant_that_is_renewed_is_over(handles):
    grant = handles["renewed"]
    with pytest.raises(FencedOut):
        grant.renew()
    assert grant.lost.is_set()


def test_permits_are_over_and_the_next_fence_is_higher(handles):
    with pytest.raises(FencedOut):
        handles["permits"].renew()
    assert handles["semaphore"].acquire(2, timeout=20).fence > handles["permits"].fence


def test_a_limiter_begins_again(handles):
    assert handles["limiter"].try_acquire(2).allowed


def test_a_large_queue_is_gone_and_takes_nothing(handles):
    large = handles["large"]
    for ask in (
        lambda: large.enqueue(4),
        large.dequeue,
        large.info,
        lambda: large.read_at(1),
        lambda: handles["group"].read(1),
    ):
        with pytest.raises(NotFound):
            ask()


def test_a_sharded_queue_goes_on_is_made_again_and_what_a_dead_consumer_had_is_swept(handles, place):
    queue, sweeper = handles["queue"], handles["sweeper"]
    for settle in (handles["deliveries"][2].ack, handles["deliveries"][3].extend):
        with pytest.raises(LeaseLost):
            settle()
    ids = queue.publish_many(["m", "n", "o"])
    assert [delivery.message_id for delivery in queue.receive(2)] == ids[:2], "and that consumer dies"
    for _ in range(2):  # an index that is gone is noticed by the first
        try:
            queue.registry.refresh()
        except latchwork.LatchworkError:
            continue
    assert [one.name for one in queue.registry.queues()] == ["orders"]
    for _ in range(3):
        assert sweeper.run_once().ok
        place.pause(place.sweep * 1.5)
    assert sorted(message.message_id for message in queue.sideline.peek_all()) == sorted(ids[:2])
    assert [delivery.message_id for delivery in queue.receive(5)] == ids[2:]
