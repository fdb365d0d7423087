"""Findings about messages that wait: a backlog, messages that expire, messages that nothing brings back."""

from __future__ import annotations

from typing import NamedTuple

from ...plain import counted, one_line, shortened, shown_time, word
from ...queue.sharded.history import MINUTE
from ...queue.sharded.stats import Side
from ...queue.sharded.workers import short_name
from ..snapshot import QueueState, Snapshot
from . import words
from .finding import ACTS_WITHIN, OK, PROBLEM, WAITED, WARNING, OfQueue

STREAM_WAITED = 600.0
"""Seconds after which the messages that wait for a stream are a problem."""
WAITS_LONG = 300.0
"""Seconds from which on the oldest ready message is a finding though workers are there."""
GROWS_FOR, GROWS_WAITED = 180.0, 120.0
"""Seconds for which a backlog must have grown, and its oldest message must have waited, to be a finding: a burst that
is worked off is less.
"""
GROWS_BY, GROWS_SHARE = 10, 0.01
"""Messages, and part of the backlog, by which it must have grown in that time at least; a third of that in each part of
it, so that one burst does not count.
"""
PASSES, PASSED_WITHIN = 3, 600.0
"""Passes of a shovel, and seconds that they may take, after which what is still in the sideline is a finding."""
EXPIRED_LATELY = 86_400.0
"""Seconds for which messages that have expired are a finding."""
_IN_ORDER = "its consumers keep an order, so each shard has one handler at a time"
_NO_THREADS = "its workers have no thread for it now: their program says so, by concurrency=0 or start_at="
_RATE = "the rate of its consumers, rate= in their program, says how many handlers may begin"
DELIVERED_WITHIN = 60.0
"""Seconds that the delivery of delayed messages may be behind; a few are usual."""


def backlog(queue: QueueState, taken: Snapshot) -> OfQueue:
    """Yield a backlog that grows though workers are there, with the remedy; else one whose oldest message has waited
    for long. Where it is so large that its newest message would expire unread, that is a problem.
    """
    ready = queue.stats.ready
    if is_without_threads(queue) and (ready.oldest_age or 0.0) >= WAITS_LONG:
        yield OK, "backlog", f"{words.backlog([queue])}; {_NO_THREADS}", "change that program, or start another worker"
        return
    takes = any(one.drains is None and one.threads and not one.is_saturated for one in queue.at_work)
    is_streamed = queue.stats.is_streamed
    if ready.oldest_age is None or queue.paused or not takes or queue.is_held_by_order or is_streamed:
        return  # each of which is a finding already
    flow = _flow(queue, taken)
    lasts = ready.waiting / flow.taken if flow is not None and flow.taken else None
    if flow is not None and flow.grows and ready.oldest_age >= GROWS_WAITED:
        more, out = (f"{60 * a_second:,.0f} a minute" for a_second in (flow.grown, flow.taken))
        what = f"{words.backlog([queue])}, and {more} more come than are taken, for {shown_time(flow.over)}"
        what += f" (taken: {out}){_busy(queue)}"
        remedy = _more_workers(queue, taken)
        if lasts is not None and lasts > ready.life:
            what += f"; the newest would wait {shown_time(lasts)}, and expire unread after {shown_time(ready.life)}"
            yield PROBLEM, "expiring", what, remedy
        else:
            yield WARNING, "backlog", what, remedy
    elif ready.oldest_age >= (WAITED if queue.rate_limited else WAITS_LONG):
        at_rate = ""
        if flow is not None and lasts:
            at_rate = f"; as in the last {shown_time(flow.over)} all are taken in {shown_time(lasts)}"
        yield OK, "backlog", f"{words.backlog([queue])}{at_rate}{_busy(queue)}", _more_workers(queue, taken)


def is_without_threads(queue: QueueState) -> bool:
    """Whether it has workers, and none of them has a thread for it, though it is not paused."""
    acts = [one for one in queue.at_work if one.drains is None and one.acts_on >= queue.live.changed]
    return bool(acts) and not queue.threads and not queue.paused and not queue.stats.is_streamed


class _Flow(NamedTuple):
    """How a backlog changes. over: for these seconds; grown, taken: messages a second; grows: whether all the time."""

    over: float
    grown: float
    taken: float
    grows: bool


