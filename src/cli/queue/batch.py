"""`latchwork queue batch`: messages that are counted as they are done, with a follow-up after the last."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from ...errors import LatchworkError, NotFound, WaitTimeout
from ...inputs import farm_or_default
from ...observe.findings.words import of_client
from ...plain import counted, word
from ...queue import QueueBatch, ShardedQueue
from ...queue.sharded.in_flight import in_flight
from ...queue.sharded.record import LIVE_BINS, live_of
from ...queue.sharded.sweep_record import SubqueueKind, pointer_bin
from ..audit import noted
from ..follow_ups import why_refused
from ..jsontext import to_json
from ..options import Client, Farm
from ..session import Session, note
from .arguments import Name, queue_of
from .facts import lines_of

app = typer.Typer(help="Batches: messages that are counted as they are done.", no_args_is_help=True)

_ENDS_WITHIN = 25.0
"""Seconds within which the upkeep ends a batch whose last consumer died before it did."""
Batch = Annotated[str, typer.Argument(help="the batch")]


def _facts(batch: QueueBatch) -> dict[str, Any]:
    return {"batch": batch.name, **asdict(batch.progress())}


def _lost(batch: QueueBatch, queue: ShardedQueue) -> int:
    """Return how many messages that a batch waits for are nowhere in its queue any more, at least; 0 if that is not
    known.

    Some ten calls; none if the batch waits for nothing. The places that are counted may have other messages of the
    queue too, so more may be lost. It looks twice, because a message may move while one place after the other is read.
    """
    lost = _lost_now(batch, queue)
    return min(lost, _lost_now(batch, queue)) if lost else 0


def _lost_now(batch: QueueBatch, queue: ShardedQueue) -> int:
    progress = batch.progress()
    if not progress.waiting or progress.ended:
        return 0
    depth = queue.depth()
    held = in_flight(queue, queue.registry.records.read(queue.name, pointer_bin(SubqueueKind.MAIN)))
    there = depth.ready + depth.sideline + depth.delayed + held.messages
    return max(0, progress.waiting - there) if held.is_all and not depth.damaged else 0


def _why_no_follow_up(queue: ShardedQueue, batch: str) -> str:
    """Return why the follow-up of a batch that is done has not come, with the remedy; empty if it has none.

    One call, or two.
    """
    registry = queue.registry
    there = of_client(registry.client_id, registry.farm_id)
    then = queue.batches.read(batch).then
    if then is None:
        return ""
    if isinstance(target := then.get("queue"), str):
        active: bool | None
        try:
            active = live_of(target, registry.records.read(target, *LIVE_BINS)).active
        except NotFound:
            active = None
        if (why := why_refused(target, active, there)) is not None:
            return ": ".join(why)
    return f"the upkeep publishes it within {_ENDS_WITHIN:.0f} s; if it does not, the log of its leader says why"


@app.command("list")
def list_batches(context: typer.Context, name: Name, client: Client, farm: Farm = None) -> None:
    """List the batches that have not ended, with their progress.

    Example: latchwork queue batch list orders --client shop
    """
    session: Session = context.obj
    rows = [_facts(batch) for batch in queue_of(session, name, client, farm).list_batches()]
    session.table(rows, empty=f"no open batches of {name} in {session.where}")


@app.command()
def show(context: typer.Context, name: Name, batch: Batch, client: Client, farm: Farm = None) -> None:
    """Show the progress of a batch, and its parked messages. A batch that has ended is shown until it expires.

    `lost` with --json: how many of its messages, at least, are nowhere in the queue any more because they expired
    unread. Such a batch cannot end; without --json a line says so. So does one of a batch that is
    not closed and of which nothing waits: perhaps its publisher died.

    Example: latchwork queue batch show orders load-7 --client shop
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)
    found = queue.batch(batch, create=False)
    facts: dict[str, Any] = _facts(found) | {"missing": found.missing()}
    lost, lines = _lost(found, queue), lines_of(facts)
    here = f"{word(name)} {word(batch)} {of_client(client, farm_or_default(farm))}"
    if lost:
        can = f"{counted(lost, 'message')} of it expired unread, or can no longer come: this batch cannot end"
        lines.append(f"{can}; end it, without its follow-up: latchwork queue batch cancel {here}")
    if not (facts["waiting"] or facts["closed"] or facts["ended"]):
        but = " but the parked ones" if facts["parked"] else ""
        lines.append(
            f"it is not closed, and none of its messages waits{but}: it ends once its publisher closes it; where that "
            f"has died, publish the rest, or close it: latchwork queue batch close {here}"
        )
    is_done = facts["complete"] and not (facts["ended"] or facts["cancelled"])
    if is_done and (why := _why_no_follow_up(queue, batch)):
        lines.append(f"all of it is done, and its follow-up is not published: {why}")
    session.say(*lines, **facts, lost=lost)


