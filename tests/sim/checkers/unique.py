"""What is promised of messages that are unique until they are done (docs/protocols P30)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from . import retry, sharded
from .retry import STORE_LOST

if TYPE_CHECKING:
    from ..history.record import Entry
    from ..workload.unique import Unique


def check(run: Unique) -> None:
    """All promises."""
    retry.nobody_is_handed_what_another_holds(run)
    sharded.drained_once_faults_stop(run)
    if run.happened(*STORE_LOST):
        return
    one_message_of_a_key_lives(run)
    what_was_published_is_handled(run)
    what_was_replaced_is_handled(run)
    a_key_is_free_once_its_message_is_done(run)


def _ended(run: Unique) -> set[str]:
    """The ids of messages that somebody has tried to cancel, or to discard, and of those that have expired."""
    payloads = {entry.args[0] for entry in run.history.named("cancel")}
    discarded = {of for entry in run.history.named("discard") for of in entry.args[0]}
    return {of for of, payload in run.ids.items() if payload in payloads} | discarded | run.expired


def one_message_of_a_key_lives(run: Unique) -> None:
    """None is written while another one waits, or runs; unless its publisher was paused for a sweep duration. Nor does
    one wait that came so late itself that its slot was given up, and expired, before: nobody is handed that.
    """
    handed = {of for _, of, _ in run.handed}
    for when, unique, one, other in run.born:
        late = when - run.claimed.get(other, when) > run.lease
        lost = one not in handed and run.wrote_at[one] - run.claimed.get(one, run.wrote_at[one]) > run.lease
        copied = one in run.doubled or other in run.doubled
        what = f"{other} beside {one} of {unique} at {when:.3f}"
        run.require(late or lost or copied, "one message of a key lives", what)


def _waiting(run: Unique) -> set[str]:
    """The ids of messages that are there at the end, as where the server's clock was set back."""
    return {of for of, places in run.alive.items() if places}


def what_was_published_is_handled(run: Unique) -> None:
    """The message whose id a publisher was told, unless it was cancelled, discarded, expired, or still waits."""
    done = {of for _, of, _ in run.handed} | _ended(run) | _waiting(run)
    for entry in run.history.named("publish"):
        if entry.ok and len(entry.args) == 3:
            run.require(entry.result in done, "what was published is handled", f"{entry.args} as {entry.result}")


def what_was_replaced_is_handled(run: Unique) -> None:
    """The payload of the last replacement of a message is one that a handler gets."""
    entries: defaultdict[str, list[Entry]] = defaultdict(list)
    got: defaultdict[str, set[str]] = defaultdict(set)
    for payload, of, _ in run.handed:
        got[of].add(payload)
    doubts = []
    for entry in run.history.named("publish"):
        if len(entry.args) == 3 and entry.args[2] == "replace":
            if entry.ok:
                entries[entry.result].append(entry)
            elif entry.unknown:
                doubts.append(entry)
    for of, some in entries.items():
        last = max(some, key=lambda entry: entry.order)
        alone = all(other is last or other.returned < last.order for other in (*some, *doubts))
        if alone and of not in run.doubled | _ended(run) | _waiting(run):
            (payload,) = last.args[0]
            run.require(payload in got[of], "what was replaced is handled", f"{payload} of {of}: {got[of]}")


def a_key_is_free_once_its_message_is_done(run: Unique) -> None:
    """The next publish is handled, where nothing is left of a copy."""
    left = {run.keys_of[of] for of in _waiting(run)}
    for unique in {"a", "b"} - left:
        run.require(f"last {unique}" in run.last, "a key is free once its message is done", f"{unique}: {run.last}")
