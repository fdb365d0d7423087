"""`latchwork queue show|result|recover`: where messages are, what came of them, and what dead workers have in hand."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Annotated, Any, cast

import typer

from ...observe.findings import why_it_waits
from ...observe.snapshot import Snapshot, view_of
from ...plain import counted, shown, shown_time
from ...queue import QueueRegistry, ShardedQueue, State, Status
from ...queue.sharded.consumer.recover import LOOKED, left_by
from ...queue.sharded.consumer.recover import recover as recovered
from ...queue.sharded.envelope import Envelope, date
from ...queue.sharded.in_flight import STEP, InHand, in_flight
from ...queue.sharded.workers import dead_workers, process_of, short_name
from ...store.rows import chunked
from ..audit import noted, person
from ..exit_codes import NOT_FOUND
from ..jsontext import to_json
from ..options import Client, Farm
from ..session import Session, note
from ..unsettled import unsettled_in
from .arguments import Ids, Name, as_named, named, queue_of


def show(context: typer.Context, name: Name, client: Client, id: Ids = None, farm: Farm = None) -> None:
    """Say where messages are, and which of their steps are done.

    A message is ready, running, retrying, parked, delayed, done, gone, expired or unknown. It is gone if it was
    cancelled, discarded or moved. An id that is mistyped, or that is of another queue, is unknown. A message of a
    worker that died is running until it is brought back; the command says when that is at the latest. If a message is
    due and has not come, the command says why.

    `at work` says for how long a message has been running, if its worker has reported it: each worker reports the three
    that run longest. For the others it says "at least", with the time since the message was taken, or last extended:
    `extended_at`. A message that expired unread is `expired` until somebody takes messages from its shard, and
    `unknown` from then on; it stays in the count of expired messages.

    Without --id: all messages that consumers have in hand, of the 1,000 that were taken last.

    Steps are those of `delivery.once`, with their results, the oldest first. They are remembered for longer than the
    message lives, so they are shown for a message that is gone too. For a group, give QUEUE@GROUP; then only the steps
    are shown. What `delivery.operate` has done is in the records that it changed, in their bin `effects`. If a message
    goes with a write, the command names the write that it waits for. Exit code 3 if some messages are unknown, and none
    of their steps is done.

    Example: latchwork queue show orders --client shop --id 3f0c9ab1d2e4f50617289c77~6b09dfef.1.5
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)
    if id:
        _show_each(session, queue, client, id)
    else:
        _show_in_hand(session, queue, client)


def _show_in_hand(session: Session, queue: ShardedQueue, client: str) -> None:
    """Print the messages that consumers have in hand, and what is unusual about their workers."""
    held = in_flight(queue)
    workers = {one.worker for one in held.held}
    taken = _look(queue) if any(workers) else None
    rows = _rows_in_hand(queue, held.held, taken, json_value=session.json)
    session.table(rows, empty="no consumer has a message in hand")
    if not held.is_all:
        note(f"among the {counted(held.looked, 'message')} that were taken last")
    for state in taken.queues if taken else ():
        now, batches = session.store.seams.wall(), queue.config.batching is not None
        for left in unsettled_in(state, held.held, now, batches=batches):
            note(left.why)
    tell_of_dead(queue, client, workers, taken)


def _show_each(session: Session, queue: ShardedQueue, client: str, ids: Sequence[str]) -> None:
    """Print where these messages are, and why a message that is due has not come."""
    # 1. Where each is. A group knows the steps alone.
    statuses: dict[str, Status] = {}
    if not queue.reader:
        statuses = {one: queue.status(one) for one in ids}
    for one, status in statuses.items():
        if status.hint is not None:
            note(f"{shown(one)}: {status.hint}")
        elif status.state is State.UNKNOWN:
            note(
                f"{shown(one)}: queue {queue.name} does not know this id. It may be mistyped, of another queue, or of "
                "a message that is over. A message of a schedule or of Spark is found once it has failed or moved"
            )
    # 2. Who works on them.
    now = session.store.seams.wall()
    late = {one: how for one, status in statuses.items() if (how := _waits_since(status, now))}
    workers = {status.worker for status in statuses.values()}
    taken = _look(queue) if any(workers) or late else None
    # 3. A row for each, and below them what a person should know.
    rows = [_row(queue, one, statuses.get(one), taken, now, json_value=session.json) for one in ids]
    session.table(rows)
    waits_for = {row["message_id"]: row["waits_for"] for row in rows}
    for state in taken.queues if taken else ():
        for one, how in late.items():
            at, write = statuses[one].state, waits_for.get(one)
            retry, ready = at is State.RETRYING, at is State.READY
            why = why_it_waits(state, taken, is_ready=ready, is_retry=retry, waits_for=write) if taken else ""
            note(f"{one}: {how}; {why}")
    tell_of_dead(queue, client, workers, taken)
    if any(row["state"] in (None, State.UNKNOWN.value) and not row["steps"] for row in rows):
        raise typer.Exit(NOT_FOUND)


