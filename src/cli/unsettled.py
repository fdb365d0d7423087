"""What workers have in hand though no handler of theirs works on it: they could not settle these messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..observe.snapshot import QueueState
from ..plain import counted, shown_time
from ..queue.sharded.in_flight import InHand
from ..queue.sharded.workers import LONG, process_of, short_name

UNSETTLED = ", as where the store was away when they were to be settled, or was restarted and forgot that"


class Unsettled(NamedTuple):
    """The messages that a worker could not settle; `left`: seconds until a sweep brings back the last of them."""

    worker: str
    messages: int
    left: float

    @property
    def why(self) -> str:
        """What a person is told of them."""
        what = (
            f"worker {self.worker} has {counted(self.messages, 'message')} in hand that no handler works on{UNSETTLED}"
        )
        return f"{what}: the sweep brings them back, {returns_within(self.left)}"


def returns_within(left: float) -> str:
    """Return when the sweep has brought back what waits for it for so many seconds."""
    return f"at the latest {f'within {shown_time(left)}' if left > 0 else 'with the next one'}"


def unsettled_in(state: QueueState, held: Sequence[InHand], now: float, *, batches: bool) -> list[Unsettled]:
    """Return what the workers of a queue that live have had in hand for long, more than their handlers work on.

    held: what consumers have in hand. now: by this clock, as the stamps of the messages.
    batches: whether a handler works on several messages; then it is not known how many, unless none runs.
    """
    found = []
    for one in state.at_work:
        name, reported, process = short_name(one.worker), now - one.ago, process_of(one.worker)
        # Their messages cannot be told apart.
        running = sum(other.running for other in state.at_work if process_of(other.worker) == process)
        stamps = sorted(
            mine.stamped / 1000
            for mine in held
            if mine.worker == process and mine.stamped and mine.stamped / 1000 < reported - LONG
        )
        left = [] if batches and running else stamps[: max(0, len(stamps) - running)]
        if left:
            found.append(Unsettled(name, len(left), left[-1] + state.returns_within - now))
    return found
