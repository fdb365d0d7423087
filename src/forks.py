"""Forked children: what begins again in them (locks, events, connections), and where they end.

A function of the user's may fork wherever it is called. Where that is in a thread of this library, the child has only
that thread, within a loop that is the parent's: it would take messages, or lead, beside its parent, and nobody would
know of it. So it ends when the function does, as a program does at its end.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import NoReturn, Protocol, TypeVar
from weakref import WeakSet

T = TypeVar("T")
G = TypeVar("G")


class ForkAware(Protocol):
    """An object whose locks another thread of the parent may hold, or whose work only the parent may continue."""

    def reset_after_fork(self) -> None:
        """Replace locks and events, and drop what is the parent's."""


def members(living: WeakSet[T]) -> list[T]:
    """Return the members of the set. Other threads may add some meanwhile, which ends a walk with `RuntimeError`."""
    while True:
        try:
            return list(living)
        except RuntimeError:
            continue


def reset_in_child(one: ForkAware) -> None:
    """Call its `reset_after_fork` in every child that is forked while it lives."""
    _ALL.add(one)


def _reset_all() -> None:
    failures: list[BaseException] = []
    for one in tuple(_ALL):
        try:
            one.reset_after_fork()
        except BaseException as failure:  # noqa: BLE001 - raised below; the others must not keep their locks
            failures.append(failure)
    if failures:
        raise failures[0]


def run_as_ours(run: Callable[[], T]) -> T:
    """Run the work of a thread that belongs to this library; `called` asks for that.

    So do the tasks that such a thread begins on a loop: they have its context.
    """
    _is_ours.set(True)
    return run()


def called(function: Callable[[G], T], given: G) -> T:
    """Call a function of the user's, and return what it returns.

    In a thread or task of this library, a child that the function forks ends when the function returns or raises
    there: with the code of its `SystemExit`, with 1 after another exception, else with 0.
    """
    process, failure = os.getpid(), None
    try:
        return function(given)
    except BaseException as raised:
        failure = raised
        raise
    finally:
        if os.getpid() != process and _is_ours.get():
            _end_child(failure)


async def awaited_as_called(work: Awaitable[T]) -> T:
    """Return what a coroutine of the user's returns that a task of this library awaits.

    A child that it forks ends when it returns or raises there, as in `called`: the child has the tasks of the whole
    loop.
    """
    process, failure = os.getpid(), None
    try:
        return await work
    except BaseException as raised:
        failure = raised
        raise
    finally:
        if os.getpid() != process:
            _end_child(failure)


def _end_child(failure: BaseException | None) -> NoReturn:
    """End this process without the functions that the parent has registered for its own end."""
    code = 1
    with suppress(Exception):  # stderr may be closed
        code = _code_after(failure)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _code_after(failure: BaseException | None) -> int:
    """Return the exit code after this exception, and print what Python prints."""
    if failure is None:
        return 0
    if not isinstance(failure, SystemExit):
        traceback.print_exception(failure)
        return 1
    if failure.code is None or isinstance(failure.code, int):
        return (failure.code or 0) & 0xFF
    sys.stderr.write(f"{failure.code}\n")
    return 1


_is_ours = ContextVar("latchwork.forks.is_ours", default=False)
_ALL: WeakSet[ForkAware] = WeakSet()
os.register_at_fork(after_in_child=_reset_all)
