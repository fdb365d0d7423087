"""`latchwork queue`: sharded queues, from creating one to bringing parked messages back."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer

from ...coord import Leadership, LeaseElection
from ...deadline import Deadline
from ...errors import InvalidRequest, LatchworkError, NotFound, WaitTimeout
from ...inputs import checked_timeout, farm_or_default
from ...observe.findings import findings_of
from ...observe.snapshot import clients_in, election_now
from ...plain import counted, exact_time, one_line, shown, shown_time
from ...queue import QueueConfig, QueueRegistry, ShardedQueue, Shovel, ShovelConfig, Sweeper, SweepReport
from ...queue.sharded.config import MAX_ATTEMPTS, QUEUE_EXPIRY
from ...queue.sharded.upkeep.upkeep import election_name, upkeep_of
from ...queue.sharded.workers import WorkerReport, short_name, workers_of
from ...retry import Poll, outlive
from ..findings import lines_of as findings_lines
from ..noted import noted, person
from ..options import Client, Farm, checked_every
from ..session import Session, note
from ..similar import meant
from ..snapshot import all_rows

DEPTH_LOOKS = Poll(low=0.1, high=2.0)
"""The pauses between two looks of `wait` at the pointers."""
ACT_LOOKS = Poll(low=0.05, high=0.25)
"""The pauses between two looks of `pause`, `resume` and `scale` at the reports of the workers."""
ACTS_WITHIN = 10.0
WITHIN = 3.0
"""Seconds after which each worker that lives acts on a change."""
TIMED_OUT = 4
MANY_CLIENTS = 20
"""Clients that an error names."""
MANY_WORKERS = 3
"""Workers at most that are named beside the threads that a queue has."""
_SOONER = "what a worker that died had in hand is back at once by: latchwork queue recover QUEUE"
MANY = 1_000
"""Messages that were published, from which on people are shown how they are spread over the shards."""
app = typer.Typer(help="Hand work to others: sharded queues, at least once.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="the queue")]
ActsWithin = Annotated[
    float, typer.Option("--timeout", min=0, max=86_400, help="seconds to wait until the workers act on it; 0: none")
]


def registry_of(session: Session, client: str, farm: str | None) -> QueueRegistry:
    """Return the registry that a command means. No I/O."""
    return QueueRegistry(session.store, client, farm_id=farm)


def queue_of(session: Session, name: str, client: str, farm: str | None) -> ShardedQueue:
    """Return the queue that a command means. Raises `NotFound`, which names the clients that have queues, if this one
    has none.
    """
    registry = registry_of(session, client, farm)
    try:
        return registry.get(name)
    except NotFound:
        if any(registry.scan(active=None)):
            raise
        raise no_queues(session, client, farm) from None


@app.command("list")
def list_queues(context: typer.Context, client: Client, farm: Farm = None) -> None:
    """List every queue of the client, active or not. Exit code 3 if the client has none.

    `threads each`, `consumers` with --json, is the number of threads in each worker process, 0 while it is paused; and
    what workers run whose programs fix another number.
    `latchwork stats` shows how many workers there are. `changed` says when that number was set last, and by whom;
    `latchwork audit` from which one.

    Example: latchwork queue list --client shop --json
    """
    session: Session = context.obj
    found = registry_of(session, client, farm).queues(active=None)
    working = [] if session.json else workers_of(found)
    others = {queue.name: _otherwise(queue.concurrency, some) for queue, some in zip(found, working, strict=False)}
    now = session.store.seams.wall()
    rows = [
        {
            "queue": queue.name,
            "active": queue.live.active,
            "shards": queue.config.shards,
            "consumers" if session.json else "threads each": others.get(queue.name) or queue.concurrency,
            "paused": _paused(queue, now),
            "changed": _changed(queue, now) if queue.concurrency else None,
        }
        for queue in found
    ]
    if not rows:
        raise no_queues(session, client, farm)
    session.table(rows)


def _otherwise(threads: int, workers: Sequence[WorkerReport]) -> str:
    """Return the threads that are set, and which workers run another number, as their programs say; else nothing."""
    there = {one.worker: one.threads for one in workers if not one.is_silent}
    return threads_each(threads, there)


def threads_each(threads: int, there: Mapping[str, int]) -> str:
    """Return the threads that are set, and what workers run where their programs fix another number; empty where none
    do, or the queue is paused.
    """
    fixed = [f"{short_name(worker)} {n}" for worker, n in there.items() if n not in (0, threads)]
    more = f" and {len(fixed) - MANY_WORKERS} more" if fixed[MANY_WORKERS:] else ""
    return f"{threads} (as its program says: {', '.join(fixed[:MANY_WORKERS])}{more})" if fixed and threads else ""


def no_queues(session: Session, client: str, farm: str | None) -> NotFound:
    """Return the error that a client has no queues, which names the clients that have some, where that is known."""
    others = clients_in(session.store, farm) or ()
    there = f"; the clients that have some: {', '.join(others[:MANY_CLIENTS])}" if others else ""
    there += f" and {len(others) - MANY_CLIENTS} more" if others[MANY_CLIENTS:] else ""
    there += meant(client, others)
    where = f"farm {farm_or_default(farm)!r} of {session.where}"
    return NotFound(f"client {client!r} has no queues in {where}{there}", client=client)


def _paused(queue: ShardedQueue, now: float) -> str | None:
    """Return since when the queue is paused, and by whom; None if it is not."""
    if queue.concurrency:
        return None
    return _changed(queue, now) or "since it was made"


def _changed(queue: ShardedQueue, now: float) -> str | None:
    """Return since when it has the number of threads that it has, and by whom; None = since it was made."""
    if not queue.live.changed:
        return None
    who = f" by {queue.live.changed_by}" if queue.live.changed_by else ""
    return f"{shown_time(max(0.0, now - queue.live.changed / 1000))} ago{who}"


@app.command()
def create(
    context: typer.Context,
    name: Name,
    client: Client,
    shards: Annotated[int, typer.Option(help="1 to 512, fixed for its life")] = 32,
    concurrency: Annotated[int, typer.Option(help="worker threads of each consumer process, 0 to 100")] = 1,
    expiry_hours: Annotated[float, typer.Option(help="how long an unread message lives")] = 360,
    sweep_minutes: Annotated[
        float, typer.Option(help="after which a message that was not acknowledged is taken back, 5 to 300")
    ] = 20,
    max_deliveries: Annotated[int, typer.Option(help="after how many attempts a message is parked")] = MAX_ATTEMPTS,
    retry: Annotated[
        bool, typer.Option(help="bring failed messages back; else they stay in the sideline until somebody does")
    ] = True,
    backoff_seconds: Annotated[
        float | None, typer.Option(help="how long a failed message waits [default: 15 s, then longer, up to an hour]")
    ] = None,
    shovel_seconds: Annotated[
        float | None,
        typer.Option(help="let failed messages wait in the sideline; how often they are brought back, 0 to 86400"),
    ] = None,
    results_hours: Annotated[
        float | None, typer.Option(help="how long what a handler returns is kept [default: it is not]")
    ] = None,
    farm: Farm = None,
) -> None:
    """Create a queue. Where it exists with these settings, nothing changes.

    Processes of the client that run a Worker or a Consumer do its upkeep: retries, and messages of dead consumers.

    Example: latchwork queue create orders --client shop --shards 8
    """
    session: Session = context.obj.may_make()
    expiry = _span("--expiry-hours", expiry_hours, timedelta(hours=1))
    config = QueueConfig(
        name,
        shards=shards,
        concurrency=concurrency,
        message_expiry=expiry,
        queue_expiry=max(expiry, QUEUE_EXPIRY),
        sweep_duration=_span("--sweep-minutes", sweep_minutes, timedelta(minutes=1)),
        max_deliveries=max_deliveries,
        retry=retry,
        backoff=None if backoff_seconds is None else _span("--backoff-seconds", backoff_seconds, timedelta(seconds=1)),
        shovel=None
        if shovel_seconds is None
        else ShovelConfig(_span("--shovel-seconds", shovel_seconds, timedelta(seconds=1))),
        results=None if results_hours is None else _span("--results-hours", results_hours, timedelta(hours=1)),
    )
    registry_of(session, client, farm).create(config)
    session.say(f"created {name} with {counted(shards, 'shard')}", queue=name, shards=shards)


@app.command()
def stats(context: typer.Context, name: Name, client: Client, farm: Farm = None) -> None:
    """Show how a queue stands, who works on it, and what is wrong.

    Example: latchwork queue stats orders --client shop
    """
    session: Session = context.obj
    registry = registry_of(session, client, farm)
    queue_of(session, name, client, farm)
    show_stats(session, registry, name)


def show_stats(session: Session, registry: QueueRegistry, name: str) -> None:
    """Print a queue, or a group, as it is now. Raises `NotFound` for a group that is being made, or dropped."""
    taken, rows = all_rows(registry, name)
    for facts in rows:
        session.say(*lines_of(for_people(facts)), *findings_lines(findings_of(taken)), **facts)
    if not rows:
        raise NotFound(f"{name!r} is being made, or dropped", queue=name)


@app.command()
def pause(
    context: typer.Context, name: Name, client: Client, timeout: ActsWithin = ACTS_WITHIN, farm: Farm = None
) -> None:
    """Let no handler begin any more, in all workers.

    It waits until they act on it: 3 s at most, while they live. Handlers that have begun go on to their end. Messages
    that wait go on expiring. Exit code 4 if a worker has not acted on it within --timeout; the queue is paused all the
    same. A queue that is paused already stays paused by the same person, since the same time.

    Example: latchwork queue pause orders --client shop
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)
    done = f"paused {name}"
    if queue.concurrency:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the lines below say it
            with noted(session, "pause", client, farm, name, before=counted(queue.concurrency, "thread")):
                queue.pause(by=person())
    else:
        done = f"{name} is paused already: {_paused(queue, session.store.seams.wall())}"
    ready = sum(state.loaded - state.fired for state in queue.pointers.states())
    waiting = f"{counted(ready, 'ready message')} waiting" if ready else "nothing ready"
    life = exact_time(queue.config.message_expiry)
    _settle(session, queue, timeout, "the pause", f"{done}; {waiting}; messages go on expiring, each after {life}")


