"""Fenced locks: a resource accepts only the newest holder that it has seen (docs/protocols P2).

    with lock as grant:
        grant.operate(Key("accounts", "42"), Add("balance", -10))

Not promised: mutual exclusion by the lock alone. A holder that is paused for longer than its lease does not notice it;
but its writes through `grant.operate` are then refused.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import ref

from ..background import FailureLog
from ..deadline import LATE, Deadline
from ..errors import FencedOut, InvalidRequest, LatchworkError, LeaseLost, NotFound, Refused
from ..forks import reset_in_child
from ..inputs import checked_kind, checked_switch, checked_text, checked_timeout, checked_whole
from ..logs import Log
from ..retry import Poll
from ..store.connect import as_store
from ..store.model.values import MAX_INT
from ..store.port import Key, RecordStore
from .contender import Acquisition, Contender, TakenLease
from .fencing import Fenced, Lost
from .lease import checked_lease, checked_owner

log = Log(__name__)

G = TypeVar("G", bound="Grant")

LOCKS = "latchwork_locks"
"""The set of all locks and elections."""
LOCK_POLL = Poll(low=0.0015, high=0.0101, factor=1.25, jitter=0.3)
"""Half of all releases are seen within 6 ms, of a lock that changes hands quickly within 1 ms. At most 100 reads a
second and process while the holder stays, at most 1,000 while it changes all the time."""

PART = 0.25
"""The part of its lease for which a renewal in the background waits for a reply, or 0.6 s if that is longer. So there
is time for two more renewals if the reply is lost; the store's own timeouts might take the whole rest of the lease."""


