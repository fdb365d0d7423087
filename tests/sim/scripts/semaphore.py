"""The fenced semaphore, and what it shares with other records that several hold (P10)."""

from __future__ import annotations

from latchwork.coord import semaphore as module
from latchwork.coord.holders import SharedContender
from latchwork.coord.semaphore import SEMAPHORES, Semaphore
from latchwork.errors import FencedOut, LockUnavailable
from latchwork.store import Add, Key

from ..stage import Stage
from .common import KEY, patched, rule

RECORD = Key(SEMAPHORES, "s")


def renewed_between_look_and_removal():
    """P10.4: a challenger has seen a holder stand still for its lease; then the holder renews; then it is removed."""
    stage = Stage()

    def both(store):
        held = Semaphore(store, "s", permits=1, owner="a", lease=1.0).acquire()
        crowd = Semaphore(store, "s", permits=1, owner="b")._contender
        (entry,) = crowd.look().entries.values()
        held.renew()
        crowd.remove(entry)
        return bool(stage.bins(RECORD)["holders"])

    stage.act("a", both)
    return stage.play().said["a"] is True


def server_clock_steps():
    """P10.4: an hour forward, in the middle of a lease that is renewed in time, and back again."""
    stage = Stage()

    def holder(store):
        held = Semaphore(store, "s", permits=1, lease=1.0).acquire()
        for _ in range(6):
            store.seams.sleep(0.3)
            held.renew()
        return "kept"

    def challenger(store):
        try:
            return Semaphore(store, "s", permits=1, lease=1.0).acquire(timeout=1.2)
        except LockUnavailable:
            return "not to be had"

    stage.act("a", holder)
    stage.act("b", challenger, after=0.1)
    for when, step in ((0.5, 3600), (0.9, -7200)):
        stage.world.at(when, lambda step=step: setattr(stage.world, "server_offset", stage.world.server_offset + step))
    said = stage.play().said
    return (said["a"], said["b"]) == ("kept", "not to be had")


def paused_holder_writes_late():
    """P10.7: a holder is stopped before its write; its slot has another holder, which has written; the rest go on."""
    stage = Stage({"a": {2: 3.0}})

    def first(store):
        held = Semaphore(store, "s", permits=1, lease=0.5).acquire()
        try:
            held.operate(KEY, Add("n", 1))
        except FencedOut:
            return "refused"

    stage.act("a", first)
    stage.act(
        "b", lambda store: Semaphore(store, "s", permits=1).acquire(timeout=5).operate(KEY, Add("n", 1)), after=0.1
    )
    return stage.play().said["a"] == "refused"


def heavy_among_light():
    """P10.6: two who take one permit again and again, at times of their own, and one who waits for both."""
    stage = Stage()

    def light(store):
        semaphore = Semaphore(store, "s", permits=2)
        for _ in range(60):
            permits = semaphore.try_acquire()
            store.seams.sleep(0.2)
            if permits is not None:
                permits.release()

    def heavy(store):
        try:
            return Semaphore(store, "s", permits=2).acquire(2, timeout=5).n
        except LockUnavailable:
            return 0

    stage.act("a", light)
    stage.act("b", light, after=0.1)
    stage.act("c", heavy, after=1.0)
    return stage.play().said["c"] == 2


def _all_holders(self, seen):
    return list(seen.entries.values())


RULES = [
    ("P10.4 guard", renewed_between_look_and_removal, rule("semaphore", "a holder is removed though it has renewed")),
    ("P10.4 watched", server_clock_steps, patched(SharedContender, "dead", _all_holders)),
    ("P10.7 resource", paused_holder_writes_late, rule("semaphore", "a ratchet without the guard")),
    ("P10.6 wish", heavy_among_light, patched(module._SlotAcquisition, "_wish", lambda self, seen: None)),
]
