"""The rows of one batch as the Aerospike client takes them; what they have in common is made once.

Rows are alike where they have the same tuple of operations, the same operation, the same guard, or the same form. Of a
form's rows each differs from the one before in a few values only, and what did not change is not made again.
"""

from __future__ import annotations

from typing import Any

from ..model import ops as o
from ..model.form import Form
from ..model.record import Update
from .ops import Built, ByName, by_name, compile_op
from .policies import ROW, Policy, guarded, policy_of
from .prepared import Ready, ready_of


class BatchRow:
    """A row as the client takes it, whether it writes, and how its answer is read."""

    __slots__ = ("answers", "built", "policy", "writes")

    def __init__(self, built: list[Built], policy: Policy, writes: bool, answers: ByName) -> None:
        self.built, self.policy, self.writes, self.answers = built, policy, writes, answers


class BatchRows:
    """A maker of the rows of one batch. Keep its updates as long as this: what they share is known by identity."""

    def __init__(self) -> None:
        self._forms: dict[int, _FormRows] = {}
        self._shapes: dict[int, tuple[list[Built], bool, ByName]] = {}
        self._built: dict[int, Built] = {}
        self._policies: dict[tuple[Any, ...], Policy] = {}

    def of(self, update: Update) -> BatchRow:
        """Return the row of an update. Raises `InvalidRequest`, as for a value that is missing or wrong."""
        if update.form is not None:
            rows = self._forms.get(id(update.form))
            if rows is None:
                rows = self._forms[id(update.form)] = _FormRows(update.form, update.key)
            return rows.of(update.params)
        built, writes, answers = self._shapes.get(id(update.ops)) or self._shape(update)
        return BatchRow(built, self._policy(update, writes), writes, answers)

    def _shape(self, update: Update) -> tuple[list[Built], bool, ByName]:
        known = self._built.get
        built = [known(id(op)) or self._build(op, place) for place, op in enumerate(update.ops)]
        shape = self._shapes[id(update.ops)] = built, o.writes(update.ops), by_name(update.key, update.ops)
        return shape

    def _build(self, op: o.Op, place: int) -> Built:
        built = compile_op(op, place)
        if type(op) is not o.Compute:  # whose answer is named after its place
            self._built[id(op)] = built
        return built

    def _policy(self, update: Update, writes: bool) -> Policy:
        kind = (id(update.when), id(update.exists), update.ttl, writes)
        policy = self._policies.get(kind)
        if policy is None:
            policy = self._policies[kind] = policy_of(ROW, update) if writes else guarded({}, update.when)
        return policy


class _FormRows:
    """The rows of one form: each begins as the row before, and rows that were filled in together are one."""

    __slots__ = ("_answers", "_params", "_ready", "_row", "_writes")

    def __init__(self, form: Form, key: Any) -> None:
        self._answers, self._writes = by_name(key, form.ops), o.writes(form.ops)
        self._ready: Ready = form.ready or ready_of(form)
        self._params: dict[str, Any] | None = None
        self._row: BatchRow

    def of(self, params: dict[str, Any]) -> BatchRow:
        if params is not self._params:
            before = None if self._params is None else (self._params, self._row.built)
            built, policy = self._ready.row(params, before, writes=self._writes)
            self._row, self._params = BatchRow(built, policy, self._writes, self._answers), params
        return self._row
