"""Semaphores between real processes, some of which are killed and some stopped past their lease."""

from __future__ import annotations

import uuid

import pytest

from latchwork.store import Key
from tests.coord.recorded import play
from tests.sim.checkers.linearizable import linearizable
from tests.support.scale import SEEDS

SIZE, LEASE = 2, 0.3
ROUNDS = 3

WORKER = """
from latchwork.coord import Semaphore
from latchwork.store import Add, Key, MapPut
semaphore = Semaphore(store, NAME, permits=2, owner=me, lease=0.3)
for turn in range(6):
    n = chance.choice((1, 1, 2))
    permits = call("acquire", [n], lambda: semaphore.acquire(n, timeout=3), lambda held: [held.fence, held.slots])
    if permits is None:
        continue
    time.sleep(chance.uniform(0, 0.02))
    call("write", [permits.fence, permits.slots], lambda: permits.operate(Key("tallies", NAME), Add("n", n)))
    call("release", [permits.fence], permits.release, bool)
"""


@pytest.mark.slow  # more on a busy machine
@pytest.mark.parametrize("seed", SEEDS)
def test_never_more_hold_it_than_there_are_though_holders_are_killed_and_stopped(shared_store, seed, proved):
    for turn in range(ROUNDS):
        name = f"semaphore-{uuid.uuid4().hex[:8]}"
        code = f"NAME = {name!r}\n{WORKER}"
        entries = play(shared_store, code, seed * 10 + turn, workers=5, kills=2, stops=1, pause=2 * LEASE)
        acquired = [entry for entry in entries if entry.name == "acquire" and entry.outcome == "ok"]
        assert len(acquired) >= 8, "there was something to see"
        assert len({entry.result[0] for entry in acquired}) == len(acquired)
        never_more_than(SIZE, entries)
        decisive = [entry for entry in entries if entry.name in ("acquire", "release") and decided(entry)]
        assert linearizable(decisive, Register()), decisive
        written = sum(entry.tag.name != "" for entry in entries if entry.name == "write" and entry.outcome == "ok")
        record = shared_store.get(Key("tallies", name))
        assert record is not None
        assert record.bins["n"] >= written
        refused_by_fence(entries)
    kinds = "SQLite" if "SQLite" in type(shared_store).__name__ else "Aerospike"
    proved("processes", f"semaphore, {kinds}", killed=2 * ROUNDS, stopped=ROUNDS)


def decided(entry) -> bool:
    return entry.outcome == "ok" or (entry.outcome == "unknown" and entry.name == "release")


def never_more_than(size, entries):
    """Between being told that it has them and asking to give them back, nobody's permits are beside too many others'.

    Of a worker that was killed or stopped only the time until then counts: it does not act afterwards, or is refused.
    """
    held = []
    for worker in {id(entry.tag): entry.tag for entry in entries}.values():
        mine = [entry for entry in entries if entry.tag is worker and entry.name in ("acquire", "release")]
        for at, entry in enumerate(mine):
            if entry.name == "acquire" and entry.outcome == "ok" and not worker.stopped:
                gave = mine[at + 1].called if at + 1 < len(mine) else entry.closed
                held.append((entry.closed, min(gave, worker.ended, entry.closed + LEASE * 0.9e9), entry.args[0]))
    for begin, _, _ in held:
        together = sum(n for since, until, n in held if since <= begin < until)
        assert together <= size, held


def refused_by_fence(entries):
    """Who was stopped past its lease and then wrote was refused, or its slots had no next holder that wrote."""
    for entry in entries:
        if entry.name != "write" or entry.outcome != "ok":
            continue
        fence, slots = entry.args
        later = [
            other for other in entries
            if other.name == "write" and other.outcome == "ok" and other.args[0] > fence
            and set(other.args[1]) & set(slots) and other.closed < entry.called
        ]  # fmt: skip
        assert not later, (entry, later)


class Register:
    """A semaphore in which those who were killed or stopped may be removed at any time."""

    initial = (frozenset(), 0)

    def step(self, state, entry):
        return getattr(self, "_" + entry.name)(state, entry)

    def _acquire(self, state, entry):
        live, highest = state
        fence, n = entry.result[0], entry.args[0]
        room = sum(count for _, count, mortal in live if not mortal) + n <= SIZE
        return ((live | {(fence, n, entry.tag.mortal)}, fence),) if fence > highest and room else ()

    def _release(self, state, entry):
        live, highest = state
        after = (frozenset(one for one in live if one[0] != entry.args[0]), highest)
        if entry.outcome == "unknown":
            return (state, after)
        return (after,) if entry.result else (state,) if entry.tag.mortal else ()
