"""Every figure of docs/scaling.md: what operations cost, and what their cost grows with.

Run it from the project's root as `python -m benchmarks.scaling [--only growth,placement] [--write]`: about four minutes
on two cores. `--write` puts the figures between their markers in the page; without it they are printed. What needs a
real Aerospike server is left as it is where there is none.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks import _constants, _growth, _kinds, _rates, key_busy, placement
from benchmarks._harness import aerospike_url, table
from tools import servers
from tools.growth_cases import CASES

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
NAMES = 1_000
"""Queues whose shards are placed."""
SECONDS = 0.6
BATCHES = ("queue: publish 1,000 at once, a message", "queue: drain 1,000 of one publish, a message")


class Figures:
    """Makes the figures, by name. url: of a real server, None where there is none."""

    def __init__(self, url: str | None) -> None:
        self.url = url
        self.costs: dict[str, _growth.Cost] = {}
        self.makers: dict[str, Callable[[], str | None]] = {
            "kinds": _kinds.markdown,
            "constants": self.constants,
            "growth": self.growth,
            "day": self.day,
            "waiting": _rates.markdown,
            "large": self.large,
            "busy": self.busy,
            "placement": lambda: placement.markdown(NAMES),
        }

    def constants(self) -> str | None:
        """What each kind of operation takes."""
        return self.url and _constants.markdown(self.url, SECONDS)

    def large(self) -> str | None:
        """Latches of many thousands of partitions."""
        return self.url and _constants.large_latches(self.url)

    def busy(self) -> str | None:
        """KEY_BUSY, on a cluster of its own."""
        try:
            return "\n\n".join(key_busy.markdown(SECONDS))
        except servers.Unreachable as reason:
            print(f"no cluster of two nodes: {reason}", file=sys.stderr)
            return None

    def growth(self) -> str:
        """What must not grow, on every backend that there is."""
        rows: list[list[str]] = []
        with _growth.backends(self.url) as makers:
            for case in CASES:
                found = {name: _growth.measure(case, maker) for name, maker in makers.items()}
                rows += _growth.rows(case, found)
                self.costs |= found.get("Aerospike", {})
            head = ("what", "at", "calls (slope)", *(f"{name}, microseconds (slope)" for name in makers))
        return table(head, rows)

    def day(self) -> str | None:
        """How many processes a billion messages a day take, by what has just been measured on a real server."""
        steps = {what: self.costs[what].micros[1] for what in BATCHES if what in self.costs}
        if len(steps) < len(BATCHES):
            return None
        steps["both"] = sum(steps.values())
        head = (
            "one process, 64 shards",
            "microseconds a message",
            "messages a second",
            "processes for the mean, for 3 x",
        )
        mean = 1e9 / 86_400
        return table(
            head,
            [
                (what, f"{micros:.0f}", 1e6 / micros, f"{mean * micros / 1e6:.1f}, {3 * mean * micros / 1e6:.1f}")
                for what, micros in steps.items()
            ],
        )


def write(name: str, figures: str) -> None:
    """Put these figures between their markers in the page."""
    marker = re.compile(rf"(<!-- figures: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    page, found = marker.subn(lambda place: f"{place[1]}{figures}\n{place[2]}", PAGE.read_text())
    if not found:
        raise SystemExit(f"{PAGE.name} has no place for the figures {name!r}")
    PAGE.write_text(page)


def circumstances() -> str:
    """When and with what it was measured."""
    when = time.strftime("%Y-%m-%d")
    return f"Measured on {when} with Python {platform.python_version()} on {os.cpu_count()} cores."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", help="these figures, with commas")
    parser.add_argument("--write", action="store_true", help=f"write them into docs/{PAGE.name}")
    parser.add_argument("--url", help="aerospike://host:port/namespace; default: a server of its own")
    options = parser.parse_args()
    with ExitStack() as stack:
        try:
            url = stack.enter_context(aerospike_url(options.url))
        except servers.Unreachable as reason:
            print(f"without a real server: {reason}", file=sys.stderr)
            url = None
        figures = Figures(url)
        if options.write:
            write("circumstances", circumstances())
        for name in options.only.split(",") if options.only else figures.makers:
            began = time.perf_counter()
            found = figures.makers[name]()
            print(f"== {name}: {time.perf_counter() - began:.0f} s\n\n{found}\n", flush=True)
            if options.write and found:
                write(name, found)


if __name__ == "__main__":
    main()
