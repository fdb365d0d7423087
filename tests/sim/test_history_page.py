"""The page that explains a history shows the one that its command prints."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

from tests.support.project import ROOT

PAGE = (ROOT / "docs" / "contributing" / "history.md").read_text()


def test_the_history_that_is_explained_is_the_one_that_is_printed():
    command, *shown = re.findall(r"^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    program = [sys.executable, *shlex.split(command)[1:]]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    lines = [line for block in shown for line in block.splitlines()]
    assert len(lines) > 10, "the blocks are found"
    assert [line for line in lines if line not in done.stdout.splitlines()] == []
