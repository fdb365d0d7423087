"""The files are those of the documented layout, private, and nobody else's are touched."""

import math
import os
import signal
import struct
import subprocess
import sys
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import google_crc32c
import pytest

from latchwork.errors import AlreadyOpen, Corrupt, InvalidRequest, LatchworkError, Misconfigured, Unreadable
from latchwork.queue.paged import queue as paged
from latchwork.queue.paged.files import Files
from latchwork.queue.paged.layout import Layout
from latchwork.queue.paged.queue import PagedQueue
from latchwork.testing.clock import ManualClock
from tests.support.forking import held_by_another_thread

from .crashes import Ticking
from .promises import length_comes_last, messages, open_in
from .recording import RecordingFiles


def lengths(page):
    position = 0
    while position + 4 <= len(page) and (length := struct.unpack_from(">i", page, position)[0]) > 0:
        yield position, page[position + 4 : position + 4 + length]
        position += 4 + length


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_pages_indexes_and_meta_files_are_as_documented(tmp_path):
    sent = [b"message %04d" % number for number in range(40)]
    with PagedQueue.open(tmp_path, "q", page_size=512, seams=Ticking()) as queue:
        queue.append_many(sent)
        entries = list(queue.read())
    files = contents(tmp_path)
    pages = sorted(int(name[2:-5]) for name in files if name.endswith(".page"))
    assert pages == list(range(1, pages[-1] + 1))
    found = []
    for number in pages:
        page, index = files[f"q-{number}.page"], files[f"q-{number}.idx"]
        assert len(page) == 512
        records = list(lengths(page))
        assert [position for _, position in struct.iter_unpack(">qi", index)] == [place for place, _ in records]
        assert records[0][0] == 0
        found += [content for _, content in records]
    assert [content.endswith(message) for content, message in zip(found, sent, strict=True)] == [True] * 40
    times = [time / 1000 for n in pages for time, _ in struct.iter_unpack(">qi", files[f"q-{n}.idx"])]
    assert times == [entry.timestamp for entry in entries]
    for name, content in (("q-allMeta", struct.pack(">ii", 512, 1)), ("q-readMeta", struct.pack(">i", 1))):
        assert files[name] == content + struct.pack(">I", google_crc32c.value(content))
    last = entries[-1]
    assert struct.unpack(">ii", files["q-writeMeta"]) == (last.position + 17 + len(last.data), last.page)


def test_the_length_is_written_last_between_zero_lengths():
    length_comes_last()


def test_files_and_directories_are_private(tmp_path):
    old = os.umask(0)
    try:
        with PagedQueue.open(tmp_path / "new" / "deeper", "q") as queue:
            queue.append(b"secret")
            queue.cursor("c")
    finally:
        os.umask(old)
    assert (tmp_path / "new" / "deeper").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new" / "deeper").iterdir()} == {0o600}


@pytest.mark.parametrize(
    "present",
    [
        {"q-allMeta": struct.pack(">ii", 512, 2)},
        {"q-allMeta": struct.pack(">i", 512)},
        {"q-allMeta": b"something else altogether"},
        {"q-1.page": b"pages of another program", "q-1.idx": b""},
        {"q-writeMeta": b"12345678"},
    ],
    ids=["newer version", "without a version", "foreign", "pages alone", "meta alone"],
)
def test_what_is_not_ours_is_refused_and_left_untouched(tmp_path, present):
    for name, data in present.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(Unreadable):
        PagedQueue.open(tmp_path, "q")
    assert contents(tmp_path) == present


def test_a_file_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "d").write_bytes(b"mine")
    with pytest.raises(Misconfigured):
        PagedQueue.open(tmp_path / "d", "q")
    assert (tmp_path / "d").read_bytes() == b"mine"


def test_without_permission_nothing_is_touched():
    class Forbidden(RecordingFiles):
        def lock(self, path):
            raise PermissionError(13, "Permission denied", path)

    files = Forbidden()
    with pytest.raises(Misconfigured, match="Permission denied"):
        PagedQueue.open("/d", "q", files=files)
    assert files.contents() == {}


