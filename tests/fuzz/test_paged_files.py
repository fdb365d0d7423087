"""The files of a paged queue, damaged anywhere: bad bytes are never data, and what is not damaged is still there.

Whatever is damaged, each call gives what was appended or an error of ours, which has nothing of a message in it. Where
it is one page, all messages of other pages are read; where it is a help file, all messages are.
"""

from __future__ import annotations

import logging
import pickle
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from latchwork.errors import Corrupt, LatchworkError, Unreadable
from latchwork.queue.paged.queue import PagedQueue
from latchwork.testing.clock import ManualClock
from tests.queue.paged.recording import RecordingFiles
from tests.support.scale import FIRST, scaled

from .damage import IN_PLACE, cut

DAMAGES = scaled(8)
"""Of each kind, to each kind of file."""
SECRET = "canary"
PAGE = 512
LIFE = 1_000.0
CODECS = {"bytes": bytes, "JSON": dict[str, Any]}


def message(number: int, codec: str) -> Any:
    """Some are larger than a page."""
    text = f"{number:03} {SECRET} " * (100 if number % 17 == 5 else 1 + number % 7)
    return text.encode() if codec == "bytes" else {"text": text, "n": number}


@dataclass
class Original:
    """Sound files, and where the messages are that are in them."""

    codec: str
    files: dict[str, bytes]
    sent: list[Any]
    pages: list[set[int]]
    """Of each message: those that it has a piece in."""
    old: list[Any]
    """Messages past their lifetime; a page with nothing good but these may go."""


@pytest.fixture(scope="module", params=CODECS)
def original(request) -> Original:
    files, clock = RecordingFiles(), ManualClock()
    queue = opened(files, clock, request.param)
    sent = [message(number, request.param) for number in range(90)]
    queue.append_many(sent[:20])
    clock.advance(LIFE + 1)
    queue.append_many(sent[20:40])
    for one in sent[40:]:
        clock.advance(1)
        queue.append(one)
    for name in ("a", "b"):
        queue.cursor(name).read(30)
        queue.cursor(name).commit()
    entries = list(queue.read())
    assert 60 < len(entries) < len(sent), "some were reclaimed"
    ends = [*(entry.page for entry in entries[1:]), queue.cursor("a").tail[0]]
    pages = [
        {*range(entry.page, end + 1)} if len(str(entry.data)) > PAGE else {entry.page}
        for entry, end in zip(entries, ends, strict=True)
    ]
    queue.close()
    return Original(request.param, files.contents(), [entry.data for entry in entries], pages, sent[:20])


def opened(files: RecordingFiles, clock: ManualClock, codec: str) -> PagedQueue:
    return PagedQueue.open("/d", "q", files=files, seams=clock, page_size=PAGE, lifetime=LIFE, codec=CODECS[codec])


# ---- what is checked


@dataclass
class Trial:
    """Damaged files, and what calls on them come to."""

    original: Original
    files: RecordingFiles
    calls: Counter[str]
    clock: ManualClock = field(default_factory=ManualClock)

    def call(self, run: Callable[[], Any]) -> Any:
        """What it comes to; an error must be ours, and must not have anything of a message in it."""
        self.calls["calls"] += 1
        try:
            return run()
        except LatchworkError as failure:
            came = failure
        self.calls["errors"] += 1
        told = "".join(traceback.format_exception(came, limit=0)) + repr((came, came.details))
        assert SECRET not in told
        assert SECRET.encode() not in pickle.dumps(came)
        return came

    def read(self, queue: PagedQueue, **options: Any) -> tuple[list[Any], LatchworkError | None]:
        """What was read until an error, and that."""
        found: list[Any] = []
        came = self.call(lambda: found.extend(entry.data for entry in queue.read(**options)))
        self.are_sent(found)
        return found, came

    def are_sent(self, found: list[Any]) -> None:
        """Each is one that was appended, in that order, and none twice."""
        sent = iter([*self.original.sent, *NEW[self.original.codec]])
        assert all(any(one == other for other in sent) for one in found), "not what was appended"


NEW = {codec: [message(900 + number, codec) for number in range(4)] for codec in CODECS}
"""What is appended after the damage."""


def use(trial: Trial) -> list[Any] | LatchworkError:
    """Every verb on the damaged files; the messages that were there, or why the queue could not be opened."""
    before = trial.files.contents()
    queue = trial.call(lambda: opened(trial.files, trial.clock, trial.original.codec))
    if isinstance(queue, LatchworkError):
        assert {name: data for name, data in trial.files.contents().items() if name != "q-lock"} == before
        return queue
    trial.read(queue)
    there, failure = trial.read(queue, skip_corrupt=True)
    assert failure is None, "what is damaged is passed over"
    for since in (0, trial.clock.wall() - 30, trial.clock.wall() + 1e6):
        trial.read(queue, since=since, skip_corrupt=True)
    for name in ("a", "b", "new"):
        cursor = trial.call(lambda name=name: queue.cursor(name))
        if not isinstance(cursor, LatchworkError):
            _consume(trial, cursor)
    new = NEW[trial.original.codec]
    done = [trial.call(lambda one=one: queue.append(one)) for one in new[:2]]
    done.append(trial.call(lambda: queue.append_many(new[2:])))
    trial.call(queue.force)
    assert done == [None] * 3
    later, _ = trial.read(queue, skip_corrupt=True)
    assert later in [(there + new)[past:] for past in range(1 + sum(one in trial.original.old for one in there))]
    trial.call(queue.reclaim)
    trial.call(queue.disk_bytes)
    left, _ = trial.read(queue, skip_corrupt=True)
    trial.call(queue.close)
    again = opened(trial.files, trial.clock, trial.original.codec)
    assert trial.read(again, skip_corrupt=True)[0] == left, "what was there once is there when it is opened again"
    again.close()
    return there


