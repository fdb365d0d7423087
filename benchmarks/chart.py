"""The chart of the report: how far each target is reached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from benchmarks.targets import Verdict

mpl.use("Agg")
import matplotlib.pyplot as plt

REACHED, MISSED = "#4c78a8", "#e45756"
WIDEST = 10.0
"""Beyond so many times the target a bar says nothing more."""


def draw(verdicts: Sequence[Verdict], path: Path) -> None:
    """A bar for each target, on a logarithmic axis: right of the line it is reached."""
    shown = sorted(verdicts, key=lambda one: one.share)
    shares = [min(max(one.share, 1 / WIDEST), WIDEST) for one in shown]
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.24 * len(shown)), layout="constrained")
    colors = [REACHED if one.met else MISSED for one in shown]
    axes.barh(range(len(shown)), [share - 1 for share in shares], left=1, color=colors)
    axes.set_xscale("log")
    axes.set_xlim(1 / WIDEST, WIDEST)
    axes.set_xticks([0.1, 0.5, 1, 2, 10], ["a tenth", "half", "target", "twice", "ten times"])
    axes.set_yticks(range(len(shown)), [f"{one.what} {one.sign}: {one.measured:.3g}" for one in shown], fontsize=7)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.minorticks_off()
    axes.set_title("How far each target is reached (right of the line: reached)", fontsize=9)
    axes.margins(y=0.01)
    figure.savefig(path, dpi=110)
    plt.close(figure)
