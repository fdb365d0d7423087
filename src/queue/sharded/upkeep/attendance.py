"""A process that consumes is a member of its client's group, so that others see who works on what (P9)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import suppress

from ....background import Background, Troubles
from ....coord.members import Member, checked_meta
from ....coord.presence import Group, Membership
from ....errors import FencedOut, InvalidRequest, LatchworkError
from ....store.port import RecordStore

log = logging.getLogger(__name__)

LEASE = 120.0
"""Seconds after which a process that died counts as lost: a heartbeat each third, and a look at the others each lease.
"""


def workers_of(store: RecordStore, client_id: str, farm_id: str | None = None) -> Group:
    """The group of the processes in which consumers of a client run; each with `{"queues": [...]}`."""
    return Group(store, f"{client_id}-workers", farm_id=farm_id)


def queues_of(member: Member) -> list[str]:
    """The queues that a process works on; the first ones, where their names are too long for all."""
    found = member.meta.get("queues") if isinstance(member.meta, dict) else None
    return [str(name) for name in found] if isinstance(found, list) else []


class Attendance:
    """One process's membership. Joining and renewing go on in the background; where they fail, the log says so."""

    def __init__(self, group: Group, name: str, queues: Callable[[], Collection[str]]) -> None:
        self._group, self._name, self._queues = group, name, queues
        self._troubles = Troubles(group.seams, log)
        self._membership: Membership | None = None
        self._told, self._looked = "", float("-inf")
        self._background = Background(group.seams, self._attend, f"{name}-attendance")

    def start(self) -> None:
        """Begin, unless it has begun. No I/O here."""
        with suppress(InvalidRequest):  # the last one is just leaving: the next start begins anew
            self._background.start()

    def stop(self, timeout: float) -> None:
        """Leave; that goes on by itself where it takes longer than so many seconds."""
        self._background.stop(timeout)

    def _attend(self) -> None:
        stopping = self._background.stopping
        while not stopping.is_set():
            try:
                self._be_there()
            except Exception as failure:  # noqa: BLE001 - nobody would start it again
                self._troubles.tell(failure, f"{self._group!r} does not hear of this process")
            stopping.wait(LEASE / 3)
        membership, self._membership = self._membership, None
        if membership is not None:
            with suppress(LatchworkError):  # it then counts as lost after its lease
                membership.leave()

    def _be_there(self) -> None:
        """Join where that was not done, or other queues are worked on since; else renew. Then take out the dead."""
        meta = _meta(self._queues())
        told = checked_meta(meta)
        if self._membership is not None and told == self._told:
            try:
                self._membership.renew()
            except FencedOut:  # this process was paused, and counts as lost: it joins anew
                self._membership = None
        if self._membership is None or told != self._told:
            self._membership = self._group.join(self._name, meta=meta, lease=LEASE, keep_alive=False)
            self._told = told
        now = self._group.seams.monotonic()
        if now - self._looked >= LEASE:
            self._looked = now
            self._group.members()


def _meta(queues: Collection[str]) -> dict[str, list[str]]:
    """What others are told: as many names as fit."""
    names = sorted(set(queues))
    while names:
        with suppress(InvalidRequest):
            checked_meta({"queues": names})
            return {"queues": names}
        names.pop()
    return {"queues": []}
