"""A batch's effect is there exactly once, whoever dies or wakes up at whatever point (docs/protocols P20)."""

from __future__ import annotations

import pickle
import sqlite3
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from latchwork.errors import Corrupt, FencedOut, InvalidRequest, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.spark import batches, once_per_batch
from latchwork.store import Add, Key, MemoryStore, Put
from latchwork.testing import inject_everywhere
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import CountingStore, Crash, FaultyStore

PER_BATCH = 3
ROWS = list(range(10))


@pytest.fixture
def clock():
    return ManualClock(seed=1)


@pytest.fixture
def memory(clock):
    return MemoryStore(clock)


class SqlSink:
    """A database that knows nothing of Spark: rows, and the version of the last batch, in one transaction."""

    def __init__(self, path):
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("create table if not exists rows (id)")
        self._database.execute("create table if not exists versions (query primary key, version)")

    def write(self, query, version, rows, step):
        step()
        self._database.execute("begin immediate")
        try:
            self._database.execute("insert or ignore into versions values (?, -1)", [query])
            update = "update versions set version = ? where query = ? and version < ?"
            new = self._database.execute(update, [version, query, version]).rowcount
            self._database.executemany("insert into rows values (?)", [[row] for row in rows] if new else [])
            step()
            self._database.execute("commit")
        except BaseException:
            self._database.execute("rollback")
            raise
        step()

    def is_locked(self):
        return self._database.in_transaction

    def rows(self):
        return sorted(row for (row,) in self._database.execute("select id from rows"))


class DeltaSink:
    """Delta's rule: a version that is not above the last one of its application is left out without a word."""

    def __init__(self, _path=None):
        self._last, self._rows = {}, []

    def write(self, query, version, rows, step):
        step()
        if version > self._last.get(query, -1):
            self._last[query] = version
            self._rows += rows
        step()

    def is_locked(self):
        return False

    def rows(self):
        return sorted(self._rows)


SINKS = pytest.mark.parametrize("sink", [SqlSink, DeltaSink], indirect=True)


@pytest.fixture
def sink(request, tmp_path):
    return request.param(tmp_path / "sink.db")


@dataclass
class Checkpoint:
    """What Spark keeps: the rows up to which each batch reads, and how many batches are committed."""

    id: str
    ends: list = field(default_factory=list)
    commits: int = 0


@dataclass
class Engine:
    """Spark's micro-batch engine around a foreachBatch function; dies before the step `crash_at`."""

    checkpoint: Checkpoint
    store: object
    sink: object
    run_id: str
    begin: int = 0
    crash_at: int = 0
    steps: int = 0

    def run(self, rows):
        while True:
            batch = self.checkpoint.commits
            if batch == len(self.checkpoint.ends):
                first = self.checkpoint.ends[-1] if self.checkpoint.ends else self.begin
                if first >= len(rows):
                    return
                self.step()
                self.checkpoint.ends.append(min(first + PER_BATCH, len(rows)))
            first = self.checkpoint.ends[batch - 1] if batch else self.begin
            self.upsert(rows[first : self.checkpoint.ends[batch]], batch)
            self.step()
            self.checkpoint.commits += 1

    def upsert(self, rows, batch_id):
        with self.block(batch_id) as batch:
            if not batch.done:
                self.sink.write(batch.query_id, batch.version, rows, self.step)

    def block(self, batch_id):
        return once_per_batch(self.store, "orders", batch_id, checkpoint=self.checkpoint.id, run_id=self.run_id)

    def step(self):
        self.steps += 1
        if self.steps == self.crash_at:
            raise Crash


STEPS, CALLS = 20, 11


@SINKS
def test_the_numbers_below_cover_a_run(memory, sink):
    store = CountingStore(memory)
    driver = Engine(Checkpoint("c"), store, sink, "r")
    driver.run(ROWS)
    assert sink.rows() == ROWS
    assert store.total == CALLS, "two a batch, three more for the first one of a run"
    assert driver.steps <= STEPS


