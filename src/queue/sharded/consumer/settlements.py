"""Settlement of what a consumer was given: acknowledged together, put into the sideline, or handed back."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from ....errors import LatchworkError
from ....seams import Seams
from ..delivery import Delivery
from ..envelope import Reason
from ..queue import ShardedQueue
from ..settlement import Outcome, acknowledged, remember, tell

log = logging.getLogger(__name__)

Verdict = tuple[Reason, str | None] | None
"""What becomes of a message: None = acknowledged, else why it failed."""


class Tally:
    """The counts of a consumer. Safe between its workers and its keeper."""

    def __init__(self, seams: Seams) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = seams.lock()

    def add(self, what: str, n: int = 1) -> None:
        """So many more of these."""
        if n:
            with self._lock:
                self.counts[what] += n


class Settlements:
    """Settlement of the messages of one consumer. Safe between its workers and its keeper."""

    def __init__(self, queue: ShardedQueue, tally: Tally) -> None:
        self._queue, self._seams, self._tally = queue, queue.store.seams, tally
        self._lock = self._seams.lock()
        self._done: list[Delivery] = []
        self._since = 0.0

    def settle(self, deliveries: Sequence[Delivery], verdicts: Sequence[Verdict]) -> None:
        """Put messages that failed into the sideline, and collect the others until `send` acknowledges them.

        Those that the handler has acknowledged or failed by itself are settled; its answer changes nothing for them.
        """
        done: list[Delivery] = []
        failed: list[Delivery] = []
        why: list[tuple[Reason, str | None]] = []
        for delivery, verdict in zip(deliveries, verdicts, strict=True):
            if delivery.settled:
                continue
            if verdict is None:
                done.append(delivery)
            else:
                failed.append(delivery)
                why.append(verdict)
        if done:
            with self._lock:
                if not self._done:
                    self._since = self._seams.monotonic()
                self._done += done
        if failed:
            self.fail(failed, why)

    # ---- acknowledged

    @property
    def collected(self) -> int:
        """How many messages are done and not acknowledged yet."""
        return len(self._done)

    def send(self, age: float = 0.0) -> None:
        """Acknowledge what was collected, in one call, if the first of it has waited for `age` seconds.

        Each message counts by itself, while `ack_many` says of a batch only what came first.
        """
        if not self._done:
            return
        with self._lock:
            if self._seams.monotonic() - self._since < age:
                return
            done, self._done = self._done, []
        if not done:
            return
        rows: list[Outcome]
        try:
            rows = acknowledged(self._queue.pointers, [delivery.held for delivery in done])
        except LatchworkError as failure:
            rows = [failure] * len(done)
        remember(done, rows)
        tell(self._queue.pointers, rows, "acked")
        self._tally.add("acked", rows.count(True))
        self._count_unsettled(rows, "acknowledged")

    # ---- failed, or not begun

    def fail(self, deliveries: Sequence[Delivery], why: Sequence[tuple[Reason, str | None]]) -> bool:
        """Put messages into the sideline, a thousand at once; whether none of them stays for the sweeper."""
        self._tally.add("failed", len(deliveries))
        rows = self._queue.fail_many(deliveries, why)
        self._count_unsettled(rows, "put into the sideline")
        return not any(isinstance(row, LatchworkError) for row in rows)

    def hand_back(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Let others have messages that were not begun; those that could not be handed back."""
        rows = self._queue.hand_back(deliveries)
        self._tally.add("handed_back", rows.count(True))
        self._count_unsettled(rows, "handed back")
        outcomes = zip(deliveries, rows, strict=True)
        return [delivery for delivery, row in outcomes if isinstance(row, LatchworkError)]

    def put_off(self, delivery: Delivery, delay: float) -> None:
        """Let a message that was not begun come again later; where it also stays here it is left to the sweeper.

        Raises the store's errors where it was not stored for later, or perhaps: then it is still in hand.
        """
        self._count_unsettled([self._queue.put_off(delivery, delay)], "deleted, though stored for later")

    def _count_unsettled(self, rows: Sequence[Outcome], done: str) -> None:
        """Count what could not be settled; the sweeper, or whoever has it now, sees to it."""
        failed = [row for row in rows if row is not True]
        if failed:
            gone = failed.count(False)
            self._tally.add("lost", gone)
            self._tally.add("unsettled", len(failed) - gone)
            first = failed[0] or "somebody else has it by now, or it is gone"
            log.warning("%d messages could not be %s; the first: %s", len(failed), done, first)
