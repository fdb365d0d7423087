"""What a snapshot of a client tells a person to do, each with its remedy. No I/O.

`doctor` prints all of it, `stats` prints it below its table, and `watch_queues` shows it as a gauge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, NamedTuple, TypeAlias

from ..plain import counted, one_line, shortened, shown_time
from ..queue.sharded.delayed.schedules import MAX_TICKS, ScheduleState
from ..queue.sharded.history import NOT_FAILING, Failing
from ..queue.sharded.stats import Parked, Side
from ..queue.sharded.workers import KEPT, WINDOW, Running, Stop, WorkerReport, short_name
from .snapshot import Leader, QueueState, Snapshot

OK, WARNING, PROBLEM = "ok", "warning", "problem"
KINDS = (
    "paused", "settings", "no_worker", "worker_died", "draining", "saturated", "long_running", "backlog", "expiring",
    "expired", "parked", "failing", "retrying", "stranded", "schedule", "upkeep", "clock", "unreadable",
)  # fmt: skip
"""All kinds of findings about a client."""
EXPIRED_LATELY = 86_400.0
"""Seconds for which it is told of that messages have expired."""
RECENT = 600.0
"""Seconds for which a worker that died is told of: longer, until a sweep has brought back what it may have had in hand,
for an hour at most where nobody sweeps. What waits for a worker is told of for as long as it waits.
"""
DEATHS, DIES_AGAIN = 3, 120.0
"""Children of `--processes` that were killed within `RECENT`, from which on they are said to die again and again; until
none has for this number of seconds: with a message that kills its process they die at least as often as it is tried.
"""
WAITED = 30.0
"""Seconds that a message must have waited before the lack of a worker is a problem."""
ACTS_WITHIN = 10.0
"""Seconds within which each worker must act on a change of the settings; 3 are usual."""
SUCCEEDED_WITHIN = 20.0
"""Seconds from the last renewal of a leader that died within which another one must lead; 15 are usual."""
DELIVERED_WITHIN = 60.0
"""Seconds that the delivery of delayed messages may be behind; a few are usual."""
RUNS_LONG, TIMES_LONGER = 60.0, 20.0
"""Seconds from which on a handler that runs is told of; and it is far longer than the others from so many times the
time of a message in the last minute on.
"""
DONE_LATELY = 10
"""Messages that must have been done in the last minute so that the time of one is known."""
DRAINS_LONG = 20.0
"""Seconds from which on a worker that drains is told of; the usual grace is 10."""
CHANGED_LATELY = 3_600.0
"""Seconds for which it is told of who changed the threads of a queue."""
LOOKED_WITHIN = 30.0
"""Seconds for which a message that is due may still be on its way, though the upkeep has looked at what is due."""
CLOCK_AHEAD = 60.0
"""Seconds by which the time of records must be ahead of this machine's clock for that to be told of."""
MANY_FAILED = 3
"""Failures in a minute from which on it is a problem that more failed than were done; and failures one after the other,
with no message done in between, from which on all messages of a queue are said to fail.
"""
WAITS_LONG = 300.0
"""Seconds from which on the oldest ready message is told of though workers are there."""
GROWS_FOR, GROWS_WAITED = 180.0, 120.0
"""Seconds for which a backlog must have grown, and its oldest message must have waited, to be told of: a burst that is
worked off is less.
"""
GROWS_BY, GROWS_SHARE = 10, 0.01
"""Messages, and part of the backlog, by which it must have grown in that time at least; a third of that in each part of
it, so that one burst does not count.
"""
ID_SHOWN, ERROR_SHOWN = 40, 140
"""Characters of a message's id, and of its error, that a line has: the end of a killed process is told in full."""
_OR_REMOVED = "expired, or were removed one by one"
_START = "start one: latchwork worker MODULE:NAME"
_START_AGAIN = "start another one, if one is missing; this line goes by itself"
_SETTLED = "what it had in hand was brought back already"
_ONLY_SWEEPS = "{} leads, a sweeper without the upkeep of a worker: it delivers no delayed messages"
_ENDS = "one that is about to stop ends by itself once its handlers have, at the latest when its grace is over"
_TIMES = 3
"""Times of return that a line has; of more than these it has the first and the last."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    state: ok: worth knowing; warning; or problem: a person must act.
    kind: one of `KINDS`; empty where it is not about the queues of a client.
    client: the client that it is about; empty = none.
    queues: the queues that it is about.
    sound: the part that was looked at and is sound, in a word or two; empty for all other findings.
    workers: all workers that died, of which the text may name only some.
    """

    state: str
    what: str
    remedy: str = ""
    kind: str = ""
    client: str = ""
    queues: tuple[str, ...] = ()
    sound: str = ""
    workers: tuple[str, ...] = ()

    @property
    def queue(self) -> str | None:
        """The queue that it is about; None = none, or several."""
        return self.queues[0] if len(self.queues) == 1 else None

    @property
    def row(self) -> dict[str, Any]:
        """This finding for a program."""
        return {
            "state": self.state, "kind": self.kind, "client": self.client or None, "queue": self.queue,
            "queues": list(self.queues), "what": self.what, "remedy": self.remedy,
            "workers": list(self.workers),
        }  # fmt: skip


_Found: TypeAlias = Iterator[tuple[str, str, str, str]]
"""What a rule finds about a queue: the state, the kind, what it is, and its remedy."""


def findings_of(taken: Snapshot) -> list[Finding]:
    """Return what is not as it should be, or worth knowing; problems first. What follows from a missing worker, or from
    a missing upkeep, is said with it.
    """
    found = [*_of_client(taken), *(finding for queue in taken.queues for finding in _of_queue(queue, taken))]
    return sorted(found, key=lambda one: (PROBLEM, WARNING, OK).index(one.state))


def _of_queue(queue: QueueState, taken: Snapshot) -> Iterator[Finding]:
    """Yield what is not as it should be with one queue of the snapshot, but for workers and upkeep that are missing."""
    rules = _settings, _draining, _saturated, _long_running, _backlogged, _expiring, _expired, _failures, _stranded
    for rule in rules:
        for state, kind, what, remedy in rule(queue, taken):
            yield Finding(
                state, f"queue {queue.name} of {taken.client}: {what}", remedy, kind, taken.client, (queue.name,)
            )


