"""One plain consumer of the second queue, and a candidate for the office of sweeping it.

Started by run.py: `python checker.py DIRECTORY [--doomed]`. The doomed one is killed while it holds messages; after the
sweep duration whoever leads then puts them aside, and brings them back.
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

from latchwork.coord import Leadership, LeaseElection
from latchwork.queue import Consumer, Delivery, Shovel, Sweeper

THREADS = 3


def main() -> None:
    """Work until SIGTERM."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    plan = Plan.read(Path(sys.argv[1]))
    checks = Checks(plan)
    election = LeaseElection(plan.store, f"{plan.job}-sweeper", lease=3)
    sweeper, shovel = Sweeper(checks.registry, election), Shovel(checks.queue)

    def sweep(leadership: Leadership) -> None:
        while not leadership.lost.wait(1):
            report = sweeper.run_once()
            if report.rehomed:
                checks.swept.count_up(report.rehomed)
                print(report, flush=True)
            shovel.run_once()

    election.start(sweep)
    Consumer(checks.queue, die if "--doomed" in sys.argv else checks.work, concurrency=THREADS).run()
    election.stop()


def die(_: Delivery) -> None:
    """Die as a process does when memory runs out, a second after each thread could take a message."""
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
