"""For each rule of docs/protocols the interleaving that breaks a protocol without it, by the rule's name."""

from __future__ import annotations

from . import (
    across,
    barrier,
    batches,
    circular,
    defects,
    effects,
    ground,
    hand,
    interrupted,
    latch,
    later,
    ledger,
    lock,
    one,
    order,
    ordered,
    presence,
    rwlock,
    semaphore,
    sharded,
    stored,
    tasks,
)

RULES = [
    *ground.RULES,
    *lock.RULES,
    *circular.RULES,
    *sharded.RULES,
    *interrupted.RULES,
    *hand.RULES,
    *defects.RULES,
    *ordered.RULES,
    *one.RULES,
    *order.RULES,
    *ledger.RULES,
    *effects.RULES,
    *latch.RULES,
    *semaphore.RULES,
    *presence.RULES,
    *barrier.RULES,
    *rwlock.RULES,
    *across.RULES,
    *later.RULES,
    *stored.RULES,
    *batches.RULES,
    *tasks.RULES,
]
"""(name, script, how the rule is taken out): the script says True while the promise holds."""
