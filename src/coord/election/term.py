"""A term of office: as its leader believes it, and as any process can check it, by the election's own record
(docs/protocols.md P3).

A `Leadership` is believed by its own process, whose clocks it compares, so it does not travel. What travels is where
the election's record is, and the epoch that it has to show.
"""

from __future__ import annotations

from typing import Any

from ...errors import FencedOut
from ...store.port import Key, RecordStore
from ..fencing import Fenced
from ..lease import BINS, LeaseView, Observation
from ..lock import LOCKS, Grant


class Leadership(Fenced):
    """One term of office. `lost` is set the moment it can no longer be believed; it never comes back to life.

    Check it before every batch of work; nothing stops the leader's function from outside. What protects a resource is
    `operate`, which is refused once the resource has seen a later epoch.
    """

    def __init__(self, grant: Grant, store: RecordStore, name: str) -> None:
        super().__init__(store, name, grant.fence, grant.lost)
        self._candidate = grant.owner

    def __repr__(self) -> str:
        return f"Leadership({self._name!r}, epoch={self.epoch}, candidate={self.candidate!r})"

    @property
    def epoch(self) -> int:
        """Greater than every earlier epoch of this election, for ever."""
        return self._fence

    @property
    def candidate(self) -> str:
        """Whose term it is."""
        return self._candidate


class Term:
    """One epoch of one election. Pickles with its store, and without what it has seen."""

    def __init__(self, store: RecordStore, name: str, epoch: int) -> None:
        self.store, self.name, self.epoch = store, name, epoch
        self._observed: Observation | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Term, (self.store, self.name, self.epoch)

    @classmethod
    def of(cls, leadership: Leadership) -> Term:
        """The term of a leadership, of whichever kind its election is. No I/O."""
        return cls(leadership._store, leadership._name, leadership.epoch)  # noqa: SLF001 - the same package

    def check(self) -> None:
        """Raises `FencedOut` where the election's record does not show this term in office any more. One read.

        That is where it was given back or has a successor, and where this very object has seen it stand still, by a
        clock of this process, for the whole of its lease: the server's clock may be set.  Advisory, as
        `Leadership.check` is: it may end right after. What protects a resource is the epoch in the guard of each write
        to it. Raises `Unavailable` where the record cannot be read.
        """
        record = self.store.get(Key(LOCKS, self.name), *BINS)
        if record is None or not self._in_office(LeaseView.of(record.key, record.bins)):
            self.store.seams.note("fences_refused", by="holder")
            raise FencedOut(
                f"the term of {self.name!r} with epoch {self.epoch} has ended: it ran out, was taken over, or was "
                "given back; stop",
                epoch=self.epoch,
            )

    def _in_office(self, view: LeaseView) -> bool:
        if not view.locked or view.fence != self.epoch:
            return False
        now = self.store.seams.monotonic()
        self._observed = self._observed.then(view, now) if self._observed else Observation(view, now)
        return not self._observed.ran_out(now)
