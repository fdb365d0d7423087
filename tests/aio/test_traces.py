"""The spans of an awaited publish, and of the async handler of its message, are of one trace."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from latchwork import aio
from latchwork.observe import observe
from latchwork.observe.opentelemetry import OpenTelemetry
from latchwork.queue import QueueConfig
from latchwork.store import MemoryStore


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider.get_tracer("test")


def test_each_handler_goes_on_with_the_trace_of_its_own_message_though_they_run_at_once(run, spans, tracer):
    """The spans of a task must not be seen by another one, nor end up as the parent of another message's."""

    telemetry = OpenTelemetry(meter=MeterProvider().get_meter("test"), tracer=tracer)

    async def main():
        store = aio.Store(observe(MemoryStore(), telemetry))
        queue = await aio.QueueRegistry(store, "c").create(QueueConfig("q", shards=1))
        together, begun, done = asyncio.Event(), [], []

        async def request(n):
            with tracer.start_as_current_span(f"request {n}"):
                await queue.publish(n)

        async def handle(delivery):
            begun.append(delivery)
            if len(begun) == 3:
                together.set()
            await together.wait()
            with tracer.start_as_current_span(f"inside {delivery.payload}"):
                await asyncio.sleep(0)
            done.append(delivery.payload)

        await asyncio.gather(*(request(n) for n in range(3)))
        async with aio.Consumer(queue, handle, concurrency=3, upkeep=False):
            while len(done) < 3:
                await asyncio.sleep(0.01)

    run(main())
    found = {span.name: span for span in spans.get_finished_spans()}
    by_id = {span.context.span_id: span for span in spans.get_finished_spans()}
    for n in range(3):
        inside, request = found[f"inside {n}"], found[f"request {n}"]
        handle = by_id[inside.parent.span_id]
        publish = by_id[handle.parent.span_id]
        assert (handle.name, publish.name) == ("latchwork handle", "latchwork publish")
        assert publish.parent.span_id == request.context.span_id
        assert {one.context.trace_id for one in (inside, handle, publish)} == {request.context.trace_id}
