"""Processes killed with SIGKILL while they write, and while they recover."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from latchwork.queue.paged.files import File, Files
from latchwork.queue.paged.queue import PagedQueue
from tests.support.scale import SEEDS, length

from . import storm

CYCLES = length(10, least=4)
"""Writers that are killed, of each kind and under each seed."""
STORM = length(300)
"""Processes that are killed in a storm."""
ROOT = Path(__file__).parents[3]
THREADS = 3


@pytest.mark.slow  # more on a busy machine
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("force_every", [0, 1, 5])
def test_what_a_killed_process_had_acknowledged_is_there(tmp_path, force_every, seed, proved):
    random = Random(3 * seed + force_every)
    acknowledged, consumed = dict.fromkeys(range(THREADS), -1), (0, 0)
    for _ in range(CYCLES):
        for words in writer_until_killed(tmp_path, force_every, lines=random.randint(1, 120)):
            if words[0] == "c":
                consumed = (int(words[1]), int(words[2]))
            else:
                acknowledged[int(words[0])] = max(acknowledged[int(words[0])], int(words[1]))
        with PagedQueue.open(tmp_path, "q", page_size=2048) as queue:
            found = {thread: [] for thread in range(THREADS)}
            for entry in queue.read():
                thread, number, *_ = entry.data.split(b" ", 2)
                found[int(thread)].append(int(number))
            for thread, numbers in found.items():
                assert numbers == list(range(len(numbers)))
                assert len(numbers) > acknowledged[thread]
            assert queue.cursor("c").committed > consumed
    assert min(acknowledged.values()) >= 0
    assert consumed > (0, 0)
    proved("processes", "paged queue", killed=CYCLES)


def writer_until_killed(directory, force_every, *, lines):
    """Every line that the writer said, killing it when it has said so many."""
    command = [sys.executable, "-m", "tests.queue.paged.writer_process", str(directory), str(force_every), str(THREADS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    said = [process.stdout.readline() for _ in range(lines)]
    process.send_signal(signal.SIGKILL)
    said += process.stdout.readlines()
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close()
    return [line.decode().split() for line in said if line.endswith(b"\n")]


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm_of_kills_loses_nothing_that_was_forced_and_repeats_only_what_was_not_committed(tmp_path, seed, proved):
    """Each process is killed as it opens, writes, reads, commits or reclaims, and the next one waits already."""
    random, figures = Random(seed), Counter()
    forced, read, committed = set(), set(), set()
    with Storm(tmp_path) as processes:
        for what, *ids in processes.lines(random):
            figures[what] += len(ids) or 1
            if what == "forced":
                forced.update(ids)
            elif what == "read":
                assert committed.isdisjoint(ids), "it was committed, and is read again"
                figures["again"] += len(read.intersection(ids))
                read.update(ids)
            else:
                committed |= read
    with PagedQueue.open(tmp_path, "q", page_size=storm.PAGE) as queue:
        rest = {storm.id_of(entry.data) for entry in queue.cursor("c").read(10**6)}
    assert committed.isdisjoint(rest)
    assert forced <= read | rest, "what was forced is gone"
    assert min(figures[what] for what in ("forced", "read", "committed", "again")) > 0, figures
    proved("processes", "paged queue", killed=STORM)
    print(dict(figures))


class Storm:
    """The processes of a storm, of which one has the queue open, and the next one waits for it."""

    def __init__(self, directory):
        self.directory, self.alive, self.begun = directory, {}, 0

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        unheard = list(self.alive)
        for child in unheard:
            self.killed(child)
        assert kind or not unheard, "a process may have read and committed, and nobody has heard what it said"

    def lines(self, random):
        """Every line that they say: each is killed after a while, and only the last one has none that waits for it."""
        this = self.start()
        for left in reversed(range(STORM)):
            following = self.start() if left else None
            time.sleep(random.choice((0, 0.002, 0.01, 0.03, 0.1)))
            yield from self.killed(this)
            this = following

    def start(self):
        reading, writing = os.pipe()
        self.begun += 1
        child = os.fork()
        if child == 0:
            try:
                os.close(reading)
                storm.work(self.directory, self.begun, writing)
            finally:
                os._exit(1)
        os.close(writing)
        self.alive[child] = reading
        return child

    def killed(self, child):
        """Kill it; the lines that it has said, each as its words."""
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        with os.fdopen(self.alive.pop(child), "rb") as said:
            return [line.decode().split() for line in said.read().split(b"\n")[:-1]]


class Killing(Files):
    """The operating system's files, in a process that ends before its n-th change of a file."""

    def __init__(self, steps):
        self.steps = steps

    def step(self):
        self.steps -= 1
        if self.steps < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def open(self, path, *, create=False):
        self.step()
        file = super().open(path, create=create)
        killing, file._fd = KillingFile(file._fd), -1
        killing.files = self
        return killing

    def replace(self, source, target):
        self.step()
        super().replace(source, target)


class KillingFile(File):
    __slots__ = ("files",)

    def write(self, data, position):
        half = len(data) // 2
        super().write(data[:half], position)
        self.files.step()
        super().write(data[half:], position + half)

    def allocate(self, size):
        self.files.step()
        super().allocate(size)

    def truncate(self, size):
        self.files.step()
        super().truncate(size)

    def sync(self):
        self.files.step()
        super().sync()


def test_recovery_killed_at_every_step_of_its_own_recovers(tmp_path, proved):
    queue = PagedQueue.open(tmp_path, "q", page_size=4096)
    sent = [b"%03d " % number + bytes(number) for number in range(60)]
    queue.append_many(sent)
    queue.cursor("c").read(5)
    queue.cursor("c").commit()
    last, end = queue._writer.tail
    queue.disown()
    with (tmp_path / f"q-{last}.page").open("r+b") as page:  # a torn tail, and an index that disagrees
        page.truncate(end + 40)
        page.seek(end)
        page.write(b"\0\0\0\x20" + bytes(range(36)))
    (tmp_path / f"q-{last}.idx").write_bytes(b"garbage")
    steps = 0
    while not recovers(tmp_path, steps):
        steps += 1
    assert steps > 10
    proved("processes", "paged queue", killed=steps)
    with PagedQueue.open(tmp_path, "q", page_size=4096) as queue:
        assert [entry.data for entry in queue.read()] == sent
        assert queue.cursor("c").read(1)[0].data == sent[5]


def recovers(directory, steps):
    """Open the queue in a child that is killed after so many steps; whether it got to the end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            PagedQueue.open(directory, "q", page_size=4096, files=Killing(steps))
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in {0, -signal.SIGKILL}
    return code == 0
