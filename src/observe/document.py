"""A snapshot as JSON has it: for `latchwork top --json`, and for programs. Not stable between versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any

from msgspec import Struct, structs

from ..queue.sharded.delayed.schedules import ScheduleState
from .findings import findings_of
from .snapshot import Overview, Snapshot


def document_of(found: Overview) -> dict[str, Any]:
    """Return all of a snapshot in the types of JSON, with the findings about each client.

    Each part says whom it describes, and how old it is in seconds; None is a value that is not known.
    """
    return {
        "clients": [
            {"of": "store", **plain(one), "findings": one.taken and [each.row for each in findings_of(one.taken)]}
            for one in found.clients
        ],
        "process": {"of": "process", "age": 0.0} | plain(found.process),
    }


def _schedule(state: ScheduleState) -> dict[str, Any]:
    """Return a schedule without its payload, which not everybody may see."""
    one = state.schedule
    times = {"settled": state.settled, "paused": state.paused}
    return {
        "name": one.name, "queue": one.queue, "every": plain(one.every), "cron": one.cron, "tz": one.tz,
        "missed": one.missed, "paused_by": state.paused_by,
        **{name: None if at is None else at.isoformat() for name, at in times.items()},
    }  # fmt: skip


def plain(value: Any) -> Any:
    """Return a value of a snapshot in the types of JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        shown = {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.name != "schedules"}
        return shown | ({"schedules": list(map(_schedule, value.schedules))} if isinstance(value, Snapshot) else {})
    if isinstance(value, Struct):
        return plain(structs.asdict(value))
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return value.total_seconds() if isinstance(value, timedelta) else value
