"""Metrics and traces of everything that a store is used for: off by default, and free while it is off.

With Prometheus:

    import latchwork
    from prometheus_client import REGISTRY
    from latchwork.observe import observe, watch_queues
    from latchwork.observe.prometheus import PrometheusTelemetry
    from latchwork.queue import QueueRegistry

    telemetry = PrometheusTelemetry(REGISTRY)
    # Use this store for locks, latches and queues:
    store = observe(latchwork.connect(), telemetry)
    # Gauges: depth, oldest age, last sweep.
    watch_queues(QueueRegistry(store, "shop"), telemetry)
"""

from __future__ import annotations

from ..queue.sharded.history import Minute, history
from .base import Sample, Telemetry, observe
from .events import EVENTS, GAUGES, Event
from .queues import watch_queues
from .snapshot import Overview, snapshot

__all__ = [
    "observe",
    "watch_queues",
    "snapshot",
    "Overview",
    "history",
    "Minute",
    "Telemetry",
    "Sample",
    "Event",
    "EVENTS",
    "GAUGES",
]
