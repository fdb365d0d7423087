"""Resets per-process state (locks, events, connections) in a forked child, before any thread can use it."""

from __future__ import annotations

import os
from typing import Protocol, TypeVar
from weakref import WeakSet

T = TypeVar("T")


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


_ALL: WeakSet[ForkAware] = WeakSet()
os.register_at_fork(after_in_child=_reset_all)
