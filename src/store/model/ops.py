"""Operations: what one atomic update does to the bins of one record, in order, as values.

`Put`, `MapPut` take a plain value, or an expression that the server evaluates against the record as the operations
before it left it. The operations named `Read`, `ReadAll`, `Compute`, `MapGet` and `ListRange` return results, in their
order; the others return none.

In a batch, a bin that is read by `Read`, `MapGet` or `ListRange` must not be touched by another operation *after* that
read in its row, and is read once a row: the Aerospike client names batch results by bin, so every store refuses such a
row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from msgspec import Struct

from ...errors import InvalidRequest
from ...inputs import checked_switch
from ...plain import shown
from .expr import EXPRESSIONS, Bound, Expr, Param
from .values import NO_BIN, kept

Filled = Any
"""A `Param`, in an update that is made once and filled in often (`form.py`)."""


def is_computed(value: Any) -> bool:
    """Whether the store has to evaluate it: an expression, and no parameter that stands for a value."""
    return isinstance(value, EXPRESSIONS) and not isinstance(value, Param)


def _check_one_value(params: dict[str, Any], others: dict[str, Any]) -> None:
    """Raise `InvalidRequest` if a name has two values: to the server a key and its value are one expression."""
    for name in params.keys() & others.keys():
        if params[name] != others[name]:
            raise InvalidRequest(
                f"the parameter {shown(name)} of a computed key and of its value is bound to two values: give them two "
                "names"
            )


def _check_counts(*numbers: Any) -> None:
    for number in numbers:
        if not isinstance(number, int | Param):
            raise InvalidRequest(f"{shown(number)} as a place in a list, or as a number of entries: use an integer")


class Put(Struct, frozen=True):
    """Set a bin to a value or to an expression's value; None removes the bin."""

    bin: str
    value: Any | Expr | Bound


class Add(Struct, frozen=True):
    """Add an integer to an integer bin; a missing bin counts as 0."""

    bin: str
    amount: int | Filled


class Read(Struct, frozen=True):
    """Read a bin; None where it is missing."""

    bin: str


class ReadAll(Struct, frozen=True):
    """Read all bins, as a dictionary; cheaper than many by name. The last, after none but `Put`, `Add`, `Touch`."""

    bin: ClassVar[Any] = NO_BIN


class Compute(Struct, frozen=True):
    """Read the value of an expression; None where it is unknown."""

    bin: ClassVar[Any] = NO_BIN
    expr: Expr | Bound

    def __post_init__(self) -> None:
        if not isinstance(self.expr, EXPRESSIONS):
            raise InvalidRequest(
                f"{shown(self.expr)} cannot be computed: give an expression of latchwork.store.model.expr"
            )


class MapPut(Struct, frozen=True):
    """Set one entry of a map bin (key-ordered, made when missing) to a value or an expression's value.

    The key may be an expression's value too, where the value is one.
    new: the whole update is refused where the key is there already; only with a plain value.
    """

    bin: str
    key: str | int | bytes | Filled | Expr | Bound
    value: Any | Expr | Bound
    new: bool = False

    def __post_init__(self) -> None:
        checked_switch("new", self.new)
        if is_computed(self.key) and not isinstance(self.value, EXPRESSIONS):
            raise InvalidRequest(
                f"{shown(self.value)} at a key that is computed: give an expression, Const(...) for a value"
            )
        if isinstance(self.key, Bound) and isinstance(self.value, Bound) and self.key.params is not self.value.params:
            _check_one_value(self.key.params, self.value.params)


class MapAdd(Struct, frozen=True):
    """Add an integer to an entry of a map bin; a missing entry counts as 0."""

    bin: str
    key: str | int | bytes | Filled
    amount: int | Filled


class MapRemove(Struct, frozen=True):
    """Remove the entries with these keys from a map bin; absent keys are no error."""

    bin: str
    keys: tuple[str | int | bytes, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.keys, tuple | list):
            raise InvalidRequest(f"{shown(self.keys)} as the keys to remove: give a tuple of keys")


class MapTrim(Struct, frozen=True):
    """Keep the entries of a map bin with the `keep` (0 to 2**31 - 1) largest keys."""

    bin: str
    keep: int

    def __post_init__(self) -> None:
        kept(self.keep)


class MapGet(Struct, frozen=True):
    """Read the value at a key of a map bin; None where it is not there."""

    bin: str
    key: str | int | bytes | Filled


class ListAppend(Struct, frozen=True):
    """Append a value to a list bin, made when missing."""

    bin: str
    value: Any


class ListSet(Struct, frozen=True):
    """Set the element at an index (0 or more) of a list bin; indexes between its end and this one become None."""

    bin: str
    index: int | Filled
    value: Any

    def __post_init__(self) -> None:
        _check_counts(self.index)


class ListRange(Struct, frozen=True):
    """Read up to `count` elements of a list bin from an index (0 or more); [] past its end or with no such bin."""

    bin: str
    index: int | Filled
    count: int | Filled

    def __post_init__(self) -> None:
        _check_counts(self.index, self.count)


class Touch(Struct, frozen=True):
    """Write the record as it is: its time to live and its time of last update start again."""

    bin: ClassVar[Any] = NO_BIN


Op = (
    Put
    | Add
    | Read
    | ReadAll
    | Compute
    | MapPut
    | MapAdd
    | MapRemove
    | MapTrim
    | MapGet
    | ListAppend
    | ListSet
    | ListRange
    | Touch
)
READS = (Read, ReadAll, Compute, MapGet, ListRange)
"""The operations that give a result."""
_READS = frozenset(READS)


def writes(ops: tuple[Op, ...]) -> bool:
    """Whether any of them changes the record."""
    return any_writes(tuple(map(type, ops)))


@lru_cache(maxsize=1024)
def any_writes(kinds: tuple[type, ...]) -> bool:
    """Whether any operation of these kinds changes the record."""
    return not _READS.issuperset(kinds)


@lru_cache(maxsize=1024)
def check_kinds(kinds: tuple[type, ...]) -> None:
    """Raise `InvalidRequest` if the results of operations of these kinds, in this order, cannot be told apart."""
    if ReadAll in kinds and (kinds[-1] is not ReadAll or not _BESIDE_ALL.issuperset(kinds[:-1])):
        raise InvalidRequest("ReadAll comes last, and after no other operations than Put, Add and Touch")


_BESIDE_ALL = frozenset({Put, Add, Touch})


def check_row(key: Any, ops: Sequence[Op]) -> None:
    """Raise `InvalidRequest` if a batch could not tell the results of two operations apart."""
    if len(ops) == 1 or _READS.isdisjoint(map(type, ops)):
        return
    read: set[str] = set()
    for op in ops:
        if isinstance(op, Compute | Touch | ReadAll):
            continue
        if op.bin in read:
            raise InvalidRequest(
                f"in a batch, bin {shown(op.bin)} of {key} is touched after it was read in the same row: results are "
                "named by bin; read it last, and once"
            )
        if isinstance(op, READS):
            read.add(op.bin)
