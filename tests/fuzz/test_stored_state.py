"""Every bin of every kind of record, damaged: who asks for it gets an answer or an error of ours, and nobody else does.

A world with one of everything is made; then one bin of one record becomes something else, or a part of its map or list
does. Every verb that looks at that record is called. Nothing but errors of ours come out, nobody waits for what never
comes, and a queue, a lock and a latch beside it work as before. The world is made in memory, and moves to each of the
other stores with its damage.
"""

from __future__ import annotations

import logging
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from latchwork import once
from latchwork.background import FailureLog
from latchwork.coord import Barrier, CountDownLatch, CountUpDownLatch, FencedLock
from latchwork.coord.barrier.meeting import Meeting
from latchwork.coord.effects import marks
from latchwork.errors import InvalidRequest, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.logs import Log
from latchwork.observe.snapshot import of_client
from latchwork.plain import one_line
from latchwork.queue import Publish, QueueConfig, QueueRegistry, Schedule, ShardedQueue, Shovel, Sweeper, Worker
from latchwork.queue.sharded import stream
from latchwork.queue.sharded.history import history
from latchwork.queue.sharded.stats import stats_of_each
from latchwork.queue.sharded.tasks.signature import Signature, report, signatures_of
from latchwork.queue.sharded.upkeep.ending import Ending
from latchwork.queue.sharded.upkeep.recording import Recording
from latchwork.queue.sharded.upkeep.scheduling import Scheduling
from latchwork.queue.sharded.upkeep.timers import QueueTimers, Timers
from latchwork.queue.sharded.workers import Running, WorkerReport, reporting, workers_of
from latchwork.spark import SparkLatch, once_per_batch
from latchwork.store import NEVER, Add, Exists, Key, Put, RecordStore, Removal, SQLiteStore, Update
from latchwork.testing import Crash
from latchwork.testing.stores import FaultyStore
from tests.support import matrix
from tests.support.backends import BACKENDS
from tests.support.cost import peak_memory
from tests.support.scale import FIRST, scaled

from .hostile import deep
from .public_api import KEY, PUBLIC, Of, Public, Waits, World, with_place

DAMAGES = scaled(60)
PATIENCE = 20
"""Seconds of processor time after which a call that looks at a damaged record hangs."""
MEMORY = 120
"""Megabytes that damages may add to what a process has."""
SECRET = "canary"
"""A payload."""
ENDING = Key("fuzz", "ending")
"""A record that somebody is deleting with a message."""
LONG_AGO = datetime(2020, 1, 1, tzinfo=timezone.utc)
KINDS: dict[str, Callable[[Random], Any]] = {
    "absent": lambda random: None,
    "a number": lambda random: random.choice((0, 1, 7, -1, -(2**63), 10**7, 2**31, 2**40, 2**61, 2**62, 2**63 - 1)),
    "a fraction": lambda random: random.choice((0.5, -1e300, float("nan"), float("inf"))),
    "a switch": lambda random: random.choice((True, False)),
    "a text": lambda random: random.choice(
        ("", "x", "\x1b[2J\n", "h" * 100_000, "\u202e", "{}", "[[[[", "null", "-1", "0:9", "done")
    ),
    "bytes": lambda random: random.choice((b"", b"\xff\xfe", b"x" * 100_000)),
    "a list": lambda random: random.choice(([], [1, "a", None], [[]], ["x"] * 5_000, deep(60))),
    "a map": lambda random: random.choice(({}, {"a": 1}, {1: "b"}, {b"\xff": {}}, {n: n for n in range(5_000)})),
}
EVERY = (None, "text", "", True, 1.5, float("nan"), float("inf"), 2**40, 2**62, -1, [], [1, "a"], {}, {"a": [1]})
"""In the walk each of these takes the place of each bin."""


class Term:
    """A leadership that lasts."""

    epoch = 2**40

    @property
    def leadership(self):
        return self

    def check(self):
        pass


class Farms:
    """What upkeep sees of one client in one farm."""

    def __init__(self, registry):
        self.registry = registry

    def registries(self):
        return [self.registry]

    def queues(self):
        return self.registry.queues()

    def failure_log(self):
        return FailureLog(self.registry.store.seams, Log(__name__))


