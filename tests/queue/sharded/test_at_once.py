"""A queue on SQLite: what nearly all messages and shards are is published, received and acknowledged in one step each,
all of it or nothing; and what is left there is what the calls record by record leave.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading

import pytest

from latchwork.errors import Corrupt, LatchworkError, LeaseLost, OutcomeUnknown, Unavailable
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded.at_once import take_at_once
from latchwork.queue.sharded.pointers import FIRE, LOAD, STREAM
from latchwork.queue.sharded.slots import Slot
from latchwork.retry import RetryPolicy
from latchwork.seams import Seams
from latchwork.store import Put, SQLiteStore
from latchwork.store.sqlite import rows as sqlite_rows
from latchwork.store.sqlite import steps as sqlite_steps
from tests.store.sqlite.test_sqlite import IOERR, _failure
from tests.support.broken import breaks
from tests.support.sqlite_damage import damage_row

from .test_together import failing  # noqa: F401 - a fixture

# ruff: noqa: F811 - pytest gives a fixture by its name

BUSY = _failure(sqlite3.OperationalError, 5, "database is locked")


@pytest.fixture
def store(tmp_path):
    store = SQLiteStore(tmp_path / "store.db", synchronous="off")
    store.policy = RetryPolicy(attempts=1)
    yield store
    store.close()


@pytest.fixture
def queue(store):
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=2))
    for _ in range(2):  # each shard has a record, and is known
        queue.publish("first")
        queue.publish("second")
    queue.ack_many(queue.receive(10))
    return queue


def statements(store, work):
    """The statements of the work."""
    seen: list[str] = []
    for connection in store._pool._idle:
        connection.set_trace_callback(seen.append)
    work()
    for connection in store._pool._idle:
        connection.set_trace_callback(None)
    return [statement.split(maxsplit=1)[0] for statement in seen]


def payloads(queue):
    return sorted(one.payload for one in queue.receive(100))


def waiting(queue):
    return sum(state.loaded - state.fired for state in queue.pointers.states())


def test_each_is_one_step(store, queue):
    got = []
    assert statements(store, lambda: queue.publish(1)) == ["INSERT"]
    assert len(statements(store, lambda: queue.publish_many(range(2, 50)))) <= 5 + 48
    assert statements(store, lambda: got.extend(queue.receive(1))).count("COMMIT") == 1
    assert statements(store, got[0].ack) == ["DELETE"]
    rest = queue.receive(100)
    assert statements(store, lambda: queue.ack_many(rest)) == ["BEGIN", *["DELETE"] * len(rest), "COMMIT"]
    assert store.scan("c_data_set") == []


class Traced(Seams):
    def carry(self, headers):
        return {**(headers or {}), "traceparent": "t"}


def test_a_message_that_is_published_in_a_trace_lets_its_handler_continue_it(store, queue, tmp_path):
    traced = QueueRegistry(SQLiteStore(tmp_path / "store.db", seams=Traced()), "c").get("q")
    traced.publish(1)
    traced.publish_many([2, 3])
    assert [one.headers for one in queue.receive(10)] == [{"traceparent": "t"}] * 3
    traced.registry.store.close()


def test_what_is_left_is_what_record_by_record_leaves(tmp_path, monkeypatch):
    """Each bin of each record, also of the pointers, their generations and times to live, but for the memory of claims,
    which needs no token here.
    """
    monkeypatch.setattr("latchwork.seams.Seams.wall", lambda _: 1_700_000_000.0)
    monkeypatch.setattr("latchwork.seams.Seams.unique", lambda _: "0" * 20)
    left = []
    for name in ("one", "each"):
        store = SQLiteStore(tmp_path / f"{name}.db", synchronous="off")
        store.steps = store.steps if name == "one" else None
        queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=2))
        for payload in "abcdef":
            queue.publish(payload, key=payload)
        queue.publish_many(["g", "h", "i"], keys=["k", "l", "m"])
        assert len(queue.receive(4)) == 4
        queue.receive(1)[0].ack()
        queue.publish("z", key="a")
        found = store.scan("c_data_set") + [one for one in store.scan("c_meta_set") if "SHARD" in one.key.name]
        left.append({one.key: (one.bins | {"claims": 0}, one.generation, one.ttl) for one in found})
        store.close()
    assert left[0] == left[1]
    assert len(left[0]) == 11


def test_a_step_at_a_shard_that_others_have_emptied_is_no_claim_so_the_shard_is_looked_at_again_soon(store, queue):
    queue.publish("third")
    (shard,) = (shard for shard, state in enumerate(queue.pointers.states()) if state.loaded > state.fired)
    claim, there = take_at_once(queue.pointers, shard, 5, "one")
    assert (claim.last - claim.after, len(there)) == (1, 1)
    assert take_at_once(queue.pointers, shard, 5, "other") == (None, {})


def test_a_slot_that_no_record_counts_yet_is_counted_before_its_message_goes(store, queue):
    """LOAD never goes down, whoever deletes or changes the last message."""
    queue.publish("m", key="k")
    shard = queue.shard_of("k")
    (state,) = queue.pointers.states([shard])
    key = queue.pointers.key(Slot(shard, state.loaded))
    assert store.delete(key)
    assert queue.pointers.states([shard])[0].loaded == state.loaded
    queue.publish("n", key="k")
    assert store.get(key) is None
    assert queue.pointers.states([shard])[0].loaded == state.loaded + 1


def test_a_load_that_somebody_has_lowered_stays_lowered(store, queue):
    queue.publish("m", key="k")
    key = queue.pointers.pointers_key(queue.shard_of("k"))
    store.operate(key, Put(LOAD, 1))
    assert store.get(key).bins[LOAD] == 1


def test_an_expired_message_that_is_swept_leaves_its_slot_counted(store, queue, monkeypatch):
    queue.publish("m", key="k")
    shard = queue.shard_of("k")
    (state,) = queue.pointers.states([shard])
    now = store.seams.wall()
    monkeypatch.setattr("latchwork.seams.Seams.wall", lambda _: now + queue.pointers.ttl + 1)
    for _ in range(2):
        store.operate(queue.pointers.pointers_key(1 - shard), Put("any", 1))
    connection = sqlite3.connect(store.path)
    assert connection.execute("SELECT count(*) FROM messages").fetchone() == (0,)
    connection.close()
    assert queue.pointers.states([shard])[0].loaded == state.loaded


def test_a_publish_that_may_have_been_committed_is_unknown(store, failing, tmp_path):
    store = SQLiteStore(tmp_path / "other.db", synchronous="off")
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
    queue.publish("first")
    queue.publish("second")
    failing.fail("INSERT", IOERR)
    with pytest.raises(OutcomeUnknown):
        queue.publish("m")
    queue.publish("n")
    assert payloads(queue) == ["first", "n", "second"]


def test_a_receive_whose_commit_is_in_doubt_is_unknown_and_hides_no_shard(failing, tmp_path):
    store = SQLiteStore(tmp_path / "other.db", synchronous="off")
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
    queue.publish_many(["a", "b"])
    failing.fail("COMMIT", IOERR)
    with pytest.raises(OutcomeUnknown):
        queue.receive(2)
    assert payloads(queue) == ["a", "b"]


def test_an_acknowledgement_that_may_have_been_made_is_made_again_record_by_record(failing, tmp_path):
    store = SQLiteStore(tmp_path / "other.db", synchronous="off")
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
    queue.publish("a")
    queue.publish("b")
    one, two = queue.receive(2)
    failing.fail("DELETE", IOERR)
    one.ack()
    assert [record.bins["data"] for record in store.scan("c_data_set")] == ['"b"']
    two.ack()


def test_a_step_that_meets_a_damaged_page_is_made_record_by_record_and_once(failing, tmp_path):
    store = SQLiteStore(tmp_path / "other.db", synchronous="off")
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
    queue.publish("a")
    queue.publish("b")
    failing.fail("INSERT")
    queue.publish("m")
    assert failing.times == 0
    assert waiting(queue) == 3, "the first reservation was undone"
    failing.fail("UPDATE")
    assert payloads(queue) == ["a", "b", "m"]


def test_a_step_that_waits_too_long_for_other_writers_has_changed_nothing(failing, tmp_path):
    store = SQLiteStore(tmp_path / "other.db", synchronous="off", busy_timeout=0)
    store.policy = RetryPolicy(attempts=1)
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
    queue.publish("a")
    queue.publish("b")
    failing.fail("INSERT", BUSY, times=10)
    with pytest.raises(Unavailable):
        queue.publish("m")
    failing.times = 0
    assert waiting(queue) == 2


@pytest.mark.parametrize("statement", ["UPDATE records", "UPDATE messages"])
def test_a_consumer_that_is_killed_within_its_step_has_claimed_nothing(store, queue, monkeypatch, statement):
    queue.publish_many(["a", "b"])
    child = os.fork()
    if not child:

        def die(connection, *given):
            os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(sqlite_rows if "records" in statement else sqlite_steps, _WRITER[statement], die)
        try:
            queue.receive(2)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert waiting(queue) == 2
    assert payloads(queue) == ["a", "b"]


_WRITER = {"UPDATE records": "writing", "UPDATE messages": "_stamp"}


def test_a_publisher_that_is_killed_among_its_messages_has_published_none(store, queue, monkeypatch):
    child = os.fork()
    if not child:
        fresh, times = sqlite_steps._fresh, iter(range(100))
        monkeypatch.setattr(
            sqlite_steps, "_fresh",
            lambda *args, **named: (next(times) == 5 and os.kill(os.getpid(), signal.SIGKILL)) or fresh(*args, **named),
        )  # fmt: skip
        try:
            queue.publish_many(range(20))
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert waiting(queue) == 0
    assert payloads(queue) == []


@pytest.mark.parametrize("after", [1, 7, 40])
def test_what_was_acknowledged_survives_the_death_of_its_process_and_nothing_is_there_twice(store, queue, after):
    """It publishes, receives and acknowledges without an end, and says each thing once it is done."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            for n in range(10**6):
                os.write(writing, f"p {queue.publish(n)}\n".encode())
                if n % 3 == 2:
                    (one,) = queue.receive()
                    os.write(writing, f"t {one.message_id}\n".encode())
                    one.ack()
                    os.write(writing, f"a {one.message_id}\n".encode())
        finally:
            os._exit(2)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        lines = [told.readline() for _ in range(after)]
        os.kill(child, signal.SIGKILL)
        lines += told.readlines()
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    said = [line.decode().split() for line in lines]
    published = {id for what, id in said if what == "p"}
    taken, acknowledged = ({id for what, id in said if what == one} for one in "ta")
    records = [record.bins for record in store.scan("c_data_set")]
    there = [bins["msgId"] for bins in records]
    in_hand = {bins["msgId"] for bins in records if "delivery" in bins}
    assert len(there) == len({*there})
    assert len(in_hand - taken) <= 1, "at most the one that it was about to say it has received"
    assert {*there} >= published - taken
    assert not {*there} & acknowledged
    assert len({*there} - published) <= 1, "at most the one that it was about to say"
    assert store.damage() == []
    waits = {one.message_id for one in queue.receive(1000)}
    assert waits >= published - taken - in_hand, "each slot that holds a message is counted"


