"""Real files that give and take only a part at a time, and messages of every kind of bytes."""

from __future__ import annotations

import fcntl
import gc
import os
import sys

import pytest

from latchwork.errors import Corrupt, InvalidRequest
from latchwork.queue.paged.files import SYSTEM_FILES, File, FileLock
from latchwork.queue.paged.queue import PagedQueue

MESSAGES = [bytes([number]) * 50 for number in range(20)]


def sent(directory):
    with PagedQueue.open(directory, "q", page_size=512) as queue:
        queue.append_many(MESSAGES)
    return directory


def found(directory):
    with PagedQueue.open(directory, "q", page_size=512) as queue:
        return [entry.data for entry in queue.read()]


def test_what_is_written_in_parts_is_written_whole(tmp_path, monkeypatch):
    pwrite, parts = os.pwrite, []

    def some(fd, data, position):
        parts.append(len(data))
        return pwrite(fd, data[: max(1, len(data) // 2)], position)

    monkeypatch.setattr(os, "pwrite", some)
    sent(tmp_path)
    monkeypatch.undo()
    assert 1 in parts, "down to the last byte"
    assert found(tmp_path) == MESSAGES


def test_what_is_read_in_parts_is_read_whole(tmp_path, monkeypatch):
    pread = os.pread
    sent(tmp_path)
    monkeypatch.setattr(os, "pread", lambda fd, size, position: pread(fd, max(1, size // 2), position))
    assert found(tmp_path) == MESSAGES


def test_what_is_read_beyond_the_end_ends_there(tmp_path, monkeypatch):
    pread, asked = os.pread, []

    def counted(fd, size, position):
        asked.append(size)
        assert len(asked) < 9, "it asks for ever"
        return pread(fd, size, position)

    file = SYSTEM_FILES.open(str(tmp_path / "file"), create=True)
    file.write(b"12345", 0)
    monkeypatch.setattr(os, "pread", counted)
    assert [file.read(9, position) for position in (0, 3, 5, 7)] == [b"12345", b"45", b"", b""]


def test_the_space_of_each_page_is_reserved_where_the_system_can_do_that(tmp_path, monkeypatch):
    reserved = []
    monkeypatch.setattr(os, "posix_fallocate", lambda fd, *span: reserved.append(span), raising=False)
    sent(tmp_path / "reserved")
    assert reserved.count((0, 512)) == len(list((tmp_path / "reserved").glob("q-*.page"))) > 1
    monkeypatch.delattr(os, "posix_fallocate")
    assert found(sent(tmp_path / "elsewhere")) == MESSAGES


def test_any_kind_of_bytes_is_taken_as_it_is_at_that_moment(tmp_path):
    mine = bytearray(b"mine")
    with PagedQueue.open(tmp_path, "q", page_size=512) as queue:
        queue.append(mine)
        mine[:] = b"ours"
        queue.append_many([memoryview(mine)[1:], b"bytes"])
        first, *others = queue.read()
        assert [entry.data for entry in (first, *others)] == [b"mine", b"urs", b"bytes"]
        assert "mine" not in repr(first), "a message may be long, or secret"
        with pytest.raises(InvalidRequest, match="not str; open the queue with a codec"):
            queue.append("text")


def test_a_cursor_knows_how_far_it_is_behind_and_goes_back_to_its_commit(tmp_path):
    sent(tmp_path)
    with PagedQueue.open(tmp_path, "q", page_size=512) as queue:
        cursor = queue.cursor("c")
        behind = cursor.bytes_behind()
        cursor.read(5)
        cursor.commit()
        assert 0 < cursor.bytes_behind() < behind
        assert [entry.data for entry in cursor.read(3)] == MESSAGES[5:8]
        cursor.rewind()
        assert [entry.data for entry in cursor.read(100)] == MESSAGES[5:]
        cursor.commit()
        assert (cursor.bytes_behind(), cursor.committed) == (0, cursor.tail)


def closed_by_others(made):
    os.close(made._fd)
    return made


@pytest.mark.parametrize(
    "make",
    [
        lambda path: File.__new__(File),
        lambda path: FileLock.__new__(FileLock),
        lambda path: closed_by_others(SYSTEM_FILES.open(path, create=True)),
        lambda path: closed_by_others(SYSTEM_FILES.lock(path)),
    ],
    ids=["half a file", "half a lock", "a closed file", "a closed lock"],
)
def test_a_file_that_is_let_go_of_says_nothing(make, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    make(str(tmp_path / "file"))
    gc.collect()
    assert said == []


@pytest.mark.parametrize("gone", ["the last page", "all pages"])
def test_a_last_page_that_is_gone_with_messages_that_were_synced_is_an_error_and_not_an_end(tmp_path, gone):
    pages = sorted(sent(tmp_path).glob("q-*.page"), key=lambda path: int(path.stem[2:]))
    for page in pages[-1:] if gone == "the last page" else pages:
        page.rename(tmp_path / f"away-{page.name}")
    with pytest.raises(Corrupt, match=f"q-{len(pages)}.page is missing.*delete .*q-writeMeta"):
        found(tmp_path)
    (tmp_path / "q-writeMeta").rename(tmp_path / "away")  # the named remedy: go on without them
    assert found(tmp_path) == (MESSAGES[: len(found(tmp_path))])
    for page in pages:
        away = tmp_path / f"away-{page.name}"
        if away.exists():
            away.replace(page)
    (tmp_path / "away").replace(tmp_path / "q-writeMeta")
    assert found(tmp_path) == MESSAGES, "the other one: bring the file back"


@pytest.mark.parametrize("name", ["q-2147483648.page", "q-9999999999.page", "q-\u0663.page", "q-03.page", "q-0.page"])
def test_a_file_whose_name_no_page_has_is_left_alone(tmp_path, name):
    sent(tmp_path)
    (tmp_path / name).write_bytes(b"another program's")
    assert found(tmp_path) == MESSAGES
    assert (tmp_path / name).read_bytes() == b"another program's"


def test_a_lock_whose_file_has_the_number_of_a_closed_stdin_is_released_as_any_other(tmp_path, monkeypatch):
    done = []
    lock = SYSTEM_FILES.lock(str(tmp_path / "lock"))
    lock.close()
    monkeypatch.setattr(os, "close", lambda fd: done.append(("closed", fd)))
    monkeypatch.setattr(fcntl, "flock", lambda fd, how: done.append((how, fd)))
    lock._fd = 0
    lock.close()
    lock.close()
    assert done == [(fcntl.LOCK_UN, 0), ("closed", 0)]
