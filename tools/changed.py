"""Runs the tests of the files that were changed: `make changed`, or `python -m tools.changed [--since REF] [FILE ...]`.

Tests lie as the source lies. The tests of `src/queue/sharded/upkeep/sweeper.py` are, first found wins:
`tests/queue/sharded/upkeep/test_sweeper*.py`, `tests/queue/sharded/test_sweeper*.py`,
`tests/queue/sharded/test_upkeep*.py`, all of `tests/queue/sharded` and the tests elsewhere that import the file, and so
on upwards. The tests of any other file are those that name it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"


def changed_files(since: str) -> list[str]:
    """The files that were changed since a branch left a commit, and those that git does not know yet."""
    asked = (["diff", "--name-only", "--merge-base", since], ["ls-files", "--others", "--exclude-standard"])
    answers = [subprocess.run(["git", *one], cwd=ROOT, capture_output=True, text=True, check=False) for one in asked]
    for answer in answers:
        if answer.returncode:
            sys.exit(answer.stderr.strip())
    return [line for answer in answers for line in answer.stdout.splitlines()]


def tests_of(file: str) -> list[str]:
    """The tests of a file: test files and folders, by their paths from the root of the repository; maybe none."""
    path = Path(file)
    if path.parts[0] == "src":
        found = _lying_alike(path.with_suffix("").parts[1:])
    elif path.parts[0] == "tests" and len(path.parts) > 1:
        found = [ROOT / path] if path.name.startswith("test_") else _tests_in((ROOT / path).parent)
    else:
        found = _naming(path)
        if path.suffix == ".md":
            found.append(TESTS / "test_docs.py")
    return sorted({str(one.relative_to(ROOT)) for one in found if one.exists()})


def _lying_alike(parts: tuple[str, ...]) -> list[Path]:
    """The tests of a module, by the parts of its path within the source."""
    names = [part for part in parts if part != "__init__"]
    for depth in range(len(names) - 1, -1, -1):
        folder = TESTS.joinpath(*names[:depth])
        for name in reversed(names[depth:]):
            if found := [*folder.glob(f"test_{name}*.py"), *folder.glob(f"{name}/")]:
                return found
        if depth and (found := _tests_in(folder)):
            return [*found, *_importing(parts)]
    return []


def _importing(parts: tuple[str, ...]) -> list[Path]:
    """The tests that import a module."""
    *package, name = parts
    package = ".".join(("latchwork", *package))
    wanted = re.compile(rf"{re.escape(package)}(\.{name}\b| import .*\b{name}\b)")
    return [test for test in TESTS.rglob("test_*.py") if wanted.search(test.read_text())]


def _tests_in(folder: Path) -> list[Path]:
    return [] if folder == TESTS else [*folder.glob("test_*.py")]


def _naming(path: Path) -> list[Path]:
    """The tests that have the file's name in them, or that import it."""
    names = (path.name if path.suffix else str(path), ".".join(path.with_suffix("").parts))
    return [test for test in TESTS.rglob("test_*.py") if any(name in test.read_text() for name in names)]


def main() -> int:
    """Run them; the exit status is that of pytest, or 0 where there is nothing to run, or `make long` alone runs it."""
    parser = argparse.ArgumentParser(prog="python -m tools.changed", description=__doc__.partition("\n")[0])
    parser.add_argument("--since", default="HEAD", metavar="REF", help="a commit, such as origin/main (default: HEAD)")
    parser.add_argument("--list", action="store_true", help="name the tests only")
    parser.add_argument("files", nargs="*", metavar="FILE", help="these files, instead of what git calls changed")
    options = parser.parse_args()
    tests = set()
    for file in options.files or changed_files(options.since):
        found = tests_of(file)
        tests.update(found)
        print(f"{file}: {' '.join(found) or 'no tests of its own; make quick'}", flush=True)
    if options.list or not tests:
        return 0
    command = [sys.executable, "-m", "pytest", "-n", "2", "-m", "not long", *sorted(tests)]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if status == _NO_TESTS:
        print("all tests of these files are left to make long", flush=True)
        return 0
    return status


_NO_TESTS = 5
"""The exit status of pytest where it has left out all tests."""


if __name__ == "__main__":
    sys.exit(main())
