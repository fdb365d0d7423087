"""The ground rules of the store port (P0), and updates that happen once (P1)."""

from __future__ import annotations

from unittest import mock

import pytest
from msgspec import structs

from latchwork.coord import contender
from latchwork.coord.lock import FencedLock
from latchwork.errors import NotFound, Refused
from latchwork.store import Add, Bin, Exists, MapPut, Once, Param, Put, lacks
from latchwork.store.model.expr import MapHas, Negate

from ..faults.network import Server, altered
from ..stage import Fault, Kind, Stage
from .common import KEY, patched, rule

N = Bin("n")


def guard_on_an_absent_record():
    """P0.1: the record has expired between the read and the guarded write."""
    stage = Stage()

    def writer(store):
        store.operate(KEY, Put("owner", "a"), exists=Exists.ANY, ttl=1)
        store.seams.sleep(5)
        store.operate(KEY, Put("done", 1), when=Bin("owner", str).eq("a"))

    stage.act("a", writer)
    stage.play()
    return isinstance(stage.said["a"], NotFound) and not stage.bins(KEY)


def update_only_is_ignored():
    def operate(self, update, real=Server._operate):
        return real(self, structs.replace(update, exists=Exists.ANY))

    return mock.patch.object(Server, "_operate", operate)


def token_guard_on_a_missing_map():
    """P0.2: the first update of all finds no map of tokens."""
    stage = Stage()
    guard = GUARDS["lacks"]("ops", Param("token", str))

    def writer(store):
        store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
        store.operate(KEY, Add("n", 1), MapPut("ops", "t", 1), when=guard.bind(token="t"))

    stage.act("a", writer)
    return stage.play().bins(KEY).get("n") == 1


GUARDS = {"lacks": lacks}


def bare_negation():
    return mock.patch.dict(GUARDS, lacks=lambda bin, key: Negate(MapHas(bin, key)))


def refused_guards_leave_no_trace():
    """P0.4: somebody keeps asking, in vain; what is abandoned must be seen to be abandoned all the same."""
    stage = Stage()
    since = []

    def asker(store):
        store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
        for _ in range(5):
            store.seams.sleep(1)
            with pytest.raises(Refused):
                store.operate(KEY, Put("n", 1), when=N.eq(7))
        since.append(stage.server._now() - stage.server._records[KEY].updated)

    stage.act("a", asker)
    stage.play()
    return since[0] >= 5000


def refusals_touch():
    def operate(self, update, real=Server._operate):
        try:
            return real(self, update)
        except Refused:
            self._records[update.key] = altered(self._records[update.key], updated=self._now())
            raise

    return mock.patch.object(Server, "_operate", operate)


def fences_survive_idleness():
    """P0.5: nobody takes the lock for longer than any record lives by default; its fence must not begin anew."""
    stage = Stage()

    def holder(store):
        first = FencedLock(store, "lock", lease=1.0).acquire(5)
        first.release()
        store.seams.sleep(100_000)
        stage.world.server_offset -= 200_000
        return FencedLock(store, "lock", lease=1.0).acquire(5).fence > first.fence

    stage.act("a", holder)
    stage.world.at(
        50_000, lambda: stage.server.restart({k: r for k, r in stage.server.snapshot().items() if not r.expires})
    )
    return stage.play(1_000_000).said["a"]


def late_after_refused():
    """P0.6: a compare-and-set in doubt is refused when repeated; then the value comes back, and the first one lands."""
    stage = Stage({"a": {1: Fault(Kind.LATE, 3.0)}})

    def asker(store):
        store.operate(KEY, Put("n", 2), when=N.eq(1), once=Once(8, result=2))

    def others(store):
        store.operate(KEY, Put("n", 9))
        store.seams.sleep(2)
        store.operate(KEY, Put("n", 1))

    stage.act("setup", lambda store: store.operate(KEY, Put("n", 1), exists=Exists.CREATE))
    stage.act("a", asker, after=0.1)
    stage.act("b", others, after=0.11)
    stage.play()
    return isinstance(stage.said["a"], Refused) and stage.bins(KEY)["n"] == 1


def clocks_of_clients_differ():
    """P0.3: the first holder's clock is an hour ahead; after a restart of the store the next fence must be above."""
    stage = Stage()

    def fence(store):
        return FencedLock(store, "lock", lease=1.0).acquire(5).fence

    stage.act("a", fence).wall_offset += 3600
    stage.world.at(5, lambda: stage.server.restart({}))
    stage.act("b", fence, after=6)
    stage.play()
    return stage.said["b"] > stage.said["a"]


def time_by_the_clients_clock():
    def now(self):
        process = next(process for process in self.world.processes if process.name == self.caller)
        return int((self.world.now + process.wall_offset) * 1000)

    return mock.patch.object(Server, "_now", now)


def add_whose_reply_is_lost():
    """P1: the add has been applied, its reply is lost, it is sent again."""
    stage = Stage({"a": {2: Fault(Kind.REPLY_LOST)}})

    def adder(store):
        store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
        return store.operate(KEY, Add("n", 1), once=Once(8, result=N))

    stage.act("a", adder)
    stage.play()
    return stage.said["a"] == (1,) and stage.bins(KEY)["n"] == 1


def token_older_than_the_window():
    """P1: while an add is late, so many others come that its token would have been forgotten."""
    stage = Stage({"a": {1: Fault(Kind.DUPLICATE, 5.0)}})
    stage.act("setup", lambda store: store.operate(KEY, Put("n", 0), exists=Exists.CREATE))
    stage.act("a", lambda store: store.operate(KEY, Add("n", 1), once=Once(2, result=N)), after=0.1)
    for number in range(3):
        stage.act(f"b{number}", lambda store: store.operate(KEY, Add("n", 1), once=Once(2, result=N)), after=1 + number)
    return stage.play().bins(KEY)["n"] == 4


RULES = [
    ("P0.1", guard_on_an_absent_record, update_only_is_ignored),
    ("P0.2", token_guard_on_a_missing_map, bare_negation),
    ("P0.3", clocks_of_clients_differ, time_by_the_clients_clock),
    ("P0.4", refused_guards_leave_no_trace, refusals_touch),
    ("P0.5", fences_survive_idleness, patched(contender, "NEVER", 3600)),
    ("P0.6", late_after_refused, rule("store", "refused after doubt without cancelling")),
    ("P1 token", add_whose_reply_is_lost, rule("store", "retry of an in-doubt add")),
    ("P1 window", token_older_than_the_window, rule("store", "token checked, window not")),
]
