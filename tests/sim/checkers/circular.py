"""What the large circular queue promises (docs/design.md section 5, docs/protocols P4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from latchwork.coord.lease import LOCKED
from latchwork.queue.circular.layout import HEAD, TAIL

from ..faults.kinds import Kind
from ..history.record import Entry
from .lock import a_live_holder_never_loses_it, tokens_go_up_for_ever

if TYPE_CHECKING:
    from ..faults.network import Change
    from ..workload.circular import Circular

WRITES = ("enqueue", "overwrite")


def check(run: Circular) -> None:
    """All promises of the queue."""
    never_half_written(run)
    if run.happened(Kind.RESTART_STALE):
        return  # what was committed after the copy was taken is gone, and a hold of then may go on in it
    never_beyond_capacity(run)
    drained_once_faults_stop(run)
    tokens_go_up_for_ever(run)
    a_live_holder_never_loses_it(run, run.changes)
    pointers_never_go_back(run)
    each_offset_has_one_value(run)
    overwriting_drops_no_more_than_it_needs(run)
    if run.style == "group":
        a_holding_group_misses_nothing(run)
        return
    entries = [*filter(_modelled, run.history.entries), *map(_shed, _sheds(run))]
    run.check_linearizable(entries, Fifo(run.capacity), "the queue")


def never_beyond_capacity(run: Circular) -> None:
    """Whatever happens, there are never more entries than the capacity, nor fewer than none."""
    for change in run.changes:
        size = change.after[TAIL] - change.after[HEAD]
        run.require(0 <= size <= run.capacity, "size never passes capacity", f"{size} of {run.capacity}")


def pointers_never_go_back(run: Circular) -> None:
    """Head and tail only go forward: a stale fence never commits."""
    for change in run.changes:
        forward = all(change.after[bin] >= change.before.get(bin, 0) for bin in (HEAD, TAIL))
        run.require(forward, "a stale fence never mutates", f"{_pointers(change.before)} -> {_pointers(change.after)}")


def _pointers(record: dict[str, Any]) -> tuple[Any, Any]:
    return (record.get(HEAD), record.get(TAIL))


def never_half_written(run: Circular) -> None:
    """Nobody is ever handed a value that nobody has enqueued."""
    known = {value for entry in run.history.named(*WRITES) for value in entry.args[0]}
    for offset, value in _handed_out(run):
        run.require(value in known, "a reserved slot is never read half-written", f"{value!r} at {offset}")


def each_offset_has_one_value(run: Circular) -> None:
    """Whoever reads an offset, in whichever way, finds the same value, and finds it for dequeuing once only."""
    values: dict[int, Any] = {}
    for offset, value in _handed_out(run):
        first = values.setdefault(offset, value)
        run.require(first == value, "an offset has one value", f"{offset}: {first!r} and {value!r}")
    taken = [pair[0] for entry in run.history.named("dequeue") if entry.ok for pair in entry.result]
    run.require(len(set(taken)) == len(taken), "nothing committed is doubled", f"dequeued: {sorted(taken)}")


def a_holding_group_misses_nothing(run: Circular) -> None:
    """Neither a dequeue nor anything else takes what a holding group has not committed: it never sees a gap."""
    for entry in run.history.named("group_read"):
        if entry.ok:
            start, stop = entry.result[1]
            run.require(start >= stop, "head waits for a holding group", f"offsets {start} to {stop} were taken")
    seen = {offset for entry in run.history.named("group_read") if entry.ok for offset, _ in entry.result[0]}
    written = {
        offset for entry in run.history.named(*WRITES) if entry.ok for offset in range(entry.result[0], entry.result[1])
    }
    run.require(written <= seen, "what was committed reaches the group", f"missed {sorted(written - seen)}")


def drained_once_faults_stop(run: Circular) -> None:
    """Once faults have stopped the operator can empty the queue."""
    final = getattr(run, "final", None)
    run.require(final is not None and final.ok and not final.result, "liveness once faults stop", f"{final}")
    run.require(not run.stuck, "liveness once faults stop", f"{run.stuck} hang")


def _handed_out(run: Circular) -> list[tuple[int, Any]]:
    pairs = [pair for entry in run.history.named("dequeue", "read_at") if entry.ok for pair in entry.result]
    return pairs + [pair for entry in run.history.named("group_read") if entry.ok for pair in entry.result[0]]


NOTHING_DONE = ("UNAVAILABLE", "LOCK_UNAVAILABLE", "LEASE_LOST")


def _modelled(entry: Entry) -> bool:
    return entry.name in (*WRITES, "dequeue", "info", "transaction") and entry.outcome not in NOTHING_DONE


def _sheds(run: Circular) -> list[Change]:
    """Overwriting moves head first, in a step of its own, which stays even if the hold is lost before the commit."""
    return [
        change
        for change in run.changes
        if change.after[HEAD] > change.before.get(HEAD, 0)
        and change.after[TAIL] == change.before.get(TAIL)
        and change.after[LOCKED]
    ]


def _shed(change: Change) -> Entry:
    """What the model is given of it, as nobody is told: an operation that nothing comes between."""
    dropped, order = change.after[HEAD] - change.before[HEAD], change.order
    return Entry(change.who, "shed", (dropped,), change.when, order, returned=order + 0.5, outcome="ok")


def overwriting_drops_no_more_than_it_needs(run: Circular) -> None:
    """Head moves on by itself only for overwrites that are under way, or came to nothing, and only so far."""
    for change in _sheds(run):
        wanted = sum(len(entry.args[0]) for entry in run.history.named("overwrite") if _may_want(entry, change))
        size = change.after[TAIL] - change.after[HEAD]
        run.require(
            size + wanted >= run.capacity, "only what is to be overwritten is dropped",
            f"{size} of {run.capacity} were left for {wanted} that were to come",
        )  # fmt: skip


def _may_want(overwrite: Entry, change: Change) -> bool:
    mine = overwrite.actor == change.who and overwrite.order < change.order
    return mine and not (overwrite.ok and overwrite.ended < change.order)


class Fifo:
    """A bounded queue with offsets: (head, values from there on, what became of transactions)."""

    initial: Any = (0, (), frozenset())

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def step(self, state: Any, entry: Entry) -> Sequence[Any]:
        return getattr(self, "_" + entry.name)(state, entry)

    def _enqueue(self, state: Any, entry: Entry) -> Sequence[Any]:
        fits = len(state[1]) + len(entry.args[0]) <= self.capacity
        if entry.outcome == "QUEUE_FULL":
            return () if fits else (state,)
        return self._append(state, entry) if fits else ()

    def _append(self, state: Any, entry: Entry) -> Sequence[Any]:
        head, values, txns = state
        new, txn = entry.args
        span = (head + len(values), head + len(values) + len(new))
        if (entry.ok and entry.result != span) or (txn, None) in txns:
            return ()
        return ((head, values + new, txns | {(txn, span)} if txn else txns),)

    def _overwrite(self, state: Any, entry: Entry) -> Sequence[Any]:
        head, values, txns = state
        surplus = max(0, len(values) + len(entry.args[0]) - self.capacity)
        return self._append((head + surplus, values[surplus:], txns), entry)

    def _shed(self, state: Any, entry: Entry) -> Sequence[Any]:
        """Head moved on for an overwrite that is still to be committed, or never will be."""
        head, values, txns = state
        (drop,) = entry.args
        return ((head + drop, values[drop:], txns),) if drop <= len(values) else ()

    def _dequeue(self, state: Any, entry: Entry) -> Sequence[Any]:
        head, values, txns = state
        count = min(entry.args[0], len(values))
        taken = tuple((head + place, values[place]) for place in range(count))
        return ((head + count, values[count:], txns),) if entry.unknown or entry.result == taken else ()

    def _info(self, state: Any, entry: Entry) -> Sequence[Any]:
        return (state,) if entry.unknown or entry.result == (state[0], state[0] + len(state[1])) else ()

    def _transaction(self, state: Any, entry: Entry) -> Sequence[Any]:
        head, values, txns = state
        txn = entry.args[0]
        found = next((span for name, span in txns if name == txn), None)
        if entry.unknown:
            return (state,) if found else (state, (head, values, txns | {(txn, None)}))
        if entry.result is None:
            return () if found else ((head, values, txns | {(txn, None)}),)
        return (state,) if found == entry.result else ()
