"""What publishing by a ledger promises (docs/design.md section 5, docs/protocols P6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import sharded

if TYPE_CHECKING:
    from ..workload.ledger import Ledgers


def check(run: Ledgers) -> None:
    """All promises."""
    sharded.check(run)
    every_row_is_published_once(run)
    the_last_attempt_succeeds(run)


def every_row_is_published_once(run: Ledgers) -> None:
    """However many attempts there were, nobody is given a row from two slots, and there are not more ids than rows."""
    for msg_id, slots in run.slots.items():
        run.require(len(slots) == 1, "every row is published once", f"{msg_id} was handed out from {sorted(slots)}")
    run.require(len(run.slots) <= len(run.rows), "every row is published once", f"{len(run.slots)} of {len(run.rows)}")


def the_last_attempt_succeeds(run: Ledgers) -> None:
    """Once faults have stopped an attempt completes what the others left."""
    last = run.history.named("publish")[-1]
    run.require(last.ok, "liveness once faults stop", f"the last attempt ended in {last.outcome} {last.reason}")
