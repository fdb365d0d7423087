"""The memory store in a forked child, which has a copy of the records."""

from __future__ import annotations

import os
import threading

from latchwork.store import Add, Exists, Key, MemoryStore, Put, Read

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
    over.set()
    another.join()
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"2"
    assert store.get(KEY).bins == {"n": 1}
