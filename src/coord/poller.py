"""One poller a process: the looks of all waits become one batch of reads (docs/protocols P19).

    watch = Watch(store, key, bins, poll)
    found = watch.until(lambda: released(watch.read()) or None, timeout=timeout)

Aerospike notifies nobody, so who waits has to look. A `Watch` is one wait for one record. Its first and its last look
are its own. In between one of the waiting threads looks for all of them: it reads the records of all waits that are due
in one call, wakes the waits for which something has changed, and sleeps until the next is due. No thread is started: a
process in which nobody waits makes no call, and a wait that is alone looks as it would without a poller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from ..errors import LatchworkError, NotFound, OutcomeUnknown, Unavailable
from ..forks import renew_in_child
from ..retry import Poll, RetryPolicy
from ..seams import Event, Seams
from ..store.model.ops import Op, Read, ReadAll
from ..store.port import NEVER, Key, Record, RecordStore, Update
from .lease import MARK, STALE

T = TypeVar("T")
BATCH = 1_000
"""Records in one call, at most."""
LARGE = 32
"""Records from which on a read may take long: the pause after it is then at least twice as long as it took."""
EARLY = 0.5
"""A wait is looked at with the others if no more than this part of its own pause is left."""
PATIENCE = 0.5
"""Seconds after which another thread looks if the one whose turn it is does not: it was interrupted, or its call
hangs."""
KEEPERS = 20
"""Of many waiting threads, how many notice that within `PATIENCE`."""
LEAST = 1e-6
"""Seconds of a pause, at least: the rest of one may be too small for the clock to show that it is over."""
SOON = 0.001
"""Seconds by which a thread wakes later than the moment that it looks after."""
TURNS = 8
"""Releases in a row after which a thread of this process is told; then all processes have an equal chance."""
FOR_EVER = float("inf")
_ONE_ATTEMPT = RetryPolicy(attempts=1)


@dataclass(frozen=True, slots=True)
class Answer:
    """A record as it was read.

    record: None if there is none.
    asked, answered: seconds (monotonic), before the read was sent and after its answer came: the record was so at some
        time between the two.
    """

    record: Record | None
    asked: float
    answered: float


class Watch:
    """One wait for one record, by one thread.

    bins: the bins to read; none = all. May be set anew between two looks.
    poll: the pauses between two looks.
    worth: whether an answer ends a pause. It is called in whichever thread reads, and neither waits nor calls the
        store. Default: if the record is not as this wait has read it last.
    again: whether the pauses begin anew after each change of the record.
    alone: of all waits with this flag for one record, an answer wakes only the one that began first.
    mark: leave the mark of a waiting party (P2), once for all waits of this process for that record.
    """

    def __init__(
        self,
        store: RecordStore,
        key: Key,
        bins: Sequence[str],
        poll: Poll,
        *,
        worth: Callable[[Answer], bool] | None = None,
        again: bool = False,
        alone: bool = False,
        mark: bool = False,
    ) -> None:
        self._store, self.key, self.bins, self.poll = store, key, tuple(bins), poll
        self.worth, self.again, self.alone, self.mark = worth or self.has_changed, again, alone, mark
        self._poller = poller_of(store)
        self.number = 0
        """Its place among all waits of the process: the first that began has the least."""
        self.seen: Record | None = None
        """The record as this wait has read it last."""
        self.latest: Record | None = None
        """The record as anybody has read it last for this wait."""
        self.handed: Answer | LatchworkError | None = None
        """What another thread has read for this wait; the next `read` returns or raises it."""
        self.told = False
        """Whether the last pause ended because a thread of this process has released the record."""
        self.read_in = 0
        """The number of the read in which this wait was asked for last, 0 = none."""
        self.fruitless, self.pause, self.due = 1, 0.0, 0.0
        self.woken: Event = store.seams.event()
        self.stop: Event | None = None

    def read(self) -> Answer:
        """The record: as another thread has read it for this wait since its last look, else by a call of its own.

        Raises what the store raises. A failure of a common read counts as this wait's first attempt, and its further
        attempts are its own.
        """
        store, handed, self.handed = self._store, self.handed, None
        if isinstance(handed, Unavailable | OutcomeUnknown):
            handed = store.policy.after(handed, store.seams, self._own, self.single(), doubt=_reads_are_repeatable)
        elif isinstance(handed, LatchworkError):
            raise handed
        answer = self._own(store) if handed is None else handed
        self.seen = self.latest = answer.record
        return answer

    def until(
        self,
        probe: Callable[[], T | None],
        *,
        timeout: float | None,
        due: Callable[[], float] | None = None,
        stop: Event | None = None,
    ) -> T | None:
        """Return what `probe` returns once that is not None; None once `timeout` seconds are over (None = never).

        It is called at the beginning, whenever an answer was worth it, and at the end of the time. Its errors pass
        through.

        due: when (seconds, monotonic) it is to be called though nothing has changed.
        stop: ends a pause if it is set, and `rouse` was called.
        """
        seams = self._store.seams
        end = FOR_EVER if timeout is None else seams.monotonic() + timeout
        self.stop = stop
        while True:
            found = probe()
            if found is not None:
                return found
            probed = seams.monotonic()
            if probed >= end:
                return None
            self.wait(end, not_before(probed + self.poll.high, due or _never))

    def wait(self, end: float, due: Callable[[], float] | None = None) -> None:
        """Pause until an answer is worth it, or until `end` or what `due` returns (seconds, monotonic)."""
        self.told = False
        self._poller.wait(self, end, due or _never)

    def has_changed(self, answer: Answer) -> bool:
        """Whether the record is not as this wait has read it last."""
        return not _same(answer.record, self.seen)

    def single(self) -> RecordStore:
        """The store, with one attempt for each call."""
        return self._store.with_policy(_ONE_ATTEMPT)

    def _own(self, store: RecordStore) -> Answer:
        return read(store, self.key, self.bins, mark=self.mark)


class Poller:
    """The waits of a process at one store. Whichever thread has the turn reads for all."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self.begin_anew()
        renew_in_child(self)

    def begin_anew(self) -> None:
        """Nobody waits yet. A forked child begins so."""
        self._lock = self._seams.lock()
        self._waits: WeakValueDictionary[int, Watch] = WeakValueDictionary()
        self._turn: Watch | None = None
        self._next = 0.0
        """When whoever has the turn reads next, or has begun to."""
        self._begun = self._reads = 0
        self._marks: dict[Key, float] = {}
        self._told: dict[Key, int] = {}

    # ---- waiting

    def wait(self, watch: Watch, end: float, due: Callable[[], float]) -> None:
        """Wait until something was handed to this wait, or until `end`, or what `due` returns, or it is to stop."""
        clock = self._seams.monotonic
        self._enter(watch, clock())
        try:
            while True:
                now, until = clock(), min(end, due())
                with self._lock:
                    if watch.handed is not None or watch.told or now >= until or (watch.stop and watch.stop.is_set()):
                        return
                    watch.woken.clear()
                    pause, waits = self._plan(watch, now)
                    number = self._reads
                if waits:
                    self._read_for(watch, waits, number)
                else:
                    watch.woken.wait(max(min(pause, until - now), LEAST))
        finally:
            self._leave(watch)

    def _enter(self, watch: Watch, now: float) -> None:
        with self._lock:
            if not watch.number:
                self._begun += 1
                watch.number = self._begun
            watch.woken, watch.read_in = self._seams.event(), 0
            self._put_off(watch, now, self._seams.uniform(0.0, 1.0))
            self._waits[watch.number] = watch

    def _leave(self, watch: Watch) -> None:
        """Forget this wait; if it has the turn, pass that on."""
        with self._lock:
            self._waits.pop(watch.number, None)
            watch.read_in = 0
            if self._turn is watch:
                self._turn = None
                heir = next((one for one in self._waits.values() if one.handed is None), None)
                if heir is not None:
                    heir.woken.set()

    def _plan(self, watch: Watch, now: float) -> tuple[float, list[Watch]]:
        """Say for how long this wait sleeps now; or, if it has the turn and that has come, for which waits it reads."""
        if self._turn is None or now > self._next + PATIENCE:
            self._turn, self._next = watch, min(one.due for one in self._waits.values())
        elif watch.due < self._next:
            self._turn, self._next = watch, watch.due
        if self._turn is not watch:
            # Of many, a few look after each other: the others would wake in vain.
            often = 1 + watch.number % (1 + len(self._waits) // KEEPERS)
            return max(self._next - now, 0.0) + often * PATIENCE + SOON, []
        if now < self._next:
            return self._next - now, []
        self._next, self._reads = now, self._reads + 1
        waits = [one for one in self._waits.values() if one.handed is None and one.due - now <= EARLY * one.pause]
        for one in waits:
            one.read_in = self._reads
        return 0.0, waits

    # ---- reading

    def _read_for(self, watch: Watch, waits: list[Watch], number: int) -> None:
        """Read the records of these waits, and hand out the answers. number: of this read."""
        clock = self._seams.monotonic
        try:
            asked = clock()
            found = _found(watch.single(), waits)
            answered = clock()
            with self._lock:
                self._hand_out(waits, number, found, asked, answered)
        finally:
            with self._lock:
                if self._turn is watch:
                    self._next = min(one.due for one in self._waits.values())
        there = [one.key for one in waits if one.mark and isinstance(found[one.key], Record)]
        self._leave_marks(watch.single(), there, answered)

    def _hand_out(self, waits: list[Watch], number: int, found: dict[Key, Any], asked: float, answered: float) -> None:
        chance, least = self._seams.uniform(0.0, 1.0), 0.0
        if len(found) > LARGE:
            least = 2 * (answered - asked)
        first: dict[Key, tuple[Watch, Answer]] = {}
        for watch in waits:
            if watch.read_in != number or watch.handed is not None:
                continue  # it has gone, or somebody else reads for it by now
            watch.read_in = 0
            outcome = found[watch.key]
            if isinstance(outcome, LatchworkError):
                watch.handed = copy(outcome)
                watch.woken.set()
                continue
            record = _part(outcome, watch.bins)
            changed, watch.latest = not _same(record, watch.latest), record
            watch.fruitless = 1 if changed and watch.again else watch.fruitless + 1
            self._put_off(watch, answered, chance, least)
            answer = Answer(record, asked, answered)
            if not _is_worth(watch, answer):
                continue
            if not watch.alone:
                self._hand(watch, answer)
            elif watch.key not in first or watch.number < first[watch.key][0].number:
                first[watch.key] = watch, answer
        for watch, answer in first.values():
            self._hand(watch, answer)

    def _hand(self, watch: Watch, answer: Answer) -> None:
        watch.handed = answer
        watch.woken.set()

    def _put_off(self, watch: Watch, now: float, chance: float, least: float = 0.0) -> None:
        """Set when this wait is due again. One chance for all that were read together keeps them together."""
        watch.pause = max(watch.poll.spread(watch.fruitless, chance), least)
        watch.due = now + watch.pause

    # ---- waits for a lease

    def marks_now(self, key: Key, now: float) -> bool:
        """Whether it is time for another mark of this process; if so, the caller leaves it."""
        with self._lock:
            if now - self._marks.get(key, -FOR_EVER) <= STALE / 2:
                return False
            if len(self._marks) >= BATCH:
                self._marks = {one: when for one, when in self._marks.items() if now - when <= STALE / 2}
            self._marks[key] = now
            return True

    def forget_mark(self, key: Key) -> None:
        """The last mark of this process was not left: the next look leaves it."""
        with self._lock:
            self._marks.pop(key, None)

    def _leave_marks(self, store: RecordStore, keys: Iterable[Key], now: float) -> None:
        """Leave the marks that are due. One call; whether they were left does not matter."""
        due = [key for key in dict.fromkeys(keys) if self.marks_now(key, now)]
        with suppress(LatchworkError):
            if len(due) == 1:
                store.operate(due[0], *MARK, ttl=NEVER, repeatable=True)
            elif due:
                store.operate_many([Update(key, MARK, ttl=NEVER) for key in due])

    def released(self, key: Key) -> None:
        """Wake the thread of this process that has waited longest for this lease: a thread of it has released it.

        Not after `TURNS` times in a row, so that no process keeps a lease for itself.
        """
        if not self._waits:
            return
        with self._lock:
            waits = [one for one in self._waits.values() if one.alone and one.key == key and one.handed is None]
            turns = self._told.pop(key, 0)
            if not waits or turns >= TURNS:
                return
            self._told[key] = turns + 1
            first = min(waits, key=lambda one: one.number)
            first.told = True
            first.woken.set()

    def rouse(self, stop: Event) -> None:
        """Wake the waits that end by this event, which was set."""
        with self._lock:
            for one in self._waits.values():
                if one.stop is stop:
                    one.woken.set()


def poller_of(store: RecordStore) -> Poller:
    """Return the poller of this process, shared by all views of a store."""
    found = _ALL.get(store.token_clock)
    return found or _ALL.setdefault(store.token_clock, Poller(store.seams))


_ALL: WeakKeyDictionary[Any, Poller] = WeakKeyDictionary()
"""By what all views of a store have in common."""


def read(store: RecordStore, key: Key, bins: Sequence[str], *, mark: bool = False) -> Answer:
    """Read a record now, and leave the mark of a waiting party in the same call, if `mark` and another is due."""
    clock = store.seams.monotonic
    asked = clock()
    marks = mark and poller_of(store).marks_now(key, asked)
    record = _marking(store, key, bins) if marks else store.get(key, *bins)
    return Answer(record, asked, clock())


def _marking(store: RecordStore, key: Key, bins: Sequence[str]) -> Record | None:
    try:
        values = store.operate(key, *MARK, *_reads(bins), ttl=NEVER, repeatable=True)
    except NotFound:
        poller_of(store).forget_mark(key)
        return None
    except OutcomeUnknown:  # whether the mark was left does not matter
        poller_of(store).forget_mark(key)
        return store.get(key, *bins)
    return _record(key, bins, values)


def _found(store: RecordStore, waits: list[Watch]) -> dict[Key, Record | LatchworkError | None]:
    """The records of these waits, each with the bins that any of them reads; or why one could not be read."""
    bins: dict[Key, tuple[str, ...]] = {}
    for one in waits:
        known = bins.get(one.key)
        if known is None or not one.bins:
            bins[one.key] = one.bins
        elif known and known != one.bins:
            bins[one.key] = tuple(dict.fromkeys((*known, *one.bins)))
    keys = list(bins)
    if len(keys) == 1:
        return {keys[0]: _outcome(lambda: store.get(keys[0], *bins[keys[0]]))}
    found: dict[Key, Record | LatchworkError | None] = {}
    for begin in range(0, len(keys), BATCH):
        some = keys[begin : begin + BATCH]
        rows = [Update(key, _reads(bins[key])) for key in some]
        answers = _outcome(partial(store.operate_many, rows))
        for place, key in enumerate(some):
            row = answers if isinstance(answers, LatchworkError) else answers[place]
            if isinstance(row, NotFound):
                found[key] = None
            else:
                found[key] = row if isinstance(row, LatchworkError) else _record(key, bins[key], row)
    return found


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except LatchworkError as failure:
        return failure


def _reads(bins: Sequence[str]) -> tuple[Op, ...]:
    return tuple(Read(bin) for bin in bins) if bins else (ReadAll(),)


def _record(key: Key, bins: Sequence[str], values: Sequence[Any]) -> Record:
    found = dict(zip(bins, values, strict=True)) if bins else values[-1]
    return Record(key, {bin: value for bin, value in found.items() if value is not None})


def _part(record: Record | None, bins: Sequence[str]) -> Record | None:
    """The record with these bins alone."""
    if record is None or not bins or record.bins.keys() <= set(bins):
        return record
    return Record(record.key, {bin: record.bins[bin] for bin in bins if bin in record.bins})


def _same(one: Record | None, other: Record | None) -> bool:
    """Whether two reads have found one state of a record, as far as its bins tell."""
    return one is other or (one is not None and other is not None and one.bins == other.bins)


def _is_worth(watch: Watch, answer: Answer) -> bool:
    try:
        return watch.worth(answer)
    except LatchworkError:  # it cannot be read: whoever waits for it raises that
        return True


def not_before(least: float, due: Callable[[], float]) -> Callable[[], float]:
    """That time, but no sooner than `least`: who has just looked, and waits, looks no more often than it wants to."""
    return lambda: max(due(), least)


def _never() -> float:
    return FOR_EVER


def _reads_are_repeatable() -> None:
    """A read changes nothing, so one in doubt may be sent again."""