@app.command()
def resume(
    context: typer.Context, name: Name, client: Client, timeout: ActsWithin = ACTS_WITHIN, farm: Farm = None
) -> None:
    """Start its consumers again, with as many threads as before.

    It waits until they act on it, as `queue pause` does. A queue that was not paused stays as it is.

    Example: latchwork queue resume orders --client shop
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)
    done = f"{name} was not paused"
    if not queue.concurrency:
        with noted(session, "resume", client, farm, name, before=_paused(queue, session.store.seams.wall()) or ""):
            queue.resume(by=person())
        done = f"resumed {name}"
    threads = counted(queue.concurrency, "worker thread")
    _settle(session, queue, timeout, "this", f"{done}: {threads} in each consumer process")


def _settle(session: Session, queue: ShardedQueue, timeout: float, change: str, done: str) -> None:
    """Wait until all workers act on the settings that were just changed; say what was done, and who does not act.

    change: what is stored, for the person who interrupts the wait.
    """
    seams, changed = session.store.seams, queue.live.changed
    began = seams.monotonic()
    workers: list[WorkerReport] = []

    def late() -> list[WorkerReport]:
        workers[:] = [worker for worker in queue.workers() if not worker.is_silent]
        return [worker for worker in workers if worker.acts_on < changed]

    if timeout:
        try:
            with Deadline(seams, timeout) as deadline:
                ACT_LOOKS.until(seams, lambda: outlive(seams, deadline, late) == [] or None, timeout=deadline.left())
        except KeyboardInterrupt:
            missing = [worker.worker for worker in workers if worker.acts_on < changed]
            act = f"not yet: {', '.join(missing)}" if missing else "which workers act on it was not asked yet"
            note(f"{done}. {change[0].upper()}{change[1:]} is stored, and all workers will act on it; {act}")
            raise
    else:
        late()
    silent = [worker for worker in workers if worker.acts_on < changed]
    running = sum(worker.running for worker in workers if worker.acts_on >= changed)
    within = f"within {seams.monotonic() - began:.1f} s"
    acting = f"{len(workers) - len(silent)} of {counted(len(workers), 'worker')} acted on it, {within}"
    if silent and not timeout:
        act = "worker acts" if len(silent) == 1 else "workers act"
        acting = f"{len(silent)} {act} on it within {WITHIN:g} s; this was not waited for"
    lines = [done, acting if workers else "no worker runs"]
    if running and not queue.concurrency:
        lines.append(f"{counted(running, 'handler')} had begun, and may go on to the end")
    lines += [
        f"{short_name(worker.worker)} keeps its own number of threads, {worker.threads}: its program sets "
        "`concurrency` or `weights`"
        for worker in workers
        if worker.acts_on >= changed and queue.concurrency and worker.threads != queue.concurrency
    ]
    lines += [
        f"not yet: {worker.worker}, which last reported {shown_time(worker.ago)} ago: it hangs, was killed, or is "
        "of an earlier version"
        for worker in silent
        if timeout
    ]
    session.say(
        *lines, queue=queue.name, consumers=queue.concurrency, workers=[worker.worker for worker in workers],
        not_yet=[worker.worker for worker in silent], running=running,
    )  # fmt: skip
    if silent and timeout:
        raise typer.Exit(TIMED_OUT)


@app.command()
def scale(
    context: typer.Context,
    name: Name,
    n: Annotated[int, typer.Argument(help="worker threads, 0 to 100")],
    client: Client,
    timeout: ActsWithin = ACTS_WITHIN,
    farm: Farm = None,
) -> None:
    """Set the number of worker threads in each consumer process.

    It waits until they act on it, as `queue pause` does. A paused queue works again.

    Example: latchwork queue scale orders 8 --client shop
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)
    was = queue.live
    with noted(session, "scale", client, farm, name, before=counted(was.concurrency, "thread")) as deed:
        queue.scale(n, by=person())
        deed.after = counted(n, "thread")
    resumed = (
        f"; it was paused by {was.changed_by or 'its maker'}, and works again" if n and not was.concurrency else ""
    )
    change = "the number of threads"
    _settle(session, queue, timeout, change, f"{name}: threads in each consumer process: {n}{resumed}")


