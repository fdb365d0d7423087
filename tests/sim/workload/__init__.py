"""What the actors do: one scenario a primitive."""

from __future__ import annotations

from .across import Across
from .barrier import Meetings
from .base import Scenario
from .batches import Batches
from .circular import Circular
from .consumer import Prefetching
from .effects import Effects
from .election import Election
from .groups import Groups
from .latch import LatchScenario
from .ledger import Ledgers
from .limiter import Limiter
from .lock import Lock
from .message import Messages
from .ordered import Ordered
from .poller import Polling
from .presence import Presence
from .publisher import Publishers
from .rate import Rated
from .results import Results
from .retry import Retried
from .rwlock import ReadWrite
from .semaphore import SemaphoreScenario
from .sharded import Sharded
from .store import Store
from .unique import Unique
from .upkeep import Upkept
from .writes import Writes

SCENARIOS: dict[str, type[Scenario]] = {
    kind.name: kind
    for kind in (
        Store,
        LatchScenario,
        Lock,
        Election,
        Across,
        Circular,
        Sharded,
        Ordered,
        Prefetching,
        Retried,
        Messages,
        Results,
        Unique,
        Rated,
        Groups,
        Batches,
        Ledgers,
        Effects,
        Writes,
        Publishers,
        Upkept,
        Polling,
        SemaphoreScenario,
        Limiter,
        Presence,
        Meetings,
        ReadWrite,
    )
}