def upkeep(world):
    farms = Farms(world.registry)
    world.clock.advance(61)
    Timers(farms).run(Term())
    Scheduling(farms).run(Term())
    Ending(farms).run(Term())
    noted = Recording(farms)
    _ = noted.run(Term()), noted.run(Term())
    for queue in farms.queues():
        Shovel(queue).run_once()
    world.clock.advance(2_000)
    Sweeper(world.registry, Term()).run_once()


def worked(world):
    for one in world.queue.receive(3):
        one.ack()
    for one in world.queue.group("g").receive(3):
        one.ack()


OTHERS = ("connect", "SQLite", "AerospikeStore", "ZooKeeper", "GlobalElection", "inject", "Paged")
"""Calls that look at no record of the world."""
MORE: dict[str, Callable[[World], Any]] = {
    "latch.counts": lambda w: (w.latch.counts(), w.latch.parties(), w.latch.expected(), w.latch.progress()),
    "latch.delete": lambda w: w.latch.delete(),
    "grant.renew": lambda w: w.grant.renew(),
    "grant.release": lambda w: w.grant.release(),
    "semaphore.holders": lambda w: (w.semaphore.holders(), w.semaphore.size()),
    "permits.renew": lambda w: (w.permits.renew(), w.permits.release()),
    "rwlock.holders": lambda w: w.rwlock.holders(),
    "reading.release": lambda w: w.reading.release(),
    "election.contenders": lambda w: w.election.contenders(),
    "group.members": lambda w: (w.group.members(), w.group.lost()),
    "member.renew": lambda w: (w.member.renew(), w.member.leave()),
    "barrier.progress": lambda w: (w.barrier.progress(), w.barrier.delete()),
    "large.info": lambda w: w.large.info(),
    "consumers.lag": lambda w: (w.consumers.lag(), w.consumers.drop()),
    "queue.depth": lambda w: (w.queue.depth(), w.queue.groups()),
    "queue.pause": lambda w: (w.queue.pause(), w.queue.resume()),
    "registry.refresh": lambda w: w.registry.refresh(),
    "registry.schedules": lambda w: (
        w.registry.schedules(),
        w.registry.schedule_states(),
        w.registry.pause_schedule("s"),
        w.registry.trigger_schedule("s"),
        w.registry.resume_schedule("s"),
    ),
    "facts": lambda w: stats_of_each(w.registry.listed(active=None)),
    "snapshot": lambda w: (of_client(w.registry), history(w.queue, days=15)),
    "upkeep": upkeep,
    "worked": worked,
    "delivery.ack": lambda w: (w.delivery.extend(), w.delivery.ack()),
    "batch.progress": lambda w: (w.batch.progress(), w.batch.missing(), w.queue.list_batches()),
    "batch.close": lambda w: (w.batch.close(), w.batch.wait(0), w.batch.progress()),
    "publish, dedup": lambda w: w.queue.publish("again", dedup="d"),
    "publish, delay": lambda w: w.queue.publish("later", delay=1),
    "delayed": lambda w: (
        w.queue.delayed.redrive(["later"]),
        w.queue.delayed.search(within=60),
        w.queue.cancel("later"),
    ),
    "delayed.move": lambda w: w.queue.delayed.move(["later"], w.other),
    "delayed again": lambda w: w.queue.publish("again", delay=9, message_id="cancelled"),
    "limiter": lambda w: (w.limiter.try_acquire(), w.limiter.try_acquire(2)),
    "semaphore": lambda w: w.semaphore.acquire(timeout=0),
    "rwlock": lambda w: (w.rwlock.read(timeout=0), w.rwlock.write(timeout=0)),
    "group.drop": lambda w: w.queue.group("g").drop(),
    "latch, another handle": lambda w: [
        CountDownLatch.get(w.store, "c", "latch").count_down(party="b"),
        CountUpDownLatch.get(w.store, "c", "up").count_down(),
    ],
    "latch, joined": lambda w: CountDownLatch.get_or_create(w.store, "c", "latch", parties=["a", "b"]).expected(),
    "group, joined again": lambda w: [w.group.join(name, keep_alive=False) for name in ("m", "left", "lost", "new")],
    "barrier, the last": lambda w: w.meeting.wait("a", 1, timeout=1),
    "barrier, again": lambda w: w.meeting.wait("b", 1, timeout=0),
    "barrier.abort": lambda w: (w.meeting.progress(), w.meeting.abort("why")),
    "shares": lambda w: (w.spark_latch.missing(), w.spark_latch.counts(), w.spark_latch.preflight(3)),
    "share, another handle": lambda w: SparkLatch.get(w.store, "c", "job")._count(1),
    "batch of Spark": lambda w: spark_batch(w, 6, "checkpoint", "second"),
    "batch of Spark, new run": lambda w: spark_batch(w, 6, "checkpoint", "third"),
    "batch of Spark, new checkpoint": lambda w: spark_batch(w, 0, "another", "fourth"),
    "stream": lambda w: stream.states(w.other.pointers, stream.take(w.other.pointers, "stream")),
    "workers": lambda w: workers_of([w.queue]),
    "effects": lambda w: [effect(w, name) for name in "abcdef"],
    "effects, of another process": lambda w: (marks._known.clear(), [effect(w, name) for name in "abcg"]),
    "step": lambda w: (step(w), w.queue.steps("later")),
    "step by key": lambda w: once(w.store, key="k", keep=60, timeout=0).run(int),
    "with a write": lambda w: w.store.operate(KEY, Put("n", 1), publish=Publish("one more", queue=w.queue)),
    "with its end": lambda w: w.store.delete(ENDING, publish=Publish("one more", queue=w.queue)),
    "delivery, with a write": lambda w: w.delivery.operate(KEY, Add("n", 1), publish=Publish("on", queue=w.queue)),
    "task": lambda w: (signatures_of(w.queue), Worker(w.registry).task("q")(work).publish(1)),
    "unique": lambda w: [w.queue.publish("again", unique="u", on_duplicate=mode) for mode in ("keep", "replace")],
    "result": lambda w: (w.asked.result(w.answered, timeout=0), w.asked.status(w.answered)),
    "batch.results": lambda w: (list(w.answers.results(0)), w.asked.receive(3), list(w.answers.results(0.1))),
    "batch, cancelled": lambda w: (w.cancelled.cancel(), w.cancelled.progress(), w.asked.receive(3)),
    "fences": lambda w: (w.grant.operate(KEY, Put("n", 1)), w.permits.operate(KEY, Put("n", 1)), w.grant.seal(KEY)),
    "queue.group, new": lambda w: (w.queue.group("h", start="oldest"), w.queue.group("i", start=LONG_AGO)),
}


