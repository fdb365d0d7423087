"""A sharded work queue: at least once, no broker, nothing acknowledged is lost (docs/protocols P5)."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NoReturn, Protocol

from ...errors import InvalidRequest, LatchworkError, Refused
from ...forks import renew_in_child
from ...inputs import checked_each
from ...plain import shown
from ...store import RecordStore
from .batches.batch import Publish, QueueBatch, check_alike, checked_life, checked_name, stored_follow_up
from .batches.records import BatchRecords
from .config import GroupConfig, QueueConfig, Span, check_concurrency
from .delayed import Due, checked_due
from .delivery import Delivery, lost
from .depth import QueueDepth, depth_of
from .envelope import Codec, Envelope, Message, checked_headers, checked_id, reason_of
from .fitting import check_fits
from .groups.making import end
from .groups.pointers import GroupPointers, pointer_queues
from .one import SideView
from .pointers import ShardState
from .postponed import DelayedView
from .publisher import LINGER, WAITING, WAITING_BYTES, Publisher
from .publishing import Prepared, checked_payloads, checked_terms, ids_or_raise, store_messages, with_dedups
from .record import LastSweep, Live, QueueRecords
from .redrive import redrive
from .settlement import Outcome, failed, raise_first, remember, tell
from .subqueue import QueueView, Rules, not_begun

SPREAD = 100
"""Messages of one `publish_many` that go to the same shard, so that consumers find them in batches."""


class Registry(Protocol):
    """The registry that made a queue, as far as its queues use it: `QueueRegistry` is one."""

    store: RecordStore
    client_id: str
    farm_id: str
    idle_look: float
    records: QueueRecords

    def refresh_if_due(self) -> None: ...
    def get(self, name: str) -> ShardedQueue: ...
    def set_concurrency(self, queue: ShardedQueue, n: int) -> None: ...
    def resume(self, queue: ShardedQueue) -> None: ...
    def last_sweep(self, name: str) -> LastSweep: ...
    def make_group(
        self, queue: ShardedQueue, name: str, start: str | datetime, settings: Mapping[str, Any]
    ) -> QueueGroup: ...
    def groups_of(self, queue: ShardedQueue) -> list[QueueGroup]: ...
    def forget(self, group: QueueGroup) -> None: ...


class ShardedQueue(QueueView):
    """A queue made by `QueueRegistry`. Safe to share between threads; share it, as they look for messages together.

    Every acknowledged publish is delivered at least once or stays visible in the sideline; only acknowledged or expired
    messages disappear. While the queue is paused `receive` gives nothing. Not promised: exactly once, or an order (but
    see `key`).
    """

    def __init__(self, registry: Registry, config: QueueConfig, live: Live) -> None:
        self.registry, self.config, self.live = registry, config, live
        main, sideline, parked = pointer_queues(registry.store, registry.client_id, config)
        codec = Codec(config.codec)
        rules = Rules(sideline, parked, config.max_deliveries, config.backoff)
        super().__init__(main, codec, rules, idle_look=registry.idle_look)
        self.delayed = DelayedView(registry.store, registry.client_id, config)
        self.sideline = SideView(sideline, codec, Rules(sideline, None, config.max_deliveries, config.backoff), self)
        self.parked = SideView(parked, codec, Rules(parked, None, config.max_deliveries, None), self)
        self.batches = BatchRecords(registry.store, registry.client_id, config.name)
        # Processes begin at different shards, or many short-lived publishers would all write to the first.
        self._turn = int(self.store.seams.uniform(0, config.shards))
        self.used = False
        self.begin_anew()
        renew_in_child(self)

    def begin_anew(self) -> None:
        """In a forked child: its lock anew, which a thread of the parent may have."""
        self._lock = self.store.seams.lock()

    def _open(self) -> bool:
        self.used = True
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
        dedup_for: timedelta | None = None,
        on_duplicate: str = "keep",
    ) -> str:
        """Publish one message; its id once it is safe. Two calls; with `dedup` five, or one where it is there.

        key: messages of one key go to one shard, where an ordered consumer handles those that were published one after
            the other in that order.
        message_id: the caller's own id, for people. Publishing it twice makes two messages; while a delayed one of that
            id waits, `AlreadyExists`.
        delay: seconds or a timedelta, up to the queue's expiry and a year, after which it is delivered; by the server's
            clock, and while a worker or a consumer runs in some process of the client.
        at: or when, an aware datetime.
        dedup: a key of 1 to 256 characters. For `dedup_for` (1 s to 365 days; default as long as a message of this
            queue lives) there is one message a key, and the id returned is that of the first.
        on_duplicate: "keep" returns that id, "raise" raises `AlreadyExists`, whose `details["message_id"]` has it.

        Raises `InvalidRequest`, `RecordTooBig`; `Refused` where the queue is known to be deactivated; `Unavailable`
        where nothing was published; `OutcomeUnknown` where the message may be delivered.
        """
        ids = None if message_id is None else [message_id]
        dedups = None if dedup is None else [dedup]
        return self.publish_many(
            [payload], key=key, headers=headers, message_ids=ids,
            delay=delay, at=at, dedups=dedups, dedup_for=dedup_for, on_duplicate=on_duplicate,
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
        dedup_for: timedelta | None = None,
        on_duplicate: str = "keep",
    ) -> list[str]:
        """Publish many; their ids, in order. Two calls per 1,000 messages; five with `dedups`.

        key, headers, delay, at: for all of them.
        keys, message_ids, dedups: one for each.

        An ordered consumer handles those of one key in order unless one is written more than 250 ms after the others,
        as where its row has to be sent again: where that matters, publish one by one.  A message without a key goes to
        another shard where its own is damaged; one with a key fails with `Corrupt`.  Not atomic: where some could not
        be published it raises the first error, whose `details["published"]` has the ids of those that were.
        """
        checked_payloads(payloads)
        terms = checked_terms(
            self.config, delay=delay, at=at, with_dedup=dedups is not None, dedup_for=dedup_for,
            on_duplicate=on_duplicate,
        )  # fmt: skip
        common = checked_headers(headers)
        with self.store.seams.span("publish", [common] if common else [], queue=self.name, messages=len(payloads)):
            messages = self.prepare(payloads, key=key, keys=keys, headers=common, message_ids=message_ids)
            if dedups is not None:
                messages = with_dedups(messages, dedups)
            outcomes = store_messages(self, messages, terms)
        return ids_or_raise(self, messages, outcomes, on_duplicate)

    def publisher(
        self, *, linger: Span = LINGER, waiting: int = WAITING, waiting_bytes: int = WAITING_BYTES
    ) -> Publisher:
        """A publisher for the threads of a service, which stores what they publish in groups. No I/O; close it.

        linger: seconds or a timedelta, up to 1 s, for which a message waits for others.
        waiting: messages that may wait, 1 to 1,000,000; where as many do, `publish` waits.
        waiting_bytes: and bytes of their payloads. One message may always wait.
        """
        return Publisher(self, linger=linger, waiting=waiting, waiting_bytes=waiting_bytes)

    def cancel(self, message_id: str) -> bool:
        """Make sure that a delayed message is never delivered. Two calls.

        True: it was not moved and never will be. False: it is on its way or was delivered, or no such message waits.
        Raises `OutcomeUnknown`.
        """
        return self.delayed.cancel(checked_id(message_id))

    def fail_later(self, delivery: Delivery, reason: str, error: str | None, delay: timedelta | float) -> None:
        """What `Delivery.nack` does with a delay: store it for later first, then delete it here."""
        envelope = failed(self.pointers, delivery.held, None, reason_of(reason), error)
        raise_first([delivery], [self._postpone(delivery, envelope, delay, reason)])

    def put_off(self, delivery: Delivery, delay: float) -> Outcome:
        """Let a message that nobody has begun come again after `delay` seconds, its attempt uncounted. Four calls.

        True = done; False = it comes again, but was somebody else's or gone by now; an error = it comes again, and the
        sweeper may bring it a second time. Raises the store's errors where it was not stored for later, or perhaps.
        """
        return self._postpone(delivery, not_begun(delivery.held.envelope), delay, "handed_back")

    def _postpone(self, delivery: Delivery, envelope: Envelope, delay: timedelta | float, done: str) -> Outcome:
        """Store a message for later, then delete it here; what the deletion said. Raises where it was not stored."""
        due = checked_due(self.config, delay, None) or Due(0, absolute=False)
        held = delivery.held
        if delivery.settled:
            raise lost([delivery])
        name = f"{envelope.msg_id}#{envelope.attempts}#{held.delivery}"
        failure = self.delayed.publish([envelope], [self.pointers.home(held.slot.shard)], due, names=[name])[0]
        if failure is not None:
            raise failure
        outcomes: list[Outcome]
        try:
            outcomes = list(self.pointers.remove([held]))
        except LatchworkError as failed_here:
            outcomes = [failed_here]
        tell(self.pointers, outcomes, done)
        remember([delivery], outcomes)
        return outcomes[0]

    def open_for_publishing(self) -> None:
        """Note that the queue is in use. Raises `Refused` where it is known to be deactivated."""
        self.used = True
        self.registry.refresh_if_due()
        if not self.live.active:
            raise Refused(f"the queue {self.name!r} is deactivated: create it again to publish to it")

    def prepare(
        self,
        payloads: Collection[Any],
        *,
        key: str | None = None,
        keys: Sequence[str | None] | None = None,
        headers: dict[str, str] | None = None,
        message_ids: Sequence[str] | None = None,
    ) -> list[Prepared]:
        """Messages that can be stored, of what `publish_many` takes; no I/O.

        Raises `InvalidRequest` and `RecordTooBig`.
        """
        checked_each("message ids", message_ids, len(payloads), "payloads")
        seams, now, carried = self.store.seams, self.pointers.now_ms(), self.store.seams.carry(headers)
        ids = [seams.unique() for _ in payloads] if message_ids is None else [checked_id(i) for i in message_ids]
        data = [self.codec.encode(payload) for payload in payloads]
        for one in data:  # else a pointer would be reserved in vain
            check_fits(self.store, self.name, one, carried)
        envelopes = [
            Envelope(one, msg_id, enqueued_at=now, headers=carried) for one, msg_id in zip(data, ids, strict=True)
        ]
        places = self._shards(len(envelopes), key, keys)
        return [Prepared(envelope, shard, bound) for envelope, (shard, bound) in zip(envelopes, places, strict=True)]

    def _shards(self, n: int, key: str | None, keys: Sequence[str | None] | None) -> list[tuple[int, bool]]:
        """The shard of each message, and whether it has to go there."""
        checked_each("keys", keys, n, "payloads")
        wanted = [None if one is None else self.shard_of(one) for one in keys or [key] * n]
        return [
            (following, False) if shard is None else (shard, True)
            for following, shard in zip(self.next_shards(n), wanted, strict=True)
        ]

    def next_shards(self, n: int) -> list[int]:
        """The shards of messages without a key that are stored together: by turns, so that all shards fill alike."""
        with self._lock:
            start, self._turn = self._turn, self._turn + 1 + n // SPREAD
        return [(start + place // SPREAD) % self.config.shards for place in range(n)]

    def shard_of(self, key: str) -> int:
        """The shard that messages of this key go to: CRC-32 of its UTF-8 bytes, modulo the number of shards."""
        if not isinstance(key, str):
            raise InvalidRequest(f"key is {shown(key)}; it must be text")
        return zlib.crc32(key.encode(errors="surrogatepass")) % self.config.shards

    # ---- looking

    def depth(self) -> QueueDepth:
        """How much is in the queue, its sideline, parked and delayed. Four calls, whatever the shards."""
        return replace(depth_of(*self.states()), delayed=self.delayed.count())

    def states(self) -> tuple[list[ShardState], list[ShardState], list[ShardState]]:
        """The pointers of all shards: of the queue, its sideline and its parked messages. Three calls."""
        return self.pointers.states(), self.sideline.pointers.states(), self.parked.pointers.states()

    def redrive(self, limit: int, *, reason: str | None = None, dry_run: bool = False) -> list[Message]:
        """Bring up to `limit` parked messages back, those parked for `reason` or for any; which they were.

        They start again with no attempts; how often they had been handed out before is in the header
        `latchwork-attempts`, their last reason and error stay with them. dry_run: change nothing, only say which would
        be. Raises `InvalidRequest` for a reason outside the closed set, and the store's errors; where some could not be
        brought back, after all others were: `details["redriven"]` of the error has the ids of these.
        """
        return redrive(self.parked, self, limit, reason=reason, dry_run=dry_run)

    # ---- groups

    def group(self, name: str, *, start: str | datetime = "now", **settings: Any) -> QueueGroup:
        """The group of this name: a durable subscription that gets every message, as other groups do; made if need be.

        name: 1 to 64 characters.
        start: where a group begins that is made by this: "now"; "oldest", with the messages that are still there; or an
            aware datetime, in each shard with the first one published then or later. Of a group that is there it says
            nothing.
        settings: of a group that is made by this: `concurrency`, `handler_type`, `handler_timeout`, `max_deliveries`,
            `backoff`, `shovel`, `batching`, where it is not to have those of the queue.

        One call where it is there, some eight where it is made, whatever the number of shards. What is published from
        then on waits for it, until it acknowledges, expires, or is dropped. Publishing costs no call more for it. The
        queue's own consumers are as one more group: where it has none, its messages stay until they expire.

        Raises `InvalidRequest`; `Refused` while one of that name is being dropped; `AlreadyExists` where a queue has
        the name `{queue}@{name}`; the store's errors: then the same call again completes it.
        """
        return self.registry.make_group(self, name, start, settings)

    def groups(self) -> list[QueueGroup]:
        """The groups of this queue, by name. Two calls."""
        return self.registry.groups_of(self)

    # ---- batches

    def batch(
        self, name: str, then: Publish | None = None, *, life: Span | None = None, create: bool = True
    ) -> QueueBatch:
        """The batch of this name: messages that are counted as they are done. Made if need be; one call, or two.

        name: 1 to 128 characters; another one for each run, as with the date in it.
        then: what is published once the batch is closed and all of it is done, exactly once, while a worker or a
            consumer runs in some process of the client. At most 64 KiB. None: nothing, or what it was made with.
        life: seconds or a timedelta, 1 min to 730 days, default twice the queue's expiry: so long after it was made its
            records expire, done or not, and the name is free.
        create: False = `NotFound` where there is none.

        Raises `AlreadyExists` where it has another follow-up; `Refused` where the queue has 1,000 batches that have not
        ended; `NotFound` where the queue of `then` is not there.
        """
        checked_name(name)
        seconds = checked_life(life, self.config)
        if then is not None and not isinstance(then, Publish):
            raise InvalidRequest(f"then is {shown(then)}; give Publish(payload), or None")
        target = self if then is None or then.queue is None else self.registry.get(then.queue)
        kept = stored_follow_up(then, target.codec, target.name)
        state = self.batches.make(name, kept, seconds) if create else self.batches.read(name)
        check_alike(self.name, state, kept)
        return QueueBatch(self, self.batches, state)

    def list_batches(self) -> list[QueueBatch]:
        """The batches of this queue that have not ended, by name. Two calls."""
        return [QueueBatch(self, self.batches, state) for state in self.batches.states()]

    # ---- the number of consumers

    @property
    def concurrency(self) -> int:
        """Consumers that are wanted, as last read from the queue's record; 0 = paused."""
        return self.live.concurrency

    def pause(self) -> None:
        """Stop consumers everywhere, once each process has refreshed. Messages go on expiring, which a warning says."""
        warnings.warn(
            f"queue {self.name!r} is paused; its messages go on expiring, each after {self.config.message_expiry}",
            stacklevel=2,
        )
        self.registry.set_concurrency(self, 0)

    def resume(self) -> None:
        """Go on with the number of consumers that was last asked for, at least 1."""
        self.registry.resume(self)

    def scale(self, n: int) -> None:
        """Ask for `n` worker threads in each process that consumes it, 0 to 100. Raises `TooManyConsumers`."""
        self.registry.set_concurrency(self, check_concurrency(n))


