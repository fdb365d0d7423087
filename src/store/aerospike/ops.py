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
"""Added where the server would answer some operations only, and it could not be told which."""


def compile_ops(ops: Sequence[o.Op]) -> list[Built]:
    """The client's operations, one for each of ours, in order."""
    return [compile_op(op, place) for place, op in enumerate(ops)]


def compile_op(op: o.Op, place: int) -> Built:
    """The client's operation for one of ours, which is at that place among those of its update."""
    return _BUILD.get(type(op), _unknown)(op, place)


def computed(op: o.Op, place: int, entries: Entries) -> Built:
    """The client's operation for one whose value is this compiled expression."""
    if isinstance(op, o.Compute):
        return on_expr.expression_read(_name(place), entries, aerospike.EXP_READ_EVAL_NO_FAIL)
    return on_expr.expression_write(op.bin, entries)


def _unknown(op: Any, _: int) -> Built:
    raise InvalidRequest(f"{shown(op)} is not an operation of latchwork.store.model.ops")


class Answers:
    """How the server answers operations of these kinds; the same for every update that is made of them.

    any: whether one of them reads.  unclear: it would answer some of them only, and it could not be told which.
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
        """What the reading operations returned, from an ordered answer."""
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
def answers_of(kinds: tuple[type, ...]) -> Answers:
    """How operations of these kinds are answered."""
    return Answers(kinds)


def request_of(ops: Sequence[o.Op]) -> tuple[list[Built], Answers]:
    """The operations as the client takes them, such that it can be told which answer is whose; and how they answer."""
    built, answers = compile_ops(ops), answers_of(tuple(map(type, ops)))
    if answers.unclear:
        built.append(EVERY_OP_ANSWERS)
    return built, answers


class RowShapes:
    """What the rows of one batch share: the same tuple of operations, and the same operation, are compiled once."""

    def __init__(self) -> None:
        self._shapes: dict[int, RowShape] = {}
        self._built: dict[int, Built] = {}

    def of(self, key: Any, ops: tuple[o.Op, ...]) -> RowShape:
        """The operations of a row as the client takes them. The caller keeps `ops` alive as long as this."""
        shape = self._shapes.get(id(ops))
        if shape is None:
            known = self._built.get
            built = [known(id(op)) or self._build(op, place) for place, op in enumerate(ops)]
            shape = self._shapes[id(ops)] = RowShape(built, *_answers(key, ops))
        return shape

    def _build(self, op: o.Op, place: int) -> Built:
        built = compile_op(op, place)
        if type(op) is not o.Compute:  # whose answer is named after its place
            self._built[id(op)] = built
        return built


class RowShape:
    """The operations of a batch row: as the client takes them, whether they write, and how their answers are named."""

    __slots__ = ("_names", "built", "writes")

    def __init__(self, built: list[Built], writes: bool, names: Names | None) -> None:
        self.built, self.writes, self._names = built, writes, names

    def results(self, bins: dict[str, Any]) -> tuple[Any, ...]:
        """What the reading operations returned, from the answer of the row, which is named by bin."""
        if self._names is None:
            return (bins,)
        return tuple([nothing if (value := bins.get(name)) is None else value for name, nothing in self._names])


def _answers(key: Any, ops: tuple[o.Op, ...]) -> tuple[bool, Names | None]:
    """Whether the operations write, and for each answer its name and what its absence means; None for all bins."""
    o.check_kinds(tuple(map(type, ops)))
    if isinstance(ops[-1], o.ReadAll):
        return o.writes(ops), None
    if _READS.isdisjoint(map(type, ops)):
        return True, ()
    check_row(key, ops)
    names: Names = [
        (_name(place) if isinstance(op, o.Compute) else op.bin, [] if isinstance(op, o.ListRange) else None)
        for place, op in enumerate(ops)
        if isinstance(op, o.READS) and not isinstance(op, o.ReadAll)
    ]
    return o.writes(ops), names


def _name(place: int) -> str:
    return _NAMES[place] if place < len(_NAMES) else f"={place}"


def _plain(value: Any) -> tuple[bool, Any]:
    """Whether an expression's value is known here, and what it is then, once a bin can hold it."""
    expression, params = value if isinstance(value, e.Bound) else (value, {})
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


def _add(op: o.Add, _: int) -> Built:
    return on_bin.increment(op.bin, amount(op.amount))


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


def _map_add(op: o.MapAdd, _: int) -> Built:
    return on_map.map_increment(op.bin, map_key(op.key), amount(op.amount), ORDERED)


@lru_cache(maxsize=1024)
def _read(op: o.Read, _: int) -> Built:
    return on_bin.read(op.bin)


@lru_cache(maxsize=1024)
def _map_trim(op: o.MapTrim, _: int) -> Built:
    # All but the last `keep` entries; the server clips a range that begins before the first.
    return on_map.map_remove_by_index_range(op.bin, -op.keep, op.keep, _NOTHING, True)


def _list_set(op: o.ListSet, _: int) -> Built:
    return on_list.list_set(op.bin, element(op.index), taken(op.value))


def _list_range(op: o.ListRange, _: int) -> Built:
    return on_list.list_get_range(op.bin, element(op.index), element(op.count))


_BUILD: dict[type, Callable[[Any, int], Built]] = {
    o.Put: _put,
    o.Add: _add,
    o.Read: _read,
    o.ReadAll: lambda _op, _: _READ_ALL,
    o.Compute: _compute,
    o.MapPut: _map_put,
    o.MapAdd: _map_add,
    o.MapRemove: lambda op, _: on_map.map_remove_by_key_list(op.bin, [map_key(key) for key in op.keys], _NOTHING),
    o.MapTrim: _map_trim,
    o.MapGet: lambda op, _: on_map.map_get_by_key(op.bin, map_key(op.key), aerospike.MAP_RETURN_VALUE),
    o.ListAppend: lambda op, _: on_list.list_append(op.bin, taken(op.value)),
    o.ListSet: _list_set,
    o.ListRange: _list_range,
    o.Touch: lambda _op, _: on_bin.touch(),
}
_READ_ALL: Built = {"op": aerospike.OPERATOR_READ, "bin": ""}
"""What the client's `operations.read("")` would be, which it refuses to make."""
_READS = frozenset(o.READS)
_LOUD = frozenset({o.Compute, o.MapPut, o.MapAdd, o.MapRemove, o.MapTrim, o.MapGet})
"""With one of these among the operations, the server answers every operation, in order."""
_SILENT = frozenset({o.Put, o.Add, o.Touch})
"""Without, it does not answer these, nor a read of a missing bin."""