def _row(
    queue: ShardedQueue, message: str, found: Status | None, taken: Snapshot | None, now: float, *, json_value: bool
) -> dict[str, Any]:
    """Return the row of a message. One call or two. found: None = of a group, which knows the steps alone."""
    status = found or Status(State.UNKNOWN)
    at, runs = status.since.isoformat(timespec="seconds") if status.since else None, status.state is State.RUNNING
    if runs:
        stamped = status.since.timestamp() if status.since else None
        work = _shown_work(*_at_work(message, status.worker, stamped, taken, now), json_value=json_value)
    else:
        work = dict.fromkeys(("at_work_s", "at_work_is_least")) if json_value else {"at_work": None}
    steps = [
        {
            "step": step,
            "done_at": date(done.at).isoformat(timespec="seconds"),
            "result": done.kept[0] if isinstance(done.kept, list) else None,
            "not_kept": done.kept if isinstance(done.kept, str) else None,
        }
        for step, done in sorted(queue.steps(message).items(), key=lambda entry: entry[1].at)
    ]
    return {
        "message_id": message,
        "state": None if found is None else status.state.value,
        **work,
        "since": None if runs else at,
        "extended_at": at if runs else None,
        "worker": status.worker,
        "attempts": status.attempts,
        "progress": status.progress,
        "note": status.note,
        "due": status.due.isoformat(timespec="seconds") if status.due else None,
        "waits_for": None if found is None else queue.delayed.waits_for(message),
        "error": status.error,
        "cancelled": status.cancelled,
        "steps": steps if json_value or not steps else to_json(steps),
    }


def _waits_since(status: Status, now: float) -> str:
    """Return since when a message waits that is due; empty for any other."""
    at = status.due or (status.since if status.state is State.READY else None)
    if at is None or at.timestamp() > now or status.state not in (State.READY, State.RETRYING, State.DELAYED):
        return ""
    ago = shown_time(now - at.timestamp())
    return f"due {ago} ago" if status.due is not None else f"ready for {ago}"


def _at_work(
    message: str | None, worker: str | None, stamped: float | None, taken: Snapshot | None, now: float
) -> tuple[float | None, bool]:
    """Return for how many seconds the work on a message has gone on, as its worker has reported; else the time since it
    was extended last, by this clock, and that it is so long at least.
    """
    reports = [one for state in taken.queues for one in state.workers] if taken and worker else []
    ran = [
        run.seconds
        for one in reports
        for run in one.longest
        # What was given up is an earlier attempt, which hangs.
        if run.message_id == message and not run.given_up and process_of(one.worker) == worker
    ]
    return max(ran) if ran else None if stamped is None else max(0.0, now - stamped), not ran


def _shown_work(seconds: float | None, is_least: bool, *, json_value: bool) -> dict[str, Any]:
    """Return the columns that say for how long the work has gone on."""
    if json_value:
        return {"at_work_s": None if seconds is None else round(seconds, 1), "at_work_is_least": is_least}
    return {"at_work": None if seconds is None else ("at least " if is_least else "") + shown_time(seconds)}


