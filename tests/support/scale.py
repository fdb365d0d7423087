"""How much a run does: three sizes of one suite, by `$LATCHWORK_SCALE`.

`make test` is 0.1, `make long` 1, and `make soak` up to 100. The scale multiplies seeds, state machines, damaged files
and the floors of the closing table (`proof.py`), and it is the part of each matrix that is run (`matrix.py`).
"""

from __future__ import annotations

import os

SCALE = float(os.environ.get("LATCHWORK_SCALE", "0.1"))
FIRST = int(os.environ.get("LATCHWORK_FIRST", "0"))
"""The first seed, where tests have seeds."""


def scaled(times: int, least: int = 1) -> int:
    """So many at scale 1; at least `least`."""
    return max(least, round(times * SCALE))


def length(times: int, least: int = 1) -> int:
    """So many at scale 1 and above: of a test that is done again under other seeds, and is not longer as well."""
    return min(times, scaled(times, least))


TIMES = scaled(1)
"""For what is not made smaller than it is at scale 1, and is done more often in a soak."""
SEEDS = range(FIRST, FIRST + TIMES)
"""For tests that are done again under another seed, rather than for longer."""
