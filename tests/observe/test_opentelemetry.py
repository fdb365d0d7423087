"""Metrics and traces by the real SDK of OpenTelemetry, kept in memory."""

from __future__ import annotations

from datetime import timedelta

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from latchwork.coord import CountDownLatch
from latchwork.observe import observe, watch_queues
from latchwork.observe.opentelemetry import OpenTelemetry
from latchwork.queue import BatchingConfig, Consumer, QueueConfig, QueueRegistry, Shovel, Sweeper
from latchwork.seams import SYSTEM, Seams
from latchwork.store import MemoryStore
from tests.queue.sharded.world import Election

SECRET = "4711-secret"


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def tracer(spans):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider.get_tracer("test")


@pytest.fixture
def telemetry(tracer, reader):
    return OpenTelemetry(meter=MeterProvider([reader]).get_meter("test"), tracer=tracer)


@pytest.fixture
def queues(telemetry):
    return QueueRegistry(observe(MemoryStore(), telemetry), "c", farm_id="f")


def finished(spans, name):
    return [span for span in spans.get_finished_spans() if span.name == f"latchwork {name}"]


def consume(queue, handler, enough, *, until):
    consumer = Consumer(queue, handler, concurrency=1).start()
    end = SYSTEM.monotonic() + 20
    while not until(enough) and SYSTEM.monotonic() < end:
        SYSTEM.sleep(0.01)
    consumer.stop()


