"""What a person at a terminal does with a command that is run: Ctrl-C, Ctrl-Z, `fg`, `bg`, typing, pipelines."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import termios
import uuid

import pexpect
import pytest

from latchwork.coord.lock import LOCKS
from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store import Key
from latchwork.store.connect import connect
from tests.cli.conftest import command
from tests.support.descendants import MARK, end_all, marked, until

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on the PATH")

PROMPT = "READY> "
ASK = "echo asking; read x < /dev/tty; echo got-$x"
COUNT = "trap 'echo caught; exit 5' INT; echo running; while :; do sleep 0.05; done"


@pytest.fixture
def mark():
    mark = uuid.uuid4().hex
    yield mark
    end_all(mark)


def _defaults():
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGTSTP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def spawned(mark):
    children = []

    def start(words):
        environment = {**os.environ, MARK: mark, "PS1": PROMPT, "TERM": "dumb"}
        children.append(
            pexpect.spawn(
                words[0], words[1:], env=environment, encoding="utf-8", timeout=30, echo=False, preexec_fn=_defaults
            )
        )
        return children[-1]

    yield start
    for child in children:
        child.close(force=True)


@pytest.fixture
def shell(spawned, sqlite_url, tmp_path):
    """An interactive shell, in which `lw` is the command with its store.

    It is no function of the shell: in a pipeline, that would be a process of its own between the shell and the command,
    and the shell would say "Stopped" before the command has stopped.
    """
    script = tmp_path / "lw"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command(sqlite_url))} "$@"\n')
    script.chmod(0o755)
    child = spawned(["bash", "--norc", "--noprofile", "-i"])
    child.expect_exact(PROMPT)
    child.sendline(f"PATH={shlex.quote(str(tmp_path))}:$PATH; bind 'set enable-bracketed-paste off'")
    child.expect_exact(PROMPT)
    return child


def lock_run(job, lease=60):
    return ("lock", "run", "n", "--lease", str(lease), "--", "sh", "-c", job)


@pytest.fixture
def fifo(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def waiting(fifo):
    """A job that says "running", waits until `go_on`, then says "over".

    The process that waits is the one that says so. If the shell itself said so and then started it, Ctrl-Z could come
    while the shell waits for that process to begin (vfork). Then it cannot be stopped, and nobody sees it stop.
    """
    return f"(echo running; exec cat {fifo}); echo over"


def go_on(fifo):
    def reads():
        try:
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # nobody reads yet
            return False
        return True

    until(reads)


def typed(words):
    return f"lw {shlex.join(words)}"


def code_of(shell):
    shell.expect_exact(PROMPT)
    shell.sendline("echo code-$?")
    shell.expect(r"code-(\d+)")
    return int(shell.match[1])


# ---- without a shell, as in a container


def test_ctrl_c_reaches_the_command(spawned, sqlite_url):
    child = spawned(command(sqlite_url, *lock_run(COUNT)))
    child.expect("running")
    child.sendintr()
    child.expect("caught")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 5


@pytest.mark.long
def test_a_command_that_ctrl_c_ends_is_told_as_interrupted(spawned, sqlite_url):
    child = spawned(command(sqlite_url, *lock_run("echo running; exec sleep 100")))
    child.expect("running")
    child.sendintr()
    child.expect("interrupted")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 130


def test_the_command_reads_what_is_typed(spawned, sqlite_url):
    child = spawned(command(sqlite_url, *lock_run("echo asking; read x; echo got-$x")))
    child.expect("asking")
    child.sendline("an answer")
    child.expect("got-an answer")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0


@pytest.mark.long
def test_ctrl_z_stops_nothing_where_no_shell_would_let_it_go_on(spawned, sqlite_url):
    child = spawned(command(sqlite_url, *lock_run("echo asking; read x; echo got-$x")))
    child.expect("asking")
    child.send("\x1a")
    child.sendline("on")
    child.expect("got-on")
    child.expect(pexpect.EOF)


def test_the_modes_of_the_terminal_are_put_back_when_the_command_is_killed(spawned, sqlite_url):
    child = spawned(command(sqlite_url, *lock_run("stty -icanon -isig; echo raw; read x; kill -9 $$")))
    before = termios.tcgetattr(child.fileno())[3]
    child.expect("raw")
    assert termios.tcgetattr(child.fileno())[3] != before
    child.sendline("now")
    until(lambda: termios.tcgetattr(child.fileno())[3] == before or not child.isalive())
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 128 + signal.SIGKILL


# ---- in a shell


def test_ctrl_z_stops_the_command_and_fg_lets_it_go_on_with_the_terminal(shell):
    shell.sendline(typed(lock_run("echo asking; read x; echo got-$x")))
    shell.expect("asking")
    shell.send("\x1a")
    shell.expect("Stopped")
    shell.expect_exact(PROMPT)
    shell.sendline("fg")
    shell.sendline("back")
    shell.expect("got-back")
    assert code_of(shell) == 0


@pytest.mark.long
def test_a_command_in_the_background_that_wants_the_terminal_waits_for_fg(shell):
    shell.sendline("set -b")  # the shell says at once that a job has stopped, not before its next prompt
    shell.expect_exact(PROMPT)
    shell.sendline(f"{typed(lock_run(ASK))} &")
    shell.expect("asking")
    shell.expect("Stopped")
    shell.sendline("fg")
    shell.expect("lw")
    shell.sendline("here")
    shell.expect("got-here")
    assert code_of(shell) == 0


def test_a_command_that_goes_on_in_the_background_leaves_the_terminal_to_the_shell(shell, fifo):
    shell.sendline(typed(lock_run(waiting(fifo))))
    shell.expect("running")
    shell.send("\x1a")
    shell.expect("Stopped")
    shell.sendline("bg")
    shell.sendline("echo still-$((40+2))")
    shell.expect("still-42")
    go_on(fifo)
    shell.expect("over")


@pytest.mark.long
def test_in_a_pipeline_the_command_may_read_the_terminal(shell):
    shell.sendline(f"{typed(lock_run(ASK))} | cat")
    shell.expect("asking")
    shell.sendline("through")
    shell.expect("got-through")
    shell.expect_exact(PROMPT)


@pytest.mark.long
def test_in_a_pipeline_ctrl_c_reaches_the_command(shell):
    shell.sendline(f"{typed(lock_run(COUNT))} | cat; echo codes-${{PIPESTATUS[0]}}")
    shell.expect("running")
    shell.sendintr()
    shell.expect_exact(PROMPT)
    assert not marked_jobs(shell)


def test_in_a_pipeline_ctrl_z_stops_the_command_and_fg_lets_it_go_on(shell, fifo):
    shell.sendline(f"{typed(lock_run(waiting(fifo)))} | cat")
    shell.expect("running")
    shell.send("\x1a")
    shell.expect("Stopped")
    shell.sendline("fg")
    go_on(fifo)
    shell.expect("over")
    shell.expect_exact(PROMPT)


def test_another_part_of_a_pipeline_may_read_the_terminal(shell):
    pager = "sh -c 'echo paging; read key < /dev/tty; echo key-$key'"
    shell.sendline(f"{typed(lock_run('sleep 100'))} | {pager}")
    shell.expect("paging")
    shell.sendline("q")
    shell.expect("key-q")
    shell.sendintr()
    shell.expect_exact(PROMPT)
    assert not marked_jobs(shell)


def test_a_lock_that_was_lost_while_the_command_was_stopped_ends_it_before_it_goes_on(shell, sqlite_url, tmp_path):
    out = tmp_path / "went-on"
    job = f"trap 'echo told; exit 9' TERM; echo asking; read x; touch {out}; read y; touch {out}"
    shell.sendline(typed(lock_run(job, lease=3)))
    shell.expect("asking")
    shell.send("\x1a")
    shell.expect("Stopped")
    connect(sqlite_url).delete(Key(LOCKS, "n"))
    shell.expect_exact(PROMPT)
    shell.sendline("sleep 4; fg")
    shell.expect("the fence was lost")
    assert code_of(shell) == 1
    assert not out.exists()


def test_a_shell_that_is_closed_ends_the_command(shell, mark):
    shell.sendline(typed(lock_run("echo running; exec sleep 100")))
    shell.expect("running")
    shell.close(force=True)
    until(lambda: not marked(mark))


def marked_jobs(shell):
    shell.sendline("jobs; echo jobs-over")
    shell.expect("jobs-over")
    return shell.before.strip().replace("jobs; echo", "").replace(PROMPT, "").strip()


# ---- messages

CONSUME = ("queue", "consume", "q", "--client", "shop", "--timeout", "0", "--")


@pytest.fixture
def queue(sqlite_url):
    made = QueueRegistry(connect(sqlite_url), "shop").create(QueueConfig("q", retry=False, shards=1))
    made.publish_many([1, 2])
    return made


def test_a_messages_command_may_ask_the_person(shell, queue):
    shell.sendline(typed((*CONSUME, "sh", "-c", ASK)))
    for answer in ("first", "second"):
        shell.expect("asking")
        shell.sendline(answer)
        shell.expect(f"got-{answer}")
    assert code_of(shell) == 0
    assert queue.depth().sideline == 0


@pytest.mark.long
@pytest.mark.parametrize("asks", [True, False])
def test_ctrl_c_ends_the_consumer_also_while_its_command_has_the_terminal(shell, queue, asks):
    shell.sendline(typed((*CONSUME, "sh", "-c", ASK if asks else "echo asking; exec sleep 100")))
    shell.expect("asking")
    if asks:
        shell.sendline("")
        shell.expect("asking")
    shell.sendintr()
    shell.expect("interrupted")
    assert code_of(shell) == 130
    assert (queue.depth().ready, queue.depth().sideline) == (1 if asks else 2, 0)
