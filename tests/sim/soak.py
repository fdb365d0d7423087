"""The long campaign: as much of every layer as fits into the time; the table, the floors, and docs/reliability.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from tests.support.proof import LAYERS, Proof
from tests.support.real_servers import NO_SERVER

from .campaign import ALL, expected_kinds
from .commands import ROOT, Commands
from .report.tally import Tally
from .workload import SCENARIOS

PAGE = ROOT / "docs" / "reliability.md"
BLOCK = re.compile(r"(<!-- soak: begin -->\n).*?(<!-- soak: end -->)", re.DOTALL)
FULL = 90.0
"""Minutes in which the floors are to be reached; of a shorter run a part of them is asked that is as much smaller."""
FLOORS: dict[str, dict[str, int]] = {
    "random faults": {"runs": 300_000, "histories": 100_000},
    "pairs of faults": {"runs": 1_000},
    "processes": {"killed": 5_000, "stopped": 200},
    "crashed disks": {"states": 1_000_000},
    "damaged files": {"files": 1_000},
    "damaged records": {"damages": 500},
    "hostile arguments": {"calls": 30_000},
    "state machines": {"machines": 5_000},
    "histories": {"histories": 200},
    "outages": {"outages": 20},
}
"""What a whole campaign must come to at least, also on a machine that others use."""
ON_A_SERVER = ("histories", "outages")
"""Layers of which nothing is asked where the machine has no Aerospike."""
GRACE = 600.0
"""Seconds beyond its part of the time after which a command is ended."""
STRETCH = 120.0
"""Seconds for which tests are repeated in one process, so that what one loses or hoards is little."""
MORE = 60.0
"""Seconds for which a primitive is run again to which not every kind of fault has happened."""
RANDOM, SINGLES, PAIRS = 0.345, 0.04, 0.03
"""Parts of the time. What no part is given to, as mutants and scripts, takes as long each run; and single faults go on
until each call site was struck once."""
WEIGHTS = {"store": 12, "latch": 2}
"""How many times as much time as the others these have, on which all others rest."""
REPEATED = (
    ("processes", 0.04, 1, (
        "-k", "kill or death", "tests/store/sqlite/test_sqlite.py", "tests/coord/election/test_kills.py",
        "tests/queue/circular/test_processes.py", "tests/queue/paged/test_kills.py",
        "tests/queue/outbox/test_background.py",
    )),
    ("processes", 0.065, 2, ("-k", "killed_and_stopped", "tests/coord/lock/test_processes.py")),
    ("processes", 0.03, 1, (
        "tests/queue/sharded/test_crowd_killed.py", "tests/queue/sharded/test_payments_killed.py",
        "tests/queue/sharded/test_fleet.py",
    )),
    ("crashed disks", 0.25, 1, ("tests/queue/paged/test_crash_states.py",)),
    ("damaged files", 0.02, 1, ("tests/fuzz/test_sqlite_file.py", "tests/fuzz/test_paged_files.py")),
    ("damaged records", 0.02, 1, ("tests/fuzz/test_stored_state.py", "tests/fuzz/test_commands.py")),
    ("hostile arguments", 0.015, 1, ("tests/fuzz/test_public_api.py",)),
    ("state machines", 0.03, 1, ("tests/store/test_differential.py", "tests/machines")),
    ("histories", 0.02, 2, ("tests/sim/test_real_server.py",)),
    ("outages", 0.04, 1, ("tests/sim/test_outages.py",)),
)  # fmt: skip
"""Layers that are tests: their parts of the time, and how many of them a processor bears at once, as some mostly wait.

