"""What the coordinator and its farms agree on: where the files are, which latch and which queues they share."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from data import FARMS

from latchwork import connect
from latchwork.coord import CountUpDownLatch, LatchLevel
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.spark import SparkLatch
from latchwork.store import RecordStore

CLIENT = "flights"
TTL = 6 * 3600
"""Seconds that latches live, so that a farm that was killed can be run again the same day."""
SHARDS = 8


@dataclass(frozen=True)
class Plan:
    """One run of the whole job. Kept in the directory, so that a farm can be run again."""

    directory: Path
    job: str
    partitions: int
    every: int = 1

    @classmethod
    def new(cls, directory: Path, partitions: int, every: int = 1) -> Plan:
        """A run under a name of its own, written to the directory. every: 10 = with every tenth flight only."""
        plan = cls(directory, f"delays-{uuid.uuid4().hex[:8]}", partitions, every)
        settings = {"job": plan.job, "partitions": partitions, "every": every}
        plan._file(directory).write_text(json.dumps(settings))
        return plan

    @classmethod
    def read(cls, directory: Path) -> Plan:
        """The run that the directory belongs to."""
        try:
            return cls(directory, **json.loads(cls._file(directory).read_text()))
        except FileNotFoundError:
            raise SystemExit(f"{directory} is not the directory of a run: it has no plan.json") from None

    @staticmethod
    def _file(directory: Path) -> Path:
        return directory / "plan.json"

    @property
    def url(self) -> str:
        """$LATCHWORK_STORE, else a file in the directory.

        Its commits survive the death of any process. They are not synced one by one, as the run does not outlive the
        machine.
        """
        return os.environ.get("LATCHWORK_STORE") or f"sqlite:{self.directory / 'store.db'}?synchronous=normal"

    @cached_property
    def store(self) -> RecordStore:
        """The store of that URL."""
        return connect(self.url)

    def create(self) -> None:
        """One count for every partition of every farm, and a queue of its own for each farm's flights."""
        for farm in FARMS:
            SparkLatch.create(
                self.store, CLIENT, self.job, self.partitions,
                farms=FARMS, farm_id=farm, level=LatchLevel.XDC, ttl=TTL,
            )  # fmt: skip
            QueueRegistry(self.store, CLIENT, farm_id=farm).create(QueueConfig(self.queue(farm), shards=SHARDS))
        CountUpDownLatch.create(self.store, CLIENT, f"{self.job}-attempts", ttl=TTL)

    def queue(self, farm: str) -> str:
        """The name of the queue with a farm's flights."""
        return f"{self.job}-{farm}"

    def options(self, farm: str) -> dict[str, str]:
        """How Spark finds that queue."""
        return {"store": self.url, "clientId": CLIENT, "farmId": farm, "queue": self.queue(farm)}

    def latch(self, farm: str) -> SparkLatch:
        """The same latch as a farm sees it, which counts its own share."""
        return SparkLatch.get(self.store, CLIENT, self.job, farm_id=farm, level=LatchLevel.XDC, ttl=TTL)

    def attempts(self) -> CountUpDownLatch:
        """A plain counter, to which every attempt of a task adds one: what a latch without parties would see."""
        return CountUpDownLatch.get(self.store, CLIENT, f"{self.job}-attempts", ttl=TTL)

    # ---- how many flights a farm has published and consumed; a farm that is run again finds it

    def note(self, what: str, farm: str, flights: int) -> None:
        """Write the number down; it is there whole or not at all."""
        unfinished = self.directory / f"{what}-{farm}.unfinished"
        unfinished.write_text(str(flights))
        unfinished.replace(self.directory / f"{what}-{farm}")

    def noted(self, what: str, farm: str) -> int | None:
        """The number, None where it was not written down yet."""
        try:
            return int((self.directory / f"{what}-{farm}").read_text())
        except FileNotFoundError:
            return None
