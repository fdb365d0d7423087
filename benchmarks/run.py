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

from benchmarks._harness import table
from benchmarks.chart import draw
from benchmarks.targets import MYPYC, WHY, Verdict, found

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
REPORT, CHART = DOCS / "benchmarks.md", DOCS / "benchmarks.png"
ORDER = (
    "store", "latch", "lock", "election", "poller", "latency", "coordset", "large_queue", "sharded_queue", "delayed",
    "effects", "one_message", "groups", "sweep", "paged_queue", "spark", "stream", "sqlite", "start", "aio",
    "observe",
)  # fmt: skip
OWN_TIME = ("election", "latency", "poller", "start", "stream")
"""Benchmarks that decide for themselves how long they run."""
TIMEOUT = 1_200
HEAD = """# Benchmarks

Written by `make bench`, on a real Aerospike server on loopback; each section says when, and at which commit.

Only ratios inside one run and counts of calls mean anything: on a machine that others use the same case moves by a
third, or more, from run to run. Every case takes turns with its anchor in short slices, and a ratio is the median of
the ratios within the turns."""


def main() -> int:
    options = parse()
    done = {}
    for name in options.only or ORDER:
        print(f"== {name}", flush=True)
        done[name] = run(name, options.seconds)
        print(done[name].stdout, done[name].stderr[-2_000:] if done[name].returncode else "", sep="", flush=True)
    if options.write or not options.only:
        write(done)
    return 1 if any(one.returncode for one in done.values()) else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", type=names, help="these, with commas; prints, and writes nothing without --write")
    parser.add_argument("--write", action="store_true", help="with --only: put what it prints into the report")
    parser.add_argument("--seconds", type=float, help="for each case of those that take it")
    return parser.parse_args()


def names(text: str) -> list[str]:
    """The benchmarks of that list."""
    chosen = text.split(",")
    if unknown := sorted(set(chosen) - set(ORDER)):
        raise argparse.ArgumentTypeError(f"no benchmark {', '.join(unknown)}; there are {', '.join(ORDER)}")
    return chosen


def run(name: str, seconds: float | None) -> subprocess.CompletedProcess[str]:
    """Run one benchmark, and keep what it prints."""
    extra = ["--seconds", str(seconds)] if seconds and name not in OWN_TIME else []
    command = [sys.executable, "-m", f"benchmarks.{name}", *extra]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, check=False, cwd=HERE.parent,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"not done after {TIMEOUT} s")


def write(done: dict[str, subprocess.CompletedProcess[str]]) -> None:
    """The report, and its chart. What was not run stays in the report as it is."""
    sections = written() | {title_of(name): section(name, one) for name, one in done.items()}
    there = [sections[title] for title in map(title_of, ORDER) if title in sections]
    verdicts = found("\n".join(there))
    draw(verdicts, CHART)
    REPORT.write_text("\n\n".join([HEAD, summary(verdicts), *there]) + "\n")
    print(f"written to {REPORT.relative_to(HERE.parent)}")


def written() -> dict[str, str]:
    """The sections of the report, by title."""
    parts = REPORT.read_text().split("\n\n## ")[1:] if REPORT.exists() else []
    return {part.partition("\n")[0]: f"## {part.strip()}" for part in parts}


def measured_at() -> str:
    """When, of what, and where."""
    when = time.strftime("%Y-%m-%d")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return (
        f"Measured on {when}, commit {commit.stdout.strip() or 'unknown'}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores."
    )


def summary(verdicts: list[Verdict]) -> str:
    """What was reached, what was not, and why not."""
    short = [verdict for verdict in verdicts if not verdict.met]
    rows = [(one.what, one.sign, f"{one.measured:.3g}", WHY.get(one.what, "unexplained")) for one in short]
    lines = [
        f"## Targets: {len(verdicts) - len(short)} of {len(verdicts)} reached",
        f"![how far each target is reached]({CHART.name})",
    ]
    if short:
        columns = ("what", "target", "measured", "why, and what would mend it")
        lines += ["Short of their target:", table(columns, rows), MYPYC]
    return "\n\n".join(lines)


def title_of(name: str) -> str:
    """The first line of the benchmark's own words."""
    return _words(name).partition("\n\n")[0].rstrip(".")


def section(name: str, done: subprocess.CompletedProcess[str]) -> str:
    """The benchmark's own words, then what it printed."""
    rest = _words(name).partition("\n\n")[2]
    body = done.stdout.strip() if not done.returncode else f"**It failed**: `{done.stderr.strip().splitlines()[-1]}`"
    return f"## {title_of(name)}\n\n{rest}\n\n{measured_at()}\n\n{body}"


def _words(name: str) -> str:
    return ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text())) or name


if __name__ == "__main__":
    sys.exit(main())
