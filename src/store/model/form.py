"""Forms: an update that is made once, with a `Param` for whatever differs from call to call, and filled in for each.

What does not differ from call to call is checked once, and made ready for the Aerospike client once; that is worth it
on paths that every message takes. A parameter may stand for the amount of an `Add`, the key of a `MapPut`, `MapGet` or
`MapAdd`, the place in a `ListSet` or `ListRange`, the value of any of them, or be part of an expression:

    TAKE = Form(Put("owner", Param("me", str)), Put("locked", 1), when=FREE, ttl=NEVER)
    store.repeat(TAKE.fill(key, me="w1", grant="g1"))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from msgspec.structs import asdict, astuple

from ...errors import InvalidRequest
from ...plain import shown
from .expr import Bin, Bound, Expr, Param
from .ops import Compute, MapPut, Op, Put, ReadAll, check_kinds, is_computed
from .record import KEEP, Exists, Key, Once, Update, checked
from .values import NO_BIN

_ANY_KEY = Key("set", "name")


class Form:
    """The operations, guard and options of an update; raises `InvalidRequest` where no backend would take them.

    once: how it is remembered, where `RecordStore.once` is to apply it.
    tokened, ready, closures: what `once.py`, `aerospike/prepared.py` and `local/apply.py` have made of it, kept here
        for the next call: each call reads them, and a dictionary of their own would take three to ten times as long.
    parts: the operations, ready to be filled in.
    names: the parameters that stand for fields of operations.
    bins: those that the operations and the guard look at or change; none = all.
    """

    __slots__ = (
        "bins", "closures", "exists", "names", "once", "ops", "or_absent", "parts", "ready", "tokened", "ttl", "when",
    )  # fmt: skip

    def __init__(
        self,
        *ops: Op,
        when: Expr | None = None,
        exists: Exists = Exists.UPDATE,
        or_absent: bool = False,
        ttl: int = KEEP,
        once: Once | None = None,
    ) -> None:
        checked(Update(_ANY_KEY, ops, when, exists, or_absent, ttl))
        check_kinds(tuple(map(type, ops)))
        if isinstance(when, Bound) or (once is not None and isinstance(once.result, Bound)):
            raise InvalidRequest("a form binds its parameters itself: give the expression without bind")
        for op in ops:
            _check_params(op)
        self.ops, self.when, self.exists, self.or_absent, self.ttl = ops, when, exists, or_absent, ttl
        self.once = once
        self.parts = tuple(map(_part, ops))
        self.names = frozenset(name for part in self.parts if isinstance(part, _Part) for name in part.names)
        self.bins = frozenset() if ReadAll in map(type, ops) else frozenset(_bins((*ops, when)))
        self.tokened: Form | None = None
        self.ready: Any = None
        self.closures: Any = None

    def fill(self, key: Key, /, **params: Any) -> Update:
        """Return the update of one record with these values."""
        when = None if self.when is None else Bound(self.when, params)
        return Update(key, self.ops, when, self.exists, self.or_absent, self.ttl, self, params)

    def fill_each(self, keys: Iterable[Key], /, **params: Any) -> list[Update]:
        """Return the updates of many records with the same values, which a store then makes ready once."""
        when = None if self.when is None else Bound(self.when, params)
        return [Update(key, self.ops, when, self.exists, self.or_absent, self.ttl, self, params) for key in keys]


def _bins(parts: Iterable[Any]) -> Iterator[str]:
    """Yield the bins that operations and expressions, and the parts of these, name."""
    for part in parts:
        if isinstance(part, Op | Expr):
            bin: Any = part.name if isinstance(part, Bin) else getattr(part, "bin", NO_BIN)
            if bin is not NO_BIN:
                yield bin
            if isinstance(part, Expr):  # its fields alone: another thread may just be keeping its closure in the tree
                yield from _bins(getattr(part, each.name) for each in fields(part))
            else:
                yield from _bins(astuple(part))
        elif isinstance(part, tuple):
            yield from _bins(part)


def _check_params(op: Op) -> None:
    """Raise `InvalidRequest` for an expression or a parameter at a place where a form cannot put a value in."""
    for name, value in asdict(op).items():
        computed = name in _COMPUTED.get(type(op), ())
        wrong = isinstance(value, Expr) and not (computed or (isinstance(value, Param) and name in FILLED))
        if wrong or isinstance(value, Bound) or (name == "keys" and any(isinstance(key, Expr) for key in value)):
            raise InvalidRequest(f"{shown(op)} in a form: {name} cannot be that; a form puts values in for {FILLED}")


FILLED = ("value", "amount", "key", "index", "count")
"""The fields of operations that a parameter may stand for."""
_COMPUTED: dict[type, tuple[str, ...]] = {Put: ("value",), MapPut: ("key", "value"), Compute: ("expr",)}


def plain(update: Update) -> Update:
    """Return the update as if it had been made without a form: every parameter of its operations replaced by
    its value.
    """
    if update.form is None:
        return update
    form: Form = update.form
    parts = form.parts if update.ops is form.ops else tuple(map(_part, update.ops))
    ops = tuple([part.filled(update.params) if isinstance(part, _Part) else part for part in parts])
    return Update(update.key, ops, update.when, update.exists, update.or_absent, update.ttl)


class _Part:
    """An operation with parameters, made ready: its fields, and where the values of each call go."""

    __slots__ = ("_computed", "_fields", "_kind", "_params")

    def __init__(self, op: Op) -> None:
        computes = isinstance(op, MapPut) and is_computed(op.key)  # then its value is to stay an expression
        self._kind, self._fields = type(op), astuple(op)
        places = [(place, field) for place, field in enumerate(self._fields) if isinstance(field, Expr)]
        self._params = [(place, field) for place, field in places if isinstance(field, Param) and not computes]
        self._computed = [one for one in places if one not in self._params]

    @property
    def is_constant(self) -> bool:
        """Whether no call puts anything in."""
        return not (self._params or self._computed)

    @property
    def names(self) -> list[str]:
        """The parameters that stand for its fields."""
        return [param.name for _, param in self._params]

    def filled(self, params: dict[str, Any]) -> Op:
        """Return the operation with the values of one call. Raises `InvalidRequest` where one is missing."""
        fields = list(self._fields)
        for place, param in self._params:
            fields[place] = param_of(param, params)
        for place, expression in self._computed:
            fields[place] = Bound(expression, params)
        return self._kind(*fields)


def _part(op: Op) -> Op | _Part:
    part = _Part(op)
    return op if part.is_constant else part


def check_filled(form: Form, params: dict[str, Any]) -> None:
    """Raise `InvalidRequest` if a parameter of its operations has no value."""
    if not form.names <= params.keys():
        missing = min(form.names - params.keys())
        raise InvalidRequest(f"the parameter {shown(missing)} has no value: fill it in")


def param_of(param: Param, params: dict[str, Any]) -> Any:
    """Return the parameter's value. Raises `InvalidRequest` where it has none."""
    try:
        return params[param.name]
    except KeyError:
        raise InvalidRequest(f"the parameter {shown(param.name)} has no value: fill it in") from None
