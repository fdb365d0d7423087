"""Forms as the Aerospike client takes them: built once, with the places where the values of each call go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import asdict, replace

from ...errors import InvalidRequest
from ..model import ops as o
from ..model.expr import Param
from ..model.form import Form
from ..model.values import amount, element, map_key, taken
from .expr import Template, template_of, template_of_put
from .ops import EVERY_OP_ANSWERS, Built, answers_of, compile_op, computed

Check = Callable[[Any], Any]
_VALUES: dict[str, tuple[str, Check]] = {
    "value": ("val", taken),
    "amount": ("val", amount),
    "key": ("key", map_key),
    "index": ("index", element),
    "count": ("val", element),
}
"""For each field of an operation that can be a parameter: its name in the client's operation, and what checks it."""
_STAND_IN = 0
"""A value that every field takes."""


class Ready:
    """A form as the client takes it, whose guard goes into `policy`. `answers`: how the server answers it."""

    __slots__ = ("_built", "_computed", "_guard", "_policy", "_values", "answers")

    def __init__(self, form: Form, policy: dict[str, Any]) -> None:
        self._values: list[tuple[int, str, str, Check]] = []
        self._computed: list[tuple[int, Template]] = []
        self._built = [self._prepared(op, place) for place, op in enumerate(form.ops)]
        self.answers = answers_of(tuple(map(type, form.ops)))
        if self.answers.unclear:
            self._built.append(EVERY_OP_ANSWERS)
        self._guard = None if form.when is None else template_of(form.when)
        self._policy = policy

    def filled(self, params: dict[str, Any]) -> tuple[list[Built], dict[str, Any]]:
        """The operations and the policy of one call. Raises `InvalidRequest` for a value that is missing or wrong."""
        built, guard = self._built.copy(), self._guard
        try:
            for place, name, param, check in self._values:
                built[place] = {**built[place], name: check(params[param])}
        except KeyError as missing:
            raise InvalidRequest(f"the parameter {missing} has no value: fill it in") from None
        for place, template in self._computed:
            built[place] = {**built[place], "expr": template.filled(params)}
        return built, self._policy if guard is None else {**self._policy, "expressions": guard.filled(params)}

    def _prepared(self, op: o.Op, place: int) -> Built:
        """The client's operation; where values of a call go into it is noted."""
        fields = asdict(op)
        value: Any = fields.get("value", fields.get("expr"))
        if o.is_computed(value) or o.is_computed(fields.get("key")):
            template = template_of_put(op.bin, op.key, value) if isinstance(op, o.MapPut) else template_of(value)
            if template.has_params:
                self._computed.append((place, template))
                return computed(op, place, [])
            return computed(op, place, template.filled({}))
        params = {name: field.name for name, field in fields.items() if isinstance(field, Param)}
        self._values += [(place, _VALUES[name][0], param, _VALUES[name][1]) for name, param in params.items()]
        return compile_op(replace(op, **dict.fromkeys(params, _STAND_IN)), place)
