"""The common part of every command: the store, made when it is first used, and the output."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import InvalidRequest, NotFound
from ..plain import one_line
from ..store.connect import VARIABLE, connect, embedded, hidden
from ..store.port import RecordStore
from .answer import Answer
from .cells import cells_of


class Session:
    """One run of the command. `json` turns everything on stdout into one JSON document.

    Output is written when the call returns, so that a message is not acknowledged before it is printed.
    """

    def __init__(self, url: str | None, json: bool, answer: Answer | None = None) -> None:
        if url == "":
            raise InvalidRequest("--store is empty: name a store, or leave it out; perhaps a variable is not set")
        self._url, self.json, self._answer = url, json, answer or Answer(is_json=json)
        self._makes = False
        self._farms: dict[str, RecordStore] = {}

    def may_make(self) -> Session:
        """Let this command make the file of its store where there is none; itself. All others refuse that: a wrong
        path would be taken for a store with nothing in it.
        """
        self._makes = True
        return self

    def prints_lines(self) -> Session:
        """Let this command print one JSON document after the other, each in a line; itself."""
        self._answer.has_lines = True
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
        if self.json:
            self._answer.give(facts)
        else:
            print("\n".join(map(one_line, lines)), flush=True)  # noqa: T201 - the command's output

    def table(self, rows: Sequence[Mapping[str, Any]], title: str = "", *, empty: str = "nothing") -> None:
        """Print rows as a table on a terminal, as tab-separated lines in a pipe, or as JSON."""
        if self.json:
            self._answer.give(list(rows))
        elif not rows:
            print(one_line(empty))  # noqa: T201 - the command's output
        elif sys.stdout.isatty():
            from .tables import RowsOnTerminal, terminal  # noqa: PLC0415 - to load rich takes a tenth of a call

            terminal().print(RowsOnTerminal(rows, title))
        else:
            print("\n".join("\t".join(cells) for cells in cells_of(rows)))  # noqa: T201 - the command's output


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
