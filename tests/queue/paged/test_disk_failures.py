"""A disk that is full or failing is surfaced, and nothing acknowledged is lost."""

import errno
from functools import partial
from itertools import product
from random import Random

import pytest

from latchwork.errors import StorageFailed
from latchwork.queue import PagedQueue
from latchwork.queue.paged import page, writer
from latchwork.testing.clock import ManualClock

from .failing import SmallDisk, interrupted
from .promises import acknowledged_survive_a_failed_sync, append_until_refused, messages, open_in
from .recording import RecordingFiles


def test_a_failed_sync_poisons_the_page_and_loses_nothing_acknowledged():
    acknowledged_survive_a_failed_sync()


def test_a_full_disk_refuses_the_append_and_goes_on_when_there_is_room():
    files = RecordingFiles()
    queue = open_in(files, force_every=1)
    sent = [b"m%02d" % number + bytes(40) for number in range(4)]  # four of them fill a page
    queue.append_many(sent)
    for _ in range(3):
        files.fail("allocate", "q-2.page", errno.ENOSPC)
        with pytest.raises(StorageFailed, match="no room"):
            queue.append(b"one too many" * 4)
        assert "q-2.page" not in files.contents()
    assert [entry.data for entry in queue.read()] == sent
    queue.append(b"room again" * 4)
    assert messages(files.killed()) == [*sent, b"room again" * 4]


def test_a_page_that_cannot_be_made_for_another_reason_is_not_said_to_have_no_room():
    files = RecordingFiles()
    queue = open_in(files)
    queue.append(bytes(200))
    files.fail("create", "q-2.page", errno.EMFILE)
    with pytest.raises(StorageFailed, match=r"^/d/q-2\.page cannot be made: .*put that right and append again"):
        queue.append(bytes(200))
    queue.append(bytes(200))
    assert messages(files.killed()) == [bytes(200)] * 2


FAILED_WRITES = [
    *product((".page", ".idx", "writeMeta"), (errno.EIO,)),
    *product((".page", "writeMeta"), (errno.ENOSPC,)),
]
"""An index for which there is no room is another thing: see below."""


