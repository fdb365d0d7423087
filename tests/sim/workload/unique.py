"""Messages that are unique until they are done: keys that several publish at once, while their messages run, fail, are
swept, parked, cancelled, and replaced (P30).
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

from latchwork.queue.sharded.config import PARKED
from latchwork.queue.sharded.stamps import SEEN

from ..checkers import unique as promises
from ..faults.network import Change
from ..world import Process
from .base import SimStore
from .message import Messages
from .rate import DELAYED

KEYS = "c_unique_set"
MODES = ("keep", "keep", "raise", "replace", "replace")


class Unique(Messages):
    """As `Messages`, of two keys."""

    name = "unique"

    def setup(self) -> None:
        self.alive: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """The records in which each message lives, by its id, with its key."""
        self.claimed: dict[str, float] = {}
        """When each message was named by its key first."""
        self.born: list[tuple[float, str, str, str]] = []
        """Messages that were written while another one of their key lived: when, the key, and both."""
        self.doubled: set[str] = set()
        """Messages that were handed out, or written, while another copy of them lived."""
        self.keys_of: dict[str, str] = {}
        self.last: dict[str, str] = {}
        super().setup()

    # ---- what the server sees

    def wrote(self, key: Any, change: Change) -> None:
        """A record was written."""
        super().wrote(key, change)
        if key.set == KEYS:
            self.claimed.setdefault(change.after["id"], self.world.now)
        elif key.set == "c_data_set" or (key.set == DELAYED and key.name.startswith("E/")):
            self._lives(key.name, change)

    def _lives(self, name: str, change: Change) -> None:
        after, delivery = change.after, change.after.get("delivery")
        of, unique = change.before.get("msgId") or after.get("msgId"), after.get("unique")
        if unique is None or not after.get("data") or "cancelled" in after or PARKED in name:
            if of is not None:
                self.alive[of].pop(name, None)
            return
        others = {one: self.keys_of[one] for one, places in self.alive.items() if places and one != of}
        if of not in self.keys_of:
            self.keys_of[of] = unique
            self.born += [(change.when, unique, one, of) for one, key in others.items() if key == unique]
        else:
            handed = delivery not in (None, SEEN, change.before.get("delivery")) and len(self.alive[of]) > 1
            if handed or (not change.before and change.who.startswith(("pub", "operator"))):
                self.doubled.add(of)
        self.alive[of][name] = unique

    def removed(self, key: Any, who: str, bins: dict[str, Any]) -> None:
        """A record was deleted."""
        super().removed(key, who, bins)
        if bins.get("msgId") in self.alive:
            self.alive[bins["msgId"]].pop(key.name, None)

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
        promises.check(self)
