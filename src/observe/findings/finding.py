"""A finding: its state, text and remedy. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...queue.sharded.workers import WorkerReport, short_name
from ..snapshot import Snapshot
from . import words

OK, WARNING, PROBLEM = "ok", "warning", "problem"
WAITED = 30.0
"""Seconds that a message must have waited before the lack of a worker is a problem."""
ACTS_WITHIN = 10.0
"""Seconds within which each worker must act on a change of the settings; 3 are usual."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a person should know, with its remedy.

    state: ok: worth knowing; warning; or problem: a person must act.
    kind: as the table of the findings has it (`KINDS`); empty where it is not about the queues of a client.
    client: the client that it is about; empty = none.
    queues: the queues that it is about.
    sound: the part that was looked at and is sound, in a word or two; empty for all other findings.
    workers: all workers that died, of which the text may name only some.
    """

    state: str
    what: str
    remedy: str = ""
    kind: str = ""
    client: str = ""
    queues: tuple[str, ...] = ()
    sound: str = ""
    workers: tuple[str, ...] = ()

    @property
    def queue(self) -> str | None:
        """The queue that it is about; None = none, or several."""
        return self.queues[0] if len(self.queues) == 1 else None

    @property
    def row(self) -> dict[str, Any]:
        """This finding for a program."""
        return {
            "state": self.state, "kind": self.kind, "client": self.client or None, "queue": self.queue,
            "queues": list(self.queues), "what": self.what, "remedy": self.remedy,
            "workers": list(self.workers),
        }  # fmt: skip


Found: TypeAlias = tuple[str, str, str, str]
"""The state and the kind of a finding, its text without the names of its queues, and its remedy."""
OfQueue: TypeAlias = Iterator[Found]
"""What a rule finds about a queue."""


def of_queues(taken: Snapshot, queues: Sequence[str], found: Found, workers: Sequence[WorkerReport] = ()) -> Finding:
    """Return a finding about some queues of the client, which its text names. workers: that died."""
    state, kind, what, remedy = found
    text, shorts = f"{words.queues(queues)} of {taken.client}: {what}", tuple(short_name(one.worker) for one in workers)
    return Finding(state, text, remedy, kind, taken.client, tuple(queues), workers=shorts)
