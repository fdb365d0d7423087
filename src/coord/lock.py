"""Fenced locks: a resource refuses every holder but the newest it has seen (docs/protocols.md P2).

    with lock as grant:
        grant.operate(Key("accounts", "42"), Add("balance", -10))

Not claimed: mutual exclusion by the lock alone. A holder that is paused past its lease does not know it; what it then
writes through `grant.operate` is refused.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from ..deadline import Deadline
from ..errors import InvalidRequest, LatchworkError, LeaseLost, LockUnavailable, NotFound, Refused
from ..inputs import checked_kind, checked_timeout
from ..retry import Poll, may_pass, outlive
from ..store.connect import as_store
from ..store.port import Key, RecordStore
from .contender import Acquisition, Claim, Contender
from .fencing import Fenced, Lost
from .inputs import checked_name, checked_owner
from .keeper import Keeper, Leased
from .lease import checked_lease
from .waiting import told

G = TypeVar("G", bound="Grant")

LOCKS = "latchwork_locks"
"""The set of all locks and elections."""
LOCK_POLL = Poll(low=0.004, high=0.0101, factor=1.1, jitter=0.5)
"""Half of all releases are seen within 6 ms; at most 100 reads a second and waiter."""


class FencedLock:
    """A lock with a lease and a fence, in one record. Handles are cheap, safe to share between threads, and pickle with
    their store. They are not re-entrant: a second `acquire` waits for the first one's release, in whichever thread.

    `with lock:` waits for the lock without limit, keeps it alive until the block ends, and gives the block its grant
    (`with lock as grant`, or `lock.grant`). It ends as a grant's own block does: with `LeaseLost` where the lock was
    lost in it.

    store: where the lock lives; whoever uses the same store and name contends for the same lock.  owner: a name for
    people and logs; default `host:pid:unique`. It decides nothing: two acquisitions of one owner are two.  lease:
    seconds, 0.05 to 86,400, after which a holder that does not renew may be succeeded; it must exceed any pause that a
    live holder should survive.  poll: how long to pause between two looks while somebody else holds the lock; default
    4 to 10 ms, at most 100 reads a second.
    """

    def __init__(
        self, store: RecordStore, name: str, *, owner: str | None = None, lease: float = 10.0, poll: Poll = LOCK_POLL
    ) -> None:
        self._store, self._poll = as_store(store), checked_kind("poll", poll, Poll)
        self.name, self.lease = checked_name(name), checked_lease(lease)
        self.owner = checked_owner(owner, store.seams)
        self._party = Contender(store, Key(LOCKS, name), self.owner, self.lease)
        self._blocks: dict[int, Grant] = {}  # by thread

    def __repr__(self) -> str:
        return f"FencedLock({self.name!r}, owner={self.owner!r}, lease={self.lease})"

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(FencedLock, owner=self.owner, lease=self.lease, poll=self._poll)
        return make, (self._store, self.name)

    def acquire(self, timeout: float | None = None, *, keep_alive: bool = False) -> Grant:
        """Wait for the lock and take it. One store call where it is free.

        timeout: seconds to wait, None = for ever, 0 = as `try_acquire`, but raising.  keep_alive: renew it in the
        background until it is released or lost; keep the grant meanwhile: one that nobody refers to any more, as after
        an interrupt, is given back.  Waiting is fair by politeness, not first come, first served: a handle
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
        # No variable has the grant once it is kept alive: `kept_alive`.
        return kept_alive(Grant(self.name, self._party, claim)) if keep_alive else Grant(self.name, self._party, claim)

    @property
    def grant(self) -> Grant | None:
        """The grant of the `with lock:` block that this thread is in; None outside of one. No I/O."""
        return self._blocks.get(self._store.seams.thread())

    def __enter__(self) -> Grant:
        """Wait for the lock and take it, kept alive; its grant. Raises what `acquire` raises.

        Raises `InvalidRequest` where this thread is in such a block already: it would wait for itself.
        """
        thread, before = self._store.seams.thread(), self.grant
        if before is not None and not before.lost.is_set():
            raise InvalidRequest(
                f"this thread is in a block of {self!r} already, and a fenced lock is not re-entrant: use that block's "
                "grant; where a block was interrupted as it ended, lock.grant.release() ends it"
            )
        self._blocks.pop(thread, None)
        return self._blocks.setdefault(thread, self.acquire(keep_alive=True))

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        thread = self._store.seams.thread()
        grant = self._blocks[thread]
        try:
            grant.__exit__(kind, error, trace)
        finally:
            grant.lost.set()
            self._blocks.pop(thread, None)

    def _holder(self) -> str:
        seen = self._party.observed
        if seen is None or not seen.view.locked:
            return "others were faster"
        return f"{seen.view.owner!r} holds it with fence {seen.view.fence} and a lease of {seen.view.lease} s"


class Grant(Fenced):
    """One acquisition of a lock. Leaving its `with` block releases it, and raises `LeaseLost` where it was lost before.

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
        """Renew in the background from now on, three times a lease, until it is released, lost, or nobody has it."""
        kept_alive(self)

    def __enter__(self: G) -> G:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Give the lock back, if that was not done in the block.

        Where the block has not failed, raises `LeaseLost` if the lock was lost in it: what the block did, others may
        have done at the same time. Raises what `release` raises.
        """
        try:
            released, lost = self._given_back or self._freed, self.lost.is_set()
            held: bool | None = None
            try:
                held = self.release()
            except LatchworkError:
                if error is None and not lost:
                    raise
            if error is None and not released and (lost or not held):
                raise self._lost_in_its_block(held)
        finally:
            self.lost.set()  # an interrupt may have come before that: nothing is renewed from here on

    def _lost_in_its_block(self, held: bool | None) -> LeaseLost:
        others = {True: "nobody has", False: "others have", None: "others may have"}[held]
        return LeaseLost(
            f"the lease of {self._name!r} with fence {self._fence} was lost in the block that ends here, and {others} "
            f"had it since; use keep_alive=True or a lease longer than {self._party.lease} s, and fence what the block "
            "writes to",
            fence=self._fence,
        )

    def _keeper(self) -> Keeper:
        return Keeper(self, self._party, self._name)


def kept_alive(grant: G) -> G:
    """The grant, renewed in the background from now on; given back where no task can be started for that."""
    keeper = grant._keeper()  # noqa: SLF001 - the same module
    try:
        keeper.start()
    except BaseException:  # an interrupt, too: nobody would have this grant, and others would wait for its lease
        with suppress(LatchworkError):
            grant.release()
        raise
    try:
        return grant
    finally:
        # Who is interrupted from here on has either been given the grant, or nobody has it: no variable of ours, which
        # a traceback would keep. Before, nothing is renewed.
        del grant
        keeper.handed_out = True
