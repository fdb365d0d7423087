"""A leader's term, and how any other process verifies it (docs/protocols P3).

A `Leadership` belongs to the leader's own process: it compares that process's clocks, so it cannot be sent to another
one. A `Term` can: it holds the key of the election's record and the epoch which that record must show.
"""

from __future__ import annotations

from typing import Any

from ...errors import FencedOut, LatchworkError
from ...store.port import Key, RecordStore
from ..fencing import Fenced
from ..lease import BINS, LeaseView, Observation
from ..lock import LOCKS, Grant
from ..waits import Answer, read


class Leadership(Fenced):
    """One leader's term. `lost` is set when the term can no longer be relied on, and is never cleared. Safe to share
    between threads.

    Check it before every batch of work: nothing stops the leader's function from outside. What protects a resource is
    `operate`, which is refused once the resource has seen a later epoch.
    """

    def __init__(self, grant: Grant, store: RecordStore, name: str) -> None:
        super().__init__(store, name, grant.fence, grant.lost)
        self._grant = grant

    def __repr__(self) -> str:
        return f"Leadership({self._name!r}, epoch={self.epoch}, candidate={self.candidate!r})"

    @property
    def epoch(self) -> int:
        """The fence of this term, greater than every earlier epoch of this election."""
        return self._fence

    @property
    def candidate(self) -> str:
        """The name of the leader."""
        return self._grant.owner

    @property
    def unreleased(self) -> LatchworkError | None:
        """Why this term, which is over, could not be given up in the store: it runs out after its lease. No I/O."""
        return self._grant.unreleased


class Term:
    """One epoch of one election, to be verified by any process. Pickles with its store, without its observations."""

    def __init__(self, store: RecordStore, name: str, epoch: int) -> None:
        self.store, self.name, self.epoch = store, name, epoch
        self._observed: Observation | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Term, (self.store, self.name, self.epoch)

    @classmethod
    def of(cls, leadership: Leadership) -> Term:
        """Return the term of a leadership, of either kind of election. No I/O."""
        return cls(leadership._store, leadership._name, leadership.epoch)  # noqa: SLF001 - the same package

    def check(self) -> None:
        """Raise `FencedOut` if the election's record shows that this term has ended. One read.

        A term has ended if it was given back, or has a successor. It has also ended if this object has seen its lease
        unchanged for its whole length, by this process's monotonic clock (a server's clock may be set). Advisory, as
        `Leadership.check`: the term may end right after. What protects a resource is the epoch in the guard of each
        write to it. Raises `Unavailable` if the record cannot be read.
        """
        answer = read(self.store, Key(LOCKS, self.name), BINS)
        if answer.record is None or not self._is_current(LeaseView.of(answer.record.key, answer.record.bins), answer):
            self.store.seams.note("fences_refused", by="holder")
            raise FencedOut(
                f"the term of {self.name!r} with epoch {self.epoch} has ended: it ran out, was taken over, or was "
                "given back; stop",
                epoch=self.epoch,
            )

    def _is_current(self, view: LeaseView, answer: Answer) -> bool:
        if not view.locked or view.fence != self.epoch:
            return False
        # It was so when it was asked for, however long the answer took to come.
        before, answered = self._observed, answer.answered
        seen = self._observed = before.then(view, answered) if before else Observation(view, answered)
        return not seen.ran_out(answer.asked)  # not `_observed`: another thread may replace it
