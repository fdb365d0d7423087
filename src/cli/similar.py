"""Which name may be meant, where there is none of a given one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from ..errors import InvalidRequest
from ..plain import shown
from ..store import Key, RecordStore


def meant(name: str, known: Iterable[str]) -> str:
    """Return `; is 'orders' meant?` where a known name is similar; else an empty text."""
    near = get_close_matches(name, list(known), n=1)
    return f"; is {shown(near[0])} meant?" if near else ""


def meant_in(store: RecordStore, key: Key) -> str:
    """Return what `meant` does of a record that is not there, by the other keys of its set, which it reads as a whole;
    empty on a store that cannot list its records.
    """
    try:
        names = {str(record.key.name) for record in store.scan(key.set)}
    except InvalidRequest:
        return ""
    # Of a key that begins with the client, other clients' records are not meant.
    client, hash_mark, name = str(key.name).rpartition("#")
    if hash_mark:
        names = {one.rpartition("#")[2] for one in names if one.rpartition("#")[0] == client}
    return "" if name in names else meant(name, names)
