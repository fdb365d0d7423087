"""Leaders that are killed, and leaders that are stopped past their lease and wake up: both elections."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import uuid

import pytest

from latchwork.coord import LeaseElection, ZooKeeperElection
from latchwork.errors import Unavailable
from latchwork.store import Key, Put, SQLiteStore
from tests.support.stopping import stop_between_writes
from tests.support.waiting import until

LEASE = 1.0
LONG = 40.0
"""Longer than any test waits: who follows keeps the office, however the machine stalls."""
RESOURCE = Key("resources", "r")

LEADER = """
import pickle, sys
from contextlib import suppress
from latchwork.coord import LeaseElection, ZooKeeperElection
from latchwork.errors import FencedOut
from latchwork.store import Key, Put
store, name, hosts, lease = pickle.loads(bytes.fromhex(sys.argv[1]))
if hosts:
    election = ZooKeeperElection(store, name, hosts, candidate="child", lease=lease)
else:
    election = LeaseElection(store, name, candidate="child", lease=lease)
def lead(leadership):
    leadership.operate(Key("resources", "r"), Put("by", "child"))
    print(leadership.epoch, flush=True)
    sys.stdin.readline()
    print(leadership.lost.is_set(), election.leadership is None, flush=True)
    try:
        leadership.operate(Key("resources", "r"), Put("by", "child"))
    except FencedOut:
        print("refused", flush=True)
while True:
    with suppress(FencedOut):  # a stall has ended the term before the first write: it leads again
        election.run(lead, timeout=30)
        break
"""


@pytest.fixture(params=["lease", "zookeeper"])
def office(request, tmp_path):
    """A store, a leader in a process of its own, its epoch, and a candidate here that stands behind it."""
    hosts = request.getfixturevalue("zookeeper").hosts if request.param == "zookeeper" else None
    store, name = SQLiteStore(tmp_path / "store.db", synchronous="normal"), f"office-{uuid.uuid4().hex[:8]}"
    packed = pickle.dumps((store, name, hosts, LEASE)).hex()
    child = subprocess.Popen(
        [sys.executable, "-c", LEADER, packed], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    if hosts:
        candidate = ZooKeeperElection(store, name, hosts, candidate="here", lease=LONG)
    else:
        candidate = LeaseElection(store, name, candidate="here", lease=LONG)
    try:
        epoch = int(child.stdout.readline())
        candidate.start()
        until(lambda: "here" in _contenders(candidate))
        yield store, child, epoch, candidate
    finally:
        child.kill()
        child.wait(10)
        candidate.stop()
        store.close()


def _contenders(candidate):
    if hasattr(candidate, "_client") and not candidate._client.connected:
        return []
    try:
        return candidate.contenders()
    except Unavailable:  # ZooKeeper was slow: it is asked again
        return []


def test_a_killed_leader_is_succeeded(office):
    _, child, epoch, candidate = office
    child.send_signal(signal.SIGKILL)
    child.wait(10)
    assert until(lambda: candidate.leadership).epoch > epoch


def test_a_stopped_leader_wakes_up_to_find_its_term_lost_and_its_write_refused(office):
    store, child, epoch, candidate = office
    stop_between_writes(child, store)
    leadership = until(lambda: candidate.leadership)
    assert leadership.epoch > epoch
    leadership.operate(RESOURCE, Put("by", "here"))
    child.stdin.write("\n")
    child.stdin.flush()
    os.kill(child.pid, signal.SIGCONT)
    assert child.communicate(timeout=30)[0].split() == ["True", "True", "refused"]
    assert store.get(RESOURCE).bins == {"by": "here", "fence": leadership.epoch}
