"""Delayed delivery (P16) and schedules (P14): what comes later comes, and once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from unittest import mock

from latchwork.errors import LeaseLost, Unavailable
from latchwork.queue import QueueConfig, QueueRegistry, Schedule
from latchwork.queue.sharded.consumer.in_hand import noted_in, settle_for
from latchwork.queue.sharded.delayed import entries as delayed
from latchwork.queue.sharded.delayed.schedules import ScheduleRecords
from latchwork.queue.sharded.delayed.stored import horizon_in
from latchwork.queue.sharded.ledger.ledger import Ledger
from latchwork.queue.sharded.queue import ShardedQueue
from latchwork.queue.sharded.upkeep import scheduling, timers
from latchwork.queue.sharded.upkeep.scheduling import Scheduling
from latchwork.queue.sharded.upkeep.timers import QueueTimers, Timers
from latchwork.store import MapRemove, MemoryStore, Removal, Update
from latchwork.store.model.expr import Const
from latchwork.store.rows import Rows
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import Crash, FaultyStore

from .common import patched
from .hand import hand_in, memory_of_few

FEW = 20
"""Ids in one record of a bucket, where a script fills one."""


class Term:
    """A leadership that lasts."""

    def check(self):
        """It leads."""


class Upkeep:
    """The two duties of one queue."""

    def __init__(self, queue):
        self._queue = queue

    def queues(self):
        return [self._queue]

    def registries(self):
        return [self._queue.registry]


def queue_on(store):
    return QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", shards=1))


def run(queue, clock, seconds):
    """Let a leader that has just been elected move what is due for so many seconds."""
    mover, end = Timers(Upkeep(queue)), clock.monotonic() + seconds
    while clock.monotonic() < end:
        clock.advance(max(0.1, min(mover.run(Term()), end - clock.monotonic())))


def delivered(queue):
    found = []
    while more := queue.receive(1000):
        found += [delivery.payload for delivery in more]
        queue.ack_many(more)
    return found


def dying(inner, clock, call, *, mover=Timers):
    """A leader that dies after so many calls."""
    faulty = FaultyStore(inner, seams=clock)
    queue = QueueRegistry(faulty, "c", farm_id="f").get("q")
    faulty.plan = {faulty._number + call: "crash_after"}
    with suppress(Crash):
        mover(Upkeep(queue)).run(Term())


def late_publisher():
    """P16.2: a publisher is paused between its two steps; its bucket is passed meanwhile."""
    clock = ManualClock()
    queue, steps = queue_on(MemoryStore(clock)), []
    queue.publish("other", delay=1)
    with mock.patch.object(queue.delayed, "_enter", lambda *given: steps.append(given) or {}):
        queue.publish("late", delay=2)
    run(queue, clock, 30)
    queue.delayed._enter(*steps[0])
    run(queue, clock, 10)
    return sorted(delivered(queue)) == ["late", "other"]


def behind_the_time_of_the_leader(publish=lambda queue, name: queue.publish(name, delay=2)):
    """P16.2: a server's clock is set back, so the time of the control record stands still, far ahead of that of new
    records. A message is published between the leader's look and its end, by which that bucket is passed.
    """
    clock = ManualClock()
    queue, late, real = queue_on(MemoryStore(clock)), ["late"], QueueTimers._pass
    publish(queue, "first")
    clock.advance(1_000)
    publish(queue, "before the clock is set")
    clock.step(-900)
    clock.advance(2)
    publish(queue, "after it")

    def passing(self, horizon, to):
        if to > horizon and late:
            publish(queue, late.pop())
        real(self, horizon, to)

    with mock.patch.object(QueueTimers, "_pass", passing):
        QueueTimers(queue).run(Term())
    run(queue, clock, 20)
    return delivered(queue).count("late") == 1


@mock.patch.object(delayed, "CHUNK", FEW)
def between_two_records():
    """P16.3: a leader dies when it has emptied the first record of a bucket."""
    for call in range(5, 14):
        clock = ManualClock()
        store = MemoryStore(clock)
        queue = queue_on(store)
        queue.publish_many(range(FEW), delay=1)
        queue.publish("behind", delay=1)
        clock.advance(2)
        dying(store, clock, call)
        run(queue, clock, 20)
        if len(delivered(queue)) != FEW + 1:
            return False
    return True


def the_first_record_alone():
    def full(self, places, rows, real=QueueTimers._full):
        return {number: ids for number, ids in real(self, places, rows).items() if ids[0]}

    return mock.patch.object(QueueTimers, "_full", full)


def mover_dies():
    """P16.4: a mover dies anywhere between marking an entry and forgetting it; another goes on."""
    for call in range(2, 12):
        clock = ManualClock()
        store = MemoryStore(clock)
        queue = queue_on(store)
        queue.publish_many(["a", "b"], delay=1)
        clock.advance(2)
        dying(store, clock, call)
        run(queue, clock, 20)
        if sorted(delivered(queue)) != ["a", "b"]:
            return False
    return True


def without_a_ledger():
    def plain(queue, wanted, seconds, scope, beside):
        queue.store.repeat_many(beside)
        queue.publish_many([one.envelope.data.strip('"') for one in wanted])
        return [one.envelope.msg_id for one in wanted]

    return mock.patch.object(timers, "publish_unless_there", plain)


def mover_dies_before_it_counts():
    """P16.14: a mover dies anywhere, also as it was killed by what it has brought; another goes on, and counts it."""
    for call in range(2, 14):
        clock = ManualClock()
        store = MemoryStore(clock)
        queue = queue_on(store)
        queue.publish_many(["a", "b"], delay=1)
        queue.publish("later", delay=3600)
        clock.advance(2)
        dying(store, clock, call)
        run(queue, clock, 20)
        if queue.depth().delayed != 1:
            return False
    return True


def storing_for_later_is_cut():
    """P16.15: the calls that store a failed message for later get no answer from one of them on; it is failed again."""
    for call in range(1, 6):
        clock = ManualClock()
        store = FaultyStore(MemoryStore(clock), seams=clock)
        queue = queue_on(store)
        queue.publish("m")
        (delivery,) = queue.receive(1)
        store.plan = {store._number + call + n: "dropped" for n in range(20)}
        with suppress(Unavailable):
            delivery.nack()
        store.plan = {}
        with suppress(LeaseLost):  # it was settled by the first
            delivery.nack()
        waiting = queue.depth().delayed
        run(queue, clock, 30)
        if (waiting, delivered(queue)) != (1, ["m"]):
            return False
    return True


def killed_while_it_stores_for_later():
    """P16.15: a consumer is killed beside its siblings while it fails a message; another process settles for it."""
    for call in range(1, 6):
        clock, memory = ManualClock(), memory_of_few()
        inner = MemoryStore(clock)
        store = FaultyStore(inner, seams=clock)
        queue, hand = queue_on(store), hand_in(memory)
        queue.publish("m")
        deliveries = queue.receive(1)
        hand.took(deliveries)
        hand.began(deliveries)
        store.plan = {store._number + call: "crash_before"}
        with suppress(Crash):
            deliveries[0].nack()
        sibling = queue_on(inner)
        settle_for(sibling, noted_in(memory), "it was killed", counts=True)
        run(sibling, clock, 30)
        if delivered(sibling) != ["m"]:
            return False
    return True


def taken_for_entered(self, names):
    """What is there already is in a bucket, too."""
    return Rows(names)


def cancel_meets_a_move():
    """P16.4: a cancel comes when a mover has marked the message, and died."""
    for call in range(3, 9):
        clock = ManualClock()
        store = MemoryStore(clock)
        queue = queue_on(store)
        queue.publish("m", delay=1, message_id="m")
        clock.advance(2)
        dying(store, clock, call)
        cancelled = queue.delayed.cancel("m")
        run(queue, clock, 20)
        if delivered(queue) != ([] if cancelled else ["m"]):
            return False
    return True


def create_meets_a_move():
    """P16.16: a request to make the entry of a failed message arrives once that was moved, and was handled."""
    clock = ManualClock()
    store = MemoryStore(clock)
    queue, requests, send = queue_on(store), list[Update](), store.repeat_many

    def heard(updates, *more):
        requests.extend(one for one in updates if one.key.name.startswith("E/"))
        return send(updates, *more)

    of = queue.publish("m")
    with mock.patch.object(store, "repeat_many", heard):
        queue.receive(1)[0].nack(delay=1)
    run(queue, clock, 20)
    came = delivered(queue)
    send(requests)
    return came == ["m"] and queue.status(of).state == "done"


def stored_for_later_again():
    """P16.17: a consumer that had no answer fails its message again, when that was moved and handled."""
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock), seams=clock)
    queue = queue_on(store)
    queue.publish("m")
    (delivery,) = queue.receive(1)
    store.plan = {store._number + 4 + n: "dropped" for n in range(20)}
    with suppress(Unavailable):
        delivery.nack(delay=1)
    store.plan = {}
    run(queue, clock, 5)
    came = delivered(queue)
    delivery.nack(delay=1)
    run(queue, clock, 5)
    return [*came, *delivered(queue)] == ["m"]


def deleted(self, updates):
    """Delete entries whose messages were moved."""
    names = sorted(updates)
    removals = [Removal(updates[one].key) for one in names]
    return self._store.delete_many(removals, repeatable=True).sift(names)[1]


def made_once_more(self, made, row, by, *, once, real=delayed.DelayedMessages._ours):
    """Replace the entry of a failed message that was moved, or cancelled."""
    return real(self, made, row, by)


def counted_whoever_did(self, place, brought):
    """Count what was brought, though the note of it is gone, or leave the note as it is."""
    return Update(self._delayed.control, delayed.counting(delayed.OUT, delayed.RETRY_OUT, brought))


def leader_dies_at_a_tick():
    """P14.2: a leader dies anywhere between publishing a tick and noting it; the next one goes on."""
    for call in range(1, 9):
        clock = ManualClock()
        store = MemoryStore(clock)
        queue = queue_on(store)
        queue.registry.schedule(Schedule("s", "q", "tick", every=timedelta(minutes=1)))
        clock.advance(60)
        dying(store, clock, call, mover=Scheduling)
        Scheduling(Upkeep(queue)).run(Term())
        if delivered(queue) != ["tick"]:
            return False
    return True


@contextmanager
def noted_first() -> Iterator[None]:
    """Settle a tick before it is published."""
    real = Scheduling._publish

    def publish(self, *given):
        _, records, schedule, lasts, now = given
        last = lasts[schedule.name]
        ticks, settled = schedule.due(scheduling.from_ms(last), now)
        if ticks:
            records.settle(schedule.name, last, scheduling.to_ms(settled))
        return real(self, *given)

    with mock.patch.object(Scheduling, "_publish", publish):
        yield


@contextmanager
def each_attempt_for_itself() -> Iterator[None]:
    """Publish a tick without asking a ledger."""

    def plain(self, number, messages):
        ShardedQueue.publish_many(self._queue, [message.payload for message in messages])

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Ledger, "publish", plain))
        yield


def pause_meets_a_leader():
    """P14.10 to P14.12: whatever a leader has read before, no tick that is due while a schedule is paused is published;
    not even if it is put again, or once it is resumed."""
    for puts_again in (False, True):
        clock = ManualClock()
        queue = queue_on(MemoryStore(clock))
        registry, duty = queue.registry, Scheduling(Upkeep(queue))
        schedule = Schedule("s", "q", "tick", every=timedelta(minutes=1), missed="all")
        registry.schedule(schedule)
        registry.pause_schedule("s")
        clock.advance(60)
        duty.run(Term())
        if puts_again:
            registry.schedule(schedule)
        clock.advance(60)
        duty.run(Term())
        registry.resume_schedule("s")
        duty.run(Term())
        if delivered(queue) != []:
            return False
        clock.advance(60)
        duty.run(Term())
        if delivered(queue) != ["tick"]:
            return False
    return True


def unpaused(self, *, real=ScheduleRecords.stored):
    """What is stored, without its pauses."""
    return real(self)._replace(paused={})


def from_before(self, name, ops, guard, *, real=ScheduleRecords._switch):
    """Resume a schedule without beginning its ticks again."""
    return real(self, name, [op for op in ops if getattr(op, "bin", "") != "last"], guard)


def put_anew(self, schedule, *, real=ScheduleRecords.put):
    """Put a schedule that begins unpaused."""
    real(self, schedule)
    self.store.operate(self.key, MapRemove("paused", (schedule.name,)), repeatable=True)


RULES = [
    ("P14.10 passed over", pause_meets_a_leader, patched(ScheduleRecords, "stored", unpaused)),
    ("P14.11 begins again", pause_meets_a_leader, patched(ScheduleRecords, "_switch", from_before)),
    ("P14.12 outlives", pause_meets_a_leader, patched(ScheduleRecords, "put", put_anew)),
    ("P16.2 late", late_publisher, patched(delayed.DelayedMessages, "_look_again", lambda *_: None)),
    (
        "P16.2 by the leader's time",
        behind_the_time_of_the_leader,
        patched(delayed, "may_have_passed", horizon_in),
    ),
    ("P16.3 records", between_two_records, the_first_record_alone),
    ("P16.4 ledger", mover_dies, without_a_ledger),
    ("P16.4 marked", cancel_meets_a_move, patched(delayed, "WAITS", Const(value=True))),
    ("P16.14 noted", mover_dies_before_it_counts, patched(QueueTimers, "_count_brought", lambda *_: None)),
    ("P16.14 once", mover_dies_before_it_counts, patched(QueueTimers, "_counting", counted_whoever_did)),
    ("P16.15 cut", storing_for_later_is_cut, patched(delayed.DelayedMessages, "enter_found", taken_for_entered)),
    (
        "P16.15 killed",
        killed_while_it_stores_for_later,
        patched(delayed.DelayedMessages, "enter_found", taken_for_entered),
    ),
    ("P16.16 late", create_meets_a_move, patched(QueueTimers, "_drop", deleted)),
    ("P16.17 once", stored_for_later_again, patched(delayed.DelayedMessages, "_ours", made_once_more)),
    ("P14.2 order", leader_dies_at_a_tick, noted_first),
    ("P14.2 ledger", leader_dies_at_a_tick, each_attempt_for_itself),
]
