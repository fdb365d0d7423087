"""Durable positions of consumers, and the room that is given back."""

import errno
import threading
from datetime import timedelta
from random import Random

import pytest

from latchwork.errors import Corrupt, InvalidRequest, NotFound, StorageFailed
from latchwork.testing.clock import ManualClock

from .failing import HOW, FailingFiles
from .promises import open_in
from .recording import RecordingFiles


@pytest.fixture
def files():
    return RecordingFiles()


def filled(files, count=40, **settings):
    queue = open_in(files, **settings)
    queue.append_many([b"%04d" % number for number in range(count)])
    return queue


def numbers(entries):
    return [int(entry.data) for entry in entries]


def test_a_cursor_goes_on_from_its_last_commit_after_a_restart(files):
    queue = filled(files)
    cursor = queue.cursor("c")
    assert numbers(cursor.read(15)) == list(range(15))
    cursor.commit()
    assert numbers(cursor.read(5)) == list(range(15, 20))
    assert queue.cursor("c") is cursor
    queue.close()
    cursor = open_in(files).cursor("c")
    assert numbers(cursor.read(100)) == list(range(15, 40))
    assert cursor.read(1) == []


def test_names_are_kept_apart_and_checked(files):
    queue = filled(files)
    for count, name in enumerate(("a", "a-b", "a.b", "a_b"), 1):
        cursor = queue.cursor(name)
        cursor.read(count)
        cursor.commit()
    queue.close()
    queue = open_in(files)
    assert [numbers(queue.cursor(name).read(1)) for name in ("a", "a-b", "a.b", "a_b")] == [[1], [2], [3], [4]]
    for name in ("", "a/b", "a~b", "x" * 101, "a b"):
        with pytest.raises(InvalidRequest):
            queue.cursor(name)
    with pytest.raises(InvalidRequest):
        queue.cursor("a").read(0)


def test_a_commit_is_durable_together_with_what_it_passed(files):
    queue = filled(files, 10)
    cursor = queue.cursor("c")
    cursor.read(7)
    cursor.commit()
    for keep in (0.0, 0.5):
        after = open_in(RecordingFiles.holding(files.crashed(Random(1), keep)))
        assert numbers(after.read())[:7] == list(range(7))
        assert after.cursor("c").committed == cursor.committed


def test_a_commit_of_nothing_new_does_not_go_to_the_disk(files):
    cursor = filled(files).cursor("c")
    cursor.read(5)
    cursor.commit()
    before = files.done.copy()
    cursor.commit()
    assert files.done == before


def test_a_commit_that_the_disk_refuses_is_not_acknowledged_and_can_be_tried_again(files):
    queue = filled(files, 10)
    cursor = queue.cursor("c")
    before = cursor.committed
    cursor.read(5)
    files.fail("rename", "cursor", 28)
    with pytest.raises(StorageFailed):
        cursor.commit()
    assert cursor.committed == before
    cursor.commit()
    assert cursor.committed > before


def unsure(files, verb, how):
    """Cursors that are at 5, read to 9, and ran into a failure: at the first call of the file layer, the second, ..."""
    for at in range(1, 20):
        disk = FailingFiles(files.killed())
        cursor = filled(disk, 20).cursor("c")
        cursor.read(5)
        cursor.commit()
        cursor.read(4)
        disk.arm(at, how)
        try:
            getattr(cursor, verb)()
        except (StorageFailed, KeyboardInterrupt):
            yield cursor, disk.inner
        if disk.failed is None:
            return


def after_a_crash(files):
    return numbers(open_in(RecordingFiles.holding(files.crashed(Random(0), 0.0))).cursor("c").read(1))


@pytest.mark.parametrize("how", HOW, ids=lambda how: how.__name__)
def test_a_commit_that_failed_anywhere_can_be_taken_back_for_good(files, how):
    found = list(unsure(files, "commit", how))
    assert len(found) >= 6
    for cursor, disk in found:
        cursor.rewind()
        assert numbers(cursor.read(1)) == [5]
        assert (after_a_crash(disk), numbers(open_in(disk.killed()).cursor("c").read(1))) == ([5], [5])


@pytest.mark.parametrize("how", HOW, ids=lambda how: how.__name__)
@pytest.mark.parametrize("again", ["commit", "finish"])
def test_a_commit_that_failed_anywhere_can_be_brought_to_its_end(files, how, again):
    found = list(unsure(files, "commit", how))
    assert len(found) >= 6
    for cursor, disk in found:
        getattr(cursor, again)()
        assert numbers(cursor.read(1)) == [9]
        cursor.rewind()
        assert (after_a_crash(disk), numbers(cursor.read(1))) == ([9], [9])


