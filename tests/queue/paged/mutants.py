"""Seeded bugs that the checkers must catch: each breaks the rule that it names (docs/protocols/paged-queue.md)."""

from __future__ import annotations

from contextlib import suppress

from latchwork.queue.paged import layout as page_layout
from latchwork.queue.paged import page as pages
from latchwork.queue.paged import recovery as page_recovery
from latchwork.queue.paged.index import survey
from latchwork.queue.paged.layout import Layout
from latchwork.queue.paged.page import TERMINATOR
from latchwork.queue.paged.writer import PageWriter

from .recording import RecordingFile, RecordingFiles


def checksum_not_checked(patch) -> None:
    """P22.3"""

    patch.setattr(pages, "value", lambda data: 0)
    patch.setattr(pages, "extend", lambda crc, data: 0)


def checksum_without_place(patch) -> None:
    """P22.3"""

    class Unplaced:
        size = pages._CHECKED.size

        def pack(self, page, position, *rest):
            return original.pack(0, 0, *rest)

    original = pages._CHECKED
    patch.setattr(pages, "_CHECKED", Unplaced())


def length_written_first(patch) -> None:
    """P22.1"""

    def put(self, frames, entries):
        page, position = self.tail
        self._page.write(frames[:4], position)
        content = frames[4:] + TERMINATOR
        self._page.write(content[: self._page_size - position - 4], position + 4)
        self._index.write(entries, self._index_size)
        self.tail = (page, position + len(frames))
        self._index_size += len(entries)

    patch.setattr(PageWriter, "_put", put)


def no_zero_length_after_the_record(patch) -> None:
    """P22.2"""

    def put(self, frames, entries):
        page, position = self.tail
        self._page.write(frames, position)
        self._index.write(entries, self._index_size)
        self.tail = (page, position + len(frames))
        self._index_size += len(entries)

    patch.setattr(PageWriter, "_put", put)


def _is_page_sync(step) -> bool:
    return getattr(step, "__name__", "") == "sync" and step.__self__.name.endswith(".page")


def failed_sync_swallowed(patch) -> None:
    """P22.5"""

    original = PageWriter._guarded

    def guarded(self, *steps):
        if _is_page_sync(steps[0]):
            with suppress(OSError):
                steps[0]()
            return
        original(self, *steps)

    patch.setattr(PageWriter, "_guarded", guarded)


def failed_sync_tried_again(patch) -> None:
    """P22.5"""

    original = PageWriter._guarded

    def guarded(self, *steps):
        if _is_page_sync(steps[0]):
            try:
                steps[0]()
            except OSError:
                steps[0]()
            return
        original(self, *steps)

    patch.setattr(PageWriter, "_guarded", guarded)


def acknowledged_before_the_sync(patch) -> None:
    """P22.4"""

    patch.setattr(PageWriter, "_sync", lambda self: None)


def no_sync_before_a_new_page(patch) -> None:
    """P22.6"""

    original = PageWriter._roll

    def roll(self):
        sync, self._sync = self._sync, lambda: None
        try:
            original(self)
        finally:
            self._sync = sync

    patch.setattr(PageWriter, "_roll", roll)


def new_page_not_in_the_directory(patch) -> None:
    """P22.7"""

    original = PageWriter._create

    def create(self, number):
        sync, RecordingFiles.sync_directory = RecordingFiles.sync_directory, lambda self, directory: None
        try:
            original(self, number)
        finally:
            RecordingFiles.sync_directory = sync

    patch.setattr(PageWriter, "_create", create)


def recovery_trusts_write_meta(patch) -> None:
    """P22.8"""

    original = PageWriter._put

    def put(self, frames, entries):
        self._meta.write(self._layout.write_meta((self.tail[0], self.tail[1] + len(frames))), 0)
        original(self, frames, entries)

    def trusting(file, page, page_size, synced):
        return (
            survey(file, page, page_size, synced) if synced == 0 else Trusted(survey(file, page, page_size, 0), synced)
        )

    class Trusted:
        def __init__(self, found, synced):
            self.entries, self.end = found.entries, synced

    patch.setattr(PageWriter, "_put", put)
    patch.setattr(page_recovery, "survey", trusting)


def recovery_leaves_the_tail(patch) -> None:
    """P22.9"""

    patch.setattr(page_recovery, "_zero", lambda *_: None)


def recovery_does_not_sync(patch) -> None:
    """P22.10"""

    original = page_recovery._recover_page

    def recover(*args):
        sync, RecordingFile.sync = RecordingFile.sync, lambda self: None
        try:
            return original(*args)
        finally:
            RecordingFile.sync = sync

    patch.setattr(page_recovery, "_recover_page", recover)


def recovery_does_not_write_again(patch) -> None:
    """P22.10"""

    patch.setattr(page_recovery, "_rewrite", lambda *_: None)


def recovery_keeps_the_old_index(patch) -> None:
    """P22.11"""

    patch.setattr(
        page_recovery, "_repair_index", lambda layout, number, _: layout.files.open(layout.index(number), create=True)
    )


def meta_renamed_before_it_is_synced(patch) -> None:
    """P22.12"""

    original = Layout._replace

    def replace(self, rest, data):
        sync, RecordingFile.sync = RecordingFile.sync, lambda self: None
        try:
            original(self, rest, data)
        finally:
            RecordingFile.sync = sync

    patch.setattr(page_layout.Layout, "_replace", replace)


def cursor_stored_before_the_messages(patch) -> None:
    """P22.13"""

    original = PageWriter.force
    patch.setattr(PageWriter, "force", lambda self, upto=None: None if upto else original(self))


def page_deleted_before_read_meta(patch) -> None:
    """P22.14"""

    original = Layout.store_first_page

    def store(self, number):
        if number > 1:
            for page in range(1, number):
                self.remove_page(page)
            self.files.sync_directory(self.directory)
        original(self, number)

    patch.setattr(Layout, "store_first_page", store)


CAUGHT_BY_CRASHES = (
    checksum_not_checked, acknowledged_before_the_sync, no_sync_before_a_new_page, new_page_not_in_the_directory,
    recovery_trusts_write_meta, recovery_leaves_the_tail, recovery_does_not_sync, recovery_keeps_the_old_index,
    meta_renamed_before_it_is_synced, cursor_stored_before_the_messages, page_deleted_before_read_meta,
)  # fmt: skip

CAUGHT_BY_FAILED_SYNCS = (failed_sync_swallowed, failed_sync_tried_again, recovery_does_not_write_again)

CAUGHT_BY_THE_ORDER_OF_WRITES = (length_written_first, no_zero_length_after_the_record)
