"""A turn of a worker: it takes, handles and settles messages, then checks again whether it is still needed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from ....logs import Log
from ....seams import Event, Seams
from ..config import BatchingConfig
from ..delivery import Delivery
from ..envelope import MAX_ERROR, Reason
from ..subqueue import MAX_RECEIVE
from ..subscription import Subscription
from .handler import HandlerCall, Invoker, Runs, Settlements, Verdict, text_of
from .log import Life
from .ordering import HeldShard, ShardLocks
from .prefetch import SPAN, ClaimedMessage, Pace, Prefetched
from .rate import Rate
from .signals import Signals

log = Log(__name__)

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


@dataclass(slots=True)
class ConsumerState:
    """The state of the consumer that a worker belongs to.

    wanted: the workers that it was asked for; None = as many as the queue's record says.
    stopping: set once it takes no more messages.
    life: what is logged of its life.
    attend: wake the supervising thread for what waits: messages that were not begun, and acknowledgements.
    report: count and log a failure.
    pause: count and log a failure, then wait for as long as is due after that many failures in a row.
    """

    queue: Subscription
    runs: Runs
    wanted: int | None
    stopping: Event
    signals: Signals
    life: Life
    attend: Callable[[], None]
    report: Callable[[Exception], None]
    pause: Callable[[Exception, int], None]

    def concurrency(self) -> int:
        """Return how many workers are wanted now."""
        return self.queue.live.concurrency if self.wanted is None else self.wanted

    def saturated(self) -> bool:
        """Whether so many handlers hang that no more messages are taken."""
        return 0 < 2 * self.concurrency() <= self.runs.stuck

    def ends(self) -> bool:
        """Whether it takes no more messages, finally."""
        return self.signals.drains or self.stopping.is_set()

    def takes(self) -> bool:
        """Whether handlers may begin: not while it is paused or saturated, nor once it ends."""
        paused = self.queue.live.concurrency == 0
        return not paused and self.runs.stuck < 2 * self.concurrency() and not self.ends()


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of all workers of one consumer. Safe between them.

    locks: of an ordered consumer, else None.
    rate: the limiter that is asked before a handler begins; None = no limiter.
    """

    consumer: ConsumerState
    seams: Seams
    queue: Subscription
    invoker: Invoker
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
                self.rate.refused()
                self.consumer.stopping.wait(min(self.rate.closed, STATE_POLL))
                return
            size = self.pace.size
            with self.settlements.hand.claims() as notes:
                found = self.queue.await_messages(
                    size, self.seams.monotonic() + RECEIVE_WAIT, None,
                    one_shard=True, ends=self.consumer.ends, notes=notes,
                )  # fmt: skip
                self.settlements.hand.took(found)
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
            verdicts = self.invoker.verdicts(run.deliveries)
        finally:
            ours = self.runs.close(run)
        self.pace.handled(self.seams.monotonic() - run.received)
        # 6. Settle. Acknowledge now if no other message is in hand, else with others finished within SPAN.
        if ours:
            self.settlements.settle(run.deliveries, verdicts)
        self.settlements.send(SPAN if self.prefetched.waiting and not self.consumer.ends() else 0.0)

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
        run = self.runs.begin(waiting.delivery) if self.consumer.takes() else None
        if run is None:
            self._not_now(waiting, STATE_POLL)
        return run

    def _not_now(self, waiting: ClaimedMessage, wait: float) -> None:
        """Hand back a message that may not begin; if it has to stay, wait before the next attempt with it."""
        self.prefetched.put_back(waiting)
        self.prefetched.hand_back()
        if waiting.stays:
            self.consumer.stopping.wait(min(wait, STATE_POLL))

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
        end = self.seams.monotonic() + self.runs.patience(MAX_RATE_WAIT)
        while (wait := self._rate_wait(rate, key)) and self.seams.monotonic() + wait <= end and self._waited(wait):
            pass
        if not wait:
            return True
        self.pace.one_by_one()
        if rate.keyed and self.consumer.takes():
            try:  # it goes back until its turn, so that messages of other keys may begin
                self.settlements.put_off(
                    delivery,
                    min(rate.turn_of(key, wait), self.queue.config.message_expiry.total_seconds() / 2, MAX_DELAY),
                )
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
            if not self.consumer.takes():
                return False
            self.consumer.stopping.wait(min(left, STATE_POLL))
        return self.consumer.takes()

    def _in_turn(self, run: HandlerCall, held: HeldShard, rate: Rate) -> Verdict | bool:
        """Wait with a message in hand, as nothing may pass it, until its handler may begin; False if it may not.

        If the user's function fails, return the reason for which the message fails.
        """
        key, failed = self._key_of(run.deliveries[0], rate)
        while not failed and (wait := self._rate_wait(rate, key)):
            if not self._waited(min(wait, RECEIVE_WAIT)) or held.lost:
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
        if held is not None:
            return held.receive(most, more=more, timeout=timeout)
        end = self.seams.monotonic() + timeout
        with self.settlements.hand.claims() as notes:
            found = self.queue.await_messages(most, end, None, ends=self.consumer.ends, notes=notes)
            self.settlements.hand.took(found)
        return found

    def _may_take(self, held: HeldShard | None) -> bool:
        """Whether more messages may be taken; in order, not once others may have the shard."""
        return not ((held is not None and held.lost) or self.consumer.saturated() or self.consumer.ends())

    def _handle(self, run: HandlerCall | None, held: HeldShard | None = None) -> None:
        if run is None:
            return
        may: Verdict | bool = True
        if held is not None and self.rate is not None and not self.consumer.saturated():
            try:
                may = self._in_turn(run, held, self.rate)
            except BaseException:
                self._leave(run, held)  # else it would be extended without end
                raise
        if held is not None and (held.lost or may is False):
            self._leave(run, held)
            return
        verdicts: list[Verdict] = []
        try:
            if self.consumer.saturated():
                verdicts = [(Reason.SATURATED, f"handlers that hang: {self.runs.stuck}")] * len(run.deliveries)
            elif isinstance(may, tuple):
                verdicts = [may]
            elif self.runs.start(run):
                verdicts = self.invoker.verdicts(run.deliveries)
        finally:  # a run that is never closed counts as a hanging handler
            ours = self.runs.close(run)
        if ours:
            self.settlements.settle(run.deliveries, verdicts, in_order=held is not None)
            self.settlements.send()
            if held is not None and any(verdict and verdict[0] is Reason.INTERRUPTED for verdict in verdicts):
                held.leave()  # its next holder is given them first
                held.is_given_up = True
        elif held is not None:
            held.is_given_up = True

    def _leave(self, run: HandlerCall, held: HeldShard) -> None:
        """Handle nothing of the run: the present holder of the shard is given it first, and then what is behind it."""
        held.leave()
        if self.runs.close(run):
            self.settlements.leave(run.deliveries, begun=False)
            log.warning(
                "the lock of shard %d was lost: %d messages go to its next holder", held.shard, len(run.deliveries)
            )
