"""Each alert of deploy/monitoring fires in the fault that it names, and in no other; the files are of today's metrics.

The faults are made with the library, and its metrics are scraped each 15 s of virtual time. The alerts are tried on
these figures as the data that they are made from, and by Prometheus's own `promtool` where there is one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import warnings
from dataclasses import replace
from functools import cache

import pytest
from prometheus_client import CollectorRegistry

from latchwork.coord import FencedLock
from latchwork.errors import FencedOut, OutcomeUnknown
from latchwork.observe import observe, watch_queues
from latchwork.observe.events import EVENTS, GAUGES
from latchwork.observe.findings import KINDS
from latchwork.observe.prometheus import PrometheusTelemetry
from latchwork.queue import QueueConfig, QueueRegistry, Schedule
from latchwork.queue.sharded.history import noting
from latchwork.queue.sharded.workers import WORKERS, Running, WorkerReport, reporting, settling
from latchwork.store import Add, Exists, Key, MapPut, MemoryStore, Once, Put
from latchwork.store.model.expr import SERVER_NOW, Const, ListOf
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore
from tests.support import matrix
from tools.alerts import ALERTS
from tools.monitoring import HERE, ROWS, RUNBOOK, files, metric

STEP, MINUTES = 15, 12
"""Seconds between two scrapes, and minutes for which the fault is there."""


class Scene:
    """A client with a queue and a worker that reports, and the figures that Prometheus has scraped of it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.faulty = FaultyStore(MemoryStore(self.clock), seams=self.clock)
        self.metrics = CollectorRegistry()
        telemetry = PrometheusTelemetry(self.metrics)
        self.store = observe(self.faulty, telemetry)
        self.registry = QueueRegistry(self.store, "shop", farm_id="f")
        self.queues, self.acts = [], True
        self.queue = self.made()
        watch_queues(self.registry, telemetry, max_age=1.0)
        self.working: dict[str, dict] = {"w": {}}
        self.figures: list[dict] = []
        self.each_step = lambda: None

    def made(self, **config):
        """Make a queue that has a worker too."""
        self.queues.append(self.registry.create(QueueConfig(f"q{len(self.queues)}", shards=1, **config)))
        return self.queues[-1]

    def report(self) -> None:
        """Each worker that lives reports."""
        for queue in self.queues:
            for name, facts in self.working.items():
                acts_on = queue.live.changed if self.acts else 0
                self.faulty.inner.repeat(
                    reporting(queue, replace(WorkerReport(name, 0.0, acts_on, 1, 0, 0, 0), **facts))
                )

    def scrape(self) -> None:
        """Note all figures as they are now."""
        found = [sample for family in self.metrics.collect() for sample in family.samples]
        self.figures.append({(one.name, tuple(sorted(one.labels.items()))): one.value for one in found})

    def go_on(self) -> None:
        """Let the time pass, with a scrape each 15 s."""
        for _ in range(60 * MINUTES // STEP + 1):
            self.report()
            self.each_step()
            self.scrape()
            self.clock.advance(STEP)


def no_worker(scene):
    scene.working = {}
    scene.queue.publish("m")


def worker_died(scene):
    scene.working["other"] = {}
    scene.each_step = lambda: (
        scene.working.pop("other", None) if len(scene.figures) == 60 * MINUTES // STEP // 2 else None
    )


def processes_die(scene):
    def dies():
        name = f"child{len(scene.figures)}"
        for queue in scene.queues:
            rows = [reporting(queue, WorkerReport(name, 0.0, 0, 1, 0, 0, 0)), settling(queue, name)]
            scene.faulty.inner.repeat_many(rows).raise_unless()

    scene.each_step = dies


def saturated(scene):
    scene.working["w"] = {"hung": 2}


def long_running(scene):
    scene.working["w"] = {"longest": (Running("m", 400.0),)}


def clock_set_back(scene):
    def ahead():
        for queue in scene.queues:
            at = ListOf((SERVER_NOW + 3_600_000, *[Const(0)] * 5))
            workers = Key(queue.pointers.meta_set, f"{queue.name}_WORKERS")
            scene.faulty.inner.operate(workers, MapPut(WORKERS, "gone", at), repeatable=True)

    scene.each_step = ahead


def backlog(scene):
    scene.working["w"] = {"running": 1, "acked": 5}

    def comes():
        if len(scene.figures) % (60 // STEP) == 0:
            now, ready = int(scene.clock.wall() * 1000), scene.queue.depth().ready
            figures = [ready, 0, 0, 0, 0, 0, ready, 0, 0, 1, 0, 1, 0, 0, 1, []]
            scene.faulty.inner.repeat(noting(scene.queue, now, figures))
            scene.queue.publish_many(range(20))

    scene.each_step = comes


def expiring(scene):
    scene.made(message_expiry=1200).publish("m")


def expired(scene):
    short = scene.made(message_expiry=60)
    scene.clock.advance(100)
    short.publish("m")
    scene.clock.advance(61)
    assert short.receive() == []


def parked(scene):
    spent = scene.made(max_deliveries=1)
    spent.publish("m")
    spent.receive()[0].nack()


def failing(scene):
    scene.working["w"] = {"failed": 5}


def stranded(scene):
    plain = scene.made(retry=False)
    plain.publish("m")
    plain.receive()[0].nack()


def upkeep(scene):
    FencedLock(scene.store, "shop-sweeper", owner="leader", lease=10).acquire(1)
    scene.clock.advance(75)


def paused(scene):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scene.queue.pause()


def schedule_paused(scene):
    scene.registry.schedule(Schedule("nightly", scene.queue.name, cron="0 3 * * *"))
    scene.registry.pause_schedule("nightly")


def schedule_refused(scene):
    scene.registry.schedule(Schedule("tick", scene.queue.name, every=60))
    scene.registry.deactivate(scene.queue.name)


def lost(scene):
    scene.queue.publish("m")
    scene.faulty.delete(scene.registry.records.key(scene.queue.name))
    scene.registry.refresh()


def settings(scene):
    scene.queue.scale(3)
    scene.acts = False
    scene.clock.advance(11)


def unreadable(scene):
    scene.registry.create(QueueConfig("broken", shards=1))
    scene.faulty.operate(scene.registry.records.key("broken"), Put("shards", "many"))


def store_unreadable(scene):
    def down():
        first = scene.faulty._number + 1
        scene.faulty.plan = dict.fromkeys(range(first, first + 50), "dropped")

    scene.each_step = down


def no_figures(scene):
    scene.metrics = CollectorRegistry()


def outcomes_unknown(scene):
    key, remembered = Key("t", "k"), Once(8, "tokens", result=1)
    scene.store.operate(key, Put("n", 0), exists=Exists.ANY)

    def doubt():
        first = scene.faulty._number + 1
        scene.faulty.plan = dict.fromkeys(range(first, first + 50), "reply_lost")
        with pytest.raises(OutcomeUnknown):
            scene.store.operate(key, Add("n", 1), once=remembered)
        scene.faulty.plan = {}

    scene.each_step = doubt


def overloaded(scene):
    scene.each_step = lambda: scene.store.seams.note("retries", reason="overloaded")


def replaced(scene):
    def fence():
        grant = FencedLock(scene.store, f"l{len(scene.figures)}", owner="a", lease=1).acquire(1)
        scene.clock.advance(1.1)
        with pytest.raises(FencedOut):
            grant.check()

    scene.each_step = fence


FAULTS = {
    "LatchworkNoWorker": no_worker,
    "LatchworkWorkerDied": worker_died,
    "LatchworkProcessesDie": processes_die,
    "LatchworkHandlersHang": saturated,
    "LatchworkMessageHangs": long_running,
    "LatchworkBacklogGrows": backlog,
    "LatchworkMessagesExpire": expiring,
    "LatchworkMessagesExpired": expired,
    "LatchworkMessagesParked": parked,
    "LatchworkMessagesFail": failing,
    "LatchworkMessagesStranded": stranded,
    "LatchworkNoUpkeep": upkeep,
    "LatchworkQueuePaused": paused,
    "LatchworkClockSetBack": clock_set_back,
    "LatchworkSchedulePaused": schedule_paused,
    "LatchworkScheduleRefused": schedule_refused,
    "LatchworkQueueLost": lost,
    "LatchworkSettingsIgnored": settings,
    "LatchworkQueueUnreadable": unreadable,
    "LatchworkStoreUnreadable": store_unreadable,
    "LatchworkNoFigures": no_figures,
    "LatchworkOutcomesUnknown": outcomes_unknown,
    "LatchworkOverloaded": overloaded,
    "LatchworkHoldersReplaced": replaced,
}


def fires(alert, figures) -> set[tuple]:
    """The labels with which an alert fires at the end: it was so for as long as it asks."""
    need = 60 * alert.minutes // STEP + 1
    held = [_at(alert, figures[: len(figures) - ago]) for ago in range(need)]
    return set.intersection(*held)


def _at(alert, figures) -> set[tuple]:
    now = {labels: value for (name, labels), value in figures[-1].items() if _asks(alert, name, labels)}
    if alert.equals is None and alert.above is None:
        return set() if now else {()}
    if alert.per_second:
        window = figures[-1 - 300 // STEP :]
        now = {
            labels: value - next(old for one in window if (old := one.get((alert.metric, labels))) is not None)
            for labels, value in now.items()
        }
    largest: dict[tuple, float] = {}
    for labels, value in now.items():
        kept = tuple(pair for pair in labels if pair[0] in alert.by)
        largest[kept] = max(value, largest.get(kept, value))
    return {
        one for one, value in largest.items() if (value == alert.equals if alert.above is None else value > alert.above)
    }


def _asks(alert, name, labels) -> bool:
    return name == alert.metric and alert.labels.items() <= dict(labels).items()


@cache
def figures_of(name):
    """The figures of a fault."""
    scene = Scene()
    scene.report()
    FAULTS[name](scene)
    scene.go_on()
    return scene.figures


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_each_alert_fires_in_the_fault_that_it_names_and_in_no_other(name):
    fired = {alert.name for alert in ALERTS if fires(alert, figures_of(name))}
    assert fired == {name}


def test_an_alert_about_a_worker_that_died_names_each_of_its_queues():
    scene = Scene()
    scene.made()
    worker_died(scene)
    scene.go_on()
    (alert,) = [alert for alert in ALERTS if alert.name == "LatchworkWorkerDied"]
    assert fires(alert, scene.figures) == {(("queue", "q0"),), (("queue", "q1"),)}


@pytest.mark.parametrize(
    ("name", "event", "labels"),
    [
        ("LatchworkOutcomesUnknown", "doubts", {"outcome": "unknown"}),
        ("LatchworkHoldersReplaced", "fences_refused", {"by": "resource"}),
    ],
)
def test_an_alert_on_a_counter_fires_at_the_first_event_of_a_process(name, event, labels):
    scene = Scene()
    at = 60 * MINUTES // STEP - 60 // STEP
    scene.each_step = lambda: scene.store.seams.note(event, **labels) if len(scene.figures) == at - 1 else None
    scene.go_on()
    assert [alert.name for alert in ALERTS if fires(alert, scene.figures)] == [name]


def test_no_alert_fires_where_nothing_is_wrong():
    scene = Scene()
    scene.go_on()
    assert [alert.name for alert in ALERTS if fires(alert, scene.figures)] == []


def test_every_finding_of_doctor_and_no_other_has_an_alert():
    assert {alert.labels["kind"] for alert in ALERTS if alert.metric == "latchwork_findings"} == set(KINDS) - {
        "retrying",
        "draining",
    }
    assert set(FAULTS) == {alert.name for alert in ALERTS}


def test_every_alert_has_a_line_in_the_runbook():
    page = (HERE.parent.parent / RUNBOOK).read_text()
    assert [alert.name for alert in ALERTS if f"`{alert.name}`" not in page] == []
    assert "\n## Alerts\n" in page


def test_every_metric_has_a_panel():
    shown = [name for names in ROWS.values() for name in names]
    assert sorted(shown) == sorted([*EVENTS, *GAUGES])
    queries = json.dumps(json.loads(files()["dashboard.json"])["panels"])
    assert [name for name, event in {**EVENTS, **GAUGES}.items() if metric(event) not in queries] == []


@pytest.mark.parametrize("name", ["rules.yml", "dashboard.json"])
def test_the_files_are_made_from_the_metrics_of_today(name):
    assert (HERE / name).read_text() == files()[name], "run make monitoring"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: Debian's package prometheus has it")
def test_prometheus_itself_fires_each_alert_in_its_fault_alone(tmp_path):
    (tmp_path / "rules.yml").write_text(files()["rules.yml"])
    tests = [_as_test(figures_of(name)) for name in matrix.sample(list(FAULTS), "alerts")]
    plan = {"rule_files": ["rules.yml"], "evaluation_interval": f"{STEP}s", "tests": tests}
    (tmp_path / "tests.yml").write_text(json.dumps(plan))
    command = ["promtool", "test", "rules", str(tmp_path / "tests.yml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def _as_test(figures) -> dict:
    """The figures of a fault, and what fires, as `promtool test rules` takes them."""
    asked = {alert.metric for alert in ALERTS}
    series = sorted({where for one in figures for where in one if where[0] in asked})
    expected = {alert.name: [_expected(alert, labels) for labels in fires(alert, figures)] for alert in ALERTS}
    return {
        "interval": f"{STEP}s",
        "input_series": [
            {"series": name + _braces(labels), "values": _values([one.get((name, labels)) for one in figures])}
            for name, labels in series
        ],
        "alert_rule_test": [
            {"eval_time": f"{MINUTES}m", "alertname": name, "exp_alerts": alerts} for name, alerts in expected.items()
        ],
    }


def _braces(labels) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels) + "}"


def _values(found) -> str:
    """The values of a series; a scrape that does not show it any more ends it at once."""
    before = [None, *found]
    return " ".join(
        f"{now:g}" if now is not None else "_" if last is None else "stale"
        for last, now in zip(before, found, strict=False)
    )


def _expected(alert, labels) -> dict:
    found = {name: value for name, value in labels if value}
    summary = alert.summary.replace("{{ $labels.queue }}", found.get("queue", ""))
    return {
        "exp_labels": {**found, "severity": alert.severity},
        "exp_annotations": {"summary": summary, "runbook": f"{RUNBOOK}#{alert.runbook}"},
    }
