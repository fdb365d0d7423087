"""Candidates by ZooKeeper and by lease, killed and stopped at any moment: one leader an epoch, and no write of an
earlier one after a later one's.
"""

from __future__ import annotations

import os
import random
import signal
import time
import uuid
from contextlib import suppress

import pytest

from latchwork.coord import LeaseElection, ZooKeeperElection
from latchwork.errors import LatchworkError
from latchwork.store import Add, Key, MapPut, Put, Read, SQLiteStore
from tests.support.scale import SEEDS, length

LEASE = 0.4
TURNS = 6 * length(3)
"""Candidates that are killed or, one in six, stopped past their lease."""
OFFICE = Key("tallies", "office")


def _stand_for_ever(store, name, hosts, me):
    while True:
        if hosts:
            election = ZooKeeperElection(store, name, hosts, candidate=me, lease=LEASE)
        else:
            election = LeaseElection(store, name, candidate=me, lease=LEASE)
        with suppress(LatchworkError):
            election.run(lambda leadership: _count(store, leadership, me), timeout=30)


def _count(store, leadership, me):
    """Count on from where the last leader stopped, for as long as this one leads."""
    leadership.seal(OFFICE)
    count = store.get(OFFICE, "n").bins.get("n") or 0
    leadership.operate(OFFICE, MapPut("leaders", leadership.epoch, me), Read("n"))
    while not leadership.lost.wait(0.005):
        count += 1
        (writes,) = leadership.operate(OFFICE, Put("n", count), Add("writes", 1), Read("writes"))
        assert writes == count, "somebody else has written in this term"


def _forked(*arguments):
    pid = os.fork()
    if pid == 0:
        try:
            _stand_for_ever(*arguments)
        finally:
            os._exit(1)
    return pid


@pytest.mark.slow  # more on a busy machine
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["lease", "zookeeper"])
def test_no_term_is_disturbed_though_candidates_are_killed_and_stopped(kind, seed, request, tmp_path, proved):
    hosts = request.getfixturevalue("zookeeper").hosts if kind == "zookeeper" else None
    store, name = SQLiteStore(tmp_path / "store.db", synchronous="off"), f"office-{uuid.uuid4().hex[:8]}"
    chance = random.Random(5 + seed)
    crowd = {f"c{number}": _forked(store, name, hosts, f"c{number}") for number in range(3)}
    epoch = 0
    try:
        for turn in range(TURNS):
            time.sleep(chance.uniform(0.05, 0.6))
            if turn % 6 == 5:
                epoch, leader = _leader(store, crowd, epoch)
                os.kill(crowd[leader], signal.SIGSTOP)
                time.sleep(2.5 * LEASE)
                os.kill(crowd[leader], signal.SIGCONT)
            else:
                _kill(crowd.pop(chance.choice(sorted(crowd))))
                crowd[f"d{turn}"] = _forked(store, name, hosts, f"d{turn}")
        _until_led(store)
    finally:
        for pid in crowd.values():
            _kill(pid)
    record = store.get(OFFICE).bins
    store.close()
    assert record["n"] == record["writes"], "what a leader wrote was overwritten by who had not seen it"
    assert len(record["leaders"]) >= TURNS // 6, "each that is stopped is succeeded"
    proved("processes", f"election by {kind}", killed=TURNS - TURNS // 6, stopped=TURNS // 6)


def _leader(store, crowd, after):
    """The epoch and the candidate that leads, once it is one of those that live, and later than that epoch."""
    end = time.monotonic() + 30
    while True:
        record = store.get(OFFICE, "leaders")
        leaders = record.bins.get("leaders", {}) if record else {}
        epoch = max(leaders, default=0)
        if epoch > after and leaders[epoch] in crowd:
            return epoch, leaders[epoch]
        assert time.monotonic() < end, "nobody leads"
        time.sleep(0.02)


def _until_led(store):
    """Wait for one more term than there were: once nobody is disturbed any more, somebody leads."""
    writes, end = _writes(store), time.monotonic() + 30
    while _writes(store) == writes:
        assert time.monotonic() < end, "nobody leads"
        time.sleep(0.02)


def _writes(store):
    record = store.get(OFFICE, "writes")
    return record.bins.get("writes") if record else None


def _kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
