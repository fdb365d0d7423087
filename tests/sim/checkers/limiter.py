"""What a rate limiter promises (docs/protocols P13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from latchwork.coord.limiter import CELLS, LAST, Limit

from ..faults.kinds import Kind
from .lock import FORGETFUL, released_soon_after_faults

if TYPE_CHECKING:
    from ..faults.network import Change
    from ..workload.base import Scenario
    from ..workload.limiter import Limiter

LIMIT, PER = 4, 1.0
CELLS_OF = Limit(LIMIT, PER).bin


class Passed(NamedTuple):
    """What was let through at once: when by true time, under which id, how many."""

    when: float
    id: str
    n: int
    order: int


def check(run: Limiter) -> None:
    """All promises of a rate limiter."""
    passed = let_through(run.changes)
    released_soon_after_faults(run)
    if run.happened(*FORGETFUL):
        return
    never_more_than_the_limit_in_any_window(run, passed)
    if run.happened(Kind.SERVER_CLOCK):
        return  # a record that is older than it can be is gone, and what it remembers
    counted_exactly_once(run, passed)
    nobody_is_refused_while_there_is_room(run, passed)


def let_through(changes: Sequence[Change]) -> list[Passed]:
    """What the record says was let through, in order."""
    found = []
    for change in changes:
        id = change.after.get(LAST)
        if id and id != change.before.get(LAST):
            before = change.before.get(CELLS_OF) or {}
            n = sum(max(0, count - before.get(cell, 0)) for cell, count in change.after[CELLS_OF].items())
            found.append(Passed(change.when, id, n, change.order))
    return found


def never_more_than_the_limit_in_any_window(run: Scenario, passed: list[Passed]) -> None:
    """In no window of true time, wherever it begins, is more let through; a clock that is set may begin a new one."""
    steps = [when for _, when, _, what in run.history.notes if what == Kind.SERVER_CLOCK.value]
    for first in passed:
        inside = [one for one in passed if first.when <= one.when < first.when + PER]
        if any(first.when <= step <= inside[-1].when for step in steps):
            continue
        total = sum(one.n for one in inside)
        run.require(total <= LIMIT, "never over the limit in any window", f"{total} from {first.when:.3f} on: {inside}")


def counted_exactly_once(run: Limiter, passed: list[Passed]) -> None:
    """Who was let through is counted once, and only who asked."""
    ids = Counter(one.id for one in passed)
    run.require(not ids or max(ids.values()) == 1, "a call is counted once", f"{ids}")
    asked = run.history.named("try_acquire", "acquire")
    sure = sum(entry.args[0] for entry in asked if entry.ok and entry.result.allowed)
    open_ended = sum(entry.args[0] for entry in asked if entry.unknown)
    total = sum(one.n for one in passed)
    run.require(sure <= total <= sure + open_ended, "a call is counted once", f"{sure} + {open_ended}, counted {total}")


def nobody_is_refused_while_there_is_room(run: Limiter, passed: list[Passed]) -> None:
    """Who was told that there is no room, at whatever moment of the call, would have made it too many."""
    width = Limit(LIMIT, PER).width / 1000
    for entry in run.history.named("try_acquire"):
        if not entry.ok or entry.result.allowed:
            continue
        since = entry.called - (CELLS + 1) * width
        counting = sum(one.n for one in passed if since <= one.when <= entry.closed)
        run.require(
            counting + entry.args[0] > LIMIT, "nobody is refused while there is room",
            f"{entry.args[0]} at {entry.called:.3f}, after {counting}",
        )  # fmt: skip
