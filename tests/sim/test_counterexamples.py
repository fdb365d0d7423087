"""For each rule of docs/protocols.md the interleaving that breaks a protocol without it.

Every script is played twice: with the rule it holds, and with the rule taken out it does not.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from unittest import mock

import pytest

from latchwork.coord import contender, lease
from latchwork.coord.latch import CountDownLatch
from latchwork.coord.lease import LeaseView
from latchwork.coord.lock import LOCKS, FencedLock
from latchwork.errors import LatchworkError, LeaseLost, NotFound, Refused
from latchwork.queue.circular import LargeQueue
from latchwork.queue.config import QueueConfig
from latchwork.queue.registry import QueueRegistry
from latchwork.queue.sweeper import Sweeper
from latchwork.store import Add, Bin, Exists, Key, MapPut, Once, Param, Put, lacks
from latchwork.store.expr import MapHas, Negate

from .faults.network import Server, altered
from .mutants import MUTANTS
from .stage import Fault, Kind, Stage
from .workload.sharded import Office, Term

KEY = Key("sim", "record")
LAYER = "rules, by script"
N = Bin("n")


def rule(primitive, name):
    return next(mutant.patch for mutant in MUTANTS if (mutant.primitive, mutant.name) == (primitive, name))


def patched(owner, name, value):
    return lambda: mock.patch.object(owner, name, value)


# ---- P0: the ground rules


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
        return real(self, update._replace(exists=Exists.ANY))

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


# ---- P1: once


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


# ---- P2: the lock


def renewed_between_look_and_break():
    """P2: a challenger has seen the lease stand still; the holder renews, the server's clock steps; then it breaks."""
    stage = Stage()
    lock = Key(LOCKS, "lock")

    def both(store):
        grant = FencedLock(store, "lock", lease=1.0).acquire(5)
        seen = LeaseView.of(stage.bins(lock))
        grant.renew()
        stage.world.server_offset += 3600
        with suppress(Refused):
            store.operate(lock, *lease.acquire("b", 1.0, "g"), when=lease.broken(seen, "g"))
        return stage.bins(lock)["fencing-ctr"] == grant.fence

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
        return stage.bins(Key(LOCKS, "lock"))["locked"] == 1 and bool(grant.fence)

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


# ---- P4: the large circular queue


def late_commit_after_not_committed():
    """P4: a commit is late, the connection is lost; somebody is told "not committed"; then the commit arrives."""
    stage = Stage({"a": {5: Fault(Kind.LATE, 2.0), **{call: Fault(Kind.DROPPED) for call in range(6, 30)}}})

    def asker(store):
        return LargeQueue.open(store, "q").transaction("t", timeout=5)

    stage.act("setup", lambda store: LargeQueue.create(store, "q", 4, entries_per_record=4, lease=30.0))
    stage.act("a", lambda store: LargeQueue.open(store, "q").enqueue("v", txn_id="t"), after=0.5)
    stage.act("b", asker, after=0.8)
    stage.play()
    committed = stage.bins(Key("q", "queue-metadata"))["tail-offset"] == 1
    told = stage.said["b"]
    return isinstance(told, LatchworkError) or (told is not None) == committed


# ---- P5: the sharded queue


def _queue(store):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = QueueConfig("q", shards=1, sweep_duration=4, handler_timeout=1, unsafe_limits=True)
    return QueueRegistry(store, "c", farm_id="f").create(config)


def acknowledged_by_a_stale_receipt():
    """P5: a consumer is slow, the message is handed to somebody else; then the first one acknowledges."""
    stage = Stage()

    def consumer(store):
        queue = _queue(store)
        queue.publish("m")
        delivery = queue.receive()[0]
        queue.pointers.stamp([delivery.held.slot], "somebody else")
        with suppress(LeaseLost):
            delivery.ack()
        return "data" in stage.bins(queue.pointers.key(delivery.held.slot))

    stage.act("a", consumer)
    return stage.play().said["a"]


def producer_slower_than_the_sweep():
    """P5: reserve, a long pause, create: the slot has been claimed, its consumer died, the sweep has passed it."""
    stage = Stage({"p": {3: Fault(Kind.PAUSE, 30.0)}, "c": {3: Fault(Kind.CRASH_AFTER)}})
    stage.act("setup", _queue)

    def leader(store):
        queue = _queue(store)
        sweeper = Sweeper(queue.registry, Office(Term(1)))
        for _ in range(14):
            store.seams.sleep(5)
            sweeper.run_once()
        found = queue.receive(10) + queue.sideline.receive(10)
        return [delivery.payload for delivery in found]

    stage.act("p", lambda store: _queue(store).publish("m"), after=0.1)
    stage.act("c", lambda store: _queue(store).receive(), after=0.3)
    stage.act("s", leader, after=1.0)
    stage.play()
    acknowledged = isinstance(stage.said["p"], str)
    return not acknowledged or "m" in stage.said["s"]


# ---- P8: latches


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


COUNTEREXAMPLES = [
    ("P0.1", guard_on_an_absent_record, update_only_is_ignored),
    ("P0.2", token_guard_on_a_missing_map, bare_negation),
    ("P0.3", clocks_of_clients_differ, time_by_the_clients_clock),
    ("P0.4", refused_guards_leave_no_trace, refusals_touch),
    ("P0.5", fences_survive_idleness, patched(contender, "NEVER", 3600)),
    ("P0.6", late_after_refused, rule("store", "refused after doubt without cancelling")),
    ("P1 token", add_whose_reply_is_lost, rule("store", "retry of an in-doubt add")),
    ("P1 window", token_older_than_the_window, rule("store", "token checked, window not")),
    ("P2 break", server_clock_steps_forward, rule("lock", "broken by the server's clock alone")),
    ("P2 guard", renewed_between_look_and_break, patched(lease, "_BROKEN", lease._HELD & lease._RAN_OUT)),
    ("P2 release", release_by_an_earlier_self, rule("lock", "owner-only release")),
    ("P2 resource", write_after_the_lease, rule("lock", "a ratchet without the guard")),
    ("P2 ratchet", write_after_the_lease, rule("lock", "a guard without the ratchet")),
    ("P2 fence", store_restarts_empty, rule("lock", "the next fence is one more")),
    ("P4 status", late_commit_after_not_committed, rule("circular", "not committed is said without a new fence")),
    ("P5 acknowledge", acknowledged_by_a_stale_receipt, rule("sharded", "acknowledging without a guard")),
    ("P5 late create", producer_slower_than_the_sweep, rule("sharded", "a late create is acknowledged")),
    ("P8 nonce", count_for_a_latch_made_again, rule("latch", "counts ignore which latch they mean")),
]


@pytest.mark.parametrize(("name", "script", "without"), COUNTEREXAMPLES, ids=[row[0] for row in COUNTEREXAMPLES])
def test_the_rule_closes_the_hole(name, script, without, proved):
    assert script() is True
    proved(LAYER, name.split()[0], held=1)


@pytest.mark.parametrize(("name", "script", "without"), COUNTEREXAMPLES, ids=[row[0] for row in COUNTEREXAMPLES])
def test_without_the_rule_the_hole_is_open(name, script, without, proved):
    with without():
        try:
            held = script()
        except BaseException:
            held = False
    assert held is not True
    proved(LAYER, name.split()[0], {"broken without": 1})
