"""Metrics and traces for OpenTelemetry (extra `metrics`), by its API alone: the program brings the SDK.

A message carries the W3C header `traceparent` from its publish to its handler, through sideline and shovel too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from .base import Sample, Telemetry
from .events import BUCKETS, EVENTS, GAUGES, Event, Kind

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import get_current
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.trace import Link, SpanKind, StatusCode, Tracer
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing}: pip install 'latchwork[metrics]'", name=missing.name) from None

SCOPE = "latchwork"
MAX_LINKS = 128
"""Traces that a batch is linked to; the limit that SDKs have."""
_KINDS = {"publish": SpanKind.PRODUCER, "handle": SpanKind.CONSUMER}
_W3C = TraceContextTextMapPropagator()


class OpenTelemetry(Telemetry):
    """An adapter that reports to a meter and a tracer; by default the API's global ones. Safe to share between threads.

    A handler's span is a child of the publish; the span of a batch from several publishes is linked to them. No span
    contains a payload or the text of an error: a failed one has the error's type.
    """

    def __init__(self, *, meter: Meter | None = None, tracer: Tracer | None = None) -> None:
        self._meter = meter or metrics.get_meter(SCOPE)
        self._tracer = tracer or trace.get_tracer(SCOPE)
        self._record = {name: _instrument(self._meter, event) for name, event in EVENTS.items()}

    def record(self, event: Event, value: float, labels: Mapping[str, str]) -> None:
        """Record the event in its instrument, with the labels as attributes."""
        self._record[event.name](value, labels)

    def read(self, source: Callable[[], Iterable[Sample]]) -> None:
        """Ask the source at each collection, once a gauge."""
        for event in GAUGES.values():
            callback = _observations(event, source)
            self._meter.create_observable_gauge(f"{SCOPE}.{event.name}", [callback], _unit(event), event.help)

    def span(
        self, name: str, origins: Sequence[Mapping[str, str]], attributes: Mapping[str, str | int]
    ) -> AbstractContextManager[object]:
        """Return a span that is current within; a child of its one origin, or linked to its several."""
        return self._span(name, origins, {f"{SCOPE}.{key}": value for key, value in attributes.items()})

    def handling(
        self, origins: Sequence[Mapping[str, str] | None], **attributes: str | int
    ) -> AbstractContextManager[object]:
        """Return a span for work on messages that no consumer hands out: rows of Spark, or what `receive` returned. It
        is a child of the publish of its one message, or linked to those of several.

        origins: the headers of each message, as its column `headers` has them.
        attributes: as queue="orders"; each is named `latchwork.queue`, and so on.

            with OpenTelemetry().handling([row.headers for row in rows], queue="orders"):
        """
        return self.span("handle", [headers or {} for headers in origins], {"messages": len(origins), **attributes})

    @contextmanager
    def _span(
        self, name: str, origins: Sequence[Mapping[str, str]], attributes: Mapping[str, str | int]
    ) -> Iterator[None]:
        with self._tracer.start_as_current_span(
            f"{SCOPE} {name}",
            _W3C.extract(origins[0], get_current()) if len(origins) == 1 else None,
            _KINDS.get(name, SpanKind.INTERNAL),
            attributes,
            _links(origins) if len(origins) > 1 else None,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as failure:
                span.set_status(StatusCode.ERROR, type(failure).__name__)
                raise

    def carry(self, headers: dict[str, str] | None) -> dict[str, str] | None:
        """Return the headers with `traceparent`, if there is a trace."""
        carried: dict[str, str] = {}
        _W3C.inject(carried)
        return {**(headers or {}), **carried} if carried else headers


def _instrument(meter: Meter, event: Event) -> Callable[[float, Mapping[str, str]], None]:
    name, unit = f"{SCOPE}.{event.name}", _unit(event)
    if event.kind is Kind.HISTOGRAM:
        return meter.create_histogram(name, unit, event.help, explicit_bucket_boundaries_advisory=BUCKETS).record
    if event.kind is Kind.COUNTER:
        return meter.create_counter(name, unit, event.help).add
    return meter.create_gauge(name, unit, event.help).set


def _unit(event: Event) -> str:
    return "s" if event.unit == "seconds" else "1"


def _observations(
    event: Event, source: Callable[[], Iterable[Sample]]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def look(_: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(sample.value, dict(zip(event.labels, sample.labels, strict=True)))
            for sample in source()
            if sample.event is event
        ]

    return look


def _links(origins: Sequence[Mapping[str, str]]) -> list[Link]:
    """Return a link for each trace that the messages came from."""
    spans = (trace.get_current_span(_W3C.extract(headers)).get_span_context() for headers in origins if headers)
    found = {context.span_id: context for context in spans if context.is_valid}
    return [Link(context) for context in [*found.values()][:MAX_LINKS]]
