"""The version is written in one place."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import latchwork

ROOT = Path(__file__).parents[1]


def test_the_package_its_metadata_and_the_command_name_one_version():
    command = [sys.executable, "-m", "latchwork", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert said == f"latchwork {latchwork.__version__}\n"
    assert version("latchwork") == latchwork.__version__, "installed before the version changed: make install"


def test_the_changelog_begins_with_this_version_and_dates_all_others():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    newest, *released = [heading for heading in headings if heading != "Unreleased"]
    assert newest.startswith(f"{latchwork.__version__} ")
    assert [each for each in released if not re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", each)] == []
