"""Every thread that this library starts goes on though each log handler, or each filter, of the program raises.

The places where threads are started are found in the code itself. Each has a case here, which lets something be logged
in that thread and then shows that the thread has gone on; a new place without a case fails.
"""

from __future__ import annotations

import ast
import asyncio
import io
import logging
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from kazoo.client import KazooClient

import latchwork
from latchwork import aio, background, logs
from latchwork.aio import lag
from latchwork.aio.pool import Pool
from latchwork.aio.seams import LoopSeams
from latchwork.background import parallel_map
from latchwork.cli.coord import waiting
from latchwork.cli.processes.channel import Channel
from latchwork.cli.processes.child import Child
from latchwork.cli.processes.parent import _shared_memory
from latchwork.cli.queue import consume
from latchwork.cli.serving import TEXT, Server
from latchwork.cli.top.feed import Feed
from latchwork.console.actions import Wanted
from latchwork.console.reader import Kept, Reader
from latchwork.console.runs import Runs
from latchwork.coord import FencedLock, GlobalElection, Group, LeaseElection
from latchwork.errors import Unavailable
from latchwork.logs import Log
from latchwork.queue import (
    Consumer,
    Outbox,
    PagedQueue,
    QueueConfig,
    QueueRegistry,
    Shovel,
    ShovelConfig,
    Sweeper,
    Worker,
)
from latchwork.queue.sharded.upkeep.reporter import Reporter
from latchwork.queue.sharded.upkeep.upkeep import Upkeep
from latchwork.queue.sharded.upkeep.worker_group import WorkerMembership
from latchwork.seams import DIED, SYSTEM, Flag, Seams
from latchwork.store import MemoryStore
from tests.support.waiting import until
from tests.support.zoo import Client, Zoo

SOURCE = Path(latchwork.__file__).parent
DEFECT = ValueError("zip() argument 2 is shorter than argument 1")
STARTS = ("spawn", "Background", "Activity", "parallel_map")
CASES = {}
"""For each place, as `file:function how`, its case."""


def case(*places):
    def add(run):
        CASES.update(dict.fromkeys(places, run))
        return run

    return add


@cache
def places():
    """The places where a thread is started, by the lines of the call. It reads all of the source."""
    found = {}
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE).as_posix()
        if not name.startswith("store/contract/"):  # tests of a store, in which every failure is to be seen
            text = file.read_text()
            calls = _calls(ast.parse(text), "") if any(start in text for start in STARTS) else ()
            found |= {(str(file), lines): f"{name}:{place}" for lines, place in calls}
    return found


def _calls(node, within):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _calls(child, f"{within}.{child.name}".lstrip("."))
            continue
        if isinstance(child, ast.Call):
            called = getattr(child.func, "attr", getattr(child.func, "id", None))
            if called in STARTS:
                yield range(child.lineno, child.end_lineno + 1), f"{within} {called}"
        yield from _calls(child, within)


class Away(logging.Handler):
    """A handler, or a filter, that raises, and notes in which threads."""

    def __init__(self):
        super().__init__()
        self.thread = threading.local()
        self.raised = set()

    def handle(self, record):
        self.raised |= getattr(self.thread, "places", set())
        raise OSError("the log shipper has no connection")

    filter = handle


@pytest.fixture(params=["handler", "filter"])
def away(request, monkeypatch):
    """All log handlers raise, or all filters; what is started is known by its place."""
    here = Away()
    monkeypatch.setattr(logs, "_ends", [])  # a thread of the case before may still log as one that ends
    for kind in (Seams, LoopSeams):
        monkeypatch.setattr(kind, "spawn", _noted(kind.spawn, here.thread))
    says()  # so that its logger is there
    ours = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.startswith("latchwork")]
    if request.param == "filter":
        for logger in ours:
            logger.addFilter(here)
    else:
        logging.getLogger("latchwork").addHandler(here)
    yield here
    for logger in ours:
        logger.removeFilter(here)
        logger.removeHandler(here)
    died = dict(DIED)
    DIED.clear()
    assert not died


def _noted(spawn, thread):
    def noted(seams, run, name):
        frame = sys._getframe(1)
        file, line = frame.f_code.co_filename, frame.f_lineno
        here = {place for (where, lines), place in places().items() if where == file and line in lines}

        def known():
            thread.places = getattr(thread, "places", set()) | here
            run()

        return spawn(seams, known, name)

    return noted


