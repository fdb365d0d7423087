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


def main() -> int:
    options = parse()
    done = {}
    for name in options.only or ORDER:
        print(f"== {name}", flush=True)
        done[name] = run(name, options.seconds)
        print(done[name].stdout, done[name].stderr[-2_000:] if done[name].returncode else "", sep="", flush=True)
    if not options.only:
        write(done)
    return 1 if any(one.returncode for one in done.values()) else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", type=names, help="these, with commas; prints, and writes nothing")
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
    """The report, and its chart."""
    verdicts = [verdict for one in done.values() for verdict in found(one.stdout)]
    draw(verdicts, CHART)
    parts = [head(), summary(verdicts), *(section(name, one) for name, one in done.items())]
    REPORT.write_text("\n\n".join(parts) + "\n")
    print(f"written to {REPORT.relative_to(HERE.parent)}")


def head() -> str:
    when = time.strftime("%Y-%m-%d")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return (
        "# Benchmarks\n\n"
        f"Written by `make bench` on {when}, commit {commit.stdout.strip() or 'unknown'}, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores, a real Aerospike server on loopback.\n\n"
        "Only ratios inside one run and counts of calls mean anything: on a machine that others use the same case "
        "moves by a third, or more, from run to run. Every case takes turns with its anchor in short slices, and a "
        "ratio is the median of the ratios within the turns."
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


def section(name: str, done: subprocess.CompletedProcess[str]) -> str:
    """The benchmark's own words, then what it printed."""
    told = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text())) or name
    title, _, rest = told.partition("\n\n")
    body = done.stdout.strip() if not done.returncode else f"**It failed**: `{done.stderr.strip().splitlines()[-1]}`"
    return f"## {title.rstrip('.')}\n\n{rest}\n\n{body}"


if __name__ == "__main__":
    sys.exit(main())
