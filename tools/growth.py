"""What must not grow: a case makes a world at a size, and says what is done in it; and the slope of a cost.

The tests compare the calls of two sizes, the benchmarks measure three.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from latchwork.store import RecordStore

Sizes = tuple[int, int, int]


@dataclass(frozen=True)
class Step:
    """What is measured.

    units: operations (or messages) in one run.
    before: what has to be there for each run, neither counted nor timed.
    """

    what: str
    run: Callable[[], object]
    units: int = 1
    before: Callable[[], object] | None = None


@dataclass(frozen=True)
class Case:
    """Something that must not make operations grow.

    make: makes a world of a size on a store, and returns what is done in it.
    """

    of: str
    sizes: Sizes
    make: Callable[[RecordStore, int], Sequence[Step]]


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return the slope of the least-squares line through the points on logarithmic scales, 0 if a value is 0.

    0 = the cost does not grow, 1 = it grows as the size does.
    """
    if min(values) <= 0:
        return 0.0
    xs, ys = [math.log(size) for size in sizes], [math.log(value) for value in values]
    return statistics.linear_regression(xs, ys).slope
