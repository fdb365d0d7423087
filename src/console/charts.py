"""The history of a queue as SVG, made here: the figures of each chart; the template draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from ..cli.top.pages import Drawn, drawn, title_of
from ..cli.top.table import text
from ..queue.sharded.history import Minute

COLUMNS, WIDTH, HEIGHT = 144, 720, 90
"""Columns of a chart, and its size in the units of its view box."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One line of a history. path: the outline of its columns; said: the text for a reader who does not see it."""

    name: str
    most: str
    path: str
    said: str


@dataclass(frozen=True, slots=True)
class Charts:
    """All lines of a history, over the same time. marks: x, and what began there."""

    charts: tuple[Chart, ...]
    marks: tuple[tuple[float, str], ...]
    begin: str
    end: str
    why: str


def charts_of(minutes: Sequence[Minute], days: float) -> Charts | None:
    """Return the charts of a day, or of two weeks; None where nothing was noted."""
    if not minutes:
        return None
    found = drawn(minutes, COLUMNS, days)
    words = {"L": "another process leads", "w": "a worker began"}
    marks = tuple((round(n * WIDTH / COLUMNS, 1), words[mark]) for n, mark in enumerate(found.marks) if mark in words)
    charts = tuple(_chart(name, values, days) for name, values in found.lines.items())
    return Charts(charts, marks, _time(found, days), _time(found, 0), found.why)


def _chart(name: str, values: Sequence[float | None], days: float) -> Chart:
    known = [value for value in values if value is not None]
    most, width = max(known, default=0.0), WIDTH / COLUMNS
    parts = []
    for n, value in enumerate(values):
        if value is not None:  # a value of 0 has a line: it is known
            height = max(1.0, HEIGHT * value / most) if most else 1.0
            parts.append(f"M{n * width:.1f} {HEIGHT}v{-height:.1f}h{width:.1f}v{height:.1f}z")
    largest = text(max(known, default=None))
    last = text(next((value for value in reversed(values) if value is not None), None))
    said = f"{name} in {title_of(days)}: at most {largest}, {last} at the end"
    return Chart(name, largest, "".join(parts), said)


def _time(found: Drawn, days: float) -> str:
    return datetime.fromtimestamp(found.end - days * 86_400, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