@app.command("set")
def change(
    context: typer.Context,
    name: Name,
    client: Client,
    retry: Annotated[
        bool, typer.Option("--retry/--no-retry", help="bring failed messages back, or leave them in the sideline")
    ],
    farm: Farm = None,
) -> None:
    """Change whether failed messages are tried again.

    It is for a queue that does not retry, as one that an earlier version has made. What is in the sideline already
    comes back too, within a minute or two, while a worker runs. Workers that run go on as before until they are started
    again: what they fail goes into the sideline, and comes back from there. A program that creates the queue with
    another retry gets it as it is set here, and logs that.

    Example: latchwork queue set orders --client shop --retry
    """
    session: Session = context.obj
    what = "failed messages are tried again" if retry else "failed messages stay in the sideline"
    with noted(session, "set", client, farm, name) as deed:
        registry_of(session, client, farm).set_retry(name, retry)
        deed.after = what
    session.say(f"{name}: {what}; workers that run take it on when they are started again", queue=name, retry=retry)


@app.command()
def shovel(context: typer.Context, name: Name, client: Client, farm: Farm = None) -> None:
    """Bring back what is due in the sideline, once.

    Example: latchwork queue shovel orders --client shop
    """
    session: Session = context.obj
    report = Shovel(queue_of(session, name, client, farm)).run_once()
    session.say(
        f"moved {report.moved}, not due {report.postponed}, empty {report.tombstones}, failed {len(report.errors)}",
        moved=report.moved,
        postponed=report.postponed,
        tombstones=report.tombstones,
        failed=[str(error) for error in report.errors],
    )
    if report.errors:
        raise typer.Exit(1)


