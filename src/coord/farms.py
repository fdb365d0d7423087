"""Records of several farms: each farm writes bins of its own into them, named by a prefix and the farm's id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import fields

from ..errors import Corrupt, InvalidRequest
from ..inputs import checked_store_name, checked_whole
from ..plain import shown
from ..store.decode import damaged, decoded
from ..store.port import KEEP, MAX_TTL, Key

FARM_COUNT = "count#"
"""The prefix of the bin with a farm's counter, the longest prefix before a farm's id."""
MAX_FARM = 15 - len(FARM_COUNT)
S = TypeVar("S", bound=Struct)


def farms_of(kind: type[S], key: Key, bins: Mapping[str, Any]) -> dict[str, S]:
    """Return what each farm has stored, by farm. The fields of `kind` are named by the prefixes of the bins.

    Raises `Corrupt` for a bin of another type or out of range. Bins of other prefixes are passed over.
    """
    prefixes = {field.encode_name for field in fields(kind)}
    found: dict[str, dict[str, Any]] = {}
    for bin, value in bins.items():
        prefix, mark, farm = bin.partition("#")
        if prefix + mark in prefixes:
            found.setdefault(farm, {})[prefix + mark] = value
    stored: dict[str, S] = {}
    for farm in sorted(found):
        try:
            stored[farm] = decoded(kind, key, found[farm])
        except Corrupt as failure:
            raise damaged(key, f"in the bins of farm {shown(farm)}, {failure.details['what']}") from None
    return stored


def checked_farm(farm: str) -> str:
    """Check a farm's id, and return it. Raises `InvalidRequest` if its bins could not be named."""
    size = len(checked_store_name("farm_id", farm).encode())
    if size > MAX_FARM:
        raise InvalidRequest(f"farm_id {shown(farm)} has {size} bytes; at most {MAX_FARM}, as bin names end at 15")
    if FARM_COUNT in farm:
        raise InvalidRequest(
            f"farm_id {shown(farm)} contains {shown(FARM_COUNT)}, at which the Java library fails: leave it out"
        )
    return farm


def checked_ttl(ttl: int | None) -> int:
    """Check a time to live in seconds, and return it; None means that the record's is kept."""
    return KEEP if ttl is None else checked_whole("ttl", ttl, 1, MAX_TTL)
