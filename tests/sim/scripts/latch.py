"""Latches (P8)."""

from __future__ import annotations

from latchwork.coord.latch.latch import CountDownLatch, CountUpDownLatch, Latch, LatchLevel
from latchwork.errors import AlreadyExists, InvalidRequest, NotFound
from latchwork.store import Add, Key

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


def counted_by_a_name_that_nobody_has():
    """P8: one of two counts under a mistyped name, and the other's waiter must not be released by it."""
    stage = Stage()

    def both(store):
        CountDownLatch.create(store, "c", "l", parties=["orders", "stock"])
        latch = CountDownLatch.get(store, "c", "l")
        latch.count_down(party="orders")
        try:
            latch.count_down(party="stcok")
        except InvalidRequest:
            return latch.wait(0)
        return "counted"

    stage.act("a", both)
    return stage.play().said["a"] is False


def text_beside_whole_numbers():
    """P8: two workers count at the same moment, one by its name and one by its number."""
    stage = Stage()

    def count(party):
        def counter(store):
            store.seams.sleep(1)
            return CountDownLatch.get(store, "c", "l").count_down(party=party)

        return counter

    stage.act("boss", lambda store: CountDownLatch.create(store, "c", "l", 2) and None)
    stage.act("a", count("orders"), after=0.5)
    stage.act("b", count(7), after=0.5)
    said = stage.play().said
    return sorted(type(said[who]) is InvalidRequest for who in "ab") == [False, True]


def waited_for_by_who_means_an_earlier_one():
    """P8: a creator's waiter sleeps while its latch is deleted, made again by another run, and released."""
    stage = Stage()

    def first(store):
        latch = CountDownLatch.create(store, "c", "l", 3)
        store.seams.sleep(3)
        return latch.wait(1)

    def second(store):
        CountDownLatch.get(store, "c", "l").delete()
        CountDownLatch.create(store, "c", "l", 1).count_down()

    stage.act("a", first)
    stage.act("b", second, after=1)
    return isinstance(stage.play().said["a"], NotFound)


def counted_by_who_did_not_create_it():
    """P8: a latch that is to live for a minute is counted by handles that were told nothing."""
    stage = Stage()

    def worker(store):
        CountDownLatch.get(store, "c", "l").count_down()
        CountDownLatch.get_or_create(store, "c", "l", 5).count_down()
        store.seams.sleep(20)
        return CountDownLatch.get(store, "c", "l").count()

    stage.act("boss", lambda store: CountDownLatch.create(store, "c", "l", 5, ttl=60) and None)
    stage.act("a", worker, after=1)
    return stage.play().said["a"] == 3


def java_counts_before_its_farm_has_brought_its_share():
    """P8: a count of the Java library makes the counter of a farm that has not brought its share."""
    stage = Stage()
    key = Key("D_LTCH#distributed_latch", "D_LTCH#c#l")

    def first(store):
        CountDownLatch.create(store, "c", "l", 1, farm_id="f0", farms=["f0", "f1"], level=LatchLevel.XDC)
        store.operate(key, Add("count#f1", -1))
        released = CountDownLatch.get(store, "c", "l", farm_id="f0", level=LatchLevel.XDC).wait(1)
        theirs = CountDownLatch.create(store, "c", "l", 3, farm_id="f1", level=LatchLevel.XDC)
        return released, theirs.count()

    stage.act("a", first)
    return stage.play().said["a"] == (False, 3)


def joined_by_a_job_that_runs_again():
    """P8: a job makes its latch, counts and runs again, under a reply that is lost."""
    stage = Stage({"a": {1: Fault(Kind.REPLY_LOST), 4: Fault(Kind.REPLY_LOST)}})

    def job(store):
        for _ in range(2):
            latch = CountDownLatch.get_or_create(store, "c", "l", 3)
            latch.count_down()
        return latch.count()

    stage.act("a", job)
    return stage.play().said["a"] == 1


RULES = [
    ("P8 nonce", count_for_a_latch_made_again, rule("latch", "counts ignore which latch they mean")),
    ("P8 party", party_that_counts_again, rule("latch", "a party counts every time")),
    ("P8 floor", refused_for_want_of_enough_and_delivered_again,
     patched(Latch, "_count", lambda self, change, token=None, real=Latch._count: real(self, change))),
    ("P8 absent", latch_expires_under_a_waiter, rule("latch", "what has expired reads as released")),
    ("P8 farms", farm_that_has_not_come_yet, rule("latch", "released without every farm's share")),
    ("P8 create", created_twice, rule("latch", "create overwrites")),
    ("P8 names", counted_by_a_name_that_nobody_has, rule("latch", "a party that was not named counts")),
    ("P8 kinds", text_beside_whole_numbers, rule("latch", "text and whole numbers count in one farm")),
    ("P8 reads", waited_for_by_who_means_an_earlier_one, rule("latch", "reads ignore which latch they mean")),
    ("P8 ttl", counted_by_who_did_not_create_it, rule("latch", "who joins says how long the latch lives")),
    ("P8 java", java_counts_before_its_farm_has_brought_its_share,
     rule("latch", "counts of Java stand for a farm's share")),
    ("P8 join", joined_by_a_job_that_runs_again, rule("latch", "create overwrites")),
    ("P8 delete", deleted_by_who_means_an_earlier_one, rule("latch", "counts ignore which latch they mean")),
]  # fmt: skip
