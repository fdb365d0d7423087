"""`latchwork audit`: what people have done, with any tool; and the record of what a command does."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated

import typer

from ..inputs import farm_or_default
from ..plain import one_line, shown_time
from .options import CLIENT_VARIABLE
from .session import Session, note

if TYPE_CHECKING:
    from ..observe.audit import Deed

NOBODYS = ("lock", "election", "rwlock", "semaphore")
"""The kinds of what belongs to no client, as the first part of a target."""


def audit(
    context: typer.Context,
    about: Annotated[
        str, typer.Option(help="only actions on this: the name of a queue, a lock or a client, or the id of a message")
    ] = "",
    client: Annotated[
        str | None, typer.Option(envvar=CLIENT_VARIABLE, help="only actions on things of this client [default: all]")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="the largest number of actions")] = 20,
) -> None:
    """Show what people have done, the newest first: who paused, scaled, redrove or discarded something, or broke a
    lock, and when.

    It shows actions by this command, by `latchwork top` and by the console. What a program does by itself, such as
    `queue.scale(8)`, is not recorded; `latchwork queue list` names who changed a queue last. An action is
    kept for 90 days. One that stayed `begun` was interrupted: perhaps it was done, perhaps not. An action on a thing
    that belongs to no client, such as a lock, is shown for every client.

    Example: latchwork audit --client shop --about orders
    """
    from ..observe.audit import DONE, audit_of  # noqa: PLC0415 - it loads queues, which many commands do not need
    from ..queue.sharded.envelope import date  # noqa: PLC0415 - as above

    session: Session = context.obj
    now, found = session.store.seams.wall(), audit_of(session.store, None)
    mine = [
        one
        for one in found
        if (not client or one.target.partition("/")[0] in {client, *NOBODYS})
        and (not about or f"/{one_line(about)}/" in f"/{one.target}/")  # the id of a message may have a slash
    ]
    rows = [
        {
            "at": date(int(one.at * 1000)).isoformat(timespec="seconds"),
            **({} if session.json else {"ago": shown_time(max(0.0, now - one.at))}),
            "who": one.who, "what": one.what, "on": one.target,
            "before": one.before or None, "after": one.after or None, "why": one.why or None,
            "outcome": one.outcome if session.json or one.outcome != DONE else None, "farm": one.farm,
        }
        for one in mine[:limit]
    ]  # fmt: skip
    of = f" to {about}; an action on many messages does not name each of them" if about else ""
    session.table(rows, empty=f"nobody is known to have done anything{of}")
    if len(mine) > limit:
        note(f"the newest {limit} of {len(mine)}; --limit shows more")


def noted(
    session: Session, what: str, place: str, farm: str | None, *names: str, before: str = "", why: str = ""
) -> AbstractContextManager[Deed]:
    """Keep a record of what this person does in the block. Costs and raises as `audited`.

    place: the client; or the kind of a thing that belongs to no client.
    """
    from ..observe.audit import Deed, audited  # noqa: PLC0415 - as above

    deed = Deed(farm_or_default(farm), person(), what, "/".join((place, *names)), why, before)
    return audited(session.store, deed)


def person() -> str:
    """Return who runs this command, for people: `user@host`."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user without a name, as in a container
        return f"uid {os.getuid()}@{socket.gethostname()}"
