"""The alerts of deploy/monitoring: what each asks of the metrics. docs/operations.md says what to do for each.

An alert is data, so that it becomes a rule of Prometheus, and can be tried on recorded figures where no Prometheus is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PAGE, TICKET = "page", "ticket"
"""A person must act now; or on the next working day."""


@dataclass(frozen=True)
class Alert:
    """An alert on one metric.

    metric: its name in Prometheus.
    labels: the values that its labels must have.
    per_second: whether the increase a second over the last 5 minutes is compared, and not the value.
    equals, above: the figure that fires it is this one, or above this one; both None: there is no such series at all.
    by: the labels that an alert keeps. Several processes may show one figure: the largest of them counts.
    minutes: for how long it must be so.
    runbook: the heading of docs/operations.md, as a link to it, that says what to do.
    """

    name: str
    metric: str
    summary: str
    labels: Mapping[str, str] = field(default_factory=dict)
    per_second: bool = False
    equals: float | None = None
    above: float | None = None
    by: tuple[str, ...] = ()
    minutes: int = 1
    severity: str = PAGE
    runbook: str = "alerts"

    @property
    def expression(self) -> str:
        """The rule, as Prometheus reads it."""
        labels = ", ".join(f'{name}="{value}"' for name, value in self.labels.items())
        series = f"{self.metric}{{{labels}}}" if labels else self.metric
        if self.equals is None and self.above is None:
            return f"absent({series})"
        if self.per_second:
            series = f"rate({series}[5m])"
        grouped = f"max by ({', '.join(self.by)}) ({series})" if self.by else f"max({series})"
        return f"{grouped} == {self.equals:g}" if self.equals is not None else f"{grouped} > {self.above:g}"


def _of_queue(name: str, kind: str, summary: str, *, weight: int = 2, severity: str = PAGE) -> Alert:
    """Return an alert on one kind of finding about a queue, as `latchwork doctor` has it: 2 a problem, 1 a warning."""
    summary = summary.replace("QUEUE", "queue {{ $labels.queue }}")
    return Alert(name, "latchwork_findings", summary, {"kind": kind}, equals=weight, by=("queue",), severity=severity)


ALERTS = (
    _of_queue("LatchworkNoWorker", "no_worker", "Messages wait in QUEUE, and no worker is there"),
    _of_queue(
        "LatchworkWorkerDied",
        "worker_died",
        "A worker of QUEUE died; others go on",
        weight=1,
        severity=TICKET,
    ),
    _of_queue("LatchworkProcessesDie", "worker_died", "Processes of QUEUE die again and again"),
    _of_queue("LatchworkHandlersHang", "saturated", "Handlers of QUEUE hang, or its workers do nothing"),
    _of_queue(
        "LatchworkMessageHangs",
        "long_running",
        "The work on a message of QUEUE takes far longer than others, or is soon given up",
        weight=1,
        severity=TICKET,
    ),
    _of_queue(
        "LatchworkBacklogGrows",
        "backlog",
        "More messages come into QUEUE than its workers take",
        weight=1,
        severity=TICKET,
    ),
    _of_queue("LatchworkMessagesExpire", "expiring", "Messages of QUEUE have waited for half of their life"),
    _of_queue("LatchworkMessagesExpired", "expired", "Messages of QUEUE have expired", weight=1, severity=TICKET),
    _of_queue(
        "LatchworkMessagesParked", "parked", "Messages of QUEUE failed too often and are parked", severity=TICKET
    ),
    _of_queue("LatchworkMessagesFail", "failing", "More attempts fail in QUEUE than messages are done"),
    _of_queue("LatchworkMessagesStranded", "stranded", "Nothing brings back messages of QUEUE"),
    _of_queue("LatchworkNoUpkeep", "upkeep", "The upkeep is overdue: messages of dead workers do not come back"),
    _of_queue(
        "LatchworkQueuePaused", "paused", "QUEUE is paused; its messages go on expiring", weight=1, severity=TICKET
    ),
    _of_queue(
        "LatchworkClockSetBack",
        "clock",
        "The clock of the store was set back, and workers of QUEUE did not report since",
        weight=1,
        severity=TICKET,
    ),
    _of_queue(
        "LatchworkSchedulePaused",
        "schedule",
        "A schedule of QUEUE is paused: it publishes nothing",
        weight=1,
        severity=TICKET,
    ),
    _of_queue("LatchworkScheduleRefused", "schedule", "Ticks of a schedule of QUEUE are not published"),
    _of_queue(
        "LatchworkQueueLost",
        "lost",
        "The record of QUEUE was gone, and was made again: its messages are lost",
        weight=1,
        severity=TICKET,
    ),
    _of_queue("LatchworkSettingsIgnored", "settings", "Workers of QUEUE do not act on its settings"),
    _of_queue("LatchworkQueueUnreadable", "unreadable", "A record of QUEUE cannot be read"),
    Alert(
        "LatchworkStoreUnreadable",
        "latchwork_queues_readable",
        "The store cannot be read",
        equals=0,
        minutes=2,
    ),
    Alert(
        "LatchworkNoFigures",
        "latchwork_queues_readable",
        "No process shows the figures of the queues",
        minutes=5,
        severity=TICKET,
    ),
    Alert(
        "LatchworkOutcomesUnknown",
        "latchwork_doubts_total",
        "Updates ended without a known outcome",
        {"outcome": "unknown"},
        per_second=True,
        above=0,
        severity=TICKET,
    ),
    Alert(
        "LatchworkOverloaded",
        "latchwork_retries_total",
        "The store, or one record of it, is asked too much",
        {"reason": "overloaded"},
        per_second=True,
        above=0,
        minutes=10,
        severity=TICKET,
    ),
    Alert(
        "LatchworkHoldersReplaced",
        "latchwork_fences_refused_total",
        "Holders of locks, or leaders, were paused, or without the store, for longer than their lease",
        per_second=True,
        above=0,
        severity=TICKET,
    ),
)
