"""Three farms of Spark jobs on real flights, one latch: the coordinator.

    python examples/flights/run.py                          # or: make demo
    LATCHWORK_STORE=aerospike://host:3000/test  python examples/flights/run.py
    python examples/flights/run.py --resume DIR             # run again the farms that were killed; --farm JFK: that one

Each farm (an airport) is a process with a Spark driver of its own: it writes its flights into a queue, one message
each, streams them out again and aggregates them. The coordinator waits on one latch for all partitions of all farms and
merges what they wrote. Meanwhile plain consumers work a second, small queue; one of them is killed, and what it held is
swept. What they computed is the check. At the end come a table, a chart and a summary. Exit status: 0 all is right,
1 something differs, 3 the wait timed out, 130 interrupted.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import data
from checks import Checks
from java import require_java
from plan import Plan
from processes import Children
from watch import Watch, again

if TYPE_CHECKING:
    import report

WRONG, TIMED_OUT, INTERRUPTED = 1, 3, 130
CHECKERS = ("checker-1", "checker-2")


def main() -> int:
    """Run the whole job, or go on with one."""
    options = parse()
    require_java()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # children are ended the same way as on Ctrl-C
    every = Plan.read(options.resume).every if options.resume else options.every
    flights = data.load()[::every]
    if without := sorted({*data.FARMS} - {*flights["origin"]}):
        sys.exit(f"every {every}th flight leaves none to {', '.join(without)}: give a smaller --every")
    plan = Plan.read(options.resume) if options.resume else begin(options, flights)
    try:
        status = coordinate(plan, flights, options)
    except KeyboardInterrupt:
        print(f"\ninterrupted; the farms are stopped\nto go on: {again(plan)}", file=sys.stderr)
        status = INTERRUPTED
    if status:
        print(f"the files and the farms' logs are kept in {plan.directory}", file=sys.stderr)
    elif options.resume is None and options.dir is None:
        shutil.rmtree(plan.directory, ignore_errors=True)
    return status


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Three farms of Spark jobs on real flights, one latch.")
    parser.add_argument("--partitions", type=count, default=8, help="of each farm (default 8)")
    parser.add_argument("--every", type=count, default=1, metavar="N", help="only every N-th flight (default: all)")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=300,
        help="seconds without any progress after which it gives up (default 300)",
    )
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


def count(text: str) -> int:
    """An option of 1 or more."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"it is {text}, and must be 1 or more")
    return int(text)


def seconds(text: str) -> float:
    """An option of 0 seconds or more."""
    if not 0 <= float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"it is {text}, and must be 0 or more")
    return float(text)


def begin(options: argparse.Namespace, flights: data.pd.DataFrame) -> Plan:
    """Everything that the others find when they start: the farms' flights, the plan, latches and queues."""
    directory = options.dir or Path(tempfile.mkdtemp(prefix="latchwork-flights-"))
    directory.mkdir(parents=True, exist_ok=True)
    data.split(flights, directory)
    plan = Plan.new(directory.resolve(), options.partitions, options.every)
    plan.create()
    Checks(plan).create(data.carriers(flights))
    return plan


def coordinate(plan: Plan, flights: data.pd.DataFrame, options: argparse.Namespace) -> int:
    """Start everybody, wait for every partition of every farm and for the check, report."""
    latch, checks = plan.latch(data.FARMS[0]), Checks(plan)
    unfinished = sorted({party.partition("/")[0] for party in latch.missing()})
    farms = options.farm or unfinished
    watch = Watch(plan, flights["origin"].value_counts().to_dict())
    with watch, Children(plan.directory, watch.event) as children:
        for farm in farms:
            children.start(farm, "farm.py", farm, again=again(plan, "--farm", farm))
        start_checkers(children, checks, doomed=not options.resume)
        watch.event(f"started {', '.join(children.names())}; Spark takes up to half a minute to come up")
        watch.event("planned: checker-0 is killed while it holds messages, and a quarter of all tasks fail once")
        import report  # noqa: PLC0415 - matplotlib takes a second, and Java comes up meanwhile

        if not watch.wait(latch, options.timeout, lambda: end_checkers(children, checks)):
            watch.event(f"no progress for {options.timeout:g} s; missing: {', '.join(latch.missing())}")
            watch.event(f"to go on: {again(plan)}")
            return TIMED_OUT
        children.join(farms)
        left = None
        while not checks.latch.wait(options.timeout, progress=None):
            before, left = left, checks.latch.count()
            if left == before:
                watch.event(f"no progress for {options.timeout:g} s: {left} checks to go")
                watch.event(f"to go on: {again(plan)}")
                return TIMED_OUT
        watch.event("all partitions and all checks have counted")
    outcome, merged = check(plan, flights)
    chart = options.out / "flights.png"
    report.chart(merged, chart, watch.history, watch.events)
    print(f"\n{report.table(merged)}\n\nchart: {chart}\n\n{outcome}")
    return 0 if outcome.right else WRONG


def start_checkers(children: Children, checks: Checks, *, doomed: bool) -> None:
    """Two plain consumers of the small queue; before them, in a new run, one that is killed while it holds messages."""

    def two() -> None:
        for name in CHECKERS:
            children.start(name, "checker.py")

    if doomed:
        children.start("checker-0", "checker.py", "--doomed", planned=two)
    elif checks.latch.count():
        two()


def end_checkers(children: Children, checks: Checks) -> None:
    """End the plain consumers once all has been checked: consumers without work look for it all the time."""
    if not checks.latch.count():
        children.end(CHECKERS)


def check(plan: Plan, flights: data.pd.DataFrame) -> tuple[report.Outcome, data.pd.DataFrame]:
    """Merge the farms' answers and hold them against what the plain consumers have computed."""
    import report  # noqa: PLC0415 - as above

    merged, direct = data.merge(plan.directory), data.checked(plan.directory)
    lost, doubled = report.compare(merged, direct)
    partitions = plan.partitions * len(data.FARMS)
    counted = partitions - sum(plan.latch(data.FARMS[0]).counts().values())
    published, consumed = (
        sum(plan.noted(what, farm) or 0 for farm in data.FARMS) for what in ("published", "consumed")
    )
    outcome = report.Outcome(
        farms=len(data.FARMS),
        partitions=partitions,
        counted=counted,
        attempts=plan.attempts().count(),
        flights=int(merged["flights"].sum()),
        expected=len(flights),
        lost=lost,
        doubled=doubled,
        published=published,
        consumed=consumed,
        swept=Checks(plan).swept,
        same=merged.sort_index().equals(direct.sort_index()),
    )
    return outcome, merged


if __name__ == "__main__":
    sys.exit(main())
