"""Promises that need a fault of their own, as functions, so that the mutants can be held against them too."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

from latchwork.errors import StorageFailed
from latchwork.queue.paged.queue import PagedQueue

from .crashes import Ticking, Violation
from .recording import RecordingFiles


def open_in(files: RecordingFiles, **settings) -> PagedQueue:
    settings = {"page_size": 256, "seams": Ticking(), **settings}
    return PagedQueue.open(Path("/d"), "q", files=files, **settings)


def require(holds: bool, promise: str) -> None:
    if not holds:
        raise Violation(promise)


def messages(files: RecordingFiles, *, page_size: int = 256, **options) -> list[bytes]:
    return [entry.data for entry in open_in(files, page_size=page_size).read(**options)]


def acknowledged_survive_a_failed_sync() -> int:
    """Whichever sync of a page fails: nothing acknowledged is lost, and the page is never taken for clean again."""
    failures = 0
    for failing in range(12):
        files = RecordingFiles()
        queue = open_in(files, force_every=1)
        files.fail("sync", ".page", errno.EIO, after=failing)
        acknowledged = append_until_refused(queue, 12)
        if not files.done["failed sync"]:
            continue
        failures += 1
        require(len(acknowledged) < 12, "a failed sync was acknowledged")
        try:
            queue.append(b"after the failure")
        except StorageFailed:
            pass
        else:
            raise Violation("a page whose sync failed took another message")
        for random in map(Random, range(6)):
            lost = RecordingFiles.holding(files.crashed(random, 0.3))
            require(messages(lost)[: len(acknowledged)] == acknowledged, "an acknowledged message is missing")
        again = files.killed()
        found = messages(again)
        require(found[: len(acknowledged)] == acknowledged, "an acknowledged message is missing")
        survived = RecordingFiles.holding(again.crashed(Random(0), 0.0))
        require(messages(survived) == found, "what opening found was never written")
    require(failures > 5, "hardly a sync failed")
    return failures


def append_until_refused(queue: PagedQueue, count: int) -> list[bytes]:
    acknowledged = []
    for number in range(count):
        message = b"message %02d " % number + bytes(30)
        try:
            queue.append(message)
        except StorageFailed:
            return acknowledged
        acknowledged.append(message)
    return acknowledged


def length_comes_last() -> None:
    """The content, with zero lengths before and after it, is written first; then the length, alone."""
    files = RecordingFiles()
    queue = open_in(files)
    for action in (lambda: queue.append(b"one"), lambda: queue.append_many([b"two", b"three"])):
        inode = files.names_live["q-1.page"]
        inode.pending.clear()
        action()
        require(len(inode.pending) == 2, "not one write of the content and one of the length")
        (_, start, content), (_, where, length) = inode.pending
        require(start == where and len(length) == 4, "the length is not the last write")
        require(content[:4] == content[-4:] == bytes(4), "the content is not between zero lengths")
        require(int.from_bytes(length, "big") > 0, "the length written last is zero")


def copied_records_are_not_data() -> None:
    """Bytes of a record inside another message's payload are never found to be a message."""
    files = RecordingFiles()
    queue = open_in(files, page_size=256)
    queue.append(b"the first")
    copy = files.contents()["q-1.page"][: 17 + len(b"the first")]
    queue.append(copy)
    queue.append(b"the last")
    queue.close()
    damaged = files.contents()
    page = bytearray(damaged["q-1.page"])
    page[17 + len(b"the first") + 5] ^= 0xFF
    after = RecordingFiles.holding({**damaged, "q-1.page": bytes(page)})
    require(messages(after, skip_corrupt=True) == [b"the first", b"the last"], "a copy was taken for a message")
