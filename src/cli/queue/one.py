"""`latchwork queue search|discard|redrive|move`: messages in a sideline, parked or delayed; `show|cancel|result`:
messages in any state, and what is done of them; `recover`: what workers that died have in hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from typing import Annotated, Any, cast

import typer

from ...coord.effects.step import DoneStep
from ...errors import InvalidRequest, LatchworkError
from ...observe.audit import Deed
from ...observe.findings import why_it_waits
from ...observe.snapshot import Snapshot, view_of
from ...plain import counted, shown, shown_time
from ...queue import Outcome, QueueRegistry, ShardedQueue, State, Status
from ...queue.sharded.consumer.recover import LOOKED, dead_workers, left_by
from ...queue.sharded.consumer.recover import recover as recovered
from ...queue.sharded.envelope import Envelope, date
from ...queue.sharded.in_flight import STEP, InHand, in_flight
from ...queue.sharded.slots import MAX_PROCESS
from ...queue.sharded.workers import short_name
from ...store.rows import chunked
from ..in_hand import unsettled_in
from ..jsontext import to_json
from ..noted import noted, person
from ..options import Client, Farm
from ..session import Session, note
from . import batch as queue_batch
from . import group as queue_group
from .all_of import MOST_CHOSEN, Match, to_all
from .messages import header_of, in_hand, row_of
from .queue import Name, app, queue_of

SIDES: Mapping[str, Callable[[ShardedQueue], Any]] = {
    "sideline": lambda queue: queue.sideline,
    "parked": lambda queue: queue.parked,
    "delayed": lambda queue: queue.delayed,
}
FAILED, NOT_FOUND = 1, 3
"""Exit codes: something is unknown; all that is known was not there or is done."""
TOLD = 3
"""Messages at most of which it is said where they are instead."""

Side = Annotated[str, typer.Option(help="sideline, parked or delayed")]
Ids = Annotated[list[str] | None, typer.Option("--id", help="the id of a message; repeat for each")]
All = Annotated[bool, typer.Option("--all", help="all that match the options below, chosen once, at most 10,000")]
Reason = Annotated[str | None, typer.Option(help="with --all: that are there for this reason")]
Key = Annotated[str | None, typer.Option(help="with --all: in the shard of this key; not for delayed ones")]
Header = Annotated[list[str] | None, typer.Option(help="with --all: name=value; repeat for each")]
OlderThan = Annotated[float | None, typer.Option(help="with --all: seconds since they were published")]
Most = Annotated[int, typer.Option(help="with --all: the largest number of messages, 1 to 10000")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="only say which")]
Confirm = Annotated[str | None, typer.Option(help="the queue's name again, if everything is to go")]


def search(
    context: typer.Context,
    name: Name,
    client: Client,
    side: Side = "parked",
    reason: Annotated[str | None, typer.Option(help="only messages that are there for this reason")] = None,
    key: Annotated[
        str | None, typer.Option(help="only messages in the shard of this key; not for delayed ones")
    ] = None,
    header: Annotated[list[str] | None, typer.Option(help="name=value; repeat for each")] = None,
    older_than: Annotated[float | None, typer.Option(help="seconds since they were published")] = None,
    id: Annotated[str | None, typer.Option("--id", help="only the message with this id, as the logs have it")] = None,
    limit: Annotated[int, typer.Option(help="the largest number of messages, 1 to 1000")] = 100,
    farm: Farm = None,
) -> None:
    """Find messages that were not received yet; changes nothing. Of the delayed messages, to which the failed ones
    belong that are tried again, it finds the ones that are overdue, or due within the hour.

    Example: latchwork queue search orders --client shop --side parked --reason exhausted --older-than 3600
    """
    session: Session = context.obj
    wanted: dict[str, Any] = {"reason": reason, "older_than": older_than, "message_id": id, "limit": limit}
    if header:
        wanted["header"] = dict(header_of(pair) for pair in header)
    if key is not None and side == "delayed":
        raise InvalidRequest("--key with --side delayed: which shard a delayed message goes to may not be decided yet")
    if key is not None:
        wanted["key"] = key
    queue = queue_of(session, name, client, farm)
    found = _side(queue, side).search(**wanted)
    session.table([row_of(message, json_value=session.json) for message in found], empty="no messages")
    if not found:
        note(f"{_only(side)}; {in_hand(queue, client, id)}")


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

    With --all: those that match, as they are chosen at the beginning; Ctrl-C stops, and says what was done. To discard
    without anything that they must match, give --confirm. Exit code 3 if some were not there, 1 if the outcome of some
    is unknown, or not all were tried.

    Example: latchwork queue discard orders --client shop --id 3f0c9ab1d2e4f50617289c77~6b09dfef.1.5
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)
    match = Match(reason, key, header, older_than, most, dry_run=dry_run)
    if match.is_of_all("discard", id, all=all, confirm=confirm, name=name):
        to_all(session, queue, "discard", side, match, farm=farm)
        return
    view = _side(queue, side)
    record = noted(session, "discard", client, farm, name, *_named(id), before=side)
    _print_outcomes(session, record, lambda: view.discard(_named(id)), queue, side)


def redrive(
    context: typer.Context,
    name: Name,
    client: Client,
    limit: Annotated[int, typer.Option(help="the largest number of messages, without --all")] = 100,
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
    """Bring parked messages back, with no attempts counted. With --id: just these, of any side.

    With --id it prints the outcome of each, as `discard` does; delayed messages are due at once. With --all too: of
    those that match, of any side, as they are chosen at the beginning; Ctrl-C stops.

    Example: latchwork queue redrive orders --client shop --reason exhausted --dry-run
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)
    view, match = _side(queue, side), Match(reason, key, header, older_than, most, dry_run=dry_run)
    if match.is_of_all("redrive", id, all=all, own=("reason", "dry-run")):
        to_all(session, queue, "redrive", side, match, farm=farm)
        return
    if not id:
        if side != "parked":
            raise InvalidRequest(f"--side {side} without --id: only parked messages are brought back all at once")
        with nullcontext() if dry_run else noted(session, "redrive", client, farm, name, before=reason or side) as deed:
            found = queue.redrive(limit, reason=reason, dry_run=dry_run)
            if deed is not None:
                deed.after = counted(len(found), "message")
        session.table([row_of(message, json_value=session.json) for message in found], empty="nothing to bring back")
        if found:
            note(f"{'would be ' if dry_run else ''}brought back: {counted(len(found), 'message')}")
        return
    if reason is not None or dry_run:
        raise InvalidRequest("--id with --reason or --dry-run: search says which messages there are")
    record = noted(session, "redrive", client, farm, name, *id, before=side)
    _print_outcomes(session, record, lambda: view.redrive(id), queue, side)


