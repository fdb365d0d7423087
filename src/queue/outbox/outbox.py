"""The outbox: a producer keeps its messages in a local queue, and forwards them when the store is available."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

from ...background import Background, FailureLog
from ...errors import Corrupt, InvalidRequest, LatchworkError, NonDeterministicInput, QueueFull
from ...inputs import checked_kind, checked_switch, checked_timeout, is_int
from ...logs import Log
from ...plain import shown
from ...retry import Poll
from ...seams import Seams
from ...store import RecordStore
from ...store.port import MAX_TTL
from ...unpicklable import Unpicklable
from ..paged.backlog import Backlog
from ..paged.cursor import Cursor, file_safe
from ..paged.layout import Layout, Place
from ..paged.page import HEADER
from ..paged.queue import PagedQueue
from ..paged.reader import PagedEntry
from ..sharded.config import QueueConfig
from ..sharded.envelope import Codec
from ..sharded.ledger.ledger import LEDGER_TTL
from ..sharded.ledger.writer import REFUSED
from ..sharded.queue import ShardedQueue
from ..sharded.registry import QueueRegistry
from .held import ids_of, place_of, read_held, set_aside, store_held, to_hold
from .messages import is_ours, pack, publish, publish_held, unpack

log = Log(__name__)

BATCH, BATCH_BYTES, STEP = 1_000, 8 * 1024 * 1024, 100
"""Messages are read in steps. A batch ends with the step that reaches either limit, or with the last message: so a
repeat of it is never shorter, whatever was put meanwhile, and the ledger relies on that. No limit may become less."""
IDLE = 1.0
"""The longest pause, in seconds, between two looks for messages that another thread or process has put."""
TIDY = 60.0
"""Seconds after which the background task looks for pages that are past their lifetime."""
PAUSES = Poll(low=0.1, high=15.0, factor=2.0, jitter=0.3)
"""The pauses of the background task after each failure in a row."""
AGAIN = 15.0
"""Seconds after which the background task publishes again what it holds back."""


@dataclass(frozen=True, slots=True)
class OutboxLag:
    """The messages that were not forwarded yet.

    messages: one larger than a page counts once for each of its pages.
    bytes: of the files.
    seconds: since the oldest of them was put, by the wall clock; 0 if there is none.
    held: of these, messages that are held back: the store has refused them, or one before them with their key.
    set_aside: messages that are not forwarded any more, each in a file beside the others; not among `messages`.
    """

    messages: int
    bytes: int
    seconds: float
    held: int = 0
    set_aside: int = 0


def lag_of(found: Backlog, layout: Layout, name: str, committed: Place, seams: Seams) -> OutboxLag:
    """Return what is behind an outbox's cursor, and what is held back, as a lag at this moment."""
    held, _ = read_held(layout, name, committed)
    oldest = [one.timestamp for one in held[:1]] + ([] if found.oldest is None else [found.oldest])
    return OutboxLag(
        found.messages + len(held),
        found.bytes + _bytes(held),
        max(0.0, seams.wall() - min(oldest)) if oldest else 0.0,
        len(held),
        len(layout.aside(name)),
    )


@dataclass(frozen=True)
class UnopenedQueue:
    """A queue that is opened, or created, when the store is first reached, so that a producer can start without its
    store.
    """

    registry: QueueRegistry
    config: QueueConfig

    def __post_init__(self) -> None:
        checked_kind("registry", self.registry, QueueRegistry)
        checked_kind("config", self.config, QueueConfig)

    @property
    def store(self) -> RecordStore:
        """The store that the queue is in."""
        return self.registry.store

    @property
    def codec(self) -> Codec:
        """The codec of its payloads."""
        return Codec(self.config.codec)

    def open(self) -> ShardedQueue:
        """Return the queue, as `QueueRegistry.create` does. Raises what that raises."""
        return self.registry.create(self.config)


