"""Three farms of Spark jobs on real flights, one latch: the coordinator.

    python examples/flights/run.py                          # or: make demo
    LATCHWORK_STORE=aerospike://host:3000/test  python examples/flights/run.py
    python examples/flights/run.py --resume DIR             # run again the farms that were killed; --farm JFK: that one

Each farm (an airport) is a process with a Spark driver of its own. The coordinator waits on one latch for all
partitions of all farms, merges what they wrote, checks it against a direct computation, prints a table and draws a
chart. Exit status: 0 all is right, 1 something differs, 3 the wait timed out, 130 interrupted.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import data
import report
from java import require_java
from plan import Plan
from processes import Farms, show_progress

WRONG, TIMED_OUT, INTERRUPTED = 1, 3, 130


def main() -> int:
    """Run the whole job, or go on with one."""
    options = parse()
    require_java()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # children are ended the same way as on Ctrl-C
    flights = data.load()
    plan = Plan.read(options.resume) if options.resume else begin(options, flights)
    try:
        status = coordinate(plan, flights, options)
    except KeyboardInterrupt:
        print("\ninterrupted; the farms are stopped", file=sys.stderr)
        status = INTERRUPTED
    if status:
        print(f"the files and the farms' logs are kept in {plan.directory}", file=sys.stderr)
    elif options.resume is None and options.dir is None:
        shutil.rmtree(plan.directory, ignore_errors=True)
    return status


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Three farms of Spark jobs on real flights, one latch.")
    parser.add_argument("--partitions", type=int, default=8, help="of each farm (default 8)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds to wait for the farms (default 300)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the chart goes (default out)")
    parser.add_argument("--dir", type=Path, help="keep the run's files here (default: a temporary directory)")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with the run in this directory")
    parser.add_argument(
        "--farm",
        action="append",
        choices=data.FARMS,
        help="with --resume: run this farm again (default: all that have not finished)",
    )
    options = parser.parse_args()
    if options.farm and not options.resume:
        parser.error("--farm goes with --resume DIR: the answer needs all farms")
    return options


def begin(options: argparse.Namespace, flights: data.pd.DataFrame) -> Plan:
    """Everything that the farms find when they start: their flights, the plan, the latch."""
    directory = options.dir or Path(tempfile.mkdtemp(prefix="latchwork-flights-"))
    directory.mkdir(parents=True, exist_ok=True)
    data.split(flights, directory)
    plan = Plan.new(directory.resolve(), options.partitions)
    plan.create_latch()
    return plan


def coordinate(plan: Plan, flights: data.pd.DataFrame, options: argparse.Namespace) -> int:
    """Start the farms, wait for every partition of every farm, report."""
    latch = plan.latch(data.FARMS[0])
    unfinished = sorted({party.partition("/")[0] for party in latch.missing()})
    with Farms(plan.directory, options.farm or unfinished) as farms:
        print(f"started {', '.join(farms.names())}; Spark takes up to half a minute to come up", flush=True)
        if not latch.wait(options.timeout, progress=show_progress()):
            print(f"timed out after {options.timeout:g} s; missing: {', '.join(latch.missing())}", file=sys.stderr)
            print(f"to go on: {sys.argv[0]} --resume {plan.directory}", file=sys.stderr)
            return TIMED_OUT
        farms.join()
    outcome, merged = check(plan, flights)
    chart = options.out / "flights.png"
    report.chart(merged, chart)
    print(f"{report.table(merged)}\nchart: {chart}\n{outcome}")
    return 0 if outcome.right else WRONG


def check(plan: Plan, flights: data.pd.DataFrame) -> tuple[report.Outcome, data.pd.DataFrame]:
    """Merge the farms' answers and hold them against the direct computation."""
    merged, direct = data.merge(plan.directory), data.direct(flights)
    lost, doubled = report.compare(merged, direct)
    partitions = plan.partitions * len(data.FARMS)
    counted = partitions - sum(plan.latch(data.FARMS[0]).counts().values())
    outcome = report.Outcome(
        farms=len(data.FARMS),
        partitions=partitions,
        counted=counted,
        attempts=plan.attempts().count(),
        flights=int(merged["flights"].sum()),
        expected=len(flights),
        lost=lost,
        doubled=doubled,
        same=merged.sort_index().equals(direct.sort_index()),
    )
    return outcome, merged


if __name__ == "__main__":
    sys.exit(main())
