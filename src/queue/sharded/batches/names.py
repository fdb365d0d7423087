"""The ids of the messages of batches, by their ordinals, where results are kept (docs/protocols P18).

A row that notes ids goes with the creates of the messages, so that no message counts whose id is not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ....store import Exists, Key, MapPut, Update
from ..envelope import Envelope
from .blocks import BLOCK, place_of

IDS = "ids"


class Names(Struct, frozen=True):
    """The ids of a block, by the ordinals within it."""

    ids: dict[int, str] = {}


def names_key(client_id: str, batch: str, number: int) -> Key:
    """Return the key of the ids of a block."""
    return Key(f"{client_id}_batch_set", f"N/{batch}/{number}")


def naming(client_id: str, envelopes: Sequence[Envelope]) -> Mapping[int, Update]:
    """Return the row that notes the id of each of these messages that is of a batch: one row a block."""
    ids: dict[tuple[str, int, int], dict[int, str]] = defaultdict(dict)
    block_of: dict[int, tuple[str, int, int]] = {}
    for n, one in enumerate(envelopes):
        if one.batch is not None and (place := place_of(one)) is not None:
            block_of[n] = block = (place.batch, place.life, place.ordinal // BLOCK)
            ids[block][place.ordinal % BLOCK] = one.msg_id
    rows = {
        (batch, life, number): Update(
            names_key(client_id, batch, number), tuple(MapPut(IDS, *one) for one in some.items()),
            exists=Exists.ANY, ttl=life,
        )
        for (batch, life, number), some in ids.items()
    }  # fmt: skip
    return {n: rows[block] for n, block in block_of.items()}
