"""Whether a message fits into a record: asked before anything of it is stored, or a place is taken for it."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import RecordTooBig
from ...plain import shown
from ...store import RecordStore

MAYBE_TOO_BIG = 200_000
"""Characters of payload and headers below which no record of any store is too small."""
AROUND = 2_048
"""Bytes of a record beside payload and headers: the id, the numbers, what a failure says."""


def check_fits(store: RecordStore, queue: str, data: str | bytes, headers: Mapping[str, str] | None) -> None:
    """Raise `RecordTooBig` for a message that no record of the store can hold. At most one call, once a process."""
    texts = [part for header in headers.items() for part in header] if headers else []
    if len(data) + sum(map(len, texts)) <= MAYBE_TOO_BIG:
        return
    beside = sum(len(text.encode()) for text in texts)
    size = len(data.encode() if isinstance(data, str) else data) + beside
    limit = store.describe().record_size_limit - AROUND
    if size > limit:
        raise RecordTooBig(
            f"a message of {size} bytes, {beside} of them headers, and records of the queue {shown(queue)} take "
            f"{limit}: publish a reference",
            size=size,
            limit=limit,
        )
