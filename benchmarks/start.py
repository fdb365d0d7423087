"""Start: the processor's time until a first queue is there, and until a command has said something.

Run it from the project's root as `python -m benchmarks.start`. Each case is a new process; times are the median of
nine, after one that is not counted, with the compiled files of the package in place as after any first run. Targets:
a queue within 200 ms of CPU, `latchwork --help` within 150 ms, `latchwork demo` within 5 s by the clock.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._harness import table
from benchmarks.targets import Verdict, judged

TIMES = 9
QUEUE = """
import latchwork.queue as q
from latchwork.store import SQLiteStore
q.QueueRegistry(SQLiteStore({path!r}), "start").create(q.QueueConfig("q"))
"""


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "start.db")
        cases = {
            "python -c pass": (["-c", "pass"], None),
            "import latchwork.queue, and a queue": (["-c", QUEUE.format(path=path)], 0.2),
            "latchwork --help": (["-m", "latchwork", "--help"], 0.15),
            "latchwork demo": (["-m", "latchwork", "demo"], None),
        }
        times = {name: measured(arguments) for name, (arguments, _) in cases.items()}
    print(table(("process", "CPU s", "by the clock, s"), [(name, *both) for name, both in times.items()]) + "\n")
    verdicts = [
        Verdict(f"{name}: CPU s", most, times[name][0], at_least=False) for name, (_, most) in cases.items() if most
    ]
    print(judged([*verdicts, Verdict("latchwork demo: s", 5, times["latchwork demo"][1], at_least=False)]))


def measured(arguments: list[str]) -> tuple[float, float]:
    """Seconds of CPU and by the clock of such a process."""
    both = [once(arguments) for _ in range(TIMES + 1)][1:]
    return statistics.median(cpu for cpu, _ in both), statistics.median(clock for _, clock in both)


def once(arguments: list[str]) -> tuple[float, float]:
    """Of one process, with those it waited for."""
    began, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, time.perf_counter() - began


if __name__ == "__main__":
    main()
