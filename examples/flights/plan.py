"""What the coordinator and its farms agree on: where the files are, which latch they share, how many partitions."""

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
from latchwork.spark import SparkLatch
from latchwork.store import RecordStore

CLIENT = "flights"
TTL = 6 * 3600
"""Seconds that the latch lives, so that a farm that was killed can be run again the same day."""


@dataclass(frozen=True)
class Plan:
    """One run of the whole job. Kept in the directory, so that a farm can be run again."""

    directory: Path
    job: str
    partitions: int

    @classmethod
    def new(cls, directory: Path, partitions: int) -> Plan:
        """A run under a name of its own, written to the directory."""
        plan = cls(directory, f"delays-{uuid.uuid4().hex[:8]}", partitions)
        plan._file(directory).write_text(json.dumps({"job": plan.job, "partitions": partitions}))
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

    @cached_property
    def store(self) -> RecordStore:
        """$LATCHWORK_STORE, else a file in the directory."""
        return connect(os.environ.get("LATCHWORK_STORE") or f"sqlite:{self.directory / 'store.db'}")

    def create_latch(self) -> SparkLatch:
        """One count for every partition of every farm; the handle that the coordinator waits with."""
        shares = [
            SparkLatch.create(
                self.store, CLIENT, self.job, self.partitions,
                farms=FARMS, farm_id=farm, level=LatchLevel.XDC, ttl=TTL,
            )
            for farm in FARMS
        ]  # fmt: skip
        CountUpDownLatch.create(self.store, CLIENT, f"{self.job}-attempts", ttl=TTL)
        return shares[0]

    def latch(self, farm: str) -> SparkLatch:
        """The same latch as a farm sees it, which counts its own share."""
        return SparkLatch.get(self.store, CLIENT, self.job, farm_id=farm, level=LatchLevel.XDC, ttl=TTL)

    def attempts(self) -> CountUpDownLatch:
        """A plain counter, to which every attempt of a task adds one: what a latch without parties would see."""
        return CountUpDownLatch.get(self.store, CLIENT, f"{self.job}-attempts", ttl=TTL)