def move(
    context: typer.Context,
    name: Name,
    client: Client,
    to: Annotated[str, typer.Option(help="the queue that they go to")],
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
    """Move messages to another queue of the client. Prints the outcome of each, as `discard` does.

    With --all: those that match, as they are chosen at the beginning; Ctrl-C stops.

    Example: latchwork queue move orders --client shop --to orders-by-hand --id 3f0c9ab1d2e4f50617289c77~6b09dfef.1.5
    """
    session: Session = context.obj
    queue, target = queue_of(session, name, client, farm), queue_of(session, to, client, farm)
    match = Match(reason, key, header, older_than, most, dry_run=dry_run)
    if match.is_of_all("move", id, all=all):
        to_all(session, queue, "move", side, match, to, farm=farm)
        return
    view = _side(queue, side)
    record = noted(session, "move", client, farm, name, *_named(id), before=f"{side}, to {to}")
    _print_outcomes(session, record, lambda: view.move(_named(id), target), queue, side)


def show(context: typer.Context, name: Name, client: Client, id: Ids = None, farm: Farm = None) -> None:
    """Say where messages are, and which of their steps are done.

    The state of each: ready, running, retrying, parked, delayed, done, gone, expired or unknown. An id that is
    mistyped, or of another queue, is unknown. Gone is what was cancelled, discarded or moved. One that a worker has
    which died is running until it is brought back; then this says when that is at the latest. `at work` of a
    running one is for how long, as its worker has reported if it is one of the three that run longest there; else "at
    least" so long, since it was taken, or its worker extended that last: `extended_at`. Of one that is due and has not
    come it says why. A message that expired
    unread is `expired` until somebody takes messages from there, and `unknown` from then on: the count of the expired
    ones stays. Without --id: all messages that consumers have in hand, of the 1,000 that were taken last.
    Steps are those of `delivery.once`, with their results, the oldest first. They are remembered for longer than their
    message lives, so this also answers for one that is gone. Of a group: give QUEUE@GROUP, which says the steps alone.
    What `delivery.operate` has done is in the records that it changed, in their bin `effects`.
    A message that goes with a write says which write it waits for. Exit code 3 if some are unknown, and no step of them
    is done.

    Example: latchwork queue show orders --client shop --id 3f0c9ab1d2e4f50617289c77~6b09dfef.1.5
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)
    if not id:
        held = in_flight(queue)
        workers = {one.worker for one in held.held}
        taken = _look(queue) if any(workers) else None
        rows = _rows_in_hand(queue, held.held, taken, json_value=session.json)
        session.table(rows, empty="no consumer has a message in hand")
        if not held.is_all:
            note(f"of the {counted(held.looked, 'message')} that were taken last")
        for state in taken.queues if taken else ():
            now, batches = session.store.seams.wall(), queue.config.batching is not None
            for left in unsettled_in(state, held.held, now, batches=batches):
                note(left.why)
        _tell_of_dead(queue, client, workers, taken)
        return
    rows, statuses = [], dict[str, Status]()
    for one in id:
        found, waits = None, None
        if not queue.reader:
            found, waits = queue.status(one), queue.delayed.waits_for(one)
            statuses[one] = found
            if found.hint is not None:
                note(f"{shown(one)}: {found.hint}")
        steps = [
            _row_of_step(step, done) for step, done in sorted(queue.steps(one).items(), key=lambda entry: entry[1].at)
        ]
        rows.append(_row_of_status(one, found, waits, steps, json_value=session.json))
    now = session.store.seams.wall()
    late = {one: how for one, status in statuses.items() if (how := _waits_since(status, now))}
    workers = {status.worker for status in statuses.values()}
    taken = _look(queue) if any(workers) or late else None
    for row in rows:
        status = statuses.get(row["message_id"])
        if status is not None and status.state is State.RUNNING:
            stamped = status.since.timestamp() if status.since else None
            row.update(_at_work(row["message_id"], status.worker, stamped, taken, now, json_value=session.json))
    session.table(rows)
    for state in taken.queues if taken else ():
        for one, how in late.items():
            why = why_it_waits(state, taken, is_ready=statuses[one].state is State.READY) if taken else ""
            note(f"{one}: {how}; {why}")
    _tell_of_dead(queue, client, workers, taken)
    if any(row["state"] in (None, State.UNKNOWN.value) and not row["steps"] for row in rows):
        raise typer.Exit(NOT_FOUND)


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
    """Cancel messages, in whatever state they are.

    Prints the outcome of each. What waits is gone: done. What a consumer has is asked: its handler's next
    `delivery.check()` ends it. With --all: of the delayed messages, due within the hour, those that match; Ctrl-C
    stops. To cancel without anything that they must match, give --confirm.

    Exit code 3 if some were not there, 1 if the outcome of some is unknown.

    Example: latchwork queue cancel orders --client shop --id 3f0c9ab1d2e4f50617289c77~6b09dfef.1.5
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)
    match = Match(reason, None, header, older_than, most, dry_run=dry_run)
    if match.is_of_all("cancel", id, all=all, confirm=confirm, name=name):
        to_all(session, queue, "cancel", "delayed", match, farm=farm)
        return
    outcomes: dict[str, Outcome] = {}

    def act() -> Mapping[str, Outcome]:
        for one in _named(id):
            try:
                outcomes[one] = queue.cancel(one)
            except LatchworkError as failure:
                failure.details["outcomes"] = outcomes
                raise
        return outcomes

    _print_outcomes(session, noted(session, "cancel", client, farm, name, *_named(id)), act, queue, None)
    asked = [one for one, outcome in outcomes.items() if outcome is Outcome.ASKED]
    if asked:
        _tell_of_dead(queue, client, {queue.status(one).worker for one in asked[:TOLD]})


