"""A publisher at the end of its process: what waits is stored, in children too; a fork leaves it to the parent."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import SQLiteStore

ROOT = Path(__file__).parents[4]
BEGIN = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
from latchwork.errors import LatchworkError
from latchwork.queue import QueueRegistry
from latchwork.store import SQLiteStore

def opened():
    return QueueRegistry(SQLiteStore(sys.argv[1]), "c", farm_id="f").get("q")
"""
LINGERS = "publisher = opened().publisher(linger=1)\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
def queue(path):
    store = SQLiteStore(path)
    yield QueueRegistry(store, "c", farm_id="f").create(QueueConfig("q", shards=2))
    store.close()


def start(path, program):
    """A process that runs the program, from a file, as `multiprocessing` needs it."""
    file = path.with_name("program.py")
    file.write_text(BEGIN + program)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, str(file), str(path)], cwd=ROOT, **pipes)


def run(path, program):
    """What the program has printed, and its errors."""
    process = start(path, program)
    out, errors = ended(process)
    return process.returncode, out, errors


def ended(process):
    """What the process has printed, and its errors; it is killed if it does not end."""
    try:
        return process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def payloads(queue):
    return sorted(delivery.payload for delivery in queue.receive(1000))


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise RuntimeError('a defect')"])
def test_what_waits_is_stored_when_the_interpreter_ends(path, queue, end):
    _, _, errors = run(path, LINGERS + "for n in range(50): publisher.publish(n)\n" + end)
    assert "latchwork" not in errors, errors
    assert payloads(queue) == list(range(50))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_what_waits_is_stored_when_a_child_of_multiprocessing_ends(path, queue, method):
    program = f"""
import multiprocessing
def child():
    publisher = opened().publisher(linger=1)
    publisher.publish("child")
if __name__ == "__main__":
    process = multiprocessing.get_context("{method}").Process(target=child)
    process.start(); process.join(50); print(process.exitcode)
"""
    _, out, errors = run(path, program)
    assert out == "0\n", errors
    assert payloads(queue) == ["child"]


def test_a_forked_child_leaves_what_waits_to_its_parent_and_publishes_its_own(path, queue):
    code, out, errors = run(
        path,
        """
import threading
from latchwork.queue.sharded.publishing import publisher as module
store, forked = module.store_messages, threading.Event()
module.store_messages = lambda *given: forked.wait(50) and store(*given)
publisher = opened().publisher(linger=1)
waits = publisher.publish("parent")
sys.stdout.flush()
child = os.fork()
if child == 0:
    module.store_messages = store
    try:
        waits.result(5)
    except LatchworkError as failure:
        print(failure.code, flush=True)
    print(publisher.publish("child").result(20) and "stored", publisher.close(20), flush=True)
    os._exit(0)
forked.set()
os.waitpid(child, 0)
print(waits.result(20) == waits.message_id)
""",
    )
    assert (code, out.splitlines()) == (0, ["OUTCOME_UNKNOWN", "stored True", "True"]), errors
    assert payloads(queue) == ["child", "parent"], "each once"


def test_a_fork_while_a_group_is_stored_hangs_nobody(path, queue):
    code, out, errors = run(
        path,
        """
publisher = opened().publisher(linger=0)
for n in range(300):
    publisher.publish(n)
    if n % 30 == 0:
        child = os.fork()
        if child == 0:
            publisher.publish(f"child {n}").result(20)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
publisher.close()
""",
    )
    assert code == 0, (out, errors)
    assert len(queue.receive(1000)) == 310


@pytest.mark.parametrize("where", ["publisher.publish('x', timeout=30)", "time.sleep(0.001)", "publisher.flush()"])
def test_ctrl_c_ends_the_process_and_what_was_taken_is_stored(path, queue, where):
    process = start(
        path,
        f"""
publisher = opened().publisher(linger=0.01, waiting=100)
taken = 0
try:
    while True:
        publisher.publish("m")
        taken += 1
        if taken == 20:
            print("going", flush=True)
        {where}
except KeyboardInterrupt:
    print(taken, flush=True)
""",
    )
    assert process.stdout.readline() == "going\n", process.stderr.read()
    process.send_signal(signal.SIGINT)
    out, errors = ended(process)
    assert process.returncode == 0, errors
    found = 0
    while some := queue.receive(1000):
        found += len(some)
    assert found >= int(out), "a message whose publish has returned is there"


def test_a_store_that_is_away_at_exit_does_not_keep_the_process_for_ever(path, queue):
    code, out, errors = run(
        path,
        """
import logging
from latchwork.queue.sharded.publishing import publisher as module
logging.basicConfig(format="%(message)s")
module.EXIT = 0.2
module.store_messages = lambda *_: time.sleep(3600)
publisher = opened().publisher(linger=0)
publisher.publish(1)
""",
    )
    assert (code, out) == (0, "")
    assert "1 messages were not published to queue 'q' at exit" in errors
    assert payloads(queue) == []
