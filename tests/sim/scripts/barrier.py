"""Barriers (P11)."""

from __future__ import annotations

from latchwork.coord import Barrier

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


RULES = [
    ("P11.2 brought once", brought_by_one_that_was_paused, rule("barrier", "what was brought may change")),
]
