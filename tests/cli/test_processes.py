"""`latchwork worker --processes N`: a parent, and children that are killed, hang, grow, cannot start, and lose it."""

from __future__ import annotations

import json
import mmap
import os
import re
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
import warnings
from collections import Counter, defaultdict, deque
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import latchwork
from latchwork import logs
from latchwork.cli.processes import channel as channels
from latchwork.cli.processes import child as children
from latchwork.cli.processes import parent as parents
from latchwork.cli.processes.channel import Channel
from latchwork.cli.processes.child import Child
from latchwork.cli.processes.files import Files
from latchwork.cli.processes.parent import Parent, Plan, _shared_memory
from latchwork.cli.processes.parent_probe import ParentProbe, merged
from latchwork.cli.processes.sizes import checked_size
from latchwork.errors import InvalidRequest, Unavailable
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.queue.sharded.consumer.in_hand import SIZE, Noted, Notes, Stage
from latchwork.queue.sharded.in_flight import in_flight
from latchwork.queue.sharded.workers import WorkerReport, reporting, workers_of
from latchwork.store import MemoryStore
from latchwork.store.rows import Rows
from latchwork.testing import ManualClock
from tests.support.scale import scaled
from tests.support.waiting import until

PATIENCE = 120.0
JOBS = """
import os
import time

import latchwork
from latchwork.queue import QueueRegistry, Worker

worker = Worker(QueueRegistry(latchwork.connect(), "shop"), grace=1.0)
grown = []


@worker.handler("orders", concurrency=THREADS)
def handle(delivery):
    facts = delivery.payload, os.getpid(), delivery.attempts, delivery.reason, delivery.last_error
    os.write(1, "|".join(map(str, facts)).encode() + b"\\n")
    if delivery.payload == "die" and delivery.attempts == 1:
        os.kill(os.getpid(), 9)
    if delivery.payload == "grow":
        grown.append(b"x" * 200_000_000)


@worker.handler("slow", concurrency=1)
def slow(delivery):
    handle(delivery)
    if delivery.reason is None:
        time.sleep(3600)


@worker.handler("hangs", concurrency=1)
def hangs(delivery):
    slow(delivery)
"""
AWAITED = (
    JOBS.partition('@worker.handler("slow"')[0]
    .replace("from latchwork.queue import", "from latchwork.aio import connect,")
    .replace("latchwork.connect", "connect").replace("def handle", "async def handle")
)  # fmt: skip
"""Its handler is async, and so is the worker."""


@pytest.fixture
def place(tmp_path):
    """A folder with a program, the environment in which its store is known, and its queues."""
    (tmp_path / "jobs.py").write_text(JOBS.replace("THREADS", "1"))
    url = f"sqlite:{tmp_path / 'store.db'}?synchronous=off"
    queues = queues_of(QueueRegistry(latchwork.connect(url), "shop"), 2)
    return tmp_path, {**os.environ, "LATCHWORK_STORE": url}, queues


def queues_of(registry, shards):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            registry.create(QueueConfig("orders", shards=shards, backoff=0.1)),
            registry.create(QueueConfig("slow", shards=1)),
            registry.create(QueueConfig("hangs", shards=1, handler_timeout=1, backoff=0.1, unsafe_limits=True)),
        ]


def on_the_server(place, store, server):
    """The same queues on a real server, for the same program, as a client of its own."""
    client = f"children{uuid.uuid4().hex[:8]}"
    (place[0] / "jobs.py").write_text(JOBS.replace("THREADS", "2").replace('"shop"', f'"{client}"'))
    place[1]["LATCHWORK_STORE"] = server.url
    return queues_of(QueueRegistry(store, client), 4)


