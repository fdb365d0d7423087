"""Where a hunt takes place: threads that use the primitives, outages meanwhile, and in the end all is checked."""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from latchwork.errors import LatchworkError
from latchwork.store.aerospike.store import AerospikeStore

from ..history.record import Entry, History

PATIENCE = 90.0
"""Seconds after the last outage in which everything promised has to come true."""
LINES = 2
"""That a task may write into the log in a minute: one of errors of ours, one of a defect."""
FIRST, LONG = "refused", 2.5
"""The first outage, and seconds after which a client has surely forgotten its only node."""


class Clock:
    """The order of what several threads see, for `History`."""

    def __init__(self) -> None:
        self._ticks = itertools.count(1)

    @property
    def now(self) -> float:
        return time.monotonic()

    def tick(self) -> int:
        return next(self._ticks)


class Ground:
    """What everybody shares in one hunt. `violations` has what must not have happened.

    deletes_last: whether what was deleted stays so, as it does unless a server of one node starts again.
    """

    def __init__(self, store: AerospikeStore, seed: int, folder: Path, *, deletes_last: bool = True) -> None:
        self.store, self.folder, self.seed, self.deletes_last = store, folder, seed, deletes_last
        self.chance = random.Random(f"hunt {seed}")
        self.clock = Clock()
        self.over = threading.Event()
        self.violations: list[str] = []
        self.outages: Counter[str] = Counter()

    def complain(self, promise: str, detail: str) -> None:
        """A promise was broken; said once where it was broken in the same way again and again."""
        text = f"seed {self.seed}: {promise}: {detail}"
        if text not in self.violations:
            self.violations.append(text)

    def until(self, promise: str, holds: Callable[[], object], detail: Callable[[], str] = str) -> None:
        """Wait until it holds, now that the outages are over; complain where it does not come true."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                if holds():
                    return
            except LatchworkError:  # a last wave of the outage
                pass
            time.sleep(0.1)
        self.complain(promise, f"not within {PATIENCE:g} s {detail()}")


class Hunter(ABC):
    """One primitive, those who use it, and what must hold."""

    name: str
    expected: frozenset[str] = frozenset()
    """Codes of errors that calls may end with, beside `UNAVAILABLE`."""

    def __init__(self, ground: Ground) -> None:
        self.ground, self.store, self.chance = ground, ground.store, random.Random(f"{self.name} {ground.seed}")
        self.history = History(ground.clock)  # type: ignore[arg-type] # a clock is all that it asks of a world
        self.lock = threading.Lock()

    @abstractmethod
    def people(self) -> Sequence[Callable[[], None]]:
        """Who uses it: each is called again and again, in a thread of its own, until the hunt is over."""

    def settle(self) -> None:
        """What is done once the outages are over."""

    @abstractmethod
    def check(self) -> None:
        """Complain about what must not have happened."""

    def call(self, name: str, run: Callable[[], Any], *args: Any) -> Entry:
        """Do and record it. What is no error of the package's is a violation."""
        return self.call_in(self.history, name, run, *args)

    def call_in(self, history: History, name: str, run: Callable[[], Any], *args: Any) -> Entry:
        """The same, in a history of its own."""
        entry: Entry
        try:
            entry = history.call(threading.current_thread().name, name, run, *args)
        except Exception as failure:
            self.complain("no error but the package's own", f"{name}{args}: {failure!r}")
            return Entry("", name, args, 0.0, 0)
        if entry.outcome not in {"ok", "unknown", "UNAVAILABLE", *self.expected}:
            self.complain("no answer but those that are documented", f"{name}{args}: {entry.outcome} {entry.reason}")
        return entry

    def entries(self) -> list[Entry]:
        """All that was recorded."""
        return self.history.entries

    def complain(self, promise: str, detail: str) -> None:
        """A promise of this primitive was broken."""
        self.ground.complain(f"{self.name}: {promise}", detail)


Outage = Callable[[], AbstractContextManager[None]]


def hunt(
    ground: Ground, hunters: Sequence[Hunter], outages: dict[str, Outage], seconds: float, lengths: tuple[float, float]
) -> Counter[str]:
    """Let them all live for so many seconds, with outages that last between two lengths; what was done, in figures."""
    threads = [
        threading.Thread(target=_live, args=(ground, person), name=f"{hunter.name}-{number}", daemon=True)
        for hunter in hunters
        for number, person in enumerate(hunter.people())
    ]
    with _watched(ground) as said:
        for thread in threads:
            thread.start()
        began = time.monotonic()
        while not ground.outages or time.monotonic() < began + seconds:
            time.sleep(ground.chance.uniform(0.3, 2.0))
            name = ground.chance.choice(sorted(outages)) if ground.outages else FIRST
            with outages[name]():
                time.sleep(_length(ground.chance, lengths) if ground.outages else max(lengths[0], LONG))
            ground.outages[name] += 1
        ground.over.set()
        for thread in threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                ground.complain("no call hangs", thread.name)
        for hunter in hunters:
            hunter.settle()
            hunter.check()
        _check_the_log(ground, said, time.monotonic() - began)
    outcomes = Counter(entry.outcome for hunter in hunters for entry in hunter.entries())
    return Counter({
        "outages": sum(ground.outages.values()), "calls": sum(outcomes.values()), "answered": outcomes["ok"],
        "unknown": outcomes["unknown"], "violated": len(ground.violations), "F15 no node": sum(ground.outages.values()),
    })  # fmt: skip


def _live(ground: Ground, person: Callable[[], None]) -> None:
    while not ground.over.is_set():
        person()
        ground.over.wait(0.01)


def _length(chance: random.Random, lengths: tuple[float, float]) -> float:
    """As many short ones as long ones, whatever the scale."""
    low, high = lengths
    return float(low * (high / low) ** chance.random())


@contextmanager
def _watched(ground: Ground) -> Iterator[Counter[str]]:
    """Count what is said in the log, by its first words; a thread that ends by an error is a violation."""
    said: Counter[str] = Counter()

    class Counting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                said["met an error" if "met an error" in record.getMessage() else record.getMessage()[:40]] += 1
            if record.exc_info and not isinstance(record.exc_info[1], LatchworkError):
                ground.complain("no error but the package's own", f"{record.getMessage()}: {record.exc_info[1]!r}")
            raise OSError("the log shipper is away")  # F23: no thread may end by it

        def handle(self, record: logging.LogRecord) -> bool:
            self.emit(record)  # past the guard of `logging`, as a handler of a program's own may be
            return True

    def died(args: threading.ExceptHookArgs) -> None:
        ground.complain("no thread ends by an error", f"{args.thread and args.thread.name}: {args.exc_value!r}")

    log, handler, before = logging.getLogger("latchwork"), Counting(), threading.excepthook
    log.addHandler(handler)
    threading.excepthook = died
    try:
        yield said
    finally:
        threading.excepthook = before
        log.removeHandler(handler)


def _check_the_log(ground: Ground, said: Counter[str], seconds: float) -> None:
    """Who goes on failing says so once a minute."""
    for words, times in said.items():
        if "met an error" in words and times > LINES * (1 + seconds / 60):
            ground.complain("trouble is said once a minute", f"{times} times in {seconds:.0f} s: {words}")
