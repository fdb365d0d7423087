"""What a forked child must not share with its parent is begun anew in the child, before any thread can use it."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Anew(Protocol):
    """Something that another thread of the parent may have locked, or that only the parent may go on with."""

    def begin_anew(self) -> None:
        """Make locks and events anew, and let go of what is the parent's."""


def renew_in_child(one: Anew) -> None:
    """Call its `begin_anew` in every child that is forked while it lives."""
    _ALL.add(one)


def _begin_anew() -> None:
    failures: list[BaseException] = []
    for one in tuple(_ALL):
        try:
            one.begin_anew()
        except BaseException as failure:  # noqa: BLE001 - raised below; the others must not keep their locks
            failures.append(failure)
    if failures:
        raise failures[0]


_ALL: WeakSet[Anew] = WeakSet()
os.register_at_fork(after_in_child=_begin_anew)
