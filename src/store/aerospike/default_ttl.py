"""Writes that may make a record and say `KEEP`, where the namespace has a default-ttl (docs/protocols P0.5).

A record that the server makes without a time to live gets the default one, and would expire with what it protects. So
such a write is sent as an update, and where there is no record as a create that never expires. Each is an attempt of
its own, and one in doubt ends the matter: its update may be sent again just as the whole may.

What the namespace's default-ttl is, is asked again each minute (`Link.describe`). Not promised: a default that is set
up behind a client that lives on is not seen for so long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from ...errors import AlreadyExists, LatchworkError, NotFound, Unavailable
from ..model.form import plain
from ..model.record import KEEP, NEVER, Exists, Row, Update, Values
from ..rows import attempted

_STEPS: tuple[tuple[Exists, int, type[LatchworkError]], ...] = (
    (Exists.UPDATE, KEEP, NotFound),
    (Exists.CREATE, NEVER, AlreadyExists),  # another process has just made it
    (Exists.UPDATE, KEEP, NotFound),
)
"""The requests, one after the other, and the answer to which the next one is sent."""


def may_make(update: Update) -> bool:
    """Whether it is such a write."""
    return update.exists is Exists.ANY and update.ttl == KEEP


def update_or_create(update: Update, send: Callable[[Update], Values]) -> Values:
    """Change the record, or make it so that it never expires. Raises as `send`, and `Unavailable`."""
    for exists, ttl, missed in _STEPS:
        try:
            return send(_as(update, exists, ttl))
        except missed:
            continue
    raise _contended(update)


def update_or_create_many(updates: Sequence[Update], send: Callable[[Sequence[Update]], Sequence[Row]]) -> list[Row]:
    """Send a batch as `update_or_create` does one update: rows that may create a record twice, all others once."""
    outcomes: list[Row] = [()] * len(updates)
    pending: Sequence[int] = range(len(updates))
    for exists, ttl, missed in _STEPS:
        sent = [_as(updates[place], exists, ttl) for place in pending]
        # A failure of the whole batch is one of these rows: what an earlier step has done for others stays as it is.
        for place, outcome in zip(pending, attempted(len(sent), partial(send, sent)), strict=True):
            outcomes[place] = outcome
        pending = [place for place in pending if may_make(updates[place]) and isinstance(outcomes[place], missed)]
        if not pending:
            return outcomes
    for place in pending:
        outcomes[place] = _contended(updates[place])
    return outcomes


def _as(update: Update, exists: Exists, ttl: int) -> Update:
    return replace(plain(update), exists=exists, ttl=ttl) if may_make(update) else update


def _contended(update: Update) -> Unavailable:
    return Unavailable(f"{update.key} was made and deleted by others again and again; nothing was written: try again")
