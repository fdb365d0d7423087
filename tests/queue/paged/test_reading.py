"""Reading from a point in time, following, codecs, and what is said about damage."""

import math
import re
import threading
import traceback
import zlib
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, TypedDict

import msgspec
import pytest

from latchwork.errors import Corrupt, Expired, InvalidRequest, Unreadable
from latchwork.queue.paged.queue import PagedQueue
from latchwork.queue.paged.reader import View
from latchwork.testing.clock import START, ManualClock

from .crashes import Ticking
from .promises import copied_records_are_not_data, open_in
from .recording import RecordingFiles


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def files():
    return RecordingFiles()


def filled(files, clock, count=60, **settings):
    queue = open_in(files, seams=clock, **settings)
    for number in range(count):
        queue.append(b"%04d" % number)
        clock.advance(0.25)
    return queue


def datas(entries):
    return [entry.data for entry in entries]


def test_reading_since_any_moment_gives_exactly_what_arrived_then_or_later(files, clock):
    queue = filled(files, clock)
    everything = list(queue.read())
    assert [entry.timestamp for entry in everything] == [START + number / 4 for number in range(60)]
    for tick in range(-2, 62 * 4):
        since = START + tick / 16
        assert datas(queue.read(since)) == [entry.data for entry in everything if entry.timestamp >= since]
    assert datas(queue.read(everything[7].timestamp)) == datas(everything[7:])


def test_since_takes_datetimes_aware_and_naive(files, clock):
    queue = filled(files, clock, 8)
    aware = datetime.fromtimestamp(START + 1, timezone.utc)
    assert datas(queue.read(aware)) == datas(queue.read(START + 1)) == [b"0004", b"0005", b"0006", b"0007"]
    assert datas(queue.read(datetime.fromtimestamp(START + 1))) == datas(queue.read(aware))  # noqa: DTZ006
    with pytest.raises(InvalidRequest):
        queue.read(float("nan"))


def test_a_moment_within_a_millisecond_misses_nothing(files, clock):
    clock.advance(0.0007)
    before = clock.wall() - 0.0001
    queue = open_in(files, seams=clock)
    queue.append(b"x")
    assert datas(queue.read(before)) == [b"x"]


def test_messages_of_one_instant_over_several_pages_are_all_found(files, clock):
    queue = open_in(files, seams=clock, page_size=64)
    queue.append(b"earlier")
    clock.advance(1)
    queue.append_many([b"same %02d" % number for number in range(20)])
    assert queue._writer.tail[0] > 5
    assert len(datas(queue.read(clock.wall()))) == 20


def test_arrival_times_never_run_backwards_not_even_over_a_restart(files, clock):
    queue = open_in(files, seams=clock)
    queue.append(b"a")
    clock.step(-3600)
    queue.append(b"b")
    queue.close()
    queue = open_in(files, seams=clock)
    queue.append(b"c")
    clock.step(7200)
    queue.append(b"d")
    assert [entry.timestamp for entry in queue.read()] == [START, START, START, START + 3600]


def test_reading_ends_with_what_was_there_at_the_call(files, clock):
    queue = filled(files, clock, 10)
    copied = [queue.append(entry.data) for entry in queue.read()]
    assert len(copied) == 10


def test_following_ends_when_nothing_came_for_the_timeout(files, clock):
    queue = filled(files, clock, 3)
    clock.at(4.0, lambda: queue.append(b"late"))
    begun = clock.monotonic()
    assert datas(queue.read(follow=True, timeout=5)) == [b"0000", b"0001", b"0002", b"late"]
    assert clock.monotonic() - begun == 10


def test_a_reader_that_follows_is_woken_by_an_append_and_by_close(tmp_path):
    queue = PagedQueue.open(tmp_path, "q")
    seen, arrived = [], threading.Event()

    def follow():
        for entry in queue.read(follow=True):
            seen.append(entry.data)
            arrived.set()

    reader = threading.Thread(target=follow)
    reader.start()
    for message in (b"one", b"two"):
        queue.append(message)
        assert arrived.wait(30)
        arrived.clear()
    queue.close()
    reader.join(30)
    assert not reader.is_alive()
    assert seen == [b"one", b"two"]


@pytest.mark.parametrize("size", [46, 47, 48, 94, 95, 1000])
def test_messages_larger_than_a_page_come_back_whole(files, clock, size):
    queue = open_in(files, seams=clock, page_size=64)
    sent = [b"before", bytes(range(256)) * 4, b"x" * size, b"", b"after"]
    queue.append_many(sent[:2])
    for message in sent[2:]:
        queue.append(message)
    assert datas(queue.read()) == sent
    assert datas(queue.cursor("c").read(10)) == sent
    queue.close()
    assert datas(open_in(files, page_size=64).read(clock.wall())) == sent


