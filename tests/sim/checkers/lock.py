"""What a fenced lock promises (docs/design.md section 5, docs/protocols P2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from latchwork.coord import lease as bins

from ..faults.kinds import Kind
from ..faults.network import Change
from ..history.record import Entry

if TYPE_CHECKING:
    from ..workload.lock import Lock

FORGETFUL = (Kind.RESTART_EMPTY, Kind.RESTART_STALE)


def check(run: Lock) -> None:
    """All promises of a fenced lock."""
    tokens_go_up_for_ever(run)
    no_token_goes_to_two(run)
    released_soon_after_faults(run)
    if run.happened(*FORGETFUL):
        return
    resource_refuses_lower_fences(run)
    no_update_is_lost(run)
    a_live_holder_never_loses_it(run, run.changes)
    a_release_frees_its_own_acquisition(run)
    belief_ends_before_succession(run)
    grants = run.history.named("acquire", "try_acquire", "renew", "release")
    run.check_linearizable([entry for entry in grants if _decisive(entry)], Register(), "a lock")
    protected_counter_is_atomic(run)


def has_nothing_to_go_by(run: Any) -> bool:
    """A store that forgot its fences, and whose clock may have gone back as well: it can only begin anew."""
    return run.happened(*FORGETFUL) and run.happened(Kind.SERVER_CLOCK)


def tokens_go_up_for_ever(run: Any) -> None:
    """Every acquisition in the record's life has a higher fence than all before it, across restarts."""
    if has_nothing_to_go_by(run):
        return
    highest = 0
    for change in run.changes:
        if _acquired(change):
            fence = change.after[bins.FENCE]
            run.require(fence > highest, "fences strictly increase without end", f"{fence} after {highest}")
            highest = max(highest, fence)


def no_token_goes_to_two(run: Lock) -> None:
    """Whoever was granted the lock has a fence of their own, above those granted before they asked."""
    grants = [entry for entry in run.history.named("acquire", "try_acquire") if entry.ok and entry.result]
    fences = [entry.result.fence for entry in grants]
    if not has_nothing_to_go_by(run):
        run.require(len(set(fences)) == len(fences), "no token goes to two owners", f"{fences}")


def resource_refuses_lower_fences(run: Any) -> None:
    """The resource's fence never goes back."""
    highest = 0
    for change in run.writes:
        fence = change.after.get("fence", 0)
        run.require(fence >= highest, "the resource refuses any fence below its highest", f"{fence} after {highest}")
        highest = max(highest, fence)


def no_update_is_lost(run: Any) -> None:
    """Increments made of a read and a write under a sealed fence add up: each write was of what stood there."""
    for change in run.writes:
        if change.after.get("writes", 0) != change.before.get("writes", 0):
            was, now = change.before.get("n", 0), change.after["n"]
            run.require(now == was + 1, "what is done under a fence is not lost", f"{was} became {now}")


def protected_counter_is_atomic(run: Any) -> None:
    """A read and a write of one's own, under a fence, are one step to everybody else."""
    entries = [entry for entry in run.history.named("increment") if entry.ok or entry.unknown]
    run.check_linearizable(entries, Protected(), "what a fence protects")


def a_live_holder_never_loses_it(run: Any, changes: Sequence[Change]) -> None:
    """Whenever one fence replaces another unreleased one, the old one had stood unrenewed for its lease of true time.

    A holder that was stopped, or cut off, for that long is not live. A lease that was broken, as was asked for, stands
    for its whole length from then on.
    """
    renewed = 0.0
    for change in changes:
        if _acquired(change):
            held, lease = change.before.get(bins.LOCKED) == 1, change.before.get(bins.LEASE, 0) / 1000
            run.require(
                not held or _seized(change) or change.when - renewed >= lease - 1e-6,
                "a live holder never loses its lock unasked",
                f"fence {change.before.get(bins.FENCE)} was replaced {change.when - renewed:.3f} s after its renewal",
            )  # fmt: skip
            renewed = change.when
        elif change.after.get(bins.RENEWALS) != change.before.get(bins.RENEWALS):
            renewed = change.when


