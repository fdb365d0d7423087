"""An action on all messages that match the filter of a page, with its consequence in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...observe.audit import Deed, note_progress
from ...plain import counted, one_line
from ...queue import Message, ShardedQueue
from ..bulk import MOST_CHOSEN, Run, choose
from .actions import Action, consequence_of, on_queue, refusal_of
from .pages import message_row

SAMPLE = 20
"""Messages that are named before it is confirmed."""
SPARE = 0.8
"""Seconds that are left of a page's time when choosing ends."""


def of_all(key: Sequence[str], run: Run) -> Action | str:
    """Return what is done to all messages that were chosen; why it cannot be, where it cannot."""
    chosen, name = run.chosen, one_line(key[2])
    if refusal := refusal_of(run.verb, chosen.side, run.to):
        return refusal
    if not chosen.messages:
        return f"nothing {chosen.side} in {name} matches" + (
            " in the records that were looked at" if chosen.more else ""
        )
    shown_count = counted(len(chosen.messages), "message")
    more = f" Others match, or may: it is at most {MOST_CHOSEN:,} at once." if chosen.more else ""
    return Action(
        f"{run.verb} {shown_count} of {name}{f' to {one_line(run.to)}' if run.to else ''}",
        f"These {shown_count}, chosen now ({one_line(chosen.words)}), and no others.{more} "
        f"{consequence_of(run.verb, chosen.side, run.to, many=True)} It goes on in parts, and can be stopped.",
        (*key, shown_count),
        on_queue(key, lambda queue, deed: _run(run, queue, deed)),
        before=f"{chosen.side}: {chosen.words}",
    )  # fmt: skip


def run_of_filter(
    queue: ShardedQueue,
    verb: str,
    side: str,
    text: str,
    to: str = "",
    *,
    match: Mapping[str, Any] | None = None,
    most: int = MOST_CHOSEN,
) -> Run:
    """Return the run of all messages of a side that match, and whose row has this text, as the filter of a page has it.

    Costs and raises as `choose`.
    """
    now = queue.store.seams.wall()

    def contains(message: Message) -> bool:
        return text.casefold() in " ".join(message_row(side, message, now).cells).casefold()

    also = contains if text else None
    return Run(verb, choose(queue, side, match or {}, text=text, also=also, most=most, spare=SPARE), to)


def _run(run: Run, queue: ShardedQueue, deed: Deed) -> str:
    run.by = deed.who
    return run.go(queue, lambda said: note_progress(queue.store, deed, said))
