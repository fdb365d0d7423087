"""A message bus that several programs share: one large circular queue, and groups that each read all of it.

    python examples/shared_bus.py

It runs on the embedded store in a temporary file; set LATCHWORK_STORE to use another one. Two departments write to the
bus; the archive must not miss anything, so the queue waits for it; the screen in the hall shows what it can.
"""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import latchwork
from latchwork.queue import LargeQueue

CAPACITY = 8


def write(url: str, department: str, count: int) -> None:
    """Put messages on the bus; where it is full the oldest go, once the archive has them."""
    bus = LargeQueue.open(latchwork.connect(url), "shared-msg-bus")
    for number in range(count):
        message = {"from": department, "number": number, "text": "The school is closed for summer."}
        while True:
            try:
                offset = bus.enqueue(message, txn_id=f"{department}-{number}", overwrite_if_full=True)
                break
            except latchwork.QueueFull:
                archive(url)
        print(f"{department} wrote its message {number} at offset {offset}")


def archive(url: str) -> int:
    """Read, keep, then commit: what is committed may be overwritten, and nothing else."""
    group = LargeQueue.open(latchwork.connect(url), "shared-msg-bus").group("archive", hold_head=True)
    batch = group.read(100)
    if batch:
        group.commit(batch[-1].offset)
    return len(batch)


def main(url: str) -> None:
    """Let two departments write at once, then look at the bus, read it, and empty it."""
    bus = LargeQueue.open_or_create(latchwork.connect(url), "shared-msg-bus", CAPACITY)
    bus.group("archive", hold_head=True)
    screen = bus.group("screen")

    writers = [threading.Thread(target=write, args=(url, name, 6)) for name in ("office", "library")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    print("\nstatus:", bus.info())
    print("what became of library-3:", bus.transaction("library-3"))
    batch = screen.read(3)
    print(f"the screen missed offsets {list(batch.gap)}, and shows:")
    for entry in batch:
        print("  ", entry.offset, entry.value["from"], entry.value["number"])
    newest = bus.read_at(bus.info().tail_offset - 1)
    print("read at an offset, without a lock:", newest and newest.value)

    archive(url)
    while (entry := bus.dequeue()) is not None:
        print("taken off the bus:", entry.offset, entry.value["from"], entry.value["number"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(os.environ.get("LATCHWORK_STORE") or f"sqlite:{Path(folder) / 'bus.db'}")
