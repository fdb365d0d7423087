"""The settlement of a consumer's messages: acknowledged together, failed, or given back; until then extended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ....deadline import Deadline
from ....errors import LatchworkError
from ....logs import Log
from ....plain import counted, shown
from ....retry import Poll
from ....store.rows import chunked
from ..delivery import ACKED, Delivery, Outcome, ack_each, extend_all, mark_gone, record_outcomes
from ..envelope import Reason
from ..shards import CHUNK
from ..subscription import Subscription
from .handler import Verdict
from .log import AWAY
from .state import ConsumerState

log = Log(__name__)
worker_log = Log("latchwork.worker")

EXTENSIONS = 4
"""How often a delivery is extended in one sweep duration."""
AGAIN = Poll(low=1.0, high=10.0, factor=2.0, jitter=0.5)
"""Pauses before what could not be settled, as the store was away, is settled again."""


class Settlements:
    """Settlement of the messages of one consumer. Safe between its workers and its supervisor.

    What could not be settled, as the store was away, is settled once it is back (P5): for as long as the delivery may
    have the message, which is for the sweep duration.

    ordered: of a consumer that works its shards in order. A message of it that could not be stored for later is left to
        the next holder of the shard, and an acknowledgement alone is sent again.
    """

    def __init__(self, queue: Subscription, state: ConsumerState, *, ordered: bool = False) -> None:
        self._queue, self._seams, self._state = queue, queue.store.seams, state
        self._ordered = ordered
        self._lock = self._seams.lock()
        self.collected: list[Delivery] = []
        """The messages that are done and not acknowledged yet."""
        self._since = 0.0
        self._owed: dict[Delivery, Verdict] = {}
        self._again_at, self._tries, self._is_settling = 0.0, 0, False
        self._left: set[Delivery] = set()
        """Messages of an ordered consumer that no further try can settle, as of a damaged record: left to the sweep."""

    # ---- acknowledged

    def collect(self, done: Sequence[Delivery]) -> None:
        """Keep messages that are done until `send` acknowledges them."""
        self._state.hand.done(done)
        with self._lock:
            if not self.collected:
                self._since = self._seams.monotonic()
            self.collected += done

    def send(self, age: float = 0.0) -> None:
        """Acknowledge what was collected, in one call, if the first of it has waited for `age` seconds."""
        if not self.collected:
            return
        with self._lock:
            if self._seams.monotonic() - self._since < age:
                return
            done, self.collected = self.collected, []
        if done:
            self.acknowledge(done)

    def acknowledge(self, done: Sequence[Delivery]) -> None:
        """Acknowledge these now, in one call. What the store did not take is owed, and sent again.

        Each message counts by itself, while `ack_many` says of a batch only what came first.
        """
        rows = self._acked(done)
        acked = rows.count(True)
        self._state.add("acked", acked)
        if acked < len(rows):
            self._count_unsettled(rows, "acknowledged")
        self._let_go(done, rows, [None] * len(done))

    def _acked(self, done: Sequence[Delivery], *, again: bool = True) -> list[Outcome]:
        try:
            return ack_each(done)
        except LatchworkError as failure:
            kept: LatchworkError = failure
        except Exception as defect:  # noqa: BLE001 - one message, or one moment, must not cost the others
            if again:
                return [row for one in done for row in self._acked([one], again=False)]
            kept = LatchworkError(f"it could not be acknowledged: {shown(defect)}")
        rows: list[Outcome] = [kept] * len(done)
        record_outcomes(self._queue.pointers, rows, "acked")
        return rows

    # ---- failed, or not begun

    def fail(self, deliveries: Sequence[Delivery], why: Sequence[tuple[Reason, str | None]]) -> bool:
        """Fail messages, a thousand at once; whether none of them stays for the sweeper."""
        rows = self._queue.fail_many(deliveries, why)
        self._state.add("failed", len(deliveries))
        for reason, n in Counter(reason for reason, _ in why).items():
            self._state.add(f"failed_{reason.value}", n)
        self._count_unsettled(rows, "stored for later")
        self._let_go(deliveries, rows, why)
        return not rows.errors()

    def give_back(self, deliveries: Sequence[Delivery], why: str, *, in_order: bool) -> bool:
        """Return messages whose work was interrupted, uncounted; whether none of them stays here.

        in_order: they stay in hand, for the next holder of the shard's lock, who hands them out first.
        """
        self._state.add("interrupted", len(deliveries))
        others = f" and {counted(len(deliveries) - 1, 'other')}" if len(deliveries) > 1 else ""
        worker_log.warning(
            "the handler of %r was cut at message %s%s, which goes back uncounted: it %s",
            self._queue.name, deliveries[0].message_id, others, why,
        )  # fmt: skip
        if in_order:
            self.leave(deliveries)
            return False
        rows = self._queue.give_back(deliveries)
        self._state.hand.let_go(deliveries)
        self._count_unsettled(rows, "given back")
        return not rows.errors()

    def leave(self, deliveries: Sequence[Delivery], *, begun: bool = True) -> None:
        """Leave messages, uncounted, to the next holder of the shard's lock."""
        try:
            self._queue.interrupting(deliveries, begun=begun)
        except LatchworkError as failure:
            log.warning(
                "the attempts of %d messages count, though they were not handled (%s)", len(deliveries), failure
            )

    def note_own(self, delivery: Delivery) -> None:
        """Count a message that the handler has acknowledged or failed itself, as if its result had said so."""
        if delivery.ended == ACKED:
            self._state.add("acked")
        elif delivery.ended is not None:
            self._state.add("failed")
            self._state.add(f"failed_{delivery.ended}")
        self._state.hand.let_go((delivery,))

    def leave_to_the_sweep(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing more with messages that a sweep may have taken."""
        self._state.hand.let_go(deliveries)

    def hand_back(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Return messages that were not begun to the queue; return the messages for which that failed."""
        rows = self._queue.hand_back(deliveries)
        self._state.add("handed_back", rows.count(True))
        self._count_unsettled(rows, "handed back")
        back, left = rows.sift(deliveries)
        self._state.hand.let_go(back)
        return list(left)

    def put_off(self, delivery: Delivery, delay: float) -> None:
        """Let a message that was not begun come again later; if it also stays here, it is left to the sweeper.

        Raises the store's errors where it was not stored for later, or perhaps: then it is still in hand.
        """
        self._count_unsettled([self._queue.put_off(delivery, delay)], "deleted, though stored for later")
        self._state.hand.let_go((delivery,))

    # ---- what could not be settled, as the store was away

    def _let_go(self, deliveries: Sequence[Delivery], rows: Sequence[Outcome], verdicts: Sequence[Verdict]) -> None:
        """Forget these messages, but for those that are to be settled again."""
        self._note(deliveries, rows)
        each = zip(deliveries, rows, verdicts, strict=True)
        owed = {one: verdict for one, row, verdict in each if isinstance(row, AWAY) and not (self._ordered and verdict)}
        self._state.hand.let_go([one for one in deliveries if one not in owed])
        if owed:
            with self._lock:
                soon = self._seams.monotonic() + AGAIN.pause(1, self._seams)
                if not self._owed:
                    self._tries, self._again_at = 0, soon
                elif self._ordered:  # its shard waits
                    self._again_at = min(self._again_at, soon)
                self._owed |= owed

    def _note(self, deliveries: Sequence[Delivery], rows: Iterable[Outcome]) -> None:
        """Mark what another consumer has, or what was deleted; in order, note what no further try can settle."""
        outcomes = list(rows)
        mark_gone(deliveries, outcomes)
        if self._ordered:
            each = zip(deliveries, outcomes, strict=True)
            self._left.update(one for one, row in each if isinstance(row, LatchworkError) and not isinstance(row, AWAY))

    def is_over(self, delivery: Delivery) -> bool:
        """Whether nothing can be done for this message here any more: it is settled, or left to the sweep."""
        return delivery.settled or delivery in self._left

    def forget(self, deliveries: Sequence[Delivery]) -> None:
        """Forget which of these are left to the sweep."""
        self._left.difference_update(deliveries)

    def owes(self, deliveries: Sequence[Delivery]) -> bool:
        """Whether each of these is to be settled again, or is just being settled."""
        return all(one in self._owed for one in deliveries)

    def settle_again(self, *, now: bool = False) -> None:
        """Settle what could not be settled, if its pause is over; what this delivery may have no more is left to the
        sweep. One attempt. now: the consumer stops, and there may be no other time.
        """
        if not self._owed:
            return
        with self._lock:
            at = self._seams.monotonic()
            if self._is_settling or (at < self._again_at and not now):
                return
            self._is_settling = True
            self._tries += 1
            self._again_at = at + AGAIN.pause(self._tries + 1, self._seams)
            owed = dict(self._owed)
        done: list[Delivery] = []
        try:
            # 1. Leave to the sweep what it may have taken, by this process's clock.
            sweep = self._queue.config.sweep_duration.total_seconds()
            over = [one for one in owed if at >= max(one.received, one.extended) + sweep]
            self._state.hand.let_go(over)
            done += over
            if over:
                log.warning(
                    "%s of %r could not be settled in time, as the store was away: left to the sweep; the first: %s",
                    counted(len(over), "message"), self._queue.name, over[0].message_id,
                )  # fmt: skip
            # 2. Settle the others. What is still unknown then is owed again.
            rest = [one for one in owed if one not in over]
            with Deadline(self._seams, 0):
                # The first shows whether the store is back.
                for some in (rest[:1], *chunked(rest[1:], CHUNK)):
                    rows = self._settled_again(some, owed)
                    self._note(list(rows), rows.values())
                    known = [one for one, row in rows.items() if not isinstance(row, AWAY)]
                    self._state.hand.let_go(known)
                    done += known
                    if len(known) < len(some):
                        return
        finally:
            with self._lock:
                self._is_settling = False
                for one in done:
                    del self._owed[one]

    def _settled_again(
        self, deliveries: Sequence[Delivery], owed: Mapping[Delivery, Verdict]
    ) -> dict[Delivery, Outcome]:
        """Settle these; return the outcomes."""
        rows: dict[Delivery, Outcome] = {}
        # 1. An acknowledgement is guarded by its delivery, so it may be sent at any time.
        if done := [one for one in deliveries if owed[one] is None]:
            rows |= zip(done, self._acked(done), strict=True)
            self._state.add("acked", sum(row is True for row in rows.values()))
        # 2. A message that failed is stored for later before it is removed here: only while it is known to be ours.
        for one in deliveries:
            verdict = owed[one]
            if verdict is not None:
                held = _still_ours(one)
                rows[one] = self._queue.fail_many([one], [verdict])[0] if held is True else held
        settled, gone = (sum(row is of for row in rows.values()) for of in (True, False))
        self._state.add("unsettled", -settled - gone)
        self._state.add("lost", gone)
        if settled:
            worker_log.info(
                "%s of %r that could not be settled, as the store was away: settled now",
                counted(settled, "message"), self._queue.name,
            )  # fmt: skip
        return rows

    def _count_unsettled(self, rows: Sequence[Outcome], done: str) -> None:
        """Count messages that could not be settled; the sweeper, or another consumer that has them now,
        settles them.
        """
        failed = [row for row in rows if row is not True]
        if failed:
            gone = failed.count(False)
            self._state.add("lost", gone)
            self._state.add("unsettled", len(failed) - gone)
            first = failed[0] or "another consumer has it by now, or it was deleted"
            log.warning("%d messages could not be %s; the first: %s", len(failed), done, first)


def _still_ours(delivery: Delivery) -> Outcome:
    """Extend a delivery: True = it is still ours; False = it is not; or why this is not known. One call."""
    try:
        failures = extend_all([delivery])
    except LatchworkError as failure:
        return failure
    if failures and isinstance(failures[0], AWAY):
        return failures[0]
    return not failures


def extend(deliveries: Sequence[Delivery]) -> None:
    """Start the sweep durations of deliveries again, a thousand at once; what cannot be extended is logged."""
    failures: list[LatchworkError] = []
    for begin in range(0, len(deliveries), CHUNK):
        try:
            failures += extend_all(deliveries[begin : begin + CHUNK])
        except LatchworkError as failure:
            failures.append(failure)
    if failures:
        first = failures[0]
        log.warning("%d deliveries could not be extended; the first (%s): %s", len(failures), first.code, first)
