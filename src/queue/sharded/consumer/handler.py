"""The handler of a consumer: how it is checked and called, and what its answers mean for its messages."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ....errors import InvalidMessageHandler, InvalidRequest
from ....plain import shown
from ..delivery import Delivery
from ..envelope import MAX_ERROR, Reason
from ..queue import ShardedQueue
from .settlements import Tally, Verdict

log = logging.getLogger(__name__)


def check_handler(handler: Any) -> None:
    """Raises `InvalidMessageHandler` for what cannot be called, and for a coroutine function."""
    if not callable(handler):
        raise InvalidMessageHandler(f"the handler is a {type(handler).__name__}; give a function of one argument")
    if any(map(inspect.iscoroutinefunction, (handler, getattr(handler, "__call__", None)))):  # noqa: B004 - of an object
        raise InvalidMessageHandler(
            "the handler is an async function, and nothing would run what it returns; give a function that calls "
            "asyncio.run(...) on it"
        )


def judged(answer: Any, messages: int, *, batch: bool) -> list[Verdict]:
    """A verdict for each message, by what the handler returned: True or None is a success, for a batch also in each."""
    each = list(answer) if batch and isinstance(answer, list | tuple) else [answer] * messages
    if len(each) != messages:
        return [(Reason.EXCEPTION, f"the handler gave {len(each)} answers for {messages} messages")] * messages
    return [None if one is None or one is True else (Reason.REJECTED, _why_rejected(one)) for one in each]


def _why_rejected(answer: Any) -> str | None:
    """The reason to store with a rejected message; None where the handler returned False, which says it all."""
    if answer is False:
        return None
    if inspect.iscoroutine(answer):
        answer.close()  # it is never awaited, which Python would complain of
    return f"the handler returned a {type(answer).__name__}; return True or None to acknowledge, False to reject"


def text_of(failure: BaseException) -> str:
    """What the exception says; to say it is code of the handler's too, which may fail."""
    try:
        return str(failure)
    except BaseException as trouble:  # noqa: BLE001 - as what a handler raises
        return f"it cannot be shown, that raised {type(trouble).__name__}"


def kinds_of(ignorable: Any) -> tuple[type[BaseException], ...]:
    """The exception types that were given, one or many. Raises `InvalidRequest`."""
    kinds = (ignorable,) if isinstance(ignorable, type) else ignorable
    if (
        isinstance(kinds, str)
        or not isinstance(kinds, Collection)
        or not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)
    ):
        raise InvalidRequest(f"ignorable is {shown(ignorable)}; it must be one or several exception types")
    return tuple(kinds)


class Calls:
    """Calls of a consumer's handler, and what they mean for its messages."""

    def __init__(
        self,
        queue: ShardedQueue,
        handler: Callable[[Any], Any],
        ignorable: tuple[type[BaseException], ...],
        tally: Tally,
    ) -> None:
        self._queue, self._handler, self._ignorable, self._tally = queue, handler, ignorable, tally
        self._seams = queue.store.seams

    def verdicts(self, deliveries: Sequence[Delivery]) -> list[Verdict]:
        """For each delivery None = acknowledge, or why it failed."""
        batch, messages = self._queue.config.batching is not None, len(deliveries)
        self._tally.add("handled", messages)
        try:
            return judged(self._call(deliveries), messages, batch=batch)
        except self._ignorable:
            return [None] * messages
        except BaseException as failure:  # noqa: BLE001 - whatever a handler raises is the message's failure, not ours
            why = f"{type(failure).__name__}: {text_of(failure)}"[:MAX_ERROR]
            self._log(deliveries, why, failure)
            return [(Reason.EXCEPTION, why)] * messages

    def _log(self, deliveries: Sequence[Delivery], why: str, failure: BaseException) -> None:
        """What is needed to find the failure: message and attempt, the exception, and at DEBUG where it was raised.

        A message's payload is never logged; an exception that quotes it is the handler's.
        """
        first, others = deliveries[0], f" and {len(deliveries) - 1} others" if len(deliveries) > 1 else ""
        log.warning(
            "the handler of %r raised at message %s%s, attempt %d: %s",
            self._queue.name,
            first.message_id,
            others,
            first.attempts,
            why,
        )
        log.debug("where the handler of %r raised", self._queue.name, exc_info=failure)

    def _call(self, deliveries: Sequence[Delivery]) -> Any:
        """The handler's answer; it runs in the trace in which its message was published."""
        name, began, outcome = self._queue.name, self._seams.monotonic(), "raised"
        try:
            origins = [delivery.headers for delivery in deliveries]
            with self._seams.span("handle", origins, queue=name, messages=len(deliveries)):
                # A list of its own: what the handler takes out of it is settled all the same.
                answer = self._handler(deliveries[0] if self._queue.config.batching is None else list(deliveries))
            outcome = "returned"
            return answer
        finally:
            self._seams.note("handling", self._seams.monotonic() - began, queue=name, outcome=outcome)
