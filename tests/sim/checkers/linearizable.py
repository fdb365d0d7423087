"""Linearizability by the search of Wing and Gong, as Lowe refined it: remember what has been tried.

An operation that returned takes effect between its call and its return; one whose outcome is unknown takes effect at
any point after its call, or never. The search looks for one order of effects that the sequential model allows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from ..history.record import OPEN, Entry

MAX_OPERATIONS = 120
"""The largest history of one object that is checked."""
MAX_STATES = 2_000_000
"""Configurations after which the search gives up; it then says so, and the run counts it."""


class Model(Protocol):
    """A sequential object: `step` gives the states that may follow, none where the result is impossible."""

    initial: Hashable

    def step(self, state: Any, entry: Entry) -> Sequence[Any]: ...


class Undecided(Exception):
    """The search gave up."""


def linearizable(entries: Sequence[Entry], model: Model) -> bool:
    """Whether some order of effects explains the history. Raises `Undecided` after too many configurations."""
    if len(entries) > MAX_OPERATIONS:
        raise Undecided(f"{len(entries)} operations; at most {MAX_OPERATIONS} are checked")
    calls = sorted(entries, key=lambda entry: entry.order)
    must = sum(1 << place for place, entry in enumerate(calls) if not entry.unknown)
    return _search(calls, model.initial, must, model.step)


def _search(calls: list[Entry], initial: Any, must: int, step: Callable[[Any, Entry], Sequence[Any]]) -> bool:
    ends = [OPEN if entry.unknown else entry.returned for entry in calls]
    seen = {(0, initial)}
    stack = [(0, initial)]
    while stack:
        done, state = stack.pop()
        if done & must == must:
            return True
        for place in _candidates(calls, ends, done):
            for following in step(state, calls[place]):
                after = (done | 1 << place, following)
                if after not in seen:
                    seen.add(after)
                    stack.append(after)
        if len(seen) > MAX_STATES:
            raise Undecided(f"gave up after {len(seen)} configurations of {len(calls)} operations")
    return False


def _candidates(calls: list[Entry], ends: list[float], done: int) -> list[int]:
    """The operations that may take effect next: those called before every pending one has returned."""
    pending = [place for place in range(len(calls)) if not done >> place & 1]
    earliest = min(ends[place] for place in pending)
    # Operations with known results last on the list, so that they are tried first.
    return sorted(
        (place for place in pending if calls[place].order < earliest), key=lambda place: (-ends[place], -place)
    )