def test_a_message_whose_last_piece_is_missing_was_never_there(files):
    queue = open_in(files, page_size=64)
    queue.append(b"before")
    tried = []

    class Stopped(Exception):
        pass

    def stop(kind, name):
        tried.append(name)
        if name == "q-4.page":
            raise Stopped

    files.before_step = stop
    with pytest.raises(Stopped):
        queue.append(b"x" * 300)
    files = files.killed()
    queue = open_in(files, page_size=64)
    assert datas(queue.read()) == [b"before"]
    queue.append(b"y" * 300)
    queue.append(b"after")
    assert datas(queue.read()) == [b"before", b"y" * 300, b"after"]


def damaged_in_the_middle(files, clock, change):
    filled(files, clock, 60, page_size=256).close()
    contents = files.contents()
    for name, edit in change.items():
        contents[name] = edit(contents[name])
    contents = {name: data for name, data in contents.items() if data is not None}
    return open_in(RecordingFiles.holding(contents), seams=clock)


@pytest.mark.parametrize(
    ("edit", "position", "lost"),
    [
        (lambda page: page[:50] + b"\xff" + page[51:], 42, {14}),
        (lambda page: page[:42] + b"\x7f" + page[43:], 42, {14}),
        (lambda page: page[:42] + bytes(4) + page[46:], 42, {14}),
        (lambda page: page[:42] + bytes(214), 42, set(range(14, 24))),
        (lambda page: page[:60], 42, set(range(14, 24))),
        (lambda page: None, 0, set(range(12, 24))),
    ],
    ids=["content", "length", "zero length", "zeroed to the end", "cut", "page missing"],
)
def test_a_corrupt_page_in_the_middle_is_reported_and_passed_only_on_request(files, clock, edit, position, lost):
    queue = damaged_in_the_middle(files, clock, {"q-2.page": edit})
    found = []
    with pytest.raises(Corrupt, match=r"q-2\.page") as error:
        found.extend(entry.data for entry in queue.read())
    assert error.value.details == {"file": "/d/q-2.page", "position": position}
    good = [b"%04d" % number for number in range(60) if number not in lost]
    assert datas(queue.read(skip_corrupt=True)) == good
    cursor = queue.cursor("c")
    first = datas(cursor.read(60))
    assert first == good[: min(lost)]
    with pytest.raises(Corrupt):
        cursor.read(1)
    assert first + datas(cursor.read(60, skip_corrupt=True)) == good


@pytest.mark.parametrize(
    "edit", [lambda _: None, lambda index: b"", lambda index: index[::-1], lambda index: index[:25]]
)
def test_a_bad_index_in_the_middle_costs_time_and_nothing_else(files, clock, edit):
    queue = damaged_in_the_middle(files, clock, {"q-2.idx": edit})
    assert len(datas(queue.read())) == 60
    for number in range(60):
        assert datas(queue.read(START + number / 4))[0] == b"%04d" % number


ENTRY = 12  # bytes: arrival 8, position 4
FLIPS = ((0, 0x80), (1, 0x40), (2, 0x01), (5, 0x01), (7, 0xFF), (8, 0x80), (11, 0x10))
"""Byte of an entry and what is flipped in it: sign, far later or earlier, a little, a position below 0, another."""


@pytest.mark.parametrize("flip", FLIPS, ids=str)
def test_no_flipped_bit_in_an_index_lets_a_search_begin_too_late(files, clock, flip):
    filled(files, clock, 60, page_size=256).close()
    contents, (byte, bits) = files.contents(), flip
    for page in range(1, 5):
        index = contents[f"q-{page}.idx"]
        for entry in (0, 1, 5, 11):
            bad = bytearray(index)
            bad[entry * ENTRY + byte] ^= bits
            queue = open_in(RecordingFiles.holding({**contents, f"q-{page}.idx": bytes(bad)}), seams=clock)
            for number in range(60):
                assert next(queue.read(START + number / 4)).data == b"%04d" % number


