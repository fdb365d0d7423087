"""Fenced locks: a resource refuses every holder but the newest it has seen (docs/protocols.md P2).

    with lock.acquire(timeout=5) as grant:
        grant.operate(Key("accounts", "42"), Add("balance", -10))

Not claimed: mutual exclusion by the lock alone. A holder that is paused past its lease does not know it; what it then
writes through `grant.operate` is refused.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from ..background import Troubles
from ..deadline import Deadline
from ..errors import FencedOut, LatchworkError, LockUnavailable, NotFound, Refused
from ..inputs import checked_kind, checked_timeout
from ..retry import Poll, may_pass, outlive
from ..store.connect import as_store
from ..store.port import Key, RecordStore
from .contender import Acquisition, Claim, Contender
from .fencing import Fenced, Lost
from .inputs import checked_name, checked_owner
from .lease import checked_lease
from .waiting import told

G = TypeVar("G", bound="Grant")
log = logging.getLogger(__name__)

LOCKS = "latchwork_locks"
"""The set of all locks and elections."""
LOCK_POLL = Poll(low=0.005, high=0.02, factor=1.3, jitter=0.5)
"""Half of all releases are seen within 10 ms; at most 50 reads a second and waiter."""


class FencedLock:
    """A lock with a lease and a fence, in one record. Handles are cheap, pickle with their store, and are not
    re-entrant: a second `acquire` waits for the first one's release, in whichever thread.

    store: where the lock lives; whoever uses the same store and name contends for the same lock.  owner: a name for
    people and logs; default `host:pid:unique`. It decides nothing: two acquisitions of one owner are two.  lease:
    seconds, 0.05 to 86,400, after which a holder that does not renew may be succeeded; it must exceed any pause that a
    live holder should survive.  poll: how long to pause between two looks while somebody else holds the lock; default
    5 to 20 ms, at most 50 reads a second.
    """

    def __init__(
        self, store: RecordStore, name: str, *, owner: str | None = None, lease: float = 10.0, poll: Poll = LOCK_POLL
    ) -> None:
        self._store, self._poll = as_store(store), checked_kind("poll", poll, Poll)
        self.name, self.lease = checked_name(name), checked_lease(lease)
        self.owner = checked_owner(owner, store.seams)
        self._party = Contender(store, Key(LOCKS, name), self.owner, self.lease)

    def __repr__(self) -> str:
        return f"FencedLock({self.name!r}, owner={self.owner!r}, lease={self.lease})"

    def acquire(self, timeout: float | None = None, *, keep_alive: bool = False) -> Grant:
        """Wait for the lock and take it. One store call where it is free.

        timeout: seconds to wait, None = for ever, 0 = as `try_acquire`, but raising.  keep_alive: renew it in the
        background until it is released or lost.  Waiting is fair by politeness, not first come, first served: a handle
        that releases while others wait lets them go first. A lock whose holder died is broken once this handle has
        seen it stand still for the whole of the holder's lease, whatever the server's clock says. A store that is away
        is asked again until the time is over.

        Raises `LockUnavailable` when the time is over; where the store is away at that moment `Unavailable`, or
        `OutcomeUnknown` if an attempt may have taken the lock and cannot be resolved (it then ends by itself after one
        lease). Where no thread can be started to keep it alive, the lock is given back, and Python's `RuntimeError` is
        raised.
        """
        claim = self._wait(checked_timeout(timeout))
        if claim is None:
            raise LockUnavailable(
                f"the lock {self.name!r} was not acquired in {timeout} s; {self._holder()}", key=self._party.key
            )
        return self._granted(claim, keep_alive=keep_alive)

    def try_acquire(self, *, keep_alive: bool = False) -> Grant | None:
        """Take the lock if it is free, or if this handle has seen it run out; None where it is not. Does not wait.

        Raises `OutcomeUnknown` and `Unavailable` where the store is away.
        """
        acquisition = Acquisition(self._party)
        with Deadline(self._store.seams, 0):
            claim = acquisition.take() or acquisition.look()
        return None if claim is None else self._granted(claim, keep_alive=keep_alive)

    def _wait(self, timeout: float | None) -> Claim | None:
        seams = self._store.seams
        with Deadline(seams, timeout) as deadline:
            self._party.let_others_go_first(self._poll, timeout)
            acquisition = Acquisition(self._party)
            claim = outlive(seams, deadline, acquisition.take, passing=may_pass)
            if claim is not None or timeout == 0:
                return claim or acquisition.look()
            return told(seams, "lock", lambda: acquisition.wait(self._poll, deadline=deadline))

    def _granted(self, claim: Claim, *, keep_alive: bool) -> Grant:
        grant = Grant(self.name, self._party, claim)
        return kept_alive(grant) if keep_alive else grant

    def _holder(self) -> str:
        seen = self._party.observed
        if seen is None or not seen.view.locked:
            return "others were faster"
        return f"{seen.view.owner!r} holds it with fence {seen.view.fence} and a lease of {seen.view.lease} s"


class Leased(Protocol):
    """What a grant needs of the record that it is a lease on."""

    store: RecordStore
    owner: str
    lease: float

    def renew(self, fence: int) -> Claim: ...
    def release(self, fence: int) -> bool: ...


class Grant(Fenced):
    """One acquisition of a lock. Leaving its `with` block releases it.

    `lost` is an event that is set the moment the lease can no longer be believed: it ran out by this process's own
    clock, it was found taken over, or it was released. It may be waited for, and needs no background activity.
    """

    def __init__(self, name: str, party: Leased, claim: Claim) -> None:
        super().__init__(party.store, name, claim.fence, Lost(party.store.seams, claim.until))
        self._party = party
        self._freed = False
        self.broken = claim.broken
        """Whether it may have been taken from a holder who had not released it: one that died, or could not renew."""
        self.gives_back_late = True
        """Whether a renewal that comes too late to be believed gives the lock back. Not for a holder who may leave
        something unfinished behind, which the next one looks for where it finds the lock `broken`."""

    def __repr__(self) -> str:
        return f"Grant({self._name!r}, fence={self.fence}, owner={self.owner!r})"

    @property
    def fence(self) -> int:
        """Greater than the fence of every earlier acquisition of this lock, for ever; renewing keeps it."""
        return self._fence

    @property
    def owner(self) -> str:
        """The name that the lock was acquired under."""
        return self._party.owner

    def renew(self) -> None:
        """Start the lease again. One store call.

        Raises `FencedOut` where the lease has been lost, `OutcomeUnknown` and `Unavailable` where that cannot be said:
        the grant then holds for as long as `lost` is not set, and renewing again is harmless.
        """
        self.check()
        try:
            claim = self._party.renew(self.fence)
        except (Refused, NotFound):
            ended = self._ended()
            self.lost.set()
            raise ended from None
        if not self.lost.extend(claim.until):
            ended = self._ended()
            if self.gives_back_late:
                self.release()
            raise ended

    def give_up(self) -> None:
        """End the belief in it of our own will: where it was not lost before, nobody was stopped. No I/O."""
        self._given_back = self._given_back or not self.lost.is_set()
        self.lost.set()

    def release(self) -> bool:
        """Give the lock back. True if this freed it, False if it was no longer this grant's. One store call.

        It frees this acquisition only, never another one of the same owner. Calling it again does nothing.
        Raises `OutcomeUnknown` or `Unavailable`; the lock then ends by itself after its lease, or call again.
        """
        self.give_up()
        if self._freed:
            return False
        freed = self._party.release(self.fence)
        self._freed = True
        return freed

    def keep_alive(self) -> None:
        """Renew in the background from now on, three times a lease, until it is released or lost."""
        self._store.seams.spawn(self._renew_until_lost, f"latchwork-lease-{self._name}")

    def __enter__(self: G) -> G:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self.release()
        except LatchworkError:
            if error is None:
                raise

    def _renew_until_lost(self) -> None:
        pause, troubles = self._party.lease / 3, Troubles(self._store.seams, log)
        while not self.lost.wait(pause):
            try:
                self.renew()
                pause = self._party.lease / 3
            except FencedOut:
                return
            except Exception as failure:  # noqa: BLE001 - a defect must not end what keeps the lease either
                troubles.tell(failure, f"the lease of {self._name!r} could not be renewed")
                pause = self._party.lease / 20


def kept_alive(grant: G) -> G:
    """The grant, which is renewed in the background from now on; given back where no thread can be started for that."""
    try:
        grant.keep_alive()
    except BaseException:  # an interrupt, too: nobody would have this grant, and others would wait for its lease
        with suppress(LatchworkError):
            grant.release()
        raise
    return grant
