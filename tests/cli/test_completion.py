"""A shell completes the commands of `latchwork`, also those of a group, which are loaded when they are asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCED = {
    "bash": 'eval "$(_LATCHWORK_COMPLETE=source_bash latchwork)"; '
    'COMP_WORDS=({line}); COMP_CWORD={last}; _latchwork_completion latchwork; echo "${{COMPREPLY[@]}}"',
    "fish": '_LATCHWORK_COMPLETE=source_fish latchwork | source; complete -C "{line}"',
}
"""The lines of docs/reference/command.md, and how each shell is asked what it offers."""


@pytest.mark.parametrize("shell", SOURCED)
@pytest.mark.parametrize(("line", "offered"), [("latchwork sem", "semaphore"), ("latchwork queue publ", "publish")])
def test_a_shell_offers_the_command_that_begins_so(shell, line, offered):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not on this machine")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = SOURCED[shell].format(line=line, last=len(line.split()) - 1)
    done = subprocess.run(
        [program, "-c", script], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert done.stdout.split()[:1] == [offered], done.stderr
