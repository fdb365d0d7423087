"""Expressions: what a guard asks and what an update computes on the server, as values.

An expression is a small immutable tree. The Aerospike adapter compiles it to a filter expression, once, and keeps the
result for as long as the tree lives; so do the local stores with a closure (`local/evaluate.py`). So build a tree
once, at import or when a handle is made, with a `Param` wherever a call puts in its own value, and `bind` it for each
call:

    MINE = Bin("lock-owner", str).eq(Param("me", str))
    store.operate(key, Put("x", 1), when=MINE.bind(me="w1"))

Three-valued logic, as on the server: whatever needs a bin that is missing, or that holds another type, is *unknown*,
and so is its negation; an unknown guard refuses. `exists(bin)` alone is always true or false.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from msgspec import Struct

from ...errors import InvalidRequest
from ...plain import shown
from .values import checked_bin, taken

Kind = type
"""The type of a value in an expression: int, str, bytes, list or dict."""


@dataclass(frozen=True, eq=False)
class Expr:
    """An expression over the bins of a record, for a guard or for a value that the store computes.

    Two expressions are equal only if they are one object. Raises `InvalidRequest` if a part of it is nothing that a
    store can evaluate.
    """

    def __post_init__(self) -> None:
        if hasattr(self, "bin"):
            checked_bin(self.bin)
        for part in getattr(self, "parts", ()):
            _check_part(part)

    def __reduce__(self) -> tuple[Any, ...]:
        """Without what a store keeps in the tree, which no other process has a use for."""
        return type(self), tuple(getattr(self, each.name) for each in fields(self))

    def bind(self, **params: Any) -> Bound:
        """Return the expression with its parameters filled in."""
        return Bound(self, params)

    def eq(self, other: Any) -> Expr:
        """Return the condition that both sides are equal."""
        return Compare("==", self, _node(other))

    def ne(self, other: Any) -> Expr:
        """Return the condition that the sides differ; unknown, and therefore refused, if one is missing."""
        return Compare("!=", self, _node(other))

    def __lt__(self, other: Any) -> Expr:
        return Compare("<", self, _node(other))

    def __le__(self, other: Any) -> Expr:
        return Compare("<=", self, _node(other))

    def __gt__(self, other: Any) -> Expr:
        return Compare(">", self, _node(other))

    def __ge__(self, other: Any) -> Expr:
        return Compare(">=", self, _node(other))

    def __add__(self, other: Any) -> Expr:
        return Arithmetic("+", (self, _node(other)))

    def __sub__(self, other: Any) -> Expr:
        return Arithmetic("-", (self, _node(other)))

    def __mul__(self, other: Any) -> Expr:
        return Arithmetic("*", (self, _node(other)))

    def __floordiv__(self, other: Any) -> Expr:
        """Return the quotient without its fraction; unknown where the divisor is 0."""
        return Arithmetic("//", (self, _node(other)))

    def __and__(self, other: Expr) -> Expr:
        return All((self, other))

    def __or__(self, other: Expr) -> Expr:
        return AnyOf((self, other))

    def __invert__(self) -> Expr:
        return Negate(self)


class Bound(Struct, frozen=True):
    """An expression and the values of its parameters."""

    expr: Expr
    params: dict[str, Any]


_NO_PARAMS: dict[str, Any] = {}


def unbound(value: Any) -> tuple[Any, dict[str, Any]]:
    """Return an expression without the values of its parameters, and these."""
    return (value.expr, value.params) if isinstance(value, Bound) else (value, _NO_PARAMS)


Guard = Expr | Bound
EXPRESSIONS = (Expr, Bound)
"""The types of values that the server computes."""


@dataclass(frozen=True, eq=False)
class Const(Expr):
    """A constant value."""

    value: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", taken(self.value))  # of a member of an enumeration the plain value


@dataclass(frozen=True, eq=False)
class Param(Expr):
    """A value that each call puts in with `bind`."""

    name: str
    kind: Kind = int


@dataclass(frozen=True, eq=False)
class Bin(Expr):
    """The value of a bin; unknown where the bin is missing or holds another type."""

    name: str
    kind: Kind = int

    def __post_init__(self) -> None:
        checked_bin(self.name)


@dataclass(frozen=True, eq=False)
class BinExists(Expr):
    """Whether the bin is there."""

    bin: str


@dataclass(frozen=True, eq=False)
class Compare(Expr):
    """`left op right` for two values of one type.

    Lists are in the server's order, by which values differ that are of different kinds: [1], [1.0], [true]. Do not
    compare maps, or lists with maps in them: on Aerospike that is mostly unknown.
    """

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, eq=False)
class All(Expr):
    """True where every part is true."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class AnyOf(Expr):
    """True where some part is true."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class Negate(Expr):
    """True where the part is false; unknown stays unknown."""

    part: Expr


@dataclass(frozen=True, eq=False)
class Arithmetic(Expr):
    """`+ - * // max min` over integers; `//` drops the fraction, so it rounds towards 0."""

    op: str
    parts: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class If(Expr):
    """`then` where the test is true, else `otherwise`; both of one type."""

    test: Expr
    then: Expr
    otherwise: Expr


@dataclass(frozen=True, eq=False)
class MapHas(Expr):
    """Whether a map bin has the key; unknown where the bin is missing."""

    bin: str
    key: Expr


@dataclass(frozen=True, eq=False)
class MapSize(Expr):
    """The number of entries of a map bin."""

    bin: str


@dataclass(frozen=True, eq=False)
class MapValue(Expr):
    """The value at a key of a map bin; unknown where it is not there."""

    bin: str
    key: Expr
    kind: Kind = int


@dataclass(frozen=True, eq=False)
class MapKeyAt(Expr):
    """The key at an index of a map bin, in key order: 0 the smallest, -1 the largest; unknown in an empty map."""

    bin: str
    index: int
    kind: Kind = str


@dataclass(frozen=True, eq=False)
class MapSmallestValue(Expr):
    """The smallest integer value of a map bin; unknown in an empty map."""

    bin: str


@dataclass(frozen=True, eq=False)
class ListOf(Expr):
    """A list of the parts' values."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class ServerNow(Expr):
    """Milliseconds since the epoch by the server's clock."""


