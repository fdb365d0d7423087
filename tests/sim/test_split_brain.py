"""A namespace whose replicas were apart and then kept what was written last (F14): what is not promised there, and what
holds nevertheless. Strong consistency, or a single replica, has no such moment.
"""

from __future__ import annotations

import pytest

from latchwork.coord.latch.latch import CountDownLatch
from latchwork.coord.lock import FencedLock
from latchwork.errors import LatchworkError
from latchwork.store import Add, Exists, Key, Once, Put

from .scripts.sharded import queue_on
from .stage import Stage

KEY = Key("sim", "record")
APART, TOGETHER = 1.0, 5.0
"""When the replicas lose each other, and find each other again, in seconds; `a` is with one, `b` with the other."""


@pytest.fixture
def stage(proved):
    made = Stage()
    made.world.at(APART, lambda: made.split("b"))
    made.world.at(TOGETHER, made.heal)
    proved("not promised, by script", "split brain", {"shown": 1, "F14 split brain": 1})
    return made


def test_one_of_two_updates_is_lost_not_promised(stage):
    def add(store):
        return store.operate(KEY, Add("n", 1), once=Once(8, answer="n"))[0]

    stage.act("setup", lambda store: store.operate(KEY, Put("n", 0), exists=Exists.CREATE))
    stage.act("a", add, after=2)
    stage.act("b", add, after=3)
    stage.play()
    assert (stage.said["a"], stage.said["b"], stage.bins(KEY)["n"]) == (1, 1, 1)


def test_two_hold_one_lock_not_promised(stage):
    def take(store):
        return FencedLock(store, "lock", lease=30.0).acquire(1)

    stage.act("a", take, after=2)
    stage.act("b", take, after=3)
    stage.play()
    first, second = stage.said["a"], stage.said["b"]
    assert second.fence > first.fence, "the later one has the higher fence, by the server's time"


def test_a_resource_outside_refuses_the_earlier_of_two_holders(stage):
    """The lock's namespace was split; the resource's was not."""
    resource = Stage()

    def write(store, pause):
        grant = FencedLock(store, "lock", lease=30.0).acquire(1)
        store.seams.sleep(pause)
        store.server = resource.server
        grant.operate(KEY, Put("by", store.process.name))

    stage.act("a", lambda store: write(store, 10), after=2)
    stage.act("b", lambda store: write(store, 1), after=3)
    stage.play()
    assert isinstance(stage.said["a"], LatchworkError)
    assert resource.bins(KEY)["by"] == "b"


def test_a_latch_forgets_counts_but_is_not_released_early(stage):
    stage.act("setup", lambda store: CountDownLatch.create(store, "c", "l", 2))
    stage.act("a", lambda store: CountDownLatch.get(store, "c", "l").count_down(party="a"), after=2)
    stage.act("b", lambda store: CountDownLatch.get(store, "c", "l").count_down(party="b"), after=3)
    stage.act("w", lambda store: CountDownLatch.get(store, "c", "l").wait(3), after=6)
    stage.play()
    assert stage.said["w"] is False


def test_a_latch_is_released_once_the_forgotten_party_counts_again(stage):
    def twice(store):
        latch = CountDownLatch.get(store, "c", "l")
        latch.count_down(party="a")
        store.seams.sleep(5)
        return latch.count_down(party="a")

    stage.act("setup", lambda store: CountDownLatch.create(store, "c", "l", 2))
    stage.act("a", twice, after=2)
    stage.act("b", lambda store: CountDownLatch.get(store, "c", "l").count_down(party="b"), after=3)
    stage.act("w", lambda store: CountDownLatch.get(store, "c", "l").wait(10), after=6)
    stage.play()
    assert stage.said["w"] is True


def test_one_of_two_messages_is_lost_not_promised(stage):
    def drain(store):
        return [delivery.payload for delivery in queue_on(store).receive(10)]

    stage.act("setup", queue_on)
    stage.act("a", lambda store: queue_on(store).publish("m"), after=2)
    stage.act("b", lambda store: queue_on(store).publish("n"), after=3)
    stage.act("c", drain, after=6)
    stage.play()
    assert stage.said["c"] == ["n"]
