"""What a consumer at a rate promises, besides what every consumer does (docs/protocols P5, P13)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from . import consumer
from .limiter import let_through, never_more_than_the_limit_in_any_window
from .lock import FORGETFUL

if TYPE_CHECKING:
    from ..workload.rate import Rated


def check(run: Rated) -> None:
    """All promises."""
    consumer.check(run)
    no_handler_begins_that_was_not_allowed(run)
    if not run.happened(*FORGETFUL):
        for changes in run.allowed.values():
            never_more_than_the_limit_in_any_window(run, let_through(changes))


def no_handler_begins_that_was_not_allowed(run: Rated) -> None:
    """At any moment no more handlers of a key have begun than the store has allowed of it before."""
    begun: Counter[str] = Counter()
    for order, key in sorted(run.starts):
        begun[key] += 1
        allowed = sum(one.n for one in let_through(run.allowed[key]) if one.order < order)
        run.require(
            begun[key] <= allowed, "no handler begins that the limiter has not allowed",
            f"{begun[key]} of key {key!r} had begun, and {allowed} were allowed",
        )  # fmt: skip
