"""What the tests of consumers share: a process in which nothing runs by itself, and a queue of one shard."""

from __future__ import annotations

import warnings

from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.testing.clock import ManualClock


class OneThread(ManualClock):
    """Nothing runs in the background: the test is the worker and the keeper."""

    def spawn(self, run, name):
        return None


def made(store, **options):
    """A queue that no sweep disturbs for a minute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return QueueRegistry(store, "c").create(
            QueueConfig("q", **{"retry": False, "shards": 1, "sweep_duration": 60, "unsafe_limits": True, **options})
        )
