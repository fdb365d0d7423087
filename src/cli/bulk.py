"""An action on all messages that match: they are chosen once, shown, and then taken part by part.

A choice does not change: a message that matches later is not taken, and a chosen message that has gone is reported so.
A message of the sideline, or a parked one, is known by its place; a delayed message by its id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..deadline import Deadline, present
from ..errors import InvalidRequest, LatchworkError, OutcomeUnknown, StorageFailed, Unavailable
from ..inputs import checked_whole
from ..plain import one_line, shown
from ..queue import Message, Outcome, ShardedQueue
from ..queue.sharded.selection import name_of
from ..queue.sharded.sides import MOST_READ, look_at, view_of
from ..store.rows import chunked

MOST_CHOSEN = 10_000
"""Messages that are chosen at once, at most."""
MOST_LOOKED = 100_000
"""Records that are looked at to choose them."""
PART, PART_OF = 100, {"cancel": 20}
"""Messages that are taken at a time; then it is seen whether to stop. A cancel takes each alone."""
PART_TIME = 30.0
"""Seconds for each part."""
NOT_TRIED = "not tried"
NO_ANSWER = (Unavailable, OutcomeUnknown, StorageFailed)
"""Errors of the store: the next message would fail as well. Any other error of a message is about this one alone."""


def act(
    queue: ShardedQueue, verb: str, side: str, messages: Sequence[str | Message], to: ShardedQueue | None = None
) -> Mapping[str, Outcome]:
    """Redrive, discard or move messages of a side, or cancel them; return the outcome of each, by its id.

    to: where they are moved. Raises the first error, whose details have the `outcomes` and the `failures` of all;
    `outcomes_in` returns both. An error without `outcomes` is not that of a message: nothing was done.
    """
    if verb == "cancel":
        return _cancelled(queue, messages)
    view = view_of(queue, side)
    if to is not None:
        return view.move(messages, to)
    return view.redrive(messages) if verb == "redrive" else view.discard(messages)


def _cancelled(queue: ShardedQueue, messages: Sequence[str | Message]) -> Mapping[str, Outcome]:
    """Cancel messages one by one, until the store does not answer; then its error is raised, else the first one."""
    outcomes: dict[str, Outcome] = {}
    failures: dict[str, str] = {}
    raised: LatchworkError | None = None
    for message in messages:
        id, name = (message, message) if isinstance(message, str) else (message.message_id, message.published_as)
        if id in outcomes or id in failures:  # a second cancel would not find what the first one has cancelled
            continue
        try:
            outcomes[id] = queue.cancel(name or id)
        except LatchworkError as failure:
            failures[id] = failure.code
            if isinstance(failure, NO_ANSWER):
                raised = failure
                break
            raised = raised or failure
    if raised is not None:
        raised.details |= {"outcomes": outcomes, "failures": failures}
        raise raised
    return outcomes


def outcomes_in(failure: LatchworkError, messages: Sequence[str | Message]) -> dict[str, str]:
    """Return the outcome of each message, by its id, as `Run` has it, from an error that `act` has raised."""
    known: Mapping[str, Outcome] = failure.details.get("outcomes", {})
    failures: Mapping[str, str] | None = failure.details.get("failures")
    # An error that does not say which failed is that of all; else a cancel has ended before the others.
    other = _in_words(failure.code) if failures is None else NOT_TRIED
    found = {id: outcome.value for id, outcome in known.items()}
    found |= {id: _in_words(code) for id, code in (failures or {}).items()}
    return {id: found.get(id, other) for id in map(name_of, messages)}


def _in_words(code: str) -> str:
    return f"{'unknown' if code == OutcomeUnknown.code else 'failed'}: {code}"


def counts_of(outcomes: Iterable[str]) -> str:
    """Return how many messages have which outcome, the most frequent one first."""
    return ", ".join(f"{n:,} {outcome}" for outcome, n in Counter(outcomes).most_common())


def account_of(outcomes: Mapping[str, str]) -> str:
    """Return how many messages have which outcome, and those that are not done by name."""
    others = [f"{message}: {outcome}" for message, outcome in outcomes.items() if outcome != Outcome.DONE.value]
    return "; ".join([counts_of(outcomes.values()), *others])


@dataclass(frozen=True, slots=True)
class Chosen:
    """Messages of one side of a queue, as they were found once.

    more: whether other messages match, or may match. words: the criteria, for people.
    """

    side: str
    messages: tuple[Message, ...]
    more: bool
    words: str

    @property
    def names(self) -> list[str]:
        """The ids with which they were published."""
        return [message.published_as or message.message_id for message in self.messages]


def choose(
    queue: ShardedQueue,
    side: str,
    match: Mapping[str, Any],
    *,
    text: str = "",
    also: Callable[[Message], bool] | None = None,
    most: int = MOST_CHOSEN,
    looked: int = MOST_LOOKED,
    spare: float = 0.0,
) -> Chosen:
    """Return up to `most` messages of a side that match; nothing is changed.

    match: as for `look_at`. also, text: another condition on a message, and the same in words.
    looked: the most records to look at. spare: it also ends when the deadline is no more than so many seconds ahead.

    A call for each 1,000 records, and one for each 10,000. Raises `InvalidRequest` and the store's errors.
    """
    if side == "ready":
        raise InvalidRequest("ready messages belong to their workers: choose sideline, parked or delayed")
    checked_whole("the largest number of messages", most, 1, MOST_CHOSEN)
    found, after, more, left, deadline = list[Message](), None, True, looked, present()
    while more and left > 0 and len(found) < most:
        if spare and deadline is not None and (rest := deadline.left()) is not None and rest <= spare:
            break
        step = min(left, 1_000 if spare else MOST_READ)
        look = look_at(queue, side, most - len(found), **match, also=also, most=step, after=after)
        # Without what is in it: only its place is needed.
        found += [replace(message, payload=None, raw="", headers={}) for message in look.messages]
        after, more, left = look.after, look.more, left - step
        if after is None:
            break
    words = [f"{name} {shown(value)}" for name, value in match.items() if value is not None]
    words += [f"with {shown(text)}"] if text else []
    return Chosen(side, tuple(found), more, ", ".join(words) or "all")


class Run:
    """An action on the messages that were chosen, and how far it is. Safe to share between threads.

    outcomes: of each message in the order in which they were chosen: `done`, `not there`, `asked`, `unknown`,
        `failed: CODE`, or `not tried`.
    """

    def __init__(self, verb: str, chosen: Chosen, to: str = "") -> None:
        self.verb, self.chosen, self.to = verb, chosen, to
        self.outcomes = [NOT_TRIED] * len(chosen.messages)
        self.by = self.stopped_by = self.failure = ""
        self.is_stopped = self.has_begun = self.is_over = False

    def stop(self, who: str = "") -> None:
        """Begin no further part; a part that has begun goes on to its end."""
        self.is_stopped, self.stopped_by = True, who

    @property
    def tried(self) -> int:
        """How many messages have an outcome."""
        return len(self.outcomes) - self.outcomes.count(NOT_TRIED)

    @property
    def counts(self) -> dict[str, int]:
        """How many messages have each outcome, the most frequent one first."""
        return dict(Counter(self.outcomes).most_common())

    @property
    def said(self) -> str:
        """How far it is, in one line."""
        counts = counts_of(self.outcomes)
        why = f"; it ended early: {self.failure}" if self.failure else ""
        if self.is_stopped and self.is_over and NOT_TRIED in self.outcomes:
            why = f"; stopped{f' by {self.stopped_by}' if self.stopped_by else ''}"
        return one_line(f"{self.verb} {self.tried:,} of {len(self.outcomes):,}: {counts}{why}")

    def rows(self) -> list[tuple[str, str]]:
        """Return each message with its outcome."""
        return list(zip(self.chosen.names, list(self.outcomes), strict=True))

    def go(self, queue: ShardedQueue, tell: Callable[[str], None] = lambda _: None) -> str:
        """Do it, part by part, and call `tell` after each part with how far it is. Return how it ended.

        It ends early if it is stopped, if the store does not answer, or if nothing can be done to any message, as where
        the other queue is gone. A message that fails alone does not end it. Errors of the store are not raised: they
        are in `outcomes` and `failure`. After an interrupt, the messages of the part that had begun are `unknown`.
        """
        self.has_begun = True
        try:
            for part in self._parts():
                if self.is_stopped or not self._take(queue, part):
                    break
                tell(self.said)
        finally:
            self.is_over = True
        return self.said

    def _parts(self) -> Iterator[Sequence[int]]:
        """Yield the numbers of the messages of each part. No part has two messages of one id: outcomes are known by the
        id.
        """
        left = list(range(len(self.chosen.messages)))
        while left:
            first: dict[str, int] = {}
            for n in left:
                first.setdefault(self.chosen.messages[n].message_id, n)
            yield from chunked(list(first.values()), PART_OF.get(self.verb, PART))
            taken = set(first.values())
            left = [n for n in left if n not in taken]

    def _take(self, queue: ShardedQueue, part: Sequence[int]) -> bool:
        """Do it to the messages of a part; return whether to go on."""
        messages = [self.chosen.messages[n] for n in part]
        for n in part:  # until the outcome is known, whatever interrupts it
            self.outcomes[n] = "unknown"
        try:
            with Deadline(queue.store.seams, PART_TIME):
                to = queue.registry.get(self.to) if self.to else None
                told = act(queue, self.verb, self.chosen.side, messages, to)
            outcomes = {id: outcome.value for id, outcome in told.items()}
        except LatchworkError as failure:
            outcomes = outcomes_in(failure, messages)
            self.failure = str(failure) if _ends(failure, outcomes) else ""
        for n, message in zip(part, messages, strict=True):
            self.outcomes[n] = outcomes.get(message.message_id, Outcome.NOT_THERE.value)
        return not self.failure


def _ends(failure: LatchworkError, outcomes: Mapping[str, str]) -> bool:
    """Whether the messages after these would fail as well."""
    known = failure.details.get("outcomes")
    if isinstance(failure, NO_ANSWER):  # but it answered for other messages of the part, as where one node is away
        return not known or NOT_TRIED in outcomes.values()
    return known is None  # the error is not that of a message
