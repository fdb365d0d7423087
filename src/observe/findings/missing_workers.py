"""Findings about workers that died, and about messages that no worker takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ...plain import counted, shown_time, word
from ...queue.sharded.workers import KEPT, Stop, WorkerReport, dead_workers, short_name
from ..snapshot import QueueState, Snapshot
from . import words
from .failed_messages import is_parked
from .finding import PROBLEM, WAITED, WARNING, Finding, of_queues

RECENT = 600.0
"""Seconds for which a worker that died is a finding: longer, until a sweep has brought back what it may have had in
hand, for an hour at most if nobody sweeps. Messages that wait for a worker are a finding for as long as they wait.
"""
DEATHS, DIES_AGAIN = 3, 120.0
"""Workers that died within `RECENT`, from which on they are said to die again and again; until
none has for this number of seconds: with a message that kills its process they die at least as often as it is tried.
"""
MANY_LEFT = 3
"""Workers for each that died lately, beyond which some deaths are no problem of the others."""
DRAINS_LONG = 20.0
"""Seconds from which on a worker that drains is a finding; the usual grace is 10."""
TIMES = 3
"""Times of return that a line has; of more than these it has the first and the last."""
DRAIN_ENDS = "one that is about to stop ends by itself once its handlers have, at the latest when its grace is over"

_Dead: TypeAlias = Sequence[tuple[QueueState, WorkerReport]]
"""Workers that died, each once for each queue on which it worked."""


def drained(worker: WorkerReport) -> float:
    """Return for how many seconds a worker has been about to stop."""
    return worker.drains or 0.0


def has_no_worker(queue: QueueState) -> bool:
    """Whether messages wait in a queue that nobody works on."""
    ready, stopped = queue.stats.ready, queue.stopped
    takes = any(one.drains is None and not one.is_ahead for one in queue.at_work)
    took = stopped is not None and stopped.ago + stopped.drained < WAITED
    if takes or took or queue.stats.is_streamed or queue.paused:
        return False
    if any(drained(one) < DRAINS_LONG for one in queue.draining):
        return False
    return bool(ready.waiting) and (ready.oldest_age or 0.0) > WAITED


def missing_workers(taken: Snapshot) -> Iterator[Finding]:
    """Yield the workers that died, and the messages that wait in queues that nobody works on: one line for all queues
    where others go on, and one for all where nobody does.
    """
    waits = {queue.name: queue for queue in taken.queues if has_no_worker(queue)}
    # 1. Queues all of whose workers are about to stop.
    if names := [name for name, queue in waits.items() if queue.draining]:
        queues = [waits.pop(name) for name in names]
        workers = {one.worker: one for queue in queues for one in queue.draining}.values()
        each = [
            f"{short_name(one.worker)} for {shown_time(drained(one))}"
            for one in sorted(workers, key=drained, reverse=True)
        ]
        what = f"no worker takes messages; about to stop: {words.listed(each)}; {words.backlog(queues)}"
        yield of_queues(taken, names, (PROBLEM, "no_worker", what, f"{words.START_ONE}; {DRAIN_ENDS}"))
    # 2. Children of `--processes` that die again and again.
    again: dict[str, list[WorkerReport]] = {}
    for queue in taken.queues:
        killed = sorted((one for one in queue.workers if one.settled and one.ago < RECENT), key=lambda one: one.ago)
        again[queue.name] = killed if len(killed) >= DEATHS and killed[0].ago < DIES_AGAIN else []
    yield from _die_again(taken, again)
    # 3. The other workers that died.
    together: dict[bool, list[tuple[QueueState, WorkerReport]]] = {}
    for queue in taken.queues:
        goes_on = bool(queue.at_work) or _stopped_last(queue) is not None
        for one in queue.workers:
            is_told = one.ago < RECENT or (
                one.ago < max(KEPT, queue.returns_within) and not _is_back(queue, one, taken)
            )
            if one.is_silent and one not in again[queue.name] and is_told and (goes_on or not queue.stats.is_streamed):
                together.setdefault(goes_on, []).append((queue, one))
    for goes_on, found in together.items():
        yield _died(taken, found, waits, goes_on=goes_on)
    # 4. The other queues that nobody works on.
    for queue in [queue for queue in waits.values() if _is_for_groups(queue)]:
        what = f"{words.backlog([waits.pop(queue.name)])}, and there is no worker"
        remedy = "as it should be, if only its groups are to have them: they expire here"
        yield of_queues(taken, [queue.name], (WARNING, "no_worker", what, remedy))
    if waits:
        what = f"no worker; {words.backlog(list(waits.values()))}"
        remedy = f"{words.START_ONE} (a program that calls receive() itself is not seen)"
        yield of_queues(taken, list(waits), (PROBLEM, "no_worker", what, remedy))


def _died(taken: Snapshot, found: _Dead, waits: dict[str, QueueState], *, goes_on: bool) -> Finding:
    """Return the finding about workers that died, and take its queues out of those that wait.

    goes_on: whether others work on their queues, or have stopped there since.
    """
    also: list[str] = []
    if not goes_on and not any(queue.at_work for queue in taken.queues):
        also = [name for name, queue in waits.items() if not _is_for_groups(queue)]
    names = sorted({*(queue.name for queue, _ in found), *also})
    # Of a worker that may hold something in one of its queues, that report counts.
    newest = sorted((one for _, one in found), key=lambda one: (one.settled, one.ago))
    dead = list({one.worker: one for one in reversed(newest)}.values())[::-1]
    who = f"{len(dead):,} workers died or hang: {words.workers(dead)}"
    if len(dead) == 1:
        how = "died; what it had in hand was brought back already" if dead[0].settled else "died or hangs"
        who = f"worker {words.workers(dead)}, {how}"
    behind = [waits.pop(name) for name in names if name in waits and not goes_on]
    what = f"{who}; {_others(found)}{f'; {words.backlog(behind)}' if behind else ''}{_back(found, taken)}"
    state, kind, remedy = (
        PROBLEM,
        "no_worker",
        f"{words.START_ONE}; if one runs all the same, its log says why it cannot report",
    )
    if goes_on:
        state, kind = WARNING, "worker_died"
        remedy = "start another one, if one is missing; this line goes by itself"
        if _are_many(found):
            state = PROBLEM
            remedy = "start others, if some are missing; where they die again and again, their logs say why: one "
            remedy += "message may do it"
    return of_queues(taken, names, (state, kind, what, remedy + _sooner(found, taken)), dead)


def _die_again(taken: Snapshot, again: Mapping[str, list[WorkerReport]]) -> Iterator[Finding]:
    """Yield the processes that die again and again: one line for all queues in which the same ones did.

    again: of each queue, the children that died, the last one first.
    """
    queues_of: dict[tuple[str, ...], list[QueueState]] = {}
    for queue in taken.queues:
        if again[queue.name]:
            queues_of.setdefault(tuple(one.worker for one in again[queue.name]), []).append(queue)
    for queues in queues_of.values():
        dead = again[queues[0].name]
        what = f"processes die again and again: {len(dead)} in the last {shown_time(RECENT)}, and were replaced;"
        what += f" the last, {words.workers(dead[:1])}"
        remedy = "the log of their parent, or of what starts them, says how each ended"
        for queue in queues:
            last = queue.stats.last_retry
            if last is not None and last.error.startswith("its process, ") and not is_parked(queue, last, taken):
                what += f"; the last message that failed so{f' in {queue.name}' if len(queues) > 1 else ''}"
                what += f": {words.message_id(last.message_id)}{words.failure(last.error)}"
                name = words.of_queue(queue.name, taken)
                if queue.is_shared:
                    side = f"{name} --side delayed --id {word(last.message_id)}"
                    remedy += f"; if one message does it, while it waits: latchwork queue discard {side}"
                else:
                    remedy += f"; if one message does it: latchwork queue cancel {name} --id {word(last.message_id)}"
        yield of_queues(taken, [queue.name for queue in queues], (PROBLEM, "worker_died", what, remedy), dead)


def _are_many(found: _Dead) -> bool:
    """Whether several workers died lately, and those that are left are not many more."""
    lately = {one.worker: one.ago for _, one in found if one.ago < RECENT}
    left = {one.worker for queue, _ in found for one in queue.at_work}
    return len(lately) >= DEATHS and min(lately.values()) < DIES_AGAIN and len(left) <= MANY_LEFT * len(lately)


def _stopped_last(queue: QueueState) -> Stop | None:
    """Return the worker that stopped, if all that died had died before."""
    stopped = queue.stopped
    return stopped if stopped and all(stopped.ago < one.ago for one in queue.workers if one.is_silent) else None


def _is_for_groups(queue: QueueState) -> bool:
    """Whether perhaps only its groups are to have its messages."""
    return queue.has_groups and not queue.stats.depth.fired


def _is_back(queue: QueueState, worker: WorkerReport, taken: Snapshot) -> bool:
    """Whether a sweep has brought back whatever a worker that died may have had in hand."""
    gone = taken.at - worker.ago + queue.abandoned_after
    return worker.settled or not queue.may_hold(worker) or queue.stats.last_sweep.success / 1000 >= gone


def _others(found: _Dead) -> str:
    """Return who else works there, and who of them may be dead too, or who stopped last."""
    others = list({one.worker: one for queue, _ in found for one in queue.at_work}.values())
    late = [one for one in others if one.is_overdue]
    good = [short_name(one.worker) for one in others if not one.is_overdue]
    stops = [last for queue, _ in found if not queue.at_work and (last := _stopped_last(queue))]
    newest = min(stops, key=lambda one: one.ago, default=None)
    stop = "" if newest is None else f", {short_name(newest.worker)}, stopped {shown_time(newest.ago)} ago"
    if not others:
        return f"the last other one{stop}" if stop else "no other worker is there"
    by_queue = {queue.name: [one for one in queue.at_work if not one.is_overdue] for queue, _ in found}
    work = f"at work: {len(good)} ({words.listed(good)})" if good else "no other is known to work"
    if good and any(len(some) < len(good) for some in by_queue.values()):  # not each works on each queue
        each = [
            f"in {name} {f'{len(some)} ({words.listed([short_name(one.worker) for one in some])})' if some else 'none'}"
            for name, some in by_queue.items()
        ]
        work = f"at work: {words.listed(each, 5)}"
    if stop:
        work += f"; the last other one there{stop}"
    return work + (f"; overdue: {words.workers(late)}" if late else "")


def _held(found: _Dead) -> _Dead:
    """Return the dead workers that may have had messages in hand."""
    return [
        (queue, one)
        for queue, one in found
        if queue.stats.depth.fired and not one.settled and (one.running or queue.may_hold(one))
    ]


def _back(found: _Dead, taken: Snapshot) -> str:
    """Return when the messages of dead workers are back: for one worker by queue, for several by worker. Empty if they
    had none in hand.
    """
    held, is_one = _held(found), len({one.worker for _, one in found}) == 1
    if not held:
        return ""
    in_queues = len({queue.name for queue, _ in found}) > 1
    ran, within = Counter[str](), dict[str, float]()
    for queue, one in held:
        ran[queue.name] += one.running
        if not _is_back(queue, one, taken):
            left, whose = queue.returns_within - one.ago, queue.name if is_one else short_name(one.worker)
            within[whose] = max(left, within.get(whose, left))
    handlers = [counted(n, "handler") + (f" in {name}" if in_queues else "") for name, n in ran.items() if n]
    they, their = ("it", "its last report") if is_one else ("they", "their last reports")
    what = f"; what {they} may have had in hand is back"
    if handlers:
        what = f"; what {they} had in hand (at {their} {words.listed(handlers)}) is back"
    if not within:
        return what
    together: dict[str, list[str]] = {}  # by when, soonest first
    for whose, seconds in sorted(within.items(), key=lambda one: one[1]):
        together.setdefault(f"within {shown_time(seconds)}" if seconds > 0 else "with the next one", []).append(whose)
    if not in_queues if is_one else len(together) == 1:
        parts = list(together)
    elif len(together) > TIMES:
        first, last = max(0.0, min(within.values())), max(within.values())
        parts = [f"within {shown_time(first)} to {shown_time(last)}"]
    else:
        parts = [
            f"{when} in {words.listed(of)}" if is_one else f"{when} ({words.listed(of)})"
            for when, of in together.items()
        ]
    swept = taken.has_workers or (taken.leader is not None and taken.leader.leads)  # perhaps by one of another queue
    again = "" if swept else ", once a worker runs again"
    return f"{what} by the sweep, at the latest {', '.join(parts)}{again}"


def _sooner(found: _Dead, taken: Snapshot) -> str:
    """Return the command that brings back what dead workers have in hand, as the end of a remedy; empty if nothing is
    in hand, or what is cannot be told from the messages of a worker that lives.
    """
    lost = [(queue, one) for queue, one in _held(found) if not _is_back(queue, one, taken)]
    names = list(
        dict.fromkeys(queue.name for queue, one in lost if short_name(one.worker) in dead_workers(queue.workers))
    )
    also = f"; the same for {words.listed(names[1:])}" if names[1:] else ""
    if not names:
        return ""
    return f"; sooner, once its process has ended: latchwork queue recover {words.of_queue(names[0], taken)}{also}"
