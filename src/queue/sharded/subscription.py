"""A subscription: what a consumer works on. A queue is one, and so is each of its groups."""

from __future__ import annotations

import warnings
import zlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from msgspec.structs import replace as replace_struct

from ...coord.effects.marks import Applied, Effect
from ...coord.effects.step import DoneStep
from ...errors import Corrupt, InvalidRequest, Refused, Unreadable
from ...plain import exact_time, shown
from ...retry import Poll
from ...store import Update
from ...store.port import checked_with_write
from ...store.rows import Rows
from .config import QueueConfig, check_concurrency
from .delayed.entries import Due, checked_due, later, limit_of
from .delayed.view import DelayedView
from .delivery import Delivery, failed, lost, raise_first, record_outcomes
from .delivery import Outcome as Settled
from .depth import QueueDepth, depth_of, looked_through, with_delayed
from .effects import MessageEffects
from .envelope import Codec, Envelope, Message, Reason, checked_id, not_begun, reason_of
from .handles import RegistryHandle
from .parts import parts_of
from .pointers import ShardPointers
from .record import Live
from .redrive import redrive
from .shards import Shards
from .sideline import SideView
from .slots import Stamped
from .subqueue import FailurePolicy, Subqueue
from .transfer import into
from .workers import WorkerReport, workers_of


