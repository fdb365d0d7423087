"""Latches (P8)."""

from __future__ import annotations

from latchwork.coord.latch.base import Latch
from latchwork.coord.latch.latch import CountDownLatch, CountUpDownLatch, LatchLevel
from latchwork.errors import AlreadyExists, NotFound

from ..stage import Fault, Kind, Stage
from .common import patched, rule


def count_for_a_latch_made_again():
    """P8: a count of the first latch of a name comes late, after it was deleted and made again."""
    stage = Stage({"a": {2: Fault(Kind.LATE, 2.0)}})

    def boss(store):
        latch = CountDownLatch.create(store, "c", "l", 1)
        store.seams.sleep(1)
        latch.delete()
        CountDownLatch.create(store, "c", "l", 1)
        store.seams.sleep(5)
        return CountDownLatch.get(store, "c", "l").count()

    stage.act("boss", boss)
    stage.act("a", lambda store: CountDownLatch.get(store, "c", "l").count_down(), after=0.5)
    return stage.play().said["boss"] == 1


def party_that_counts_again():
    """P8: a Spark task counts, and its second attempt counts again."""
    stage = Stage()

    def tasks(store):
        latch = CountDownLatch.create(store, "c", "l", 3)
        return [latch.count_down(party="p0") for _ in range(2)]

    stage.act("a", tasks)
    return stage.play().said["a"] == [2, 2]


def refused_for_want_of_enough_and_delivered_again():
    """P8: too little is left for a count of 2, so it goes on to zero; its first request comes once more, much later."""
    stage = Stage({"a": {2: Fault(Kind.DUPLICATE, 3.0)}})

    def counter(store):
        latch = CountUpDownLatch.create(store, "c", "l", 1)
        latch.count_down(2)
        latch.count_up(5)
        store.seams.sleep(6)
        return latch.count()

    stage.act("a", counter)
    return stage.play().said["a"] == 5


def latch_expires_under_a_waiter():
    """P8: nobody counts, and the latch's time to live ends while somebody waits."""
    stage = Stage()

    def waiter(store):
        latch = CountDownLatch.create(store, "c", "l", 3, ttl=2)
        return latch.wait(10)

    stage.act("a", waiter)
    return isinstance(stage.play().said["a"], NotFound)


def farm_that_has_not_come_yet():
    """P8: one farm has counted to zero before the other has brought its share."""
    stage = Stage()

    def first(store):
        latch = CountDownLatch.create(store, "c", "l", 1, farm_id="f0", farms=["f0", "f1"], level=LatchLevel.XDC)
        latch.count_down()
        return latch.wait(3)

    stage.act("a", first)
    return stage.play().said["a"] is False


def created_twice():
    """P8: a second creator comes when a count has been made already."""
    stage = Stage()

    def both(store):
        latch = CountDownLatch.create(store, "c", "l", 3)
        latch.count_down()
        try:
            CountDownLatch.create(store, "c", "l", 3)
        except AlreadyExists:
            return latch.count()
        return "made again"

    stage.act("a", both)
    return stage.play().said["a"] == 2


def deleted_by_who_means_an_earlier_one():
    """P8: a handle has counted on a latch that was then deleted and made again; now it deletes."""
    stage = Stage()

    def both(store):
        CountDownLatch.create(store, "c", "l", 3)
        old = CountDownLatch.get(store, "c", "l")
        old.count_down()
        CountDownLatch.get(store, "c", "l").delete()
        CountDownLatch.create(store, "c", "l", 3)
        old.delete()
        return CountDownLatch.get(store, "c", "l").count()

    stage.act("a", both)
    return stage.play().said["a"] == 3


RULES = [
    ("P8 nonce", count_for_a_latch_made_again, rule("latch", "counts ignore which latch they mean")),
    ("P8 party", party_that_counts_again, rule("latch", "a party counts every time")),
    ("P8 floor", refused_for_want_of_enough_and_delivered_again,
     patched(Latch, "_count", lambda self, change, token=None, real=Latch._count: real(self, change))),
    ("P8 absent", latch_expires_under_a_waiter, rule("latch", "what has expired reads as released")),
    ("P8 farms", farm_that_has_not_come_yet, rule("latch", "released without every farm's share")),
    ("P8 create", created_twice, rule("latch", "create overwrites")),
    ("P8 delete", deleted_by_who_means_an_earlier_one, rule("latch", "counts ignore which latch they mean")),
]  # fmt: skip