@app.command()
def sweep(
    context: typer.Context,
    client: Client,
    election: Annotated[str | None, typer.Option(help="the election [default: CLIENT-sweeper]")] = None,
    timeout: Annotated[
        float | None, typer.Option(help="seconds to wait to be elected [default: 30; no limit with --every]")
    ] = None,
    every: Annotated[
        float | None, typer.Option(help="stay, and sweep again every this many seconds, 1 to 86400")
    ] = None,
    farm: Farm = None,
) -> None:
    """Sweep every queue of the client once, if elected. Exit code 1 if a part failed.

    While another process leads, this one is not elected, and the exit code is 4. Give --election the name that your own
    sweepers use, if it is not CLIENT-sweeper. One sweep moves messages that were left alone, but passes no slot whose
    message is missing: for that, one process has to observe for the queue's whole sweep duration, as a service with a
    Sweeper does, or --every, which sweeps until Ctrl-C. With --every, and without --election, it does all that the
    upkeep in a worker does: it also delivers delayed messages, retries and schedules.

    Example: latchwork queue sweep --client shop --timeout 60
    """
    session: Session = context.obj
    pause = None if every is None else checked_every(every, least=1)
    registry = registry_of(session, client, farm)
    sweeper = _Sweep(session, registry, election, stays=pause is not None)
    if pause is None:
        if not any(registry.scan(active=None)):
            raise no_queues(session, client, farm)
        sweeper.once(30 if timeout is None else timeout)
    else:
        sweeper.for_ever(timeout, pause)


