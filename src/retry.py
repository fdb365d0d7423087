"""The one retry layer: policies as values; the tries of a request are tenacity's.

Two questions only: may this failure be tried again (`again`), and how long to pause before it (`RetryPolicy`,
`Poll`). A failure may be tried again where nothing was written (`Unavailable`); one whose outcome is unknown only by
the code that holds the operation's token (`store/once.py`, docs/protocols P1). Every loop here is bounded, by a
number of tries or by the caller's timeout; `outlive` is what a wait does while the store is away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import tenacity

from .deadline import Deadline, present
from .errors import LatchworkError, Misconfigured, OutcomeUnknown, Unavailable
from .inputs import NO_LIMIT, checked_number, checked_timeout, checked_whole
from .logs import Log
from .seams import Event, Seams

log = Log(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of tries of a failed request, and the pauses between them.

    attempts: tries in all, 1 to 100.
    wait: seconds before the second try, doubled up to `max_wait` for each further one.
    jitter: each pause is drawn from `wait * (1 - jitter)` to `wait * (1 + jitter)`.
    deadline: no try begins later than this number of seconds after the first failed; None = no such limit. Within a
        call that has a timeout no try begins more than a moment after its end.
    """

    attempts: int = 3
    wait: float = 0.1
    max_wait: float = 2.0
    jitter: float = 0.5
    deadline: float | None = None

    def __post_init__(self) -> None:
        checked_whole("attempts", self.attempts, 1, 100)
        checked_number("max_wait", self.max_wait)
        checked_number("wait", self.wait, 0, self.max_wait)
        checked_number("jitter", self.jitter, 0, 1)
        deadline = checked_timeout(self.deadline, "deadline")
        object.__setattr__(self, "deadline", None if deadline is None or deadline >= NO_LIMIT else deadline)

    def pause(self, attempt: int, seams: Seams, *, slow: bool = False) -> float:
        """Return seconds to wait after the failed try number `attempt` (from 1); `slow` asks for the longest pause."""
        base = self.max_wait if slow else min(self.wait * 2 ** (attempt - 1), self.max_wait)
        return seams.uniform(base * (1 - self.jitter), base * (1 + self.jitter))

    def is_too_late(self, failed: float, pause: float, seams: Seams) -> bool:
        """Whether no try may begin after `pause` seconds from now, where the first one failed at `failed` (monotonic):
        by the policy, or by the time of the present call of this thread.
        """
        late = self.deadline is not None and seams.monotonic() - failed + pause > self.deadline
        return late or _too_late(pause)

    def run(self, seams: Seams, call: Callable[..., T], *given: Any, doubt: Callable[[], None] | None = None) -> T:
        """Return the result of the call, tried until it succeeds, fails for good, or the policy stops; then its last
        error.

        `Unavailable` is tried again. `OutcomeUnknown` is tried again only where `doubt` is given, which says that a
        repeat is harmless; it is called each time, so that the caller knows that an earlier try may have landed.
        """
        try:
            # Most calls succeed at once, and setting tenacity up costs as much as a tenth of a network call.
            return call(*given)
        except (Unavailable, OutcomeUnknown) as failure:
            return self.after(failure, seams, call, *given, doubt=doubt)

    def after(
        self,
        first: Unavailable | OutcomeUnknown,
        seams: Seams,
        call: Callable[..., T],
        *given: Any,
        doubt: Callable[[], None] | None = None,
    ) -> T:
        """Continue as `run` does after a first try that failed."""
        if not again(first, doubt) or self.attempts == 1:
            raise first
        retrying, pause = self._retrying(seams, doubt), self.pause(1, seams, slow=getattr(first, "slow", False))
        if self.is_too_late(seams.monotonic(), pause, seams):
            raise first
        seams.note("retries", reason=reason(first))
        seams.sleep(pause)
        return retrying(call, *given)

    def _retrying(self, seams: Seams, doubt: Callable[[], None] | None) -> tenacity.Retrying:
        began = seams.monotonic()

        def stop(state: tenacity.RetryCallState) -> bool:
            return state.attempt_number >= self.attempts - 1 or self.is_too_late(began, state.upcoming_sleep, seams)

        def wait(state: tenacity.RetryCallState) -> float:
            failure = state.outcome.exception() if state.outcome else None
            return self.pause(state.attempt_number + 1, seams, slow=getattr(failure, "slow", False))

        def before_sleep(state: tenacity.RetryCallState) -> None:
            failure = state.outcome.exception() if state.outcome else None
            seams.note("retries", reason=reason(failure))

        retry = tenacity.retry_if_exception(lambda failure: again(failure, doubt))
        return tenacity.Retrying(
            retry=retry, stop=stop, wait=wait, sleep=seams.sleep, before_sleep=before_sleep, reraise=True
        )


def _too_late(pause: float) -> bool:
    """Whether the present call of this thread has no time for another try after `pause` seconds."""
    deadline = present()
    return deadline is not None and deadline.too_late(pause)


def again(failure: BaseException, doubt: Callable[[], None] | None = None) -> bool:
    """Whether a request that failed so may be sent again."""
    if isinstance(failure, OutcomeUnknown) and doubt is not None:
        doubt()
        return True
    return isinstance(failure, Unavailable) and not isinstance(failure, Misconfigured)


