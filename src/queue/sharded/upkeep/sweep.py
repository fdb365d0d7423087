"""Sweeping shards: messages that were handed out and never acknowledged come back (docs/protocols P5).

They go to the tail of the queue, or into the sideline where failed messages wait there. Interrupted messages go to the
tail in any case.
Messages that a shovel or a redrive took, and did not move, go back to where they were, as they were.

`sweep_shards` needs only a store, tasks, an epoch and a way to ask whether the process still leads, so it runs in the
sweeper's process and on a Spark executor alike. Every step is safe if another sweeper, or the consumer, does it too at
that moment: stamps protect the records, the epoch protects the sweep pointer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from ....errors import FencedOut, LatchworkError, NotFound, Refused
from ....store import Add, Bin, MapPut, Once, Param, Put, RecordStore, Update, lacks, missing
from ....store.model.expr import SERVER_NOW, Bound, Expr, ListOf, MapValue, all_of
from ....store.model.ops import Op
from ..envelope import Envelope, Reason
from ..parts import parts_of
from ..pointers import FIRE, KNOWN
from ..record import QueueRecords, lifetime, sweep_note
from ..rules import SEEN
from ..shards import Shards
from ..slots import Slot, Stamped
from ..sweep_record import MARKS, SubqueueKind, counter_bin, mark_name, pointer_bin
from ..transfer import into, move
from .report import LiveMessage, ShardReport, ShardTask, Stop

BATCH = 1_000
"""Records in one step, the figure of the Java library."""
MOST_REMEMBERED = 10_000
"""Live messages of a shard that a leader remembers from one sweep to the next."""
POINTER_WRITES = Once(capacity=64, bin="ops", result=Bin("epoch"), monotone=True)

_STILL_FIRED = Bin(FIRE) >= Param("fired")
_MARK = ListOf((Param("fired"), SERVER_NOW))
EPOCH_GUARD = missing("epoch") | (Bin("epoch") <= Param("epoch"))
"""No later leader has written to the queue's record."""


@lru_cache(maxsize=64)
def _forward(bin: str, shards: int) -> Expr:
    """Return the guard "no later leader has written, and none of this number of sweep pointers would move back"."""
    parts = [EPOCH_GUARD]
    for n in range(shards):
        shard = Param(f"shard{n}", str)
        parts.append(lacks(bin, shard) | (MapValue(bin, shard) <= Param(f"to{n}")))
    return all_of(*parts)


def sweep_shards(
    store: RecordStore, tasks: Sequence[ShardTask], epoch: int, check: Callable[[], None]
) -> list[ShardReport]:
    """Sweep shards of one queue, each from its sweep pointer, 1,000 slots at a step whatever their shards.

    check: raises a `LatchworkError` once this is no longer the leader; asked before every step. Never raises for what
        the store does: the reports say why it stopped. A step costs five calls where everything is abandoned, one more
        where something is not, two where everything is settled.
    """
    reports: list[ShardReport] = []
    for kind in SubqueueKind:
        chosen = [task for task in tasks if task.kind is kind]
        if chosen:
            reports += _Sweep(store, chosen, epoch, check).run()
    return reports


@dataclass(slots=True)
class _Progress:
    """The progress of the sweep of a shard, and the first slot that it cannot pass.

    scanned: the last slot looked at.
    over: the last slot whose step is over: if it has an outcome, that is written.
    live: messages that consumers hold.
    unseen: whether its pointers are still to be marked. Until they are, no sweep pointer of it is written: the next
        sweep would take it for a shard that was lost.
    """

    task: ShardTask
    swept: int
    scanned: int
    over: int
    unseen: bool = False
    blocked: tuple[int, Stop] | None = None
    marked: int = 0
    tally: dict[str, int] = field(default_factory=dict)
    live: list[LiveMessage] = field(default_factory=list)

    def count(self, what: str, n: int = 1) -> None:
        self.tally[what] = self.tally.get(what, 0) + n

    def keep(self, pointer: int, stop: Stop, what: str | None = None) -> None:
        """Note that the slot is not settled: the sweep pointer stops before the first such slot, the scan continues."""
        if self.blocked is None or pointer < self.blocked[0]:
            self.blocked = pointer, stop
        if what:
            self.count(what)

    @property
    def reached(self) -> int:
        """The slot to which the sweep pointer may move. It does not move if the scan began beyond it."""
        if self.task.begin > self.task.swept:
            return self.swept
        return self.blocked[0] - 1 if self.blocked else self.scanned

    @property
    def marks(self) -> bool:
        """Whether what was fired is to be noted now."""
        return self.scanned == self.task.limit and self.task.noted > self.reached

    def report(self, stop: Stop | None, error: str | None) -> ShardReport:
        if stop is None or self.over >= self.task.limit:
            stop, error = self.blocked[1] if self.blocked else self.task.stop, None
        return ShardReport(
            self.task.config.name, self.task.kind, self.task.shard, swept=self.swept, marked=self.marked, stop=stop,
            error=error, damage=self.task.damage, live_messages=tuple(self.live), **self.tally,
        )  # fmt: skip


