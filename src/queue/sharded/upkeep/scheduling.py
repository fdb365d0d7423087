"""The duty that publishes schedules: each tick once, whatever fails meanwhile (docs/protocols P14)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from ....background import FailureLog
from ....coord.election.term import Leadership
from ....logs import Log
from ....plain import shown
from ..delayed.schedules import Schedule, ScheduleRecords, from_ms, last_in, to_ms
from ..ledger.ledger import Ledger, Outgoing
from ..registry import QueueRegistry
from .farms import Farms

log = Log(__name__)

LOOK = 5.0
"""Seconds at most between two looks at the schedules: one that was just made, or resumed, is noticed so late. Ticks
that come sooner one after the other are missed until then."""
AGAIN = 2.0
"""Seconds after which schedules that could not be read are read again."""


class Scheduling:
    """The duty that publishes the ticks of every farm that are due."""

    def __init__(self, farms: Farms) -> None:
        self._farms = farms
        self._failures: dict[tuple[str, str], FailureLog] = {}

    def run(self, leadership: Leadership) -> float:
        """Publish the ticks that are due; the seconds until the next one. One call where nothing is due.

        A schedule that fails, and a farm whose schedules cannot be read, stop no other.
        """
        pauses = [LOOK]
        for registry in self._farms.registries():
            leadership.check()
            records = ScheduleRecords(registry.store, registry.client_id, registry.farm_id)
            try:
                specs, last, paused, _, now = records.stored()
            except Exception as failure:  # noqa: BLE001 - of this farm alone
                self._failed(registry, "", failure, "the schedules could not be read")
                pauses.append(AGAIN)
                continue
            for name in sorted(specs.keys() - paused.keys()):
                leadership.check()
                try:
                    schedule = Schedule.from_json(name, specs[name])
                    pauses.append(self._publish(registry, records, schedule, last, now))
                except Exception as failure:  # noqa: BLE001 - of this schedule alone
                    self._failed(registry, name, failure, f"schedule {shown(name)} was not published")
        return max(min(pauses), 0.05)

    def _failed(self, registry: QueueRegistry, name: str, failure: Exception, what: str) -> None:
        """Log a failure, once a minute for each schedule, with the number of failures in between."""
        place = registry.farm_id, name
        self._failures.setdefault(place, FailureLog(registry.store.seams, log)).record(failure, what)

    def _publish(
        self,
        registry: QueueRegistry,
        records: ScheduleRecords,
        schedule: Schedule,
        lasts: Mapping[str, Any],
        now: datetime,
    ) -> float:
        """Publish what is due of a schedule; the seconds until its next tick.

        Publish first, then note it: a tick that a leader published and did not note is in the ledger (P6).
        """
        stored = lasts.get(schedule.name)
        last = last_in(stored, to_ms(now))
        if last is None:  # that entry alone was lost, or is damaged: the ticks begin again now
            records.begin(schedule.name, to_ms(now), lost=stored is None)
            last = to_ms(now)
        ticks, settled = schedule.due(from_ms(last), now)
        if ticks:
            queue = registry.get(schedule.queue)
            for tick in ticks:
                name = f"{schedule.name}@{tick.astimezone(timezone.utc).isoformat()}"
                ledger = Ledger(queue, f"schedule/{quote(schedule.name, safe='')}/{to_ms(tick)}")
                ledger.publish(0, [Outgoing(schedule.payload, name)])
        if ticks or settled != from_ms(last):
            records.settle(schedule.name, last, to_ms(settled))
        return (next(schedule.ticks(settled)) - now).total_seconds()
