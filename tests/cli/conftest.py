"""`run` runs the real command in a process of its own; `here` and `lw` the same in this one, which is quicker. `warm`
starts processes that need not load it.

`here` goes through every store of `url`, and what it returns has also what a command has printed that it has run.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from dataclasses import dataclass

import pytest

from latchwork.cli import main


@pytest.fixture(autouse=True)
def _logging_as_before():
    """A command sets up the log of its process; here that is the process of all tests."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture(params=["sqlite", "aerospike"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'cli.db'}?synchronous=off"
    request.getfixturevalue("aerospike_store")
    return request.getfixturevalue("aerospike_server").url


@pytest.fixture
def sqlite_url(tmp_path):
    return f"sqlite:{tmp_path / 'cli.db'}?synchronous=off"


def command(url, *arguments):
    return [sys.executable, "-m", "latchwork.cli", "--store", url, *arguments]


@pytest.fixture
def run(url, warm):
    def call(*arguments):
        done = warm.run("--store", url, *arguments)
        return Done(done.returncode, done.stdout, done.stderr)

    return call


def _in_this_process(url, captured):
    def call(*arguments, store=url):
        captured.readouterr()
        before = signal.getsignal(signal.SIGINT)
        try:
            with pytest.raises(SystemExit) as ended:
                main(["--store", store, *arguments])
        finally:
            signal.signal(signal.SIGINT, before)  # a command that was interrupted passes more of them over
        told = captured.readouterr()
        return Done(ended.value.code or 0, told.out, told.err)

    return call


@pytest.fixture
def lw(sqlite_url, capsys):
    return _in_this_process(sqlite_url, capsys)


@pytest.fixture
def here(url, capfd):
    return _in_this_process(url, capfd)
