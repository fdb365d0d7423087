"""What a command has started ends before its lock is given back, whichever way it has to end (real processes)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
import warnings

import pytest

from latchwork.coord import FencedLock
from latchwork.coord.lock import LOCKS
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import Key
from latchwork.store.connect import connect
from tests.support.descendants import MARK, end_all, marked, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL]
SIGNALS_SOME_LONG = [
    pytest.param(number, id=number.name, marks=() if number in {signal.SIGTERM, signal.SIGKILL} else pytest.mark.long)
    for number in SIGNALS
]
"""The same, where those that are handled as SIGTERM is are left to `make long`."""
RUNNERS = {
    "lock": ("lock", "run", "n", "--lease", "8", "--grace", "1", "--"),
    "leader": ("leader", "run", "n", "--lease", "8", "--grace", "1", "--"),
    "group": ("group", "run", "n", "--lease", "8", "--grace", "1", "--"),
    "rwlock": ("rwlock", "write", "n", "--lease", "8", "--grace", "1", "--"),
    "semaphore": ("semaphore", "run", "n", "--permits", "1", "--lease", "8", "--grace", "1", "--"),
}
WRITES = "while :; do echo {0} >> $OUT; sleep 0.1; done"
JOBS = {
    "background": f"({WRITES.format('one')}) & {WRITES.format('two')} & {WRITES.format('three')}",
    "exec": f"({WRITES.format('one')}) & sh -c '{WRITES.format('two')}' & exec sh -c '{WRITES.format('three')}'",
    "stubborn": "trap '' TERM INT HUP QUIT; "
    f"({WRITES.format('one')}) & sh -c '{WRITES.format('two')}' & {WRITES.format('three')}",
    "daemon": f"setsid sh -c '{WRITES.format('one')}' & (setsid nohup sh -c '{WRITES.format('two')}' &) ; "
    f"{WRITES.format('three')}",
}
PAIRS = [
    *(("lock", job) for job in JOBS),
    ("leader", "daemon"),
    ("semaphore", "daemon"),
    ("rwlock", "daemon"),
    ("group", "daemon"),
]
ENDS = [
    pytest.param(runner, job, number, id=f"{runner}-{job}-{number.name}")
    for runner, job in PAIRS
    for number in (SIGNALS if runner == "lock" else (signal.SIGTERM, signal.SIGKILL))
]
"""All signals for one runner; the others end their jobs by the same code."""


class Running:
    """A command of ours that runs a job, and what the job has written."""

    def __init__(self, warm, url, folder, *words, ignoring=()):
        self.mark, self.out = uuid.uuid4().hex, folder / f"out-{uuid.uuid4().hex}"
        self.environment = {**os.environ, MARK: self.mark, "OUT": str(self.out)}
        self.process = warm.start("--store", url, *words, env=self.environment, ignored=ignoring)

    def written(self):
        return self.out.read_text() if self.out.exists() else ""

    def is_at_work(self):
        assert self.process.poll() is None, self.process.stderr.read()
        return {"one", "two", "three"} <= set(self.written().split())

    def left(self):
        """What the job has started and is still there."""
        return marked(self.mark, besides={self.process.pid})

    def is_silent(self):
        size = len(self.written())
        time.sleep(0.3)
        return len(self.written()) == size

    def lost(self, url, name="n"):
        store = connect(url)
        for set_name in (LOCKS, "latchwork_rwlocks", "latchwork_semaphores", "latchwork_groups"):
            store.delete(Key(set_name, name))
        store.close()


@pytest.fixture
def running(warm, sqlite_url, tmp_path):
    made = []

    def start(*words, **options):
        made.append(Running(warm, sqlite_url, tmp_path, *words, **options))
        return made[-1]

    yield start
    for one in made:
        end_all(one.mark)
        one.process.close()


@pytest.mark.matrix
@pytest.mark.parametrize(("runner", "job", "number"), ENDS)
def test_nothing_of_a_job_is_left_when_its_runner_has_ended(running, sqlite_url, runner, job, number):
    run = running(*RUNNERS[runner], "sh", "-c", JOBS[job])
    until(run.is_at_work)
    os.kill(run.process.pid, number)
    run.process.wait(60)
    if number == signal.SIGKILL:
        until(lambda: not run.left())
        assert run.process.returncode == -number
    else:
        assert run.left() == {}
        assert run.process.returncode in {128 + number, 128 + signal.SIGKILL}
    assert run.is_silent()


@pytest.mark.matrix
@pytest.mark.parametrize(("runner", "job"), PAIRS)
def test_nothing_of_a_job_is_left_when_its_fence_was_lost(running, sqlite_url, runner, job):
    run = running(*RUNNERS[runner], "sh", "-c", JOBS[job])
    until(run.is_at_work)
    run.lost(sqlite_url)
    assert run.process.wait(60) == 1
    assert run.left() == {}
    assert run.is_silent()
    assert "the fence was lost; ending the command" in run.process.stderr.read()


@pytest.mark.long
@pytest.mark.parametrize("number", SIGNALS_SOME_LONG)
def test_the_next_holder_finds_nothing_of_the_last_ones_job(running, sqlite_url, number):
    run = running(*RUNNERS["lock"], "sh", "-c", JOBS["stubborn"])
    until(run.is_at_work)
    os.kill(run.process.pid, number)
    with FencedLock(connect(sqlite_url), "n").acquire(60):
        assert run.left() == {}


def test_what_a_command_leaves_running_is_ended_before_the_lock_is_given_back(running, sqlite_url):
    wait = "while [ ! -s $OUT ]; do sleep 0.02; done"
    run = running(*RUNNERS["lock"], "sh", "-c", f"({WRITES.format('one')}) & {wait}; exit 7")
    until(run.written)
    with FencedLock(connect(sqlite_url), "n").acquire(60):
        assert run.left() == {}
    assert run.process.wait(60) == 7
    assert "ending the processes that it left running" in run.process.stderr.read()


@pytest.mark.long
def test_a_job_may_end_in_its_own_way_within_the_grace(running):
    job = "trap 'echo tidied >> $OUT; exit 3' TERM; echo ready >> $OUT; while :; do sleep 0.02; done"
    run = running("lock", "run", "n", "--", "sh", "-c", job)
    until(lambda: "ready" in run.written())
    run.process.terminate()
    assert run.process.wait(60) == 3
    assert run.written().split() == ["ready", "tidied"]


@pytest.mark.long
def test_a_stopped_job_is_ended_too(running):
    run = running("lock", "run", "n", "--", "sh", "-c", "echo $$ >> $OUT; kill -STOP $$; sleep 100")
    until(run.written)
    run.process.terminate()
    assert run.process.wait(60) == 128 + signal.SIGTERM


@pytest.mark.long
def test_without_a_grace_a_job_is_killed_at_once(running):
    run = running("lock", "run", "n", "--grace", "0", "--", "sh", "-c", JOBS["stubborn"])
    until(run.is_at_work)
    run.process.terminate()
    assert run.process.wait(60) in {128 + signal.SIGKILL, 128 + signal.SIGTERM}
    assert run.left() == {}


@pytest.mark.long
def test_a_runner_in_another_ones_job_ends_its_own_job_once(running):
    """A second SIGTERM makes some programs hurry, so a job is told once, however many runners there are around it."""
    job = "trap 'echo told >> $OUT' TERM; echo ready >> $OUT; n=0; while [ $n -lt 50 ]; do sleep 0.02; n=$((n+1)); done"
    inner = [sys.executable, "-m", "latchwork.cli", "lock", "run", "inner", "--", "sh", "-c", f"{job}; exec sleep 100"]
    run = running("lock", "run", "n", "--grace", "4", "--", *inner)
    until(lambda: "ready" in run.written())
    run.process.terminate()
    run.process.wait(60)
    assert run.written().split() == ["ready", "told"]
    assert run.left() == {}


@pytest.mark.long
def test_a_job_whose_supervisor_is_killed_is_ended(running):
    run = running(*RUNNERS["lock"], "sh", "-c", JOBS["background"])
    until(run.is_at_work)
    (supervisor,) = [pid for pid, line in run.left().items() if "supervisor.py" in line]
    os.kill(supervisor, signal.SIGKILL)
    assert run.process.wait(60) == 1
    assert run.left() == {}
    assert "was killed, and the command with it" in run.process.stderr.read()


@pytest.mark.long
def test_killing_the_whole_group_of_a_runner_ends_its_job_too(running):
    run = running(*RUNNERS["lock"], "sh", "-c", JOBS["stubborn"])
    until(run.is_at_work)
    os.killpg(run.process.pid, signal.SIGKILL)
    run.process.wait(60)
    until(lambda: not run.left())
    assert run.is_silent()


def test_a_command_has_the_signals_of_its_caller(running):
    script = "import signal; print(signal.pthread_sigmask(0, []), *map(signal.getsignal, (1, 2, 15, 17)))"
    run = running("lock", "run", "n", "--", sys.executable, "-I", "-S", "-c", script, ignoring=[signal.SIGHUP])
    told = f"set() {signal.SIG_IGN!s} {signal.default_int_handler} {signal.SIG_DFL!s} {signal.SIG_DFL!s}\n"
    assert run.process.communicate(timeout=60)[0] == told
    run = running("lock", "run", "n", "--", "sh", "-c", "kill -PIPE $$; echo here")
    assert run.process.communicate(timeout=60)[0] == ""


# ---- messages

SHOP = ("--client", "shop")
CONSUME = ("queue", "consume", "q", *SHOP, "--timeout", "20")


DRAIN = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""The signals at which a follower lets its job finish."""
CONSUMERS_END = [
    *(((), number) for number in SIGNALS if number != signal.SIGTERM),
    *((("--follow",), number) for number in SIGNALS if number not in DRAIN),
]