class Run:
    """A parent that runs, what it and its children have said, and the pids of the children."""

    def __init__(self, place, *options, program="jobs:worker"):
        folder, environment, _ = place
        self.process = subprocess.Popen(
            [sys.executable, "-m", "latchwork", "worker", program, *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment,
        )  # fmt: skip
        self.printed, self.logged = [], []
        for stream, lines in ((self.process.stdout, self.printed), (self.process.stderr, self.logged)):
            threading.Thread(target=self._read, args=(stream, lines), daemon=True).start()

    def _read(self, stream, lines):
        for line in stream:
            lines.append(line.rstrip("\n"))

    def await_log(self, text, times=1):
        return self._awaited(lambda: [line for line in self.logged if text in line], times)

    def await_word(self, word, times=1):
        return self._awaited(lambda: [line for line in self.printed if line.startswith(f"{word}|")], times)

    def _awaited(self, look, times):
        def there():
            ended = self.process.poll() is not None
            return (len(found := look()) >= times and found) or (ended and ["it has ended"])

        found = until(there, PATIENCE)
        assert len(found) >= times, self.logged[-5:]
        return found

    @property
    def attempts(self):
        return [(word, int(attempts)) for word, _, attempts, *_ in (line.split("|") for line in self.printed)]

    @property
    def pids(self):
        return {int(pid) for pid in re.findall(r"child \d+ \(pid (\d+)\) works", "\n".join(self.logged))}

    def get(self, path):
        (line,) = self.await_log("probes at ")
        port = re.search(r":(\d+)/healthz", line)[1]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as failure:
            return failure.code, failure.read().decode()

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


def is_there(pid):
    """Whether the process runs; one that has ended and waits for its parent does not."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextmanager
def running(place, *options, **others):
    run = Run(place, *options, **others)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()
        for pid in run.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def reported(queue):
    """Why attempts failed, by the reports of workers that live."""
    (found,) = workers_of([queue])
    return dict(sum((Counter(one.reasons) for one in found if not one.is_silent), Counter()))


def is_empty(queue):
    depth = queue.depth()
    return not (depth.ready or depth.sideline or depth.parked or depth.delayed)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [JOBS, pytest.param(AWAITED, marks=pytest.mark.long)], ids=["sync", "async"])
def test_a_child_that_is_killed_is_replaced_and_its_message_alone_has_an_attempt_more(place, jobs):
    (place[0] / "jobs.py").write_text(jobs.replace("THREADS", "1"))
    orders = place[2][0]
    words = [f"m{n}" for n in range(40)]
    orders.publish_many(words[:20])
    with running(place, "--processes", "2") as run:
        run.await_log("works, ", 2)
        until(lambda: len(orders.workers()) == 2)  # only of a process that has reported it is noted
        orders.publish_many(["die", *words[20:]])
        run.await_word("die", 2)
        until(lambda: len(run.attempts) >= 42 and is_empty(orders), PATIENCE)  # what is in hand is no part of its depth
        assert sorted(set(run.attempts)) == sorted([*((word, 1) for word in words), ("die", 1), ("die", 2)])
        assert len(run.attempts) == 42, "nothing was handled twice"
        died = run.printed[run.attempts.index(("die", 2))]
        assert re.search(r"\|swept\|its process, child \d \(pid \d+\), was killed by SIGKILL, as the system does", died)
        run.await_log("works, ", 3)
        until(lambda: [one.settled for one in orders.workers()].count(True) == 1, PATIENCE)
        assert sum(one.is_silent for one in orders.workers()) == 1, "it is known to be dead at once"
        assert until(lambda: reported(orders), PATIENCE) == {"swept": 1}, "its failure is counted by one that lives"
        assert run.end() == 0
    assert not any(map(is_there, run.pids))
    assert [line for line in run.logged if re.search(r"\[child 2, pid \d+\] the worker of 'shop' works", line)]


@pytest.mark.long
def test_what_a_child_had_in_hand_comes_back_also_if_the_one_that_is_to_settle_it_is_killed_too(place):
    slow = place[2][1]
    slow.publish_many(["one", "two"])
    with running(place, "--processes", "2") as run:
        pids = [int(run.await_word(word)[0].split("|")[1]) for word in ("one", "two")]
        run.await_log("works, ", 2)
        (first,) = (pid for pid in pids if any(f"child 1 (pid {pid})" in line for line in run.logged))
        (second,) = {*pids} - {first}
        until(lambda: len(slow.workers()) == 2)  # only of a process that has reported it is noted
        os.kill(first, signal.SIGSTOP)  # it is asked, as it is known to work, and never reads that
        os.kill(second, signal.SIGKILL)
        run.await_log(f"(pid {second}) was killed by SIGKILL")
        time.sleep(0.3)
        os.kill(first, signal.SIGKILL)
        for word in ("one", "two"):
            assert run.await_word(word, 2)[1].split("|")[2:4] == ["2", "swept"]
        until(lambda: is_empty(slow), PATIENCE)
        until(lambda: [one.settled for one in slow.workers()].count(True) == 2, PATIENCE)
        assert run.end() == 0


@pytest.mark.long
def test_children_that_are_killed_by_memory_for_minutes_lose_nothing_and_cost_nobody_else_an_attempt(
    place, aerospike_store, aerospike_server, proved
):
    orders, _, _ = on_the_server(place, aerospike_store, aerospike_server)
    published, deaths, seconds = 0, 0, scaled(300)
    with running(place, "--processes", "4") as run:
        run.await_log("works, ", 4)
        end = time.monotonic() + seconds
        while time.monotonic() < end or not deaths:
            orders.publish_many([f"m{n}" for n in range(published, published + 200)])
            published += 200
            if published % 4000 == 0:  # not so often that all children wait: a replacement waits for up to 30 s
                orders.publish("die", message_id=f"die-{deaths}")
                deaths += 1
            time.sleep(1.0)
        words = {"die", *(f"m{n}" for n in range(published))}
        try:  # what is in hand is no part of its depth; in much less time than a sweep takes
            until(lambda: words <= {word for word, _ in run.attempts} and is_empty(orders), PATIENCE)
        except AssertionError:
            missing = sorted(words - {word for word, _ in run.attempts})
            last = "\n".join(run.logged[-40:])
            pytest.fail(
                f"never handled {missing}; {orders.depth()}; in hand {in_flight(orders).held[:20]}; log:\n{last}"
            )
        assert run.end() == 0
    killed = set(re.findall(r"child \d+ \(pid (\d+)\) was killed by SIGKILL", "\n".join(run.logged)))
    assert len(killed) == deaths > 0
    begun = defaultdict[str, list[tuple[int, str]]](list)
    for word, pid, attempts, *_ in (line.split("|") for line in run.printed):
        if word != "die":
            begun[word].append((int(attempts), pid))
    # A child may have handled a message well, and be killed minutes later: it died with what was begun once more. And
    # one that is killed as a handler begins prints nothing of that, so its attempt is missing.
    unseen = 0
    for word, runs in begun.items():
        attempts = [attempt for attempt, _ in runs]
        assert attempts == sorted(set(attempts)), f"{word}: {runs}"
        assert {pid for _, pid in runs[:-1]} <= killed, f"{word} came again, and its process had not died: {runs}"
        unseen += attempts[-1] - len(runs)
    assert unseen <= 16 * deaths, "no more than the processes that were killed had in hand"
    again = sum(len(runs) > 1 for runs in begun.values())
    proved("processes", "worker --processes, Aerospike", killed=deaths, messages=len(begun), again=again)


def test_all_children_are_seen_at_one_port_and_one_that_hangs_delays_no_answer(place):
    with running(place, "--processes", "2", "--probe", "0") as run:
        run.await_log("works, ", 2)
        until(lambda: run.get("/readyz") == (200, "2 of 2 children take messages\n"))
        assert run.get("/healthz") == (200, "ok\n")
        status, text = run.get("/scale/orders")
        assert (status, json.loads(text)["threads"], json.loads(text)["ready"]) == (200, 2, 0)
        assert run.get("/scale/nowhere")[0] == 404
        status, text = run.get("/metrics")
        assert status == 200
        assert text.count('latchwork_queue_depth{part="ready",queue="orders"}') == 1
        shown = re.findall(r'^process_resident_memory_bytes\{child="(\w+)"\}', text, re.MULTILINE)
        assert sorted(shown) == ["1", "2", "parent"]
        stopped = max(run.pids)
        os.kill(stopped, signal.SIGSTOP)
        status, text = run.get("/metrics")
        assert len(re.findall(r"^process_resident_memory_bytes\{", text, re.MULTILINE)) == 2, "the parent and the other"
        os.kill(stopped, signal.SIGCONT)
        run.process.kill()  # and nobody is left behind
        until(lambda: not any(map(is_there, run.pids)), PATIENCE)


def test_a_handler_over_its_time_is_ended_with_its_process_and_costs_its_neighbours_nothing(
    place, aerospike_store, aerospike_server
):
    _, slow, hangs = on_the_server(place, aerospike_store, aerospike_server)
    with running(place, "--processes", "1") as run:
        slow.publish("neighbour")
        run.await_word("neighbour")
        hangs.publish("hang")
        run.await_log("a handler ran longer than the handler_timeout of its queue")
        run.await_word("hang", 2)
        run.await_word("neighbour", 2)
        assert [line.split("|")[2:4] for line in run.await_word("neighbour", 2)] == [
            ["1", "None"],
            ["1", "interrupted"],
        ]
        assert [line.split("|")[2:4] for line in run.await_word("hang", 2)] == [["1", "None"], ["2", "timeout"]]
        assert len({line.split("|")[1] for line in run.printed}) == 2
        assert until(lambda: reported(hangs), PATIENCE) == {"timeout": 1}, "its count does not go with it"
        assert run.end(signal.SIGINT) == 0


@pytest.mark.long
def test_a_child_is_replaced_after_its_messages_and_at_its_memory_and_no_attempt_is_lost(place):
    (place[0] / "jobs.py").write_text(JOBS.replace("THREADS", "4"))
    orders = place[2][0]
    orders.publish_many(range(60))
    with running(place, "--max-messages", "50", "--max-memory", "180M") as run:
        run.await_log("has ended (it has handled ")
        orders.publish("grow")
        run.await_log("of memory")
        run.await_log("works, ", 3)
        until(lambda: len(run.attempts) >= 61 and is_empty(orders), PATIENCE)
        assert sorted(run.attempts) == sorted([*((str(n), 1) for n in range(60)), ("grow", 1)])
        assert run.end(signal.SIGHUP) == 0


INTERRUPTED_AT_ITS_END = """
import os
import signal

from jobs import worker


class Interrupts:
    def __init__(self):
        self.kill, self.me, self.number = os.kill, os.getpid(), signal.SIGINT

    def __del__(self):  # as the interpreter takes the modules down: it has given the handlers of signals up
        self.kill(self.me, self.number)


interrupts = Interrupts()
"""


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["--processes", "1"]], ids=["alone", "child"])
def test_a_second_interrupt_while_the_interpreter_ends_does_not_say_that_work_was_cut(place, options):
    (place[0] / "ends.py").write_text(INTERRUPTED_AT_ITS_END)
    with running(place, *options, program="ends:worker") as run:
        run.await_log("the worker of 'shop' works" if not options else "works, ")
        assert run.end(signal.SIGINT) == 0


def test_a_program_that_cannot_start_ends_the_parent_at_once_with_one_message(place):
    (place[0] / "broken.py").write_text("import nothing_of_that_name\n")
    with running(place, "--processes", "3", program="broken:worker") as run:
        run.await_log("could not start: it ended with exit code 1")
        assert run.process.wait(PATIENCE) == 1
    assert len([line for line in run.logged if line.startswith("ModuleNotFoundError")]) == 1


LOADING = "import os, time\nos.write(1, f'loading|{os.getpid()}\\n'.encode())\ntime.sleep(600)\n"


@pytest.mark.long
def test_a_child_that_is_killed_before_it_began_is_no_work_that_was_cut(place):
    (place[0] / "loading.py").write_text(LOADING)
    with running(place, "--processes", "1", program="loading:worker") as run:
        (said,) = run.await_word("loading")
        os.kill(int(said.partition("|")[2]), signal.SIGSTOP)  # as on a machine that is busy
        assert run.end() == 0
        run.await_log("did not end in time: it is killed")


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_group_while_the_program_is_loaded_ends_it_well(place, number):
    """As of an init system, or of a terminal that is closed."""
    (place[0] / "loading.py").write_text(LOADING)
    with running(place, "--processes", "2", program="loading:worker") as run:
        (said,) = run.await_word("loading")
        run.process.send_signal(signal.SIGSTOP)
        os.kill(int(said.partition("|")[2]), number)
        run.process.send_signal(number)
        run.process.send_signal(signal.SIGCONT)
        assert run.process.wait(PATIENCE) == 0
        assert not [line for line in run.logged if "ERROR" in line]


@pytest.mark.long
def test_while_it_is_written_the_program_starts_again_with_every_change(place):
    program = place[0] / "draft.py"
    program.write_text("this is no Python\n")
    with running(place, "--reload", program="draft:worker") as run:
        run.await_log("waiting until a file changes")
        program.write_text(JOBS.replace("THREADS", "1"))
        run.await_log("works, ")
        place[2][0].publish("first")
        run.await_word("first")
        program.write_text(JOBS.replace("THREADS", "1") + "\nprint('again', flush=True)\n")
        until(lambda: "again" in run.printed, PATIENCE)
        run.await_log("works, ", 2)
        assert run.end() == 0


def test_metrics_of_children_are_one_page_in_which_a_family_is_there_once():
    one = '# HELP a what\n# TYPE a gauge\na 1.0\n# TYPE b counter\nb_total{q="x"} 2.0\n# TYPE depth gauge\ndepth 7.0\n'
    two = "# HELP a what\n# TYPE a gauge\na 3.0\n# TYPE depth gauge\ndepth 8.0\n"
    assert merged({"1": one, "2": two}, "# TYPE depth gauge\ndepth 9.0\n").splitlines() == [
        "# TYPE depth gauge", "depth 9.0", "# HELP a what", "# TYPE a gauge", 'a{child="1"} 1.0', 'a{child="2"} 3.0',
        "# TYPE b counter", 'b_total{child="1",q="x"} 2.0',
    ]  # fmt: skip


def test_a_line_of_metrics_ends_at_a_newline_alone():
    one = '# TYPE a gauge\na{q="x\x85y\u2028z"} 1.0\n'
    assert merged({"1": one}, "") == '# TYPE a gauge\na{child="1",q="x\x85y\u2028z"} 1.0\n'


class NumberedChild:
    """A child, by its number."""

    def __init__(self, number):
        self.number = number


class Answering:
    """A parent of two children.

    answers: by child and path; None = it does not answer. A child that is named there takes messages.
    """

    def __init__(self, answers=(), names=()):
        self.seats = [NumberedChild(1), NumberedChild(2)]
        self.answers, self.silent = dict(answers), lambda _: names
        self.totals = {"a/b": (7, 2)}.get

    def at_work(self):
        return [one for one in self.seats if any(one.number == number for number, _ in self.answers)]

    def ask(self, children, path, timeout, totals=None):
        assert timeout <= 5.0, "who asked has gone by then"
        found = {child: self.answers.get((child.number, path)) for child in children}
        return {child: one(totals) if callable(one) else one for child, one in found.items() if one}


def asked(path, answers=(), names=()):
    """The status, and the body as text, of what the probe of such a parent answers."""
    with ParentProbe(Answering(answers, names), "127.0.0.1", 0) as probe:
        status, _, body = probe.answer(path)
    return status, body.decode()


def test_the_probe_of_a_parent_says_which_children_are_silent_and_how_many_take_messages():
    assert asked("/healthz") == (200, "ok\n")
    assert asked("/healthz", names=["child 2 (pid 7)"]) == (503, "child 2 (pid 7) has said nothing for 30 s\n")
    assert asked("/readyz", {(2, "/metrics"): None}) == (200, "1 of 2 children take messages\n")
    assert asked("/readyz") == (503, "0 of 2 children take messages\n")
    assert asked("/metricsandmore") == (404, "there are /healthz, /readyz, /metrics, /scale/QUEUE\n")


def test_the_metrics_of_a_parent_are_those_of_the_children_that_answer_or_why_none_does():
    of_queues = (200, "text/plain", b"# TYPE depth gauge\ndepth 9.0\n")
    good, bad = (200, "text/plain", b"# TYPE a gauge\na 1.0\n"), (501, "text/plain", b"no metrics\n")
    status, text = asked("/metrics", {(1, "/metrics"): bad, (2, "/metrics"): good, (1, "/metrics/queues"): of_queues})
    assert status == 200
    assert text.startswith('# TYPE depth gauge\ndepth 9.0\n# TYPE a gauge\na{child="2"} 1.0\n')
    assert '{child="parent"' in text
    for queues in (None, bad):
        status, text = asked("/metrics", {(1, "/metrics"): good, (1, "/metrics/queues"): queues})
        assert (status, text.partition("# HELP")[0]) == (200, '# TYPE a gauge\na{child="1"} 1.0\n')
    assert asked("/metrics", {(1, "/metrics"): bad, (2, "/metrics"): None}) == (501, "no metrics\n")
    assert asked("/metrics", {(1, "/metrics"): None}) == (503, "no child has answered\n")


def test_one_child_is_asked_for_the_scale_of_a_queue_with_the_counts_of_all():
    def answer(totals):
        return (200, "application/json", json.dumps(totals).encode())

    path = "/scale/a%2Fb"
    assert asked(path, {(1, path): answer, (2, path): None}) == (200, "[7, 2]")
    status, text = asked(path, {(1, path): None, (2, path): answer})
    assert (status, json.loads(text)["error"]) == (503, "UNAVAILABLE")


def apart():
    """A child that has not begun, and its parent's end of the channel."""
    ours, theirs = socket.socketpair()
    return Child(f"1:{theirs.detach()}:{_shared_memory()}"), Channel(ours)


def test_a_collector_that_raises_is_an_answer_of_its_own_and_ends_no_child():
    class Raises:
        def answer(self, path, totals):
            raise RuntimeError("a collector of the program")

    child, parent = apart()
    child._answers = Raises()
    child._answer({"ask": 7, "path": "/metrics"})
    assert parent.received() == [{
        "answer": 7, "status": 500, "kind": "text/plain; charset=utf-8", "body": "it failed: see the log\n"
    }]  # fmt: skip
    parent.close()
    child._channel.close()


def test_a_size_is_read_as_people_write_it_and_a_worker_that_could_not_start_is_refused():
    assert [checked_size("m", text) for text in ("512M", "1.5G", "20000k", "64 MiB", "16M")] == [
        512 * 2**20, 3 * 2**29, 20_000 * 2**10, 2**26, 2**24,
    ]  # fmt: skip
    for text in ("", "many", "1T", "100", "-5G", "15.9M", "9" * 400):
        with pytest.raises(InvalidRequest, match="write at least 16 MiB"):
            checked_size("--max-memory", text)


def test_a_file_counts_as_changed_once_also_if_it_comes_or_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".venv").mkdir()
    for name in ("jobs.py", ".venv/other.py"):
        (tmp_path / name).write_text("")
    files = Files()
    files.begin()
    files.watch([str(tmp_path / "later.py")])
    files.watch_folder()
    assert files.changed(0.0) is None
    (tmp_path / ".venv/other.py").write_text("1")
    (tmp_path / "later.py").write_text("")
    assert files.changed(0.1) is None, "it was looked a moment ago"
    assert files.changed(1.0) == str(tmp_path / "later.py")
    (tmp_path / "jobs.py").unlink()
    assert files.changed(2.0) == str(tmp_path / "jobs.py")
    assert files.changed(3.0) is None


