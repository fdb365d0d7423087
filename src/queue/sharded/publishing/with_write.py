"""A message that is published with a write of the caller's own: both or neither, and once (docs/protocols P28).

    store.operate(order, Put("state", "paid"), publish=Publish({"order": 7}, queue=mails, key="customer-42"))

The message is stored first, where it waits for the update. The update leaves a mark of this attempt in the record
(P23), so everybody can see whether it was applied. Then that is noted with the message. A process may die between any
two of these steps: the upkeep asks the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from msgspec import structs

from ....coord.effects import marks
from ....coord.effects.attempts import END, Condition
from ....errors import InvalidRequest, LatchworkError, NotFound, OutcomeUnknown, Refused, Unavailable
from ....plain import shown
from ....store.model.expr import Bound, missing, unbound
from ....store.model.ops import READS, Put
from ....store.model.record import Removal, Update, Values
from ....store.model.values import checked_bin
from ....store.port import RecordStore
from ....store.rows import Rows, chunked
from ..delayed.conditional import ConditionalMessages
from ..delayed.entries import CHUNK
from ..envelope import Envelope, checked_headers
from ..handles import QueueHandle
from .prepared import Prepared, prepared

TURNS = 3
"""How often a write begins again that the upkeep has given up, as its process was stopped meanwhile."""
_OPEN = missing(END)
"""Nobody else is deleting the record."""


@dataclass(frozen=True, slots=True)
class Publish:
    """A message that is published with a write of the caller's own, or when a batch has ended.

    queue: the queue. Or its name, for a batch and for `Delivery.operate`; None there = the batch's own, or that of the
        message.
    key, headers: as of `ShardedQueue.publish`.
    bin: where the record remembers the write, for `RecordStore.operate` and `delete`.
    """

    payload: Any = field(repr=False)
    queue: Any = None
    key: str | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    bin: str = marks.BIN

    def with_updates(self, store: RecordStore, updates: Sequence[Update], publishes: Sequence[Any]) -> Rows[Values]:
        """Apply the updates, each with its message or without one, as `RecordStore.operate_many` does."""
        writes = {n: Write.of(store, updates[n], one) for n, one in enumerate(publishes) if one is not None}
        outcomes: Rows[Values] = Rows([()] * len(updates))
        alone = [n for n in range(len(updates)) if n not in writes]
        if alone:
            outcomes.merge(alone, store.operate_many([updates[n] for n in alone]))
        for some in chunked(list(writes), CHUNK):
            done = written(store, [writes[n] for n in some])
            outcomes.merge(some, done.then(lambda found: [(one.message_id,) for one in found.values()]))
        return outcomes

    def with_removal(self, store: RecordStore, removal: Removal) -> bool:
        """Delete a record with its message, as `RecordStore.delete` does."""
        when, params = unbound(removal.when)
        ending = Update(removal.key, (), Bound(_OPEN if when is None else _OPEN & when, params))
        (done,) = written(store, [Write.of(store, ending, self)])
        if isinstance(done, NotFound):
            return False
        if isinstance(done, Refused):
            record = store.get(removal.key, END)
            if record is None or END in record.bins:
                return False  # another call is deleting it
        if isinstance(done, LatchworkError):
            raise done
        # From here on the message comes in any case, and the upkeep deletes the record with it if this fails.
        try:
            if not done.noted:
                raise Unavailable("it could not be noted that it is to be deleted")
            store.delete(removal.key, when=done.condition.removal.when, repeatable=True)
        except LatchworkError as failure:
            raise OutcomeUnknown(
                f"{removal.key} is deleted with its message, which comes in some seconds; until then it may be there "
                f"({failure.code})", key=removal.key, message_id=done.message_id,
            ) from failure  # fmt: skip
        return True

    def with_effect(
        self, store: RecordStore, update: Update, effect: marks.Effect, target: Callable[[str | None], Any]
    ) -> Callable[[], marks.Applied]:
        """Return what applies the effect of a message together with this one, for `Delivery.operate`. No I/O.

        target: returns a queue by its name; of None the one that the messages are of.
        """
        by_name = self.queue is None or isinstance(self.queue, str)
        write = Write.of(store, update, replace(self, queue=target(self.queue)) if by_name else self, effect)

        def apply() -> marks.Applied:
            (done,) = written(store, [write])
            if isinstance(done, LatchworkError):
                raise done
            return done.applied

        return apply


def queue_of(given: Any) -> QueueHandle:
    """Return the queue to which a message goes with a write. Raises `InvalidRequest`."""
    queue = getattr(given, "of", given)  # a queue on a loop has the one of the sync surface there
    if not isinstance(getattr(queue, "delayed", None), ConditionalMessages):
        raise InvalidRequest(
            f"the queue of a Publish with a write is {shown(given)}; give what QueueRegistry.get returns"
        )
    found: QueueHandle = queue.for_publishing()
    return found


@dataclass(frozen=True, slots=True)
class Write:
    """An update with its message, checked.

    update: without operations it is the end of the record.
    effect: by which it is remembered, if it is one of a message; else it has a token of its own.
    """

    update: Update
    queue: QueueHandle
    message: Prepared
    bin: str
    effect: marks.Effect | None

    @classmethod
    def of(cls, store: RecordStore, update: Update, publish: Any, effect: marks.Effect | None = None) -> Write:
        """Return the write. No I/O. Raises `InvalidRequest` and `RecordTooBig`."""
        if not isinstance(publish, Publish):
            raise InvalidRequest(f"publish is {shown(publish)}; give latchwork.queue.Publish(payload, queue=...)")
        queue = queue_of(publish.queue)
        if queue.store.token_clock is not store.token_clock:
            raise InvalidRequest(
                f"the queue {shown(queue.name)} has another store than the record {update.key}: a message goes with a "
                "write of its own store, so use the one that its registry was made with"
            )
        if update.form is not None:
            raise InvalidRequest("an update made by a form with publish: give Update(key, ops)")
        bin = checked_bin(publish.bin if effect is None else effect.bin)
        check_ops(update, bin)
        (message,) = prepared(queue, [publish.payload], key=publish.key, headers=checked_headers(publish.headers))
        return cls(update, queue, message, bin, effect)

    def begin(self) -> Begun:
        """Return an attempt at it, which differs from all others. No call."""
        queue, effect, message_id = self.queue, self.effect, self.queue.store.seams.unique()
        attempt, kept = bytes.fromhex(message_id), queue.delayed.kept  # the mark outlives the message
        moved = f"{queue.pointers.client_id}_effect_set"
        if effect is None:
            known = marks.known_generation(queue.store, self.update.key, self.bin)
            effect = marks.Effect(attempt, moved, kept, self.bin, known=known)
        else:
            effect = replace(effect, set=effect.set or moved, keep=max(effect.keep, kept), attempt=attempt)
        envelope = structs.replace(self.message.envelope, msg_id=message_id)
        key, deletes, update = self.update.key, not self.update.ops, self.update
        if deletes:
            update = structs.replace(update, ops=(Put(END, message_id),))
        condition = Condition(key.set, key.name, self.bin, effect.token, attempt, effect.set, int(deletes))
        return Begun(self.queue, update, self.message.shard, envelope, effect, condition)


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt at a write, and its message, whose id names it."""

    queue: QueueHandle
    update: Update
    shard: int | None
    envelope: Envelope
    effect: marks.Effect
    condition: Condition

    @property
    def message_id(self) -> str:
        """The id of the message, if this attempt is applied."""
        return self.envelope.msg_id


