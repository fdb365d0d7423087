"""A message that a consumer holds, and its settlement: acknowledge or fail it, and report the outcome."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from ...coord.effects import marks
from ...coord.effects.step import LEASE, PATIENCE, OnceStep
from ...coord.lease import checked_lease
from ...errors import Cancelled, FencedOut, Interrupted, InvalidRequest, LatchworkError, LeaseLost
from ...inputs import Span, checked_many, checked_number, checked_switch, checked_timeout
from ...plain import shown
from ...retry import Poll
from ...store.model.expr import Guard
from ...store.model.ops import READS, Op
from ...store.model.record import KEEP, Exists, Key, Update, check_guard, checked
from ...store.model.values import checked_bin
from ...store.port import WithWrite
from ...store.rows import Rows
from .effects import MessageEffects, Otherwise, checked_step, kept_for
from .envelope import Codec, Envelope, Reason, date, kept_error, reason_of, storable
from .shards import Shards
from .slots import Stamped

ACKED = "acked"
MAX_NOTE = 200
"""Characters of a note about the progress that are kept."""
MAX_EXTENSION = 10.0
"""Sweep durations for which one delivery may be extended in all."""

Outcome = bool | LatchworkError
"""True = settled; False = handed to another consumer or deleted by now; an error = not settled, or perhaps."""


class Source(ABC):
    """The queue, or the sideline or parked messages of one, that a delivery came from."""

    pointers: Shards
    codec: Codec

    @property
    def name(self) -> str:
        """The name in the keys of its records."""
        return self.pointers.name

    @property
    @abstractmethod
    def reader(self) -> str:
        """The name of the group that reads it; "" for the queue's own consumers."""

    @abstractmethod
    def with_message(self, update: Update, effect: marks.Effect, publish: Any) -> Callable[[], marks.Applied]:
        """Return what applies the effect of a message together with a message that is published. No I/O. Raises
        `InvalidRequest` and `RecordTooBig`.
        """

    def kept(self, result: Any) -> Any:  # noqa: ARG002 - a queue keeps it
        """Return the result of a message as it is stored. Raises `InvalidRequest` where it cannot be kept."""
        raise InvalidRequest(f"{shown(self.name)} keeps no results: create it with QueueConfig(results=)")

    @abstractmethod
    def settle(self, held: Sequence[Stamped]) -> tuple[Rows[bool], Callable[[], None]]:
        """Delete messages that were handled; return the outcomes, and what is to be done once they are noted."""

    @abstractmethod
    def fail(self, delivery: Delivery, reason: str, error: str | None = None) -> None:
        """Fail one message, as `Delivery.nack` does."""

    def fail_later(self, delivery: Delivery, reason: str, error: str | None, delay: timedelta | float) -> None:
        """Fail one message with a delay, as `Delivery.nack` does."""
        asked = f"{shown(delivery)} was {reason} ({error}) with delay={shown(delay)}"
        raise InvalidRequest(f"{asked}: only a message of a queue itself can come again later; leave the delay out")


