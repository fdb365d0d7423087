"""The life of a message in a consumer, from its claim to its settlement: a turn of a worker takes, handles and settles
messages, then the worker checks again whether it is still needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from ....errors import Cancelled, Interrupted, InvalidRequest, LatchworkError
from ....forks import called
from ....logs import Log
from ....seams import Seams
from ..config import BatchingConfig
from ..delivery import MAX_EXTENSION, Delivery, keep_answer
from ..envelope import MAX_ERROR, Reason
from ..subqueue import MAX_RECEIVE
from ..subscription import Subscription
from .handler import Verdict, judged, text_of
from .log import AWAY
from .ordering import LEASE, HeldShard, ShardLocks
from .prefetch import SPAN, ClaimedMessage, Pace, Prefetched
from .rate import Rate
from .runs import HandlerCall, Runs
from .settlements import EXTENSIONS, Settlements
from .state import ConsumerState

log = Log(__name__)
worker_log = Log("latchwork.worker")

RECEIVE_WAIT = 1.0
"""Seconds for which an idle worker waits for a message before it checks whether it is still needed."""
STATE_POLL = 0.1
"""Seconds after which a worker that waits checks its shard's lock, and whether it is still needed."""
MAX_RATE_WAIT = 1.0
"""Seconds for which a message may wait in hand for the rate to allow its handler."""
MAX_DELAY = 3600.0
"""The longest time, in seconds, that a message of a key is put off; then the limiter is asked again."""
LIMITER_RETRY = 0.1
"""Seconds until a limiter that could not be asked is asked again."""


