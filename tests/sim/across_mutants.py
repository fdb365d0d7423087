"""Rules taken out of the election over all farms (P21), one at a time, as `mutants.py` lists them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest import mock

from latchwork.coord.election import across
from latchwork.coord.election.across import GlobalElection
from latchwork.coord.fencing import Fenced
from latchwork.errors import LatchworkError


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


def _sealed_by_and_by(self: Any, grant: Any) -> Any:
    def seals() -> None:
        with suppress(LatchworkError):
            self._seal(grant, frozenset(self._stores))

    self._seams.spawn(seals, "seals")
    return frozenset()


ACROSS_RULES = (
    ("resources are not sealed", "P21: then resource bin = e for each", _swap(Fenced, "seal", lambda *_, **__: None)),
    ("the record of other farms is not sealed", "P21: the update of 2 on the election's record",
     _swap(GlobalElection, "_seal_record", lambda *_: None)),
    ("sealed while work has begun", "P21: only then does the leader's function begin",
     _swap(GlobalElection, "_sealed_enough", _sealed_by_and_by)),
    ("nobody gives way", "P21: fail-back between two works", _swap(GlobalElection, "gives_way_to", lambda self: None)),
    ("sealed fences may go back", "P21: on the guard no fence or fence < it",
     _swap(across, "_BELOW", across.missing("never"))),
)  # fmt: skip
"""The other rules of P21 need two faults at one moment; `tests/coord/election/test_across.py` brings these about."""
