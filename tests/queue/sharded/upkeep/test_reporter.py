"""Workers act on a pause within 3 s, whatever they do, and report it. In virtual time."""

from __future__ import annotations

import pytest

from latchwork.coord import RateLimiter
from latchwork.queue import Consumer, QueueConfig, QueueRegistry
from latchwork.queue.sharded.consumer.consumer import FIRST_REPORT
from latchwork.queue.sharded.upkeep import reporter as module
from latchwork.queue.sharded.upkeep.reporter import reporter_of
from latchwork.queue.sharded.workers import KEPT, SILENT, reading, stops_in
from latchwork.store import Exists, MemoryStore, Put, SQLiteStore
from latchwork.store.rows import Rows
from latchwork.testing.clock import ManualClock
from tests.queue.sharded.upkeep.test_upkeep import queue_on
from tests.sim.stage import Fault, Kind, Stage
from tests.support.sqlite_damage import damage_row

SOON = 3.0
OTHERWISE = {"upkeep": False}, {"concurrency": 2}, {"prefetch": 1}
"""Options of a worker; `make long` has all of them with handlers of each length."""


def long_queue_on(store):
    """A queue whose handlers may take long."""
    return QueueRegistry(store, "c", farm_id="f").create(QueueConfig("long", shards=1))


def working(seconds, *, takes=0.0, begins=lambda: None, **options):
    """A process that consumes, and says so when a handler begins."""

    def body(store):
        def handle(delivery):
            begins()
            store.seams.sleep(takes)
            return True

        with Consumer(queue_on(store), handle, **options):
            store.seams.sleep(seconds)

    return body


def changed(verb, *arguments):
    """Somebody changes the settings; returns the seconds until every worker says that it acts on that."""

    def body(store):
        queue = QueueRegistry(store, "c", farm_id="f").get("q")
        began = store.seams.monotonic()
        getattr(queue, verb)(*arguments, by="anna@web-7")
        while not all(worker.acts_on == queue.live.changed for worker in queue.workers()):
            store.seams.sleep(0.1)
        assert queue.live.changed_by == "anna@web-7"
        return store.seams.monotonic() - began, queue.workers()

    return body


@pytest.mark.filterwarnings("ignore:queue 'q' is paused")
@pytest.mark.parametrize(
    ("takes", "options"),
    [
        *((takes, {}) for takes in (0.0, 0.5, 60.0)),
        *((0.5, options) for options in OTHERWISE),
        *(pytest.param(takes, options, marks=pytest.mark.long) for takes in (0.0, 60.0) for options in OTHERWISE),
    ],
)
def test_a_pause_a_resume_and_a_scale_act_within_three_seconds_in_idle_busy_and_paused_workers(options, takes):
    stage, begun = Stage(), []
    if takes:
        stage.act("publisher", lambda store: queue_on(store).publish_many(range(400)))
    for name in ("one", "other"):
        stage.act(name, working(45, takes=takes, begins=lambda: begun.append(stage.world.now), **options), after=1)
    stage.act("pauses", changed("pause"), after=15)
    stage.act("resumes", changed("resume"), after=28)
    stage.act("scales", changed("scale", 3), after=40)
    stage.play()
    for who in ("pauses", "resumes", "scales"):
        seconds, workers = stage.said[who]
        assert seconds <= SOON, (who, seconds)
        assert len(workers) == 2
    assert [worker.threads for worker in stage.said["pauses"][1]] == [0, 0]
    assert [at for at in begun if 15 + SOON < at < 28] == [], "handlers began while the queue was paused"
    if takes == 0.5:
        assert any(at < 15 for at in begun)
        assert any(28 < at < 28 + SOON for at in begun), "they work again"


@pytest.mark.filterwarnings("ignore:queue 'q' is paused")
@pytest.mark.parametrize(
    ("options", "keeps"), [({}, ""), ({"concurrency": 2}, "; this program keeps its own number, 2")]
)  # fmt: skip
def test_a_worker_logs_each_change_once_with_who_made_it_and_the_number_of_threads_that_it_keeps(
    caplog, options, keeps
):
    caplog.set_level("INFO", "latchwork.worker")
    stage = Stage()
    stage.act("worker", working(120, **options), after=1)
    stage.act("pauses", changed("pause"), after=20)
    stage.act("late", working(20, upkeep=False), after=30)
    stage.act("resumes", changed("resume"), after=60)
    stage.act("scales", changed("scale", 3), after=100)
    stage.play()
    lines = [one.getMessage() for one in caplog.records if one.getMessage().startswith("queue 'q'")]
    paused = "queue 'q' is paused by anna@web-7: no handler begins until it is resumed"
    assert lines == [
        paused,
        paused,  # as the one that starts meanwhile finds it
        f"queue 'q' is resumed with 1 thread by anna@web-7{keeps}",
        f"queue 'q' goes on at 3 threads by anna@web-7{keeps}",
    ]