def _settings(queue: QueueState, taken: Snapshot) -> _Found:
    """Tell of a pause, and of workers that do not act on the last change of its settings."""
    live, ready = queue.live, queue.stats.ready.waiting
    ago = taken.at - live.changed / 1000
    if queue.paused:
        who = f" by {live.changed_by}" if live.changed_by else ""
        since = f"paused{who}, {shown_time(ago)} ago" if live.changed else "paused since it was made"
        waits = f"; ready messages that wait, and go on expiring: {ready:,}" if ready else ""
        yield WARNING, "paused", since + waits, f"latchwork queue resume {queue.name} --client {taken.client}"
    elif live.changed and ago < CHANGED_LATELY:
        who = f" by {live.changed_by}" if live.changed_by else ""
        since = f"{shown_time(max(0.0, ago))} ago{who}"
        is_set = f"threads in each worker: {queue.live.concurrency}, set {since}"
        others = [one for one in queue.at_work if one.acts_on == live.changed and one.threads != live.concurrency]
        each = _listed([f"{short_name(one.worker)} ({one.threads})" for one in others])
        if others and len(others) == len(queue.at_work):  # whose programs say how many threads, whatever is stored
            is_set = f"resumed, or scaled, {since}; threads, as each program says: {each}"
        elif others:
            is_set += f"; otherwise, as its program says: {each}"
        yield OK, "settings", is_set, f"what was before: latchwork audit --client {taken.client} --about {queue.name}"
    is_behind = ready and (queue.stats.ready.oldest_age or 0.0) > WAITED
    if _is_held_by_order(queue) and is_behind and not queue.paused:
        shards, threads = counted(queue.shards, "shard"), sum(one.threads for one in queue.at_work)
        what = (
            f"{shards}, and {threads} threads: in order each shard has one handler at a time, so no more of them help"
        )
        remedy = "a queue keeps its shards: make a new one with more, or let its consumers not be ordered"
        yield WARNING, "settings", f"{what}; {_backlog([queue])}", remedy
    late = [one for one in queue.at_work if one.acts_on < live.changed]
    if late and ago > ACTS_WITHIN:
        change = "pause" if queue.paused else "change of its settings"
        of = counted(len(queue.at_work), "worker")
        what = f"the {change} of {shown_time(ago)} ago has not reached {len(late)} of {of}"
        why = "it: it hangs, or is" if len(late) == 1 else "them: they hang, or are"
        remedy = f"restart {why} of an earlier version"
        yield PROBLEM, "settings", f"{what}: {_named(late)}", remedy


def _saturated(queue: QueueState, taken: Snapshot) -> _Found:
    """Tell of workers whose handlers hang: Python cannot end them, and with many of them a worker takes no messages."""
    full = [one for one in queue.at_work if one.is_saturated]
    if full:
        most = f"{'it takes' if len(full) == 1 else 'they take'} no more messages"
        waits = f"; {_backlog([queue])}" if len(full) == len(queue.at_work) and queue.stats.ready.waiting else ""
        yield PROBLEM, "saturated", f"{_hangs(full)}: {most}{waits}", _end_it(full)
    if some := [one for one in queue.at_work if one.hung and not one.is_saturated]:
        each = [
            f"{2 * one.threads}{f' of {short_name(one.worker)}' if len(some) > 1 else ''}"
            for one in some
            if one.threads
        ]
        limit = f"; it still takes messages, and no more once {_listed(each)} hang" if each else ""
        yield WARNING, "saturated", f"{_hangs(some)}{limit}", _end_it(some)


def _draining(queue: QueueState, taken: Snapshot) -> _Found:
    """Tell of workers that have been about to stop for long, and what they wait for; where messages wait for nobody
    else, that is a problem of its own.
    """
    if _waits(queue):
        return
    long = sorted((one for one in queue.draining if _drained(one) >= DRAINS_LONG), key=_drained, reverse=True)
    if long:
        each = [
            f"{short_name(one.worker)} for {shown_time(_drained(one))} ({counted(one.running, 'handler')})"
            for one in long
        ]
        runs = _runs([(one, run) for one in long for run in one.longest if run.seconds < RUNS_LONG])
        what = f"about to stop, and taking no more messages: {_listed(each)}{f'; at work{runs}' if runs else ''}"
        yield OK, "draining", what, f"{_ENDS}; a second SIGTERM ends it at once"


def _drained(worker: WorkerReport) -> float:
    return worker.drains or 0.0


def _long_running(queue: QueueState, taken: Snapshot) -> _Found:
    """Tell of the messages on which the work goes on for longest: as a warning where it is far longer than with the
    others, or soon given up.
    """
    running = [
        (one, run) for one in queue.at_work for run in one.longest if not run.given_up and run.seconds >= RUNS_LONG
    ]
    if not running:
        return
    running.sort(key=lambda one: one[1].seconds, reverse=True)
    longest, limit = running[0][1].seconds, queue.handler_timeout
    usual = _usual(queue, len(running))
    is_far = usual is not None and longest >= TIMES_LONGER * usual
    others = f"; the others take about {shown_time(usual)}" if is_far and usual is not None else ""
    what = f"at work for {'far longer than others' if is_far else 'long'}{_runs(running)}{others}"
    what += f"; after {shown_time(limit)} a handler is given up, and its message fails"
    if queue.stats.ready.waiting and not any(one.acked + one.failed for one in queue.at_work):
        what += f"; none was done in the last minute, and {_backlog([queue])}"
    (worker, run), name = running[0], f"{queue.name} --client {taken.client}"
    host, _, pid = short_name(worker.worker).rpartition(":")
    remedy = (
        f"what it waits for: its log, or `py-spy dump --pid {pid}` on {host}; where its handler calls check(), this"
    )
    remedy += f" ends it: latchwork queue cancel {name} --id {one_line(run.message_id)}"
    yield WARNING if is_far or longest > limit / 2 else OK, "long_running", what, remedy


def _usual(queue: QueueState, long: int) -> float | None:
    """Return about how long a handler takes for a message, by the reports of the last minute; None = not known.

    long: the handlers that have run for long already, and are left out.
    """
    done = sum(one.acked + one.failed for one in queue.at_work)
    if done < DONE_LATELY:
        return None
    return max(1, sum(one.running for one in queue.at_work) - long) * WINDOW / done


def _runs(running: Sequence[tuple[WorkerReport, Running]]) -> str:
    """Return messages on which the work goes on, each with its worker and for how long; empty for none."""
    each = [
        f"{shortened(one_line(run.message_id), ID_SHOWN)} on {short_name(worker.worker)}, for {shown_time(run.seconds)}"
        for worker, run in running
    ]
    return f": {_listed(each)}" if each else ""