def recover(
    context: typer.Context,
    name: Name,
    client: Client,
    worker: Annotated[
        list[str] | None, typer.Option(help="HOST:PID as doctor names it; repeat for each [default: all that died]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say which")] = False,
    farm: Farm = None,
) -> None:
    """Bring back what workers that died have in hand, at once.

    The sweep brings it back too, later. Their attempt counts, and they come again after the queue's backoff, or are
    parked after the last attempt, as of a handler that failed. A worker counts as dead once it has not reported for
    50 s. One that only hangs, or cannot reach the store, may still be at work on them: they are then handled twice. So
    make sure that its process has ended.

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
        note(f"only the {LOOKED:,} messages that were taken last were looked at; the sweep brings back the others")


def result(
    context: typer.Context,
    name: Name,
    client: Client,
    id: Annotated[str | None, typer.Option("--id", help="the id of the message")] = None,
    timeout: Annotated[float, typer.Option(help="seconds to wait for it; 0 = look once")] = 0,
    farm: Farm = None,
) -> None:
    """Print what the handler of a message returned, as JSON.

    Of a queue that keeps results (`queue create --results-hours`). Exit code 3 if there is no such message or its
    result is kept no longer, 4 if it has none in time, 1 if it has none for good: the error says why.

    Example: latchwork queue result orders --client shop --id 3f0c9ab1d2e4f50617289c77~6b09dfef.1.5 --timeout 30
    """
    session: Session = context.obj
    (one,) = _named([id] if id else None)
    found = queue_of(session, name, client, farm).result(one, timeout)
    session.say(to_json(found), message_id=one, result=found)


def _row_of_status(
    message: str, found: Status | None, waits: str | None, steps: list[dict[str, Any]], *, json_value: bool
) -> dict[str, Any]:
    status = found or Status(State.UNKNOWN)
    at, runs = status.since.isoformat(timespec="seconds") if status.since else None, status.state is State.RUNNING
    return {
        "message_id": message,
        "state": None if found is None else status.state.value,
        **(dict.fromkeys(("at_work_s", "at_work_is_least")) if json_value else {"at_work": None}),
        "since": None if runs else at,
        "extended_at": at if runs else None,
        "worker": status.worker,
        "attempts": status.attempts,
        "progress": status.progress,
        "note": status.note,
        "due": status.due.isoformat(timespec="seconds") if status.due else None,
        "waits_for": waits,
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
    message: str | None, worker: str | None, stamped: float | None, taken: Snapshot | None, now: float, *,
    json_value: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return for how long the work on a message has gone on: as its worker has reported, else at least since it was
    extended last, by this clock.
    """
    reports = [one for state in taken.queues for one in state.workers] if taken and worker else []
    ran = [
        run.seconds
        for one in reports
        for run in one.longest
        # What was given up is an earlier attempt, which hangs.
        if run.message_id == message and not run.given_up and short_name(one.worker)[-MAX_PROCESS:] == worker
    ]
    seconds = max(ran) if ran else None if stamped is None else max(0.0, now - stamped)
    if json_value:
        return {"at_work_s": None if seconds is None else round(seconds, 1), "at_work_is_least": not ran}
    return {"at_work": None if seconds is None else ("" if ran else "at least ") + shown_time(seconds)}