def test_queues_whose_prefixes_contain_one_another_do_not_meet(tmp_path):
    queues = [PagedQueue.open(tmp_path, prefix, page_size=64) for prefix in ("a", "a-1", "a-b", "a-1-b.cursor")]
    for queue in queues:
        for message in (b"x", b"y" * 40, b"z" * 40):
            queue.append(queue._layout.prefix.encode() + message)
        queue.cursor("1-b").read(1)
        queue.cursor("b").commit()
        queue.close()
    for prefix in ("a", "a-1", "a-b", "a-1-b.cursor"):
        with PagedQueue.open(tmp_path, prefix, page_size=64) as queue:
            assert [entry.data[: len(prefix)] for entry in queue.read()] == [prefix.encode()] * 3


def bit_flipped(data, byte, bits):
    return data[:byte] + bytes([data[byte] ^ bits]) + data[byte + 1 :]


@pytest.mark.parametrize("count", [50, 55], ids=["last page filled", "last page nearly empty"])
@pytest.mark.filterwarnings("ignore:.*is ignored")
def test_a_flipped_bit_in_the_stored_page_size_destroys_nothing(count):
    files, clock = RecordingFiles(), ManualClock()
    queue = open_in(files, page_size=896, force_every=1, seams=clock)
    sent = [b"%02d" % number + bytes(30) for number in range(count)]
    for message in sent:
        queue.append(message)
        clock.advance(20)
    queue.close()
    lifetime = 20 * count + 1  # all are younger
    before, reported = files.contents(), 0
    for bit in range(32):
        unchecked = before["q-allMeta"][:8]  # as an earlier version wrote it
        flipped = {**before, "q-allMeta": bit_flipped(unchecked, bit // 8, 1 << bit % 8)}
        (size,) = struct.unpack_from(">i", flipped["q-allMeta"])
        if size > 2**16:
            continue  # reserves so much in memory
        damaged = RecordingFiles.holding(flipped)
        try:
            with open_in(damaged, page_size=896, lifetime=lifetime, seams=clock) as queue:
                queue.reclaim()
        except Unreadable:
            reported += 1
            assert damaged.contents() == flipped
        repaired = RecordingFiles.holding({**damaged.contents(), "q-allMeta": before["q-allMeta"]})
        assert messages(repaired, page_size=896) == sent
    assert reported
    with pytest.raises(Unreadable, match=r"pages of 256 bytes.*the pages' size, 896"):
        open_in(RecordingFiles.holding({**before, "q-allMeta": struct.pack(">ii", 256, 1)}))


def test_every_flipped_bit_in_a_checked_page_size_is_corrupt_and_changes_nothing():
    files = RecordingFiles()
    queue = open_in(files, page_size=896)
    queue.append(b"x")
    queue.close()
    before = files.contents()
    for bit in range(8 * len(before["q-allMeta"])):
        flipped = {**before, "q-allMeta": bit_flipped(before["q-allMeta"], bit // 8, 1 << bit % 8)}
        damaged = RecordingFiles.holding(flipped)
        with pytest.raises(Corrupt, match="the pages' size, 896, and 1") as refusal:
            open_in(damaged)
        assert (refusal.value.details["file"], refusal.value.details["position"]) == ("/d/q-allMeta", 0)
        assert damaged.contents() == flipped
    mended = RecordingFiles.holding({**flipped, "q-allMeta": struct.pack(">ii", 896, 1)})
    assert messages(mended, page_size=896) == [b"x"]


def test_a_damaged_page_size_of_a_queue_without_pages_says_what_it_should_hold():
    files = RecordingFiles()
    layout = Layout(files, Path("/d"), "q")
    layout.store_page_size(896)
    damaged = RecordingFiles.holding({"q-allMeta": bit_flipped(files.contents()["q-allMeta"], 3, 1)})
    with pytest.raises(Corrupt, match="write the page size and 1 there"):
        open_in(damaged)


def test_queues_of_earlier_versions_whose_small_files_have_no_checksum_are_read_and_go_on():
    files = RecordingFiles()
    queue = open_in(files)
    queue.append(b"x" * 200)
    queue.append(b"y" * 200)
    queue.close()
    old = {name: data[: {"q-allMeta": 8, "q-readMeta": 4}.get(name)] for name, data in files.contents().items()}
    again = RecordingFiles.holding(old)
    queue = open_in(again)
    queue.append(b"z")
    assert [entry.data[:1] for entry in queue.read()] == [b"x", b"y", b"z"]
    assert again.contents()["q-allMeta"] == old["q-allMeta"], "an earlier version goes on with it"


def test_the_stored_page_size_wins_with_a_warning(tmp_path):
    PagedQueue.open(tmp_path, "q", page_size=4096).close()
    with pytest.warns(UserWarning, match="4096") as told:
        PagedQueue.open(tmp_path, "q", page_size=512).close()
    assert told[0].filename == __file__, "it names the line that opens the queue"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PagedQueue.open(tmp_path, "q", page_size=4096).close()
    assert (tmp_path / "q-1.page").stat().st_size == 4096


def test_a_second_owner_is_refused_in_this_process_and_in_another(tmp_path):
    opening = f"from latchwork.queue.paged.queue import PagedQueue; PagedQueue.open({str(tmp_path)!r}, 'q')"
    with PagedQueue.open(tmp_path, "q"):
        with pytest.raises(AlreadyOpen):
            PagedQueue.open(tmp_path, "q")
        other = subprocess.run([sys.executable, "-c", opening], capture_output=True, text=True, timeout=60, check=False)
        assert "AlreadyOpen" in other.stderr
        with PagedQueue.open(tmp_path, "other"):
            pass
    PagedQueue.open(tmp_path, "q").close()


def test_a_forked_child_cannot_write_and_does_not_keep_the_lock(tmp_path):
    queue = PagedQueue.open(tmp_path, "q")
    queue.append(b"parent's")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            queue.append(b"child's")
        except AlreadyOpen:
            os.write(writer, b"refused")
        os.read(reader, 0)
        os._exit(0)
    assert os.read(reader, 10) == b"refused"
    with pytest.raises(AlreadyOpen):
        PagedQueue.open(tmp_path, "q")  # the lock is still the parent's
    queue.append(b"parent's again")
    queue.close()
    with PagedQueue.open(tmp_path, "q") as queue:
        assert [entry.data for entry in queue.read()] == [b"parent's", b"parent's again"]
    os.waitpid(child, 0)


@pytest.mark.parametrize("verb", ["force", "read", "commit", "rewind"])
def test_a_child_forked_while_another_thread_syncs_or_reads_does_not_wait_for_it(tmp_path, verb):
    queue = PagedQueue.open(tmp_path, "q", page_size=4096)
    cursor = queue.cursor("billing")
    queue.append_many([b"one", b"two"])
    cursor.read(1)
    verbs = {"force": queue.force, "read": partial(cursor.read, 1), "commit": cursor.commit, "rewind": cursor.rewind}
    with held_by_another_thread(queue._writer._sync_lock, cursor._lock):
        child = os.fork()
        if child == 0:
            signal.alarm(10)  # ends a child that waits without end
            with suppress(AlreadyOpen, InvalidRequest):
                verbs[verb]()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    cursor.commit()
    assert (cursor.lag(), [entry.data for entry in cursor.read(9)]) == (1, [b"two"]), "the parent's goes on"
    queue.close()


def test_an_opening_at_the_moment_of_another_ones_creation_finds_it_open_and_not_damaged(tmp_path):
    made = []

    class Meanwhile(Files):
        def names(self, directory):
            if not made:
                made.append(PagedQueue.open(tmp_path, "q", page_size=4096))
            return super().names(directory)

    with pytest.raises(AlreadyOpen):
        PagedQueue.open(tmp_path, "q", page_size=4096, files=Meanwhile())
    made[0].close()


@pytest.mark.parametrize(
    ("place", "function", "file"), [(paged, "recover", ""), (os, "open", "q-lock")], ids=["recovery", "lock's file"]
)
def test_a_child_forked_while_the_queue_is_opened_does_not_keep_the_lock(tmp_path, monkeypatch, place, function, file):
    original, children = getattr(place, function), []
    reader, writer = os.pipe()

    def forking(first, *arguments):
        result = original(first, *arguments)
        if str(first).endswith(file) and not children:
            child = os.fork()
            if child == 0:
                os.write(writer, b"forked")
                signal.pause()
            children.append(child)
            assert os.read(reader, 10) == b"forked"
        return result

    monkeypatch.setattr(place, function, forking)
    try:
        PagedQueue.open(tmp_path, "q", page_size=4096).close()
        monkeypatch.undo()
        PagedQueue.open(tmp_path, "q", page_size=4096).close()
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    "arguments",
    [
        {"prefix": ""}, {"prefix": "a/b"}, {"prefix": "a\0"}, {"page_size": 63}, {"page_size": 2**31},
        {"force_every": -1}, {"lifetime": 0}, {"codec": 7}, {"prefix": 5}, {"page_size": "1"}, {"force_every": "1"},
        {"lifetime": "1"}, {"lifetime": math.inf}, {"lifetime": math.nan}, {"lifetime": 10**400}, {"lifetime": 1e308},
        {"codec": Annotated[int, "pages"]}, {"codec": int | str},
        {"prefix": "\ud800"}, {"lifetime": True}, {"force_every": True}, {"page_size": True},
    ],
    ids=str,
)  # fmt: skip
def test_bad_arguments_are_refused_before_any_file_is_made(tmp_path, arguments):
    arguments = {"prefix": "q", **arguments}
    with pytest.raises(InvalidRequest):
        PagedQueue.open(tmp_path / "new", arguments.pop("prefix"), **arguments)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["nul\0", "surrogate\ud900"])
def test_a_directory_that_cannot_be_named_is_refused(tmp_path, name):
    with pytest.raises(InvalidRequest, match="directory"):
        PagedQueue.open(f"{tmp_path}/{name}", "q")
    assert not list(tmp_path.iterdir())


def test_a_directory_stays_the_same_when_the_process_changes_its_own(tmp_path, monkeypatch):
    for name in ("here", "there/spool"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    sent = [b"%03d" % number + bytes(50) for number in range(10)]
    with PagedQueue.open("spool", "q", page_size=256) as queue:
        monkeypatch.chdir(tmp_path / "there")
        queue.append_many(sent)
        assert [entry.data for entry in queue.read()] == sent
    assert not list((tmp_path / "there" / "spool").iterdir())
    with PagedQueue.open(tmp_path / "here" / "spool", "q", page_size=256) as queue:
        assert [entry.data for entry in queue.read()] == sent


def test_a_tilde_is_the_users_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    PagedQueue.open("~/spool", "q", page_size=256).close()
    assert (tmp_path / "spool" / "q-1.page").exists()
    with pytest.raises(InvalidRequest, match="directory"):
        PagedQueue.open("~nobody knows/spool", "q")


def test_what_is_no_moment_no_length_of_time_and_no_number_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="directory"):
        PagedQueue.open(5, "q")
    with PagedQueue.open(tmp_path, "q") as queue:
        for asked, named in (({"since": "x"}, "moment"), ({"timeout": -1}, "timeout"), ({"timeout": "1"}, "timeout")):
            with pytest.raises(InvalidRequest, match=named):
                queue.read(**asked)
        for ask in (lambda: queue.cursor(5), lambda: queue.cursor("c").read("1"), lambda: queue.append_many(5)):
            with pytest.raises(InvalidRequest):
                ask()


def test_a_closed_queue_says_so(tmp_path):
    queue = PagedQueue.open(tmp_path, "q")
    queue.close()
    queue.close()
    for use in (lambda: queue.append(b"x"), lambda: queue.append_many([b"x"]), queue.read, lambda: queue.cursor("c")):
        with pytest.raises(LatchworkError, match="closed"):
            use()
