"""All metrics: a closed set of events, each with a closed set of outcomes.

Labels are closed sets or names of queues, never ids of messages, latches, locks or clients: a metric has as many series
as there are queues, times a few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ..queue.sharded.envelope import Reason
from ..queue.sharded.upkeep.report import RECORDED
from .findings import KINDS


class Kind(str, Enum):
    """The way in which a metric uses the values of its event."""

    COUNTER = "counter"  # adds them up
    HISTOGRAM = "histogram"  # counts and adds them up, by size
    GAUGE = "gauge"  # keeps the last one


@dataclass(frozen=True)
class Event:
    """One kind of event, hence one metric.

    labels: the values that each label may take; none listed = the name of a queue.
    unit: of the values; a histogram's are seconds.
    """

    name: str
    kind: Kind
    help: str
    labels: Mapping[str, tuple[str, ...]]
    unit: str = ""


QUEUE: tuple[str, ...] = ()
VERBS = ("get", "get_many", "operate", "operate_many", "delete", "delete_many", "query", "scan", "ensure_index")
BATCHES = ("get_many", "operate_many", "delete_many")
OUTCOMES = ("done", "absent", "exists", "refused", "unknown", "unavailable", "invalid", "failed")
"""The possible outcomes of one attempt at the store, or of one row of a batch."""
BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)
"""Upper bounds of the histograms, in seconds: from a call on loopback to the longest handler."""


PARTS = ("ready", "sideline", "parked", "delayed", "retrying")
"""The parts of a queue's depth, as the fields of `QueueDepth`."""


def _named(*events: Event) -> dict[str, Event]:
    return {event.name: event for event in events}


EVENTS: Mapping[str, Event] = _named(
    Event(
        "store_calls",
        Kind.HISTOGRAM,
        "Attempts at the store; a batch of which some rows failed is 'partial'",
        {"verb": VERBS, "outcome": (*OUTCOMES, "partial")},
        "seconds",
    ),
    Event(
        "store_rows", Kind.COUNTER, "Rows of batches, each by its own outcome", {"verb": BATCHES, "outcome": OUTCOMES}
    ),
    Event(
        "retries",
        Kind.COUNTER,
        "Requests sent again, by the class of the error",
        {"reason": ("not_applied", "overloaded", "in_doubt")},
    ),
    Event(
        "doubts",
        Kind.COUNTER,
        "Exactly-once updates of which an attempt was not answered, by how that was resolved",
        {"outcome": ("applied", "refused", "cancelled", "unknown")},
    ),
    Event(
        "fences_refused",
        Kind.COUNTER,
        "Holders that were stopped: by a resource that has seen a higher fence, or by themselves before they asked",
        {"by": ("resource", "holder")},
    ),
    Event(
        "effects",
        Kind.COUNTER,
        "Effects that happen once, of records and of steps: done now, or found as an earlier attempt had left them",
        {"kind": ("record", "step"), "outcome": ("done", "found")},
    ),
    Event(
        "waits",
        Kind.HISTOGRAM,
        "Waits for a latch or a barrier, and for a lock, a semaphore or a limit that had to be waited for",
        {
            "kind": ("latch", "barrier", "lock", "rwlock", "semaphore", "limit"),
            "outcome": ("done", "timed_out", "failed"),
        },
        "seconds",
    ),
    Event("published", Kind.COUNTER, "Messages published", {"queue": QUEUE, "outcome": ("published", "failed")}),
    Event(
        "handled",
        Kind.COUNTER,
        "Messages handed out and settled: acknowledged, failed by reason, handed back, cancelled, lost, or not settled",
        {
            "queue": QUEUE,
            "outcome": ("acked", *(reason.value for reason in Reason), "handed_back", "cancelled", "lost", "unsettled"),
        },
    ),
    Event(
        "handling",
        Kind.HISTOGRAM,
        "Calls of a consumer's handler",
        {"queue": QUEUE, "outcome": ("returned", "raised")},
        "seconds",
    ),
    Event(
        "loop_lag", Kind.GAUGE, "Seconds by which the asyncio loop of handlers was late at the last look", {}, "seconds"
    ),
    Event(
        "expired", Kind.COUNTER, "Slots that were claimed or read, held no message, and were given up", {"queue": QUEUE}
    ),
    Event(
        "sweeps",
        Kind.HISTOGRAM,
        "Sweeps of a queue by this process",
        {"queue": QUEUE, "outcome": ("swept", "failed")},
        "seconds",
    ),
    Event("swept", Kind.COUNTER, "Slots that sweeps looked at, by outcome", {"queue": QUEUE, "outcome": RECORDED}),
    Event(
        "last_sweep",
        Kind.GAUGE,
        "When this process last swept the queue with success, since the epoch",
        {"queue": QUEUE},
        "seconds",
    ),
    Event("stream_lag", Kind.GAUGE, "Messages that a Spark stream has yet to read", {"queue": QUEUE}),
    Event("stream_rate", Kind.GAUGE, "Messages a second in the last batch of a Spark stream", {"queue": QUEUE}),
    Event("stream_batches", Kind.HISTOGRAM, "Batches of a Spark stream", {"queue": QUEUE}, "seconds"),
)
"""All events, by the names that `Seams.note` uses."""

GAUGES: Mapping[str, Event] = _named(
    Event(
        "queue_depth",
        Kind.GAUGE,
        "Messages waiting, by where; retrying are the delayed ones that have failed and are tried again",
        {"queue": QUEUE, "part": PARTS},
    ),
    Event("queue_oldest", Kind.GAUGE, "Age of the oldest message that waits", {"queue": QUEUE}, "seconds"),
    Event(
        "queue_last_sweep",
        Kind.GAUGE,
        "When any process last swept the queue with success, since the epoch",
        {"queue": QUEUE},
        "seconds",
    ),
    Event("queue_workers", Kind.GAUGE, "Processes that work on the queue and report", {"queue": QUEUE}),
    Event(
        "findings",
        Kind.GAUGE,
        "What is wrong, as `latchwork doctor` says it: 2 where a person must act, 1 for a warning, absent if nothing",
        {"kind": KINDS, "queue": QUEUE},
    ),
    Event("queues_readable", Kind.GAUGE, "1 if the last snapshot of the queues could be read, else 0", {}),
)
"""The gauges of a snapshot of the queues."""