@pytest.mark.matrix
@pytest.mark.parametrize(("part", "code"), FAILED_WRITES)
@pytest.mark.parametrize("after", range(8))
def test_a_failed_write_poisons_until_the_queue_is_opened_again(part, code, after):
    files = RecordingFiles()
    queue = open_in(files, force_every=1)
    files.fail("write", part, code, after=after)
    acknowledged = append_until_refused(queue, 20)
    assert len(acknowledged) < 20
    for use in (lambda: queue.append(b"more"), lambda: queue.append_many([b"more"])):
        with pytest.raises(StorageFailed, match="open the queue again"):
            use()
    queue.close()
    queue = open_in(files, force_every=1)
    found = [entry.data for entry in queue.read()]
    assert found[: len(acknowledged)] == acknowledged
    assert len(found) <= len(acknowledged) + 1
    queue.append(b"more")
    assert messages(files.killed()) == [*found, b"more"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize(
    "put", [PagedQueue.append, lambda queue, data: queue.append_many([data] * 2)], ids=["one", "two"]
)
@pytest.mark.parametrize("size", [30, 300])
def test_a_full_disk_that_shows_in_the_index_refuses_the_append_and_goes_on_when_there_is_room(code, put, size):
    """A page is reserved when it is begun, an index grows with its messages."""
    files = RecordingFiles()
    queue = open_in(files, force_every=1)
    queue.append(b"before")
    for _ in range(3):
        files.fail("write", ".idx", code)
        with pytest.raises(StorageFailed, match=r"no room for .*idx.*free some and append again"):
            put(queue, b"n" * size)
        assert [entry.data for entry in queue.read()] == [b"before"]
    assert messages(files.killed()) == [b"before"], "what was undone is no message of the next process"
    queue.append(b"after")
    queue.append(b"and more" * 3)
    expected = [b"before", b"after", b"and more" * 3]
    assert [entry.data for entry in queue.read()] == expected
    assert [entry.data for entry in queue.read(since=0)] == expected
    for crash in range(20):
        assert messages(RecordingFiles.holding(files.crashed(Random(crash), 0.5))) == expected
    queue.close()
    assert messages(files) == expected


@pytest.mark.parametrize("kind", ["sync", "write", "create", "allocate", "rename", "truncate"])
def test_a_disk_that_fails_while_opening_is_reported_and_harms_nothing(kind):
    files = RecordingFiles()
    queue = open_in(files)
    sent = [b"%02d" % number + bytes(50) for number in range(9)]
    for message in sent:
        queue.append(message)
    queue.cursor("c").read(3)
    for after in range(4):
        again = files.killed()
        again.names_live["q-2.idx"].live.clear()
        again.names_live["q-3.page"].live.extend(b"garbage")
        again.fail(kind, "", errno.EIO, after=after)
        try:
            open_in(again)
        except StorageFailed:
            assert again.done["failed " + kind]
        assert messages(again.killed()) == sent


def test_a_read_that_the_disk_refuses_is_reported_with_a_remedy():
    files = RecordingFiles()
    queue = open_in(files)
    queue.append(b"x")

    def refuse(path, *, create=False):
        raise OSError(errno.EIO, "bad sector", path)

    files.open = refuse
    with pytest.raises(StorageFailed, match=r"bad sector.*try again"):
        list(queue.read())
    with pytest.raises(StorageFailed, match=r"bad sector.*try again"):
        queue.cursor("c").read(1)


@pytest.mark.parametrize("page", [1, 4])
def test_a_full_page_that_cannot_be_read_keeps_no_queue_closed_and_none_from_reclaiming(page):
    """Its index says how old it is."""
    files, clock = RecordingFiles(), ManualClock()
    queue = open_in(files, seams=clock)
    queue.append_many([b"m%02d" % number + bytes(40) for number in range(20)])
    queue.close()
    opened = files.open

    def refuse(path, **how):
        if str(path).endswith(f"q-{page}.page"):
            raise OSError(errno.EIO, "bad sector", path)
        return opened(path, **how)

    files.open = refuse
    again = open_in(files, seams=clock, lifetime=5.0)
    assert again.reclaim() == 0
    clock.advance(10)
    assert again.reclaim() == 4


def test_a_write_meta_with_a_flipped_sign_keeps_no_queue_closed():
    files = RecordingFiles()
    queue = open_in(files)
    queue.append_many([b"1", b"2"])
    queue.close()
    contents = files.contents()
    meta = bytearray(contents["q-writeMeta"])
    meta[0] ^= 0x80
    assert messages(RecordingFiles.holding({**contents, "q-writeMeta": bytes(meta)})) == [b"1", b"2"]


def test_closing_says_when_the_last_sync_fails_and_lets_go_all_the_same():
    files = RecordingFiles()
    queue = open_in(files)
    queue.append(b"x")
    files.fail("sync", ".page", errno.EIO)
    with pytest.raises(StorageFailed):
        queue.close()
    assert messages(files) == [b"x"]


def test_room_that_cannot_be_reclaimed_does_not_refuse_an_append():
    files = RecordingFiles()
    queue = open_in(files, lifetime=0.5)
    files.fail("rename", "readMeta", errno.EIO)
    for number in range(40):
        queue.append(b"%02d" % number + bytes(50))
    assert files.done["failed rename"] == 1
    assert len(list(queue.read())) > 0


def test_a_cursor_is_committed_and_pages_are_reclaimed_though_the_queue_has_filled_the_disk(tmp_path):
    clock, disk = ManualClock(), SmallDisk(tmp_path)
    queue = PagedQueue.open(tmp_path, "q", page_size=8192, lifetime=60, seams=clock, files=disk)
    cursor = queue.cursor("reader")
    queue.append_many([bytes(1000)] * 40)
    disk.most = disk.used()
    clock.advance(61)
    for _ in range(8):
        assert len(cursor.read(5)) == 5
        cursor.commit()
    assert queue.reclaim() == 4
    queue.append_many([bytes(1000)] * 20)
    queue.close()
    queue = PagedQueue.open(tmp_path, "q", files=disk, seams=clock, page_size=8192)
    assert queue.cursor("reader").lag() == 20


def test_force_makes_everything_appended_so_far_durable():
    files = RecordingFiles()
    queue = open_in(files)
    queue.append_many([b"one", b"two"])
    queue.force()
    queue.append(b"three")
    assert messages(RecordingFiles.holding(files.crashed(Random(1), 0.0))) == [b"one", b"two"]


def test_appending_nothing_touches_no_file_not_even_one_that_fails():
    files = RecordingFiles()
    queue = open_in(files, force_every=1)
    files.fail("sync", ".page", errno.EIO)
    before = files.contents()
    queue.append_many([])
    assert files.contents() == before
    with pytest.raises(StorageFailed):
        queue.append(b"something")
    queue.append_many(iter([]))


@pytest.mark.parametrize("name", ["q-2.page", "q-2.idx", "/", "q-writeMeta"])
def test_a_change_to_a_new_page_that_is_interrupted_loses_nothing_acknowledged(name):
    files = RecordingFiles()
    queue = open_in(files, force_every=1)
    sent = [b"m%02d" % number + bytes(40) for number in range(4)]  # four of them fill a page
    queue.append_many(sent)

    def interrupt(kind, step):
        if "q-2.page" in files.contents() and step == name:
            files.before_step = lambda *_: None
            raise KeyboardInterrupt

    files.before_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        queue.append(bytes(60))
    with pytest.raises(StorageFailed, match="KeyboardInterrupt"):
        queue.append(b"x")
    assert [entry.data for entry in queue.read()] == sent
    queue.close()
    queue = open_in(files, force_every=1)
    queue.append(b"after")
    assert messages(files.killed()) == [*sent, b"after"]


def test_a_batch_that_is_interrupted_ends_the_appending():
    files = RecordingFiles()
    queue = open_in(files)
    queue.append(b"before")

    def interrupt(kind, name):
        if name == "q-1.idx":
            files.before_step = lambda *_: None
            raise KeyboardInterrupt

    files.before_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        queue.append_many([b"a", b"b"])
    with pytest.raises(StorageFailed, match="open the queue again"):
        queue.append(b"x")
    queue.close()
    assert messages(files)[0] == b"before"


def test_an_append_that_is_interrupted_at_any_line_is_in_the_index_if_it_is_in_the_queue():
    place, went_on = 0, True
    while went_on:
        place += 1
        clock = ManualClock()
        queue = open_in(RecordingFiles(), seams=clock, page_size=1024)
        cursor = queue.cursor("c")
        for data in (b"before", b"interrupted", b"after"):
            clock.advance(1)
            if data == b"interrupted":
                went_on = interrupted(place, (writer, page), partial(queue.append, b"interrupted"))
            else:
                queue.append(data)
        found = list(queue.read())
        assert [entry.data for entry in found if entry.data != b"interrupted"] == [b"before", b"after"], place
        for number, entry in enumerate(found):
            assert list(queue.read(since=entry.timestamp)) == found[number:], (place, entry.data)
        assert cursor.lag() == len(found), place
    assert place > 10
