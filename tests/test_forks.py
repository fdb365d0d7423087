"""In a forked child all that is shared with the parent is begun anew, also where one of them fails."""

from __future__ import annotations

from weakref import WeakSet

import pytest

from latchwork import forks


def test_one_that_fails_keeps_no_other_from_being_begun_anew(monkeypatch):
    begun = []

    class Failing:
        def reset_after_fork(self):
            begun.append(self)
            raise AttributeError(f"failure {len(begun)}")

    some = [Failing() for _ in range(3)]
    monkeypatch.setattr(forks, "_ALL", WeakSet(some))
    with pytest.raises(AttributeError, match="failure 1"):
        forks._reset_all()
    assert set(begun) == set(some)


def test_members_are_listed_though_another_thread_adds_one_meanwhile():
    class One:
        pass

    class Growing(WeakSet):
        def __iter__(self):
            for one in super().__iter__():
                if len(kept) == 2:
                    kept.append(One())
                    self.add(kept[-1])
                yield one

    kept = [One(), One()]
    assert set(forks.members(Growing(kept))) == set(kept)
    assert len(kept) == 3
