"""Recorded histories of a queue under faults, and the checker that judges them.

Every process that works on the queue writes down what it asked for and what it was told. In the end somebody drains
the queue. The promises: first in, first out; what was committed is neither lost nor doubled; what was refused never
appears; nothing is half there; never more entries than the capacity.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from latchwork.errors import LatchworkError, OutcomeUnknown, QueueFull
from latchwork.queue import LargeQueue
from latchwork.retry import RetryPolicy
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import Crash, Fault, FaultyStore

CAPACITY, SLOTS = 6, 2
LONG = 1.0
"""Seconds; longer than the lease."""
QUICK = RetryPolicy(attempts=2, wait=0.01, max_wait=0.02)


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class Step:
    """One operation: `result` is what it returned, None while in the dark (crashed, or outcome unknown).

    began, ended: moments; one that ended before another began must come first.
    """

    kind: str
    values: list
    overwrite: bool = False
    result: object = None
    refused: bool = False
    asked: bool = False
    began: int = 0
    ended: int = 0


@dataclass
class History:
    """One run: a store, its processes, and what they were told, in order."""

    clock: ManualClock = field(default_factory=ManualClock)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self):
        self.inner = MemoryStore(self.clock)
        LargeQueue.create(self.inner, "q", CAPACITY, entries_per_record=SLOTS)
        self.values = self.largest = self.moments = 0

    def process(self, plan=None, **chance):
        store = FaultyStore(self.inner, **chance)
        store.policy = QUICK
        queue = LargeQueue(store, LargeQueue.open(self.inner, "q").layout, None)
        store.plan.update(plan or {})
        return queue, store

    # ---- what processes do

    def enqueue(self, queue, count=1, *, overwrite=False):
        values = [f"v{self.values + place}" for place in range(count)]
        self.values += count
        step = self._begin(Step("enqueue", values, overwrite))
        self._told(step, lambda: queue.enqueue_many(values, overwrite_if_full=overwrite, txn_id=f"t{values[0]}"))

    def dequeue(self, queue, count=1):
        step = self._begin(Step("dequeue", [None] * count))
        self._told(step, lambda: queue.dequeue_many(count))

    def ask(self, queue):
        """Whoever was left in the dark asks; what is said then is as good as a result."""
        for step in self.steps:
            if step.kind == "enqueue" and step.result is None and not step.refused:
                found, step.asked = queue.transaction(f"t{step.values[0]}"), True
                if found is None:
                    step.refused = True
                else:
                    step.result = found.offsets

    def _begin(self, step):
        self.steps.append(step)
        step.began = self._moment()
        return step

    def _moment(self):
        self.moments += 1
        return self.moments

    def _told(self, step, act):
        try:
            step.result = act()
        except OutcomeUnknown:
            return
        except LatchworkError as failure:
            step.refused = True
            if isinstance(failure, QueueFull) and step.overwrite:
                raise Violation("full, although it may overwrite") from failure
        finally:
            step.ended = self._moment()
            info = LargeQueue.open(self.inner, "q").info()
            self.largest = max(self.largest, info.size)

    def drained(self):
        """What is left in the queue, once every lease has run out."""
        self.clock.advance(LONG)
        return LargeQueue.open(self.inner, "q").dequeue_many(CAPACITY)

    # ---- the verdict

    def check(self):
        left = self.drained()
        if self.largest > CAPACITY or len(left) > CAPACITY:
            raise Violation("more entries than the capacity")
        by_offset = self._placed(left)
        self._check_order(left)
        self._check_refused(by_offset)
        self._check_committed(by_offset, left)

    def _placed(self, left):
        """Every entry that anybody was told of, by offset."""
        by_offset = {}
        for entry in [*self._dequeued(), *left]:
            if entry.offset in by_offset:
                raise Violation(f"offset {entry.offset} was taken twice")
            by_offset[entry.offset] = entry.value
        if len(set(by_offset.values())) < len(by_offset):
            raise Violation(f"a value is there twice: {by_offset}")
        for step in self._committed():
            for offset, value in zip(step.result, step.values, strict=True):
                if by_offset.get(offset, value) != value:
                    raise Violation(f"offset {offset} holds {by_offset[offset]!r}, and {value!r} was put there")
        return by_offset

    def _check_order(self, left):
        taken = [
            (step, [entry.offset for entry in step.result])
            for step in self.steps
            if step.kind == "dequeue" and step.result
        ]
        put = [(step, list(step.result)) for step in self._committed() if not step.asked]
        for done in (taken, put):
            for one, offsets in done:
                if offsets != sorted(offsets):
                    raise Violation(f"not in order: {offsets}")
                if any(one.ended < other.began and offsets[-1] >= theirs[0] for other, theirs in done):
                    raise Violation(f"not first in, first out: {done}")
        if taken and left and max(offsets[-1] for _, offsets in taken) >= left[0].offset:
            raise Violation("an entry was taken before an older one")
        if [entry.offset for entry in left] != list(range(left[0].offset, left[0].offset + len(left)) if left else []):
            raise Violation("a hole among what is left")

    def _check_refused(self, by_offset):
        for step in self.steps:
            if step.refused and set(step.values) & set(by_offset.values()):
                raise Violation(f"{step.values} was refused, and is there")

    def _check_committed(self, by_offset, left):
        """What is missing was to be overwritten, or was taken by a process that died before it could say so."""
        missing = {offset for step in self._committed() for offset in step.result if offset not in by_offset}
        first_left = min((entry.offset for entry in left), default=None)
        lost_in_hand = sum(len(step.values) for step in self.steps if step.kind == "dequeue" and self._dark(step))
        overwritten = sum(len(step.values) for step in self.steps if step.overwrite)
        if len(missing) > lost_in_hand + overwritten:
            raise Violation(f"offsets {sorted(missing)} were committed and are gone")
        if first_left is not None and any(offset >= first_left for offset in missing):
            raise Violation(f"offsets {sorted(missing)} are missing among what is left")

    def _dequeued(self):
        return [entry for step in self.steps if step.kind == "dequeue" for entry in step.result or []]

    def _committed(self):
        return [step for step in self.steps if step.kind == "enqueue" and step.result is not None]

    def _dark(self, step):
        return step.result is None and not step.refused


def work(history, queue):
    """What one process does: it fills the queue, overwrites, and takes."""
    history.enqueue(queue)
    history.enqueue(queue, 3)
    history.dequeue(queue)
    history.enqueue(queue, 4)
    history.enqueue(queue, 2, overwrite=True)
    history.dequeue(queue, 2)
    history.enqueue(queue, 5, overwrite=True)
    history.dequeue(queue, 3)


def others(history):
    """What another process does while this one is paused, or after it has died."""
    queue = LargeQueue.open(history.inner, "q")
    history.enqueue(queue, overwrite=True)
    history.dequeue(queue, 2)


def run(plan, *, interfere=None, late=None):
    """One history: a worker with these faults; another process interferes before a call of it; late writes land."""
    history = History()
    queue, store = history.process(plan)
    if interfere is not None:

        def meanwhile():
            history.clock.advance(LONG)
            others(history)

        store.plan[interfere] = meanwhile
    died = False
    try:
        work(history, queue)
    except Crash:
        died = True
        history.clock.advance(LONG)
    if late == "first":
        store.deliver()
    others(history)
    history.ask(LargeQueue.open(history.inner, "q"))
    if late == "last":
        store.deliver()
    others(history)
    store.deliver()
    history.check()
    return history, store, died


def calls():
    """How many store calls the work is, without faults."""
    return run({})[1].total


def by_chance(seed):
    """One history of three processes that fail by chance, one of them in the middle of another's work."""
    rng = random.Random(seed)
    history = History(ManualClock(seed=seed))
    for _ in range(rng.randint(2, 4)):
        queue, store = history.process(seed=rng.random(), rate=rng.choice([0.03, 0.1, 0.25]))
        for _ in range(rng.randint(0, 2)):
            pause = rng.choice([0, 0.1, LONG])
            store.plan[rng.randint(1, 25)] = lambda pause=pause: (history.clock.advance(pause), others(history))
        try:
            work(history, queue)
        except Crash:
            history.clock.advance(rng.choice([0, LONG]))
        if rng.random() < 0.5:
            store.deliver()
        history.fired = store.fired + getattr(history, "fired", store.fired.__class__())
    if rng.random() < 0.5:
        history.clock.advance(LONG)
        history.ask(LargeQueue.open(history.inner, "q"))
    history.check()
    return history


KINDS = ("crash_before", "crash_after", "dropped", "request_lost", "reply_lost", "duplicate")
LATE = (("late", 1), ("late", 2), ("late", 5), ("late", None))


def single_faults(total):
    """Every fault at every call: the plan, and when a late write that waits to be told lands."""
    for call in range(1, total + 1):
        for kind in KINDS:
            yield {call: kind}, None
        for kind, after in LATE:
            for moment in ("first", "last") if after is None else (None,):
                yield {call: Fault(kind, after=after)}, moment


def double_doubts(total):
    """Two attempts in a row without an answer, the first of which lands a little later."""
    for call in range(1, total + 1):
        for after in (2, 3, 4, 6):
            yield {call: Fault("late", after=after), call + 1: "request_lost"}
        yield {call: "reply_lost", call + 1: "request_lost"}