def test_no_flipped_bit_lets_a_search_among_messages_of_one_instant_begin_too_late(files, clock):
    """All records are of one size, so that a position with a flipped bit may be that of another record."""
    queue = open_in(files, seams=clock, page_size=1100)
    for batch in range(0, 40, 5):
        queue.append_many([b"%04d" % number + bytes(64 - 4 - 17) for number in range(batch, batch + 5)])
        clock.advance(1)
    queue.close()
    contents = files.contents()
    index = contents["q-1.idx"]
    for bit in range(len(index) * 8):
        bad = bytearray(index)
        bad[bit // 8] ^= 1 << bit % 8
        queue = open_in(RecordingFiles.holding({**contents, "q-1.idx": bytes(bad)}), seams=clock, page_size=1100)
        for batch in range(8):
            assert next(queue.read(START + batch)).data[:4] == b"%04d" % (batch * 5)


def test_a_position_that_a_flipped_bit_moved_to_the_end_of_a_full_page_is_no_damage(files, clock):
    queue = open_in(files, seams=clock, page_size=180)
    sent = [b"%015d" % number for number in range(20)]  # five of 32 bytes fill a page
    queue.append_many(sent)
    queue.close()
    contents = files.contents()
    bad = bytearray(contents["q-2.idx"])
    bad[-1] ^= 32  # from 128 to 160, where the records end
    queue = open_in(RecordingFiles.holding({**contents, "q-2.idx": bytes(bad)}), seams=clock, page_size=180)
    assert datas(queue.read()) == sent


def test_a_search_goes_back_past_a_page_that_has_nothing_good(files, clock):
    queue = damaged_in_the_middle(files, clock, {"q-3.page": lambda page: bytes(len(page))})
    with pytest.raises(Corrupt, match=r"q-3\.page"):
        next(queue.read(START + 30 / 4))
    assert next(queue.read(START + 30 / 4, skip_corrupt=True)).data == b"0036"


@pytest.mark.parametrize("flip", FLIPS, ids=str)
def test_a_flipped_bit_in_the_index_before_the_last_does_not_change_the_time(files, clock, flip):
    filled(files, clock, 60, page_size=256).close()  # the last page has nothing on it that could be newer
    contents, (byte, bits) = files.contents(), flip
    bad = bytearray(contents["q-5.idx"])
    bad[byte - ENTRY] ^= bits
    contents |= {"q-5.idx": bytes(bad), "q-6.page": bytes(256), "q-6.idx": b""}
    queue = open_in(RecordingFiles.holding(contents), seams=clock)
    queue.append(b"new")
    assert [entry.timestamp for entry in queue.read()][-1] == clock.wall()


def test_bytes_of_a_record_inside_a_message_are_not_a_message():
    copied_records_are_not_data()


def test_a_reader_whose_page_was_reclaimed_is_told(files, clock):
    queue = filled(files, clock, 60, lifetime=100.0)
    reader = queue.read()
    assert next(reader).data == b"0000"
    clock.advance(1000)
    assert queue.reclaim() > 1
    with pytest.raises(Expired, match="reclaimed"):
        list(reader)


class Order(msgspec.Struct):
    item: str
    count: int


class Line(TypedDict):
    """A type of which nothing is an instance."""

    item: str
    count: int


class Reversed:
    def encode(self, text):
        return text.encode()[::-1]

    def decode(self, data):
        return data[::-1].decode()


class Static:
    """A codec that needs no instance."""

    encode = staticmethod(str.encode)
    decode = staticmethod(bytes.decode)


@pytest.mark.parametrize(
    ("codec", "values", "wrong"),
    [
        (bytes, [b"", b"x", bytes(range(256))], "text"),
        (str, ["", "x", "\N{SNOWMAN}"], b"bytes"),
        (dict, [{}, {"a": [1, None]}], [1]),
        (Order, [Order("apple", 3)], {"item": "apple", "count": 3}),
        (Reversed(), ["abc"], "\udc80"),
        (Static, ["abc"], "\udc80"),
        (dict[str, int], [{}, {"a": 1}], {"a": "x"}),
        (list[int], [[], [1, 2]], (1,)),
        (Line, [{"item": "apple", "count": 3}], {"item": "apple", "count": "3"}),
        (Line, [{"item": "apple", "count": 3}], "apple"),
    ],
)
def test_codecs_give_back_what_was_appended_and_refuse_the_rest(files, codec, values, wrong):
    queue = open_in(files, codec=codec)
    queue.append_many(values)
    with pytest.raises(InvalidRequest):
        queue.append(wrong)
    with pytest.raises(InvalidRequest):
        queue.append_many([values[0], wrong])
    assert datas(queue.read()) == values


def test_bytes_that_the_codec_does_not_understand_are_unreadable(files):
    queue = open_in(files)
    queue.append(b"not json")
    queue.close()
    with pytest.raises(Unreadable, match="page 1 at 0"):
        list(open_in(files, codec=dict).read())


def test_a_lifetime_may_be_a_timedelta(files):
    assert open_in(files, lifetime=timedelta(hours=1), seams=Ticking())._lifetime == 3600


def test_a_message_whose_middle_page_is_missing_is_passed_over_whole(files):
    queue = open_in(files, page_size=64)
    queue.append(b"a" * 47 + b"b" * 47 + b"c" * 10)
    queue.append(b"next")
    queue.close()
    files.remove("q-2.page")
    queue = open_in(files, page_size=64)
    assert datas(queue.read(skip_corrupt=True)) == [b"next"]
    assert datas(queue.cursor("c").read(5, skip_corrupt=True)) == [b"next"]


def test_a_reader_that_skips_comes_to_its_end_where_the_last_page_is_missing(files):
    queue = open_in(files, page_size=64)
    queue.append(b"gone")
    files.remove("q-1.page")
    assert datas(queue.read(skip_corrupt=True)) == []
    with pytest.raises(Corrupt):
        list(queue.read())


def test_a_search_misses_nothing_that_is_being_written(files, clock):
    queue = filled(files, clock, 3)
    since, readers = clock.wall(), []

    def search(kind, name):
        if (kind, name) == ("write", "q-1.idx"):
            readers.append(queue.read(since, follow=True, timeout=1))

    files.before_step = search
    queue.append(b"first")
    files.before_step = lambda kind, name: None
    queue.append(b"second")
    assert datas(readers[0]) == [b"first", b"second"]


def test_a_search_misses_nothing_that_arrives_during_it(files, clock, monkeypatch):
    queue = filled(files, clock, 3)
    since, original, late = clock.wall(), View.index, [b"late"]

    def index(view, page):
        found = original(view, page)
        if late:
            queue.append(late.pop())
        return found

    monkeypatch.setattr(View, "index", index)
    assert datas(queue.read(since, follow=True, timeout=1)) == [b"late"]


def test_a_message_that_the_codec_does_not_understand_comes_after_what_precedes_it_or_is_passed_over(files):
    queue = open_in(files)
    queue.append_many([b"1", b"2", b"oops", b"4"])
    queue.close()
    queue = open_in(files, codec=int)
    cursor = queue.cursor("c")
    assert datas(cursor.read(10)) == [1, 2]
    for _ in range(2):
        with pytest.raises(Unreadable) as error:
            cursor.read(10)
    assert error.value.details["position"] == 2 * 18
    cursor.commit()
    assert datas(cursor.read(10, skip_corrupt=True)) == [4]
    cursor.commit()
    assert cursor.lag() == 0
    assert datas(queue.read(skip_corrupt=True)) == [1, 2, 4]


class Zipped:
    """A codec whose errors are of its own kind."""

    encode = staticmethod(zlib.compress)
    decode = staticmethod(zlib.decompress)


class Quoting:
    """A codec whose errors quote the message."""

    encode = staticmethod(bytes)

    def decode(self, data):
        raise RuntimeError(f"what is {data!r}?") from ValueError(data)


def test_whatever_a_codec_raises_for_a_message_does_not_block_the_queue(files):
    queue = open_in(files)
    queue.append_many([zlib.compress(b"1"), b"plain", zlib.compress(b"3")])
    queue.close()
    queue = open_in(files, codec=Zipped)
    cursor = queue.cursor("c")
    assert datas(cursor.read(10)) == [b"1"]
    with pytest.raises(Unreadable, match="page 1 at 26: error") as error:
        cursor.read(10)
    assert error.value.details == {"page": 1, "position": 26}
    assert datas(cursor.read(10, skip_corrupt=True)) == [b"3"]
    assert datas(queue.read(skip_corrupt=True)) == [b"1", b"3"]


class Colour(Enum):
    RED = "red"


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    name: str = ""


@pytest.mark.parametrize(
    ("codec", "data", "said"),
    [
        (Quoting(), b'"secret"', "RuntimeError"),
        (Colour, b'"secret"', "Invalid enum value ..."),
        (int, b'"secret"', "Expected `int`"),
        (Closed, b'{"secret - at `$": 1}', "unknown field ..."),
    ],
)
def test_what_is_said_of_a_message_that_is_not_understood_does_not_quote_it(files, codec, data, said):
    queue = open_in(files)
    queue.append(data)
    queue.close()
    with pytest.raises(Unreadable, match=re.escape(said)) as error:
        list(open_in(files, codec=codec).read())
    assert "secret" not in "".join(traceback.format_exception(error.value))


def test_whatever_a_codec_raises_in_encoding_refuses_that_message_without_quoting_it(files):
    queue = open_in(files, codec=Reversed())
    queue.append("before")
    for wrong, named in ((b"secret", "bytes: AttributeError"), ("secret\udc80", "str: UnicodeEncodeError")):
        with pytest.raises(InvalidRequest, match=named) as error:
            queue.append(wrong)
        assert "secret" not in "".join(traceback.format_exception(error.value, chain=True))
    queue.append("after")
    assert datas(queue.read()) == ["before", "after"]


class Coloured(TypedDict):
    colour: Colour


class Short(msgspec.Struct):
    text: str = ""

    def __post_init__(self):
        if self.text == "secret":
            raise ValueError(self.text)


def test_what_a_type_would_not_read_back_is_refused_without_quoting_it(files):
    grown = Short()
    grown.text = "secret"
    for codec, value in ((Coloured, {"colour": "secret"}), (Short, grown)):
        with pytest.raises(InvalidRequest, match="does not take this") as error:
            open_in(files.killed(), codec=codec).append(value)
        assert "secret" not in "".join(traceback.format_exception(error.value))


class Encoded(msgspec.Struct):
    """A record whose own methods have the names of a codec's."""

    text: str

    def encode(self):
        return self.text.encode()

    def decode(self):
        return self.text


def test_a_type_whose_instances_encode_themselves_is_a_type_and_no_codec(files):
    queue = open_in(files, codec=Encoded)
    queue.append(Encoded("x"))
    assert datas(queue.read()) == [Encoded("x")]


@pytest.mark.skipif(not isinstance(Any, type), reason="Any is a class from Python 3.11 on")
def test_a_queue_of_anything_takes_what_json_has(files):
    queue = open_in(files, codec=Any)
    queue.append_many([1, "x", None, {"a": [1.5]}])
    for wrong, said in (
        (object(), "this object: Encoding objects of type object"), (b"x", "this bytes would come back"),
        ({1: 2}, "this dict would"), ((1,), "this tuple would"), (math.nan, "this float has"),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest, match=said):
            queue.append(wrong)
    assert datas(queue.read()) == [1, "x", None, {"a": [1.5]}]


NAIVE = datetime.min  # noqa: DTZ901 - local time has no such moment


DEEP = object()
"""Stands for a list that is nested 100,000 times, which takes long to make."""


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


class Weight(msgspec.Struct):
    kilograms: float


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (int, True), (float, math.nan), (float, math.inf), (Weight, Weight(math.nan)),
        (list, DEEP), (Line, {"item": "apple", "count": 3, "weight": 2}),
    ],
    ids=["bool as int", "nan", "inf", "nan in a struct", "nested deeply", "more than a TypedDict has"],
)  # fmt: skip
def test_what_a_typed_queue_could_not_read_back_is_refused(files, codec, value):
    queue = open_in(files, codec=codec)
    with pytest.raises(InvalidRequest, match="this"):
        queue.append(nested(100_000) if value is DEEP else value)
    assert datas(queue.read()) == []


