"""Messages that go with writes: writers, handlers, deletes, and leaders who do not know of each other (P28)."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar
from unittest import mock

from latchwork.coord.effects import marks
from latchwork.coord.effects.attempts import END
from latchwork.errors import NotFound
from latchwork.queue import Publish
from latchwork.queue.sharded.delayed.control import HORIZON
from latchwork.queue.sharded.delayed.entries import WIDTH
from latchwork.queue.sharded.delivery import Delivery
from latchwork.queue.sharded.queue import ShardedQueue
from latchwork.queue.sharded.registry import QueueRegistry
from latchwork.queue.sharded.upkeep import conditions
from latchwork.queue.sharded.upkeep.timers import QueueTimers
from latchwork.store import Add, Bin, Exists, Key, ListAppend, Put, Update

from ..checkers import writes as promises
from ..faults.kinds import Kind
from ..faults.network import Change
from ..world import Process
from .base import SimStore
from .sharded import SWEEP, Sharded, Term

ACCOUNTS = [Key("sim", f"account{number}") for number in range(2)]
LEAST = 3
"""Times that an account was changed, from when on a guard refuses half of the updates."""


class Writes(Sharded):
    """Those who change records and say so, and those who see to it that both happen or neither."""

    name = "writes"
    span = 20.0
    horizon = 30.0
    environment = (Kind.SERVER_CLOCK, Kind.CLIENT_CLOCK, Kind.SUSPEND)
    rare = ()
    most_messages: ClassVar[int] = 3

    @classmethod
    def sizes(cls, seed: int) -> ExitStack:
        """Records that have room for few marks, and an upkeep that waits for no writer for long."""
        stack = ExitStack()
        stack.enter_context(mock.patch.object(marks, "ROOM", 3 + seed % 3))
        for name, value in (("PATIENCE", 1_000), ("AGAIN", 500), ("LONG", 2_000), ("SELDOM", 8_000)):
            stack.enter_context(mock.patch.object(conditions, name, value))
        return stack

    def setup(self) -> None:
        self.applied: Counter[str] = Counter()
        """How often each write was applied, by its name; of a delete, by its message's id."""
        self.made: Counter[str] = Counter()
        """How often the message of each came into the queue; of a delete, by its message's id."""
        self.most = 0
        super().setup()
        self._mails(self.operator_store)
        for account in ACCOUNTS:
            self.operator_store.operate(account, Put("n", 0), exists=Exists.ANY)

    def _mails(self, store: SimStore) -> ShardedQueue:
        return self._registry(store).create(self._config("n"))

    def _registry(self, store: SimStore) -> QueueRegistry:
        return QueueRegistry(store, "c", farm_id="f")

    def _config(self, name: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return replace(self.config, name=name)

    # ---- what the server sees

    def wrote(self, key: Any, change: Change) -> None:
        """A record was written."""
        super().wrote(key, change)
        if key.set == "c_data_set" and key.name.startswith("n_"):
            self._message(change)
        elif key.set == "sim":
            self.most = max(self.most, len(change.after.get(marks.BIN, {})) - marks.ROOM)
            self.applied.update(change.after.get("log", [])[len(change.before.get("log", [])) :])

    def _message(self, change: Change) -> None:
        """A message was put into the queue, or withdrawn from a slot that was filled too late."""
        if "data" in change.after and "data" not in change.before and "fireTS" not in change.after:
            self.made[self._name(change.after)] += 1
        elif "data" in change.before and "data" not in change.after and "msgId" not in change.after:
            self.made[self._name(change.before)] -= 1

    @staticmethod
    def _name(bins: dict[str, Any]) -> str:
        name = json.loads(bins["data"])
        return str(bins["msgId"] if name.startswith("delete") else name)

    def removed(self, key: Any, who: str, bins: dict[str, Any]) -> None:
        """A record was deleted."""
        super().removed(key, who, bins)
        if key.set == "sim":
            self.applied[bins.get(END, f"{key.name} by {who}")] += 1

    # ---- people

    def people(self) -> None:
        self.person("pub", self._producer)
        self.person("con", self._consumer)
        self.person("sweep", self._sweeper)
        for number in range(self.rng.randint(2, 3)):
            self.person(f"write{number}", self._writer)
        for number in range(self.rng.randint(1, 2)):
            self.person(f"lead{number}", self._leader)

    def _writer(self, process: Process, store: SimStore) -> None:
        entry = self.call(process, "open", lambda: self._mails(store))
        mails = entry.result if entry.ok else None
        for _ in range(self.rng.randint(2, 5) if mails else 0):
            self.published += 1
            number = self.published
            self._may_stop(process)
            draw = self.rng.random()
            if draw < 0.4:
                self._write(process, store, mails, number)
            elif draw < 0.6:
                self._write_many(process, store, mails, number)
            elif draw < 0.8:
                self._make(process, store, mails, number)
            else:
                self._delete(process, store, mails, number)
            self.idle(process, self.rng.choice((0.01, 0.5, 3.0)))

    def _may_stop(self, process: Process) -> None:
        """Between its steps, at times: it is stopped, or killed."""
        if self.plan.calm or self.rng.random() > 0.4:
            return
        stop = process.die if self.rng.random() < 0.3 else partial(process.freeze, self.rng.choice((2.0, 4.0, 8.0)))
        self.world.at(self.world.now + self.rng.random() * 0.03, stop)

    def _write(self, process: Process, store: SimStore, mails: ShardedQueue, number: int) -> None:
        """One account; a guard refuses some."""
        name = f"write {number}"
        options: dict[str, Any] = {"when": Bin("n") < LEAST} if self.rng.random() < 0.3 else {}
        run = partial(
            store.operate, self.rng.choice(ACCOUNTS), Add("n", 1), ListAppend("log", name),
            publish=Publish(name, queue=mails, key="k"), **options,
        )  # fmt: skip
        self.call(process, "write", run, name)

    def _write_many(self, process: Process, store: SimStore, mails: ShardedQueue, number: int) -> None:
        """Both accounts."""
        names = [f"write {number} {side}" for side in "ab"]
        updates = [
            Update(account, (Add("n", 1), ListAppend("log", name)))
            for account, name in zip(ACCOUNTS, names, strict=True)
        ]
        publish = [Publish(name, queue=mails) for name in names]
        entry = self.call(process, "many", lambda: store.operate_many(updates, publish=publish))
        entry.tag = names

    def _make(self, process: Process, store: SimStore, mails: ShardedQueue, number: int) -> None:
        """A record that does not exist yet."""
        name = f"make {number}"
        run = partial(
            store.operate, Key("sim", f"new{number}"), ListAppend("log", name),
            exists=self.rng.choice((Exists.ANY, Exists.CREATE)), publish=Publish(name, queue=mails),
        )  # fmt: skip
        self.call(process, "write", run, name)

    def _delete(self, process: Process, store: SimStore, mails: ShardedQueue, number: int) -> None:
        """A record that others may delete at the same time."""
        key = Key("sim", f"short{number % 2}")
        made = self.call(process, "make", lambda: store.operate(key, Add("n", 1), exists=Exists.ANY))
        if made.ok:
            run = partial(store.delete, key, publish=Publish(f"delete {number}", queue=mails))
            self.call(process, "delete", run, key.name)

    def _handle(self, process: Process, deliveries: list[Delivery], since: float) -> None:
        """A handler that changes an account and passes the message on; some die in between, or are late."""
        for delivery in deliveries:
            draw = self.rng.random()
            if draw < 0.3:
                self.idle(process, self.rng.choice((1.0, 2.0)) * SWEEP)
            self._may_stop(process)
            if self._pass_on(process, delivery) and draw < 0.8:
                self.call(process, "ack", delivery.ack, delivery.payload).tag = since

    def _pass_on(self, process: Process, delivery: Delivery) -> bool:
        name = f"pass {delivery.payload}"
        account = ACCOUNTS[int(delivery.payload[1:]) % len(ACCOUNTS)]
        run = partial(
            delivery.operate, account, Add("n", 1), ListAppend("log", name), exists=Exists.ANY,
            publish=Publish(name, queue="n"),
        )  # fmt: skip
        return self.call(process, "pass", run, name).ok

    def _leader(self, process: Process, store: SimStore) -> None:
        """One who moves what is due, and believes that nobody else does."""
        entry = self.call(process, "open", lambda: self._mails(store))
        timers = QueueTimers(entry.result) if entry.ok else None
        for _ in range(self.rng.randint(4, 12) if timers else 0):
            self.call(process, "move", partial(timers.run, Term(0)))
            self.idle(process, self.rng.choice((0.5, 1.0, 3.0)))

    # ---- the end

    def settle(self) -> None:
        """The server's clock is right again; somebody moves whatever is due."""
        self.world.server_offset = max(self.world.server_offset, 1_700_000_000.0)
        super().settle()
        mails = self._mails(self.operator_store)
        timers = QueueTimers(mails)
        for _ in range(90):
            with suppress(NotFound):  # there was no message yet
                timers.run(Term(0))
            while found := mails.receive(100):
                mails.ack_many(found)
            if not self._waiting():
                break
            self.operator.seams.sleep(10.0 if self.happened(Kind.SERVER_CLOCK) else 1.0)

    def _waiting(self) -> list[str]:
        """Messages that are due, other than for a record that does not exist: these wait for as long as they live.

        One whose id is in no bucket, or in one that was passed, has a writer that died before it wrote.
        """
        records = self.server._records
        control = records.get(Key("c_delay_set", "C/n"))
        horizon = control.bins[HORIZON] if control else 0
        buckets = {key.name.split("/")[2]: found for key, found in records.items() if key.name.startswith("B/n/")}
        ids = {one for number, found in buckets.items() if int(number) * WIDTH > horizon for one in found.bins["ids"]}
        entries = {one: records[key].bins for one in ids if (key := Key("c_delay_set", f"E/n/{one}")) in records}
        return sorted(one for one, bins in entries.items() if Key(*bins["if"][:2]) in records or "sure" in bins)

    def _drain(self, queue: ShardedQueue) -> None:
        while True:
            found = self.call(self.operator, "receive", lambda: queue.receive(100), 100)
            found.tag = tuple(delivery.payload for delivery in found.result)
            if not found.result:
                return
            for delivery in found.result:
                if self._pass_on(self.operator, delivery):
                    self.call(self.operator, "ack", delivery.ack, delivery.payload)

    def check(self) -> None:
        promises.check(self)