@pytest.fixture
def queue(sqlite_url):
    made = QueueRegistry(connect(sqlite_url), "shop").create(QueueConfig("q", retry=False, shards=1))
    made.publish_many([1, 2, 3])
    return made


@pytest.mark.long
@pytest.mark.matrix
@pytest.mark.parametrize("job", ["exec", "daemon"])
@pytest.mark.parametrize(("follow", "number"), CONSUMERS_END)
def test_nothing_of_a_messages_job_is_left_when_its_consumer_has_ended(running, queue, number, follow, job):
    run = running(*CONSUME, *follow, "--", "sh", "-c", JOBS[job])
    until(run.is_at_work)
    os.kill(run.process.pid, number)
    run.process.wait(60)
    until(lambda: not run.left())
    assert run.is_silent()
    if not follow and number in {signal.SIGINT, signal.SIGHUP}:
        assert run.process.returncode == 130
        assert (queue.depth().ready, queue.depth().sideline) == (3, 0)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_followers_job_is_ended_when_it_is_told_twice(running, queue, number):
    run = running(*CONSUME, "--follow", "--", "sh", "-c", JOBS["background"])
    until(run.is_at_work)
    # Again until it ends: it sees two signals as one if the second comes before it has handled the first.
    until(lambda: run.process.send_signal(number) or run.process.poll() is not None, pause=0.2)
    until(lambda: not run.left())
    assert run.is_silent()