def test_publishers_and_consumers_of_several_threads_and_stores_lose_and_double_nothing(store, queue, tmp_path):
    """Each store guesses the next pointer, and is wrong as a rule."""
    stores = [SQLiteStore(store.path, synchronous="off") for _ in range(3)]
    queues = [QueueRegistry(one, "c").get("q") for one in stores]
    got, lock = [], threading.Lock()

    def work(number):
        mine = queues[number % 3]
        for n in range(40):
            mine.publish(number * 1000 + n)
            taken = mine.receive(2)
            mine.ack_many(taken)
            with lock:
                got.extend(one.payload for one in taken)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while more := queue.receive(100):
        queue.ack_many(more)
        got += [one.payload for one in more]
    assert sorted(got) == sorted(number * 1000 + n for number in range(6) for n in range(40))
    assert store.scan("c_data_set") == []
    for one in stores:
        one.close()


def test_nothing_that_is_known_of_a_file_is_relied_on_in_another_that_replaced_it(store, queue, tmp_path):
    """As after a restore: there the same record of a shard may count the messages of a lane of another number."""
    other = SQLiteStore(tmp_path / "other.db", synchronous="off")
    for name in ("another", "q"):
        made = QueueRegistry(other, "c").create(QueueConfig(name, shards=2))
        made.publish_many(["x", "y"], keys=["k", "l"])
        made.ack_many(made.receive(10))
    other.close()
    (one,) = [queue.publish("m", key="k")] and queue.receive(1)
    queue.publish("of the file before", key="k")
    for end in ("", "-wal", "-shm"):
        (tmp_path / f"store.db{end}").unlink(missing_ok=True)
    (tmp_path / "other.db").rename(store.path)
    queue.publish("n", key="k")
    with pytest.raises(LeaseLost):
        one.ack()
    assert payloads(queue) == ["n"]
    assert store.damage() == []


