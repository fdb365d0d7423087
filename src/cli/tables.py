"""Tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..inputs import is_number
from ..plain import one_line
from .cells import cells_of

WIDEST = 10_000
"""Columns that a table may ask for, to learn how wide it would be."""


def terminal() -> Console:
    """Return the terminal, to which text is text: no payload is taken for rich's markup, emoji or anything to
    colour.
    """
    return Console(markup=False, emoji=False, highlight=False)


class RowsOnTerminal:
    """Rows of equal keys for a terminal: a table, or if the terminal is too narrow, a paragraph a row.

    Columns without a value are left out.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], title: str = "") -> None:
        shown = [name for name in rows[0] if any(row[name] is not None for row in rows)]
        self._rows, self._title = [{name: row[name] for name in shown} for row in rows], one_line(title)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._table()
        if Measurement.get(console, options.update(width=WIDEST), table).maximum <= options.max_width:
            yield table
        else:
            yield from self._paragraphs(options.max_width)

    def _table(self) -> Table:
        names, *lines = cells_of(self._rows)
        heading = Text(self._title, style="table.title") if self._title else None
        table = Table(title=heading, title_justify="left", box=None, pad_edge=False)
        for name, value in zip(names, self._rows[0].values(), strict=True):
            numeric = is_number(value)
            table.add_column(name, justify="right" if numeric else "left", overflow="fold")
        for cells in lines:
            table.add_row(*map(Text, cells))  # rich reads no markup in a Text
        return table

    def _paragraphs(self, width: int) -> Iterator[RenderableType]:
        """Yield the first column's value in a line, and below it the others, as many in a line as fit."""
        names, *lines = cells_of(self._rows)
        if self._title:
            yield Text(self._title, style="table.title")
        for first, *cells in lines:
            yield Text(first, style="bold", overflow="fold")
            facts = [f"{name}: {cell}" for name, cell in zip(names[1:], cells, strict=True) if cell != "-"]
            yield from (
                Padding(Text(line, overflow="fold"), (0, 0, 0, 2), expand=False) for line in _filled(facts, width - 2)
            )


def _filled(facts: Sequence[str], width: int) -> list[str]:
    """Return lines of so many columns at most, each broken between two facts; a fact that is wider has its own line."""
    lines = [""]
    for fact in facts:
        longer = f"{lines[-1]}, {fact}" if lines[-1] else fact
        if lines[-1] and cell_len(longer) >= width:
            lines[-1] += ","
            lines.append(fact)
        else:
            lines[-1] = longer
    return lines
