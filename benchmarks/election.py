"""Elections: how long there is no leader after one was killed, and after one resigned.

Run it from the project's root as `python -m benchmarks.election`. The leader is a process of its own, killed with
SIGKILL; the clock stops when a candidate in this process has its next epoch. By lease that is bounded by the lease,
during which the candidate must have seen the old leader's record stand still, plus a tenth of it between two looks; by
ZooKeeper it is the session timeout, which the server rounds up to its ticks. A resignation is bounded by one second.
"""

from __future__ import annotations

import pickle
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._harness import table
from benchmarks.targets import Verdict, judged
from latchwork.coord import LeaseElection, ZooKeeperElection
from latchwork.store import SQLiteStore
from tools import servers

ROUNDS = 5
LEASE = 1.0
ROOM = 1.25
"""Leases that may pass: a candidate must see the old leader's record stand still for one, between two looks."""
LEADER = """
import pickle, sys
from latchwork.coord import LeaseElection, ZooKeeperElection
store, name, hosts, lease = pickle.loads(bytes.fromhex(sys.argv[1]))
if hosts:
    election = ZooKeeperElection(store, name, hosts, lease=lease)
else:
    election = LeaseElection(store, name, lease=lease)
election.run(lambda leadership: (print(leadership.epoch, flush=True), sys.stdin.readline()))
"""


def candidate_of(store, name: str, hosts: str | None):
    """A candidate of either kind."""
    if hosts:
        return ZooKeeperElection(store, name, hosts, lease=LEASE)
    return LeaseElection(store, name, lease=LEASE)


def without_leader(store, name: str, hosts: str | None, *, kill: bool) -> float:
    """Seconds from the end of one leader to the beginning of the next."""
    packed = pickle.dumps((store, name, hosts, LEASE)).hex()
    command = [sys.executable, "-c", LEADER, packed]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as leader:
        epoch = int(leader.stdout.readline())
        candidate = candidate_of(store, name, hosts)
        candidate.start()
        time.sleep(1.5 * LEASE)
        began = time.perf_counter()
        if kill:
            leader.send_signal(signal.SIGKILL)
        else:
            leader.stdin.close()
        while candidate.leadership is None:
            time.sleep(0.001)
        spent = time.perf_counter() - began
        assert candidate.leadership.epoch > epoch
        candidate.stop()
    return spent


def rows(store, title: str, hosts: str | None) -> list[tuple]:
    """The two measurements of one kind of election."""
    found = []
    for what, kill in (("killed", True), ("resigned", False)):
        times = [without_leader(store, f"bench-{title}-{what}-{number}", hosts, kill=kill) for number in range(ROUNDS)]
        found.append((title, what, LEASE, statistics.median(times), max(times)))
    return found


def main() -> None:
    zookeeper = servers.started(servers.ZooKeeper())
    try:
        with tempfile.TemporaryDirectory() as directory:
            store = SQLiteStore(Path(directory) / "store.db", synchronous="normal")
            found = rows(store, "by lease", None) + rows(store, "by ZooKeeper", zookeeper.hosts)
            store.close()
    finally:
        zookeeper.close()
    print(table(("election", "leader", "lease or session s", "median s", "longest s"), found) + "\n")
    limits = {"killed": ROOM * LEASE, "resigned": 1.0}
    print(judged(
        Verdict(f"election {title}, leader {what}: seconds without one", limits[what], median, at_least=False)
        for title, what, _, median, _ in found
    ))  # fmt: skip


if __name__ == "__main__":
    main()