@dataclass(eq=False)
class Turns:
    """The turns of all workers of one consumer. Safe between them.

    ignorable: exceptions of the handler that acknowledge its messages.
    locks: of an ordered consumer, else None.
    rate: the limiter that is asked before a handler begins; None = no limiter.
    """

    consumer: ConsumerState
    seams: Seams
    queue: Subscription
    handler: Callable[[Any], Any]
    ignorable: tuple[type[BaseException], ...]
    runs: Runs
    settlements: Settlements
    prefetched: Prefetched
    pace: Pace
    locks: ShardLocks | None
    rate: Rate | None

    def take(self) -> None:
        """Take and handle one message, or one batch; in order, all of one shard until the turn of the shard is over."""
        if self.locks is not None or self.queue.config.batching is not None:
            self._take_several()
            return
        # 1. If none is in hand: acknowledge the finished messages, then claim as many as the pace allows.
        if not self.prefetched.waiting:
            self.settlements.send()
            if self.rate is not None and self.rate.closed:
                self.rate.note_closed()
                self.consumer.stopping.wait(min(self.rate.closed, STATE_POLL))
                return
            size = self.pace.size
            found = self._claimed(size, RECEIVE_WAIT, one_shard=True)
            self.pace.claimed(size, len(found))
            self.prefetched.put(found)
        waiting = self.prefetched.take()
        if waiting is None:
            return
        try:
            run = self._begun(waiting)
        except BaseException:  # whatever it is, this message must not wait for the sweep
            self.prefetched.put_back(waiting)
            raise
        if run is None:
            return
        # 5. Call the handler. A run that is never closed counts as a hanging handler.
        try:
            verdicts = self.verdicts(run.deliveries)
        finally:
            ours = self.runs.close(run)
        self.pace.handled(self.seams.monotonic() - run.received)
        # 6. Settle. Acknowledge now if no other message is in hand, else with others finished within SPAN.
        if ours:
            self.settle(run.deliveries, verdicts)
        self.settlements.send(SPAN if self.prefetched.waiting and not self.consumer.ends() else 0.0)

    def _claimed(self, most: int, timeout: float, *, one_shard: bool = False) -> list[Delivery]:
        """Claim messages, waiting for them for up to `timeout` seconds, and note that they are in hand."""
        end = self.seams.monotonic() + timeout
        with self.consumer.hand.claims() as notes:
            found = self.queue.await_messages(
                most, end, None, one_shard=one_shard, ends=self.consumer.ends, notes=notes,
                not_given=self.consumer.not_given,
            )  # fmt: skip
            self.consumer.hand.took(found)
        return found

    def _begun(self, waiting: ClaimedMessage) -> HandlerCall | None:
        """Return the call of the handler that begins now; None if the message in hand may not begin."""
        # 2. A message whose consumer died is handled with nothing else in hand, as it may have been the cause.
        if waiting.survived:
            self.settlements.send()
            self.prefetched.hand_back()
            self.pace.one_by_one()
        # 3. Ask the limiter. A message that may not begin soon comes again later; its attempt does not count.
        if self.rate is not None and not self._admitted(waiting, self.rate):
            return None
        if self.prefetched.waiting or self.settlements.collected:
            self.consumer.attend()
        # 4. Begin. If no message may begin, the messages in hand go back at once.
        run = self.runs.begin(waiting.delivery) if self.runs.takes() else None
        if run is None:
            self._not_now(waiting, STATE_POLL)
        return run

    def _not_now(self, waiting: ClaimedMessage, wait: float) -> None:
        """Hand back a message that may not begin; if it has to stay, wait before the next attempt with it."""
        self.prefetched.put_back(waiting)
        self.prefetched.hand_back()
        if waiting.stays:
            self.consumer.stopping.wait(min(wait, STATE_POLL))

    # ---- the handler and its messages

    def verdicts(self, deliveries: Sequence[Delivery]) -> list[Verdict]:
        """Run the handler, in the trace in which its message was published; return for each delivery None =
        acknowledge, or why it failed.

        True or None is a success; in a queue that keeps results, all but False. Of a batch the handler may also
        return a list with an answer for each message.
        """
        batch, messages = self.queue.config.batching is not None, len(deliveries)
        self.consumer.add("handled", messages)
        began, outcome = self.seams.monotonic(), "raised"
        try:
            try:
                origins = [delivery.headers for delivery in deliveries]
                with self.seams.span("handle", origins, queue=self.queue.name, messages=messages):
                    # A copy: messages that the handler removes from its list are settled too.
                    answer = called(self.handler, list(deliveries) if batch else deliveries[0])
                outcome = "returned"
            finally:
                self.seams.note("handling", self.seams.monotonic() - began, queue=self.queue.name, outcome=outcome)
            each = list(answer) if batch and isinstance(answer, list | tuple) else [answer] * messages
            verdicts: list[Verdict]
            if len(each) == messages:
                keeps = bool(self.queue.pointers.results)
                verdicts = [judged(one, keeps=keeps) for one in each]
                if keeps:
                    self._keep(deliveries, each, verdicts)
            else:
                why = f"the handler gave {len(each)} answers for {messages} messages"
                verdicts = [(Reason.EXCEPTION, why)] * messages
            # Log the first message that was rejected, or rather one whose answer is not valid: its author may believe
            # that it was acknowledged.
            failed = [
                (delivery.held.envelope, verdict[1])
                for delivery, verdict in zip(deliveries, verdicts, strict=True)
                if verdict is not None and not delivery.settled
            ]
            if failed:
                first, said = next((one for one in failed if one[1]), failed[0])
                self.queue.message_log.failed(first, len(failed) - 1, "rejected", said or "")
            return verdicts
        except BaseException as failure:  # noqa: BLE001 - whatever a handler raises is the message's failure, not ours
            if isinstance(failure, Interrupted) and (self.consumer.ends() or failure.details.get("cut")):
                return [(Reason.INTERRUPTED, str(failure))] * messages
            if isinstance(failure, Cancelled) and any(delivery.cancelled for delivery in deliveries):
                self._drop_cancelled(deliveries)
                return [(Reason.INTERRUPTED, "a message that it was given was cancelled")] * messages
            if isinstance(failure, self.ignorable):
                return [None] * messages
            error = f"{type(failure).__name__}: {text_of(failure)}"[:MAX_ERROR]
            self.queue.message_log.failed(
                deliveries[0].held.envelope, messages - 1, "raised at", error, failure=failure
            )
            return [(Reason.EXCEPTION, error)] * messages

    def _keep(self, deliveries: Sequence[Delivery], results: Sequence[Any], verdicts: Sequence[Verdict]) -> None:
        """Note what the handler returned for each message that is done. One that cannot be kept is no failure of the
        message.
        """
        for delivery, value, verdict in zip(deliveries, results, verdicts, strict=True):
            if verdict is not None or value is None or delivery.settled:
                continue
            try:
                answer: Any = self.queue.kept(value)
            except InvalidRequest as failure:
                answer = str(failure)[:MAX_ERROR]
                worker_log.warning(
                    "message %s of %r is done, and what its handler returned is not kept: %s",
                    delivery.message_id, self.queue.name, failure,
                )  # fmt: skip
            keep_answer(delivery, answer)

    def _drop_cancelled(self, deliveries: Sequence[Delivery]) -> None:
        """Delete the messages that were cancelled; others of the batch go back, uncounted."""
        rows = self.queue.drop_cancelled([one for one in deliveries if one.cancelled and not one.settled])
        self.consumer.add("cancelled", rows.count(True))
        for error in rows.errors()[:1]:
            log.warning("a message of %r that was cancelled could not be deleted: %s", self.queue.name, error)

    def settle(self, deliveries: Sequence[Delivery], verdicts: Sequence[Verdict], *, in_order: bool = False) -> None:
        """Fail messages, give back the interrupted ones, and collect the others until they are acknowledged together.

        Messages that the handler has acknowledged or failed itself are settled; its result changes nothing for them.
        """
        done: list[Delivery] = []
        failed: list[Delivery] = []
        cut: list[Delivery] = []
        ended = "as the worker stops"
        why: list[tuple[Reason, str | None]] = []
        for delivery, verdict in zip(deliveries, verdicts, strict=True):
            if delivery.settled:
                self.settlements.note_own(delivery)
            elif verdict is None:
                done.append(delivery)
            elif verdict[0] is Reason.INTERRUPTED:
                cut.append(delivery)
                ended = ended if self.consumer.ends() else f"early: {verdict[1]}"
            else:
                failed.append(delivery)
                why.append(verdict)
        if done and in_order:
            self.settlements.acknowledge(done)  # not with those of others, whose call may end after the next claim
        elif done:
            self.settlements.collect(done)
        if failed:
            self.settlements.fail(failed, why)
        if cut:
            self.settlements.give_back(cut, f"ended {ended}", in_order=in_order)

    # ---- at a rate

    def _admitted(self, waiting: ClaimedMessage, rate: Rate) -> bool:
        """Whether the handler of this message may begin now; if not, the message was failed, put off, or
        handed back if that could be.
        """
        delivery = waiting.delivery
        key, failed = self._key_of(delivery, rate)
        if failed:
            self.settlements.fail([delivery], [failed])
            return False
        self.consumer.attend()
        end = self.seams.monotonic() + min(MAX_RATE_WAIT, self.queue.config.sweep_duration.total_seconds() / EXTENSIONS)
        while (wait := self._rate_wait(rate, key)) and self.seams.monotonic() + wait <= end and self._waited(wait):
            pass
        if not wait:
            return True
        self.pace.one_by_one()
        if rate.keyed and self.runs.takes():
            try:  # it goes back until its turn, so that messages of other keys may begin
                most = min(self.queue.config.message_expiry.total_seconds() / 2, MAX_DELAY)
                self.settlements.put_off(delivery, rate.turn_of(key, wait, most))
                return False
            except Exception as failure:  # noqa: BLE001 - a defect, too: then it is in hand, and goes back
                self.consumer.report(failure)
                wait = LIMITER_RETRY
        rate.close(LIMITER_RETRY if rate.keyed else wait)  # the wait of one key must not delay other keys
        self._not_now(waiting, wait)
        return False

    def _key_of(self, delivery: Delivery, rate: Rate) -> tuple[str, Verdict]:
        """Return the key of a message; and if the user's function fails, why."""
        try:
            return rate.key_of(delivery), None
        except BaseException as failure:  # noqa: BLE001 - as what a handler raises
            return "", (Reason.EXCEPTION, f"per_key raised {type(failure).__name__}: {text_of(failure)}"[:MAX_ERROR])

    def _rate_wait(self, rate: Rate, key: str) -> float:
        """Return seconds until a handler may begin, 0 = now; it may not if the limiter cannot be asked."""
        try:
            return rate.closed or rate.ask(key)
        except Exception as failure:  # noqa: BLE001 - a defect, too, must not keep the message that is in hand
            self.consumer.report(failure)
            return LIMITER_RETRY

    def _waited(self, seconds: float) -> bool:
        """Wait for this time. False, at once, if nothing may begin any more."""
        end = self.seams.monotonic() + seconds
        while (left := end - self.seams.monotonic()) > 0:
            if not self.runs.takes():
                return False
            self.consumer.stopping.wait(min(left, STATE_POLL))
        return self.runs.takes()

    def _in_turn(self, run: HandlerCall, held: HeldShard, rate: Rate) -> Verdict | bool:
        """Wait with a message in hand, as nothing may pass it, until its handler may begin; False if it may not.

        If the user's function fails, return the reason for which the message fails.
        """
        key, failed = self._key_of(run.deliveries[0], rate)
        # Long before it can be extended no more, the next holder of the shard receives it again.
        end = run.received + MAX_EXTENSION / 2 * self.queue.config.sweep_duration.total_seconds()
        while not failed and (wait := self._rate_wait(rate, key)):
            if not self._waited(min(wait, RECEIVE_WAIT)) or held.lost or self.seams.monotonic() >= end:
                return False
        return failed or True

    # ---- a batch, or in order

    def _take_several(self) -> None:
        """Take and handle one batch; in order, the messages of one shard alone."""
        if self.locks is None:
            self._handle(self._gather(None))
            return
        with self.locks.hold_one(self.consumer.stopping) as held:
            failures = 0
            while held is not None and held.mine() and self._may_take(held):
                try:
                    run = self._gather(held)
                    failures = 0
                except Exception as failure:
                    if not held.awaits():
                        raise
                    failures += 1  # keep the shard: its next holder would handle later messages first
                    self.consumer.pause(failure, failures)
                    continue
                if run is None and not held.awaits():
                    return
                self._handle(run, held)

    def _gather(self, held: HeldShard | None) -> HandlerCall | None:
        """Return the next message, or the next batch: as many as come within `max_wait` of the first, up to
        `max_size`.
        """
        batching = self.queue.config.batching
        most = 1 if batching is None else min(batching.max_size, MAX_RECEIVE)
        with nullcontext() if held is None else held.receiving():
            first = self._receive(most, held, more=False, timeout=RECEIVE_WAIT if held is None else 0.0)
            if not first:
                return None
            run = self.runs.open(first, None if held is None else held.on_given_up)
        if batching is not None:
            self._fill(run, batching, held)
        return run

    def _fill(self, run: HandlerCall, batching: BatchingConfig, held: HeldShard | None) -> None:
        ask = RECEIVE_WAIT if held is None else STATE_POLL
        while len(run.deliveries) < batching.max_size and self._may_take(held):
            left = run.received + batching.max_wait.total_seconds() - self.seams.monotonic()
            if left <= 0:
                return
            wanted = min(batching.max_size - len(run.deliveries), MAX_RECEIVE)
            try:
                with nullcontext() if held is None else held.receiving():
                    self.runs.add(run, self._receive(wanted, held, more=True, timeout=min(left, ask)))
            except Exception as failure:  # noqa: BLE001 - a run that is left open would be extended without end
                self.consumer.report(failure)
                return  # handle the messages that came; the next look meets the same error

    def _receive(self, most: int, held: HeldShard | None, *, more: bool, timeout: float) -> list[Delivery]:
        if held is None:
            return self._claimed(most, timeout)
        return held.receive(most, more=more, timeout=timeout, not_given=partial(self._not_given, held))

    def _not_given(self, held: HeldShard, reason: Reason, failure: LatchworkError | None) -> None:
        """Count a message that no handler was given; if it may be moved later, the shard's next holder has it first."""
        self.consumer.not_given(reason, failure)
        if isinstance(failure, AWAY):
            held.leave()

    def _may_take(self, held: HeldShard | None) -> bool:
        """Whether more messages may be taken: not in a paused queue; in order, not once others may have the shard."""
        lost = held is not None and held.lost
        return not (lost or self.queue.concurrency == 0 or self.runs.saturated() or self.consumer.ends())

    def _handle(self, run: HandlerCall | None, held: HeldShard | None = None) -> None:
        if run is None:
            return
        may: Verdict | bool = True
        if held is not None and self.rate is not None and not self.runs.saturated():
            try:
                may = self._in_turn(run, held, self.rate)
            except BaseException:
                self._leave(run, held)  # else it would be extended without end
                raise
        if held is not None and (held.lost or may is False or self.queue.concurrency == 0):
            self._leave(run, held)
            return
        if self.queue.concurrency == 0:  # it was paused while the batch was collected
            self._return(run)
            return
        verdicts: list[Verdict] = []
        try:
            if self.runs.saturated():
                verdicts = [(Reason.SATURATED, f"handlers that hang: {self.runs.stuck}")] * len(run.deliveries)
            elif isinstance(may, tuple):
                verdicts = [may]
            elif self.runs.start(run):
                verdicts = self.verdicts(run.deliveries)
        finally:  # a run that is never closed counts as a hanging handler
            ours = self.runs.close(run)
        if ours:
            self.settle(run.deliveries, verdicts, in_order=held is not None)
            self.settlements.send()
            if held is not None and not self._are_over(run.deliveries, held):
                held.leave()  # its next holder is given first what is not
        elif held is not None:
            held.give_up()

    def _are_over(self, deliveries: Sequence[Delivery], held: HeldShard) -> bool:
        """Whether each of these is settled, or is left to the sweep as no further try can settle it: else one such
        message would keep its shard waiting for its whole life.

        An acknowledgement that the store did not take is waited for with the shard, as nothing may pass the message: no
        longer than the next holder would wait for the shard.
        """
        end, settlements = self.seams.monotonic() + LEASE, self.settlements
        while left := [one for one in deliveries if not settlements.is_over(one)]:
            if held.lost or self.consumer.ends() or self.seams.monotonic() >= end or not settlements.owes(left):
                break
            self.consumer.stopping.wait(STATE_POLL)
            settlements.settle_again()
        # Another thread may have settled the rest meanwhile.
        are_over = all(map(settlements.is_over, deliveries))
        settlements.forget(deliveries)
        return are_over

    def _return(self, run: HandlerCall) -> None:
        """Handle nothing of the run: its messages go back to the queue."""
        try:
            self.runs.abandon(run, "had not begun when the queue was paused", interrupted=True)
        finally:
            self.runs.close(run)

    def _leave(self, run: HandlerCall, held: HeldShard) -> None:
        """Handle nothing of the run: the present holder of the shard is given it first, and then what is behind it."""
        why = "its lock was lost" if held.lost else "no handler may begin now"
        held.leave()
        if self.runs.close(run):
            self.settlements.leave(run.deliveries, begun=False)
            log.warning("shard %d: %s, so %d messages go to its next holder", held.shard, why, len(run.deliveries))
