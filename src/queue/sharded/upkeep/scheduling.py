"""The duty that publishes schedules: each tick once, whatever fails meanwhile (docs/protocols P14)."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import Protocol
from urllib.parse import quote

from ....coord.election.term import Leadership
from ....errors import LatchworkError
from ...ledger.ledger import Ledger, Outgoing
from ..registry import QueueRegistry
from ..schedules import Schedule, ScheduleRecords, from_ms, to_ms

log = logging.getLogger(__name__)

LOOK = 15.0
"""Seconds at most between two looks at the schedules: one that another process has just made is noticed so late."""


class HasRegistries(Protocol):
    """What tells the farms whose schedules are to be published."""

    def registries(self) -> list[QueueRegistry]: ...


class Scheduling:
    """Publishes what is due in every farm."""

    def __init__(self, farms: HasRegistries) -> None:
        self._farms = farms

    def run(self, leadership: Leadership) -> float:
        """Publish the ticks that are due; the seconds until the next one. One call where nothing is due."""
        pauses = [LOOK]
        for registry in self._farms.registries():
            records = ScheduleRecords(registry.store, registry.client_id, registry.farm_id)
            specs, last, now = records.with_time()
            for name in sorted(specs):
                leadership.check()
                try:
                    schedule = Schedule.from_json(name, specs[name])
                    self._publish(registry, records, schedule, last.get(name, to_ms(now)), now)
                    pauses.append((next(schedule.ticks(now)) - now).total_seconds())
                except (LatchworkError, ValueError, TypeError) as failure:  # the others are published all the same
                    log.warning("schedule %r was not published: %s", name, failure)
        return max(min(pauses), 0.05)

    def _publish(
        self,
        registry: QueueRegistry,
        records: ScheduleRecords,
        schedule: Schedule,
        last: int,
        now: datetime,
    ) -> None:
        """Publish first, then note it: a tick that a leader published and did not note is in the ledger (P6)."""
        ticks, settled = schedule.due(from_ms(last), now)
        if not ticks and settled == from_ms(last):
            return
        if ticks:
            queue = registry.get(schedule.queue)
            for tick in ticks:
                name = f"{schedule.name}@{tick.astimezone(timezone.utc).isoformat()}"
                ledger = Ledger(queue, f"schedule/{quote(schedule.name, safe='')}/{to_ms(tick)}")
                ledger.publish(0, [Outgoing(schedule.payload, name)])
        records.settle(schedule.name, last, to_ms(settled))
