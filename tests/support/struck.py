"""The faults with which a test strikes each call by `inject_everywhere`: `make long` takes all kinds."""

from __future__ import annotations

from latchwork.testing.everywhere import FAULTS

from . import matrix

ALWAYS = "crash_after"
"""What each run strikes with: the call is done, and all that its process would have done next is not."""


def faults(about: str) -> list[str]:
    """The kinds for this run; a smaller one takes another sample of them each day. about: as `matrix.sample`."""
    return [ALWAYS, *matrix.sample([fault for fault in FAULTS if fault != ALWAYS], about, 3)]
