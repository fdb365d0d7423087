"""What the server does, in Python: guards, expressions and operations on one record, for the local stores.

`apply` is a pure function from a record (or none) to a record; the memory and the SQLite store differ only in where
they keep what it returns. The rules, odd ones included, are the server's (docs/protocols.md P0): a guard on an absent
record is skipped, a missing bin makes a comparison and its negation refuse, an update that fails changes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Any

import msgspec

from ..errors import AlreadyExists, InvalidRequest, NotFound, RecordTooBig, Refused
from . import expr as e
from . import ops as o
from .port import KEEP, NEVER, Exists, Key, Record, Update, Values

RECORD_SIZE_LIMIT = 1024 * 1024
"""Bytes, the server's default."""
MAX_INT, MIN_INT = 2**63 - 1, -(2**63)


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as a local store keeps it; `updated` and `expires` in ms since the epoch, None = never expires."""

    bins: dict[str, Any] = field(default_factory=dict)
    generation: int = 0
    updated: int = 0
    expires: int | None = None

    def expired(self, now: int) -> bool:
        """Whether its time to live is over."""
        return self.expires is not None and self.expires <= now

    def ttl(self, now: int) -> int:
        """Whole seconds left to live, at least 1; `NEVER` where it never expires."""
        return NEVER if self.expires is None else max(1, (self.expires - now) // 1000)


@dataclass(slots=True)
class _Scope:
    """What an expression can see."""

    bins: dict[str, Any]
    now: int
    updated: int
    params: dict[str, Any]


class _Unknown:
    """The third truth value, and the value of whatever is missing."""


UNKNOWN = _Unknown()


def live(record: Stored | None, now: int) -> Stored | None:
    """The record, or None where it has expired."""
    return None if record is None or record.expired(now) else record


def as_record(key: Key, stored: Stored, bins: Sequence[str], now: int) -> Record:
    """The record as a reader gets it: these bins, or all where none is named."""
    names = [name for name in bins if name in stored.bins] if bins else list(stored.bins)
    values = {name: copy.deepcopy(stored.bins[name]) for name in names}
    return Record(key, values, stored.generation, stored.ttl(now))


def apply(record: Stored | None, update: Update, now: int) -> tuple[Stored | None, Values]:
    """The record after the update, and what the update read. Raises as `RecordStore.operate`; then nothing changed."""
    record = live(record, now)
    if record is None:
        if update.exists is Exists.UPDATE or not o.writes(update.ops):
            raise NotFound(f"no record {update.key}: it was never created, was deleted, or has expired", key=update.key)
    else:
        if update.exists is Exists.CREATE:
            raise AlreadyExists(f"the record {update.key} exists already", key=update.key)
        check_guard(record, update.when, now, update.key)
    before = record or Stored()
    scope = _Scope(dict(before.bins), now, before.updated if record else now, {})
    values = tuple(value for op in update.ops for value in _do(op, scope))
    if not o.writes(update.ops):
        return record, values
    bins = {name: value for name, value in scope.bins.items() if value is not None}
    _check_size(bins, update)
    return _written(record, bins, update.ttl, now), values


def check_guard(record: Stored, when: e.Guard | None, now: int, key: Any) -> None:
    """Raises `Refused` where the guard does not hold."""
    if when is None:
        return
    expression, params = when if isinstance(when, e.Bound) else (when, {})
    if evaluate(expression, _Scope(record.bins, now, record.updated, params)) is not True:
        raise Refused(f"the guard on {key} did not hold; nothing was written", key=key)


def evaluate(expression: e.Expr, scope: _Scope) -> Any:
    """The value of an expression, or `UNKNOWN`."""
    return _EVALUATE[type(expression)](expression, scope)


def _written(record: Stored | None, bins: dict[str, Any], ttl: int, now: int) -> Stored | None:
    if not bins:
        return None
    expires = record.expires if record else None
    if ttl != KEEP:
        expires = None if ttl == NEVER else now + ttl * 1000
    generation = record.generation if record else 0
    return Stored(bins, generation + 1 if generation < 65_535 else 1, now, expires)


def _check_size(bins: dict[str, Any], update: Update) -> None:
    size = len(encode(bins))
    if size > RECORD_SIZE_LIMIT:
        raise RecordTooBig(
            f"the record {update.key} would have {size} bytes; the limit is {RECORD_SIZE_LIMIT}: store less in it",
            key=update.key,
        )


def encode(bins: dict[str, Any]) -> bytes:
    """The bins as bytes."""
    try:
        return _ENCODER.encode(bins)
    except (TypeError, OverflowError) as failure:
        raise InvalidRequest(
            f"a value that no bin can hold: {failure}; use int, float, str, bytes, list, dict"
        ) from None


def decode(data: bytes) -> dict[str, Any]:
    """The bins that `encode` wrote."""
    return _DECODER.decode(data)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(dict[str, Any], strict=False)


# ---- operations


@singledispatch
def _do(op: Any, scope: _Scope) -> Values:
    raise InvalidRequest(f"{op!r} is not an operation of latchwork.store.ops")


@_do.register
def _(op: o.Put, scope: _Scope) -> Values:
    scope.bins[op.bin] = _checked(_value(op.value, scope))
    return ()


@_do.register
def _(op: o.Add, scope: _Scope) -> Values:
    scope.bins[op.bin] = _wrap(_typed(scope, op.bin, int, 0) + op.amount)
    return ()


@_do.register
def _(op: o.Read, scope: _Scope) -> Values:
    return (copy.deepcopy(scope.bins.get(op.bin)),)


@_do.register
def _(op: o.Compute, scope: _Scope) -> Values:
    expression, params = op.expr if isinstance(op.expr, e.Bound) else (op.expr, {})
    value = evaluate(expression, replace(scope, params=params))
    return (None if value is UNKNOWN else copy.deepcopy(value),)


@_do.register
def _(op: o.MapPut, scope: _Scope) -> Values:
    value = _checked(_value(op.value, scope))
    scope.bins[op.bin] = _typed(scope, op.bin, dict, {}) | {op.key: value}
    return ()


@_do.register
def _(op: o.MapAdd, scope: _Scope) -> Values:
    entries = _typed(scope, op.bin, dict, {})
    scope.bins[op.bin] = entries | {op.key: _wrap(entries.get(op.key, 0) + op.amount)}
    return ()


@_do.register
def _(op: o.MapRemove, scope: _Scope) -> Values:
    if op.bin in scope.bins:
        entries = _typed(scope, op.bin, dict, {})
        scope.bins[op.bin] = {key: value for key, value in entries.items() if key not in op.keys}
    return ()


@_do.register
def _(op: o.MapTrim, scope: _Scope) -> Values:
    if op.bin in scope.bins:
        entries = _typed(scope, op.bin, dict, {})
        if len(entries) > op.keep:
            scope.bins[op.bin] = {key: entries[key] for key in sorted(entries, key=_rank)[-op.keep :]}
    return ()


@_do.register
def _(op: o.MapGet, scope: _Scope) -> Values:
    return (copy.deepcopy(_typed(scope, op.bin, dict, {}).get(op.key)),)


@_do.register
def _(op: o.ListAppend, scope: _Scope) -> Values:
    scope.bins[op.bin] = [*_typed(scope, op.bin, list, []), _checked(op.value)]
    return ()


@_do.register
def _(op: o.ListSet, scope: _Scope) -> Values:
    items = list(_typed(scope, op.bin, list, []))
    items.extend([None] * (op.index + 1 - len(items)))
    items[op.index] = _checked(op.value)
    scope.bins[op.bin] = items
    return ()


@_do.register
def _(op: o.ListRange, scope: _Scope) -> Values:
    return (copy.deepcopy(_typed(scope, op.bin, list, [])[op.index : op.index + op.count]),)


@_do.register
def _(op: o.Touch, scope: _Scope) -> Values:
    return ()


def _typed(scope: _Scope, bin: str, kind: type, default: Any) -> Any:
    value = scope.bins.get(bin)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InvalidRequest(f"bin {bin!r} holds a {type(value).__name__}, not a {kind.__name__}")
    return value


def _value(value: Any, scope: _Scope) -> Any:
    if not isinstance(value, e.Expr | e.Bound):
        return copy.deepcopy(value) if isinstance(value, list | dict) else value
    expression, params = value if isinstance(value, e.Bound) else (value, {})
    result = evaluate(expression, replace(scope, params=params))
    if result is UNKNOWN:
        raise InvalidRequest("an expression to be written has no value: a bin that it needs is missing")
    return result


def _checked(value: Any) -> Any:
    """The value, where a bin can hold it."""
    if isinstance(value, int) and not MIN_INT <= value <= MAX_INT:
        raise InvalidRequest(f"the integer {value} has more than 64 bits")
    if isinstance(value, list | dict):
        encode({"": value})
    elif not isinstance(value, str | bytes | int | float | None):
        raise InvalidRequest(f"a {type(value).__name__} cannot be stored; use int, float, str, bytes, list, dict")
    return value


def _wrap(number: int) -> int:
    """Integers wrap at 64 bits, as on the server."""
    return (number - MIN_INT) % 2**64 + MIN_INT


def _rank(value: Any) -> tuple[int, Any]:
    """The server's order of map keys: integers, then strings, then bytes."""
    return (isinstance(value, str) + 2 * isinstance(value, bytes), value)


