"""One wait for one record: its own reads, and the ones that the process makes for it (docs/protocols P19)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ...errors import LatchworkError, NotFound, OutcomeUnknown, Unavailable
from ...seams import Event, Seams
from ...store.port import NEVER, Key, Record, RecordStore
from ...store.repeats import reads_are_repeatable
from ..lease import MARK
from .poller import INFINITY, Wait, never, poller_of
from .shared_reads import Answer, reads, record_of

T = TypeVar("T")


class Watch(Wait):
    """One wait for one record, by one thread.

    bins: the bins to read; none = all. May be changed between two looks.
    poll: the pauses between two looks.
    worth: whether an answer ends a pause. It is called in the thread that reads, which may be any; it neither waits nor
        calls the store. Default: if the record is not as this wait has read it last.
    again: whether the pauses start again after each change of the record.
    alone: of all waits with this flag for one record, an answer wakes only the one that began first.
    mark: leave the mark of a waiting party (P2), once for all waits of this process for that record.
    lasting: it waits again and again, for a record that never expires: each wait continues with the pauses of the one
        before.
    """

    def read(self) -> Answer:
        """Return the record: as another thread has read it for this wait since its last look, else by a call of its
        own.

        Raises what the store raises. A failure of a common read counts as this wait's first attempt, and its further
        attempts are its own.
        """
        store, handed, self.handed = self._store, self.handed, None
        if isinstance(handed, Unavailable | OutcomeUnknown):
            handed = store.policy.after(handed, store.seams, self._own, self.single(), doubt=reads_are_repeatable)
        elif isinstance(handed, LatchworkError):
            raise handed
        answer = self._own(store) if handed is None else handed
        self.seen = self.latest = answer.record
        return answer

    def until(
        self,
        probe: Callable[[], T | None],
        *,
        timeout: float | None,
        due: Callable[[], float] | None = None,
        stop: Event | None = None,
    ) -> T | None:
        """Return what `probe` returns once that is not None; None once `timeout` seconds are over (None = never).

        It is called at the beginning, whenever an answer was worth it, and at the end of the time. Its errors pass
        through.

        due: when (seconds, monotonic) it is to be called though nothing has changed.
        stop: ends a pause if it is set, and `rouse` was called.
        """
        seams = self._store.seams
        end = INFINITY if timeout is None else seams.monotonic() + timeout
        self.stop = stop
        while True:
            found = probe()
            if found is not None:
                return found
            probed = seams.monotonic()
            if probed >= end:
                return None
            self.wait(end, not_before(probed + self.poll.high, due or never))

    def wait(self, end: float, due: Callable[[], float] | None = None) -> None:
        """Pause until an answer is worth it, or until `end` or what `due` returns (seconds, monotonic)."""
        self.saw_release = False
        self._poller.wait(self, end, due or never)

    def wake(self) -> None:
        """Let a pause end if what `due` returns has changed."""
        self.woken.set()

    def _own(self, store: RecordStore) -> Answer:
        return read(store, self.key, self.bins, mark=self.mark)


def read(store: RecordStore, key: Key, bins: Sequence[str], *, mark: bool = False) -> Answer:
    """Read a record now, and leave the mark of a waiting party in the same call, if `mark` and another is due."""
    clock = store.seams.monotonic
    asked = clock()
    marks = mark and poller_of(store).marks_now(key, asked)
    record = _marking(store, key, bins) if marks else store.get(key, *bins)
    return Answer(record, asked, clock())


def _marking(store: RecordStore, key: Key, bins: Sequence[str]) -> Record | None:
    try:
        values = store.operate(key, *MARK, *reads(bins), ttl=NEVER, repeatable=True)
    except NotFound:
        poller_of(store).forget_mark(key)
        return None
    except OutcomeUnknown:  # whether the mark was left does not matter
        poller_of(store).forget_mark(key)
        return store.get(key, *bins)
    return record_of(key, bins, values)


def not_before(least: float, due: Callable[[], float]) -> Callable[[], float]:
    """Return `due`, but with no result before `least`: a wait that has just looked keeps to its pauses."""
    return lambda: max(due(), least)


def measured(seams: Seams, kind: str, wait: Callable[[], T | None]) -> T | None:
    """Call `wait` and return its result, after recording its duration and outcome.

    kind: the primitive, for example `latch` or `lock`.
    wait: returns None if the time was over.
    """
    began, outcome = seams.monotonic(), "failed"
    try:
        with seams.span("wait", kind=kind):
            got = wait()
        outcome = "timed_out" if got is None else "done"
        return got
    finally:
        seams.note("waits", seams.monotonic() - began, kind=kind, outcome=outcome)
