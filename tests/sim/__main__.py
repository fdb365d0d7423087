"""The simulator by hand.

python -m tests.sim replay --seed 7 --primitive latch    one history as a table
python -m tests.sim run --primitive lock --seeds 0:5000   a campaign: --layer random, single or pairs
python -m tests.sim mutants [--primitive lock] [--write]  every mutant, and a seed that catches it
python -m tests.sim soak [--minutes 90] [--write]         the long figures of docs/reliability.md
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from pathlib import Path

from tests.support.proof import Proof

from . import soak
from .campaign import KNOWN, catch, every_single_fault, known_seeds, pairs_of_faults, random_mixes
from .faults.plans import SinglePlan
from .history.table import render
from .mutants import MUTANTS
from .report.tally import Tally
from .runner import simulate
from .workload import SCENARIOS

USAGE = "usage: make replay SEED=7 PRIMITIVE=latch"


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status is 1 where anything was violated, 2 where the command makes no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    replay = commands.add_parser("replay")
    replay.add_argument("--seed", default="")
    replay.add_argument("--primitive", default="")
    replay.add_argument("--fault", nargs="+", default=[], help="point:KIND:seconds, as the exhaustive mode prints it")
    replay.add_argument("--mutant", help="with this rule taken out")
    replay.set_defaults(run=_replay)
    run = commands.add_parser("run")
    run.add_argument("--primitive", choices=SCENARIOS, required=True)
    run.add_argument("--layer", choices=("random", "single", "pairs"), default="random")
    run.add_argument("--seeds", default="0:1000", help="from:to; of pairs, how many runs")
    run.add_argument(
        "--seconds", type=float, help="stop after so many; single faults, only once each call site was struck"
    )
    run.add_argument("--most", type=int, default=6, help="single faults: how many calls of one call site are struck")
    run.add_argument("--json", type=Path, help="write the tally there")
    run.set_defaults(run=_run)
    mutants = commands.add_parser("mutants")
    mutants.add_argument("--primitive", choices=SCENARIOS)
    mutants.add_argument("--write", action="store_true", help="keep the seeds in caught.json, for the tests")
    mutants.set_defaults(run=_mutants)
    soak.options(commands.add_parser("soak"))
    options = parser.parse_args(arguments)
    return int(options.run(options))


def _replay(options: argparse.Namespace) -> int:
    mine = {mutant.name: mutant for mutant in MUTANTS if mutant.primitive == options.primitive}
    if options.primitive not in SCENARIOS:
        return _wrong(f"there is no primitive {options.primitive!r}; there are {', '.join(SCENARIOS)}")
    if not options.seed.isdecimal():
        return _wrong(f"the seed is {options.seed!r}; it must be a whole number from 0")
    if options.mutant and options.mutant not in mine:
        return _wrong(f"there is no mutant {options.mutant!r}; there are: {', '.join(mine)}")
    with mine[options.mutant].patch() if options.mutant else nullcontext():
        plan = SinglePlan.parse(options.fault) if options.fault else None
        outcome = simulate(SCENARIOS[options.primitive], int(options.seed), plan, trace=True, quiet=bool(options.fault))
    print(render(outcome.scenario.history, outcome.scenario.server.trace))
    print()
    print("faults:", *([f"{kind.value} x {times}" for kind, times in outcome.fired.items()] or ["none"]), sep="\n  ")
    print("violations:", *(outcome.violations or ["none"]), sep="\n  ")
    return bool(outcome.violations)


def _wrong(what: str) -> int:
    print(f"{what}; {USAGE}", file=sys.stderr)
    return 2


def _run(options: argparse.Namespace) -> int:
    tally = _campaign(options)
    if options.json:
        options.json.write_text(tally.as_json())
    else:
        print(*Proof([(tally.layer, tally.primitive, tally.figures)]).table(), *tally.violations, sep="\n")
    return bool(tally.violated)


def _campaign(options: argparse.Namespace) -> Tally:
    first, _, last = options.seeds.rpartition(":")
    if options.layer == "single":
        return every_single_fault(options.primitive, options.most, options.seconds)
    if options.layer == "pairs":
        return pairs_of_faults(options.primitive, int(last), options.seconds)
    return random_mixes(options.primitive, range(int(first or 0), int(last)), options.seconds)


def _mutants(options: argparse.Namespace) -> int:
    known, missed = known_seeds(), 0
    for mutant in MUTANTS:
        if options.primitive in (None, mutant.primitive):
            row = f"| {mutant.primitive} | {mutant.name} | {mutant.rule} |"
            if mutant.scripted:
                print(f"{row} script | `tests/sim/test_counterexamples.py` |", flush=True)
            elif outcome := catch(mutant, known=known.get(mutant.id)):
                known[mutant.id] = outcome.seed
                print(f"{row} {outcome.seed} | {outcome.violations[0].partition(':')[0]} |", flush=True)
            else:
                missed += 1
                print(f"{row} NOT CAUGHT | |", flush=True)
    if options.write:
        ids = [mutant.id for mutant in MUTANTS]
        KNOWN.write_text(json.dumps({one: known[one] for one in ids if one in known}, indent=1) + "\n")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
