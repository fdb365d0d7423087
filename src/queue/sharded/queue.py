"""A sharded work queue: at least once, no broker, nothing acknowledged is lost (docs/protocols P5)."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NoReturn, Protocol

from msgspec.structs import replace as replace_struct

from ...coord.effects.step import DoneStep
from ...errors import Corrupt, InvalidRequest, Refused, Unreadable
from ...forks import reset_in_child
from ...inputs import checked_switch
from ...plain import exact_time, shown
from ...retry import Poll
from ...store import RecordStore
from ...store.rows import Rows
from .batches.ends import settle
from .batches.names import naming
from .batches.records import BatchRecords
from .cancel import Cancelling, drop_arrivals
from .config import GroupConfig, QueueConfig, Span, check_concurrency, whole_seconds
from .delayed.entries import Due, checked_due, later, limit_of
from .delayed.stored import MAX_NAME
from .delivery import Delivery, failed, lost, raise_first, record_outcomes
from .delivery import Outcome as Settled
from .depth import QueueDepth, depth_of, looked_through
from .effects import MessageEffects
from .envelope import Codec, Envelope, Message, Reason, checked_id, interrupted, not_begun, reason_of
from .groups.making import DROPPED, check_there, complete, end, was_dropped
from .groups.pointers import GroupPointers, shards_of
from .outcome import Outcome
from .pointers import ShardPointers
from .publishing.batch import QueueBatch, check_alike, checked_life, checked_name, stored_follow_up
from .publishing.publish import publish
from .publishing.publisher import LINGER, WAITING, WAITING_BYTES, Publisher
from .publishing.unique import storing_unique
from .publishing.with_write import Publish, queue_of
from .record import LastSweep, Live, QueueRecords
from .results import result
from .sideline.delayed import DelayedView
from .sideline.one import SideView
from .sideline.redrive import redrive
from .slots import Stamped
from .status import Finder, Status, status
from .subqueue import FailurePolicy, Subqueue
from .transfer import into
from .unique_keys import UniqueKeys
from .workers import WorkerReport, workers_of


class Registry(Protocol):
    """The registry that made a queue, as far as its queues use it: `QueueRegistry` is one."""

    store: RecordStore
    client_id: str
    farm_id: str
    idle_look: float
    records: QueueRecords
    next_refresh: float

    def refresh_if_due(self) -> None: ...
    def get(self, name: str) -> ShardedQueue: ...
    def publishable(self, name: str) -> ShardedQueue: ...
    def set_concurrency(self, queue: ShardedQueue, n: int, by: str | None = None) -> None: ...
    def resume(self, queue: ShardedQueue, by: str | None = None) -> None: ...
    def follow(self, queues: Sequence[ShardedQueue]) -> None: ...
    def last_sweep(self, name: str) -> LastSweep: ...
    def make_group(
        self, queue: ShardedQueue, name: str, start: str | datetime, settings: Mapping[str, Any]
    ) -> QueueGroup: ...
    def groups_of(self, queue: ShardedQueue) -> list[QueueGroup]: ...
    def forget(self, group: QueueGroup) -> None: ...


class ShardedQueue(Subqueue):
    """A queue made by `QueueRegistry`. Safe to share between threads; share it, as they look for messages together.

    Every acknowledged publish is delivered at least once, or stays visible among the failed messages; only acknowledged
    or expired messages disappear. While the queue is paused `receive` gives nothing. Not promised: exactly once, or an
    order (but see `key`).

    `delayed` has the messages that come later, also the failed ones that are tried again; `parked` the ones that had
    their last attempt; `sideline` the failed ones of a queue that does not retry, or has a shovel.
    """

    def __init__(self, registry: Registry, config: QueueConfig, live: Live) -> None:
        self.registry, self.config, self.live = registry, config, live
        main, sideline, parked = shards_of(registry.store, registry.client_id, config)
        codec = Codec(config.codec)
        most, backoff = config.max_deliveries, config.backoff
        waits = backoff if config.retries is None else None  # else it waits among the delayed messages
        super().__init__(main, codec, FailurePolicy(sideline, parked, most, waits), idle_look=registry.idle_look)
        self.delayed = DelayedView(registry.store, registry.client_id, config)
        self.delayed.places = main.places
        self.sideline = SideView(sideline, codec, FailurePolicy(sideline, None, most, backoff), self)
        self.parked = SideView(parked, codec, FailurePolicy(parked, None, most, None), self)
        drop_arrivals(main)
        if config.results is not None and main.places is not None:  # a group's messages have no results of their own
            main.results = whole_seconds(config.results)
            main.naming = self.delayed.naming = partial(naming, registry.client_id)
        self.batches = BatchRecords(registry.store, registry.client_id, config.name)
        self.unique_keys = UniqueKeys(registry.store, registry.client_id, config.name, self.parked.pointers.ttl)
        # Processes begin at different shards, or many short-lived publishers would all write to the first.
        self._turn = int(self.store.seams.uniform(0, config.shards))
        self.used = False
        self.made_at: Any = None  # when its record was created (ms, server), as read last
        self.reset_after_fork()
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may hold it."""
        self._lock = self.store.seams.lock()

    def settle(self, held: Sequence[Stamped]) -> tuple[Rows[bool], Callable[[], None]]:
        """Delete messages that were handled, each once its batch has counted it."""
        return settle(self, self.pointers, held)

    @property
    def reader(self) -> str:
        """The name of the group that reads it; "" for the queue's own consumers."""
        return ""

    def target(self, queue: Any) -> ShardedQueue:
        """Return the queue that a `Publish` goes to: one of the client, by its name or itself; None = this one."""
        if queue is None:
            return self
        return self.registry.publishable(queue if isinstance(queue, str) else queue_of(queue).name)

    def _open(self) -> bool:
        self.used = True
        if self.store.seams.monotonic() >= self.registry.next_refresh:
            self.registry.refresh_if_due()
        return self.live.concurrency > 0

    # ---- publishing

    def publish(
        self,
        payload: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        delay: timedelta | float | None = None,
        at: datetime | None = None,
        dedup: str | None = None,
        dedup_for: timedelta | float | None = None,
        unique: str | None = None,
        on_duplicate: str = "keep",
    ) -> str:
        """Publish one message; return its id once it is safe. Two calls; with `dedup` five, or one if the key has a
        message; with `unique` four, or two to four if the key has one, and six or seven after one that was not
        acknowledged.

        key: messages of one key go to one shard, where an ordered consumer handles messages that were published one
            after another in that order.
        message_id: the caller's own id. It may be used twice, but the effects of both messages (`Delivery.operate`,
            `Delivery.once`) then happen once. `AlreadyExists` while a delayed message has it.
        delay: seconds or a timedelta, up to the queue's expiry and a year, by the server's clock.
        at: instead, an aware datetime; one in the past is now. Delivered while a worker or consumer of the client runs.
        dedup: a key of 1 to 256 characters. For `dedup_for` there is one message a key, and the id returned is that of
            the first. dedup_for: seconds or a timedelta, 1 s to 365 days; default as long as a message lives.
        unique: a key of 1 to 256 characters that has at most one message at a time, until that is acknowledged, parked,
            discarded, cancelled or expired. Not with `message_id` or `dedup`. Acknowledging costs one call more.
        on_duplicate: "keep" returns that id, "raise" raises `AlreadyExists`, whose `details["message_id"]` has it.
            With `unique` also "replace": the message that waits gets this payload and these headers, keeps its id and
            its shard, and begins again with no attempts; a delayed one, or one that waits for its next attempt, comes
            after `delay` from now. `AlreadyExists` where a handler has it, somebody has cancelled it, or groups or a
            stream read it.

        Raises `InvalidRequest`, `RecordTooBig`; `Refused` if the queue is known to be deactivated; `Unavailable` if
        nothing was published; `OutcomeUnknown` if the message may be delivered.
        """
        ids = None if message_id is None else [message_id]
        dedups = None if dedup is None else [dedup]
        store = None
        if unique is not None:
            store = storing_unique(self._find, unique, on_duplicate, message_id=message_id, dedup=dedup)
            on_duplicate = "keep"  # of dedup keys
        return publish(
            self, [payload], key=key, keys=None, headers=headers, message_ids=ids,
            delay=delay, at=at, dedups=dedups, dedup_for=dedup_for, on_duplicate=on_duplicate, store=store,
        )[0]  # fmt: skip

    def publish_many(
        self,
        payloads: Sequence[Any],
        *,
        key: str | None = None,
        keys: Sequence[str | None] | None = None,
        headers: Mapping[str, str] | None = None,
        message_ids: Sequence[str] | None = None,
        delay: timedelta | float | None = None,
        at: datetime | None = None,
        dedups: Sequence[str] | None = None,
        dedup_for: timedelta | float | None = None,
        on_duplicate: str = "keep",
    ) -> list[str]:
        """Publish many messages; return their ids, in order. Two calls per 1,000 messages; five with `dedups`.

        key, headers, delay, at: for all of them.
        keys, message_ids, dedups: one for each.

        An ordered consumer handles the messages of one key in order, unless one is written more than 250 ms after the
        others, as when its row has to be sent again. If that matters, publish one by one. A message without a key goes
        to another shard if its own is damaged; one with a key fails with `Corrupt`. Not atomic: if some could not be
        published, it raises the first error, whose `details["published"]` has the ids of the messages that were.
        """
        return publish(
            self, payloads, key=key, keys=keys, headers=headers, message_ids=message_ids,
            delay=delay, at=at, dedups=dedups, dedup_for=dedup_for, on_duplicate=on_duplicate,
        )  # fmt: skip

    def publisher(
        self, *, linger: Span = LINGER, waiting: int = WAITING, waiting_bytes: int = WAITING_BYTES
    ) -> Publisher:
        """Return a publisher for the threads of a service, which stores what they publish in groups. No I/O; close it.

        linger: seconds or a timedelta, up to 1 s, for which a message waits for others.
        waiting: messages that may wait, 1 to 1,000,000; where as many do, `publish` waits.
        waiting_bytes: and bytes of their payloads. One message may always wait.
        """
        return Publisher(self, linger=linger, waiting=waiting, waiting_bytes=waiting_bytes)

    # ---- one message, in any state

    def status(self, message_id: str) -> Status:
        """Return where a message is: whatever happened to it since it was published. Two calls at most for one that
        waits, runs, or was never moved; three for one that has moved and is gone.

        message_id: as `publish` returned it, or as its publisher gave it. A message whose id is known before it is
            published, of a `Publisher`, of Spark's sink or of an outbox, is UNKNOWN until it has moved once, as when it
            has failed, unless its publisher gave the id.

        Raises the store's errors. Not promised: how a message ended whose life is over.
        """
        return status(self._find(message_id))

    def cancel(self, message_id: str) -> Outcome:
        """Make sure that a message does not come again, in whatever state it is. Two calls; some more where it moves
        meanwhile, or is of a batch.

        DONE: it waited, and is gone. ASKED: a consumer has it, whose handler's next `Delivery.check` raises `Cancelled`
        once the message was extended; if the handler fails instead, it is not tried again. NOT_THERE: no such message
        waits or runs. UNKNOWN: ask again. Only DONE is true as a condition.

        Raises `Refused` where groups wait for it, and the store's errors, with nothing done.
        """
        if self.pointers.places is None:
            name = checked_id(message_id, MAX_NAME)
            return Outcome.DONE if self.delayed.cancel(name) else Outcome.NOT_THERE
        return Cancelling(self._find(message_id)).run()

    def result(self, message_id: str, timeout: float | None = None) -> Any:
        """Wait for what the handler of a message returned, and return it; of a queue with `QueueConfig(results=)`. The
        first attempt that was acknowledged has the result; it is the same each time, for as long as it is kept.

        message_id: as for `status`.
        timeout: seconds; 0 = look once, None = no limit.

        It looks after 0.02 s, then more and more rarely, once a second at last. A look is a call, or two.

        Raises `HandlerFailed` where the message has failed, and is not tried again unless somebody brings it back;
        `Cancelled` where it was cancelled, discarded or moved; `Expired` where nobody took it in time; `Unreadable`
        where it is done, and its result could not be kept; `NotFound` where there is no such message, or its result is
        kept no longer. `WaitTimeout` where it has none yet: `details["state"]` has its state, and the text says if no
        worker is there. `Unavailable` where the last look failed. `InvalidRequest` where the queue keeps no results.
        """
        return result(self, message_id, timeout)

    def _find(self, message_id: str) -> Finder:
        places = self.pointers.places
        if places is None:
            raise InvalidRequest(f"{self!r} is a group: ask the queue for a message")
        sides = (self.pointers, self.sideline.pointers, self.parked.pointers)
        return Finder(sides, self.delayed, places, checked_id(message_id, MAX_NAME))

    def fail_later(self, delivery: Delivery, reason: str, error: str | None, delay: timedelta | float) -> None:
        """Store the message for later, then delete it here, as `Delivery.nack` does with a delay."""
        envelope = failed(self.pointers, delivery.held, None, reason_of(reason), error)
        raise_first([delivery], [self._postpone(delivery, envelope, delay, reason)])

    def put_off(self, delivery: Delivery, delay: float) -> Settled:
        """Deliver a message that was not begun again after `delay` seconds, without counting the attempt. Four calls.

        True = done; False = it comes again, but had been handed to another consumer or deleted; an error = it comes
        again, and the sweeper may bring it a second time. Raises the store's errors if it was not stored for later, or
        perhaps not.
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

    def check_there(self) -> None:
        """Raise `NotFound` where nobody can read any more what is stored for later: of a group that was dropped."""

    def was_dropped(self) -> bool:
        """Whether its record is gone as somebody has dropped it; else the store has lost the record."""
        return False

    def make_again(self) -> None:
        """Make what else the store has lost, after its record."""

    def ends(self, record: Mapping[str, Any]) -> bool:  # noqa: ARG002 - of a group its record says so
        """Whether a sweep is to leave it alone, as it has just ended."""
        return False

    def open_for_publishing(self) -> None:
        """Note that the queue is in use. Raises `Refused` where it is known to be deactivated."""
        self.used = True
        if self.store.seams.monotonic() >= self.registry.next_refresh:
            self.registry.refresh_if_due()
        if not self.live.active:
            raise Refused(
                f"the queue {self.name!r} is deactivated: `activate` it, or create it again, to publish to it"
            )

    def turns(self, n: int) -> int:
        """Return the shard where `n` shares of messages without a key begin; the next ones begin after them."""
        with self._lock:
            start, self._turn = self._turn, self._turn + n
        return start

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
            waiting = self.delayed.waiting()
            return replace(depth, delayed=waiting.messages, retrying=waiting.retrying)
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

    # ---- groups

    def group(self, name: str, *, start: str | datetime = "now", **settings: Any) -> QueueGroup:
        """Return the group of this name, made if it does not exist: a durable subscription that gets every message, as
        other groups do.

        name: 1 to 64 characters.
        start: where a new group begins: "now"; "oldest", with the messages that still exist; or an aware datetime, in
            each shard with the first message published then or later. It has no effect on an existing group.
        settings: of a new group: `concurrency`, `handler_type`, `handler_timeout`, `max_deliveries`, `backoff`,
            `shovel`, `batching`, if they differ from the queue's.

        One call if it exists, about eight if it is made, whatever the number of shards. A message that is published
        from then on waits for the group, until the group acknowledges it, it expires, or the group is dropped.
        Publishing takes no more calls. The queue's own consumers count as one more group: if there are none, the
        messages stay until they expire.

        Raises `InvalidRequest`; `Refused` while a group of that name is being dropped, and where the queue has 100
        groups; `AlreadyExists` if a queue, or a group of another queue, is called `{queue}@{name}`; the store's errors:
        then repeat the call to complete it.
        """
        return self.registry.make_group(self, name, start, settings)

    def groups(self) -> list[QueueGroup]:
        """Return the groups of this queue, by name. Two calls."""
        return self.registry.groups_of(self)

    # ---- batches

    def batch(
        self,
        name: str,
        then: Publish | None = None,
        *,
        on_parked: Publish | None = None,
        life: Span | None = None,
        create: bool = True,
    ) -> QueueBatch:
        """Return the batch of this name: messages that are counted as they are done. Made if need be; one call, or two.

        name: 1 to 128 characters; another one for each run, as with the date in it.
        then: what is published once the batch is closed and all of it is done, exactly once, while a worker or a
            consumer runs in some process of the client. At most 64 KiB. None: nothing, or what it was made with.
        on_parked: what is published, once, when a message of the batch has been parked: within 5 s, a minute where the
            process that parked it was paused meanwhile; as `then`.
        life: seconds or a timedelta, 1 min to 730 days, default twice the queue's expiry: this time after it was made
            its records expire, done or not, and the name is free.
        create: False = `NotFound` where there is none.

        Raises `AlreadyExists` where it has another follow-up; `Refused` where the queue has 1,000 batches that have not
        ended; `NotFound` where the queue of `then` is not there.
        """
        checked_name(name)
        seconds, made = checked_life(life, self.config), checked_switch("create", create)
        kept, parked = self._follow_up("then", then), self._follow_up("on_parked", on_parked)
        state = self.batches.make(name, kept, seconds, parked) if made else self.batches.read(name)
        check_alike(self.name, state, kept, parked)
        return QueueBatch(self, self.batches, state)

    def _follow_up(self, what: str, given: Publish | None) -> dict[str, Any] | None:
        if given is not None and not isinstance(given, Publish):
            raise InvalidRequest(f"{what} is {shown(given)}; give Publish(payload), or None")
        target = self.target(None if given is None else given.queue)
        return stored_follow_up(given, target.codec, target.name)

    def list_batches(self) -> list[QueueBatch]:
        """Return the batches of this queue that have not ended, by name. Two calls.

        One whose record is damaged is left out, with a warning that names the record.
        """
        return [QueueBatch(self, self.batches, state) for state in self.batches.states()]

    # ---- the number of consumers

    @property
    def concurrency(self) -> int:
        """Consumers that are wanted, as last read from the queue's record; 0 = paused."""
        return self.live.concurrency

    def pause(self, *, by: str | None = None) -> None:
        """Stop consumers everywhere: within 3 s no handler begins. Messages continue to expire. Two calls.

        Handlers that have begun go on to their end. `workers` says which processes act on it.

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


OF = "@"
"""Stands between the names of a queue and of its group."""


class QueueGroup(ShardedQueue):
    """A group of a queue, made by `ShardedQueue.group`. Groups, and the queue's own consumers, are independent of each
    other. Safe to share between threads; share it, as they look for messages together.

    It has the verbs of a queue, except publishing: `receive`, `ack_many`, `depth`, `peek`, `sideline`, `parked`,
    `redrive`, `pause`, `scale`, and a `Consumer` or a `Worker` of it. `QueueRegistry.get` and the command find it as
    `{queue}@{group}`.

    At least once for each group. A message is stored once, and deleted when the last group that it was published to has
    acknowledged it, or when it expires; a group that does not consume blocks no other. One that fails in a group is
    stored once more, for the group alone. Not promised: an order; and a message published before the group was made
    reaches it only if it still exists then.
    """

    pointers: GroupPointers
    config: GroupConfig

    def __init__(self, registry: Registry, config: GroupConfig, live: Live) -> None:
        super().__init__(registry, config, live)
        self._queue_name = config.of

    @property
    def group_name(self) -> str:
        """The group's name within its queue."""
        return self.config.name.removeprefix(f"{self._queue_name}{OF}")

    @property
    def reader(self) -> str:
        """The group's name within its queue."""
        return self.group_name

    @property
    def queue_name(self) -> str:
        """The name of the queue whose messages it gets."""
        return self._queue_name

    def target(self, queue: Any) -> ShardedQueue:
        """Return the queue that a `Publish` goes to; None = the one that the group reads."""
        return super().target(self.queue_name if queue is None else queue)

    def _given_back(self, deliveries: Sequence[Delivery]) -> Rows[bool]:
        """Return messages to the tail of the group's own shards: the slots of the queue are not the group's alone."""
        back = [interrupted(delivery.held.envelope) for delivery in deliveries]
        outcomes = self._move(deliveries, into(self.pointers), back)
        self.active.look_soon()
        return outcomes

    def follow(self, queue: ShardedQueue) -> None:
        """Notice at once what this process publishes to the queue."""
        self.active.follow(queue.active)
        self.pointers.shared.follow(queue.pointers.members)

    def check_there(self) -> None:
        """Raise `NotFound` if the group was dropped, or made again under another tag. One call."""
        check_there(self.registry.records, self.config)

    def was_dropped(self) -> bool:
        """Whether another process has dropped the group; False where the store has lost its record. Two calls."""
        return was_dropped(self.registry.records, self.config, self.pointers.shared, self.made_at)

    def make_again(self) -> None:
        """Join the queue's shards again, from their beginning. Some six calls."""
        complete(self.registry.records, self.config, self.pointers.shared, "oldest", [0] * self.config.shards)

    def ends(self, record: Mapping[str, Any]) -> bool:
        """Go on with the end of the group if its record says that it was dropped; whether it was."""
        if DROPPED in record:
            self.drop()  # the process that dropped it has died, or still does, or has left much of it to the upkeep
        return DROPPED in record

    def drop(self) -> bool:
        """End the subscription; whether nothing of it is left. Six calls, and one or two for each 1,000 messages that
        it had left.

        Messages that waited for this group alone are deleted, also in its sideline and parked. Its consumers get
        `NotFound`, and `LeaseLost` for a message that they still hold. A message whose publisher was between its two
        calls may stay until it expires.

        A call looks at 100,000 slots of each shard at most. False: there are more, and the upkeep goes on with as
        many in each of its sweeps; so does another call. It also goes on if this call is interrupted, or fails. Until
        the end the name is not free.

        Raises `NotFound` if it was dropped before, and the store's errors.
        """
        others = [self.sideline.pointers, self.parked.pointers]
        over = end(self.registry.records, self.config, self.pointers, others, self.delayed.control)
        self.registry.forget(self)
        return over

    def publish(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: publish to the queue itself."""
        raise InvalidRequest(f"{self!r} is a group: publish to {shown(self.queue_name)}, and it gets the message")

    publish_many = publish

    def batch(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: a batch belongs to the queue itself."""
        raise InvalidRequest(f"{self!r} is a group: a batch is of the queue {shown(self.queue_name)}, which it reads")

    def publisher(self, **_: Any) -> NoReturn:
        """Refuse: make it of the queue itself."""
        self.publish()

    def group(self, name: str, **_: Any) -> NoReturn:
        """Refuse: make it of the queue itself."""
        raise InvalidRequest(f"{self!r} is a group: make {shown(name)} of the queue {shown(self.queue_name)}")