def work(n: int) -> None:
    """A task."""


def spark_batch(world, batch, checkpoint, run):
    with once_per_batch(world.store, "query", batch, checkpoint=checkpoint, run_id=run) as begun:
        begun.operate(Key("fuzz", "table"), Put("n", 1))


def effect(world, name):
    return once_more(world).operate(KEY, Add("n", 1), name=name)


def step(world):
    return once_more(world).once("mail", timeout=0).run(int)


def once_more(world):
    """A delivery, as if the message `later` were handed out anew."""
    held = world.delivery.held
    later = held._replace(envelope=replace(held.envelope, msg_id="later"))
    return replace(world.delivery, held=later, applied=None)


class Full(World):
    """One of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = self.semaphore.acquire(timeout=0)
        self.reading = self.rwlock.read(timeout=0)
        self.member = self.group.join("m", keep_alive=False)
        _ = self.latch.count_down(party="a"), self.up_down, self.grant, self.consumers, self.limiter.try_acquire()
        self.group.join("left", keep_alive=False).leave()
        self.group.join("lost", keep_alive=False).fail()
        self.barrier.wait("a", "brought", timeout=1)
        self.meeting = Barrier(self.store, "c", "meeting", parties=["a", "b"])
        waiting = Meeting(self.meeting._record, ("local", "b"), '"brought"')
        _ = waiting.look(), waiting.look(), waiting.look()
        CountDownLatch.get(self.store, "c", self.spark_latch._phase.latch_id).count_down(party=0)
        spark_batch(self, 5, "checkpoint", "first")
        spark_batch(self, 5, "checkpoint", "second")
        stream.take(self.other.pointers, "stream")
        FencedLock(self.store, "election").acquire(timeout=0)
        self.queue.group("g", start="oldest")
        runs = (Running("m", 40.0), Running("n", 20.0, given_up=True))
        self.store.operate_many([reporting(self.queue, WorkerReport("w@local", 0, 0, 1, 1, 1, 1, longest=runs))])
        self.queue.publish(SECRET, dedup="d", key="k", headers={"a": "b"})
        self.queue.publish("delayed", delay=30, message_id="cancelled")
        self.queue.cancel("cancelled")
        self.registry.schedule(Schedule("s", "q", "tick", cron="* * * * *"))
        self.registry.schedule(Schedule("t", "q", "tick", every=60, missed="all"))
        self.registry.pause_schedule("t", by="anna")
        for one in self.queue.receive(1):
            one.nack("rejected")
        self.queue.publish_many(["c", "d"])
        _ = self.delivery
        self.batch.publish("of a batch", dedup="of a batch")
        (done,) = self.queue.receive(1)
        done.ack()
        for name in "abcd":
            effect(self, name)
        _ = step(self), once(self.store, key="k", keep=60).run(int)
        _ = self.grant.operate(KEY, Put("n", 1)), self.permits.operate(KEY, Put("n", 1))
        self.dies(4, lambda store, queue: store.operate(KEY, Put("n", 1), publish=Publish("with a write", queue=queue)))
        self.store.operate(ENDING, Put("n", 1), exists=Exists.ANY)
        self.dies(5, lambda store, queue: store.delete(ENDING, publish=Publish("with its end", queue=queue)))
        report(self.queue, Signature(work).stored(upcasts=False))
        noted = Recording(Farms(self.registry))
        _ = noted.run(Term()), noted.run(Term())
        self.queue.publish("unique", unique="u")
        self.asked = self.registry.create(QueueConfig("asked", shards=1, results=timedelta(hours=1)))
        self.answered = self.asked.publish("question")
        self.asked.receive()[0].ack({"answer": 42})
        self.answers = self.asked.batch("answers")
        self.answers.publish_many(["one", "two"])
        self.answers.publish("three", message_id="three")
        self.answers.close()
        self.asked.receive()[0].ack({"answer": 43})
        self.cancelled = self.asked.batch("cancelled", on_parked=Publish("parked"))
        self.cancelled.publish("of a cancelled batch")
        self.cancelled.cancel()
        self.beside = QueueRegistry(self.store, "beside").create(QueueConfig("q", shards=1))
        self.beside.publish("kept")

    def dies(self, at: int, work: Callable[[RecordStore, ShardedQueue], object]) -> None:
        """Let a process die before this call of its work."""
        store = FaultyStore(self.store)
        queue = QueueRegistry(store, "c").get("q")
        store.plan[store._number + at] = "crash_before"
        with suppress(Crash):
            work(store, queue)
        assert store.dead

    def neighbours(self) -> None:
        """What has nothing to do with the damage works."""
        (delivery,) = self.beside.receive()
        assert delivery.payload == "kept"
        delivery.ack()
        assert CountDownLatch.create(self.store, "beside", "l", 1).count_down() == 0
        assert FencedLock(self.store, "beside").acquire(timeout=0).release()


def calls() -> dict[str, Callable[[World], Any]]:
    """Everything that is called."""
    return {one.name: lambda world, one=one: _called(one, world) for one in PUBLIC if _asks(one)} | MORE


def _asks(one: Public) -> bool:
    """Whether it has to do with the world's records."""
    return not one.name.startswith(OTHERS)


