"""The stores of `latchwork.testing`, under the name by which the tests import them."""

from latchwork.testing.stores import DOUBTS, KINDS, Call, CountingStore, Crash, Fault, FaultyStore, Outage

__all__ = ["DOUBTS", "KINDS", "Call", "CountingStore", "Crash", "Fault", "FaultyStore", "Outage"]
