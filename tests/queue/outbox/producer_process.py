"""A producer that puts and forwards until it is killed, and says what was acknowledged.

python -m tests.queue.outbox.producer_process STORE_URL DIRECTORY FIRST_NUMBER
"""

import os
import sys

import latchwork
from latchwork.queue import Outbox, PagedQueue, QueueConfig, QueueRegistry, UnopenedQueue


def main():
    url, directory, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    queue = UnopenedQueue(QueueRegistry(latchwork.connect(url), "shop"), QueueConfig("q", shards=3))
    outbox = Outbox(PagedQueue.open(directory, "out", page_size=2048, lifetime=0.001), queue).start()
    while True:
        keys = [("a", "b", None)[(number + at) % 3] for at in range(1 + number % 4)]
        outbox.put_many([[key, number + at] for at, key in enumerate(keys)], keys=keys)
        number += len(keys)
        os.write(1, b"%d\n" % number)


main()
