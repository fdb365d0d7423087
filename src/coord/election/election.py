"""Leader election: one leader an epoch, and epochs that only grow (docs/protocols.md P3).

    LeaseElection(store, "sweeper").run(lambda leadership: sweep(leadership), timeout=60)

The epoch is the fence of the lock record of that name, however the candidate was chosen, so the epochs of all kinds of
election compare. Two candidates may believe for a moment that they lead; `leadership.operate` lets only the newer one
write.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from ...background import Activity, Troubles
from ...errors import InvalidRequest, LatchworkError, Misconfigured, WaitTimeout
from ...inputs import checked_kind, checked_timeout
from ...retry import Poll
from ...seams import Event, Task
from ...store.connect import as_store
from ...store.port import Key, RecordStore
from ..contender import PASSING, Acquisition, Contender
from ..inputs import checked_name, checked_owner
from ..lease import checked_lease
from ..lock import LOCKS, Grant, kept_alive
from .candidates import Roster
from .term import Leadership

__all__ = ["FOLLOW", "Election", "Leadership", "LeaseElection"]

log = logging.getLogger("latchwork.election")
T = TypeVar("T")
RECOVERY = 1.0
"""Seconds before a campaign goes on after the store, or ZooKeeper, could not be reached or a disk failed."""
ENOUGH, SOON = 10.0, 0.5
"""Seconds for a campaign to end; where nobody was elected in time, `run` does not wait for a call that hangs."""
DEFECT = Poll(low=RECOVERY, high=10.0, factor=2.0, jitter=0.0)
"""Pauses of a campaign after each defect in a row, of a client library or of ours."""
FOLLOW = Poll(low=0.01, high=0.05)
"""How `run` waits for its own campaign."""


class Election(ABC):
    """What all elections share: the campaign in the background, and the ways to lead.

    A handle is one candidate. Safe to share between threads; not to be pickled or forked.
    """

    def __init__(self, store: RecordStore, name: str, candidate: str | None) -> None:
        self._store, self._seams = as_store(store), store.seams
        self.name, self.candidate = checked_name(name), checked_owner(candidate, store.seams)
        self._guard = self._seams.lock()
        self._stop, self._changed, self._idle = self._seams.event(), self._seams.event(), self._seams.event()
        self._idle.set()
        # The terms of the functions of `run` that have not returned; `_idle` is set while there is none.
        self._runners: dict[object, Grant] = {}
        self._standing: Activity | None = None
        self._owner: object = None  # the `run` for which the campaign was started, if it was for one
        self._grant: Grant | None = None
        self._leadership: Leadership | None = None
        self._failure: LatchworkError | None = None
        self._passed: Exception | None = None
        """The last failure after which the campaign went on, since the last term."""
        self._troubles, self._asides = Troubles(self._seams, log), Troubles(self._seams, log)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, candidate={self.candidate!r})"

    @property
    def leadership(self) -> Leadership | None:
        """The term of this candidate while it can be believed, else None. No I/O. Advisory, as every belief is."""
        leadership = self._leadership
        return None if leadership is None or leadership.lost.is_set() else leadership

    def start(self, lead: Callable[[Leadership], object] | None = None) -> bool:
        """Stand for election in the background until `stop`. False where it is standing already.

        lead: called with each term of office, in the background. When it returns or raises, the term is given up, and
        the candidate stands again. When the term is lost first, it is told by `leadership.lost`, and the candidate
        does not stand again before it has returned. Without it, a term lasts until it is lost or resigned.  After a
        `stop` that has not ended in time, the candidate stands again once what was stopped has ended.

        Raises nothing that has to do with the store: that is logged, once a minute, and the campaign goes on, after a
        defect, too. What only a setting can change ends it, which is logged as well, and raised by `run`.
        """
        if lead is not None and not callable(lead):
            raise InvalidRequest(f"lead is a {type(lead).__name__}; pass a function that takes the Leadership, or None")
        return self._start(lead, None)

    def _start(self, lead: Callable[[Leadership], object] | None, owner: object) -> bool:
        with self._guard:
            before = self._standing if self._standing is not None and self._standing.is_alive() else None
            if before is not None and not self._stop.is_set():
                return False
            if self._standing is not None:
                self._standing.cancel()
            stop = self._seams.event()
            self._stop, self._changed, self._failure = stop, self._seams.event(), None
            self._standing, self._owner = Activity(self._seams), owner
            # Whoever is interrupted from here on has a candidate that `stop` ends.
            self._standing.begin(lambda: self._campaign(stop, lead, before), f"latchwork-election-{self.name}")
        return True

    def stop(self, timeout: float | None = ENOUGH) -> bool:
        """Give up the term, if there is one, and stand no more.

        False if the campaign (the leader's function, a call that hangs) has not ended within `timeout` seconds; it then
        ends on its own. Not to be called by the leader's function, which returns instead.
        """
        limit = checked_timeout(timeout)
        with self._guard:
            standing = self._standing
            self._stop.set()
            self._end_term()
        if standing is None:
            return True
        standing.cancel()
        standing.join(limit)
        return not standing.is_alive()

    def resign(self) -> bool:
        """Give up the term; the other candidates are elected first, within a second. False where there is none.

        Raises `OutcomeUnknown` or `Unavailable`: the term is over all the same, its lease ends by itself.
        """
        grant = self._grant
        if self.leadership is None or grant is None:
            return False
        self._end_term()
        self._hand_back(grant)
        return True

    def run(self, fn: Callable[[Leadership], T], timeout: float | None = None) -> T:
        """Wait to be elected, call `fn(leadership)`, give the term up, and return or raise what it did.

        timeout: seconds to wait to be elected, None = for ever. Where the candidate is standing already, its next term
        (or present one) is used, and it goes on standing afterwards. Where the term is lost before `fn` has returned,
        `fn` is told by `leadership.lost`, and the candidate does not stand again until it has returned.

        Raises `WaitTimeout` where it was not elected in time, or was stopped. Not promised: that `fn` still leads when
        it returns; it calls `leadership.check()`.
        """
        limit = checked_timeout(timeout)
        if not callable(fn):
            raise InvalidRequest(f"fn is a {type(fn).__name__}; pass a function that takes the Leadership")
        runner, patience = object(), SOON

        def serve(leadership: Leadership) -> T:
            nonlocal patience
            patience = ENOUGH
            return fn(leadership)

        try:
            try:
                self._start(None, runner)
                return self._serve(serve, limit)
            finally:
                self._end(runner, patience)
        finally:
            self._end(runner, 0)  # once more, as an interrupt may have come before the first one had begun

    def _end(self, runner: object, timeout: float) -> None:
        """Stop what was started for this `run`, unless that was done before."""
        if self._owner is runner:
            self.stop(timeout)
            self._owner = None

    @abstractmethod
    def contenders(self) -> list[str]:
        """The candidates that stand for election, the leader included."""

    # ---- what a kind of election does

    @abstractmethod
    def _elect(self, stop: Event) -> Grant | None:
        """Wait to be chosen, and take the next fence; None once `stop` is set."""

    def _hand_back(self, grant: Grant) -> None:
        grant.release()

    def _enter(self, stop: Event) -> None: ...

    def _leave(self) -> None: ...

    @abstractmethod
    def _others_first(self) -> float:
        """Seconds to wait after a term, so that somebody else is elected."""

    # ---- the campaign

    def _campaign(self, stop: Event, lead: Callable[[Leadership], object] | None, before: Activity | None) -> None:
        if before is not None:
            before.join()  # one candidate stands once at a time
        entered, failures = False, 0
        try:
            while not stop.is_set():
                try:
                    if not entered:
                        self._enter(stop)
                        entered = True
                    self._one_term(stop, lead)
                    failures = 0
                except Exception as failure:
                    if _is_final(failure):
                        raise
                    failures, self._passed = failures + 1, failure
                    pause = RECOVERY if isinstance(failure, PASSING) else DEFECT.pause(failures, self._seams)
                    self._troubles.tell(failure, f"{self!r} goes on in {pause} s")
                    stop.wait(pause)
        except BaseException as failure:  # whoever waits to be elected has to hear of it, whatever it was
            if isinstance(failure, LatchworkError):
                log.error("%r does not stand any more (%s): %s", self, failure.code, failure)  # noqa: TRY400 - one line
                log.debug("%r does not stand any more", self, exc_info=failure)
            else:
                log.exception("%r does not stand any more", self)
            self._fail(stop, failure)
        finally:
            stop.set()  # what runs beside the campaign ends with it
            self._changed.set()
            self._quietly(self._leave)

    def _fail(self, stop: Event, failure: BaseException) -> None:
        if not isinstance(failure, LatchworkError):
            failure = LatchworkError(f"the campaign of {self!r} ended with {failure!r}; correct that, and start again")
        with self._guard:
            if stop is self._stop:  # else it was stopped, and a later campaign does not fail for it
                self._failure = failure

    def _one_term(self, stop: Event, lead: Callable[[Leadership], object] | None) -> None:
        grant = self._elect(stop)
        if grant is None:
            return
        leadership = Leadership(grant, self._store, self.name)
        with self._guard:
            if stop.is_set():
                grant.give_up()
            self._grant, self._leadership, self._passed = grant, leadership, None
            self._changed.set()
        log.info("%r leads", leadership)
        try:
            self._lead(leadership, lead)
        finally:
            grant.give_up()
            with self._guard:
                self._grant = self._leadership = None
            self._quietly(lambda: self._hand_back(grant))
            log.info("%r is over", leadership)
        self._idle.wait()
        stop.wait(self._others_first())

    def _lead(self, leadership: Leadership, lead: Callable[[Leadership], object] | None) -> None:
        if lead is None:
            leadership.lost.wait()
            return
        try:
            lead(leadership)
        except BaseException:  # whatever it was, SystemExit too, the term is given up and the campaign goes on
            log.exception("%r: the leader's function failed", leadership)

    def _serve(self, fn: Callable[[Leadership], T], timeout: float | None) -> T:
        stop, runner = self._stop, object()

        def elected() -> Leadership | bool | None:
            if self._failure is not None:
                raise self._failure
            return False if stop.is_set() else self._joined(runner)

        try:  # around the wait, too: an interrupt may come right after the runner has joined
            leadership = FOLLOW.until(self._seams, elected, timeout=timeout, wake=self._changed)
            if not isinstance(leadership, Leadership):
                why = "it was stopped" if stop.is_set() else f"not within {timeout} s"
                last = f"; the campaign failed last with {self._passed!r}" if self._passed else ""
                raise WaitTimeout(f"{self!r} was not elected: {why}{last}", name=self.name)
            return fn(leadership)
        finally:
            try:
                self._part(runner)
            except BaseException:  # an interrupt, which must not leave a campaign that waits for this runner
                self._part(runner)
                raise

    def _joined(self, runner: object) -> Leadership | None:
        """The present term, which does not give way to the next one before `_part`; None where there is none."""
        with self._guard:
            leadership, grant = self.leadership, self._grant
            if leadership is None or grant is None:
                self._changed.clear()  # it tells of a term that is lost, and would cut every pause short
                return None
            self._runners[runner] = grant
            self._idle.clear()
            return leadership

    def _part(self, runner: object) -> None:
        """Give the term up that the runner has joined, if it has joined one."""
        if runner not in self._runners:
            return
        grant = self._runners[runner]
        grant.give_up()
        try:
            self._quietly(lambda: self._hand_back(grant))
        finally:
            with self._guard:
                self._runners.pop(runner, None)
                if not self._runners:
                    self._idle.set()

    def _end_term(self) -> None:
        grant = self._grant
        if grant is not None:
            grant.give_up()

    def _quietly(self, last: Callable[[], object]) -> None:
        """What ends by itself anyway, in time, must not hide how the work went."""
        try:
            last()
        except Exception as failure:  # noqa: BLE001 - a defect, too
            self._asides.tell(failure, f"{self!r}: could not say so to the store")


def _is_final(failure: Exception) -> bool:
    """Whether a campaign ends with it: an error of ours that trying again does not change."""
    passing = isinstance(failure, PASSING) and not isinstance(failure, Misconfigured)
    return isinstance(failure, LatchworkError) and not passing


class LeaseElection(Election):
    """An election by a lease in the store: who holds the lock of that name leads.

    store, name: who uses the same ones stands for the same office.  candidate: a name for people and logs; default
    `host:pid:unique`.  lease: seconds, 0.05 to 86,400, after which a leader that is gone may be succeeded.  poll: how
    long to pause between two looks while somebody else leads; default a tenth of the lease, at most 0.25 s.
    """

    def __init__(
        self,
        store: RecordStore,
        name: str,
        *,
        candidate: str | None = None,
        lease: float = 10.0,
        poll: Poll | None = None,
    ) -> None:
        super().__init__(store, name, candidate)
        self.lease = checked_lease(lease)
        high = min(0.25, self.lease / 10)
        self._poll = Poll(low=high / 4, high=high) if poll is None else checked_kind("poll", poll, Poll)
        self._party = Contender(store, Key(LOCKS, name), self.candidate, self.lease)
        self._roster = Roster(store, name)
        self._reports: Task | None = None

    def contenders(self) -> list[str]:
        """The candidates that stand for election, the leader included, sorted by name. One store call.

        A candidate that died is named until its lease is over.
        """
        return self._roster.names()

    def _elect(self, stop: Event) -> Grant | None:
        acquisition = Acquisition(self._party)
        claim = acquisition.wait(self._poll, stop=stop, mark=False)
        if claim is None:
            return None
        return kept_alive(Grant(self.name, self._party, claim))

    def _others_first(self) -> float:
        return 2 * self._poll.high

    def _enter(self, stop: Event) -> None:
        self._reports = self._seams.spawn(lambda: self._report(stop), f"latchwork-roster-{self.name}")

    def _leave(self) -> None:
        if self._reports is not None:  # what it says last comes before what is said when this candidate stands again
            self._reports.join(RECOVERY)

    def _report(self, stop: Event) -> None:
        """Be on the roster for as long as this candidate stands."""
        while not stop.is_set():
            self._quietly(lambda: self._roster.report(self.candidate, self.lease))
            stop.wait(self.lease / 3)
        self._quietly(lambda: self._roster.leave(self.candidate))
