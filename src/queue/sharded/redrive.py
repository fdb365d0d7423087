"""Bringing parked messages back to their queue (docs/protocols P5)."""

from __future__ import annotations

from msgspec.structs import replace

from ...errors import InvalidRequest
from ...inputs import checked_switch
from ...plain import shown
from .drain import PassReport, sweep_through
from .envelope import Envelope, Message, message_of, reason_of
from .shards import Held, PointerQueue
from .subqueue import QueueView

PREVIOUS_ATTEMPTS = "latchwork-attempts"
"""The header in which a redriven message keeps how often it had been handed out before."""


def redrive(
    parked: QueueView, main: QueueView, limit: int, *, reason: str | None = None, dry_run: bool = False
) -> list[Message]:
    """What `ShardedQueue.redrive` does."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 1_000_000:
        raise InvalidRequest(f"limit is {shown(limit)}; it must be a whole number from 1 to 1000000")
    checked_switch("dry_run", dry_run)
    wanted = None if reason is None else reason_of(reason)
    if dry_run:
        return [message for message in parked.peek_all() if wanted in (None, message.reason)][:limit]
    return _Redrive(parked, main, limit, wanted).run()


def anew(envelope: Envelope) -> Envelope:
    """The message with no attempts and nothing to wait for; how often it had been handed out is in its header."""
    told = (envelope.headers or {}).get(PREVIOUS_ATTEMPTS, "")
    # Anybody may have published such a header.
    before = int(told) if told.isascii() and told.isdigit() and len(told) < 10 else 0
    headers = {**(envelope.headers or {}), PREVIOUS_ATTEMPTS: str(before + envelope.attempts)}
    return replace(envelope, attempts=0, not_before=0, headers=headers)


class _Redrive:
    """One pass over the parked messages, which ends when enough have been brought back."""

    def __init__(self, parked: QueueView, main: QueueView, limit: int, reason: str | None) -> None:
        self._parked, self._main, self._left, self._reason = parked, main, limit, reason
        self._chosen: list[Message] = []

    def run(self) -> list[Message]:
        source, report = self._parked.pointers, PassReport()
        for state in source.states():
            report += sweep_through(source, state, self._route, enough=lambda: self._left <= 0)
        stayed = set(report.stayed)
        done = [message for message in self._chosen if (message.shard, message.pointer) not in stayed]
        self._main.active.loaded({self._main.pointers.home(message.shard) for message in done})
        if report.errors:
            report.errors[0].details["redriven"] = [message.message_id for message in done]
            raise report.errors[0]
        return done

    def _route(self, held: Held) -> tuple[PointerQueue, Envelope]:
        envelope = held.envelope
        if self._left <= 0 or self._reason not in (None, envelope.reason):
            return self._parked.pointers, envelope
        self._left -= 1
        self._chosen.append(message_of(envelope, self._main.codec, *held.slot))
        return self._main.pointers, anew(envelope)
