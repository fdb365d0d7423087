"""How findings are printed: whole in a pipe; on a terminal broken at its width, and what is sound in one line."""

from __future__ import annotations

import shutil
import sys
from os import terminal_size

import pytest

from latchwork.cli.finding_lines import block_of, lines_of
from latchwork.observe.findings import OK, PROBLEM, WARNING, Finding

FOUND = [
    Finding(PROBLEM, "nobody works on it", "start a worker"),
    Finding(OK, "the store answers", sound="the store"),
    Finding(OK, "it is paused"),
    Finding(OK, "3 queues are sound", sound="queues"),
    Finding(OK, "and 2 in lhr", sound="queues"),
    Finding(WARNING, "a worker is late"),
]


def test_in_a_pipe_each_finding_has_its_line_and_problems_are_last():
    assert list(lines_of(FOUND)) == [
        "ok       the store answers", "ok       it is paused", "ok       3 queues are sound", "ok       and 2 in lhr",
        "warning  a worker is late",
        "problem  nobody works on it", "         -> start a worker",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (FOUND[2:3], ["ok       it is paused"]),
        (
            FOUND,
            [
                "ok       sound: the store, queues", "ok       it is paused", "warning  a worker is late",
                "problem  nobody works on it", "         -> start a worker",
            ],
        ),
    ],
    ids=["nothing-sound", "sound"],
)  # fmt: skip
def test_on_a_terminal_what_is_sound_is_one_line(monkeypatch, found, lines):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: terminal_size((80, 24)))
    assert list(lines_of(found)) == lines


def test_a_line_is_broken_behind_words_and_goes_on_below_its_text():
    assert block_of(Finding(WARNING, "word " * 9 + "end", "do " * 12), 40) == [
        "warning  word word word word word word", "         word word word end",
        "         -> do do do do do do do do do", "            do do do",
    ]  # fmt: skip
