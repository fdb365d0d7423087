"""Tools for the tests of programs that use Latchwork: virtual time, stores that count and stores that fail.

    from latchwork.testing import ManualClock, inject_everywhere

`latchwork.testing.fixtures` has them as pytest fixtures: add `pytest_plugins = ["latchwork.testing.fixtures"]` to the
`conftest.py` of your tests.
"""

from typing import TYPE_CHECKING

from ..lazy import offer

if TYPE_CHECKING:
    from .clock import InlineClock, ManualClock, SkewedClock
    from .everywhere import FAULTS, Report, Trouble, inject_everywhere
    from .stores import KINDS, Call, CountingStore, Crash, Fault, FaultyStore, Outage
    from .upkeep import bring_back

__all__ = [
    "FAULTS", "KINDS", "Call", "CountingStore", "Crash", "Fault", "FaultyStore", "InlineClock", "ManualClock",
    "Outage", "Report", "SkewedClock", "Trouble", "bring_back", "inject_everywhere",
]  # fmt: skip

__getattr__, __dir__ = offer(
    __name__,
    {
        ".clock": "InlineClock ManualClock SkewedClock",
        ".everywhere": "FAULTS Report Trouble inject_everywhere",
        ".stores": "KINDS Call CountingStore Crash Fault FaultyStore Outage",
        ".upkeep": "bring_back",
    },
)
