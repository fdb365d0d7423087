"""A history as a table that a person can read."""

from __future__ import annotations

from typing import Any

from .record import History


def render(history: History, trace: list[tuple[float, str, str, str]] | None = None) -> str:
    """Operations, notes and, where they were traced, store calls in the order of virtual time."""
    lines: list[tuple[float, int, str, str, str]] = []
    for entry in history.entries:
        what = f"{entry.name}({', '.join(map(repr, entry.args))})"
        lines.append((entry.called, entry.order, entry.actor, "call  " + what, ""))
        end = entry.closed
        if end != float("inf"):
            lines.append((end, entry.order, entry.actor, f"done  {what}", f"{entry.outcome}: {entry.result!r}"))
    lines += [(when, 0, who, "note  " + what, "") for when, who, what in history.notes]
    lines += [(when, 0, who, "      " + what, fault) for when, who, what, fault in trace or []]
    lines.sort(key=lambda line: line[0])
    return "\n".join(_line(*line) for line in lines)


def _line(when: float, order: int, who: str, what: str, outcome: Any) -> str:
    return f"{when:12.6f}  {who:14} {what[:110]:110} {outcome}"
