"""Leader election: one leader for each epoch, and epochs that only grow (docs/protocols P3).

    LeaseElection(store, "sweeper").run(lambda leadership: sweep(leadership), timeout=60)

The epoch is the fence of the lock record with the election's name, in every kind of election, so all epochs can be
compared. Two candidates may believe for a moment that they lead; `leadership.operate` lets only the newer one write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from ...background import Activity, FailureLog
from ...errors import InvalidRequest, LatchworkError, Misconfigured, WaitTimeout
from ...forks import called
from ...inputs import checked_kind, checked_text, checked_timeout, checked_whole
from ...logs import Log
from ...retry import Poll
from ...seams import Event, Task
from ...store.connect import as_store
from ...store.model.values import MAX_INT
from ...store.port import Key, RecordStore
from ...unpicklable import Unpicklable
from ..contender import TRANSIENT, Acquisition, Contender
from ..lease import checked_lease, checked_owner
from ..lock import LOCKS, Grant, kept_alive
from ..waits import poller_of
from .candidates import Candidates
from .term import Leadership

__all__ = ["FOLLOW", "Election", "Leadership", "LeaseElection"]

log = Log("latchwork.election")
T = TypeVar("T")
RECOVERY = 1.0
"""Seconds until a campaign continues after a disk has failed, or the store or ZooKeeper could not be reached."""
STOP_TIMEOUT = 10.0
"""Seconds for a campaign to end."""
UNELECTED_TIMEOUT = 0.5
"""Seconds for it to end if `run` was not elected in time: it must not wait for a call that hangs."""
DEFECT = Poll(low=RECOVERY, high=10.0, factor=2.0, jitter=0.0)
"""Pauses of a campaign after unexpected exceptions in a row, of a client library or of this one."""
FOLLOW = Poll(low=0.01, high=0.05)
"""How `run` waits for its own campaign."""


class Election(Unpicklable, ABC):
    """The common part of all elections: the campaign in the background, and the ways to lead.

    A handle is one candidate. Safe to share between threads; it cannot be pickled, and must not be used in a
    forked process.
    """

    _INSTEAD = "pickle its store and its name, and make a candidate there; a `Term` pickles"
    _contender: Contender

    def __init__(self, store: RecordStore, name: str, candidate: str | None) -> None:
        self._store, self._seams = as_store(store), store.seams
        self.name, self.candidate = checked_text("name", name), checked_owner(candidate, store.seams)
        self._guard = self._seams.lock()
        self._stop, self._changed, self._idle = self._seams.event(), self._seams.event(), self._seams.event()
        self._idle.set()
        # The terms of the functions of `run` that have not returned; `_idle` is set while there is none.
        self._runners: dict[object, Grant] = {}
        self._standing: Activity | None = None
        self._runs: set[object] = set()  # the calls of `run` that have not ended
        self._owner: object = None  # the one of them with which the campaign ends, if it was started for one
        self._grant: Grant | None = None
        self._leadership: Leadership | None = None
        self._failure: LatchworkError | None = None
        self._passed: Exception | None = None
        """The last failure since the last term after which the campaign continued."""
        self._failure_log, self._minor_failure_log = FailureLog(self._seams, log), FailureLog(self._seams, log)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, candidate={self.candidate!r})"

    @property
    def leadership(self) -> Leadership | None:
        """The present term of this candidate, None if it does not lead. No I/O. Advisory: it may end at any moment."""
        leadership = self._leadership
        return None if leadership is None or leadership.lost.is_set() else leadership

    def start(self, lead: Callable[[Leadership], object] | None = None) -> bool:
        """Take part in the election, in the background, until `stop`. False if this candidate already takes part.

        lead: called in the background with each term. When it returns or raises, the term is given up, and the
            candidate takes part again. If the term is lost first, `leadership.lost` is set, and the candidate waits for
            `lead` to return before it takes part again. Without `lead`, a term lasts until it is lost or resigned.

        After a `stop` that returned False, the new campaign begins when the stopped one has ended.
        Raises no error of the store: these are logged, once a minute, and the campaign continues, also after an
        unexpected exception. An error that only a changed setting can cure ends it; that is logged, and `run` raises
        it.
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
            # If an interrupt comes after this line, `stop` still ends the campaign.
            self._standing.begin(lambda: self._campaign(stop, lead, before), f"latchwork-election-{self.name}")
        return True

    def stop(self, timeout: float | None = STOP_TIMEOUT) -> bool:
        """Give up the term, if there is one, and end the campaign.

        False if the campaign (the leader's function, or a call that hangs) has not ended within `timeout` seconds; it
        then ends later without another call. The leader's function must not call this; it returns instead. Nor must a
        signal's handler, as the thread that it interrupts may be within a call of this candidate: let it set an event
        that another thread waits for.
        """
        limit = checked_timeout(timeout)
        with self._guard:
            standing, stop = self._standing, self._stop
            stop.set()
            self._end_term()
        return self._ended(standing, stop, limit)

    def _ended(self, standing: Activity | None, stop: Event, timeout: float | None) -> bool:
        """Wait for the end of a campaign whose `stop` is set; whether it has ended."""
        self._rouse(stop)
        if standing is None:
            return True
        standing.cancel()
        standing.join(timeout)
        return not standing.is_alive()

    def _rouse(self, stop: Event) -> None:
        """End the pauses of a campaign whose `stop` is set."""
        poller_of(self._store).rouse(stop)

    def resign(self) -> bool:
        """Give up the term, so that another candidate is elected, within a second. False if there is no term.

        Raises `OutcomeUnknown` or `Unavailable`: the term is over in that case too, and its lease runs out.
        """
        grant = self._grant
        if self.leadership is None or grant is None:
            return False
        self._end_term()
        self._hand_back(grant)
        return True

    def step_down(self, epoch: int) -> bool:
        """Make the leader of this epoch, whoever it is, step down, for an operator. True if this call did it, False if
        nobody leads in this epoch any more. One store call.

        Its next renewal is refused, at most a third of its lease later: then its `leadership.lost` is set, and its
        function has to end. Another candidate is elected once its whole lease is over, when it does not believe in its
        term any more; it itself only if nobody else takes part.

        epoch: as it was seen, by `latchwork leader status`. A leader that came later is not touched.

        Not promised: that it stops what it does, as nobody can end its function from outside; nor that its writes are
        refused at once: as for every former leader, a resource refuses them from when it has seen a later epoch.

        Raises `OutcomeUnknown` or `Unavailable`: repeating it is harmless.
        """
        return self._contender.seize(checked_whole("epoch", epoch, 1, MAX_INT), at_once=False)

    def run(self, fn: Callable[[Leadership], T], timeout: float | None = None) -> T:
        """Wait to be elected, call `fn(leadership)`, give up the term, and return or raise what `fn` did.

        timeout: seconds to wait to be elected; None = no limit. An election takes a few calls, so 0 is always too
            short.

        If the candidate already takes part (`start`), this uses its present or next term, and it continues to take part
        afterwards. If the term is lost before `fn` has returned, `leadership.lost` is set, and the candidate waits for
        `fn` to return before it takes part again. Threads that run on one candidate share its terms: the first `fn` to
        return gives the term up, and calls that still wait get the next one.

        Raises `WaitTimeout` if it was not elected in time, or was stopped. Not promised: that the candidate still leads
        when `fn` returns; `fn` calls `leadership.check()` for that.
        """
        limit = checked_timeout(timeout)
        self._seams.may_wait(f"{type(self).__name__}.run", limit)
        if not callable(fn):
            raise InvalidRequest(f"fn is a {type(fn).__name__}; pass a function that takes the Leadership")
        runner, patience = object(), UNELECTED_TIMEOUT

        def serve(leadership: Leadership) -> T:
            nonlocal patience
            patience = STOP_TIMEOUT
            return fn(leadership)

        try:
            try:
                with self._guard:
                    self._runs.add(runner)
                self._start(None, runner)
                return self._serve(serve, limit)
            finally:
                self._end(runner, patience)
        finally:
            self._end(runner, 0)  # again: an interrupt may have come before the first `_end` began

    def _end(self, runner: object, timeout: float) -> None:
        """End this `run`, and the campaign if it was started for it; if others run, the campaign ends with one of them.

        Whether another runs, and the stop, are one step: one that begins after it starts a campaign of its own.
        """
        with self._guard:
            self._runs.discard(runner)
            if self._owner is runner and self._runs:
                self._owner = next(iter(self._runs))
            if self._owner is not runner:
                return
            standing, stop = self._standing, self._stop
            stop.set()
            self._end_term()
        self._ended(standing, stop, timeout)
        with self._guard:
            if self._owner is runner:
                self._owner = None

    @abstractmethod
    def contenders(self) -> list[str]:
        """Return the candidates that take part, the leader included."""

    # ---- implemented by each kind of election

    @abstractmethod
    def _elect(self, stop: Event) -> Grant | None:
        """Wait to be elected, and take the next fence; None once `stop` is set."""

    def _hand_back(self, grant: Grant) -> None:
        grant.release()

    def _enter(self, stop: Event) -> None: ...

    def _leave(self) -> None: ...

    def _hindrance(self) -> str:
        """Return what keeps this candidate from being elected, as the end of a sentence; empty if it is not known. No
        call.
        """
        seen = self._contender.observed  # read once: another thread may replace it
        return f"; {self._contender.held_by()}" if seen is not None and seen.view.locked else ""

    @abstractmethod
    def _yield_seconds(self) -> float:
        """Return the seconds to wait after a term, so that another candidate is elected."""

    # ---- the campaign

    def _campaign(self, stop: Event, lead: Callable[[Leadership], object] | None, before: Activity | None) -> None:
        if before is not None:
            before.join()  # one campaign at a time
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
                    if self._is_final(failure):
                        raise
                    failures, self._passed = failures + 1, failure
                    pause = RECOVERY if isinstance(failure, TRANSIENT) else DEFECT.pause(failures, self._seams)
                    self._failure_log.record(failure, f"{self!r} tries again in {pause} s")
                    stop.wait(pause)
        except BaseException as failure:  # any failure must reach a `run` that waits to be elected
            if isinstance(failure, LatchworkError):
                log.error("%r does not take part any more (%s): %s", self, failure.code, failure)  # noqa: TRY400 - one line
                log.debug("%r does not take part any more", self, exc_info=failure)
            else:
                log.exception("%r does not take part any more", self)
            self._fail(stop, failure)
        finally:
            stop.set()  # ends the other tasks of this campaign
            self._changed.set()
            self._quietly(self._leave)

    def _is_final(self, failure: Exception) -> bool:
        """Whether the failure ends a campaign: an error of this library that another try cannot cure."""
        passing = isinstance(failure, TRANSIENT) and not isinstance(failure, Misconfigured)
        return isinstance(failure, LatchworkError) and not passing

    def _fail(self, stop: Event, failure: BaseException) -> None:
        if not isinstance(failure, LatchworkError):
            failure = LatchworkError(f"the campaign of {self!r} ended with {failure!r}; correct that, and start again")
        with self._guard:
            if stop is self._stop:  # else it was stopped, and a later campaign must not fail because of it
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
            self._give_back(grant)
            log.info("%r is over", leadership)
        self._idle.wait()
        stop.wait(self._yield_seconds())

    def _lead(self, leadership: Leadership, lead: Callable[[Leadership], object] | None) -> None:
        if lead is None or leadership.lost.is_set():  # a `stop` may have come as it was elected
            leadership.lost.wait()
            return
        try:
            called(lead, leadership)
        except BaseException:  # after any failure, even SystemExit, the term is given up and the campaign continues
            log.exception("%r: the leader's function failed", leadership)

    def _serve(self, fn: Callable[[Leadership], T], timeout: float | None) -> T:
        stop, runner = self._stop, object()

        def elected() -> Leadership | bool | None:
            if self._failure is not None:
                raise self._failure
            return False if stop.is_set() else self._joined(runner)

        try:  # includes the wait: an interrupt may come right after the runner has joined
            leadership = FOLLOW.until(self._seams, elected, timeout=timeout, wake=self._changed)
            if not isinstance(leadership, Leadership):
                why = "it was stopped" if stop.is_set() else f"not within {timeout} s{self._hindrance()}"
                last = f"; the campaign failed last with {self._passed!r}" if self._passed else ""
                raise WaitTimeout(f"{self!r} was not elected: {why}{last}", name=self.name)
            return fn(leadership)
        finally:
            try:
                self._part(runner)
            except BaseException:  # an interrupt: the campaign must not wait for this runner
                self._part(runner)
                raise

    def _joined(self, runner: object) -> Leadership | None:
        """Join the present term, and return it; None if there is none. No new term begins before `_part`."""
        with self._guard:
            leadership, grant = self.leadership, self._grant
            if leadership is None or grant is None:
                self._changed.clear()  # it was set for a term that is lost, and would end every pause at once
                return None
            self._runners[runner] = grant
            self._idle.clear()
            return leadership

    def _part(self, runner: object) -> None:
        """Give up the term that the runner has joined, if any."""
        if runner not in self._runners:
            return
        grant = self._runners[runner]
        grant.give_up()
        try:
            self._give_back(grant)
        finally:
            with self._guard:
                self._runners.pop(runner, None)
                if not self._runners:
                    self._idle.set()

    def _end_term(self) -> None:
        grant = self._grant
        if grant is not None:
            grant.give_up()

    def _give_back(self, grant: Grant) -> None:
        """Hand the term back. Its campaign and each function of `run` do so: it is released if one of them could."""
        failure = self._quietly(lambda: self._hand_back(grant))
        with self._guard:
            grant.unreleased = None if grant._freed else failure  # noqa: SLF001 - the same package

    def _quietly(self, cleanup: Callable[[], object]) -> LatchworkError | None:
        """Call `cleanup`, and log its errors instead of raising them: what it ends runs out by itself, and an error
        here must not hide the result of the work. Return the error if it is one of this library.
        """
        try:
            cleanup()
        except Exception as failure:  # noqa: BLE001 - a defect, too
            self._minor_failure_log.record(
                failure, f"{self!r}: its term or its entry among the candidates could not be updated"
            )
            return failure if isinstance(failure, LatchworkError) else None
        return None


