"""Metrics for Prometheus (extra `metrics`), in a registry that the caller gives.

They are named `latchwork_<event>`, with `_seconds` and `_total` as Prometheus wants it; docs/operations.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product

from ..errors import InvalidRequest
from ..inputs import checked_kind
from .base import Sample, Telemetry
from .events import BUCKETS, EVENTS, GAUGES, Event, Kind

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing}: pip install 'latchwork[metrics]'", name=missing.name) from None

Tell = Callable[[float], None]


class PrometheusGauges(Telemetry):
    """An adapter for gauges alone: `watch_queues` beside a telemetry that keeps the other metrics of the registry.
    Safe to share between threads.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        # Without one, Prometheus's client keeps the metrics where no scrape finds them.
        self._registry = checked_kind("registry", registry, CollectorRegistry)

    def record(self, event: Event, value: float, labels: Mapping[str, str]) -> None:
        """Record nothing."""

    def read(self, source: Callable[[], Iterable[Sample]]) -> None:
        """Ask the source at each scrape. Raises `InvalidRequest` for a second source: no label separates them."""
        try:
            self._registry.register(_Gauges(source))
        except ValueError as failure:
            raise InvalidRequest(
                "this telemetry watches the queues of a client already, and its figures do not name the client: "
                f"watch the other one with a telemetry and a registry of its own ({failure})"
            ) from None


class PrometheusTelemetry(PrometheusGauges):
    """An adapter that keeps the metrics of `registry`. One is enough for all stores of a process.
    Safe to share between threads.

    No endpoint is opened: the application's own does it, or `prometheus_client.start_http_server(port,
    registry=registry)`. Raises `InvalidRequest` where the registry is none, or has these metrics already.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        try:
            self._metrics = {name: _metric(event, registry) for name, event in EVENTS.items()}
        except ValueError as failure:
            raise InvalidRequest(f"the registry has metrics of Latchwork: share one telemetry ({failure})") from None
        self._series: dict[tuple[str, ...], Tell] = {}
        # A counter without a queue begins at 0: for Prometheus a series that begins at 1 has not risen.
        for event in EVENTS.values():
            if event.kind is Kind.COUNTER and all(event.labels.values()):
                for values in product(*event.labels.values()):
                    self._metrics[event.name].labels(*values)

    def record(self, event: Event, value: float, labels: Mapping[str, str]) -> None:
        """Record the event in the series of these labels."""
        where = (event.name, *[labels[name] for name in event.labels])
        series = self._series.get(where)
        if series is None:
            series = self._series[where] = self._new(where)
        series(value)

    def _new(self, where: tuple[str, ...]) -> Tell:
        name, *values = where
        series = self._metrics[name].labels(*values)
        if isinstance(series, Counter):
            return series.inc
        return series.observe if isinstance(series, Histogram) else series.set


class _Gauges(Collector):
    """Gauges whose values are read at each scrape."""

    def __init__(self, source: Callable[[], Iterable[Sample]]) -> None:
        self._source = source

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the names alone, so that registering asks no store."""
        return [_family(event) for event in GAUGES.values()]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return all gauges, with the present values of the source."""
        families = {name: _family(event) for name, event in GAUGES.items()}
        for event, labels, value in self._source():
            families[event.name].add_metric(labels, value)
        yield from families.values()


def _metric(event: Event, registry: CollectorRegistry) -> Counter | Histogram | Gauge:
    name, labels = f"latchwork_{event.name}", tuple(event.labels)
    if event.kind is Kind.HISTOGRAM:
        return Histogram(name, event.help, labels, unit=event.unit, buckets=BUCKETS, registry=registry)
    kind = Counter if event.kind is Kind.COUNTER else Gauge
    return kind(name, event.help, labels, unit=event.unit, registry=registry)


def _family(event: Event) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"latchwork_{event.name}", event.help, labels=tuple(event.labels), unit=event.unit)
