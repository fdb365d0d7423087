"""An operator of `test_two_operators`: discards, redrives and moves parked or failed messages, some at a time.

python -m tests.queue.sharded.sideline.operator_process URL CLIENT SIDE SEED, with ids on its input

It prints a list, as JSON, of [verb, {id: outcome}].
"""

from __future__ import annotations

import json
import random
import sys

import latchwork
from latchwork.queue import QueueRegistry

VERBS, TURNS, AT_ONCE = ("discard", "redrive", "move"), 40, 12


def main() -> None:
    url, client, side, seed = sys.argv[1:]
    ids, registry, chance = sys.stdin.read().split(), QueueRegistry(latchwork.connect(url), client), random.Random(seed)
    messages, another, did = getattr(registry.get("q"), side), registry.get("another"), []
    for _ in range(TURNS):
        verb, some = chance.choice(VERBS), chance.sample(ids, chance.randint(1, AT_ONCE))
        outcomes = messages.move(some, another) if verb == "move" else getattr(messages, verb)(some)
        did.append((verb, {one: outcome.name for one, outcome in outcomes.items()}))
    print(json.dumps(did))


main()
