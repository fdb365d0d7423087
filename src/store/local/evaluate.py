"""The server's evaluation of an expression, in Python, for the local stores (docs/protocols P0.2).

An expression becomes a closure the first time that it is needed: `closure_of` makes it from the closures of its parts,
and keeps it in the tree while that lives, so nothing is interpreted for a call. A closure is pure: it returns the value
of its expression for one record at one moment, or `UNKNOWN` if it needs a bin that is missing or has another type.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from ...errors import InvalidRequest
from ...plain import shown
from ..model import expr as e
from ..model.values import MAX_INT, MIN_INT, NESTED, taken


class Unknown:
    """The third truth value, and the value of whatever is missing."""


UNKNOWN = Unknown()
_NONE: dict[str, Any] = {}


class Scope(Struct):
    """The inputs of an expression: the bins, the server's time and the last update in ms, the call's parameters.

    The last update may be later than the server's time, if the clock was set back since. An expression does not see
    that, on the server either: the time since the update is then 0, and the time is that of the update.
    """

    bins: dict[str, Any]
    now: int
    updated: int
    params: dict[str, Any]


Closure = Callable[[Scope], Any]


def holds(guard: e.Guard, bins: dict[str, Any], now: int, updated: int) -> bool:
    """Whether a guard is true; false and unknown both refuse."""
    return value_of(guard, Scope(bins, now, updated, _NONE)) is True


def value_of(expression: e.Expr | e.Bound, scope: Scope) -> Any:
    """Return the value of an expression with its parameters filled in, or `UNKNOWN`."""
    if not isinstance(expression, e.Bound):
        return closure_of(expression)(scope)
    root = expression.expr
    closure = root.__dict__.get(_CLOSURE) or closure_of(root)
    others, scope.params = scope.params, expression.params
    value = closure(scope)
    scope.params = others  # its own are not for what is evaluated next
    return value


def closure_of(root: e.Expr) -> Closure:
    """Return the closure that gives the value of an expression, or `UNKNOWN`."""
    closure: Closure | None = root.__dict__.get(_CLOSURE)
    if closure is None:
        # Kept in the tree itself, past its frozen fields: a weak dictionary costs as much as evaluating it.
        closure = root.__dict__[_CLOSURE] = _MAKE[type(root)](root)
    return closure


_CLOSURE = "\0closure"
"""Named like no field of an expression."""


def wrap(number: int) -> int:
    """Return an integer wrapped at 64 bits, as on the server."""
    if MIN_INT <= number <= MAX_INT:
        return number
    return (number - MIN_INT) % 2**64 + MIN_INT


def _of_kind(value: Any, kind: type) -> Any:
    if type(value) is kind:
        return value
    return UNKNOWN


def _closures(parts: tuple[e.Expr, ...]) -> tuple[Closure, ...]:
    return tuple(map(closure_of, parts))


def _const(node: e.Const) -> Closure:
    value = node.value
    return lambda _: value


def _param(node: e.Param) -> Closure:
    name = node.name

    def value(scope: Scope) -> Any:
        try:
            return taken(scope.params[name])
        except KeyError:
            raise InvalidRequest(f"the expression's parameter {shown(name)} has no value: bind it") from None

    return value


def _bin(node: e.Bin) -> Closure:
    name, kind = node.name, node.kind

    def value(scope: Scope) -> Any:
        found = scope.bins.get(name)
        return found if type(found) is kind else UNKNOWN

    return value


def _exists(node: e.BinExists) -> Closure:
    bin = node.bin
    return lambda scope: bin in scope.bins


def _compare(node: e.Compare) -> Closure:
    left, right, compare = closure_of(node.left), closure_of(node.right), _COMPARE[node.op]
    if isinstance(node.left, e.Bin) and node.left.kind not in _IN_ORDER:  # as in most guards
        name, kind = node.left.name, node.left.kind

        def of_bin(scope: Scope) -> Any:
            one, other = scope.bins.get(name), right(scope)
            return compare(one, other) if type(one) is type(other) is kind else UNKNOWN

        return of_bin

    def value(scope: Scope) -> Any:
        one, other = left(scope), right(scope)
        if one is UNKNOWN or type(one) is not type(other):
            return UNKNOWN
        if type(one) in _IN_ORDER:
            one, other = _order(one), _order(other)
        return compare(one, other)

    return value


_IN_ORDER = (*NESTED, type(None))
"""Types whose values Python does not compare as the server does."""


def _order(value: Any) -> tuple[int, Any]:
    """Return the position of a value in the server's order: first by its kind, so that 1, 1.0 and true differ."""
    kind = type(value)
    if kind is list:
        value = tuple(map(_order, value))
    elif kind is dict:
        value = (len(value), *((_order(key), _order(item)) for key, item in value.items()))
    return _KINDS.index(kind), value


def _all(node: e.All) -> Closure:
    return _decided_by(False, node)


def _any(node: e.AnyOf) -> Closure:
    return _decided_by(True, node)


def _flat(node: e.All | e.AnyOf) -> Iterator[e.Expr]:
    """Yield the parts, and in place of a part of the same kind its own: `a & b & c` is one decision."""
    for part in node.parts:
        if isinstance(part, e.All | e.AnyOf) and type(part) is type(node):
            yield from _flat(part)
        else:
            yield part


