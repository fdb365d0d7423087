"""Who holds an election by lease, for the commands that say so."""

from __future__ import annotations

from ..coord.lease import LeaseView
from ..coord.lock import LOCKS
from ..store.port import Key, RecordStore


def lease_of(store: RecordStore, election: str) -> LeaseView | None:
    """The lease of the election as it is now, held or not; None where there never was a candidate. One call."""
    record = store.get(Key(LOCKS, election))
    return LeaseView.of(record.key, record.bins) if record else None
