"""Rules taken out of messages that go with writes (P28), one at a time, as `mutants.py` lists them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

from msgspec import structs

from latchwork.coord.effects import attempts, marks
from latchwork.errors import LatchworkError, NotFound, OutcomeUnknown
from latchwork.queue.sharded.delayed import conditional as entries
from latchwork.queue.sharded.publishing import with_write
from latchwork.queue.sharded.upkeep import conditions
from latchwork.store.model.expr import Bound, Const, MapHas, Param, missing
from latchwork.store.model.ops import MapPut
from latchwork.store.port import Removal
from latchwork.store.rows import Rows

TRUE = Const(True)


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


def _all(*swaps: Callable[[], Any]) -> Callable[[], Any]:
    def enter() -> ExitStack:
        stack = ExitStack()
        for swap in swaps:
            stack.enter_context(swap())
        return stack

    return enter


def _announced_afterwards(delayed: Any, some: Any, *, real: Any = with_write._announce) -> Any:
    real(delayed, some)
    return delayed.note_applied([one.message_id for one in some])


def _marked_afterwards(store: Any, sent: Any) -> dict[int, Any]:
    """The update, and then the mark."""
    found: dict[int, Any] = {}
    for n, one in sent.items():
        update, effect = one.update, one.effect
        attempt = marks._Attempt(store, update, effect)
        known = None if effect.known is marks.ASK else effect.known
        free = missing(effect.bin) | ~MapHas(effect.bin, Param("t", bytes))
        try:
            if update.ops:
                store.repeat(
                    structs.replace(update, or_absent=True, when=attempt._guarded(known, attempt.when, attempt.params))
                )
            put = MapPut(effect.bin, effect.token, marks._marked(True, effect.keep, effect.attempt))
            store.operate(update.key, put, when=Bound(free, {"t": effect.token}), repeatable=True)
        except LatchworkError as failure:
            found[n] = failure
        else:
            done = marks.Applied(True, found=False, attempt=effect.attempt)
            found[n] = with_write.Written(one.message_id, done, mine=True, noted=False, condition=one.condition)
    return found


def _gone_for_good(store: Any, conditions: Any, *, real: Any = conditions.applied) -> Any:
    return Rows(False if isinstance(row, NotFound) else row for row in real(store, conditions))


def _not_noted(self: Any, names: Any) -> Any:
    return Rows([()] * len(names))


def _begun_for_a_second(self: Any, *, real: Any = with_write.Write.begin) -> Any:
    begun = real(self)
    return replace(begun, effect=replace(begun.effect, keep=1))


def _known_afterwards(store: Any, sent: Any, *, real: Any = with_write._applied) -> Any:
    """The generation is the one that is known when the update is sent."""
    return real(store, {
        n: replace(one, effect=replace(one.effect, known=marks.known_generation(store, one.update.key, one.effect.bin)))
        if one.effect.known is not marks.ASK else one
        for n, one in sent.items()
    })  # fmt: skip


def _without_its_attempt(result: Any, keep: int, attempt: Any = None, *, real: Any = marks._marked) -> Any:
    return real(result, keep, None if result is marks._RESULT else attempt)


class _Nothing(OutcomeUnknown):
    """No error is one of these."""


WRITE_RULES = (
    ("the message is stored after the write", "P28.1: message first",
     _all(_swap(with_write, "_announce", lambda delayed, some: Rows([""] * len(some))),
          _swap(with_write, "_note", _announced_afterwards))),
    ("the mark comes after the write", "P28.2: one update", _swap(with_write, "_applied", _marked_afterwards)),
    ("nothing is put where a write is given up", "P28.3: given up in the record",
     _swap(conditions, "give_up", lambda *_: False)),
    ("the guard does not ask whether it was given up", "P28.4: in the guard",
     _swap(marks, "_undecided", lambda bin, when: TRUE if when is None else when)),
    ("any attempt's mark will do", "P28.5: of this attempt",
     _swap(attempts, "_is_of", lambda mark, one: mark[2:] != [marks.GIVEN_UP])),
    ("the generation is that of after its name", "P28.6: known before the attempt had a name",
     _swap(with_write, "_applied", _known_afterwards), True),
    ("marks that have left are not asked for", "P28.7: marks that have left, too",
     _all(_swap(attempts, "_has_moved", lambda *_: False),
          _swap(attempts._GivingUp, "_own_record", lambda self: None))),
    ("a record that does not exist was not written", "P28.8: it says nothing",
     _swap(conditions, "applied", _gone_for_good)),
    ("a record is deleted before that is noted", "P28.9: noted first",
     _swap(entries.ConditionalMessages, "note_applied", _not_noted)),
    ("an id goes into a bucket that the leader may have passed", "P28.10: due a second later, by each server's time",
     _all(_swap(entries, "LEAST", -(10**15)), _swap(entries, "may_have_passed", lambda horizon, now: 0))),
    ("the horizon is believed though a row was sent again", "P28.10: no row of the call was sent again",
     _swap(Rows, "sent_again", property(lambda _: False, lambda *_: None)), True),
    ("a mark is gone before its message", "P28.11: as long as the entry",
     _swap(with_write.Write, "begin", _begun_for_a_second)),
    ("a mark that is written again forgets its attempt", "P28.12: it keeps its attempt",
     _swap(marks, "_marked", _without_its_attempt), True),
    ("a message in doubt is withdrawn", "P28.13: only where the write was refused for good",
     _swap(with_write, "OutcomeUnknown", _Nothing)),
    ("anybody deletes a record that is ended", "P28.14: only the attempt that has ended it",
     _swap(attempts.Condition, "removal", property(lambda self: Removal(self.key)))),
)  # fmt: skip