@pytest.mark.matrix
@SINKS
@pytest.mark.parametrize("at", range(1, STEPS + 1))
def test_a_driver_that_dies_before_any_step_writes_each_batch_once(memory, sink, at):
    kept = Checkpoint("c")
    with suppress(Crash):
        Engine(kept, memory, sink, "one", crash_at=at).run(ROWS)
    Engine(kept, memory, sink, "two").run(ROWS)
    assert sink.rows() == ROWS


@pytest.mark.parametrize("sink", [SqlSink, DeltaSink])
def test_a_driver_that_dies_or_fails_at_any_store_call_writes_each_batch_once(sink):
    kept = {}

    def prepare(store):
        kept.update(checkpoint=Checkpoint("c"), sink=sink(":memory:"))

    def drive(store, done):
        Engine(kept["checkpoint"], store, kept["sink"], "one").run(ROWS)

    def restart(store, done):
        Engine(kept["checkpoint"], store, kept["sink"], "two").run(ROWS)
        done += kept["sink"].rows()

    report = inject_everywhere(drive, prepare=prepare, recover=restart, expected=ROWS)
    assert report.calls == CALLS
    assert not report.troubles, report


@pytest.mark.matrix
@SINKS
@pytest.mark.parametrize("at", range(1, STEPS + 1))
def test_a_checkpoint_that_is_lost_at_any_step_drops_no_rows(memory, sink, clock, at):
    """The new one begins behind what the sink has; its batches count from 0 again."""
    old = Checkpoint("old")
    with suppress(Crash):
        Engine(old, memory, sink, "one", crash_at=at).run(ROWS)
    begin = len(sink.rows())
    clock.step(-3600)
    Engine(Checkpoint("new"), memory, sink, "two", begin=begin).run(ROWS)
    assert sink.rows() == ROWS


@pytest.mark.matrix
@SINKS
@pytest.mark.parametrize("at", range(2, STEPS + 1))
def test_a_driver_that_was_thought_dead_and_goes_on_is_fenced_off_and_doubles_nothing(memory, sink, at):
    """It stops before any of its steps until its successor has written everything."""
    kept = Checkpoint("c")
    zombie = Engine(kept, memory, sink, "one")
    before = zombie.step

    def paused():
        before()
        if zombie.steps == at and not sink.is_locked():  # else its successor waits
            zombie.checkpoint = Checkpoint(kept.id, list(kept.ends), kept.commits)  # what it has in its memory
            Engine(kept, memory, sink, "two").run([*ROWS, 10, 11, 12])

    zombie.step = paused
    with suppress(FencedOut):
        zombie.run(ROWS)
    Engine(kept, memory, sink, "two").run([*ROWS, 10, 11, 12])  # where it never came to that step
    with pytest.raises(FencedOut, match="another run of the query 'orders' has taken over since"):
        zombie.upsert([99], 9)
    assert sink.rows() == [*ROWS, 10, 11, 12]


def test_a_block_that_is_overtaken_fails_at_its_end(memory):
    one, two = (Engine(Checkpoint("c"), memory, None, run) for run in ("one", "two"))
    with pytest.raises(FencedOut, match="while its batch 0 was at work"), one.block(0), two.block(0) as batch:
        assert not batch.done
    with two.block(0) as batch:
        assert batch.done


def test_a_block_that_raises_leaves_its_batch_to_be_done_with_the_same_version(memory):
    driver = Engine(Checkpoint("c"), memory, None, "one")
    with pytest.raises(RuntimeError), driver.block(4) as first:
        raise RuntimeError("made to fail")
    with driver.block(4) as again:
        assert (again.done, again.version) == (False, first.version)
    with driver.block(4) as last:
        assert (last.done, last.version) == (True, first.version)


def test_versions_grow_over_batches_gaps_checkpoints_names_and_a_lost_record(memory, clock):
    versions = []
    for query, checkpoint, batch in (
        ("q", "a", 0), ("q", "a", 1), ("q", "a", 900), ("q", "b", 0), ("q", "b", 1), ("renamed", "c", 0), ("q", "d", 0),
    ):  # fmt: skip
        if checkpoint == "d":
            memory.delete(Key(batches.BATCHES, "q"))
        with once_per_batch(memory, query, batch, checkpoint=checkpoint, run_id=checkpoint) as one:
            versions.append(one.version)
        clock.advance(1)
    assert versions == sorted(set(versions))


