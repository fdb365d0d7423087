"""Damage to a SQLite file, made below the store."""

from __future__ import annotations

import sqlite3

from latchwork.store.sqlite.messages import BITS, place_of


def damage_row(store, key, active=None):
    """Change bytes of the record without its indexes, which keep what they had.

    active: its bin that an index reads.
    """
    connection = sqlite3.connect(store.path)
    connection.execute("PRAGMA trusted_schema = ON")
    connection.create_function("latchwork_bin", 2, lambda *_: active, deterministic=True)
    place = place_of(key)
    if place is None:
        connection.execute("UPDATE records SET bins = x'c1ff' WHERE set_name = ? AND name = ?", key)
    else:
        (lane,) = connection.execute("SELECT id FROM lanes WHERE set_name = ? AND name = ?", place[:2]).fetchone()
        connection.execute("UPDATE messages SET more = x'c1ff' WHERE id = ?", (lane << BITS | place.pointer,))
    connection.commit()
    connection.close()