def _row_of_step(step: str, done: DoneStep) -> dict[str, Any]:
    return {
        "step": step,
        "done_at": date(done.at).isoformat(timespec="seconds"),
        "result": done.kept[0] if isinstance(done.kept, list) else None,
        "not_kept": done.kept if isinstance(done.kept, str) else None,
    }


for _command in (search, discard, redrive, move, show, cancel, result, recover):
    app.command()(_command)
app.add_typer(queue_batch.app, name="batch")
app.add_typer(queue_group.app, name="group")


def _side(queue: ShardedQueue, side: str) -> Any:
    if side not in SIDES:
        raise InvalidRequest(f"side is {shown(side)}; it must be sideline, parked or delayed")
    return SIDES[side](queue)


def _named(ids: list[str] | None) -> list[str]:
    if not ids:
        raise InvalidRequest("no --id: name the messages; search finds them")
    return ids


def _print_outcomes(
    session: Session,
    record: AbstractContextManager[Deed],
    act: Callable[[], Mapping[str, Outcome]],
    queue: ShardedQueue,
    side: str | None,
) -> None:
    """Print the outcome of each message; where some failed for certain, the others go to stderr.

    record: of what is done.
    """
    try:
        with record as deed:
            outcomes = act()
            counts = Counter(outcome.value for outcome in outcomes.values())
            deed.after = ", ".join(f"{n:,} {outcome}" for outcome, n in counts.items())
    except LatchworkError as failure:
        for name, outcome in failure.details.get("outcomes", {}).items():
            note(f"{name}: {outcome.value}")
        raise
    session.table([{"message_id": name, "outcome": outcome.value} for name, outcome in outcomes.items()])
    if Outcome.UNKNOWN in outcomes.values():
        raise typer.Exit(FAILED)
    if Outcome.NOT_THERE in outcomes.values():
        if side is not None:
            note(f"not there: {_only(side)}")
            _tell_where(queue, [name for name, outcome in outcomes.items() if outcome is Outcome.NOT_THERE][:TOLD])
        raise typer.Exit(NOT_FOUND)


