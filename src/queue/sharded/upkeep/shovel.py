"""The shovel brings failed messages back from the sideline (docs/protocols P5)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from ....background import ERROR_BACKOFF, Background, FailureLog, parallel_map
from ....errors import InvalidRequest, InvalidShovelInterval
from ....logs import Log
from ....plain import shown
from ..config import MAX_EXPIRY, milliseconds
from ..envelope import Envelope
from ..pointers import ShardPointers
from ..redrive import PassReport, drain_shard
from ..shards import Shards
from ..slots import Stamped
from ..subscription import Subscription

log = Log(__name__)

LOOK = 5.0
"""Seconds after which the shovel checks whether its interval was changed, at the latest."""
LONGEST = milliseconds(2 * MAX_EXPIRY)
"""Milliseconds for which a message may still have to wait: no backoff is longer, so a later time is damaged."""
MOST_EMPTY = 20
"""Batches without a message, one after the other, after which a pass leaves the rest of a shard to the next pass: with
a damaged number of messages it would keep the other queues from theirs for hours."""


class Shovel:
    """A shovel: it moves the messages that are due from the sideline back to the queue, with their attempts, reason and
    headers.

    A message whose `not_before` has not come is put at the sideline's tail again. Parked messages stay. Any number of
    processes may run a shovel; each message is moved by one of them. If a process dies while it moves a message, the
    message may be delivered twice, and is never lost. Safe to share between threads; call `start` in one of them.
    """

    def __init__(self, queue: Subscription) -> None:
        if not hasattr(queue, "sideline"):
            raise InvalidRequest(f"queue is a {type(queue).__name__}; give what QueueRegistry.create or .get returns")
        self.queue = queue
        self._seams = queue.store.seams
        self._background = Background(self._seams, self._run, f"{queue.name}-shovel")
        self._stop = self._background.stopping
        self._failure_log = FailureLog(self._seams, log)

    def __repr__(self) -> str:
        return f"Shovel({self.queue.name!r})"

    def run_once(self, *, ends: Callable[[], bool] = lambda: False) -> PassReport:
        """Make one pass over the messages that are in the sideline now; return its report.

        ends: asked before each batch of 1,000; True ends the pass early.

        Works on up to `ShovelConfig.concurrency` shards at once. Raises the store's errors; the sweeper returns the
        messages that were claimed before the error.
        """
        source = self.queue.sideline.pointers
        states = [state for state in source.states() if state.fired < state.loaded or state.damage]
        config = self.queue.live.shovel
        at_once = config.concurrency if config else 1
        shard = partial(self._shard, ends)
        report = sum(parallel_map(self._seams, shard, states, at_once, f"{self.queue.name}-shovel"), PassReport())
        if report.moved:
            self.queue.active.loaded({self.queue.pointers.home(state.shard) for state in states})
        return report

    def start(self) -> Shovel:
        """Run a pass after every interval of the queue's `ShovelConfig`, which is followed at run time.

        Raises `InvalidShovelInterval` if the queue has none.
        """
        if self.queue.live.shovel is None:
            raise InvalidShovelInterval(f"the queue {shown(self.queue.name)} has no shovel: create it with shovel=...")
        self._background.start()
        return self

    def stop(self, timeout: float | None = 30) -> bool:
        """Stop before the next batch; whether it has within `timeout` seconds."""
        return self._background.stop(timeout)

    def _run(self) -> None:
        last, failures = self._seams.monotonic(), 0
        while not self._stop.is_set():
            self._survived(self.queue.registry.refresh_if_due)
            config = self.queue.live.shovel
            # An interval of 0 means "as soon as a message is due": look as often as a consumer does.
            interval = max(config.interval.total_seconds(), 1.0) if config else float("inf")
            left = last + interval - self._seams.monotonic()
            if left > 0:
                self._stop.wait(min(left, LOOK))
                continue
            last = self._seams.monotonic()
            failures = 0 if self._survived(self._pass) else failures + 1
            if failures:
                self._stop.wait(ERROR_BACKOFF.pause(failures, self._seams))

    def _pass(self) -> None:
        report = self.run_once()
        if report.errors:
            self._failure_log.warn(
                f"the shovel of {self.queue.name}: {len(report.errors)} not moved: {report.errors[0]}"
            )

    def _survived(self, work: Callable[[], None]) -> bool:
        """Do it; whether it succeeded."""
        try:
            work()
        except Exception as failure:  # noqa: BLE001 - a defect must not end a task that nothing would start again
            self._failure_log.record(failure, f"the shovel of {self.queue.name} failed")
            return False
        return True

    def _shard(self, ends: Callable[[], bool], state: ShardPointers) -> PassReport:
        source, main = self.queue.sideline.pointers, self.queue.pointers

        def route(held: Stamped) -> tuple[Shards, Envelope]:
            left = held.envelope.not_before - source.now_ms()
            due = not 0 < left <= LONGEST
            return (main, replace(held.envelope, not_before=0)) if due else (source, held.envelope)

        report, empty = PassReport(), 0

        def enough() -> bool:
            return self._stop.is_set() or ends() or empty >= MOST_EMPTY

        for batch in drain_shard(source, state, route, enough=enough):
            report += batch
            empty = 0 if batch.taken or batch.errors else empty + 1
        return report