def _flow(queue: QueueState, taken: Snapshot) -> _Flow | None:
    """Return how its backlog has changed, by the records of the last minutes; None if there are too few."""
    noted = [(one.at, one.ready, one.received) for one in queue.minutes]
    known = [(at, ready, received) for at, ready, received in noted if ready is not None and received is not None]
    if not known or taken.at - known[0][0] < GROWS_FOR:
        return None
    (begin, at_first, received), ready = known[0], queue.stats.ready.waiting
    over, out = taken.at - begin, queue.stats.depth.fired - received
    if out < 0:  # the queue was lost, and made again
        return None
    if queue.rate_limited:  # what it holds up goes back, and is taken again
        done = [(one.acked or 0) + (one.failed or 0) for one in queue.minutes]
        out = round(over / MINUTE * sum(done) / len(done))
    middle = [before for at, before, _ in known if taken.at - at >= over / 3][-1]
    least = max(GROWS_BY, GROWS_SHARE * ready)
    grows = ready - at_first >= least and min(ready - middle, middle - at_first) >= least / 3
    return _Flow(over, (ready - at_first) / over, out / over, grows)


def _busy(queue: QueueState) -> str:
    """Return how many threads of its workers are busy, by their last reports; empty if there are no workers."""
    threads, running = queue.threads, queue.busy
    if not threads:
        return ""
    some = f"{running} of {counted(threads, 'thread')}"
    busy = some if running < threads else f"all {threads} threads" if threads > 1 else "the only thread"
    rate = "; their rate let no handler begin in the last minute" if queue.rate_limited else ""
    return f"; {busy} of {counted(len(queue.at_work), 'worker')} busy{rate}"


def _more_workers(queue: QueueState, taken: Snapshot) -> str:
    threads, running = queue.threads, queue.busy
    if queue.rate_limited and running < threads:
        return f"more workers do not help: {_RATE}"
    if queue.stats.in_order and running < threads:
        return f"its workers have free threads: {_IN_ORDER}"
    client = words.of_client(taken.client, taken.farm)
    scale = f"more threads in each: latchwork queue scale {word(queue.name)} THREADS {client}"
    if any(one.threads not in (0, queue.live.concurrency) for one in queue.at_work):
        scale = "more threads in their program, which fixes them"
    return f"more workers: latchwork worker MODULE:NAME; or {scale}"


def streamed(queue: QueueState, taken: Snapshot) -> OfQueue:
    """Yield that messages wait for the stream which owns the queue: a problem once they have waited for so long that
    its query hardly runs.
    """
    age = queue.stats.ready.oldest_age or 0.0
    if queue.stats.stream is not None and queue.stats.ready.waiting and age > WAITED:
        useless = "; workers are there, and can take none of it" if queue.at_work else ""
        what = f"the stream {queue.stats.stream!r} owns it, and {words.backlog([queue])}{useless}"
        yield PROBLEM if age > STREAM_WAITED else WARNING, "no_worker", what, _start_stream(queue.stats.stream)


def _start_stream(stream: str) -> str:
    again = "where its Spark query has ended, start it again: it goes on where it was"
    return f"{again}; or give the queue to workers: latchwork.spark.release(queue, {stream!r})"


def expiring(queue: QueueState, taken: Snapshot) -> OfQueue:
    """Yield the messages that have waited for more than half of their life."""
    name = words.of_queue(queue.name, taken)
    read = "start more workers" if queue.at_work else words.START_ONE
    if queue.stats.stream is not None:
        read = _start_stream(queue.stats.stream)
    elif queue.paused:
        read = f"latchwork queue resume {name}"
    for part, side, remedy in (
        ("ready", queue.stats.ready, read),
        ("sideline", queue.stats.sideline, f"bring back what is due: latchwork queue shovel {name}"),
        ("parked", queue.stats.parked, f"latchwork queue redrive {name}, or discard them"),
    ):
        if side.left is not None and side.is_half_over:
            what = f"the oldest {part} message expires in {shown_time(side.left)}, of a life of {shown_time(side.life)}"
            yield PROBLEM, "expiring", what, remedy


