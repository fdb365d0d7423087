"""What a person can do to schedules, each with its consequence in words, said before it is done."""

from __future__ import annotations

from collections.abc import Callable

from ...observe.audit import Deed
from ...plain import one_line
from ...queue import QueueRegistry
from ...store import RecordStore
from .actions import Action
from .table import Row


def trigger(row: Row) -> Action | str:
    """Return the action that runs the schedule in a row of the page now; or why it cannot be done."""
    if row.key is None or row.key[2] != "schedule":
        return "only a schedule can be run"
    name, queue = one_line(row.key[3]), row.cells[2]
    return Action(
        f"trigger {name}",
        f"One message goes to {queue} now, whatever else is due, or has run. Its ticks stay as they are.",
        (row.key[0], row.key[1], row.key[3]),
        _on(row, lambda registry, _: f"published {registry.trigger_schedule(row.key[3])}" if row.key else ""),
        before=row.cells[3],
    )


def switch_schedule(row: Row) -> Action | str:
    """Return the pause of the schedule in a row of the page, or its end where it is paused."""
    if row.key is None or row.key[2] != "schedule":
        return "only a schedule can be paused"
    name, key = row.key[3], (row.key[0], row.key[1], row.key[3])
    if row.cells[3].startswith("PAUSED"):
        return Action(
            f"resume-schedule {one_line(name)}",
            f"{row.cells[3]}: is the reason gone? Its ticks that are due from now on are published. Those in between "
            "are not, whatever it says of missed ones: run it now to make up for them.",
            key,
            _on(row, lambda registry, _: _said(name, "resumed", "was not paused", registry.resume_schedule(name))),
            before=row.cells[3],
        )
    return Action(
        f"pause-schedule {one_line(name)}",
        "No tick that is due from now on is published until it is resumed, and none of them later. A message that it "
        "has published is handled all the same. To put the schedule again, as a deploy may, leaves it paused.",
        key,
        _on(row, lambda registry, deed: _said(
            name, "paused", "was paused already", registry.pause_schedule(name, by=deed.who))),
        before=f"next {row.cells[3]}",
    )  # fmt: skip


def _said(name: str, done: str, otherwise: str, changed: bool) -> str:
    return f"{done} {one_line(name)}" if changed else f"{one_line(name)} {otherwise}"


def _on(row: Row, run: Callable[[QueueRegistry, Deed], str]) -> Callable[[RecordStore, Deed], str]:
    farm, client = row.key[:2] if row.key else ("", "")
    return lambda store, deed: run(QueueRegistry(store, client, farm_id=farm), deed)
