"""The holder of an election, in one store or over the stores of all farms, for the commands that show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...coord.lease import LeaseView, broken_by
from ...coord.lock import LOCKS
from ...errors import LatchworkError
from ...observe.snapshot import Leader
from ...plain import shown_time
from ...store import Compute
from ...store.model.expr import SERVER_NOW
from ...store.port import Key, RecordStore


def lease_of(store: RecordStore, election: str) -> LeaseView | None:
    """Return the lease of the election as it is now, held or not; None if there never was a candidate. One call."""
    record = store.get(Key(LOCKS, election))
    return LeaseView.of(record.key, record.bins) if record else None


def stepped_down_by(leader: Leader | None) -> str | None:
    """Return who made the last leader step down, where nobody has been elected since; None where nobody did."""
    return broken_by(leader.name) if leader is not None and leader.held else None


def successor(wait: float, lease: float) -> str:
    """Return when a candidate is elected after a step-down. wait: seconds until the former leader's lease is over."""
    if wait > 0:
        return f"a candidate is elected once the lease of {lease:g} s is over, in {shown_time(wait)}"
    return "a candidate should lead by now: the logs of the candidates say why none does"


@dataclass(frozen=True, slots=True)
class Office:
    """An election over all farms at one moment, as their stores show it.

    leader, epoch: the candidate with the highest epoch, unless it has resigned; None if no candidate leads or has led.
    silent: seconds since the leader renewed, by the server of its farm, less its lease; above 0 it has run out.
    stepped_down_by: who made the last leader step down, where nobody has been elected since.
    lease: of the leader, or of the one that stepped down, in seconds.
    seen: by farm, the highest epoch that its store has seen, 0 for none.
    failures: of the farms that do not answer.
    """

    leader: str | None
    epoch: int | None
    silent: float
    seen: Mapping[str, int]
    failures: Mapping[str, str]
    stepped_down_by: str | None = None
    lease: float = 0.0

    @property
    def has_run_out(self) -> bool:
        """Whether the leader has neither resigned nor renewed for its whole lease: it died, or is paused."""
        return self.leader is not None and self.silent > 0

    @property
    def sealed(self) -> list[str]:
        """The farms that know the highest epoch; none before the first leader."""
        return sorted(farm for farm, epoch in self.seen.items() if epoch == self.epoch)

    @property
    def unsealed(self) -> list[str]:
        """The farms that answer and do not know the highest epoch."""
        return sorted(farm for farm, epoch in self.seen.items() if self.epoch is not None and epoch < self.epoch)


def office_of(stores: Mapping[str, RecordStore], election: str) -> Office:
    """Look at the election over all farms. One call a farm, and one more in the leader's."""
    leases: dict[str, LeaseView | None] = {}
    failures: dict[str, str] = {}
    for farm, store in stores.items():
        try:
            leases[farm] = lease_of(store, election)
        except LatchworkError as failure:
            failures[farm] = str(failure)
    seen = {farm: lease.fence if lease else 0 for farm, lease in leases.items()}
    epoch = max(seen.values(), default=0) or None
    holds = [(farm, lease) for farm, lease in leases.items() if lease and lease.locked and lease.fence == epoch]
    if not holds:
        return Office(None, epoch, 0.0, seen, failures)
    farm, lease = holds[0]
    try:
        (now,) = stores[farm].operate(Key(LOCKS, election), Compute(SERVER_NOW))
    except LatchworkError:
        now = lease.time
    silent, by = (int(now) - lease.time) / 1000 - lease.lease, lease.broken_by
    return Office(None if by else lease.owner, epoch, silent, seen, failures, by, lease.lease)
