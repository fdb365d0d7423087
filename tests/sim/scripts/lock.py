"""The fenced lock (P2). More of its rules are scripted in tests/coord/lock/test_rules.py, the election's beside it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from latchwork.coord import contender, lease
from latchwork.coord.lease import LeaseView
from latchwork.coord.lock import LOCKS, FencedLock
from latchwork.errors import FencedOut, LatchworkError, LockUnavailable, Refused
from latchwork.store import Key, Put

from ..stage import Fault, Kind, Stage
from .common import KEY, patched, rule

LOCK = Key(LOCKS, "lock")


def renewed_between_look_and_break():
    """P2: a challenger has seen the lease stand still; the holder renews, the server's clock steps; then it breaks."""
    stage = Stage()

    def both(store):
        grant = FencedLock(store, "lock", lease=1.0).acquire(5)
        seen = LeaseView.of(LOCK, stage.bins(LOCK))
        grant.renew()
        stage.world.server_offset += 3600
        with suppress(Refused):
            store.operate(LOCK, *lease.acquire("b", 1.0, "g"), when=lease.broken(seen, "g"))
        return stage.bins(LOCK)["fencing-ctr"] == grant.fence

    stage.act("a", both)
    return stage.play().said["a"]


def server_clock_steps_forward():
    """P2: an hour forward, in the middle of a lease that is renewed in time."""
    stage = Stage()

    def holder(store):
        grant = FencedLock(store, "lock", lease=1.0).acquire(5)
        for _ in range(6):
            store.seams.sleep(0.3)
            grant.renew()
        return "kept"

    stage.act("a", holder)
    stage.act("b", lambda store: FencedLock(store, "lock", lease=1.0).acquire(0.8), after=0.1)
    stage.world.at(0.5, lambda: setattr(stage.world, "server_offset", stage.world.server_offset + 3600))
    return stage.play().said["a"] == "kept"


def release_by_an_earlier_self():
    """P2: one owner holds it, loses it by a pause, takes it again elsewhere; its first release comes last."""
    stage = Stage()

    def first(store):
        grant = FencedLock(store, "lock", owner="same", lease=0.5).acquire(5)
        store.seams.sleep(3)
        grant.release()

    def second(store):
        grant = FencedLock(store, "lock", owner="same", lease=5.0).acquire(5)
        store.seams.sleep(3)
        return stage.bins(LOCK)["locked"] == 1 and bool(grant.fence)

    stage.act("a", first)
    stage.act("b", second, after=0.1)
    return stage.play().said["b"] is True


def write_after_the_lease():
    """P2: a holder is stopped between its check and its write; the next one has sealed the resource meanwhile."""
    stage = Stage({"a": {2: 3.0}})

    def first(store):
        grant = FencedLock(store, "lock", lease=0.5).acquire(5)
        grant.operate(KEY, Put("by", "a"))

    def second(store):
        FencedLock(store, "lock", lease=0.5).acquire(5).operate(KEY, Put("by", "b"))

    stage.act("a", first)
    stage.act("b", second, after=0.1)
    return stage.play().bins(KEY)["by"] == "b"


def store_restarts_empty():
    """P2: a new store knows no fence; the next one must be above those that resources have seen."""
    stage = Stage()

    def fence(store):
        return FencedLock(store, "lock", lease=1.0).acquire(5).fence

    stage.act("a", fence)
    stage.world.at(5, lambda: stage.server.restart({}))
    stage.act("b", fence, after=6)
    stage.play()
    return stage.said["b"] > stage.said["a"]


def server_clock_steps_back():
    """P2: the holder dies, and the server's clock goes back an hour: nobody is to wait for that hour."""
    stage = Stage({"a": {2: Fault(Kind.CRASH_BEFORE)}})
    stage.act("a", lambda store: FencedLock(store, "lock", lease=0.5).acquire(5).renew())
    stage.world.at(0.1, lambda: setattr(stage.world, "server_offset", stage.world.server_offset - 3600))
    stage.act("b", lambda store: bool(FencedLock(store, "lock", lease=0.5).acquire(5)), after=0.2)
    return stage.play().said["b"] is True


def other_bins_are_written():
    """P2: the holder dies, and somebody keeps writing to other bins of the record, as those who wait do."""
    stage = Stage({"a": {2: Fault(Kind.CRASH_BEFORE)}})
    stage.act("a", lambda store: FencedLock(store, "lock", lease=0.5).acquire(5).renew())

    def writer(store):
        for number in range(100):
            store.seams.sleep(0.1)
            store.operate(LOCK, Put("another", number))

    def waiter(store):
        try:
            return bool(FencedLock(store, "lock", lease=0.5).acquire(5))
        except LockUnavailable:
            return False

    stage.act("w", writer, after=0.01)
    stage.act("b", waiter, after=0.2)
    return stage.play().said["b"] is True


def belief_after_a_pause():
    """P2: a holder sleeps past its lease; somebody else has it now; the first one asks whether it still holds it."""
    stage = Stage()

    def first(store):
        grant = FencedLock(store, "lock", lease=0.5).acquire(5)
        store.seams.sleep(3)
        try:
            grant.check()
        except FencedOut:
            return "lost"
        return "held"

    stage.act("a", first)
    stage.act("b", lambda store: FencedLock(store, "lock", lease=30.0).acquire(5), after=0.1)
    return stage.play().said["a"] == "lost"


