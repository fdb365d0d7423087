"""Rules taken out of the election over all farms (P21), one at a time, as `mutants.py` lists them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest import mock

from latchwork.coord.election import across
from latchwork.coord.election.across import GlobalElection
from latchwork.coord.election.znodes import Line
from latchwork.coord.election.zookeeper import ZooKeeperElection
from latchwork.coord.fencing import Fenced
from latchwork.errors import FencedOut, LatchworkError


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


def _none_kept(self: Any, *, real: Any = Line.kept) -> Any:
    return 0, real(self)[1]


def _sealed_by_and_by(self: Any, grant: Any) -> Any:
    def seals() -> None:
        with suppress(LatchworkError):
            self._seal(grant, frozenset(self._stores))

    self._seams.spawn(seals, "seals")
    return frozenset()


def _no_matter(self: Any, grant: Any, farm: str, *, real: Any = GlobalElection._unreachable) -> Any:
    try:
        return real(self, grant, farm)
    except FencedOut:
        return None


def _without_its_own(self: Any, grant: Any) -> Any:
    return self._seal(grant, frozenset(self._stores))


def _stays(self: Any, stop: Any) -> Any:
    return self._chosen(stop)


ACROSS_RULES = (
    ("epochs by the store's clock alone", "P21: above the epoch that ZooKeeper has kept",
     _swap(Line, "kept", _none_kept)),
    ("resources are not sealed", "P21: then resource bin = e for each", _swap(Fenced, "seal", lambda *_, **__: None)),
    ("the record of other farms is not sealed", "P21: the update of 2 on the election's record",
     _swap(GlobalElection, "_seal_record", lambda *_: None)),
    ("sealed while work has begun", "P21: only then does the leader's function begin",
     _swap(GlobalElection, "_sealed_enough", _sealed_by_and_by)),
    ("a refused seal is no matter", "P21: a farm that has seen a later epoch refuses",
     _swap(GlobalElection, "_unreachable", _no_matter)),
    ("a term without its own farm", "P21: a farm that cannot be reached, the own one: no term",
     _swap(GlobalElection, "_sealed_enough", _without_its_own)),
    ("nobody gives way", "P21: fail-back between two works", _swap(GlobalElection, "gives_way_to", lambda self: None)),
    ("who cannot lead stays in the line", "P21: a candidate whose own store cannot be read leaves",
     _swap(ZooKeeperElection, "_elect", _stays)),
    ("sealed fences may go back", "P21: on the guard no fence or fence < it",
     _swap(across, "_BELOW", across.missing("never"))),
)  # fmt: skip