class Written(NamedTuple):
    """A write that was applied, by this call or before.

    mine: whether this attempt was applied, so that its message comes.
    noted: whether that is noted with the message.
    """

    message_id: str
    applied: marks.Applied
    mine: bool
    noted: bool
    condition: Condition


def written(store: RecordStore, writes: Sequence[Write]) -> Rows[Written]:
    """Apply up to 500 updates, each with its message; return the outcome of each. Two calls more than the updates.

    An error is one of the update's, and then no message comes; `OutcomeUnknown`: both, or neither, as it turns out.
    """
    for queue in {id(one.queue): one.queue for one in writes}.values():
        queue.open_for_publishing()
    outcomes: Rows[Written] = Rows([Unavailable(
        "the process was stopped each time between the message and the update: nothing was written; try again"
    )] * len(writes))  # fmt: skip
    left = list(range(len(writes)))
    for _ in range(TURNS if writes else 0):
        begun = {n: writes[n].begin() for n in left}
        # 1. The messages, which wait for their updates.
        stored, failed = _each(begun, _announce).sift(begun)
        for n, failure in failed.items():
            # An update that was not sent is in no doubt.
            outcomes[n] = failure if not isinstance(failure, OutcomeUnknown) else Unavailable(
                f"the message could not be stored, so nothing was written and none is delivered: {failure}"
            )  # fmt: skip
        # 2. The updates, each with its mark.
        sent = {n: begun[n] for n in stored}
        found = _applied(store, sent)
        outcomes.merge(list(found), list(found.values()))
        # 3. Note what was applied; forget what was not, and never will be.
        applied = {n: sent[n] for n, one in found.items() if isinstance(one, Written) and one.mine}
        for one in applied.values():
            one.queue.store.seams.note("published", queue=one.queue.config.name, outcome="published")
        noted = _each(applied, _note)
        outcomes.merge(list(applied), [
            found[n]._replace(noted=not isinstance(row, LatchworkError))  # type: ignore[union-attr]  # as chosen
            for n, row in zip(applied, noted, strict=True)
        ])  # fmt: skip
        over = {n: one for n, one in sent.items() if n not in applied and not isinstance(found.get(n), OutcomeUnknown)}
        _each(over, _withdraw)
        left = [n for n in sent if n not in found]
        if not left:
            break
    return outcomes


