"""Calls together: one transaction on SQLite, all or nothing; and the writes of several threads in one commit."""

# ruff: noqa: PT012 - the block is what is tested

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import product

import pytest

from latchwork.errors import (
    AlreadyExists,
    Corrupt,
    LatchworkError,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    Refused,
    StorageFailed,
    Unavailable,
)
from latchwork.observe import Telemetry, observe
from latchwork.retry import RetryPolicy
from latchwork.store import Add, Bin, Exists, Key, MemoryStore, Put, Read, Removal, SQLiteStore, Update
from latchwork.store.contract.records import raises
from latchwork.store.sqlite import file as sqlite_file
from latchwork.store.sqlite import pool as sqlite_pool
from latchwork.store.sqlite import transaction
from latchwork.testing.stores import CountingStore
from tests.store.sqlite.test_sqlite import CORRUPT, FULL, IOERR, Failing, forked
from tests.support.broken import breaks

KEY, OTHER = Key("s", "k"), Key("s", "other")
ONE_TRY = RetryPolicy(attempts=1)


@pytest.fixture
def store(tmp_path):
    store = SQLiteStore(tmp_path / "store.db", synchronous="full", busy_timeout=60)
    store.policy = ONE_TRY
    store.operate(KEY, Put("n", 0), exists=Exists.CREATE)
    yield store
    store.close()


def add(store, key=KEY):
    return store.operate(key, Add("n", 1), Read("n"), exists=Exists.ANY)[0]


def bins(store, *keys):
    """What another process would see."""
    return [record and record.bins for record in SQLiteStore(store.path).get_many(keys or (KEY, OTHER))]


def traced(store):
    """The statements of the store's one connection, from now on, each by its first word."""
    (connection,) = store._pool._idle
    seen: list[str] = []
    connection.set_trace_callback(lambda statement: seen.append(statement.split()[0]))
    return seen


# ---- one transaction


def test_calls_made_together_are_one_transaction(store):
    seen = traced(store)
    with store.together():
        assert add(store) == 1
        assert store.operate_many([Update(OTHER, (Put("n", 5),), exists=Exists.CREATE)]) == [()]
        assert store.get(OTHER).bins == {"n": 5}, "it sees what it has written"
        assert bins(store) == [{"n": 0}, None], "and nobody else does"
        assert store.delete(KEY)
    assert (seen.count("BEGIN"), seen.count("COMMIT")) == (1, 1)
    assert bins(store) == [None, {"n": 5}]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_that_leaves_the_block_after_its_first_call_leaves_nothing(store, error):
    with pytest.raises(error), store.together():
        add(store)
        raise error
    assert bins(store) == [{"n": 0}, None]
    assert add(store) == 1
    assert len(store._pool._idle) == 1


def test_answers_stay_apart_and_end_nothing(store):
    with store.together():
        add(store)
        raises(Refused, store.operate, KEY, Put("n", 9), when=Bin("n").eq(7))
        raises(NotFound, store.operate, OTHER, Put("n", 9))
        raises(AlreadyExists, store.operate, KEY, Put("n", 9), exists=Exists.CREATE)
        rows = store.operate_many([Update(KEY, (Add("n", 1),), when=Bin("n").eq(7)), Update(OTHER, (Add("n", 1),))])
        assert [type(row) for row in rows] == [Refused, NotFound]
        assert store.delete_many([Removal(OTHER)]) == [False]
        add(store)
    assert bins(store) == [{"n": 2}, None]


def test_a_block_within_another_is_a_part_of_it(store):
    with store.together():
        with store.together():
            add(store)
        assert bins(store)[0] == {"n": 0}
        add(store, OTHER)
    assert bins(store) == [{"n": 1}, {"n": 1}]


def test_an_error_of_an_inner_block_undoes_the_outer_one_also_where_it_was_caught(store):
    with pytest.raises(ValueError, match="inner"), store.together():
        add(store)
        with pytest.raises(ValueError, match="inner"), store.together():
            raise ValueError("inner")
    assert bins(store) == [{"n": 0}, None]


def test_a_block_that_only_reads_keeps_nobody_from_writing(store):
    with store.together(), ThreadPoolExecutor(1) as another:
        assert store.get(KEY).bins == {"n": 0}
        assert another.submit(add, store).result() == 1
        assert add(store) == 2


def test_another_thread_is_not_in_the_transaction_and_waits_for_its_end(store):
    with ThreadPoolExecutor(1) as another:
        with store.together():
            add(store)
            other = another.submit(add, store)
            while not store._pool._queue and not other.done():
                pass
            assert not other.done()
        assert other.result() == 2


