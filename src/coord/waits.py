"""Waits: the reads of all waits of a process, made together (docs/protocols P19).

    watch = Watch(store, key, bins, poll)
    found = watch.until(lambda: released(watch.read()) or None, timeout=timeout)

Aerospike does not notify clients, so a wait has to read its record again and again, which is called a look. A `Watch`
is one wait for one record. It makes its first and its last look itself. In between one of the waiting threads looks for
all of them, by the `Poller` of the process: it reads the records of all waits that are due in one call, wakes the waits
whose record has changed, and sleeps until the next is due. No thread is started: a process without waits makes no call,
and a wait that is alone looks as it would without a poller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from ..errors import LatchworkError, NotFound, OutcomeUnknown, Unavailable
from ..forks import reset_in_child
from ..retry import ONE_ATTEMPT, Poll
from ..seams import Event, Seams
from ..store.model.ops import Op, Read, ReadAll
from ..store.port import NEVER, Key, Record, RecordStore, Update, reads_are_repeatable
from ..store.rows import attempted, chunked
from .lease import MARK, STALE

T = TypeVar("T")
ReadAnswers: TypeAlias = dict[Key, Record | LatchworkError | None]
"""The records that were read: None for one that does not exist, the error of one that could not be read."""
BATCH = 1_000
"""Records in one call, at most."""
WIDE = 32
"""Bins that are asked for of each of many records, at most."""
LARGE = 32
"""Records from which on a read may take long: the pause after it is then at least as long as it took."""
EARLY = 0.5
"""A wait is looked at with the others if no more than this part of its own pause is left."""
PATIENCE = 0.5
"""Seconds after which another thread reads if the thread that has the turn does not: it was interrupted, or its call
hangs. Four times as long as the last read took, if that is longer.
"""
KEEPERS = 20
"""The number of waiting threads that notice it within `PATIENCE`."""
LEAST = 1e-6
"""Seconds of a pause, at least: the rest of one may be too small for the clock to show that it is over."""
UNREAD = 0.5
"""Seconds after which a record is read though the store says that nothing was written."""
LATELY = 10.0
"""Seconds for which a sharer counts after it was there last."""
SOON = 0.001
"""Seconds by which a thread wakes later than the moment that it looks after."""
TURNS = 8
"""Releases in a row after which no thread of this process is woken; then all processes have an equal chance."""
INFINITY = float("inf")


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


@dataclass(frozen=True, slots=True)
class SharedRead:
    """One read for several waits.

    number: its place among all reads of the process.
    found: the records, or why one could not be read; without the ones that were known to be unchanged.
    version: the store's `data_version` before it.
    asked, answered: as in `Answer`.
    """

    number: int
    found: ReadAnswers
    version: object
    asked: float
    answered: float


class Watch:
    """One wait for one record, by one thread.

    bins: the bins to read; none = all. May be changed between two looks.
    poll: the pauses between two looks.
    worth: whether an answer ends a pause. It is called in the thread that reads, which may be any; it neither waits nor
        calls the store. Default: if the record is not as this wait has read it last.
    again: whether the pauses start again after each change of the record.
    alone: of all waits with this flag for one record, an answer wakes only the one that began first.
    mark: leave the mark of a waiting party (P2), once for all waits of this process for that record.
    lasting: it waits again and again, for a record that never expires: each wait continues with the pauses of the one
        before.
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
        lasting: bool = False,
    ) -> None:
        self._store, self.key, self.bins, self.poll = store, key, tuple(bins), poll
        self.worth, self.again, self.alone, self.mark = worth or self.has_changed, again, alone, mark
        self.lasting = lasting
        self.number = 0
        """Its place among all waits of the process: the first that began has the least."""
        self.seen: Record | None = None
        """The record as this wait has read it last."""
        self.latest: Record | None = None
        """The record as any thread has read it last for this wait."""
        self.known: tuple[object, tuple[str, ...], float] | None = None
        """Of that read: the store's `data_version` before it, its bins, and when it was answered."""
        self.handed: Answer | LatchworkError | None = None
        """What another thread has read for this wait, until it takes that."""
        self.saw_release = False
        """Whether the last pause ended because a thread of this process has released the record."""
        self.began = 0
        """The number of the last read that was sent before this pause began. No answer to it, or to an earlier one,
        counts."""
        self.waits = False
        """Whether its thread pauses."""
        self.fruitless, self.pause, self.due = 1, 0.0, 0.0
        self.due_by: Callable[[], float] = never
        """When its thread wants to look though nothing has changed. Another thread's answer may make that earlier."""
        self.pauses_until = 0.0
        """Until when its thread pauses at most: the time that `due_by` returned when the thread began to sleep."""
        self.woken: Event = store.seams.event()
        self.stop: Event | None = None
        self._poller = poller_of(store)

    def read(self) -> Answer:
        """Return the record: as another thread has read it for this wait since its last look, else by a call of its
        own.

        Raises what the store raises. A failure of a common read counts as this wait's first attempt, and its further
        attempts are its own.
        """
        store, handed, self.handed = self._store, self.handed, None
        if isinstance(handed, Unavailable | OutcomeUnknown):
            handed = store.policy.after(handed, store.seams, self._own, self.single(), doubt=reads_are_repeatable)
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
        end = INFINITY if timeout is None else seams.monotonic() + timeout
        self.stop = stop
        while True:
            found = probe()
            if found is not None:
                return found
            probed = seams.monotonic()
            if probed >= end:
                return None
            self.wait(end, not_before(probed + self.poll.high, due or never))

    def wait(self, end: float, due: Callable[[], float] | None = None) -> None:
        """Pause until an answer is worth it, or until `end` or what `due` returns (seconds, monotonic)."""
        self.saw_release = False
        self._poller.wait(self, end, due or never)

    def wake(self) -> None:
        """Let a pause end if what `due` returns has changed."""
        self.woken.set()

    def _own(self, store: RecordStore) -> Answer:
        return read(store, self.key, self.bins, mark=self.mark)

    # ---- for the poller

    def has_changed(self, answer: Answer) -> bool:
        """Whether the record is not as this wait has read it last."""
        return not same(answer.record, self.seen)

    def begin_pauses(self) -> None:
        """Let the next pause be the first one again."""
        self.fruitless, self.due = 1, 0.0

    def is_known(self, version: object, now: float) -> bool:
        """Whether the record is certain to be as it was read last, by what the store says without a read.

        Only for a while, as a record may also end by its lifetime, unless it is one that never does.
        """
        return (
            version is not None
            and self.known is not None
            and self.known[:2] == (version, self.bins)
            and (self.lasting or now - self.known[2] < UNREAD)
        )

    def take(self, look: SharedRead) -> Record | LatchworkError | None:
        """Remember what a look has found for this wait, and return it."""
        found = look.found.get(self.key, self.latest)
        if isinstance(found, LatchworkError):
            return found
        record = part(found, self.bins)
        if self.key in look.found:
            self.known = look.version, self.bins, look.answered
        changed, self.latest = not same(record, self.latest), record
        self.fruitless = 1 if changed and self.again else self.fruitless + 1
        return record

    def hand(self, answer: Answer | LatchworkError) -> None:
        """End its pause, with what was read for it."""
        self.handed = answer
        self.woken.set()

    def single(self) -> RecordStore:
        """Return the store, with one attempt for each call."""
        return self._store.with_policy(ONE_ATTEMPT)