def test_a_batch_that_was_begun_and_never_done_is_outnumbered_by_the_next_checkpoint(memory, clock):
    with pytest.raises(RuntimeError), once_per_batch(memory, "q", 5_000_000, checkpoint="a", run_id="1") as old:
        raise RuntimeError("made to fail after its effect")
    clock.step(-86_400)
    with once_per_batch(memory, "q", 0, checkpoint="b", run_id="2") as new:
        assert new.version > old.version


def test_an_older_checkpoint_is_refused_once_a_newer_one_was_used(memory):
    for checkpoint in ("a", "b"):
        with once_per_batch(memory, "q", 0, checkpoint=checkpoint, run_id=checkpoint):
            pass
    with pytest.raises(FencedOut, match="with a newer checkpoint"), once_per_batch(memory, "q", 1, checkpoint="a"):
        pytest.fail("it has begun")


def test_a_batch_behind_the_last_one_is_refused_and_not_left_out_in_silence(memory):
    for batch in (0, 1, 2):
        with once_per_batch(memory, "q", batch):
            pass
    with once_per_batch(memory, "q", 3):
        for run in (None, "another"):
            behind = once_per_batch(memory, "q", 1, run_id=run)
            with (
                pytest.raises(InvalidRequest, match=r"the batch 1 .* after its batch 2 was done.*new checkpoint"),
                behind,
            ):
                pytest.fail("it has begun")


def test_a_record_is_updated_once_by_a_batch_that_comes_again():
    total = Key("totals", "fra")

    def upsert(store, run):
        with once_per_batch(store, "q", 0, run_id=run) as batch:
            batch.operate(total, Add("n", 5))

    def again(store, done):
        for run in ("two", "three"):
            upsert(store, run)
        done.append(store.get(total).bins["n"])

    report = inject_everywhere(lambda store, done: upsert(store, "one"), recover=again, expected=[5])
    assert not report.troubles, report


def test_a_record_refuses_a_driver_that_is_behind(memory):
    total = Key("totals", "fra")
    with once_per_batch(memory, "q", 0) as first:
        pass
    with once_per_batch(memory, "q", 1) as second:
        second.operate(total, Add("n", 7))
    with pytest.raises(FencedOut, match="another driver is ahead"):
        first.operate(total, Add("n", 5))
    assert memory.get(total).bins["n"] == 7


def test_an_update_that_was_refused_after_a_doubt_is_in_doubt_while_it_cannot_be_looked_at(memory):
    """It was applied, and its reply was lost."""
    with once_per_batch(memory, "q", 0) as batch:
        faults = {1: "reply_lost", 3: "dropped", 4: "dropped", 5: "dropped"}
        with pytest.raises(OutcomeUnknown, match="run the batch again"):
            replace(batch, _store=FaultyStore(memory, faults)).operate(Key("totals", "fra"), Add("n", 5))
        assert batch.operate(Key("totals", "fra"), Add("n", 5)) is None
        with pytest.raises(Unavailable):
            replace(batch, _store=FaultyStore(memory, {2: "dropped", 3: "dropped", 4: "dropped"})).operate(
                Key("totals", "fra"), Add("n", 5)
            )
    assert memory.get(Key("totals", "fra")).bins["n"] == 5


def test_a_batch_ships_to_tasks_and_shows_no_secret(tmp_path):
    from latchwork.store.connect import connect

    with once_per_batch(connect(f"sqlite:{tmp_path / 'store.db'}"), "q", 0) as batch:
        there = pickle.loads(pickle.dumps(batch))
        there.operate(Key("totals", "fra"), Add("n", 5))
        assert batch.operate(Key("totals", "fra"), Add("n", 5)) is None
    assert "store" not in repr(batch)


