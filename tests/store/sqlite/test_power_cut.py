"""A power cut leaves of a SQLite store's log a beginning, whose last piece may be torn: what is found then is what was
true after one of the commits before it, never half of a step.

That a commit which was reported has reached the disk is SQLite's promise, by `synchronous`
(`test_all_but_claims_of_messages_wait_for_the_disk`).
"""

from __future__ import annotations

import shutil

import pytest

from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import SQLiteStore
from tests.support import matrix

HEADER, FRAME = 32, 24
"""Bytes of the log's own header, and of that of each of its pages (sqlite.org/fileformat2.html, section 4)."""
PAGE = 4096


class Life:
    """A queue that is published to, received from and acknowledged; and what was true after each of its commits."""

    def __init__(self, path):
        self.path, self.log = path, path.with_name(f"{path.name}-wal")
        self.store = SQLiteStore(path, synchronous="off")
        self.queue = QueueRegistry(self.store, "c").create(QueueConfig("q", shards=2))
        self.waiting, self.in_hand, self.deliveries = [], set(), []
        self.states = []
        """Length of the log, messages that wait, messages in hand."""
        self.file = path.read_bytes()
        self.note()

    def note(self):
        self.states.append((self.log.stat().st_size, sorted(self.waiting), sorted(self.in_hand)))

    def publish(self, *payloads):
        self.queue.publish_many(payloads) if len(payloads) > 1 else self.queue.publish(payloads[0])
        self.waiting += payloads
        self.note()

    def receive(self):
        for one in self.queue.receive(1):
            self.deliveries.append(one)
            self.waiting.remove(one.payload)
            self.in_hand.add(one.payload)
        self.note()

    def acknowledge(self):
        one = self.deliveries.pop(0)
        one.ack()
        self.in_hand.discard(one.payload)
        self.note()


@pytest.fixture(scope="module")
def life(tmp_path_factory):
    life = Life(tmp_path_factory.mktemp("life") / "store.db")
    for n in range(0, 40, 4):
        life.publish(n)
        life.publish(n + 1)
        life.publish(n + 2, n + 3)
        life.receive()
        life.receive()
        life.acknowledge()
    return life


def left(life, length, folder, torn=b""):
    """The store after a cut that left so much of the log."""
    path = folder / "store.db"
    path.write_bytes(life.file)
    path.with_name("store.db-wal").write_bytes(life.log.read_bytes()[:length] + torn)
    return SQLiteStore(path, synchronous="off")


def check(life, length, store):
    """What is there is what was true after the last commit that is whole."""
    records = [record.bins for record in store.scan("c_data_set")]
    waiting = sorted(int(bins["data"]) for bins in records if "delivery" not in bins)
    in_hand = sorted(int(bins["data"]) for bins in records if "delivery" in bins)
    reached = [state[1:] for state in life.states if state[0] <= length]
    # A step of several commits, such as the first message of a shard, may be cut between them.
    following = [state[1:] for state in life.states if state[0] > length][:1]
    assert (waiting, in_hand) in reached[-1:] + following
    assert store.damage() == []
    queue = QueueRegistry(store, "c").get("q")
    assert sorted(one.payload for one in queue.receive(100)) == waiting, "each message that waits is counted"
    queue.publish("after")
    assert [one.payload for one in queue.receive(100)] == ["after"]


def test_a_log_that_ends_anywhere_is_what_was_true_after_one_of_its_commits(life, tmp_path):
    begin, end = life.states[0][0], life.states[-1][0]
    frames = range(begin, end + 1, FRAME + PAGE)
    assert (begin - HEADER) % (FRAME + PAGE) == 0
    assert life.file == life.path.read_bytes(), "all that was done is in the log"
    assert len(frames) > 50
    for length in matrix.sample(frames, "where a log ends"):
        for more, torn in ((0, b""), (FRAME + PAGE // 2, b""), (0, b"\xa5" * (FRAME + PAGE))):
            folder = tmp_path / "cut"
            folder.mkdir()
            store = left(life, length + more, folder, torn)
            check(life, length, store)
            store.close()
            shutil.rmtree(folder)
