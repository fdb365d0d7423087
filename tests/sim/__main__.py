"""The simulator by hand.

python -m tests.sim replay --seed 7 --primitive latch     one history as a table
python -m tests.sim run --primitive lock --seeds 0:5000    a campaign
python -m tests.sim mutants [--primitive lock]             the table of mutants and the seeds that catch them
python -m tests.sim soak [--seeds 1000000] [--jobs 2]      the long figures of docs/reliability.md
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from .campaign import catch, every_single_fault, expected_kinds, random_mixes
from .faults.plans import SinglePlan
from .history.table import render
from .mutants import MUTANTS
from .report.tally import Tally, table
from .runner import simulate
from .workload import SCENARIOS


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status is 1 where anything was violated."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    replay = commands.add_parser("replay")
    replay.add_argument("--seed", type=int, required=True)
    replay.add_argument("--primitive", choices=SCENARIOS, required=True)
    replay.add_argument("--fault", nargs="+", default=[], help="point:KIND:seconds, as the exhaustive mode prints it")
    replay.add_argument("--mutant", help="with this rule taken out")
    replay.set_defaults(run=_replay)
    run = commands.add_parser("run")
    run.add_argument("--primitive", choices=SCENARIOS, required=True)
    run.add_argument("--seeds", default="0:1000", help="from:to")
    run.add_argument("--json", type=Path, help="write the tally there")
    run.set_defaults(run=_run)
    mutants = commands.add_parser("mutants")
    mutants.add_argument("--primitive", choices=SCENARIOS)
    mutants.set_defaults(run=_mutants)
    soak = commands.add_parser("soak")
    soak.add_argument("--seeds", type=int, default=1_000_000, help="runs with random faults, all primitives together")
    soak.add_argument("--pairs", type=int, default=20_000, help="runs with pairs of faults, for each primitive")
    soak.add_argument("--jobs", type=int, default=2)
    soak.add_argument("--from-seed", type=int, default=1_000_000, help="the first seed")
    soak.set_defaults(run=_soak)
    options = parser.parse_args(arguments)
    return int(options.run(options))


def _replay(options: argparse.Namespace) -> int:
    chosen = [mutant for mutant in MUTANTS if (mutant.primitive, mutant.name) == (options.primitive, options.mutant)]
    if options.mutant and not chosen:
        print("no such mutant; there are:", ", ".join(m.name for m in MUTANTS if m.primitive == options.primitive))
        return 2
    with chosen[0].patch() if chosen else tempfile.TemporaryFile():
        plan = SinglePlan.parse(options.fault) if options.fault else None
        outcome = simulate(SCENARIOS[options.primitive], options.seed, plan, trace=True, quiet=bool(options.fault))
    print(render(outcome.scenario.history, outcome.scenario.server.trace))
    print()
    print("faults:", ", ".join(f"{kind.value} {times}" for kind, times in outcome.fired.items()) or "none")
    print("violations:", *(outcome.violations or ["none"]), sep="\n  ")
    return bool(outcome.violations)


def _run(options: argparse.Namespace) -> int:
    first, _, last = options.seeds.partition(":")
    tally = random_mixes(options.primitive, range(int(first), int(last)))
    if options.json:
        options.json.write_text(tally.as_json())
    else:
        print(table([tally]))
        print(*tally.violations, sep="\n")
    return bool(tally.violated)


def _mutants(options: argparse.Namespace) -> int:
    missed = 0
    for mutant in MUTANTS:
        if options.primitive in (None, mutant.primitive) and not mutant.scripted:
            outcome = catch(mutant)
            missed += outcome is None
            seed = "NOT CAUGHT" if outcome is None else f"seed {outcome.seed}"
            caught = outcome.violations[0].partition(":")[0] if outcome else ""
            print(f"| {mutant.primitive} | {mutant.name} | {mutant.rule} | {seed} | {caught} |", flush=True)
    return bool(missed)


def _soak(options: argparse.Namespace) -> int:
    share = options.seeds // len(SCENARIOS)
    tallies = []
    for primitive in SCENARIOS:
        tallies.append(_in_parallel(primitive, options.from_seed, share, options.jobs))
        tallies.append(every_single_fault(primitive, options.pairs))
        print(table(tallies[-2:]), flush=True)
    print(table(tallies))
    failed = [violation for tally in tallies for violation in tally.violations]
    for tally in tallies:
        if tally.layer == "random":
            failed += [
                f"{tally.primitive}: {kind} never fired" for kind in tally.never_fired(expected_kinds(tally.primitive))
            ]
    failed += [f"{tally.primitive}: {tally.undecided} histories undecided" for tally in tallies if tally.undecided]
    print(*failed, sep="\n")
    return bool(failed) or _mutants(argparse.Namespace(primitive=None))


def _in_parallel(primitive: str, first: int, count: int, jobs: int) -> Tally:
    """The same campaign cut into parts, each in a process of its own."""
    bounds = [first + count * part // jobs for part in range(jobs + 1)]
    total = Tally("random", primitive)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / str(part) for part in range(jobs)]
        parts = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.sim",
                    "run",
                    "--primitive",
                    primitive,
                    "--seeds",
                    f"{low}:{high}",
                    "--json",
                    file,
                ]
            )
            for low, high, file in zip(bounds, bounds[1:], files, strict=False)
        ]
        for part in parts:
            part.wait()
        for file in files:
            total.merge(Tally.of_json(file.read_text()))
    return total


if __name__ == "__main__":
    sys.exit(main())
