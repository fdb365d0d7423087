"""A producer with its outbox, the store that it forwards to, and what arrived there.

world = World(MemoryStore(clock), clock, tmp_path)
producer = world.producer({3: "crash_after"})     # dies at its third call of the store
producer.put("a", 1)                              # key, number; acknowledged puts are in world.acknowledged
producer.forward();  producer.end()               # a producer that ended and another one are a restart
world.check()                                     # once each, in order for each key
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path

from latchwork.queue import Outbox, PagedQueue, QueueConfig, QueueRegistry
from latchwork.queue.paged.files import SYSTEM_FILES
from latchwork.store import RecordStore
from latchwork.testing.clock import ManualClock
from latchwork.testing.stores import FaultyStore

SWEEP = 1200.0
CLIENTS = count()
LIMIT = 8_192
"""Bytes of a record of a store with small ones."""
BIG = "x" * LIMIT


@dataclass
class World:
    store: RecordStore
    clock: ManualClock
    directory: Path
    shards: int = 3
    settings: dict = field(default_factory=dict)
    acknowledged: list = field(default_factory=list)
    received: list = field(default_factory=list)
    options: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.client = f"shop{next(CLIENTS)}"
        self.config = QueueConfig("q", shards=self.shards, sweep_duration=timedelta(seconds=SWEEP))
        self.queue = QueueRegistry(self.store, self.client).create(self.config)

    def producer(self, plan=None, *, directory=None, files=SYSTEM_FILES, **faults) -> Producer:
        store = FaultyStore(self.store, seams=self.clock, **faults)
        chance, store._random = store._random, None
        queue = QueueRegistry(store, self.client).get("q")
        store.plan = {store._number + number: fault for number, fault in (plan or {}).items()}
        store._random = chance
        settings = {"page_size": 512, "lifetime": 0.001, "seams": self.clock, **self.settings}
        pq = PagedQueue.open(directory or self.directory, "out", files=files, **settings)
        return Producer(self, store, pq, Outbox(pq, queue, **self.options))

    def receive(self, n: int = 1000) -> None:
        """A consumer takes what is there."""
        while deliveries := self.queue.receive(n):
            self.received += [tuple(delivery.payload) for delivery in deliveries]
            self.queue.ack_many(deliveries)

    def check(self, *, lost=()) -> None:
        """Everything acknowledged has arrived, nothing twice, and each key in the order of its puts."""
        self.receive()
        found = Counter(self.received)
        assert not [message for message in self.acknowledged if not found[message]], "lost"
        assert not [message for message, times in found.items() if times > 1], "doubled"
        by_key = defaultdict(list)
        for key, number in self.received:
            by_key[key].append(number)
        for key, numbers in by_key.items():
            assert key is None or numbers == sorted(numbers), f"order of {key}: {numbers}"


@dataclass
class Producer:
    world: World
    store: FaultyStore
    pq: PagedQueue
    outbox: Outbox

    def __post_init__(self) -> None:
        self.began = self.store._number

    @property
    def calls(self) -> int:
        return self.store._number - self.began

    @property
    def failed(self) -> bool:
        """Whether its local queue takes no more before it is opened again."""
        return self.pq._writer._failure is not None

    def put(self, key, number) -> None:
        self.outbox.put([key, number], key=key)
        self.world.acknowledged.append((key, number))

    def put_big(self, key, number) -> str:
        """One that a store with small records refuses."""
        message_id = self.outbox.put([key, number], key=key, headers={"big": BIG})
        self.world.acknowledged.append((key, number))
        return message_id

    def put_some(self, first: int = 0, n: int = 9) -> None:
        """Messages of two keys and of none, the numbers of each key ascending."""
        self.put_all([(("a", None, "b", "a", None)[number % 5], number) for number in range(first, first + n)])

    def put_all(self, messages) -> None:
        self.outbox.put_many(messages, keys=[key for key, _ in messages])
        self.world.acknowledged += messages

    def forward(self) -> int:
        return self.outbox.forward()

    def end(self) -> None:
        """The process is gone, as by SIGKILL: nothing is closed in order."""
        self.pq.disown()