def test_a_slot_that_was_given_up_gets_no_message(store, queue):
    loaded = [state.loaded for state in queue.pointers.states()]
    queue.pointers.write_tombstones([Slot(shard, at + 1) for shard, at in enumerate(loaded)])
    queue.publish_many(["a", "b"])
    queue.publish("c")
    assert payloads(queue) == ["a", "b", "c"]


def test_a_message_that_was_given_back_is_handed_out_once(store, queue):
    queue.publish("m")
    (one,) = queue.receive()
    queue.interrupting([one])
    queue.give_back([one])
    assert payloads(queue) == ["m"]
    assert payloads(queue) == []


def test_a_group_that_has_joined_gets_the_next_message(store, queue):
    queue.publish("before")
    group = queue.group("audit")
    queue.ack_many(queue.receive(10))
    queue.publish("m")
    queue.ack_many(queue.receive(10))
    assert payloads(group) == ["m"]


def test_a_group_that_has_adopted_a_message_keeps_it_when_its_own_consumer_is_done(store, queue):
    queue.publish("m")
    group = queue.group("audit", start="oldest")
    taken = queue.receive(10)
    (one,) = group.receive(10)
    queue.ack_many(taken)
    one.ack()
    assert store.scan("c_data_set") == []


def test_a_message_that_another_delivery_holds_stays(store, queue):
    queue.publish("m", key="k")
    (one,) = queue.receive()
    store.operate(queue.pointers.key(one.held.slot), Put("delivery", "another"))
    with pytest.raises(LeaseLost):
        one.ack()
    assert len(store.scan("c_data_set")) == 1