def _decided_by(decisive: bool, node: e.All | e.AnyOf) -> Closure:
    """Return `decisive` if a part has that value; else unknown if a part is unknown; else the opposite."""
    closures = _closures(tuple(_flat(node)))

    def value(scope: Scope) -> Any:
        known: Any = not decisive
        for part in closures:
            found = part(scope)
            if found is decisive:
                return decisive
            if found is UNKNOWN:
                known = UNKNOWN
        return known

    return value


def _negate(node: e.Negate) -> Closure:
    if isinstance(node.part, e.BinExists):
        bin = node.part.bin
        return lambda scope: bin not in scope.bins
    part = closure_of(node.part)

    def value(scope: Scope) -> Any:
        found = part(scope)
        return UNKNOWN if found is UNKNOWN else not found

    return value


def _arithmetic(node: e.Arithmetic) -> Closure:
    parts, compute, divides = _closures(node.parts), _ARITHMETIC[node.op], node.op == "//"

    def value(scope: Scope) -> Any:
        values = []
        for part in parts:
            one = part(scope)
            if type(one) is not int:
                return _not_computed([part(scope) for part in parts])
            values.append(one)
        if divides and values[1] == 0:
            return UNKNOWN
        return wrap(compute(values))

    return value


def _not_computed(values: list[Any]) -> Any:
    """Return `UNKNOWN` if that is among the values. Raises `InvalidRequest` for another one that is no integer."""
    for one in values:
        if type(one) is not int and one is not UNKNOWN:
            raise InvalidRequest(f"{shown(one)} in arithmetic: use integers")
    return UNKNOWN


def _map(name: str, scope: Scope) -> dict[Any, Any] | None:
    value = scope.bins.get(name)
    return value if type(value) is dict else None


def _map_has(node: e.MapHas) -> Closure:
    bin, key_of = node.bin, closure_of(node.key)

    def value(scope: Scope) -> Any:
        entries, key = _map(bin, scope), key_of(scope)
        return UNKNOWN if entries is None or key is UNKNOWN else key in entries

    return value


def _map_value(node: e.MapValue) -> Closure:
    bin, key_of, kind = node.bin, closure_of(node.key), node.kind

    def value(scope: Scope) -> Any:
        entries, key = _map(bin, scope), key_of(scope)
        return UNKNOWN if entries is None or key is UNKNOWN else _of_kind(entries.get(key), kind)

    return value


def _map_key_at(node: e.MapKeyAt) -> Closure:
    bin, index, kind = node.bin, node.index, node.kind

    def value(scope: Scope) -> Any:
        entries = _map(bin, scope)
        if not entries or not -len(entries) <= index < len(entries):
            return UNKNOWN
        if index == 0:
            key = next(iter(entries))
        elif index == -1:
            key = next(reversed(entries))
        else:
            key = list(entries)[index]
        return _of_kind(key, kind)

    return value


def _map_size(node: e.MapSize) -> Closure:
    bin = node.bin

    def value(scope: Scope) -> Any:
        entries = _map(bin, scope)
        return UNKNOWN if entries is None else len(entries)

    return value


def _map_smallest(node: e.MapSmallestValue) -> Closure:
    bin = node.bin

    def value(scope: Scope) -> Any:
        values = (_map(bin, scope) or {}).values()
        if not values or any(value is None or type(value) is bool for value in values):
            return UNKNOWN  # the server ranks these below integers
        return min((value for value in values if type(value) is int), default=UNKNOWN)

    return value


def _list_of(node: e.ListOf) -> Closure:
    parts = _closures(node.parts)

    def value(scope: Scope) -> Any:
        values = [part(scope) for part in parts]
        return UNKNOWN if UNKNOWN in values else values

    return value


def _if(node: e.If) -> Closure:
    test, then, otherwise = closure_of(node.test), closure_of(node.then), closure_of(node.otherwise)

    def value(scope: Scope) -> Any:
        found = test(scope)
        return UNKNOWN if found is UNKNOWN else then(scope) if found else otherwise(scope)

    return value


_KINDS = (type(None), bool, int, str, list, dict, bytes, float)
"""The kinds of values, in the server's order."""
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ARITHMETIC: dict[str, Callable[[list[int]], int]] = {
    "+": sum,
    "-": lambda values: values[0] - sum(values[1:]),
    "*": math.prod,
    "//": lambda values: abs(values[0]) // abs(values[1]) * (1 if (values[0] < 0) is (values[1] < 0) else -1),
    "max": max,
    "min": min,
}
_MAKE: dict[type, Callable[[Any], Closure]] = {
    e.Const: _const,
    e.Param: _param,
    e.Bin: _bin,
    e.BinExists: _exists,
    e.Compare: _compare,
    e.All: _all,
    e.AnyOf: _any,
    e.Negate: _negate,
    e.Arithmetic: _arithmetic,
    e.If: _if,
    e.MapHas: _map_has,
    e.MapSize: _map_size,
    e.MapValue: _map_value,
    e.MapKeyAt: _map_key_at,
    e.MapSmallestValue: _map_smallest,
    e.ListOf: _list_of,
    e.ServerNow: lambda _: lambda scope: max(scope.now, scope.updated),
    e.SinceUpdate: lambda _: lambda scope: max(0, scope.now - scope.updated),
}
