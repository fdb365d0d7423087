"""Operations as the Aerospike client takes them, and where their results are in its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import aerospike
from aerospike_helpers import expressions as exp
from aerospike_helpers.operations import expression_operations as on_expr
from aerospike_helpers.operations import list_operations as on_list
from aerospike_helpers.operations import map_operations as on_map
from aerospike_helpers.operations import operations as on_bin

from ...errors import InvalidRequest
from ...plain import shown
from ..model import expr as e
from ..model import ops as o
from ..model.ops import check_row
from ..model.values import amount, element, map_key, taken
from .expr import NEW, ORDERED, Entries, compiled, compiled_put

Built = Any
"""One operation as the client takes it."""
Names = Sequence[tuple[str, list[Any] | None]]
_NOTHING = aerospike.MAP_RETURN_NONE
_NAMES = tuple(f"={place}" for place in range(64))
EVERY_OP_ANSWERS = on_expr.expression_read("=all", exp.Val(True).compile())
"""Added if the server would answer only some operations, and it would be unclear which."""


def compile_ops(ops: Sequence[o.Op]) -> list[Built]:
    """Return the client's operations, one for each of Latchwork's, in order."""
    return [compile_op(op, place) for place, op in enumerate(ops)]


def compile_op(op: o.Op, place: int) -> Built:
    """Return the client's operation for one at that place among the operations of its update."""
    return _BUILD.get(type(op), _unknown)(op, place)


def computed(op: o.Op, place: int, entries: Entries) -> Built:
    """Return the client's operation for one whose value is this compiled expression."""
    if isinstance(op, o.Compute):
        return on_expr.expression_read(_name(place), entries, aerospike.EXP_READ_EVAL_NO_FAIL)
    return on_expr.expression_write(op.bin, entries)


def _unknown(op: Any, _: int) -> Built:
    raise InvalidRequest(f"{shown(op)} is not an operation of latchwork.store.model.ops")


class InOrder:
    """The way in which the server answers operations of these kinds in order; one object for every update made of them.

    any: whether one of them reads.
    unclear: whether it would answer only some of them, and it would be unclear which.
    """

    __slots__ = ("_all", "_expected", "_lists", "_reads", "any", "unclear")

    def __init__(self, kinds: tuple[type, ...]) -> None:
        o.check_kinds(kinds)
        self._all = o.ReadAll in kinds
        asked = [kind for kind in kinds if kind is not o.Touch]  # never answered
        reads = [place for place, kind in enumerate(asked) if kind in _READS]
        alone = len(reads) == 1 and _SILENT.issuperset(set(kinds) - _READS)
        self._expected, self._reads, self.any = len(asked), reads, bool(reads)
        self._lists = [at for at, place in enumerate(reads) if asked[place] is o.ListRange]
        self.unclear = bool(reads) and not alone and _LOUD.isdisjoint(kinds)

    def results(self, answers: Sequence[tuple[str, Any]]) -> tuple[Any, ...]:
        """Return the results of the reading operations, from an ordered answer."""
        if self._all:
            return (dict(answers),)
        if len(answers) < self._expected:
            # Only the one read was answered, or nothing where its bin is missing.
            found = [answers[0][1] if answers else None for _ in self._reads]
        else:
            found = [answers[place][1] for place in self._reads]
        for at in self._lists:
            found[at] = [] if found[at] is None else found[at]
        return tuple(found)


@lru_cache(maxsize=1024)
def answers_of(kinds: tuple[type, ...]) -> InOrder:
    """Return how operations of these kinds are answered."""
    return InOrder(kinds)


def request_of(ops: Sequence[o.Op]) -> tuple[list[Built], InOrder]:
    """Return the operations as the client takes them, so that each answer can be assigned to its operation; and how
    they answer.
    """
    built, answers = compile_ops(ops), answers_of(tuple(map(type, ops)))
    if answers.unclear:
        built.append(EVERY_OP_ANSWERS)
    return built, answers


class ByName:
    """The way in which the server answers operations whose results are named by bin, as in every row of a batch.

    any: whether one of them reads.
    """

    __slots__ = ("_names", "any")

    def __init__(self, names: Names | None) -> None:
        self._names, self.any = names, names is None or bool(names)

    def results(self, bins: dict[str, Any]) -> tuple[Any, ...]:
        """Return what the reading operations returned, from an answer that is named by bin."""
        names = self._names
        if not names:
            return (bins,) if names is None else ()
        return tuple([nothing if (value := bins.get(name)) is None else value for name, nothing in names])


_WRITES_ONLY = ByName(())


