"""What the memory store does by itself: in a forked child, which has a copy, and where a server would not know."""

from __future__ import annotations

import os

from latchwork.store import Add, Bin, Compute, Exists, Key, MemoryStore, Put, Read
from tests.support.forking import held_by_another_thread

KEY = Key("s", "k")


def test_a_child_forked_in_the_middle_of_another_threads_call_uses_its_copy():
    store = MemoryStore()
    store.operate(KEY, Put("n", 1), exists=Exists.CREATE)
    reading, writing = os.pipe()
    with held_by_another_thread(store._lock):
        child = os.fork()
        if not child:
            free = store._lock.acquire(blocking=False)
            os.write(writing, b"%d" % (store.operate(KEY, Add("n", 1), Read("n"))[0] if free else 0))
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"2"
    assert store.get(KEY).bins == {"n": 1}


def test_maps_within_lists_are_compared_with_their_kinds_too():
    """Of the stores in a process alone: a server may say that it cannot know."""
    store, here = MemoryStore(), Bin("l", list)
    store.operate(Key("s", "k"), Put("l", [{"a": 1}]), exists=Exists.CREATE)
    asked = [here.eq([{"a": 1}]), here.eq([{"a": 1.0}]), here < [{"a": 2}], here < [{"a": 1, "b": 0}]]
    assert store.operate(Key("s", "k"), *map(Compute, asked)) == (True, False, True, True)