def _end_it(workers: Sequence[WorkerReport]) -> str:
    """Return how the processes of these workers are ended: a handler that was given up is not waited for."""
    each = []
    for one in workers:
        host, _, process = short_name(one.worker).rpartition(":")
        each.append(f"kill {process} on {host}" if host and process.isdigit() else f"end {short_name(one.worker)}")
    return (
        f"{_listed(each)}, and start another: nothing else ends a handler that hangs (`latchwork worker --processes N` "
        "does both by itself)"
    )


def _hangs(workers: Sequence[WorkerReport]) -> str:
    """Return how many handlers hang, in which workers, and with which messages."""
    hung = sum(one.hung for one in workers)
    each = _listed([short_name(one.worker) + (f" ({one.hung})" if len(workers) > 1 else "") for one in workers])
    found = sorted(
        ((one, run) for one in workers for run in one.longest if run.given_up),
        key=lambda one: one[1].seconds,
        reverse=True,
    )
    messages = f" (messages{_runs(found)})" if found else ""
    return (
        f"{counted(hung, 'handler')} of {each} {'hangs' if hung == 1 else 'hang'}, past the handler_timeout{messages}"
    )


def _workers(taken: Snapshot) -> Iterator[Finding]:
    """Tell of workers that died, and of messages that wait in queues that nobody works on: one line for all queues
    where others go on, and one for all where nobody does.
    """
    waits = {queue.name: queue for queue in taken.queues if _waits(queue)}
    yield from _nobody_takes(taken, waits)
    somebody = any(queue.at_work for queue in taken.queues)
    # 1. Those that died.
    together: dict[bool, list[tuple[QueueState, WorkerReport]]] = {}
    again = {queue.name: _again(queue) for queue in taken.queues}
    yield from _die_again(taken, again)
    for queue in taken.queues:
        for one in queue.workers:
            if one in again[queue.name]:
                continue
            goes_on = bool(queue.at_work) or _stopped_last(queue) is not None
            if one.is_silent and _is_told(queue, one, taken) and (goes_on or not queue.stats.is_streamed):
                together.setdefault(goes_on, []).append((queue, one))
    for goes_on, found in together.items():
        also = [] if somebody or goes_on else [name for name, queue in waits.items() if not _is_for_groups(queue)]
        names = tuple(sorted({*(queue.name for queue, _ in found), *also}))
        # Of a worker that may hold something in one of its queues, that report counts.
        newest = sorted((one for _, one in found), key=lambda one: (one.settled, one.ago))
        dead = list({one.worker: one for one in reversed(newest)}.values())[::-1]
        behind = [waits.pop(name) for name in names if name in waits and not goes_on]
        what = f"{_queues(names)} of {taken.client}: {_dead(dead)}; {_others(found)}"
        what += (f"; {_backlog(behind)}" if behind else "") + _back(found, taken)
        state, kind, remedy = (WARNING, "worker_died", _START_AGAIN) if goes_on else (PROBLEM, "no_worker", _START)
        workers = tuple(short_name(one.worker) for one in dead)
        yield Finding(state, what, remedy + _sooner(found, taken), kind, taken.client, names, workers=workers)
    # 2. The other queues that nobody works on.
    for queue in [queue for queue in waits.values() if _is_for_groups(queue)]:
        what = f"queue {queue.name} of {taken.client}: {_backlog([waits.pop(queue.name)])}, and there is no worker"
        remedy = "as it should be, if only its groups are to have them: they expire here"
        yield Finding(WARNING, what, remedy, "no_worker", taken.client, (queue.name,))
    if names := tuple(waits):
        what = f"{_queues(names)} of {taken.client}: no worker; {_backlog(list(waits.values()))}"
        remedy = f"{_START} (a program that calls receive() itself is not seen)"
        yield Finding(PROBLEM, what, remedy, "no_worker", taken.client, names)


def _nobody_takes(taken: Snapshot, waits: dict[str, QueueState]) -> Iterator[Finding]:
    """Tell of messages that wait where all workers drain, and take these queues out of those that nobody works on."""
    names = tuple(name for name, queue in waits.items() if queue.draining)
    if not names:
        return
    queues = [waits.pop(name) for name in names]
    workers = sorted(
        {one.worker: one for queue in queues for one in queue.draining}.values(), key=_drained, reverse=True
    )
    each = [f"{short_name(one.worker)} for {shown_time(_drained(one))}" for one in workers]
    stops = f"no worker takes messages; about to stop: {_listed(each)}"
    what = f"{_queues(names)} of {taken.client}: {stops}; {_backlog(queues)}"
    yield Finding(PROBLEM, what, f"{_START}; {_ENDS}", "no_worker", taken.client, names)


def _stopped_last(queue: QueueState) -> Stop | None:
    """Return the worker that stopped, if all that died had died before."""
    stopped = queue.stopped
    return stopped if stopped and all(stopped.ago < one.ago for one in queue.workers if one.is_silent) else None


def _again(queue: QueueState) -> list[WorkerReport]:
    """Return the children that died here, if they die again and again; the last one first."""
    dead = sorted((one for one in queue.workers if one.settled and one.ago < RECENT), key=lambda one: one.ago)
    return dead if len(dead) >= DEATHS and dead[0].ago < DIES_AGAIN else []


def _die_again(taken: Snapshot, again: Mapping[str, list[WorkerReport]]) -> Iterator[Finding]:
    """Tell of processes that die again and again: one line for all queues in which the same ones did."""
    queues_of: dict[tuple[str, ...], list[QueueState]] = {}
    for queue in taken.queues:
        if again[queue.name]:
            queues_of.setdefault(tuple(one.worker for one in again[queue.name]), []).append(queue)
    for queues in queues_of.values():
        dead, names = again[queues[0].name], tuple(queue.name for queue in queues)
        what = f"{_queues(names)} of {taken.client}: processes die again and again: {len(dead)} in the last"
        what += f" {shown_time(RECENT)}, and were replaced; the last, {_named(dead[:1])}"
        remedy = "the log of their parent says how each ended"
        for queue in queues:
            last = queue.stats.last_retry
            if last is not None and last.error.startswith("its process, "):
                what += f"; the last message that failed so{f' in {queue.name}' if len(queues) > 1 else ''}"
                what += f": {shortened(one_line(last.message_id), ID_SHOWN)}{_why(last.error)}"
                name = f"{queue.name} --client {taken.client}"
                remedy += f"; if one message does it: latchwork queue cancel {name} --id {one_line(last.message_id)}"
        died = tuple(short_name(one.worker) for one in dead)
        yield Finding(PROBLEM, what, remedy, "worker_died", taken.client, names, workers=died)