class Outbox(Unpicklable):
    """A local queue in front of a sharded one: it takes messages at once, and forwards each exactly once (P6). Safe to
    share between threads; call `start` in one of them.

    pq: a local queue that nothing else appends to, with the codec `bytes`. Give it a `lifetime`; without one it keeps
        forwarded messages too. Its `force_every` may be 0: `put` syncs by itself, and threads share a sync.
    queue: where the messages go; an `UnopenedQueue` if the store may be unavailable when the producer starts.
    name: distinguishes several outboxes over one local queue; each forwards all messages, to a queue of its own.
    disk_budget: bytes of messages that may wait, None = no limit. Files have whole pages, so the disk may hold up to
        two pages more, and what the `lifetime` keeps.
    ledger_ttl: seconds that the ledger is kept.

    Messages of one key go to one shard in the order in which they were put, each when the one before it is safe there.
    Forwarding is exactly once as long as a batch takes no longer than `ledger_ttl`, from its first attempt to its last.
    If the store is unavailable for longer in between, the messages of that batch may be published twice. Not promised:
    an order among messages without a key.
    """

    _INSTEAD = "pickle the QueueRegistry, and make an outbox over another directory there"

    def __init__(
        self,
        pq: PagedQueue,
        queue: ShardedQueue | UnopenedQueue,
        *,
        name: str = "outbox",
        disk_budget: int | None = None,
        ledger_ttl: int = LEDGER_TTL,
    ) -> None:
        file_safe(name)
        if not isinstance(pq, PagedQueue):
            raise InvalidRequest(f"pq is a {type(pq).__name__}; give the PagedQueue that keeps the messages")
        if not isinstance(queue, ShardedQueue | UnopenedQueue):
            raise InvalidRequest(f"queue is a {type(queue).__name__}; give a ShardedQueue or an UnopenedQueue")
        if disk_budget is not None and not (is_int(disk_budget) and disk_budget >= 1):
            raise InvalidRequest(
                f"disk_budget is {shown(disk_budget)}; it must be 1 byte or more, or None for no limit"
            )
        if not (is_int(ledger_ttl) and 1 <= ledger_ttl <= MAX_TTL):
            raise InvalidRequest(
                f"ledger_ttl is {shown(ledger_ttl)}; it must be 1 to {MAX_TTL} s, longer than any outage"
            )
        self.name = name
        self._pq, self._queue, self._codec = pq, queue, queue.codec
        self._budget, self._ttl = disk_budget, ledger_ttl
        self._seams = queue.store.seams
        self._putting = self._seams.lock()
        self._wake = self._seams.event()
        self._background = Background(self._seams, self._run, f"outbox-{name}")
        self._failure: Exception | None = None
        self._failure_log = FailureLog(self._seams, log)

    def __repr__(self) -> str:
        return f"Outbox({self.name!r})"

    # ---- putting

    def put(self, payload: Any, *, key: str | None = None, headers: Mapping[str, str] | None = None) -> str:
        """Keep a message on the disk, synced, until it is in the queue; return the id that it will have there.

        It never waits for the store.

        key: messages of one key keep their order.

        Raises `InvalidRequest` if the queue's codec does not take the payload, `RecordTooBig` over 1,000,000 bytes, and
        `QueueFull` with `size` and `budget` if the budget has no room: then nothing was written. After `StorageFailed`
        the message is not acknowledged, and may be forwarded nevertheless.
        """
        return self.put_many([payload], key=key, headers=headers)[0]

    def put_many(
        self,
        payloads: Sequence[Any],
        *,
        key: str | None = None,
        keys: Sequence[str | None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Keep many messages with one sync; return their ids, in order.

        key, headers: for all of them.
        keys: one for each.

        All are checked before the first is written. After a crash of this process, or `StorageFailed`, the first few of
        them may be forwarded. Raises what `put` raises.
        """
        if not _several(payloads) or (keys is not None and not (_several(keys) and len(keys) == len(payloads))):
            raise InvalidRequest(
                f"put_many takes a list of payloads, and as many keys or None; this is a {type(payloads).__name__} and "
                f"a {type(keys).__name__}"
            )
        ids = [self._seams.unique() for _ in payloads]
        rows = zip(payloads, ids, keys or [key] * len(ids), strict=True)
        frames = [pack(self._codec, payload, message_id, k, headers) for payload, message_id, k in rows]
        cursor = self._cursor
        with self._putting:
            self._admit(cursor, sum(HEADER + len(frame) for frame in frames))
            self._pq.append_many(frames)
        self._pq.force()
        self._wake.set()
        return ids

    def _admit(self, cursor: Cursor, more: int) -> None:
        if self._budget is None:
            return
        if more > self._budget:
            raise InvalidRequest(f"the put takes {more} bytes, the whole disk_budget is {self._budget}: raise it")
        size = cursor.bytes_behind()
        if size + more > self._budget:
            raise QueueFull(
                f"outbox {self.name!r} has {size} of {self._budget} bytes waiting, and {more} more do not fit: put it "
                "again when some are forwarded, or raise disk_budget",
                size=size,
                budget=self._budget,
            )

    # ---- forwarding

    def forward(self, *, skip_corrupt: bool = False, set_aside: bool = False) -> int:
        """Publish what waits now; return the number of messages. At best 5 calls per 1,000 messages.

        To keep the order of a key, each further message of the key that has most of them in a batch takes as many calls
        again. Raises the store's errors, and `Refused` if the queue is deactivated; the next call continues without
        losing or repeating a message. Raises `Corrupt` or `Unreadable` with the position for a message that cannot be
        read: it stays, and the messages behind it wait; those before it are forwarded. Raises `RecordTooBig` or
        `Corrupt` with `message_id`, `page` and `position` for a message that the store refuses, as it is too large for
        a record there or its key's shard is damaged: it is held back with those behind it that have its key, and
        published again by later calls; all others are forwarded.

        skip_corrupt: pass over damage, and messages that no outbox of this queue has put, which loses them. Raises
            `NonDeterministicInput` if the lost messages were in the ledger already. If such a call fails, call it again
            with `skip_corrupt` to finish what it has begun; without, it raises `Corrupt` or `Unreadable`.
        set_aside: put each message that the store refuses into a file of its own, for a person, beside the local queue:
            `<prefix>-<outbox>.<page>.<position>.refused`. It is not published any more; those behind it are.
        """
        checked_switch("skip_corrupt", skip_corrupt)
        checked_switch("set_aside", set_aside)
        cursor, done = self._cursor, 0
        until = cursor.tail
        while True:
            sent, refusal = self._forward_held(aside=set_aside)  # first, as no batch begins where too many are held
            done, before = done + sent, cursor.committed
            while (begun := cursor.committed) < until:
                done += self._forward_batch(skip_corrupt=skip_corrupt)
                if cursor.committed == begun:
                    break
            if cursor.committed == before:
                break
        if refusal is not None:
            raise refusal
        return done

    def start(self) -> Outbox:
        """Forward in the background, as messages come. After a failure it pauses, longer each time, up to 20 s.

        Raises `InvalidRequest` if an earlier `stop` did not wait, and the task has not ended yet.
        """
        self._background.start()
        return self

    def stop(self, timeout: float | None = 30) -> bool:
        """Stop before the next batch; return whether it has stopped within `timeout` seconds (None = no limit).

        Messages that wait stay on the disk. Raises `InvalidRequest` for an invalid timeout; then it continues.
        """
        timeout = checked_timeout(timeout)
        self._background.stopping.set()
        self._wake.set()
        return self._background.stop(timeout)

    def lag(self) -> OutboxLag:
        """Return what waits. It reads the indexes of the local queue, and makes no store call."""
        cursor = self._cursor
        backlog = cursor.backlog()
        with cursor.administering() as layout:
            return lag_of(backlog, layout, self.name, cursor.committed, self._seams)

    @property
    def failure(self) -> Exception | None:
        """The error of the background task's last attempt, or of a message that is held back; None if there is none."""
        return self._failure

    @property
    def _cursor(self) -> Cursor:
        """The cursor of this outbox, made before the first message is put: it keeps messages that were not forwarded
        from being reclaimed.

        It is looked up each time, because the lookup is refused if another process owns the files now: a forked child
        must not forward what its parent forwards.
        """
        return self._pq.cursor(self.name)

    def _run(self) -> None:
        failures, tidied, stopping = 0, self._seams.monotonic(), self._background.stopping
        refusal, again = None, tidied
        while True:
            self._wake.clear()  # before the look at `stopping`, which is set before it wakes
            if stopping.is_set():
                return
            try:
                idle = not self._forward_batch()
                if self._seams.monotonic() >= again:  # not with each batch: the others do not wait for it
                    again = self._seams.monotonic() + AGAIN
                    _, refusal = self._forward_held()
                    if refusal is not None:
                        self._failure_log.record(refusal, f"{self!r} holds messages back")
                failures, self._failure = 0, refusal
                if self._seams.monotonic() - tidied >= TIDY:
                    self._reclaim()  # where no page is full, nobody else does it
                    tidied = self._seams.monotonic()
            except Exception as failure:  # noqa: BLE001 - a defect must not end a task that nothing would start again
                failures, self._failure = failures + 1, failure
                self._failure_log.record(failure, f"{self!r} could not forward, attempt {failures}")
            if failures:
                stopping.wait(PAUSES.pause(failures, self._seams))
            elif idle:
                self._wake.wait(IDLE)

    def _forward_batch(self, *, skip_corrupt: bool = False) -> int:
        """Publish the next batch, then commit it; return how many messages it published. One at a time for each cursor.

        Where a whole batch is held back already, no other one begins.
        """
        cursor = self._cursor
        with cursor.turn:
            cursor.finish()  # a batch whose commit failed was published: it is not taken up again
            cursor.rewind()
            passed, held = self._held(cursor)
            if len(passed) >= BATCH or _bytes(passed) >= BATCH_BYTES:
                return 0
            found, gaps = _batch(cursor, skip_corrupt=skip_corrupt)
            if not found:
                return 0
            entries = self._ours(cursor, found, skip_corrupt=skip_corrupt)
            gaps = gaps or len(entries) < len(found)
            # What is published must be on the disk: another message could take the place of one that a crash undoes.
            self._pq.force()
            try:
                sent = self._publish(cursor, entries, passed, held, gaps=gaps) if entries else 0
            except NonDeterministicInput:
                after = cursor.read(1, skip_corrupt=skip_corrupt)  # raises the damage that ended the batch: the reason
                if not skip_corrupt:
                    self._ours(cursor, after, skip_corrupt=False)  # raises that there is no message of an outbox
                raise
            page = cursor.committed[0]
            cursor.commit()
        if cursor.committed[0] > page:
            self._reclaim()
        return sent

    def _publish(
        self,
        cursor: Cursor,
        batch: Sequence[PagedEntry],
        passed: Sequence[PagedEntry],
        held: Sequence[PagedEntry],
        *,
        gaps: bool,
    ) -> int:
        """Publish a batch but for what is held back; return how many messages were published."""
        queue = self._target()
        held = self._hold(cursor, batch, passed, held)
        while True:
            try:
                publish(queue, self.name, batch, ttl=self._ttl, gaps=gaps, without=held)
            except (InvalidRequest, Corrupt) as failure:
                refused, before = failure.details.get(REFUSED, ()), len(held)
                held = self._hold(cursor, batch, passed, held, refused)
                if len(held) == before:
                    raise
                log.warning("%r holds back what the store refuses, %s, and what is behind it with its key: %s",
                            self, ", ".join(refused[:10]), failure)  # fmt: skip
            else:
                return len(ids_of(batch, self._codec) - ids_of(held, self._codec)) if held else len(batch)

    def _hold(
        self,
        cursor: Cursor,
        batch: Sequence[PagedEntry],
        passed: Sequence[PagedEntry],
        held: Sequence[PagedEntry],
        refused: Collection[str] = (),
    ) -> Sequence[PagedEntry]:
        """Hold back what `to_hold` says; return what is held back of the batch now.

        It is on the disk before the rest is published: a batch that was begun without a message must be completed
        without it.
        """
        back, known = to_hold(batch, passed, held, self._codec, refused), ids_of(held, self._codec)
        if not (more := [one for one in back if unpack(one, self._codec).message_id not in known]):
            return held
        held = [*held, *more]
        with cursor.administering() as layout:
            store_held(layout, self.name, [*passed, *held])
        return held

    def _forward_held(self, *, aside: bool = False) -> tuple[int, LatchworkError | None]:
        """Publish what is held back, as far as the store takes it now; return how many messages that were, and the
        error of the first that stays.

        aside: set those aside that it refuses again.
        """
        cursor = self._cursor
        with cursor.turn:
            passed, held = self._held(cursor)
            if not passed:
                return 0, None
            queue, keys, left, sent = self._target(), set[str | None](), list(passed), 0
            refusal: LatchworkError | None = None
            try:
                for entry in passed:
                    key = unpack(entry, self._codec).key
                    if key is not None and key in keys:
                        continue
                    try:
                        publish_held(queue, self.name, entry, ttl=self._ttl)
                    except (InvalidRequest, Corrupt) as failure:
                        if not (aside and failure.details.get(REFUSED)):  # else it may be published
                            refusal = refusal or self._refusal(entry, failure)
                            keys.add(key)
                            continue
                        with cursor.administering() as layout:
                            path = set_aside(layout, self.name, entry, self._codec, failure)
                        log.warning("%r has set a message aside, in %s: %s", self, path, failure)
                    else:
                        sent += 1
                        with cursor.administering() as layout:
                            layout.take_back(self.name, place_of(entry))
                    left.remove(entry)
            finally:
                if len(left) < len(passed):
                    with cursor.administering() as layout:
                        store_held(layout, self.name, [*left, *held])
            return sent, refusal

    def _held(self, cursor: Cursor) -> tuple[list[PagedEntry], list[PagedEntry]]:
        """Return what is held back: what the cursor has passed, and what is in the batch that begins where it is."""
        with cursor.administering() as layout:
            passed, held = read_held(layout, self.name, cursor.committed)
            if passed or held:  # a store of them that failed may be on the disk or not
                layout.files.sync_directory(layout.directory)
            return passed, held

    def _refusal(self, entry: PagedEntry, failure: LatchworkError) -> LatchworkError:
        """Return the error for a message that stays held back, of the same kind."""
        message_id = unpack(entry, self._codec).message_id
        found = {"message_id": message_id, "page": entry.page, "position": entry.position}
        return type(failure)(
            f"{self!r} holds message {message_id}, from page {entry.page} at {entry.position}, back: {failure}; mend "
            "that, or call forward(set_aside=True) to put it into a file and to go on with its key",
            **{**failure.details, **found},
        )

    def _ours(self, cursor: Cursor, found: Sequence[PagedEntry], *, skip_corrupt: bool) -> Sequence[PagedEntry]:
        """Return the messages that an outbox of this queue has put: those before the first other one, which ends the
        batch, and with `skip_corrupt` the ones behind it too. Raises `Unreadable` if the batch begins with another one.
        """
        ours = [entry for entry in found if is_ours(entry, self._codec)]
        if skip_corrupt or len(ours) == len(found):
            return ours
        before = list(takewhile(partial(is_ours, codec=self._codec), found))
        if not before:
            unpack(found[0], self._codec)
        cursor.rewind()
        left = len(before)
        while left and (again := cursor.read(left)):  # they were read a moment ago
            left -= len(again)
        return before

    def _target(self) -> ShardedQueue:
        if isinstance(self._queue, UnopenedQueue):
            self._queue = self._queue.open()
        return self._queue

    def _reclaim(self) -> None:
        try:
            self._pq.reclaim()
        except LatchworkError as failure:
            log.warning("%r could not free its disk: %s", self, failure)


def _bytes(entries: Sequence[PagedEntry]) -> int:
    return sum(len(entry.data) for entry in entries)


def _several(values: Any) -> bool:
    return isinstance(values, Collection) and not isinstance(values, str | bytes | bytearray | Mapping)


def _batch(cursor: Cursor, *, skip_corrupt: bool) -> tuple[list[PagedEntry], bool]:
    """Return the next messages, and whether damage ends them, or may be passed over. Damage before the first
    is raised.
    """
    found: list[PagedEntry] = []
    size = 0
    while len(found) < BATCH and size < BATCH_BYTES:
        try:
            more = cursor.read(STEP - len(found) % STEP, skip_corrupt=skip_corrupt)
        except Corrupt:
            if found:
                return found, True
            raise
        if not more:
            break
        found += more
        size += _bytes(more)
    return found, skip_corrupt
