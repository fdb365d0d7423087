"""`latchwork outbox stats`, and the example."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from latchwork.cli import main
from latchwork.queue import Outbox, PagedQueue, QueueConfig, QueueRegistry
from latchwork.store import MemoryStore

ROOT = Path(__file__).parents[3]


@pytest.fixture
def outbox(tmp_path):
    queue = QueueRegistry(MemoryStore(), "shop").create(QueueConfig("q", shards=1))
    with PagedQueue.open(tmp_path, "orders") as local:
        yield Outbox(local, queue)


def stats(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["outbox", "stats", *map(str, arguments)])
    return ended.value.code or 0, capsys.readouterr()


def test_it_says_what_waits_while_the_producer_has_the_files_open(outbox, tmp_path, capsys):
    outbox.put_many(list(range(1200)))
    code, told = stats(capsys, tmp_path, "orders")
    assert code == 0
    assert told.out.startswith("1,200 messages, ")
    outbox.forward()
    code, told = stats(capsys, tmp_path, "orders", "--json")
    assert json.loads(told.out) == {"outbox": "outbox", "messages": 0, "bytes": 0, "seconds": 0.0}
    outbox.put("it goes on")
    assert outbox.lag().messages == 1


def test_it_changes_nothing(outbox, tmp_path, capsys):
    outbox.put("x")
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()}
    stats(capsys, tmp_path, "orders")
    stats(capsys, tmp_path, "nothing")
    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()} == before


def test_it_finds_what_open_finds_under_a_tilde(outbox, tmp_path, capsys, monkeypatch):
    outbox.put("x")
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert stats(capsys, f"~/{tmp_path.name}", "orders")[0] == 0


def test_an_outbox_that_is_not_there_is_code_3(outbox, tmp_path, capsys):
    for arguments in ((tmp_path, "orders"), (tmp_path, "other"), (tmp_path / "nowhere", "orders")):
        code, told = stats(capsys, *arguments)
        assert code == 3
        assert "no outbox" in told.err
    outbox.put("x")
    assert stats(capsys, tmp_path, "orders")[0] == 0
    assert stats(capsys, tmp_path, "orders", "--name", "copies")[0] == 3


def test_the_example_loses_and_doubles_nothing():
    environment = {name: value for name, value in os.environ.items() if name != "LATCHWORK_STORE"}
    done = subprocess.run(
        [sys.executable, "examples/outbox.py"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost 0, doubled 0, out of order 0" in done.stdout
