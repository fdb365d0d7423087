"""Whether a promise is broken, as the mutants ask: by its own word, not because the mutant failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from latchwork.errors import InvalidRequest, LatchworkError, RecordTooBig

BROKEN = (AssertionError, pytest.fail.Exception, LatchworkError, ValueError)
"""How a promise says so. A ValueError: of `(delivery,) = receive()` with none or two."""


def breaks(promise: Callable[..., Any], *args: Any) -> bool:
    """Whether it fails.

    Raises what says nothing of the promise: a TypeError, or a request that the package does not take, as of a mutant
    that the code has moved away from under.
    """
    try:
        promise(*args)
    except BROKEN as failure:
        if isinstance(failure, InvalidRequest) and not isinstance(failure, RecordTooBig):
            raise
        return True
    return False
