"""A line on a terminal for a command that has waited for a second: for what, and who has it, or is missing."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

from ...coord.lease import broken_by
from ...errors import LatchworkError
from ...plain import shown_time
from ...seams import Seams
from ...store import RecordStore
from ..session import note

QUIET = 1.0
"""Seconds that a command waits before it says so."""
NAMED = 4
"""Names in the line."""


class Waiting:
    """A context in which a command waits; `over` ends the wait. On a terminal, one line on stderr says so.

    what: the thing that it waits for. who: returns who has it, or is missing, for people; one or two calls, once.
    """

    def __init__(self, seams: Seams, what: str, who: Callable[[], str]) -> None:
        self._seams, self._what, self._who = seams, what, who
        self._over = seams.event()

    def __enter__(self) -> Waiting:
        if sys.stderr.isatty():
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # which are for the main thread
            try:
                self._seams.spawn(self._tell, "latchwork-waiting")
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over()

    def over(self) -> None:
        """Say nothing from now on."""
        self._over.set()

    def _tell(self) -> None:
        if self._over.wait(QUIET):
            return
        who = ""
        with suppress(LatchworkError):  # the wait itself reports what is wrong
            who = self._who()
        if not self._over.is_set():
            note(f"waits for {self._what}{who and '; '}{who}")


def holder_of(store: RecordStore, name: str) -> str:
    """Return who has a lock, or leads an election by lease, and when the lease was last renewed. One call."""
    from ...observe.snapshot import election_now  # noqa: PLC0415 - few commands wait for long, and it loads queues

    holder, _ = election_now(store, name)
    if holder is None or not holder.held:
        return ""
    if (by := broken_by(holder.name)) is not None:
        when = f"who has waited for {holder.lease:g} s, its former holder's lease, takes it" if holder.lease else ""
        return f"broken by {by} {shown_time(holder.renewed_ago)} ago: nobody holds it{when and '; '}{when}"
    late = "" if holder.leads else f": its lease has run out, so it is free within {holder.lease:g} s"
    return f"held by {holder.name}, renewed {shown_time(holder.renewed_ago)} ago{late}"


def holders(names: Sequence[str]) -> str:
    """Return who has it, for people, of several holders."""
    return listed("held by", names)


def listed(what: str, names: Sequence[str]) -> str:
    """Return these words and the names, the first ones of many; empty for no names."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{what} {', '.join(names[:NAMED])}{more}" if names else ""
