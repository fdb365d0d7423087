"""Every promise of P5, over every backend."""

from __future__ import annotations

import pytest

from . import promises


@pytest.mark.parametrize("promise", promises.ALL, ids=lambda promise: promise.__name__)
def test_promise(promise, world):
    if world.real and promise in promises.SIMULATED_ONLY | promises.MANY_WAITS:
        pytest.skip("needs a clock that the test can move")
    promise(world)
