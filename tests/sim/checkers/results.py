"""What is promised of results (docs/protocols P31)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from .message import _comes_after, _one_copy, _unknown
from .retry import STORE_LOST

if TYPE_CHECKING:
    from ..workload.results import Results

AWAY = ("UNAVAILABLE", "unknown")


def check(run: Results) -> None:
    """All promises."""
    if run.happened(*STORE_LOST):
        return
    found: defaultdict[str, set[object]] = defaultdict(set)
    given: defaultdict[str, set[object]] = defaultdict(set)
    for message, _, by in run.handed:
        given[message].add(by)
    acked = {entry.args[0]: entry for entry in run.history.named("ack") if entry.ok and entry.tag != "drained"}
    for entry in run.history.named("result"):
        message = entry.args[0]
        if not _one_copy(run, message):
            continue
        if entry.ok:
            found[message].add(entry.result)
            of = f"{message}: {entry.result}"
            run.require(entry.result in given[message], "a result is what a handler returned", of)
            run.require(not _comes_after(run, entry), "a message with a result does not come again", of)
        since = acked.get(message)
        known = since is not None and entry.order > since.returned and not _unknown(run, entry)
        if known and entry.outcome not in AWAY:
            run.require(entry.ok, "an acknowledged message has its result", f"{message}: {entry.outcome}")
    for message, results in found.items():
        run.require(len(results) == 1, "everybody gets the same result", f"{message}: {sorted(map(str, results))}")
