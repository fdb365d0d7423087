"""The transactions that a large circular queue remembers (docs/protocols P4).

The map `txns` in the metadata record has, for each id, first offset, last offset and the fence of the commit; a last
offset below the first says that the transaction was declared not committed. Requests without an id of the caller's
share one of the queue's own, which begins with `~`. The map is trimmed now and then, the oldest first. Two more entries
say up to which fence transactions with callers' ids, and with the queue's own, may have been forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ...errors import InvalidRequest
from ...inputs import checked_text, is_int
from ...plain import shown
from ...store.decode import damaged
from ...store.model.expr import Bin, Const, If, MapSize
from ...store.model.ops import MapPut, MapRemove, Op
from ...store.model.record import Key
from .layout import TXNS

OWN = "~"
NAMED_FORGOTTEN, OWN_FORGOTTEN = "", OWN
REMEMBERED = {NAMED_FORGOTTEN: 1024, OWN_FORGOTTEN: 64}
"""How many are kept when the map is trimmed. The queue's own are looked up only while a commit is in doubt."""
MOST_BYTES = 256
"""Bytes that an id may have in UTF-8, so that all ids that are kept fit into one record."""
ASK_EVERY = 64
"""Holds of one process, or transactions in them, after which it asks again whether it is time to trim."""
DUE = If(MapSize(TXNS) > 256, Bin(TXNS, dict), Const({}))
"""All transactions, if there are so many that some may have to be removed; else nothing."""
NOTHING_FORGOTTEN: tuple[MapPut, ...] = (MapPut(TXNS, NAMED_FORGOTTEN, 0), MapPut(TXNS, OWN_FORGOTTEN, 0))

Entry = list[int]


def not_committed(fence: int) -> Entry:
    """Return the entry of a transaction that was declared not committed."""
    return [0, -1, fence]


def entry_in(meta: Key, entry: Any) -> Entry:
    """Return the stored entry of a transaction. Raises `Corrupt` if it is damaged."""
    if not isinstance(entry, list) or len(entry) != 3 or not all(map(is_int, entry)):
        raise damaged(meta, f"bin {TXNS!r} has an entry that is not a transaction")
    return entry


def forgotten_in(meta: Key, stored: Any) -> int:
    """Return the stored fence up to which transactions may have been forgotten. Raises `Corrupt` if it is damaged."""
    if not is_int(stored):
        raise damaged(meta, f"bin {TXNS!r} does not say which transactions were forgotten")
    return int(stored)


def forgotten_of(txn: str) -> str:
    """Return the key of the entry that says up to which fence such transactions may have been forgotten."""
    return OWN_FORGOTTEN if txn.startswith(OWN) else NAMED_FORGOTTEN


def checked(txn_id: str | int) -> str:
    """Return a caller's transaction id as text. Raises `InvalidRequest`."""
    txn = txn_id
    if isinstance(txn_id, int) and not isinstance(txn_id, bool):
        if txn_id.bit_length() > 4 * MOST_BYTES:  # surely too long, and perhaps longer than Python writes out
            raise InvalidRequest(f"txn_id is {shown(txn_id)}; it may have {MOST_BYTES} digits: use a shorter one")
        txn = str(txn_id)
    if not isinstance(txn, str) or not txn:
        raise InvalidRequest(f"txn_id is {shown(txn_id)}; it must be an int, or text that is not empty")
    size = len(checked_text("txn_id", txn).encode())
    if size > MOST_BYTES:
        raise InvalidRequest(
            f"txn_id is {shown(txn_id)}, of {size} bytes in UTF-8; it may have {MOST_BYTES}: shorten it"
        )
    if txn == OWN:
        raise InvalidRequest(f"txn_id is {shown(txn)}, a key of the queue's own bookkeeping: use another")
    return str.__str__(txn)  # plain text also where it was an enumeration's member: nothing else can be a map key


def checked_new(txn_id: str | int | None) -> str | None:
    """Return the id of a new transaction as text, if it has one. Raises `InvalidRequest`."""
    if txn_id is None:
        return None
    txn = checked(txn_id)
    if txn.startswith(OWN):
        raise InvalidRequest(
            f"txn_id is {shown(txn)}; ids that begin with {shown(OWN)} are the queue's own: use another"
        )
    return txn


def trimmed(due: Mapping[str, Any], kept: Collection[str]) -> list[Op]:
    """Return operations that forget all but the newest transactions, and note up to which fence."""
    ages: dict[str, list[tuple[int, str]]] = {key: [] for key in REMEMBERED}
    for txn, entry in due.items():
        sound = isinstance(txn, str) and isinstance(entry, list) and len(entry) == 3 and is_int(entry[2])
        if sound and txn not in kept:
            ages[forgotten_of(txn)].append((entry[2], txn))
    ops: list[Op] = []
    for key, count in REMEMBERED.items():
        if len(ages[key]) > count and is_int(due.get(key)):
            oldest = sorted(ages[key])[:-count]
            ops.append(MapRemove(TXNS, tuple(txn for _, txn in oldest)))
            ops.append(MapPut(TXNS, key, max(oldest[-1][0], due[key])))
    return ops
