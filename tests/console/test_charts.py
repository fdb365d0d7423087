"""The charts of a queue: a bar for each value that is known."""

from __future__ import annotations

from latchwork.console import charts


def test_a_value_that_is_not_known_has_no_bar_and_one_of_0_has_a_line():
    chart = charts._chart("ready", [None, 0.0, 4.0, None], 1.0)
    assert chart.path.count("M") == 2
    assert "v-1.0" in chart.path
    assert f"v-{charts.HEIGHT:.1f}" in chart.path
    assert (chart.most, chart.said) == ("4.0", "ready in the last day: at most 4.0, 4.0 at the end")
    unknown = charts._chart("ready", [None], 1.0)
    assert (unknown.path, unknown.most) == ("", "-")
