"""One leader over all farms (P21): what takes two faults at one moment, so that chance does not bring it about."""

from __future__ import annotations

import itertools
import time

from kazoo.client import KazooClient

from latchwork.coord import GlobalElection
from latchwork.coord.lock import LOCKS
from latchwork.errors import InvalidRequest, Unavailable, WaitTimeout
from latchwork.retry import RetryPolicy
from latchwork.seams import Seams
from latchwork.store import Exists, Key, MemoryStore, Put
from latchwork.testing.stores import FaultyStore, Outage
from tests.support.zoo import Client, Zoo

from .common import rule

OFFICE, RESOURCE = Key(LOCKS, "office"), Key("sim", "resource")
FOR_EVER = float("inf")
SOON = 2.0
"""Seconds in which a candidate that can lead does so."""


class Behind(Seams):
    """The clock of a farm that is an hour late."""

    def wall(self):
        return super().wall() - 3600


class Farm(FaultyStore):
    """A farm's store, which can be cut off."""

    def __init__(self, inner=None):
        inner = inner or MemoryStore()
        super().__init__(inner, Outage(inner.seams, FOR_EVER, FOR_EVER))
        self.policy, self.blocked = RetryPolicy(attempts=1), None

    def _operate(self, update):
        if update.key == self.blocked:
            raise Unavailable(f"{update.key} cannot be written to")
        return super()._operate(update)

    def cut(self, away=True):
        self.plan.begin = 0 if away else FOR_EVER


class Office:
    """Two farms, and candidates for the one office over them."""

    def __init__(self, **stores):
        self.zoo, self.stores = Zoo(), stores or {"iad": Farm(), "lhr": Farm()}
        self._sessions = itertools.count(1)

    def candidate(self, farm):
        one = GlobalElection(
            self.stores, "office", zookeeper=KazooClient("h:1"), farm_id=farm, resources=[RESOURCE], candidate=farm
        )
        one._client = one._line.client = Client(self.zoo, session=next(self._sessions))
        return one

    def term(self, farm, timeout=20.0):
        """The epoch of one term of that farm."""
        return self.candidate(farm).run(lambda leadership: leadership.epoch, timeout=timeout)


def farms_that_never_met():
    """P21.2: a farm whose clock is late leads after one that could not seal its epoch there, and cannot be asked."""
    office = Office(iad=Farm(), lhr=Farm(MemoryStore(Behind())))
    office.stores["lhr"].cut()
    first = office.term("iad")
    office.stores["lhr"].cut(away=False)
    office.stores["iad"].cut()
    return office.term("lhr") > first


def kept_meanwhile():
    """P21.3: a candidate is paused before it keeps its epoch; another one has kept a later one meanwhile."""
    office = Office()
    one = office.candidate("iad")
    keeps = one._line.keep

    def overtaken(epoch, version):
        one._line.keep = keeps
        office.zoo.version += 1
        keeps(epoch, version)

    one._line.keep = overtaken
    return one._elect(one._seams.event()) is None and office.stores["lhr"].get(OFFICE) is None


def seen_later():
    """P21.5: ZooKeeper was set up anew; a farm still knows a later epoch than the next leader takes."""
    office = Office()
    office.stores["lhr"].operate(OFFICE, Put("fencing-ctr", 2**58), Put("locked", 0), exists=Exists.ANY)
    return office.term("iad", timeout=SOON) == 2**58 + 1


def blocked_at_home():
    """P21.6: a resource in the leader's own farm cannot be sealed."""
    office = Office()
    office.stores["iad"].blocked = RESOURCE
    try:
        return not office.term("iad", timeout=0.5)
    except WaitTimeout:
        return True


def back_later():
    """P21.6: a farm that could not be reached as the term began answers again."""
    office = Office()
    office.stores["lhr"].cut()

    def lead(leadership):
        office.stores["lhr"].cut(away=False)
        end = time.monotonic() + 2 * SOON
        while time.monotonic() < end:
            record = office.stores["lhr"].get(OFFICE)
            if record is not None and record.bins["fencing-ctr"] == leadership.epoch:
                return True
            time.sleep(0.02)
        return False

    return office.candidate("iad").run(lead, timeout=20)


def one_store_twice():
    """P21.8: two farms are given two handles of one store."""
    store = MemoryStore()
    try:
        return not Office(iad=Farm(store), lhr=Farm(store)).term("iad", timeout=SOON)
    except InvalidRequest:
        return True


RULES = [
    ("P21.2 kept", farms_that_never_met, rule("across", "what ZooKeeper has kept is not asked")),
    ("P21.3 version", kept_meanwhile, rule("across", "kept, whatever was kept meanwhile")),
    ("P21.5 refused", seen_later, rule("across", "a refused seal counts as made")),
    ("P21.5 above", seen_later, rule("across", "begins again no higher")),
    ("P21.6 own", blocked_at_home, rule("across", "leads though its own farm is not sealed")),
    ("P21.6 later", back_later, rule("across", "a farm that is back is not sealed")),
    ("P21.8 twice", one_store_twice, rule("across", "its own epoch counts as sealed")),
]
