"""Findings about messages that failed: parked, failing faster than others are done, or tried again."""

from __future__ import annotations

from collections import Counter

from ...plain import counted, shown_time
from ...queue.sharded.delayed.stored import LastRetry
from ...queue.sharded.history import NOT_FAILING, Failing
from ..snapshot import QueueState, Snapshot
from . import words
from .finding import OK, PROBLEM, WARNING, OfQueue
from .waiting_messages import side_count, why_it_waits

MANY_FAILED = 3
"""Failures in a minute from which on it is a problem that more failed than were done; and failures one after the other,
with no message done in between, from which on all messages of a queue are said to fail.
"""
LOOKED_WITHIN = 30.0
"""Seconds for which a message that is due may still be on its way, though the upkeep has looked at what is due."""
REDRIVEN = 100
"""Messages that `latchwork queue redrive` brings back without --all."""


def parked(queue: QueueState, taken: Snapshot) -> OfQueue:
    """Yield the parked messages, with the message that was parked first: which, why and when."""
    if queue.stats.parked.waiting:
        first, oldest = queue.stats.oldest_parked, ""
        if first is not None:
            oldest = f"; the oldest, {words.message_id(first.message_id)}{words.failure(first.error)}"
            oldest += f": {shown_time(first.ago)} ago"
        messages = side_count(queue.stats.parked, "parked message")
        name = words.of_queue(queue.name, taken)
        what = f"{messages}, failed too often: nothing brings parked messages back{oldest}"
        remedy = f"latchwork queue peek {name} --side parked; repair the cause, then latchwork queue redrive {name}"
        remedy += " --all" if queue.stats.parked.waiting > REDRIVEN else ""
        yield PROBLEM, "parked", what, remedy


def failing(queue: QueueState, taken: Snapshot) -> OfQueue:
    """Yield that messages fail faster than others are done, and how many are tried again."""
    stats, search = queue.stats, f"latchwork queue search {words.of_queue(queue.name, taken)} --side"
    failed, acked = (sum(getattr(one, of) for one in queue.at_work) for of in ("failed", "acked"))
    retrying = stats.depth.retrying
    # 1. No message was done, and attempts failed again and again, perhaps far from each other.
    row = NOT_FAILING if acked else Failing.of(queue.minutes)
    if retrying and row.attempts >= MANY_FAILED and not stats.parked.waiting:
        what = f"no message was done since {words.clock_time(row.since, taken.at)}, and every attempt failed"
        what += f"; {counted(retrying, 'message')} will be tried again{_last_retry(queue, taken)}"
        yield PROBLEM, "failing", what, f"the logs of its workers have each failure; {search} delayed"
        return
    # 2. More attempts failed than messages were done, in the minute before the last reports.
    if failed > acked:
        counts = sum((Counter(one.reasons) for one in queue.at_work), Counter[str]())
        reasons = f" ({', '.join(f'{reason}: {n}' for reason, n in counts.most_common())})" if counts else ""
        ago = shown_time(max(one.ago for one in queue.at_work))
        when = f"its worker last reported, {ago} ago" if len(queue.at_work) == 1 else ""
        when = f"in the minute before {when or f'its workers last reported, up to {ago} ago'}"
        what = f"{counted(failed, 'attempt')} failed{reasons}, and {counted(acked, 'message')} succeeded, {when}"
        remedy = "the logs of its workers have each failure"
        places = ("delayed", retrying), ("sideline", stats.sideline.waiting), ("parked", stats.parked.waiting)
        if side := next((side for side, waiting in places if waiting), None):
            remedy += f"; {search} {side}"
        yield PROBLEM if failed >= MANY_FAILED else WARNING, "failing", what, remedy
    # 3. Messages will be tried again.
    if retrying:
        what = f"{counted(retrying, 'message')} failed, and will be tried again{_last_retry(queue, taken)}"
        yield OK, "retrying", what, f"{search} delayed"


def is_parked(queue: QueueState, last: LastRetry, taken: Snapshot) -> bool:
    """Whether the message that failed last waits no more, as far as can be seen: it is parked, or it has come since and
    some message is parked.
    """
    parked, since = queue.stats.parked.waiting, taken.at - last.due / 1000
    oldest = queue.stats.oldest_parked
    if oldest is not None and oldest.message_id == last.message_id:
        return True
    return bool(parked) and since > (queue.stats.delayed_late or 0.0) + LOOKED_WITHIN


def _last_retry(queue: QueueState, taken: Snapshot) -> str:
    """Return when the message that failed last is tried again, and why it failed."""
    last = queue.stats.last_retry
    if last is None:
        return ""
    left, late = last.due / 1000 - taken.at, queue.stats.delayed_late or 0.0
    if (
        is_parked(queue, last, taken) or -left > late + LOOKED_WITHIN
    ):  # the messages that were due then were looked at since: others wait
        return ""
    when = f"in {shown_time(left)}" if left >= 0 else f"due {shown_time(-left)} ago; {why_it_waits(queue, taken)}"
    return f"; the last one, {words.message_id(last.message_id)}{words.failure(last.error)}: {when}"
