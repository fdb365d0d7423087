"""Schedules: messages that are published again and again, each tick once (docs/protocols P14).

    registry.schedule(Schedule("nightly", queue="reports", cron="0 3 * * *", tz="Europe/Berlin"))

They are kept in the store; the process that does the upkeep of the client publishes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from ....coord.waits import reads
from ....errors import Corrupt, InvalidRequest, LatchworkError, Misconfigured, NotFound, Refused
from ....inputs import Span, checked_choice, checked_moment, checked_text, is_int, span_of
from ....lossless import check_keys
from ....plain import exact_time, shown
from ....store import Compute, Exists, Key, MapPut, MapRemove, Once, Param, RecordStore, Update, has, lacks
from ....store.decode import damaged
from ....store.model.expr import SERVER_NOW, Bound, Expr, MapValue
from ....store.port import NEVER, Row
from ..config import SCHEDULES

MISSED = ("skip", "last", "all")
MAX_SCHEDULES, MAX_PAYLOAD, MAX_NAME = 1_000, 65_536, 100
"""Schedules of a client in a farm; bytes of a payload as JSON; characters of a name."""
MAX_TOTAL = 1_000_000
"""Bytes of all schedules of a client in a farm, which share one record: as much as every server takes by default."""
FIELDS, MAX_CRON, MAX_ZONE = 5, 1_000, 100
"""Fields and characters of a cron line; characters of a time zone."""
MIN_EVERY, MAX_EVERY = timedelta(seconds=1), timedelta(days=366)
MISSED_AFTER = 60.0
"""Seconds after which a tick that was not published counts as missed."""
MAX_TICKS = 1_000
"""Ticks of one schedule that are looked at in one pass."""
SPECS, LAST, PAUSED, PAUSED_BY = "specs", "last", "paused", "pausedBy"
_BINS = (SPECS, LAST, PAUSED, PAUSED_BY)
_ONCE = Once(64, result=1)
"""A request that arrives after its repeat neither puts an old schedule back nor removes a new one."""
_UNCHANGED = MapValue(LAST, Param("name", str)).eq(Param("old"))
_IS_THERE = has(SPECS, Param("name", str))
_MAY_PAUSE = _IS_THERE & lacks(PAUSED, Param("name", str))
_IS_PAUSED = _IS_THERE & has(PAUSED, Param("name", str))
_LAST_IS_LOST = has(SPECS, Param("name", str)) & lacks(LAST, Param("name", str))


@dataclass(frozen=True, slots=True)
class Schedule:
    """A message to be published at each tick.

    name: 1 to 100 characters, different from the client's other schedules.
    queue: the queue's name; the queue must exist.
    payload: JSON, at most 64 KiB; a megabyte for all schedules of a client in a farm.
    every: a tick at each whole multiple of this time since 1970-01-01T00:00:00Z: seconds or a timedelta, 1 s to
        366 days, whole seconds.
    cron: or a cron line of five fields (minute hour day month weekday).
    tz: the time zone of the cron line, as "Europe/Berlin"; default UTC. Every process that does the upkeep must know
        it, from the system's time zones or the package `tzdata`. In the night in which an hour is skipped, a job
        at a fixed time in that hour runs right after it; if an hour comes twice, it runs in the first one. A job whose
        hour or minute begins with `*`, as `*/10`, runs by elapsed time through both nights; `5-55/10` does not begin
        with it, so these are fixed times.
    missed: what happens to ticks that were not published in time, since no worker ran: "skip" them, publish only the
        "last" one, or "all". A tick is late in this sense after 60 s, or once the next one is due.

    Raises `InvalidRequest`, and `Misconfigured` where this machine has no time zones at all.
    """

    name: str
    queue: str
    payload: Any = None
    every: timedelta | None = None
    cron: str | None = None
    tz: str = "UTC"
    missed: str = "last"

    if TYPE_CHECKING:

        def __init__(  # noqa: PLR0917 - the fields in their order, with all that may be given for them
            self,
            name: str,
            queue: str,
            payload: Any = None,
            every: Span | None = None,
            cron: str | None = None,
            tz: str = "UTC",
            missed: str = "last",
        ) -> None: ...

    def __post_init__(self) -> None:
        checked_text("the schedule's name", self.name)
        if len(self.name) > MAX_NAME:
            raise InvalidRequest(f"the schedule's name has {len(self.name)} characters; give at most {MAX_NAME}")
        checked_text("queue", self.queue)
        if (self.every is None) == (self.cron is None):
            raise InvalidRequest(f"schedule {shown(self.name)}: give either every= or cron=")
        checked_choice("missed", self.missed, MISSED)
        self._check_times()
        what = f"the payload of schedule {shown(self.name)}"
        try:
            text = json.dumps(self.payload, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as failure:
            raise InvalidRequest(f"{what} is not JSON: {failure}") from None
        check_keys(what, text)
        size = len(text.encode())
        if size > MAX_PAYLOAD:
            raise InvalidRequest(
                f"the payload of schedule {shown(self.name)} has {size} bytes as JSON; give at most {MAX_PAYLOAD}, "
                "or a name under which the handler finds it"
            )

    def _check_times(self) -> None:
        checked_text("tz, the time zone,", self.tz)
        if len(self.tz) > MAX_ZONE:
            raise InvalidRequest(f"tz, the time zone, is {shown(self.tz)}; it must have at most {MAX_ZONE} characters")
        if self.every is not None:
            every = span_of("every", self.every)
            if not MIN_EVERY <= every <= MAX_EVERY or every.microseconds:
                raise InvalidRequest(f"every is {shown(self.every)}; it must be 1 s to 366 days, whole seconds")
            object.__setattr__(self, "every", every)
            return
        _check_zone(self.tz)
        remedy = "write five fields: minute hour day month weekday"
        if isinstance(self.cron, str) and len(self.cron) > MAX_CRON:
            raise InvalidRequest(f"cron is {shown(self.cron)}; it must have at most {MAX_CRON} characters")
        if isinstance(self.cron, str) and len(self.cron.split()) > FIELDS:  # the library takes a sixth for seconds
            raise InvalidRequest(f"cron is {shown(self.cron)}: too many fields; {remedy}")
        try:
            next(CronSim("" if self.cron is None else self.cron, datetime(2024, 1, 1, tzinfo=timezone.utc)))
        except StopIteration:
            raise InvalidRequest(f"cron is {shown(self.cron)}: no such day ever comes") from None
        except (CronSimError, AttributeError, TypeError) as failure:
            raise InvalidRequest(f"cron is {shown(self.cron)}: {failure}; {remedy}") from None

    @property
    def in_words(self) -> str:
        """When it ticks, for people: "every 5 min", "At 03:00 every day, Europe/Berlin"."""
        if self.every is not None:
            return f"every {exact_time(self.every)}"
        line = CronSim("" if self.cron is None else self.cron, datetime(2024, 1, 1, tzinfo=timezone.utc))
        return f"{line.explain()}, {self.tz}"

    def ticks(self, after: datetime) -> Iterator[datetime]:
        """Yield the ticks later than that time, the earliest first, in UTC. A naive time is refused.

        Raises `Misconfigured` where this machine does not know the time zone: its process cannot do this schedule's
        upkeep.
        """
        checked_moment("after", after)
        if self.every is not None:
            step = int(self.every.total_seconds())
            at = (int(after.timestamp()) // step + 1) * step
            while True:
                yield datetime.fromtimestamp(at, timezone.utc)
                at += step
        for at_local in CronSim("" if self.cron is None else self.cron, after.astimezone(_zone_of(self.tz))):
            tick = at_local.astimezone(timezone.utc)
            if tick > after:
                yield tick

    def due(self, last: datetime, now: datetime) -> tuple[list[datetime], datetime]:
        """Return the ticks to publish now, the earliest first, and the tick up to which all is settled then.

        last: the tick that was settled last. Looks at 1,000 ticks at most; the others are for the next pass.
        """
        begin = min(checked_moment("last", last), checked_moment("now", now))  # its clock may have been set back
        if self.every is not None and self.missed != "all":
            begin = max(begin, now - 2 * self.every)  # none before the newest tick counts
        ticks = list(islice(takewhile(lambda tick: tick <= now, self.ticks(begin)), MAX_TICKS + 1))
        if not ticks:
            return [], min(last, now)
        are_more, ticks = len(ticks) > MAX_TICKS, ticks[:MAX_TICKS]
        newest = ticks[-1]
        if self.missed == "all":
            return ticks, newest
        late = are_more or (self.missed == "skip" and (now - newest).total_seconds() > MISSED_AFTER)
        return ([] if late else [newest]), newest

    def to_json(self) -> str:
        """Return the schedule as it is stored."""
        every = None if self.every is None else int(self.every.total_seconds())
        return json.dumps(
            {"queue": self.queue, "payload": self.payload, "every": every, "cron": self.cron, "tz": self.tz,
             "missed": self.missed, "v": 1}
        )  # fmt: skip

    @classmethod
    def from_json(cls, name: str, text: Any) -> Schedule:
        """Return the schedule in a stored text. Raises `Corrupt`."""
        try:
            stored = json.loads(text)
            every = None if stored["every"] is None else timedelta(seconds=stored["every"])
            schedule = cls(
                name, stored["queue"], stored["payload"], every=every, cron=stored["cron"], missed=stored["missed"]
            )
            # Another machine knew it. Whether this one does is asked when the ticks are.
            object.__setattr__(schedule, "tz", checked_text("tz", stored["tz"]))
            return schedule
        except (InvalidRequest, KeyError, TypeError, ValueError, RecursionError, OverflowError) as failure:
            raise Corrupt(f"schedule {name!r} cannot be read ({type(failure).__name__}): put it again") from None


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """A schedule, and how it stands.

    settled: the last tick that was published or passed over, or when its ticks began, by the server's clock; None = not
        known.
    paused: since when no tick is published, by the server's clock; None = it is not paused.
    paused_by: who has paused it; empty = not known.
    now: the server's time.
    """

    schedule: Schedule
    settled: datetime | None
    paused: datetime | None
    paused_by: str
    now: datetime

    def overdue(self) -> int:
        """Return the number of ticks that were due, but for the last `MISSED_AFTER` seconds, and are not published; 0
        while it is paused, and where this machine does not know its time zone. At most 1,000.
        """
        return self._ticks(self.now - timedelta(seconds=MISSED_AFTER))

    def due(self) -> int:
        """Return the number of ticks that are due and not published, as `overdue`, with the last seconds."""
        return self._ticks(self.now)

    def _ticks(self, until: datetime) -> int:
        if self.paused is not None or self.settled is None:
            return 0
        ticks = takewhile(lambda tick: tick <= until, self.schedule.ticks(self.settled))
        try:
            return sum(1 for _ in islice(ticks, MAX_TICKS))
        except Misconfigured:
            return 0

    def unknown_here(self) -> str:
        """Return why this machine cannot tell when it ticks; empty if it can."""
        try:
            _zone_of(self.schedule.tz)
        except Misconfigured as failure:
            return str(failure)
        return ""


class Stored(NamedTuple):
    """The record of schedules: stored texts, ticks settled last in ms, pauses in ms and who has paused, by name; the
    server's time.
    """

    specs: Mapping[str, Any]
    last: Mapping[str, Any]
    paused: Mapping[str, Any]
    paused_by: Mapping[str, Any]
    now: datetime

    def states(self) -> list[ScheduleState]:
        """Return the schedules, by name. Raises `Corrupt` for one that is damaged."""
        return [self.state(name) for name in sorted(self.specs)]

    def state(self, name: str) -> ScheduleState:
        """Return the schedule of this name, which must be there. Raises `Corrupt`."""
        last, who = self.last.get(name), self.paused_by.get(name)
        since: Any = self.paused.get(name)
        settled = last_in(last, to_ms(self.now))
        paused = None
        if name in self.paused:  # also where its time is damaged
            paused = from_ms(since) if is_int(since) and 0 <= since <= to_ms(self.now) else self.now
        return ScheduleState(
            Schedule.from_json(name, self.specs[name]),
            None if settled is None else from_ms(settled),
            paused,
            who if isinstance(who, str) else "",
            self.now,
        )


class ScheduleRecords:
    """The schedules of a client in a farm, in one record: a map of them, one of the ticks settled last, and two of the
    ones that are paused.
    """

    def __init__(self, store: RecordStore, client_id: str, farm_id: str) -> None:
        self.store = store
        self.key = Key(f"{farm_id}_{client_id}_ignis_queues", SCHEDULES)

    def put(self, schedule: Schedule) -> None:
        """Store the schedule; its ticks begin now. One that has the name is replaced, and stays paused if it is; the
        ticks of an equal one go on. Two calls.
        """
        text = schedule.to_json()
        specs, last = self.read()
        if schedule.name not in specs and len(specs) >= MAX_SCHEDULES:
            raise InvalidRequest(f"there are {len(specs)} schedules, which is the limit: remove some")
        others = sum(len(one) for name, one in specs.items() if name != schedule.name and isinstance(one, str))
        if others + len(text) > MAX_TOTAL:
            raise InvalidRequest(
                f"the schedules would take {others + len(text)} bytes, and all share one record of at most "
                f"{MAX_TOTAL}: remove some, or give the payload a name under which the handler finds it"
            )
        ops = [MapPut(SPECS, schedule.name, text)]
        if specs.get(schedule.name) != text or schedule.name not in last:  # else a deploy would lose what is due by now
            ops.append(MapPut(LAST, schedule.name, SERVER_NOW))
        self.store.operate(self.key, *ops, exists=Exists.ANY, or_absent=True, ttl=NEVER, once=_ONCE)

    def remove(self, name: str) -> None:
        """Forget the schedule. Raises `NotFound`."""
        entries = [MapRemove(bin, (name,)) for bin in (SPECS, LAST, PAUSED, PAUSED_BY)]
        try:
            self.store.operate(self.key, *entries, when=has(SPECS, name), once=_ONCE)
        except (NotFound, Refused):
            raise self._no_schedule(name) from None

    def pause(self, name: str, by: str) -> bool:
        """Publish no tick of the schedule that is due from now on; False where it is paused already. One call, or two.
        Raises `NotFound`.
        """
        since = MapPut(PAUSED, name, SERVER_NOW), MapPut(PAUSED_BY, name, by)
        return self._switch(name, since, _MAY_PAUSE)

    def resume(self, name: str) -> bool:
        """Publish its ticks that are due from now on; False where it is not paused. One call, or two. Raises
        `NotFound`.
        """
        # Its ticks begin again now: the ones in between are passed over.
        begin = MapRemove(PAUSED, (name,)), MapRemove(PAUSED_BY, (name,)), MapPut(LAST, name, SERVER_NOW)
        return self._switch(name, begin, _IS_PAUSED)

    def _switch(self, name: str, ops: Sequence[MapPut | MapRemove], guard: Expr) -> bool:
        try:
            self.store.operate(self.key, *ops, when=Bound(guard, {"name": name}), once=_ONCE)
        except NotFound:
            raise self._no_schedule(name) from None
        except Refused:
            if name not in self.read()[0]:
                raise self._no_schedule(name) from None
            return False
        return True

    def _no_schedule(self, name: str) -> NotFound:
        return NotFound(f"no schedule {name!r} in {self.store.where}: see registry.schedules()", name=name)

    def read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the stored texts, and the ticks settled last in ms, by name. One call."""
        record = self.store.get(self.key, SPECS, LAST)
        return (self._specs(record.bins.get(SPECS)), _map(record.bins.get(LAST))) if record else ({}, {})

    @property
    def reading(self) -> Update:
        """The update that reads all of it, for a batch."""
        return Update(self.key, (*reads(_BINS), Compute(SERVER_NOW)))

    def found(self, row: Row) -> Stored:
        """Return what the row of `reading` says. Raises `Corrupt` where it is damaged, and what else the row is."""
        if isinstance(row, NotFound):
            return Stored({}, {}, {}, {}, datetime.fromtimestamp(0, timezone.utc))
        if isinstance(row, LatchworkError):
            raise row
        specs, last, paused, paused_by, now = row
        if paused is not None and not isinstance(paused, Mapping):  # which of them are, is not known
            raise damaged(self.key, f"bin {PAUSED!r} is no map: put it right, as nothing is published until then")
        return Stored(self._specs(specs), _map(last), _map(paused), _map(paused_by), from_ms(now))

    def stored(self) -> Stored:
        """Read the schedules and the server's time. One call."""
        (row,) = self.store.repeat_many([self.reading])
        return self.found(row)

    def _specs(self, stored: Any) -> dict[str, Any]:
        """Return the stored texts by name. Raises `Corrupt` where they are no map."""
        if stored is not None and not isinstance(stored, Mapping):
            raise damaged(self.key, f"bin {SPECS!r} is no map: delete the record, and put the schedules again")
        return _map(stored)

    def settle(self, name: str, old: int, new: int) -> bool:
        """Note that all ticks up to `new` are settled; False where the schedule was removed or changed. One call."""
        return self._note(name, new, Bound(_UNCHANGED, {"name": name, "old": old}))

    def begin(self, name: str, now: int, *, lost: bool = True) -> bool:
        """Let the ticks of a schedule whose last tick was lost, or is damaged, begin `now`; False where they began.
        One call.
        """
        return self._note(name, now, Bound(_LAST_IS_LOST if lost else _IS_THERE, {"name": name}))

    def _note(self, name: str, new: int, guard: Bound) -> bool:
        try:
            self.store.operate(self.key, MapPut(LAST, name, new), when=guard, repeatable=True)
        except (NotFound, Refused):
            return False
        return True


