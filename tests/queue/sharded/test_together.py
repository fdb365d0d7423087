"""A queue on SQLite: publishing, receiving and acknowledging are one transaction each, all or nothing.

What has nothing but what nearly all have is one step (`test_at_once.py`); these are about all else, which goes record
by record.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys

import pytest

from latchwork.errors import LatchworkError, OutcomeUnknown
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded import subqueue, transfer
from latchwork.queue.sharded.active import ActiveShards
from latchwork.queue.sharded.groups.members import Members
from latchwork.queue.sharded.shards import Shards
from latchwork.retry import RetryPolicy
from latchwork.store import RecordStore, SQLiteStore
from latchwork.store.sqlite import file as sqlite_file
from latchwork.store.sqlite import pool as sqlite_pool
from tests.store.sqlite.test_sqlite import CORRUPT, IOERR
from tests.support.broken import breaks

ONE_TRY = RetryPolicy(attempts=1)


@pytest.fixture
def store(tmp_path):
    store = SQLiteStore(tmp_path / "store.db", synchronous="off")
    store.policy, store.steps = ONE_TRY, None
    yield store
    store.close()


@pytest.fixture
def queue(store):
    return QueueRegistry(store, "c").create(QueueConfig("q", shards=1))


class Failing:
    """Connections on which statements fail as told: the first so many that begin so, once `statement` is set."""

    def __init__(self, monkeypatch) -> None:
        self.statement, self.failure, self.times = "none", CORRUPT, 1
        opened = sqlite_file.open_file
        monkeypatch.setattr(sqlite_pool, "open_file", lambda *args: _Connection(opened(*args), self))

    def fail(self, statement: str, failure: Exception = CORRUPT, times: int = 1) -> None:
        self.statement, self.failure, self.times = statement, failure, times


class _Connection:
    def __init__(self, connection: sqlite3.Connection, how: Failing) -> None:
        self._connection, self._how = connection, how

    def _run(self, call, statement, *parameters):
        if statement.startswith(self._how.statement) and self._how.times:
            self._how.times -= 1
            raise self._how.failure
        return call(statement, *parameters)

    def execute(self, statement, *parameters):
        return self._run(self._connection.execute, statement, *parameters)

    def executemany(self, statement, *parameters):
        return self._run(self._connection.executemany, statement, *parameters)

    def __getattr__(self, name):
        return getattr(self._connection, name)


@pytest.fixture
def failing(monkeypatch):
    return Failing(monkeypatch)


def commits(store, work):
    """How many transactions that was."""
    seen: list[str] = []
    for connection in store._pool._idle:
        connection.set_trace_callback(seen.append)
    work()
    for connection in store._pool._idle:
        connection.set_trace_callback(None)
    return sum(statement == "COMMIT" for statement in seen)


def test_each_verb_is_one_transaction(store, queue):
    queue.publish(0)
    queue.receive()[0].ack()
    got = []
    assert commits(store, lambda: queue.publish(1)) == 1
    assert commits(store, lambda: queue.publish_many(range(2, 20))) == 1
    assert commits(store, lambda: got.extend(queue.receive(100))) == 1
    assert commits(store, lambda: queue.ack_many(got)) == 1
    assert [one.payload for one in got] == [*range(1, 20)]


def test_a_group_receives_in_one_transaction_as_no_step_does_that(tmp_path):
    """A consumer that dies between the claim and the stamp would leave its messages to the sweep."""
    store = SQLiteStore(tmp_path / "steps.db", synchronous="off")
    queue = QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
    group, got = queue.group("g"), []
    queue.publish(-1)
    group.receive()[0].ack()
    queue.publish_many(range(3))
    assert commits(store, lambda: got.extend(group.receive(3))) == 1
    assert [one.payload for one in got] == [0, 1, 2]
    store.close()


def test_a_claim_in_order_is_a_transaction_of_its_own(store, queue):
    """Its token has to be known if its outcome is not."""
    queue.publish(-1)
    queue.receive()[0].ack()
    queue.publish_many(range(3))
    got = []
    assert commits(store, lambda: got.extend(queue.receive(3, shards=[0]))) == 2
    assert [one.payload for one in got] == [0, 1, 2]


def test_a_publish_that_was_undone_is_made_call_by_call_and_once(store, failing, queue):
    failing.fail("INSERT")
    queue.publish("m")
    assert failing.times == 0
    assert [one.payload for one in queue.receive(10)] == ["m"]
    (state,) = queue.pointers.states()
    assert (state.loaded, state.fired) == (1, 1), "the first reservation was undone"


def test_a_publish_whose_commit_is_in_doubt_is_unknown(store, failing, queue):
    failing.fail("COMMIT", IOERR)
    with pytest.raises(OutcomeUnknown):
        queue.publish("m")
    queue.publish("n")
    assert [one.payload for one in queue.receive(10)] == ["n"]


def test_a_group_that_joins_after_a_publish_was_undone_gets_the_next_message(store, failing, queue):
    """What the reservation told is forgotten: LOAD is lower than it said."""
    queue.publish("before")
    queue.receive()[0].ack()
    failing.fail("COMMIT", IOERR)
    with pytest.raises(OutcomeUnknown):
        queue.publish_many(range(50))
    group = queue.group("audit")
    queue.publish("m")
    queue.receive()[0].ack()
    assert [one.payload for one in group.receive(10)] == ["m"]


def test_an_interrupt_as_a_publish_begins_leaves_the_thread_outside_its_transaction(store, queue):
    """Else what a handler writes after it is acknowledged, and never committed."""

    def interrupt(frame, event, _):
        entered = event == "return" and frame.f_code.co_name == "__enter__" and "contextlib" in frame.f_code.co_filename
        if entered and store._pool.mine.together is not None:
            sys.settrace(None)
            raise KeyboardInterrupt
        return interrupt

    before = sys.gettrace()
    try:
        sys.settrace(interrupt)
        queue.publish("m")
    except KeyboardInterrupt:
        assert store._pool.mine.together is None
    finally:
        sys.settrace(before)


def test_messages_whose_claim_was_undone_are_received_at_once(store, failing, queue):
    queue.publish_many(["a", "b"])
    failing.fail("COMMIT", IOERR)
    with pytest.raises(OutcomeUnknown):
        queue.receive(2)
    (state,) = queue.pointers.states()
    assert state.fired == 0
    assert queue.active.candidates() == [0], "the shard is not believed to be empty"
    assert [one.payload for one in queue.receive(2)] == ["a", "b"]


def test_a_receive_that_was_undone_over_a_damaged_page_is_made_call_by_call(store, failing, queue):
    queue.publish_many(["a", "b"])
    calls = []
    failing.fail("UPDATE", times=0)
    stamp = Shards.stamp

    def damaged(self, *args, **rest):
        calls.append(len(args[0]))
        failing.times = len(calls) == 1
        return stamp(self, *args, **rest)

    try:
        Shards.stamp = damaged
        assert [one.payload for one in queue.receive(2)] == ["a", "b"]
    finally:
        Shards.stamp = stamp
    assert calls == [2, 2]
    assert [one.payload for one in queue.receive(2)] == []


def test_a_publisher_that_is_killed_between_its_calls_leaves_no_reserved_slot(store, queue, monkeypatch):
    queue.publish("before")
    child = os.fork()
    if not child:
        monkeypatch.setattr(Shards, "write", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        try:
            queue.publish("lost")
        except LatchworkError:
            os._exit(1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    (state,) = queue.pointers.states()
    assert state.loaded == 1
    assert [one.payload for one in queue.receive(10)] == ["before"]


# ---- the promises can fail


def keep_what_a_reservation_told(patch):
    patch.setattr(Members, "forget", lambda _: None)


def believe_a_claim_that_was_undone(patch):
    patch.setattr(ActiveShards, "look_soon", lambda _: None)


def give_up_with_the_transaction(patch):
    def once(together, calls, undone=lambda: None):
        try:
            with together:
                return calls()
        except BaseException:
            undone()
            raise

    patch.setattr(transfer, "as_one", once)
    patch.setattr(subqueue, "as_one", once)


def make_each_call_alone(patch):
    patch.setattr(SQLiteStore, "together", RecordStore.together)


@pytest.mark.parametrize(
    ("mutant", "promise"),
    [
        (keep_what_a_reservation_told, test_a_group_that_joins_after_a_publish_was_undone_gets_the_next_message),
        (believe_a_claim_that_was_undone, test_messages_whose_claim_was_undone_are_received_at_once),
        (give_up_with_the_transaction, test_a_publish_that_was_undone_is_made_call_by_call_and_once),
        (make_each_call_alone, lambda store, _, queue: test_each_verb_is_one_transaction(store, queue)),
    ],
)
def test_each_broken_rule_is_noticed(store, failing, queue, monkeypatch, mutant, promise):  # noqa: PLR0917 - fixtures
    mutant(monkeypatch)
    assert breaks(promise, store, failing, queue)
