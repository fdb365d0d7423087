"""What a person can do on the screen, each with its consequence in words, said before it is done."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import LatchworkError
from ...observe.audit import Deed, audited, note_progress
from ...observe.findings.words import listed
from ...observe.snapshot import QueueState, Snapshot
from ...plain import counted, one_line, shown_time
from ...queue import Message, QueueRegistry, ShardedQueue
from ...queue.sharded.config import MAX_CONSUMERS
from ...store import RecordStore
from ..bulk import MOST_CHOSEN, Run, account_of, act, choose, outcomes_in
from .feed import Feed
from .pages import message_row

MOST = 1_000
"""Parked messages that are redriven at once."""
SAMPLE = 20
"""Messages that are named before an action on all that match is confirmed."""
SPARE = 0.8
"""Seconds that are left of a page's time when choosing ends."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action that is done once it is confirmed.

    key: farm, client and queue, and the names of the messages or other things that it is done to; or farm, kind and
    name. run: does it in this store, as the person of the deed, and returns how it ended; raises the store's errors.
    before: the state before it, for the audit record.
    """

    title: str
    consequence: str
    key: Sequence[str]
    run: Callable[[RecordStore, Deed], str]
    before: str = field(default="", kw_only=True)

    def do(self, feed: Feed, who: str, why: str = "") -> str:
        """Do it, with a record of who has done what; return what became of it. Raises the store's errors."""
        what, farm, target = self.title.partition(" ")[0], self.key[0], "/".join(self.key[1:])
        store = feed.stores[farm]
        with audited(store, Deed(farm, who, what, target, why, self.before)) as deed:
            deed.after = self.run(store, deed)
        return deed.after


def on_queue(key: Sequence[str], run: Callable[[ShardedQueue, Deed], str]) -> Callable[[RecordStore, Deed], str]:
    """Return what does this to a queue."""
    return lambda store, deed: run(QueueRegistry(store, key[1], farm_id=key[0]).get(key[2]), deed)


def switch(key: Sequence[str], taken: Snapshot, state: QueueState) -> Action:
    """Return the pause of a queue, or its end where it is paused."""
    name, workers = one_line(state.name), counted(len(state.at_work), "worker")
    if not state.paused:
        ready = counted(state.stats.ready.waiting, "ready message")
        life = shown_time(state.stats.ready.life)
        return Action(
            f"pause {name}",
            f"Within 3 s no handler begins in {workers}. Handlers that have begun go on to their end. {ready} wait, "
            f"and go on expiring, each after {life}.{_groups_go_on(taken, state)}",
            key,
            on_queue(key, _paused),
            before=_threads(state),
        )
    since = f", {shown_time(taken.at - state.live.changed / 1000)} ago" if state.live.changed else ""
    who = f"It was paused by {state.live.changed_by or 'its maker'}{since}: is the reason gone? "
    return Action(
        f"resume {name}",
        one_line(who) + f"{workers} will take its messages again within 3 s; ready: {state.stats.ready.waiting:,}.",
        key,
        on_queue(key, _resumed),
        before=f"paused{since}",
    )


def _groups_go_on(taken: Snapshot, state: QueueState) -> str:
    groups = [one_line(one.name) for one in taken.queues if one.group_of == state.name and not one.paused]
    return f" Its groups go on: {listed(groups)}; pause each by itself." if groups else ""


def _threads(state: QueueState) -> str:
    return counted(state.live.concurrency, "thread")


def _paused(queue: ShardedQueue, deed: Deed) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the screen says it
        queue.pause(by=deed.who)
    return f"paused {queue.name}; it names below who has not acted on it in 10 s"


def _resumed(queue: ShardedQueue, deed: Deed) -> str:
    queue.resume(by=deed.who)
    return f"resumed {queue.name}, {counted(queue.concurrency, 'thread')} in each worker"


def scale(key: Sequence[str], state: QueueState, threads: int) -> Action | str:
    """Return the action that changes the number of threads; or why it cannot be done."""
    if not 0 <= threads <= MAX_CONSUMERS:
        return f"{threads} threads: give 0 to {MAX_CONSUMERS}"
    now, name = state.live.concurrency, one_line(state.name)
    what = "0 threads: that is a pause. " if not threads else "It is paused, and works again. " if not now else ""

    def scaled(queue: ShardedQueue, deed: Deed) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            queue.scale(threads, by=deed.who)
        return f"{queue.name}: {counted(threads, 'thread')} in each worker"

    return Action(
        f"scale {name} from {now} to {threads}",
        f"{what}Each of {counted(len(state.at_work), 'worker')} has {counted(threads, 'thread')} within 3 s: at most "
        f"{threads * len(state.at_work):,} handlers at a time.",
        key,
        on_queue(key, scaled),
        before=_threads(state),
    )


def redrive_all(key: Sequence[str], state: QueueState) -> Action | str:
    """Return the action that redrives the parked messages of a queue; or why there is nothing to do."""
    parked, name = state.stats.parked.waiting, one_line(state.name)
    if not parked:
        return f"nothing is parked in {name}"
    return Action(
        f"redrive {name}",
        f"{counted(min(parked, MOST), 'parked message')} of {parked:,} go back to the queue, and start again with no "
        "attempts. What made them fail will do so again, unless it was repaired.",
        key,
        on_queue(key, _redriven),
        before=f"{parked:,} parked",
    )


