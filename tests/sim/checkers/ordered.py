"""What an ordered consumer promises (docs/protocols P5)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..history.record import Entry
    from ..workload.ordered import Ordered


def check(run: Ordered) -> None:
    """All promises."""
    each_key_is_handled_in_order(run)
    everything_is_handled(run)


def first_handled(run: Ordered) -> dict[tuple[str, int], Entry]:
    """For each message when it was handled for the first time."""
    found: dict[tuple[str, int], Entry] = {}
    for entry in run.history.named("handle"):
        found.setdefault(entry.args, entry)
    return found


def safe(run: Ordered) -> dict[str, list[Entry]]:
    """The publishes of each key that were acknowledged, in order: each began when the one before it had ended.

    Not of messages that a stopping consumer put into the sideline: order is not promised for what was given up.
    """
    keys: dict[str, list[Entry]] = defaultdict(list)
    for entry in run.history.named("publish"):
        if entry.ok and entry.args not in run.given_up:
            keys[entry.args[0]].append(entry)
    return keys


def each_key_is_handled_in_order(run: Ordered) -> None:
    """No message is handled before one of its key that was safe before it was published. It may be handled again."""
    handled = first_handled(run)
    for key, publishes in safe(run).items():
        seen = [entry.args for entry in sorted(handled.values(), key=lambda entry: entry.order) if entry.args[0] == key]
        for earlier in publishes:
            for later in run.history.named("publish"):
                if later.args[0] == key and later.order > earlier.order and later.args in handled:
                    first = handled.get(earlier.args)
                    run.require(
                        first is not None and first.order < handled[later.args].order,
                        "messages of one key are handled in order",
                        f"{later.args} before {earlier.args}: {[number for _, number in seen]}",
                    )


def unhandled(run: Ordered) -> list[tuple[str, int]]:
    """Messages that were safe and that nobody has handled."""
    handled = first_handled(run)
    return [entry.args for publishes in safe(run).values() for entry in publishes if entry.args not in handled]


def everything_is_handled(run: Ordered) -> None:
    """Once faults have stopped: nothing has to wait for a sweep."""
    left = unhandled(run)
    run.require(not left, "liveness once faults stop", f"{left} were not handled")
    run.require(not run.stuck, "liveness once faults stop", f"{run.stuck} hang")
