"""A real Prometheus endpoint, scraped over HTTP and read by Prometheus's own parser."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from latchwork.coord import CountDownLatch
from latchwork.errors import InvalidRequest
from latchwork.observe import EVENTS, GAUGES, observe, watch_queues
from latchwork.observe.events import Kind
from latchwork.observe.prometheus import PrometheusGauges, PrometheusTelemetry
from latchwork.queue import QueueConfig, QueueRegistry, Sweeper
from latchwork.store import MemoryStore
from latchwork.testing.stores import FaultyStore
from tests.queue.sharded.world import Election


@pytest.fixture
def registry():
    return prometheus_client.CollectorRegistry()


@pytest.fixture
def scrape(registry):
    """What an endpoint of the registry says: (name, labels) -> value; and the families by name."""
    server, thread = prometheus_client.start_http_server(0, addr="127.0.0.1", registry=registry)

    def look():
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        families = list(text_string_to_metric_families(text))
        samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }
        return samples, {family.name: family for family in families}

    yield look
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_a_scrape_shows_what_was_done(clock, registry, scrape):
    telemetry = PrometheusTelemetry(registry)
    faulty = FaultyStore(MemoryStore(clock), seams=clock)
    store = observe(faulty, telemetry)
    queues = QueueRegistry(store, "c", farm_id="f")
    queue = queues.create(QueueConfig("orders", retry=False, shards=2))
    watch_queues(queues, telemetry)
    queue.publish_many(["a", "b", "c"])
    clock.advance(30)
    first, second = queue.receive(2)
    first.ack()
    second.nack("rejected")
    latch = CountDownLatch.create(store, "c", "l", count=1)
    faulty.next("reply_lost")
    latch.count_down()
    assert latch.wait(timeout=1)
    assert Sweeper(queues, Election(1), parallelism=1).run_once().ok

    found, families = scrape()
    q = ("queue", "orders")
    assert found["latchwork_published_total", ("outcome", "published"), q] == 3
    assert found["latchwork_handled_total", ("outcome", "acked"), q] == 1
    assert found["latchwork_handled_total", ("outcome", "rejected"), q] == 1
    assert found["latchwork_retries_total", ("reason", "in_doubt")] == 1
    assert found["latchwork_doubts_total", ("outcome", "applied")] == 1
    assert found["latchwork_waits_seconds_count", ("kind", "latch"), ("outcome", "done")] == 1
    assert found["latchwork_sweeps_seconds_count", ("outcome", "swept"), q] == 1
    assert found["latchwork_last_sweep_seconds", q] == clock.wall()
    assert found["latchwork_store_calls_seconds_count", ("outcome", "unknown"), ("verb", "operate")] == 1
    assert found["latchwork_store_rows_total", ("outcome", "done"), ("verb", "get_many")] > 0
    assert found["latchwork_queue_depth", ("part", "ready"), q] == 1
    assert found["latchwork_queue_depth", ("part", "sideline"), q] == 1
    assert found["latchwork_queue_oldest_seconds", q] == pytest.approx(30, abs=0.1)
    assert found["latchwork_queue_last_sweep_seconds", q] == clock.wall()
    assert found[("latchwork_queues_readable",)] == 1
    kinds = {family.type for name, family in families.items() if name.startswith("latchwork_")}
    assert kinds == {"counter", "histogram", "gauge"}


def test_the_registry_is_the_callers_and_takes_one_telemetry(registry):
    before = list(prometheus_client.REGISTRY.collect())
    PrometheusTelemetry(registry)
    assert {family.name for family in prometheus_client.REGISTRY.collect()} == {family.name for family in before}
    names = {family.name for family in registry.collect()}
    assert len(names) == len(EVENTS)
    with pytest.raises(InvalidRequest, match="share one"):
        PrometheusTelemetry(registry)


def test_watching_asks_no_store_before_somebody_looks(clock, registry):
    faulty = FaultyStore(MemoryStore(clock), seams=clock)
    telemetry = PrometheusTelemetry(registry)
    watch_queues(QueueRegistry(observe(faulty, telemetry), "c"), telemetry)
    assert faulty.total == 0
    assert {family.name for family in registry.collect()} >= {"latchwork_queue_depth", "latchwork_queues_readable"}
    assert faulty.total > 0
    assert len(GAUGES) == 6


def test_a_telemetry_watches_one_client_and_says_so_to_a_second(clock, registry, scrape):
    store, telemetry = MemoryStore(clock), PrometheusTelemetry(registry)
    for client in ("a", "b"):
        QueueRegistry(store, client).create(QueueConfig(f"of-{client}", shards=1))
    watch_queues(QueueRegistry(store, "a"), telemetry)
    with pytest.raises(InvalidRequest, match="with a telemetry and a registry of its own"):
        watch_queues(QueueRegistry(store, "b"), telemetry)
    samples, _ = scrape()
    assert {dict(labels)["queue"] for name, *labels in samples if name == "latchwork_queue_depth"} == {"of-a"}

    own = prometheus_client.CollectorRegistry()
    watch_queues(QueueRegistry(store, "b"), PrometheusTelemetry(own))
    assert own.get_sample_value("latchwork_queue_depth", {"queue": "of-b", "part": "ready"}) == 0


def test_a_scrape_survives_a_store_that_is_away(clock, registry, scrape):
    faulty = FaultyStore(MemoryStore(clock), seams=clock)
    telemetry = PrometheusTelemetry(registry)
    queues = QueueRegistry(observe(faulty, telemetry), "c")
    queues.create(QueueConfig("orders", shards=2))
    watch_queues(queues, telemetry)
    faulty.plan = {faulty._number + n: "dropped" for n in range(1, 9)}
    found, _ = scrape()
    assert found[("latchwork_queues_readable",)] == 0
    assert not [name for name in found if name[0] == "latchwork_queue_depth"]


OPERATIONS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", OPERATIONS, re.DOTALL), ids=["sweeper", "metrics"])
def test_the_code_in_the_operations_page_runs_as_it_stands_there(code):
    code = code.replace("latchwork.connect()", "latchwork.connect('memory:')").replace("9_000", "0")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_operations_page_has_every_metric_with_its_labels():
    section = OPERATIONS.partition("## Metrics and traces")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|([^|]*)\|", section, re.MULTILINE)
    page = {name: labels.strip() for names, labels in rows for name in re.findall(r"`(\w+)`", names)}
    page.pop("latchwork_", None)
    page["published_total"] = page["handled_total"]
    events = [*EVENTS.values(), *GAUGES.values()]
    end = {Kind.COUNTER: "_total", Kind.HISTOGRAM: "_seconds"}
    ours = {each.name + end.get(each.kind, "_seconds" if each.unit else ""): ", ".join(each.labels) for each in events}
    assert page == ours


def test_a_queue_that_was_never_swept_is_told_by_its_depth_alone(clock, registry, scrape):
    telemetry = PrometheusTelemetry(registry)
    queues = QueueRegistry(MemoryStore(clock), "c", farm_id="f")
    queues.create(QueueConfig("never", shards=1))
    watch_queues(queues, telemetry)
    samples, _ = scrape()
    depths = {row[0] for row in samples if ("queue", "never") in row[1:]}
    assert "latchwork_queue_depth" in depths, "what the alert for it is made of"
    assert "latchwork_queue_last_sweep_seconds" not in depths


@pytest.mark.parametrize("nothing", [None, "registry", prometheus_client])
def test_figures_that_no_scrape_would_find_are_refused(nothing):
    for telemetry in (PrometheusTelemetry, PrometheusGauges):
        with pytest.raises(InvalidRequest, match="it must be a CollectorRegistry"):
            telemetry(nothing)