class LeaseElection(Election):
    """An election by a lease in the store: the holder of the lock with the election's name leads.

    A handle is one candidate. Safe to share between threads; it cannot be pickled, and must not be used in a forked
    process.

    store, name: the election; all its candidates use one store and one name.
    candidate: a name for people and logs; default `host:pid:unique`.
    lease: seconds, 0.05 to 86,400, after which a leader that has died may be replaced.
    poll: the pause between two reads while another candidate leads; default a tenth of the lease, at most 0.25 s.
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
        self._contender = Contender(store, Key(LOCKS, name), self.candidate, self.lease)
        self._candidates = Candidates(store, name)
        self._reports: Task | None = None

    @property
    def _present_for(self) -> float:
        """The seconds for which a candidate is listed after each of its reports."""
        return self.lease

    def contenders(self) -> list[str]:
        """Return the candidates that take part, the leader included, sorted by name. One store call.

        A candidate that died is listed until its lease is over.
        """
        return self._candidates.names()

    def _elect(self, stop: Event) -> Grant | None:
        acquisition = Acquisition(self._contender)
        claim = acquisition.wait(self._poll, stop=stop, mark=False)
        if claim is None:
            return None
        return kept_alive(Grant(self.name, self._contender, claim))

    def _yield_seconds(self) -> float:
        return 2 * self._poll.high

    def _enter(self, stop: Event) -> None:
        self._reports = self._seams.spawn(lambda: self._report(stop), f"latchwork-candidates-{self.name}")

    def _leave(self) -> None:
        if self._reports is not None:  # its last update must come before the first of the next campaign
            self._reports.join(RECOVERY)

    def _report(self, stop: Event) -> None:
        """Keep this candidate in the list of candidates until `stop` is set, then remove it."""
        while not stop.is_set():
            self._quietly(lambda: self._candidates.report(self.candidate, self._present_for))
            stop.wait(self._present_for / 3)
        self._quietly(lambda: self._candidates.leave(self.candidate))
