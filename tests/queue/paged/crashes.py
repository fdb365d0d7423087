"""Run a workload on a recording file layer, crash the machine at every step, and hold the queue to its promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from latchwork.errors import LatchworkError
from latchwork.queue.paged.queue import PagedQueue
from latchwork.seams import Seams

from .recording import RecordingFiles

KEEPS = (0.0, 0.15, 0.5, 0.85, 1.0)
"""How much of what was not synced a crash keeps."""


class Violation(AssertionError):
    """A promise was broken."""


class Ticking(Seams):
    """A wall clock that goes on a little with every look, and sometimes back."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self.now, self.looks = start, 0

    def wall(self) -> float:
        self.looks += 1
        self.now += -5.0 if self.looks % 11 == 0 else 0.7
        return self.now


@dataclass(frozen=True)
class Shape:
    """A workload: page size, sync mode, and what is done, drawn from a seed."""

    name: str
    page_size: int
    force_every: int
    sizes: tuple[int, ...]
    actions: str  # a: append, m: append_many, c: cursor reads and commits, f: force, r: reclaim, o: close and open
    lifetime: float | None = None
    length: int = 26


SHAPES = (
    Shape("synced one by one", 256, 1, (10, 20, 40), "aaamc"),
    Shape("every third synced", 256, 3, (10, 20, 40), "aaaamco"),
    Shape("left to the system", 256, 0, (16,), "aaaaamcfo"),
    Shape("larger than a page", 128, 1, (10, 60, 105, 106, 250), "aaac", length=16),
    Shape("larger than a page, unsynced", 128, 0, (10, 60, 105, 106, 250), "aaamcfo", length=20),
    Shape("reclaimed", 128, 1, (20, 30), "aaamccr", lifetime=3.0),
)


@dataclass
class Progress:
    """What had been tried and promised when the machine stopped."""

    sent: list[bytes] = field(default_factory=list)
    durable: int = 0  # so many messages must be there
    read: int = 0  # so many were returned by the cursor
    committed: int = 0  # and so many of these for good
    batch: tuple[int, int] | None = None


class Workload:
    """One run of a shape. `at_step` is called before every step that changes a file."""

    def __init__(self, shape: Shape, seed: int, at_step: Callable[[RecordingFiles, Progress], None]) -> None:
        self.shape, self.random = shape, Random(f"{shape.name} {seed}")
        self.files = RecordingFiles(sector=self.random.choice((8, 16, 64)))
        self.files.before_step = lambda kind, name: at_step(self.files, self.progress)
        self.progress = Progress()
        self.clock = Ticking()

    def run(self, actions: int) -> None:
        self.queue = self._open()
        self.queue.cursor("c")  # from the start, so that nothing is reclaimed unread
        for _ in range(actions):
            getattr(self, "_" + self.random.choice(self.shape.actions))()
        self._settle(self.queue.close)

    def _open(self) -> PagedQueue:
        queue = open_queue(self.files, self.shape, self.clock)
        self.progress.durable = len(self.progress.sent)  # opening syncs what it finds
        return queue

    def _message(self) -> bytes:
        number = len(self.progress.sent)
        message = (b"%06d" % number) + bytes([number % 251]) * self.random.choice(self.shape.sizes)
        self.progress.sent.append(message)
        return message

    def _a(self) -> None:
        self.queue.append(self._message())
        self._acknowledged(1)

    def _m(self) -> None:
        count = self.random.randint(2, 5)
        self.queue.append_many([self._message() for _ in range(count)])
        self._acknowledged(count)

    def _acknowledged(self, count: int) -> None:
        n = self.shape.force_every
        if n:
            self.unsynced = getattr(self, "unsynced", 0) + count
            if self.unsynced >= n:
                self.unsynced, self.progress.durable = 0, len(self.progress.sent)

    def _c(self) -> None:
        cursor = self.queue.cursor("c")
        self.progress.read += len(cursor.read(self.random.randint(1, 4)))
        cursor.commit()
        self.progress.committed = self.progress.read
        self.progress.durable = max(self.progress.durable, self.progress.read)

    def _f(self) -> None:
        self._settle(self.queue.force)

    def _r(self) -> None:
        self.queue.reclaim()

    def _o(self) -> None:
        self._settle(self.queue.close)
        self.unsynced = 0
        self.queue = self._open()
        self.progress.read = self.progress.committed

    def _settle(self, sync: Callable[[], None]) -> None:
        sync()
        self.progress.durable = len(self.progress.sent)


def open_queue(files: RecordingFiles, shape: Shape, clock: Seams) -> PagedQueue:
    return PagedQueue.open(
        Path("/d"), "q", page_size=shape.page_size, force_every=shape.force_every, lifetime=shape.lifetime,
        files=files, seams=clock,
    )  # fmt: skip


