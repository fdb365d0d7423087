"""Locks between real processes: fair enough, and a fence for each, though some are killed and some are stopped."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from threading import Event, Thread

import pytest

from latchwork.coord import FencedLock
from latchwork.errors import LatchworkError
from latchwork.store import Key, MapPut, Put, SQLiteStore
from tests.support.scale import SEEDS, length
from tests.support.stopping import stop_between_writes
from tests.support.waiting import until

TALLY = Key("tallies", "lock")
TURNS = length(110, least=12)
"""Holders that are killed or stopped."""
LEASE = 0.1
"""Seconds; of those that are killed and stopped."""

CONTENDER = """
import pickle, sys
from latchwork.coord import FencedLock
from latchwork.store import Add, Key, MapAdd, Read
store, me, total = pickle.loads(bytes.fromhex(sys.argv[1])), sys.argv[2], int(sys.argv[3])
lock, tally, mine = FencedLock(store, "crowd", owner=me, lease=20), Key("tallies", "lock"), 0
print("ready", flush=True)
sys.stdin.readline()
while True:
    with lock.acquire(timeout=60) as grant:
        count, = grant.operate(tally, Add("n", 1), Read("n"))
        if count > total:
            break
    mine += 1
print(mine)
"""

HOLDER = """
import pickle, sys
from contextlib import suppress
from latchwork.coord import FencedLock
from latchwork.errors import FencedOut
from latchwork.store import Key, Put
store, lease = pickle.loads(bytes.fromhex(sys.argv[1])), float(sys.argv[2])
lock, written = FencedLock(store, "held", owner="holder", lease=lease), False
while not written:
    grant = lock.acquire(timeout=10, keep_alive=True)
    with suppress(FencedOut):  # a stall has ended its lease before it wrote: it takes the lock again
        grant.operate(Key("tallies", "lock"), Put("by", "holder"))
        written = True
print(grant.fence, flush=True)
sys.stdin.readline()
print(grant.lost.is_set(), flush=True)
try:
    grant.operate(Key("tallies", "lock"), Put("by", "holder"))
except FencedOut:
    print("refused", flush=True)
"""


def _start(code, store, *arguments):
    packed = pickle.dumps(store).hex()
    command = [sys.executable, "-c", code, packed, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.long
def test_eight_contenders_get_between_half_and_twice_their_share_of_2000(shared_store):
    store = shared_store
    crowd = [_start(CONTENDER, store, f"p{number}", 2000) for number in range(8)]
    assert [process.stdout.readline() for process in crowd] == ["ready\n"] * 8
    for process in crowd:
        process.stdin.write("\n")
        process.stdin.flush()
    shares = [int(process.communicate(timeout=120)[0]) for process in crowd]
    assert sum(shares) == 2000
    assert min(shares) >= 125, shares
    assert max(shares) <= 500, shares


@pytest.fixture
def sqlite(tmp_path):
    made = SQLiteStore(tmp_path / "store.db", synchronous="normal")
    yield made
    made.close()


def test_the_lock_of_a_killed_holder_is_taken_within_its_lease(sqlite):
    holder = _start(HOLDER, sqlite, 0.5)
    fence = int(holder.stdout.readline())
    holder.send_signal(signal.SIGKILL)
    holder.wait(10)
    grant = FencedLock(sqlite, "held").acquire(timeout=20)
    assert grant.fence > fence


def test_a_stopped_holder_wakes_up_to_find_its_lease_lost_and_its_write_refused(sqlite):
    holder = _start(HOLDER, sqlite, 0.5)
    try:
        fence = int(holder.stdout.readline())
        stop_between_writes(holder, sqlite)
        grant = FencedLock(sqlite, "held").acquire(timeout=20)
        assert grant.fence > fence
        grant.operate(TALLY, Put("by", "successor"))
        holder.stdin.write("\n")
        holder.stdin.flush()
        os.kill(holder.pid, signal.SIGCONT)
        assert holder.communicate(timeout=20)[0].split() == ["True", "refused"]
        assert sqlite.get(TALLY).bins["by"] == "successor"
        grant.check()
    finally:
        holder.kill()


def _count_under_the_lock_for_ever(store, me):
    lock, log = FencedLock(store, "mixed", owner=me, lease=LEASE), Key("tallies", "mixed")
    while True:
        with suppress(LatchworkError), lock.acquire(timeout=30) as grant:
            grant.seal(log)
            count = (store.get(log, "n").bins.get("n") or 0) + 1
            grant.operate(log, Put("n", count), MapPut("seen", grant.fence, count))


def _forked(store, me):
    pid = os.fork()
    if pid == 0:
        try:
            _count_under_the_lock_for_ever(store, me)
        finally:
            os._exit(1)
    return pid


def test_a_forked_child_that_ends_inside_the_block_leaves_the_lock_to_its_parent(sqlite):
    lock = FencedLock(sqlite, "forked", owner="parent", lease=20)
    with lock.acquire(timeout=10) as grant:
        pid = os.fork()
        if pid == 0:
            try:
                grant.__exit__(SystemExit, SystemExit(0), None)
                os._exit(3 if grant.release() else 0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert FencedLock(sqlite, "forked", owner="other", lease=20).try_acquire() is None
        assert not grant.lost.is_set()
    assert FencedLock(sqlite, "forked", owner="other", lease=20).try_acquire() is not None


def test_a_thread_of_a_forked_child_is_in_no_block_of_a_thread_of_the_parent_though_it_gets_its_number(sqlite):
    lock, inside, over, number = FencedLock(sqlite, "forked", lease=20), Event(), Event(), []

    def hold():
        with lock:
            number.append(sqlite.seams.thread())
            inside.set()
            over.wait(60)

    other = Thread(target=hold)
    other.start()
    assert inside.wait(60)
    own = FencedLock(sqlite, "own", lease=20)
    with own:
        pid = os.fork()
        if pid == 0:
            try:
                kept = own.grant is not None
                sqlite.seams.thread = lambda: number[0]
                os._exit(0 if kept and lock.grant is None else 3)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    over.set()
    other.join(60)


def _kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.slow  # more on a busy machine
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_done_under_a_fence_is_lost_though_holders_are_killed_and_stopped(sqlite, seed, proved):
    """One stop past the lease after each nine kills, at any point of taking, working, giving back."""
    chance, crowd = random.Random(7 + seed), [_forked(sqlite, f"p{number}") for number in range(4)]
    try:
        until(lambda: (record := sqlite.get(Key("tallies", "mixed"))) and "n" in record.bins)  # one has counted
        for turn in range(TURNS):
            time.sleep(chance.uniform(0.002, 0.03))
            place = turn % len(crowd)
            if turn % 10 == 9:
                os.kill(crowd[place], signal.SIGSTOP)
                time.sleep(2 * LEASE)
                os.kill(crowd[place], signal.SIGCONT)
            else:
                _kill(crowd[place])
                crowd[place] = _forked(sqlite, f"p{turn}")
        until(lambda: sqlite.get(Key("tallies", "mixed")).bins["n"] >= 20, timeout=60)
    finally:
        for pid in crowd:
            _kill(pid)
    record = sqlite.get(Key("tallies", "mixed")).bins
    counts = [record["seen"][fence] for fence in sorted(record["seen"])]
    assert counts == list(range(1, record["n"] + 1)), "each holder counted on from the one before, in fence order"
    proved("processes", "lock, SQLite", killed=TURNS - TURNS // 10, stopped=TURNS // 10)