def by_name(key: Any, ops: tuple[o.Op, ...]) -> ByName:
    """Return how a row of these operations is answered. Raises `InvalidRequest` if names cannot tell results apart."""
    o.check_kinds(tuple(map(type, ops)))
    if isinstance(ops[-1], o.ReadAll):
        return ByName(None)
    if _READS.isdisjoint(map(type, ops)):
        return _WRITES_ONLY
    check_row(key, ops)
    return ByName([
        (_name(place) if isinstance(op, o.Compute) else op.bin, [] if isinstance(op, o.ListRange) else None)
        for place, op in enumerate(ops)
        if isinstance(op, o.READS) and not isinstance(op, o.ReadAll)
    ])  # fmt: skip


def is_matched_by_name(ops: tuple[o.Op, ...]) -> bool:
    """Whether the results can be told apart by the names of their bins."""
    try:
        check_row(None, ops)
    except InvalidRequest:
        return False
    return True


def _name(place: int) -> str:
    return _NAMES[place] if place < len(_NAMES) else f"={place}"


def _plain(value: Any) -> tuple[bool, Any]:
    """Return whether the value of an expression is known here, and that value, in a form that a bin can hold."""
    expression, params = e.unbound(value)
    if isinstance(expression, e.Const):
        return True, taken(expression.value)
    if isinstance(expression, e.Param) and expression.name in params:
        return True, taken(params[expression.name])
    return False, None


def _put(op: o.Put, _: int) -> Built:
    if not isinstance(op.value, e.EXPRESSIONS):
        return on_bin.write(op.bin, taken(op.value))
    plain, value = _plain(op.value)
    if plain:
        return on_bin.write(op.bin, value)
    return on_expr.expression_write(op.bin, compiled(op.value)) if isinstance(op.value, e.Bound) else _put_computed(op)


@lru_cache(maxsize=1024)
def _put_computed(op: o.Put) -> Built:
    return on_expr.expression_write(op.bin, compiled(op.value))


def _compute(op: o.Compute, place: int) -> Built:
    return _compute_always(op.expr, place) if isinstance(op.expr, e.Expr) else _read_computed(op.expr, place)


def _read_computed(expression: e.Expr | e.Bound, place: int) -> Built:
    return on_expr.expression_read(_name(place), compiled(expression), aerospike.EXP_READ_EVAL_NO_FAIL)


_compute_always = lru_cache(maxsize=1024)(_read_computed)


def _map_put(op: o.MapPut, _: int) -> Built:
    if o.is_computed(op.key):
        return on_expr.expression_write(op.bin, compiled_put(op.bin, op.key, op.value))
    key, kind = map_key(op.key), NEW if op.new else ORDERED
    if not isinstance(op.value, e.EXPRESSIONS):
        return on_map.map_put(op.bin, key, taken(op.value), kind)
    plain, value = _plain(op.value)
    if plain:
        return on_map.map_put(op.bin, key, value, kind)
    return on_expr.expression_write(op.bin, compiled_put(op.bin, key, op.value))


@lru_cache(maxsize=1024)
def _read(op: o.Read, _: int) -> Built:
    return on_bin.read(op.bin)


@lru_cache(maxsize=1024)
def _map_trim(op: o.MapTrim, _: int) -> Built:
    # All but the last `keep` entries; the server clips a range that begins before the first.
    return on_map.map_remove_by_index_range(op.bin, -op.keep, op.keep, _NOTHING, True)


_BUILD: dict[type, Callable[[Any, int], Built]] = {
    o.Put: _put,
    o.Add: lambda op, _: on_bin.increment(op.bin, amount(op.amount)),
    o.Read: _read,
    o.ReadAll: lambda _op, _: _READ_ALL,
    o.Compute: _compute,
    o.MapPut: _map_put,
    o.MapAdd: lambda op, _: on_map.map_increment(op.bin, map_key(op.key), amount(op.amount), ORDERED),
    o.MapRemove: lambda op, _: on_map.map_remove_by_key_list(op.bin, [map_key(key) for key in op.keys], _NOTHING),
    o.MapTrim: _map_trim,
    o.MapGet: lambda op, _: on_map.map_get_by_key(op.bin, map_key(op.key), aerospike.MAP_RETURN_VALUE),
    o.ListAppend: lambda op, _: on_list.list_append(op.bin, taken(op.value)),
    o.ListSet: lambda op, _: on_list.list_set(op.bin, element(op.index), taken(op.value)),
    o.ListRange: lambda op, _: on_list.list_get_range(op.bin, element(op.index), element(op.count)),
    o.Touch: lambda _op, _: on_bin.touch(),
}
_READ_ALL: Built = {"op": aerospike.OPERATOR_READ, "bin": ""}
"""The operation `operations.read("")`, which the client refuses to make."""
_READS = frozenset(o.READS)
_LOUD = frozenset({o.Compute, o.MapPut, o.MapAdd, o.MapRemove, o.MapTrim, o.MapGet})
"""If one of these is among the operations, the server answers every operation, in order."""
_SILENT = frozenset({o.Put, o.Add, o.Touch})
"""Otherwise it does not answer these, nor a read of a missing bin."""