class Poller:
    """The waits of a process at one store. The thread that has the turn reads for all."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self.reset_after_fork()
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Start with no waits. A forked child begins so."""
        self._lock = self._seams.lock()
        self._waits: WeakValueDictionary[int, Watch] = WeakValueDictionary()
        self._turn: Watch | None = None
        self._reader: Watch | None = None
        """The thread that has begun to read last, until it has handed out the answers."""
        self._next = 0.0
        """When the thread that has the turn reads next, or has begun to."""
        self._begun = self._reads = 0
        self._patience = PATIENCE
        self._marks: dict[Key, float] = {}
        self._released_in_row: dict[Key, int] = {}
        self._sharers: dict[str, tuple[float, int]] = {}

    # ---- waiting

    def wait(self, watch: Watch, end: float, due: Callable[[], float]) -> None:
        """Wait until something was handed to this wait, or until `end`, or what `due` returns, or it is to stop."""
        clock = self._seams.monotonic
        try:
            self._enter(watch, clock(), due)
            while True:
                with self._lock:
                    watch.woken.clear()  # before all that follows: a thread that sets the event changes the state first
                    now, until = clock(), min(end, due())
                    watch.pauses_until = until
                    if (
                        watch.handed is not None
                        or watch.saw_release
                        or now >= until
                        or (watch.stop and watch.stop.is_set())
                    ):
                        return
                    pause, waits = self._plan(watch, now)
                    number = self._reads
                if waits:
                    self._seams.apart(self._read_for, watch, waits, number)
                else:
                    watch.woken.wait(max(min(pause, until - now), LEAST))
        finally:
            self._leave(watch)

    def _enter(self, watch: Watch, now: float, due: Callable[[], float]) -> None:
        with self._lock:
            if not watch.number:
                self._begun += 1
                watch.number = self._begun
            watch.woken, watch.began, watch.waits = self._seams.event(), self._reads, True
            watch.due_by, watch.pauses_until = due, 0.0
            if not (watch.lasting and watch.due):
                self._put_off(watch, now, self._seams.uniform(0.0, 1.0))
            self._waits[watch.number] = watch

    def _leave(self, watch: Watch) -> None:
        """Forget this wait; if it has the turn, pass that on."""
        with self._lock:
            self._waits.pop(watch.number, None)
            watch.waits = False
            if self._turn is watch:
                self._turn = None
                successor = next((one for one in self._waits.values() if one.handed is None), None)
                if successor is not None:
                    successor.woken.set()

    def _plan(self, watch: Watch, now: float) -> tuple[float, list[Watch]]:
        """Return for how long this wait sleeps now, or, if it has the turn and its time has come, for which waits it
        reads.
        """
        if self._turn is None or now > self._next + self._patience:
            self._turn, self._next = watch, self._earliest(now)
        elif watch.due < self._next and self._reader is not self._turn:
            self._turn, self._next = watch, watch.due
        if self._turn is not watch:
            # Of many, a few look after each other: the others would wake for nothing.
            often = 1 + watch.number % (1 + len(self._waits) // KEEPERS)
            return max(self._next - now, 0.0) + often * self._patience + SOON, []
        if now < self._next:
            return self._next - now, []
        waits = [one for one in self._waits.values() if one.handed is None and one.due - now <= EARLY * one.pause]
        if not waits:  # the wait that was due has ended meanwhile
            self._next = self._earliest(now)
            return self._next - now, []
        self._next, self._reads, self._reader = now, self._reads + 1, watch
        return 0.0, waits

    def _earliest(self, now: float) -> float:
        """Return when the next wait is due. A wait that has its answer does not count: its thread may have been
        interrupted before it could leave.
        """
        return min((one.due for one in self._waits.values() if one.handed is None), default=now)

    # ---- reading

    def _read_for(self, watch: Watch, waits: list[Watch], number: int) -> None:
        """Read the records of these waits, and hand out the answers. number: of this read."""
        clock, store = self._seams.monotonic, watch.single()
        try:
            look = self._look(store, waits, number)
            with self._lock:
                self._patience = max(PATIENCE, 4 * (look.answered - look.asked))
                self._hand_out(waits, look)
        finally:
            with self._lock:
                if self._reader is watch:
                    self._reader = None
                if self._turn is watch:
                    self._next = self._earliest(clock())
        there = [one.key for one in waits if one.mark and isinstance(look.found.get(one.key, one.latest), Record)]
        self._leave_marks(store, there, look.answered)

    def _look(self, store: RecordStore, waits: list[Watch], number: int) -> SharedRead:
        """Read the records of these waits whose state is not known."""
        # Before the records: what changes in between is read again.
        asked, version = self._seams.monotonic(), store.data_version()
        unknown = {one.key for one in waits if not one.is_known(version, asked)}
        found = found_for(store, [one for one in waits if one.key in unknown])  # with the bins of all who get it
        return SharedRead(number, found, version, asked, self._seams.monotonic())

    def _hand_out(self, waits: list[Watch], look: SharedRead) -> None:
        chance = self._seams.uniform(0.0, 1.0)
        least = look.answered - look.asked if len(look.found) > LARGE else 0.0
        first: dict[Key, tuple[Watch, Answer]] = {}
        for watch in waits:
            if not watch.waits or watch.began >= look.number or watch.handed is not None:
                continue  # it has gone, or come again since this read was sent, or another read has answered it
            record = watch.take(look)
            if isinstance(record, LatchworkError):
                watch.hand(copy(record))
                continue
            self._put_off(watch, look.answered, chance, least)
            answer = Answer(record, look.asked, look.answered)
            if not _is_worth(watch, answer):
                if watch.due_by() < watch.pauses_until:
                    watch.woken.set()  # this answer makes its next look earlier: it starts its pause again
                continue
            if not watch.alone:
                watch.hand(answer)
            elif watch.key not in first or watch.number < first[watch.key][0].number:
                first[watch.key] = watch, answer
        for watch, answer in first.values():
            watch.hand(answer)

    def _put_off(self, watch: Watch, now: float, chance: float, least: float = 0.0) -> None:
        """Set when this wait is due again. One chance for all that were read together keeps them together."""
        watch.pause = max(watch.poll.spread(watch.fruitless, chance), least)
        watch.due = now + watch.pause

    def share(self, name: str, weight: int) -> tuple[int, int]:
        """Note that a sharer of this name reads now; return how many have read lately, and the sum of their weights, by
        which they keep a common rate of reads.
        """
        now = self._seams.monotonic()
        with self._lock:
            self._sharers[name] = now, weight
            self._sharers = dict(filter(lambda one: now - one[1][0] < LATELY, self._sharers.items()))
            return len(self._sharers), sum(weight for _, weight in self._sharers.values())

    # ---- waits for a lease

    def marks_now(self, key: Key, now: float) -> bool:
        """Whether it is time for another mark of this process; if so, the caller leaves it."""
        with self._lock:
            if now - self._marks.get(key, -INFINITY) <= STALE / 2:
                return False
            if len(self._marks) >= BATCH:
                self._marks = dict(filter(lambda mark: now - mark[1] <= STALE / 2, self._marks.items()))
            self._marks[key] = now
            return True

    def forget_mark(self, key: Key) -> None:
        """Leave the mark with the next look: the last mark of this process was not left."""
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
        turns = self._released_in_row.pop(key, 0)
        waits = [one for one in self._now_waiting() if one.alone and one.key == key and one.handed is None]
        if not waits or turns >= TURNS:
            return
        if len(self._released_in_row) >= BATCH:
            self._released_in_row.clear()
        self._released_in_row[key] = turns + 1
        first = min(waits, key=lambda one: one.number)
        first.saw_release = True
        first.woken.set()

    def rouse(self, stop: Event) -> None:
        """Wake the waits that end by this event, which was set."""
        for one in self._now_waiting():
            if one.stop is stop:
                one.woken.set()

    def _now_waiting(self) -> list[Watch]:
        """Return all waits, without the lock: a signal's handler may ask while its own thread has that."""
        waits = [reference() for reference in self._waits.valuerefs()]  # a list that is made in one step
        return [one for one in waits if one is not None]


def poller_of(store: RecordStore) -> Poller:
    """Return the poller of this process, shared by all views of a store."""
    found = _ALL.get(store.token_clock)
    return found or _ALL.setdefault(store.token_clock, Poller(store.seams))


_ALL: WeakKeyDictionary[Any, Poller] = WeakKeyDictionary()
"""The poller of each store; all views of a store share one key."""


def _is_worth(watch: Watch, answer: Answer) -> bool:
    try:
        return watch.worth(answer)
    except LatchworkError:  # it cannot be read: the thread that waits for it raises the error
        return True


# ---- reads


def found_for(store: RecordStore, waits: Iterable[Watch]) -> ReadAnswers:
    """Return the records of these waits, each with the bins that any of them reads; or why one could not be read."""
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
    found: ReadAnswers = {}
    for some in chunked(keys, BATCH):
        found.update(_plainly(store, some, bins) or _row_by_row(store, some, bins))
    return found


def _plainly(store: RecordStore, keys: Sequence[Key], bins: Mapping[Key, tuple[str, ...]]) -> ReadAnswers:
    """Return the records with the bins that are read of any of them, which costs a seventh of a read of each; nothing
    where one of them cannot be read, or where some would be read whole and others not.
    """
    named = [bins[key] for key in keys if bins[key]]
    together = dict.fromkeys(bin for one in named for bin in one)
    if len(named) not in (0, len(keys)) or len(together) > WIDE:
        return {}
    found = _outcome(partial(store.get_many, keys, *together))
    return {} if isinstance(found, LatchworkError) else dict(zip(keys, found, strict=True))


def _row_by_row(store: RecordStore, keys: Sequence[Key], bins: Mapping[Key, tuple[str, ...]]) -> ReadAnswers:
    """Return the records, each with its own bins; one that cannot be read fails alone."""
    rows = attempted(len(keys), lambda: store.operate_many([Update(key, reads(bins[key])) for key in keys]))
    found: ReadAnswers = {}
    for key, row in zip(keys, rows, strict=True):
        if isinstance(row, NotFound):
            found[key] = None
        else:
            found[key] = row if isinstance(row, LatchworkError) else record_of(key, bins[key], row)
    return found


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except LatchworkError as failure:
        return failure


def reads(bins: Sequence[str]) -> tuple[Op, ...]:
    """Return the operations that read these bins; all if none is named."""
    return tuple(Read(bin) for bin in bins) if bins else (ReadAll(),)


def record_of(key: Key, bins: Sequence[str], values: Sequence[Any]) -> Record:
    """Return the record that these operations have read."""
    found = dict(zip(bins, values, strict=True)) if bins else values[-1]
    return Record(key, {bin: value for bin, value in found.items() if value is not None})


def part(record: Record | None, bins: Sequence[str]) -> Record | None:
    """Return the record with these bins alone."""
    if record is None or not bins or record.bins.keys() <= set(bins):
        return record
    return replace(record, bins={bin: record.bins[bin] for bin in bins if bin in record.bins})


def same(one: Record | None, other: Record | None) -> bool:
    """Whether two reads have found equal bins."""
    return one is other or (one is not None and other is not None and one.bins == other.bins)


# ---- for the users of waits


def never() -> float:
    """Return when to look at a record that has not changed: never."""
    return INFINITY


def read(store: RecordStore, key: Key, bins: Sequence[str], *, mark: bool = False) -> Answer:
    """Read a record now, and leave the mark of a waiting party in the same call, if `mark` and another is due."""
    clock = store.seams.monotonic
    asked = clock()
    marks = mark and poller_of(store).marks_now(key, asked)
    record = _marking(store, key, bins) if marks else store.get(key, *bins)
    return Answer(record, asked, clock())


def _marking(store: RecordStore, key: Key, bins: Sequence[str]) -> Record | None:
    try:
        values = store.operate(key, *MARK, *reads(bins), ttl=NEVER, repeatable=True)
    except NotFound:
        poller_of(store).forget_mark(key)
        return None
    except OutcomeUnknown:  # whether the mark was left does not matter
        poller_of(store).forget_mark(key)
        return store.get(key, *bins)
    return record_of(key, bins, values)


def not_before(least: float, due: Callable[[], float]) -> Callable[[], float]:
    """Return `due`, but with no result before `least`: a wait that has just looked keeps to its pauses."""
    return lambda: max(due(), least)


def measured(seams: Seams, kind: str, wait: Callable[[], T | None]) -> T | None:
    """Call `wait` and return its result, after recording its duration and outcome.

    kind: the primitive, for example `latch` or `lock`.
    wait: returns None if the time was over.
    """
    began, outcome = seams.monotonic(), "failed"
    try:
        with seams.span("wait", kind=kind):
            got = wait()
        outcome = "timed_out" if got is None else "done"
        return got
    finally:
        seams.note("waits", seams.monotonic() - began, kind=kind, outcome=outcome)
