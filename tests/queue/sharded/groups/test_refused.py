"""A group has every verb of a queue: it does what it can, and refuses the others with the remedy."""

from __future__ import annotations

import pytest

from latchwork.errors import InvalidRequest
from latchwork.queue import QueueConfig, QueueGroup, QueueRegistry, ShardedQueue
from latchwork.store import MemoryStore

REFUSED = ("publish", "publish_many", "publisher", "for_publishing", "batch", "group", "status", "result")


@pytest.fixture
def group():
    return QueueRegistry(MemoryStore(), "c").create(QueueConfig("q", shards=1)).group("audit")


def test_a_group_is_no_queue_and_has_its_verbs(group):
    assert not isinstance(group, ShardedQueue)
    ours = {"batches", "unique_keys", "turns", "reset_after_fork"}  # of the queue itself, and no verbs of users
    verbs = {name for name in dir(ShardedQueue) if not name.startswith("_")}
    assert verbs - ours - set(dir(QueueGroup)) == set()


@pytest.mark.parametrize("verb", REFUSED)
def test_what_only_a_queue_does_is_refused_with_the_name_of_the_queue(group, verb):
    with pytest.raises(InvalidRequest, match=r"is a group: .*'q'"):
        getattr(group, verb)("m")


def test_a_group_has_no_groups_and_no_batches_of_its_own(group):
    assert group.groups() == group.list_batches() == []
