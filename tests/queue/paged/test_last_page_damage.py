"""The last page cut, zeroed and garbled at every byte: a prefix is recovered, and bad bytes are never data."""

from random import Random

import pytest

from latchwork.errors import Corrupt
from latchwork.queue.paged import page as pages
from latchwork.queue.paged.page import WHOLE, next_good, record

from .promises import messages, open_in
from .recording import RecordingFiles

PAGE = 192
HEAD = 17


def small(queue):
    sent = [b"message %02d" % number for number in range(5)]
    for message in sent:
        queue.append(message)
    return sent


def full_to_the_last_byte(queue):
    sent = [b"earlier page" * 14, b"x" * 30, b"", b"y" * (PAGE - 30 - 3 * HEAD)]
    queue.append_many(sent)
    return sent


def end_of_a_long_message(queue):
    sent = [b"first", b"long" * 100, b"z" * 40, b"after"]
    for message in sent:
        queue.append(message)
    return sent


SHAPES = (small, full_to_the_last_byte, end_of_a_long_message)


def cut(page, at):
    return page[:at]


def zeroed(page, at):
    return page[:at] + bytes(len(page) - at)


def one_byte_zero(page, at):
    return page[:at] + b"\0" + page[at + 1 :]


def one_byte_garbled(page, at):
    return page[:at] + bytes([page[at] ^ 0x5A]) + page[at + 1 :]


def garbage(page, at):
    return page[:at] + Random(at).randbytes(len(page) - at)


def garbage_beyond_the_end(page, at):
    return page + Random(at).randbytes(at)


DAMAGES = (cut, zeroed, one_byte_zero, one_byte_garbled, garbage, garbage_beyond_the_end)


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.__name__)
def shape(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["closed", "killed"])
def written(request, shape):
    """What was sent, the files, the name of the last page, and where its messages end."""
    files = RecordingFiles()
    queue = open_in(files, page_size=PAGE)
    sent = shape(queue)
    ends = [(entry.page, entry.position + HEAD + len(entry.data)) for entry in queue.read()]
    last, end = queue._writer.tail
    if request.param:
        queue.close()
    name = f"q-{last}.page"
    whole = sum(1 for page, stop in ends if page < last)
    return sent, files.contents(), name, [stop for page, stop in ends if page == last], whole, end


@pytest.mark.matrix
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_last_page_yields_a_prefix_and_never_bad_bytes(written, damage):
    sent, contents, name, ends, earlier, end = written
    for at in range(PAGE):
        page = damage(contents[name], at)
        same = page[:end] == contents[name][:end]
        files = RecordingFiles.holding({**contents, name: page})
        queue = open_in(files, page_size=PAGE)
        got, error = read_until_damage(queue)
        assert got == sent[: len(got)]
        assert same or len(got) >= earlier + sum(stop <= at for stop in ends) - (name != "q-1.page")
        assert not same or (got == sent and error is None)
        if error is not None:  # only for damage in the middle, which is reported and can be passed by
            assert error.details["file"].endswith(name)
            rest = [entry.data for entry in queue.read(skip_corrupt=True)]
            assert [message for message in sent if message in rest] == rest
            assert rest[-1] == sent[-1]
        queue.append(b"goes on")
        queue.close()
        again, later = read_until_damage(open_in(RecordingFiles.holding(files.contents()), page_size=PAGE))
        assert again == (got if error else [*got, b"goes on"])
        assert str(later) == str(error)


@pytest.mark.parametrize("what", ["q-writeMeta", "q-readMeta", "index"])
def test_a_torn_or_missing_help_file_changes_nothing(written, what):
    sent, contents, name, *_ = written
    what = name.replace(".page", ".idx") if what == "index" else what
    for torn in [contents[what][:at] for at in range(len(contents[what]))]:
        files = RecordingFiles.holding({**contents, what: torn})
        assert messages(files, page_size=PAGE) == sent
    del contents[what]
    files = RecordingFiles.holding(contents)
    assert messages(files, page_size=PAGE) == sent


def test_an_index_that_disagrees_with_its_page_is_made_again(written):
    sent, contents, name, *_ = written
    index = name.replace(".page", ".idx")
    for at in range(len(contents[index])):
        files = RecordingFiles.holding({**contents, index: one_byte_garbled(contents[index], at)})
        assert messages(files, page_size=PAGE) == sent
        assert files.contents()[index] == contents[index]


def read_until_damage(queue):
    entries, got = queue.read(), []
    try:
        while (entry := next(entries, None)) is not None:
            got.append(entry.data)
    except Corrupt as error:
        return got, error
    return got, None


def test_what_follows_damage_is_found_without_a_checksum_at_every_other_byte(monkeypatch):
    size = 256 * 1024
    damaged = Random(1).randbytes(size // 2)
    good = record(1, len(damaged), 1_700_000_000_000, WHOLE, b"good")
    file = RecordingFiles.holding({"page": (damaged + good).ljust(size, b"\0")}).open("page")
    checksums, original = [], pages.extend
    monkeypatch.setattr(pages, "extend", lambda crc, data: checksums.append(len(data)) or original(crc, data))
    assert next_good(file, 1, 1, size) == len(damaged)
    assert checksums == [len(b"good")]


def synced_one_by_one(count):
    """The files of a queue whose messages are all synced, and where each of them begins."""
    files = RecordingFiles()
    queue = open_in(files, page_size=PAGE, force_every=1)
    for number in range(count):
        queue.append(b"%04d" % number)
    begins = [entry.position for entry in queue.read()]
    queue.close()
    return files.contents(), begins


def garbled(contents, positions):
    page = contents["q-1.page"]
    for position in positions:
        page = one_byte_garbled(page, position + HEAD)
    return RecordingFiles.holding({**contents, "q-1.page": page})


@pytest.mark.parametrize("bad", [{2, 7}, {0, 7}, {2, 4, 6, 7}, {0, 1, 7}, {7}, {3}], ids=str)
def test_good_records_between_damaged_ones_are_kept(bad, caplog):
    contents, begins = synced_one_by_one(8)
    files = garbled(contents, [begins[number] for number in bad])
    good = [b"%04d" % number for number in range(8) if number not in bad]
    for _ in range(2):  # opening once more changes nothing
        assert messages(files, page_size=PAGE, skip_corrupt=True) == good
        files = files.killed()
    told = [text for text in caplog.messages if "bytes that were synced" in text]
    assert len(told) == (7 in bad), "once, where synced messages are lost at the end"
    open_in(files, page_size=PAGE).append(b"end")
    assert messages(files.killed(), page_size=PAGE, skip_corrupt=True) == [*good, b"end"]
    error = read_until_damage(open_in(files.killed(), page_size=PAGE))[1]
    assert (error is None) == (bad == {7})  # a torn tail is cut, what has good records after it is reported


@pytest.mark.parametrize("bad", [{3}, {1, 3}], ids=str)
def test_where_damaged_messages_were_cut_off_a_later_crash_still_leaves_a_prefix(bad):
    contents, begins = synced_one_by_one(4)
    files = garbled(contents, [begins[number] for number in bad])
    queue = open_in(files, page_size=PAGE)
    kept = [entry.data for entry in queue.read(skip_corrupt=True)]
    fresh = [b"a", b"b", b"c"]
    for message in fresh:
        queue.append(message)
    for random in map(Random, range(60)):
        lost = RecordingFiles.holding(files.crashed(random, 0.5))
        found = messages(lost, page_size=PAGE, skip_corrupt=True)
        assert found == (kept + fresh)[: len(found)]
        assert len(found) >= len(kept)
