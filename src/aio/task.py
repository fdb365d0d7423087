"""Functions as tasks on a loop: `async def`, and an awaited `publish`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from ..queue.sharded.tasks.task import Task as SyncTask
from .queue import Delivery
from .twin import Twin

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


class Task(Twin[SyncTask[P, F]], Generic[P, F]):
    """A function, async or not, whose arguments are a message's payload: see `latchwork.queue.Task`."""

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self.of.queue

    @property
    def function(self) -> F:
        """The function itself."""
        return self.of.function

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
        """Return the task with these options for what it publishes, as `latchwork.queue.Task.options`. No I/O."""
        chosen = self.of.options(
            key=key, headers=headers, message_id=message_id, delay=delay, at=at, dedup=dedup, dedup_for=dedup_for,
            unique=unique, on_duplicate=on_duplicate,
        )  # fmt: skip
        return Task(chosen, self.bridged)

    def payload(self, /, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """Return the payload of a call with these arguments, as `latchwork.queue.Task.payload`. No I/O."""
        return self.of.payload(*args, **kwargs)

    def publish(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, str]:
        """Publish a call with these arguments, as `latchwork.queue.Task.publish`."""
        return self._run(partial(self.of.publish, *args, **kwargs))

    @overload
    def result(
        self: Task[P, Callable[..., Coroutine[Any, Any, R]]], message_id: str, timeout: float | None = None
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def result(
        self: Task[P, Callable[..., R]], message_id: str, timeout: float | None = None
    ) -> Coroutine[Any, Any, R]: ...
    def result(self: Any, message_id: str, timeout: float | None = None) -> Any:
        """Wait for what the function returned for a message, as `latchwork.queue.Task.result`."""
        return self._run(partial(self.of.result, message_id, timeout))


class TaskDecorator(Protocol):
    """Makes a task of a function, async or not. If its first parameter is the `Delivery`, that is not published."""

    # An async function has overloads of its own: pyright's type of what it returns is narrower than `Coroutine`.
    @overload
    def __call__(  # type: ignore[overload-overlap]  # the first that fits is meant
        self, function: Callable[Concatenate[Delivery, P], Coroutine[Any, Any, R]]
    ) -> Task[P, Callable[Concatenate[Delivery, P], Coroutine[Any, Any, R]]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Delivery, P], R]
    ) -> Task[P, Callable[Concatenate[Delivery, P], R]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> Task[P, Callable[P, Coroutine[Any, Any, R]]]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Task[P, Callable[P, R]]: ...
