"""The clock of `latchwork.testing`, under the name by which the tests import it."""

from latchwork.testing.clock import START, InlineClock, ManualClock, ManualEvent, SkewedClock

__all__ = ["START", "InlineClock", "ManualClock", "ManualEvent", "SkewedClock"]
