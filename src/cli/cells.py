"""The cells of a table, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..plain import one_line


def cells_of(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the names of the columns, then the cells of each row."""
    return [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else one_line(str(value))