def test_a_commit_is_neither_ended_nor_taken_back_while_the_disk_fails(files):
    disk = FailingFiles(files)
    cursor = filled(disk, 20).cursor("c")
    cursor.read(5)
    disk.inner.fail("sync", "/", errno.EIO)
    with pytest.raises(StorageFailed):
        cursor.commit()
    for verb in ("rewind", "finish", "rewind"):
        disk.inner.fail("sync", "/", errno.EIO)
        with pytest.raises(StorageFailed):
            getattr(cursor, verb)()
        assert numbers(cursor.read(1)) != [0]
    cursor.rewind()
    assert numbers(cursor.read(1)) == [0]
    cursor.finish()
    cursor.rewind()
    assert numbers(cursor.read(1)) == [0]


@pytest.mark.parametrize("how", HOW, ids=lambda how: how.__name__)
def test_a_drop_that_failed_anywhere_can_be_taken_back(files, how):
    found = list(unsure(files, "drop", how))
    assert len(found) >= 2
    for cursor, disk in found:
        cursor.finish()
        cursor.rewind()
        assert (after_a_crash(disk), numbers(cursor.read(1))) == ([5], [5])


def test_a_damaged_cursor_is_reported_not_rewound_and_keeps_nobody_else_from_the_queue(files, caplog):
    clock = ManualClock()
    queue = aged(files, clock)
    for name in ("c-1", "other"):
        queue.cursor(name).read(50)
        queue.cursor(name).commit()
    queue.close()
    clock.advance(1000)
    contents = files.contents()
    data = contents["q-c~1.cursor"]
    for torn in (*(data[:at] for at in range(12)), *(data[:at] + b"\x7f" + data[at + 1 :] for at in range(12))):
        damaged = RecordingFiles.holding({**contents, "q-c~1.cursor": torn})
        queue = open_in(damaged, seams=clock, lifetime=100.0)
        for _ in range(2):
            with pytest.raises(Corrupt, match=r"c~1\.cursor fails its check; delete it") as refusal:
                queue.cursor("c-1")
        assert refusal.value.details["file"] == "/d/q-c~1.cursor"
        assert numbers(queue.cursor("other").read(100)) == list(range(50, 60))
        queue.append(b"60")
        assert queue.reclaim() == 0, "nobody knows how far it has come"
        queue.close()
        assert len(caplog.messages) == 1
        caplog.clear()
    mended = RecordingFiles.holding({name: data for name, data in contents.items() if name != "q-c~1.cursor"})
    assert numbers(open_in(mended, seams=clock).cursor("c-1").read(100)) == list(range(60))


def test_lag_counts_what_is_not_committed(files):
    queue = filled(files, 40)
    cursor = queue.cursor("c")
    assert cursor.lag() == 40
    cursor.read(13)
    assert cursor.lag() == 40
    cursor.commit()
    assert cursor.lag() == 27
    cursor.read(100)
    cursor.commit()
    assert cursor.lag() == 0


def test_a_cursor_waits_for_a_message_at_most_so_long(files):
    clock = ManualClock()
    queue = open_in(files, seams=clock)
    cursor = queue.cursor("c")
    assert cursor.read(1, timeout=3) == []
    assert clock.monotonic() == 3
    clock.at(1.0, lambda: queue.append(b"7"))
    assert numbers(cursor.read(5, timeout=10)) == [7]


def test_after_close_or_drop_nothing_is_stored(files):
    queue = filled(files, 10)
    kept, dropped = queue.cursor("kept"), queue.cursor("dropped")
    for cursor in (kept, dropped):
        cursor.read(3)
    dropped.drop()
    with pytest.raises(NotFound):
        dropped.commit()
    assert "q-dropped.cursor" not in files.contents()
    queue.close()
    stored = files.contents()
    with pytest.raises(InvalidRequest):
        kept.commit()
    assert files.contents() == stored


def test_a_cursor_beyond_the_end_of_cut_files_goes_on_at_the_end(files):
    queue = filled(files, 10)
    queue.cursor("c").read(10)
    queue.cursor("c").commit()
    queue.close()
    contents = files.contents()
    queue = open_in(RecordingFiles.holding({**contents, "q-1.page": contents["q-1.page"][:100]}))
    queue.append(b"77")
    assert numbers(queue.cursor("c").read(10)) == [77]


def aged(files, clock, **settings):
    queue = open_in(files, seams=clock, lifetime=100.0, **settings)
    for number in range(60):
        queue.append(b"%04d" % number)
        clock.advance(1)
    return queue