def _called(one: Public, world: World) -> None:
    target = one.get(world)
    made = target(**{name: value.get(world) if isinstance(value, Of) else value for name, value in one.good.items()})
    one.then(world, next(made, None) if hasattr(made, "__next__") else made)


@cache
def looked_at() -> dict[Key, list[str]]:
    """The records of a full world, each with those of the calls in this run's sample that look at it."""
    records, found = list(Full().store.inner._records), defaultdict(set)
    for name, call in matrix.sample(list(calls().items()), "calls on damaged records", least=25):
        world = Full()
        names = keys_of_calls(world)
        with suppress(LatchworkError, Waits):
            call(world)
        for key in names:
            found[key].add(name)
    return {key: sorted(found[key] | {"upkeep", "queue.depth", "facts"}) for key in records if "beside" not in str(key)}


def keys_of_calls(world: Full, *, reads: bool = True) -> set[Key]:
    """The keys that calls of this world name from now on."""
    names: set[Key] = set()
    count = world.store._count

    def counting(verb, request):
        rows = request if verb.endswith("_many") else [request]
        names.update(row.key for row in rows if isinstance(row, Update | Removal))
        names.update(row for row in rows if reads and isinstance(row, Key))
        return count(verb, request)

    world.store._count = counting
    return names


def damaged(value: Any, random: Random) -> tuple[str, Any]:
    """Something else in its place, or in a part of it."""
    kind = random.choice(list(KINDS))
    new = KINDS[kind](random)
    if isinstance(value, dict) and value and random.random() < 0.7:
        key = random.choice(list(value))
        if random.random() < 0.3:
            return f"another key, {kind}", {**value, random.choice((0, -1, "x", b"\xff")): new}
        return f"entry {key!r}, {damaged(value[key], random)[0]}", {**value, key: damaged(value[key], random)[1]}
    if isinstance(value, list) and value and random.random() < 0.7:
        place = random.randrange(len(value))
        return f"item {place}, {kind}", [*value[:place], new, *value[place + 1 :]]
    return kind, new