def _redriven(queue: ShardedQueue, deed: Deed) -> str:
    try:
        return f"redriven: {len(queue.redrive(MOST)):,}"
    except LatchworkError as failure:
        if done := failure.details.get("redriven"):
            raise _with_account(failure, deed, f"redriven: {len(done):,}") from failure
        raise


def _with_account(failure: LatchworkError, deed: Deed, account: str) -> LatchworkError:
    """Return the error with what was done all the same in its text, and note both in the deed."""
    deed.after = f"{account}; {failure}"
    told = type(failure)(deed.after)
    told.details = failure.details
    return told


def some_messages(key: Sequence[str], verb: str, side: str, messages: Sequence[str], to: str = "") -> Action | str:
    """Return the action on these messages of one side: `redrive`, `discard`, `cancel`, or `move` to the queue `to`; or
    why it cannot be done.
    """
    name, many = one_line(key[2]), len(messages) > 1
    if refusal := refusal_of(verb, side, to):
        return refusal
    consequence = consequence_of(verb, side, to, many=many)
    shown = counted(len(messages), "message") if many else one_line(messages[0])
    return Action(
        f"{verb} {shown} of {name}{f' to {one_line(to)}' if to else ''}", consequence, (*key, shown),
        on_queue(key, lambda queue, deed: _done(queue, deed, verb, side, messages, to)),
        before=side,
    )  # fmt: skip


def refusal_of(verb: str, side: str, to: str) -> str:
    """Return why this cannot be done to messages of a side; empty if it can be."""
    if side == "ready":
        return "a ready message is its workers': pause the queue, or let them have it"
    if verb == "cancel" and side != "delayed":
        return "only a delayed message can be cancelled; d discards this one"
    return "give the queue to which they are moved" if verb == "move" and not to else ""


def consequence_of(verb: str, side: str, to: str, *, many: bool) -> str:
    """Return, in words, what happens to a message of a side, or to many."""
    one, it_is = ("Each", "They are") if many else ("It", "It is")
    return {
        "redrive": f"{one} is tried again now, and starts with no attempts. {'They leave' if many else 'It leaves'} "
        f"{side}.",
        "discard": f"{it_is} deleted from {side}, and no handler gets {'them' if many else 'it'} any more. "
        "This cannot be undone.",
        "move": f"{one} leaves {side}, and waits in {one_line(to)} of this client, with no attempts.",
        "cancel": f"{it_is} never delivered. This cannot be undone.",
    }[verb]


def _done(queue: ShardedQueue, deed: Deed, verb: str, side: str, messages: Sequence[str], to: str) -> str:
    """Return the outcome of the message; of several, how many had which outcome, and those not done by name.

    Raises the store's errors; where one of several messages failed, the same is in the text, and in the deed.
    """
    try:
        outcomes = act(queue, verb, side, messages, queue.registry.get(to) if to else None)
    except LatchworkError as failure:
        if len(messages) == 1 or "outcomes" not in failure.details:
            raise
        raise _with_account(failure, deed, f"{verb}: {account_of(outcomes_in(failure, messages))}") from failure
    if len(messages) == 1:
        (said,) = [one.value for one in outcomes.values()] or ["it was not there"]
        return f"{verb} {messages[0]}: {said}"
    return f"{verb}: {account_of({message: outcome.value for message, outcome in outcomes.items()})}"


def of_all(key: Sequence[str], run: Run) -> Action | str:
    """Return the action on all messages that were chosen; or why it cannot be done."""
    chosen, name = run.chosen, one_line(key[2])
    if refusal := refusal_of(run.verb, chosen.side, run.to):
        return refusal
    if not chosen.messages:
        return f"nothing {chosen.side} in {name} matches" + (
            " in the records that were looked at" if chosen.more else ""
        )
    shown_count = counted(len(chosen.messages), "message")
    more = f" Others match, or may: it is at most {MOST_CHOSEN:,} at once." if chosen.more else ""

    def done(queue: ShardedQueue, deed: Deed) -> str:
        run.by = deed.who
        return run.go(queue, lambda said: note_progress(queue.store, deed, said))

    return Action(
        f"{run.verb} {shown_count} of {name}{f' to {one_line(run.to)}' if run.to else ''}",
        f"These {shown_count}, chosen now ({one_line(chosen.words)}), and no others.{more} "
        f"{consequence_of(run.verb, chosen.side, run.to, many=True)} It goes on in parts, and can be stopped.",
        (*key, shown_count),
        on_queue(key, done),
        before=f"{chosen.side}: {chosen.words}",
    )  # fmt: skip


def run_of_filter(
    queue: ShardedQueue,
    verb: str,
    side: str,
    text: str,
    to: str = "",
    *,
    match: Mapping[str, Any] | None = None,
    most: int = MOST_CHOSEN,
) -> Run:
    """Return the run of all messages of a side that match, and whose row has this text, as the filter of a page has it.

    Costs and raises as `choose`.
    """
    now = queue.store.seams.wall()

    def contains(message: Message) -> bool:
        return text.casefold() in " ".join(message_row(side, message, now).cells).casefold()

    also = contains if text else None
    return Run(verb, choose(queue, side, match or {}, text=text, also=also, most=most, spare=SPARE), to)
