"""The table of cancellation: verb x await point x what the store did, and how it ended: `python -m tests.aio.table`."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from .lives import LIVES, LivingWorld
from .striking import Striker
from .verbs import CASES, World

FOREVER = 60
"""Calls for which a store is away that does not come back."""
PLANS = {
    "well": {},
    "reply lost": {1: "reply_lost"},
    "second reply lost": {2: "reply_lost"},
    "third reply lost": {3: "reply_lost"},
    "request lost": {1: "request_lost"},
    "away": dict.fromkeys(range(1, FOREVER), "dropped"),
    "reply lost, then away": {1: "reply_lost"} | dict.fromkeys(range(2, FOREVER), "dropped"),
    "second reply lost, then away": {2: "reply_lost"} | dict.fromkeys(range(3, FOREVER), "dropped"),
}
"""What the store does while the verb runs."""
BRIEF = ("well", "reply lost", "second reply lost", "third reply lost", "request lost")
"""Those of them for what runs in real time: there an outage lasts for as long as its verb's timeout."""
STRIKES = {"once": 1, "three times in a row": 3}
MOST_POINTS = 60
"""Await points of a verb that are struck, at most: one that waits for an outage to end comes to many more."""
ENDS = ("stopped", "undone", "done", "failed", "unknown", "not cancelled")


@dataclass
class Row:
    """One verb of the table."""

    verb: str
    points: int = 0
    runs: int = 0
    ends: Counter = field(default_factory=Counter)
    troubles: list[str] = field(default_factory=list)

    def line(self) -> str:
        ends = " | ".join(str(self.ends[end] or "") for end in ENDS)
        return f"| {self.verb} | {self.points} | {self.runs} | {ends} | {len(self.troubles)} |"


async def struck(name, plan, at):
    """The case, struck at these points; with its world, in which it was checked."""
    world = LivingWorld() if name in LIVES else World()
    work, check = await CASES[name](world)
    world.fails(PLANS[plan])
    found = await Striker(at).run(work)
    world.faulty.plan = {}
    if found.error is not None and not hasattr(found.error, "code"):
        raise found.error
    if name in LIVES:
        await asyncio.to_thread(check, found)  # it waits for other threads
    else:
        check(found)
    return found, world


def plans_of(name) -> tuple[str, ...]:
    """What the store does in the runs of this case."""
    return BRIEF if name in LIVES else tuple(PLANS)


def row_of(name, plans=None, strikes=tuple(STRIKES), some=list) -> Row:
    """Strike the verb at every await point, or at `some` of them, under each plan."""
    row = Row(name.replace("_", " "))

    async def all_of_it():
        for plan in plans_of(name) if plans is None else plans:
            calm, world = await struck(name, plan, ())
            row.troubles += [f"{name}, {plan}, not struck: {one}" for one in world.troubles]
            row.points = max(row.points, calm.points)
            for how in strikes:
                for k in some(range(1, min(calm.points, MOST_POINTS) + 1)):
                    found, world = await struck(name, plan, range(k, k + STRIKES[how]))
                    if found.points < k:
                        continue  # it came to fewer await points this time
                    row.runs += 1
                    row.ends[found.kind] += 1
                    world.must(found.cancelled is not None, "the cancel was swallowed")
                    world.must(found.ended is not None, "it does not say how the verb ended")
                    row.troubles += [f"{name}, {plan}, {how} at {k}: {one}" for one in world.troubles]

    asyncio.run(all_of_it())
    return row


def rows() -> Iterator[Row]:
    """All verbs."""
    for name in CASES:
        yield row_of(name)


def main() -> int:
    """Print the table; 1 if any cell of it is in trouble."""
    logging.disable(logging.CRITICAL)
    print(f"| verb | await points | runs | {' | '.join(ENDS)} | broken |")
    print("|---|" + "---|" * (3 + len(ENDS)))
    troubles = []
    for row in rows():
        print(row.line(), flush=True)
        troubles += row.troubles
    for trouble in troubles:
        print(trouble)
    return bool(troubles)


if __name__ == "__main__":
    raise SystemExit(main())