def _only(side: str) -> str:
    others = " or ".join(f"--side {one}" for one in SIDES if one != side)
    return f"only {side} messages were looked at; {others} looks elsewhere"


def _tell_where(queue: ShardedQueue, ids: list[str]) -> None:
    """Say where messages are that were looked for elsewhere."""
    if queue.reader:
        return
    found = {one: queue.status(one) for one in ids}
    for one, status in found.items():
        if status.state not in (State.UNKNOWN, State.DONE):
            who = f": {status.worker or 'a consumer'} has it in hand" if status.state is State.RUNNING else ""
            note(f"{one} is {status.state.value}{who}")
    _tell_of_dead(queue, queue.registry.client_id, {status.worker for status in found.values()})


def _rows_in_hand(
    queue: ShardedQueue, held: Sequence[InHand], taken: Snapshot | None, *, json_value: bool
) -> list[dict[str, Any]]:
    """Return a row for each message that consumers have in hand, those first that were extended longest ago, or whose
    worker has reported that they run longest. One call for 1,000.
    """
    rows, now = [], queue.store.seams.wall()
    for some in chunked(held, STEP):
        for one, found in zip(some, queue.pointers.look([one.slot for one in some]), strict=True):
            message = found if isinstance(found, Envelope) else None
            stamped = one.stamped / 1000 if one.stamped else None
            of = message.msg_id if message else None
            sooner = _at_work(of, one.worker, stamped, taken, now, json_value=True)["at_work_s"]
            rows.append((-(sooner or 0.0), {
                "message_id": message.msg_id if message else None,
                "state": State.RUNNING.value,
                **_at_work(of, one.worker, stamped, taken, now, json_value=json_value),
                "extended_at": date(one.stamped).isoformat(timespec="seconds") if one.stamped else None,
                "worker": one.worker,
                "attempts": message.attempts if message else None,
            }))  # fmt: skip
    return [row for _, row in sorted(rows, key=itemgetter(0))]


def _look(queue: ShardedQueue) -> Snapshot:
    return view_of(cast(QueueRegistry, queue.registry), queue.name).look()


def _tell_of_dead(queue: ShardedQueue, client: str, workers: set[str | None], taken: Snapshot | None = None) -> None:
    """Say which of these workers died, and when what they have in hand is back at the latest."""
    if not any(workers):
        return
    taken = taken or _look(queue)
    for state in taken.queues:
        for name, dead in dead_workers(state.workers).items():
            if name[-MAX_PROCESS:] not in workers or dead.settled:
                continue
            left = state.returns_within - dead.ago
            when = f"within {shown_time(left)}" if left > 0 else "with the next one"
            note(
                f"worker {name}, which last reported {shown_time(dead.ago)} ago, died or hangs: what it has in hand is "
                f"back by the sweep, at the latest {when}, while any worker of {client} runs; have it sooner: "
                f"latchwork queue recover {queue.name} --client {client}"
            )
