"""What the large circular queue promises (docs/design.md section 5, docs/protocols.md P4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from latchwork.queue.circular_layout import HEAD, TAIL

from ..faults.kinds import Kind
from ..history.record import Entry
from .lock import a_live_holder_never_loses_it, tokens_go_up_for_ever

if TYPE_CHECKING:
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
    if run.style == "group":
        a_holding_group_misses_nothing(run)
        return
    entries = [part for entry in run.history.entries for part in _parts(run, entry)]
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


def _parts(run: Circular, entry: Entry) -> list[Entry]:
    """What the model sees. An overwrite may have moved head on in a round that it lost: that is an effect apart."""
    if entry.name not in (*WRITES, "dequeue", "info", "transaction"):
        return []
    if entry.name == "info" and run.style == "overwrite":
        return []  # head and tail move at two moments there
    if entry.name == "overwrite":
        shed = replace(entry, name="shed", outcome="unknown")
        return [entry, shed] if entry.outcome not in NOTHING_DONE else [shed]
    return [] if entry.outcome in NOTHING_DONE else [entry]


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
        """Head moved on in a round that was not committed: for this overwrite, or for those that shared its hold."""
        head, values, txns = state
        surplus = len(values) + len(entry.args[0]) - self.capacity
        drops = [surplus] if entry.result else range(1, min(len(entry.args[0]), len(values)) + 1)
        return tuple((head + drop, values[drop:], txns) for drop in drops if drop > 0)

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