@pytest.mark.parametrize("since", [NAIVE, 10**400, -(10**400), 1e306, math.inf, True], ids=lambda x: f"{x!r:.12}")
def test_moments_beyond_every_calendar_are_refused(files, since):
    with pytest.raises(InvalidRequest, match="moment"):
        open_in(files).read(since)


def test_any_moment_with_a_timezone_is_taken(files, clock):
    queue = filled(files, clock, 3)
    assert len(datas(queue.read(datetime.min.replace(tzinfo=timezone.utc)))) == 3
    assert datas(queue.read(datetime.max.replace(tzinfo=timezone.utc))) == []


class Ringing(ManualClock):
    """Its events are real ones, and a message comes as soon as somebody waits."""

    def event(self):
        return Rung(self)


class Rung(threading.Event):
    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def wait(self, timeout=None):
        assert timeout is None or timeout <= threading.TIMEOUT_MAX, "OverflowError: timestamp too large"
        self.clock.queue.append(b"late")
        return super().wait(timeout)


@pytest.mark.parametrize("timeout", [math.inf, 1e10, None])
def test_a_timeout_may_be_longer_than_any_life(files, timeout):
    clock = Ringing()
    clock.queue = queue = open_in(files, seams=clock)
    assert datas(queue.cursor("c").read(1, timeout=timeout)) == [b"late"]
    reader = queue.read(clock.wall(), follow=True, timeout=timeout)
    assert [next(reader).data, next(reader).data] == [b"late", b"late"]


def test_a_cursor_asked_for_more_than_there_can_be_gives_what_there_is(files, clock):
    queue = filled(files, clock, 3)
    assert len(queue.cursor("c").read(2**70)) == 3
    with pytest.raises(InvalidRequest, match="n is True; it must be a whole number from 1"):
        queue.cursor("c").read(True)
