"""Renewal of a grant's lease in the background, while the program still refers to the grant (docs/protocols P2).

An interrupt (Ctrl-C) may come between any two instructions: after a lease was taken and before the caller has its
grant, or at the end of a `with` block before the grant is released. Then nothing refers to the grant, and a lease that
is still renewed would be held until the process ends. So a keeper holds only a weak reference to its grant, and renews
nothing before the grant was handed out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol
from weakref import ref

from ..background import FailureLog
from ..errors import FencedOut, LatchworkError
from ..logs import Log
from ..store.port import RecordStore
from .contender import TakenLease
from .fencing import Lost

log = Log(__name__)


class Leased(Protocol):
    """The part of a record with a lease that a grant uses."""

    store: RecordStore
    owner: str
    lease: float

    def renew(self, fence: int) -> TakenLease: ...
    def release(self, fence: int) -> bool: ...


class Kept(Protocol):
    """The part of a grant that a keeper uses."""

    lost: Lost
    gives_back_late: bool

    @property
    def fence(self) -> int: ...
    def renew(self) -> None: ...


class Keeper:
    """The renewal of one grant, three times a lease, until it is released or lost, or nothing refers to it any more.

    leased: the record with the lease.
    name: the name of the lock, for logs.
    at_end: called once after the last renewal.
    """

    def __init__(self, grant: Kept, leased: Leased, name: str, at_end: Callable[[], object] = lambda: None) -> None:
        self._grant = ref(grant)
        self._fence, self._lost = grant.fence, grant.lost
        self._leased, self._name, self._at_end = leased, name, at_end
        self._gives_back = grant.gives_back_late
        self.handed_out = False

    def start(self) -> None:
        """Start renewing in a task of its own. Raises Python's `RuntimeError` if no thread can be started."""
        self._leased.store.seams.spawn(self._run, f"latchwork-lease-{self._name}")

    def _run(self) -> None:
        try:
            self._renew_until_lost()
        finally:
            self._lost.set()
            self._at_end()

    def _renew_until_lost(self) -> None:
        usual, failure_log = self._leased.lease / 3, FailureLog(self._leased.store.seams, log)
        pause = usual
        while not self._lost.wait(pause):
            if not self.handed_out:
                continue  # the caller may have been interrupted; then the lease runs out
            grant = self._grant()
            if grant is None:
                self._give_back()
                return
            try:
                self._gives_back = grant.gives_back_late
                grant.renew()
                pause = usual
            except FencedOut:
                return
            except Exception as failure:  # noqa: BLE001 - a defect must not end the renewal either
                failure_log.record(failure, f"the lease of {self._name!r} could not be renewed")
                pause = self._leased.lease / 20
            finally:
                del grant

    def _give_back(self) -> None:
        then = "it is released now" if self._gives_back else "its lease runs out, as it may leave work unfinished"
        log.warning(
            "the grant of %r with fence %d was dropped without a release, as after an interrupt: %s",
            self._name, self._fence, then,
        )  # fmt: skip
        self._lost.set()
        if not self._gives_back:
            return
        with suppress(LatchworkError):  # the lease then ends by itself
            self._leased.release(self._fence)