def _waits(queue: QueueState) -> bool:
    """Whether messages wait in a queue that nobody works on."""
    ready, stopped = queue.stats.ready, queue.stopped
    takes = any(one.drains is None and not one.is_ahead for one in queue.at_work)
    if takes or queue.stats.is_streamed or queue.paused or (stopped is not None and stopped.ago < WAITED):
        return False
    if any(_drained(one) < DRAINS_LONG for one in queue.draining):
        return False
    return bool(ready.waiting) and (ready.oldest_age or 0.0) > WAITED


def _is_for_groups(queue: QueueState) -> bool:
    """Whether perhaps only its groups are to have its messages."""
    return queue.has_groups and not queue.stats.depth.fired


def _backlog(queues: Sequence[QueueState]) -> str:
    """Return what waits in these queues, and for how long."""
    messages = sum(queue.stats.ready.waiting for queue in queues)
    oldest = max(queue.stats.ready.oldest_age or 0.0 for queue in queues)
    waits = "waits, for" if messages == 1 else "wait, the oldest for"
    return f"{counted(messages, 'ready message')} {waits} {shown_time(oldest)}"


def _is_told(queue: QueueState, worker: WorkerReport, taken: Snapshot) -> bool:
    """Whether it is still told of a worker that died."""
    longest = max(KEPT, queue.returns_within)
    return worker.ago < RECENT or (worker.ago < longest and not _is_back(queue, worker, taken))


def _is_back(queue: QueueState, worker: WorkerReport, taken: Snapshot) -> bool:
    """Whether a sweep has brought back whatever a worker that died may have had in hand."""
    gone = taken.at - worker.ago + queue.abandoned_after
    return worker.settled or not queue.may_hold(worker) or queue.stats.last_sweep.success / 1000 >= gone


def _dead(dead: list[WorkerReport]) -> str:
    """Return the names of the workers that died."""
    if len(dead) > 1:
        return f"{len(dead):,} workers died or hang: {_named(dead)}"
    how = f"died; {_SETTLED}" if dead[0].settled else "died or hangs"
    return f"worker {_named(dead)}, {how}"


def _others(found: list[tuple[QueueState, WorkerReport]]) -> str:
    """Return who else works there, and who of them may be dead too, or who stopped last."""
    others = list({one.worker: one for queue, _ in found for one in queue.at_work}.values())
    late = [one for one in others if one.is_overdue]
    good = [short_name(one.worker) for one in others if not one.is_overdue]
    stops = [last for queue, _ in found if not queue.at_work and (last := _stopped_last(queue))]
    newest = min(stops, key=lambda one: one.ago, default=None)
    stop = "" if newest is None else f", {short_name(newest.worker)}, stopped {shown_time(newest.ago)} ago"
    if not others and stop:
        return f"the last other one{stop}"
    if not others:
        return "no other worker is there"
    by_queue = {queue.name: [one for one in queue.at_work if not one.is_overdue] for queue, _ in found}
    work = f"at work: {len(good)} ({_listed(good)})" if good else "no other is known to work"
    if good and any(len(some) < len(good) for some in by_queue.values()):  # not each works on each queue
        each = [
            f"in {name} {f'{len(some)} ({_listed([short_name(one.worker) for one in some])})' if some else 'none'}"
            for name, some in by_queue.items()
        ]
        work = f"at work: {_listed(each, 5)}"
    if stop:
        work += f"; the last other one there{stop}"
    return work + (f"; overdue: {_named(late)}" if late else "")


def _held(found: list[tuple[QueueState, WorkerReport]]) -> list[tuple[QueueState, WorkerReport]]:
    """Return the dead workers that may have had messages in hand, each with its queue."""
    return [
        (queue, one)
        for queue, one in found
        if queue.stats.depth.fired and not one.settled and (one.running or queue.may_hold(one))
    ]


