"""Records of several farms: each farm writes bins of its own into them, named by a prefix and the farm's id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import fields

from ..errors import Corrupt
from ..plain import shown
from ..store.decode import damaged, decoded
from ..store.port import Key

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
    return {farm: _decoded(kind, key, farm, found[farm]) for farm in sorted(found)}


def _decoded(kind: type[S], key: Key, farm: str, bins: Mapping[str, Any]) -> S:
    try:
        return decoded(kind, key, bins)
    except Corrupt as failure:
        raise damaged(key, f"in the bins of farm {shown(farm)}, {failure.details['what']}") from None
