"""A sharded work queue: at least once, no broker, nothing acknowledged is lost (docs/protocols P5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from ...errors import InvalidRequest
from ...forks import reset_in_child
from ...inputs import Span, checked_switch
from ...plain import shown
from ...store.rows import Rows
from .batches.counting import count_and_remove
from .batches.records import BatchRecords
from .cancel import Cancelling
from .config import QueueConfig
from .delayed.stored import MAX_NAME
from .envelope import checked_id
from .group import QueueGroup
from .handles import RegistryHandle
from .publishing.batch import QueueBatch, check_alike, checked_life, checked_name, stored_follow_up
from .publishing.batch_end import end_done
from .publishing.publish import publish
from .publishing.publisher import LINGER, WAITING, WAITING_BYTES, Publisher
from .publishing.unique import storing_unique
from .publishing.with_write import Publish, queue_of
from .record import Live
from .results import NOTHING, kept, result
from .selection import Outcome
from .shards import Shards
from .slots import Stamped
from .status import Finder, Status, status
from .subscription import Subscription
from .unique_keys import UniqueKeys


class ShardedQueue(Subscription):
    """A queue made by `QueueRegistry`. Safe to share between threads; share it, as they look for messages together.

    Every acknowledged publish is delivered at least once, or stays visible among the failed messages; only acknowledged
    or expired messages disappear. While the queue is paused `receive` gives nothing. Not promised: exactly once, or an
    order (but see `key`).

    `delayed` has the messages that come later, also the failed ones that are tried again; `parked` the ones that had
    their last attempt; `sideline` the failed ones of a queue that does not retry, or has a shovel.
    """

    def __init__(self, registry: RegistryHandle, config: QueueConfig, live: Live) -> None:
        super().__init__(registry, config, live)
        self.batches = BatchRecords(registry.store, registry.client_id, config.name)
        self.unique_keys = UniqueKeys(registry.store, registry.client_id, config.name, self.parked.pointers.ttl)
        # Processes begin at different shards, or many short-lived publishers would all write to the first.
        self._turn = int(self.store.seams.uniform(0, config.shards))
        self.reset_after_fork()
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may hold it."""
        self._lock = self.store.seams.lock()

    @property
    def reader(self) -> str:
        """The name of the group that reads it; "" for the queue's own consumers."""
        return ""

    @property
    def queue_name(self) -> str:
        """Its own name."""
        return self.name

    def for_publishing(self) -> ShardedQueue:
        """Return this queue; of a group it raises `InvalidRequest`, as nobody publishes to one."""
        return self

    def settle_in(self, part: Shards, held: Sequence[Stamped]) -> tuple[Rows[bool], Callable[[], None]]:
        """Delete messages that were handled, each once its batch has counted it; its result stays where it has one.

        One call; one more where any is of a batch. What is to be done then ends the batches that may be done, and frees
        the keys that the messages had (P30): one call where any had a key.
        """
        if part.results:
            held = [one if one.result is not None else one._replace(result=NOTHING) for one in held]
        outcomes, whole = count_and_remove(part, held)
        gone = [one.envelope for one, done in zip(held, outcomes, strict=True) if one.envelope.unique and done is True]

        def follow_up() -> None:
            if whole or gone:
                self.unique_keys.free(gone)
                end_done(self, whole)

        return outcomes, follow_up

    def kept(self, result: Any) -> Any:
        """Return the result of a message as it is stored. Raises `InvalidRequest` where it cannot be kept."""
        return kept(result, self.codec) if self.pointers.results else super().kept(result)

    def target(self, queue: Any) -> ShardedQueue:
        """Return the queue that a `Publish` goes to: one of the client, by its name or itself; None = this one."""
        if queue is None:
            return self
        target: ShardedQueue = super().target(queue if isinstance(queue, str) else queue_of(queue).name)
        return target

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
        message; with `unique` four, or two to four if the key has one, and six to nine after one that was not
        acknowledged.

        key: messages of one key go to one shard, where an ordered consumer handles messages that were published one
            after another in that order.
        message_id: the caller's own id, of the client and not of the queue, as "bills/order-7": messages with one id,
            also in different queues, share their effects (`Delivery.operate`, `Delivery.once`): what one has done, the
            other does not do. `AlreadyExists` while a delayed message has it; one that failed and
            waits for its next attempt does not count.
        delay: seconds or a timedelta, up to the queue's expiry, at most a year, by the server's clock.
        at: instead, an aware datetime; one in the past is now. Delivered while a worker or consumer of the client runs.
        dedup: a key of 1 to 256 characters. For `dedup_for` there is one message a key, and the id returned is that of
            the first; None = no key. dedup_for: of a key, seconds or a timedelta, 1 s to 365 days; default as long as a
            message lives.
        unique: a key of 1 to 256 characters that has at most one message at a time, until that is acknowledged, parked,
            discarded, cancelled or expired. Not with `message_id` or `dedup`. Acknowledging costs one call more.
        on_duplicate: "keep" returns that id, "raise" raises `AlreadyExists`, whose `details["message_id"]` has it.
            It means nothing without a key. With `unique` also "replace": the message that waits gets this payload and
            these headers, keeps its id and its shard, and begins again with no attempts; a delayed one, or one that
            waits for its next attempt, comes after `delay` from now. `AlreadyExists` where a handler has it, somebody
            has cancelled it, or groups or a stream read it.

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
        keys, message_ids, dedups: one for each. keys: instead of `key`.

        An ordered consumer handles the messages of one key in order, unless one is written more than 250 ms after the
        others, as when its row has to be sent again. If that matters, publish one by one. A message without a key goes
        to another shard if its own is damaged; one with a key fails with `Corrupt`. Not atomic: if some could not be
        published, it raises the first error, whose `details["published"]` has the ids of the messages that were.
        `details["not_published"]` has the place of each other message, with the code of its error; one with
        `OUTCOME_UNKNOWN` may be in the queue.
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
        """Make sure that a message does not come again, in whatever state it is. Two to five calls; some more where it
        moves meanwhile, is of a batch, or the queue has groups.

        DONE: it waited, and is gone. ASKED: a consumer has it, whose handler's next `Delivery.check` raises `Cancelled`
        once the message was extended; if the handler fails instead, it is not tried again. NOT_THERE: no such message
        waits or runs. UNKNOWN: ask again. Only DONE is true as a condition.

        Raises `Refused` where groups wait for it, also if it has failed here, and the store's errors, with nothing
        done.
        """
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
        assert places is not None  # noqa: S101 - only those of a group are
        sides = (self.pointers, self.sideline.pointers, self.parked.pointers)
        return Finder(sides, self.delayed, places, checked_id(message_id, MAX_NAME))

    def turns(self, n: int) -> int:
        """Return the shard where `n` shares of messages without a key begin; the next ones begin after them."""
        with self._lock:
            start, self._turn = self._turn, self._turn + n
        return start

    # ---- groups

    def group(self, name: str, *, start: str | datetime = "now", **settings: Any) -> QueueGroup:
        """Return the group of this name, made if it does not exist: a durable subscription that gets every message, as
        other groups do.

        name: 1 to 64 characters.
        start: where a new group begins: "now"; "oldest", with the messages that still exist; or an aware datetime, in
            each shard with the first message published then or later. It has no effect on an existing group.
        settings: of a new group: `concurrency`, `handler_type`, `handler_timeout`, `max_deliveries`, `retry`,
            `backoff`, `shovel`, `batching`, if they differ from the queue's.

        One call if it exists, two if it is deactivated (it is activated again), about eight if it is made, whatever the
        number of shards. A message that is published from then on waits for the group, until the group acknowledges it,
        it expires, or the group is dropped. Publishing takes no more calls. The queue's own consumers count as one more
        group: if there are none, the messages stay until they expire.

        Raises `InvalidRequest`; `Refused` while a group of that name is being dropped, and where the queue has 100
        groups; `AlreadyExists` if a queue, or a group of another queue, is called `{queue}@{name}`; the store's errors:
        then repeat the call to complete it.
        """
        made: QueueGroup = self.registry.make_group(self, name, start, settings)
        return made

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