@pytest.mark.parametrize(
    ("more", "number"), [((), signal.SIGTERM), (("--json",), signal.SIGTERM), (("--follow",), signal.SIGHUP)]
)
def test_a_consumer_that_is_told_to_end_finishes_what_it_has_taken(running, queue, more, number, tmp_path):
    go = tmp_path / "go"
    job = f"echo began >> $OUT; while [ ! -e {go} ]; do sleep 0.02; done; echo done >> $OUT"
    run = running(*CONSUME, *more, "--", "sh", "-c", job)
    until(lambda: "began" in run.written())
    run.process.send_signal(number)
    time.sleep(0.3)
    assert run.process.poll() is None
    go.touch()
    assert run.process.wait(60) == 0
    assert run.written().split() == ["began", "done"]
    assert (queue.depth().ready, queue.depth().sideline) == (2, 0)


def test_a_consumer_that_waits_for_messages_ends_when_it_is_told_to(running, sqlite_url):
    QueueRegistry(connect(sqlite_url), "shop").create(QueueConfig("q", retry=False, shards=1)).publish(1)
    run = running("queue", "consume", "q", *SHOP, "--timeout", "1000000")
    assert run.process.stdout.readline() == "1\n"
    run.process.terminate()
    assert run.process.wait(30) == 0


