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
    "What is left is Python: our own, 963 bytecodes in 39 calls of functions for a count, takes about 9 us a call "
    "while caches are warm, and two to three times as much between two calls of the network, where the loop by hand "
    "takes 4. The faster the network, the more it weighs. "
    "Mend: native code by hand for what every call goes through; mypyc gains too little (below)."
)
INCREMENT = "The raw guarded add, which remembers a token, is itself half to two thirds of a raw increment. " + PYTHON
SINGLY = (
    "What is left is Python: a publish is 2,567 bytecodes in 99 calls of functions around its two calls, 26 us while "
    "caches are warm and some 65 between two calls of the network, beside 49 of the client's own, where the loop by "
    "hand adds 3; a receive with its acknowledgement makes 150 calls of functions for three of the store. No thread of "
    "ours runs beside them. The faster the network, the more it weighs. Mend: publish and receive in batches, as a "
    "consumer does by itself; mypyc gains too little (below)."
)
CLAIM = (
    "The claim remembers its token, what it took and when, in the same call: the protocol's own calls, written by hand "
    "on the raw client, reach 0.6 to 0.7 of the loop without its safety. What costs is the expressions that compute "
    "what is remembered; fewer tokens (8 instead of 64) gain nothing. Mend: remember the newest claim alone, in plain "
    "bins, which would leave a claim in doubt to the sweep where another one comes before it is resolved."
)
PARTY = (
    "The anchor asks only whether the party has counted. Ours asks in the same call which latch it is and whether its "
    "parties are of one kind, and never goes below zero: the same call by hand, without any of our Python, is no "
    "quicker than ours. Our Python is 790 bytecodes in 30 calls of functions, 10 us of some 240. Mend: none that "
    "keeps the promises."
)
GUARDS = (
    "The guards and the bins of an envelope alone hold a loop by hand to half of one that reads a single bin "
    "unguarded. Mend: one bin for the envelope, which would break the stored layout."
)
ROWS = (
    "Each message is two rows, a stamp and a removal, and each row an object of ours, a key and one of the client's. "
    "What they have in common is made once; the rest is Python. Mend: native code by hand for the rows; mypyc gains "
    "too little (below)."
)
SPARK = (
    "Spark's own. A read of 240,000 messages on 2 cores takes 14 us of CPU a message in the workers, where the plain "
    "loop takes 11 (the rest: Arrow's columns, pipes, the start of each task), and 3 in Java; the server takes 3 to 4 "
    "in both. Between two tasks of a core some 0.1 s pass in which nothing is read. Of what a write lacks the query's "
    "start is half. Mend: more messages a query, fewer columns."
)
ROUND = (
    "2,980 bytecodes in 106 calls of functions a message, some 26 us while caches are warm, and some 50 more than the "
    "loop by hand between calls of the network. Half is the queue's own (group commit, plan, hold), half the store's "
    "(values, retries, operations and guards filled in). The faster the network, the more it weighs. Mend: native code "
    "by hand for the store's half; mypyc gains too little (below)."
)
PUBLISHER = (
    "Single publishes wait for the network without Python's lock, so eight threads use all cores; a publisher is all "
    "Python, on one: some 23 us of CPU a message, of who publishes (id, envelope, future) and of the thread that "
    "stores (a row, its outcome, the client's batch), against some 150 for a publish alone. Mend: "
    "`publish_many` where the messages are at hand; else native code by hand for rows and envelopes, as mypyc gains "
    "too little (below)."
)
EMBEDDED = (
    "One INSERT and one sync, as theirs; a publish is 183,000 instructions, of which the statement is 80,000, the rest "
    "Python's: huey's put is 141,000 in all, persist-queue's 81,000. What the disk takes is the same."
)
EMBEDDED_HANDLER = (
    "Two syncs, as huey: an INSERT, a claim that does not wait for the disk, a DELETE; 800,000 instructions, of which "
    "the claim is 500,000, huey 421,000. Mend: the transaction of the claim, half of which is Python's."
)
EMBEDDED_FLOOR = (
    "A publish is one INSERT; with all that Python does around it 183,000 instructions, litequeue's put 88,000, which "
    "has no checksum, no shard and no id of its own."
)
EMBEDDED_RECORD = (
    "A latch or a lock is a row with all bins in one value. Python reads and decodes it, evaluates the guard and the "
    "operations, and encodes it again, where the raw UPDATE leaves all that to SQL. Bins as JSON, which SQL changes "
    "itself, were tried: a count took 442,000 instructions instead of 636,000, but JSON has neither bytes nor a "
    "checksum, and its statements need SQLite 3.35. Mend: none that keeps these."
)
EMBEDDED_HUNDRED = (
    "A message is a row that is inserted, claimed and deleted, each by a statement of its own with a checksum of the "
    "row; the anchor inserts one row without an index a message. The statements and the checksums are two thirds of "
    "the time. Mend: one checksum a message instead of three, which would leave a damaged claim unnoticed."
)
EMBEDDED_CROWD = (
    "SQLite lets one process write at a time, and one that waits looks again after a pause. What a process knows of a "
    "shard is out of date once another one has claimed there, so its publish is a transaction of several statements "
    "and not one. Pauses of 2 to 20 ms, and of 1 ms after 50, gave 0.72 to 0.76 instead of 0.51: fewer looks in vain. "
    "Longer ones give more still, and keep a writer out for 0.6 s. Mend: a claim that leaves the shard's record as it "
    "is."
)
EMBEDDED_IDLE = (
    "Of the process that leads the upkeep: it renews its lease, and each 15 s a process reports what it does, so that "
    "`doctor` and `top` know who is at work. `upkeep=False` leaves the reports. Mend: none that keeps these."
)
DEMO = (
    "Up to 4 s of it are a wait for the message that failed once: the leader looks each 4 s whether a queue has its "
    "first message for later. The same demo takes 1.5 to 5.6 s, and took as long before. Mend: to look more often, "
    "which costs each idle process more calls."
)
SLOWER = (
    "A time of one machine at one moment, not a ratio: on 27 November 2026 the anchors were slower too (a raw "
    "increment 4,500 to 7,300 a second, a Redis stream by hand 1.0 ms after a lull). The day before, when they had "
    "10,000 and 0.6 ms, this row had {before}."
)
MYPYC = (
    "There is no extension module: compiled with mypyc, the same sources take 4 to 27 % fewer instructions. For a "
    "measurement 38 modules of the store and the queue were compiled (mypyc 2.4.1, CPython 3.11.7, "
    "commit 51d7378), and the instructions of the whole process counted with valgrind, pure and compiled. On SQLite: "
    "publish 545,000 and 398,000 (1.37 times as many), publish with receive and acknowledgement 1,613,000 and "
    "1,240,000 (1.30). On Aerospike, with the client's own share: once 435,000 and 411,000 (1.06), `count_down` "
    "470,000 and 442,000 (1.07), publish 779,000 and 708,000 (1.10), receive and acknowledge 1,772,000 and 1,659,000 "
    "(1.07); a hundred published at once 15.5 and 13.3 million (1.16), received and acknowledged 48.1 and 46.4 "
    "million (1.04). The CPU time of both SQLite rows, of once and of a publish is alike: 0.97 to 1.09 times in the "
    "median of seven turns. Nor do the sources compile as they are: mypyc ignores the keywords of a `Struct` without "
    "an error (an envelope would be stored under other names), its classes have no weak references, which the "
    "handling of forks needs, and a store that a user subclasses must be marked. Two of our functions compiled, and "
    "then raised errors at run time."
)
"""What is said below the table of what was missed."""
WHY: dict[str, str] = {
    "large queue, enqueue / raw loop: enqueue": ROUND,
    "large queue, dequeue / raw loop: dequeue": ROUND,
    "once / raw guarded add": PYTHON,
    "once / raw increment": INCREMENT,
    "count_down / raw guarded add": PYTHON,
    "count_down / raw increment": INCREMENT,
    "count_down(party=) of 10,000 / raw": PARTY,
    "publish singly / raw": SINGLY,
    "publisher, 8 threads / publish": PUBLISHER,
    "drain singly / raw 3 calls": CLAIM,
    "drain singly / raw 3 calls, whole protocol": SINGLY,
    "drain in hundreds / raw": GUARDS,
    "drain in hundreds / raw, guarded": ROWS,
    "drain in hundreds / Java 2.0 pattern": GUARDS,
    "paged queue, append: a second": (
        "A rate of one machine at one moment, not a ratio: in this run the plain write() and litequeue were slower "
        "too, and the same writer had 189,000 a second on another machine."
    ),
    "latch release lag: p50 ms": (
        "A time of one machine at one moment, not a ratio, over 60 releases: the same benchmark alone, 50 minutes "
        "later, had 12 ms, and an earlier run 14."
    ),
    "count_down: unobserved / no hooks": (
        "A count that succeeds at once comes to no call site of a metric or a span: both runs are the same code, and "
        "what is missing is how far two runs differ."
    ),
    "consume: unobserved / no hooks": (
        "Two threads hand messages to each other here, and two runs of the same code differ by as much as is missing."
    ),
    "aio, delay of the loop meanwhile: p99 ms": (
        "A time of one machine at one moment, not a ratio: some 25 other processes wanted its two cores. In a calmer "
        "minute of the same hour it was 4.4 to 4.6 ms, four times in a row."
    ),
} | {f"Spark {verb} / plain Python, {cores} cores, 16 shards": SPARK for verb in ("write", "read") for cores in (1, 2)}
WHY |= {f"SQLite, publish / {name}": EMBEDDED for name in ("huey", "persist-queue")}
WHY |= {f"SQLite, through a handler / {name}": EMBEDDED_HANDLER for name in ("huey", "persist-queue")}
WHY |= {"SQLite, publish / litequeue": EMBEDDED_FLOOR, "SQLite, queue: the same in hundreds / raw": EMBEDDED_HUNDRED}
WHY |= {
    f"SQLite, {one} / raw": EMBEDDED_RECORD for one in ("count_down", "count_down(party=)", "lock: acquire, release")
}
WHY |= {
    "latchwork demo: s": DEMO,
    "SQLite, idle process: writes a minute": EMBEDDED_IDLE,
    "SQLite, 8 processes on one file / 1": EMBEDDED_CROWD,
}
WHY |= {
    what: SLOWER.format(before=before)
    for what, before in {
        "poller, 1,000 waits: release lag p50 ms": "24.5",
        "poller, 1,000 waits: release lag p99 ms": "77.4",
        "Aerospike, 50 a second: p50 ms": "8.54",
        "SQLite, first after 2 s: p50 ms": "8.10",
        "SQLite, first after 25 s: p50 ms": "7.15",
    }.items()
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
