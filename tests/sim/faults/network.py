"""The store as one process sees it: every attempt is under way for a while, and may suffer a fault.

The records are in one `MemoryStore`. A write in doubt raises `OutcomeUnknown`, whichever way it went; one that is
late is applied afterwards, when its guard is evaluated; a read that is lost raises `Unavailable`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from greenlet import getcurrent

from latchwork.errors import LatchworkError, OutcomeUnknown, Unavailable
from latchwork.store import MemoryStore, RecordStore
from latchwork.store.local.memory import outcome
from latchwork.store.model.ops import writes
from latchwork.store.port import Key, Record, Removal, Row, StoreInfo, Update, Values

from ..scheduler import Killed
from ..world import Process, ServerClock, World
from .kinds import Fault, Kind
from .no_node import LOST
from .plans import Plan

TIMEOUT = 0.05
"""Seconds until a client gives up on a reply."""


class Defect(RuntimeError):
    """What no code of the library means to raise: a mistake in it, at some step of one of its threads."""


class Change(NamedTuple):
    """One write to a watched record: when by true time, by which process, and the bins before and after.

    order: its place among all that happens in the run.
    """

    when: float
    who: str
    before: dict[str, Any]
    after: dict[str, Any]
    order: int


def altered(stored: Any, **changes: Any) -> Any:
    """The stored record with other fields."""
    fields = {name: getattr(stored, name) for name in ("bins", "generation", "updated", "expires", "bound")}
    return type(stored)(**{**fields, **changes})


class Server(MemoryStore):
    """The records, and what can befall all of them at once."""

    def __init__(self, world: World, *, wrap: bool = False) -> None:
        super().__init__(ServerClock(world))
        self.wrap = wrap
        self.deleted: dict[Key, Any] = {}
        self.trace: list[tuple[int, float, str, str, str]] | None = None
        self.world = world
        self.caller = ""
        self.observer: Any = None
        """Somebody who is told of every write (`wrote`) and every delete (`removed`)."""
        self.watched: dict[Key, list[Change]] = {}
        self.lives = 1
        """How often it has started."""
        self.twins = 0
        """How many batches had several rows of one record."""

    def watch(self, key: Key) -> list[Change]:
        """Keep a list of all changes of one record, as nobody but the server sees them."""
        return self.watched.setdefault(key, [])

    def _operate(self, update: Update) -> Values:
        log = self.watched.get(update.key)
        seen = log is not None or self.observer is not None
        before = self._records.get(update.key) if seen else None
        values = super()._operate(update)
        if self.wrap:
            self._near_the_wrap(update.key)
        after = self._records.get(update.key) if seen else None
        if after is not before and after is not None:
            bins = before.bins if before else {}
            change = Change(self.world.now, self.caller, bins, after.bins, self.world.tick())
            if log is not None:
                log.append(change)
            if self.observer is not None:
                self.observer.wrote(update.key, change)
        return values

    def _near_the_wrap(self, key: Key) -> None:
        stored = self._records.get(key)
        if stored is not None and stored.generation == 1:
            self._records[key] = altered(stored, generation=65_534)

    def _delete(self, removal: Removal) -> bool:
        before = self._records.get(removal.key)
        there = super()._delete(removal)
        if there:
            self.deleted[removal.key] = before
            if self.observer is not None:
                self.observer.removed(removal.key, self.caller, before.bins if before else {})
        return there

    def snapshot(self) -> dict[Key, Any]:
        """The records as they are now."""
        return dict(self._records)

    def restart(self, records: dict[Key, Any]) -> None:
        """Come back with these records. What was under way to the process that ended does not arrive, as with TCP."""
        self.take(records)
        self.lives += 1

    def take(self, records: dict[Key, Any]) -> None:
        """Have these records instead of its own."""
        self._records = dict(records)

    def resurrect(self) -> int:
        """Come back with what had been deleted; the number of records that came back."""
        back = {key: stored for key, stored in self.deleted.items() if key not in self._records}
        self._records.update(back)
        return len(back)


class SimStore(RecordStore):
    """A process's view of the server."""

    def __init__(self, server: Server, process: Process, plan: Plan) -> None:
        super().__init__()
        self.server = server
        self.process = process
        self.plan = plan
        self.world = process.world
        self.seams = process.seams

    def describe(self) -> StoreInfo:
        return self.server.describe()

    def _get(self, key: Key, bins: Sequence[str]) -> Record | None:
        if self._cut_off("get", key):
            return LOST._get(key, bins)
        return self._read("get", key, lambda: self.server._get(key, bins))

    def _get_many(self, keys: Sequence[Key], bins: Sequence[str]) -> list[Record | None]:
        if self._cut_off("get_many", keys):
            return LOST._get_many(keys, bins)
        return self._read("get_many", keys, lambda: self.server._get_many(keys, bins))

    def _query(self, set: str, bin: str, equals: str | int) -> list[Record]:
        if self._cut_off("query", Key(set, bin)):
            return LOST._query(set, bin, equals)
        return self._read("query", Key(set, bin), lambda: self.server._query(set, bin, equals))

    def _ensure_index(self, set: str, bin: str, kind: type) -> None:
        """Every bin can be asked for."""

    def _operate(self, update: Update) -> Values:
        if self._cut_off("operate", update):
            return LOST._operate(update)
        if not writes(update.ops):
            return self._read("operate", update, lambda: self.server._operate(update))
        return self._write("operate", update, self.server._operate)

    def _delete(self, removal: Removal) -> bool:
        if self._cut_off("delete", removal):
            return LOST._delete(removal)
        return self._write("delete", removal, self.server._delete)

    def _operate_many(self, updates: Sequence[Update]) -> list[Row]:
        if self._cut_off("operate_many", updates):
            return LOST._operate_many(updates)
        return self._batch("operate", updates, self.server._operate)

    def _delete_many(self, removals: Sequence[Removal]) -> list[bool | LatchworkError]:
        if self._cut_off("delete_many", removals):
            return LOST._delete_many(removals)
        return self._batch("delete", removals, self.server._delete)

    # ---- under way

    def _cut_off(self, verb: str, target: Any) -> bool:
        """Whether this process's client knows no node for the call, which it finds out at once.

        Raises `Defect` where the step that makes the call is one that fails of itself.
        """
        if not getattr(getcurrent(), "main", True) and self.plan.breaks(self.process, verb, target):
            self.plan.fire(Kind.DEFECT)
            self._log(verb, target, "never sent", Fault(Kind.DEFECT))
            raise Defect(f"dictionary changed size during {verb}")
        if not self.plan.cut_off(self.process, verb):
            return False
        self.world.pause(0.0)
        self.plan.fire(Kind.NO_NODE)
        self._log(verb, target, "no node", Fault(Kind.NO_NODE))
        return True

    def _read(self, verb: str, target: Any, apply: Callable[[], Any]) -> Any:
        fault = self.plan.fault(self.process, verb, target)
        self._travel()
        if fault is not None:
            self._strike_read(fault, verb)
        found = _caught(apply)
        self._log(verb, target, found, fault)
        self._back()
        if fault is not None and fault.kind is Kind.CRASH_AFTER:
            self._crash(fault)
        return _raised(found)

    def _strike_read(self, fault: Fault, verb: str) -> None:
        if fault.kind is Kind.CRASH_BEFORE:
            self._crash(fault)
        if fault.kind in (Kind.PAUSE, Kind.SLOW_PRODUCER):
            self._pause(fault)
        if fault.kind in (Kind.BUSY, Kind.DROPPED, Kind.REPLY_LOST, Kind.LATE, Kind.ROW):
            self.plan.fire(fault.kind)
            self.world.pause(TIMEOUT)
            raise Unavailable(f"{verb}: no reply came")

    def _write(self, verb: str, row: Any, apply: Callable[[Any], Any]) -> Any:
        fault = self.plan.fault(self.process, verb, row)
        self._travel()
        if fault is None:
            found = self._apply(apply, row)
            if self.server.trace is not None:
                self._log(verb, row, found, fault)
            self._back()
        else:
            found = self._strike(fault, verb, row, apply)
            if self.process.dead:
                raise Killed
        return _raised(found)

    def _batch(self, verb: str, rows: Sequence[Any], apply: Callable[[Any], Any]) -> list[Any]:
        """Rows apply one by one, each with a fate of its own; the reply comes when the last is done."""
        self._travel()
        found: dict[int, Any] = {}
        for place in self._order(rows):
            row = rows[place]
            fault = self.plan.fault(self.process, verb + "_many", row)
            if held := self.plan.hold():
                self.world.pause(held)
            if fault is None:
                if self.plan.held:
                    self._travel()  # a script delays this row
                found[place] = self._apply(apply, row)
                if self.server.trace is not None:
                    self._log(verb + "_many", row, found[place], fault)
            else:
                found[place] = self._strike(fault, verb + "_many", row, apply)
        self._back()
        return [found[place] for place in range(len(rows))]

    def _order(self, rows: Sequence[Any]) -> Sequence[int]:
        """Rows are applied in any order: a client sends them to several servers, and one that stores on a device works
        on them at the same time. That is all rows if the world is to be so; else those of one record, the last of which
        comes first in every second batch that has such rows.
        """
        order = list(range(len(rows)))
        if self.world.shuffler is not None:
            self.world.shuffler.shuffle(order)
            return order
        places: dict[Key, list[int]] = {}
        for place, row in enumerate(rows):
            places.setdefault(row.key, []).append(place)
        if len(places) < len(rows):
            self.server.twins += 1
            if self.server.twins % 2:
                for some in places.values():
                    for place, other in zip(some, reversed(some), strict=True):
                        order[place] = other
        return order

    def _strike(self, fault: Fault, verb: str, row: Any, apply: Callable[[Any], Any]) -> Any:
        """What the write comes to under the fault: a result, or an error as a value."""
        kind, plan, world = fault.kind, self.plan, self.world
        if kind is Kind.CRASH_BEFORE:
            self._log(verb, row, "never sent", fault)
            self._crash(fault)
        if kind in (Kind.PAUSE, Kind.SLOW_PRODUCER):
            return self._paused(fault, verb, row, apply)
        if kind is Kind.DUPLICATE:
            return self._twice(fault, verb, row, apply)
        plan.fire(kind)
        if kind in (Kind.BUSY, Kind.ROW):
            self._log(verb, row, "never sent", fault)
            return Unavailable(f"{verb}: the server is busy")
        found: Any = "not yet" if kind is Kind.LATE else "lost"
        if kind in (Kind.REPLY_LOST, Kind.CRASH_AFTER):
            found = self._apply(apply, row)
        self._log(verb, row, found, fault)
        if kind is Kind.LATE:
            self._later(fault, verb, row, apply)
        if kind is Kind.CRASH_AFTER:
            self.process.die()
            raise Killed
        self.process.doubts += 1
        world.pause(TIMEOUT)
        return OutcomeUnknown(f"{verb}: no reply came; it may have been applied")

    def _twice(self, fault: Fault, verb: str, row: Any, apply: Callable[[Any], Any]) -> Any:
        """The request arrives now, and once more later; only the first is answered."""
        found = self._apply(apply, row)
        self._log(verb, row, found, fault)
        if self.plan.twice_refused or not isinstance(found, LatchworkError):
            self.plan.fire(fault.kind)
            self._later(fault, verb, row, apply)
        return found

    def _later(self, fault: Fault, verb: str, row: Any, apply: Callable[[Any], Any]) -> None:
        life = self.server.lives

        def arrive() -> None:
            is_there = self.server.lives == life
            self._log(verb, row, self._apply(apply, row) if is_there else "lost", fault)

        self.world.at(self.world.now + fault.after, arrive)

    def _paused(self, fault: Fault, verb: str, row: Any, apply: Callable[[Any], Any]) -> Any:
        """The process stops just before the request leaves, or between the reply's arrival and its reading."""
        first = self.world.rng.random() < 0.5
        if first:
            self._pause(fault)
        found = self._apply(apply, row)
        self._log(verb, row, found, fault)
        if not first:
            self._pause(fault)
        return found

    def _pause(self, fault: Fault) -> None:
        self.plan.fire(fault.kind)
        self.process.freeze(fault.after)
        self.world.pause(0.0)

    def _crash(self, fault: Fault) -> None:
        self.plan.fire(fault.kind)
        self.process.die()
        raise Killed

    def _apply(self, apply: Callable[[Any], Any], row: Any) -> Any:
        self.server.caller = self.process.name
        return outcome(apply, row)

    def _travel(self) -> None:
        self.world.pause(self.plan.delay())

    def _back(self) -> None:
        if self.plan.rng.random() < 0.3:
            self.world.pause(self.plan.delay())

    def _log(self, verb: str, target: Any, found: Any, fault: Fault | None) -> None:
        trace = self.server.trace
        if trace is not None:
            note = f"{verb} {describe(target)} -> {describe(found)}"
            trace.append(
                (self.world.tick(), self.world.now, self.process.name, note, fault.kind.value if fault else "")
            )


def describe(value: Any) -> str:
    """A call's target or result in a few words."""
    if isinstance(value, LatchworkError):
        return f"{type(value).__name__}"
    if isinstance(value, Update):
        return f"{value.key.name} [{', '.join(type(op).__name__ + _bin(op) for op in value.ops)}]"
    if isinstance(value, Removal):
        return value.key.name
    if isinstance(value, Key):
        return value.name
    if isinstance(value, Record):
        return repr(value.bins)
    return repr(value)


def _bin(op: Any) -> str:
    name = getattr(op, "bin", "")
    return f" {name}" if isinstance(name, str) else ""  # a computed value is in no bin


def _caught(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except LatchworkError as failure:
        return failure


def _raised(found: Any) -> Any:
    if isinstance(found, LatchworkError):
        raise found
    return found