def _applied(store: RecordStore, sent: Mapping[int, Begun]) -> dict[int, Written | LatchworkError]:
    """Apply the updates; return the outcome of each, except for those that the upkeep has given up. One call."""
    new = {n: one for n, one in sent.items() if one.effect.known is not marks.ASK}
    first = [marks.first_update(store, one.update, one.effect) for one in new.values()]
    rows = dict(zip(new, store.repeat_many(first), strict=True)) if new else {}
    found: dict[int, Written | LatchworkError] = {}
    for n, one in sent.items():
        try:
            done = marks.apply(store, one.update, one.effect, sent=rows.get(n))
        except marks.GivenUp:
            continue
        except LatchworkError as failure:
            failure.details.setdefault("message_id", one.message_id)
            found[n] = failure
        else:
            mine = (done.attempt or one.effect.token) == one.condition.attempt
            found[n] = Written(one.message_id, done, mine, noted=False, condition=one.condition)
    return found


def _each(begun: Mapping[int, Begun], act: Any) -> Rows[Any]:
    """Do something with the messages of each queue; return the outcomes. A failure is the outcome of all of a queue."""
    queues: dict[int, list[int]] = {}
    for n, one in begun.items():
        queues.setdefault(id(one.queue), []).append(n)
    outcomes: dict[int, Any] = {}
    for places in queues.values():
        some = [begun[n] for n in places]
        try:
            outcomes |= zip(places, act(some[0].queue.delayed, some), strict=True)
        except LatchworkError as failure:
            outcomes |= dict.fromkeys(places, failure)
    return Rows(outcomes[n] for n in begun)


def _announce(delayed: ConditionalMessages, some: Sequence[Begun]) -> Rows[str]:
    shards = [one.shard for one in some]
    return delayed.announce([one.envelope for one in some], shards, [one.condition for one in some])


def _note(delayed: ConditionalMessages, some: Sequence[Begun]) -> Rows[object]:
    return delayed.note_applied([one.message_id for one in some])


def _withdraw(delayed: ConditionalMessages, some: Sequence[Begun]) -> Rows[bool]:
    return delayed.withdraw([one.message_id for one in some])


def check_ops(update: Update, bin: str) -> None:
    """Raise `InvalidRequest` for operations whose results could not be remembered, or that touch the marks."""
    for op in update.ops:
        if isinstance(op, READS):
            raise InvalidRequest(
                f"{type(op).__name__} with publish: after a lost reply, what it read could not be read again; leave it "
                "out, or use Delivery.operate with result="
            )
        if op.bin == bin:
            raise InvalidRequest(f"bin {shown(bin)} remembers the writes of the record: name another one by bin=...")
