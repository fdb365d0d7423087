"""The common part of every command: the store, made when it is first used, and the output."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..errors import InvalidRequest, NotFound
from ..inputs import is_number
from ..plain import one_line
from ..store.connect import VARIABLE, connect, embedded, hidden
from ..store.port import RecordStore
from .jsontext import to_json

WIDEST = 10_000
"""Columns that a table may ask for, to learn how wide it would be."""


class Session:
    """One run of the command. `json` turns everything on stdout into one JSON document.

    Output is written when the call returns, so that a message is not acknowledged before it is printed.
    """

    def __init__(self, url: str | None, json: bool) -> None:
        if url == "":
            raise InvalidRequest("--store is empty: name a store, or leave it out; perhaps a variable is not set")
        self._url, self.json = url, json
        self._makes = False
        self._farms: dict[str, RecordStore] = {}

    def may_make(self) -> Session:
        """Let this command make the file of its store where there is none; itself. All others refuse that: a wrong
        path would be taken for a store with nothing in it.
        """
        self._makes = True
        return self

    @property
    def store(self) -> RecordStore:
        """The store that `--store` or $LATCHWORK_STORE names, else the embedded one, which stderr then names.

        Raises `NotFound` for a file that is not there, unless this command may make it.
        """
        self._check_there(self.named_store, self.where)
        return self.named_store

    @cached_property
    def named_store(self) -> RecordStore:
        """The same store, whether or not its file is there. Its first call makes it."""
        if self._url is None:
            note(f"the store is {self.where}; to use another, give --store or set ${VARIABLE}")
        return connect(self._used)

    def _check_there(self, store: RecordStore, where: str) -> None:
        if not self._makes and (file := absent_file(store)) is not None:
            raise NotFound(
                f"there is no file {file}: no program has used the store {where} yet, or its path is wrong", store=where
            )

    @property
    def where(self) -> str:
        """The store that is used, for a message: without its password and its options."""
        return hidden(self._used).partition("?")[0]

    @cached_property
    def _used(self) -> str:
        """The URL of the store that is used."""
        return self._url or embedded()

    @property
    def is_remote(self) -> bool:
        """Whether the store is a server, not a file."""
        return self._url is not None and not self._url.startswith(("sqlite:", "memory:"))

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a command that is run, so that a `latchwork` in it uses this store."""
        return {VARIABLE: self._url} if self._url else {}

    def stores_of(self, urls: Mapping[str, str]) -> dict[str, RecordStore]:
        """Connect to the store of each farm, by their URLs. Raises `NotFound`, as `store`."""
        for farm, url in urls.items():
            if farm not in self._farms:
                self._farms[farm] = connect(url)
            self._check_there(self._farms[farm], f"{hidden(url).partition('?')[0]} of farm {farm}")
        return {farm: self._farms[farm] for farm in urls}

    def close(self) -> None:
        """Close the stores that were used."""
        if "named_store" in self.__dict__:
            self.named_store.close()
        for store in self._farms.values():
            store.close()

    def say(self, *lines: str, **facts: Any) -> None:
        """Print lines for people, or the facts as JSON."""
        text = to_json(facts) if self.json else "\n".join(map(one_line, lines))
        print(text, flush=True)  # noqa: T201 - the command's output

    def table(self, rows: Sequence[Mapping[str, Any]], title: str = "", *, empty: str = "nothing") -> None:
        """Print rows as a table on a terminal, as tab-separated lines in a pipe, or as JSON."""
        if self.json:
            print(to_json(list(rows)), flush=True)  # noqa: T201 - the command's output
        elif not rows:
            print(one_line(empty))  # noqa: T201 - the command's output
        elif sys.stdout.isatty():
            terminal().print(RowsOnTerminal(rows, title))
        else:
            print("\n".join("\t".join(cells) for cells in _cells(rows)))  # noqa: T201 - the command's output


def absent_file(store: RecordStore) -> Path | None:
    """Return the file of this store if there is none; None where it is there, or the store has no file, or nobody can
    tell: then the first call says why.
    """
    path: Path | None = getattr(store, "path", None)
    try:
        return path if path is not None and not path.exists() else None
    except OSError:  # its directory may not be entered, or its name is too long
        return None


def note(text: str) -> None:
    """Print a line for people to stderr."""
    print(f"latchwork: {one_line(text)}", file=sys.stderr)  # noqa: T201 - the command's own message


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
        names, *lines = _cells(self._rows)
        heading = Text(self._title, style="table.title") if self._title else None
        table = Table(title=heading, title_justify="left", box=None, pad_edge=False)
        for name, value in zip(names, self._rows[0].values(), strict=True):
            numeric = is_number(value)
            table.add_column(name, justify="right" if numeric else "left", overflow="fold", no_wrap=name == "queue")
        for cells in lines:
            table.add_row(*map(Text, cells))  # rich reads no markup in a Text
        return table

    def _paragraphs(self, width: int) -> Iterator[RenderableType]:
        """Yield the first column's value in a line, and below it the others, as many in a line as fit."""
        names, *lines = _cells(self._rows)
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


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else one_line(str(value))
