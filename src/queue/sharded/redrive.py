"""Bringing back what is in the sideline or parked, in passes over it (docs/protocols P5).

Each message that was there when a pass began is taken once and moved. Messages that a pass loads again are at the tail,
beyond where the pass began, so it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import Corrupt, LatchworkError, Unavailable
from ...inputs import checked_switch, checked_whole
from ...store.rows import Rows
from .envelope import Envelope, Message, as_new, message_of, reason_of
from .pointers import ShardPointers
from .shards import Shards
from .slots import Slot, Stamped, StampMiss
from .subqueue import GRACE, Subqueue
from .transfer import into, move

BATCH = 1_000

Route = Callable[[Stamped], tuple[Shards, Envelope]]
"""The target of a message, and the message as it is stored there."""


@dataclass(frozen=True, slots=True)
class PassReport:
    """The result of one pass.

    taken: messages found.
    moved: messages that went to another queue.
    postponed: messages that were published again at the tail.
    tombstones: slots without a message.
    errors: messages that could not be moved and stay for the sweeper, and damaged shards.
    stayed: where the messages that stay were read.
    """

    taken: int = 0
    moved: int = 0
    postponed: int = 0
    tombstones: int = 0
    errors: tuple[LatchworkError, ...] = field(default=())
    stayed: tuple[Slot, ...] = field(default=(), repr=False)

    def __add__(self, other: PassReport) -> PassReport:
        return PassReport(
            self.taken + other.taken,
            self.moved + other.moved,
            self.postponed + other.postponed,
            self.tombstones + other.tombstones,
            (*self.errors, *other.errors),
            (*self.stayed, *other.stayed),
        )


def drain_shard(
    source: Shards, state: ShardPointers, route: Route, *, enough: Callable[[], bool] = lambda: False
) -> Iterator[PassReport]:
    """Take the messages of one shard that were there in `state`, a batch at a time, and send each where `route` says;
    yield the result of each batch.

    enough: asked before each batch; True ends the pass early.
    """
    if state.damage:
        yield PassReport(errors=(state.damage,))
    source.begin_firing([state])
    fired = state.fired
    while fired < state.loaded and not enough():
        try:
            claim = source.claim(state.shard, min(BATCH, state.loaded - fired))
        except Corrupt as damage:
            yield PassReport(errors=(damage,))
            return
        if claim is None:
            break
        fired = claim.last
        slots = [Slot(state.shard, pointer) for pointer in range(claim.after + 1, claim.last + 1)]
        held, tombstones, errors = take(source, slots)
        yield PassReport(taken=len(held), tombstones=tombstones, errors=tuple(errors)) + send(source, held, route)


def take(source: Shards, slots: Sequence[Slot]) -> tuple[list[Stamped], int, list[LatchworkError]]:
    """Return the messages at claimed slots, how many slots were given up after the grace, and what could not
    be read.
    """
    me = source.store.seams.unique()
    found: Rows[Any] = Rows(source.stamp(slots, me, count=False))
    absent = [n for n, what in enumerate(found) if what is StampMiss.ABSENT]
    given_up: Rows[bool] = Rows()
    if absent:
        source.store.seams.sleep(GRACE)
        given_up = source.give_up([slots[n] for n in absent])
        found.merge(absent, given_up)
    came = [n for n, gone in zip(absent, given_up, strict=True) if gone is False]
    if came:
        found.merge(came, source.stamp([slots[n] for n in came], me, count=False))
    held = [Stamped(slot, me, what) for slot, what in zip(slots, found, strict=True) if isinstance(what, Envelope)]
    return held, given_up.count(True), found.errors()


def send(source: Shards, held: Sequence[Stamped], route: Route) -> PassReport:
    """Move the messages to their targets, one batch for each target: loaded there first, then deleted here."""
    report, groups = PassReport(), dict[int, tuple[Shards, list[tuple[Stamped, Envelope]]]]()
    for h in held:
        target, envelope = route(h)
        groups.setdefault(id(target), (target, []))[1].append((h, envelope))
    for target, group in groups.values():
        outcomes = move([h for h, _ in group], into(target), [envelope for _, envelope in group], source.remove)
        _, failed = outcomes.sift(h.slot for h, _ in group)
        errors, stayed = tuple(failed.values()), tuple(failed)
        done = len(outcomes) - len(errors)
        away = target is not source
        report += PassReport(moved=done if away else 0, postponed=0 if away else done, errors=errors, stayed=stayed)
    return report


# ---- parked messages


def redrive(
    parked: Subqueue, main: Subqueue, limit: int, *, reason: str | None = None, dry_run: bool = False
) -> list[Message]:
    """Move parked messages back, as `ShardedQueue.redrive` describes."""
    checked_whole("limit", limit, 1, 1_000_000)
    checked_switch("dry_run", dry_run)
    wanted = None if reason is None else reason_of(reason)
    if dry_run:
        return [message for message in parked.peek_all() if wanted in (None, message.reason)][:limit]
    return _Redrive(parked, main, limit, wanted).run()


MOST_EMPTY = 100
"""Batches without a message, one after the other, after which a call leaves the rest of a shard to the next call."""


class _Redrive:
    """One pass over the parked messages, which ends when enough have been brought back."""

    def __init__(self, parked: Subqueue, main: Subqueue, limit: int, reason: str | None) -> None:
        self._parked, self._main, self._left, self._reason = parked, main, limit, reason
        self._chosen: list[Message] = []

    def run(self) -> list[Message]:
        source, report, settled = self._parked.pointers, PassReport(), 0
        try:
            for state in source.states():
                empty = 0
                for part in drain_shard(source, state, self._route, enough=lambda: self._left <= 0):
                    report, settled = report + part, len(self._chosen)
                    empty = 0 if part.taken or part.errors else empty + 1
                    if empty == MOST_EMPTY:
                        report += PassReport(errors=(self._too_empty(state.shard),))
                        break
        except LatchworkError as failure:  # raised below, with what was moved before
            report += PassReport(errors=(failure,))
        stayed = set(report.stayed)
        done = [one for one in self._chosen[:settled] if (one.shard, one.pointer) not in stayed]
        self._main.active.loaded({self._main.pointers.home(message.shard) for message in done})
        if report.errors:
            report.errors[0].details["redriven"] = [message.message_id for message in done]
            raise report.errors[0]
        return done

    def _too_empty(self, shard: int) -> Unavailable:
        parked = self._parked.pointers
        return Unavailable(
            f"{parked.name}: {MOST_EMPTY * BATCH:,} slots of shard {shard}, one after the other, hold no message, as "
            f"where many were discarded, or {parked.pointers_key(shard)} is damaged: redrive again to go on behind them"
        )

    def _route(self, held: Stamped) -> tuple[Shards, Envelope]:
        envelope = held.envelope
        if self._left <= 0 or self._reason not in (None, envelope.reason):
            return self._parked.pointers, envelope
        self._left -= 1
        self._chosen.append(message_of(envelope, self._main.codec, *held.slot))
        return self._main.pointers, as_new(envelope)
