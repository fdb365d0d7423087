"""The charts of a queue: a bar for each value that is known."""

from __future__ import annotations

from latchwork.console import charts
from latchwork.queue.sharded.history import Minute


def test_a_value_that_is_not_known_has_no_bar_and_one_of_0_has_a_line():
    chart = charts._chart("ready", [None, 0.0, 4.0, None], 1.0)
    assert chart.path.count("M") == 2
    assert "v-1.0" in chart.path
    assert f"v-{charts.HEIGHT:.1f}" in chart.path
    assert (chart.most, chart.said) == ("4.0", "ready in the last day: at most 4.0, 4.0 at the end")
    unknown = charts._chart("ready", [None], 1.0)
    assert (unknown.path, unknown.most) == ("", "-")


def minute(at, epoch=1, joined=0, ready=0):
    unknown = dict.fromkeys(("sideline", "parked", "delayed", "retrying", "expired", "published", "received", "oldest"))
    return Minute(at, ready, **unknown, workers=1, joined=joined, threads=1, acked=None, failed=None, epoch=epoch)


def test_a_chart_ends_with_the_last_minute_and_says_what_began_there():
    noon = 1_764_504_000  # 2025-11-30 12:00 UTC
    found = charts.charts_of([minute(noon - 43_200), minute(noon - 21_600, joined=1), minute(noon, epoch=2)], 1.0)
    assert (found.begin, found.end) == ("2025-11-29 12:00 UTC", "2025-11-30 12:00 UTC")
    assert found.marks == ((540.0, "a worker began"), (715.0, "another process leads"))
    assert charts.charts_of([], 1.0) is None
