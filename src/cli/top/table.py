"""Tables and lines of a full screen, as values: what fits into so many columns, and how much of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from ...plain import one_line, shown_time

PLAIN, TITLE, BAD, WARN, FAINT, CHOSEN = "plain", "title", "bad", "warn", "faint", "chosen"
"""The styles of a line; each is also told apart without colour, or says in words what it is."""
DASH = "-"
"""Stands for a value that is not known."""
BARS, PLAIN_BARS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the screen, without anything that steers a terminal."""

    text: str
    style: str = PLAIN


@dataclass(frozen=True, slots=True)
class Column:
    """A column. rank: the columns with the largest are left out first where not all fit; 0 = it stays."""

    title: str
    rank: int = 0
    right: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """A row.

    key: names the thing that the row is about, so that it stays chosen while the rows change; None = nothing. order:
    for each cell, the value by which it is sorted.
    """

    key: tuple[str, ...] | None
    cells: tuple[str, ...]
    style: str = PLAIN
    order: tuple[float | str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under titles. notes: lines above them; empty: the text if there is no row."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[Line, ...] = ()
    empty: str = "nothing"

    def matching(self, text: str) -> Table:
        """Return the rows that contain this text, whatever the case."""
        if not text:
            return self
        rows = tuple(row for row in self.rows if text.casefold() in " ".join(row.cells).casefold())
        return Table(self.columns, rows, self.notes, f"nothing matches {text!r}")

    def sorted_by(self, column: int, *, down: bool) -> Table:
        """Return the rows in the order of a column; rows that have no value there are last."""
        known = [row for row in self.rows if row.cells[column] != DASH]
        others = [row for row in self.rows if row.cells[column] == DASH]

        def order(row: Row) -> tuple[bool, float | str]:
            value = row.order[column] if row.order else row.cells[column]
            return isinstance(value, str), value.casefold() if isinstance(value, str) else value

        known.sort(key=order, reverse=down)
        return Table(self.columns, (*known, *others), self.notes, self.empty)

    def shown(self, width: int) -> list[int]:
        """Return the columns that fit, by their numbers, without the ones that have no value in any row."""
        widths, shown = self._widths(), [n for n, _ in enumerate(self.columns) if self._has_value(n)]
        while _total(widths, shown) > width and max(self.columns[n].rank for n in shown) > 0:
            shown.remove(max(shown, key=lambda n: self.columns[n].rank))
        return shown

    def lines(self, width: int, mark: int | None = None) -> tuple[Line, list[Line]]:
        """Return the line of titles, and one for each row. mark: the column that it is sorted by."""
        widths, shown = self._widths(), self.shown(width)
        for n in shown:  # the columns that stay are cut
            if (over := _total(widths, shown) - width) > 0 and not self.columns[n].right:
                widths[n] = max(8, widths[n] - over)

        def line(cells: Sequence[str]) -> str:
            parts = [_fitted(cells[n], widths[n], right=self.columns[n].right) for n in shown]
            return set_cell_size("  ".join(parts), width).rstrip()

        titles = [f"{one.title}{'*' if n == mark else ''}" for n, one in enumerate(self.columns)]
        return Line(line(titles), TITLE), [Line(line(row.cells), row.style) for row in self.rows]

    def _widths(self) -> list[int]:
        titles = [f"{one.title} " for one in self.columns]
        return [max(map(cell_len, cells)) for cells in zip(titles, *(row.cells for row in self.rows), strict=True)]

    def _has_value(self, n: int) -> bool:
        return self.columns[n].rank == 0 or any(row.cells[n] not in {DASH, ""} for row in self.rows)


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[n] for n in shown) + 2 * (len(shown) - 1)


def _fitted(text: str, width: int, *, right: bool) -> str:
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, max(0, width - 1)) + "~"
    return " " * (width - size) + text if right else text + " " * (width - size)


# ---- cells


def text(value: object) -> str:
    """Return a value in one line; a dash where it is not known."""
    if value is None or value == "":
        return DASH
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else one_line(str(value))


def age(seconds: float | None) -> str:
    """Return a length of time; a dash where it is not known."""
    return DASH if seconds is None else shown_time(max(0.0, seconds))


def row(key: tuple[str, ...] | None, values: Sequence[object], style: str = PLAIN) -> Row:
    """Return a row of these values, which it is sorted by; a pair is a text and the value to sort by."""
    cells, order = [], list[float | str]()
    for value in values:
        shown, sort = value if isinstance(value, tuple) else (text(value), value)
        cells.append(shown)
        order.append(sort if isinstance(sort, int | float | str) else -1.0)
    return Row(key, tuple(cells), style, tuple(order))


def timed(seconds: float | None) -> tuple[str, float]:
    """Return a cell with a length of time, sorted by it."""
    return age(seconds), -1.0 if seconds is None else seconds


def spark(values: Sequence[float | None], width: int, bars: str = BARS) -> str:
    """Return the values as bars, the newest at the right; blank where nothing is known.

    Where there are more values than columns, a column is the largest of those that it stands for.
    """
    if len(values) > width:
        many = len(values)
        groups = [values[n * many // width : (n + 1) * many // width] for n in range(width)]
        values = [max((one for one in some if one is not None), default=None) for some in groups]
    most = max((one for one in values if one is not None), default=0)
    return "".join(
        " " if one is None else bars[1 + round((len(bars) - 2) * one / most) if most else 1] for one in values
    )