def damage_one(world: Full, key: Key, random: Random) -> str | None:
    """Damage a bin of this record; where and how, or None where no store holds that."""
    stored = world.store.inner._records[key].bins
    bin = random.choice(sorted(stored))
    kind, value = damaged(stored[bin], random)
    return f"{key.set}/{key.name} {bin} = {kind}" if put(world, key, bin, value) else None


def put(world: Full, key: Key, bin: str, value: Any) -> bool:
    """Store this in the bin; False where no store holds it, or it is there already."""
    stored = world.store.inner._records[key].bins
    if stored.get(bin) == value and type(stored.get(bin)) is type(value):
        return False
    try:
        world.store.inner.operate(key, Put(bin, value), exists=Exists.ANY)
    except InvalidRequest:
        return False
    return True


def neighbours_lost(world: Full) -> list[str]:
    """What is wrong with what was not damaged."""
    try:
        world.neighbours()
    except Exception as failure:
        return [f"a neighbour: {type(failure).__name__}: {failure}"]
    return []


class Places:
    """Where worlds move to: a store of each kind."""

    def __init__(self, backend: str, tmp_path: Path, aerospike: RecordStore | None) -> None:
        self.backend, self._file, self._aerospike = backend, tmp_path / "moved.db", aerospike

    @contextmanager
    def moved(self, world: Full) -> Iterator[bool]:
        """All records of this world are in the store, until the block ends; False where it refused some."""
        if self.backend == "memory":
            yield True
            return
        records = {key: record.bins for key, record in world.store.inner._records.items() if record.bins}
        written = keys_of_calls(world, reads=False)
        world.store.inner = store = self._store(world)
        rows = [
            Update(key, tuple(Put(bin, value) for bin, value in bins.items()), exists=Exists.ANY, ttl=NEVER)
            for key, bins in records.items()
        ]
        refused = [error for some in batches(rows) for error in store.operate_many(some).errors()]
        assert not any(isinstance(error, OutcomeUnknown | Unavailable) for error in refused)
        try:
            yield not refused
        finally:
            if self._aerospike is None:
                store.close()
                for file in self._file.parent.glob(f"{self._file.name}*"):
                    file.unlink()
            else:
                for some in batches([Removal(key) for key in {*records, *written}]):
                    store.delete_many(some)

    def _store(self, world: Full) -> RecordStore:
        store = self._aerospike or SQLiteStore(self._file, synchronous="off", seams=world.clock)
        store.ensure_index("local_c_ignis_queues", "active")
        return store


def batches(rows: list[Any]) -> list[list[Any]]:
    return [rows[start : start + 50] for start in range(0, len(rows), 50)]


@pytest.fixture(params=BACKENDS)
def places(request, tmp_path, monkeypatch):
    if request.param != "aerospike":
        yield Places(request.param, tmp_path, None)
        return
    store = request.getfixturevalue("aerospike_store")
    # Worlds begin at the time that a real server has, else all that is for later would be late by years.
    monkeypatch.setattr("latchwork.testing.clock.START", store.seams.wall())
    looked_at.cache_clear()
    yield Places(request.param, tmp_path, store)
    looked_at.cache_clear()