def expired(queue: QueueState, taken: Snapshot) -> OfQueue:
    """Yield how many messages have expired lately, of a queue that is older than a message lives."""
    age = taken.at - queue.made if queue.made else float("inf")
    removed = "expired, or were removed one by one"
    unread = "expired unread, or were cancelled or never written"  # a publisher may have died
    for part, side, how, remedy in (
        ("ready", queue.stats.ready, unread, "more workers, or a new queue with a longer message_expiry"),
        ("sideline", queue.stats.sideline, removed, "bring back what is left before it expires too"),
        ("parked", queue.stats.parked, removed, "redrive or discard what is left before it expires too"),
    ):
        ago = side.expired_ago
        if side.expired and ago is not None and ago < EXPIRED_LATELY and age >= side.life:
            noticed = f"the last was noticed {shown_time(ago)} ago"
            if not ago:  # they are noted with the next claim; until then every look finds them
                noticed = "when is not known, as nobody has taken messages from there since"
            what = f"{part} messages that {how}: {side.expired:,} since the queue was made; {noticed}"
            yield WARNING, "expired", what, f"these are gone; {remedy}"
    ago = queue.stats.delayed_expired_ago
    if ago is not None and ago < EXPIRED_LATELY:
        what = f"delayed messages and retries that expired, as no upkeep ran: {queue.stats.delayed_expired:,}"
        what += f"; the last were noticed {shown_time(ago)} ago"
        yield WARNING, "expired", what, "these are gone; let a worker, or a sweep, run all the time"


def stranded(queue: QueueState, taken: Snapshot) -> OfQueue:
    """Yield the messages that nothing brings back, though a process does the upkeep."""
    leader, name = taken.leader, words.of_queue(queue.name, taken)
    if queue.stats.sideline.waiting and not comes_back(queue):
        messages = side_count(queue.stats.sideline, "message")
        what = f"{messages} in the sideline, which nothing brings back: the queue does not retry"
        remedy = f"once: latchwork queue shovel {name}; from now on: latchwork queue set {name} --retry"
        yield PROBLEM, "stranded", what, remedy
    if leader is not None and leader.leads and not leader.is_new and (stays := _stays_in_sideline(queue)):
        remedy = "the log of the process that leads says why"
        if leader.only_sweeps:
            stays, remedy = f"{stays}; {words.only_sweeps(leader.name, 'runs no shovel')}", words.end_sweeper(taken)
        yield WARNING, "stranded", stays, remedy
    if leader is not None and leader.leads and (late := late_delivery(queue)):
        who, remedy = words.new_leader(taken), "the log of the process that leads says why"
        if leader.only_sweeps:
            who, remedy = f"; {words.only_sweeps(leader.name)}", words.end_sweeper(taken)
        yield WARNING if leader.is_new else PROBLEM, "stranded", f"{late}{who}", remedy
    if queue.unreported and not queue.abandoned:
        what = (
            f"{counted(queue.unreported, 'message')} in hand of nobody that reports: of a program that calls receive() "
        )
        what += "itself, or of a worker that is gone"
        remedy = f"a worker, or `{words.sweep(taken)}`, brings back the messages of one that is gone"
        yield WARNING, "stranded", what, f"{remedy}, within {shown_time(queue.returns_within)}"
    if queue.stats.unsettled:
        first, more = queue.stats.unsettled[0], len(queue.stats.unsettled) - 1
        ago = shown_time(taken.at - first.since / 1000)
        others = f" and {more} more" if more else ""
        why = shortened(one_line(first.record), words.ERROR_SHOWN)
        what = f"the message {words.message_id(first.message_id)}{others} waited {ago} for the write with which it goes"
        remedy = "it comes once the record is made; if that never will be: latchwork queue discard"
        command = f"{remedy} {name} --side delayed --id {word(first.message_id)}"
        yield WARNING, "stranded", f"{what}: {why}", command


def side_count(side: Side, noun: str) -> str:
    """Return how many messages a side has, or at most has."""
    return ("" if side.is_exact else "at most ") + counted(side.waiting, noun)


def comes_back(queue: QueueState) -> bool:
    """Whether the upkeep brings back what is in its sideline."""
    return queue.live.shovel is not None or queue.retries


