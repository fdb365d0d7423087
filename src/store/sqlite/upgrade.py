"""A file of an earlier layout becomes one of this layout: its messages move into their table, in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import Corrupt
from ..port import Key
from . import messages
from .seal import Columns, opened

_SETS = "SELECT DISTINCT set_name FROM records WHERE set_name GLOB '*_data_set'"
_NAMES = "SELECT id, name FROM records WHERE set_name = ? AND name GLOB '*_SHARD_*'"
"""Both by the index alone, which also has the rows that cannot be read."""
_ROW = "SELECT set_name, name, generation, updated, expires, bins FROM records WHERE id = ?"


def messages_in(connection: Any, on_failure: Callable[[Exception], None]) -> dict[int, tuple[Key, bool]]:
    """Return the rows that are to be moved, by their numbers: each with its key, and whether it can be read.

    on_failure: raises what is no damage.
    """
    found: dict[int, tuple[Key, bool]] = {}
    for (set,) in connection.execute(_SETS).fetchall():
        for number, name in connection.execute(_NAMES, (set,)).fetchall():
            key = Key(set, name)
            if type(name) is str and messages.place_of(key) is not None:
                try:
                    row = connection.execute(_ROW, (number,)).fetchone()
                    found[number] = key, row is not None and row[:2] == key
                except Exception as failure:  # noqa: BLE001 - it is raised again, or is damage
                    on_failure(failure)
                    found[number] = key, False
    return found


def move_messages(connection: Any, found: dict[int, tuple[Key, bool]]) -> None:
    """Make the tables of messages, and move these messages there. One that is damaged, or cannot be read, is one that
    is damaged there; what cannot be read stays where it is, too, and so does the second of two of one name.
    """
    for statement in messages.SCHEMA:
        connection.execute(statement)
    for number, (key, is_readable) in sorted(found.items(), key=lambda one: not one[1][1]):
        row, there = messages.unsound(None), None
        if is_readable:  # where pages are damaged, a row may go with another one
            there = connection.execute(_ROW, (number,)).fetchone()
        if there is not None:
            _, _, *columns = there
            try:
                row = messages.sealed(key, opened(key, Columns(*columns)))
            except Corrupt:
                row = messages.unsound(columns[-1])
        made = connection.execute(messages.CREATE_IF_ABSENT, (messages.made_number(connection, key), *row)).rowcount
        if there is not None and made:
            connection.execute("DELETE FROM records WHERE id = ?", (number,))
