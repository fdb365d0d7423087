"""Expressions as the Aerospike client takes them, compiled once per tree.

A compiled expression is a flat list of entries `(operation, type, fixed, children)`; the values of parameters are
entries of their own, so that a call copies the list and puts its values in. That costs a few microseconds where a
compile costs as much as the network. The compiled form lives as long as the tree does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import aerospike
from aerospike_helpers import expressions as exp

from ...errors import InvalidRequest
from ...plain import shown
from ..model import expr as e
from ..model.values import taken

Entries = list[tuple[Any, ...]]
_VALUE = 200
_TYPES: dict[type, int] = {
    bool: exp.ResultType.BOOLEAN,
    int: exp.ResultType.INTEGER,
    str: exp.ResultType.STRING,
    bytes: exp.ResultType.BLOB,
    float: exp.ResultType.FLOAT,
    list: exp.ResultType.LIST,
    dict: exp.ResultType.MAP,
}
_BINS: dict[type, Callable[[str], Any]] = {
    bool: exp.BoolBin,
    int: exp.IntBin,
    str: exp.StrBin,
    bytes: exp.BlobBin,
    float: exp.FloatBin,
    list: exp.ListBin,
    dict: exp.MapBin,
}
ORDERED = {"map_order": aerospike.MAP_KEY_ORDERED}
"""Maps are made in key order, so that their first and last keys are found without sorting."""
NEW = {**ORDERED, "map_write_flags": aerospike.MAP_WRITE_FLAGS_CREATE_ONLY}


class _Slot:
    """A place for the value of a parameter."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Template:
    """A compiled expression with slots for its parameters."""

    __slots__ = ("_entries", "_slots")

    def __init__(self, compiled: Entries) -> None:
        self._entries = compiled
        self._slots = tuple(
            (place, entry[2]["val"].name)
            for place, entry in enumerate(compiled)
            if entry[2] and isinstance(entry[2].get("val"), _Slot)
        )

    @property
    def has_params(self) -> bool:
        """Whether anything in it differs from call to call."""
        return bool(self._slots)

    def filled(self, params: dict[str, Any]) -> Entries:
        """Return the client's structure with these values. Raises `InvalidRequest` for a parameter that has none."""
        if not self._slots:
            return self._entries
        entries = self._entries.copy()
        try:
            for place, name in self._slots:
                entries[place] = (_VALUE, None, {"val": taken(params[name])}, 0)
        except KeyError as missing:
            raise InvalidRequest(f"the expression's parameter {missing} has no value: bind it") from None
        return entries


_puts: WeakKeyDictionary[e.Expr, dict[str, Template]] = WeakKeyDictionary()


def compiled(expression: e.Expr | e.Bound) -> Entries:
    """Return the client's structure for an expression."""
    root, params = e.unbound(expression)
    return template_of(root).filled(params)


def template_of(root: e.Expr) -> Template:
    """Return the compiled form of a tree, for as long as that lives."""
    template: Template | None = root.__dict__.get(_COMPILED)
    if template is None:
        # Kept in the tree itself, past its frozen fields: a weak dictionary costs as much as filling it in.
        template = root.__dict__[_COMPILED] = Template(_build(root).compile())
    return template


def compiled_put(bin: str, key: Any, value: e.Expr | e.Bound) -> Entries:
    """Return the structure for a map bin with one entry set to an expression's value, the map made where it
    is missing.
    """
    root, params = e.unbound(value)
    if isinstance(key, (e.Expr, e.Bound)):
        at, more = e.unbound(key)
        return template_of_put(bin, at, root).filled({**params, **more})
    by_bin = _puts.get(root)
    if by_bin is None:
        by_bin = _puts[root] = {}
    template = by_bin.get(bin)
    if template is None:
        template = by_bin[bin] = template_of_put(bin, e.Param(_KEY), root)
    return template.filled({**params, _KEY: key})


def template_of_put(bin: str, key: Any, value: e.Expr) -> Template:
    """Return the template of a map put whose value, or key, has parameters."""
    entries = exp.Cond(exp.BinExists(bin), exp.MapBin(bin), exp.Val(aerospike.KeyOrderedDict({})))
    at = _Slot(key.name) if isinstance(key, e.Param) else _build(key) if isinstance(key, e.Expr) else key
    return Template(exp.MapPut(None, ORDERED, at, _build(value), entries).compile())