def test_publish_and_handle_share_one_trace_and_the_handlers_own_spans_are_in_it(queues, spans, tracer):
    queue = queues.create(QueueConfig("q", shards=1))
    with tracer.start_as_current_span("request") as request:
        queue.publish({"n": 1}, headers={"tenant": "t1"})
    headers = {}

    def handler(delivery):
        headers.update(delivery.headers)
        with tracer.start_as_current_span("inside"):
            return True

    consume(queue, handler, 1, until=lambda n: len(finished(spans, "handle")) >= n)
    (publish,), (handle,) = finished(spans, "publish"), finished(spans, "handle")
    (inside,) = [span for span in spans.get_finished_spans() if span.name == "inside"]
    trace_id = request.get_span_context().trace_id
    assert {span.context.trace_id for span in (publish, handle, inside)} == {trace_id}
    assert handle.parent.span_id == publish.context.span_id
    assert inside.parent.span_id == handle.context.span_id
    assert (publish.kind, handle.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert publish.attributes["latchwork.queue"] == "q"
    assert headers["tenant"] == "t1"
    assert headers["traceparent"].startswith(f"00-{trace_id:032x}-{publish.context.span_id:016x}-")


def test_a_traceparent_that_the_caller_passes_on_is_gone_on_from(queues, spans):
    queue = queues.create(QueueConfig("q", shards=1))
    given = f"00-{'a' * 32}-{'b' * 16}-01"
    queue.publish(1, headers={"traceparent": given})
    (publish,) = finished(spans, "publish")
    (delivery,) = queue.receive(1)
    assert publish.context.trace_id == int("a" * 32, 16)
    assert publish.parent.span_id == int("b" * 16, 16)
    assert delivery.headers["traceparent"].startswith(f"00-{'a' * 32}-{publish.context.span_id:016x}")


def test_the_trace_survives_sideline_and_shovel(queues):
    queue = queues.create(QueueConfig("q", retry=False, shards=1))
    queue.publish(1)
    (first,) = queue.receive(1)
    first.nack("rejected")
    while not (again := queue.receive(1)):
        Shovel(queue).run_once()
    assert again[0].headers["traceparent"] == first.headers["traceparent"]


def test_each_group_and_each_attempt_go_on_from_the_publish(queues, spans):
    queue = queues.create(QueueConfig("q", shards=1, backoff=0.001))
    groups = [queue.group(name) for name in ("audit", "mail")]
    queue.publish(1)
    failed = []

    def handler(delivery):
        if delivery.attempts == 1 and not failed:
            failed.append(delivery)
            raise ValueError

    consume(queue, handler, 2, until=lambda n: len(finished(spans, "handle")) >= n)
    for group in groups:
        seen = len(finished(spans, "handle"))
        consume(group, lambda delivery: None, seen + 1, until=lambda n: len(finished(spans, "handle")) >= n)
    (publish,) = finished(spans, "publish")
    handled = finished(spans, "handle")
    assert sorted(span.attributes["latchwork.queue"] for span in handled) == ["q", "q", "q@audit", "q@mail"]
    assert {span.parent.span_id for span in handled} == {publish.context.span_id}


class Still(Seams):
    """A clock that stands still: messages wait for others until their publisher is closed."""

    def monotonic(self):
        return 0.0


def test_what_a_publisher_stores_together_is_linked_to_each_that_published(telemetry, spans, tracer):
    queues = QueueRegistry(observe(MemoryStore(Still()), telemetry), "c")
    queue = queues.create(QueueConfig("q", shards=1))
    with queue.publisher(linger=1.0) as publisher:
        for n in range(2):
            with tracer.start_as_current_span(f"request {n}"):
                publisher.publish(n)
    requests = {s.context.span_id for s in spans.get_finished_spans() if s.name.startswith("request")}
    (publish,) = finished(spans, "publish")
    assert {link.context.span_id for link in publish.links} == requests
    seen = [delivery.headers["traceparent"].split("-")[2] for delivery in queue.receive(2)]
    assert len(seen) == 2


def test_messages_that_no_consumer_hands_out_are_handled_in_the_trace_too(queues, spans, telemetry):
    queue = queues.create(QueueConfig("q", shards=1))
    queue.publish(1)
    queue.publish(2)
    headers = [delivery.headers for delivery in queue.receive(2)]
    published = [span.context.span_id for span in finished(spans, "publish")]
    with telemetry.handling(headers[:1], queue="q"), telemetry.handling([*headers, None], queue="q"):
        pass
    several, one = finished(spans, "handle")
    assert one.parent.span_id in published
    assert {link.context.span_id for link in several.links} == set(published)
    assert several.attributes["latchwork.messages"] == 3


def test_a_batch_of_several_publishes_is_linked_to_each(queues, spans):
    batching = BatchingConfig(max_size=3, max_wait=timedelta(seconds=5))
    queue = queues.create(QueueConfig("q", shards=1, batching=batching))
    for n in range(3):
        queue.publish(n)
    consume(queue, lambda batch: None, 1, until=lambda n: len(finished(spans, "handle")) >= n)
    (handle,) = finished(spans, "handle")
    assert {link.context.span_id for link in handle.links} == {s.context.span_id for s in finished(spans, "publish")}
    assert handle.attributes["latchwork.messages"] == 3


def test_a_span_that_failed_has_the_errors_type_and_nothing_of_its_text(queues, spans):
    queue = queues.create(QueueConfig("q", shards=1))
    queue.publish(SECRET)

    def handler(delivery):
        raise ValueError(delivery.payload)

    consume(queue, handler, 1, until=lambda n: len(finished(spans, "handle")) >= n)
    (handle,) = finished(spans, "handle")
    assert (handle.status.status_code, handle.status.description) == (StatusCode.ERROR, "ValueError")
    assert SECRET not in "".join(span.to_json() for span in spans.get_finished_spans())


def test_sweeps_and_waits_have_spans(queues, spans):
    queues.create(QueueConfig("q", shards=1))
    Sweeper(queues, Election(7), parallelism=1).run_once()
    assert CountDownLatch.create(queues.store, "c", "l", count=0).wait(timeout=0)
    (sweep,), (wait,) = finished(spans, "sweep"), finished(spans, "wait")
    assert sweep.attributes["latchwork.epoch"] == 7
    assert wait.attributes["latchwork.kind"] == "latch"


def test_metrics_have_names_units_and_buckets_of_seconds(queues, reader, telemetry):
    queue = queues.create(QueueConfig("q", shards=1))
    watch_queues(queues, telemetry)
    queue.publish_many([1, 2])
    Sweeper(queues, Election(7), parallelism=1).run_once()
    collected = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    found = {metric.name: metric for metric in collected}
    (published,) = found["latchwork.published"].data.data_points
    assert (published.value, dict(published.attributes)) == (2, {"queue": "q", "outcome": "published"})
    calls = found["latchwork.store_calls"]
    assert (calls.unit, calls.data.data_points[0].explicit_bounds[0]) == ("s", 0.0002)
    depth = {point.attributes["part"]: point.value for point in found["latchwork.queue_depth"].data.data_points}
    assert depth == {"ready": 2, "sideline": 0, "parked": 0, "delayed": 0, "retrying": 0}
    assert found["latchwork.last_sweep"].data.data_points[0].value > 1e9


def test_without_a_trace_headers_stay_as_they_are():
    plain = OpenTelemetry()
    headers = {"a": "b"}
    assert plain.carry(headers) is headers
    assert plain.carry(None) is None