def may_pass(failure: BaseException) -> bool:
    """Whether a repeatable request that failed so may be sent again: also if it may have been applied."""
    return isinstance(failure, OutcomeUnknown) or again(failure)


def reason(failure: BaseException | None) -> str:
    """Return why a request is sent again: `in_doubt`, `overloaded` (too much is asked of the server, or of one record,
    which the store says by `slow` or by the detail `overloaded`) or `not_applied`.
    """
    if isinstance(failure, OutcomeUnknown):
        return "in_doubt"
    overloaded = isinstance(failure, Unavailable) and (failure.slow or failure.details.get("overloaded"))
    return "overloaded" if overloaded else "not_applied"


LATCH_POLICY = RetryPolicy(attempts=5, wait=0.01, max_wait=0.16)
"""The default of latches: 5 tries, 10 ms."""

QUEUE_POLICY = RetryPolicy(attempts=3, wait=0.1, max_wait=1.0)
"""The default of queues and of everything else: 3 tries, 100 ms."""

ONE_ATTEMPT = RetryPolicy(attempts=1)
"""For a caller that decides itself which request is sent again."""


@dataclass(frozen=True, slots=True)
class Poll:
    """A way to wait for a condition: ask, pause, ask again, with pauses that grow from `low` to `high` seconds.

    factor: by how much each pause is longer than the one before, 1 to 1,000.
    jitter: each pause is drawn from `pause * (1 - jitter)` to `pause * (1 + jitter)`.
    """

    low: float = 0.005
    high: float = 0.1
    factor: float = 1.5
    jitter: float = 0.1

    def __post_init__(self) -> None:
        checked_number("high", self.high)
        checked_number("low", self.low, 0, self.high)
        checked_number("factor", self.factor, 1, 1000)
        checked_number("jitter", self.jitter, 0, 1)

    def pause(self, attempt: int, seams: Seams) -> float:
        """Return seconds to wait after the fruitless question number `attempt` (from 1)."""
        base = self._base(attempt)
        return seams.uniform(base * (1 - self.jitter), base * (1 + self.jitter))

    def spread(self, attempt: int, chance: float) -> float:
        """Return the pause after a number of questions for a random number that was drawn already: 0 gives the
        shortest, 1 the longest.
        """
        return self._base(attempt) * (1 + self.jitter * (2 * chance - 1))

    def _base(self, attempt: int) -> float:
        return min(self.low * self.factor ** (attempt - 1), self.high) if attempt < 64 else self.high

    def reached(self, seconds: float) -> float:
        """Return the pause, without its jitter, of a wait that has lasted for this number of seconds."""
        return min(self.low + seconds * (self.factor - 1), self.high)

    def until(
        self, seams: Seams, probe: Callable[[], T | None], *, timeout: float | None, wake: Event | None = None
    ) -> T | None:
        """Call `probe` until it returns a value; return that, or None after `timeout` seconds (None = no limit).

        It asks at least once, and once more at the end of the time. `wake` cuts a pause short when it is set; it is
        only a hint, and `probe` decides. Errors of `probe` are passed on.
        """
        end = None if timeout is None else seams.monotonic() + timeout
        attempt = 0
        while True:
            found = probe()
            if found is not None:
                return found
            attempt += 1
            pause = self.pause(attempt, seams)
            if end is not None:
                left = end - seams.monotonic()
                if left <= 0:
                    return None
                pause = min(pause, left)
            if wake is None:
                seams.sleep(pause)
            else:
                wake.wait(pause)


OUTAGE = Poll(low=0.1, high=1.0, factor=2.0, jitter=0.5)
"""The pauses while the store is unavailable: a store that is available again is found within about a second."""
SAY_EVERY = 60.0
"""Seconds between two lines in the log about one wait."""


def outlive(
    seams: Seams, deadline: Deadline, call: Callable[[], T], *, passing: Callable[[BaseException], bool] = again
) -> T:
    """Return what `call` returns; while the store is unavailable, call it again and again, for the last time at the
    deadline.

    passing: whether a failure may be temporary; another one is raised at once.

    If the last call failed, its error is raised, since the condition may hold by now or not. One line is logged at
    first, and one a minute.
    """
    tries = 0
    while True:
        try:
            return call()
        except LatchworkError as failure:
            left = deadline.left()
            if not passing(failure) or left == 0:
                raise
            say_away(seams, deadline, failure)
            tries += 1
            pause = OUTAGE.pause(tries, seams)
        seams.sleep(pause if left is None else min(pause, left))


def say_away(seams: Seams, deadline: Deadline, failure: LatchworkError) -> None:
    """Log that a wait goes on while its store is unavailable, at first and once a minute, and count it."""
    seams.note("retries", reason=reason(failure))
    now, left = seams.monotonic(), deadline.left()
    if deadline.logged is None or now - deadline.logged >= SAY_EVERY:
        deadline.logged = now
        rest = "" if left is None else f" for up to {left:.1f} s"
        log.warning("the store is unavailable, and is asked again%s (%s): %s", rest, failure.code, failure)
