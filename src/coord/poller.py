"""One poller a process: the looks of all waits become one batch of reads (docs/protocols P19).

    watch = Wait(store, key, bins, poll)
    found = watch.until(lambda: released(watch.read()) or None, timeout=timeout)

Aerospike notifies nobody, so who waits has to look. A `Wait` is one wait for one record. Its first and its last look
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

from ..errors import LatchworkError, NotFound
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
"""Records from which on a read may take long: the pause after it is then at least as long as it took."""
EARLY = 0.5
"""A wait is looked at with the others if no more than this part of its own pause is left."""
PATIENCE = 0.5
"""Seconds after which another thread looks if the one whose turn it is does not: it was interrupted, or its call
hangs. Four times as long as the last read took, if that is longer."""
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


class Wait:
    """One wait for one record, by one thread, as the poller sees it. `Watch` says what its parameters mean."""

    def __init__(
        self,
        store: RecordStore,
        key: Key,
        bins: Sequence[str],
        poll: Poll,
        *,
        worth: Callable[[Answer], bool] | None,
        again: bool,
        alone: bool,
        mark: bool,
    ) -> None:
        self._store, self.key, self.bins, self.poll = store, key, tuple(bins), poll
        self.worth, self.again, self.alone, self.mark = worth or self.has_changed, again, alone, mark
        self.number = 0
        """Its place among all waits of the process: the first that began has the least."""
        self.seen: Record | None = None
        """The record as this wait has read it last."""
        self.latest: Record | None = None
        """The record as anybody has read it last for this wait."""
        self.handed: Answer | LatchworkError | None = None
        """What another thread has read for this wait, until it takes that."""
        self.told = False
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
        """Until when its thread pauses at most, by what `due_by` returned when it began to sleep."""
        self.woken: Event = store.seams.event()
        self.stop: Event | None = None

    def has_changed(self, answer: Answer) -> bool:
        """Whether the record is not as this wait has read it last."""
        return not same(answer.record, self.seen)

    def single(self) -> RecordStore:
        """The store, with one attempt for each call."""
        return self._store.with_policy(_ONE_ATTEMPT)


class Poller:
    """The waits of a process at one store. Whichever thread has the turn reads for all."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self.begin_anew()
        renew_in_child(self)

    def begin_anew(self) -> None:
        """Nobody waits yet. A forked child begins so."""
        self._lock = self._seams.lock()
        self._waits: WeakValueDictionary[int, Wait] = WeakValueDictionary()
        self._turn: Wait | None = None
        self._next = 0.0
        """When whoever has the turn reads next, or has begun to."""
        self._begun = self._reads = 0
        self._patience = PATIENCE
        self._marks: dict[Key, float] = {}
        self._told: dict[Key, int] = {}

    # ---- waiting

    def wait(self, watch: Wait, end: float, due: Callable[[], float]) -> None:
        """Wait until something was handed to this wait, or until `end`, or what `due` returns, or it is to stop."""
        clock = self._seams.monotonic
        try:
            self._enter(watch, clock(), due)
            while True:
                with self._lock:
                    now, until = clock(), min(end, due())
                    watch.pauses_until = until
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

    def _enter(self, watch: Wait, now: float, due: Callable[[], float]) -> None:
        with self._lock:
            if not watch.number:
                self._begun += 1
                watch.number = self._begun
            watch.woken, watch.began, watch.waits = self._seams.event(), self._reads, True
            watch.due_by, watch.pauses_until = due, 0.0
            self._put_off(watch, now, self._seams.uniform(0.0, 1.0))
            self._waits[watch.number] = watch

    def _leave(self, watch: Wait) -> None:
        """Forget this wait; if it has the turn, pass that on."""
        with self._lock:
            self._waits.pop(watch.number, None)
            watch.waits = False
            if self._turn is watch:
                self._turn = None
                heir = next((one for one in self._waits.values() if one.handed is None), None)
                if heir is not None:
                    heir.woken.set()

    def _plan(self, watch: Wait, now: float) -> tuple[float, list[Wait]]:
        """Say for how long this wait sleeps now; or, if it has the turn and that has come, for which waits it reads."""
        if self._turn is None or now > self._next + self._patience:
            self._turn, self._next = watch, self._earliest(now)
        elif watch.due < self._next:
            self._turn, self._next = watch, watch.due
        if self._turn is not watch:
            # Of many, a few look after each other: the others would wake in vain.
            often = 1 + watch.number % (1 + len(self._waits) // KEEPERS)
            return max(self._next - now, 0.0) + often * self._patience + SOON, []
        if now < self._next:
            return self._next - now, []
        self._next, self._reads = now, self._reads + 1
        waits = [one for one in self._waits.values() if one.handed is None and one.due - now <= EARLY * one.pause]
        return 0.0, waits

    def _earliest(self, now: float) -> float:
        """When the next wait is due. One that has its answer does not count: its thread may have been interrupted
        before it could leave.
        """
        return min((one.due for one in self._waits.values() if one.handed is None), default=now)

    # ---- reading

    def _read_for(self, watch: Wait, waits: list[Wait], number: int) -> None:
        """Read the records of these waits, and hand out the answers. number: of this read."""
        clock = self._seams.monotonic
        try:
            asked = clock()
            found = _found(watch.single(), waits)
            answered = clock()
            with self._lock:
                self._patience = max(PATIENCE, 4 * (answered - asked))
                self._hand_out(waits, number, found, asked, answered)
        finally:
            with self._lock:
                if self._turn is watch:
                    self._next = self._earliest(clock())
        there = [one.key for one in waits if one.mark and isinstance(found[one.key], Record)]
        self._leave_marks(watch.single(), there, answered)

    def _hand_out(self, waits: list[Wait], number: int, found: dict[Key, Any], asked: float, answered: float) -> None:
        chance, least = self._seams.uniform(0.0, 1.0), 0.0
        if len(found) > LARGE:
            least = answered - asked
        first: dict[Key, tuple[Wait, Answer]] = {}
        for watch in waits:
            if not watch.waits or watch.began >= number or watch.handed is not None:
                continue  # it has gone, or come again since this read was sent, or another read has answered it
            outcome = found[watch.key]
            if isinstance(outcome, LatchworkError):
                watch.handed = copy(outcome)
                watch.woken.set()
                continue
            record = _part(outcome, watch.bins)
            changed, watch.latest = not same(record, watch.latest), record
            watch.fruitless = 1 if changed and watch.again else watch.fruitless + 1
            self._put_off(watch, answered, chance, least)
            answer = Answer(record, asked, answered)
            if not _is_worth(watch, answer):
                if watch.due_by() < watch.pauses_until:
                    watch.woken.set()  # by this answer it wants to look sooner: it sleeps anew
                continue
            if not watch.alone:
                self._hand(watch, answer)
            elif watch.key not in first or watch.number < first[watch.key][0].number:
                first[watch.key] = watch, answer
        for watch, answer in first.values():
            self._hand(watch, answer)

    def _hand(self, watch: Wait, answer: Answer) -> None:
        watch.handed = answer
        watch.woken.set()

    def _put_off(self, watch: Wait, now: float, chance: float, least: float = 0.0) -> None:
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
            self._told.pop(key, None)
            return
        with self._lock:
            waits = [one for one in self._waits.values() if one.alone and one.key == key and one.handed is None]
            turns = self._told.pop(key, 0)
            if not waits or turns >= TURNS:
                return
            if len(self._told) >= BATCH:
                self._told.clear()
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


def _found(store: RecordStore, waits: list[Wait]) -> dict[Key, Record | LatchworkError | None]:
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
        rows = [Update(key, reads(bins[key])) for key in some]
        answers = _outcome(partial(store.operate_many, rows))
        for place, key in enumerate(some):
            row = answers if isinstance(answers, LatchworkError) else answers[place]
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


def _part(record: Record | None, bins: Sequence[str]) -> Record | None:
    """The record with these bins alone."""
    if record is None or not bins or record.bins.keys() <= set(bins):
        return record
    return Record(record.key, {bin: record.bins[bin] for bin in bins if bin in record.bins})


def same(one: Record | None, other: Record | None) -> bool:
    """Whether two reads have found one state of a record, as far as its bins tell."""
    return one is other or (one is not None and other is not None and one.bins == other.bins)


def _is_worth(watch: Wait, answer: Answer) -> bool:
    try:
        return watch.worth(answer)
    except LatchworkError:  # it cannot be read: whoever waits for it raises that
        return True


def never() -> float:
    """Return when to look at a record that has not changed: never."""
    return FOR_EVER
