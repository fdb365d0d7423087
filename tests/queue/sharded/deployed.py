"""A worker of a fleet that is deployed again and again, as a program:
`python -m tests.queue.sharded.deployed URL CLIENT LOG GRACE`.

Each handler takes as long as its message says, and looks at `delivery.check()` in half of the messages; the others
never look, so the grace of the deploy cuts them.
"""

from __future__ import annotations

import logging
import os
import sys
import time

import latchwork
from latchwork.queue import Delivery, QueueRegistry, Worker

QUEUE = "jobs"


def main(url: str, client: str, path: str, grace: str) -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(message)s")
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    worker = Worker(QueueRegistry(latchwork.connect(url), client), grace=float(grace))

    def note(what: str, delivery: Delivery) -> None:
        os.write(log, f"{what} {delivery.message_id} {os.getpid()} {delivery.attempts} {delivery.reason}\n".encode())

    @worker.handler(QUEUE, prefetch=1)
    def work(delivery: Delivery) -> None:
        note("began", delivery)
        end = time.monotonic() + delivery.payload["seconds"]
        while time.monotonic() < end:
            time.sleep(0.05)
            if delivery.payload["looks"]:
                delivery.check()
        note("ended", delivery)

    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