def harm(places: Places, seed: int, figures: Counter[str]) -> list[str]:
    """Damage a bin of one record, or of a few, call what looks at them, and say what was wrong."""
    random = Random(f"{places.backend} {seed}")
    world, keys = Full(), random.sample(list(looked_at()), random.choice((1, 1, 1, 3, 6)))
    harmed = {key: place for key in keys if (place := damage_one(world, key, random))}
    with places.moved(world) as stored:
        return ask(world, harmed, random, figures, seed) if stored else []


class Hangs(BaseException):
    """A call has computed for very long; nothing of the program under test may catch it."""


@contextmanager
def limited() -> Iterator[None]:
    """What computes for very long is ended with `Hangs`."""

    def end(*_: Any) -> None:
        raise Hangs

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def ask(world: Full, places: dict[Key, str], random: Random, figures: Counter[str], seed: int) -> list[str]:
    """Call what looks at damaged records, and say what was wrong."""
    if not places:
        return []
    figures["damages"] += len(places)
    wrong: list[str] = []
    names, told = sorted({name for key in places for name in looked_at()[key]}), ", ".join(places.values())
    random.shuffle(names)
    for name in names[:12]:
        figures["calls"] += 1
        world.clock.slept.clear()
        try:
            with limited():
                calls()[name](world)
        except LatchworkError as failure:
            figures["errors"] += 1
            if one_line(str(failure)) != str(failure):
                wrong.append(f"{name}: does not print: {str(failure)[:80]!r}")
        except Waits:
            wrong.append(f"{name}: waits for ever")
        except Hangs:
            wrong.append(f"{name}: hangs")
        except Exception as failure:
            wrong.append(f"{name}: {with_place(failure)}")
    wrong += neighbours_lost(world)
    return [f"seed {seed}, {told}: {what}" for what in wrong]


@pytest.fixture
def short_lives(monkeypatch):
    """As if a message lived for 10 s, and were late by 10 minutes at most: what is older is not looked for, bucket by
    bucket; and one round is enough. A record has room for three effects.
    """
    monkeypatch.setattr("latchwork.testing.upkeep.ROUNDS", 1)
    monkeypatch.setattr(QueueTimers, "_pass_expired", lambda self: self._pass(self._horizon, self._now - 10_000))
    monkeypatch.setattr("latchwork.queue.sharded.delayed.view.HOUR", 120.0)
    monkeypatch.setattr("latchwork.queue.sharded.delayed.view.MOST_AHEAD", 600.0)
    monkeypatch.setattr(marks, "ROOM", 3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.usefixtures("short_lives")
def test_a_damaged_bin_is_an_error_of_ours_for_those_who_ask_for_it_and_nobodys_else(places, proved, caplog):
    caplog.set_level(logging.CRITICAL)
    figures: Counter[str] = Counter()
    looked_at()
    before = peak_memory()
    wrong = [line for seed in range(FIRST * 1_000, FIRST * 1_000 + DAMAGES) for line in harm(places, seed, figures)]
    proved("damaged records", places.backend, **figures)
    assert not wrong, "\n".join(wrong)
    assert peak_memory() - before <= MEMORY


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.usefixtures("short_lives")
def test_every_bin_of_every_kind_of_record_is_read_by_its_reader(proved, caplog):
    """A walk over all of them: a bin that is read past its reader is believed, and raises what is no error of ours."""
    caplog.set_level(logging.CRITICAL)
    figures: Counter[str] = Counter()
    wrong = []
    for key, (bin, value) in ((one, pair) for one in kinds() for pair in product(bins_of(one), EVERY)):
        world = Full()
        if put(world, key, bin, value):
            place = f"{key.set}/{key.name} {bin} = {value!r}"
            wrong += ask(world, {key: place}, Random(f"{FIRST} {place}"), figures, 0)
    proved("damaged records", "every bin", **figures)
    assert not wrong, "\n".join(wrong)


def bins_of(key: Key) -> list[str]:
    return sorted(Full().store.inner._records[key].bins)


def kinds() -> list[Key]:
    """One record of each kind: of two with equal bins that the same calls look at, the first."""
    found: dict[tuple[str, ...], Key] = {}
    for key, names in looked_at().items():
        found.setdefault((key.set, *bins_of(key), *names), key)
    return list(found.values())
