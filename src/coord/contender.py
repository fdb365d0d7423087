"""Acquisition of a lease: the first try, waiting, breaking, and attempts in doubt (docs/protocols P2).

A `Contender` is one party on one record. It knows how long its process has seen the lease unchanged: after the whole
length of the lease it may break it. An `Acquisition` takes the lease once, under an id of its own that every repeat
carries: so an attempt whose reply was lost is found in the record, and counts only if the record still shows it. If a
late attempt arrives after its caller has given up, the lease is held, unused, until it runs out.

`BaseContender` and `BaseAcquisition` are shared with records that have several holders at a time (`holders.py`).

Fairness: a waiting party leaves a mark in the record, a release reads the mark, and the party that released then pauses
before it asks again. Otherwise a holder that asks again at once would always win against waiters that poll.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from ..deadline import Deadline
from ..errors import LatchworkError, LockUnavailable, NotFound, OutcomeUnknown, Refused, StorageFailed, Unavailable
from ..retry import Poll, may_pass, outlive
from ..seams import Event
from ..store.model.expr import Bound, Expr
from ..store.model.ops import Compute, Op
from ..store.once import TokenClock
from ..store.port import NEVER, Exists, Key, RecordStore
from . import lease as rules
from .lease import LeaseView, Observation
from .waits import INFINITY, SOON, Answer, Watch, measured, poller_of, read

TRANSIENT = (OutcomeUnknown, Unavailable, StorageFailed)
"""Failures after which another try may succeed: the store is unavailable, or a disk has failed once."""
TURN = 0.001
"""Seconds for which a party may take a lease repeatedly without letting other threads run."""


@dataclass(frozen=True, slots=True)
class TakenLease:
    """A lease that was taken.

    fence: its fence.
    until: the end of the lease, in seconds of the boottime clock.
    broken: whether it may have been taken from a holder that had not released it.
    """

    fence: int
    until: float
    broken: bool = False


class BaseContender:
    """One party on a record with leases; after a release it lets waiting parties go first. Thread-safe.

    Pickles without its observations: their times are of this host's clock, which means nothing on another host.
    """

    _bins: tuple[str, ...] = ()
    """The bins of the lease; none = all bins of the record."""

    def __init__(self, store: RecordStore, key: Key, owner: str, lease: float) -> None:
        self.store, self.key, self.owner, self.lease = store, key, owner, lease
        self._asked_for = self._yielded = float("-inf")
        self._taken = self._held_for = self._call_took = 0.0
        self._mark: tuple[int | None, float] = (None, 0.0)  # of others, and when it was first seen

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store, self.key, self.owner, self.lease)

    def yield_to_waiters(self, poll: Poll, timeout: float | None) -> None:
        """Pause for about as long as other parties pause between two reads, if they waited at this party's last
        release.

        Their pauses have grown for as long as this party has held the lease: after a short hold the pause is short. A
        waiting party needs one call more than this one, to see that the lease is free.

        If no party waited, let the other threads of this process run now and then: with a store in memory they might
        otherwise not even have started to wait.
        """
        seams = self.store.seams
        now = seams.monotonic()
        rest = self._asked_for + seams.uniform(0.5, 1.5) * poll.reached(self._held_for) + self._call_took - now
        if rest > 0:
            seams.sleep(rest if timeout is None else min(rest, timeout))
        elif now - self._yielded > TURN:
            self._yielded = now
            seams.sleep(0)

    def watch(self, poll: Poll, worth: Callable[[Answer], bool] | None, *, alone: bool, mark: bool) -> Watch:
        """Make the watch of one wait for the lease."""
        return Watch(self.store, self.key, self._bins, poll, worth=worth, again=True, alone=alone, mark=mark)

    def _read(self, watch: Watch | None, *, waiting: bool) -> Answer:
        """Read the record, through the `watch` of a wait if there is one; else with a mark if `waiting`."""
        return watch.read() if watch else read(self.store, self.key, self._bins, mark=waiting)

    def took(self) -> None:
        """Remember that the lease was taken now."""
        self._taken = self.store.seams.monotonic()

    def held_by(self) -> str:
        """Return who had it when it was read last, as text for a message."""
        return "others were faster"

    def _released(self, mark: int | None, began: float) -> None:
        """Remember whether others waited when the lease was released, and wake a waiting thread of this process.

        mark: what the others left, 0 or None without one.
        began: when the release was sent.
        """
        poller_of(self.store).released(self.key)
        if mark:
            now = self.store.seams.monotonic()
            self._held_for, self._call_took = now - self._taken, now - began
            if mark != self._mark[0]:
                self._mark = mark, now
            # A mark that is fresh by the server's clock may be old: that clock may have been set back.
            if now - self._mark[1] < rules.STALE:
                self._asked_for = now


Seen = TypeVar("Seen")
"""The result of reading the record."""
MAX_OBSERVED = 1_024
"""Records of one store of which a process remembers what it has seen. One that is forgotten is watched again."""
_ALL: WeakKeyDictionary[TokenClock, dict[Key, Observation]] = WeakKeyDictionary()
"""Handles that ask once, as for one web request, would never see a dead holder's lease for its whole length. So all
handles of a process share what they have seen."""


def remember(all_seen: dict[Key, Seen], key: Key, seen: Seen | None) -> None:
    """Let the later handles of this process know what this one has seen, if anything; the newest is the last."""
    all_seen.pop(key, None)
    if seen is None:
        return
    if len(all_seen) >= MAX_OBSERVED:
        with suppress(KeyError, RuntimeError):  # another thread does so at this moment
            del all_seen[next(iter(all_seen))]
    all_seen[key] = seen


class Contender(BaseContender):
    """One party that wants the lease on one record. Safe to share between threads.

    If the record is absent, the lease is free.

    extra: more operations to apply with the acquisition.
    also: one more condition of an acquisition, if the record exists.
    ttl: seconds that the record lives after each write of the lease; None = it never expires.
    """

    _bins: tuple[str, ...] = rules.BINS

    def __init__(
        self,
        store: RecordStore,
        key: Key,
        owner: str,
        lease: float,
        *,
        extra: tuple[Op, ...] = (),
        also: Bound | None = None,
        ttl: int | None = None,
    ) -> None:
        super().__init__(store, key, owner, lease)
        self.extra, self.also, self.ttl = extra, also, NEVER if ttl is None else ttl
        self._all = _ALL.setdefault(store.token_clock, {})
        self.observed: Observation | None = self._all.get(key)

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(type(self), extra=self.extra, also=self.also, ttl=self.ttl)
        return make, (self.store, self.key, self.owner, self.lease)

    def renew(self, fence: int) -> TakenLease:
        """Renew the lease. Raises `Refused` or `NotFound` if it is not held under this fence any more."""
        began = self.store.seams.boottime()
        self.store.operate(self.key, *rules.RENEW, when=rules.held(fence), ttl=self.ttl, repeatable=True)
        return TakenLease(fence, rules.believed_until(began, self.lease))

    def release(self, fence: int) -> bool:
        """Release the lease. False if it was not held under this fence any more."""
        ops, began = (*rules.RELEASE, Compute(rules.FRESH_MARK)), self.store.seams.monotonic()
        try:
            mark = self.store.operate(self.key, *ops, when=rules.held(fence), ttl=self.ttl, repeatable=True)[0]
        except (Refused, NotFound) as refusal:
            return bool(refusal.details["doubt"])
        self._released(mark, began)
        return True

    def seize(self, fence: int, *, at_once: bool) -> bool:
        """Take the lease from the holder of this fence for nobody. False if it was not held under it any more."""
        ops = rules.seize(self.owner, self.store.seams.unique(), at_once=at_once)
        try:
            self.store.operate(self.key, *ops, when=rules.held(fence), ttl=self.ttl, repeatable=True)
        except (Refused, NotFound) as refusal:
            return bool(refusal.details["doubt"])
        return True

    def look(self, *, waiting: bool = False, watch: Watch | None = None) -> Observation | None:
        """Read the lease, and since when it is unchanged; None if there is no record. Leaves a mark if `waiting`.

        watch: the wait that this look is part of.
        """
        return self.observe(self._read(watch, waiting=waiting))

    def observe(self, answer: Answer) -> Observation | None:
        """Remember the lease as it was read, and since when it is unchanged; None if there is no record.

        A lease is first seen when its read was answered: it was so then, or even before.
        """
        if answer.record is None:
            self.observed = None
            remember(self._all, self.key, None)
            return None
        view, now = LeaseView.of(self.key, answer.record.bins), answer.answered
        before = self.observed  # read once: another thread may replace it
        seen = before.then(view, now) if before else Observation(view, now)
        self.observed = seen
        remember(self._all, self.key, seen if seen.view.locked else None)
        return seen

    def may_break(self, seen: Observation) -> bool:
        """Whether the lease was seen unchanged for its whole length."""
        return seen.ran_out(self.store.seams.monotonic())

    def held_by(self) -> str:
        """Return who had it when it was read last, as text for a message."""
        seen = self.observed  # read once: another thread may replace it
        if seen is None or not seen.view.locked:
            return super().held_by()
        view = seen.view
        if (by := view.broken_by) is not None:
            takes = f"who has waited for {view.lease:g} s, the lease of its former holder, takes it"
            return f"{by!r} has broken it, and nobody holds it: {takes}; its fence is {view.fence}"
        return f"{view.owner!r} holds it with fence {view.fence} and a lease of {view.lease} s"


Way = TypeVar("Way")
"""A way to take the lease other than as if it were free, for example to break it."""


class BaseAcquisition(ABC, Generic[Seen, Way]):
    """One acquisition of a lease, with all its attempts, under one id. Not thread-safe."""

    _contender: BaseContender
    alone = False
    """Whether only one party can have the lease, so that one waiting thread is woken and not all."""

    def __init__(self, contender: BaseContender) -> None:
        self._contender, self._store, self._seams = contender, contender.store, contender.store.seams
        self.id = self._seams.unique()
        self._began = 0.0
        self.doubt = self._breaks = False
        self._watch: Watch | None = None

    # ---- different for each kind of lease

    @abstractmethod
    def _see(self, *, waiting: bool = False) -> Seen | None:
        """Read the record; None if there is none."""

    @abstractmethod
    def _mine(self, seen: Seen) -> int | None:
        """Return the fence of the lease that was taken under this id; None if there is none."""

    @abstractmethod
    def _try(self, seen: Seen | None, *, waiting: bool) -> TakenLease | None:
        """Take the lease if the record allows it; else return None, and ask to go first if `waiting`."""

    @abstractmethod
    def _send(self, way: Way | None) -> int:
        """Send one attempt to take the lease in this way; None = as if it were free. Return its fence. Raises
        `Refused`.
        """

    @abstractmethod
    def _renew(self, fence: int) -> TakenLease:
        """Renew the lease that was taken. Raises `Refused` or `NotFound` if it is not held any more."""

    @abstractmethod
    def _due(self) -> float:
        """Return when (seconds, monotonic) the record is to be looked at though it has not changed."""

    _worth: Callable[[Answer], bool] | None = None
    """Whether an answer is worth a look; default: if the record has changed."""

    def _end(self) -> None:
        """End a wait without success: let the other parties go first again, if it has asked them to wait."""

    # ---- the same for all kinds

    def enter(self, poll: Poll, timeout: float | None, refusal: str, *, kind: str, verb: str) -> TakenLease:
        """Take the lease at once, or wait for it for up to `timeout` seconds.

        refusal: what the error says if that was not enough.
        kind: of the primitive, for the metrics.
        verb: the public call, named by the error where this thread runs an event loop.

        Raises `LockUnavailable` if that was not enough.
        """
        seams, claim = self._seams, None
        seams.may_wait(verb, timeout)
        with Deadline(seams, timeout) as deadline:
            self._contender.yield_to_waiters(poll, timeout)
            first = self.take if self.alone and timeout != 0 else self.at_once
            claim = outlive(seams, deadline, first, passing=may_pass)
            if claim is None and timeout != 0:
                try:
                    claim = measured(seams, kind, lambda: self.wait(poll, deadline=deadline))
                finally:
                    if claim is None:  # also where the wait failed
                        self._end()
        if claim is None:
            raise LockUnavailable(f"{refusal}; {self._contender.held_by()}", key=self._contender.key)
        return claim

    def at_once(self) -> TakenLease | None:
        """Try as if the lease were free, then read the record; None if the lease cannot be taken now."""
        return self.take() or self.look()

    def take(self, way: Way | None = None) -> TakenLease | None:
        """Try once to take the lease, in this way or as if it were free. One store call; None if it is not free."""
        if not self.doubt:
            self._began = self._seams.boottime()
        try:
            fence = self._send(way)
        except (Refused, *TRANSIENT) as failure:
            self.doubt = self.doubt or isinstance(failure, OutcomeUnknown) or failure.details["doubt"]
            if not self.doubt:
                self._breaks = False  # nothing was applied
                if not isinstance(failure, Refused):
                    raise
            # An attempt in doubt may have taken it.
            seen = self._look() if self.doubt else None
            found = None if seen is None else self._mine(seen)
            return None if found is None else self._confirm(found)
        until = rules.believed_until(self._began, self._contender.lease)
        if self._seams.boottime() >= until:
            return self._confirm(fence)
        self._contender.took()
        return TakenLease(fence, until, self._breaks)

    def look(self, *, waiting: bool = False) -> TakenLease | None:
        """Read the record, and take the lease if that is possible; None if not. If `waiting`, tell the others."""
        seen = self._look(waiting=waiting)
        fence = None if seen is None else self._mine(seen)
        return self._try(seen, waiting=waiting) if fence is None else self._confirm(fence)

    def wait(
        self, poll: Poll, *, deadline: Deadline | None = None, stop: Event | None = None, mark: bool = True
    ) -> TakenLease | None:
        """Call `look` until it succeeds; None once the deadline is over or `stop` is set.

        deadline: until then, an unavailable store is asked again; without a deadline its error is raised.
        mark: leave marks, so that a party that releases lets this one go first.
        """
        watch = self._watch = self._contender.watch(poll, self._worth, alone=self.alone, mark=mark)

        def take_or_look() -> TakenLease | None:
            saw_release, watch.saw_release = watch.saw_release, False
            return (saw_release and self.take()) or self.look(waiting=mark)

        def probe() -> tuple[TakenLease | None] | None:
            if stop is not None and stop.is_set():
                return (None,)
            claim = (
                take_or_look() if deadline is None else outlive(self._seams, deadline, take_or_look, passing=may_pass)
            )
            return None if claim is None else (claim,)

        timeout = None if deadline is None else deadline.left()
        try:
            found = watch.until(probe, timeout=timeout, due=self._due, stop=stop)
        finally:
            self._watch = None
        return None if found is None else found[0]

    def _look(self, *, waiting: bool = False) -> Seen | None:
        try:
            return self._see(waiting=waiting)
        except LatchworkError as failure:
            if not self.doubt:
                raise
            raise self._unknown() from failure

    def _confirm(self, fence: int) -> TakenLease | None:
        """Renew a lease whose reply was late or lost, and return it; None if it is not held any more."""
        try:
            claim = replace(self._renew(fence), broken=self._breaks)
        except (Refused, NotFound):
            self._begin_again()
            return None
        except TRANSIENT as failure:
            raise self._unknown() from failure
        self._contender.took()
        return claim

    def _begin_again(self) -> None:
        self.id, self.doubt, self._breaks = self._seams.unique(), False, False

    def _unknown(self) -> OutcomeUnknown:
        key, lease = self._contender.key, self._contender.lease
        return OutcomeUnknown(
            f"an attempt to take the lease on {key} may have been applied, and the record cannot be asked; if it was, "
            f"the lease ends by itself after {lease} s",
            key=key,
        )


class Acquisition(BaseAcquisition[Observation, Bound]):
    """One acquisition of a record's only lease."""

    _contender: Contender
    alone = True

    def _see(self, *, waiting: bool = False) -> Observation | None:
        return self._contender.look(waiting=waiting, watch=self._watch)

    def _mine(self, seen: Observation) -> int | None:
        return seen.view.fence if self._is_mine(seen.view) else None

    def _is_mine(self, view: LeaseView) -> bool:
        return view.locked and view.grant == self.id

    def _try(self, seen: Observation | None, *, waiting: bool) -> TakenLease | None:  # noqa: ARG002 - the mark asks
        if seen is not None and seen.view.locked:
            return self.take(rules.broken(seen.view, self.id)) if self._contender.may_break(seen) else None
        if seen is not None and seen.view.grant == self.id:
            self._begin_again()  # an attempt in doubt took it, and it was freed by force
        return self.take()

    def _send(self, way: Bound | None) -> int:
        contender, guard = self._contender, way or rules.free(self.id)
        self._breaks = self._breaks or way is not None
        if contender.also is not None:
            both = _and(guard.expr, contender.also.expr)
            guard = Bound(both, {**guard.params, **contender.also.params})
        (fence,) = self._store.operate(
            contender.key,
            *rules.acquire(contender.owner, contender.lease, self.id),
            *contender.extra,
            when=guard,
            exists=Exists.ANY,
            or_absent=True,
            ttl=contender.ttl,
            repeatable=True,
        )
        return int(fence)

    def _renew(self, fence: int) -> TakenLease:
        return self._contender.renew(fence)

    def _due(self) -> float:
        seen = self._contender.observed
        return seen.since + seen.view.lease + SOON if seen and seen.view.locked else INFINITY

    def _worth(self, answer: Answer) -> bool:
        """Observe the lease in whichever thread has read it. Worth a look if it is free or this acquisition's."""
        seen = self._contender.observe(answer)
        return seen is None or not seen.view.locked or self._is_mine(seen.view)


@lru_cache(maxsize=256)
def _and(one: Expr, other: Expr) -> Expr:
    return one & other