def _stays_in_sideline(queue: QueueState) -> str:
    """Return that its shovel has left a message in the sideline for several passes; empty if it has not. A pass stores
    again what is not due yet, so no message there should be older than a few passes.
    """
    shovel, side = queue.live.shovel, queue.stats.sideline
    if shovel is None or queue.paused or side.left is None:
        return ""
    here = side.life - side.left
    if here <= PASSES * shovel.interval.total_seconds() + PASSED_WITHIN:
        return ""
    of = side_count(side, "message")
    return f"{of} in the sideline, the oldest for {shown_time(here)}: its shovel has not come to it"


def late_delivery(queue: QueueState) -> str:
    """Return that the delivery of its delayed messages is behind; empty if it is not."""
    late = queue.stats.delayed_late
    if late is None or late <= DELIVERED_WITHIN:
        return ""
    messages = counted(queue.stats.depth.delayed, "delayed message")
    return f"{messages}, and for {shown_time(late)} nobody has looked at what is due"


def why_it_waits(
    queue: QueueState, taken: Snapshot, *, is_ready: bool = False, is_retry: bool = False, waits_for: str | None = None
) -> str:
    """Return why a message that is due has not come to a handler yet, with the remedy where there is one.

    is_ready: whether it waits for a worker alone; else the upkeep has to bring it first.
    is_retry: whether it has failed, and waits to be tried again.
    waits_for: the record whose write it waits for, if it goes with one.
    """
    late, leader = queue.stats.delayed_late or 0.0, taken.leader
    if queue.stats.stream is not None:
        why = f"the stream {queue.stats.stream!r} owns the queue: {_start_stream(queue.stats.stream)}"
    elif queue.paused:
        since = queue.live.changed
        ago = f" for {shown_time(max(0.0, taken.at - since / 1000))}" if since else ""
        why = f"the queue is paused{words.by(queue.live.changed_by)}{ago}: "
        why += f"latchwork queue resume {words.of_queue(queue.name, taken)}"
    elif not is_ready and (leader is None or not leader.leads):
        start = words.START_ONE
        if taken.has_workers:
            start = f"the workers there are without it: {words.sweep(taken)}"
        why = f"nobody does the upkeep, which brings it: {taken.upkeep}{'' if taken.candidates else f'; {start}'}"
    elif not is_ready and waits_for:
        why = "it comes once the write with which it goes is made"
    elif is_retry and queue.stats.sideline.waiting and not comes_back(queue):
        shovel = f"latchwork queue shovel {words.of_queue(queue.name, taken)}"
        why = f"the queue does not retry, so nothing brings back what is in its sideline: {shovel}"
    elif not is_ready and late > DELIVERED_WITHIN:
        why = f"for {shown_time(late)} the upkeep has not looked at what is due: the log of its leader says why"
        why = words.only_sweeps(leader.name) if leader is not None and leader.only_sweeps else why
    elif not queue.at_work:
        why = f"no worker is there: {words.START_ONE}"
    elif len(queue.at_work) == len(queue.draining):
        why = f"all workers are about to stop: {words.START_ONE}"
    elif absent := _absent(queue, taken):
        why = absent
    else:
        why = _why_not_taken(queue) if is_ready else "the upkeep brings it within some seconds"
    return why


def _why_not_taken(queue: QueueState) -> str:
    """Return why its workers have not taken a message that is ready."""
    threads, running = queue.threads, queue.busy
    if running >= threads > 0:
        of = f"{counted(threads, 'thread')} of {counted(len(queue.at_work), 'worker')}"
        return f"when its workers last reported, all were busy ({of}): start more, or scale it"
    if is_without_threads(queue):
        return _NO_THREADS
    if queue.stats.in_order:
        return f"messages of its shard come first: {_IN_ORDER}"
    if queue.rate_limited:
        return _RATE
    if (queue.stats.ready.oldest_age or 0.0) > WAITED:
        return "its workers have free threads and do not take it: their logs say why"
    return "a worker takes it soon"


def _absent(queue: QueueState, taken: Snapshot) -> str:
    """Return that each worker of a queue is overdue, or has not acted on the last change; empty if one is well."""
    ago, workers = taken.at - queue.live.changed / 1000, queue.at_work
    late = [one for one in workers if one.acts_on < queue.live.changed and ago > ACTS_WITHIN]
    silent = [one for one in workers if one.is_overdue and not one.is_ahead]
    if not all(one in silent or one in late for one in workers):
        return ""
    names = words.listed([short_name(one.worker) for one in workers])
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
