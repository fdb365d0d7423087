"""The long campaign: as much of every layer as fits into the time; the table, the floors, and docs/reliability.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from tests.proof import Proof

from .campaign import ALL, expected_kinds
from .report.tally import Tally
from .workload import SCENARIOS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
BLOCK = re.compile(r"(<!-- soak: begin -->\n).*?(<!-- soak: end -->)", re.DOTALL)
FULL = 90.0
"""Minutes in which the floors are to be reached; of a shorter run a part of them is asked that is as much smaller."""
FLOORS = {
    "random faults": {"runs": 1_000_000, "histories": 100_000},
    "pairs of faults": {"runs": 30_000},
    "processes": {"killed": 20_000, "stopped": 500},
    "crashed disks": {"states": 5_000_000},
    "state machines": {"machines": 20_000},
}
SHARES = {
    "random faults": 0.45,
    "pairs of faults": 0.08,
    "processes": 0.2,
    "crashed disks": 0.17,
    "state machines": 0.05,
}
"""Parts of the time; what is left over is for single faults, mutants and scripts, which are the same each time."""
REPEATED = {
    "processes": (
        "-k", "kill or stop or death", "tests/store/test_sqlite.py", "tests/coord", "tests/circular/test_processes.py",
        "tests/sharded/test_kills.py", "tests/paged/test_kills.py", "tests/outbox/test_background.py",
    ),
    "crashed disks": ("tests/paged/test_crash_states.py",),
    "state machines": ("tests/store/test_differential.py",),
}  # fmt: skip
"""Layers that are tests, which do more of the same where $LATCHWORK_SCALE says so."""
SCRIPTS = ("tests/sim/test_counterexamples.py",)


def options(parser: argparse.ArgumentParser) -> None:
    """What `soak` can be told."""
    parser.add_argument("--minutes", type=float, default=FULL, help="how long it may take in all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--from-seed", type=int, default=1_000_000, help="the first seed")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reliability.md")
    parser.set_defaults(run=run)


@dataclass
class Soak:
    """One campaign: its time, its workers, and what it has found so far."""

    minutes: float
    jobs: int
    first: int
    proof: Proof = field(default_factory=Proof)
    failures: list[str] = field(default_factory=list)
    caught: list[str] = field(default_factory=list)

    def seconds(self, layer: str) -> float:
        """How long the layer may take."""
        return self.minutes * 60 * SHARES[layer]

    def simulate(self) -> None:
        """Random faults, single ones, pairs; each primitive in several processes."""
        each, pairs = (self.seconds(layer) / len(SCENARIOS) for layer in ("random faults", "pairs of faults"))
        most = ALL if self.minutes >= FULL / 2 else 6
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(self.jobs) as pool:
            commands = [
                ["--primitive", primitive, "--seeds", f"{low}:{low + ALL}", "--seconds", str(each)]
                for primitive in SCENARIOS
                for low in range(self.first, self.first + self.jobs * ALL, ALL)
            ]
            for primitive in reversed(SCENARIOS):  # the slowest first
                commands.append(["--layer", "single", "--primitive", primitive, "--most", str(most)])
                limit = ["--seeds", str(ALL), "--seconds", str(pairs * self.jobs)]
                commands.append(["--layer", "pairs", "--primitive", primitive, *limit])
            files = [Path(folder) / str(number) for number in range(len(commands))]
            for tally in pool.map(_tally, commands, files):
                self.take(tally)
        self.check_kinds()

    def take(self, tally: Tally) -> None:
        """Count it."""
        self.proof.add(tally.layer, tally.primitive, tally.figures)
        self.failures += tally.violations
        _say(f"{tally.layer}, {tally.primitive}: {tally.runs:,} runs, {tally.violated} violated")

    def check_kinds(self) -> None:
        """Every kind of fault that applies to a primitive must have happened to it."""
        for primitive, figures in self.proof.rows["random faults"].items():
            missing = [kind.value for kind in expected_kinds(primitive) if not figures[kind.value]]
            self.failures += [f"{primitive}: {kind} never fired" for kind in missing]

    def seed_mutants(self) -> None:
        """Every mutant, with the seed that catches it."""
        commands = [[sys.executable, "-m", "tests.sim", "mutants", "--primitive", primitive] for primitive in SCENARIOS]
        with ThreadPoolExecutor(self.jobs) as pool:
            for primitive, done in zip(SCENARIOS, pool.map(_output, commands), strict=True):
                lines = [line for line in done.splitlines() if "| script |" not in line]
                missed = sum("NOT CAUGHT" in line for line in lines)
                self.proof.add("mutants", primitive, {"seeded": len(lines), "caught": len(lines) - missed})
                self.caught += done.splitlines()

    def repeat(self, layer: str) -> None:
        """The tests of a layer once, to see how long they take, and then as many times as much as there is time for."""
        end = time.monotonic() + self.seconds(layer)
        began = time.monotonic()
        self.test(REPEATED[layer], 1)
        once = time.monotonic() - began
        more = int((end - time.monotonic()) / once)
        if more >= 1:
            self.test(REPEATED[layer], more)
        _say(f"{layer}: {dict(self.proof.sums(layer))}")

    def test(self, files: Sequence[str], scale: int) -> None:
        """Run these tests, and count what they report."""
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "proof"
            env = {**os.environ, "LATCHWORK_PROOF": str(target), "LATCHWORK_SCALE": str(scale)}
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", *files], cwd=ROOT, env=env, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            if done.returncode:
                self.failures += [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                self.failures.append(f"pytest ended with {done.returncode}: {' '.join(files)} (scale {scale})")
            for row in json.loads(target.read_text()) if target.exists() else ():
                self.proof.add(*row)

    def verdict(self) -> list[str]:
        """What went wrong or fell short; nothing, if all is well."""
        part = min(self.minutes / FULL, 1.0)
        floors = {layer: {name: int(n * part) for name, n in wanted.items()} for layer, wanted in FLOORS.items()}
        return [*self.failures, *self.proof.short_of(floors)]


def run(options: argparse.Namespace) -> int:
    """The whole campaign; 1 where a promise was broken or a floor missed."""
    soak, began = Soak(options.minutes, options.jobs, options.from_seed), time.monotonic()
    soak.seed_mutants()
    soak.test(SCRIPTS, 1)
    soak.simulate()
    for layer in REPEATED:
        soak.repeat(layer)
    wrong = soak.verdict()
    took = (time.monotonic() - began) / 60
    lines = [_heading(soak, took), "", "```", *soak.proof.table(), "```", ""]
    lines += [f"- {what}" for what in wrong] or ["Nothing was violated, and no floor was missed."]
    print(*lines, sep="\n")
    if options.write:
        _write([*lines, "", *_MUTANTS, *soak.caught])
    return bool(wrong)


_MUTANTS = (
    "Every mutant (a rule taken out), and the seed of the run in which a checker first notices:",
    "",
    "| primitive | mutant | rule | seed | noticed by |",
    "|---|---|---|---|---|",
)


def _heading(soak: Soak, took: float) -> str:
    commit = _output(["git", "rev-parse", "--short=12", "HEAD"]).strip()
    changed = "" if not _output(["git", "status", "--porcelain", "src"]).strip() else ", with changes in src"
    machine = f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}"
    part = "" if soak.minutes >= FULL else f"; the floors are those of {soak.minutes:g} of {FULL:g} minutes"
    return (
        f"{datetime.now(timezone.utc):%Y-%m-%d}, commit {commit}{changed}; {machine} ({_processor()}); "
        f"{took:.0f} minutes, seeds from {soak.first:,}{part}."
    )


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return found[1] if found else platform.processor() or "unknown processor"


def _read(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""


def _write(lines: Sequence[str]) -> None:
    text = "\n".join(lines) + "\n"
    PAGE.write_text(BLOCK.sub(lambda found: found[1] + text + found[2], PAGE.read_text()))


def _tally(command: Sequence[str], file: Path) -> Tally:
    _output([sys.executable, "-m", "tests.sim", "run", *command, "--json", str(file)])
    return Tally.of_json(file.read_text())


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False).stdout


def _say(what: str) -> None:
    print(f"{datetime.now(timezone.utc):%H:%M:%S} {what}", flush=True)