class Delivery(Struct, frozen=True, eq=False):
    """A message that was handed to this consumer, and to no other while it acknowledges or extends it in time.

    It must be acknowledged, or extended, within the queue's sweep duration; else the sweeper hands it to another
    consumer. A message may be delivered more than once (at least once delivery); `attempts` counts how often, this time
    included.

    Safe to share between threads: any of them may acknowledge, fail or extend it. The second one to acknowledge or fail
    it gets `LeaseLost`.
    """

    payload: Any
    held: Stamped
    view: Source
    received: float
    settled: bool = False
    """Whether it was acknowledged or failed by this handle: what comes later changes nothing."""
    extended: float = 0.0
    """When it was extended last, in seconds, monotonic; 0 = never."""
    stop: Callable[[], LatchworkError | None] | None = None
    """Says why the work on it should end now, if it should."""
    applied: set[tuple[Key, str, str]] | None = None
    """The effects that this handle has applied: each name once in each record."""
    cancelled: bool = False
    """Whether somebody is known to have cancelled the message."""
    told: tuple[float | None, str | None] | None = None
    """How far the work on it is, as `progress` was told last."""
    answer: list[Any] | str | None = None
    """What is kept as its result, as it is stored; None = it has none."""
    ended: str | None = None
    """`ACKED` if this handle has acknowledged it, the reason if its `nack` has failed it, else None."""

    @property
    def message_id(self) -> str:
        """The message's id. It does not change between deliveries."""
        return self.held.envelope.msg_id

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the publisher gave."""
        return self.held.envelope.headers or {}

    @property
    def attempts(self) -> int:
        """The number of times the message was handed out, this time included."""
        return self.held.envelope.attempts

    @property
    def enqueued_at(self) -> datetime:
        """The time of publishing, by the publisher's clock, in UTC."""
        return date(self.held.envelope.enqueued_at)

    def check(self) -> None:
        """Raise if the work on the message is to end now; call it at points where it is safe to stop. No store call.

        Raises `Cancelled` once somebody has cancelled it (`ShardedQueue.cancel`) and it was extended after that: let it
        pass, and the message is deleted. Raises `Interrupted` once the worker stops: let it pass, and the message comes
        back at once, elsewhere, without an attempt more. Raises `LeaseLost` once the message is no longer this
        delivery's, or may be another consumer's: it was settled, given up after the handler timeout, or not extended
        within the sweep duration.

        Not promised: that it sees the time in which the machine was suspended, as the clock of the process may not
        count it. Then it may raise nothing, until the next extension, though another consumer has the message.
        """
        failure = self.stop() if self.stop is not None else None
        if self.cancelled and not self.settled and not isinstance(failure, LeaseLost):
            raise Cancelled(f"{self!r} was cancelled: end the work on it", message_ids=[self.message_id])
        if failure is not None:
            raise failure
        queue = self.view.pointers
        if self.settled or queue.store.seams.monotonic() - max(self.received, self.extended) > queue.sweep:
            raise lost([self])

    @property
    def shard(self) -> int:
        """The shard that it is in."""
        return self.held.slot.shard

    @property
    def pointer(self) -> int:
        """The message's pointer within the shard, from 1."""
        return self.held.slot.pointer

    @property
    def reason(self) -> str | None:
        """The reason for which it failed before, or was interrupted; None if neither."""
        return self.held.envelope.reason

    @property
    def last_error(self) -> str | None:
        """The error of its last failure, if there was one."""
        return self.held.envelope.last_error

    def ack(self, result: Any = None) -> None:
        """Acknowledge the message: it is done. Deletes it, if it is still this delivery's. One call.

        result: for `ShardedQueue.result`, in a queue with `QueueConfig(results=)`. `InvalidRequest` where it cannot be
            kept, with nothing done.

        Raises `LeaseLost` if it has been handed to another consumer, or deleted: then it may be handled twice.
        """
        if result is not None:
            force_setattr(self, "answer", self.view.kept(result))
        outcomes = ack_each([self])
        if outcomes != [True]:
            raise_first([self], outcomes)

    def nack(
        self, reason: str = Reason.REJECTED.value, *, error: str | None = None, delay: timedelta | float | None = None
    ) -> None:
        """Fail the message: it is delivered again after the queue's backoff, or parked if this was its last attempt. If
        the queue does not retry, or has a shovel, it goes into the sideline. Three calls; one more if it was received,
        or extended last, more than half a sweep duration ago.

        reason: one of the closed set of reasons.
        error: text, of which the first 1,000 bytes are kept.
        delay: seconds or a timedelta after which it is delivered again, whatever the queue's settings say.

        Raises `InvalidRequest` for a reason outside the closed set, and for an error that is not text. Raises
        `LeaseLost` if this delivery was acknowledged or failed before (nothing changes), or if the message has been
        handed to another consumer or deleted (if that was at this moment, it is stored for later too, and may be
        delivered a second time). Raises the store's error if it could not be stored for later: then it stays for the
        sweeper.
        """
        if delay is None:
            self.view.fail(self, reason, error)
        else:
            self.view.fail_later(self, reason, error, delay)
        force_setattr(self, "ended", reason_of(reason))

    def extend(self) -> None:
        """Start the sweep duration again. One call.

        Raises `LeaseLost` if the message has been handed to another consumer, or was extended for 10 sweep durations in
        all.
        """
        for failure in extend_all([self]):
            raise failure

    def progress(self, fraction: float | None = None, note: str | None = None) -> None:
        """Say how far the work on the message is, for `ShardedQueue.status`. No call: the next extension takes it
        along, which a worker sends four times in a sweep duration.

        fraction: 0 to 1, None = not known.
        note: text, of which the first 200 characters are kept.

        Raises `InvalidRequest`. Of a group's message it is not kept.
        """
        part = None if fraction is None else float(checked_number("fraction", fraction, 0, 1))
        if note is not None and not isinstance(note, str):
            raise InvalidRequest(f"note is a {type(note).__name__}; it must be text, or None")
        force_setattr(self, "told", (part, None if note is None else str(storable(note[:MAX_NOTE]))))

    # ---- effects that happen once, however often the message is delivered

    def operate(
        self,
        key: Key,
        *ops: Op,
        name: str = "",
        when: Guard | None = None,
        exists: Exists | None = None,
        or_absent: bool = False,
        ttl: int = KEEP,
        result: Any = True,
        otherwise: Any = Otherwise.RAISE,
        bin: str = marks.BIN,
        keep: Span | None = None,
        publish: WithWrite | None = None,
    ) -> Any:
        """Apply all operations to one record of the store, once for this message, however often it is delivered; return
        the `result` of the one time. Each group of a queue has effects of its own.

        The update and the memory of it are one atomic step: the record's bin `effects` remembers the message. So there
        is no moment at which a crash could double it.

        ops: operations that write; what the handler wants to know of them is their `result`.
        name: tells several effects of one message on one record apart.
        when: the guard. Where it is false, nothing is written and `Refused` is raised; a later delivery asks again.
        exists, or_absent, ttl: as in `RecordStore.operate`; `exists` is ANY by default, but UPDATE if you pass `when`.
        result: a value, or an expression that is evaluated after the operations, as `Bin("balance")`: remembered, and
            returned in every delivery.
        otherwise: decides the case in which the guard is false: this value is remembered and returned instead, also by
            every later delivery, whatever the guard says then.
        bin: where the record remembers it.
        keep: seconds or a timedelta for which it is remembered at least; default: twice as long as a message lives.
        publish: a `Publish`, whose message is delivered if this is applied, once, and only then: take a message, change
            a record and publish the next in one step. Not where `otherwise` decides. Two calls more.

        One call; two in a record with more than 100 effects within `keep`. Three if it was applied before.

        Raises, with nothing written: `FencedOut` if the message is another consumer's by now, or may be; `Refused`,
        `NotFound` and `AlreadyExists` as `RecordStore.operate`; `RecordTooBig`; `InvalidRequest` if this name was used
        for this record in this delivery before. Raises `OutcomeUnknown` if it may have been applied: the next delivery
        finds out.

        Not promised: that a record which was deleted, or has expired, remembers anything.
        """
        check_guard(when)
        absent = checked_switch("or_absent", or_absent) or when is None
        if exists is None:
            exists = Exists.ANY if absent else Exists.UPDATE
        update = checked(Update(key, ops, when, exists, absent and exists is not Exists.CREATE, ttl))
        bin = checked_bin(bin)
        effect = self._effect(name, result, otherwise, bin, keep)
        _check_ops(ops, bin)
        apply: Callable[[], marks.Applied] = partial(marks.apply, self.view.pointers.store, update, effect)
        if publish is not None:
            apply = self.view.with_message(update, effect, publish)
        applied, mine = self.applied or set(), (update.key, bin, name)
        if mine in applied:
            raise InvalidRequest(
                f"{self!r} has applied an effect to {update.key} before, by the name {shown(name)}: give each effect "
                "of a message on a record a name of its own, else it counts as the same"
            )
        self._check_not_lost()
        done = apply()
        if done.found:
            self._check_held()
        applied.add(mine)
        force_setattr(self, "applied", applied)
        return done.result

    def once(
        self, name: str, *, keep: Span | None = None, timeout: float | None = PATIENCE, lease: float = LEASE
    ) -> OnceStep:
        """Return a step of the work on this message, with any effect, that is done once: its result is kept, and handed
        to later deliveries.

            with delivery.once("mail") as step:
                if not step.done:
                    step.result = mailer.send(mail, idempotency_key=step.token)

        or `delivery.once("mail").run(send, mail)`. At most one delivery works on the steps of a message at a time, and
        on one of them: steps do not nest. `step.token` is the same in every delivery, `step.fence` greater in each.

        keep: seconds or a timedelta for which it is remembered, at least twice as long as a message lives, the default:
            all steps of a message are in one record, which lives for as long as the last of them asks: give all of them
            the longest.
        timeout: seconds to wait while another delivery still works on it; 0 = do not wait, None = no limit.
        lease: seconds, after which this delivery may go on with a step whose process has died.

        No call by itself. The block takes two calls, and one for each third of the lease that it lasts; two where the
        step is done. It raises `FencedOut` if the message is another consumer's by now, or if another delivery has
        taken the step over; `LockUnavailable` after the timeout.

        Not promised: an effect outside of the store happens once only if its receiver honours `step.token`: a process
        may die between the effect and the end of the block, and then the next delivery repeats it.
        """
        effects, queue = self._effects(), self.view.pointers
        token = effects.token(checked_step(name)).hex()
        return OnceStep(
            queue.store, effects.key, name, token,
            label=f"the step {shown(name)} of the message {self.message_id!r}",
            keep=max(kept_for(keep, queue.ttl), kept_for(None, queue.ttl)), timeout=checked_timeout(timeout),
            lease=checked_lease(lease),
            check=self._check_not_lost,
        )  # fmt: skip

    def _effects(self) -> MessageEffects:
        if not self.message_id:
            raise InvalidRequest(
                f"{self!r} has no id, as one that is damaged or of another program: its effects could not be told from "
                "those of others"
            )
        return MessageEffects(self.view.pointers.client_id, self.view.reader, self.message_id)

    def _effect(self, name: str, result: Any, otherwise: Any, bin: str, keep: Span | None) -> marks.Effect:
        effects = self._effects()
        token = effects.token("" if isinstance(name, str) and not name else checked_step(name))
        other = marks.NO_RESULT if otherwise is Otherwise.RAISE else otherwise
        return marks.Effect(token, effects.set, kept_for(keep, self.view.pointers.ttl), bin, result, other)

    def _check_not_lost(self) -> None:
        """Raise `FencedOut` if the message is known not to be this delivery's any more. No call."""
        try:
            self.check()
        except (Cancelled, Interrupted):
            return  # the handler decides where it ends
        except LeaseLost as failure:
            raise FencedOut(str(failure), message_ids=[self.message_id]) from None

    def _check_held(self) -> None:
        """Raise `FencedOut` if the message is another consumer's by now. One call."""
        for failure in extend_all([self]):
            if not isinstance(failure, LeaseLost):
                raise failure
            force_setattr(self, "settled", True)  # nothing is left to do with it: no handler fails it
            raise FencedOut(
                f"an effect of {self!r} was applied before, and the message is another consumer's by now: stop",
                message_ids=[self.message_id],
            ) from None

    def __repr__(self) -> str:
        return f"Delivery({self.view.name!r}, {self.message_id!r}, shard={self.shard}, pointer={self.pointer})"


