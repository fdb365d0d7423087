"""The worker of compose.yaml: it handles the messages of the queue `jobs`."""

from __future__ import annotations

import logging

from prometheus_client import REGISTRY

from latchwork import connect
from latchwork.observe import observe
from latchwork.observe.prometheus import PrometheusTelemetry
from latchwork.queue import Delivery, QueueConfig, QueueRegistry, Worker

# What /metrics shows beside the figures of the queues: calls of the store, handlers, waits.
store = observe(connect(), PrometheusTelemetry(REGISTRY))  # $LATCHWORK_STORE
registry = QueueRegistry(store, "shop")
registry.create(QueueConfig("jobs", shards=8))
worker = Worker(registry, grace=30.0)


@worker.handler("jobs")
def load(delivery: Delivery) -> None:
    """Handle one message; if this raises, it comes again."""
    logging.getLogger(__name__).info("loaded %s", delivery.payload["load"])
