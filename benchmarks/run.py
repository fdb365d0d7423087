"""Runs every benchmark and writes docs/benchmarks.md: what each measured, side by side with its anchor.

Run it from the project's root as `make bench`, or `python -m benchmarks.run [--only latch,sweep] [--seconds 3]`. Each
benchmark is a process of its own; one that fails is written down as failed, and makes the exit status 1.
"""

from __future__ import annotations

import argparse
import ast
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
REPORT = HERE.parent / "docs" / "benchmarks.md"
ORDER = (
    "store",
    "latch",
    "lock",
    "election",
    "large_queue",
    "sharded_queue",
    "sweep",
    "paged_queue",
    "spark",
    "observe",
)
TIMEOUT = 1_200


def main() -> int:
    options = parse()
    names = [name for name in ORDER if (HERE / f"{name}.py").exists()]
    chosen = options.only.split(",") if options.only else names
    sections, failed = [], []
    for name in chosen:
        print(f"== {name}", flush=True)
        done = run(name, options.seconds)
        print(done.stdout, done.stderr[-2_000:] if done.returncode else "", sep="", flush=True)
        if done.returncode:
            failed.append(name)
        sections.append(section(name, done))
    if not options.only:
        REPORT.write_text(head() + "\n\n".join(sections) + "\n")
        print(f"written to {REPORT.relative_to(HERE.parent)}")
    return 1 if failed else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", help="these, with commas; prints, and writes nothing")
    parser.add_argument("--seconds", type=float, help="for each case of those that take it")
    return parser.parse_args()


def run(name: str, seconds: float | None) -> subprocess.CompletedProcess[str]:
    extra = (
        ["--seconds", str(seconds)]
        if seconds and "--seconds" in (HERE / f"{name}.py").read_text() + _shared(name)
        else []
    )
    command = [sys.executable, "-m", f"benchmarks.{name}", *extra]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
            cwd=HERE.parent,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"not done after {TIMEOUT} s")


def _shared(name: str) -> str:
    uses = "arguments(" in (HERE / f"{name}.py").read_text()
    return (HERE / "_harness.py").read_text() if uses else ""


def section(name: str, done: subprocess.CompletedProcess[str]) -> str:
    """The benchmark's own words, then what it printed."""
    told = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text())) or name
    title, _, rest = told.partition("\n\n")
    body = done.stdout.strip() if not done.returncode else f"**It failed**: `{done.stderr.strip().splitlines()[-1]}`"
    return f"## {title.rstrip('.')}\n\n{rest}\n\n{body}"


def head() -> str:
    when = time.strftime("%Y-%m-%d")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return (
        "# Benchmarks\n\n"
        f"Written by `make bench` on {when}, commit {commit.stdout.strip() or 'unknown'}, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores, a real Aerospike server on loopback.\n\n"
        "Only ratios inside one run and counts of calls mean anything: on a machine that others use the same case "
        "moves by a third, or more, from run to run. Every case takes turns with its anchor in short slices, and a "
        "ratio is the median of the ratios within the turns.\n\n"
    )


if __name__ == "__main__":
    sys.exit(main())