def _check_ops(ops: Iterable[Op], bin: str) -> None:
    """Raise `InvalidRequest` for operations whose results could not be remembered, or that touch the marks."""
    for op in ops:
        if isinstance(op, READS):
            raise InvalidRequest(
                f"{type(op).__name__} in an effect: a later delivery could not read what it read; name what is wanted "
                "as the result, as result=Bin('balance')"
            )
        if op.bin == bin:
            raise InvalidRequest(f"bin {shown(bin)} remembers the effects of the record: name another one by bin=...")


def ack_all(deliveries: Iterable[Delivery]) -> None:
    """Acknowledge deliveries, as `Subqueue.ack_many` describes."""
    queues: dict[Shards, list[Delivery]] = {}
    for delivery in checked_many("deliveries", deliveries):
        if not isinstance(delivery, Delivery):
            raise InvalidRequest(f"{type(delivery).__name__} is no delivery; give what receive returned")
        queues.setdefault(delivery.view.pointers, []).append(delivery)
    done = [delivery for some in queues.values() for delivery in some]
    raise_first(done, [outcome for some in queues.values() for outcome in ack_each(some)])


def ack_each(deliveries: Sequence[Delivery]) -> Rows[bool]:
    """Delete messages of one queue that were handled; return the outcome of each.

    One call; one more where any is of a batch, which counts it first (P18).
    """
    view = deliveries[0].view
    held = [one.held if one.answer is None else one.held._replace(result=one.answer) for one in deliveries]
    outcomes, then = view.settle(held)
    record_outcomes(view.pointers, outcomes, ACKED)
    mark_settled(deliveries, outcomes, ACKED)
    then()
    return outcomes