class HastyFlag(Flag):
    """Nobody waits for long."""

    def wait(self, timeout=None):
        return super().wait(None if timeout is None else min(timeout, 0.01))


class Hasty(Seams):
    """The real world, in which no pause of a thread lasts."""

    def event(self):
        return HastyFlag()

    def sleep(self, seconds):
        super().sleep(min(seconds, 0.01))


class Struck:
    """A function that fails some times, and then does its work. `went_on`: it has."""

    def __init__(self, owner, name, times=3):
        self.inner, self.left, self.went_on = getattr(owner, name), times, False
        setattr(owner, name, self)

    def __call__(self, *given, **options):
        if self.left:
            self.left -= 1
            raise DEFECT
        result = self.inner(*given, **options)
        self.went_on = True
        return result


def goes_on(owner, name, start, times=3):
    """The thread calls this again after it has failed."""
    struck = Struck(owner, name, times)
    started = start()
    until(lambda: struck.went_on)
    return started


def queue_of(store=None, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        registry = QueueRegistry(store or MemoryStore(seams=Hasty()), "c")
        return registry.create(QueueConfig("q", **{"shards": 1, "unsafe_limits": True, **options}))


class Leads:
    """An office that this process has."""

    epoch = 1

    def __init__(self):
        self.leadership, self.lost = self, threading.Event()

    def check(self):
        """It leads."""


def says(_=None):
    Log("latchwork.logs").warning("something")
    return _


# ---- leases and elections


@case("coord/lock.py:Keeper.start spawn")
def renewal(tmp_path):
    grant = FencedLock(MemoryStore(seams=Hasty()), "lock", lease=60).acquire()
    grant._leased.lease = 0.3  # from now on: it is renewed at once, and has a minute left
    goes_on(grant._leased, "renew", grant.keep_alive)
    assert not grant.lost.is_set()
    grant.release()


@case("coord/election/election.py:LeaseElection._enter spawn")
def roster(tmp_path):
    election, stop = LeaseElection(MemoryStore(seams=Hasty()), "office", candidate="me"), HastyFlag()
    goes_on(election._candidates, "report", lambda: election._enter(stop))
    stop.set()
    election._leave()


@case("coord/election/election.py:Election._start Activity")
def campaign(tmp_path):
    election = LeaseElection(MemoryStore(seams=Hasty()), "office", candidate="me")
    goes_on(election, "_elect", election.start)
    until(lambda: election.leadership is not None)
    assert election.stop()


@case(
    "coord/election/across.py:GlobalElection._confirmed spawn",
    "coord/election/across.py:GlobalElection._seal parallel_map",
)
def late_seal(tmp_path):
    """A seal that fails ends the term in order, and the candidate stands again."""
    farms = {"iad": MemoryStore(seams=Hasty()), "lhr": MemoryStore(seams=Hasty())}
    one = GlobalElection(farms, "office", zookeeper=KazooClient("h:1"), farm_id="iad", candidate="me")
    one._client = one._line.client = Client(Zoo(), session=1)
    seal, calls, terms = one._seal, [], []

    def fails(grant, unsealed):
        calls.append(unsealed)
        if len(calls) == 2:
            raise DEFECT
        return frozenset({"lhr"}) if len(calls) == 1 else seal(grant, unsealed)

    one._seal = fails
    one.start(lambda leadership: terms.append(leadership.epoch) or leadership.lost.wait(20))
    until(lambda: len(terms) == 2)
    assert one.stop()


# ---- consumers, publishers, upkeep


@case("queue/sharded/consumer/consumer.py:Consumer._spawn_worker spawn")
def worker(tmp_path):
    queue, seen = queue_of(), []
    queue.publish("a")
    consumer = Consumer(queue, lambda delivery: seen.append(delivery.payload), concurrency=1, upkeep=False)
    goes_on(queue, "await_messages", consumer.start)
    until(lambda: seen == ["a"])
    consumer.stop(5)


@case("queue/sharded/consumer/consumer.py:Consumer.start Activity")
def supervisor(tmp_path):
    queue = queue_of()
    consumer = Consumer(queue, print, concurrency=1, upkeep=False)
    goes_on(queue.registry, "refresh_if_due", consumer.start)
    consumer.stop(5)


@case(
    "queue/sharded/consumer/worker.py:Worker.__init__ Background",
    "queue/sharded/consumer/worker.py:Worker.stop parallel_map",
)
def division(tmp_path):
    queue = queue_of()
    worker = Worker(queue.registry, upkeep=False)
    worker.handler("q", start_at=5)(print)
    worker.handler("q@g")(print)
    queue.group("g")
    goes_on(worker, "_allot", worker.start)
    worker.stop(5)


@case(
    "queue/sharded/publishing/publisher.py:Publisher._keep_sending Activity",
    "queue/sharded/publishing/publisher.py:Publisher._at_exit Activity",
)
def publisher(tmp_path):
    """A message that cannot be stored fails; those after it are stored, also when the interpreter ends."""
    queue = queue_of()
    publisher = queue.publisher()
    struck = Struck(queue.pointers, "reserve")
    for payload in ("lost", "lost", "lost", "a"):
        publication = publisher.publish(payload)
        until(publication.done)
    publication.result(0)
    until(lambda: publisher._sender is None)
    publisher._keep_sending = lambda: None  # its thread may store no more: only the end of the interpreter does
    publisher.publish("b")
    publisher.close = lambda timeout: (_ for _ in ()).throw(Unavailable("no thread"))
    publisher._at_exit()
    assert struck.went_on
    assert {"a", "b"} <= {delivery.payload for delivery in queue.receive(10)}


@case("queue/sharded/upkeep/upkeep.py:Upkeep.begin spawn")
def duty(tmp_path):
    term, upkeep = Leads(), Upkeep(queue_of().registry)
    term.lost = HastyFlag()

    class Duty:
        def run(self, _):
            return 0.0

    upkeep._duties = [Duty()]
    struck = Struck(upkeep._duties[0], "run")
    lead = threading.Thread(target=upkeep._lead, args=(term,))
    lead.start()
    until(lambda: struck.went_on)
    term.lost.set()
    lead.join(20)
    assert not lead.is_alive()


@case(
    "background.py:Activity.begin spawn",
    "background.py:Background.start Activity",
    "queue/sharded/upkeep/sweeper.py:Sweeper.__init__ Background",
    "queue/sharded/upkeep/sweeper.py:Sweeper.run_once parallel_map",
)
def sweeper(tmp_path):
    queue = queue_of()
    sweeper = Sweeper(queue.registry, Leads(), initial_delay=0, interval=0.01)
    goes_on(queue.registry, "scan", sweeper.start)
    assert sweeper.stop()


@case(
    "queue/sharded/upkeep/shovel.py:Shovel.__init__ Background",
    "queue/sharded/upkeep/shovel.py:Shovel.run_once parallel_map",
)
def shovel(tmp_path):
    queue = queue_of(shovel=ShovelConfig(0))
    shovel = Shovel(queue)
    goes_on(shovel, "run_once", shovel.start, times=1)
    assert shovel.stop()


@case("queue/sharded/upkeep/worker_group.py:WorkerMembership.__init__ Background")
def membership(tmp_path):
    group = Group(MemoryStore(seams=Hasty()), "workers")
    one = WorkerMembership(group, "me", lambda: ["q"])
    goes_on(one, "_join_or_renew", one.start)
    until(lambda: [member.member for member in group.members()] == ["me"])
    one.stop(5)


@case("queue/sharded/upkeep/reporter.py:Reporter.join Activity")
def reports(tmp_path):
    queue, told = queue_of(), threading.Event()
    reporter = Reporter(queue.registry)
    consumer = Consumer(queue, print, upkeep=False)
    goes_on(reporter, "_look", lambda: reporter.join(consumer, told.set))
    assert told.wait(20)
    reporter.leave(consumer, 5)


@case("queue/outbox/outbox.py:Outbox.__init__ Background")
def outbox(tmp_path):
    queue = queue_of()
    with PagedQueue.open(tmp_path, "out") as pages:
        outbox = Outbox(pages, queue)
        outbox.put("a")
        goes_on(outbox, "_forward_batch", outbox.start)
        until(lambda: [delivery.payload for delivery in queue.receive(1)] == ["a"])
        outbox.stop()


# ---- commands


@case("cli/coord/waiting.py:Waiting.__enter__ spawn")
def line_of_a_command_that_waits(tmp_path):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    before, sys.stderr = sys.stderr, Terminal()
    try:
        with waiting.Waiting(Hasty(), "the lock", lambda: says("held by another")):
            until(lambda: "held by another" in sys.stderr.getvalue())
    finally:
        sys.stderr = before


@case("cli/serving.py:Server.start spawn", "cli/serving.py:Server._begin spawn")
def probe(tmp_path):
    def answer(path):
        if not asked.append(path) and len(asked) <= 2:
            raise DEFECT
        return 200, TEXT, b"well\n"

    asked = []
    server = Server("127.0.0.1", 0, Hasty(), answer, lambda path: path == "/slow")
    goes_on(server, "_look", lambda: server.start("probe"))
    try:
        assert status(server, "/slow") == status(server, "/slow") == 500
        assert status(server, "/slow") == status(server, "/quick") == 200
    finally:
        server.stop()


def status(server, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=20) as reply:
            return reply.status
    except urllib.error.HTTPError as failure:
        return failure.code


@case("cli/queue/consume.py:_InHand.__init__ Background")
def messages_in_hand(tmp_path):
    queue = queue_of()
    queue.publish("a")
    with consume._InHand(queue) as in_hand:
        in_hand._pause, in_hand.deliveries = 0.01, queue.receive(1)
        struck = Struck(queue.pointers, "extend")
        until(lambda: struck.went_on)


# ---- what others are built of


@case("background.py:parallel_map spawn")
def parts_of_a_whole(tmp_path):
    assert sorted(parallel_map(SYSTEM, says, [1, 2, 3], 3, "parts")) == [1, 2, 3]


@case("logs.py:_returns spawn")
def logs_at_the_end(tmp_path):
    logs.ends()
    try:
        says()
        says()
        assert logs._ends == [True, True, True], "no handler has blocked"
    finally:
        logs._ends.clear()


@case("aio/seams.py:LoopSeams.spawn spawn")
def thread_of_a_loop(tmp_path):
    over = threading.Event()
    LoopSeams(SYSTEM).spawn(lambda: says() or over.set(), "thread").join(20)
    assert over.is_set()


@case("aio/pool.py:Pool.submit spawn")
def pool(tmp_path):
    pool, done = Pool(SYSTEM, 1, "pool"), []
    for number in range(2):
        pool.submit(lambda number=number: done.append(says(number)))
    until(lambda: done == [0, 1])
    pool.close()


@case("aio/lag.py:LoopWatch.join spawn")
def watch_of_a_loop(tmp_path):
    noted = []

    class Notes(Seams):
        def note(self, event, value=1, /, **labels):
            noted.append(event)

    async def main():
        watch = lag.LoopWatch(asyncio.get_running_loop(), Notes(), SYSTEM.thread())
        watch.join("me")
        until(lambda: "loop_lag" in noted)  # the loop is kept busy until the thread has logged that, and gone on
        while noted.count("loop_lag") < 2:
            await asyncio.sleep(0.01)
        watch.leave("me")

    before, lag.LONG, lag.EVERY = (lag.LONG, lag.EVERY), 0.05, 0.01
    try:
        asyncio.run(asyncio.wait_for(main(), 20))
    finally:
        lag.LONG, lag.EVERY = before


@case("aio/consumer.py:_Consumer.work spawn")
def end_of_a_consumer_whose_loop_has_ended(tmp_path):
    ended = threading.Event()

    async def main():
        store = aio.Store(MemoryStore())
        queue = await aio.QueueRegistry(store, "c").create(QueueConfig("q", shards=1, unsafe_limits=True))
        consumer = aio.Consumer(queue, lambda delivery: asyncio.sleep(0), concurrency=1, upkeep=False)
        inner, begun = consumer.of, asyncio.Event()
        end, work = inner._end, inner.work

        async def begins():
            begun.set()
            await work()

        inner._end, inner.work = lambda timeout: (says(), end(timeout), ended.set()), begins
        await consumer.start()
        await asyncio.wait_for(begun.wait(), 20)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asyncio.run(main())
    assert ended.wait(20)


# ---- the command


PARENTS = []
"""Kept open to the end: a child whose parent has died ends its process."""


@case(
    "cli/processes/child.py:Child.begin spawn",
    "cli/processes/child.py:Child.run spawn",
    "cli/processes/child.py:Child._heed spawn",
)
def child_of_a_worker(tmp_path):
    """It answers its parent, and drains when it is asked to."""
    ours, theirs = socket.socketpair()
    numbers = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
    before = {number: signal.getsignal(number) for number in numbers}
    child, parent = Child(f"1:{theirs.detach()}:{_shared_memory()}"), Channel(ours)
    PARENTS.append(parent)
    worker, told, asked = Worker(queue_of().registry), [], []
    worker.handler("q")(print)
    pulse, heed, answer = child._pulse, child._heed, child._answer

    def talk():
        while not told or not asked:
            for document in parent.received() or ():
                told.extend([1] * ("pulse" in document))
                asked.extend([1] * ("answer" in document))
                if "ready" in document:
                    parent.send(ask=1, path="/healthz", totals=None)
        parent.send(drain=True)

    child._pulse = lambda: (says(), pulse())  # what runs in these threads logs something first
    child._heed = lambda document: (says(), heed(document))
    child._answer = lambda document: (says(), answer(document))
    child.begin()
    talker = threading.Thread(target=talk)
    talker.start()
    try:
        assert child.run(worker), "all handlers had finished"
    finally:
        talker.join(20)
        logs._ends.clear()  # this process does not end
        for number, handler in before.items():
            signal.signal(number, handler)
    assert told
    assert asked


@case(
    "cli/top/feed.py:Feed.start spawn",
    "cli/top/feed.py:Feed.act_aside spawn",
    "observe/snapshot.py:snapshot parallel_map",
)
def screen(tmp_path):
    """A look that fails is followed by another one."""
    queue = queue_of()
    feed = Feed({"here": queue.store}, ["c"], 0.01, queue.store.seams)
    module = import_module("latchwork.observe.snapshot")
    real = module._farm
    struck = Struck(module, "_farm")
    try:
        struck.inner = lambda *given: says(real(*given))
        feed.start()
        until(lambda: struck.went_on and feed.found is not None and feed.failure is None)
        feed.act(lambda: says("done"))
        until(lambda: feed.said == "done")
        feed.act_aside(lambda: says("went on aside"))
        until(lambda: feed.said == "went on aside")
    finally:
        module._farm = real
        feed.stop()


@case("console/runs.py:Runs.begin spawn")
def run_of_the_console(tmp_path):
    """What is done to all messages that match goes on to its end."""
    queue = queue_of(max_deliveries=1)
    queue.publish_many(range(2), message_ids=["a", "b"])
    for delivery in queue.receive(2):
        delivery.nack("exception")
    store, key = queue.store, ("local", "c", "q")
    reader, runs = Reader({"local": store}, ["c"], store.seams, Kept(store.seams.lock())), Runs(store.seams)
    wanted = runs.chosen(reader, Wanted("redrive", key, "parked"), {})
    action = runs.action_of(wanted)
    real = action.run

    def run(*given):
        says()  # now: its run is over before it returns
        return real(*given)

    object.__setattr__(action, "run", run)
    runs.begin(wanted, action, reader, "anna", "")
    until(lambda: runs.get(wanted.run).run.is_over)
    assert runs.get(wanted.run).run.counts == {"done": 2}


# ----


def test_each_place_where_a_thread_is_started_has_a_case():
    assert set(places().values()) == set(CASES)
    assert len([place for place in CASES if place.endswith(" spawn")]) >= 15


@pytest.mark.parametrize("run", dict.fromkeys(CASES.values()), ids=lambda run: run.__name__)
def test_a_thread_goes_on_under_log_handlers_and_filters_that_raise(run, away, tmp_path, monkeypatch):
    monkeypatch.setattr(waiting, "QUIET", 0.0)
    monkeypatch.setattr(background, "QUIET", 0.0)  # each failure is logged
    monkeypatch.setattr(logs, "LEAVING", 60.0)  # a thread that logs may have to wait for the processor
    run(tmp_path)
    spawned = {place for place, one in CASES.items() if one is run and place.endswith(" spawn")}
    assert spawned or "background.py:Activity.begin spawn" in away.raised or run in {shovel}
    assert spawned <= away.raised, "nothing was logged in this thread"