class FencedLock:
    """A lock with a lease and a fence, in one record. Handles are cheap, safe to share between threads, and pickle with
    their store. They are not re-entrant: a second `acquire` waits for the first one's release, also in another thread.

    `with lock:` waits for the lock without limit, renews it until the block ends, and gives the block its grant
    (`with lock as grant`, or `lock.grant`). The end of the block raises `LeaseLost` if the lock was lost in it.

    store, name: the lock; handles with one store and one name contend for one lock.
    owner: a name for people and logs; default `host:pid:unique`. No rule depends on it: two acquisitions by one owner
        are two.
    lease: seconds, 0.05 to 86,400, after which a lock whose holder does not renew may be taken by another. It must be
        longer than any pause that a live holder should survive.
    poll: the pause between two reads while another party holds the lock; default 1 to 13 ms, growing. All waits of a
        process are read together, so these pauses are the process's.
    """

    def __init__(
        self, store: RecordStore, name: str, *, owner: str | None = None, lease: float = 10.0, poll: Poll = LOCK_POLL
    ) -> None:
        self._store, self._poll = as_store(store), checked_kind("poll", poll, Poll)
        self.name, self.lease = checked_text("name", name), checked_lease(lease)
        self.owner = checked_owner(owner, store.seams)
        self._contender = Contender(store, Key(LOCKS, name), self.owner, self.lease)
        self._blocks: dict[int, tuple[Grant, ...]] = {}  # by thread; the last is that of the innermost block
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Keep the blocks of the thread that has forked: the others do not go on in the child, and a thread that is
        started there may get the number of one of them.
        """
        thread = self._store.seams.thread()
        self._blocks = {thread: self._blocks[thread]} if thread in self._blocks else {}

    def __repr__(self) -> str:
        return f"FencedLock({self.name!r}, owner={self.owner!r}, lease={self.lease})"

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(FencedLock, owner=self.owner, lease=self.lease, poll=self._poll)
        return make, (self._store, self.name)

    def acquire(self, timeout: float | None = None, *, keep_alive: bool = False) -> Grant:
        """Wait for the lock and take it. One store call if it is free.

        timeout: seconds to wait; None = no limit; 0 = like `try_acquire`, but raises if the lock is held.
        keep_alive: renew it in the background until it is released or lost. Keep a reference to the grant: a grant that
            nothing refers to any more, as after an interrupt, is released.

        Waiters are not served in order; but a handle that releases the lock while others wait lets them go first. If
        the holder died, this handle takes the lock once this process has seen it unchanged for the holder's whole
        lease, by its own clock. An unavailable store is asked again until the timeout.

        Raises `LockUnavailable` after the timeout. If the store is unavailable at that moment: `Unavailable`, or
        `OutcomeUnknown` if an attempt may have taken the lock (it then runs out after one lease). If no thread can be
        started to renew it, the lock is released and Python's `RuntimeError` is raised.
        """
        checked_switch("keep_alive", keep_alive)
        limit = checked_timeout(timeout)
        refusal, verb = f"the lock {self.name!r} was not acquired in {timeout} s", "FencedLock.acquire"
        claim = Acquisition(self._contender).enter(self._poll, limit, refusal, kind="lock", verb=verb)
        return self._granted(claim, keep_alive=keep_alive)

    def try_acquire(self, *, keep_alive: bool = False) -> Grant | None:
        """Take the lock if it is free, or if this process has seen it run out; else return None. Does not wait.

        Raises `OutcomeUnknown` or `Unavailable` if the store is unavailable.
        """
        checked_switch("keep_alive", keep_alive)
        with Deadline(self._store.seams, 0):
            claim = Acquisition(self._contender).at_once()
        return None if claim is None else self._granted(claim, keep_alive=keep_alive)

    def break_lease(self, fence: int, *, at_once: bool = False) -> bool:
        """Take the lock from the holder of this fence, for an operator: one who hangs, or whose lease is long. True if
        this call did it, False if the lock is not held under this fence any more. One store call.

        The holder's next renewal, and the end of its block, raise; nobody stops what it does. The next holder has a
        higher fence, and its `broken` is true.

        fence: as it was seen, by `latchwork lock show`. Another holder, who came later, is not touched.
        at_once: others may take the lock now. Until it renews the holder does not know, and two may believe that they
            have it: only what is written under fences is safe. Else they wait for the holder's whole lease, after which
            it does not believe so any more.

        Raises `OutcomeUnknown` or `Unavailable`: repeating it is harmless.
        """
        return self._contender.seize(
            checked_whole("fence", fence, 1, MAX_INT), at_once=checked_switch("at_once", at_once)
        )

    def _granted(self, claim: TakenLease, *, keep_alive: bool) -> Grant:
        return granted(partial(Grant, self.name, self._contender, claim), keep_alive=keep_alive)

    @property
    def grant(self) -> Grant | None:
        """The grant of this thread's `with lock:` block; None outside of such a block. No I/O."""
        blocks = self._blocks.get(self._store.seams.thread())
        return blocks[-1] if blocks else None

    def __enter__(self) -> Grant:
        """Wait for the lock, take it with `keep_alive`, and return its grant. Raises what `acquire` raises.

        Raises `InvalidRequest` if this thread is in such a block already: it would wait for itself. In a block whose
        lock was lost or released it may take the lock again.
        """
        before = self.grant
        if before is not None and not before.lost.is_set():
            raise InvalidRequest(
                f"this thread is in a block of {self!r} already, and a fenced lock is not re-entrant: use that block's "
                "grant; where a block was interrupted as it ended, lock.grant.release() ends it"
            )
        thread = self._store.seams.thread()
        # No variable has the grant: if an interrupt comes before it is kept here, nothing refers to it.
        self._blocks[thread] = (*self._blocks.get(thread, ()), self.acquire(keep_alive=True))
        return self._blocks[thread][-1]

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        thread = self._ending()
        *around, grant = self._blocks[thread]
        try:
            grant.__exit__(kind, error, trace)
        finally:
            grant.lost.set()
            self._blocks[thread] = tuple(around)
            if not around:
                del self._blocks[thread]

    def _ending(self) -> int:
        """Return the thread whose block ends: this one, or the one with the only block, as a generator may be closed in
        another thread than it began in.
        """
        thread = self._store.seams.thread()
        if thread in self._blocks:
            return thread
        found = [(other, len(blocks)) for other, blocks in self._blocks.copy().items()]
        if len(found) != 1 or found[0][1] != 1:
            raise InvalidRequest(
                f"a block of {self!r} ends in a thread that did not begin it, and which of {len(found)} it is is not "
                "known: use lock.acquire(keep_alive=True), whose grant any thread may release"
            )
        return found[0][0]


