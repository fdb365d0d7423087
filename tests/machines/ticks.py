"""Schedules in plain Python: which ticks there are, by no cron library, and which of them are published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

Ticks = Callable[[int, int], list[int]]
"""The ticks later than one time and up to another, in ms."""
IN_TIME = 60_000
"""Milliseconds after which a tick counts as missed."""
MINUTE = timedelta(minutes=1)


def every(seconds: int, offset: int = 0) -> Ticks:
    """Return the ticks at whole multiples of a time, with an offset."""
    step, shift = seconds * 1000, offset * 1000

    def ticks(after: int, upto: int) -> list[int]:
        first = (after - shift) // step + 1
        return [number * step + shift for number in range(first, (upto - shift) // step + 1)]

    return ticks


def daily(hour: int, minute: int, zone: str, days: range = range(7)) -> Ticks:
    """Return the ticks at a time of day: after a gap if it is in one, and the first time if it comes twice."""

    def ticks(after: int, upto: int) -> list[int]:
        day, last = _date(after) - timedelta(days=1), _date(upto) + timedelta(days=1)
        found = []
        while day <= last:
            if day.weekday() in days:
                found.append(_moment(datetime.combine(day, time(hour, minute)), ZoneInfo(zone)))
            day += timedelta(days=1)
        return [tick for tick in found if after < tick <= upto]

    return ticks


def _date(milliseconds: int) -> Any:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).date()


def _moment(local: datetime, zone: ZoneInfo) -> int:
    while True:
        moment = local.replace(tzinfo=zone).astimezone(timezone.utc)
        if moment.astimezone(zone).replace(tzinfo=None) == local:
            return int(moment.timestamp()) * 1000
        local += MINUTE  # the clocks skip this time


@dataclass(frozen=True)
class Line:
    """A rule of a schedule: what is given to it, its ticks, and about how many seconds apart they are."""

    given: dict[str, Any]
    ticks: Ticks
    step: int


BERLIN = {"tz": "Europe/Berlin"}
LINES = (
    Line({"every": timedelta(seconds=7)}, every(7), 7),
    Line({"every": timedelta(minutes=5)}, every(300), 300),
    Line({"every": timedelta(hours=1)}, every(3600), 3600),
    Line({"cron": "* * * * *"}, every(60), 60),
    Line({"cron": "*/20 * * * *", **BERLIN}, every(1200), 1200),
    Line({"cron": "30 * * * *", **BERLIN}, every(3600, 1800), 3600),
    Line({"cron": "30 2 * * *", **BERLIN}, daily(2, 30, "Europe/Berlin"), 86_400),
    Line({"cron": "0 3 * * *"}, every(86_400, 3 * 3600), 86_400),
    Line({"cron": "15 22 * * 1-5", **BERLIN}, daily(22, 15, "Europe/Berlin", range(5)), 86_400),
)


@dataclass(eq=False)
class Life:
    """A schedule from the time at which it is put until it is replaced or removed.

    number: its payload; no other has it.
    last: the tick up to which all is settled (ms), None if that was lost.
    ended: the step at which it was replaced or removed.
    damaged: whether what is stored of it cannot be read.
    """

    number: int
    queue: str
    line: Line
    missed: str
    last: int | None
    ended: int | None = None
    damaged: bool = False

    def due(self, now: int) -> tuple[list[int], int]:
        """Return the ticks that are to be published now, and up to which all is settled then."""
        if self.last is None:
            return [], now
        ticks = self.line.ticks(min(self.last, now), now)
        settled = ticks[-1] if ticks else min(self.last, now)
        if self.missed == "all":
            return ticks, settled
        in_time = self.missed == "last" or (ticks and now - ticks[-1] <= IN_TIME)
        return (ticks[-1:] if in_time else []), settled

    def possible(self, begin: int, now: int) -> set[int]:
        """Return the ticks that may be published from one time to another, while there is more than one leader."""
        if self.last is None:
            return set(self.line.ticks(begin, now))
        ticks = self.line.ticks(min(self.last, begin), now)
        if self.missed == "all":
            return set(ticks)
        newest = {tick for tick in ticks if tick > begin} | set([tick for tick in ticks if tick <= begin][-1:])
        return newest if self.missed == "last" else {tick for tick in newest if begin - tick <= IN_TIME}


@dataclass
class Plan:
    """All schedules of a client by name, what was published of each, and those that were there before."""

    lives: dict[str, Life] = field(default_factory=dict)
    seen: dict[str, set[int]] = field(default_factory=dict)
    former: list[tuple[str, Life]] = field(default_factory=list)

    def put(self, name: str, life: Life, step: int) -> None:
        """Put a schedule in place of the one that has the name."""
        self.remove(name, step)
        self.lives[name] = life
        self.seen.setdefault(name, set())

    def remove(self, name: str, step: int) -> bool:
        """Remove a schedule; return whether it was there."""
        life = self.lives.pop(name, None)
        if life is not None:
            life.ended = step
            self.former.append((name, life))
        return life is not None

    def lived(self, name: str, number: int, step: int) -> Life | None:
        """Return the schedule of this name and payload, if it was there in this step."""
        lives = [self.lives.get(name), *(life for one, life in self.former if one == name and life.ended == step)]
        return next((life for life in lives if life is not None and life.number == number), None)
