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
from .ops import EVERY_OP_ANSWERS, Built, ByName, InOrder, answers_of, by_name, compile_op, computed, is_matched_by_name
from .policies import ROW, WRITE, Policy, writing

Check = Callable[[Any], Any]
_VALUES: dict[str, tuple[str, Check]] = {
    "value": ("val", taken),
    "amount": ("val", amount),
    "key": ("key", map_key),
    "index": ("index", element),
    "count": ("val", element),
}
"""For each field of an operation that can be a parameter: its name in the client's operation, and its check."""
_STAND_IN = 0
"""A value that every field takes."""
_NO_VALUES: dict[str, Any] = {}


class Ready:
    """A form as the client takes it, for single calls and for the rows of batches. `answers`: how it is answered."""

    __slots__ = ("_built", "_computed", "_guard", "_more", "_policy", "_row_policy", "_values", "answers")

    def __init__(self, form: Form) -> None:
        self._values: list[tuple[int, str, str, Check]] = []
        self._computed: list[tuple[int, Template]] = []
        self._built = [self._prepared(op, place) for place, op in enumerate(form.ops)]
        self._guard = None if form.when is None else template_of(form.when)
        self._policy = writing(WRITE, form.exists, form.ttl)
        self._row_policy = writing(ROW, form.exists, form.ttl)
        ordered = answers_of(tuple(map(type, form.ops)))
        named = ordered.unclear and is_matched_by_name(form.ops)
        self.answers: InOrder | ByName = by_name(None, form.ops) if named else ordered
        self._more = [EVERY_OP_ANSWERS] if ordered.unclear and not named else []

    def filled(self, params: dict[str, Any]) -> tuple[list[Built], Policy]:
        """Return the operations and the policy of one call. Raises `InvalidRequest` if a value is missing or wrong."""
        built, guard = self._built + self._more, self._guard
        try:
            for place, name, param, check in self._values:
                changed = built[place] = built[place].copy()  # quicker than a display with `**`
                changed[name] = check(params[param])
        except KeyError as missing:
            raise _not_filled_in(missing) from None
        for place, template in self._computed:
            built[place] = {**built[place], "expr": template.filled(params)}
        return built, self._policy if guard is None else {**self._policy, "expressions": guard.filled(params)}

    def row(
        self, params: dict[str, Any], before: tuple[dict[str, Any], list[Built]] | None, *, writes: bool
    ) -> tuple[list[Built], Policy]:
        """Return the operations and the policy of a row of a batch.

        before: the values of the row before, and its operations: those whose value is the same object stay.
        """
        known, built = before or (_NO_VALUES, self._built)
        built, guard, value_before = built.copy(), self._guard, known.get
        try:
            for place, name, param, check in self._values:
                value = params[param]
                if value is not value_before(param, _NO_VALUES):
                    changed = built[place] = built[place].copy()
                    changed[name] = check(value)
        except KeyError as missing:
            raise _not_filled_in(missing) from None
        for place, template in self._computed:
            built[place] = {**built[place], "expr": template.filled(params)}
        policy = self._row_policy if writes else {}
        return built, policy if guard is None else {**policy, "expressions": guard.filled(params)}

    def _prepared(self, op: o.Op, place: int) -> Built:
        """Return the client's operation, and note where the values of a call go into it."""
        fields = asdict(op)
        value: Any = fields.get("value", fields.get("expr"))
        if isinstance(op, o.Compute) or o.is_computed(value) or o.is_computed(fields.get("key")):
            template = template_of_put(op.bin, op.key, value) if isinstance(op, o.MapPut) else template_of(value)
            if template.has_params:
                self._computed.append((place, template))
                return computed(op, place, [])
            return computed(op, place, template.filled({}))
        params = {name: field.name for name, field in fields.items() if isinstance(field, Param)}
        self._values += [(place, _VALUES[name][0], param, _VALUES[name][1]) for name, param in params.items()]
        return compile_op(replace(op, **dict.fromkeys(params, _STAND_IN)), place)


def ready_of(form: Form) -> Ready:
    """Return the form made ready, kept with it for the next call."""
    ready = form.ready = Ready(form)
    return ready


def _not_filled_in(missing: KeyError) -> InvalidRequest:
    return InvalidRequest(f"the parameter {missing} has no value: fill it in")
