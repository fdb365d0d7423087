"""A history as a table that a person can read, in 80 columns."""

from __future__ import annotations

import textwrap
from itertools import groupby
from typing import NamedTuple

from .record import OPEN, Entry, History

WIDTH = 80


class Line(NamedTuple):
    """One thing that happened: its place in the order, when, to whom, and what."""

    order: int
    when: float
    who: str
    what: str


def render(history: History, trace: list[tuple[int, float, str, str, str]] | None = None) -> str:
    """Operations, notes and, where they were traced, store calls, in the order in which they happened.

    `>` an operation begins, `<` it returns, `*` the environment; a call of the store has no mark, `!` is its fault.
    """
    lines = [line for entry in history.entries for line in _ends(entry)]
    lines += [Line(order, when, who, f"* {what}") for order, when, who, what in history.notes]
    for order, when, who, what, fault in trace or []:
        lines.append(Line(order, when, who, f"  {what}{fault and f'  ! {fault}'}"))
    lines.sort()
    head = f"{'seconds':>10}  {'who':12}  what"
    return "\n".join([head, *(text for _, same in groupby(lines, _alike) for text in _folded(list(same)))])


def _ends(entry: Entry) -> list[Line]:
    what = f"{entry.name}({', '.join(map(repr, entry.args))})"
    lines = [Line(entry.order, entry.called, entry.actor, f"> {what}")]
    if entry.closed != OPEN:
        answer = repr(entry.result) if entry.ok else entry.outcome
        lines.append(Line(entry.ended, entry.closed, entry.actor, f"< {what} = {answer}"))
    return lines


def _alike(line: Line) -> tuple[str, str]:
    return line.who, line.what


def _folded(same: list[Line]) -> list[str]:
    """A line once, however often it comes in a row."""
    first, times = same[0], len(same)
    what = first.what + (f"  (and {times - 1} more times until {same[-1].when:.3f})" if times > 1 else "")
    left = f"{first.when:10.4f}  {first.who:12.12}  "
    return textwrap.wrap(
        what, WIDTH, initial_indent=left, subsequent_indent=" " * len(left) + "    ", drop_whitespace=True,
        break_long_words=True,
    )  # fmt: skip