@pytest.mark.matrix
@pytest.mark.parametrize("bin", ["checkpoint", "run", "epoch", "base", "begun", "done", "runs", "checkpoints"])
@pytest.mark.parametrize("value", [None, "text", b"bytes", [1], {"a": "b"}, {1: 1}, -(2**63), 2**63 - 1, 1.5], ids=repr)
def test_a_damaged_record_ends_in_an_error_of_ours_or_does_no_harm(memory, bin, value):
    with once_per_batch(memory, "q", 3, checkpoint="c", run_id="one"):
        pass
    memory.operate(Key(batches.BATCHES, "q"), Put(bin, value))
    for checkpoint, run in (("c", "one"), ("c", "two"), ("d", "three")):
        with suppress(LatchworkError), once_per_batch(memory, "q", 4, checkpoint=checkpoint, run_id=run):
            pass


@pytest.mark.parametrize("bin", ["epoch", "base", "done"])
def test_a_record_that_has_lost_a_bin_is_said_to_be_damaged_and_not_to_be_taken_over_by_others(memory, bin):
    with once_per_batch(memory, "q", 3, checkpoint="c", run_id="one"):
        pass
    memory.operate(Key(batches.BATCHES, "q"), Put(bin, None))
    with (
        pytest.raises(Corrupt, match=f"has no bin '{bin}'.* then delete the record"),
        once_per_batch(memory, "q", 4, checkpoint="c", run_id="two"),
    ):
        pytest.fail("it has begun")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"query_id": ""}, "query_id is ''"),
        ({"query_id": "q" * 501}, "query_id has 501 bytes; it must have at most 500: shorten it"),
        ({"batch_id": -1}, "batch_id is -1; it must be a whole number from 0"),
        ({"batch_id": True}, "batch_id is True"),
        ({"checkpoint": "c" * 501}, "checkpoint has 501 bytes"),
        ({"run_id": "\0"}, "run_id is"),
        ({"store": "sqlite:"}, "is not a store"),
    ],
    ids=str,
)
def test_bad_input_is_refused_before_any_call(memory, change, says):
    store = CountingStore(memory)
    with pytest.raises(InvalidRequest, match=says):
        once_per_batch(**{"store": store, "query_id": "q", "batch_id": 0} | change)
    assert store.total == 0


def test_a_function_on_spark_connect_has_to_say_which_checkpoint_it_has(memory, monkeypatch):
    monkeypatch.setenv("SPARK_CONNECT_LOCAL_URL", "sc://localhost")
    with pytest.raises(InvalidRequest, match="give `checkpoint`"):
        once_per_batch(memory, "q", 0)
    with once_per_batch(memory, "q", 0, checkpoint="c") as batch:
        assert not batch.done


# ---- on a real Spark


@pytest.mark.long
def test_spark_tells_which_checkpoint_and_which_run_a_batch_is_of(spark, memory, tmp_path):
    """A batch fails after its effect, a commit is lost, the checkpoint is lost: Delta's rule drops and doubles none."""
    sink, failing, folder = DeltaSink(), {1}, tmp_path / "in"
    folder.mkdir()

    def upsert(frame, batch_id):
        with once_per_batch(memory, "orders", batch_id) as batch:
            if not batch.done:
                sink.write("orders", batch.version, [row.id for row in frame.collect()], lambda: None)
            if batch_id in failing:
                raise RuntimeError("made to fail")

    def run(checkpoint):
        stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(folder))
        query = stream.writeStream.foreachBatch(upsert).option("checkpointLocation", str(tmp_path / checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    for row in range(3):
        (folder / f"{row}.json").write_text(f'{{"id": {row}}}')
    with pytest.raises(Exception, match="made to fail"):
        run("first")
    failing.clear()
    run("first")
    for name in ("2", ".2.crc"):
        (tmp_path / "first" / "commits" / name).unlink()  # as if the driver had died before it
    run("first")
    assert sink.rows() == [0, 1, 2]
    for file in folder.iterdir():
        file.unlink()
    (folder / "3.json").write_text('{"id": 3}')
    run("second")
    assert sink.rows() == [0, 1, 2, 3]
    bins = memory.get(Key(batches.BATCHES, "orders")).bins
    assert (len(bins["checkpoints"]), len(bins["runs"])) == (2, 4), "told apart by Spark's own ids"
    (folder / "4.json").write_text('{"id": 4}')
    with pytest.raises(Exception, match="with a newer checkpoint"):
        run("first")
