"""Every public name of the sync surface has a twin on a loop, or is said to have none."""

from __future__ import annotations

import asyncio
import inspect

import pytest

import latchwork
from latchwork import aio, coord, queue
from latchwork.errors import InvalidRequest, LockUnavailable
from latchwork.store import MemoryStore, RecordStore
from latchwork.testing import CountingStore

IN_A_THREAD = {
    "LargeQueue", "PagedQueue", "Outbox", "Shovel", "Sweeper", "UnopenedQueue", "GlobalElection", "ConsumerGroup",
}  # fmt: skip
"""Used by `aio.call`."""
VALUES = {
    # results, settings and reports: they do no I/O, and are the same on both surfaces
    "Step", "LatchLevel", "LatchProgress", "Holder", "Member", "Change", "Decision", "BarrierProgress", "Batch",
    "BatchingConfig", "BatchProgress", "BatchResult", "Entry", "LastSweep", "Message", "OutboxLag", "Outcome",
    "PagedEntry", "PassReport", "Publish", "QueueConfig", "QueueDepth", "QueueInfo", "Reason", "Schedule",
    "ScheduleState",
    "ShardReport", "ShovelConfig", "State", "Status", "SweepReport", "Transaction",
}  # fmt: skip
PAIRS = [
    (getattr(module, name), getattr(aio, name))
    for module in (coord, queue)
    for name in module.__all__
    if name not in IN_A_THREAD | VALUES
] + [(RecordStore, aio.Store)]
MISSING = {
    # of the store: what belongs to a thread, or is asked without I/O
    (RecordStore, "together"), (RecordStore, "data_version"), (RecordStore, "policy"), (RecordStore, "seams"),
    (RecordStore, "tells_of_writes"), (RecordStore, "steps"),
    # the work of the upkeep and of consumers, which other objects of the library call
    *((queue.QueueRegistry, name) for name in ("publishable", "listed", "made_again", "scan", "refresh_if_due",
                                               "make_group",
                                               "groups_of", "forget", "set_concurrency", "resume", "follow")),
    *((kind, name) for kind in (queue.ShardedQueue, queue.QueueGroup) for name in (
        "await_messages", "awaits", "fail", "fail_later", "fail_many", "follow", "give_back", "hand_back", "home",
        "interrupting", "open_for_publishing", "prepare", "put_off", "shards_for", "states", "states_now",
        "turns", "settle", "steps", "target", "drop_cancelled", "ends", "was_dropped", "check_there", "make_again",
        "reader", "take_over", "give_up_late", "settle_in", "kept", "for_publishing", "made_again", "with_message")),
    *(
        (kind, name)
        for kind in (queue.Consumer, queue.Worker)
        for name in ("allot", "belong_to_worker", "checks", "refuse_own_handler")
    ),
    (queue.Task, "handle"), (queue.Task, "stored_signature"),
    (queue.Delivery, "held"), (queue.Delivery, "view"), (queue.Delivery, "stop"), (queue.Delivery, "applied"),
    (coord.OnceStep, "lease"), (coord.OnceStep, "another"),
    (queue.Delivery, "told"), (queue.Delivery, "answer"), (queue.Delivery, "cancelled"), (queue.Delivery, "ended"),
    # a future for threads
    *((queue.Publication, name) for name in ("add_done_callback", "cancel", "cancelled", "running",
                                             "set_exception", "set_result", "set_running_or_notify_cancel", "resolve")),
    (coord.Group, "seams"), (coord.Group, "watcher"),
    *((kind, "reset_after_fork") for kind, _ in PAIRS), *((kind, "gives_back_late") for kind, _ in PAIRS),
}  # fmt: skip


def public(kind) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("kind", "twin"), PAIRS, ids=lambda kind: getattr(kind, "__module__", "") + kind.__name__)
def test_every_public_name_has_a_twin(kind, twin):
    without = {name for name in public(kind) - public(twin) if (kind, name) not in MISSING}
    assert without == set()


def test_the_views_of_messages_that_wait_have_their_documented_verbs():
    for view in (aio.SideView, aio.DelayedView):
        assert {"search", "discard", "redrive", "move"} <= public(view)
    assert {"receive", "peek", "ack_many"} <= public(aio.SideView)


def test_every_public_class_has_a_twin_or_is_called_in_a_thread():
    names = {*coord.__all__, *queue.__all__} - IN_A_THREAD - VALUES
    assert names - set(aio.__all__) == set()
    assert {*IN_A_THREAD, *VALUES} <= {*coord.__all__, *queue.__all__}, "no name here is old"


@pytest.mark.parametrize(("kind", "twin"), PAIRS, ids=lambda kind: getattr(kind, "__module__", "") + kind.__name__)
def test_a_twin_takes_the_same_parameters(kind, twin):
    for name in public(kind) & public(twin):
        ours, theirs = inspect.getattr_static(twin, name), inspect.getattr_static(kind, name)
        if (
            isinstance(ours, aio_verbs())
            or not callable(getattr(twin, name))
            or name in ("checks", "consume")
            or kind is queue.QueueGroup
        ):
            continue  # made of the sync verb itself
        assert parameters(ours) == parameters(theirs), name


