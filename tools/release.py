"""Builds what a release consists of and tries it: `make release`. It publishes nothing.

The sdist and the wheel go into `dist`. Each is checked for what has to be in it, and installed, without extras, into an
environment of its own. There the README's program runs, and the command `latchwork` says how to install its extra; that
is done, and the command runs too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PAGES = ("README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "pyproject.toml")
REMEDY = re.compile(r"pip install '(.*\[cli\])'")


def modules() -> set[str]:
    """The files of the package, by their path within the folder `src`."""
    source = ROOT / "src"
    shown = {path for part in ("static", "templates") for path in (source / "console" / part).iterdir()}
    return {path.relative_to(source).as_posix() for path in {*source.rglob("*.py"), *shown}} | {"py.typed"}


def faults_of_wheel(names: Iterable[str]) -> Iterator[str]:
    """What is wrong with a wheel that holds these files."""
    found = {name for name in names if ".dist-info/" not in name}
    expected = {f"latchwork/{name}" for name in modules()} | {"pyspark_latchwork/__init__.py"}
    yield from (f"the wheel lacks {name}" for name in sorted(expected - found))
    yield from (f"the wheel has {name}" for name in sorted(found - expected))


def faults_of_sdist(names: Iterable[str]) -> Iterator[str]:
    """What is wrong with an sdist that holds these files, below its one folder."""
    found = {name.partition("/")[2] for name in names}
    expected = {f"src/{name}" for name in modules()} | {*PAGES, "pyspark_latchwork/__init__.py"}
    yield from (f"the sdist lacks {name}" for name in sorted(expected - found))
    # Tests need their support, servers and tools: they stay in the repository, all of them.
    yield from (f"the sdist has {name}" for name in sorted(found) if name.startswith(("tests/", "tools/", ".")))


def build() -> tuple[Path, Path]:
    """Build an sdist, and a wheel from it; return both."""
    shutil.rmtree(DIST, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST), str(ROOT)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    return sdist, wheel


def run(*command: str | Path, cwd: Path, status: int = 0, given: str = "") -> str:
    """Run a command in a folder, with its store there; it must end with this status. Return what it printed."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("LATCHWORK_", "PYTHON"))}
    environment = {**outside, "LATCHWORK_STORE": f"sqlite:{cwd}/shop.db", "LATCHWORK_CLIENT": "shop"}
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env=environment, cwd=cwd, input=given,
    )  # fmt: skip
    if done.returncode != status:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def program() -> str:
    """The README's program."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    return code


def installed(file: Path, version: str, folder: Path) -> None:
    """Install a file without extras into a new environment in this folder, and try what a user tries first."""
    environment = folder / "environment"
    venv.create(environment, with_pip=True)
    python, command = environment / "bin" / "python", environment / "bin" / "latchwork"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, file, cwd=folder)
    if printed := run(python, "-", cwd=folder, given=program()):
        sys.exit(f"the README's program printed {printed!r}")
    remedy = REMEDY.search(printed := run(command, "--help", cwd=folder, status=1))
    if remedy is None:
        sys.exit(f"without its extra the command does not say how to install it, it printed {printed!r}")
    run(*pip, remedy[1], cwd=folder)
    if (printed := run(command, "--version", cwd=folder)) != f"latchwork {version}\n":
        sys.exit(f"the command printed {printed!r}, and the version is {version}")
    if "orders" not in (printed := run(command, "queue", "peek", "jobs", cwd=folder)):
        sys.exit(f"the message of the README's program is not in its queue: {printed!r}")
    (today := folder / "today").mkdir()  # a store without yesterday's message, of which doctor would complain
    run(python, "-", cwd=today, given=program())
    run(command, "doctor", cwd=today)


def main() -> None:
    """Build, check, install and run; exit with a text if anything is wrong."""
    sdist, wheel = build()
    with tarfile.open(sdist) as source, zipfile.ZipFile(wheel) as built:
        files = [member.name for member in source.getmembers() if member.isfile()]
        faults = [*faults_of_sdist(files), *faults_of_wheel(built.namelist())]
    if faults:
        sys.exit("\n".join(faults))
    version = wheel.name.split("-")[1]
    for file in (sdist, wheel):
        with tempfile.TemporaryDirectory() as folder:
            installed(file, version, Path(folder))
        print(f"{file.relative_to(ROOT)}: complete, installed, tried")
    if f"## {version} (unreleased)" in (ROOT / "CHANGELOG.md").read_text():
        print(f"before you publish them: CHANGELOG.md has no date for {version}")


if __name__ == "__main__":
    main()
