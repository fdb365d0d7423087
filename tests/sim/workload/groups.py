"""Fan-out groups of a sharded queue (P17): one from the beginning, one made meanwhile, one dropped meanwhile."""

from __future__ import annotations

import warnings
from collections import defaultdict
from functools import partial
from typing import Any, ClassVar

from latchwork.queue.sharded.group import QueueGroup
from latchwork.queue.sharded.queue import ShardedQueue
from latchwork.queue.sharded.slots import Slot
from latchwork.queue.sharded.upkeep.shovel import Shovel
from latchwork.queue.sharded.upkeep.sweeper import Sweeper

from ..checkers import groups as promises
from ..faults.kinds import ON_CALLS, Kind
from ..faults.network import Change
from ..world import Process
from .base import SimStore
from .sharded import SWEEP, Office, Sharded, Term

OWN, ALWAYS, LATER, DROPPED = "own", "always", "later", "dropped"
LASTING = (OWN, ALWAYS, LATER)


class Groups(Sharded):
    """Producers, and consumers of the queue itself and of three groups."""

    name = "groups"
    kinds = (*ON_CALLS, Kind.ROW, Kind.SLOW_PRODUCER)
    environment = (Kind.SERVER_CLOCK, Kind.CLIENT_CLOCK, Kind.SUSPEND)
    rare = ()  # groups that are lost with the store are waited for no more
    most_messages: ClassVar[int] = 3

    def setup(self) -> None:
        super().setup()
        self.made: dict[str, tuple[float, float]] = {}
        """For each group when its making was called, and when it was there for the first time."""
        self.partings: list[tuple[str, str, str, str | None]] = []
        self.takers: dict[str, str] = {}
        self.seen: dict[str, set[str]] = defaultdict(set)
        self.stored: dict[str, dict[str, Any]] = {}
        self.births: dict[str, list[float]] = defaultdict(list)
        self.start = self.rng.choice(("now", "oldest"))
        queue = self._queue(self.operator_store)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in (ALWAYS, DROPPED):
                queue.group(name, concurrency=1)
                self.made[name] = self.made[OWN] = (0.0, 0.0)

    # ---- what the server sees

    def wrote(self, key: Any, change: Change) -> None:
        """Note who takes a message for a group, and who ends it."""
        super().wrote(key, change)
        if key.set != "c_data_set":
            return
        if not change.before:
            self.births[key.name].append(self.world.now)
        before, after = change.before.get("groups") or {}, change.after.get("groups") or {}
        for tag, delivery in after.items():
            if delivery and before.get(tag) != delivery:
                self.takers[delivery] = change.who
        for tag, delivery in before.items():
            if tag not in after:
                self.partings.append((change.who, tag, delivery, (change.after.get("acked") or {}).get(tag)))

    # ---- people

    def people(self) -> None:
        for number in range(self.rng.randint(1, 2)):
            self.person(f"pub{number}", self._producer)
        for number in range(self.rng.randint(2, 4)):
            self.person(f"con{number}", self._consumer)
        self.person("sweep", self._sweeper)
        if self.rng.random() < 0.5:
            self.person("sweep1", self._sweeper)
        for number in range(self.rng.randint(1, 2)):
            self.person(f"maker{number}", self._maker)
        if self.rng.random() < 0.5:
            self.person("dropper", self._dropper)

    def _maker(self, process: Process, store: SimStore) -> None:
        self.idle(process, 4.0)
        queue = self._opened(process, store)
        if queue is not None:
            self._made(process, queue)

    def _made(self, process: Process, queue: ShardedQueue) -> QueueGroup | None:
        entry = self.call(process, "make", lambda: queue.group(LATER, start=self.start))
        called, there = self.made.get(LATER, (entry.called, float("inf")))
        self.made[LATER] = (min(called, entry.called), min(there, entry.closed if entry.ok else there))
        return entry.result if entry.ok else None

    def _dropper(self, process: Process, store: SimStore) -> None:
        self.idle(process, 10.0)
        queue = self._opened(process, store)
        if queue is not None:
            self.call(process, "drop", lambda: queue.registry.get(f"q@{DROPPED}").drop())

    def _view(self, process: Process, queue: ShardedQueue, name: str) -> ShardedQueue | None:
        if name == OWN:
            return queue
        if name == LATER:
            return self._made(process, queue) if LATER in self.made else None
        entry = self.call(process, "get", lambda: queue.registry.get(f"q@{name}"))
        return entry.result if entry.ok else None

    def _consumer(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        for _ in range(self.rng.randint(3, 8) if queue else 0):
            name = self.rng.choice((*LASTING, DROPPED))
            view = self._view(process, queue, name)
            if view is None:
                continue
            n = self.rng.choice((1, 3))
            wait = self.rng.choice((0, 0.5, 2.0))
            found = self.call(process, "receive", partial(view.receive, n, timeout=wait), name)
            if found.ok:
                found.tag = tuple(delivery.payload for delivery in found.result)
                self._settle_each(process, name, found.result, found.called)
            self.idle(process, self.rng.choice((0.01, 0.5, 3.0)))

    def _settle_each(self, process: Process, name: str, deliveries: list[Any], since: float) -> None:
        """Most are acknowledged, some together; some are rejected, extended, held too long, or forgotten."""
        draw = self.rng.random()
        if draw < 0.3 and len(deliveries) > 1:
            done = tuple((name, delivery.payload) for delivery in deliveries)
            self.call(process, "ack", partial(deliveries[0].view.ack_many, deliveries), done)
            return
        for delivery in deliveries:
            draw, what = self.rng.random(), ((name, delivery.payload),)
            if draw < 0.1:
                continue
            if draw < 0.25:
                self.idle(process, self.rng.choice((1.0, 2.0)) * SWEEP)
            if draw < 0.2:
                self.call(process, "extend", delivery.extend, what)
            if 0.3 < draw < 0.45:
                self.call(process, "nack", delivery.nack, what)
            else:
                self.call(process, "ack", delivery.ack, what).tag = since

    # ---- the end

    def settle(self) -> None:
        self.operator.seams.sleep(4 * SWEEP)
        queue = self._queue(self.operator_store)
        views: dict[str, ShardedQueue] = {OWN: queue, ALWAYS: queue.group(ALWAYS), LATER: queue.group(LATER)}
        self.made.setdefault(LATER, (self.world.now, self.world.now))
        sweeper = Sweeper(queue.registry, Office(Term(1000)))
        for _ in range(14):
            for name, view in views.items():
                self._drain_view(name, view)
            report = sweeper.run_once()
            for view in views.values():
                Shovel(view).run_once()
            depths = [view.depth() for view in views.values()]
            self.drained = not report.shards and all(depth.ready == depth.sideline == 0 for depth in depths)
            if self.drained:
                break
            self.operator.seams.sleep(SWEEP + 0.5)
        for name, view in views.items():
            for side in (view, view.sideline, view.parked):
                self.seen[name] |= {message.payload for message in side.peek_all()}
        pointers = queue.pointers
        slots = [Slot(state.shard, n) for state in pointers.states() for n in range(1, state.loaded + 1)]
        records = self.operator_store.get_many([pointers.key(slot) for slot in slots])
        self.stored = {one.key.name: one.bins for one in records if one and {"data", "shared"} & one.bins.keys()}
        self.living = {view.config.tag for view in views.values() if view.reader}

    def _drain_view(self, name: str, view: ShardedQueue) -> None:
        while True:
            found = self.call(self.operator, "receive", lambda: view.receive(100), name)
            found.tag = tuple(delivery.payload for delivery in found.result)
            if not found.result:
                return
            for delivery in found.result:
                self.call(self.operator, "ack", delivery.ack, ((name, delivery.payload),))

    def check(self) -> None:
        promises.check(self)