def aio_verbs():
    from latchwork.aio.coord import created, got
    from latchwork.aio.twin import attribute, verb, verb_as

    return (verb, verb_as, created, got, attribute, property)


def parameters(function) -> list[str]:
    function = getattr(function, "__func__", function)
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls", "_", "__")]


def test_a_sync_store_is_refused_with_the_remedy():
    for wrong in (MemoryStore(), "memory:", None):
        with pytest.raises(InvalidRequest, match=r"not an aio\.Store.*aio\.connect"):
            aio.FencedLock(wrong, "x")
    with pytest.raises(InvalidRequest, match="use that"):
        aio.Store(aio.connect("memory:").bridged)


def test_what_is_no_twin_is_refused_by_name_before_any_call(run):
    store = CountingStore(MemoryStore())
    twin, of = aio.Store(store), coord.RateLimiter(MemoryStore(), "x", 1, 1.0)

    async def main():
        there = await aio.QueueRegistry(twin, "c").create(queue.QueueConfig("q", shards=1))
        store.reset()
        for wrong in (there.of, None, "q"):
            with pytest.raises(InvalidRequest, match=r"^queue is .* of latchwork\.aio$"):
                aio.Consumer(wrong, print)
        with pytest.raises(InvalidRequest, match=r"^registry is .*; it must be a QueueRegistry of latchwork\.aio$"):
            aio.Worker(there)
        with pytest.raises(InvalidRequest, match=r"^rate is .*; it must be a RateLimiter of latchwork\.aio$"):
            aio.Consumer(there, print, rate=of)
        with pytest.raises(InvalidRequest, match=r"^a delivery is .*; it must be a Delivery of latchwork\.aio$"):
            await there.ack_many([7])
        assert store.total == 0

    run(main())


WAITS = {
    "FencedLock.acquire": lambda s: coord.FencedLock(s, "x").acquire(1),
    "FencedLock.acquire by with": lambda s: coord.FencedLock(s, "x").__enter__(),
    "Lost.wait": lambda s: coord.FencedLock(s, "x").try_acquire().lost.wait(1),
    "Semaphore.acquire": lambda s: coord.Semaphore(s, "x", permits=1).acquire(),
    "ReadWriteLock.read": lambda s: coord.ReadWriteLock(s, "x").read(1),
    "RateLimiter.acquire": lambda s: coord.RateLimiter(s, "x", 1, 1.0).acquire(1),
    "CountDownLatch.wait": lambda s: coord.CountDownLatch.get(s, "c", "x").wait(1),
    "Barrier.wait": lambda s: coord.Barrier(s, "c", "x", parties=["a"]).wait("a"),
    "Group.watch": lambda s: coord.Group(s, "x").watch(1),
    "OnceStep.run by with": lambda s: latchwork.once(s, key="x").__enter__(),
    "LeaseElection.run": lambda s: coord.LeaseElection(s, "x").run(print, 1),
    "ShardedQueue.receive": lambda s: queue.QueueRegistry(s, "c").create(queue.QueueConfig("q")).receive(timeout=1),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_sync_wait_in_the_thread_of_a_loop_is_refused_at_once_and_names_its_twin(name):
    store = MemoryStore()

    async def main():
        with pytest.raises(InvalidRequest, match=f"await {name.split()[0]}.* of latchwork.aio"):
            WAITS[name](store)

    asyncio.run(main())
    store = aio.Store(MemoryStore()).of  # also where a twin's own sync object waits
    asyncio.run(main())
    twin, verb = name.split()[0].split(".")
    assert hasattr(getattr(aio, twin), verb)


def test_a_sync_call_that_waits_for_no_time_is_made_in_the_thread_of_a_loop():
    store = MemoryStore()

    async def main():
        grant = coord.FencedLock(store, "x").acquire(0)
        assert grant.lost.wait(0) is False
        with pytest.raises(LockUnavailable):
            coord.FencedLock(store, "x").acquire(0)
        grant.release()

    asyncio.run(main())


def test_other_sync_calls_there_are_logged_once_with_their_place(tmp_path, caplog, monkeypatch):
    from latchwork import blocking

    monkeypatch.setattr(blocking, "_is_said", False)
    store = latchwork.connect(f"sqlite:{tmp_path}/s.db")

    async def main():
        for _ in range(3):
            store.scan("nothing")

    store.scan("nothing")
    assert caplog.records == [], "no loop runs"
    asyncio.run(main())
    (line,) = caplog.records
    assert __file__ in line.getMessage()
    assert "latchwork.aio" in line.getMessage()
    store.close()
