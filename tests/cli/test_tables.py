"""Rows on a terminal: a table where it fits, else a paragraph each."""

from __future__ import annotations

import io

from rich.console import Console

from latchwork.cli.cells import cells_of
from latchwork.cli.tables import RowsOnTerminal


def shown(rows, width, title=""):
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(RowsOnTerminal(rows, title))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_cell_is_text_as_people_read_it():
    row = {"age": 1.25, "many": 12_000, "active": True, "why": None, "text": "a\nb"}
    assert cells_of([row]) == [list(row), ["1.2", "12,000", "True", "-", "a\\nb"]]


ROWS = [
    {"queue": "orders", "ready": 1_200, "why": None, "sweep": "late"},
    {"queue": "b", "ready": 7, "why": None, "sweep": None},
]


def test_a_table_is_shown_where_it_just_fits_without_columns_that_have_no_value():
    table = ["queue   ready  sweep", "orders  1,200  late", "b           7  -"]
    assert shown(ROWS, 20) == table
    assert shown(ROWS, 20, "queues of\nshop") == ["queues of\\nshop", *table]


def test_where_it_does_not_fit_each_row_is_a_paragraph_of_what_is_known():
    paragraphs = ["orders", "  ready: 1,200,", "  sweep: late", "b", "  ready: 7"]
    assert shown(ROWS, 19) == paragraphs
    assert shown(ROWS, 19, "of shop") == ["of shop", *paragraphs]


def test_a_line_of_a_paragraph_has_as_many_facts_as_fit_with_the_comma_behind_them():
    rows = [{"queue": "q", "why": "x" * 20, "how": None, "n": 1}, {"queue": "r", "why": None, "how": "y" * 20, "n": 2}]
    line = f"why: {'x' * 20}, n: 1"
    assert shown(rows, len(line) + 3)[:2] == ["q", f"  {line}"]
    assert shown(rows, len(line) + 2)[:3] == ["q", f"  why: {'x' * 20},", "  n: 1"]
