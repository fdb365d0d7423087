"""Matrices: tests of many cases that differ by the place of a fault only. `make long` runs all cases.

    @pytest.mark.matrix
    @pytest.mark.parametrize("at", range(1, 72))
    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_driver_that_dies_at_any_store_call_loses_nothing(...)

A smaller run takes a sample of each such test: as large as its scale says, and another one each day. The run prints its
day, and `LATCHWORK_DAY=2026-11-27 make test` repeats the sample. A test that is named by its node id is always run.

A test that runs on memory and on SQLite is a matrix of two, of which a smaller run takes one; it takes both of what
shows that the backends are alike (`backends.ON_EACH`).

A test that goes through its cases by itself does the same with `sample`:

    for at in matrix.sample(range(points), "a lock's release"):
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from . import backends, scale

T = TypeVar("T")
FEWEST = 4
"""Cases of one matrix that each run takes, where it has as many."""
EITHER = {"memory", "sqlite"}
"""Backends of which a smaller run takes one, where nothing is about their difference."""


def day() -> str:
    """The day that this run's samples are of. Its child processes take the same samples, past midnight too."""
    return os.environ.setdefault("LATCHWORK_DAY", f"{datetime.now(timezone.utc):%Y-%m-%d}")


def left_out(items: Iterable[Any], arguments: Sequence[str]) -> list[Any]:
    """The cases of matrices that this run leaves out. arguments: what pytest was told to run."""
    if scale.SCALE >= 1:
        return []
    matrices: dict[str, list[Any]] = {}
    for item in items:
        if item.get_closest_marker("matrix") and not _is_named(item, arguments):
            matrices.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return [
        *(
            item
            for cases in matrices.values()
            for item in sorted(cases, key=_place)[scale.scaled(len(cases), FEWEST) :]
        ),
        *(item for pair in _pairs(items, arguments) for item in sorted(pair, key=_place)[1:]),
    ]


def _pairs(items: Iterable[Any], arguments: Sequence[str]) -> list[list[Any]]:
    """The tests that differ only in running on memory or on SQLite, two and two."""
    found: dict[tuple[str, ...], list[Any]] = {}
    for item in items:
        test, _, case = item.nodeid.removesuffix("]").partition("[")
        words = case.split("-")
        if EITHER.isdisjoint(words) or item.get_closest_marker("matrix"):
            continue
        if not backends.is_on_each(item) and not _is_named(item, arguments):
            found.setdefault((test, *("either" if word in EITHER else word for word in words)), []).append(item)
    return [pair for pair in found.values() if len(pair) == len(EITHER)]


def sample(cases: Sequence[T], about: str, least: int = FEWEST) -> list[T]:
    """The cases that this run takes, in their order. about: what they are cases of, so that samples differ."""
    if scale.SCALE >= 1:
        return list(cases)
    taken = min(len(cases), scale.scaled(len(cases), least))
    return [cases[place] for place in sorted(Random(f"{day()} {about}").sample(range(len(cases)), taken))]


def _is_named(item: Any, arguments: Sequence[str]) -> bool:
    name = item.nodeid.partition("::")[2]
    for argument in arguments:
        file, _, asked = argument.partition("::")
        is_part = name == asked or name.startswith((f"{asked}[", f"{asked}::"))
        if asked and is_part and Path(file).resolve() == item.path:
            return True
    return False


def _place(item: Any) -> bytes:
    """Its place in the order of the day."""
    return hashlib.sha256(f"{day()} {item.nodeid}".encode()).digest()