@pytest.mark.filterwarnings("ignore:queue 'q' is paused")
def test_a_pause_whose_announcement_is_lost_acts_within_half_a_minute():
    stage = Stage({"pauses": {"Add:changes": [Fault(Kind.DROPPED)] * 1000}})
    # A sweep lists the queues, and so reads the settings too; so does the refresh after a minute, and after five more.
    stage.act("worker", working(300, upkeep=False), after=1)
    stage.act("pauses", changed("pause"), after=100)
    stage.play()
    seconds, _ = stage.said["pauses"]
    assert SOON < seconds <= module.UNHEARD + SOON


def test_an_idle_worker_reads_no_settings_while_the_bell_tells_of_none():
    stage = Stage()
    stage.server.trace = []
    stage.act("worker", working(200, upkeep=False), after=1)
    stage.play()
    reads = [entry for entry in stage.server.trace if entry[1] > 5 and "f_c_ignis_queues" in entry[3]]
    assert 0 < len(reads) <= 200 / module.UNHEARD + 4  # and two refreshes of the registry


@pytest.mark.long
def test_a_worker_that_was_killed_is_silent_within_a_minute_and_is_forgotten_by_the_others_later():
    stage = Stage()
    dead = stage.act("dead", working(1e5))
    stage.world.at(107.0, dead.die)
    stage.act("lives", working(2 * KEPT), after=1)

    def look(store):
        return [worker.is_silent for worker in QueueRegistry(store, "c", farm_id="f").get("q").workers()]

    stage.act("before", look, after=106)
    stage.act("soon", look, after=107 + 60)
    stage.act("late", look, after=107 + KEPT + module.TIDY + SILENT)
    stage.play(until=3 * KEPT)
    assert stage.said["before"] == [False, False]
    assert sorted(stage.said["soon"]) == [False, True]
    assert stage.said["late"] == [False]


def test_a_worker_that_stops_takes_its_report_back_and_one_that_fails_counts_what_failed():
    stage = Stage()
    stage.act("publisher", lambda store: queue_on(store).publish_many(range(10)))

    def body(store):
        queue = queue_on(store)
        with Consumer(queue, lambda delivery: False, upkeep=False):
            store.seams.sleep(50)
            during = queue.workers()
        return during, queue.workers()

    stage.act("worker", body, after=1)
    stage.play()
    (during,), after = stage.said["worker"]
    assert (during.failed, during.acked, after) == (10, 0, [])


def test_a_consumer_reports_the_handlers_that_hang_and_says_that_it_stopped():
    stage = Stage()
    stage.act("publisher", lambda store: queue_on(store).publish_many(range(10)))

    def body(store):
        queue = queue_on(store)
        with Consumer(queue, lambda _: store.seams.sleep(1e5), upkeep=False, grace=0):
            store.seams.sleep(60)
            during = queue.workers()
        return during, stops_in(Rows(store.repeat_many([reading(queue)])))

    stage.act("worker", body, after=1)
    stage.play(until=1e5)
    ((during,), (stopped,)) = stage.said["worker"]
    assert (during.hung, during.is_saturated) == (2 * during.threads, True)
    assert (stopped.worker, stopped.ago < SOON) == (during.worker, True)


def test_a_consumer_reports_which_handlers_run_longest_and_since_when_it_drains():
    stage, ids = Stage(), []
    stage.act("publisher", lambda store: ids.extend(long_queue_on(store).publish_many(range(6))))

    def body(store):
        queue, begun = long_queue_on(store), []

        def handle(_):
            begun.append(0)
            if len(begun) > 1:
                store.seams.sleep(400)

        consumer = Consumer(queue, handle, upkeep=False, grace=200, concurrency=5).start()
        store.seams.sleep(40)
        during = queue.workers()
        store.seams.spawn(consumer.stop, "stops")
        store.seams.sleep(20)
        return during, queue.workers()

    stage.act("worker", body, after=1)
    stage.play(until=1e3)
    ((during,), (drains,)) = stage.said["worker"]
    assert during.drains is None
    assert len(during.longest) == 3, "no more than three"
    assert {one.message_id for one in during.longest} < set(ids)
    for one in during.longest:
        assert (38 <= one.seconds <= 40, one.given_up) == (True, False)
    assert 18 <= drains.drains <= 22
    assert drains.running == 5


def test_a_consumer_that_has_stopped_says_for_how_long_it_had_taken_no_more_messages():
    stage = Stage()
    stage.act("publisher", lambda store: long_queue_on(store).publish("m"))

    def body(store):
        queue = long_queue_on(store)
        consumer = Consumer(queue, lambda _: store.seams.sleep(60), upkeep=False, grace=200).start()
        store.seams.sleep(10)
        consumer.stop()
        return stops_in(Rows(store.repeat_many([reading(queue)])))

    stage.act("worker", body, after=1)
    stage.play(until=1e3)
    ((stop,),) = [stage.said["worker"]]
    assert 45 <= stop.drained <= 55


def test_a_consumer_reports_how_often_its_rate_let_no_handler_begin():
    stage = Stage()
    stage.act("publisher", lambda store: long_queue_on(store).publish_many(range(6)))

    def body(store):
        queue = long_queue_on(store)
        rate = RateLimiter(store, "slow", limit=1, per=20)
        with Consumer(queue, lambda _: None, upkeep=False, rate=rate):
            store.seams.sleep(40)
            return queue.workers()

    stage.act("worker", body, after=1)
    stage.play(until=1e3)
    ((report,),) = [stage.said["worker"]]
    assert report.rate_limited > 0
    assert report.acked < 6


