"""A changed file's own tests are found, so that `make changed` runs neither nothing nor everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.changed import changed_files
from tools.changed import tests_of as own_tests

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("src/retry.py", ["tests/test_retry.py"]),
        ("src/coord/lock.py", ["tests/coord/lock"]),
        ("src/coord/barrier/layout.py", ["tests/coord/barrier/test_barrier.py", "tests/machines/test_barriers.py"]),
        ("src/queue/sharded/sideline.py", ["tests/queue/sharded/sideline"]),
        ("src/coord/presence/__init__.py", ["tests/coord/presence"]),
        ("src/spark/sink.py", ["tests/spark/test_sink.py"]),
        ("tests/test_retry.py", ["tests/test_retry.py"]),
        ("tests/testing/__init__.py", [f"tests/testing/test_{one}.py" for one in ("clock", "everywhere", "stores")]),
        ("tools/changed.py", ["tests/test_changed.py"]),
        ("src/seams.py", []),
        (".ci/run", ["tests/test_changed.py"]),
    ],
)
def test_the_tests_of_a_file_lie_as_it_does(file, tests):
    assert own_tests(file) == tests


def test_the_tests_of_a_page_are_those_of_all_pages_and_those_that_name_it():
    assert {"tests/test_docs.py", "tests/test_words.py"} <= set(own_tests("docs/glossary.md"))


def test_where_no_name_fits_the_tests_of_the_folder_are_taken_and_those_that_import_the_file():
    found = own_tests("src/queue/sharded/redrive.py")
    assert "tests/queue/sharded/test_messages.py" in found
    assert "tests/queue/sharded/sideline/test_slow_parking.py" in found
    assert "tests/queue/sharded/test_one_message.py" in own_tests("src/queue/sharded/slots.py")
    assert "tests/queue/sharded/upkeep/test_sweeper.py" in own_tests("src/queue/sharded/upkeep/sweep.py")


def test_nearly_every_module_has_tests_of_its_own():
    modules = [str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.py") if path.name != "__init__.py"]
    without = {module for module in modules if not own_tests(module)}
    assert len(modules) > 150
    without -= {"src/blocking.py", "src/loops.py"}  # tests/aio/test_loops.py
    assert without == {"src/__main__.py", "src/instrumentation.py", "src/lazy.py", "src/seams.py", "src/unpicklable.py"}


def test_a_file_that_is_gone_is_not_run():
    assert own_tests("tests/test_of_yesterday.py") == []


def test_a_wrong_commit_is_named_without_a_traceback():
    with pytest.raises(SystemExit, match="no-such-commit"):
        changed_files("no-such-commit")


@pytest.mark.long
def test_the_command_names_the_tests_of_each_file_and_runs_them():
    command = [sys.executable, "-m", "tools.changed", "src/plain.py", "src/seams.py"]
    listed = subprocess.run([*command, "--list"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert listed.splitlines() == [
        "src/plain.py: tests/test_plain.py",
        "src/seams.py: no tests of its own; make quick",
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
