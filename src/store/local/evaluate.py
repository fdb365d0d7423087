"""What the server makes of an expression, in Python, for the local stores (docs/protocols P0.2).

`evaluate` is pure: the value of an expression for one record at one moment, or `UNKNOWN` where it needs a bin that is
missing or that holds another type.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidRequest
from ...plain import shown
from ..model import expr as e
from ..model.values import MAX_INT, MIN_INT, NESTED, taken


class Unknown:
    """The third truth value, and the value of whatever is missing."""


UNKNOWN = Unknown()
_NONE: dict[str, Any] = {}


@dataclass(slots=True)
class Scope:
    """What an expression can see: the bins, the server's time and the last update in ms, the call's parameters.

    The last update may be later than the server's time: the clock was set back since. No expression sees that, on the
    server either: the time since the update is 0 then, and the time is that of the update.
    """

    bins: dict[str, Any]
    now: int
    updated: int
    params: dict[str, Any]


def holds(guard: e.Guard, bins: dict[str, Any], now: int, updated: int) -> bool:
    """Whether a guard is true; false and unknown both refuse."""
    return value_of(guard, Scope(bins, now, updated, _NONE)) is True


def value_of(expression: e.Expr | e.Bound, scope: Scope) -> Any:
    """The value of an expression with its parameters filled in, or `UNKNOWN`."""
    if type(expression) is e.Bound:
        expression, scope.params = expression
    return evaluate(expression, scope)  # type: ignore[arg-type] # mypy does not narrow by `type(...) is`


def evaluate(node: e.Expr, scope: Scope) -> Any:
    """The value of an expression, or `UNKNOWN`."""
    return _EVALUATE[type(node)](node, scope)


def wrap(number: int) -> int:
    """Integers wrap at 64 bits, as on the server."""
    if MIN_INT <= number <= MAX_INT:
        return number
    return (number - MIN_INT) % 2**64 + MIN_INT


def _of_kind(value: Any, kind: type) -> Any:
    if type(value) is kind:
        return value
    return UNKNOWN


def _param(node: e.Param, scope: Scope) -> Any:
    try:
        return taken(scope.params[node.name])
    except KeyError:
        raise InvalidRequest(f"the expression's parameter {shown(node.name)} has no value: bind it") from None


def _bin(node: e.Bin, scope: Scope) -> Any:
    return _of_kind(scope.bins.get(node.name), node.kind)


def _compare(node: e.Compare, scope: Scope) -> Any:
    left, right = evaluate(node.left, scope), evaluate(node.right, scope)
    if left is UNKNOWN or type(left) is not type(right):
        return UNKNOWN
    if type(left) in NESTED:
        left, right = _order(left), _order(right)
    return _COMPARE[node.op](left, right)


def _order(value: Any) -> tuple[int, Any]:
    """Where the server has a value among those of lists: first by its kind, so that 1, 1.0 and true differ."""
    kind = type(value)
    if kind is list:
        value = tuple(map(_order, value))
    elif kind is dict:
        value = (len(value), *((_order(key), _order(item)) for key, item in value.items()))
    return _KINDS.index(kind), value


def _all(node: e.All, scope: Scope) -> Any:
    unknown = False
    for part in node.parts:
        value = evaluate(part, scope)
        if value is False:
            return False
        unknown = unknown or value is UNKNOWN
    return UNKNOWN if unknown else True


def _any(node: e.AnyOf, scope: Scope) -> Any:
    unknown = False
    for part in node.parts:
        value = evaluate(part, scope)
        if value is True:
            return True
        unknown = unknown or value is UNKNOWN
    return UNKNOWN if unknown else False


def _negate(node: e.Negate, scope: Scope) -> Any:
    value = evaluate(node.part, scope)
    return UNKNOWN if value is UNKNOWN else not value


def _arithmetic(node: e.Arithmetic, scope: Scope) -> Any:
    values = [evaluate(part, scope) for part in node.parts]
    if UNKNOWN in values or (node.op == "//" and values[1] == 0):
        return UNKNOWN
    return wrap(_ARITHMETIC[node.op](values))


def _map(name: str, scope: Scope) -> dict[Any, Any] | None:
    value = scope.bins.get(name)
    return value if type(value) is dict else None


def _map_has(node: e.MapHas, scope: Scope) -> Any:
    entries, key = _map(node.bin, scope), evaluate(node.key, scope)
    return UNKNOWN if entries is None or key is UNKNOWN else key in entries


def _map_value(node: e.MapValue, scope: Scope) -> Any:
    entries, key = _map(node.bin, scope), evaluate(node.key, scope)
    return UNKNOWN if entries is None or key is UNKNOWN else _of_kind(entries.get(key), node.kind)


def _map_key_at(node: e.MapKeyAt, scope: Scope) -> Any:
    entries = _map(node.bin, scope)
    if not entries or not -len(entries) <= node.index < len(entries):
        return UNKNOWN
    if node.index == 0:
        key = next(iter(entries))
    elif node.index == -1:
        key = next(reversed(entries))
    else:
        key = list(entries)[node.index]
    return _of_kind(key, node.kind)


def _map_size(node: e.MapSize, scope: Scope) -> Any:
    entries = _map(node.bin, scope)
    return UNKNOWN if entries is None else len(entries)


def _map_smallest(node: e.MapSmallestValue, scope: Scope) -> Any:
    values = (_map(node.bin, scope) or {}).values()
    if not values or any(value is None or type(value) is bool for value in values):
        return UNKNOWN  # the server ranks these below integers
    return min((value for value in values if type(value) is int), default=UNKNOWN)


def _list_of(node: e.ListOf, scope: Scope) -> Any:
    values = [evaluate(part, scope) for part in node.parts]
    return UNKNOWN if UNKNOWN in values else values


def _if(node: e.If, scope: Scope) -> Any:
    test = evaluate(node.test, scope)
    return UNKNOWN if test is UNKNOWN else evaluate(node.then if test else node.otherwise, scope)


_KINDS = (type(None), bool, int, str, list, dict, bytes, float)
"""In the server's order."""
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
_EVALUATE: dict[type, Callable[[Any, Scope], Any]] = {
    e.Const: lambda node, _: node.value,
    e.Param: _param,
    e.Bin: _bin,
    e.Exists: lambda node, scope: node.bin in scope.bins,
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
    e.ServerNow: lambda _, scope: max(scope.now, scope.updated),
    e.SinceUpdate: lambda _, scope: max(0, scope.now - scope.updated),
}
