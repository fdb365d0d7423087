"""What the memory store does by itself: in a forked child, which has a copy, and where a server would not know."""

from __future__ import annotations

import os
import threading

from latchwork.store import Add, Bin, Compute, Exists, Key, MemoryStore, Put, Read

KEY = Key("s", "k")


def test_a_child_forked_in_the_middle_of_another_threads_call_uses_its_copy():
    store, held, over = MemoryStore(), threading.Event(), threading.Event()
    store.operate(KEY, Put("n", 1), exists=Exists.CREATE)

    def call():
        with store._lock:
            held.set()
            over.wait(60)

    another = threading.Thread(target=call)
    another.start()
    assert held.wait(60)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        free = store._lock.acquire(blocking=False)
        os.write(writing, b"%d" % (store.operate(KEY, Add("n", 1), Read("n"))[0] if free else 0))
        os._exit(0)
    os.close(writing)
    over.set()
    another.join()
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"2"
    assert store.get(KEY).bins == {"n": 1}


def test_maps_within_lists_are_compared_with_their_kinds_too():
    """Of the stores in a process alone: a server may say that it cannot know."""
    store, here = MemoryStore(), Bin("l", list)
    store.operate(Key("s", "k"), Put("l", [{"a": 1}]), exists=Exists.CREATE)
    asked = [here.eq([{"a": 1}]), here.eq([{"a": 1.0}]), here < [{"a": 2}], here < [{"a": 1, "b": 0}]]
    assert store.operate(Key("s", "k"), *map(Compute, asked)) == (True, False, True, True)
