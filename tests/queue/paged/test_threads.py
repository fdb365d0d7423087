"""Several writers and readers of one process share a queue, and one sync serves all who wait for it."""

import threading
from random import Random

import pytest

from latchwork.errors import AlreadyOpen
from latchwork.queue.paged.queue import PagedQueue

from .promises import messages, open_in
from .recording import RecordingFiles


def run_all(targets):
    failures = []

    def guarded(target):
        try:
            target()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


def test_messages_of_several_writers_are_all_there_each_in_its_order(tmp_path):
    queue = PagedQueue.open(tmp_path, "q", page_size=4096, force_every=7)
    seen = []

    def writer(name):
        for number in range(300):
            if number % 10:
                queue.append(b"%d %d" % (name, number))
            else:
                queue.append_many([b"%d %d" % (name, number), b"x" * 5000])

    def reader():
        for entry in queue.read(follow=True):
            seen.append(entry.data)
            if len(seen) == 4 * 330:
                return

    run_all([reader, *(lambda name=name: writer(name) for name in range(4))])
    assert seen == [entry.data for entry in queue.read()]
    for name in range(4):
        mine = [int(message.split()[1]) for message in seen if message.startswith(b"%d " % name)]
        assert mine == list(range(300))
    queue.close()
    with PagedQueue.open(tmp_path, "q", page_size=4096) as queue:
        assert [entry.data for entry in queue.read()] == seen


def test_writers_that_wait_for_a_sync_share_the_next_one():
    files = RecordingFiles()
    queue = open_in(files, page_size=4096, force_every=1)
    written, everybody_wrote, in_sync = [], threading.Event(), threading.Event()
    others = 7

    def step(kind, name):
        if name == "q-1.page" and kind == "write":
            written.append(name)
            if len(written) == 2 * (others + 1):
                everybody_wrote.set()
        if name == "q-1.page" and kind == "sync" and not in_sync.is_set():
            in_sync.set()
            assert everybody_wrote.wait(60)

    files.before_step = step
    before = files.done["sync"]

    def late(number):
        assert in_sync.wait(60)
        queue.append(b"late %d" % number)

    run_all([lambda: queue.append(b"first"), *(lambda number=number: late(number) for number in range(others))])
    assert files.done["sync"] - before <= 3
    assert len(files.names_live["q-1.page"].pending) <= 1
    assert len(list(queue.read())) == others + 1


def test_threads_that_share_a_cursor_get_every_message_once(tmp_path):
    queue = PagedQueue.open(tmp_path, "q")
    queue.append_many([b"%d" % number for number in range(1000)])
    taken = []

    def take():
        cursor = queue.cursor("shared")
        while found := cursor.read(7):
            taken.extend(int(entry.data) for entry in found)
            cursor.commit()

    run_all([take] * 4)
    assert sorted(taken) == list(range(1000))
    assert queue.cursor("shared").lag() == 0


class HeldByAnother:
    """A lock that another thread holds: whoever waits for it is interrupted, and has it the next time."""

    def __init__(self, lock):
        self.lock, self.held = lock, True

    def __enter__(self):
        if self.held:
            self.held = False
            raise KeyboardInterrupt
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


@pytest.mark.parametrize(
    ("holder", "name"),
    [("writing", "_lock"), ("syncing", "_sync_lock"), ("reclaiming", "_admin")],
    ids=lambda value: value,
)
def test_a_close_that_was_interrupted_keeps_the_files_until_it_is_called_again(monkeypatch, holder, name):
    files = RecordingFiles()
    queue = open_in(files)
    queue.append(b"unsynced")
    owner = queue if holder == "reclaiming" else queue._writer
    monkeypatch.setattr(owner, name, HeldByAnother(getattr(owner, name)))
    with pytest.raises(KeyboardInterrupt):
        queue.close()
    with pytest.raises(AlreadyOpen):
        open_in(files)
    queue.close()
    assert messages(RecordingFiles.holding(files.crashed(Random(0), 0.0))) == [b"unsynced"]
    again = open_in(files)
    queue.close()
    with pytest.raises(AlreadyOpen):
        open_in(files)
    again.close()