def _consume(trial: Trial, cursor: Any) -> None:
    for step in (cursor.lag, cursor.backlog, cursor.bytes_behind):
        trial.call(step)
    for options in ({}, {}, {"skip_corrupt": True}, {"skip_corrupt": True}):
        entries = trial.call(lambda options=options: cursor.read(7, **options))
        if isinstance(entries, list):
            trial.are_sent([entry.data for entry in entries])
    for step in (cursor.commit, cursor.rewind, cursor.commit):
        trial.call(step)


@pytest.fixture
def trial(original, caplog):
    """Opens damaged files; when all is done, nothing of a message may stand in the log either."""
    caplog.set_level(logging.WARNING, "latchwork")
    calls: Counter[str] = Counter()

    def begin(files: dict[str, bytes]) -> Trial:
        calls["files"] += 1
        begun = Trial(original, RecordingFiles.holding(files), calls)
        begun.clock.advance(LIFE + 51)
        return begun

    begin.calls = calls
    yield begin
    assert SECRET not in caplog.text


# ---- damage


def removed(data: bytearray, start: int, end: int, random: Random) -> None:
    del data[:]


KINDS = [*IN_PLACE, cut, removed]


def damaged(original: Original, name: str, damage: Any, seed: int) -> dict[str, bytes]:
    """The files, with one of them damaged."""
    data = bytearray(original.files[name])
    damage(data, 0, len(data), Random(f"{name} {damage.__name__} {seed}"))
    files = {**original.files, name: bytes(data)}
    if damage is removed:
        del files[name]
    return files


def seeds(damage: Any) -> range:
    return range(1) if damage is removed else range(FIRST * DAMAGES, FIRST * DAMAGES + DAMAGES)


def unhurt(original: Original, page: int) -> list[Any]:
    return [one for one, pages in zip(original.sent, original.pages, strict=True) if page not in pages]


@pytest.mark.parametrize("damage", KINDS)
def test_a_damaged_page_costs_no_message_of_another(original, trial, damage, proved):
    pages = sorted((name for name in original.files if name.endswith(".page")), key=lambda name: int(name[2:-5]))
    for seed in seeds(damage) if damage is not removed else range(len(pages)):
        name = pages[seed] if damage is removed else Random(seed).choice(pages)
        files = damaged(original, name, damage, seed)
        there = use(trial(files))
        if (damage, name) == (removed, pages[-1]):  # writeMeta says that messages in it were synced
            assert isinstance(there, Corrupt)
            assert "delete /d/q-writeMeta" in there.args[0]
            there = use(trial({other: data for other, data in files.items() if other != "q-writeMeta"}))
        assert [one for one in unhurt(original, int(name[2:-5])) if one not in there] == []
    proved("damaged files", "paged queue, pages", **trial.calls)


@pytest.mark.parametrize("damage", KINDS)
def test_a_damaged_help_file_costs_no_message(original, trial, damage, proved):
    for kind in ("idx", "writeMeta", "readMeta", "cursor"):
        names = sorted(name for name in original.files if name.endswith(kind))
        for seed in seeds(damage):
            files = damaged(original, Random(seed).choice(names), damage, seed)
            there = use(trial(files))
            if isinstance(there, Corrupt) and kind == "writeMeta":  # it names a page that may have been there
                assert "delete /d/q-writeMeta" in there.args[0]
                there = use(trial({name: data for name, data in files.items() if name != "q-writeMeta"}))
            assert there == original.sent
    proved("damaged files", "paged queue, help files", **trial.calls)


@pytest.mark.parametrize("damage", KINDS)
def test_a_queue_whose_own_file_is_damaged_is_refused_and_left_as_it_was(original, trial, damage, proved):
    for seed in seeds(damage):
        files = damaged(original, "q-allMeta", damage, seed)
        if files.get("q-allMeta") not in (original.files["q-allMeta"], original.files["q-allMeta"][:8]):
            assert isinstance(use(trial(files)), Corrupt | Unreadable)
    proved("damaged files", "paged queue, own file", **trial.calls)


@pytest.mark.parametrize("damage", KINDS)
def test_several_damaged_files_give_what_was_appended_or_an_error_of_ours(original, trial, damage, proved):
    for seed in seeds(damage) if damage is not removed else range(4):
        random, files = Random(seed), original.files
        for name in random.sample(sorted(files), 3):
            files = {**files, **damaged(original, name, damage, seed)}
            files = {key: data for key, data in files.items() if damage is not removed or key != name}
        one, other = random.sample(sorted(files), 2)
        use(trial({**files, one: files[other]} if seed % 2 else files))
    proved("damaged files", "paged queue, several", **trial.calls)
