"""Rules taken out of effects that happen once (P23), one at a time, as `mutants.py` lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from latchwork.coord import contender, lease
from latchwork.coord.effects import marks, step
from latchwork.queue.sharded.delivery import Delivery
from latchwork.queue.sharded.effects import MessageEffects
from latchwork.store.model.expr import Bin, Bound, Const, MapHas, MapSize, MapValue, Param, missing
from latchwork.store.model.ops import MapPut
from latchwork.store.port import KEEP, Exists

TRUE = Const(True)


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


# ---- marks


def _guarded_by(*, token: bool = True, room: bool = True, generation: bool = True) -> Callable[[], Any]:
    """Updates whose guard asks for less."""

    def guard(bin: str, moved: bool, when: Any) -> Any:
        parts = [TRUE]
        if token:
            parts.append(~MapHas(bin, marks._TOKEN))
        if room:
            parts.append(MapSize(bin) < marks._ROOM)
        if generation and moved:
            parts.append(MapValue(bin, Const(marks.GENERATION)).eq(marks._KNOWN))
        elif generation:
            parts.append(~MapHas(bin, Const(marks.GENERATION)))
        asked = parts[0]
        for part in parts[1:]:
            asked = asked & part
        unused = asked if moved and generation else missing(bin) | asked
        return unused if when is None else unused & when

    return _swap(marks, "_guard", guard)


def _marked_afterwards(self: Any, generation: Any) -> Any:
    """The update, and then the mark."""
    update, effect = self.update, self.effect
    guard = self._guarded(generation, self.when, self.params)
    self.store.operate(self.key, *update.ops, when=guard, exists=Exists.ANY, or_absent=True, repeatable=True)
    mark = MapPut(effect.bin, effect.token, marks._marked(effect.result, effect.keep))
    read = marks.MapGet(effect.bin, effect.token)
    room = missing(effect.bin) | (MapSize(effect.bin) < marks.ROOM)
    (found,) = self.store.operate(self.key, mark, read, when=room, repeatable=True)
    return marks.Applied(found[1], found=False)


class _ItsOwnRecordLater:
    """A store in which marks get their own records only after they have left the bin."""

    def __init__(self, store: Any) -> None:
        self.store, self.rows, self.token_clock = store, [], store.token_clock

    def repeat_many(self, rows: Any) -> Any:
        self.rows = rows
        return [()] * len(rows)

    def operate(self, *args: Any, **options: Any) -> Any:
        values = self.store.operate(*args, **options)
        self.store.repeat_many(self.rows)
        return values


def _moved_afterwards(self: Any, found: Any, *, real: Any = marks._Attempt._make_room, everything: bool) -> None:
    self.store, store = _ItsOwnRecordLater(self.store), self.store
    try:
        real(self, found, everything=everything)
    finally:
        self.store = store


def _looked_for_once(self: Any, *, real: Any = marks._Attempt._own_record) -> Any:
    """The mark's own record is read at the beginning, and the generation at the moment of the update."""
    if not hasattr(self, "looked"):
        self.looked = real(self)
    return self.looked


def _of_the_delivery(self: Any) -> MessageEffects:
    queue, delivery = self.view.pointers, self.held.delivery
    return MessageEffects(queue.client_id, self.view.reader, f"{self.message_id} {delivery}")


# ---- steps


class _Nothing:
    """What is kept here is forgotten at once."""

    def setdefault(self, _: Any, nothing: Any) -> Any:
        return nothing


def _in_any_case(self: Any, *args: Any, real: Any = step.StepContender.__init__, **options: Any) -> None:
    real(self, *args, **options)
    self.also = None


def _kept_by_anybody(self: Any, fence: int, kept: Any) -> None:
    ops = _kept(self.step, fence, kept)
    self.store.operate(self.key, *ops, *lease.RELEASE, ttl=self.ttl, exists=Exists.ANY, repeatable=True)


def _released_first(self: Any, fence: int, kept: Any) -> None:
    self.store.operate(self.key, *lease.RELEASE, when=lease.held(fence), ttl=KEEP, repeatable=True)
    mine = Bin(lease.FENCE).eq(Param("mine")).bind(mine=fence)
    self.store.operate(self.key, *_kept(self.step, fence, kept), when=mine, ttl=self.ttl, repeatable=True)


def _kept(name: str, fence: int, kept: Any) -> tuple[Any, ...]:
    return MapPut(step.DONE, name, Bound(step._DONE_BY, {"fence": fence})), MapPut(step.RESULTS, name, kept)


EFFECT_RULES = (
    ("the mark comes after the update", "P23.1: one update", _swap(marks._Attempt, "_send", _marked_afterwards)),
    ("the guard does not ask for the token", "P23.2: the token in the guard", _guarded_by(token=False)),
    ("the token is that of the delivery", "P23.3: of the message", _swap(Delivery, "_effects", _of_the_delivery)),
    ("marks leave before they have a record", "P23.4: first its own record",
     _swap(marks._Attempt, "_make_room", _moved_afterwards)),
    ("the guard does not ask for the generation", "P23.5: the generation in the guard",
     _guarded_by(generation=False)),
    ("the generation is that of after the look", "P23.5: known before the look",
     _swap(marks._Attempt, "_own_record", _looked_for_once), True),
    ("the guard does not ask for room", "P23.7: the room in the guard", _guarded_by(room=False)),
    ("a step is taken though it is done", "P23.8: not done, in the guard",
     _swap(step.StepContender, "__init__", _in_any_case)),
    ("the end of a step needs no fence", "P23.9: guarded by the fence",
     _swap(step.StepContender, "_keep", _kept_by_anybody)),
    ("a step is released before it is done", "P23.10: one update", _swap(step.StepContender, "_keep", _released_first)),
    ("each handle watches a lease from the start", "P23.12: handles share what they have seen",
     _swap(contender, "_ALL", _Nothing()), False, 2_000),
    ("nobody asks whether the message was lost", "P23.11: asked where it was applied before",
     _swap(Delivery, "_check_held", lambda self: None)),
)  # fmt: skip
