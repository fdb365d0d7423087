"""Runs the tests over memory and SQLite on every Python that is claimed and that is on this machine: `make pythons`.

What is claimed is in the classifiers of pyproject.toml. An interpreter is `python3.x` on the PATH, or one that pyenv
has. Each gets an environment of its own, `.venv-3.x`, from the lock. Name versions to run only these:
`python -m tools.pythons 3.12 3.13`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What needs a server, Java, or hours in virtual time is the same on each Python: `make test` and `make long` run it.
TESTS = (
    "tests", "-m", "not long", "-k", "not aerospike and not server", "-n", "2", "--dist", "loadfile",
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


def outcome(version: str) -> str:
    """What came out for one version: "passed", "FAILED" or "not on this machine"."""
    base = interpreter(version)
    if base is None:
        return "not on this machine"
    environment = f".venv-{version}"
    print(f"---- {version}: {base}", flush=True)
    install = ["make", "--no-print-directory", "install", f"VENV={environment}", f"BASE={base}"]
    if subprocess.run(install, cwd=ROOT, check=False).returncode:
        return "FAILED: the environment could not be made"
    tests = subprocess.run([f"{environment}/bin/python", "-m", "pytest", *TESTS], cwd=ROOT, check=False)
    return "passed" if tests.returncode == 0 else "FAILED"


def main() -> int:
    """Run them and print a table; the exit status is 1 if one failed."""
    outcomes = {version: outcome(version) for version in sys.argv[1:] or claimed()}
    print("\nPython  tests over memory and SQLite")
    for version, result in outcomes.items():
        print(f"{version:8}{result}")
    return int(any(result.startswith("FAILED") for result in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
