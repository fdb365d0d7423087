"""deploy/monitoring: a Grafana dashboard and rules for Prometheus, made from the registry of the metrics.

`python -m tools.monitoring` writes them (`make monitoring`); a test fails where they are not of this registry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from latchwork.observe.events import EVENTS, GAUGES, Event, Kind

from .alerts import ALERTS, Alert

HERE = Path(__file__).parent.parent / "deploy" / "monitoring"
RUNBOOK = "docs/operations.md"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
ROWS: Mapping[str, tuple[str, ...]] = {
    "What is wrong": ("findings", "queues_readable"),
    "Queues": ("queue_depth", "queue_oldest", "queue_workers"),
    "Messages": ("published", "handled", "handling", "effects", "expired", "loop_lag"),
    "Upkeep": ("queue_last_sweep", "last_sweep", "sweeps", "swept"),
    "Spark streams": ("stream_lag", "stream_rate", "stream_batches"),
    "Locks, latches and leaders": ("waits", "fences_refused"),
    "The store": ("store_calls", "store_rows", "retries", "doubts"),
}
"""The rows of the dashboard, and the metrics in each: every metric is in one of them."""


def files() -> dict[str, str]:
    """Return the name and the content of each file of deploy/monitoring."""
    return {"rules.yml": rules(), "dashboard.json": json.dumps(dashboard(), indent=1) + "\n"}


def rules() -> str:
    """Return the alerts as a file of rules for Prometheus."""
    return "\n".join(["# Made by `make monitoring` from tools/alerts.py.", "groups:", "- name: latchwork", "  rules:"]
        + [line for alert in ALERTS for line in _rule(alert)]) + "\n"  # fmt: skip


def _rule(alert: Alert) -> Iterator[str]:
    yield f"  - alert: {alert.name}"
    yield f"    expr: {json.dumps(alert.expression)}"
    yield f"    for: {alert.minutes}m"
    yield f"    labels: {{severity: {alert.severity}}}"
    yield "    annotations:"
    yield f"      summary: {json.dumps(alert.summary)}"
    yield f"      runbook: {RUNBOOK}#{alert.runbook}"


def metric(event: Event) -> str:
    """Return the name of a metric, or the stem of its series, as `latchwork.observe.prometheus` names it."""
    name = f"latchwork_{event.name}" + (f"_{event.unit}" if event.unit else "")
    return f"{name}_total" if event.kind is Kind.COUNTER else name


def dashboard() -> dict[str, Any]:
    """Return the dashboard, for Grafana 10 and newer."""
    return {
        "title": "Latchwork", "uid": "latchwork", "schemaVersion": 39, "tags": ["latchwork"], "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus"},
            {
                "name": "queue", "type": "query", "datasource": DATASOURCE, "multi": True, "includeAll": True,
                "allValue": ".*", "refresh": 2, "query": "label_values(latchwork_queue_depth, queue)",
            },
        ]},
        "panels": _panels(),
    }  # fmt: skip


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, names in ROWS.items():
        panels.append({"type": "row", "title": title, "gridPos": {"h": 1, "w": 24, "x": 0, "y": top}, "panels": []})
        width = 24 // min(4, len(names))
        for place, name in enumerate(names):
            at = {"h": 8, "w": width, "x": width * place, "y": top + 1}
            panels.append({**_panel({**EVENTS, **GAUGES}[name]), "gridPos": at})
        top += 9
    return [{"id": number, **panel} for number, panel in enumerate(panels, 1)]


def _panel(event: Event) -> dict[str, Any]:
    targets = [
        {"refId": chr(65 + n), "datasource": DATASOURCE, "expr": expr, "legendFormat": legend}
        for n, (expr, legend) in enumerate(_queries(event))
    ]
    unit = "dateTimeFromNow" if event.name.endswith("last_sweep") else {"seconds": "s"}.get(event.unit, "short")
    if event.kind is Kind.COUNTER:
        unit = "ops"
    return {
        "type": "table" if event.name == "findings" else "stat" if not event.labels else "timeseries",
        "title": event.help, "datasource": DATASOURCE, "targets": targets,
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
    }  # fmt: skip


def _queries(event: Event) -> Iterator[tuple[str, str]]:
    """Yield the queries of a metric, each with the legend of its series."""
    name, by = metric(event), ", ".join(event.labels)
    where = '{queue=~"$queue"}' if "queue" in event.labels and event.name != "findings" else ""
    legend = " ".join(f"{{{{{label}}}}}" for label in event.labels)
    if event.kind is Kind.COUNTER:
        yield f"sum by ({by}) (rate({name}{where}[$__rate_interval]))", legend
    elif event.kind is Kind.HISTOGRAM:
        for share, shown in ((0.5, "p50"), (0.99, "p99")):
            buckets = f"sum by (le, {by}) (rate({name}_bucket{where}[$__rate_interval]))"
            yield f"histogram_quantile({share}, {buckets})", f"{shown} {legend}"
    elif event.unit == "seconds" and event.name.endswith("last_sweep"):
        yield f"1000 * max by ({by}) ({name}{where})", legend
    else:
        yield f"max by ({by}) ({name}{where})" if by else f"max({name})", legend


if __name__ == "__main__":
    HERE.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (HERE / name).write_text(text)
