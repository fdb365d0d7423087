"""One worker of the second queue. Nothing else is started for it: whoever of them is elected does the upkeep.

Started by run.py: `python checker.py DIRECTORY [--doomed]`. The doomed one is killed while it holds messages; after the
sweep duration whoever is elected then puts them aside, and brings them back.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

from checks import Checks
from plan import Plan

from latchwork.queue import Delivery, Worker

THREADS = 3


def main() -> None:
    """Work until SIGTERM."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    checks = Checks(Plan.read(Path(sys.argv[1])))
    worker = Worker(checks.registry)
    handle = die if "--doomed" in sys.argv else checks.work
    worker.handler(checks.queue.name, concurrency=THREADS)(handle)
    worker.run()


def die(_: Delivery) -> None:
    """Die as a process does when memory runs out, a second after each thread could take a message."""
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
