"""A future: the outcome of one message that was given to a publisher."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from copy import copy
from typing import Any

from ....errors import AlreadyExists, InvalidRequest, LatchworkError, OutcomeUnknown, WaitTimeout
from ....forks import called
from ....inputs import checked_timeout
from ....logs import Log
from ....plain import shown
from ....seams import Seams
from .prepared import Prepared
from .publish import Outcome, Terms

log = Log(__name__)


class Publication(Future[str]):
    """The outcome of one message: a `concurrent.futures.Future`, so `await asyncio.wrap_future(publication)` works too.
    Safe to share between threads.

    message_id: the id of the message if it is published. With `dedup`, the result is the id of the first message with
        that key, which may be another one.
    """

    def __init__(self, seams: Seams, message_id: str) -> None:
        super().__init__()
        self._seams, self.message_id = seams, message_id
        self._callbacks: list[Callable[[Any], object]] = []
        self._outcome: Outcome | None = None
        self._lock, self._known = seams.lock(), seams.event()

    def __repr__(self) -> str:
        outcome = self._outcome
        state = "waits" if outcome is None else "published" if isinstance(outcome, str) else outcome.code
        return f"Publication({shown(self.message_id)}, {state})"

    def done(self) -> bool:
        """Whether the outcome of the message is known."""
        return self._outcome is not None

    def running(self) -> bool:
        """Whether the outcome of the message is not known yet."""
        return self._outcome is None

    def cancel(self) -> bool:
        """Return False: what was given to a publisher is published, also if nobody waits for it any more.

        So a timeout around `asyncio.wrap_future` ends the wait alone.
        """
        return False

    def result(self, timeout: float | None = None) -> str:
        """Return the message's id, once it is safe.

        Raises what `ShardedQueue.publish` would have raised: `OutcomeUnknown` where the message may be delivered, every
        other error where it is not. Nothing is published again for it. `WaitTimeout` where it is not known within
        `timeout` seconds (None = no limit); ask again.
        """
        outcome = self._awaited(timeout)
        if isinstance(outcome, LatchworkError):
            raise outcome
        return outcome

    def exception(self, timeout: float | None = None) -> LatchworkError | None:
        """Return the error that `result` raises; None where the message is safe. Raises `WaitTimeout`."""
        outcome = self._awaited(timeout)
        return outcome if isinstance(outcome, LatchworkError) else None

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback(publication)` once the outcome is known; at once where it is.

        It is called in the publisher's own thread: it must not wait, as all that is to be published waits for it. An
        exception in it is logged. Raises `InvalidRequest` if it cannot be called.
        """
        if not callable(callback):
            raise InvalidRequest(f"the callback is a {type(callback).__name__}; give a function of the publication")
        with self._lock:
            if self._outcome is None:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def _awaited(self, timeout: float | None) -> Outcome:
        limit = checked_timeout(timeout)
        if self._outcome is None:
            self._seams.may_wait("Publication.result", limit)
        self._known.wait(limit)
        if self._outcome is None:
            raise WaitTimeout(f"message {shown(self.message_id)} was not published within {timeout} s; it still may be")
        return self._outcome

    def _call(self, callback: Callable[[Any], object], logged: type[BaseException] = Exception) -> None:
        try:
            called(callback, self)
        except logged:
            log.exception("a callback of %r failed", self)

    # ---- for the publisher

    def _resolve(self, outcome: Outcome) -> None:
        """Store the outcome, if there is none yet, and wake the threads that wait for it."""
        with self._lock:
            self._outcome = outcome = self._outcome or outcome
        self._known.set()
        # `concurrent.futures.wait` and `as_completed` look at the state of a future by themselves.
        if super().done():
            return
        if isinstance(outcome, LatchworkError):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)

    def _call_back(self) -> None:
        while self._callbacks:
            self._call(self._callbacks.pop(0), logged=BaseException)  # SystemExit would end the publisher's thread

    def _reset_after_fork(self) -> None:
        super().__init__()
        self._lock, self._known, self._callbacks = self._seams.lock(), self._seams.event(), []
        self._resolve(
            OutcomeUnknown(f"message {shown(self.message_id)} is published by the parent of this process: ask there")
        )


class Pending:
    """A message that waits to be published, and its publication.

    raises: that its dedup key has a message already is an error.  size: bytes of its payload.  since: when it began to
    wait (monotonic).
    """

    __slots__ = ("message", "publication", "raises", "since", "size", "terms")

    def __init__(self, seams: Seams, message: Prepared, terms: Terms, *, raises: bool) -> None:
        self.publication = Publication(seams, message.envelope.msg_id)
        self.message, self.terms, self.raises = message, terms, raises
        self.size, self.since = len(message.envelope.data), 0.0

    def resolve(self, outcome: Outcome) -> None:
        """Store the outcome, if there is none yet, and wake the threads that wait for it."""
        self.publication._resolve(self._own(outcome))  # noqa: SLF001 - the same module

    def call_back(self) -> None:
        """Call the callbacks of one that has an outcome, so that no other comes."""
        self.publication._call_back()  # noqa: SLF001 - as above

    def wait(self, timeout: float | None) -> bool:
        """Whether the outcome is known within this number of seconds."""
        return self.publication._known.wait(timeout)  # noqa: SLF001 - as above

    def reset_after_fork(self) -> None:
        """Drop the message in a forked child: only the parent continues with it."""
        self.publication._reset_after_fork()  # noqa: SLF001 - as above

    def _own(self, outcome: Outcome) -> Outcome:
        """Return the outcome for this message; an error may be that of others too, so this one gets a copy."""
        message_id = self.publication.message_id
        if isinstance(outcome, LatchworkError):
            own = copy(outcome)
            own.details, own.__cause__ = {"message_id": message_id, **outcome.details}, outcome.__cause__
            return own
        if self.raises and outcome != message_id:
            return AlreadyExists(
                f"message {shown(outcome)} is in the queue already, by its dedup key; this one was not published",
                message_id=outcome,
            )
        return outcome