def a_release_frees_its_own_acquisition(run: Lock) -> None:
    """When a fence is given back, it is by the process that had acquired that very fence."""
    holders: dict[int, str] = {}
    for change in run.changes:
        fence = change.after[bins.FENCE]
        if _acquired(change):
            holders[fence] = change.who
        if change.before.get(bins.LOCKED) == 1 and change.after[bins.LOCKED] == 0:
            run.require(
                holders[fence] == change.who, "a release never frees another acquisition",
                f"{change.who} freed fence {fence} of {holders[fence]}",
            )  # fmt: skip


def belief_ends_before_succession(run: Any) -> None:
    """Nobody who begins to check after their fence was replaced or released is told that they still hold it."""
    ended: dict[int, float] = {}
    broken: dict[int, int] = {}  # the fence of nobody, and the one that it was taken from
    for change in run.changes:
        fence = change.before.get(bins.FENCE)
        if fence and _seized(change):
            broken[change.after[bins.FENCE]] = broken.get(fence, fence)
            continue
        fence = broken.get(fence, fence)
        if fence and (change.after[bins.FENCE] != fence or change.after[bins.LOCKED] == 0):
            ended.setdefault(fence, change.when)
    for entry in run.history.named("check"):
        end = ended.get(entry.args[0])
        run.require(
            not entry.ok or end is None or entry.called < end, "belief ends before succession",
            f"{entry.actor} believed in {entry.args[0]} at {entry.called:.3f}, which ended at {end}",
        )  # fmt: skip


def released_soon_after_faults(run: Any) -> None:
    """Once faults have stopped, whoever waits for a lease and a half gets the lock."""
    final = getattr(run, "final", None)
    run.require(final is not None and final.ok, "liveness once faults stop", f"not acquired: {final and final.outcome}")
    run.require(not run.stuck, "liveness once faults stop", f"{run.stuck} hang")


def _seized(change: Change) -> bool:
    """Whether somebody took the lease from its holder, for nobody."""
    return _acquired(change) and str(change.after.get(bins.OWNER, "")).startswith("nobody, ")


def _acquired(change: Change) -> bool:
    return change.after.get(bins.FENCE) != change.before.get(bins.FENCE)


def _decisive(entry: Entry) -> bool:
    """Operations that say something of the lock's state."""
    if entry.name in ("acquire", "try_acquire"):
        return entry.ok and entry.result is not None
    return entry.ok or entry.unknown


class Protected:
    """An integer that only grows by one."""

    initial = 0

    def step(self, state: int, entry: Entry) -> Sequence[Any]:
        return (state + 1,) if entry.unknown or entry.result == state + 1 else ()


class Register:
    """A lock as one caller at a time would see it: (the fence that holds it or None, the highest fence so far)."""

    initial: Any = (None, 0)

    def step(self, state: Any, entry: Entry) -> Sequence[Any]:
        return getattr(self, "_" + entry.name)(state, entry)

    def _acquire(self, state: Any, entry: Entry) -> Sequence[Any]:
        """From free, or from a lease that may be broken: another checker says whether it might."""
        fence = entry.result.fence
        return ((fence, fence),) if fence > state[1] else ()

    _try_acquire = _acquire

    def _renew(self, state: Any, entry: Entry) -> Sequence[Any]:
        return (state,) if entry.unknown or state[0] == entry.args[0] else ()

    def _release(self, state: Any, entry: Entry) -> Sequence[Any]:
        mine = state[0] == entry.args[0]
        if entry.unknown:
            return (state, (None, state[1])) if mine else (state,)
        if entry.result and mine:
            return ((None, state[1]),)
        # After doubt a refusal is taken for the first attempt's success.
        return (state,) if entry.doubted or not entry.result else ()
