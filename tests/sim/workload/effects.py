"""Handlers with effects: two updates of records, and a step with a provider; under all that befalls a queue (P23)."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar
from unittest import mock

from latchwork.coord.effects import marks
from latchwork.coord.effects.step import DONE
from latchwork.coord.lease import FENCE
from latchwork.errors import LatchworkError
from latchwork.queue.sharded.delivery import Delivery
from latchwork.queue.sharded.queue import ShardedQueue
from latchwork.store import Add, Bin, Exists, Key, ListAppend

from ..checkers import effects as promises
from ..faults.network import Change
from ..world import Process
from .sharded import SWEEP, Sharded

ACCOUNTS = [Key("sim", f"account{number}") for number in range(2)]


class Effects(Sharded):
    """Producers, and consumers whose handlers have effects; sweepers and shovels that bring messages back."""

    name = "effects"
    span = 20.0
    step_lease: ClassVar[float] = 1.0
    most_messages: ClassVar[int] = 5

    @classmethod
    def sizes(cls, seed: int) -> AbstractContextManager[object]:
        """Records that have room for few marks, so that these leave."""
        return mock.patch.object(marks, "ROOM", 3 + seed % 3)

    def setup(self) -> None:
        self.held: dict[str, str | None] = {}
        """Of each record of a message the delivery that has it."""
        self.applied: Counter[str] = Counter()
        self.sent: list[tuple[str, str]] = []
        """What the provider was asked for: the message, and the token."""
        self.most = 0
        """Entries that a record had of effects, above the room for them."""
        self.redone: list[str] = []
        """Records of steps that were taken though they were done, or done again."""
        super().setup()

    # ---- what the server sees

    def wrote(self, key: Any, change: Change) -> None:
        """A record was written."""
        super().wrote(key, change)
        if key.set == "c_data_set":
            self.held[key.name] = change.after.get("delivery")
        elif key.name.startswith("M/"):
            before, after = change.before.get(DONE, {}), change.after.get(DONE, {})
            taken = "mail" in before and change.before.get(FENCE) != change.after.get(FENCE)
            if taken or any(after.get(name) != by for name, by in before.items()):
                self.redone.append(f"{key.name} by {change.who} at {change.when:.3f}")
        elif key in ACCOUNTS:
            self.most = max(self.most, len(change.after.get(marks.BIN, {})) - marks.ROOM)
            self.applied.update(change.after.get("log", [])[len(change.before.get("log", [])) :])

    def removed(self, key: Any, who: str, bins: dict[str, Any]) -> None:
        """A record was deleted."""
        super().removed(key, who, bins)
        self.held.pop(key.name, None)

    # ---- what a handler does

    def _handle(self, process: Process, deliveries: list[Delivery], since: float) -> None:
        """Most end well; some are late, fail between two effects, or die there."""
        for delivery in deliveries:
            draw = self.rng.random()
            if draw < 0.25:
                self.idle(process, self.rng.choice((1.0, 2.0)) * SWEEP)
            if self.rng.random() < 0.2:
                process.spawn(partial(self._comes_late, process, delivery), "late")
            if self._effects(process, delivery, stops=draw > 0.8):
                self.call(process, "ack", delivery.ack, delivery.payload).tag = since
            elif draw > 0.5:
                self.call(process, "nack", delivery.nack, delivery.payload)

    def _comes_late(self, process: Process, delivery: Delivery) -> None:
        """The same attempt in a thread that was stopped, and whose clock stood still meanwhile."""
        self.idle(process, 3 * SWEEP)
        unaware = Delivery(delivery.payload, delivery.held, delivery.view, process.seams.monotonic())
        self._effects(process, unaware)

    def _effects(self, process: Process, delivery: Delivery, *, stops: bool = False) -> bool:
        """Whether all effects are made."""
        for name in self.rng.sample(("debit", "fee"), 2):
            if not self._operate(process, delivery, name):
                return False
            if stops and self.rng.random() < 0.3:
                return False
            self.idle(process, self.rng.choice((0.0, 0.0, 0.5)))
        return self._mail(process, delivery)

    def _operate(self, process: Process, delivery: Delivery, name: str) -> bool:
        payload = delivery.payload
        account = ACCOUNTS[int(payload[1:]) % len(ACCOUNTS)]
        effect = f"{payload} {name}"
        slot = delivery.view.pointers.key(delivery.held.slot).name
        stale = self.held.get(slot) != delivery.held.delivery and self.applied[effect] > 0
        run = partial(
            delivery.operate, account, Add("n", 1), ListAppend("log", effect), name=name, exists=Exists.ANY,
            result=Bin("n"),
        )  # fmt: skip
        entry = self.call(process, "operate", run, payload, name)
        entry.tag = stale
        return entry.ok

    def _mail(self, process: Process, delivery: Delivery) -> bool:
        timeout = self.rng.choice((0.0, 0.5, 3.0))
        once = delivery.once("mail", timeout=timeout, lease=self.step_lease)
        return self.call(process, "mail", partial(self._mailed, process, delivery.payload, once), delivery.payload).ok

    def _mailed(self, process: Process, payload: str, once: Any) -> Any:
        with once as step:
            if not step.done:
                self.sent.append((payload, step.token))
                self.idle(process, self.rng.choice((0.0, 0.2, 2.0)) * self.step_lease)
                if self.rng.random() < 0.1:
                    raise NotSent
                step.result = f"receipt {len(self.sent)}"
        return step.result

    # ---- the end

    def _drain(self, queue: ShardedQueue) -> None:
        while True:
            found = self.call(self.operator, "receive", lambda: queue.receive(100), 100)
            found.tag = tuple(delivery.payload for delivery in found.result)
            if not found.result:
                return
            for delivery in found.result:
                done = all(self._operate(self.operator, delivery, name) for name in ("debit", "fee"))
                if done and (self._mail(self.operator, delivery) or self._mail(self.operator, delivery)):
                    self.call(self.operator, "ack", delivery.ack, delivery.payload)

    def check(self) -> None:
        promises.check(self)


class NotSent(LatchworkError):
    """The provider has refused, so that the handler fails."""
