"""`latchwork top` in a real terminal, that of tmux: keys are sent, and the screen is read as a person sees it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from latchwork.queue import QueueConfig, QueueRegistry
from latchwork.store.connect import connect
from tests.support.waiting import until
from tools.servers import Asd, started

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux on the PATH: Debian's package has it")


class Terminal:
    """A window of tmux, on a server of its own, with a shell in it."""

    def __init__(self, directory, width=80, height=24):
        self._socket = str(directory / "tmux")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TMUX")}
        self._environment = environment | {"LANG": "C.UTF-8", "PS1": "$ ", "COLUMNS": "70", "LINES": "20"}
        self.run("new-session", "-d", "-x", str(width), "-y", str(height), "sh")

    def run(self, *words):
        done = subprocess.run(
            ["tmux", "-f", "/dev/null", "-S", self._socket, *words],
            capture_output=True, text=True, timeout=30, check=True, env=self._environment,
        )  # fmt: skip
        return done.stdout

    def types(self, text):
        self.run("send-keys", "-l", text)
        self.run("send-keys", "Enter")

    def press(self, *keys):
        for key in keys:
            self.run("send-keys", key)

    @property
    def screen(self):
        return self.run("capture-pane", "-p")

    def shows(self, *texts, timeout=30):
        until(lambda: all(text in self.screen for text in texts), timeout=timeout)
        return self.screen


@pytest.fixture
def terminal(tmp_path):
    made = Terminal(tmp_path)
    yield made
    made.run("kill-server")


def top_of(url, *words):
    return shlex.join([sys.executable, "-m", "latchwork.cli", "--store", url, "top", "--client", "shop", *words])


@pytest.mark.parametrize(("end", "code"), [("q", 0), ("C-c", 130)])
def test_it_is_driven_by_keys_without_colour_and_leaves_the_terminal_as_it_was(terminal, sqlite_url, end, code):
    queue = QueueRegistry(connect(sqlite_url), "shop", farm_id="local").create(QueueConfig("orders", shards=2))
    queue.publish_many(range(7))
    terminal.types(f"before=$(stty -g); export NO_COLOR=1 LATCHWORK_FARM=local; {top_of(sqlite_url)}; code=$?")
    terminal.shows("1 client, 1 queue, 7 ready", "[1 overview]")
    terminal.press("2")
    terminal.shows("[2 queues]", "orders")
    terminal.press("Enter")
    terminal.shows("queue: local / shop / orders", "threads in each worker: 1")
    terminal.press("+")
    terminal.shows("scale orders from 1 to 2? y: yes")
    terminal.press("y")
    terminal.shows("orders: 2 threads in each worker")
    terminal.run("resize-window", "-x", "60", "-y", "12")
    terminal.shows("latchwork top: 1 client", "queue: local / shop / orders", "p pause/resume")
    escapes = terminal.run("capture-pane", "-p", "-e")
    assert not [
        number for number in (*range(30, 38), *range(40, 48)) if f"[{number}m" in escapes or f";{number}m" in escapes
    ]
    terminal.press(end)
    terminal.types('clear; [ "$before" = "$(stty -g)" ] && echo the same, code $code')
    terminal.shows(f"the same, code {code}")


def test_a_pipe_is_refused_with_what_to_use_instead(sqlite_url, warm):
    QueueRegistry(connect(sqlite_url), "shop").create(QueueConfig("orders", shards=1))
    done = warm.run("--store", sqlite_url, "top")
    assert (done.returncode, "top needs a terminal" in done.stderr) == (2, True)


@pytest.mark.long
def test_a_server_that_stops_is_shown_within_3_seconds_and_the_screen_goes_on(terminal):
    server = started(Asd())
    try:
        queue = QueueRegistry(connect(server.url), "shop", farm_id="local").create(QueueConfig("orders", shards=2))
        queue.publish_many(range(7))
        terminal.types(f"LATCHWORK_FARM=local {top_of(server.url, '--every', '0.5')}")
        terminal.shows("7 ready")
        server.send(signal.SIGSTOP)
        try:
            terminal.shows("THE STORE")
            terminal.press("2")
            terminal.shows("[2 queues]", "orders")
        finally:
            server.send(signal.SIGCONT)
        until(lambda: "THE STORE" not in terminal.screen)
        terminal.press("q")
    finally:
        server.close()
