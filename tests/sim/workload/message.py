"""Messages that are asked for by their ids, and cancelled, while they fail, move, are swept and come again (P26)."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..checkers import message as promises
from ..faults.network import Change
from ..world import Process
from .base import SimStore
from .rate import DELAYED
from .retry import Retried

TRACES = "c_place_set"


class Messages(Retried):
    """As `Retried`, with people who ask for messages and cancel them."""

    name = "message"

    def setup(self) -> None:
        self.ids: dict[str, str] = {}
        """The message of each id that a publisher was told."""
        self.stamped: dict[str, float] = {}
        """When each delivery was put on a record first."""
        self.handed: list[tuple[str, str, str]] = []
        """What was handed out: the message, its id, and the delivery."""
        self.traced: dict[str, int] = {}
        """When the trace of an id was made, in the order of all that happens."""
        self.loose: dict[tuple[str, str], str] = {}
        """Copies by their place: that left no trace, or that were not dropped though their message was cancelled."""
        super().setup()

    # ---- what the server sees

    def wrote(self, key: Any, change: Change) -> None:
        """A record was written."""
        super().wrote(key, change)
        if key.set == TRACES:
            self.traced.setdefault(key.name.partition("/")[2], change.order)
            self._traced(change)
        elif key.set == "c_data_set" or (key.set == DELAYED and key.name.startswith("E/")):
            self._copied(key, change)

    def _copied(self, key: Any, change: Change) -> None:
        delivery, message = change.after.get("delivery"), str(change.after.get("data", "")).strip('"')
        if delivery is not None:
            self.stamped.setdefault(delivery, self.world.now)
        at = change.who, _place(key.name)
        if not change.before and message and not change.who.startswith("pub"):
            self.loose[at] = message
        if not message and at in self.loose:
            del self.loose[at]

    def _traced(self, change: Change) -> None:
        """A trace names a place: the copy is traced; it is still loose while it has to be dropped."""
        if "cancelled" in change.after:
            return
        for text in change.after.get("places", {}):
            _, _, place = text.partition(" ")
            self.loose.pop((change.who, place), None)

    # ---- people

    def people(self) -> None:
        super().people()
        for number in range(self.rng.randint(1, 3)):
            self.person(f"ask{number}", self._asker)

    def _producer(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        for _ in range(self.rng.randint(1, self.most_messages) if queue else 0):
            self.published += 1
            payload, draw = f"m{self.published}", self.rng.random()
            how = {"message_id": f"id-{payload}"} if draw < 0.2 else {"delay": 1.0} if draw < 0.4 else {}
            made = self.call(process, "publish", partial(queue.publish, payload, **how), (payload,))
            if made.ok:
                self.ids[made.result] = payload
            self.idle(process, self.rng.choice((0.01, 0.5, 3.0)))

    def _asker(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        for _ in range(self.rng.randint(2, 8) if queue else 0):
            self.idle(process, self.rng.choice((0.05, 1.0, 4.0)))
            if not self.ids:
                continue
            of = self.rng.choice(sorted(self.ids))
            if self.rng.random() < 0.35:
                self.done.add(self.ids[of])  # from now on it may be gone
                self.call(process, "cancel", partial(queue.cancel, of), self.ids[of])
            else:
                self.call(process, "status", partial(queue.status, of), self.ids[of], of)

    def _handle(self, process: Process, deliveries: list[Any], since: float) -> None:
        for one in deliveries:
            self._note(one)
        super()._handle(process, deliveries, since)

    def _handled(self, process: Process, delivery: Any) -> bool:
        self._note(delivery)
        return super()._handled(process, delivery)

    def _note(self, delivery: Any) -> None:
        self.handed.append((delivery.payload, delivery.message_id, delivery.held.delivery))

    # ---- the end

    def settle(self) -> None:
        queue = self._queue(self.operator_store)
        for of, message in sorted(self.ids.items()):
            self.call(self.operator, "status", partial(queue.status, of), message, of)
        super().settle()

    def _drain(self, queue: Any) -> None:
        while found := queue.receive(100):
            for delivery in found:
                self._note(delivery)
                self.done.add(delivery.payload)
                self.call(self.operator, "ack", self.ack(delivery), delivery.payload)

    def check(self) -> None:
        promises.check(self)


def _place(name: str) -> str:
    """Return a record's place as traces name it."""
    if name.startswith("E/"):
        return f"delayed {name.split('/', 2)[2]}"
    queue, _, slot = name.partition("_SHARD_")
    side = {"q": "main", "q_SIDELINE": "side", "q_PARKED": "parked"}[queue]
    shard, _, pointer = slot.partition("_")
    return f"{side} {shard}:{pointer}"
