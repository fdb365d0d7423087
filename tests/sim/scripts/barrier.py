"""Barriers (P11)."""

from __future__ import annotations

from latchwork.coord import Barrier, LatchLevel
from latchwork.coord.barrier.meeting import Meeting
from latchwork.errors import NotFound, WaitTimeout

from ..stage import Stage
from .common import rule

PARTIES = ["p", "q", "r"]


def brought_by_one_that_was_paused():
    """P11.2: a party is paused before it has written what it brings, and another process arrives in its place.

    One hears of the meeting before the paused one goes on, another one after.
    """
    stage = Stage({"p": {"MapPut:said": 3.0}, "r": {"get_many": 5.0}})

    def meets(party, brought):
        return lambda store: Barrier(store, "c", "b", parties=PARTIES, farm_id="a").wait(party, brought, 60)

    stage.act("p", meets("p", "paused"))
    stage.act("again", meets("p", "again"), after=0.5)
    stage.act("q", meets("q", "q"), after=1.0)
    stage.act("r", meets("r", "r"), after=1.0)
    said = stage.play().said
    return said["p"] == said["again"] == said["q"] == said["r"] == {"p": "again", "q": "q", "r": "r"}


def made_again_before_another_farm_has_heard():
    """P11.6: a party of a farm that does not decide is interrupted once it has arrived, and the other one meets it.

    Then the record is deleted and made again; the party that was interrupted waits again.
    """
    stage = Stage()

    def barrier(store, farm):
        return Barrier(store, "c", "b", parties=["a/p", "b/q"], farm_id=farm, level=LatchLevel.XDC)

    def decides(store):
        one = barrier(store, "a")
        try:
            one.wait("p", "p", 0)
        except WaitTimeout:
            store.seams.sleep(2)
        met = one.wait("p", "p", 60)
        one.delete()
        store.seams.sleep(1)
        try:
            return met, one.wait("p", "p again", 10)
        except WaitTimeout:
            return met

    def interrupted(store):
        one = barrier(store, "b")
        Meeting(one._record, ("b", "q"), '"q"').look()
        store.seams.sleep(5)
        return one.wait("q", "q", 60)

    stage.act("p", decides)
    stage.act("q", interrupted, after=1)
    said = stage.play().said
    return said["p"] == {"a/p": "p", "b/q": "q"} and isinstance(said["q"], NotFound)


RULES = [
    ("P11.2 brought once", brought_by_one_that_was_paused, rule("barrier", "what was brought may change")),
    (
        "P11.6 made again",
        made_again_before_another_farm_has_heard,
        rule("barrier", "a record that was made again goes unnoticed"),
    ),
]
