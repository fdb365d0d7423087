"""What is stored is not believed: numbers that no writer leaves, and names that live again (P12, P16, P18, P21)."""

from __future__ import annotations

from contextlib import suppress

from latchwork.coord import Barrier
from latchwork.coord.barrier.layout import AT, BARRIERS, BarrierState
from latchwork.coord.barrier.meeting import Meeting
from latchwork.coord.election import across
from latchwork.errors import Corrupt, LatchworkError, LeaseLost, NotFound
from latchwork.queue import QueueRegistry
from latchwork.queue.sharded.batches import records
from latchwork.queue.sharded.delayed import entries
from latchwork.queue.sharded.delayed.entries import DelayedMessages
from latchwork.queue.sharded.delayed.stored import Entry
from latchwork.store import Key, MapPut, MemoryStore, Put, Removal
from latchwork.store.model.expr import missing
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import Crash, FaultyStore

from .across import OFFICE, SOON, Farm, Office
from .common import patched, rule
from .later import delivered, queue_on, run


def ordinals_that_were_not_given_out():
    """P18: one number in a batch's record says that a call publishes 10,000 messages more than there are."""
    queue = queue_on(MemoryStore(ManualClock()))
    batch = queue.batch("b")
    queue.store.operate(queue.batches.key("b"), Put("open", {"me": [10_003, 10_000]}))
    try:
        batch.close()
    except Corrupt:
        return True
    return False


def a_farm_with_a_flipped_bit():
    """P21: bit 62 of the fence in one farm is set; the other farm leads, and its own fence stays what it was."""
    office = Office(iad=Farm(), lhr=Farm())
    office.term("iad")
    office.stores["lhr"].inner.operate(OFFICE, Put("fencing-ctr", 2**62))
    with suppress(LatchworkError):
        office.term("iad", timeout=SOON)
    return office.stores["iad"].inner.get(OFFICE).bins["fencing-ctr"] < 2**53


def arrived_before_it_began():
    """P11: a party's arrival is of a generation that has not begun: it has not arrived at this one."""
    store = MemoryStore(ManualClock())
    here = Barrier(store, "c", "b", parties=["p", "q"], farm_id="a")
    waiting = Meeting(here._record, ("a", "p"), "1")
    _ = waiting.look(), waiting.look()
    store.operate(Key(BARRIERS, "c#b"), MapPut(AT + "a", "q", 2**60))
    try:
        return waiting.look() is None
    except Corrupt:
        return True


def a_dropped_group_has_put_off():
    """P16: a message that a dropped group has put off comes to no new group of its name."""
    clock = ManualClock()
    queue = queue_on(MemoryStore(clock))
    for payload in ("private", "new"):
        group = queue.group("g", start="now")
        queue.publish(payload)
        (delivery,) = group.receive(1)
        delivery.nack(delay=5)
        if payload == "private":
            group.drop()
    run(group, clock, 20)
    return delivered(group) == ["new"]


def dropped_in_two_parts():
    """P17.9: a drop dies after it took the group out of a message and before it deleted that; it is gone on with."""
    return all(_is_gone_after_a_drop_that_died_at(call) for call in range(1, 12))


def _is_gone_after_a_drop_that_died_at(call):
    clock = ManualClock()
    store = MemoryStore(clock)
    queue = queue_on(store)
    queue.group("g")
    queue.publish("m")
    (delivery,) = queue.receive(1)
    delivery.ack()
    faulty = FaultyStore(store, seams=clock)
    group = QueueRegistry(faulty, "c", farm_id="f").get("q@g")
    faulty.plan[len(faulty.history) + call] = "crash_before"
    with suppress(Crash):
        group.drop()
    with suppress(NotFound):  # it was over
        QueueRegistry(store, "c", farm_id="f").get("q@g").drop()
    return store.get(queue.pointers.key(delivery.held.slot)) is None


def dropped_again_while_it_is_made_again():
    """P16.18: a drop is paused at each of its calls, until another one has ended, and the new group has put a message
    off.
    """
    return all(_comes_though_a_drop_ends_late(at) for at in range(1, 9))


def dropped_again_while_its_name_is_taken_over():
    """P16.18: the same, and a consumer of the old group has made the control record; the process of the new group that
    finds it is paused at each of its calls, while another one puts a message off.
    """
    return all(_comes_though_a_drop_ends_late(at, then) for at in range(1, 9) for then in range(1, 12))


def _comes_though_a_drop_ends_late(at, then=None):
    clock = ManualClock()
    store = MemoryStore(clock)
    slow, faulty = FaultyStore(store, seams=clock), FaultyStore(store, seams=clock)
    queue = queue_on(store)
    queue.publish("old")
    old, put_off = queue.group("g", start="oldest"), []
    (delivery,) = old.receive()

    def puts_off(group):
        (mine,) = group.receive()
        mine.nack(delay=5)
        put_off.append(mine.payload)

    def meanwhile():
        QueueRegistry(store, "c", farm_id="f").get("q@g").drop()
        if then:
            with suppress(LeaseLost):
                delivery.nack(delay=5)
        new = queue.group("g")
        queue.publish_many(["a", "b"])
        first = QueueRegistry(faulty, "c", farm_id="f").get("q@g")
        if then:
            faulty.plan[len(faulty.history) + then] = lambda: puts_off(new)
        puts_off(first)

    again = QueueRegistry(slow, "c", farm_id="f").get("q@g")
    slow.plan[len(slow.history) + at] = meanwhile
    with suppress(NotFound):
        again.drop()
    new = queue.group("g")
    run(new, clock, 20)
    return bool(put_off) and new.depth().delayed == 0 and sorted(delivered(new)) == ["a", "b"]


def published_again_under_a_cancelled_id():
    """P16: an id that was cancelled is free."""
    clock = ManualClock()
    queue = queue_on(MemoryStore(clock))
    queue.publish("first", delay=5, message_id="m")
    queue.cancel("m")
    try:
        queue.publish("second", delay=5, message_id="m")
    except LatchworkError:
        return False
    run(queue, clock, 20)
    return delivered(queue) == ["second"]


def as_arrived(key, bins, home, *, real=BarrierState.of):
    """What is arrived at counts, whatever it is."""
    at = {party: min(turn, bins["turn#" + home]) for party, turn in bins.get(AT + home, {}).items()}
    return real(key, {**bins, **({AT + home: at} if at else {})}, home)


def believed(self):
    return {call: range(end - n, end) for call, (end, n) in self.open.items()}


RULES = [
    ("P18 open", ordinals_that_were_not_given_out, patched(records._Stored, "spans", believed)),
    ("P21.5 flipped", a_farm_with_a_flipped_bit, patched(across, "MAX_EPOCH", 2**63)),
    ("P11 arrived", arrived_before_it_began, patched(BarrierState, "of", as_arrived)),
    ("P16 group", a_dropped_group_has_put_off, patched(Entry, "is_of", lambda *_: True)),
    (
        "P16.18 drop",
        dropped_again_while_it_is_made_again,
        patched(DelayedMessages, "removing_control", lambda self: Removal(self.control)),
    ),
    ("P16.18 left", dropped_again_while_its_name_is_taken_over, patched(DelayedMessages, "take_over", lambda _: None)),
    ("P17.9 parts", dropped_in_two_parts, rule("groups", "a repeated drop looks at its own only")),
    ("P16.6 again", published_again_under_a_cancelled_id, patched(entries, "_AS_CANCELLED", missing("by"))),
]