def test_a_damaged_message_is_corrupt_and_its_neighbours_are_received(store, queue):
    for payload in "abc":
        queue.publish(payload, key="k")
    shard = queue.shard_of("k")
    (state,) = queue.pointers.states([shard])
    damage_row(store, queue.pointers.key(Slot(shard, state.loaded - 1)))
    assert payloads(queue) == ["a", "c"]
    with pytest.raises(Corrupt):
        store.get(queue.pointers.key(Slot(shard, state.loaded - 1)))


@pytest.mark.parametrize(("bin", "value"), [(FIRE, 10), (LOAD, "x"), (FIRE, "x"), (STREAM, 7), (LOAD, 2**62)])
def test_a_damaged_shard_is_left_alone_and_the_other_is_used(store, queue, bin, value):
    shard = queue.shard_of("k")
    store.operate(queue.pointers.pointers_key(shard), Put(bin, value))
    before = queue.pointers.states()[1 - shard].loaded
    for n in range(4):
        queue.publish(n)
    assert queue.pointers.states()[1 - shard].loaded == before + 4


def test_a_stream_keeps_its_shard_from_being_received(store, queue):
    queue.publish("m", key="k")
    store.operate(queue.pointers.pointers_key(queue.shard_of("k")), Put(STREAM, "s"))
    queue.active.loaded([0, 1])
    with pytest.raises(LatchworkError):
        queue.receive(timeout=0)
    assert waiting(queue) == 1


def test_an_attempt_that_cannot_be_counted_is_the_first(store, queue):
    queue.publish("m", key="k")
    (state,) = queue.pointers.states([queue.shard_of("k")])
    store.operate(queue.pointers.key(Slot(queue.shard_of("k"), state.loaded)), Put("attempts", "x"))
    (one,) = queue.receive()
    assert (one.payload, one.attempts) == ("m", 1)


# ---- the promises can fail


def append_whatever_the_record_says(patch):
    patch.setattr(sqlite_steps, "_APPEND", sqlite_steps._APPEND.replace("= ?18", "IS NOT NULL OR ?18 IS NULL"))
    patch.setattr(sqlite_steps, "_takes_messages", lambda _: True)


def delete_uncounted(patch):
    patch.setattr(sqlite_rows, "_count", lambda _: None)


def delete_whoever_waits(patch):
    patch.setattr(sqlite_steps, "_REMOVE", sqlite_steps._REMOVE.replace("AND grouped IS NULL", ""))


def delete_whoever_holds_it(patch):
    patch.setattr(sqlite_steps, "_REMOVE", sqlite_steps._REMOVE.replace("delivery = ?", "? IS NOT NULL"))


@pytest.mark.parametrize(
    ("mutant", "promise"),
    [
        (append_whatever_the_record_says, test_a_group_that_has_joined_gets_the_next_message),
        (delete_uncounted, test_a_slot_that_no_record_counts_yet_is_counted_before_its_message_goes),
        (delete_whoever_waits, test_a_group_that_has_adopted_a_message_keeps_it_when_its_own_consumer_is_done),
        (delete_whoever_holds_it, test_a_message_that_another_delivery_holds_stays),
    ],
)
def test_each_broken_rule_is_noticed(store, queue, monkeypatch, mutant, promise):
    mutant(monkeypatch)
    assert breaks(promise, store, queue)