class _Sweep:
    """One sweeper for as long as the command runs, because it remembers when it first saw each mark."""

    def __init__(self, session: Session, registry: QueueRegistry, election: str | None, *, stays: bool) -> None:
        self._session, self._registry = session, registry
        # Who leads for long in the election of the workers keeps them from the upkeep, so it does all of that.
        self._upkeep = upkeep_of(registry) if stays and election is None else None
        candidate = self._upkeep.election.candidate if self._upkeep is not None else None
        self._contest = LeaseElection(session.store, election or election_name(registry.client_id), candidate=candidate)
        self._sweeper = Sweeper(registry, self._contest)

    def once(self, timeout: float) -> None:
        """Sweep, once it is elected, and exit with 1 if a part failed."""
        try:
            well = self._contest.run(lambda _: self._sweep_once(), timeout=timeout)
        except WaitTimeout as failure:
            raise WaitTimeout(f"{failure}: {self._why_not()}", **failure.details) from None
        if not well:
            raise typer.Exit(1)

    def _why_not(self) -> str:
        """Return why this command was not elected, and what to do instead."""
        leader, _ = election_now(self._session.store, self._contest.name)
        if leader is not None and leader.leads:
            return f"{short_name(leader.name)} leads, and sweeps every queue; {_SOONER}"
        lease = leader.lease if leader is not None and leader.held else self._contest.lease
        return (
            f"nobody leads, but a leader that died is replaced only once its lease was seen unchanged for {lease:g} s: "
            f"give --timeout {2 * lease:g} or more; a sweep takes only what was left alone for the queue's whole sweep "
            f"duration; {_SOONER}"
        )

    def for_ever(self, timeout: float | None, every: float) -> None:
        """Sweep while it is elected, again and again, also after the store was away, and do the rest of the upkeep."""

        def lead(leadership: Leadership) -> None:
            if self._upkeep is not None:
                self._upkeep.begin(leadership, sweeps=False)
            while not leadership.lost.is_set():
                try:
                    self._sweep_once()
                except LatchworkError as failure:
                    note(f"{failure} [{failure.code}]; the next sweep is in {every:g} s")
                leadership.lost.wait(every)

        while True:
            self._contest.run(lead, timeout=timeout)

    def _sweep_once(self) -> bool:
        report = self._sweeper.run_once()
        names = ("scanned", "acked", "rehomed", "live", "tombstones", "refused")
        counts = {name: getattr(report, name) for name in names}
        due = self._first_due(report)
        lines = [str(report)]
        if due is not None:
            when = f"the first is due within {shown_time(due)}, if its handler is gone"
            lines.append(f"{when}: a sweep then brings it back")
        self._session.say(
            *lines, epoch=report.epoch, queues=report.queues, **counts,
            first_due_s=None if due is None else round(due, 1), failures=report.failures,
        )  # fmt: skip
        return report.ok

    def _first_due(self, report: SweepReport) -> float | None:
        """Return in how many seconds the first of the messages in flight counts as left alone; None = there are none.

        One call for each queue that has some.
        """
        now, durations, due = self._registry.store.seams.wall(), dict[str, float](), list[float]()
        for shard in report.shards:
            if not shard.live and not shard.stamped:
                continue
            if shard.queue not in durations:
                durations[shard.queue] = self._registry.get(shard.queue).config.sweep_duration.total_seconds()
            since = [one.stamped / 1000 for one in shard.live_messages] + ([now] if shard.stamped else [])
            due += [max(0.0, one + durations[shard.queue] - now) for one in since]
        return min(due, default=None)


@app.command()
def wait(
    context: typer.Context,
    name: Name,
    client: Client,
    depth: Annotated[int, typer.Option(min=1, help="how many messages must be ready")],
    timeout: Annotated[float | None, typer.Option(help="seconds; no limit by default")] = None,
    farm: Farm = None,
) -> None:
    """Wait until a number of messages is ready. This is for scripts that work in bulk.

    Exit code 4 if the time is over before that.

    Example: latchwork queue wait orders --client shop --depth 1000 --timeout 600 && ./load.sh
    """
    session: Session = context.obj
    queue = queue_of(session, name, client, farm)

    def ready() -> int | None:
        waiting = sum(state.waiting for state in queue.pointers.states())
        return waiting if waiting >= depth else None

    seams = session.store.seams
    with Deadline(seams, checked_timeout(timeout)) as deadline:
        found = DEPTH_LOOKS.until(seams, lambda: outlive(seams, deadline, ready), timeout=deadline.left())
    if found is None:
        raise WaitTimeout(
            f"fewer than {counted(depth, 'message')} ready in {name!r} within {timeout:g} s: wait longer, or for fewer",
            queue=name,
        )
    session.say(f"ready in {name}: {counted(found, 'message')}", queue=name, ready=found)


