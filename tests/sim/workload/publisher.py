"""A publisher of the sharded queue: threads of a process that publish through one, and what their futures say."""

from __future__ import annotations

from functools import partial
from typing import Any

from latchwork.errors import LatchworkError
from latchwork.queue.sharded.config import QueueConfig
from latchwork.queue.sharded.publishing.publication import Publication
from latchwork.queue.sharded.publishing.publisher import Publisher
from latchwork.queue.sharded.queue import ShardedQueue
from latchwork.queue.sharded.registry import QueueRegistry

from ..checkers import publisher as promises
from ..faults.kinds import WITH_THREADS, Kind
from ..faults.network import Change
from ..world import Process
from .base import Scenario, SimStore

CONFIGS = [QueueConfig("q", shards=shards) for shards in (1, 2)]
"""Nothing is slow by their sweep duration, so each message is stored in one place."""


class Publishers(Scenario):
    """Processes whose threads share a publisher each: futures are asked, flushed, closed, and left alone."""

    name = "publisher"
    horizon = 60.0
    patience = 2000.0
    kinds = (*WITH_THREADS, Kind.ROW)
    environment = (Kind.CLIENT_CLOCK, Kind.SUSPEND)

    def setup(self) -> None:
        self.config = self.rng.choice(CONFIGS)
        self.published = 0
        self.stored: dict[str, list[int]] = {}
        self.came: list[str] = []
        self._queue(self.operator_store)
        self.server.observer = self

    def _queue(self, store: SimStore) -> ShardedQueue:
        return QueueRegistry(store, "c", farm_id="f").create(self.config)

    # ---- what the server sees

    def wrote(self, key: Any, change: Change) -> None:
        """A record was written: of a message for the first time, it is noted when."""
        message = change.after.get("msgId")
        if key.set == "c_data_set" and "msgId" not in change.before and message is not None:
            self.stored.setdefault(message, []).append(self.world.tick())

    def removed(self, key: Any, who: str, bins: dict[str, Any]) -> None:
        """A record was deleted: an acknowledged message."""

    # ---- people

    def people(self) -> None:
        for number in range(self.rng.randint(1, 2)):
            self.person(f"service{number}", self._service)

    def _service(self, process: Process, store: SimStore) -> None:
        opened = self.call(process, "open", lambda: self._queue(store))
        if not opened.ok:
            return
        room = self.rng.choice((2, 5, 100))
        publisher = opened.result.publisher(linger=self.rng.choice((0, 0.002, 0.5)), waiting=room)
        mine: list[Publication] = []
        threads = [
            process.spawn(partial(self._thread, process, publisher, room, mine), f"t{number}", main=True)
            for number in range(self.rng.randint(1, 3))
        ]
        for thread in threads:
            thread.join()
        if self.rng.random() < 0.7:
            self._end(process, "close", publisher.close, mine)

    def _thread(self, process: Process, publisher: Publisher, room: int, mine: list[Publication]) -> None:
        for _ in range(self.rng.randint(2, 8)):
            self.published += 1
            name = f"m{self.published}"
            timeout = self.rng.choice((None, 0.05, 2.0))
            taken = self.call(process, "take", partial(publisher.publish, name, message_id=name, timeout=timeout), name)
            taken.tag = self._unknown(publisher, room)
            if taken.ok:
                mine.append(taken.result)
                taken.result.add_done_callback(partial(self._answered, process))
            draw = self.rng.random()
            if draw < 0.3 and taken.ok:
                self.call(process, "result", partial(taken.result.result, 30.0), name)
            elif draw < 0.5:
                self._end(process, "flush", publisher.flush, mine)
            else:
                self.idle(process, self.rng.choice((0.001, 0.01, 1.0)))

    def _unknown(self, publisher: Publisher, room: int) -> int:
        """How many more than may wait in memory."""
        return max(0, len(publisher._unanswered()) - room)

    def _end(self, process: Process, verb: str, run: Any, mine: list[Publication]) -> None:
        """Flush or close; which of the publications of before are not known then."""
        before = list(mine)
        entry = self.call(process, verb, partial(run, self.rng.choice((0.01, 5.0, 60.0))))
        entry.tag = [one.message_id for one in before if not one.done()]

    def _answered(self, process: Process, publication: Publication) -> None:
        """Note what a future said at the moment when it did."""

        def asked() -> str:
            failure: LatchworkError | None = publication.exception(0)
            if failure is not None:
                raise failure
            return publication.result(0)

        self.call(process, "answer", asked, publication.message_id)

    # ---- the end

    def settle(self) -> None:
        queue = self._queue(self.operator_store)
        self.operator.seams.sleep(60)
        while found := queue.receive(100):
            self.came += [delivery.message_id for delivery in found]
            queue.ack_many(found)

    def check(self) -> None:
        promises.check(self)