They do more of the same where $LATCHWORK_SCALE says so.
"""
SCRIPTS = (
    "tests/sim/test_counterexamples.py", "tests/sim/test_split_brain.py", "tests/coord/lock/test_rules.py",
    "tests/coord/election/test_rules.py", "tests/queue/outbox/test_mutants.py", "tests/queue/paged/test_mutants.py",
)  # fmt: skip


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
    skipped: Counter[str] = field(default_factory=Counter)
    commands: Commands = field(default_factory=Commands)
    counting: threading.Lock = field(default_factory=threading.Lock)
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    """Of the machine when it began: others who use it leave less to this."""

    def steps(self) -> Iterator[Callable[[], None]]:
        """All that there is to do, the layers that take the same time each run first."""
        yield self.seed_mutants
        yield self.play_scripts
        yield self.simulate
        for layer, part, crowd, files in REPEATED:
            yield partial(self.repeat, layer, part, crowd, files)

    def campaign(self) -> None:
        """Do it all. Whatever goes wrong with one step is a failure of that step, and the others follow."""
        for step in self.steps():
            if self.commands.ended:
                break
            try:
                step()
            except Exception as failure:
                self.failures.append(f"{step}: {failure!r}")
        if self.commands.ended:
            self.failures.append("it was ended before its time")

    def seconds(self, part: float) -> float:
        """How long a part of the time is."""
        return self.minutes * 60 * part

    def simulate(self) -> None:
        """Random faults, single ones, pairs; each primitive in several processes."""
        weights = {primitive: WEIGHTS.get(primitive, 1) for primitive in SCENARIOS}
        each = {one: self.seconds(RANDOM) * weight / sum(weights.values()) for one, weight in weights.items()}
        singles, pairs = (self.seconds(part) / len(SCENARIOS) * self.jobs for part in (SINGLES, PAIRS))
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(self.jobs) as pool:
            commands = [
                ["--primitive", primitive, "--seeds", f"{low}:{low + ALL}", "--seconds", str(each[primitive])]
                for primitive in SCENARIOS
                for low in range(self.first, self.first + self.jobs * ALL, ALL)
            ]
            for primitive in reversed(SCENARIOS):  # the slowest first
                each_call = ["--most", str(ALL), "--seconds", str(singles)]
                commands.append(["--layer", "single", "--primitive", primitive, *each_call])
                limit = ["--seeds", str(ALL), "--seconds", str(pairs)]
                commands.append(["--layer", "pairs", "--primitive", primitive, *limit])
            files = [Path(folder) / str(number) for number in range(len(commands))]
            limit = max(*each.values(), singles, pairs) + GRACE
            for tally in pool.map(partial(self.tally, limit), commands, files):
                self.take(tally)
        self.check_kinds()

    def tally(self, limit: float, command: Sequence[str], file: Path) -> Tally | None:
        """What one process of the simulator comes to; None, and a failure, where it does not come to its end."""
        done = self.commands.run([*_SIMULATOR, "run", *command, "--json", str(file)], limit)
        try:
            return Tally.of_json(file.read_text())
        except (OSError, ValueError):
            if not self.commands.ended:
                self.failures.append(f"tests.sim run {' '.join(command)} {done}")
            return None

    def take(self, tally: Tally | None) -> None:
        """Count it."""
        if tally is None:
            return
        self.proof.add(tally.layer, tally.primitive, tally.figures)
        self.failures += tally.violations
        _say(f"{tally.layer}, {tally.primitive}: {tally.runs:,} runs, {tally.violated} violated")

    def check_kinds(self) -> None:
        """Every kind of fault that applies to a primitive must have happened to it. In a short campaign a rare kind may
        not have had its turn: then the primitive is run for some more seconds.
        """
        wanting = [primitive for primitive in self.proof.rows.get("random faults", {}) if self.missing(primitive)]
        first = self.first + self.jobs * ALL
        commands = [
            ["--primitive", primitive, "--seeds", f"{low}:{low + ALL}", "--seconds", str(MORE)]
            for primitive in wanting
            for low in range(first, first + self.jobs * ALL, ALL)
        ]
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(self.jobs) as pool:
            files = [Path(folder) / str(number) for number in range(len(commands))]
            for tally in pool.map(partial(self.tally, MORE + GRACE), commands, files):
                self.take(tally)
        for primitive in wanting:
            self.failures += [f"{primitive}: {kind} never fired" for kind in self.missing(primitive)]

    def missing(self, primitive: str) -> list[str]:
        """The kinds of fault that apply to it, and have not happened to it."""
        figures = self.proof.rows["random faults"][primitive]
        return [kind.value for kind in expected_kinds(primitive) if not figures[kind.value]]

    def seed_mutants(self) -> None:
        """Every mutant, with the seed that catches it."""
        commands = [[*_SIMULATOR, "mutants", "--primitive", primitive] for primitive in SCENARIOS]
        with ThreadPoolExecutor(self.jobs) as pool:
            for primitive, done in zip(SCENARIOS, pool.map(self.catch, commands), strict=True):
                rows = [line for line in done.splitlines() if line.startswith("|")]
                lines = [line for line in rows if "| script |" not in line]
                if not lines:
                    self.failures.append(f"{primitive}: no mutant was tried")
                missed = sum("NOT CAUGHT" in line for line in lines)
                self.proof.add("mutants", primitive, {"seeded": len(lines), "caught": len(lines) - missed})
                self.caught += rows

    def catch(self, command: Sequence[str]) -> str:
        """What the command says of its mutants; a failure where it has not come to its end."""
        done = self.commands.run(command, GRACE)
        if done.status not in (0, 1) or "Traceback" in done.output:
            self.failures.append(f"{' '.join(command[1:])} {done}")
        return done.output

    def play_scripts(self) -> None:
        """Rules by script, and mutants that tests of their own catch."""
        self.test(SCRIPTS, GRACE)

    def repeat(self, layer: str, part: float, crowd: int, files: Sequence[str]) -> None:
        """The tests of a layer in several processes, under other seeds each time, for its part of the time."""
        end, workers = time.monotonic() + self.seconds(part), self.jobs * crowd
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda place: self.go_on(layer, files, self.first + 1 + place * ALL, end), range(workers)))

    def go_on(self, layer: str, files: Sequence[str], first: int, end: float) -> None:
        """A little, to see how long they take; then for a stretch at a time, until `end` or five failures."""
        scale, failed = 1, 0
        while scale >= 1 and failed < 5 and not self.commands.ended:
            began = time.monotonic()
            failed += not self.test(files, end - began + GRACE, scale, first)
            now, first = time.monotonic(), first + _APART
            once = (now - began) / scale
            scale = min(int((end - now) / once), max(int(STRETCH / once), 1), _APART // 10)
            figures = ", ".join(f"{self.proof.sums(layer)[name]:,} {name}" for name in LAYERS[layer])
            _say(f"{layer}: {figures}; {max(end - now, 0):.0f} s are left")

    def test(self, files: Sequence[str], limit: float, scale: int = 1, first: int = 0) -> bool:
        """Run these tests, so many times as much of each, from a seed on; count what they report; whether all passed.

        All that they write is in a folder which is deleted after them.
        """
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "proof"
            seeds = {"LATCHWORK_SCALE": str(scale), "LATCHWORK_FIRST": str(first)}
            done = self.commands.run(
                [
                    sys.executable, "-m", "pytest", "-q", "-rfE", "--basetemp", str(Path(folder) / "tests"),
                    "-o", "faulthandler_timeout=0",  # they have a limit together
                    *((f"--hypothesis-seed={first}",) if first else ()), *files,
                ],
                limit, {"LATCHWORK_PROOF": str(target), "TMPDIR": folder, **seeds},
            )  # fmt: skip
            lines = done.output.splitlines()
            with self.counting:
                if done.status:
                    told = [line for line in lines if line.startswith(("FAILED ", "ERROR tests/"))] or [str(done)]
                    self.failures += [f"{line} ({' '.join(files)}; {seeds})" for line in told]
                    _say(done.output)
                self.skipped.update(line for line in lines if " skipped: " in line)
                for row in json.loads(target.read_text()) if target.exists() else ():
                    self.proof.add(*row)
            return not done.status

    def verdict(self) -> list[str]:
        """What went wrong or fell short; nothing, if all is well."""
        part = min(self.minutes / FULL, 1.0)
        spared = ON_A_SERVER if any(NO_SERVER in what for what in self.skipped) else ()
        asked = {layer: wanted for layer, wanted in FLOORS.items() if layer not in spared}
        floors = {layer: {name: int(n * part) for name, n in wanted.items()} for layer, wanted in asked.items()}
        return [*self.failures, *self.proof.short_of(floors)]


def run(options: argparse.Namespace) -> int:
    """The whole campaign; 1 where a promise was broken or a floor missed. Ctrl-C ends it early, with its table."""
    soak, began = Soak(options.minutes, options.jobs, options.from_seed), time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: soak.commands.end())
    soak.campaign()
    wrong = soak.verdict()
    took = (time.monotonic() - began) / 60
    lines = [_heading(soak, took), "", "```", *soak.proof.table(), "```", ""]
    lines += [f"- {what}" for what in wrong] or ["Nothing was violated, and no floor was missed."]
    lines += [f"- {what}" for what in soak.skipped]
    print(*lines, sep="\n")
    if options.write:
        _write([*lines, "", *_MUTANTS, *soak.caught])
    return bool(wrong)


_SIMULATOR = (sys.executable, "-m", "tests.sim")
_APART = 10_000
"""Between the first seeds of two stretches. No test takes ten seeds for each time that it is repeated."""
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
        f"load {soak.load:.1f} at the beginning; {took:.0f} minutes, seeds from {soak.first:,}{part}."
    )


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return found[1] if found else platform.processor() or "unknown processor"


def _read(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""


def _write(lines: Sequence[str]) -> None:
    text = "\n".join(lines) + "\n"
    PAGE.write_text(BLOCK.sub(lambda found: found[1] + text + found[2], PAGE.read_text()))


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False).stdout


def _say(what: str) -> None:
    print(f"{datetime.now(timezone.utc):%H:%M:%S} {what}", flush=True)
