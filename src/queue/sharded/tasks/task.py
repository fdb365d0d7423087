"""A function whose arguments are published as a message, and that a worker calls with them.

@worker.task("mails")
def send(to: str, subject: str, *, urgent: bool = False) -> None: ...

send.publish("ada@example.com", subject="hi")
send.options(delay=60).publish("ada@example.com", subject="hi")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from ....errors import InvalidRequest
from ....inputs import checked_text
from ....plain import shown
from ..config import QueueConfig
from ..delivery import Delivery
from ..queue import ShardedQueue
from ..registry import QueueRegistry
from .signature import FRESH, Signature, StoredSignature, signatures_of

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
Upcast = Callable[[dict[str, Any]], Mapping[str, Any]]


class Task(Generic[P, F]):
    """A function whose arguments are a message's payload. `Worker.task` makes it.

    It cannot be called: a call would look as if it were done when it returns. `publish` stores a message for a worker;
    `function` is the function itself, for a test, or to do the work here and now.

    queue: the name of its queue.  function: what was decorated.

    Safe to share between threads.
    """

    def __init__(
        self, registry: QueueRegistry, queue: str, function: F, signature: Signature, upcast: Upcast | None = None
    ) -> None:
        self.queue, self.function = checked_text("queue", queue), function
        self._registry, self._signature, self._upcast = registry, signature, upcast
        self._options: dict[str, Any] = {}
        self._known = _Known()
        self.__doc__ = function.__doc__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._signature.name!r}, queue={self.queue!r})"

    def options(
        self,
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
    ) -> Task[P, F]:
        """Return the task with these options of `ShardedQueue.publish` for what it publishes. No I/O.

        They stand apart from the arguments, so that each may have any name.
        """
        chosen = {
            "key": key, "headers": headers, "message_id": message_id, "delay": delay, "at": at, "dedup": dedup,
            "dedup_for": dedup_for, "unique": unique, "on_duplicate": on_duplicate,
        }  # fmt: skip
        other = type(self)(self._registry, self.queue, self.function, self._signature, self._upcast)
        other._options, other._known = chosen, self._known  # noqa: SLF001 - of its own class
        return other

    def payload(self, /, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """Return the payload of a call with these arguments, as for `publish_many`, a batch or a schedule. No I/O.

        Raises `InvalidRequest` for arguments that the function does not take, or that JSON does not hold.
        """
        return self._signature.payload(args, kwargs)

    def publish(self, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Publish a call with these arguments; return the message's id once it is safe.

        As `ShardedQueue.publish`, and one call more each 15 s, for the signatures of the workers.

        Raises, with nothing stored, `InvalidRequest` for arguments that the function does not take, or that do not have
        its types; and for a call that a worker which runs now would not understand, as in a deploy that changes the
        parameters. It names the difference. Then what `ShardedQueue.publish` raises; `NotFound` where there is no such
        queue.

        Not promised: that a worker which starts in the same moment, or has not reported for 50 s, understands it. There
        the message fails, names the difference, and is tried again.
        """
        payload = self._signature.payload(args, kwargs)
        queue = checked_for_tasks(self._registry.publishable(self.queue))
        self._known.check(queue, set(payload), self._signature)
        return queue.publish(payload, **self._options)

    def result(self: Task[P, Callable[..., R]], message_id: str, timeout: float | None = None) -> R:
        """Wait for what the function returned for a message, and return it, read as the type that it is said to return.

        As `ShardedQueue.result`; also `Unreadable` where it is not of that type.
        """
        found = self._registry.publishable(self.queue).result(message_id, timeout)
        returned: R = self._signature.returned(found)
        return returned

    # ---- for the worker

    def handle(self, delivery: Any) -> Any:
        """Call the function with the arguments in a message. Raises `InvalidRequest` for a message that does not fit;
        then the message fails.
        """
        first = (delivery,) if self._signature.delivered else ()
        return self.function(*first, **self._arguments(delivery.payload))

    def _arguments(self, payload: Any) -> dict[str, Any]:
        try:
            return self._signature.arguments(payload)
        except InvalidRequest:
            if self._upcast is None or not isinstance(payload, dict):
                raise
            return self._signature.arguments(dict(self._upcast(dict(payload))))

    @property
    def stored_signature(self) -> str:
        """The signature as it is stored for publishers."""
        return self._signature.stored(upcasts=self._upcast is not None)


class TaskDecorator(Protocol):
    """Makes a task of a function. If its first parameter is the `Delivery`, that is not published."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Delivery, P], R]
    ) -> Task[P, Callable[Concatenate[Delivery, P], R]]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Task[P, Callable[P, R]]: ...


class _Known:
    """The signatures of the workers that run, as one process has read them last."""

    def __init__(self) -> None:
        self._at = float("-inf")
        self._signatures: list[StoredSignature] = []

    def check(self, queue: ShardedQueue, given: set[str], ours: Signature) -> None:
        """Raise `InvalidRequest` for a call that one of them does not understand. One call, or none."""
        now = queue.store.seams.monotonic()
        if now >= self._at + FRESH:
            self._signatures, self._at = signatures_of(queue), now
        for one in self._signatures:
            difference = one.difference(given, ours.parts)
            if difference is not None:
                raise InvalidRequest(
                    f"a worker of {shown(queue.name)} that runs now would not understand this call of {ours.name}: "
                    f"{difference}. Deploy the workers first; or let them upcast (`Worker.task`)"
                )


def checked_upcast(upcast: Any) -> Upcast | None:
    """Return the function. Raises `InvalidRequest` for an object that cannot be called."""
    if upcast is not None and not callable(upcast):
        raise InvalidRequest(
            f"upcast is a {type(upcast).__name__}; give a function from a payload to a payload, or None"
        )
    checked: Upcast | None = upcast
    return checked


def checked_for_tasks(queue: ShardedQueue) -> ShardedQueue:
    """Return the queue. Raises `InvalidRequest` if its messages cannot be calls."""
    config: QueueConfig = queue.config
    if config.codec == "bytes" or config.batching is not None:
        has = "codec='bytes'" if config.codec == "bytes" else "batching"
        raise InvalidRequest(f"the queue {shown(queue.name)} has {has}: a task takes one JSON message at a time")
    return queue