def test_only_whole_pages_past_their_lifetime_are_reclaimed(files):
    clock = ManualClock()
    queue = aged(files, clock)
    assert queue.reclaim() == 0
    before = queue.disk_bytes()
    clock.advance(65)  # 25 messages are older than 100 seconds, 12 fit on a page
    assert queue.reclaim() == 2
    assert queue.disk_bytes() == before - 2 * 256
    assert numbers(queue.read()) == list(range(24, 60))
    assert numbers(queue.read(clock.wall() - 90))[0] == 35
    assert not {"q-1.page", "q-1.idx", "q-2.page", "q-2.idx"} & set(files.contents())
    assert queue.reclaim() == 0
    clock.advance(1000)
    queue.reclaim()
    assert numbers(queue.read()) == list(range(48, 60))  # the page being written stays
    queue.close()
    assert numbers(open_in(files).read()) == list(range(48, 60))


@pytest.mark.parametrize(("byte", "bits"), [(0, 0x80), (2, 0x01), (5, 0x01), (7, 0xFF), (8, 0x80), (11, 0x10)])
def test_what_an_index_says_of_the_age_of_a_page_counts_only_if_the_page_agrees(files, byte, bits):
    clock = ManualClock()
    aged(files, clock).close()
    contents = files.contents()
    index = bytearray(contents["q-1.idx"])
    index[byte - 12] ^= bits  # in the last of its entries
    queue = open_in(RecordingFiles.holding({**contents, "q-1.idx": bytes(index)}), seams=clock, lifetime=100.0)
    assert queue.reclaim() == 0
    assert numbers(queue.read()) == list(range(60))
    clock.advance(65)
    assert queue.reclaim() == 2


@pytest.mark.parametrize("page", [None, bytes(256)], ids=["missing", "nothing good"])
def test_a_page_without_a_good_message_is_as_old_as_its_index_says(files, page):
    clock = ManualClock()
    aged(files, clock).close()
    contents = {name: data for name, data in {**files.contents(), "q-1.page": page}.items() if data is not None}
    queue = open_in(RecordingFiles.holding(contents), seams=clock, lifetime=100.0)
    assert queue.reclaim() == 0
    with pytest.raises(Corrupt):
        list(queue.read())
    clock.advance(65)
    queue.reclaim()
    assert numbers(queue.read()) == list(range(24, 60))


def test_a_page_of_which_nothing_is_left_keeps_no_other_from_being_reclaimed(files):
    clock = ManualClock()
    aged(files, clock).close()
    contents = {name: data for name, data in files.contents().items() if name not in {"q-1.page", "q-1.idx"}}
    queue = open_in(RecordingFiles.holding(contents), seams=clock, lifetime=100.0)
    clock.advance(65)
    assert queue.reclaim() == 1
    assert numbers(queue.read()) == list(range(24, 60))


def test_a_cursor_holds_back_the_pages_that_it_has_not_passed(files):
    clock = ManualClock()
    queue = aged(files, clock)
    cursor = queue.cursor("slow")
    cursor.read(20)
    cursor.commit()
    queue.close()
    queue = open_in(files, seams=clock, lifetime=100.0)
    clock.advance(1000)
    assert queue.reclaim() == 1
    assert numbers(queue.cursor("slow").read(100)) == list(range(20, 60))
    queue.cursor("slow").drop()
    assert queue.reclaim() == 3


def test_room_is_reclaimed_whenever_a_page_is_full(files):
    clock = ManualClock()
    queue = open_in(files, seams=clock, lifetime=20.0)
    for number in range(500):
        queue.append(b"%04d" % number)
        clock.advance(1)
        assert queue.disk_bytes() <= 5 * 256
    assert numbers(queue.read())[-20:] == list(range(480, 500))


def test_pages_past_their_lifetime_make_room_on_a_disk_that_they_have_filled(files):
    def at_most_four_pages(kind, name):
        if kind == "allocate" and sum(one.endswith(".page") for one in files.names_live) > 4:
            raise OSError(errno.ENOSPC, "No space left on device")

    files.before_step, clock = at_most_four_pages, ManualClock()
    queue = open_in(files, seams=clock, lifetime=100.0)
    with pytest.raises(StorageFailed, match="no room"):
        queue.append_many([b"%04d" % number for number in range(100)])
    kept = numbers(queue.read())
    clock.advance(50)
    with pytest.raises(StorageFailed, match="no room"):
        queue.append(b"9998")
    assert numbers(queue.read()) == kept
    clock.advance(51)
    queue.append(b"9999")
    assert numbers(queue.read())[-1] == 9999
    assert numbers(open_in(files.killed(), seams=clock).read())[-1] == 9999


def test_without_a_lifetime_everything_is_kept(files):
    clock = ManualClock()
    queue = open_in(files, seams=clock)
    queue.append_many([b"x" * 100] * 10)
    clock.advance(10**9)
    assert queue.reclaim() == 0
    assert len(list(queue.read())) == 10


