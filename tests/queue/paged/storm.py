"""A process of a storm of kills: it writes and reads one paged queue, and says what it has done, until it is killed."""

from __future__ import annotations

import os
import threading
import time

from latchwork.errors import AlreadyOpen
from latchwork.queue.paged.queue import PagedQueue

WRITERS, READERS = 3, 2
PAGE = 2048


def opened(directory):
    """The queue, once the process before this one has let go of it."""
    while True:
        try:
            return PagedQueue.open(directory, "q", page_size=PAGE, force_every=1, lifetime=0.01)
        except AlreadyOpen:
            time.sleep(0.001)


def id_of(data):
    """The id of a message, by its payload."""
    return data.split(b" ")[0].decode()


def work(directory, life, said):
    """Write, read and commit, and reclaim, in several threads, for ever.

    said: a file descriptor for lines: "forced ID", "read ID ID ..." before they are committed, "committed".
    """
    queue = opened(directory)
    cursor = queue.cursor("c")  # before anything is written: pages that no cursor needs are reclaimed by age

    def write(writer):
        number = 0
        while True:
            name = b"%d-%d-%d" % (life, writer, number)
            queue.append(name + b" " + bytes(number * 37 % 900))
            os.write(said, b"forced %b\n" % name)
            number += 1

    def read():
        while True:
            with cursor.turn:
                names = [id_of(entry.data) for entry in cursor.read(7, timeout=None)]
                os.write(said, f"read {' '.join(names)}\n".encode())
                cursor.commit()
                os.write(said, b"committed\n")
            queue.reclaim()

    for writer in range(WRITERS):
        threading.Thread(target=write, args=(writer,), daemon=True).start()
    for _ in range(READERS - 1):
        threading.Thread(target=read, daemon=True).start()
    read()
