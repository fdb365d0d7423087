"""The option `--all` of `latchwork queue redrive|discard|move|cancel`: all messages that match, chosen once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import typer

from ...errors import InvalidRequest
from ...observe.audit import note_progress
from ...plain import counted, shown
from ...queue import Outcome, ShardedQueue
from ..audit import noted
from ..bulk import MOST_CHOSEN, NOT_TRIED, Run, choose
from ..exit_codes import FAILED, NOT_FOUND
from ..session import Session, note
from .arguments import checked_side, headers_of

EVERY = 10
"""Parts after each of which it is said how far it is."""


@dataclass(frozen=True, slots=True)
class Match:
    """What messages must match, as the options have it; None = anything."""

    reason: str | None
    key: str | None
    header: Sequence[str] | None
    older_than: float | None
    most: int
    dry_run: bool

    @property
    def given(self) -> dict[str, Any]:
        """What `choose` is given."""
        found: dict[str, Any] = {"reason": self.reason, "key": self.key, "older_than": self.older_than}
        found["header"] = headers_of(self.header) if self.header else None
        return {name: value for name, value in found.items() if value is not None}

    def is_of_all(
        self,
        verb: str,
        ids: Sequence[str] | None,
        *,
        all: bool,
        confirm: str | None = None,
        name: str | None = None,
        own: Sequence[str] = (),
    ) -> bool:
        """Whether the action is on all messages that match. Raises `InvalidRequest` if that is not clear.

        name: of the queue, if it must be given twice to take every message. own: options that mean something without
        `--all` too.
        """
        if all and ids:
            raise InvalidRequest("--all with --id: give --all or --id, not both")
        if not all:
            others = [one.replace("_", "-") for one in self.given]
            others += ["most"] if self.most != MOST_CHOSEN else []
            others += ["dry-run"] if self.dry_run else []
            if wrong := [one for one in others if one not in own]:
                raise InvalidRequest(f"--{wrong[0]} without --all: this option chooses the messages of --all")
            return False
        if name is not None and not self.given and not self.dry_run and confirm != name:
            raise InvalidRequest(
                f"{verb} --all without anything to match takes every message: look with --dry-run, then "
                f"give --confirm {shown(name)}"
            )
        return True


def to_all(
    session: Session, queue: ShardedQueue, verb: str, side: str, match: Match, to: str = "", *, farm: str | None
) -> None:
    """Do this to all messages of a side that match, and print the outcome of each."""
    chosen = choose(queue, checked_side(side), match.given, most=match.most)
    run, many = Run(verb, chosen, to), counted(len(chosen.messages), "message")
    more = "; others match, or may" if chosen.more else ""
    if match.dry_run:
        session.table([{"message_id": name} for name in chosen.names], empty="no messages")
        note(f"would {verb} {many}{more}")
        return
    if not chosen.messages:
        session.table([], empty="no messages")
        return
    client, parts = queue.registry.client_id, 0
    try:
        with noted(session, verb, client, farm, queue.name, many, before=f"{side}: {chosen.words}") as deed:

            def tell(said: str) -> None:
                nonlocal parts
                parts += 1
                note_progress(session.store, deed, said)
                if not parts % EVERY:
                    note(said)

            deed.after = run.go(queue, tell)
    finally:  # also where Ctrl-C ended it
        if run.has_begun:  # not if it could not be recorded: then nothing was done
            with suppress(BrokenPipeError):
                session.table([{"message_id": name, "outcome": outcome} for name, outcome in run.rows()])
            note(run.said + more)
    known = {Outcome.DONE.value, Outcome.ASKED.value, Outcome.NOT_THERE.value}
    if set(run.outcomes) - known or NOT_TRIED in run.outcomes:
        raise typer.Exit(FAILED)
    if Outcome.NOT_THERE.value in run.outcomes:
        raise typer.Exit(NOT_FOUND)
