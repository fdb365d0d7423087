"""Taking a lease: the first try, looking, breaking, and what to do in doubt (docs/protocols.md P2).

A `Contender` is one party on one record. It remembers since when it has seen the lease stand still, which is what
entitles it to break it. Each `Acquisition` is one wish to have the lease, under an id of its own that every repeat
carries: an attempt whose reply was lost is recognised in the record, and counts only if the record still shows it.
An attempt that lands after everybody has given up holds the lease for nobody, until it runs out.

`Party` and `Attempts` are what this has in common with records that several hold at a time (`holders.py`).

Waiting is fair by politeness: who waits leaves a mark, a release reads it, and who has released so lets others go
first. Otherwise a holder that comes straight back would always win against those who ask now and then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from ..deadline import Deadline
from ..errors import LatchworkError, NotFound, OutcomeUnknown, Refused, StorageFailed, Unavailable
from ..retry import Poll, may_pass, outlive
from ..seams import Event
from ..store.model.expr import Bound
from ..store.model.ops import Compute, Op, Read
from ..store.port import NEVER, Exists, Key, RecordStore
from . import lease as rules
from .lease import LeaseView, Observation

PASSING = (OutcomeUnknown, Unavailable, StorageFailed)
"""Failures after which a lease may still be had, or held: the store is away, or a disk has failed once."""
TURN = 0.001
"""Seconds for which a party may take a lease again and again without letting other threads run."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease that was taken: its fence, and until when to believe in it (seconds, boottime).

    broken: whether it may have been taken from a holder who had not given it back.
    """

    fence: int
    until: float
    broken: bool = False


class Party:
    """One party on a record with leases: where it is, and how it lets others go first. Safe to share between threads.

    Pickles without what it has seen: the times of that are those of this host's clock, and mean nothing on another.
    """

    def __init__(self, store: RecordStore, key: Key, owner: str, lease: float) -> None:
        self.store, self.key, self.owner, self.lease = store, key, owner, lease
        self._marked = self._asked_for = self._yielded = float("-inf")
        self._mark: tuple[int | None, float] = (None, 0.0)  # of others, and when it was first seen

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store, self.key, self.owner, self.lease)

    def let_others_go_first(self, poll: Poll, timeout: float | None) -> None:
        """Pause for about as long as others pause between two looks, where they waited at this party's last release.

        Where nobody did, let the other threads of this process run now and then: in a store that answers without
        waiting they might not even have begun to wait.
        """
        seams = self.store.seams
        now = seams.monotonic()
        rest = self._asked_for + seams.uniform(0.5, 1.5) * poll.high - now
        if rest > 0:
            seams.sleep(rest if timeout is None else min(rest, timeout))
        elif now - self._yielded > TURN:
            self._yielded = now
            seams.sleep(0)

    def _released(self, mark: int | None) -> None:
        """Note whether others waited when the lease was given back: the mark that they left, 0 or None without one."""
        if mark:
            now = self.store.seams.monotonic()
            if mark != self._mark[0]:
                self._mark = mark, now
            # A mark may be old though it is fresh by the server's clock, which somebody has set back.
            if now - self._mark[1] < rules.STALE:
                self._asked_for = now

    def _mark_is_stale(self) -> bool:
        return self.store.seams.monotonic() - self._marked > rules.STALE / 2


class Contender(Party):
    """One party that wants the lease on one record. Safe to share between threads.

    A record that is absent is a free lease.  extra: operations that belong to the acquisition.
    """

    def __init__(
        self,
        store: RecordStore,
        key: Key,
        owner: str,
        lease: float,
        *,
        extra: tuple[Op, ...] = (),
    ) -> None:
        super().__init__(store, key, owner, lease)
        self.extra = extra
        self.observed: Observation | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), extra=self.extra), (self.store, self.key, self.owner, self.lease)

    def renew(self, fence: int) -> Claim:
        """Start the lease again. Raises `Refused` or `NotFound` where it is not held under this fence any more."""
        began = self.store.seams.boottime()
        self.store.operate(self.key, *rules.RENEW, when=rules.held(fence), ttl=NEVER, repeatable=True)
        return Claim(fence, rules.believed_until(began, self.lease))

    def release(self, fence: int) -> bool:
        """Give the lease back; False where it was not held under this fence any more."""
        ops = (*rules.RELEASE, Compute(rules.FRESH_MARK))
        try:
            mark = self.store.operate(self.key, *ops, when=rules.held(fence), ttl=NEVER, repeatable=True)[0]
        except (Refused, NotFound) as refusal:
            return bool(refusal.details["doubt"])
        self._released(mark)
        return True

    def look(self, *, waiting: bool = False) -> Observation | None:
        """The lease as it is now, and since when; None where there is no record. Leaves a mark if `waiting`."""
        bins = self._marking() if waiting and self._mark_is_stale() else self._reading()
        if bins is None:
            self.observed = None
            return None
        view, now = LeaseView.of(bins), self.store.seams.monotonic()
        seen = self.observed.then(view, now) if self.observed else Observation(view, now)
        self.observed = seen
        return seen

    def may_break(self, seen: Observation) -> bool:
        """Whether the lease has stood still for one whole lease of its holder."""
        return seen.ran_out(self.store.seams.monotonic())

    def _reading(self) -> dict[str, Any] | None:
        record = self.store.get(self.key, *rules.BINS)
        return None if record is None else record.bins

    def _marking(self) -> dict[str, Any] | None:
        reads = tuple(Read(bin) for bin in rules.BINS)
        try:
            values = self.store.operate(self.key, *rules.MARK, *reads, ttl=NEVER, repeatable=True)
        except NotFound:
            return None
        except OutcomeUnknown:
            return self._reading()  # whether the mark was left does not matter
        self._marked = self.store.seams.monotonic()
        return dict(zip(rules.BINS, values, strict=True))


Way = TypeVar("Way")
"""How an attempt is made: what a look has found to be possible."""
Seen = TypeVar("Seen")
"""What a look finds."""


class Attempts(ABC, Generic[Way, Seen]):
    """One wish to have a lease, and the attempts to take it, all under one id. For one thread."""

    def __init__(self, party: Party) -> None:
        self._party, self._store, self._seams = party, party.store, party.store.seams
        self.id = self._seams.unique()
        self._began = 0.0
        self.doubt = self._breaks = False

    # ---- what a kind of lease does

    @abstractmethod
    def look(self, *, waiting: bool = False) -> Claim | None:
        """Look, and take it if that is possible; None where it is not."""

    @abstractmethod
    def _send(self, way: Way | None) -> int:
        """Try to take it this way, or without having looked; its fence. Raises `Refused`."""

    @abstractmethod
    def _see(self, *, waiting: bool = False) -> Seen | None:
        """The leases as they are now; None where there is no record."""

    @abstractmethod
    def _mine(self, seen: Seen) -> int | None:
        """The fence of the lease that was taken under this id; None where there is none."""

    @abstractmethod
    def _renew(self, fence: int) -> Claim:
        """Start the lease that was taken again. Raises `Refused` or `NotFound` where it is not held any more."""

    # ---- what all do

    def take(self, way: Way | None = None) -> Claim | None:
        """Take it, this way or without having looked: one call where that is possible, None where not."""
        if not self.doubt:
            self._began = self._seams.boottime()
        try:
            fence = self._send(way)
        except (Refused, *PASSING) as failure:
            self.doubt = self.doubt or isinstance(failure, OutcomeUnknown) or failure.details["doubt"]
            if not self.doubt and not isinstance(failure, Refused):
                raise
            return self._recognised() if self.doubt else None
        until = rules.believed_until(self._began, self._party.lease)
        if self._seams.boottime() >= until:
            return self._confirm(fence)
        return Claim(fence, until, self._breaks)

    def wait(
        self, poll: Poll, *, deadline: Deadline | None = None, stop: Event | None = None, mark: bool = True
    ) -> Claim | None:
        """Look again and again; None once the deadline is over or `stop` is set.

        deadline: until then also while the store is away, which is raised where there is none.  mark: leave the marks
        that make releases polite.
        """

        def look() -> Claim | None:
            return self.look(waiting=mark)

        def probe() -> tuple[Claim | None] | None:
            if stop is not None and stop.is_set():
                return (None,)
            claim = look() if deadline is None else outlive(self._seams, deadline, look, passing=may_pass)
            return None if claim is None else (claim,)

        timeout = None if deadline is None else deadline.left()
        found = poll.until(self._seams, probe, timeout=timeout, wake=stop)
        return None if found is None else found[0]

    def _recognised(self) -> Claim | None:
        """The lease, if an attempt in doubt turns out to have taken it."""
        seen = self._look()
        fence = None if seen is None else self._mine(seen)
        return None if fence is None else self._confirm(fence)

    def _look(self, *, waiting: bool = False) -> Seen | None:
        try:
            return self._see(waiting=waiting)
        except LatchworkError as failure:
            if not self.doubt:
                raise
            raise self._unknown() from failure

    def _confirm(self, fence: int) -> Claim | None:
        """A claim that is old, or was found in the record, counts only once it is renewed."""
        try:
            return replace(self._renew(fence), broken=self._breaks)
        except (Refused, NotFound):
            self._begin_again()
            return None
        except PASSING as failure:
            raise self._unknown() from failure

    def _begin_again(self) -> None:
        self.id, self.doubt, self._breaks = self._seams.unique(), False, False

    def _unknown(self) -> OutcomeUnknown:
        key, lease = self._party.key, self._party.lease
        return OutcomeUnknown(
            f"an attempt to take the lease on {key} may have been applied, and the record cannot be asked; if it was, "
            f"the lease ends by itself after {lease} s",
            key=key,
        )


class Acquisition(Attempts[Bound, Observation]):
    """One wish to have the one lease on a record. For one thread."""

    def __init__(self, contender: Contender) -> None:
        super().__init__(contender)
        self._contender = contender

    def look(self, *, waiting: bool = False) -> Claim | None:
        """Look, and take it if it is free or may be broken; None where it is somebody else's."""
        seen = self._look(waiting=waiting)
        if seen is None or not seen.view.locked:
            if seen is not None and seen.view.grant == self.id:
                self._begin_again()  # an attempt in doubt took it, and it was freed by force
            return self.take()
        if self._is_mine(seen.view):
            return self._confirm(seen.view.fence)
        return self.take(rules.broken(seen.view, self.id)) if self._contender.may_break(seen) else None

    def _send(self, way: Bound | None) -> int:
        party = self._contender
        self._breaks = self._breaks or way is not None
        (fence,) = self._store.operate(
            party.key,
            *rules.acquire(party.owner, party.lease, self.id),
            *party.extra,
            when=way or rules.free(self.id),
            exists=Exists.ANY,
            or_absent=True,
            ttl=NEVER,
            repeatable=True,
        )
        return int(fence)

    def _see(self, *, waiting: bool = False) -> Observation | None:
        return self._contender.look(waiting=waiting)

    def _mine(self, seen: Observation) -> int | None:
        return seen.view.fence if self._is_mine(seen.view) else None

    def _is_mine(self, view: LeaseView) -> bool:
        return view.locked and view.grant == self.id

    def _renew(self, fence: int) -> Claim:
        return self._contender.renew(fence)
