"""The server's operations, in Python, for the local stores.

An operation becomes a closure: those of a form once, for as long as the form lives, others for their call. What an
operation reads of its parameters, and whether its value is computed, is settled then, so nothing is interpreted for a
record.

Simulations run millions of updates through here, so a growing record is not encoded each time to measure its size: an
upper bound of its size is kept with it, and only if that passes the limit is the size measured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...errors import BinMismatch, InvalidRequest, Refused
from ...plain import shown
from ..model import expr as e
from ..model import ops as o
from ..model.form import param_of
from ..model.values import (  # fmt: skip
    HEADER,
    MAX_DEPTH,
    NESTED,
    amount,
    bound,
    element,
    given,
    map_key,
    taken,
    with_entry,
    without_smallest,
)
from ..port import Key
from .evaluate import UNKNOWN, Scope, closure_of, value_of, wrap

RECORD_SIZE_LIMIT = 1024 * 1024
"""Bytes, the server's default."""


class Change(Scope):
    """The bins on their way from one state of the record to the next. bound: bytes that they do not exceed."""

    key: Key
    bound: int = 0


Closure = Callable[[Change], Any]
WROTE = object()
"""The answer of an operation that gives no result."""


def closure_of_op(op: Any) -> Closure:
    """Return the closure that does the operation: it returns what was read, or `WROTE`, and raises as
    `RecordStore.operate` does.
    """
    return _MAKE.get(type(op), _unknown)(op)


def _unknown(op: Any) -> Closure:
    raise InvalidRequest(f"{shown(op)} is not an operation of latchwork.store.model.ops")


# ---- what an operation is given


def _given(value: Any, check: Callable[[Any], Any]) -> Closure:
    """Return a closure for a field of an operation, checked: the value of a parameter, or the operation's own."""
    if isinstance(value, e.Param):
        name = value.name

        def filled(change: Change) -> Any:
            params = change.params
            return check(params[name] if name in params else param_of(value, params))

        return filled
    try:
        kept = check(value)
    except InvalidRequest:  # raised when it runs: another error may come first
        return lambda _: check(value)
    return (lambda _: check(value)) if type(kept) in NESTED else (lambda _: kept)


def _value(value: Any) -> Closure:
    """Return a closure for the value that an operation stores, which may be computed."""
    return _computed(value) if o.is_computed(value) else _given(value, taken)


def _key(key: Any) -> Closure:
    """Return a closure for the key of an entry, which may be computed."""
    if not o.is_computed(key):
        return _given(key, map_key)
    computed = _computed(key)
    return lambda change: map_key(computed(change))


def _computed(expression: e.Expr | e.Bound) -> Closure:
    evaluate = partial(value_of, expression) if isinstance(expression, e.Bound) else closure_of(expression)

    def value(change: Change) -> Any:
        found = evaluate(change)
        if found is UNKNOWN:
            raise BinMismatch(
                f"an expression to be written to {change.key} has no value: a bin that it needs is missing, or of "
                "another type; nothing was written",
                key=change.key,
            )
        return taken(found, MAX_DEPTH + 1)  # it may put a list around a value that is stored

    return value


def _held(change: Change, bin: str, kind: type, default: Any) -> Any:
    value = change.bins.get(bin)
    if value is None:
        return default
    if type(value) is not kind:
        what = f"it is a {type(value).__name__}, not a {kind.__name__}"
        text = f"bin {bin!r} of {change.key} is not what the update needs: {what}; nothing was written"
        raise BinMismatch(text, key=change.key, bins=(bin,))
    return value


# ---- writing


def _set(change: Change, bin: str, value: Any, grown: int) -> Any:
    """Put a bin. `grown`: the bytes that the record grows by at most, without the name and the header of a new bin."""
    change.bound += grown if bin in change.bins else grown + _header(bin)
    change.bins[bin] = value
    return WROTE


def _header(bin: str) -> int:
    """Return bytes that the name and the header of a new bin do not exceed."""
    return 2 * HEADER + 4 * len(bin)


def _put(op: o.Put) -> Closure:
    bin, value_in = op.bin, _value(op.value)
    header = _header(bin)

    def run(change: Change) -> Any:
        bins, value = change.bins, value_in(change)
        if value is None:
            bins.pop(bin, None)
            return WROTE
        size = HEADER if type(value) is int else bound(value)
        change.bound += size if bin in bins else size + header
        bins[bin] = value
        return WROTE

    return run


def _add(op: o.Add) -> Closure:
    bin, more = op.bin, _given(op.amount, amount)

    def run(change: Change) -> Any:
        before = change.bins.get(bin)
        if type(before) is not int:
            return _set(change, bin, _held(change, bin, int, 0) + more(change), 0)
        change.bins[bin] = wrap(before + more(change))
        return WROTE

    return run