def _rows_in_hand(
    queue: ShardedQueue, held: Sequence[InHand], taken: Snapshot | None, *, json_value: bool
) -> list[dict[str, Any]]:
    """Return a row for each message that consumers have in hand, those first whose work has gone on for longest. One
    call for 1,000.
    """
    rows, now = [], queue.store.seams.wall()
    for some in chunked(held, STEP):
        for one, found in zip(some, queue.pointers.look([one.slot for one in some]), strict=True):
            message = found if isinstance(found, Envelope) else None
            id, stamped = message.msg_id if message else None, one.stamped / 1000 if one.stamped else None
            seconds, is_least = _at_work(id, one.worker, stamped, taken, now)
            rows.append((-(seconds or 0.0), {
                "message_id": id,
                "state": State.RUNNING.value,
                **_shown_work(seconds, is_least, json_value=json_value),
                "extended_at": date(one.stamped).isoformat(timespec="seconds") if one.stamped else None,
                "worker": one.worker,
                "attempts": message.attempts if message else None,
            }))  # fmt: skip
    return [row for _, row in sorted(rows, key=itemgetter(0))]


def _look(queue: ShardedQueue) -> Snapshot:
    return view_of(cast(QueueRegistry, queue.registry), queue.name).look()


def tell_of_dead(queue: ShardedQueue, client: str, workers: set[str | None], taken: Snapshot | None = None) -> None:
    """Print which of these workers died, and when their messages are back at the latest."""
    if not any(workers):
        return
    taken = taken or _look(queue)
    for state in taken.queues:
        for name, dead in dead_workers(state.workers).items():
            if process_of(dead.worker) not in workers or dead.settled:
                continue
            left = state.returns_within - dead.ago
            when = f"within {shown_time(left)}" if left > 0 else "with the next one"
            note(
                f"worker {name}, which last reported {shown_time(dead.ago)} ago, died or hangs: the sweep brings back "
                f"the messages that it has in hand, at the latest {when}, while any worker of {client} runs; sooner: "
                f"latchwork queue recover {as_named(queue)}"
            )


def result(
    context: typer.Context,
    name: Name,
    client: Client,
    id: Annotated[str | None, typer.Option("--id", help="the id of the message")] = None,
    timeout: Annotated[float, typer.Option(help="seconds to wait for the result; 0 = look once")] = 0,
    farm: Farm = None,
) -> None:
    """Print what the handler of a message returned, as JSON.

    The queue must keep results (`queue create --results-hours`). Exit code 3 if there is no such message or its result
    is not kept any more, 4 if it has no result in time, 1 if it will never have one: the error says why.

    Example: latchwork queue result orders --client shop --id 3f0c9ab1d2e4f50617289c77~6b09dfef.1.5 --timeout 30
    """
    session: Session = context.obj
    (one,) = named([id] if id else None)
    found = queue_of(session, name, client, farm).result(one, timeout)
    session.say(to_json(found), message_id=one, result=found)


def recover(
    context: typer.Context,
    name: Name,
    client: Client,
    worker: Annotated[
        list[str] | None,
        typer.Option(help="HOST:PID, as `latchwork doctor` names it; repeat for each [default: all dead workers]"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only print which messages; change nothing")] = False,
    farm: Farm = None,
) -> None:
    """Bring back the messages that dead workers have in hand.

    The sweep brings them back too, later. The attempt counts: the messages come again after the queue's backoff, or are
    parked after the last attempt, as if their handler had failed. A worker counts as dead once it has not reported for
    50 s. A worker that only hangs, or cannot reach the store, may still be at work on its messages: they are then
    handled twice. So make sure that its process has ended.

    Example: latchwork queue recover orders --client shop --dry-run
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)
    left = left_by(queue, worker or ())
    rows = _rows_in_hand(queue, left.held, None, json_value=session.json)
    told = {}
    if left.dead and not dry_run:
        with noted(session, "recover", client, farm, name) as deed:
            told = recovered(queue, left, person())
            deed.after = counted(sum(told.values()), "message")
    session.table(rows, empty="nothing to bring back")
    if not left.dead:
        alive = [f"{short_name(one.worker)} ({shown_time(one.ago)} ago)" for one in queue.workers()]
        note(f"no worker of {name} is known to have died; last reports: {', '.join(alive) or 'none'}")
    if rows:
        brought = sum(told.values())
        note(f"{'would be ' if dry_run else ''}brought back: {counted(len(rows) if dry_run else brought, 'message')}")
    if not left.is_all:
        note(f"only the {LOOKED:,} messages that were taken last were looked at; the sweep brings back older ones")
