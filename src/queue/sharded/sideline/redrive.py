"""Bringing parked messages back to their queue (docs/protocols P5)."""

from __future__ import annotations

from msgspec.structs import replace

from ....errors import LatchworkError, Unavailable
from ....inputs import checked_switch, checked_whole
from ..envelope import Envelope, Message, message_of, reason_of
from ..shards import Shards
from ..slots import Stamped
from ..subqueue import Subqueue
from .drain import BATCH, PassReport, drain_shard

PREVIOUS_ATTEMPTS = "latchwork-attempts"
"""The header in which a redriven message keeps how often it had been handed out before."""


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


def as_new(envelope: Envelope) -> Envelope:
    """Return the message with no attempts and nothing to wait for; how often it had been handed out is in its
    header.
    """
    stored = (envelope.headers or {}).get(PREVIOUS_ATTEMPTS, "")
    # Any publisher may have given such a header.
    before = int(stored) if stored.isascii() and stored.isdigit() and len(stored) < 10 else 0
    headers = {**(envelope.headers or {}), PREVIOUS_ATTEMPTS: str(before + envelope.attempts)}
    return replace(envelope, attempts=0, interrupts=0, not_before=0, headers=headers)


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