@pytest.mark.filterwarnings("ignore:queue 'q' is paused")
@pytest.mark.parametrize("options", [{}, {"concurrency": 2}])
def test_no_handler_begins_after_a_worker_has_said_that_it_acts_on_a_pause(options):
    stage, begun = Stage(), []
    stage.server.trace = []
    stage.act("publisher", lambda store: queue_on(store).publish_many(range(3000)))
    quick = working(8, takes=0.002, begins=lambda: begun.append(stage.world.now), upkeep=False, **options)
    stage.act("worker", quick, after=1)
    stage.act("pauses", changed("pause"), after=2)
    stage.play()
    said = min(at for _, at, _, what, _ in stage.server.trace if at > 2 and "q_WORKERS [MapPut" in what)
    assert len([at for at in begun if at < said]) > 400
    assert [at for at in begun if at > said] == []


@pytest.mark.parametrize("options", [{}, {"upkeep": False}, {"ordered": True}])
def test_a_worker_is_known_and_has_said_that_it_works_before_it_takes_its_first_message(options, caplog):
    """So it is missed when it dies, however early."""
    caplog.set_level("INFO", "latchwork.worker")
    late = {"worker": {"q_WORKERS": [2.0]}}
    stage, said = Stage(late), []
    stage.server.trace = []
    stage.act("publisher", lambda store: queue_on(store).publish_many(range(20)))
    lines = lambda: [one.getMessage() for one in caplog.records]  # noqa: E731 - what was logged by then
    stage.act("worker", working(5, begins=lambda: said.append(lines()), **options), after=1)
    stage.play()
    calls = [what for _, at, _, what, _ in stage.server.trace if at >= 1]
    reports, claims = (
        [n for n, what in enumerate(calls) if word in what] for word in ("q_WORKERS [MapPut", "MapPut claims")
    )
    assert reports[0] < claims[0]
    assert any("works (" in line for line in said[0])


def test_a_worker_whose_report_fails_takes_messages_all_the_same(monkeypatch):
    def fails(*_):
        raise RuntimeError("the record of the workers cannot be written")

    monkeypatch.setattr(module, "reporting", fails)
    stage, begun = Stage(), []
    stage.act("publisher", lambda store: queue_on(store).publish("m"))
    stage.act("worker", working(20, begins=lambda: begun.append(stage.world.now)), after=1)
    stage.play()
    assert [at < 1 + FIRST_REPORT + 1 for at in begun] == [True]


def test_what_was_counted_lately_is_what_was_counted_in_the_last_minute():
    clock = ManualClock()
    registry = QueueRegistry(MemoryStore(clock), "c", farm_id="f")
    consumer = Consumer(registry.create(QueueConfig("q", shards=1)), print, upkeep=False)
    reporter, lately = reporter_of(registry), []
    for _ in range(4):
        consumer.stats["acked"] += 5
        reporter._look([consumer], reporter._last)
        lately.append(reporter.counted([consumer])["q", "acked"])
        clock.advance(module.REPORT + 20)
    assert lately == [5, 5, 10, 10]


@pytest.mark.parametrize("damage", ["a bin", "the whole record"])
def test_a_record_of_workers_that_is_damaged_is_begun_again_with_the_next_report(damage, tmp_path):
    store = SQLiteStore(tmp_path / "s.db", synchronous="off")
    registry = QueueRegistry(store, "c", farm_id="f")
    queues = [registry.create(QueueConfig(name, shards=1)) for name in ("damaged", "sound")]
    consumers, record = [Consumer(queue, print, upkeep=False) for queue in queues], reading(queues[0]).key
    if damage == "a bin":
        store.operate(record, Put("workers", "no map"), exists=Exists.ANY)
    else:
        store.operate(record, Put("workers", {}), exists=Exists.ANY)
        damage_row(store, record)
    assert queues[0].workers() == []
    reporter_of(registry)._look(consumers, module._LastReport())
    assert [len(queue.workers()) for queue in queues] == [1, 1]
    store.close()


def test_a_process_whose_reports_could_not_begin_reports_once_a_later_consumer_starts():
    class Busy(ManualClock):
        tasks, most = 0, 0

        def spawn(self, run, name):
            self.tasks += 1
            if self.tasks > self.most:
                raise RuntimeError("can't start new thread")
            spawned.append(run)
            return self

        def is_alive(self):
            return True

        def join(self, timeout=None):
            """Nothing runs by itself."""

    spawned, clock = [], Busy()
    registry = QueueRegistry(MemoryStore(clock), "c", farm_id="f")
    reporter, consumer = reporter_of(registry), Consumer(queue_on(registry.store), print, upkeep=False)
    with pytest.raises(RuntimeError):
        reporter.join(consumer, lambda: None)
    reporter.leave(consumer, 0.0)
    clock.most = 10
    reporter.join(consumer, lambda: None)
    assert len(spawned) == 1
