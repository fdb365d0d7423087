"""Runs the tests over memory and SQLite on every Python that is claimed and that is on this machine: `make pythons`.

What is claimed is in the classifiers of pyproject.toml. An interpreter is `python3.x` on the PATH, or one that pyenv
has. Each gets an environment of its own, `.venv-3.x`, from the lock; the version that runs this has `.venv`. What is
printed is a line for each, and its failures; the rest is in `build/pythons`. To run only some versions and files:
`python -m tools.pythons 3.12 3.13 tests/store`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "build" / "pythons"
# What needs a server, Java, or hours in virtual time is the same on each Python: `make test` and `make long` run it.
TESTS = (
    "-m", "not long", "-k", "not aerospike and not server", "-n", "2", "--dist", "loadfile",
    *(f"--ignore=tests/{name}" for name in ("spark", "sim", "machines", "fuzz", "test_flights.py", "test_cluster.py")),
)  # fmt: skip


def claimed() -> list[str]:
    """The versions that the classifiers name, such as "3.12"."""
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())


def interpreter(version: str) -> str | None:
    """The path of an interpreter of this version; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python{version}")))]
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for path in filter(None, candidates):  # pyenv puts a script on the PATH for versions that are not switched on too
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return path
    return None


def outcome(version: str, files: Sequence[str]) -> tuple[bool, str]:
    """Whether the tests of these files did not fail on one version, and what to print about it."""
    base = interpreter(version)
    if base is None:
        return True, "not on this machine"
    ours = version == f"{sys.version_info.major}.{sys.version_info.minor}"
    environment, log = ".venv" if ours else f".venv-{version}", LOGS / f"{version}.log"
    install = ["make", "--no-print-directory", "install", f"VENV={environment}", f"BASE={base}"]
    with log.open("w") as file:
        if subprocess.run(install, cwd=ROOT, stdout=file, stderr=file, check=False).returncode:
            return False, f"FAILED: the environment could not be made; see {log}"
        tests = [f"{environment}/bin/python", "-m", "pytest", *files, *TESTS]
        status = subprocess.run(tests, cwd=ROOT, stdout=file, stderr=file, check=False).returncode
    lines = log.read_text().splitlines()
    failures = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    counts = [line for line in lines if re.match(r"\d+ (passed|failed|error)", line)][-1:] or ["no test was run"]
    return not status, "\n".join([*counts, *([] if not status else [*failures, f"see {log}"])])


def main() -> int:
    """Run them and print a line for each, and its failures; the exit status is 1 if one failed."""
    LOGS.mkdir(parents=True, exist_ok=True)
    versions = [word for word in sys.argv[1:] if re.fullmatch(r"3\.\d+", word)] or claimed()
    files = [word for word in sys.argv[1:] if not re.fullmatch(r"3\.\d+", word)] or ["tests"]
    failed = False
    for version in versions:
        print(f"{version:8}", end="", flush=True)
        passed, told = outcome(version, files)
        print(told, flush=True)
        failed = failed or not passed
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
