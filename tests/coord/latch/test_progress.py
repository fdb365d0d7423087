"""The bar decorates a wait: whatever becomes of stderr, the wait goes on."""

from __future__ import annotations

import io
import sys

import pytest

from latchwork.coord import CountDownLatch
from latchwork.store import MemoryStore
from latchwork.testing.clock import ManualClock


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Gone(Terminal):
    def write(self, text):
        raise OSError(5, "Input/output error")


def closed():
    made = io.StringIO()
    made.close()
    return made


def waited(look=lambda latch: None):
    clock = ManualClock()
    latch = CountDownLatch.create(MemoryStore(clock), "shop", "closing", 1)
    look(latch)
    clock.at(1, latch.count_down)
    return latch.wait(timeout=5, progress=True)


def test_a_bar_is_drawn_on_a_terminal_and_ends_its_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert waited() is True
    assert "0 of 1" in sys.stderr.getvalue()
    assert "1 of 1" in sys.stderr.getvalue()
    assert sys.stderr.getvalue().endswith("\n")


@pytest.mark.parametrize(("columns", "cells"), [(200, 30), (70, 30), (60, 20), (44, 4), (20, 4)])
def test_a_bar_leaves_the_last_column_free_and_forty_for_words(monkeypatch, columns, cells):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", str(columns + 1))
    waited(lambda latch: monkeypatch.setattr(latch, "missing", lambda: ["n" * 300]))
    first, last = sys.stderr.getvalue().rstrip("\n").split("\r\x1b[K")[1:]
    assert first.startswith(f"[{'-' * cells}] ")
    assert last.startswith(f"[{'#' * cells}] ")
    assert len(first) == len(last) == columns


@pytest.mark.parametrize("stderr", [None, closed(), Gone()], ids=["none", "closed", "gone"])
def test_a_wait_goes_on_where_its_bar_cannot_be_shown(monkeypatch, stderr):
    monkeypatch.setattr(sys, "stderr", stderr)
    assert waited() is True


@pytest.mark.parametrize("stderr", [None, closed(), io.StringIO()], ids=["none", "closed", "file"])
def test_nobody_asks_who_is_missing_for_a_bar_that_is_not_seen(monkeypatch, stderr):
    asked = []
    monkeypatch.setattr(sys, "stderr", stderr)
    assert waited(lambda latch: monkeypatch.setattr(latch, "missing", lambda: asked.append(1) or [])) is True
    assert not asked
