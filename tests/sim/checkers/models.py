"""Sequential models: what each object would do if one caller at a time used it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..history.record import Entry


def read_anew(entry: Entry, read: str) -> list[Entry]:
    """After doubt the effect came at one moment and the answer was read at another: two operations for a checker."""
    if entry.ok and entry.doubted and entry.name != read:
        return [replace(entry, result=None), replace(entry, name=read, args=())]
    return [entry]


class Counter:
    """An integer with add, compare-and-set and read. Refused = the comparison failed; UNAVAILABLE = nothing done."""

    initial = 0

    def step(self, state: int, entry: Entry) -> Sequence[Any]:
        if entry.outcome == "UNAVAILABLE":
            return (state,)
        return getattr(self, "_" + entry.name)(state, entry)

    def _add(self, state: int, entry: Entry) -> Sequence[Any]:
        after = state + entry.args[0]
        return (after,) if entry.unknown or entry.result in (after, None) else ()

    def _swap(self, state: int, entry: Entry) -> Sequence[Any]:
        was, then = entry.args
        if entry.outcome == "REFUSED":
            return (state,) if state != was else ()
        return (then,) if state == was and (entry.unknown or entry.result in (then, None)) else ()

    def _read(self, state: int, entry: Entry) -> Sequence[Any]:
        return (state,) if entry.ok and entry.result == state else ()