@app.command()
def deactivate(
    context: typer.Context,
    name: Name,
    client: Client,
    confirm: Annotated[str | None, typer.Option(help="the name again; asked for without it")] = None,
    farm: Farm = None,
) -> None:
    """Refuse new messages. Those that are there are still consumed and swept.

    Example: latchwork queue deactivate orders --client shop --confirm orders
    """
    session: Session = context.obj
    registry = registry_of(session, client, farm)
    registry.get(name)
    if confirm is None:
        if sys.stdin.isatty():
            typer.echo(one_line(f"Type the queue's name to deactivate it ({name}): "), nl=False, err=True)
        confirm = sys.stdin.readline().rstrip("\n")
    if confirm != name:
        raise InvalidRequest(
            f"not deactivated: the name was not given again but {shown(confirm)}; type {shown(name)}, or --confirm "
            f"{name}"
        )
    with noted(session, "deactivate", client, farm, name):
        registry.deactivate(name)
    session.say(f"deactivated {name}", queue=name, active=False)


@app.command()
def activate(context: typer.Context, name: Name, client: Client, farm: Farm = None) -> None:
    """Take new messages again, after a deactivation.

    Example: latchwork queue activate orders --client shop
    """
    session: Session = context.obj
    registry = registry_of(session, client, farm)
    registry.publishable(name)
    with noted(session, "activate", client, farm, name):
        registry.activate(name)
    session.say(f"activated {name}", queue=name, active=True)


def _span(option: str, number: float, unit: timedelta) -> timedelta:
    try:
        return number * unit
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"{option} is {number}; a queue takes no such time: give a number within its limits"
        ) from None


def for_people(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of `queue stats`, by names that say what they are."""
    marks, looked = ("overdue", "draining", "saturated"), facts["sidelined_looked_at"]
    workers = [
        short_name(one) + "".join(f" ({mark})" for mark in marks if one in facts[f"{mark}_workers"])
        for one in facts["workers"]
    ]
    reasons = ", ".join(f"{name} {count}" for name, count in facts["sidelined_by_reason"].items())
    of = f", of {looked} looked at" if 0 < looked < facts["sideline"] else ""
    ago, oldest = facts["swept_s_ago"], facts["oldest_age_s"]
    by = f" by {facts['changed_by']}" if facts["changed_by"] else ""
    since = f", {shown_time(facts['changed_s_ago'])} ago" if facts["changed_s_ago"] is not None else ""
    return {
        "queue": facts["queue"],
        "active": facts["active"],
        "paused": f"yes{by}{since}" if facts["paused"] else "no",
        "workers": f"{len(workers)}: {', '.join(workers)}" if workers else "none",
        "threads each": threads_each(facts["consumers"], facts["worker_threads"]) or facts["consumers"],
        "ready": facts["ready"],
        "oldest ready message": "-" if oldest is None else shown_time(oldest),
        "in flight": f"{facts['in_flight']}{_out_of(facts)}",
        "delayed": facts["delayed"],
        "of these, retrying": facts["retrying"],
        "sideline": f"{facts['sideline']} ({reasons}{of})" if reasons else facts["sideline"],
        "parked": facts["parked"],
        "batches": facts["batches"],
        "expired or removed": facts["expired"],
        "put in": facts["published"],
        "handed out": facts["received"],
        "shard balance": balance(facts),
        "swept": "never" if ago is None else f"{shown_time(ago)} ago",
        "sweep error": facts["sweep_error"],
    }


def balance(facts: Mapping[str, Any]) -> float | None:
    """Return the balance of the shards; None where chance alone makes it uneven: of few messages."""
    return facts["shard_balance"] if facts["published"] >= MANY else None


def _out_of(facts: Mapping[str, Any]) -> str:
    """Return among how many messages those were counted that are in flight, if not among all."""
    looked = facts["in_flight_looked_at"]
    return f", among the {looked:,} handed out last" if looked < facts["received"] else ""


def lines_of(facts: Mapping[str, Any]) -> list[str]:
    """Return a line for each fact, for people."""
    return [f"{key.replace('_', ' '):22} {_text(value)}" for key, value in facts.items()]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "-"
    return "-" if value is None else str(value)