def _map_put(op: o.MapPut) -> Closure:
    bin, new, key_in, value_in = op.bin, op.new, _key(op.key), _value(op.value)

    def run(change: Change) -> Any:
        key, value = key_in(change), value_in(change)
        entries = _held(change, bin, dict, {})
        if new and key in entries:
            raise Refused(f"key {key!r} is in map bin {bin!r} already; nothing was written")
        return _set(change, bin, with_entry(entries, key, value), bound(key) + bound(value))

    return run


def _map_add(op: o.MapAdd) -> Closure:
    bin, key_in, more = op.bin, _given(op.key, map_key), _given(op.amount, amount)

    def run(change: Change) -> Any:
        entries, key = _held(change, bin, dict, {}), key_in(change)
        before = entries.get(key, 0)
        if type(before) not in (int, float):
            kind = type(before).__name__
            raise InvalidRequest(f"entry {shown(key)} of bin {shown(bin)} holds a {kind}, not a number")
        after = before + more(change)
        entries = with_entry(entries, key, after if type(before) is float else wrap(after))
        return _set(change, bin, entries, bound(key) + HEADER)

    return run


def _map_remove(op: o.MapRemove) -> Closure:
    bin, keys = op.bin, op.keys

    def run(change: Change) -> Any:
        entries, gone = _held(change, bin, dict, None), [map_key(key) for key in keys]
        if entries is None:
            return WROTE
        return _set(change, bin, {key: value for key, value in entries.items() if key not in gone}, 0)

    return run


def _map_trim(op: o.MapTrim) -> Closure:
    bin, keep = op.bin, op.keep

    def run(change: Change) -> Any:
        entries = _held(change, bin, dict, None)
        if entries is None or len(entries) <= keep:
            return WROTE
        return _set(change, bin, without_smallest(entries, len(entries) - keep), 0)

    return run


def _list_append(op: o.ListAppend) -> Closure:
    bin, value_in = op.bin, _given(op.value, taken)

    def run(change: Change) -> Any:
        value = value_in(change)
        return _set(change, bin, [*_held(change, bin, list, []), value], bound(value))

    return run


def _list_set(op: o.ListSet) -> Closure:
    bin, index_in, value_in = op.bin, _given(op.index, element), _given(op.value, taken)

    def run(change: Change) -> Any:
        items, value, index = _held(change, bin, list, []), value_in(change), index_in(change)
        gap = index - len(items)
        if gap > RECORD_SIZE_LIMIT:
            raise InvalidRequest(
                f"index {shown(index)} of the list in bin {shown(bin)}, which has {len(items)} elements"
            )
        items = items + [None] * (gap + 1)
        items[index] = value
        return _set(change, bin, items, bound(value) + max(0, gap) * HEADER)

    return run


# ---- reading


def _list_range(op: o.ListRange) -> Closure:
    bin, index_in, count_in = op.bin, _given(op.index, element), _given(op.count, element)

    def run(change: Change) -> Any:
        first, count = index_in(change), count_in(change)
        return given(_held(change, bin, list, [])[first : first + count])

    return run


def _map_get(op: o.MapGet) -> Closure:
    bin, key_in = op.bin, _given(op.key, map_key)
    return lambda change: given(_held(change, bin, dict, {}).get(key_in(change)))


def _read(op: o.Read) -> Closure:
    bin = op.bin

    def run(change: Change) -> Any:
        value = change.bins.get(bin)
        return given(value) if type(value) in NESTED else value

    return run


def _read_all(_: o.ReadAll) -> Closure:
    return lambda change: {
        name: given(value) if type(value) in NESTED else value for name, value in change.bins.items()
    }


def _compute(op: o.Compute) -> Closure:
    expression = op.expr

    def run(change: Change) -> Any:
        value = value_of(expression, change)
        return None if value is UNKNOWN else given(value)

    return run


_MAKE: dict[type, Callable[[Any], Closure]] = {
    o.Put: _put,
    o.Add: _add,
    o.Read: _read,
    o.ReadAll: _read_all,
    o.Compute: _compute,
    o.MapPut: _map_put,
    o.MapAdd: _map_add,
    o.MapRemove: _map_remove,
    o.MapTrim: _map_trim,
    o.MapGet: _map_get,
    o.ListAppend: _list_append,
    o.ListSet: _list_set,
    o.ListRange: _list_range,
    o.Touch: lambda _: lambda _: WROTE,
}
OPERATIONS = frozenset(_MAKE)
