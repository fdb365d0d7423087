"""What came out: the check against the direct computation, a table, a chart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import pandas as pd

mpl.use("Agg")
import matplotlib.pyplot as plt


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
        sign = "=" if self.flights == self.expected else "!="
        through = "=" if self.published == self.consumed else "!="
        return (
            f"farms {self.farms}, partitions {self.partitions}, parties counted {self.counted}, "
            f"retried {self.attempts - self.partitions}, a plain counter would say {self.attempts}, "
            f"flights {self.flights:,} {sign} {self.expected:,}, lost {self.lost}, doubled {self.doubled}, "
            f"published {self.published:,} {through} consumed {self.consumed:,}, swept {self.swept}"
        )


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
    lines = ["         flights  cancelled  mean delay  worst", "carrier                     dep.   arr.   hour"]
    for carrier, row in sums.sort_values("late", ascending=False).iterrows():
        late, arrival = row["late"], row["arrival_delay"] / row["arrived"]
        lines.append(
            f"{carrier:<7}{row['flights']:9,.0f}{row['flights'] - row['departed']:11,.0f}"
            f"{late:6.1f}{arrival:7.1f}{worst[carrier]:6d}"
        )
    return "\n".join(lines)


def chart(merged: pd.DataFrame, path: Path) -> None:
    """The mean departure delay by hour, a line an airport; and by carrier and hour, as a map."""
    figure, (lines, grid) = plt.subplots(1, 2, figsize=(13, 5), width_ratios=(2, 3), layout="constrained")
    by_farm = _mean_delay(merged, "origin").unstack("origin").loc[5:]
    lines.plot(by_farm.index, by_farm, marker="o", markersize=3, label=list(by_farm.columns))
    lines.set(title="Mean departure delay by airport", xlabel="scheduled hour", ylabel="minutes")
    lines.set_xticks(by_farm.index[::2])
    lines.legend(frameon=False)
    lines.grid(alpha=0.3)
    by_carrier = _mean_delay(merged, "carrier").unstack("hour").loc[:, 5:]
    image = grid.imshow(by_carrier, aspect="auto", cmap="RdYlBu_r", vmin=-40, vmax=40)
    grid.set(title="Mean departure delay by carrier and hour", xlabel="scheduled hour")
    grid.set_xticks(range(by_carrier.shape[1]), by_carrier.columns)
    grid.set_yticks(range(by_carrier.shape[0]), by_carrier.index)
    figure.colorbar(image, ax=grid, label="minutes", extend="both")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _mean_delay(merged: pd.DataFrame, by: str) -> pd.Series:
    sums = merged.groupby([by, "hour"])[["departure_delay", "departed"]].sum()
    return (sums["departure_delay"] / sums["departed"]).where(sums["departed"] > 0)
