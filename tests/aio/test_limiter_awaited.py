"""The promises of rate limiters, by the tests of the sync ones, on the awaited ones."""

from __future__ import annotations

import pytest

import tests.coord.test_limiter as of_the_sync_surface
from tests.coord.conftest import clock, memory, name, shared_store, store
from tests.coord.test_limiter import *  # noqa: F403 - its tests

from . import adapter

__all__ = ["clock", "memory", "name", "shared_store", "store"]

del test_a_handle_travels_with_its_limits  # noqa: F821 - a twin is made where it is used, and is not pickled


@pytest.fixture(autouse=True)
def _dressed(monkeypatch):
    adapter.dress(of_the_sync_surface, monkeypatch)
