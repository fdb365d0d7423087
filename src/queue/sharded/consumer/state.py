"""What the parts of a consumer share: how long it takes messages, what it counts and logs, what it has in hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ....background import ERROR_BACKOFF, FailureLog
from ....errors import LatchworkError, NotFound
from ....logs import Log
from ..envelope import Reason
from ..subscription import Subscription
from .in_hand import Hand
from .log import AWAY, Life
from .signals import Signals

log = Log(__name__)


class ConsumerState:
    """The state of one consumer. Safe between its workers and its supervisor.

    consumer: which one, for the log.
    wanted: the workers that it was asked for; None = as many as the queue's record says.
    """

    def __init__(self, consumer: object, queue: Subscription, wanted: int | None) -> None:
        self._consumer, self._queue, self._seams, self._wanted = consumer, queue, queue.store.seams, wanted
        self._lock = self._seams.lock()
        self.counts: Counter[str] = Counter()
        self.stopping = self._seams.event()
        """Set once it takes no more messages."""
        self.signals = Signals(self.stopping.is_set)
        self.life = Life(self._seams, f"the consumer of {queue.name!r}")
        self.is_alone = True
        """Whether it belongs to no worker, so that it logs its life itself."""
        self.hand = Hand()
        """Where the messages that it has in hand are noted, until they are settled."""
        self.not_found = False
        """Whether its last call found that the queue is not there."""
        self._failure_log = FailureLog(self._seams, log)
        self._attention, self._dozes = self._seams.event(), False

    def belong_to_worker(self, signals: Signals, life: Life, hand: Hand | None) -> None:
        """End at these signals, and leave it to the worker to log that it starts, drains and stops."""
        self.signals, self.life, self.is_alone = signals, life, False
        if hand is not None:
            self.hand = hand

    def allot(self, workers: int) -> None:
        """Want this number of workers from now on, whatever the queue's record says."""
        self._wanted = workers

    def concurrency(self) -> int:
        """Return how many workers are wanted now."""
        return self._queue.live.concurrency if self._wanted is None else self._wanted

    def ends(self) -> bool:
        """Whether it takes no more messages, finally."""
        return self.signals.drains or self.stopping.is_set()

    # ---- what it counts and logs

    def add(self, what: str, n: int = 1) -> None:
        """Add `n` to this count."""
        if n:
            with self._lock:
                self.counts[what] += n

    def not_given(self, reason: Reason, failure: LatchworkError | None) -> None:
        """Count a message that was failed or parked before a handler was given it. failure: why it was not moved."""
        if reason is Reason.UNREADABLE:  # the others had their last attempt before
            self.add("failed")
            self.add(f"failed_{reason.value}")
        self.add("unsettled", int(failure is not None))

    def report(self, failure: Exception) -> None:
        """Count and log a failure."""
        self.add("troubles")
        self._failure_log.record(failure, f"{self._consumer!r} met an error")

    def pause(self, failure: Exception, failures: int) -> None:
        """Report a failure, and wait for as long as is due after that many failures in a row."""
        self.not_found = isinstance(failure, NotFound)
        if isinstance(failure, AWAY):
            self.add("troubles")
            self.life.lost(failure)
        else:
            self.report(failure)
        self.stopping.wait(ERROR_BACKOFF.pause(failures, self._seams))

    def succeeded(self) -> None:
        """Note that a turn has met no failure."""
        self.not_found = False
        self.life.found()

    # ---- the supervisor's pauses

    def doze(self, pause: float, soon: float, waits: Callable[[], object]) -> None:
        """Wait until the supervisor's next look: for `pause` seconds, or `soon` while anything waits for it."""
        if self.stopping.is_set():
            self._seams.sleep(pause)
            return
        self._dozes = True  # set before the check for messages: later messages then wake it
        if waits():
            self._dozes, pause = False, min(pause, soon)
        self._attention.wait(pause)
        self._dozes = False
        self._attention.clear()

    def attend(self) -> None:
        """Let the supervisor look soon at what waits: messages that were not begun, and acknowledgements."""
        if self._dozes:
            self.wake()

    def wake(self) -> None:
        """Let the supervisor look now."""
        self._attention.set()
