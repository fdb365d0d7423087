"""The fixture `project`: runs pytest in another project, with this project's hooks, to test the hooks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MARKS = "markers = ['matrix: ', 'slow: ', 'long: ']"


@pytest.fixture
def project(tmp_path):
    """Runs pytest in a project of one test, and maybe more; `environment` is added to what this process has."""
    (tmp_path / "pyproject.toml").write_text(f'[tool.pytest.ini_options]\ntestpaths = ["inner"]\n{MARKS}\n')
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "test_one.py").write_text('def test_one(proved):\n    proved("processes", "a", killed=7)\n')
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\nfrom tests.conftest import proved\n")

    def run(*arguments, **environment):
        plugins = ["-p", "xdist"] if "-n" in arguments else []  # to load all that are installed takes 0.6 s
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugins, *arguments]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LATCHWORK_")}
        env = {**inherited, "PYTHONPATH": str(ROOT), "COLUMNS": "80", **environment}
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    return run
