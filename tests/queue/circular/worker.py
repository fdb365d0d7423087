"""A process that puts into a queue, or takes from it, and writes down what it is about to do and what it was told.

python -m tests.queue.circular.worker put|take URL QUEUE NUMBER DIRECTORY
Every line of its log is one write, so that it is there whatever happens to the process next.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from latchwork.errors import OutcomeUnknown, QueueFull
from latchwork.queue import LargeQueue
from latchwork.store.connect import connect


def main(role, url, name, number, directory):
    queue = LargeQueue.open(connect(url), name)
    log = os.open(Path(directory) / f"{role}-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(**facts):
        os.write(log, json.dumps(facts).encode() + b"\n")

    act, count, stop = {"put": put, "take": take}[role], 0, Path(directory) / "stop"
    while not stop.exists():
        act(queue, f"{role}-{number}-{count}", number, count, note)
        count += 1
        time.sleep(0.02)  # the queue remembers 1,024 transactions; no more are to be made before the last kill


def put(queue, txn, number, count, note):
    values = [[number, count, place] for place in range(1 + count % 3)]
    note(txn=txn, values=values)
    try:
        offsets = queue.enqueue_many(values, txn_id=txn)
    except QueueFull:
        note(txn=txn, none=True)
        time.sleep(0.005)
        return
    except OutcomeUnknown:
        found = queue.transaction(txn)
        offsets = found.offsets if found else None
    note(txn=txn, offsets=offsets and [offsets.start, offsets.stop], none=offsets is None)


def take(queue, txn, number, count, note):
    note(txn=txn)
    entries = queue.dequeue_many(1 + count % 4, txn_id=txn)
    note(txn=txn, entries=[[entry.offset, entry.value] for entry in entries])
    if not entries:
        time.sleep(0.005)


if __name__ == "__main__":
    main(*sys.argv[1:])