# ---- expressions


def _compare(node: e.Compare, scope: _Scope) -> Any:
    left, right = evaluate(node.left, scope), evaluate(node.right, scope)
    if left is UNKNOWN or right is UNKNOWN or type(left) is not type(right):
        return UNKNOWN
    return _COMPARE[node.op](left, right)


def _logic(parts: tuple[e.Expr, ...], scope: _Scope, decisive: bool) -> Any:  # noqa: FBT001 - a truth value
    unknown = False
    for part in parts:
        value = evaluate(part, scope)
        if value is decisive:
            return decisive
        unknown = unknown or value is UNKNOWN
    return UNKNOWN if unknown else not decisive


def _negate(node: e.Negate, scope: _Scope) -> Any:
    value = evaluate(node.part, scope)
    return UNKNOWN if value is UNKNOWN else not value


def _arithmetic(node: e.Arithmetic, scope: _Scope) -> Any:
    values = [evaluate(part, scope) for part in node.parts]
    return UNKNOWN if UNKNOWN in values else _wrap(_ARITHMETIC[node.op](values))


def _bin(node: e.Bin, scope: _Scope) -> Any:
    value = scope.bins.get(node.name)
    return value if isinstance(value, node.kind) and not isinstance(value, bool) else UNKNOWN


def _map(name: str, scope: _Scope) -> dict[Any, Any] | None:
    value = scope.bins.get(name)
    return value if isinstance(value, dict) else None