def mark_settled(deliveries: Sequence[Delivery], outcomes: Sequence[Outcome], ended: str | None = None) -> None:
    """Mark deliveries that are settled, so that they are not settled again. ended: what their `ended` is."""
    for delivery, outcome in zip(deliveries, outcomes, strict=True):
        if outcome is True:
            force_setattr(delivery, "settled", True)
            force_setattr(delivery, "ended", ended)


def mark_gone(deliveries: Iterable[Delivery], outcomes: Iterable[Outcome]) -> None:
    """Mark deliveries whose message another consumer has, or that was deleted, as settled: nothing is left to do."""
    for delivery, outcome in zip(deliveries, outcomes, strict=True):
        if outcome is False:
            force_setattr(delivery, "settled", True)


def stop_by(deliveries: Sequence[Delivery], why: Callable[[], LatchworkError | None]) -> None:
    """Let the handler learn from its deliveries when to end, and why."""
    for delivery in deliveries:
        force_setattr(delivery, "stop", why)


def keep_answer(delivery: Delivery, answer: list[Any] | str) -> None:
    """Note what is kept as the result of a message that is to be acknowledged."""
    force_setattr(delivery, "answer", answer)


def record_outcomes(queue: Shards, outcomes: Sequence[Outcome], done: str) -> None:
    """Record the outcomes of messages that were handed out as metrics."""
    settled, gone = outcomes.count(True), outcomes.count(False)
    for outcome, n in ((done, settled), ("lost", gone), ("unsettled", len(outcomes) - settled - gone)):
        if n:
            queue.store.seams.note("handled", n, queue=queue.name, outcome=outcome)


