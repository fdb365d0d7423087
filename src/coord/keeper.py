"""Renewing a grant's lease in the background, for as long as somebody has the grant (docs/protocols.md P2).

An interrupt, as Ctrl-C, may come between any two instructions: when a lease was taken and its caller does not have the
grant yet, or at the end of a `with` block, before the grant is given back. Then nobody has it, and a lease that went on
being renewed would be held for as long as the process lives. So a keeper refers to its grant weakly, and renews nothing
before the grant was handed out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol
from weakref import ref

from ..background import Troubles
from ..errors import FencedOut, LatchworkError
from ..store.port import RecordStore
from .contender import Claim
from .fencing import Lost

log = logging.getLogger(__name__)


class Leased(Protocol):
    """What a grant needs of the record that it is a lease on."""

    store: RecordStore
    owner: str
    lease: float

    def renew(self, fence: int) -> Claim: ...
    def release(self, fence: int) -> bool: ...


class Kept(Protocol):
    """What a keeper needs of a grant."""

    lost: Lost

    @property
    def fence(self) -> int: ...
    def renew(self) -> None: ...


class Keeper:
    """Renews one grant three times a lease, until it is released or lost, or nobody has it any more.

    party: what it is a lease on.  name: of the lock, for people.  at_end: called once nothing is renewed any more.
    """

    def __init__(self, grant: Kept, party: Leased, name: str, at_end: Callable[[], object] = lambda: None) -> None:
        self._grant = ref(grant)
        self._fence, self._lost = grant.fence, grant.lost
        self._party, self._name, self._at_end = party, name, at_end
        self.handed_out = False

    def start(self) -> None:
        """Begin, in a task of its own. Raises Python's `RuntimeError` where none can be started."""
        self._party.store.seams.spawn(self._run, f"latchwork-lease-{self._name}")

    def _run(self) -> None:
        try:
            self._renew_until_lost()
        finally:
            self._lost.set()
            self._at_end()

    def _renew_until_lost(self) -> None:
        usual, troubles = self._party.lease / 3, Troubles(self._party.store.seams, log)
        pause = usual
        while not self._lost.wait(pause):
            if not self.handed_out:
                continue  # its caller may have been interrupted; then the lease ends by itself
            grant = self._grant()
            if grant is None:
                self._give_back()
                return
            try:
                grant.renew()
                pause = usual
            except FencedOut:
                return
            except Exception as failure:  # noqa: BLE001 - a defect must not end what keeps the lease either
                troubles.tell(failure, f"the lease of {self._name!r} could not be renewed")
                pause = self._party.lease / 20
            finally:
                del grant

    def _give_back(self) -> None:
        log.warning(
            "the grant of %r with fence %d is gone and was not released, as after an interrupt: it is given back now",
            self._name,
            self._fence,
        )
        self._lost.set()
        with suppress(LatchworkError):  # the lease then ends by itself
            self._party.release(self._fence)