def _map_has(node: e.MapHas, scope: _Scope) -> Any:
    entries, key = _map(node.bin, scope), evaluate(node.key, scope)
    return UNKNOWN if entries is None or key is UNKNOWN else key in entries


def _map_value(node: e.MapValue, scope: _Scope) -> Any:
    entries, key = _map(node.bin, scope), evaluate(node.key, scope)
    value = None if entries is None or key is UNKNOWN else entries.get(key)
    return value if isinstance(value, node.kind) and not isinstance(value, bool) else UNKNOWN


def _map_key_at(node: e.MapKeyAt, scope: _Scope) -> Any:
    entries = _map(node.bin, scope)
    keys = sorted(entries, key=_rank) if entries else []
    inside = -len(keys) <= node.index < len(keys)
    return keys[node.index] if inside and isinstance(keys[node.index], node.kind) else UNKNOWN


def _map_size(node: e.MapSize, scope: _Scope) -> Any:
    entries = _map(node.bin, scope)
    return UNKNOWN if entries is None else len(entries)


def _map_smallest(node: e.MapSmallestValue, scope: _Scope) -> Any:
    entries = _map(node.bin, scope)
    return min(entries.values()) if entries else UNKNOWN


def _list_of(node: e.ListOf, scope: _Scope) -> Any:
    values = [evaluate(part, scope) for part in node.parts]
    return UNKNOWN if UNKNOWN in values else values


def _if(node: e.If, scope: _Scope) -> Any:
    test = evaluate(node.test, scope)
    return UNKNOWN if test is UNKNOWN else evaluate(node.then if test else node.otherwise, scope)


_COMPARE: dict[str, Any] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_ARITHMETIC: dict[str, Any] = {"+": sum, "-": lambda v: v[0] - sum(v[1:]), "max": max, "min": min}
_EVALUATE: dict[type, Any] = {
    e.Const: lambda node, scope: node.value,  # noqa: ARG005 - one signature for all
    e.Param: lambda node, scope: scope.params[node.name],
    e.Bin: _bin,
    e.Exists: lambda node, scope: scope.bins.get(node.bin) is not None,
    e.Compare: _compare,
    e.All: lambda node, scope: _logic(node.parts, scope, decisive=False),
    e.AnyOf: lambda node, scope: _logic(node.parts, scope, decisive=True),
    e.Negate: _negate,
    e.Arithmetic: _arithmetic,
    e.If: _if,
    e.MapHas: _map_has,
    e.MapSize: _map_size,
    e.MapValue: _map_value,
    e.MapKeyAt: _map_key_at,
    e.MapSmallestValue: _map_smallest,
    e.ListOf: _list_of,
    e.ServerNow: lambda node, scope: scope.now,  # noqa: ARG005 - one signature for all
    e.SinceUpdate: lambda node, scope: max(0, scope.now - scope.updated),  # noqa: ARG005 - one signature for all
}