class Leased(Protocol):
    """The part of a record with a lease that a grant uses."""

    store: RecordStore
    owner: str
    lease: float

    def renew(self, fence: int) -> TakenLease: ...
    def release(self, fence: int) -> bool: ...


class Grant(Fenced):
    """One acquisition of a lock. Leaving its `with` block releases it, and raises `LeaseLost` if it was lost before.

    `lost` is an event that is set as soon as the lease can no longer be relied on: it has run out by this process's own
    clock, another party has taken it, or it was released. You can wait for it; it needs no background thread.

    Safe to share between threads: any of them may renew or release it.
    """

    gives_back_late = True
    """Whether a renewal that succeeds too late releases the lock, and so does the end of a grant that nothing refers to
    any more. False for a holder that may leave unfinished work behind: the next holder looks for it only if it finds
    that the lock was not released."""

    def __init__(self, name: str, leased: Leased, claim: TakenLease) -> None:
        super().__init__(leased.store, name, claim.fence, Lost(leased.store.seams, claim.until))
        self._leased = leased
        self._freed = self._freed_late = self._is_kept_alive = False
        self.broken = claim.broken
        """Whether it may have been taken from a holder that had not released it: one that died, or could not renew."""
        self.unreleased: LatchworkError | None = None
        """Why the end of its `with` block could not release it: it runs out after its lease."""
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Leave the release to the parent: a child that ends inside the `with` block must not free the lock."""
        self._freed = True

    def __repr__(self) -> str:
        return f"Grant({self._name!r}, fence={self.fence}, owner={self.owner!r})"

    @property
    def fence(self) -> int:
        """The fence, greater than that of every earlier acquisition of this lock. Renewing does not change it."""
        return self._fence

    @property
    def owner(self) -> str:
        """The owner's name with which the lock was acquired."""
        return self._leased.owner

    def renew(self) -> None:
        """Renew the lease. One store call.

        Raises `FencedOut` if the lease is lost. Raises `OutcomeUnknown` or `Unavailable` if that is not known: the
        grant then holds until `lost` is set, and renewing again is harmless.
        """
        self.check()
        try:
            claim = self._leased.renew(self.fence)
        except (Refused, NotFound):
            ended = self._ended()
            self.lost.set()
            raise ended from None
        if not self.lost.extend(claim.until):
            ended = self._ended()
            if self.gives_back_late and not self._given_back:  # else its holder releases it, and is told how that went
                self._freed_late = True
                self.release()
            raise ended

    def give_up(self) -> None:
        """Set `lost`, and record that the holder did so itself, if the lease was not lost before. No I/O."""
        self._given_back = self._given_back or not self.lost.is_set()
        self.lost.set()

    def release(self) -> bool:
        """Release the lock. True if this call freed it, False if this grant did not hold it any more. One store call.

        It frees only this acquisition, never another one by its owner. Calling it again has no effect, and neither has
        calling it in a forked child: the parent holds the lock.
        Raises `OutcomeUnknown` or `Unavailable`: call it again, or the lock runs out after its lease.
        """
        self.give_up()
        if self._freed:
            return False
        freed = self._leased.release(self.fence)
        self._freed = True
        return freed

    def keep_alive(self) -> None:
        """Renew in the background, three times a lease, until it is released or lost, or nothing refers to it."""
        kept_alive(self)

    def __enter__(self: G) -> G:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Release the lock, if the block has not done so.

        Raises `LeaseLost` if the lock was lost in the block and the block raised nothing: others may have done the work
        of the block at the same time. Raises what `release` raises.
        """
        try:
            late, lost = self._freed_late, self.lost.is_set()
            released = self._given_back or (self._freed and not late)
            held: bool | None = None
            try:
                held = self.release()
            except LatchworkError as failure:
                self.unreleased = failure
                if error is None and not lost:
                    raise
            if error is None and not released and (lost or not held):
                raise self._lost_in_its_block(None if late else held)
        finally:
            self.lost.set()  # also after an interrupt: nothing is renewed after the block

    def _lost_in_its_block(self, held: bool | None) -> LeaseLost:
        others = {
            True: "nobody has had it since",
            False: "others have had it since, or it was broken or deleted by somebody",
            None: "others may have had it since",
        }[held]
        away = "" if self.unreleased is None else f" (the store does not answer: {self.unreleased})"
        lease = f"a lease longer than {self._leased.lease} s"
        remedy = (
            f"if its renewals did not come in time, use {lease}"
            if self._is_kept_alive
            else f"use keep_alive=True or {lease}"
        )
        return LeaseLost(
            f"the lease of {self._name!r} with fence {self._fence} was lost in the block that ends here, and "
            f"{others}{away}; {remedy}, and fence what the block writes to",
            fence=self._fence,
        )

    def _keeper(self) -> Keeper:
        return Keeper(self, self._leased, self._name)


class Keeper:
    """The renewal of one grant in the background, three times a lease, until it is released or lost, or nothing refers
    to it any more.

    An interrupt (Ctrl-C) may come between any two instructions: after a lease was taken and before the caller has its
    grant, or at the end of a `with` block before the grant is released. Then nothing refers to the grant, and a lease
    that is still renewed would be held until the process ends. So a keeper holds only a weak reference to its grant,
    and renews nothing before the grant was handed out.

    leased: the record with the lease.
    name: the name of the lock, for logs.
    at_end: called once after the last renewal.
    """

    def __init__(self, grant: Grant, leased: Leased, name: str, at_end: Callable[[], object] = lambda: None) -> None:
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
        seams, lease = self._leased.store.seams, self._leased.lease
        usual, failure_log = lease / 3, FailureLog(seams, log)
        pause = usual
        while not self._lost.waited(pause, pause):  # it looks often enough anyway
            if not self.handed_out:
                continue  # the caller may have been interrupted; then the lease runs out
            grant = self._grant()
            if grant is None:
                self._give_back()
                return
            try:
                self._gives_back = grant.gives_back_late
                with Deadline(seams, max(0.0, lease * PART - LATE)):
                    grant.renew()
                pause = usual
            except FencedOut:
                return
            except Exception as failure:  # noqa: BLE001 - a defect must not end the renewal either
                failure_log.record(failure, f"the lease of {self._name!r} could not be renewed")
                pause = lease / 20
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


def granted(make: Callable[[], G], *, keep_alive: bool) -> G:
    """Return the grant that `make` returns, renewed in the background if `keep_alive`.

    No variable has the grant before the caller has it: see `kept_alive`.
    """
    return kept_alive(make()) if keep_alive else make()


def kept_alive(grant: G) -> G:
    """Return the grant, renewed in the background. If no task can be started for that, release it and raise."""
    keeper = grant._keeper()  # noqa: SLF001 - the same module
    try:
        keeper.start()
        grant._is_kept_alive = True  # noqa: SLF001 - as above
    except BaseException:  # also an interrupt: no variable would have this grant, and others would wait for its lease
        with suppress(LatchworkError):
            grant.release()
        raise
    try:
        return grant
    finally:
        # If an interrupt comes after this point, either the caller has the grant or nothing refers to it: no variable
        # here does, which a traceback would keep. Before this point nothing is renewed.
        del grant
        keeper.handed_out = True