_KEY = "\0key"
_COMPILED = "_compiled"


def _build(node: e.Expr) -> Any:
    try:
        build = _BUILD[type(node)]
    except KeyError:
        raise InvalidRequest(f"{shown(node)} is not an expression of latchwork.store.model.expr") from None
    return build(node)


def _all(parts: tuple[e.Expr, ...]) -> list[Any]:
    return [_build(part) for part in parts]


def _type(kind: type) -> int:
    try:
        return _TYPES[kind]
    except KeyError:
        raise InvalidRequest(
            f"a {shown(kind)} in an expression; use int, str, bytes, bool, float, list or dict"
        ) from None


def _bin(node: e.Bin) -> Any:
    _type(node.kind)
    return _BINS[node.kind](node.name)


def _map_has(node: e.MapHas) -> Any:
    return exp.MapGetByKey(
        None, aerospike.MAP_RETURN_EXISTS, exp.ResultType.BOOLEAN, _build(node.key), exp.MapBin(node.bin)
    )


def _map_value(node: e.MapValue) -> Any:
    return exp.MapGetByKey(None, aerospike.MAP_RETURN_VALUE, _type(node.kind), _build(node.key), exp.MapBin(node.bin))


def _map_key_at(node: e.MapKeyAt) -> Any:
    return exp.MapGetByIndex(None, aerospike.MAP_RETURN_KEY, _type(node.kind), node.index, exp.MapBin(node.bin))


def _map_smallest(node: e.MapSmallestValue) -> Any:
    return exp.MapGetByRank(None, aerospike.MAP_RETURN_VALUE, exp.ResultType.INTEGER, 0, exp.MapBin(node.bin))


def _list_of(node: e.ListOf) -> Any:
    built = exp.Val([])
    for part in node.parts:
        built = exp.ListAppend(None, None, _build(part), built)
    return built


def _server_now(_: e.ServerNow) -> Any:
    # The sum is the server's clock whenever the record was last written, also while it is being made.
    return exp.Add(exp.Div(exp.LastUpdateTime(), 1_000_000), exp.SinceUpdateTime())


def _not_expired() -> Any:
    # A record lives through the whole second of its void time; -1 is one that never expires.
    overdue = exp.Sub(_server_now(e.SERVER_NOW), exp.Div(exp.VoidTime(), 1_000_000))
    return exp.Or(exp.LT(exp.VoidTime(), 0), exp.LT(overdue, 1000))


NOT_EXPIRED: Entries = _not_expired().compile()
"""Whether readers still see the record: the server deletes, and reports, what it should have removed."""

_COMPARE: dict[str, Any] = {"==": exp.Eq, "!=": exp.NE, "<": exp.LT, "<=": exp.LE, ">": exp.GT, ">=": exp.GE}
_ARITHMETIC: dict[str, Any] = {"+": exp.Add, "-": exp.Sub, "*": exp.Mul, "//": exp.Div, "max": exp.Max, "min": exp.Min}
_BUILD: dict[type, Callable[[Any], Any]] = {
    e.Const: lambda node: exp.Val(node.value),
    e.Param: lambda node: exp.Val(_Slot(node.name)),
    e.Bin: _bin,
    e.BinExists: lambda node: exp.BinExists(node.bin),
    e.Compare: lambda node: _COMPARE[node.op](_build(node.left), _build(node.right)),
    e.All: lambda node: exp.And(*_all(node.parts)),
    e.AnyOf: lambda node: exp.Or(*_all(node.parts)),
    e.Negate: lambda node: exp.Not(_build(node.part)),
    e.Arithmetic: lambda node: _ARITHMETIC[node.op](*_all(node.parts)),
    e.If: lambda node: exp.Cond(_build(node.test), _build(node.then), _build(node.otherwise)),
    e.MapHas: _map_has,
    e.MapSize: lambda node: exp.MapSize(None, exp.MapBin(node.bin)),
    e.MapValue: _map_value,
    e.MapKeyAt: _map_key_at,
    e.MapSmallestValue: _map_smallest,
    e.ListOf: _list_of,
    e.ServerNow: _server_now,
    e.SinceUpdate: lambda _: exp.SinceUpdateTime(),
}