def test_pages_left_over_from_a_reclaim_that_was_cut_short_are_removed_by_the_next(files):
    clock = ManualClock()
    queue = aged(files, clock)
    clock.advance(65)

    def stop(kind, name):
        if kind == "unlink":
            raise KeyboardInterrupt

    files.before_step = stop
    with pytest.raises(KeyboardInterrupt):
        queue.reclaim()
    queue = open_in(files.killed(), seams=clock, lifetime=100.0)
    assert numbers(queue.read()) == list(range(24, 60))
    assert queue.reclaim() == 2


def test_without_a_readable_read_meta_the_queue_begins_at_its_first_page():
    files, clock = RecordingFiles(), ManualClock()
    queue = aged(files, clock)
    clock.advance(65)
    queue.reclaim()
    queue.close()
    for torn in (b"", b"\0\0", None):
        contents = {**files.contents(), "q-readMeta": torn}
        again = RecordingFiles.holding({name: data for name, data in contents.items() if data is not None})
        assert numbers(open_in(again).read()) == list(range(24, 60))


@pytest.mark.matrix
@pytest.mark.parametrize("bit", range(32))
@pytest.mark.parametrize("named", [True, False], ids=["a cursor", "no cursor"])
def test_a_flipped_bit_in_read_meta_reclaims_nothing_young_or_unread_and_ends(files, bit, named):
    clock = ManualClock()
    queue = aged(files, clock)
    if named:
        queue.cursor("slow")
    queue.close()
    contents = files.contents()
    flipped = int.from_bytes(contents["q-readMeta"][:4], "big") ^ 1 << bit  # as an earlier version wrote it
    damaged = RecordingFiles.holding({**contents, "q-readMeta": flipped.to_bytes(4, "big")})
    queue = open_in(damaged, seams=clock, lifetime=100.0)
    assert queue.reclaim() == 0
    assert {name for name in contents if name.endswith(".page")} <= set(damaged.contents())
    if named:
        assert numbers(queue.cursor("slow").read(100)) == list(range(60))
        clock.advance(1000)
        assert queue.reclaim() == 0


def test_a_flipped_bit_in_a_checked_read_meta_hides_no_message():
    files, clock = RecordingFiles(), ManualClock()
    aged(files, clock).close()
    contents = files.contents()
    for bit in range(64):
        flipped = int.from_bytes(contents["q-readMeta"], "big") ^ 1 << bit
        damaged = RecordingFiles.holding({**contents, "q-readMeta": flipped.to_bytes(8, "big")})
        assert numbers(open_in(damaged).read()) == list(range(60))


def test_a_cursor_that_was_dropped_says_nothing_about_a_new_one_of_its_name(files):
    queue = filled(files, 10)
    old = queue.cursor("c")
    old.read(10)
    old.drop()
    new = queue.cursor("c")
    for call in (old.commit, old.drop):
        with pytest.raises(NotFound):
            call()
    assert queue.cursor("c") is new
    queue.close()
    assert numbers(open_in(files).cursor("c").read(100)) == list(range(10))


def test_a_closed_queue_reclaims_nothing_of_its_next_owner(files):
    clock = ManualClock()
    old = aged(files, clock)
    old.close()
    cursor = open_in(files, seams=clock).cursor("slow")
    clock.advance(1000)
    with pytest.raises(InvalidRequest, match="closed"):
        old.reclaim()
    assert numbers(cursor.read(100)) == list(range(60))


def test_a_forked_child_reclaims_nothing(files):
    clock = ManualClock()
    queue = aged(files, clock)
    clock.advance(1000)
    queue.disown()  # as it is called in a child
    before = files.contents()
    with pytest.raises(InvalidRequest, match="closed"):
        queue.reclaim()
    assert files.contents() == before


def test_the_files_are_let_go_of_only_when_a_reclaim_under_way_has_ended(files):
    clock = ManualClock()
    queue = aged(files, clock)
    clock.advance(1000)
    closing = threading.Thread(target=queue.close)
    held = []

    def close_meanwhile(kind, name):
        if kind == "unlink":
            files.before_step = lambda *_: held.append("q-lock" in files.locked)
            closing.start()
            while not queue._closed:  # it comes to its end, but for the lock
                pass

    files.before_step = close_meanwhile
    assert queue.reclaim() == 4
    closing.join(30)
    assert all(held)
    assert not files.locked


def test_the_longest_lifetime_keeps_everything(files):
    queue = open_in(files, lifetime=timedelta.max)
    queue.append_many([b"x" * 100] * 10)
    assert queue.reclaim() == 0
    assert len(list(queue.read())) == 10
