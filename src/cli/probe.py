"""The state of a worker over HTTP: for an orchestrator, for Prometheus, and for an autoscaler.

`/healthz` and `/readyz` say what is known here, at once. `/metrics` and `/scale` ask the store, for 5 seconds at most.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from ..deadline import Deadline, within_call
from ..errors import InvalidRequest, LatchworkError, NotFound
from ..inputs import is_int
from ..plain import one_line, shown
from ..queue import Worker
from ..queue.sharded.stats import QueueStats, stats_of
from ..seams import DIED
from .serving import PATIENCE, TEXT, Answer, Server

FRESH = 1.0
"""Seconds for which the figures of a queue are given again without asking the store."""
DRAIN_WITHIN = 60.0
"""Seconds within which the suggested number of threads would handle all ready messages."""
JSON = "application/json"
NOT_FOUND: Answer = 404, TEXT, b"there are /healthz, /readyz, /metrics, /scale/QUEUE\n"


class Answers:
    """What a worker answers: `/healthz`, `/readyz`, `/metrics`, `/scale/QUEUE`. No secrets.

    worker: it need not have started.
    own_metrics_only: `/metrics` leaves out the gauges of the queues, which are the same in every process; then
        `/metrics/queues` has them.
    """

    def __init__(self, worker: Worker, *, own_metrics_only: bool = False) -> None:
        self._worker, self._seams = worker, worker.registry.store.seams
        self._lock, self._scales = self._seams.lock(), dict[str, _Scale]()
        self._metrics = _metrics_of(worker, apart=own_metrics_only)

    def answer(self, path: str, totals: tuple[int, int] | None = None) -> Answer:
        """Return the status, the content type and the body for a path.

        totals: for `/scale`, the acknowledged messages and the threads of all processes; None = those of this process.
        """
        if path == "/healthz":
            ended = [
                f"the thread {one_line(name)} was ended by {kind}: start the process again\n"
                for name, kind in [*DIED.items()]
            ]
            return (503, TEXT, "".join(ended).encode()) if ended else (200, TEXT, b"ok\n")
        if path == "/readyz":
            return (200, TEXT, b"ready\n") if self._worker.running else (503, TEXT, b"not taking messages\n")
        with Deadline(self._seams, PATIENCE):  # who asked has gone by then
            if path in self._metrics:
                return self._metrics[path]()
            if path.startswith("/scale/"):
                return self._scale(unquote(path.removeprefix("/scale/")), totals)
        return NOT_FOUND

    def _scale(self, name: str, totals: tuple[int, int] | None) -> Answer:
        consumer = self._worker.consumers.get(name)
        if consumer is None:
            return 404, JSON, _json({"error": NotFound.code, "message": "this worker has no handler for that queue"})
        try:
            with within_call(self._lock, "the figures of the queues"):
                scale = self._scales.setdefault(name, _Scale())
                now = self._seams.monotonic()
                if now >= scale.at + FRESH:
                    acked, threads = totals or (consumer.stats["acked"], consumer.concurrency)
                    scale.update(now, stats_of(consumer.queue), acked, threads)
        except LatchworkError as failure:
            return 503, JSON, _json({"error": failure.code, "message": str(failure)})
        return 200, JSON, _json({"queue": name, "client": self._worker.registry.client_id, **scale.figures})


class Probe(Answers):
    """An HTTP server beside a worker for its `Answers`. Only GET.

    host, port: where to listen; port 0 = any free one, see `port`.

    Raises `InvalidRequest` if it cannot listen there.
    """

    def __init__(self, worker: Worker, host: str, port: int) -> None:
        checked_port(port)
        super().__init__(worker)
        self._server = Server(host, port, self._seams, self.answer, is_slow)
        self.port = self._server.port

    def __enter__(self) -> Probe:
        self._server.start("latchwork-probe")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()


def is_slow(path: str) -> bool:
    """Whether the answer for a path may have to wait."""
    return path.startswith(("/metrics", "/scale/"))


def checked_port(port: int) -> int:
    """Return the port. Raises `InvalidRequest`."""
    if not is_int(port) or not 0 <= port <= 65_535:
        raise InvalidRequest(f"port is {shown(port)}; it must be 0 to 65535")
    return port


class _Scale:
    """The figures of a queue, and the counts of the last look: rates are computed from one look to the next."""

    def __init__(self) -> None:
        self.at = float("-inf")
        self.figures: dict[str, Any] = {}
        self._fired = self._handled = 0

    def update(self, now: float, facts: QueueStats, handled: int, threads: int) -> None:
        """Take a new look."""
        seconds = now - self.at
        taken = facts.depth.fired - self._fired  # below 0: the queue was lost, and made again
        rate = taken / seconds if math.isfinite(seconds) and taken >= 0 else None
        each = max(0, handled - self._handled) / seconds / threads if math.isfinite(seconds) and threads else None
        self.at, self._fired, self._handled = now, facts.depth.fired, handled
        ready = facts.depth.ready
        self.figures = {
            "ready": ready,
            "sideline": facts.depth.sideline,
            "oldest_age_s": None if facts.oldest_age is None else round(facts.oldest_age, 1),
            "rate": None if rate is None else round(rate, 2),
            "threads": threads,
            "suggested_threads": 0 if not ready else math.ceil(ready / (each * DRAIN_WITHIN)) if each else None,
        }


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"


def _metrics_of(worker: Worker, *, apart: bool) -> dict[str, Callable[[], Answer]]:
    """Return the functions that answer `/metrics`: the process's Prometheus registry, with the gauges of the worker's
    queues.

    apart: these gauges are at `/metrics/queues`.
    """
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest  # noqa: PLC0415 - an extra

        from ..observe import watch_queues  # noqa: PLC0415 - as above
        from ..observe.prometheus import PrometheusGauges  # noqa: PLC0415 - as above
    except ImportError:
        none = 501, TEXT, b"no metrics: install prometheus-client, the extra `metrics`\n"
        return dict.fromkeys(("/metrics", "/metrics/queues") if apart else ("/metrics",), lambda: none)
    of_queues = CollectorRegistry() if apart else REGISTRY
    with suppress(InvalidRequest):  # the program watches the queues by itself
        watch_queues(worker.registry, PrometheusGauges(of_queues))
    found = {"/metrics": lambda: (200, CONTENT_TYPE_LATEST, generate_latest(REGISTRY))}
    if apart:
        found["/metrics/queues"] = lambda: (200, CONTENT_TYPE_LATEST, generate_latest(of_queues))
    return found