def _back(found: list[tuple[QueueState, WorkerReport]], taken: Snapshot) -> str:
    """Return when the messages are back that dead workers may have had in hand: of one worker for each queue, of
    several for each worker. Empty where there were none.
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
        what = f"; what {they} had in hand (at {their} {_listed(handlers)}) is back"
    if not within:
        return what
    together: dict[str, list[str]] = {}  # by when, soonest first
    for whose, seconds in sorted(within.items(), key=lambda one: one[1]):
        together.setdefault(f"within {shown_time(seconds)}" if seconds > 0 else "with the next one", []).append(whose)
    if not in_queues if is_one else len(together) == 1:
        parts = list(together)
    elif len(together) > _TIMES:
        first, last = max(0.0, min(within.values())), max(within.values())
        parts = [f"within {shown_time(first)} to {shown_time(last)}"]
    else:
        parts = [f"{when} in {_listed(of)}" if is_one else f"{when} ({_listed(of)})" for when, of in together.items()]
    swept = _works(taken) or (taken.leader is not None and taken.leader.leads)  # perhaps by a worker of another queue
    again = "" if swept else ", once a worker runs again"
    return f"{what} by the sweep, at the latest {', '.join(parts)}{again}"


def _sooner(found: list[tuple[QueueState, WorkerReport]], taken: Snapshot) -> str:
    """Return the command that brings back what dead workers have in hand, as the end of a remedy; empty if nothing is
    in hand.
    """
    names = list(dict.fromkeys(queue.name for queue, one in _held(found) if not _is_back(queue, one, taken)))
    also = f"; the same for {_listed(names[1:])}" if names[1:] else ""
    return f"; have it sooner: latchwork queue recover {names[0]} --client {taken.client}{also}" if names else ""


def _backlogged(queue: QueueState, taken: Snapshot) -> _Found:
    """Tell of a backlog that grows though workers are there, with the remedy; and of one whose oldest message has
    waited for long. Where it is so large that its newest message would expire unread, that is a problem.
    """
    ready = queue.stats.ready
    if ready.oldest_age is None or queue.paused or not _takes(queue) or _is_held_by_order(queue):
        return  # each of which is told of already
    flow = _flow(queue, taken)
    lasts = ready.waiting / flow.taken if flow is not None and flow.taken else None
    if flow is not None and flow.grows and ready.oldest_age >= GROWS_WAITED:
        what = f"{_backlog([queue])}, and {_a_minute(flow.grown)} more come than are taken, for {shown_time(flow.over)}"
        what += f" (taken: {_a_minute(flow.taken)}){_busy(queue)}"
        remedy = _more_workers(queue, taken)
        if lasts is not None and lasts > ready.life:
            what += f"; the newest would wait {shown_time(lasts)}, and expire unread after {shown_time(ready.life)}"
            yield PROBLEM, "expiring", what, remedy
        else:
            yield WARNING, "backlog", what, remedy
    elif ready.oldest_age >= WAITS_LONG:
        at_rate = f"; at the rate of the last {shown_time(flow.over)} all are taken in" if flow and lasts else ""
        at_rate += f" {shown_time(lasts)}" if at_rate and lasts is not None else ""
        yield OK, "backlog", f"{_backlog([queue])}{at_rate}{_busy(queue)}", _more_workers(queue, taken)


class _Flow(NamedTuple):
    """How a backlog changes. over: for these seconds; grown, taken: messages a second; grows: whether all the time."""

    over: float
    grown: float
    taken: float
    grows: bool


def _flow(queue: QueueState, taken: Snapshot) -> _Flow | None:
    """Return how its backlog has changed, by what was noted in the last minutes; None where that is too little."""
    noted = [(one.at, one.ready, one.received) for one in queue.minutes]
    known = [(at, ready, received) for at, ready, received in noted if ready is not None and received is not None]
    if not known or taken.at - known[0][0] < GROWS_FOR:
        return None
    (begin, at_first, received), ready = known[0], queue.stats.ready.waiting
    over, out = taken.at - begin, queue.stats.depth.fired - received
    if out < 0:  # the queue was lost, and made again
        return None
    middle = [before for at, before, _ in known if taken.at - at >= over / 3][-1]
    least = max(GROWS_BY, GROWS_SHARE * ready)
    grows = ready - at_first >= least and min(ready - middle, middle - at_first) >= least / 3
    return _Flow(over, (ready - at_first) / over, out / over, grows)


def _a_minute(a_second: float) -> str:
    return f"{60 * a_second:,.0f} a minute"


def _threads(queue: QueueState) -> tuple[int, int]:
    """Return the threads of its workers, and how many of them are busy, by the last reports."""
    return sum(one.threads for one in queue.at_work), sum(one.running for one in queue.at_work)


def _busy(queue: QueueState) -> str:
    """Return how many threads of its workers are busy, by their last reports; empty where there are none."""
    threads, running = _threads(queue)
    if not threads:
        return ""
    some = f"{running} of {counted(threads, 'thread')}"
    busy = some if running < threads else f"all {threads} threads" if threads > 1 else "the only thread"
    return f"; {busy} of {counted(len(queue.at_work), 'worker')} busy"


def _more_workers(queue: QueueState, taken: Snapshot) -> str:
    threads, running = _threads(queue)
    if running < threads / 2:
        return "its workers have free threads: do they limit their rate, or keep an order?"
    scale = f"more threads in each: latchwork queue scale {queue.name} THREADS --client {taken.client}"
    if any(one.threads not in (0, queue.live.concurrency) for one in queue.at_work):
        scale = "more threads in their program, which fixes them"
    return f"more workers: latchwork worker MODULE:NAME; or {scale}"


def _takes(queue: QueueState) -> bool:
    """Whether a worker that lives takes messages of it."""
    return any(one.drains is None and one.threads and not one.is_saturated for one in queue.at_work)


def _is_held_by_order(queue: QueueState) -> bool:
    """Whether it has more threads than shards, and its order keeps them from working."""
    threads, running = _threads(queue)
    return queue.stats.in_order and running <= queue.shards < threads


def _expiring(queue: QueueState, taken: Snapshot) -> _Found:
    """Tell of messages that have waited for more than half of their life."""
    name = f"{queue.name} --client {taken.client}"
    for part, side, remedy in (
        ("ready", queue.stats.ready, "start more workers" if queue.at_work else _START),
        ("sideline", queue.stats.sideline, f"bring back what is due: latchwork queue shovel {name}"),
        ("parked", queue.stats.parked, f"latchwork queue redrive {name}, or discard them"),
    ):
        if side.left is not None and side.is_half_over:
            what = f"the oldest {part} message expires in {shown_time(side.left)}, of a life of {shown_time(side.life)}"
            yield PROBLEM, "expiring", what, remedy


def _expired(queue: QueueState, taken: Snapshot) -> _Found:
    """Tell of messages that have expired lately, of a queue that is older than a message lives."""
    age = taken.at - queue.made if queue.made else float("inf")

    for part, side, how, remedy in (
        ("ready", queue.stats.ready, "expired unread", "more workers, or a new queue with a longer message_expiry"),
        ("sideline", queue.stats.sideline, _OR_REMOVED, "bring back what is left before it expires too"),
        ("parked", queue.stats.parked, _OR_REMOVED, "redrive or discard what is left before it expires too"),
    ):
        ago = side.expired_ago
        if side.expired and ago is not None and ago < EXPIRED_LATELY and age >= side.life:
            noticed = f"the last was noticed {shown_time(ago)} ago"
            if not ago:  # they are noted with the next claim; until then every look finds them
                noticed = "when is not known, as nobody has taken messages from there since"
            what = f"{part} messages that {how}: {side.expired:,} since the queue was made; {noticed}"
            yield WARNING, "expired", what, f"these are gone; {remedy}"


def _failures(queue: QueueState, taken: Snapshot) -> _Found:
    """Tell of parked messages, and of messages that fail faster than others are done."""
    name, parked = f"{queue.name} --client {taken.client}", queue.stats.parked.waiting
    if parked:
        messages = _count(queue.stats.parked, "parked message")
        oldest = _oldest_parked(queue.stats.oldest_parked)
        what = f"{messages}, failed too often: nothing brings parked messages back{oldest}"
        remedy = f"latchwork queue peek {name} --side parked; repair the cause, then latchwork queue redrive {name}"
        yield PROBLEM, "parked", what, remedy
    failed, acked = (sum(getattr(one, of) for one in queue.at_work) for of in ("failed", "acked"))
    retrying = queue.stats.depth.retrying
    failing = NOT_FAILING if acked else Failing.of(queue.minutes)
    if retrying and failing.attempts >= MANY_FAILED and not parked:
        what = f"no message was done since {_clock_time(failing.since, taken.at)}, and about {failing.attempts:,}"
        what += f" attempts failed; {counted(retrying, 'message')} will be tried again{_last_retry(queue, taken)}"
        remedy = f"the logs of its workers have each failure; latchwork queue search {name} --side delayed"
        yield PROBLEM, "failing", what, remedy
        return
    if failed > acked:
        failures = f"{counted(failed, 'attempt')} failed{_reasons(queue)}"
        what = f"{failures}, and {counted(acked, 'message')} succeeded, {_when_counted(queue)}"
        remedy = "the logs of its workers have each failure"
        if side := _where_failed(queue):
            remedy += f"; latchwork queue search {name} --side {side}"
        yield PROBLEM if failed >= MANY_FAILED else WARNING, "failing", what, remedy
    if retrying:
        what = f"{counted(retrying, 'message')} failed, and will be tried again{_last_retry(queue, taken)}"
        yield OK, "retrying", what, f"latchwork queue search {name} --side delayed"


def _clock_time(at: float, now: float) -> str:
    """Return the time of day in UTC, with the date where that is another one, and how long ago it was."""
    moment, today = (datetime.fromtimestamp(one, timezone.utc) for one in (at, now))
    form = "%H:%M" if moment.date() == today.date() else "%Y-%m-%d %H:%M"
    return f"{moment.strftime(form)} UTC, {shown_time(max(0.0, now - at))} ago"


def _oldest_parked(oldest: Parked | None) -> str:
    """Return which message was parked first, when and why."""
    if oldest is None:
        return ""
    name = shortened(one_line(oldest.message_id), ID_SHOWN)
    return f"; the oldest, {name}{_why(oldest.error)}: {shown_time(oldest.ago)} ago"


def _why(error: str) -> str:
    """Return the first line of an error, in brackets; empty for none."""
    first = error.strip().partition("\n")[0]
    return f" ({shortened(one_line(first), ERROR_SHOWN)})" if first else ""


def _reasons(queue: QueueState) -> str:
    """Return why attempts failed, in brackets, the most frequent reason first; empty where workers do not report it."""
    counts = sum((Counter(one.reasons) for one in queue.at_work), Counter[str]())
    return f" ({', '.join(f'{reason}: {n}' for reason, n in counts.most_common())})" if counts else ""


def _when_counted(queue: QueueState) -> str:
    """Return of which minute the figures in the reports of its workers are."""
    ago = [one.ago for one in queue.at_work]
    if len(ago) == 1:
        return f"in the minute before its worker last reported, {shown_time(ago[0])} ago"
    return f"in the minute before its workers last reported, up to {shown_time(max(ago))} ago"


def _where_failed(queue: QueueState) -> str | None:
    """Return where the messages are that failed: waiting for their retry, in the sideline or parked."""
    stats = queue.stats
    places = ("delayed", stats.depth.retrying), ("sideline", stats.sideline.waiting), ("parked", stats.parked.waiting)
    return next((side for side, waiting in places if waiting), None)


def _count(side: Side, noun: str) -> str:
    return ("" if side.is_exact else "at most ") + counted(side.waiting, noun)


def _last_retry(queue: QueueState, taken: Snapshot) -> str:
    """Return when the message that failed last is tried again, and why it failed."""
    last = queue.stats.last_retry
    if last is None:
        return ""
    left, late = last.due / 1000 - taken.at, queue.stats.delayed_late or 0.0
    if -left > late + LOOKED_WITHIN:  # what was due then was looked at since: others wait
        return ""
    when = f"in {shown_time(left)}" if left >= 0 else f"due {shown_time(-left)} ago; {why_it_waits(queue, taken)}"
    return f"; the last one, {shortened(one_line(last.message_id), ID_SHOWN)}{_why(last.error)}: {when}"


def why_it_waits(queue: QueueState, taken: Snapshot, *, is_ready: bool = False) -> str:
    """Return why a message that is due has not come to a handler yet, with the remedy where there is one.

    is_ready: whether it waits for a worker alone; else the upkeep has to bring it first.
    """
    if queue.paused:
        since, who = queue.live.changed, f" by {queue.live.changed_by}" if queue.live.changed_by else ""
        ago = f" for {shown_time(max(0.0, taken.at - since / 1000))}" if since else ""
        return f"the queue is paused{who}{ago}: latchwork queue resume {queue.name} --client {taken.client}"
    late, leads = queue.stats.delayed_late or 0.0, taken.leader is not None and taken.leader.leads
    threads, running = _threads(queue)
    of = f"{counted(threads, 'thread')} of {counted(len(queue.at_work), 'worker')}"
    absent = _absent(queue, taken)
    # The first that holds.
    reasons = (
        (not is_ready and not leads, f"nobody does the upkeep, which brings it: {taken.upkeep}; {_START}"),
        (
            not is_ready and late > DELIVERED_WITHIN and taken.leader is not None and taken.leader.only_sweeps,
            _ONLY_SWEEPS.format(taken.leader.name if taken.leader else ""),
        ),
        (
            not is_ready and late > DELIVERED_WITHIN,
            f"for {shown_time(late)} the upkeep has not looked at what is due: the log of its leader says why",
        ),
        (not queue.at_work, f"no worker is there: {_START}"),
        (len(queue.at_work) == len(queue.draining), f"all workers are about to stop: {_START}"),
        (bool(absent), absent),
        (not is_ready, "the upkeep brings it within some seconds"),
        (running >= threads > 0, f"when its workers last reported, all were busy ({of}): start more, or scale it"),
    )
    return next((why for holds, why in reasons if holds), "a worker takes it soon")


def _absent(queue: QueueState, taken: Snapshot) -> str:
    """Return that each worker of a queue is overdue, or has not acted on the last change; empty if one is well."""
    ago, workers = taken.at - queue.live.changed / 1000, queue.at_work
    late = [one for one in workers if one.acts_on < queue.live.changed and ago > ACTS_WITHIN]
    silent = [one for one in workers if one.is_overdue and not one.is_ahead]
    if not workers or not all(one in silent or one in late for one in workers):
        return ""
    names = _listed([short_name(one.worker) for one in workers])
    who, has, them = f"its only worker {names}", "has", "it"
    if len(workers) > 1:
        who, has, them = f"its {len(workers)} workers, {names},", "have", "them"
    parts = []
    if silent:
        parts.append(f"{has} not reported for {shown_time(min(one.ago for one in silent))}")
    if late:
        change = "change of its settings" if any(one.threads for one in late) else "resume"
        parts.append(f"{has} not acted on the {change} of {shown_time(ago)} ago")
    return f"{who} {', and '.join(parts)}: restart {them}"


def _stranded(queue: QueueState, taken: Snapshot) -> _Found:
    """Tell of messages that nothing brings back, though somebody does the upkeep."""
    sideline, name = queue.stats.sideline.waiting, f"{queue.name} --client {taken.client}"
    if sideline and not _comes_back(queue):
        messages = _count(queue.stats.sideline, "message")
        what = f"{messages} in the sideline, which nothing brings back: the queue does not retry"
        remedy = f"once: latchwork queue shovel {name}; from now on: latchwork queue set {name} --retry"
        yield PROBLEM, "stranded", what, remedy
    if taken.leader is not None and taken.leader.leads and (late := _late(queue)):
        state, who = (WARNING, _new_leader(taken.leader)) if taken.leader.is_new else (PROBLEM, "")
        remedy = "the log of the process that leads says why"
        if taken.leader.only_sweeps:
            who = f"; {_ONLY_SWEEPS.format(taken.leader.name)}"
            remedy = f"end it: then a worker leads, or `latchwork queue sweep --client {taken.client} --every 900`"
        yield state, "stranded", f"{late}{who}", remedy
    if queue.stats.unsettled:
        yield WARNING, "stranded", *_unsettled(queue, taken, name)


def _unsettled(queue: QueueState, taken: Snapshot, name: str) -> tuple[str, str]:
    """Return which message waits for the write with which it goes, and the remedy."""
    first, more = queue.stats.unsettled[0], len(queue.stats.unsettled) - 1
    ago, which = shown_time(taken.at - first.since / 1000), shortened(one_line(first.message_id), ID_SHOWN)
    others = f" and {more} more" if more else ""
    why = shortened(one_line(first.record), ERROR_SHOWN)
    what = f"the message {which}{others} waited {ago} for the write with which it goes: {why}"
    remedy = "it comes once the record is made; if that never will be: latchwork queue discard"
    return what, f"{remedy} {name} --side delayed --id {which}"


def _comes_back(queue: QueueState) -> bool:
    """Whether the upkeep brings back what is in its sideline."""
    return queue.live.shovel is not None or queue.retries


def _late(queue: QueueState) -> str:
    """Return that the delivery of its delayed messages is behind; empty if it is not."""
    late = queue.stats.delayed_late
    if late is None or late <= DELIVERED_WITHIN:
        return ""
    messages = counted(queue.stats.depth.delayed, "delayed message")
    return f"{messages}, and for {shown_time(late)} nobody has looked at what is due"


def _of_client(taken: Snapshot) -> Iterator[Finding]:
    """Yield what is not as it should be with the workers, the upkeep, and the records of queues."""
    client = taken.client
    for name, why in taken.unreadable.items():
        yield Finding(
            PROBLEM, f"queue {name} of {client}: {why}", "until then nobody can consume it, nor is it swept",
            "unreadable", client, (name,),
        )  # fmt: skip
    yield from _schedules(taken)
    workers, upkeep = list(_workers(taken)), _upkeep(taken)
    cause = next((n for n, one in enumerate(workers) if one.state == PROBLEM), None)
    if upkeep and upkeep.state == PROBLEM and cause is not None and not _works(taken):
        # Nobody works at all: then that nobody does the upkeep is no other problem.
        also = f"; so there is no upkeep either{_undone(taken)}"
        queues = tuple(dict.fromkeys(workers[cause].queues + upkeep.queues))
        workers[cause] = replace(workers[cause], what=workers[cause].what + also, queues=queues)
        upkeep = None
    yield from workers
    if upkeep:
        yield upkeep
    yield from _clock(taken)


def _clock(taken: Snapshot) -> Iterator[Finding]:
    """Tell of workers of which it is not known whether they live, as the server's clock was set back. In a file the
    time of a record does not go back, so that it stands still until the machine's clock has come after it.
    """
    if taken.ahead > CLOCK_AHEAD and taken.queues:
        what = (
            f"records of {taken.client} are {shown_time(taken.ahead)} ahead of this machine's clock, which was set back"
        )
        what += ", or is wrong: until it has come after them, workers that died are said to work"
        remedy = "look at the processes themselves, and start what is missing; let clocks follow NTP"
        every = tuple(queue.name for queue in taken.queues)
        yield Finding(WARNING, what, remedy, "clock", taken.client, every)
    queues = tuple(queue.name for queue in taken.queues if any(one.is_ahead for one in queue.at_work))
    ahead = {one.worker: one for queue in taken.queues for one in queue.at_work if one.is_ahead}
    if ahead:
        by = shown_time(max(one.ahead for one in ahead.values()))
        names = _listed([short_name(name) for name in ahead])
        what = f"the clock of the store was set back, by {by} at least, and since then {names} did not report"
        remedy = "one that lives reports within 15 s; where its process has ended, start another; let clocks follow NTP"
        yield Finding(WARNING, f"{_queues(queues)} of {taken.client}: {what}", remedy, "clock", taken.client, queues)


def _schedules(taken: Snapshot) -> Iterator[Finding]:
    """Tell of schedules that publish nothing, as they are paused, or cannot be read, or as their queue takes none."""
    client, not_active = taken.client, {queue.name for queue in taken.queues if not queue.live.active}
    for name, why in taken.unreadable_schedules.items():
        yield Finding(PROBLEM, f"schedule {name} of {client}: {why}", "it publishes nothing", "unreadable", client)
    for one in taken.schedules:
        if one.paused is not None:
            who = f" by {one.paused_by}" if one.paused_by else ""
            ago = shown_time(max(0.0, taken.at - one.paused.timestamp()))
            name = one.schedule.name
            what = f"schedule {name} of {client}: paused{who}, {ago} ago; it publishes nothing"
            remedy = f"latchwork schedule resume {name} --client {client}"
            yield Finding(WARNING, what, remedy, "schedule", client, (one.schedule.queue,))
        elif unpublished := why_unpublished(one, not_active, client):
            ticks, remedy = unpublished
            what = f"schedule {one.schedule.name} of {client}: {ticks}"
            yield Finding(PROBLEM, what, remedy, "schedule", client, (one.schedule.queue,))


def why_unpublished(one: ScheduleState, not_active: Collection[str], client: str) -> tuple[str, str] | None:
    """Return what of a schedule is not published as its queue is deactivated, and the remedy; None where it is not.

    not_active: the queues that are deactivated.
    """
    name, queue = one.schedule.name, one.schedule.queue
    if queue not in not_active:
        return None
    missed = one.overdue()
    since = "" if one.settled is None else f" since {_clock_time(one.settled.timestamp(), one.now.timestamp())}"
    ticks = f"{counted(missed, 'tick')} not published{since}" if missed else "its ticks are not published"
    many = "at least " if missed >= MAX_TICKS else ""
    activate = f"latchwork queue activate {queue} --client {client}"
    remedy = f"latchwork schedule remove {name} --client {client}; or activate it: {activate}"
    return f"{many}{ticks}: queue {queue} is deactivated", remedy


def _upkeep(taken: Snapshot) -> Finding | None:
    """Return that no process does the upkeep, or that it is overdue; None where neither is so."""
    client, leader, late = taken.client, taken.leader, _not_swept(taken)
    if leader is not None and leader.leads:
        if not late:
            return None
        state, who = (WARNING, _new_leader(leader)) if leader.is_new else (PROBLEM, f"; {taken.upkeep}")
        what = f"{_queues(tuple(late))} of {client}: {_swept(late)}, so the messages of dead consumers stay{who}"
        remedy = "`sweep error` in latchwork stats, and the log of the process that leads, say why"
        return Finding(state, what, remedy, "upkeep", client, tuple(late))
    undone = _undone(taken)
    died = leader is not None and leader.held and leader.renewed_ago > max(SUCCEEDED_WITHIN, 2 * leader.lease)
    if not undone and not died:
        return _not_needed(taken)
    queues = tuple(queue.name for queue in taken.queues if queue.name in late or _left(queue))
    what = f"no upkeep of {client}: {taken.upkeep}{undone}"
    soon, whose = bool(taken.candidates), "a candidate"
    if leader is not None and leader.held and _reports(leader.name, taken):
        what += f"; {short_name(leader.name)} reports, so the store was away or restarted, or that process was paused: "
        what += f"an election follows within {SUCCEEDED_WITHIN:.0f} s"
        soon, whose = True, "that process"
    if soon:
        remedy = f"wait {SUCCEEDED_WITHIN:.0f} s; if it stays so, the log of {whose} says why"
        return Finding(WARNING, what, remedy, "upkeep", client, queues)
    remedy = f"run a worker or a consumer of {client}, or `latchwork queue sweep --client {client} --every 900`"
    if _works(taken):
        remedy += "; the ones that run are without upkeep, or their logs say why they do none"
    return Finding(PROBLEM, what, remedy, "upkeep", client, queues)


def _works(taken: Snapshot) -> bool:
    """Whether any process is known to work."""
    return any(not one.is_overdue for queue in taken.queues for one in queue.at_work)


def _not_needed(taken: Snapshot) -> Finding | None:
    """Return that nobody does the upkeep, and that nobody misses it; None where the queues were swept in time."""
    names = tuple(_not_swept(taken, also_over=True))
    if not names:
        return None
    over = f"{_queues(names)} {'is' if len(names) == 1 else 'are'} empty, and nobody works there"
    what = f"no upkeep of {taken.client}: {taken.upkeep}; none is needed: {over}"
    return Finding(OK, what, "a worker that is started does the upkeep", "upkeep", taken.client, names)


def _reports(process: str, taken: Snapshot) -> bool:
    """Whether this process is known to work: it has reported lately."""
    return any(one.worker == process and not one.is_overdue for queue in taken.queues for one in queue.at_work)


def _new_leader(leader: Leader) -> str:
    return f"; {leader.name} was elected {shown_time(leader.led_for)} ago, and begins with it"


def _not_swept(taken: Snapshot, *, also_over: bool = False) -> dict[str, float]:
    """Return the queues that were not swept in time, each with the seconds since it was, or was made.

    also_over: those too of which nobody misses the sweep, as they are over.
    """
    ago = {queue.name: taken.at - (queue.stats.last_sweep.success / 1000 or queue.made) for queue in taken.queues}
    late = {queue.name: ago[queue.name] for queue in taken.queues if ago[queue.name] > 2 * queue.sweep_interval}
    if also_over or (taken.leader is not None and taken.leader.held):  # one leads, or died: then it is missed
        return late
    return {queue.name: late[queue.name] for queue in taken.queues if queue.name in late and not _is_over(queue, taken)}


def _is_over(queue: QueueState, taken: Snapshot) -> bool:
    """Whether nobody works on a queue, and nothing of it waits for anybody: no message, and no tick of a schedule."""
    ticks = any(one.paused is None for one in taken.schedules) or bool(taken.unreadable_schedules)
    return not queue.at_work and queue.is_empty and queue.none_in_hand and not ticks


def _swept(late: Mapping[str, float]) -> str:
    return f"not swept for {'' if len(late) == 1 else 'up to '}{shown_time(max(late.values()))}"


def _left(queue: QueueState) -> str:
    """Return what of a queue waits for the upkeep; empty if nothing does."""
    sideline = queue.stats.sideline.waiting and _comes_back(queue)
    in_sideline = f"{_count(queue.stats.sideline, 'message')} in the sideline" if sideline else ""
    return ", ".join(filter(None, (in_sideline, _late(queue))))


def _undone(taken: Snapshot) -> str:
    """Return what the upkeep should have done, as the end of a sentence; empty if nothing."""
    late, parts = _not_swept(taken), [f"queue {queue.name}: {_left(queue)}" for queue in taken.queues if _left(queue)]
    if late:
        parts.insert(0, f"{_queues(tuple(late))} {_swept(late)}")
    return "".join(f"; {part}" for part in parts[:4]) + (f"; and {len(parts) - 4} more queues" if parts[4:] else "")


def _queues(names: Sequence[str]) -> str:
    return f"queue{'' if len(names) == 1 else 's'} {_listed(names, 5)}"


def _listed(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _named(workers: list[WorkerReport]) -> str:
    """Return the names of some workers, each with the age of its last report."""
    if len(workers) == 1:
        return f"{short_name(workers[0].worker)}, which last reported {shown_time(workers[0].ago)} ago"
    return _listed([
        f"{short_name(one.worker)} (last report {shown_time(one.ago)} ago{'; holds nothing' if one.settled else ''})"
        for one in workers
    ])  # fmt: skip
