"""The farms and queues of a client, as the leader of its upkeep finds them."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from ....background import FailureLog
from ....coord.election.election import LeaseElection
from ....errors import Corrupt, InvalidRequest, LatchworkError, Unreadable
from ....logs import Log
from ..bell import RUNG, rung_in
from ..registry import AnyQueue, QueueRegistry, made_here
from .reporter import FARM

log = Log(__name__)

LIST = 60.0
"""Seconds between two listings of a client's queues and of the farms that have candidates: how late a queue is noticed
if its maker could not ring the bell, or was another library."""
NOTICE = 5.0
"""Seconds after which a duty looks again at the queues that were listed, and after which one of them asks whether
another process has made one: one read."""


class HasQueues(Protocol):
    """A source of the queues that a duty is done for: `Farms`, or the queues that a test keeps by itself."""

    def queues(self) -> list[AnyQueue]: ...
    def failure_log(self) -> FailureLog: ...


class Farms:
    """The registries of all farms that have candidates, listed again each minute, and as soon as a queue was made."""

    def __init__(self, own: QueueRegistry, election: LeaseElection) -> None:
        self._own, self._election, self._seams = own, election, own.store.seams
        self._registries = {own.farm_id: own}
        self._queues: list[AnyQueue] = []
        self._listed, self._made = float("-inf"), 0
        self._heard, self._rings = float("-inf"), list[int]()
        self._lock = self._seams.lock()

    def failure_log(self) -> FailureLog:
        """Return a duty's record of failures."""
        return FailureLog(self._seams, log)

    def registries(self) -> list[QueueRegistry]:
        """Return one of each farm, this process's first."""
        self.queues()
        return list(self._registries.values())

    def queues(self) -> list[AnyQueue]:
        """Return all queues, active or not. Two calls a farm and one for the candidates if it is time to list them, or
        one was made; else one call each `NOTICE` seconds.
        """
        with self._lock:
            made, rings = made_here[self._own.client_id], self._heard_rings()
            if made != self._made or rings != self._rings or self._seams.monotonic() >= self._listed + LIST:
                with suppress(Corrupt, Unreadable):  # the candidate that reports next begins the list again
                    for candidate in self._election.contenders():
                        self._add(candidate)
                self._queues = [queue for one in self._registries.values() for queue in one.queues(active=None)]
                self._listed, self._made, self._rings = self._seams.monotonic(), made, rings
            return self._queues

    def _add(self, candidate: str) -> None:
        """Add the farm of a candidate, if it has one that is not known."""
        farm = candidate.rpartition(FARM)[2]
        if FARM in candidate and farm not in self._registries:
            with suppress(InvalidRequest):  # no farm: a candidate of another program has such a name
                self._registries[farm] = QueueRegistry(self._own.store, self._own.client_id, farm_id=farm)

    def _heard_rings(self) -> list[int]:
        """Return how often the bells of the farms were rung; what is known of it where they are not to be asked now, or
        cannot be.
        """
        now = self._seams.monotonic()
        if now < self._heard + NOTICE:
            return self._rings
        self._heard = now
        try:
            records = self._own.store.get_many([one.bell.key for one in self._registries.values()], RUNG)
        except LatchworkError:
            return self._rings
        return [rung_in(record) for record in records]
