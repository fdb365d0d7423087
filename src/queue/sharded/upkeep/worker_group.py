"""The group of a client's consuming processes, from which others see which process works on which queues (P9)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

from ....background import Background, FailureLog
from ....coord.presence.layout import Member, checked_meta
from ....coord.presence.presence import Group, Membership
from ....deadline import Deadline
from ....errors import FencedOut, InvalidRequest, LatchworkError
from ....logs import Log
from ....seams import Event
from ....store.port import RecordStore

log = Log(__name__)

LEASE = 120.0
"""Seconds after which a process that died counts as lost: a heartbeat each third, and a look at the others each lease.
"""


def workers_of(store: RecordStore, client_id: str, farm_id: str | None = None) -> Group:
    """Return the group of the processes in which consumers of a client run; each with `{"queues": [...]}`."""
    return Group(store, f"{client_id}-workers", farm_id=farm_id)


def queues_of(member: Member) -> list[str]:
    """Return the queues that a process works on; the first ones, where their names are too long for all."""
    found = member.meta.get("queues") if isinstance(member.meta, dict) else None
    return [str(name) for name in found] if isinstance(found, list) else []


class WorkerMembership:
    """The membership of one process in the group of a client's workers. Joins and renews in the background; failures
    are logged.
    """

    def __init__(self, group: Group, name: str, queues: Callable[[], Collection[str]]) -> None:
        self._group, self._name, self._queues = group, name, queues
        self._failure_log = FailureLog(group.seams, log)
        self._membership: Membership | None = None
        self._published, self._looked = "", float("-inf")
        self._background = Background(group.seams, self._stay_member, f"{name}-membership")
        self._lock = group.seams.lock()
        self._again = self._is_over = False

    def start(self) -> None:
        """Begin, unless it has begun; while it is still leaving, it joins again after that. No I/O here."""
        with self._lock:
            if self._is_over:
                self._background.stop(None)  # at once: its thread has nothing left to do
            try:
                self._background.start()
                self._is_over = False
            except InvalidRequest:
                self._again = True

    def stop(self, timeout: float) -> None:
        """Leave the group. If that takes longer than `timeout` seconds, it continues in the background."""
        with self._lock:
            self._again = False
        self._background.stop(timeout)

    def _stay_member(self) -> None:
        stopping = self._background.stopping
        while True:
            self._stay_until(stopping)
            with self._lock:
                if not self._again:
                    self._is_over = True
                    return
                self._again = False
                stopping.clear()

    def _stay_until(self, stopping: Event) -> None:
        while not stopping.is_set():
            try:
                with self._deadline():  # after a heartbeat whose reply is lost there is time for the next in the lease
                    self._join_or_renew()
            except Exception as failure:  # noqa: BLE001 - no other thread would start it again
                self._failure_log.record(failure, f"{self._group!r} this process could not join or renew")
            stopping.wait(LEASE / 3)
        membership, self._membership = self._membership, None
        if membership is not None:
            try:
                with self._deadline():
                    membership.leave()
            except LatchworkError:
                """It then counts as lost after its lease."""
            except Exception as failure:  # noqa: BLE001 - a defect, which no other thread would report
                self._failure_log.record(failure, f"{self._group!r} this process could not leave")

    def _deadline(self) -> Deadline:
        return Deadline(self._group.seams, LEASE / 4)

    def _join_or_renew(self) -> None:
        """Join if that was not done, or if the queues have changed; else renew. Then remove dead members."""
        meta = _meta(self._queues())
        meta_text = checked_meta(meta)
        if self._membership is not None and meta_text == self._published:
            try:
                self._membership.renew()
            except FencedOut:  # this process was paused and counts as lost: it joins again
                self._membership = None
        if self._membership is None or meta_text != self._published:
            self._membership = self._group.join(self._name, meta=meta, lease=LEASE, keep_alive=False)
            self._published = meta_text
        now = self._group.seams.monotonic()
        if now - self._looked >= LEASE:
            self._looked = now
            self._group.members()


def _meta(queues: Collection[str]) -> dict[str, list[str]]:
    """Return what the other members see of this process: as many queue names as fit."""
    names = sorted(set(queues))
    while names:
        with suppress(InvalidRequest):
            checked_meta({"queues": names})
            return {"queues": names}
        names.pop()
    return {"queues": []}
