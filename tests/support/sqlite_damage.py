"""Damage to a SQLite file, made below the store."""

from __future__ import annotations

import sqlite3


def damage_row(store, key, active=None):
    """Change bytes of the record without its indexes, which keep what they had.

    active: its bin that an index reads.
    """
    connection = sqlite3.connect(store.path)
    connection.execute("PRAGMA trusted_schema = ON")
    connection.create_function("latchwork_bin", 2, lambda *_: active, deterministic=True)
    connection.execute("UPDATE records SET bins = x'c1ff' WHERE set_name = ? AND name = ?", key)
    connection.commit()
    connection.close()