def test_views_of_a_store_share_the_transaction(store):
    with store.together():
        add(store.with_policy(RetryPolicy(attempts=2)))
        assert bins(store)[0] == {"n": 0}
    with store.with_policy(ONE_TRY).together():
        add(store)
        assert bins(store)[0] == {"n": 1}


class Silent(Telemetry):
    def record(self, event, value, labels): ...

    def read(self, source): ...


@pytest.mark.parametrize("wrapped", [CountingStore, lambda store: observe(store, Silent()), lambda _: MemoryStore()])
def test_elsewhere_each_call_is_by_itself(store, wrapped):
    outer = wrapped(store)
    with pytest.raises(ValueError, match="after"), outer.together():
        add(outer, OTHER)
        raise ValueError("after")
    assert outer.get(OTHER).bins == {"n": 1}


# ---- what fails


@pytest.mark.parametrize(
    ("statement", "failure", "kind"),
    [("DELETE", FULL, Unavailable), ("DELETE", IOERR, StorageFailed), ("DELETE", CORRUPT, Corrupt)],
)
def test_a_call_that_the_file_refuses_undoes_the_calls_before_it_even_where_it_is_caught(
    store, monkeypatch, statement, failure, kind
):
    opened = sqlite_file.open_file
    monkeypatch.setattr(sqlite_pool, "open_file", lambda *args: Failing(opened(*args), statement, failure))
    store.close()
    with pytest.raises(kind) as told, store.together():
        add(store)
        raises(kind, store.delete, KEY)
        assert raises(StorageFailed, add, store, OTHER).details["rolled_back"]
        raises(StorageFailed, store.get, KEY)
    assert told.value.details["rolled_back"]
    assert bins(store) == [{"n": 0}, None]
    assert add(store) == 1


@pytest.mark.parametrize(("failure", "kind"), [(FULL, Unavailable), (IOERR, OutcomeUnknown)])
def test_a_commit_that_fails_is_unknown_as_a_whole_or_has_written_nothing(store, monkeypatch, failure, kind):
    opened = sqlite_file.open_file
    monkeypatch.setattr(sqlite_pool, "open_file", lambda *args: Failing(opened(*args), "COMMIT", failure))
    store.close()
    with pytest.raises(kind) as told, store.together():
        add(store)
        add(store, OTHER)
    assert told.value.details.get("rolled_back", False) == (kind is Unavailable)
    monkeypatch.undo()
    assert bins(store) in ([{"n": 0}, None], [{"n": 1}, {"n": 1}])


def test_where_the_transaction_cannot_begin_the_call_may_be_made_again(store):
    store._pool.busy_timeout = 0
    other = sqlite3.connect(store.path, isolation_level=None)
    with store.together():
        other.execute("BEGIN IMMEDIATE")
        assert "rolled_back" not in raises(Unavailable, add, store).details
        other.execute("ROLLBACK")
        assert add(store) == 1
    assert bins(store)[0] == {"n": 1}


def test_an_interrupt_within_a_call_undoes_all_and_blocks_nobody(store, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), store.together():
        add(store)
        monkeypatch.setattr("latchwork.store.sqlite.store.local.apply", interrupt)
        add(store)
    monkeypatch.undo()
    with ThreadPoolExecutor(1) as another:
        assert another.submit(add, store).result() == 1


