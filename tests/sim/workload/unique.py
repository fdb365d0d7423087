"""Messages that are unique until they are done: keys that several publish at once, while their messages run, fail, are
swept, parked, discarded, cancelled, expired, and replaced (P30).
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from latchwork.queue.sharded.config import PARKED, QueueConfig
from latchwork.queue.sharded.rules import SEEN

from ..checkers import unique as promises
from ..faults.network import Change
from ..world import Process
from .base import SimStore
from .message import Messages
from .rate import DELAYED
from .retry import CONFIGS
from .sharded import SWEEP

KEYS = "c_unique_set"
LIFE = 12
"""Seconds that a message lives in queues where some expire."""
MODES = ("keep", "keep", "raise", "replace", "replace")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    SHORT = [
        replace(one, message_expiry=LIFE, queue_expiry=600, max_deliveries=one.max_deliveries - 1) for one in CONFIGS
    ]  # fmt: skip


class Unique(Messages):
    """As `Messages`, of two keys."""

    name = "unique"

    def setup(self) -> None:
        self.alive: defaultdict[str, set[Any]] = defaultdict(set)
        """The records in which each message lives, by its id."""
        self.expired: set[str] = set()
        """Messages of which a record has expired."""
        self.claimed: dict[str, float] = {}
        """When each message was named by its key first."""
        self.born: list[tuple[float, str, str, str]] = []
        """Messages that were written while another one of their key lived: when, the key, and both."""
        self.doubled: set[str] = set()
        """Messages that were handed out, or written, while another copy of them lived."""
        self.keys_of: dict[str, str] = {}
        self.wrote_at: dict[str, float] = {}
        """When each message was written first."""
        self.last: dict[str, str] = {}
        super().setup()

    # ---- what the server sees

    def wrote(self, key: Any, change: Change) -> None:
        """A record was written."""
        super().wrote(key, change)
        if key.set == KEYS:
            self.claimed.setdefault(change.after["id"], self.world.now)
        elif key.set == "c_data_set" or (key.set == DELAYED and key.name.startswith("E/")):
            self._lives(key, change)

    def _lives(self, key: Any, change: Change) -> None:
        after, delivery = change.after, change.after.get("delivery")
        of, unique = change.before.get("msgId") or after.get("msgId"), after.get("unique")
        if unique is None or not after.get("data") or "cancelled" in after or PARKED in key.name:
            if of is not None:
                self.alive[of].discard(key)
            moved_at = change.before.get("moving") if self.config in SHORT else None
            if moved_at and "moving" not in after and change.before["due"] + LIFE * 1000 < moved_at:
                self.expired.add(of)  # its time was over before anybody moved it
            return
        self.expire()
        others = {one: self.keys_of[one] for one, places in self.alive.items() if places and one != of}
        if of not in self.keys_of:
            self.keys_of[of], self.wrote_at[of] = unique, change.when
            self.born += [(change.when, unique, one, of) for one, its in others.items() if its == unique]
        else:
            handed = delivery not in (None, SEEN, change.before.get("delivery")) and len(self.alive[of]) > 1
            if handed or (not change.before and change.who.startswith(("pub", "operator"))):
                self.doubled.add(of)
        self.alive[of].add(key)

    def expire(self) -> None:
        """Take note of what has expired until now."""
        now = int(self.server.seams.wall() * 1000)
        records = self.server._records.items()
        there = {key: it.bins.get("msgId") for key, it in records if not it.expired(now)}
        for of, keys in self.alive.items():
            for key in [one for one in keys if there.get(one) != of]:
                keys.discard(key)
                self.expired.add(of)

    def removed(self, key: Any, who: str, bins: dict[str, Any]) -> None:
        """A record was deleted."""
        super().removed(key, who, bins)
        if bins.get("msgId") in self.alive:
            self.alive[bins["msgId"]].discard(key)

    # ---- people

    def _producer(self, process: Process, store: SimStore) -> None:
        queue = self._opened(process, store)
        for _ in range(self.rng.randint(2, 6) if queue else 0):
            self.published += 1
            payload, unique, mode = f"m{self.published}", self.rng.choice("ab"), self.rng.choice(MODES)
            delay = self.rng.choice((None, None, 0.5, 2.0))
            made = self.call(
                process, "publish",
                partial(queue.publish, payload, unique=unique, on_duplicate=mode, delay=delay),
                (payload,), unique, mode,
            )  # fmt: skip
            if made.ok:
                self.ids.setdefault(made.result, payload)
            self.idle(process, self.rng.choice((0.01, 0.5, 3.0)))

    # ---- the end

    def settle(self) -> None:
        super().settle()
        queue = self._queue(self.operator_store)
        for unique in "ab":
            queue.publish(f"last {unique}", unique=unique)
        while found := queue.receive(100):
            for one in found:
                self.last[one.payload] = one.message_id
                one.ack()

    def check(self) -> None:
        self.expire()
        promises.check(self)


class UniqueEnded(Unique):
    """As `Unique`, with messages that expire, and somebody who throws away what is parked."""

    configs: ClassVar[list[QueueConfig]] = [*CONFIGS, *SHORT]

    def people(self) -> None:
        super().people()
        self.person("clean", self._discarder)

    def _discarder(self, process: Process, store: SimStore) -> None:
        """Who throws away some of what is parked."""
        queue = self._opened(process, store)
        for _ in range(self.rng.randint(4, 10) if queue else 0):
            self.idle(process, SWEEP)
            parked = self.call(process, "look", lambda: [one.message_id for one in queue.parked.search()])
            some = [of for of in parked.result if self.rng.random() < 0.7] if parked.ok else []
            self.call(process, "discard", partial(queue.parked.discard, some), tuple(some))