def last_in(stored: Any, now: int) -> int | None:
    """Return the tick settled last (ms), as it is stored; None where it was lost, or cannot be one: it is at most two
    of the longest intervals before the server's time, `now`.
    """
    first, last = now - 2 * MAX_EVERY // timedelta(milliseconds=1), now + timedelta(days=1) // timedelta(milliseconds=1)
    return int(stored) if is_int(stored) and first <= stored <= last else None


_PRIVATE = ("localtime", "posixrules", "posix", "right", "Factory")
"""Names that mean something else on each machine, or that few have; with what stands before the first `/`."""


def _check_zone(name: str) -> None:
    """Raise `InvalidRequest` for a name that is no time zone's, or that does not mean the same on all machines."""
    try:
        _zone_of(name)
        known = name.partition("/")[0] not in _PRIVATE
    except Misconfigured:
        _zone_of("Etc/UTC")  # raises where there are none at all
        known = False
    if not known:
        raise InvalidRequest(f"tz is {shown(name)}; it must be the name of a time zone, as Europe/Berlin")


def _zone_of(name: str) -> tzinfo:
    """Return the time zone. Raises `Misconfigured` where this machine does not know it."""
    if name == "UTC":
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise Misconfigured(
            f"this machine does not know the time zone {shown(name)}: install the package tzdata, or a newer one"
        ) from None


def from_ms(milliseconds: int) -> datetime:
    """Return the time in UTC. Raises `Corrupt`."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    except (OverflowError, ValueError, OSError, TypeError):
        raise Corrupt("the time of a schedule's last tick cannot be read: put the schedule again") from None


def to_ms(time: datetime) -> int:
    """Return the time in ms since the epoch."""
    return round(time.timestamp() * 1000)


def _map(stored: Any) -> dict[str, Any]:
    """Return the map of a record, without entries of unknown names."""
    return {name: one for name, one in stored.items() if isinstance(name, str)} if isinstance(stored, Mapping) else {}
