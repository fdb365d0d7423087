"""What the benchmarks are judged by: each prints what it measured against a target, and the report gathers it.

A target is either a ratio against an anchor of the same run or a count of storage calls. Where one is missed, `WHY`
says what the reason is and what would mend it; a miss that it does not explain is shown as unexplained.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks._harness import table

HEAD = ("what", "target", "measured", "met")
PYTHON = (
    "What is left is Python: our own takes about 9 us a call while caches are warm, and two to three times as much "
    "between two calls of the network, where the loop by hand takes 4. The faster the network, the more it weighs. "
    "Mend: an extension module for what every call goes through."
)
INCREMENT = "The raw guarded add, which remembers a token, is itself half to two thirds of a raw increment. " + PYTHON
CLAIM = (
    "The claim remembers its token, what it took and when, in the same call: the protocol's own calls, written by hand "
    "on the raw client, reach 0.6 to 0.7 of the loop without its safety. Mend: a claim that remembers one integer "
    "instead of a list, which is another layout."
)
GUARDS = (
    "The guards and the bins of an envelope alone hold a loop by hand to half of one that reads a single bin "
    "unguarded. Mend: one bin for the envelope, which would break the stored layout."
)
SPARK = (
    "Every query starts a Python process to plan it, and every task goes through Spark's Python worker and Arrow, as "
    "plain Python does not. Mend: more messages a query (the table shows the rate without the start), fewer columns."
)
ROUND = (
    "24 us a message of Python while caches are warm, and some 50 more than the loop by hand between calls of the "
    "network. Half is the queue's own (group commit, plan, hold), half the store's (values, retries, operations and "
    "guards filled in). The faster the network, the more it weighs. Mend: an extension module for the store's half."
)
EMBEDDED = (
    "A publish is one transaction of 7 statements: the shard's pointers, the message under two indexes, the bell, each "
    "row read where it is there, and sealed. The others insert one row. The rest is Python, which interprets guards "
    "and operations for each call. Mend: closures made once for each form, and no bell where SQLite tells of a commit."
)
WHY: dict[str, str] = {
    "large queue, enqueue / raw loop: enqueue": ROUND,
    "large queue, dequeue / raw loop: dequeue": ROUND,
    "once / raw guarded add": PYTHON,
    "once / raw increment": INCREMENT,
    "count_down / raw guarded add": PYTHON,
    "count_down / raw increment": INCREMENT,
    "publish singly / raw": PYTHON,
    "publish 1000 / raw batch": PYTHON,
    "drain singly / raw 3 calls": CLAIM,
    "drain singly / raw 3 calls, whole protocol": PYTHON,
    "drain in hundreds / raw": GUARDS,
    "drain in hundreds / Java 2.0 pattern": GUARDS,
    "paged queue, append: a second": (
        "A rate of one machine at one moment, not a ratio: in this run the plain write() and litequeue were slower "
        "too, and the same writer had 189,000 a second on another machine."
    ),
    "consume: unobserved / no hooks": (
        "Two threads hand messages to each other here, and two runs of the same code differ by as much as is missing."
    ),
} | {f"Spark {verb} / plain Python, {cores} cores, 16 shards": SPARK for verb in ("write", "read") for cores in (1, 2)}
WHY |= {
    f"SQLite, {case} / {name}": EMBEDDED
    for case in ("publish", "through a handler")
    for name in ("huey", "persist-queue", "litequeue")
}


@dataclass(frozen=True)
class Verdict:
    """One thing that was measured. `at_least`: more is better; otherwise the target is what it may cost at most."""

    what: str
    target: float
    measured: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        return self.measured >= self.target if self.at_least else self.measured <= self.target

    @property
    def sign(self) -> str:
        """The target with its direction."""
        return f"{'>=' if self.at_least else '<='} {self.target:g}"

    @property
    def share(self) -> float:
        """How far the target is reached: 1 = just, 2 = twice as well."""
        if self.at_least:
            return self.measured / self.target
        return self.target / self.measured if self.measured else 10.0


def judged(verdicts: Iterable[Verdict]) -> str:
    """A table that `found` reads again."""
    rows = [(one.what, one.sign, f"{one.measured:.4g}", "yes" if one.met else "no") for one in verdicts]
    return table(HEAD, rows)


def found(printed: str) -> list[Verdict]:
    """The verdicts in what a benchmark has printed."""
    row = re.compile(r"^\| (.+) \| (>=|<=) (\S+) \| (\S+) \| (?:yes|no) \|$", re.MULTILINE)
    return [
        Verdict(what, float(target), float(measured), sign == ">=")
        for what, sign, target, measured in row.findall(printed)
    ]