def sides(main: Shards, sideline: Shards, parked: Shards) -> dict[SubqueueKind, Shards]:
    """Return the parts of a queue, or of a group, that are swept."""
    own, shared = main.swept()
    parts = {SubqueueKind.MAIN: own, SubqueueKind.SIDELINE: sideline, SubqueueKind.PARKED: parked}
    return parts if shared is None else parts | {SubqueueKind.SHARED: shared}


class _Sweep:
    """One run over shards of one subqueue."""

    def __init__(self, store: RecordStore, tasks: Sequence[ShardTask], epoch: int, check: Callable[[], None]) -> None:
        first = tasks[0]
        self.store, self.epoch, self.check, self.kind, self.config = store, epoch, check, first.kind, first.config
        shards = parts_of(store, first.client_id, first.config)
        swept = sides(*shards)
        self.queue = swept[first.kind]
        self.main, sideline = swept[SubqueueKind.MAIN], swept[SubqueueKind.SIDELINE]
        if first.kind is SubqueueKind.PARKED:
            self.target = swept[SubqueueKind.PARKED]
        elif first.kind is SubqueueKind.SIDELINE or first.config.retries is None:
            self.target = sideline
        else:
            self.target = self.main
        self.stamp_rules = self.queue.stamp_rules
        self.record = QueueRecords(store, first.client_id, first.farm_id).key(first.config.name)
        self.age_ms = first.age_ms
        self.me = f"sweep-{epoch}-{store.seams.unique()}"
        self.shards = {task.shard: _Progress(task, task.swept, task.begin, task.begin, task.unseen) for task in tasks}

    def run(self) -> list[ShardReport]:
        stop, error = None, None
        try:
            for slots in self._steps():
                try:
                    self.check()
                except LatchworkError as failure:
                    raise FencedOut(f"the sweep of {self.queue.name} stopped: {failure}") from failure
                rehomed = self._step(slots)
                # Write the outcome, if this epoch still may, and note that the step is over.
                touched = self._touched(slots)
                moving = [one for one in touched if not one.unseen and (one.reached > one.swept or one.marks)]
                if moving or rehomed:
                    self._write(moving, rehomed)
                for shard in touched:
                    shard.over = shard.scanned
        except FencedOut as failure:
            stop, error = Stop.DEPOSED, str(failure)
        except LatchworkError as failure:
            stop, error = Stop.FAILED, f"{failure.code}: {failure}"
        return [shard.report(stop, error) for shard in self.shards.values()]

    def _steps(self) -> Iterator[list[Slot]]:
        slots: list[Slot] = []
        for shard in self.shards.values():
            for pointer in range(shard.task.begin + 1, shard.task.limit + 1):
                slots.append(Slot(shard.task.shard, pointer))
                if len(slots) == BATCH:
                    yield slots
                    slots = []
        if slots:
            yield slots

    # ---- one step

    def _step(self, slots: Sequence[Slot]) -> int:
        """Take what is abandoned, move it, and see what holds up the rest; how many messages were moved."""
        ops = self.stamp_rules.taking(self.me, self.queue.now_ms())
        guard = Bound(self.stamp_rules.abandoned, {"age": self.age_ms})
        taken: list[Stamped] = []
        others: list[Slot] = []
        takes = [Update(self.queue.key(slot), ops, guard) for slot in slots]
        unseen = [shard for shard in self._touched(slots) if shard.unseen]
        rows = self.store.operate_many(takes + [self._seen(shard) for shard in unseen])
        for shard, row in zip(unseen, rows[len(slots) :], strict=True):
            shard.unseen = isinstance(row, LatchworkError)
        for slot, row in zip(slots, rows[: len(slots)], strict=True):
            self.shards[slot.shard].scanned = slot.pointer
            self.shards[slot.shard].count("scanned")
            if isinstance(row, NotFound):
                self._empty(slot)
            elif isinstance(row, Refused):
                others.append(slot)
            elif isinstance(row, LatchworkError):
                self._refused(slot)
            else:
                taken.append(self._held(slot, row))
        taken += self._left_alone(self._not_abandoned(others))
        return self._rehome(taken)

    def _touched(self, slots: Sequence[Slot]) -> list[_Progress]:
        return [self.shards[number] for number in dict.fromkeys(slot.shard for slot in slots)]

    def _seen(self, shard: _Progress) -> Update:
        """Return the update that marks the pointers of a shard which no sweep has seen.

        Refused if they were lost a moment ago, and began again: their sweep begins at their first slot.
        """
        guard = None if shard.task.damage else Bound(_STILL_FIRED, {"fired": shard.task.limit})
        return Update(self.queue.pointers_key(shard.task.shard), (Put(KNOWN, 1),), guard)

    def _empty(self, slot: Slot) -> None:
        """Handle an empty slot: its message was acknowledged, or not written yet; only its age makes sure that it never
        will be.
        """
        shard = self.shards[slot.shard]
        if slot.pointer <= shard.task.settled_up_to:
            shard.count("acked")
        else:
            shard.keep(slot.pointer, Stop.YOUNG)

    def _refused(self, slot: Slot) -> None:
        self.shards[slot.shard].keep(slot.pointer, Stop.REFUSED, "refused")

    def _not_abandoned(self, slots: Sequence[Slot]) -> list[tuple[Slot, LiveMessage]]:
        """Return the slots that the leader knows to be abandoned, whatever the server's clock says.

        Tombstones are settled. Messages that a consumer holds are not. Messages that were never stamped wait for one
        sweep duration.
        """
        if not slots:
            return []
        unstamped: list[Slot] = []
        abandoned: list[tuple[Slot, LiveMessage]] = []
        unawaited: list[Slot] = []
        rows = self.store.repeat_many([Update(self.queue.key(slot), self.stamp_rules.state) for slot in slots])
        for slot, row in zip(slots, rows, strict=True):
            shard = self.shards[slot.shard]
            if isinstance(row, NotFound):
                shard.count("acked")
            elif isinstance(row, LatchworkError):
                self._refused(slot)
            elif not row[2]:
                shard.count("tombstones")
                unawaited += [slot] if row[3] == 0 else []
            elif row[0] in (None, ""):
                unstamped.append(slot)
                shard.keep(slot.pointer, Stop.LIVE, "stamped")
            else:
                delivery, stamped = row[0], 0 if row[1] is None else row[1]
                if type(delivery) is not str or type(stamped) is not int:  # the server's clock alone counts for it
                    shard.keep(slot.pointer, Stop.LIVE, "live")
                    continue
                message = LiveMessage(slot.pointer, delivery, stamped)
                if message in shard.task.abandoned:
                    abandoned.append((slot, message))
                    continue
                shard.keep(slot.pointer, Stop.LIVE, "live")
                if len(shard.live) < MOST_REMEMBERED:
                    shard.live.append(message)
        ops = self.stamp_rules.taking(SEEN, self.queue.now_ms())
        self.store.repeat_many([Update(self.queue.key(slot), ops, self.stamp_rules.unstamped) for slot in unstamped])
        self.queue.readers.finish(unawaited)
        return abandoned

    def _left_alone(self, abandoned: Sequence[tuple[Slot, LiveMessage]]) -> list[Stamped]:
        """Take messages that are still as the leader has seen them one duration ago. One call, or none."""
        if not abandoned:
            return []
        taken: list[Stamped] = []
        ops = self.stamp_rules.taking(self.me, self.queue.now_ms())
        guards = [
            Bound(self.stamp_rules.left_alone, {"delivery": m.delivery, "stamped": m.stamped}) for _, m in abandoned
        ]
        rows = [Update(self.queue.key(slot), ops, guard) for (slot, _), guard in zip(abandoned, guards, strict=True)]
        for (slot, _), row in zip(abandoned, self.store.operate_many(rows), strict=True):
            if isinstance(row, NotFound):
                self.shards[slot.shard].count("acked")
            elif isinstance(row, Refused):
                self.shards[slot.shard].keep(slot.pointer, Stop.LIVE, "live")
            elif isinstance(row, LatchworkError):
                self._refused(slot)
            else:
                taken.append(self._held(slot, row))
        return taken

    def _held(self, slot: Slot, row: Any) -> Stamped:
        envelope = self.stamp_rules.envelope(row)
        assert envelope is not None  # noqa: S101 - the guard asks for a payload
        return Stamped(slot, self.me, envelope)

    def _rehome(self, taken: Sequence[Stamped]) -> int:
        if not taken:
            return 0
        rehomed = 0
        interrupted = [one for one in taken if self._was_interrupted(one.envelope)]
        others = [one for one in taken if not self._was_interrupted(one.envelope)]
        for some, target in ((interrupted, self.main), (others, self.target)):
            if not some:
                continue
            outcomes = move(some, into(target), [self._swept(held.envelope) for held in some], self.queue.remove)
            gone = [held for held, outcome in zip(some, outcomes, strict=True) if outcome is True]
            self.queue.strike({
                held.slot: held.envelope.interrupted
                for held in gone
                if isinstance(held.envelope.interrupted, str)
            })  # fmt: skip
            for held, outcome in zip(some, outcomes, strict=True):
                if outcome is True:
                    self.shards[held.slot.shard].count("rehomed")
                    rehomed += 1
                else:
                    self._refused(held.slot)
        return rehomed

    def _was_interrupted(self, envelope: Envelope) -> bool:
        """Whether the process that had the message was stopping: that is no failure."""
        return self.kind in (SubqueueKind.MAIN, SubqueueKind.SHARED) and envelope.interrupted is not None

    def _swept(self, envelope: Envelope) -> Envelope:
        if self.kind in (SubqueueKind.SIDELINE, SubqueueKind.PARKED) or self._was_interrupted(envelope):
            return envelope  # it keeps why it failed, and until when it waits
        error = f"not acknowledged within {self.age_ms / 1000:g} s"
        return replace(envelope, reason=Reason.SWEPT.value, last_error=error, not_before=0)

    # ---- the sweep pointers

    def _write(self, moving: Sequence[_Progress], rehomed: int) -> None:
        """Advance the pointers to the first slots in the way, unless one is further already."""
        bin, counter = pointer_bin(self.kind), counter_bin(self.kind)
        ops: list[Op] = [Put("epoch", self.epoch), Add(counter, rehomed)]
        if not any("refused" in shard.tally or shard.task.damage for shard in self.shards.values()):
            ops += sweep_note(success=True)
        params: dict[str, Any] = {"epoch": self.epoch}
        for n, shard in enumerate(moving):
            name = str(shard.task.shard)
            params |= {f"shard{n}": name, f"to{n}": shard.reached}
            ops.append(MapPut(bin, name, shard.reached))
            if shard.marks:
                noted = Bound(_MARK, {"fired": shard.task.noted})
                ops.append(MapPut(MARKS, mark_name(self.kind, shard.task.shard), noted))
        guard = Bound(_forward(bin, len(moving)), params)
        try:
            self.store.operate(self.record, *ops, when=guard, ttl=lifetime(self.config), once=POINTER_WRITES)
        except Refused as failure:
            raise FencedOut(f"the sweep pointers of {self.queue.name} belong to a later leader") from failure
        for shard in moving:
            shard.swept, shard.marked = shard.reached, shard.task.noted if shard.marks else shard.marked