class Checker:
    """Takes crash states at every step, at most once each, and checks what a new process makes of them."""

    def __init__(self, shape: Shape, seed: int, *, each_step: int) -> None:
        self.shape, self.random, self.each_step = shape, Random(seed), each_step
        self.seen: set[int] = set()
        self.counts: Counter = Counter()

    def at_step(self, files: RecordingFiles, progress: Progress) -> None:
        self.counts["steps"] += 1
        for number in range(self.each_step):
            keep = KEEPS[number % len(KEEPS)]
            contents = files.crashed(self.random, keep)
            # What was promised by then too: files that were right before it was may be wrong after.
            key = hash((frozenset(contents.items()), progress.durable, progress.read, progress.committed))
            if key in self.seen:
                continue
            self.seen.add(key)
            self.counts["states"] += 1
            self.counts[f"kept {keep:.0%}"] += 1
            self.check(contents, progress, files.sector)

    def check(self, contents: dict[str, bytes], progress: Progress, sector: int) -> None:
        files = RecordingFiles.holding(contents, sector=sector)
        deep = self.counts["states"] % 8 == 0
        between: list[dict[str, bytes]] = []
        if deep:
            files.before_step = lambda kind, name: between.append(files.crashed(self.random, self.random.choice(KEEPS)))
        found = self._recovered(files, progress)
        if not deep:
            return
        for state in between:  # killed in the middle of recovery, and started again
            self.counts["states in recovery"] += 1
            again = self._recovered(RecordingFiles.holding(state, sector=sector), progress)
            self._require(again == found or len(again) >= progress.durable, "recovery lost what was acknowledged")
        self._require(self._read(files, close=False) == found, "a second process reads something else")
        self._goes_on(files, found, progress)

    def _recovered(self, files: RecordingFiles, progress: Progress) -> list[bytes]:
        queue = self._opened(files)
        try:
            entries = list(queue.read())
        except LatchworkError as error:
            raise Violation(f"it cannot be read: {error}") from error
        messages = [entry.data for entry in entries]
        sent = progress.sent
        self._require(not messages or messages[0] in sent, "not what was appended")
        start = int(messages[0][:6]) if messages else 0
        self._require(messages == sent[start : start + len(messages)], "not a run of what was appended")
        self._require(start <= (progress.read if self.shape.lifetime else 0), "the beginning is missing")
        self._require(start + len(messages) >= progress.durable, "an acknowledged message is missing")
        times = [entry.timestamp for entry in entries]
        self._require(times == sorted(times), "arrival times run backwards")
        if entries:
            pivot = self.random.choice(times)
            later = [entry.data for entry in entries if entry.timestamp >= pivot]
            self._require([entry.data for entry in queue.read(pivot)] == later, "the search by time misses a message")
        if "c" in self.shape.actions and "q-c.cursor" in files.names_live:
            rest = [entry.data for entry in queue.cursor("c").read(len(sent) + 1)]
            self._require(rest == messages[len(messages) - len(rest) :], "the cursor is not between two messages")
            self._require(start + len(messages) - len(rest) >= progress.committed, "the cursor fell back")
        elif progress.committed:
            self._require(False, "the cursor is gone")
        return messages

    def _goes_on(self, files: RecordingFiles, found: list[bytes], progress: Progress) -> None:
        """After recovery the queue takes messages, and another crash still leaves a prefix and all that was found.

        They are as long as those that the crash took, so that whatever is left of these lies where it could do harm.
        """
        queue = self._opened(files.killed())
        files = queue._layout.files
        taken = progress.sent[int(found[-1][:6]) + 1 :] if found else progress.sent
        fresh = [b"-" * len(message) for message in taken[:2]] or [b"one", b"two"]
        for message in fresh:
            queue.append(message)
        for keep in KEEPS:
            self.counts["states after recovery"] += 1
            again = self._read(RecordingFiles.holding(files.crashed(self.random, keep), sector=files.sector))
            self._require(again[: len(found)] == found, "what recovery had found is gone")
            self._require(again[len(found) :] == fresh[: len(again) - len(found)], "something came back from the dead")

    def _read(self, files: RecordingFiles, *, close: bool = True) -> list[bytes]:
        return [entry.data for entry in self._opened(files if close else files.killed()).read()]

    def _opened(self, files: RecordingFiles) -> PagedQueue:
        try:
            return open_queue(files, self.shape, Ticking())
        except LatchworkError as error:
            raise Violation(f"it cannot be opened: {error}") from error

    def _require(self, holds: bool, promise: str) -> None:
        if not holds:
            raise Violation(promise)


def explore(shape: Shape, seed: int, *, each_step: int, actions: int | None = None) -> Counter:
    """All crash states of one run; `Violation` at the first that breaks a promise."""
    checker = Checker(shape, seed, each_step=each_step)
    workload = Workload(shape, seed, checker.at_step)
    workload.run(actions or shape.length)
    checker.counts.update({f"did {kind}": count for kind, count in workload.files.done.items()})
    return checker.counts
