"""`latchwork queue discard|redrive|move|cancel`: an action on messages, with the outcome of each."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Annotated

import typer

from ...errors import InvalidRequest, LatchworkError
from ...plain import counted
from ...queue import Outcome, ShardedQueue, State
from ..audit import noted
from ..bulk import MOST_CHOSEN, account_of, act, counts_of, outcomes_in
from ..exit_codes import FAILED, NOT_FOUND
from ..options import Client, Farm
from ..session import Session, note
from .all_of import Match, to_all
from .arguments import Ids, Name, Side, checked_side, named, queue_of
from .messages import only, row_of
from .show import tell_of_dead

TOLD = 3
"""Messages at most of which it is said where they are instead."""

All = Annotated[bool, typer.Option("--all", help="every message that matches, chosen once; at most 10,000")]
Reason = Annotated[str | None, typer.Option(help="with --all: only those that are there for this reason")]
Key = Annotated[str | None, typer.Option(help="with --all: only those in the shard of this key; not for delayed ones")]
Header = Annotated[list[str] | None, typer.Option(help="with --all: only those with this name=value; repeat for each")]
OlderThan = Annotated[
    float | None, typer.Option(help="with --all: only those published this many seconds ago, or earlier")
]
Most = Annotated[int, typer.Option(help="with --all: the largest number of messages, 1 to 10000")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="only print which messages; change nothing")]
Confirm = Annotated[str | None, typer.Option(help="the queue's name again, to take every message")]


def discard(
    context: typer.Context,
    name: Name,
    client: Client,
    id: Ids = None,
    side: Side = "parked",
    all: All = False,
    reason: Reason = None,
    key: Key = None,
    header: Header = None,
    older_than: OlderThan = None,
    most: Most = MOST_CHOSEN,
    dry_run: DryRun = False,
    confirm: Confirm = None,
    farm: Farm = None,
) -> None:
    """Delete messages, and print the outcome of each. It is done, not there, or unknown.

    With --all it deletes the messages that match. They are chosen once, at the beginning. Ctrl-C stops, and prints what
    was done. To discard every message of a side, give --all without anything to match, and --confirm. Exit code 3 if
    some were not there, 1 if some failed, the outcome of some is unknown, or not all were tried.

    Example: latchwork queue discard orders --client shop --id 3f0c9ab1d2e4f50617289c77~6b09dfef.1.5
    """
    queue = queue_of(context.obj, name, client, farm)
    match = Match(reason, key, header, older_than, most, dry_run=dry_run)
    if match.is_of_all("discard", id, all=all, confirm=confirm, name=name):
        to_all(context.obj, queue, "discard", side, match, farm=farm)
    else:
        _to_each(context.obj, queue, "discard", side, id, farm)


def redrive(
    context: typer.Context,
    name: Name,
    client: Client,
    limit: Annotated[
        int | None, typer.Option(help="the largest number of messages, without --all and --id [default: 100]")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="only messages that were parked for this reason")] = None,
    dry_run: DryRun = False,
    id: Ids = None,
    side: Side = "parked",
    all: All = False,
    key: Key = None,
    header: Header = None,
    older_than: OlderThan = None,
    most: Most = MOST_CHOSEN,
    farm: Farm = None,
) -> None:
    """Bring parked messages back, with no attempts counted.

    With --id it brings back just these messages, of any side, and prints the outcome of each, as `discard` does; a
    delayed message is then due at once. With --all it brings back the messages that match, of any side. They are chosen
    once, at the beginning; Ctrl-C stops.

    Example: latchwork queue redrive orders --client shop --reason exhausted --dry-run
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)
    checked_side(side)
    match = Match(reason, key, header, older_than, most, dry_run=dry_run)
    of_all = match.is_of_all("redrive", id, all=all, own=("reason", "dry-run"))
    if limit is not None and (of_all or id):
        what = "--all: give --most" if of_all else "--id: the ids that you give are all that are taken"
        raise InvalidRequest(f"--limit with {what}")
    most_parked = 100 if limit is None else limit
    if of_all:
        to_all(session, queue, "redrive", side, match, farm=farm)
    elif id and (reason is not None or dry_run):
        raise InvalidRequest("--id with --reason or --dry-run: without --id, `search` says which messages there are")
    elif id:
        _to_each(session, queue, "redrive", side, id, farm)
    elif side != "parked":
        raise InvalidRequest(f"--side {side} without --id: name the messages; only parked ones come back all at once")
    else:
        with nullcontext() if dry_run else noted(session, "redrive", client, farm, name, before=reason or side) as deed:
            try:
                found = queue.redrive(most_parked, reason=reason, dry_run=dry_run)
            except LatchworkError as failure:
                if deed is not None and (done := failure.details.get("redriven")):
                    failure.details |= {"outcomes": dict.fromkeys(done, Outcome.DONE), "failures": {}}
                    deed.after = _told(failure, done)
                raise
            if deed is not None:
                deed.after = counted(len(found), "message")
        session.table([row_of(message, json_value=session.json) for message in found], empty="nothing to bring back")
        if found:
            note(f"{'would be ' if dry_run else ''}brought back: {counted(len(found), 'message')}")
        if len(found) >= most_parked and not dry_run and (left := queue.depth().parked):
            note(f"still parked: at most {counted(left, 'message')}; --all brings back all, --limit more at once")