def test_a_change_counts_that_came_while_the_program_was_loaded_and_so_does_a_new_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.py").write_text("")
    files = Files()
    files.begin()
    (tmp_path / "jobs.py").write_text("import other")
    files.watch_folder()
    assert files.changed(1.0) == str(tmp_path / "jobs.py")
    assert files.changed(2.0) is None
    (tmp_path / "other.py").write_text("")
    assert files.changed(3.0) == str(tmp_path / "other.py")


def test_modules_of_every_folder_below_are_watched_but_for_those_of_packages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    modules = [tmp_path / folder / "jobs.py" for folder in ("shop/inner", "env/site-packages", "node_modules")]
    for module in modules:
        module.parent.mkdir(parents=True)
        module.write_text("")
    files = Files()
    files.begin()
    files.watch_folder()
    for module in modules:
        module.write_text("import other")
    assert files.changed(1.0) == str(modules[0])
    for module in modules[1:]:
        module.unlink()
    assert files.changed(2.0) is None


def descriptors():
    """What this process holds open, under names that are not given twice, as the numbers are."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists them, and what another thread has closed
            found.add(entry.readlink())
    return found


def test_a_child_for_which_no_process_can_be_made_is_tried_again_and_ends_no_other(monkeypatch, caplog):
    def none(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    parent = Parent(Plan(["--version"]))
    (seat,) = parent.seats
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", none)
        with pytest.raises(BlockingIOError):  # the first of all: the command ends with the error
            parent._fill()
        clock = with_clock(parent, monkeypatch)
        parent._proved, open_before = True, descriptors()
        parent._fill()
        parent._fill()
    assert (seat.child, seat.failures) == (None, 1)
    assert seat.due > clock.monotonic()
    assert "child 1: no process could be started ([Errno 11] Resource temporarily unavailable)" in caplog.text
    assert descriptors() <= open_before
    seat.due = 0.0
    parent._fill()
    try:
        assert seat.child is not None
    finally:
        seat.child.process.kill()
        seat.child.process.wait()
        seat.child.channel.close()


class Process:
    """The process of a child."""

    pid, returncode = 7, None

    def __init__(self):
        self.told = []

    def poll(self):
        return self.returncode

    def terminate(self):
        self.told.append("terminate")

    def kill(self):
        self.told.append("kill")


def seated(parent):
    """Children of a parent that take messages, and the other ends of their channels."""
    ends = []
    for seat in parent.seats:
        ours, theirs = socket.socketpair()
        ends.append(theirs)
        now = time.monotonic()
        seat.child = parents.Child(
            seat.number, Process(), Channel(ours, 2.0), mmap.mmap(-1, SIZE), float("inf"), now, parent._listened,
            {"upkeep": True, "timeout": 1.0, "memory": 0},
            {"takes": True, "stuck": 0, "died": [], "handled": 0, "memory": 0},
        )  # fmt: skip
    return [seat.child for seat in parent.seats], ends


def test_a_child_that_cannot_be_killed_at_once_is_said_to_be_killed_once_and_asked_for_nothing(caplog):
    parent = Parent(Plan(["--version"], processes=2))
    (hangs, other), ends = seated(parent)
    hangs.heard -= parents.SILENT + 2
    for _ in range(3):  # as where the kernel waits for a disk
        parent._judge()
        parent._share()
    assert hangs.process.told == ["kill"]
    assert caplog.text.count("it is killed") == 1
    assert (hangs.does_upkeep, other.does_upkeep) == (False, True)
    for one in (hangs, other):
        one.channel.close()
    for end in ends:
        end.close()


def test_what_a_child_that_does_not_read_is_asked_for_is_done_by_another():
    parent = Parent(Plan(["--version"], processes=2))
    (silent, other), ends = seated(parent)
    silent.channel._end.settimeout(0.05)
    in_hand = [Noted(0, Stage.BEGUN, 0, n, "d" * 100) for n in range(1, 5_000)]
    parent._left.append(parents.Leftover(1, in_hand, "it died", True, "child 3", None))
    reader = threading.Thread(target=lambda: deque(iter(lambda: ends[1].recv(65_536), b""), maxlen=0), daemon=True)
    reader.start()
    parent._share()
    parent._share()
    assert list(other.settles) == [1]
    assert other.does_upkeep
    assert parent._left == []
    parent._drain(silent, "it is replaced")
    assert silent.process.told == ["terminate"]
    other.channel.close()
    reader.join()
    silent.channel.close()


def test_a_child_that_could_not_settle_for_another_does_not_say_that_it_did(monkeypatch, caplog):
    caplog.set_level("INFO")
    queue = QueueRegistry(MemoryStore(), "shop").create(QueueConfig("q", shards=1))
    queue.publish("m")
    (held,) = queue.receive()
    queue.store.repeat(reporting(queue, WorkerReport("vm:1:a", 0.0, 0, 1, 1, 0, 0)))
    monkeypatch.setattr(queue.pointers, "held_by", lambda slots, ids: Rows([Unavailable("away")] * len(slots)))
    worker = SimpleNamespace(queues=["q"], consumers={"q": SimpleNamespace(queue=queue)})
    noted = [0, int(Stage.BEGUN), *held.held.slot, held.held.delivery, ""]
    document = {"settle": [noted], "why": "it died", "counts": True, "of": "child 2", "worker": "vm:1:a"}
    Child._settle_each(None, worker, document, [])
    assert "of what child 2 had in hand: left to the sweep: 1" in caplog.text
    assert [one.settled for one in queue.workers()] == [False]


# ---- a side that does not read


def awaits_room(channel):
    """Wait until what the other side has not read leaves no room."""
    until(lambda: not select.select([], [channel], [], 0)[1])


@contextmanager
def speaking(run):
    """Something that is said in a thread; it has ended behind the block."""
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield thread
    thread.join(PATIENCE)
    assert not thread.is_alive()


def heard(channel, number):
    """So many documents."""
    documents = []
    while len(documents) < number:
        documents += channel.received()
    return documents


def test_what_a_child_says_while_its_parent_does_not_read_is_heard_once_it_does(monkeypatch):
    monkeypatch.setattr(channels, "PATIENCE", 0.01)
    (child, parent), sent = apart(), []
    with speaking(lambda: sent.extend(child._channel.send(pulse=n) for n in range(2_000))) as speaker:
        awaits_room(child._channel)
        speaker.join(0.2)
        assert speaker.is_alive(), "it waits"
        assert [one["pulse"] for one in heard(parent, 2_000)] == [*range(2_000)]
    assert sent == [True] * 2_000
    parent.close()
    child._channel.close()


def test_a_child_tells_that_it_settles_for_another_before_it_does_though_the_parent_does_not_read(monkeypatch):
    monkeypatch.setattr(channels, "PATIENCE", 0.01)
    (child, parent), settled = apart(), []
    child._settle_each = lambda *_: settled.append(True)
    filled = 0
    with suppress(OSError):  # there is no room at all
        while child._channel._end.send(b'{"pulse": 0}\n', socket.MSG_DONTWAIT):
            filled += 1
    with speaking(lambda: child._settle(None, {"leftover": 7})) as settler:
        settler.join(0.2)
        assert not settled
        *_, begins, ends = heard(parent, filled + 2)
        assert (begins, ends) == ({"settles": 7}, {"settled": 7, "counts": []})
    assert settled
    parent.close()
    child._channel.close()


def test_a_child_that_waits_for_room_drains_once_its_parent_has_died(monkeypatch):
    monkeypatch.setattr(children, "PULSE", 0.0)
    child, parent = apart()
    child._worker, child._begins = SimpleNamespace(), True
    child._say = lambda worker: child._channel.send(pulse={})
    try:
        with speaking(child._pulse):
            awaits_room(child._channel)
            parent.close()
        assert child._asked
    finally:
        logs._ends.clear()  # this process does not end
        child._channel.close()


def test_a_question_or_an_answer_that_nobody_reads_is_dropped_and_the_next_one_is_heard(monkeypatch):
    monkeypatch.setattr(channels, "PATIENCE", 0.01)
    parent = Parent(Plan(["--version"]))
    (stopped,), (end,) = seated(parent)
    stopped.channel._end.settimeout(0.01)
    child, asked = Channel(end), 0
    while select.select([], [stopped.channel], [], 0)[1]:
        assert parent.ask([stopped], "/metrics", 0.0) == {}
        asked += 1
    parent.ask([stopped], "/dropped", 0.0)
    assert stopped.works
    assert {one["path"] for one in heard(child, asked)} == {"/metrics"}
    parent.ask([stopped], "/metrics/queues", 0.0)
    assert [one["path"] for one in heard(child, 1)] == ["/metrics/queues"]
    child.close()
    stopped.channel.close()


def with_clock(parent, monkeypatch):
    """The clock by which a parent goes from now on; it waits for nothing."""
    monkeypatch.setattr(parents, "LOOK", 0)
    clock = parent._seams = ManualClock()
    parent._looked = clock.monotonic()
    return clock


def rounds(parent, clock, seconds, *speak):
    """So many rounds of a second, in each of which some say something."""
    for _ in range(seconds):
        for end in speak:
            end.sendall(b'{"answer": 0}\n')
        clock.advance(1.0)
        parent._listen()
        parent._judge()


def test_the_time_in_which_a_parent_was_stopped_makes_no_child_silent(monkeypatch):
    parent = Parent(Plan(["--version"], processes=2))
    clock = with_clock(parent, monkeypatch)
    (speaks, hangs), ends = seated(parent)
    for child in (speaks, hangs):
        parent._selector.register(child.channel, selectors.EVENT_READ, child)
    rounds(parent, clock, 5, *ends)
    for place in ("_listen", "_judge"):  # between any two steps
        clock.advance(3600.0)
        getattr(parent, place)()
        parent._judge()
        rounds(parent, clock, 5, ends[0])
    assert speaks.process.told == hangs.process.told == []
    assert parent.silent(15.0) == []
    rounds(parent, clock, 60, ends[0])
    assert (speaks.process.told, hangs.process.told) == ([], ["kill"])
    for one in (speaks, hangs):
        one.channel.close()
    for end in ends:
        end.close()


def test_the_time_in_which_a_parent_was_stopped_is_no_part_of_the_time_to_end(monkeypatch):
    parent = Parent(Plan(["--version"]))
    clock = with_clock(parent, monkeypatch)
    (child,), (end,) = seated(parent)
    parent._drain(child, "it is replaced")
    clock.advance(3600.0)
    rounds(parent, clock, 3)
    assert child.process.told == []
    rounds(parent, clock, 3)
    assert child.process.told == ["kill"]
    child.channel.close()
    end.close()


def test_a_probe_sees_a_parent_that_hangs_itself(monkeypatch):
    parent = Parent(Plan(["--version"]))
    clock = with_clock(parent, monkeypatch)
    (child,), (end,) = seated(parent)
    for _ in range(30):
        clock.advance(0.1)
        parent._listen()
    assert parent.silent(5.0) == []
    clock.advance(31.0)
    assert parent.silent(30.0) == [child.name]
    child.channel.close()
    end.close()


def test_the_last_words_of_a_child_are_heard_behind_a_long_answer(monkeypatch):
    monkeypatch.setattr(channels, "CHUNK", 64)
    parent = Parent(Plan(["--version"]))
    (child,), (end,) = seated(parent)
    child.settles[7] = parents.Leftover(7, [], "it died", True, "child 3", None)
    last = Channel(end)
    last.send(answer=1, status=200, kind="text/plain", body="x" * 1_000)
    last.send(settles=7)
    parent._hear_the_last(child)
    assert child.settles[7].has_begun
    last.close()
    child.channel.close()


def test_no_two_threads_of_a_probe_ask_by_the_same_number():
    parent, asked = Parent(Plan(["--version"])), []

    class Asked:
        channel = SimpleNamespace(offer=lambda **question: asked.append(question["ask"]))

    def interrupted(frame, event, _):
        """Another question comes between any two instructions of one."""
        if frame.f_code is not Parent.ask.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            parent.ask([Asked()], "/metrics", 0.0)
        return interrupted

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # else Python 3.12 begins with the next `settrace`
    sys.settrace(interrupted)
    try:
        parent.ask([Asked()], "/metrics", 0.0)
    finally:
        sys.settrace(before)
    assert len(asked) > 10
    assert len(set(asked)) == len(asked)


@pytest.mark.parametrize("handled", [0, 9], ids=["idle", "busy"])  # by its first report
def test_a_child_that_has_too_much_memory_at_rest_is_an_error_and_the_next_one_starts_later_each_time(
    handled, monkeypatch, caplog
):
    parent = Parent(Plan(["--version"], max_memory=100 * 2**20))
    clock = with_clock(parent, monkeypatch)
    (seat,) = parent.seats

    def ends(at_rest, now):
        (child,), (end,) = seated(parent)
        child.ready["memory"], child.pulse["memory"], child.pulse["handled"] = at_rest, now, handled
        child.started = clock.monotonic()
        parent._judge()
        child.process.returncode = 0
        parent._ended(seat, child)
        child.channel.close()
        end.close()
        return seat.due - clock.monotonic()

    pauses = [ends(150 * 2**20, 160 * 2**20 if handled else 150 * 2**20) for _ in range(9)]
    assert pauses == pytest.approx([0.5, 1, 2, 4, 8, 16, 30, 30, 30])
    (said, *_) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert "it had 150 MiB of memory before it handled a message, and --max-memory is 100 MiB" in said
    assert "set it higher, or let the program need less; another starts in 0.5 s" in said
    if handled:
        assert ends(50 * 2**20, 160 * 2**20) == 0, "it has grown meanwhile"


def test_a_child_answers_what_it_was_asked_and_an_answer_that_nobody_waits_for_is_dropped(monkeypatch, caplog):
    caplog.set_level("INFO")
    parent = Parent(Plan(["--version"]))
    (child,), (end,) = seated(parent)
    parent._selector.register(child.channel, selectors.EVENT_READ, child)
    found = []
    with speaking(lambda: found.append(parent.ask([child], "/scale/orders", PATIENCE, (7, 2)))):
        theirs = Channel(end)
        (question,) = heard(theirs, 1)
        assert (question["path"], question["totals"]) == ("/scale/orders", [7, 2])
        for number in (question["ask"] + 1, question["ask"]):
            theirs.send(answer=number, status=200, kind="text/plain", body=f"{number}")
        until(lambda: parent._listen() or found)
    assert found == [{child: (200, "text/plain", f"{question['ask']}".encode())}]
    child.started = with_clock(parent, monkeypatch).monotonic() - 2.0
    theirs.send(ready={"upkeep": True})
    parent._listen()
    assert caplog.messages == ["child 1 (pid 7) works, 2.0 s after its start"]
    theirs.close()
    child.channel.close()


# ---- how a child ends


def one_that_ends(parent, code, **facts):
    """The only child of a parent, which has ended with this code, is taken note of; its seat."""
    (child,), (end,) = seated(parent)
    end.close()
    for name, value in {"started": parent._seams.monotonic(), **facts}.items():
        setattr(child, name, value)
    child.process.returncode = code
    parent._reap()
    return parent.seats[0]


def noting(*held):
    """Memory in which a child has noted these messages of its first queue."""
    notes = Notes(mmap.mmap(-1, SIZE))
    for stage, n in held:
        notes.put(0, stage, (0, n), f"d{n}")
    return notes.memory


@pytest.mark.parametrize(
    ("code", "facts", "said"),
    [
        (0, {"leaves": "it has handled 3 messages"}, "has ended (it has handled 3 messages); another starts"),
        (1, {"leaves": "it got a signal"}, "has ended (it got a signal); another starts"),
        (2, {"leaves": "it got a signal"}, "ended with exit code 2, after 0 s; another starts in 0.5 s"),
        (0, {}, "ended with exit code 0, after 0 s; another starts in 0.5 s"),
        (-15, {"pulse": {}}, "was killed by SIGTERM, after 0 s; another starts in 0.5 s"),
        (-200, {"pulse": {}}, "was killed by signal 200, after 0 s; another starts in 0.5 s"),
        (
            -9, {"pulse": {"memory": 2**26}},
            "was killed by SIGKILL, as the system does when memory runs out (64 MiB when it was seen last), after 0 s",
        ),
        (-15, {"pulse": {"memory": 2**26}}, "was killed by SIGTERM (64 MiB when it was seen last), after 0 s"),
        (-9, {"pulse": {"memory": 2**26}, "is_killed": True, "leaves": "why"}, "was killed by SIGKILL, after 0 s"),
        (1, {"is_killed": True, "leaves": "why"}, "ended with exit code 1, after 0 s"),
        (1, {"ready": None}, "ended with exit code 1, before it worked; another starts in 0.5 s"),
    ],
)  # fmt: skip
def test_the_end_of_a_child_is_told_and_another_starts_at_once_only_where_it_was_meant(
    monkeypatch, caplog, code, facts, said
):
    caplog.set_level("INFO")
    parent = Parent(Plan(["--version"]))
    clock = with_clock(parent, monkeypatch)
    parent._proved = True
    seat = one_that_ends(parent, code, **facts)
    assert f"child 1 (pid 7) {said}" in caplog.text
    is_meant = "has ended" in said
    assert (seat.child, seat.due - clock.monotonic()) == (None, 0 if is_meant else pytest.approx(0.5))
    assert len(parent._left) == (not is_meant and "before" not in said), "what one that worked had in hand is settled"
    assert all(one.counts == ("leaves" not in facts) for one in parent._left)


def test_a_child_that_has_lived_for_a_minute_is_replaced_as_soon_as_the_first_one(monkeypatch, caplog):
    parent = Parent(Plan(["--version"]))
    clock = with_clock(parent, monkeypatch)
    parent._proved = True

    def pause(lived, **facts):
        return one_that_ends(parent, -9, started=clock.monotonic() - lived, **facts).due - clock.monotonic()

    lives = [(1, {}), (59, {}), (60, {}), (1, {}), (60, {"ready": None})]  # each time it ends
    assert [pause(lived, **facts) for lived, facts in lives] == pytest.approx([0.5, 1, 0.5, 1, 2])
    assert "after 59 s; another starts in 1.0 s" in caplog.text


@pytest.mark.parametrize(("code", "exits"), [(3, 3), (-9, 137), (0, 1)])
def test_a_program_that_cannot_start_ends_the_parent_with_its_exit_code(monkeypatch, caplog, code, exits):
    parent = Parent(Plan(["--version"]))
    with_clock(parent, monkeypatch)
    one_that_ends(parent, code, ready=None)
    assert parent.run() == exits
    assert "child 1 (pid 7) could not start: it " in caplog.text


def test_with_reload_a_program_that_cannot_start_is_started_again_once_a_file_changes(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO")
    parent = Parent(Plan(["--version"], reload=True))
    clock = with_clock(parent, monkeypatch)
    started = []
    parent._start = started.append
    one_that_ends(parent, 1, ready=None)
    parent._fill()
    assert started == []
    assert "ended with exit code 1; waiting until a file changes" in caplog.text
    (tmp_path / "jobs.py").write_text("")
    clock.advance(1.0)
    parent._listen()
    parent._judge()
    parent._fill()
    assert started == [1]
    assert f"{tmp_path / 'jobs.py'} has changed: the program is loaded again" in caplog.text


@pytest.mark.parametrize(
    ("code", "facts", "exits"),
    [
        (0, {"leaves": "why"}, 0),
        (0, {"leaves": "why", "memory": [(Stage.CLAIMED, 1), (Stage.BEGUN, 2)]}, 0),
        (1, {"leaves": "why"}, 1),
        (1, {"leaves": "why", "ready": None}, 1),
        (-15, {"leaves": "why"}, 1),
        (-15, {"leaves": "why", "ready": None}, 0),  # an init system signals it too
        (-9, {"leaves": "why", "ready": None, "memory": [(Stage.BEGUN, 1), (Stage.BEGUN, 2)]}, 1),
    ],
)
def test_the_exit_code_of_a_parent_says_whether_a_child_has_cut_work(monkeypatch, caplog, code, facts, exits):
    parent = Parent(Plan(["--version"]))
    with_clock(parent, monkeypatch)
    parent._end(0, "the parent was told to end")
    held = facts.get("memory", [])
    one_that_ends(parent, code, **{**facts, "memory": noting(*held)})
    assert parent.run() == exits
    assert ("child 1 (pid 7)" in caplog.text and "2 messages are left to the sweep" in caplog.text) == bool(held)
    assert parent._left == []


def test_what_a_child_had_in_hand_counts_unless_it_was_to_end(monkeypatch):
    parent = Parent(Plan(["--version"]))
    with_clock(parent, monkeypatch)
    for code, facts in ((0, {"leaves": "why"}), (-15, {"pulse": {}})):
        one_that_ends(parent, code, memory=noting((Stage.BEGUN, 1)), **facts)
    assert [(one.number, one.counts, one.why) for one in parent._left] == [
        (1, False, "its process ended"), (2, True, "its process, child 1 (pid 7), was killed by SIGTERM"),
    ]  # fmt: skip
    assert [one.in_hand for one in parent._left] == [[Noted(0, Stage.BEGUN, 0, 1, "d1")]] * 2


@pytest.mark.parametrize("has_begun", [False, True])
def test_what_a_child_was_asked_to_settle_for_another_is_asked_for_again_as_it_ends(monkeypatch, has_begun):
    parent = Parent(Plan(["--version"]))
    with_clock(parent, monkeypatch)
    stages = [Stage.ASKED, Stage.AWAITED, Stage.BEGUN]
    of_another = [Noted(0, stage, 0, n, f"d{n}") for n, stage in enumerate(stages, start=1)]
    left = parents.Leftover(7, of_another, "it died", True, "child 3", None, has_begun)
    one_that_ends(parent, 0, leaves="why", settles={7: left}, pulse={"takes": True, "memory": 0})
    (again,) = parent._left
    assert [one.stage for one in again.in_hand] == (stages[2:] if has_begun else stages)


@pytest.mark.parametrize("reload", [False, True])
def test_a_child_that_starts_has_the_limit_of_messages_or_a_little_more_and_is_asked_for_its_files_to_reload(
    monkeypatch, reload
):
    parent = Parent(Plan(["--version"], max_messages=100, reload=reload))
    ends = []

    def spawned(given, descriptors):
        assert given == f"--child=1:{descriptors[0]}:{descriptors[1]}"
        ends.append(socket.socket(fileno=os.dup(descriptors[0])))
        return Process()

    monkeypatch.setattr(parent, "_spawned", spawned)
    children = [parent._start(1) for _ in range(2)]
    assert all(100 <= child.most <= 110 for child in children)
    assert children[0].most != children[1].most
    assert [said_to(end) for end in ends] == [[{"files": True}] if reload else []] * 2
    for one in (*(child.channel for child in children), *ends):
        one.close()


def said_to(end):
    """What a child has been told so far."""
    end.setblocking(False)
    with suppress(BlockingIOError):
        return [json.loads(line) for line in end.recv(65_536).splitlines()]
    return []


# ---- why a child is to end


@pytest.mark.parametrize(
    ("pulse", "why"),
    [
        ({}, None),
        ({"handled": 9, "memory": 100 * 2**20}, None),
        ({"takes": False}, "it got a signal"),
        ({"stuck": 1}, "a handler ran longer than the handler_timeout of its queue, and has not returned"),
        ({"died": ["a (KeyError)", "b (OSError)"]}, "a thread was ended by an error: a (KeyError), b (OSError)"),
        ({"handled": 10}, "it has handled 10 messages"),
        ({"handled": 1, "memory": 100 * 2**20 + 1}, "it has 100 MiB of memory"),
    ],
)
def test_a_child_is_drained_once_that_has_a_reason_to_be_replaced(monkeypatch, caplog, pulse, why):
    caplog.set_level("INFO")
    parent = Parent(Plan(["--version"], max_memory=100 * 2**20))
    with_clock(parent, monkeypatch)
    (child,), (end,) = seated(parent)
    child.pulse |= pulse
    child.most = 10.0
    parent._judge()
    parent._judge()
    assert said_to(end) == ([] if why is None else [{"drain": True}])
    assert [one.getMessage() for one in caplog.records] == ([] if why is None else [f"child 1 (pid 7) drains: {why}"])
    child.channel.close()
    end.close()


def test_a_child_without_a_report_or_a_limit_is_left_at_work(monkeypatch):
    parent = Parent(Plan(["--version"], processes=2))
    with_clock(parent, monkeypatch)
    children, ends = seated(parent)
    children[0].pulse = {}
    children[1].pulse |= {"handled": 10**9, "memory": 2**40}
    parent._judge()
    assert [said_to(end) for end in ends] == [[], []]
    parent._hear(children[0], {"files": []})  # which nobody watches here
    for child in children:
        child.ready["upkeep"] = False
    parent._share()
    parent._reap()
    assert [said_to(end) for end in ends] == [[], []]
    assert [seat.child for seat in parent.seats] == children
    for one in (*(child.channel for child in children), *ends):
        one.close()


def test_a_child_that_has_closed_its_end_keeps_nobody_from_being_heard(monkeypatch):
    parent = Parent(Plan(["--version"], processes=3))
    with_clock(parent, monkeypatch)
    (_, speaks, closed), ends = seated(parent)
    parent.seats[0].child.channel.close()
    parent.seats[0].child = None
    for child in (speaks, closed):
        parent._selector.register(child.channel, selectors.EVENT_READ, child)
    ends[2].close()
    for n in range(2):
        ends[1].sendall(b'{"pulse": {"handled": %d}}\n' % n)
        parent._listen()
        parent._reap()
        assert speaks.pulse == {"handled": n}
    for one in (speaks.channel, closed.channel, *ends):
        one.close()


def test_a_parent_that_is_to_end_ends_once_its_children_have(monkeypatch):
    parent = Parent(Plan(["--version"]))
    with_clock(parent, monkeypatch)
    (child,), (end,) = seated(parent)
    parent._selector.register(child.channel, selectors.EVENT_READ, child)
    codes = iter([None, None, 1])

    def poll():
        child.process.returncode = next(codes)
        return child.process.returncode

    child.process.poll, child.process.wait = poll, lambda: None
    parent._end(0, "the parent was told to end")
    assert (parent.run(), child.process.told) == (1, [])
    end.close()


def test_children_drain_as_their_parent_is_told_to_end_and_wait_for_no_handler_at_the_second_time(monkeypatch):
    parent = Parent(Plan(["--version"], processes=2))
    clock = with_clock(parent, monkeypatch)
    children, ends = seated(parent)
    for child in children:
        child.ready["grace"] = 60.0
    told = parent._signals = SimpleNamespace(drains=False, forced=False)
    parent._heed_signals()
    assert [said_to(end) for end in ends] == [[], []]
    told.drains = True
    for _ in range(2):
        parent._heed_signals()
    assert [said_to(end) for end in ends] == [[{"drain": True}]] * 2
    told.forced = True
    for _ in range(2):
        parent._heed_signals()
    assert [said_to(end) for end in ends] == [[{"force": True}]] * 2
    parent._share()
    parent._fill()
    rounds(parent, clock, 4)
    assert [child.process.told for child in children] == [[], []]
    rounds(parent, clock, 2)
    assert [child.process.told for child in children] == [["kill"], ["kill"]]
    for one in (*(child.channel for child in children), *ends):
        one.close()


def test_a_change_of_the_program_replaces_all_children_and_one_alone_starts_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parent = Parent(Plan(["--version"], processes=2, reload=True))
    with_clock(parent, monkeypatch)
    children, ends = seated(parent)
    parent._hear(children[0], {"files": [str(tmp_path / "jobs.py")]})
    parent._proved = True
    parent.seats[0].failures, parent.seats[0].due = 3, 100.0
    parent._judge()
    assert [said_to(end) for end in ends] == [[], []]
    (tmp_path / "jobs.py").write_text("")
    parent._seams.advance(1.0)
    parent._listen()
    parent._judge()
    assert [said_to(end) for end in ends] == [[{"drain": True}]] * 2
    assert parent.seats[0].failures == 0
    started = []
    parent._start = lambda number: started.append(number) or children[0]
    for seat in parent.seats:
        seat.child = None
    parent._fill()
    assert started == [1]
    parent._hear(children[0], {"ready": {"upkeep": True}})
    parent._fill()
    assert started == [1, 2]
    for one in (*(child.channel for child in children), *ends):
        one.close()


def test_counts_of_children_that_have_ended_are_carried_for_a_minute_by_one_that_works(monkeypatch):
    parent = Parent(Plan(["--version"], processes=2))
    clock = with_clock(parent, monkeypatch)
    children, ends = seated(parent)
    children[1].settles[1] = parents.Leftover(1, [], "it died", True, "child 3", None)
    parent._hear(children[1], {"settled": 1, "counts": [["orders", "failed", 2]]})
    assert children[1].settles == {}
    for _ in range(2):
        parent._share()
    assert parent.at_work() == children
    assert said_to(ends[0]) == [{"upkeep": True}, {"carry": [["orders", "failed", 2]]}]
    clock.advance(59.0)
    parent._share()
    assert said_to(ends[0]) == []
    clock.advance(1.0)
    parent._share()
    assert said_to(ends[0]) == [{"carry": []}]
    assert said_to(ends[1]) == []
    children[0].does_upkeep, children[1].does_upkeep = False, True
    assert parent.at_work() == [children[1], children[0]]
    for one in (*(child.channel for child in children), *ends):
        one.close()


def test_the_figures_of_a_queue_are_those_of_all_children_and_of_those_that_have_ended(monkeypatch):
    parent = Parent(Plan(["--version"]))
    with_clock(parent, monkeypatch)
    one_that_ends(parent, 0, leaves="why", pulse={"takes": True, "memory": 0, "counts": {"orders": (5, 2)}})
    (child,), (end,) = seated(parent)
    child.pulse["counts"] = {"orders": (7, 3)}
    assert parent.totals("orders") == (12, 3)
    assert parent.totals("other") == (0, 0)
    assert parent.at_work() == [child]
    child.ready = None
    assert parent.at_work() == []
    child.channel.close()
    end.close()


OFTEN = "import latchwork.cli.processes.child as child\nchild.PULSE = 0.005\nfrom jobs import worker\n"
"""Its children soon have said more than a parent that is stopped has room for."""


@pytest.mark.long
def test_a_parent_that_was_stopped_hears_and_replaces_its_children_as_before(place):
    (place[0] / "often.py").write_text(OFTEN)
    with running(place, "--max-messages", "3", program="often:worker") as run:
        run.await_log("works, ")
        run.process.send_signal(signal.SIGSTOP)
        time.sleep(4.0)
        run.process.send_signal(signal.SIGCONT)
        place[2][0].publish_many(range(5))
        run.await_log("has ended (it has handled ")
        assert run.end() == 0