def acquisition_whose_reply_is_lost():
    """P2: the lock is taken, the reply is lost; the id in the record tells the holder so, at once."""
    stage = Stage({"a": {1: Fault(Kind.REPLY_LOST)}})
    stage.act("a", lambda store: bool(FencedLock(store, "lock", lease=30.0).acquire(1)))
    return stage.play().said["a"] is True


def break_of_an_earlier_holder():
    """P2.9: an operator has seen a holder, who releases; the call to break it comes when another has the lock."""
    stage = Stage()

    def first(store):
        grant = FencedLock(store, "lock", lease=30.0).acquire(5)
        store.seams.sleep(0.1)
        grant.release()

    def second(store):
        grant = FencedLock(store, "lock", lease=30.0).acquire(5)
        store.seams.sleep(2)
        grant.renew()
        return "kept"

    def operator(store):
        seen = stage.bins(LOCK)["fencing-ctr"]
        store.seams.sleep(1)
        return FencedLock(store, "lock").break_lease(seen, at_once=True)

    stage.act("a", first)
    stage.act("o", operator, after=0.05)
    stage.act("b", second, after=0.2)
    stage.play()
    return (stage.said["o"], stage.said["b"]) == (False, "kept")


def breaks(stage, store):
    """A person breaks the lease that is there now."""
    return FencedLock(store, "lock").break_lease(stage.bins(LOCK)["fencing-ctr"])


def break_of_a_holder_that_renews():
    """P2.9: a holder hangs and its lease is renewed; it is broken, and another waits for the lock."""
    stage = Stage()

    def holder(store):
        grant = FencedLock(store, "lock", lease=1.0).acquire(5)
        with suppress(FencedOut):
            for _ in range(20):
                store.seams.sleep(0.3)
                grant.renew()
            return "kept"
        return "lost"

    def waiter(store):
        try:
            return FencedLock(store, "lock", lease=1.0).acquire(5).broken
        except LockUnavailable:
            return False

    stage.act("a", holder)
    stage.act("o", partial(breaks, stage), after=0.5)
    stage.act("b", waiter, after=0.6)
    stage.play()
    return (stage.said["a"], stage.said["o"], stage.said["b"]) == ("lost", True, True)


def belief_in_a_lease_that_was_broken():
    """P2.10: a holder that does not renew is broken, not at once; it asks again and again whether it has the lock."""
    stage, taken = Stage(), []

    def holder(store):
        grant = FencedLock(store, "lock", lease=2.0).acquire(5)
        with suppress(FencedOut):
            while not taken:
                store.seams.sleep(0.05)
                grant.check()
            return "both"
        return "lost"

    def waiter(store):
        FencedLock(store, "lock", lease=2.0).acquire(10)
        taken.append(True)

    stage.act("a", holder)
    stage.act("o", partial(breaks, stage), after=0.5)
    stage.act("b", waiter, after=0.6)
    return stage.play().said["a"] == "lost"


def break_of_an_acquisition_in_doubt():
    """P2.9: the lock is taken, the reply is late, and it is broken meanwhile; then its holder looks for it."""
    stage = Stage({"a": {1: Fault(Kind.REPLY_LOST)}})

    def holder(store):
        try:
            return bool(FencedLock(store, "lock", lease=30.0).acquire(3))
        except LatchworkError as failure:
            return failure.code

    def operator(store):
        while not stage.bins(LOCK):
            store.seams.sleep(0.001)
        return breaks(stage, store)

    stage.act("a", holder)
    stage.act("o", operator)
    stage.play()
    return stage.said["o"] is True and stage.said["a"] is not True


def _seized(**kept):
    """A break that leaves out, or adds, an operation."""
    real = lease.seize

    def seize(by, grant, *, at_once):
        return tuple(op for op in real(by, grant, at_once=at_once or "now" in kept) if op.bin not in kept)

    return patched(lease, "seize", seize)


def _broken_unseen(self, fence, *, at_once):
    self.store.operate(self.key, *lease.seize("o", "g", at_once=at_once), when=lease.Bin(lease.LOCKED).eq(1))
    return True


RULES = [
    ("P2 break", server_clock_steps_forward, rule("lock", "broken before it was seen to stand still")),
    ("P2 guard", renewed_between_look_and_break, rule("lock", "broken though it was renewed")),
    ("P2 clock back", server_clock_steps_back, rule("lock", "only what expired by the server's clock is broken")),
    ("P2 lock-time-ms", other_bins_are_written, rule("lock", "expiry by the record's last update")),
    ("P2 belief", belief_after_a_pause, rule("lock", "belief without end")),
    ("P2 grant-id", acquisition_whose_reply_is_lost,
     patched(contender.Acquisition, "_is_mine", lambda self, view: False)),
    ("P2 release", release_by_an_earlier_self, rule("lock", "owner-only release")),
    ("P2 resource", write_after_the_lease, rule("lock", "a ratchet without the guard")),
    ("P2 ratchet", write_after_the_lease, rule("lock", "a guard without the ratchet")),
    ("P2.9 break: the fence that was seen", break_of_an_earlier_holder,
     patched(contender.Contender, "seize", _broken_unseen)),
    ("P2.9 break: a new fence", break_of_a_holder_that_renews, _seized(**{lease.FENCE: True})),
    ("P2.10 break: the whole lease", belief_in_a_lease_that_was_broken, _seized(now=True)),
    ("P2.9 break: a new id", break_of_an_acquisition_in_doubt, _seized(**{lease.GRANT: True})),
    ("P2 fence", store_restarts_empty, rule("lock", "the next fence is one more")),
]  # fmt: skip
