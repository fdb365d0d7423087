"""Whether an update was applied, asked by another process; and the end of one that never came (docs/protocols P28).

The record that was to be changed knows: its marks name the attempt that has changed it (P23). An attempt that is given
up gets a mark of its own, by which its update is refused if it still comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import LatchworkError
from ...inputs import is_int
from ...store.decode import damaged
from ...store.model.expr import SERVER_NOW, Bin, Bound, Const, ListOf, Param
from ...store.model.ops import MapPut, Read
from ...store.port import Key, RecordStore, Removal, Row, Update
from ...store.rows import Rows
from .marks import EFFECT, GENERATION, GIVEN_UP, Applied, Effect, GivenUp, _Attempt, is_mark, own_record

_KEEP = Param("\0keep")
_GIVEN_UP = ListOf((SERVER_NOW + _KEEP, Const(False), Const(GIVEN_UP)))
_MARK = (Read(EFFECT),)
END = "latchwork_end"
"""The bin of a record that is being deleted: the attempt."""
_ENDED_BY = Bin(END, str).eq(Param("by", str))


class Condition(NamedTuple):
    """An attempt at an update, as a message remembers it that waits for it.

    set, name: the key of the record.
    bin: of its marks.
    token: of the effect; that of the attempt, where the update is no effect of a message.
    attempt: names it among all others.
    moved: the set of the records that marks get once they have left the bin.
    deletes: whether the record is to be deleted then.
    """

    set: str
    name: str
    bin: str
    token: bytes
    attempt: bytes
    moved: str
    deletes: int = 0

    @property
    def key(self) -> Key:
        """The key of the record."""
        return Key(self.set, self.name)

    @property
    def removal(self) -> Removal:
        """The removal of the record, if it is this attempt that has ended it."""
        return Removal(self.key, Bound(_ENDED_BY, {"by": self.attempt.hex()}))

    @classmethod
    def of(cls, stored: Any) -> Condition | None:
        """Return the condition that is stored; None if the stored value cannot be a condition."""
        if not isinstance(stored, list) or len(stored) != len(cls._fields):
            return None
        *texts, token, attempt, moved, deletes = stored
        named = all(isinstance(one, str) and one for one in (*texts, moved))
        tokens = all(isinstance(one, bytes) and one for one in (token, attempt))
        return cls(*stored) if named and tokens and is_int(deletes) else None


def applied(store: RecordStore, conditions: Sequence[Condition]) -> Rows[bool | None]:
    """Return whether each attempt was applied: True and False are final, None is "not yet, or not at all".

    `NotFound` where there is no such record; `Corrupt` and the store's errors. One call; one more where marks have left
    their bins.
    """
    # 1. Read the marks: of each record once, as a batch takes it once.
    bins: dict[Key, dict[str, None]] = {}
    for one in conditions:
        bins.setdefault(one.key, {})[one.bin] = None
    rows = store.repeat_many([Update(key, tuple(map(Read, names))) for key, names in bins.items()])
    read = dict(zip(bins, rows, strict=True))
    outcomes = Rows(_by_marks(one, read[one.key], list(bins[one.key])) for one in conditions)
    # 2. Those that have left the bin have records of their own.
    open_ = [n for n, outcome in enumerate(outcomes) if outcome is None and _has_moved(conditions[n], read, bins)]
    tokens = [(n, token) for n in open_ for token in dict.fromkeys((conditions[n].token, conditions[n].attempt))]
    keys = [own_record(conditions[n].moved, token, conditions[n].bin, conditions[n].key) for n, token in tokens]
    own = list(dict.fromkeys(keys))
    found = dict(zip(own, store.repeat_many([Update(key, _MARK) for key in own]), strict=True))
    for (n, _), key in zip(tokens, keys, strict=True):
        row = found[key]
        if outcomes[n] is None and isinstance(row, tuple) and is_mark(row[0]):
            outcomes[n] = _is_of(row[0], conditions[n])
    return outcomes


def _by_marks(one: Condition, row: Row, bins: Sequence[str]) -> bool | LatchworkError | None:
    """Return the answer of the marks in the record's bin; None where they have none."""
    if isinstance(row, LatchworkError):
        return row
    marks = row[bins.index(one.bin)]
    if marks is None:
        return None
    if not isinstance(marks, dict):
        return damaged(one.key, f"bin {one.bin!r} is a {type(marks).__name__}, and no map of effects")
    for token in (one.token, one.attempt):
        if token in marks:
            mark = marks[token]
            wrong = f"bin {one.bin!r} holds an entry that is not a mark"
            return _is_of(mark, one) if is_mark(mark) else damaged(one.key, wrong)
    return None


def _is_of(mark: Sequence[Any], one: Condition) -> bool:
    """Whether the mark is of this attempt: it names it, or is that of its own token."""
    return (mark[2] if len(mark) == 3 else one.token) == one.attempt


def _has_moved(one: Condition, read: dict[Key, Row], bins: dict[Key, dict[str, None]]) -> bool:
    row = read[one.key]
    marks = row[list(bins[one.key]).index(one.bin)] if isinstance(row, tuple) else None
    return isinstance(marks, dict) and GENERATION in marks


def give_up(store: RecordStore, one: Condition, keep: int) -> bool:
    """Make sure that an attempt is never applied; whether it was applied before. One call at first.

    keep: seconds for which that is remembered.

    Raises `NotFound` where there is no such record, so that nothing could be remembered there, and the store's errors.
    """
    attempt = None if one.token == one.attempt else one.attempt
    effect = Effect(one.token, one.moved, keep, one.bin, attempt=attempt)
    try:
        done = _GivingUp(store, Update(one.key, ()), effect).run()
    except GivenUp:
        return False
    return done.found and (done.attempt or one.token) == one.attempt


class _GivingUp(_Attempt):
    """The mark of an attempt that is given up, put as an effect is: it is refused where the attempt has a mark."""

    def marking(self, generation: int | None) -> Update:
        effect = self.effect
        mark = Bound(_GIVEN_UP, {_KEEP.name: effect.keep * 1000})
        put = MapPut(effect.bin, effect.attempt or effect.token, mark)
        return Update(self.key, (put,), self._guarded(generation, None, {}))

    def _new(self, values: Row) -> Applied:  # noqa: ARG002 - it reads nothing
        return Applied(False, found=False)