def swept_queue(url, name):
    with pytest.warns(UserWarning, match="unsafe"):
        made = QueueRegistry(connect(url), "shop").create(
            QueueConfig(name, retry=False, shards=1, sweep_duration=1, unsafe_limits=True)
        )
    made.publish(1)
    return made


@pytest.fixture
def swept(sqlite_url):
    return swept_queue(sqlite_url, "q")


@pytest.fixture
def sweep(sqlite_url, lw):
    """Sweep until a message that was received now, and that nobody works on, is on the sideline of its own queue."""

    def until_it_takes_what_is_old():
        other = swept_queue(sqlite_url, "other")
        assert other.receive(1)
        until(lambda: lw("queue", "sweep", *SHOP).code == 0 and other.depth().sideline == 1)

    return until_it_takes_what_is_old


def test_no_sweep_takes_a_message_from_a_job_that_runs_for_long(running, swept, sweep, tmp_path):
    go = tmp_path / "go"
    job = f"echo began >> $OUT; while [ ! -e {go} ]; do sleep 0.02; done"
    run = running(*CONSUME, "--max", "1", "--", "sh", "-c", job)
    until(lambda: "began" in run.written())
    sweep()
    assert swept.depth().sideline == 0
    go.touch()
    assert run.process.wait(60) == 0, run.process.stderr.read()
    assert (swept.depth().ready, swept.depth().sideline) == (0, 0)


def test_no_sweep_takes_a_message_that_is_printed_with_later_ones(running, swept, sweep):
    run = running(*CONSUME, "--max", "2", "--json")
    until(lambda: swept.depth().ready == 0)
    sweep()
    swept.publish(2)
    out, err = run.process.communicate(timeout=60)
    assert (run.process.returncode, err) == (0, "")
    assert sorted(one["payload"] for one in json.loads(out)) == [1, 2]
    assert (swept.depth().ready, swept.depth().sideline) == (0, 0)


def test_a_followers_job_that_runs_too_long_is_ended_before_its_message_comes_again(running, sqlite_url):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = QueueConfig("slow", shards=1, sweep_duration=60, handler_timeout=0.5, backoff=1, unsafe_limits=True)
    store = connect(sqlite_url)
    QueueRegistry(store, "c").create(config).publish("m")
    run = running(
        "queue", "consume", "slow", "--client", "c", "--follow", "--", "sh", "-c", "echo $$ >> $OUT; exec sleep 100"
    )  # fmt: skip
    until(lambda: len(run.written().split()) >= 2)
    first, *_ = run.written().split()
    with pytest.raises(ProcessLookupError):
        os.kill(int(first), 0)
    store.close()


@pytest.mark.long
def test_a_job_that_does_not_read_its_message_is_no_failure(running, queue):
    queue.publish("x" * 500_000)
    run = running("queue", "consume", "q", *SHOP, "--timeout", "0", "--", "true")
    _, err = run.process.communicate(timeout=60)
    assert (run.process.returncode, err) == (0, "")


def test_a_job_reads_its_whole_message(running, queue):
    for delivery in queue.receive(10):
        delivery.ack()
    queue.publish("x" * 500_000)
    run = running("queue", "consume", "q", *SHOP, "--timeout", "0", "--", "sh", "-c", "sleep 0.2; wc -c")
    assert run.process.communicate(timeout=60)[0].strip() == "500002"


SECOND = """
import os, signal, socket
from latchwork.cli.run import supervisor
here, there = socket.socketpair()
bell = supervisor._bell()
os.kill(os.getpid(), signal.SIGALRM)
supervisor._run(supervisor.Parent(there), bell, {
    "run": ["sh", "-c", "sleep 0.2; exit 7"], "environment": dict(os.environ), "stdout": None, "fed": False,
    "grace": 10, "grace_alone": 10, "foreground": False, "mask": [],
})
there.close()
print(here.makefile().read())
"""


def test_a_grace_that_is_over_just_as_its_command_ends_does_not_kill_the_next_one():
    done = subprocess.run([sys.executable, "-c", SECOND], capture_output=True, text=True, timeout=60, check=True)
    assert '{"ended": 7}' in done.stdout.splitlines()
