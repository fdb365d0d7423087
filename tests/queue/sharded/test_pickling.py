"""What of a queue can be pickled, and what says what to pickle instead."""

from __future__ import annotations

import pickle
import warnings

import pytest

from latchwork.coord import FencedLock, Group, LeaseElection, ReadWriteLock, Semaphore
from latchwork.errors import InvalidRequest
from latchwork.queue import Consumer, Outbox, PagedQueue, QueueConfig, QueueRegistry, Worker
from latchwork.store import SQLiteStore


@pytest.fixture
def registry(tmp_path):
    store = SQLiteStore(tmp_path / "store.db", synchronous="off")
    yield QueueRegistry(store, "c", farm_id="f", idle_look=7)
    store.close()


@pytest.fixture
def queue(registry):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return registry.create(QueueConfig("q", shards=1))


def test_a_registry_pickles_with_its_store_and_finds_its_queues_there(registry, queue):
    queue.publish("a")
    there = pickle.loads(pickle.dumps(registry))
    assert (there.client_id, there.farm_id, there.idle_look) == ("c", "f", 7)
    assert [one.payload for one in there.get("q").receive(1)] == ["a"]
    there.store.close()


HANDLES = {
    "queue": lambda queue: queue,
    "sideline": lambda queue: queue.sideline,
    "group": lambda queue: queue.group("g"),
    "consumer": lambda queue: Consumer(queue, print),
    "worker": lambda queue: Worker(queue.registry),
    "publisher": lambda queue: queue.publisher(),
    "election": lambda queue: LeaseElection(queue.store, "e"),
    "grant of a lock": lambda queue: FencedLock(queue.store, "l").acquire(),
    "permits": lambda queue: Semaphore(queue.store, "s", permits=2).acquire(),
    "read grant": lambda queue: ReadWriteLock(queue.store, "r").read(),
    "membership": lambda queue: Group(queue.store, "m").join("me"),
}


@pytest.mark.parametrize("handle", HANDLES)
def test_a_handle_of_this_process_says_what_to_pickle_instead(queue, handle):
    made = HANDLES[handle](queue)
    with pytest.raises(InvalidRequest, match=f"{type(made).__name__} cannot be pickled: pickle "):
        pickle.dumps(made)
    if handle == "publisher":
        made.close()


def test_a_leadership_says_what_to_pickle_instead(registry):
    said = []
    election = LeaseElection(registry.store, "e", lease=5)

    def lead(leadership):
        with pytest.raises(InvalidRequest, match="Leadership cannot be pickled: pickle "):
            pickle.dumps(leadership)
        said.append(leadership.epoch)

    election.run(lead, timeout=30)
    assert said


def test_a_paged_queue_and_its_outbox_say_what_to_pickle_instead(queue, tmp_path):
    with PagedQueue.open(tmp_path / "pages", "out") as pq:
        for made in (pq, Outbox(pq, queue)):
            with pytest.raises(InvalidRequest, match=f"{type(made).__name__} cannot be pickled: pickle "):
                pickle.dumps(made)


def test_a_name_that_is_too_long_for_a_group_is_called_one(registry):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        queue = registry.create(QueueConfig("q" * 180, shards=1))
    with pytest.raises(InvalidRequest, match=r"group name .* give the group a shorter one"):
        queue.group("g" * 20)
