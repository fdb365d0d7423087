"""In a forked child all that is shared with the parent is begun anew, also where one of them fails."""

from __future__ import annotations

from weakref import WeakSet

import pytest

from latchwork import forks


def test_one_that_fails_keeps_no_other_from_being_begun_anew(monkeypatch):
    begun = []

    class Failing:
        def begin_anew(self):
            begun.append(self)
            raise AttributeError(f"failure {len(begun)}")

    some = [Failing() for _ in range(3)]
    monkeypatch.setattr(forks, "_ALL", WeakSet(some))
    with pytest.raises(AttributeError, match="failure 1"):
        forks._begin_anew()
    assert set(begun) == set(some)