@dataclass(frozen=True, eq=False)
class SinceUpdate(Expr):
    """Milliseconds by the server's clock since the record was last written."""


SERVER_NOW = ServerNow()
SINCE_UPDATE = SinceUpdate()


def exists(bin: str) -> Expr:
    """Whether the bin is there: the only question whose answer is never unknown."""
    return BinExists(bin)


def missing(bin: str) -> Expr:
    """Whether the bin is not there."""
    return Negate(BinExists(bin))


def has(bin: str, key: Any) -> Expr:
    """Whether a map bin is there and has the key: false, not unknown, where the bin is missing."""
    return All((BinExists(bin), MapHas(bin, _node(key))))


def lacks(bin: str, key: Any) -> Expr:
    """Whether a map bin is missing or does not have the key (docs/protocols P0.2)."""
    return AnyOf((missing(bin), Negate(MapHas(bin, _node(key)))))


def largest(*parts: Any) -> Expr:
    """Return the largest of some integers."""
    return Arithmetic("max", tuple(_node(part) for part in parts))


def smallest(*parts: Any) -> Expr:
    """Return the smallest of some integers."""
    return Arithmetic("min", tuple(_node(part) for part in parts))


def all_of(*parts: Expr) -> Expr:
    """Return the condition that every part is true."""
    return parts[0] if len(parts) == 1 else All(parts)


def any_of(*parts: Expr) -> Expr:
    """Return the condition that some part is true."""
    return parts[0] if len(parts) == 1 else AnyOf(parts)


def _check_part(part: Any) -> None:
    if not isinstance(part, Expr):
        raise InvalidRequest(f"{shown(part)} is not a part of an expression: combine expressions, and bind the whole")


def _node(value: Any) -> Expr:
    return value if isinstance(value, Expr) else Const(value)
