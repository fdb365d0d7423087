"""What runs on a server is what a contributor runs: targets of the Makefile, on the Pythons that are claimed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.pythons import claimed

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
JOBS = {name: job for workflow in WORKFLOWS.values() for name, job in workflow["jobs"].items()}
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_each_job_runs_targets_of_the_makefile_alone():
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in JOBS.items()}
    assert {name: [words.split()[:2] for words in found] for name, found in commands.items()} == {
        "lint": [["make", "lint"]], "test": [["make", "test"]], "docs": [["make", "docs"]],
        "release": [["make", "release"]], "long": [["make", "long"]], "newest": [["make", "test"]],
    }  # fmt: skip
    assert {"lint", "test", "docs", "release", "long"} <= TARGETS
    assert "LOCK=no" in commands["newest"][0]


def test_the_tests_run_on_every_python_that_is_claimed():
    assert claimed() == JOBS["test"]["strategy"]["matrix"]["python"]


@pytest.mark.parametrize(("length", "status"), [(72, 0), (73, 1)])
def test_a_subject_of_more_than_72_characters_is_refused(tmp_path, length, status):
    pytest.importorskip("pre_commit")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    shutil.copy(ROOT / ".pre-commit-config.yaml", tmp_path)
    message = tmp_path / "message"
    message.write_text("s" * length + "\n\n" + "A line of the body may be longer. " * 3 + "\n")
    subprocess.run(["git", "add", "--all"], cwd=tmp_path, check=True)
    options = ["--hook-stage", "commit-msg", "--commit-msg-filename", str(message)]
    command = [sys.executable, "-m", "pre_commit", "run", *options]
    environment = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == status, done.stdout + done.stderr
