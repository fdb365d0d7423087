"""What those cost who only wait: storage calls a second of idle consumers, of waiters, of candidates.

In memory, as the number of calls does not hang on the backend, and with the queue's clock running fast where its pauses
are long. All numbers of threads run at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks._growth import shown
from benchmarks._harness import CountingStore, table
from latchwork.coord import CountDownLatch, FencedLock, LeaseElection
from latchwork.queue import Consumer, QueueConfig, QueueRegistry
from latchwork.seams import Seams
from latchwork.store import MemoryStore
from tools.growth import slope
from tools.growth_cases import name_of

SIZES = (1, 10, 100)
SECONDS, WARM = 5.0, 1.5
"""How long is counted, and before that, until all have settled."""


class Fast(Seams):
    """Clocks that run so many times as fast."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def monotonic(self) -> float:
        return super().monotonic() * self.factor

    def wall(self) -> float:
        return super().wall() * self.factor

    def boottime(self) -> float:
        return super().boottime() * self.factor

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds / self.factor)

    def event(self) -> FastEvent:
        return FastEvent(self.factor)


class FastEvent(threading.Event):
    """Its timeouts are those of the fast clock."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(None if timeout is None else timeout / self.factor)


Begin = Callable[[CountingStore, int, ExitStack], None]
"""Makes so many wait on the store; the stack ends them."""


def consumers(store: CountingStore, number: int, stack: ExitStack) -> None:
    queue = QueueRegistry(store, name_of(store)).create(QueueConfig("q", shards=32, concurrency=number))
    consumer = Consumer(queue, lambda _: True, grace=1).start()
    stack.callback(consumer.stop)


def latch_waiters(store: CountingStore, number: int, stack: ExitStack) -> None:
    latch = CountDownLatch.create(store, "c", "latch", 1)
    stack.enter_context(_threads(number, lambda: latch.wait(60)))
    stack.callback(latch.count_down)


def lock_waiters(store: CountingStore, number: int, stack: ExitStack) -> None:
    grant = FencedLock(store, "lock", lease=600).acquire()
    stack.enter_context(_threads(number, lambda: FencedLock(store, "lock").acquire(60).release()))
    stack.callback(grant.release)


def candidates(store: CountingStore, number: int, stack: ExitStack) -> None:
    for _ in range(number):
        election = LeaseElection(store, "office")
        election.start()
        stack.callback(election.stop, 0)


def _threads(number: int, run: Callable[[], object]) -> ExitStack:
    """So many threads; leaving joins them."""
    stack = ExitStack()
    for _ in range(number):
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        stack.callback(thread.join)
    return stack


CASES: tuple[tuple[str, str, float, Begin], ...] = (
    ("an idle queue of 32 shards, one process", "consumers", 60.0, consumers),
    ("a latch that is waited for", "waiters", 1.0, latch_waiters),
    ("a lock that is waited for", "waiters", 1.0, lock_waiters),
    ("an election, lease 10 s", "candidates", 1.0, candidates),
)


def rates(factor: float, begin: Begin) -> list[float]:
    """Calls a second, by number of threads."""
    stores = [CountingStore(MemoryStore(Fast(factor))) for _ in SIZES]
    with ExitStack() as stack:
        for store, number in zip(stores, SIZES, strict=True):
            begin(store, number, stack)
        time.sleep(WARM)
        before, began = [store.total() for store in stores], time.perf_counter()
        time.sleep(SECONDS)
        spent = (time.perf_counter() - began) * factor
        after = [store.total() for store in stores]
    return [(late - early) / spent for early, late in zip(before, after, strict=True)]


def markdown() -> str:
    """The table: calls a second in all, and the slope."""
    rows = []
    for what, of, factor, begin in CASES:
        found = rates(factor, begin)
        sizes, calls = " / ".join(map(str, SIZES)), " / ".join(map(shown, found))
        rows.append((what, f"{sizes} {of}", calls, f"{slope(SIZES, found):+.2f}", shown(found[-1] / SIZES[-1])))
    return table(("what", "size", "calls a second in all", "slope", "for each of the 100"), rows)
