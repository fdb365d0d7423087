"""Read-write locks between real processes, some of which are killed and some stopped past their lease."""

from __future__ import annotations

import uuid

import pytest

from latchwork.store import Key
from tests.coord.recorded import play
from tests.sim.checkers.linearizable import linearizable
from tests.support.scale import SEEDS

LEASE = 0.3
ROUNDS = 3

WORKER = """
from latchwork.coord import ReadWriteLock
from latchwork.store import Key, MapPut, Put
lock, log = ReadWriteLock(store, NAME, owner=me, lease=0.3), Key("tallies", NAME)
told = lambda grant: [grant.fence, grant._held._id]
for turn in range(6):
    if chance.random() < 0.6:
        grant = call("read", [], lambda: lock.read(3), told)
    else:
        grant = call("write", [], lambda: lock.write(3), told)
        if grant is not None:
            try:
                grant.seal(log)
                record = store.get(log, "n")
                count = (record.bins.get("n") or 0) + 1
                grant.operate(log, Put("n", count), MapPut("seen", grant.fence, count))
            except LatchworkError:
                pass
    if grant is not None:
        time.sleep(chance.uniform(0, 0.02))
        call("release", [grant._held._id], grant.release, bool)
"""


@pytest.mark.slow  # more on a busy machine
@pytest.mark.parametrize("seed", SEEDS)
def test_no_writer_beside_others_though_users_are_killed_and_stopped(shared_store, seed, proved):
    for turn in range(ROUNDS):
        name = f"rwlock-{uuid.uuid4().hex[:8]}"
        code = f"NAME = {name!r}\n{WORKER}"
        entries = play(shared_store, code, seed * 10 + turn, workers=5, kills=2, stops=1, pause=2 * LEASE)
        decisive = [entry for entry in entries if entry.outcome == "ok" or (entry.unknown and entry.name == "release")]
        assert sum(entry.name != "release" for entry in decisive) >= 8, "there was something to see"
        assert linearizable(decisive, Register()), decisive
        record = shared_store.get(Key("tallies", name))
        seen = (record.bins.get("seen") or {}) if record else {}
        counts = [seen[fence] for fence in sorted(seen)]
        assert counts == list(range(1, len(counts) + 1)), "each writer counted on from the one before, in fence order"
    kinds = "SQLite" if "SQLite" in type(shared_store).__name__ else "Aerospike"
    proved("processes", f"rwlock, {kinds}", killed=2 * ROUNDS, stopped=ROUNDS)


class Register:
    """A read-write lock of which those who were killed or stopped may be taken out at any time."""

    initial = (frozenset(), 0)

    def step(self, state, entry):
        return getattr(self, "_" + entry.name)(state, entry)

    def _enter(self, state, entry, mode):
        live, last = state
        fence, id = entry.result
        others = [other for _, other, mortal in live if not mortal]
        if mode == "write":
            return () if others or fence <= last else ((live | {(id, mode, entry.tag.mortal)}, fence),)
        return () if "write" in others or fence < last else ((live | {(id, mode, entry.tag.mortal)}, fence),)

    def _read(self, state, entry):
        return self._enter(state, entry, "read")

    def _write(self, state, entry):
        return self._enter(state, entry, "write")

    def _release(self, state, entry):
        live, last = state
        after = (frozenset(one for one in live if one[0] != entry.args[0]), last)
        if entry.unknown:
            return (state, after)
        return (after,) if entry.result else (state,) if entry.tag.mortal else ()
