"""Findings about handlers that run: they hang, take long, or keep a worker from stopping."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from ...plain import counted, shown_time, word
from ...queue.sharded.history import MINUTE
from ...queue.sharded.workers import WINDOW, Running, WorkerReport, short_name
from ..snapshot import QueueState, Snapshot
from . import words
from .finding import OK, PROBLEM, WAITED, WARNING, OfQueue
from .missing_workers import DRAIN_ENDS, DRAINS_LONG, drained, has_no_worker

RUNS_LONG, TIMES_LONGER = 60.0, 20.0
"""Seconds from which on a handler that runs is a finding; it takes far longer than the others from so many times the
time of a message in the last minute on.
"""
DONE_LATELY = 10
"""Messages that must have been done in the last minute so that the time of a message is known."""


def saturated(queue: QueueState, taken: Snapshot) -> OfQueue:
    """Yield the workers whose handlers hang: Python cannot end them, and with many of them it takes no messages."""
    full = [one for one in queue.at_work if one.is_saturated]
    if full:
        most = f"{'it takes' if len(full) == 1 else 'they take'} no more messages"
        waits = f"; {words.backlog([queue])}" if len(full) == len(queue.at_work) and queue.stats.ready.waiting else ""
        yield PROBLEM, "saturated", f"{_hangs(full)}: {most}{waits}", _end_it(full)
    if some := [one for one in queue.at_work if one.hung and not one.is_saturated]:
        each = [
            f"{2 * one.threads}{f' of {short_name(one.worker)}' if len(some) > 1 else ''}"
            for one in some
            if one.threads
        ]
        limit = f"; it still takes messages, and no more once {words.listed(each)} hang" if each else ""
        yield WARNING, "saturated", f"{_hangs(some)}{limit}", _end_it(some)


def not_taken(queue: QueueState, taken: Snapshot) -> OfQueue:
    """Yield that workers with free threads have done nothing for long, though messages are ready: as where a handler
    keeps the asyncio loop on which all others run, or where no handler begins, as each call before it fails.
    """
    ready, workers = queue.stats.ready, [one for one in queue.at_work if one.drains is None and not one.is_overdue]
    runs = max((run.seconds for one in workers for run in one.longest), default=0.0)
    waited = min(ready.oldest_age or 0.0, runs if queue.busy else _idle(queue, taken))
    is_idle = queue.busy < queue.threads and not any(one.acked or one.failed or one.is_saturated for one in workers)
    is_held = queue.stats.in_order and queue.busy  # by the handlers that run: where none does, the order holds nothing
    has_reason = queue.paused or is_held or queue.rate_limited or queue.stats.is_streamed
    if ready.waiting and waited > WAITED and is_idle and not has_reason:
        busy = f"taken, though only {queue.busy} of {counted(queue.threads, 'thread')} "
        busy += f"{'is' if queue.busy == 1 else 'are'} busy"
        done = busy if queue.busy else "done, and no handler runs"
        what = f"{words.backlog([queue])}, and for {shown_time(waited)} nothing was {done}"
        remedy = f"the log of {words.listed([short_name(one.worker) for one in workers])} says why: perhaps "
        remedy += _LOOP_IS_KEPT if queue.busy else _NONE_BEGINS
        yield PROBLEM if waited > RUNS_LONG else WARNING, "saturated", what, remedy


_LOOP_IS_KEPT = (
    "an async handler that keeps the loop; start another worker, and end that one with kill -9: on SIGTERM it would "
    "wait for its loop"
)
_NONE_BEGINS = "its calls of the store fail, or those of its rate= limiter"


def _idle(queue: QueueState, taken: Snapshot) -> float:
    """Return for how many seconds, at least, workers were there and nothing was done or failed, by the history; 0 = for
    none that are known, or workers have begun to take messages since, and their next reports say more.
    """
    idle = list(takewhile(lambda one: one.workers and one.acked == one.failed == 0, reversed(queue.minutes)))
    if not idle:
        return 0.0
    last, first = idle[0], idle[-1]
    if queue.stats.depth.fired != last.received == first.received:
        return 0.0
    noted = first.at + MINUTE
    return max(0.0, taken.at - max(noted, queue.live.changed / 1000))


def _hangs(workers: Sequence[WorkerReport]) -> str:
    """Return how many handlers hang, in which workers, and with which messages."""
    hung = sum(one.hung for one in workers)
    each = words.listed([short_name(one.worker) + (f" ({one.hung})" if len(workers) > 1 else "") for one in workers])
    found = [(one, run) for one in workers for run in one.longest if run.given_up]
    messages = f" (messages{_runs(sorted(found, key=_seconds, reverse=True))})" if found else ""
    return (
        f"{counted(hung, 'handler')} of {each} {'hangs' if hung == 1 else 'hang'}, past the handler_timeout{messages}"
    )


def _end_it(workers: Sequence[WorkerReport]) -> str:
    """Return how to end the processes of these workers: nothing waits for a handler that was given up."""
    each = []
    for one in workers:
        host, _, process = short_name(one.worker).rpartition(":")
        each.append(f"kill {process} on {host}" if host and process.isdigit() else f"end {short_name(one.worker)}")
    alone = "nothing else ends a handler that hangs (`latchwork worker --processes N` does both by itself)"
    return f"{words.listed(each)}, and start another: {alone}"


def draining(queue: QueueState, taken: Snapshot) -> OfQueue:
    """Yield the workers that have been about to stop for long, and the handlers that they wait for. Where messages wait
    and no other worker takes them, that is `no_worker`.
    """
    if has_no_worker(queue):
        return
    long = sorted((one for one in queue.draining if drained(one) >= DRAINS_LONG), key=drained, reverse=True)
    if long:
        each = [
            f"{short_name(one.worker)} for {shown_time(drained(one))} ({counted(one.running, 'handler')})"
            for one in long
        ]
        runs = _runs([(one, run) for one in long for run in one.longest if run.seconds < RUNS_LONG])
        what = f"about to stop, and taking no more messages: {words.listed(each)}{f'; at work{runs}' if runs else ''}"
        yield OK, "draining", what, f"{DRAIN_ENDS}; a second SIGTERM ends it at once"


def long_running(queue: QueueState, taken: Snapshot) -> OfQueue:
    """Yield the messages whose handlers have run longest: a warning where they take far longer than the others, or are
    soon given up.
    """
    running = [
        (one, run) for one in queue.at_work for run in one.longest if not run.given_up and run.seconds >= RUNS_LONG
    ]
    if not running:
        return
    running.sort(key=_seconds, reverse=True)
    longest, limit = running[0][1].seconds, queue.handler_timeout
    # 1. How long a handler usually takes, by the reports of the last minute, without those that have run for long.
    done, usual = sum(one.acked + one.failed for one in queue.at_work), None
    if done >= DONE_LATELY:
        usual = max(1, sum(one.running for one in queue.at_work) - len(running)) * WINDOW / done
    is_far = usual is not None and longest >= TIMES_LONGER * usual
    others = f"; the others take about {shown_time(usual)}" if is_far and usual is not None else ""
    # 2. The text and the remedy.
    what = f"at work for {'far longer than others' if is_far else 'long'}{_runs(running)}{others}"
    what += f"; after {shown_time(limit)} a handler is given up, and its message fails"
    if queue.stats.ready.waiting and not done:
        what += f"; none was done in the last minute, and {words.backlog([queue])}"
    worker, run = running[0]
    host, _, pid = short_name(worker.worker).rpartition(":")
    remedy = f"what it waits for: its log, or `py-spy dump --pid {pid}` on {host}; "
    if queue.is_shared:
        remedy += "where that process has to be ended, its message comes again"
    else:
        remedy += "where its handler calls check(), this ends it: "
        remedy += f"latchwork queue cancel {words.of_queue(queue.name, taken)} --id {word(run.message_id)}"
    yield WARNING if is_far or longest > limit / 2 else OK, "long_running", what, remedy


def _seconds(running: tuple[WorkerReport, Running]) -> float:
    return running[1].seconds


def _runs(running: Sequence[tuple[WorkerReport, Running]]) -> str:
    """Return messages with a running handler, each with its worker and for how long; empty for none."""
    each = [
        f"{words.message_id(run.message_id)} on {short_name(worker.worker)}, for {shown_time(run.seconds)}"
        for worker, run in running
    ]
    return f": {words.listed(each)}" if each else ""
