"""Rules taken out of the upkeep (P5, P14, P16), one at a time, as `mutants.py` lists them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

from latchwork.errors import LatchworkError
from latchwork.queue.sharded.delayed import schedules as delayed_schedules
from latchwork.queue.sharded.delayed.schedules import Schedule, ScheduleRecords, from_ms, to_ms
from latchwork.queue.sharded.ledger.ledger import Ledger
from latchwork.queue.sharded.queue import ShardedQueue
from latchwork.queue.sharded.upkeep import sweep, sweeper, timers
from latchwork.queue.sharded.upkeep.scheduling import Scheduling
from latchwork.queue.sharded.upkeep.timers import QueueTimers
from latchwork.store.model.expr import Const
from latchwork.store.model.ops import MapPut, MapRemove
from latchwork.store.rows import Rows

TRUE = Const(value=True)


def _swap(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, value)


def _noted_first(self: Any, *given: Any, real: Any = Scheduling._publish) -> Any:
    _, records, schedule, lasts, now = given
    last = lasts[schedule.name]
    _, settled = schedule.due(from_ms(last), now)
    records.settle(schedule.name, last, to_ms(settled))
    return real(self, *given)


def _pauses_are_not_read(self: Any, *, real: Any = ScheduleRecords.stored) -> Any:
    return real(self)._replace(paused={})


def _goes_on_from_before(self: Any, name: str, ops: Any, guard: Any, *, real: Any = ScheduleRecords._switch) -> Any:
    """Resume a schedule without beginning its ticks again."""
    kept = [op for op in ops if not (isinstance(op, MapPut) and op.bin == "last")]
    return real(self, name, kept, guard)


def _put_anew(self: Any, schedule: Any, *, real: Any = ScheduleRecords.put) -> Any:
    """Put a schedule that begins unpaused."""
    real(self, schedule)
    self.store.operate(self.key, MapRemove("paused", (schedule.name,)), repeatable=True)


def _without_a_ledger(self: Any, number: int, messages: Any) -> None:
    one = messages[0]
    ShardedQueue.publish(self._queue, one.payload, message_id=one.message_id)


def _from_this_look(self: Any, after: Any, *, real: Any = Schedule.ticks) -> Any:
    """Ticks that follow from when they are looked for."""
    return (tick + (after - after.replace(second=0, microsecond=0)) / 1000 for tick in real(self, after))


def _published_at_once(queue: Any, wanted: Any, seconds: int, scope: str, beside: Any) -> Rows[str]:
    queue.store.repeat_many(beside)
    outcomes = Rows[str]()
    for one in wanted:
        try:
            outcomes.append(queue.publish(queue.codec.decode(one.envelope.data), message_id=one.envelope.msg_id))
        except LatchworkError as failure:
            outcomes.append(failure)
    return outcomes


def _forgotten_first(self: Any, number: int, k: int, ids: Any, *, real: Any = QueueTimers._move) -> Any:
    """Take the ids out of their bucket, then publish the messages."""
    rows = [timers.Update(self._delayed.bucket(number, k), (timers.MapRemove(timers.IDS, tuple(ids)),))] if ids else []
    self._store.repeat_many(rows)
    return real(self, number, k, ids)


def _a_second_early(self: Any, *, real: Any = QueueTimers._look) -> Any:
    look = real(self)
    return look._replace(now=look.now + 1000, last=look.last + 1000 // timers.WIDTH)


def _any_epoch() -> Any:
    stack = ExitStack()
    stack.enter_context(mock.patch.object(sweep, "_forward", return_value=TRUE))
    stack.enter_context(mock.patch.object(sweeper, "EPOCH_GUARD", TRUE))
    return stack


UPKEEP_RULES = (
    ("a tick is noted before it is published", "P14.2: publish first, then note",
     _swap(Scheduling, "_publish", _noted_first)),
    ("a tick is published without a ledger", "P14.2: through the ledger", _swap(Ledger, "publish", _without_a_ledger)),
    ("a note undoes a newer one", "P14.3: guarded by last as it was read",
     _swap(delayed_schedules, "_UNCHANGED", TRUE)),
    ("ticks follow from the look", "P14.1: ticks follow from the schedule alone",
     _swap(Schedule, "ticks", _from_this_look)),
    ("a leader does not look for pauses", "P14.10: a paused schedule is passed over",
     _swap(ScheduleRecords, "stored", _pauses_are_not_read)),
    ("a resume goes on from before the pause", "P14.11: a resume sets last to the server's time",
     _swap(ScheduleRecords, "_switch", _goes_on_from_before)),
    ("a schedule that is put again is not paused", "P14.12: a pause outlives what replaces its schedule",
     _swap(ScheduleRecords, "put", _put_anew)),
    ("what is due is published without a ledger", "P16.4: published through the ledger",
     _swap(timers, "publish_unless_there", _published_at_once)),
    ("forgotten before it is published", "P16.4: published, then forgotten",
     _swap(QueueTimers, "_move", _forgotten_first)),
    ("moved a second early", "P16: no message before its time", _swap(QueueTimers, "_look", _a_second_early)),
    ("a deposed leader's sweep counts", "P5: guarded by epoch <= mine", _any_epoch),
)  # fmt: skip
