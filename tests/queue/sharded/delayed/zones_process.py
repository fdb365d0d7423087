"""A process of `test_zones`: says as JSON what schedules do on its machine.

python -m tests.queue.sharded.delayed.zones_process FILE, a database with the schedules `berlin` and `every`
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import zoneinfo
from datetime import datetime, timedelta, timezone
from itertools import islice

from latchwork.errors import LatchworkError
from latchwork.queue import QueueRegistry, Schedule
from latchwork.queue.sharded.upkeep.scheduling import Scheduling
from latchwork.store import SQLiteStore
from latchwork.testing.clock import ManualClock
from tests.queue.sharded.delayed.test_schedules import Farms, Term

AFTER = datetime(2026, 1, 1, tzinfo=timezone.utc)
NAMES = (
    ":/etc/passwd", "/etc/passwd", "/etc/localtime", "../../etc/passwd", "/usr/share/zoneinfo/UTC", "localtime",
    "posixrules", "posix/UTC", "right/UTC", "Factory", "", " ", ".", "..", "Europe", "Europe/", "Europe//Berlin",
    "Europe/../Europe/Berlin", "europe/BERLIN/", "zone.tab", "tzdata.zi", "\0", "Europe/Berlin\0", "UTC\n",
    "Mars/Olympus", "\u202eUTC", "\ud800", "Z\u00fcrich", "x" * 5_000, "a/" * 5_000, "UTC0", "<+99>-99",
    "CET-1CEST,M3.5.0,M10.5.0/3",
)  # fmt: skip
"""Names that no schedule may have, on any machine."""
SYSTEM = (
    ":/etc/passwd",
    "/etc/passwd",
    "localtime",
    "",
    ":",
    "x" * 5_000,
    "Mars/Olympus",
    "<+99>-99",
    "UTC-25:99",
    "Asia/Tokyo",
)
"""Values of `TZ`, which no schedule depends on."""


def ticks(**given: object) -> list[str] | str:
    """The first ticks, or the error."""
    try:
        return [tick.isoformat() for tick in islice(Schedule("s", "q", **given).ticks(AFTER), 2)]
    except LatchworkError as failure:
        return f"{failure.code}: {failure}"


def ticks_under(system: str) -> list[list[str] | str]:
    """The ticks where the machine's own time zone is this."""
    os.environ["TZ"] = system
    time.tzset()
    minute = timedelta(seconds=60)
    return [ticks(every=minute), ticks(cron="0 3 * * *"), ticks(cron="0 3 * * *", tz="Europe/Berlin")]


def upkeep(file: str) -> dict[str, object]:
    """What is listed and published of the stored schedules, three minutes later, and what the log says."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("latchwork").addHandler(handler)
    store = SQLiteStore(file, synchronous="off", seams=ManualClock())
    registry = QueueRegistry(store, "c", farm_id="f")
    listed = [(one.name, one.tz) for one in registry.schedules()]
    store.seams.advance(180)
    Scheduling(Farms(registry)).run(Term())
    return {"listed": listed, "published": [one.payload for one in registry.get("q").receive(10)], "log": said}


def main() -> None:
    before = os.environ.get("TZ")
    found = {
        "zones": len(zoneinfo.available_timezones()),
        "names": [ticks(cron="0 3 * * *", tz=name) for name in NAMES],
        "system": [ticks_under(value) for value in (before or "UTC", *SYSTEM)],
        "upkeep": upkeep(sys.argv[1]),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