_DYING = """
import os, signal, sys
from latchwork.store import Add, Exists, Key, Put, SQLiteStore
store = SQLiteStore(sys.argv[1])
with store.together():
    store.operate(Key("s", "k"), Add("n", 1))
    store.operate(Key("s", "other"), Put("n", 1), exists=Exists.CREATE)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_within_the_block_leaves_nothing(store):
    store.close()
    died = subprocess.run([sys.executable, "-c", _DYING, store.path], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    assert bins(store) == [{"n": 0}, None]
    assert add(store) == 1


# ---- one commit for the writes of several threads


def at_once(store, *writes):
    """Let threads wait for their turn until all of them do; what each came to: its result, or its error."""
    outcomes = []

    def run(place, write):
        try:
            outcomes.append((place, write()))
        except BaseException as failure:
            outcomes.append((place, failure))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction, "HAND_OVER", 30)  # however slow the machine is, nobody commits for itself
        with store._pool._writing:
            threads = []
            for place, write in enumerate(writes):
                threads.append(threading.Thread(target=run, args=(place, write)))
                threads[-1].start()
                while len(store._pool._queue) <= place and threads[-1].is_alive():
                    pass
        for thread in threads:
            thread.join()
    return [outcome for _, outcome in sorted(outcomes, key=lambda one: one[0])]


def test_threads_that_wait_for_the_disk_share_a_commit(store):
    seen = traced(store)
    assert sorted(at_once(store, *[lambda: add(store)] * 6)) == [1, 2, 3, 4, 5, 6]
    assert seen.count("COMMIT") == 1
    assert bins(store)[0] == {"n": 6}


def test_threads_do_not_wait_for_one_another_where_a_commit_is_quick(tmp_path):
    store = SQLiteStore(tmp_path / "quick.db", synchronous="normal")
    add(store)
    seen = traced(store)
    assert sorted(at_once(store, *[lambda: add(store)] * 6)) == [2, 3, 4, 5, 6, 7]
    assert seen.count("COMMIT") == 6
    store.close()


def test_what_threads_do_together_shares_a_commit_too(store):
    def both():
        with store.together():
            return add(store), add(store, OTHER)

    seen = traced(store)
    assert sorted(at_once(store, both, both, both)) == [(1, 1), (2, 2), (3, 3)]
    assert seen.count("COMMIT") == 1
    assert bins(store) == [{"n": 3}, {"n": 3}]


def test_the_first_of_a_group_that_fails_takes_back_its_own_part_only(store):
    def failing():
        with store.together():
            add(store)
            add(store, OTHER)
            raise ValueError("mine")

    first, second, third = at_once(store, failing, lambda: add(store), lambda: add(store))
    assert isinstance(first, ValueError)
    assert sorted([second, third]) == [1, 2]
    assert bins(store) == [{"n": 2}, None]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_whoever_of_a_group_fails_takes_back_its_own_part_only(store, place):
    def failing():
        with store.together():
            add(store, OTHER)
            raise ValueError("mine")

    writes = [lambda: add(store)] * 3
    writes[place] = failing
    outcomes = at_once(store, *writes)
    assert [type(outcome) for outcome in outcomes].count(ValueError) == 1
    assert bins(store) == [{"n": 2}, None]


def test_nobody_is_answered_before_the_commit(store, monkeypatch):
    """A thread that left its transaction open for others waits for the one commit of all."""
    answered = []
    real = transaction.finish

    def finish(pool, group):
        answered.append(list(done))
        real(pool, group)

    done = []
    monkeypatch.setattr(transaction, "finish", finish)
    at_once(store, *[lambda: done.append(add(store))] * 4)
    assert answered == [[]]
    assert sorted(done) == [1, 2, 3, 4]


class EndsAll:
    """A connection on which SQLite itself undoes the transaction when a record is deleted, as where a disk is full."""

    def __init__(self, connection):
        self._connection = connection

    def execute(self, statement, *parameters):
        if statement.startswith("DELETE"):
            self._connection.execute("ROLLBACK")
            raise FULL
        return self._connection.execute(statement, *parameters)

    def __getattr__(self, name):
        return getattr(self._connection, name)


def test_those_whose_writes_went_with_anothers_failure_write_again(store, monkeypatch):
    opened = sqlite_file.open_file
    monkeypatch.setattr(sqlite_pool, "open_file", lambda *args: EndsAll(opened(*args)))
    store.close()

    def together():
        with store.together():
            return add(store, OTHER)

    one, two, third = at_once(store, lambda: add(store), together, lambda: store.delete(KEY))
    assert one == 1
    assert two == 1 or two.details["rolled_back"]
    assert isinstance(third, Unavailable)
    assert bins(store) == [{"n": 1}, {"n": 1} if two == 1 else None]


@pytest.mark.parametrize(("failure", "kind"), [(FULL, Unavailable), (IOERR, OutcomeUnknown)])
def test_a_commit_of_a_group_that_fails_says_so_to_each(store, monkeypatch, failure, kind):
    opened = sqlite_file.open_file
    monkeypatch.setattr(sqlite_pool, "open_file", lambda *args: Failing(opened(*args), "COMMIT", failure))
    store.close()
    outcomes = at_once(store, *[lambda: add(store)] * 3)
    assert [type(outcome) for outcome in outcomes] == [kind] * 3
    assert len({id(outcome) for outcome in outcomes}) == 3
    monkeypatch.undo()
    assert add(store) >= 1


def test_a_transaction_left_open_for_one_that_gives_up_is_committed_by_who_left_it(store):
    store._pool._queue.add(place := object())  # somebody who waits, and never takes the turn
    assert add(store) == 1
    store._pool._queue.discard(place)
    assert bins(store)[0] == {"n": 1}
    assert store._pool.left_open is None
    assert len(store._pool._idle) == 1


def test_who_is_interrupted_while_it_waits_for_the_commit_leaves_nothing_open(store, monkeypatch):
    class Interrupting:
        def wait(self, timeout):
            raise KeyboardInterrupt

        def set(self): ...

    monkeypatch.setattr(transaction, "Over", Interrupting)
    store._pool._queue.add(place := object())
    with pytest.raises(KeyboardInterrupt):
        add(store)
    store._pool._queue.discard(place)
    assert store._pool.left_open is None
    with ThreadPoolExecutor(1) as another:
        assert another.submit(add, store).result() == 2


def test_a_block_whose_transaction_another_thread_undid_is_said_to_be_undone(store, monkeypatch):
    def undone(turn):
        turn.undo(sound=True)
        raise transaction.Undone

    with monkeypatch.context() as patch:
        patch.setattr(transaction.Turn, "commit", undone)
        with pytest.raises(Unavailable, match="went with it"), store.together():
            add(store)
            add(store, OTHER)
    assert bins(store)[0] == {"n": 0}
    assert add(store) == 1


def test_who_left_a_transaction_open_waits_on_while_another_has_the_turn_or_the_transaction(store):
    with left_open(store) as outcome:
        pool, turn = store._pool, transaction.Turn(store._pool)
        group, pool.left_open = pool.left_open, None  # another thread goes on with it
        turn._finish_if_left(group)
        assert group.connection is not None
        pool.left_open = group
        with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as another:
            patch.setattr(transaction, "HAND_OVER", 0.01)
            pool.take_turn()
            another.submit(turn._finish_if_left, group).result(20)
            assert group.connection is not None
            pool.end_turn()
        turn._finish_if_left(group)
        assert group.connection is None
    assert outcome == [1]


@contextmanager
def left_open(store, write=add):
    """While a thread has written and left its transaction open for another, and waits for the commit: its outcome."""
    pool, place, left, outcome = store._pool, object(), threading.Event(), []
    real = type(pool).end_turn

    def end_turn(self):
        real(self)
        if self.left_open is not None:
            left.set()

    def run():
        try:
            outcome.append(write(store))
        except LatchworkError as failure:
            outcome.append(failure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(pool), "end_turn", end_turn)
        patch.setattr(transaction, "HAND_OVER", 30)
        pool._queue.add(place)
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert left.wait(60)
        pool._queue.discard(place)
        yield outcome
        thread.join(20)
        assert outcome, "it waits for ever"


def test_a_single_write_joins_a_transaction_that_is_left_open_when_it_has_just_looked_for_one(store, monkeypatch):
    add(store)
    pool = store._pool
    pool.busy_timeout = 0.5
    with ExitStack() as others:

        def owned():
            monkeypatch.undo()
            others.enter_context(left_open(store))
            return False

        monkeypatch.setattr(pool, "_owned", owned)
        assert pool.write_alone("UPDATE records SET updated = updated WHERE id = ?", (1,))


def test_a_fork_commits_what_was_left_open(store):
    with left_open(store):
        child, reading = forked(lambda: b"%d" % add(store))
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"2"
    assert add(store) == 3


def test_one_that_joins_and_fails_takes_back_its_own_part_and_the_other_is_committed(store):
    with left_open(store):
        with pytest.raises(ValueError, match="mine"), store.together():
            add(store, OTHER)
            raise ValueError("mine")
        assert bins(store) == [{"n": 1}, None]


def create(store):
    return store.operate(OTHER, Put("n", 7), Read("n"), exists=Exists.CREATE)[0]


class Once:
    """Connections, one of whose statements fails once: before it is made, or after."""

    def __init__(self, monkeypatch, store, statement, failure, *, after=False):
        self.statement, self.failure, self.after, self.done = statement, failure, after, False
        opened = sqlite_file.open_file
        monkeypatch.setattr(sqlite_pool, "open_file", lambda *args: _Once(opened(*args), self))
        store.close()


class _Once:
    def __init__(self, connection, how):
        self._connection, self._how = connection, how

    def execute(self, statement, *parameters):
        how = self._how
        if not statement.startswith(how.statement) or how.done:
            return self._connection.execute(statement, *parameters)
        how.done = True
        if how.after:
            self._connection.execute(statement, *parameters)
        raise how.failure

    def __getattr__(self, name):
        return getattr(self._connection, name)


def test_an_answer_to_what_another_thread_had_not_committed_is_not_given(store, monkeypatch):
    with left_open(store, create) as first:
        store._pool.left_open.connection = _Once(
            store._pool.left_open.connection, Once(monkeypatch, store, "COMMIT", FULL)
        )
        assert create(store) == 7
    assert isinstance(first[0], Unavailable)
    assert bins(store) == [{"n": 0}, {"n": 7}]


def test_a_block_that_such_an_answer_leaves_is_undone_and_may_be_made_again(store, monkeypatch):
    with left_open(store, create):
        store._pool.left_open.connection = _Once(
            store._pool.left_open.connection, Once(monkeypatch, store, "COMMIT", FULL)
        )
        with pytest.raises(Unavailable) as told, store.together():
            create(store)
        assert told.value.details["rolled_back"]
    assert bins(store) == [{"n": 0}, None]


def test_an_answer_to_what_was_committed_with_it_is_given(store):
    with left_open(store, create) as first, pytest.raises(AlreadyExists):
        create(store)
    assert first == [7]


def test_a_file_that_could_not_be_opened_for_a_write_does_not_count_as_lent(tmp_path):
    store = SQLiteStore(tmp_path / "later" / "store.db")
    raises(Misconfigured, add, store)
    with store.together():
        raises(Misconfigured, add, store)
    assert not store._pool.lent, "a fork would wait for it, and its child refuse the store"
    (tmp_path / "later").mkdir()
    assert add(store) == 1
    store.close()


# ---- an interrupt at any call

CALLS = [
    (transaction.Turn, "begin"),
    (transaction.Turn, "undo"),
    (transaction.Turn, "commit"),
    (transaction.Turn, "leave"),
    (transaction.Turn, "_leave_open"),
    (transaction.Turn, "_finish_if_left"),
    (transaction, "finish"),
    (transaction, "end"),
    (sqlite_pool.SQLitePool, "take_turn"),
    (sqlite_pool.SQLitePool, "end_turn"),
    (sqlite_pool.SQLitePool, "lend"),
    (sqlite_pool.SQLitePool, "give_back"),
]
STATEMENTS = ["SAVEPOINT", "RELEASE", "ROLLBACK", "BEGIN", "COMMIT"]


def write_within(store):
    with store.together():
        return add(store, OTHER)


def refused(store):
    return raises(Refused, store.operate, KEY, Put("n", 9), when=Bin("n").eq(99))


def refused_within(store):
    with pytest.raises(Refused), store.together():
        store.operate(KEY, Put("n", 9), when=Bin("n").eq(99))


def write_for_others(store):
    """Leave the transaction open for one that gives up."""
    store._pool._queue.add(place := object())
    try:
        add(store, OTHER)
    finally:
        store._pool._queue.discard(place)


WRITES = [lambda store: add(store, OTHER), write_within, refused, refused_within, write_for_others]


def interrupt_once(patch, owner, name, *, after):
    """An interrupt as this thread begins the call, or as it comes back."""
    real, here, done = getattr(owner, name), threading.get_ident(), []

    def interrupted(*args, **rest):
        if done or threading.get_ident() != here:
            return real(*args, **rest)
        done.append(True)
        if after:
            real(*args, **rest)
        raise KeyboardInterrupt

    patch.setattr(owner, name, interrupted)


@contextmanager
def interrupted(call, store, *, after):
    """An interrupt of this thread at this call or statement, if it makes it."""
    with pytest.MonkeyPatch.context() as patch:
        if call not in STATEMENTS:
            interrupt_once(patch, *call, after=after)
            with suppress(KeyboardInterrupt):
                yield
            return
        group = store._pool.left_open
        how = Once(patch, store, call, KeyboardInterrupt(), after=after)
        if group is not None:
            group.connection = _Once(group.connection, how)
        with suppress(KeyboardInterrupt):
            yield
        how.done = True


def nothing_is_left_behind(store):
    pool = store._pool
    assert (pool.left_open, pool.lent, pool._queue, pool.mine.together) == (None, set(), set(), None)
    n = bins(store)[0]["n"]
    with ThreadPoolExecutor(1) as another:
        assert another.submit(add, store).result() == n + 1
    assert add(store) == n + 2


@pytest.mark.parametrize("call", [*CALLS, *STATEMENTS])
def test_an_interrupt_leaves_nothing_behind(store, call):
    """Also where it comes while an error is being dealt with: the turn goes on to the next."""
    store._pool.busy_timeout = 0.5
    for write, after in product(WRITES, [False, True]):
        with interrupted(call, store, after=after):
            write(store)
        nothing_is_left_behind(store)


@pytest.mark.parametrize("call", [*CALLS, *STATEMENTS])
def test_an_interrupt_of_one_that_joined_leaves_nobody_waiting_and_tells_no_lie(store, call):
    """Whoever is told that its write is done finds it done, once; a thread that waits for the commit gets an answer."""
    store._pool.busy_timeout = 0.5
    for write, after in product(WRITES[:-1], [False, True]):
        before = bins(store)[0]["n"]
        with left_open(store) as first:
            with interrupted(call, store, after=after):
                write(store)
            if store._pool.left_open is not None:  # it was interrupted before it had joined: the next one does
                add(store, Key("s", "next"))
        assert isinstance(first[0], OutcomeUnknown) or first == [before + 1] == [bins(store)[0]["n"]]
        nothing_is_left_behind(store)


# ---- the promises can fail


def commit_what_has_failed(patch):
    patch.setattr(transaction.Turn, "undo", lambda self, *, sound: self.commit() if self._group else None)


def begin_a_transaction_for_each_call(patch):
    patch.setattr(sqlite_pool.SQLitePool, "write", transaction.write)


def forget_that_a_call_was_refused(patch):
    """The block ends as if nothing had been, and what comes after is committed."""
    run = transaction.Together.run

    def forgetful(self, call):
        try:
            return run(self, call)
        except StorageFailed:
            raise
        except (Unavailable, Corrupt):
            self._failure = None
            raise

    patch.setattr(transaction.Together, "run", forgetful)


def answer_before_the_commit(patch):
    def handed_over(self, group):
        self._pool.left_open, self._taken = group, False
        self._pool.end_turn()

    patch.setattr(transaction.Turn, "_leave_open", handed_over)


def take_back_the_parts_of_all(patch):
    undo = transaction.Turn.undo

    def careless(self, *, sound):
        self._joined = False
        undo(self, sound=sound)

    patch.setattr(transaction.Turn, "undo", careless)


def take_back_no_part(patch):
    """A part that failed is committed with those of the others."""
    begin = transaction.Turn.begin

    class Kept(EndsAll):
        def execute(self, statement, *parameters):
            return self._connection.execute("SELECT 1" if statement.startswith("ROLLBACK TO") else statement)

    def kept(self):
        connection = begin(self)
        if self._joined:
            self._group.connection = Kept(connection)
        return connection

    patch.setattr(transaction.Turn, "begin", kept)


def trust_whoever_waits(patch):
    """What was left open is committed by the next one, or by nobody."""
    patch.setattr(transaction.Turn, "_finish_if_left", lambda *_: None)
    patch.setattr(sqlite_pool.SQLitePool, "give_back", lambda *_, **__: None)


def the_block_raises(store):
    test_an_error_that_leaves_the_block_after_its_first_call_leaves_nothing(store, ValueError)


def a_waiter_that_is_interrupted(store):
    store._pool.busy_timeout = 0.2
    with pytest.MonkeyPatch.context() as patch:
        test_who_is_interrupted_while_it_waits_for_the_commit_leaves_nothing_open(store, patch)


def a_caught_failure(store):
    with pytest.MonkeyPatch.context() as patch:
        test_a_call_that_the_file_refuses_undoes_the_calls_before_it_even_where_it_is_caught(
            store, patch, "DELETE", FULL, Unavailable
        )


def nobody_hears_early(store):
    with pytest.MonkeyPatch.context() as patch:
        test_nobody_is_answered_before_the_commit(store, patch)


@pytest.mark.parametrize(
    ("mutant", "promise"),
    [
        (commit_what_has_failed, the_block_raises),
        (begin_a_transaction_for_each_call, the_block_raises),
        (forget_that_a_call_was_refused, a_caught_failure),
        (answer_before_the_commit, nobody_hears_early),
        (take_back_the_parts_of_all, test_one_that_joins_and_fails_takes_back_its_own_part_and_the_other_is_committed),
        (take_back_no_part, test_one_that_joins_and_fails_takes_back_its_own_part_and_the_other_is_committed),
        (trust_whoever_waits, a_waiter_that_is_interrupted),
    ],
)
def test_each_broken_rule_is_noticed(store, monkeypatch, mutant, promise):
    with monkeypatch.context() as patch:
        mutant(patch)
        assert breaks(promise, store)