class Subscription(Subqueue):
    """A queue, or a group of one, as its consumers see it: messages to receive, the ones that failed or come later, and
    how many consumers are wanted. Safe to share between threads; share it, as they look for messages together.

    `delayed` has the messages that come later, also the failed ones that are tried again; `parked` the ones that had
    their last attempt; `sideline` the failed ones where nothing is retried, or a shovel brings them back.
    """

    def __init__(self, registry: RegistryHandle, config: QueueConfig, live: Live) -> None:
        self.registry, self.config, self.live = registry, config, live
        main, sideline, parked = parts_of(registry.store, registry.client_id, config)
        codec = Codec(config.codec)
        most, backoff = config.max_deliveries, config.backoff
        waits = backoff if config.retries is None else None  # else it waits among the delayed messages
        super().__init__(main, codec, FailurePolicy(sideline, parked, most, waits), idle_look=registry.idle_look)
        self.delayed = DelayedView(registry.store, registry.client_id, config)
        self.delayed.places, self.delayed.counting = main.places, main.counting
        self.delayed.check_there = self.check_there
        self.sideline = SideView(sideline, codec, FailurePolicy(sideline, None, most, backoff), self)
        self.parked = SideView(parked, codec, FailurePolicy(parked, None, most, None), self)
        self.used = False
        self.made_at: Any = None  # when its record was created (ms, server), as read last

    @property
    @abstractmethod
    def queue_name(self) -> str:
        """The name of the queue whose messages it gets."""

    def target(self, queue: str | None) -> Any:
        """Return the queue of the client that a `Publish` goes to; None = the one whose messages these are."""
        return self.registry.publishable(self.queue_name if queue is None else queue)

    def with_message(self, update: Update, effect: Effect, publish: Any) -> Callable[[], Applied]:
        """Return what applies the effect of a message together with a message that is published (P28)."""
        return checked_with_write(publish).with_effect(self.store, update, effect, self.target)

    def settle(self, held: Sequence[Stamped]) -> tuple[Rows[bool], Callable[[], None]]:
        """Delete messages that were handled; return the outcomes, and what is to be done once they are noted."""
        return self.settle_in(self.pointers, held)

    @abstractmethod
    def settle_in(self, part: Shards, held: Sequence[Stamped]) -> tuple[Rows[bool], Callable[[], None]]:
        """Delete messages that were handled, as `settle` does, from its sideline or its parked messages."""

    def _open(self) -> bool:
        self.used = True
        if self.store.seams.monotonic() >= self.registry.next_refresh:
            self.registry.refresh_if_due()
        return self.live.concurrency > 0

    def fail_later(self, delivery: Delivery, reason: str, error: str | None, delay: timedelta | float) -> None:
        """Store the message for later, then delete it here, as `Delivery.nack` does with a delay."""
        envelope = failed(self.pointers, delivery.held, None, reason_of(reason), error)
        raise_first([delivery], [self._postpone(delivery, envelope, delay, reason)])

    def put_off(self, delivery: Delivery, delay: float) -> Settled:
        """Deliver a message that was not begun again after `delay` seconds, without counting the attempt. Four calls.

        True = done; False = it had been handed to another consumer or deleted, and perhaps comes again; an error = it
        comes again, and the sweeper may bring it, also a second time. Raises the store's errors if it was not stored
        for later, or perhaps not.
        """
        return self._postpone(delivery, not_begun(delivery.held.envelope), delay, "handed_back")

    def _postpone(self, delivery: Delivery, envelope: Envelope, delay: timedelta | float, done: str) -> Settled:
        """Store a message for later, then delete it here; return the outcome. Raises if it was not stored."""
        due = checked_due(self.config, delay, None) or Due(0, absolute=False)
        if delivery.settled:
            raise lost([delivery])
        store = later(self.delayed, self.pointers, [due])
        outcomes = self._move([delivery], lambda *given: store(*given).raise_unless(), [envelope])
        record_outcomes(self.pointers, outcomes, done)
        return outcomes[0]

    # ---- what has failed

    def _fail(self, deliveries: Sequence[Delivery], envelopes: Sequence[Envelope]) -> Rows[bool]:
        """Let failed messages come back after their backoff, and park the ones that had their last attempt."""
        pauses = self.config.retries
        if pauses is None:
            return super()._fail(deliveries, envelopes)
        last = self.config.max_deliveries
        ends = [n for n, envelope in enumerate(envelopes) if envelope.attempts >= last]
        rest = [n for n, envelope in enumerate(envelopes) if envelope.attempts < last]
        parked = [replace_struct(envelopes[n], reason=Reason.EXHAUSTED.value) for n in ends]
        outcomes = Rows([False] * len(deliveries)).merge(ends, self._parked([deliveries[n] for n in ends], parked))
        return outcomes.merge(rest, self._retry([deliveries[n] for n in rest], [envelopes[n] for n in rest], pauses))

    def _retry(self, deliveries: Sequence[Delivery], envelopes: Sequence[Envelope], pauses: Poll) -> Rows[bool]:
        """Store messages for later, each for its own pause, then delete them here; return the outcomes. Three calls."""
        limit = limit_of(self.config).total_seconds()

        def store(held: Sequence[Stamped], some: Sequence[Envelope]) -> Rows[str]:
            spans = [min(pauses.pause(max(1, one.attempts), self.store.seams), limit) for one in some]
            dues = [Due(round(span * 1000), absolute=False) for span in spans]
            return later(self.delayed, self.pointers, dues)(held, some)

        # A message that has no room for its time, as another program's may be, is tried again at once.
        return self._move(deliveries, store, envelopes).recover(
            InvalidRequest,
            lambda places: self._move(
                [deliveries[n] for n in places], into(self.pointers), [envelopes[n] for n in places]
            ),
        )

    # ---- of a group, which can be dropped while others use it

    def check_there(self) -> None:
        """Raise `NotFound` where nobody can read any more what is stored for later: of a group that was dropped."""

    def was_dropped(self) -> bool:
        """Whether its record is gone as somebody has dropped it; else the store has lost the record."""
        return False

    def make_again(self) -> None:
        """Make what else the store has lost, after its record."""

    def made_again(self) -> Any:
        """Return what was made under its name after it was dropped; None while there is none."""
        return None

    def ends(self, record: Mapping[str, Any]) -> bool:  # noqa: ARG002 - of a group its record says so
        """Whether a sweep is to leave it alone, as it has just ended."""
        return False

    # ----

    def open_for_publishing(self) -> None:
        """Note that the queue is in use. Raises `Refused` where it is known to be deactivated."""
        self.used = True
        if self.store.seams.monotonic() >= self.registry.next_refresh:
            self.registry.refresh_if_due()
        if not self.live.active:
            raise Refused(
                f"the queue {self.name!r} is deactivated: `activate` it, or create it again, to publish to it"
            )

    def shard_of(self, key: str) -> int:
        """Return the shard that messages of this key go to: CRC-32 of its UTF-8 bytes, modulo the number of shards."""
        if not isinstance(key, str):
            raise InvalidRequest(f"key is {shown(key)}; it must be text")
        return zlib.crc32(key.encode(errors="surrogatepass")) % self.config.shards

    # ---- looking

    def depth(self) -> QueueDepth:
        """Return how much is in the queue, its sideline, parked and delayed. Five calls. Where messages have
        expired unread: 0.25 s, and one call more for each such shard, or some 20 if it has more than 1,000.
        """
        depth = depth_of(*self.states_now())
        try:
            return with_delayed(depth, self.delayed.waiting())
        except (Corrupt, Unreadable):  # all the rest is known
            return replace(depth, damaged=depth.damaged + 1)

    def states(self) -> tuple[list[ShardPointers], list[ShardPointers], list[ShardPointers]]:
        """Return the pointers of all shards: of the queue, its sideline and its parked messages. Three calls."""
        return self.pointers.states(), self.sideline.pointers.states(), self.parked.pointers.states()

    def states_now(self) -> list[list[ShardPointers]]:
        """Return the pointers as `states` does, and how many of the oldest messages have expired. Four calls, or as
        `depth` says.
        """
        views = (self.pointers, self.sideline.pointers, self.parked.pointers)
        return looked_through(list(zip(views, self.states(), strict=True)))

    def steps(self, message_id: str) -> dict[str, DoneStep]:
        """Return the steps of a message that are done (`Delivery.once`), by name, also of one that is gone. One call.

        Raises `Corrupt` where their record is damaged.
        """
        effects = MessageEffects(self.pointers.client_id, self.reader, checked_id(message_id))
        return effects.done(self.store)

    def redrive(self, limit: int, *, reason: str | None = None, dry_run: bool = False) -> list[Message]:
        """Move up to `limit` parked messages back, parked for `reason` or for any; return them.

        dry_run: change nothing, only return them.

        They start again with no attempts; the header `latchwork-attempts` has the former number, and they keep their
        last reason and error. Raises `InvalidRequest` for a reason outside the closed set, and the store's errors:
        `details["redriven"]` of the error has the ids of the messages that were moved. One that cannot be moved keeps
        no other from it; where the store is unavailable, the others stay. `Unavailable` also where 100,000 slots of a
        shard, one after the other, hold no message: another call goes on behind them.
        """
        return redrive(self.parked, self, limit, reason=reason, dry_run=dry_run)

    # ---- the number of consumers

    @property
    def concurrency(self) -> int:
        """Consumers that are wanted, as last read from the queue's record; 0 = paused."""
        return self.live.concurrency

    def pause(self, *, by: str | None = None) -> None:
        """Stop consumers everywhere: within 3 s no handler begins. Messages continue to expire. Two calls.

        The groups of a queue go on: each has a `pause` of its own. Handlers that have begun go on to their end.
        `workers` says which processes act on it.

        by: who pauses it, for people; None = this process.
        """
        life = exact_time(self.config.message_expiry)
        warnings.warn(f"queue {self.name!r} is paused; its messages go on expiring, each after {life}", stacklevel=2)
        self.registry.set_concurrency(self, 0, by)

    def resume(self, *, by: str | None = None) -> None:
        """Start consumers again within 3 s, with the number that was set last, at least 1. Three calls."""
        self.registry.resume(self, by)

    def scale(self, n: int, *, by: str | None = None) -> None:
        """Ask for `n` worker threads in each process that consumes it, 0 to 100, within 3 s. Two calls. Raises
        `TooManyConsumers`.
        """
        self.registry.set_concurrency(self, check_concurrency(n), by)

    def workers(self) -> list[WorkerReport]:
        """Return the last report of each process in which a consumer of this queue runs, or ran until it died, by
        name. One call.

        A process reports each 15 s, and at once when it acts on a change of the settings. Programs that call `receive`
        themselves do not report. Raises the store's errors.
        """
        return workers_of([self])[0]


def checked_subscription(queue: Any) -> Subscription:
    """Return the queue, or the group, once it is one. Raises `InvalidRequest`."""
    if not isinstance(queue, Subscription):
        raise InvalidRequest(f"queue is a {type(queue).__name__}; give what QueueRegistry.create or .get returns")
    return queue
