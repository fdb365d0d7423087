"""Rules taken out of the election over all farms (P21), one at a time, as `mutants.py` lists them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest import mock

from latchwork.coord.election import across
from latchwork.coord.election.across import GlobalElection
from latchwork.coord.election.znodes import CandidateNode
from latchwork.coord.fencing import Fenced
from latchwork.errors import FencedOut, InvalidRequest, LatchworkError


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


def _sealed_by_and_by(self: Any, grant: Any) -> Any:
    def seals() -> None:
        with suppress(LatchworkError):
            self._seal(grant, frozenset(self._stores))

    self._seams.spawn(seals, "seals")
    return frozenset()


def _not_asked(self: Any, *, real: Any = CandidateNode.kept) -> Any:
    return 0, real(self)[1]


def _whatever_was_kept(self: Any, epoch: int, _: int, *, real: Any = CandidateNode.keep) -> None:
    real(self, epoch, -1)


def _refused_counts_as_made(self: Any, grant: Any, farm: str, *, real: Any = GlobalElection._unreachable) -> Any:
    with suppress(FencedOut):
        return real(self, grant, farm)
    return None


def _no_higher(self: Any, grant: Any, farm: str, *, real: Any = GlobalElection._unreachable) -> Any:
    before = self._above
    try:
        return real(self, grant, farm)
    finally:
        self._above = before


def _own_farm_too(self: Any, grant: Any) -> Any:
    return self._seal(grant, frozenset(self._stores))


def _own_epoch_will_do(self: Any, farm: str, store: Any, epoch: int, *, real: Any = GlobalElection._seal_record) -> Any:
    with suppress(InvalidRequest):
        return real(self, farm, store, epoch)
    return None


ACROSS_RULES = (
    ("resources are not sealed", "P21: then resource bin = e for each", _swap(Fenced, "seal", lambda *_, **__: None)),
    ("the record of other farms is not sealed", "P21: the update of 2 on the election's record",
     _swap(GlobalElection, "_seal_record", lambda *_: None)),
    ("sealed while work has begun", "P21: only then does the leader's function begin",
     _swap(GlobalElection, "_sealed_enough", _sealed_by_and_by)),
    ("nobody gives way", "P21: fail-back between two works", _swap(GlobalElection, "gives_way_to", lambda self: None)),
    ("sealed fences may go back", "P21: on the guard no fence or fence < it",
     _swap(across, "_BELOW", across.missing("never"))),
    ("what ZooKeeper has kept is not asked", "P21: read the kept epoch",
     _swap(CandidateNode, "kept", _not_asked), True),
    ("kept, whatever was kept meanwhile", "P21: where its version is still v",
     _swap(CandidateNode, "keep", _whatever_was_kept), True),
    ("a refused seal counts as made", "P21: a farm that has seen a later epoch refuses",
     _swap(GlobalElection, "_unreachable", _refused_counts_as_made), True),
    ("begins again no higher", "P21: begins again above what was seen",
     _swap(GlobalElection, "_unreachable", _no_higher), True),
    ("leads though its own farm is not sealed", "P21: the own one: no term",
     _swap(GlobalElection, "_sealed_enough", _own_farm_too), True),
    ("a farm that is back is not sealed", "P21: seals it once a second until it answers",
     _swap(GlobalElection, "_seal_later", lambda self, *_: None), True),
    ("its own epoch counts as sealed", "P21: a seal that meets its own epoch is refused",
     _swap(GlobalElection, "_seal_record", _own_epoch_will_do), True),
)  # fmt: skip
"""Those that say True need two faults at one moment: `scripts/across.py` brings these about."""
