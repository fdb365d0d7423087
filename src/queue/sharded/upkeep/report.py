"""The task and the report of a sweep, as values that pickle and add up."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ....plain import counted
from ....seams import Seams
from ..config import QueueConfig
from ..sweep_record import SubqueueKind

RECORDED = ("acked", "rehomed", "live", "stamped", "tombstones", "refused")
"""The counts of a shard's report that are recorded as metrics."""


class Stop(str, Enum):
    """The reason for which the sweep of a shard went no further."""

    DRAINED = "drained"  # all messages that were handed out are settled
    LIVE = "live"  # a consumer still has the first message in the way
    YOUNG = "young"  # the first empty slot in the way may still be written to
    REFUSED = "refused"  # the first message in the way could not be moved
    DEPOSED = "deposed"  # another leader has taken over
    FAILED = "failed"  # the store failed
    BUDGET = "budget"  # enough for one sweep; the next one continues there


class LiveMessage(NamedTuple):
    """A message that a consumer holds, as a sweep saw it: its slot, its delivery, and the date of its last stamp.

    The date, in ms by a client's clock, is only compared for equality: if a later sweep finds this date, no consumer
    has worked on the message in between.
    """

    pointer: int
    delivery: str
    stamped: int


@dataclass(frozen=True, slots=True)
class ShardTask:
    """The instructions for the sweep of one shard. It pickles.

    swept: the sweep pointer.
    begin, limit: scan the slots above `begin`, up to `limit`. The sweep pointer moves only if it is `begin`.
    settled_up_to: empty slots up to here are settled: no producer can still acknowledge a message there.
    noted: the pointer to note as fired by now; 0 = none.
    age_ms: how long a message must have been left alone, by the server's clock.
    abandoned: messages that were left alone for as long, by the leader's clock.
    stop: why the scan ends at `limit`.
    damage: what is wrong with the shard's pointers.
    unseen: whether its pointers are to be marked as seen by a sweep.
    """

    client_id: str
    farm_id: str
    config: QueueConfig
    kind: SubqueueKind
    shard: int
    swept: int
    begin: int
    limit: int
    settled_up_to: int
    noted: int
    age_ms: int
    abandoned: frozenset[LiveMessage] = frozenset()
    stop: Stop = Stop.DRAINED
    damage: str | None = None
    unseen: bool = False


@dataclass(frozen=True, slots=True)
class ShardReport:
    """The result of the sweep of one shard.

    scanned: slots looked at.
    acked: empty slots, settled.
    rehomed: messages moved to the tail of the queue or to the sideline, or parked again.
    live: messages that consumers hold.
    stamped: messages that were claimed and never stamped; they wait for one sweep duration from now.
    tombstones: tombstones of producers that were too late.
    refused: messages that could not be moved; the next sweep tries again.
    swept: the sweep pointer now.
    marked: the pointer that was noted as fired, or 0.
    damage: what is wrong with the shard's pointers. Until they are repaired, nothing is published to the shard or
        received from it; its messages are moved to other shards, or to the sideline.
    live_messages: the messages that consumers hold, for the leader to remember; if there are very many, the first of
        them.
    """

    queue: str
    kind: SubqueueKind
    shard: int
    scanned: int = 0
    acked: int = 0
    rehomed: int = 0
    live: int = 0
    stamped: int = 0
    tombstones: int = 0
    refused: int = 0
    swept: int = 0
    marked: int = 0
    stop: Stop = Stop.DRAINED
    error: str | None = None
    damage: str | None = None
    live_messages: tuple[LiveMessage, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The result of one sweep. Reports of parts of a sweep add up with `+`.

    epoch: of the leader; 0 = this process did not lead, so nothing was done.
    queues: the names of the queues looked at.
    shards: one entry for each shard that had something to sweep, or is damaged.
    failures: (queue, error) of each queue that failed, has messages that could not be moved, or is damaged.
    """

    epoch: int
    queues: tuple[str, ...] = ()
    shards: tuple[ShardReport, ...] = ()
    failures: tuple[tuple[str, str], ...] = ()

    @property
    def led(self) -> bool:
        """Whether this process led."""
        return self.epoch > 0

    @property
    def ok(self) -> bool:
        """Whether this process led, every queue was swept as far as it could be, and every message could be moved."""
        return self.led and not self.failures

    @property
    def scanned(self) -> int:
        """Slots looked at."""
        return sum(shard.scanned for shard in self.shards)

    @property
    def acked(self) -> int:
        """Empty slots, settled."""
        return sum(shard.acked for shard in self.shards)

    @property
    def rehomed(self) -> int:
        """Messages moved to the tail of a queue or to a sideline, or parked again."""
        return sum(shard.rehomed for shard in self.shards)

    @property
    def tombstones(self) -> int:
        """Slots of producers that were too late."""
        return sum(shard.tombstones for shard in self.shards)

    @property
    def refused(self) -> int:
        """Messages that could not be moved, and stay for the next sweep."""
        return sum(shard.refused for shard in self.shards)

    @property
    def live(self) -> int:
        """Messages that consumers hold, or that were claimed a moment ago: not due yet."""
        return sum(shard.live + shard.stamped for shard in self.shards)

    @property
    def damaged(self) -> tuple[ShardReport, ...]:
        """The shards whose pointers are damaged."""
        return tuple(shard for shard in self.shards if shard.damage)

    def record(self, seams: Seams, seconds: float) -> None:
        """Record the result for each queue as metrics; `seconds` is the duration of the sweep."""
        failed = dict(self.failures)
        for queue in self.queues:
            seams.note("sweeps", seconds, queue=queue, outcome="failed" if queue in failed else "swept")
            if queue not in failed:
                seams.note("last_sweep", seams.wall(), queue=queue)
        for shard in self.shards:
            for outcome in RECORDED:
                n = getattr(shard, outcome)
                if n:
                    seams.note("swept", n, queue=shard.queue, outcome=outcome)

    def __add__(self, other: SweepReport) -> SweepReport:
        return SweepReport(
            max(self.epoch, other.epoch),
            tuple(dict.fromkeys(self.queues + other.queues)),
            self.shards + other.shards,
            self.failures + other.failures,
        )

    def __str__(self) -> str:
        if not self.led:
            return "nothing was swept: this process does not lead"
        looked = f"slots looked at: {self.scanned}, done with: {self.acked}"
        counts = f"brought back {counted(self.rehomed, 'message')} ({looked})"
        counts += f"; could not be moved, and stay for the next sweep: {self.refused}" if self.refused else ""
        counts += f"; in flight and not due yet: {self.live}" if self.live else ""
        failures = "".join(f"; {queue}: {error}" for queue, error in self.failures)
        return f"swept {counted(len(self.queues), 'queue')} as epoch {self.epoch}: {counts}{failures}"
