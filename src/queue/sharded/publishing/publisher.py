"""A publisher for services: what threads publish within a few milliseconds is stored together.

    with queue.publisher() as publisher:
        publication = publisher.publish({"order": 7}, key="customer-42")     # no I/O: it waits for others
        publication.result(timeout=5)                                         # its id, once it is safe

One background thread stores what waits, a group at a time, as `publish_many` does, but with an outcome for each.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from weakref import WeakMethod

from ....background import Activity, FailureLog
from ....deadline import Deadline
from ....errors import InvalidRequest, OutcomeUnknown, Unavailable, WaitTimeout
from ....forks import reset_in_child
from ....inputs import Span, checked_number, checked_timeout, checked_whole, seconds_of
from ....logs import Log
from ....plain import counted, shown
from ....store.rows import Rows, attempted
from ....unpicklable import Unpicklable
from ..delayed.entries import Due
from ..envelope import checked_headers
from ..handles import QueueHandle
from ..shards import CHUNK
from .prepared import prepared
from .publication import Pending, Publication
from .publish import Outcome, checked_terms, store_messages, with_dedups
from .unique import refuse_unique

log = Log(__name__)

LINGER = 0.002
"""Seconds for which a message waits for others by default."""
MAX_LINGER = 1.0
WAITING = 10_000
"""Messages that may wait by default."""
MAX_WAITING = 1_000_000
WAITING_BYTES = 64 * 1024 * 1024
"""Bytes of payloads that may wait."""
IDLE = 0.1
"""Seconds without a message after which the background thread ends; the next message begins another one."""
EXIT = 30.0
"""Seconds for which the end of the interpreter waits for what is still to be stored."""


class Publisher(Unpicklable):
    """A publisher to one queue, which stores the messages of all threads together; `ShardedQueue.publisher` makes it.

    It stores a group of up to 1,000 messages with two calls; `publish` takes two calls for each message. The first
    message after a pause waits for `linger` seconds for others. While a group is being stored, the next one collects.
    A group has one `delay` and one `dedup_for`. Messages of one key that one thread publishes with one `delay`, or
    without, are stored in that order, with and without `dedup`: where these alternate, in groups of one. Those of
    different delays come when they are due.

    Promised: a publication is only done once the store has answered for its message; the publisher publishes nothing
    twice, and reports what is in doubt. Not promised: that messages that wait in memory outlive the process. They are
    stored when the interpreter ends, for up to 30 s, but not if it is killed, or ended by `os._exit` or by a signal
    without a handler. So count a message as published only when its publication says so, or use an `Outbox`.

    Safe to share between threads: share one. A forked child begins with an empty one.
    """

    _INSTEAD = "pickle the QueueRegistry and the queue's name, and make a publisher there"

    def __init__(
        self, queue: QueueHandle, *, linger: Span = LINGER, waiting: int = WAITING, waiting_bytes: int = WAITING_BYTES
    ) -> None:
        self._queue, self._seams = queue, queue.store.seams
        self._linger = checked_number("linger (seconds)", seconds_of(linger), 0, MAX_LINGER)
        self._most = checked_whole("waiting", waiting, 1, MAX_WAITING)
        self._most_bytes = checked_whole("waiting_bytes", waiting_bytes, 1, 2**40)
        self._failure_log = FailureLog(self._seams, log)
        self._closed = False
        self._waiting: OrderedDict[Due | None, deque[Pending]] = OrderedDict()
        self._sending: Sequence[Pending] = ()
        self._renew()
        reset_in_child(self)

    def __repr__(self) -> str:
        return f"Publisher({shown(self._queue.name)})"

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        timeout: float | None = None,
    ) -> Publication:
        """Take a message to be published, as it is now, with what `ShardedQueue.publish` takes. No store call.

        unique: refused, as messages are stored in groups here.
        timeout: seconds to wait for room where as much waits as may; None = no limit.

        Raises `InvalidRequest` and `RecordTooBig` at once, also where the publisher is closed; `WaitTimeout` where
        there was no room in time, and `Unavailable` where no thread could be started: then it is not published.
        """
        checked_timeout(timeout)
        refuse_unique(unique, "a Publisher")
        terms = checked_terms(
            self._queue.config, delay=delay, at=at, with_dedup=dedup is not None, dedup_for=dedup_for,
            on_duplicate=on_duplicate,
        )  # fmt: skip
        if terms.due is not None:
            self._queue.delayed.ahead(terms.due)  # refuses a time that is too far ahead
        ids = None if message_id is None else [message_id]
        messages = prepared(self._queue, [payload], key=key, headers=checked_headers(headers), message_ids=ids)
        if dedup is not None:
            messages = with_dedups(messages, [dedup])
        (message,) = messages
        one = Pending(self._seams, message, terms, raises=dedup is not None and on_duplicate == "raise")
        if not self._entered(one):
            self._await_room(one, timeout)
        try:
            self._keep_sending()
        except Unavailable:
            if self._withdrawn(one):
                raise
        return one.publication

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the outcome of all that was published here before is known; whether it is, within `timeout` s.

        What waits is stored at once. Which outcomes they are, the publications say; failures are logged, too. Callbacks
        may still be running.
        """
        end = self._end(timeout)
        self._not_in_callback()
        with self._lock:
            before = self._unanswered()
            self._hurried = bool(before)
            self._wake.set()
        if before:
            self._keep_sending()
        return all(one.wait(self._left(end)) for one in before)

    def close(self, timeout: float | None = None) -> bool:
        """Take no more messages, and flush; return whether all outcomes are known, and all callbacks done, in `timeout`
        s.

        If not, the publisher continues in the background, and this may be called again. Harmless when repeated.
        """
        end = self._end(timeout)
        self._not_in_callback()
        with self._lock:
            self._closed = True
            self._room.set()
        if not self.flush(timeout):
            return False
        sender = self._sender
        if sender is not None:
            sender.join(self._left(end))
            if sender.is_alive():
                return False
        if self._forget_exit is not None:
            self._forget_exit()
        return True

    def reset_after_fork(self) -> None:
        """Start empty in a forked child: the waiting messages are the parent's, and no thread is running."""
        theirs = self._unanswered()
        self._waiting, self._sending = OrderedDict(), ()
        self._renew()
        for one in theirs:
            one.reset_after_fork()

    # ---- the publishing threads

    def _renew(self) -> None:
        self._lock, self._wake, self._room = self._seams.lock(), self._seams.event(), self._seams.event()
        self._count = self._bytes = 0
        self._hurried = False
        self._sender: Activity | None = None
        self._thread: int | None = None
        self._forget_exit: Callable[[], None] | None = None

    def _await_room(self, one: Pending, timeout: float | None) -> None:
        end = self._end(timeout)
        while not self._entered(one):
            left, name = self._left(end), shown(self._queue.name)
            full = f"{self._count} messages wait to be published to queue {name}, which is as much as may"
            if self._seams.thread() == self._thread:
                raise WaitTimeout(
                    f"{full}, and a callback of a publication cannot wait for room: publish in another thread"
                )
            if left == 0:
                raise WaitTimeout(
                    f"{full}, and there was no room within {timeout} s: publish more slowly, or look at the store"
                )
            self._keep_sending()  # the caller that had to begin the thread may have been interrupted
            self._room.wait(left)

    def _entered(self, one: Pending) -> bool:
        """Whether there was room for it; then it waits to be stored."""
        now = self._seams.monotonic()
        with self._lock:
            if self._closed:
                raise InvalidRequest(f"the publisher of queue {shown(self._queue.name)} is closed: make another one")
            if self._count and (self._count >= self._most or self._bytes + one.size > self._most_bytes):
                self._room.clear()
                return False
            one.since = now
            if one.terms.due not in self._waiting:
                self._waiting[one.terms.due] = deque()
            self._waiting[one.terms.due].append(one)
            self._count, self._bytes = self._count + 1, self._bytes + one.size
            if self._count in (1, CHUNK):
                self._wake.set()
            return True

    def _withdrawn(self, one: Pending) -> bool:
        """Remove a message that still waits; whether it did."""
        with self._lock:
            some = self._waiting.get(one.terms.due, deque())
            if one not in some:
                return False
            some.remove(one)
            if not some:
                del self._waiting[one.terms.due]
            self._left_by([one])
            return True

    def _keep_sending(self) -> None:
        """Begin the background thread unless it runs. Raises `Unavailable` where none can be started."""
        if self._thread is not None:  # as nearly always; the thread takes that back before it ends
            return
        with self._lock:
            if self._sender is not None and self._sender.is_alive():
                return
            # An older one whose start was interrupted notices that it is not this one, and ends.
            sender = self._sender = Activity(self._seams)
        if self._forget_exit is None:
            self._forget_exit = self._seams.at_exit(_weakly(self._at_exit))
        try:
            sender.begin(lambda: self._send_all(sender), f"latchwork-publisher-{self._queue.name}")
        except RuntimeError as failure:
            raise Unavailable(f"no thread could be started to publish, so nothing was published: {failure}") from None

    def _at_exit(self) -> None:
        """Store what waits before the interpreter ends."""
        try:
            done = self.close(EXIT)
        except Unavailable:  # an interpreter that ends may start no thread
            here = self._sender = Activity(self._seams)
            with Deadline(self._seams, EXIT):
                self._send_all(here)
            done = True
        if not done:
            log.warning("%d messages were not published to queue %r at exit", self._count, self._queue.name)

    def _not_in_callback(self) -> None:
        if self._thread is not None and self._seams.thread() == self._thread:
            raise InvalidRequest("a callback of a publication cannot wait for the publisher, which waits for it")

    def _end(self, timeout: float | None) -> float | None:
        timeout = checked_timeout(timeout)
        return None if timeout is None else self._seams.monotonic() + timeout

    def _left(self, end: float | None) -> float | None:
        return None if end is None else max(0.0, end - self._seams.monotonic())

    # ---- the background thread

    def _send_all(self, sender: Activity) -> None:
        """Store one group after the other, until nothing has come for a while."""
        try:
            while group := self._next_group(sender):
                self._send(group)
        finally:
            with self._lock:
                if self._sender is sender:  # ended by an exception: another thread may get its number
                    self._sender = self._thread = None

    def _next_group(self, sender: Activity) -> Sequence[Pending]:
        """Return what is to be stored next; nothing if this thread is to end."""
        idle_since = self._seams.monotonic()
        while True:
            now = self._seams.monotonic()
            with self._lock:
                if self._sender is not sender:
                    return ()
                self._thread = self._seams.thread()
                if self._waiting:
                    due, some = next(iter(self._waiting.items()))
                    pause = some[0].since + self._linger - now
                    if pause <= 0 or self._hurried or self._closed or self._count >= CHUNK:
                        return self._taken(due, some)
                else:
                    self._hurried = False
                    pause = idle_since + IDLE - now
                    if pause <= 0 or self._closed:
                        self._sender = self._thread = None  # the next publish begins another
                        return ()
                self._wake.clear()
            self._wake.wait(pause)

    def _taken(self, due: Due | None, some: deque[Pending]) -> Sequence[Pending]:
        """Return those of the next 1,000 messages due then that are stored together; the rest goes behind all others.

        They have the terms of the first. No message passes another one of its shard, as both may be of one key.
        """
        first, group, rest, behind = list(islice(some, CHUNK)), list[Pending](), list[Pending](), set[int | None]()
        for one in first:
            if one.terms == first[0].terms and one.message.shard not in behind:
                group.append(one)
            else:
                rest.append(one)
                behind |= {one.message.shard} - {None}
        # At any point of this another thread may fork, and the child is to find each message.
        self._sending = first
        for _ in first:
            some.popleft()
        some.extendleft(reversed(rest))
        self._sending = group
        if some:
            self._waiting.move_to_end(due)
        else:
            del self._waiting[due]
        return group

    def _send(self, group: Sequence[Pending]) -> None:
        """Store a group, once, and set the outcome of each of its messages."""
        try:
            outcomes = self._stored(group)
        except BaseException as failure:
            # A defect, or the end of this thread: no caller may wait without end.
            unknown = OutcomeUnknown(f"publishing failed, and the message may be delivered: {failure!r}")
            if isinstance(failure, Exception):
                self._failure_log.record(failure, f"publishing to queue {shown(self._queue.name)} failed")
            self._answer(group, [unknown] * len(group))
            if not isinstance(failure, Exception):
                raise
        else:
            self._answer(group, outcomes)

    def _answer(self, group: Sequence[Pending], outcomes: Sequence[Outcome]) -> None:
        for one, outcome in zip(group, outcomes, strict=True):
            one.resolve(outcome)
        with self._lock:
            self._sending = ()
            self._left_by(group)
        for one in group:
            one.call_back()

    def _stored(self, group: Sequence[Pending]) -> Sequence[Outcome]:
        queue, terms = self._queue, group[0].terms
        messages = [one.message for one in group]
        origins = [message.envelope.headers for message in messages if message.envelope.headers]

        def store() -> Rows[str]:
            with self._seams.span("publish", origins, queue=queue.name, messages=len(group)):
                return store_messages(queue, messages, terms)

        outcomes = attempted(len(group), store)
        if failures := outcomes.errors():
            self._failure_log.record(
                failures[0], f"{counted(len(failures), 'message')} not published to queue {shown(queue.name)}"
            )
        return outcomes

    def _unanswered(self) -> list[Pending]:
        """Return all whose outcome is not known yet; the caller holds the lock."""
        return [*self._sending, *(one for some in self._waiting.values() for one in some)]

    def _left_by(self, some: Sequence[Pending]) -> None:
        """Note that these do not wait any longer; the caller holds the lock."""
        self._count -= len(some)
        self._bytes -= sum(one.size for one in some)
        self._room.set()


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls the method while its object lives, and does not keep it alive."""
    reference = WeakMethod(method)

    def call() -> None:
        alive = reference()
        if alive is not None:
            alive()

    return call