def record_each(queue: Shards, outcomes: Sequence[Outcome], done: Sequence[str]) -> None:
    """Record outcomes as `record_outcomes` does, if what was done differs from message to message."""
    for one in dict.fromkeys(done):
        record_outcomes(queue, [outcome for outcome, what in zip(outcomes, done, strict=True) if what == one], one)


def failed(queue: Shards, held: Stamped, backoff: Poll | None, reason: str, error: str | None) -> Envelope:
    """Return the message with why it failed, and until when it waits in the sideline. Raises `InvalidRequest`."""
    if error is not None and not isinstance(error, str):
        raise InvalidRequest(f"error is a {type(error).__name__}; it must be text, as str(error), or None")
    not_before = 0
    if backoff is not None:
        pause = backoff.pause(max(1, held.envelope.attempts), queue.store.seams)
        not_before = queue.now_ms() + round(pause * 1000)
    text = kept_error(error) if error else held.envelope.last_error
    return replace(held.envelope, reason=reason, last_error=text, not_before=not_before)


def raise_first(deliveries: Sequence[Delivery], outcomes: Sequence[Outcome]) -> None:
    """Raise the error of the first delivery that was not settled, if there is one."""
    if outcomes.count(True) == len(outcomes):  # as nearly always
        return
    Rows(outcomes).raise_unless()
    gone = [delivery for delivery, outcome in zip(deliveries, outcomes, strict=True) if outcome is not True]
    if gone:
        raise lost(gone)


def extend_all(deliveries: Sequence[Delivery]) -> list[LatchworkError]:
    """Start the sweep durations of deliveries of one queue again; what kept some from that. One call."""
    queue = deliveries[0].view.pointers
    began = queue.store.seams.monotonic()
    since = began - MAX_EXTENSION * queue.sweep
    failures: list[LatchworkError] = [
        LeaseLost(f"{one!r} was held for more than {MAX_EXTENSION:g} sweep durations: acknowledge sooner")
        for one in deliveries
        if one.received < since
    ]
    open_ = [one for one in deliveries if one.received >= since]
    told = {n: one.told for n, one in enumerate(open_) if one.told is not None}
    outcomes = queue.extend([one.held for one in open_], told) if open_ else []
    for delivery, outcome in zip(open_, outcomes, strict=True):
        if outcome is True or isinstance(outcome, str):
            force_setattr(delivery, "extended", began)
            if outcome is not True:
                force_setattr(delivery, "cancelled", True)
            continue
        if outcome is False:
            force_setattr(delivery, "stop", partial(lost, [delivery]))
        failures.append(outcome or lost([delivery]))
    with suppress(LatchworkError):  # then the next extension asks again
        for n in queue.counting.cancelled([one.held.envelope for one in open_]):
            force_setattr(open_[n], "cancelled", True)
    return failures


def lost(deliveries: list[Delivery]) -> LeaseLost:
    """Return the error for deliveries that were lost."""
    more = f" and {len(deliveries) - 1} more" if len(deliveries) > 1 else ""
    return LeaseLost(
        f"{deliveries[0]!r}{more} was handed to another consumer, or deleted: it was acknowledged or failed before, or "
        "not within the sweep duration; extend it while it is handled",
        message_ids=[delivery.message_id for delivery in deliveries],
    )