def move(
    context: typer.Context,
    name: Name,
    client: Client,
    to: Annotated[str, typer.Option(help="the queue to which the messages go")],
    id: Ids = None,
    side: Side = "parked",
    all: All = False,
    reason: Reason = None,
    key: Key = None,
    header: Header = None,
    older_than: OlderThan = None,
    most: Most = MOST_CHOSEN,
    dry_run: DryRun = False,
    farm: Farm = None,
) -> None:
    """Move messages to another queue of the client. The outcome of each is printed, as by `discard`.

    With --all it moves the messages that match. They are chosen once, at the beginning; Ctrl-C stops.

    Example: latchwork queue move orders --client shop --to orders-by-hand --id 3f0c9ab1d2e4f50617289c77~6b09dfef.1.5
    """
    queue, target = queue_of(context.obj, name, client, farm), queue_of(context.obj, to, client, farm)
    match = Match(reason, key, header, older_than, most, dry_run=dry_run)
    if match.is_of_all("move", id, all=all):
        to_all(context.obj, queue, "move", side, match, to, farm=farm)
    else:
        _to_each(context.obj, queue, "move", side, id, farm, to=target)


def cancel(
    context: typer.Context,
    name: Name,
    client: Client,
    id: Ids = None,
    all: All = False,
    reason: Reason = None,
    header: Header = None,
    older_than: OlderThan = None,
    most: Most = MOST_CHOSEN,
    dry_run: DryRun = False,
    confirm: Confirm = None,
    farm: Farm = None,
) -> None:
    """Cancel messages, in whatever state they are. The outcome of each is printed.

    A message that waits is deleted: `done`. If a consumer has the message, it is asked to stop: `asked`; the handler's
    next `delivery.check()` ends it. With --all it cancels the delayed messages that match and are due within the hour;
    Ctrl-C stops. To cancel all of them, give --all without anything to match, and --confirm.

    Exit code 3 if some were not there, 1 if some failed, or the outcome of some is unknown.

    Example: latchwork queue cancel orders --client shop --id 3f0c9ab1d2e4f50617289c77~6b09dfef.1.5
    """
    queue = queue_of(context.obj, name, client, farm)
    match = Match(reason, None, header, older_than, most, dry_run=dry_run)
    if match.is_of_all("cancel", id, all=all, confirm=confirm, name=name):
        to_all(context.obj, queue, "cancel", "delayed", match, farm=farm)
        return
    outcomes = _to_each(context.obj, queue, "cancel", "", id, farm)
    asked = [one for one, outcome in outcomes.items() if outcome is Outcome.ASKED][:TOLD]
    tell_of_dead(queue, client, {queue.status(one).worker for one in asked})


def _to_each(
    session: Session,
    queue: ShardedQueue,
    verb: str,
    side: str,
    given: list[str] | None,
    farm: str | None,
    *,
    to: ShardedQueue | None = None,
) -> Mapping[str, Outcome]:
    """Do this to the messages that are named; print and return the outcome of each.

    side: empty = whatever state they are in. Where some failed, the outcome of each of several goes to stderr, and into
    the document of the error.
    """
    if side:
        checked_side(side)
    ids, before = named(given), f"{side}, to {to.name}" if to else side
    with noted(session, verb, queue.registry.client_id, farm, queue.name, *ids, before=before) as deed:
        try:
            outcomes = act(queue, verb, side, ids, to)
        except LatchworkError as failure:
            if len(ids) > 1 and "outcomes" in failure.details:
                deed.after = _told(failure, ids)
            raise
        deed.after = counts_of(outcome.value for outcome in outcomes.values())
    session.table([{"message_id": name, "outcome": outcome.value} for name, outcome in outcomes.items()])
    if Outcome.UNKNOWN in outcomes.values():
        raise typer.Exit(FAILED)
    if Outcome.NOT_THERE in outcomes.values():
        if side:
            note(f"not there: {only(side)}")
            _tell_where(queue, [name for name, outcome in outcomes.items() if outcome is Outcome.NOT_THERE][:TOLD])
        raise typer.Exit(NOT_FOUND)
    return outcomes


def _told(failure: LatchworkError, ids: list[str]) -> str:
    """Say the outcome of each message where some failed; return it for the audit record."""
    found = outcomes_in(failure, ids)
    rows = [{"message_id": name, "outcome": outcome} for name, outcome in found.items()]
    failure.details["document"] = {"outcomes": rows}
    for name, outcome in found.items():
        note(f"{name}: {outcome}")
    return f"{account_of(found)}; {failure}"


def _tell_where(queue: ShardedQueue, ids: list[str]) -> None:
    """Say where messages are that were looked for elsewhere."""
    if queue.reader:
        return
    found = {one: queue.status(one) for one in ids}
    for one, status in found.items():
        if status.state not in (State.UNKNOWN, State.DONE):
            who = f": {status.worker or 'a consumer'} has it in hand" if status.state is State.RUNNING else ""
            note(f"{one} is {status.state.value}{who}")
    tell_of_dead(queue, queue.registry.client_id, {status.worker for status in found.values()})