@app.command()
def wait(
    context: typer.Context,
    name: Name,
    batch: Batch,
    client: Client,
    timeout: Annotated[float | None, typer.Option(help="seconds [default: no limit]")] = None,
    farm: Farm = None,
) -> None:
    """Wait until a batch is closed and all of its messages are done.

    Example: latchwork queue batch wait orders load-7 --client shop --timeout 600 && ./report.sh
    """
    session: Session = context.obj
    found = queue_of(session, name, client, farm).batch(batch, create=False)
    if not found.wait(timeout):
        progress = found.progress()
        raise WaitTimeout(
            f"batch {batch!r} of {name} is not done: {progress.waiting} of {progress.published} messages wait, "
            f"{progress.parked} are parked" + ("" if progress.closed else "; it is not closed")
        )
    session.say(f"batch {batch} of {name} is done", queue=name, batch=batch)


@app.command()
def results(
    context: typer.Context,
    name: Name,
    batch: Batch,
    client: Client,
    timeout: Annotated[float, typer.Option(help="seconds to wait for them; 0 = look once")] = 0,
    farm: Farm = None,
) -> None:
    """Print the result of each message of a batch.

    The queue must keep results (`queue create --results-hours`). There is a line for each message, in the order in
    which they were published: its id, its state, and its result as JSON, or why it has none; with --json an object a
    line. Exit code 0 if all have a result; 4 if the batch is not closed, or a message is not done in time; else the
    exit code of `queue result` for the first message without a result.

    Example: latchwork queue batch results orders load-7 --client shop --timeout 600
    """
    session: Session = context.obj.prints_lines()
    total = without = 0
    first: LatchworkError | None = None
    for one in queue_of(session, name, client, farm).batch(batch, create=False).results(timeout):
        total += 1
        text = to_json(one.value) if one.error is None else f"{one.error.code}: {one.error}"
        session.say(
            f"{one.message_id or '-'} {one.state.value} {text}",
            message_id=one.message_id, state=one.state.value, result=one.value,
            code=one.error.code if one.error else None, error=str(one.error) if one.error else None,
        )  # fmt: skip
        if one.error is not None:
            without += 1
            if first is None or (isinstance(one.error, WaitTimeout) and not isinstance(first, WaitTimeout)):
                first = one.error
    if first is not None:
        note(f"{without} of {counted(total, 'message')} without a result")
        raise first


@app.command()
def cancel(context: typer.Context, name: Name, batch: Batch, client: Client, farm: Farm = None) -> None:
    """Cancel a batch: none of its messages is handed out any more.

    Handlers that run are asked to stop, and no follow-up is published. Exit code 3 if all messages were done already.

    Example: latchwork queue batch cancel orders load-7 --client shop
    """
    session: Session = context.obj
    found = queue_of(session, name, client, farm).batch(batch, create=False)
    with noted(session, "cancel-batch", client, farm, name, batch):
        if not found.cancel():
            raise NotFound(f"all messages of batch {batch!r} of {name} are done: there is nothing to cancel")
    session.say(f"cancelled {batch} of {name}", queue=name, batch=batch)


@app.command()
def close(context: typer.Context, name: Name, batch: Batch, client: Client, farm: Farm = None) -> None:
    """Close a batch, for example if its publisher died. No more messages can be added; the follow-up comes once all are
    done.

    Example: latchwork queue batch close orders load-7 --client shop
    """
    session: Session = context.obj
    found = queue_of(session, name, client, farm).batch(batch, create=False)
    with noted(session, "close-batch", client, farm, name, batch):
        found.close()
    session.say(f"closed {batch} of {name}", queue=name, batch=batch)