OF = "@"
"""Stands between the names of a queue and of its group."""


class QueueGroup(ShardedQueue):
    """A group of a queue, made by `ShardedQueue.group`. Groups, and the queue's own consumers, do not see one another.

    It has the verbs of a queue, but for publishing: `receive`, `ack_many`, `depth`, `peek`, `sideline`, `parked`,
    `redrive`, `pause`, `scale`, and a `Consumer` or a `Worker` of it. Its `name` is `{queue}@{group}`, under which
    `QueueRegistry.get` finds it, and the command does.

    At least once to each group. A message is stored once, and goes when the last of those that it was published to has
    acknowledged it, or when it expires; a group that stands still holds nobody up. One that fails in a group is copied
    into the group's sideline.

    Not promised: an order; messages that were published before the group was made come to it only if nobody has deleted
    them before it comes to them.
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
    def queue_name(self) -> str:
        """The name of the queue whose messages it gets."""
        return self._queue_name

    def follow(self, queue: ShardedQueue) -> None:
        """Notice at once what this process publishes to the queue."""
        queue.active.followers.add(self.active)
        self.pointers.shared.follow(queue.pointers.members)

    def drop(self) -> None:
        """End the subscription. Six calls, and one or two for each 1,000 messages that it had left.

        Messages that waited for it alone are deleted; what is in its sideline, or parked, is not to be had any more. An
        acknowledgement of a message that a consumer of it still has raises `LeaseLost`, and its consumers get
        `NotFound`. Where it is interrupted, or fails, the upkeep goes on with it; until that is done the name is not
        free. A message whose publisher was between its two calls may stay until it expires.

        Raises `NotFound` where it was dropped before, and the store's errors.
        """
        end(self.registry.records, self.config, self.pointers, [self.sideline.pointers, self.parked.pointers])
        self.registry.forget(self)

    def publish_many(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: publish to the queue itself."""
        raise InvalidRequest(f"{self!r} is a group: publish to {shown(self.queue_name)}, and it gets the message")

    def batch(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: a batch is of the queue itself."""
        raise InvalidRequest(f"{self!r} is a group: a batch is of the queue {shown(self.queue_name)}, which it reads")

    def publisher(self, **_: Any) -> NoReturn:
        """Refused: make it of the queue itself."""
        raise InvalidRequest(f"{self!r} is a group: publish to {shown(self.queue_name)}, and it gets the message")

    def group(self, name: str, **_: Any) -> NoReturn:
        """Refused: make it of the queue itself."""
        raise InvalidRequest(f"{self!r} is a group: make {shown(name)} of the queue {shown(self.queue_name)}")
