"""A step that is done once, with any effect, on a loop: see `latchwork.once` (docs/protocols P23, and P24 for cancels).

async with aio.once(store, key=f"pay {key}", keep=timedelta(days=1)) as step:
    if not step.done:
        step.result = await bank.charge(order, idempotency_key=step.token)
return step.result
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial, update_wrapper
from types import MethodType, TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, overload

from .. import coord as sync
from ..coord.effects.step import DAY, LEASE, PATIENCE, Step, of_call, steps
from ..errors import InvalidRequest
from ..inputs import checked_callable, is_async
from ..plain import shown
from .bridged import BridgedStore
from .coord import end_block
from .store import Store, bridged_of
from .twin import Twin, attribute

P = ParamSpec("P")
R = TypeVar("R")


class OnceStep(Twin[sync.OnceStep]):
    """A step that is done once: see `latchwork.coord.OnceStep`. Use it by `async with`, by `run`, or as a decorator.

    A block that is cancelled remembers nothing, as one that raises: another may do the step at once, with the same
    token. A cancel that comes once the block has ended changes nothing: the step is done, and its result is kept.
    """

    token = attribute[str]()

    async def __aenter__(self) -> Step:
        return await self._run(self.of.__enter__, self._forget)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        grant = self.of._grant  # noqa: SLF001 - its own twin
        await self._leave(partial(end_block, self.of, grant, kind, error, trace))

    def _forget(self, _: Step) -> None:
        """Let others do the step, whose task was cancelled as it got it."""
        self.of.__exit__(CancelledError, CancelledError(), None)

    async def run(self, work: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of `await work(*args, **kwargs)`, which is called unless the step is done.

        Otherwise as `latchwork.coord.OnceStep.run`.
        """
        async with self as step:
            if not step.done:
                step.result = await work(*args, **kwargs)
        found: R = step.result
        return found

    def __call__(self, work: Callable[P, Awaitable[R]]) -> OnceFunction[P, R]:
        """Decorate an async function that is called once, whatever its arguments; later calls return its result."""
        return OnceFunction(work, lambda *_, **__: self.of.another(), self._store)


class OnceFunction(Generic[P, R]):
    """An async function that is called once for each key; later calls return the result of the first. Safe to share
    between threads.
    """

    def __init__(self, work: Callable[P, Awaitable[R]], step: Callable[P, sync.OnceStep], store: BridgedStore) -> None:
        if not is_async(checked_callable("the function", work)):
            raise InvalidRequest(f"{shown(work)} is not an async function: decorate it with latchwork.once")
        self._work, self._step, self._store = work, step, store
        update_wrapper(self, work)

    def step(self, /, *args: P.args, **kwargs: P.kwargs) -> OnceStep:
        """Return the step of these arguments, as for its `token`. No call."""
        return OnceStep(self._step(*args, **kwargs), self._store)

    def __get__(self, instance: object, owner: type) -> Callable[..., Awaitable[R]]:
        return self if instance is None else MethodType(self, instance)

    async def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.step(*args, **kwargs).run(self._work, *args, **kwargs)


@overload
def once(
    store: Store, *, key: str, keep: timedelta | float = ..., timeout: float | None = ..., lease: float = ...
) -> OnceStep: ...


@overload
def once(
    store: Store,
    *,
    key: Callable[..., str | int],
    keep: timedelta | float = ...,
    timeout: float | None = ...,
    lease: float = ...,
    name: str | None = ...,
) -> Callable[[Callable[P, Awaitable[R]]], OnceFunction[P, R]]: ...


def once(
    store: Store,
    *,
    key: str | Callable[..., str | int],
    keep: timedelta | float = DAY,
    timeout: float | None = PATIENCE,
    lease: float = LEASE,
    name: str | None = None,
) -> Any:
    """Return a step that is done once for its key, by any process: use it by `async with`, by `run`, or as a decorator.

    As `latchwork.once`, at its cost. A function of the arguments as the key makes the decorator of an async function,
    which is called once for each key that it returns.

    Not promised: as there. A process may die, or its task be cancelled, between an effect outside of the store and the
    end of the block; then the next attempt repeats it, with the same `token`.
    """
    bridged = bridged_of(store)
    make = steps(bridged, key, name, keep=keep, timeout=timeout, lease=lease)
    if isinstance(key, str):
        return OnceStep(make(key), bridged)
    key_of = key

    def decorate(work: Callable[P, Awaitable[R]]) -> OnceFunction[P, R]:
        return OnceFunction(work, of_call(make, key_of, work, name), bridged)

    return decorate
